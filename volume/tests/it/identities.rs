//! The text by which decoded chunks of a volume are cached: equal for sources that decode the same objects to the same
//! elements, and different for all others.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use ndarray_shm::DType;
use ndarray_shm_volume::demo::DemoSpec;
use ndarray_shm_volume::{NewVolume, VolumeFormat, VolumeOptions, VolumeUrl, create_volume, open_volume};
use serde_json::{Value, json};

use crate::place::Place;

/// Returns the text of a scale of a volume.
fn of_scale(path: &Path, mip: usize) -> String {
    let source = VolumeOptions::new().mip(mip).open(VolumeUrl::local(path)).expect("a volume");
    source.cache_identity().expect("volumes in files are cached")
}

fn of(path: &Path) -> String {
    of_scale(path, 0)
}

fn write(path: &Path, name: &str, document: &Value) {
    fs::create_dir_all(path).expect("a directory");
    fs::write(path.join(name), document.to_string()).expect("a document");
}

/// Writes each changed document in turn. Returns the texts.
fn texts(path: &Path, name: &str, document: &Value, changes: &[(&str, Value)]) -> Vec<String> {
    let text = |(pointer, value): &(&str, Value)| {
        let mut other = document.clone();
        match other.pointer_mut(pointer) {
            Some(member) => *member = value.clone(),
            None => other[pointer.trim_start_matches('/')] = value.clone(),
        }
        write(path, name, &other);
        of(path)
    };
    changes.iter().map(text).collect()
}

/// Checks that the text stays with some changes of a document, and is another one with each of the others.
fn check(path: &Path, name: &str, document: &Value, kept: &[(&str, Value)], others: &[(&str, Value)]) {
    write(path, name, document);
    let text = of(path);
    for (text_now, change) in texts(path, name, document, kept).iter().zip(kept) {
        assert_eq!(*text_now, text, "{change:?}");
    }
    let different = texts(path, name, document, others);
    assert!(!different.contains(&text), "{different:#?}");
    let unique: BTreeSet<&String> = different.iter().collect();
    assert_eq!(unique.len(), others.len(), "{different:#?}");
}

#[test]
fn zarr_text_is_of_the_place_and_the_encoding() {
    let place = Place::new();
    let document = json!({
        "zarr_format": 3, "node_type": "array", "shape": [8, 8], "data_type": "uint8", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 4]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes"}], "attributes": {},
    });
    let sharding = |chunk: u64| {
        json!([{"name": "sharding_indexed", "configuration": {
            "chunk_shape": [chunk, chunk], "codecs": [{"name": "bytes"}], "index_location": "end",
            "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
        }}])
    };
    let kept = [("/attributes", json!({"unit": "nm"})), ("/shape", json!([800, 8]))];
    let others = [
        ("/data_type", json!("int8")),
        ("/fill_value", json!(1)),
        ("/chunk_grid/configuration/chunk_shape", json!([4, 8])),
        ("/chunk_key_encoding/configuration/separator", json!(".")),
        ("/codecs", json!([{"name": "transpose", "configuration": {"order": [1, 0]}}, {"name": "bytes"}])),
        ("/codecs", json!([{"name": "bytes"}, {"name": "gzip", "configuration": {"level": 1}}])),
        ("/codecs", sharding(2)),
        ("/codecs", sharding(4)),
    ];
    check(&place.path("v3"), "zarr.json", &document, &kept, &others);

    let document = json!({
        "zarr_format": 2, "shape": [8, 8], "chunks": [4, 4], "dtype": "<u2", "fill_value": 0, "order": "C",
        "filters": null, "compressor": null,
    });
    let others = [
        ("/dtype", json!(">u2")),
        ("/order", json!("F")),
        ("/chunks", json!([8, 8])),
        ("/dimension_separator", json!("/")),
        ("/compressor", json!({"id": "zlib", "level": 1})),
    ];
    check(&place.path("v2"), ".zarray", &document, &[("/shape", json!([9, 9]))], &others);
}

#[test]
fn precomputed_text_is_of_one_scale() {
    let place = Place::new();
    let scale = |key: &str| {
        json!({
            "key": key, "size": [64, 64, 64], "chunk_sizes": [[32, 32, 32]], "resolution": [4, 4, 4], "encoding": "raw",
            "voxel_offset": [0, 0, 0],
        })
    };
    let document =
        json!({"data_type": "uint8", "num_channels": 1, "type": "image", "scales": [scale("4_4_4"), scale("8_8_8")]});
    let path = place.path("volume");
    let kept = [
        ("/scales", json!([scale("4_4_4")])),
        ("/scales", json!([scale("4_4_4"), scale("8_8_8"), scale("16_16_16")])),
        ("/type", json!("segmentation")),
        ("/scales/0/resolution", json!([5, 5, 5])),
    ];
    let others = [
        ("/data_type", json!("uint16")),
        ("/num_channels", json!(3)),
        ("/scales/0/key", json!("other")),
        ("/scales/0/size", json!([63, 64, 64])),
        ("/scales/0/chunk_sizes", json!([[32, 32, 16]])),
        ("/scales/0/voxel_offset", json!([1, 0, 0])),
        ("/scales/0/encoding", json!("jpeg")),
        ("/scales/0/encoding", json!("png")),
        (
            "/scales/0/sharding",
            json!({
                "@type": "neuroglancer_uint64_sharded_v1", "preshift_bits": 1, "hash": "identity", "minishard_bits": 1,
                "shard_bits": 1,
            }),
        ),
    ];
    // A pointer creates a member of the document itself only.
    let mut with_sharding = document.clone();
    with_sharding["scales"][0]["sharding"] = Value::Null;
    check(&path, "info", &with_sharding, &kept, &others);
    write(&path, "info", &document);
    assert_ne!(of(&path), of_scale(&path, 1), "another scale");
    let jpeg = &texts(&path, "info", &document, &[("/scales/0/encoding", json!("jpeg"))])[0];
    let decoder = if cfg!(feature = "turbojpeg") { "libjpeg-turbo" } else { "zune-jpeg" };
    assert!(jpeg.contains(decoder), "{jpeg}");

    // The text that tells volumes apart for downloads changes where this one does not.
    let identity = |path: &Path| open_volume(VolumeUrl::local(path)).expect("a volume").identity();
    write(&path, "info", &document);
    let before = (identity(&path), of(&path));
    let mut more = document.clone();
    more["scales"].as_array_mut().expect("a list").push(scale("16_16_16"));
    write(&path, "info", &more);
    assert_ne!(identity(&path), before.0);
    assert_eq!(of(&path), before.1);
}

