//! Descriptions of downloaded arrays: type, shape, order and source, without secrets.

use ndarray_shm::array::Description;
use ndarray_shm::{DType, Directory, Order};
use ndarray_shm_volume::demo::DemoSpec;
use ndarray_shm_volume::{
    Bbox, ChunkSource, Encoding, Missing, NewVolume, VolumeFormat, VolumeKind, VolumeNotes, VolumeUrl, create_volume,
    open_volume,
};
use serde_json::{Value, json};

use crate::place::Place;

fn described(place: &Place) -> Option<Description> {
    place.backend.description(&place.location).expect("a plain array")
}

/// Whether this directory stores descriptions of arrays; on Linux every directory of the tests does.
fn describes(directory: &Directory) -> bool {
    let describes = directory.can_describe().expect("a test file");
    assert_eq!(describes, cfg!(target_os = "linux"), "{directory:?}");
    describes
}

fn source_of(place: &Place, format: &str, path: &str) -> String {
    format!("{format}://{}", place.path(path).display())
}

#[test]
fn downloaded_array_describes_its_source() {
    for place in Place::of_each_kind() {
        let spec = DemoSpec::new(&[40, 30, 20], &[16, 16, 16], DType::U16);
        let volume = place.volume(&spec);
        let bbox = Bbox::parse("10:30,:,5:", &Bbox::whole(spec.shape())).expect("a region");
        place.download(&*volume, &bbox, &place.options().order(Order::F)).expect("a download");
        assert_eq!(described(&place).is_some(), describes(&place.backend));
        let Some(found) = described(&place) else { continue };
        assert_eq!((found.dtype(), found.shape(), found.order()), (DType::U16, &[20, 30, 15][..], Order::F));
        assert_eq!(found.note("source"), Some(source_of(&place, "zarr", "volume").as_str()));
        assert_eq!(found.note("bbox"), Some("10:30,0:30,5:20"));
    }
}

#[test]
fn description_contains_resolution_and_unit() {
    let place = Place::new();
    if !describes(&place.backend) {
        return; // without descriptions only the test above applies
    }
    for (format, name) in [(VolumeFormat::Precomputed, "precomputed"), (VolumeFormat::Zarr, "zarr")] {
        let mut new = NewVolume::new(format, &[8, 8, 8, 1], &[8, 8, 8, 1], DType::U8);
        new.resolution = if name == "zarr" { vec![4.0, 4.0, 40.5, 1.0] } else { vec![4.0, 4.0, 40.5] };
        let url = VolumeUrl::local(place.path(name)).format(format);
        create_volume(&url, &new).expect(name);
        let volume: Box<dyn ChunkSource> = open_volume(&url).expect(name);
        let options = place.options().replace(true).missing(Missing::Fill);
        place.download(&*volume, &volume.meta().domain(), &options).expect(name);
        let found = described(&place).expect(name);
        assert_eq!(found.note("source"), Some(source_of(&place, name, name).as_str()));
        let resolution = if name == "zarr" { "4 4 40.5 1" } else { "4 4 40.5" };
        assert_eq!((found.note("resolution"), found.note("unit")), (Some(resolution), Some("nm")), "{found:?}");
        assert_eq!(found.note("scale").is_some(), name == "precomputed");
    }
}

/// Notes have a part for each axis of the shape, in that order, whichever axis is contiguous.
#[test]
fn description_names_axes_origin_chunks_encoding_and_kind() {
    let place = Place::new();
    if !describes(&place.backend) {
        return;
    }
    let mut new = NewVolume::new(VolumeFormat::Precomputed, &[40, 30, 20, 1], &[16, 16, 8], DType::U32);
    (new.origin, new.kind) = (vec![-3, 5, 100, 0], Some(VolumeKind::Segmentation));
    new.encoding = Encoding::CompressedSegmentation;
    let precomputed = VolumeUrl::local(place.path("precomputed")).format(VolumeFormat::Precomputed);
    create_volume(&precomputed, &new).expect("created");
    for order in [Order::C, Order::F] {
        let volume = open_volume(&precomputed).expect("a volume");
        let bbox = volume.meta().parse_bbox("0:20,5:35,110:120").expect("a region");
        let options = place.options().order(order).replace(true).missing(Missing::Fill);
        let done = place.download(&*volume, &bbox, &options).expect("a download");
        let found = described(&place).expect("a description");
        // The renderbuffer adds the digest of its work.
        let without_digest = found.notes().filter(|(key, _)| *key != "work").collect::<Vec<_>>();
        assert_eq!(without_digest, done.description().notes().collect::<Vec<_>>());
        for (key, text) in [
            ("axes", "x y z channel"),
            ("bbox", "0:20,5:35,110:120,0:1"),
            ("origin", "-3 5 100 0"),
            ("chunk", "16 16 8 1"),
            ("encoding", "compressed_segmentation"),
            ("kind", "segmentation"),
        ] {
            assert_eq!(found.note(key), Some(text), "{order} {key}");
        }
        let notes = VolumeNotes::read(&found, found.shape());
        assert_eq!(notes.axis_words(4), ["x", "y", "z", "channel"]);
        assert_eq!((&notes.bbox, &notes.origin), (&Some(bbox), &vec![-3, 5, 100, 0]));
        assert_eq!((notes.kind, notes.encoding), (new.kind, Some(new.encoding)));
    }

    for (name, axes, expected) in [
        ("zyx", json!(["z", "y", "x"]), Some("z y x")),
        ("xyz", json!(["x", "y", "z"]), Some("x y z")),
        ("some", json!(["z", null, "x"]), Some("z 1 x")),
        ("doubled", json!(["x", "x", "my z"]), None),
        ("none", Value::Null, None),
    ] {
        let mut document = json!({
            "zarr_format": 3, "node_type": "array", "shape": [20, 30, 40], "data_type": "uint16", "fill_value": 7,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8, 16, 16]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        });
        if !axes.is_null() {
            document["dimension_names"] = axes;
        }
        std::fs::create_dir(place.path(name)).expect("made");
        std::fs::write(place.path(name).join("zarr.json"), document.to_string()).expect("written");
        let volume = open_volume(VolumeUrl::local(place.path(name))).expect("a volume");
        place.download(&*volume, &volume.meta().domain(), &place.options().replace(true)).expect("a download");
        let found = described(&place).expect("a description");
        let notes = ["axes", "origin", "chunk", "encoding", "kind"].map(|key| found.note(key));
        assert_eq!(notes, [expected, Some("0 0 0"), Some("8 16 16"), Some("raw"), None], "{name}");
    }
}

#[cfg(feature = "http")]
#[test]
fn description_omits_secrets_of_the_url() {
    let Some(_python) = crate::servers::python("description_omits_secrets_of_the_url") else {
        panic!("NDSHM_TEST_PYTHON is not set: run scripts/test")
    };
    let place = Place::new();
    let spec = DemoSpec::new(&[16, 16], &[16, 16], DType::U8);
    drop(place.volume(&spec));
    let server = crate::servers::HttpServer::plain(&place.path("volume"));
    let url = format!("{}?key=secret", server.url());
    let url = url.replace("http://", "http://me:word@");
    let volume = open_volume(&url).expect("a volume");
    place.download(&*volume, &volume.meta().domain(), &place.options()).expect("a download");
    let found = described(&place);
    assert_eq!(found.is_some(), describes(&place.backend));
    if let Some(found) = found {
        assert_eq!(found.note("source"), Some(format!("zarr://{}", server.url()).as_str()));
    }
}