#[test]
fn n5_text_is_of_the_dataset() {
    let place = Place::new();
    let document =
        json!({"dimensions": [8, 8], "blockSize": [4, 4], "dataType": "uint8", "compression": {"type": "gzip"}});
    let others = [
        ("/blockSize", json!([4, 2])),
        ("/dataType", json!("int8")),
        ("/compression", json!({"type": "raw"})),
        ("/compression", json!({"type": "gzip", "useZlib": true})),
    ];
    let kept = [("/dimensions", json!([9, 8])), ("/resolution", json!([1, 1]))];
    check(&place.path("n5"), "attributes.json", &document, &kept, &others);
}

#[test]
fn array_has_the_same_text_alone_and_in_its_group() {
    let place = Place::new();
    let path = place.path("group");
    let group = json!({"zarr_format": 3, "node_type": "group", "attributes": {"ome": {"version": "0.5", "multiscales": [
        {"axes": [{"name": "y"}, {"name": "x"}], "datasets": [
            {"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [1, 1]}]},
            {"path": "1", "coordinateTransformations": [{"type": "scale", "scale": [2, 2]}]},
        ]},
    ]}}});
    write(&path, "zarr.json", &group);
    for name in ["0", "1"] {
        let new = NewVolume::new(VolumeFormat::Zarr, &[8, 8], &[4, 4], DType::U8);
        create_volume(VolumeUrl::local(path.join(name)), &new).expect("a scale");
    }
    assert_eq!(of_scale(&path, 0), of(&path.join("0")));
    assert_eq!(of_scale(&path, 1), of(&path.join("1")));
    assert_ne!(of_scale(&path, 0), of_scale(&path, 1));
}

#[test]
fn created_volume_has_the_text_of_the_opened_one() {
    let place = Place::new();
    for (number, (format, version)) in
        [(VolumeFormat::Zarr, 3), (VolumeFormat::Zarr, 2), (VolumeFormat::Precomputed, 1)].into_iter().enumerate()
    {
        let path = place.path(&number.to_string());
        let mut new = NewVolume::new(format, &[8, 8, 8], &[4, 4, 4], DType::U8);
        new.version = version;
        let created = create_volume(VolumeUrl::local(&path), &new).expect("a volume");
        assert_eq!(created.cache_identity(), Some(of(&path)), "{format:?} {version}");
    }
}

#[test]
fn text_is_of_the_directory_and_not_of_its_name() {
    let place = Place::new();
    let spec = DemoSpec::new(&[8, 8], &[4, 4], DType::U8);
    let text = place.volume(&spec).cache_identity().expect("a text");
    let path = place.path("volume");
    assert_eq!(of(&place.path(".").join("volume")), text);
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(&path, place.path("link")).expect("a link");
        assert_eq!(of(&place.path("link")), text);
    }
    fs::rename(&path, place.path("moved")).expect("moved");
    assert_ne!(of(&place.path("moved")), text);
    assert!(!text.contains('\n'));
}

#[test]
#[cfg(feature = "http")]
fn text_of_a_server_has_its_port_and_no_secrets() {
    use crate::servers::{self, HttpServer};

    if servers::python("text_of_a_server_has_its_port_and_no_secrets").is_none() {
        return;
    }
    let place = Place::new();
    let local = place.volume(&DemoSpec::new(&[8, 8], &[4, 4], DType::U8)).cache_identity().expect("a text");
    let (first, second) = (HttpServer::start(&place.path("volume")), HttpServer::start(&place.path("volume")));
    let text = |url: String| open_volume(&url).expect("a volume").cache_identity().expect("a text");
    let with_user = first.url().replace("://", "://me:password@");
    assert_eq!(text(first.url()), text(with_user));
    let all = [
        local,
        text(first.url()),
        text(second.url()),
        text(format!("{}?signature=secret1", first.url())),
        text(format!("{}?signature=secret2", first.url())),
    ];
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "{all:#?}");
    assert!(!all.concat().contains("secret") && !all.concat().contains("signature"), "{all:#?}");
}
