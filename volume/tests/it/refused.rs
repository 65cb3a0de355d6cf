//! Invalid volumes, regions and chunks: the error must say what is wrong, and nothing may be left behind.

use std::fs;
use std::ops::Range;
use std::path::Path;

use ndarray_shm::{DType, Order};
use ndarray_shm_volume::demo::{self, Codec, DemoSpec, Format};
use ndarray_shm_volume::{
    Bbox, ChunkSource, Error, Fetched, Result, Scratch, SourceFailure, VolumeMeta, VolumeUrl, open_volume,
};
use serde_json::{Value, json};

use crate::place::{Place, corrupt};

/// Returns the text of an error and its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    with_slashes(&text)
}

/// Replaces the backslashes of Windows paths by slashes.
pub(crate) fn with_slashes(text: &str) -> String {
    text.replace('\\', "/")
}

/// Writes a volume, changes its metadata, and returns the error of opening it.
fn with_metadata(spec: &DemoSpec, change: impl FnOnce(&mut Value)) -> Error {
    let place = Place::new();
    let path = place.path("volume");
    demo::write_volume(&path, spec).expect("a volume");
    let file =
        [".zarray", "zarr.json"].map(|name| path.join(name)).into_iter().find(|file| file.exists()).expect("one");
    let mut json = serde_json::from_slice(&fs::read(&file).expect("the metadata")).expect("a document");
    change(&mut json);
    fs::write(&file, json.to_string()).expect("the metadata");
    open_volume(VolumeUrl::local(&path)).expect_err("no volume")
}

fn v2() -> DemoSpec {
    DemoSpec::new(&[8, 8], &[4, 4], DType::U16).format(Format::ZarrV2)
}

fn v3() -> DemoSpec {
    DemoSpec::new(&[8, 8], &[4, 4], DType::U16)
}

#[test]
fn unsupported_element_types_are_named() {
    for (dtype, name) in [
        (json!("<U4"), "<U4"),
        (json!("|S3"), "|S3"),
        (json!("<M8[ns]"), "<M8[ns]"),
        (json!("|O"), "|O"),
        (json!([["x", "<f4"], ["y", "<i2"]]), r#"[["x","<f4"],["y","<i2"]]"#),
    ] {
        let error = with_metadata(&v2(), |json| json["dtype"] = dtype);
        assert!(matches!(&error, Error::UnsupportedDType { dtype, .. } if dtype == name), "{}", chain(&error));
        assert!(error.to_string().contains("float16, bfloat16, float32"), "{error}");
    }
    for (dtype, name) in [
        (json!("string"), "string"),
        (json!("r16"), "r16"),
        (json!("int4"), "int4"),
        (json!({"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1}}), "numpy.datetime64"),
    ] {
        let error = with_metadata(&v3(), |json| json["data_type"] = dtype);
        assert!(matches!(&error, Error::UnsupportedDType { dtype, .. } if dtype.contains(name)), "{}", chain(&error));
    }
}

#[test]
fn unsupported_codecs_and_grids_are_named() {
    let error = with_metadata(&v3(), |json| json["codecs"][1] = json!({"name": "squash", "configuration": {}}));
    assert!(
        error.source_failure() == Some(SourceFailure::Unsupported) && chain(&error).contains("squash"),
        "{}",
        chain(&error)
    );
    let error = with_metadata(&v2(), |json| json["compressor"] = json!({"id": "zfpy", "mode": 4}));
    assert!(
        error.source_failure() == Some(SourceFailure::Unsupported) && chain(&error).contains("zfpy"),
        "{}",
        chain(&error)
    );
    #[cfg(not(feature = "codecs"))]
    for codec in ["lz4", "lzma", "pcodec"] {
        let v2 = with_metadata(&v2(), |json| json["compressor"] = json!({"id": codec}));
        let v3 = with_metadata(&v3(), |json| json["codecs"][1] = json!({"name": format!("numcodecs.{codec}")}));
        for error in [v2, v3] {
            assert_eq!(error.source_failure(), Some(SourceFailure::NotBuiltIn), "{error}");
            assert!(error.to_string().contains(codec) && error.to_string().contains("feature `codecs`"), "{error}");
        }
    }
    let grid = json!({"name": "rectangular", "configuration": {"chunk_shape": [[3, 5], 4]}});
    let error = with_metadata(&v3(), |json| json["chunk_grid"] = grid);
    assert!(
        error.source_failure() == Some(SourceFailure::Unsupported) && chain(&error).contains("rectangular"),
        "{}",
        chain(&error)
    );
}

#[test]
fn damaged_metadata_is_an_error() {
    let changes: [fn(&mut Value); 10] = [
        |json| json["chunk_grid"]["configuration"]["chunk_shape"] = json!([1u64 << 31, 1u64 << 31]),
        |json| json["chunk_grid"]["configuration"]["chunk_shape"] = json!([u64::MAX, 3]),
        |json| json["shape"] = json!([8]),
        |json| json["shape"] = json!("large"),
        |json| json["data_type"] = Value::Null,
        |json| json["node_type"] = json!("leaf"),
        |json| json["fill_value"] = json!("seven"),
        |json| json["chunk_grid"]["configuration"]["chunk_shape"] = json!([4, 0]),
        |json| json["codecs"] = json!([]),
        |json| *json = json!([1, 2, 3]),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let error = with_metadata(&v3(), change);
        assert_eq!(error.source_failure(), Some(SourceFailure::Damaged), "change {number}: {}", chain(&error));
        assert!(error.to_string().contains("is damaged: "), "change {number}: {error}");
    }
    let changes: [fn(&mut Value); 4] = [
        |json| json["chunks"] = json!([4, 0]),
        |json| json["chunks"] = json!([4]),
        |json| json["order"] = json!("Z"),
        |json| json["zarr_format"] = json!(1),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let error = with_metadata(&v2(), change);
        assert_eq!(error.source_failure(), Some(SourceFailure::Damaged), "change {number}: {}", chain(&error));
        assert!(error.to_string().contains("is damaged: "), "change {number}: {error}");
    }
    let place = Place::new();
    place.volume(&v3());
    fs::write(place.path("volume/zarr.json"), b"{\"zarr_format\": 3, ").expect("the metadata");
    let error = open_volume(VolumeUrl::local(place.path("volume"))).expect_err("cut short");
    assert!(error.to_string().contains("zarr.json` is damaged: "), "{error}");
    assert!(chain(&error).contains("line 1 column 19"), "{}", chain(&error));
}

#[test]
fn error_describes_a_path_without_a_volume() {
    let place = Place::new();
    let message = |path: &Path, kind: SourceFailure| {
        let error = open_volume(VolumeUrl::local(path)).expect_err("no volume");
        assert_eq!(error.source_failure(), Some(kind), "{}", chain(&error));
        error.to_string()
    };
    assert!(message(&place.path("nowhere"), SourceFailure::Absent).contains("no such directory"));

    place.volume(&v3());
    assert!(message(&place.path("volume/zarr.json"), SourceFailure::NotAVolume).contains("give the directory"));
    assert!(message(&place.path("volume/c/0/0"), SourceFailure::NotAVolume).contains("a Zarr array is a directory"));
    assert!(message(&place.path("volume/c"), SourceFailure::Absent).contains("neither zarr.json nor .zarray"));

    let look_alike = place.path("look-alike");
    fs::create_dir(&look_alike).expect("a directory");
    fs::write(look_alike.join("info"), "{}").expect("a file");
    let said = message(&look_alike, SourceFailure::Damaged);
    assert!(said.contains("info") && said.contains("damaged"), "{said}");

    for (name, text) in
        [("zarr.json", r#"{"zarr_format": 3, "node_type": "group"}"#), (".zgroup", r#"{"zarr_format": 2}"#)]
    {
        let group = place.path(&format!("group-{name}"));
        fs::create_dir(&group).expect("a directory");
        fs::write(group.join(name), text).expect("the group's metadata");
        assert!(
            message(&group, SourceFailure::NotAVolume).contains("is a Zarr group, not an array: give the path"),
            "{name}"
        );
        demo::write_volume(&group.join("scale-1"), &v2()).expect("an array in the group");
        demo::write_volume(&group.join("scale-0"), &v3()).expect("an array in the group");
        fs::create_dir(group.join("notes")).expect("something else");
        assert!(
            message(&group, SourceFailure::NotAVolume).ends_with("(scale-0, scale-1)"),
            "{}",
            message(&group, SourceFailure::NotAVolume)
        );
    }
}

/// The container is a group as bioformats2raw makes it, with a group for each image; the group `OME` lists the images.
#[test]
fn error_for_a_container_names_its_first_image() {
    let layout = r#""bioformats2raw.layout": 3"#;
    let v3 = |attributes: &str| {
        ("zarr.json", format!(r#"{{"zarr_format": 3, "node_type": "group", "attributes": {attributes}}}"#))
    };
    let v2 = |attributes: &str| (".zattrs", attributes.to_owned());
    let of_ome = |member: &str| format!(r#"{{"ome": {{"version": "0.5", {member}}}}}"#);
    let of_root = |member: &str| format!("{{{member}}}");
    let series = r#""series": ["images/first", "images/second"]"#;
    let outside = r#""series": ["../elsewhere"]"#;
    for (number, (document, listing, image)) in [
        (v2(&of_root(layout)), None, "0"),
        (v2(&of_root(layout)), Some(v2(&of_root(series))), "images/first"),
        (v3(&of_ome(layout)), None, "0"),
        (v3(&of_root(layout)), None, "0"),
        (v3(&of_ome(layout)), Some(v3(&of_ome(series))), "images/first"),
        (v3(&of_ome(layout)), Some(v3(&of_ome(outside))), "0"),
        (v3(&of_ome(layout)), Some(("zarr.json", "damaged".to_owned())), "0"),
    ]
    .into_iter()
    .enumerate()
    {
        let place = Place::new();
        let make = |path: &str, (name, text): (&str, String)| {
            let group = place.path("container").join(path);
            fs::create_dir_all(&group).expect("a directory");
            if name == ".zattrs" {
                fs::write(group.join(".zgroup"), r#"{"zarr_format": 2}"#).expect("a group");
            }
            fs::write(group.join(name), text).expect("its metadata");
        };
        make("", document);
        let refused = || {
            let error = open_volume(VolumeUrl::local(place.path("container"))).expect_err("a container");
            assert_eq!(error.source_failure(), Some(SourceFailure::NotAVolume), "{number}: {error}");
            chain(&error)
        };
        // The error does not suggest an image that does not exist.
        assert!(refused().contains("this is a Zarr group, not an array"), "{number}: {}", refused());
        if let Some(listing) = listing {
            make("OME", listing);
        }
        make(image, v3(&of_ome(r#""multiscales": []"#)));
        let expected = with_slashes(&place.path("container").display().to_string());
        let text = with_slashes(&refused());
        assert!(text.contains("bioformats2raw") && text.ends_with(&format!("such as `{expected}/{image}`")), "{text}");
    }
}

#[test]
fn regions_must_have_elements_and_lie_in_the_volume() {
    let place = Place::new();
    let source = place.volume(&v3());
    for (bbox, reason) in [
        (Bbox::whole(&[8, 9]), "axis 1 ends at 8"),
        (Bbox::whole(&[8]), "1 axes, but the volume has 2"),
        (Bbox::whole(&[8, 0]), "axis 1 is empty"),
        ("8:9,0:1".parse().expect("a box"), "axis 0 ends at 8"),
        ("0:9223372036854775807,0:1".parse().expect("a box"), "axis 0 ends at 8"),
    ] {
        let error = place.download(&*source, &bbox, &place.options()).expect_err(reason);
        assert!(matches!(error, Error::Bbox { .. }) && error.to_string().contains(reason), "{error}");
    }
    assert_eq!(place.left(), []);
    // The trait's methods are public: sources must also refuse regions that painters never request.
    let mut scratch = Scratch::new();
    for region in [vec![0..8, 0..4], vec![0..0, 0..4], vec![7..9, 0..1], vec![]] {
        assert!(matches!(source.read(&region, &mut scratch), Err(Error::Bbox { .. })), "{region:?}");
    }
}

#[test]
fn a_volume_without_elements_has_no_region() {
    let place = Place::new();
    for (name, spec) in [
        ("v3", DemoSpec::new(&[8, 0], &[4, 4], DType::U16)),
        ("v2", DemoSpec::new(&[0], &[1], DType::U8).format(Format::ZarrV2)),
    ] {
        let path = place.path(name);
        demo::write_volume(&path, &spec).expect("a volume");
        let source = open_volume(VolumeUrl::local(&path)).expect("it is a volume");
        let error = place.download(&*source, &Bbox::whole(spec.shape()), &place.options()).expect_err("empty");
        assert!(matches!(error, Error::Bbox { .. }), "{error}");
    }
}

#[test]
fn volume_larger_than_free_space_is_refused_early() {
    let place = Place::new();
    let error_of = |name: &str, shape: &[u64], chunk: &[u64]| {
        // The volume has no chunks.
        let path = place.path(name);
        demo::write_volume(&path, &DemoSpec::new(&vec![0; shape.len()], chunk, DType::F64)).expect("a volume");
        let mut json: Value =
            serde_json::from_slice(&fs::read(path.join("zarr.json")).expect("metadata")).expect("JSON");
        json["shape"] = json!(shape);
        fs::write(path.join("zarr.json"), json.to_string()).expect("metadata");
        let source = open_volume(VolumeUrl::local(&path)).expect("a large volume");
        place.download(&*source, &Bbox::whole(shape), &place.options()).expect_err("it cannot fit")
    };
    let rows = place.backend.available().expect("the free space") / (8 << 12) * 2 + 1;
    let error = error_of("large", &[rows, 1 << 12], &[1 << 12, 1 << 12]);
    // Under Wine growing a file takes no space; a mapping larger than the memory fails instead.
    let is_out_of_memory = cfg!(windows)
        && matches!(&error, Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::Os { .. }, .. }));
    // With 32 bits there may be more space than addresses.
    let is_too_large = usize::BITS == 32
        && matches!(&error, Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::TooLarge { .. }, .. }));
    let is_refused =
        matches!(&error, Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::NoSpace { .. }, .. }));
    assert!(is_refused || is_out_of_memory || is_too_large, "{error}");
    let error = error_of("huge", &[1 << 40, 1 << 40], &[1 << 12, 1 << 12]);
    assert!(
        matches!(error, Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::TooLarge { .. }, .. })),
        "{error}"
    );
    assert_eq!(place.left(), []);
}

#[test]
fn undecodable_chunk_is_named_and_leaves_nothing() {
    for codec in [Codec::Zstd, Codec::Blosc, Codec::Gzip] {
        for sharded in [false, true] {
            let spec = DemoSpec::new(&[64, 64], &[16, 16], DType::U32).codec(codec).complete(true);
            let place = Place::new();
            let source = place.volume(&if sharded { spec.shards(&[32, 64]) } else { spec });
            let chunk = place.path(if sharded { "volume/c/1/0" } else { "volume/c/2/3" });
            let whole = fs::read(&chunk).expect("the chunk");
            for length in [0, 1, whole.len() / 2, whole.len() - 1] {
                fs::write(&chunk, &whole[..length]).expect("the chunk");
                let error = place.download(&*source, &Bbox::whole(&[64, 64]), &place.options()).expect_err("cut short");
                let Error::Chunk { chunk: named, .. } = &error else { panic!("{}", chain(&error)) };
                // For a chunk in a shard, the error names both.
                let (of_shard, file) = named.split_once(" in ").unwrap_or(("", named));
                assert!(dunce::canonicalize(&chunk).expect("the chunk") == Path::new(file), "{named}");
                let is_number = |part: &str| part.parse::<u64>().is_ok();
                assert_eq!(of_shard.split('/').filter(|part| is_number(part)).count(), if sharded { 2 } else { 0 });
                assert_eq!(place.left(), [], "{codec:?}, sharded {sharded}, {length} bytes");
            }
        }
    }
}

#[test]
fn chunk_larger_than_memory_is_an_error_or_filled() {
    for codec in [Codec::Uncompressed, Codec::Zstd, Codec::Blosc, Codec::Gzip] {
        let place = Place::new();
        let spec = DemoSpec::new(&[100, 100], &[100, 100], DType::U32).codec(codec).complete(true);
        demo::write_volume(&place.path("volume"), &spec).expect("a volume");
        let metadata = place.path("volume/zarr.json");
        let mut json: Value = serde_json::from_slice(&fs::read(&metadata).expect("metadata")).expect("a document");
        // With 32 bits, a chunk beyond the address space would not be opened at all.
        let length = 1u64 << if usize::BITS == 32 { 13 } else { 20 };
        json["chunk_grid"]["configuration"]["chunk_shape"] = json!([length, length]);
        fs::write(&metadata, json.to_string()).expect("metadata");
        let source = open_volume(VolumeUrl::local(place.path("volume"))).expect("it is a volume");
        // The file is far too short for such a chunk.
        let error = place.download(&*source, &Bbox::whole(&[100, 100]), &place.options()).expect_err("too short");
        assert!(matches!(error, Error::Chunk { .. }), "{codec:?}: {}", chain(&error));
        assert_eq!(place.left(), []);
        fs::remove_file(place.path("volume/c/0/0")).expect("the chunk");
        place.download(&*source, &Bbox::whole(&[100, 100]), &place.options()).expect("the fill value");
    }
}

#[test]
fn codecs_with_checksums_detect_damaged_bytes() {
    for codec in [Codec::Zstd, Codec::Gzip] {
        let place = Place::new();
        let source = place.volume(&DemoSpec::new(&[64, 64], &[16, 16], DType::U32).codec(codec).complete(true));
        corrupt(&place.path("volume/c/1/1"));
        let error = place.download(&*source, &Bbox::whole(&[64, 64]), &place.options()).expect_err("damaged");
        assert!(matches!(&error, Error::Chunk { region, .. } if region == "16:32,16:32"), "{}", chain(&error));
        assert_eq!(place.left(), []);
    }
}

#[test]
fn an_uncompressed_chunk_of_another_length_is_an_error() {
    for change in [-1i64, 1] {
        let place = Place::new();
        let source =
            place.volume(&DemoSpec::new(&[8, 8], &[4, 4], DType::U16).codec(Codec::Uncompressed).complete(true));
        let file = fs::OpenOptions::new().write(true).open(place.path("volume/c/1/1")).expect("the chunk");
        file.set_len(file.metadata().expect("its length").len().strict_add_signed(change)).expect("another length");
        let error = place.download(&*source, &Bbox::whole(&[8, 8]), &place.options()).expect_err("another length");
        assert!(matches!(error, Error::Chunk { .. }), "{}", chain(&error));
    }
}

#[test]
fn unreadable_chunk_is_not_treated_as_missing() {
    let place = Place::new();
    let source = place.volume(&v3().complete(true));
    fs::remove_file(place.path("volume/c/0/1")).expect("the chunk");
    fs::create_dir(place.path("volume/c/0/1")).expect("a directory in its place");
    let error = place.download(&*source, &Bbox::whole(&[8, 8]), &place.options()).expect_err("not a file");
    assert!(matches!(error, Error::Chunk { .. }), "{}", chain(&error));
    assert_eq!(place.left(), []);
}

/// A source that violates its contract.
#[derive(Debug)]
struct Broken {
    meta: VolumeMeta,
    how: fn(&mut Scratch),
}

impl ChunkSource for Broken {
    fn meta(&self) -> &VolumeMeta {
        &self.meta
    }
    fn identity(&self) -> String {
        "a broken source".to_owned()
    }
    fn decode(&self, _region: &[Range<i64>], _fetched: Fetched, scratch: &mut Scratch) -> Result<()> {
        (self.how)(scratch);
        Ok(())
    }
}

fn broken(chunk_shape: &[u64], how: fn(&mut Scratch)) -> Broken {
    let (shape, chunk_shape) = (vec![8, 8], chunk_shape.to_vec());
    Broken { meta: VolumeMeta::new(&shape, &chunk_shape, DType::U16), how }
}

#[test]
fn source_violating_its_contract_gets_an_error() {
    let place = Place::new();
    let hows: [fn(&mut Scratch); 4] = [
        |_| {},
        |scratch| scratch.fill(&[1]),
        |scratch| scratch.block(vec![0; 31], vec![4, 4], Order::C, vec![0..4, 0..4]),
        // A block of another shape than the region's.
        |scratch| scratch.block(vec![0; 32], vec![2, 8], Order::C, vec![0..2, 0..8]),
    ];
    for (number, how) in hows.into_iter().enumerate() {
        let source = broken(&[4, 4], how);
        let error = place.download(&source, &Bbox::whole(&[8, 8]), &place.options()).expect_err("a broken promise");
        assert!(matches!(error, Error::Chunk { .. }), "{number}: {}", chain(&error));
        assert_eq!(place.left(), []);
    }
    for chunks in [&[4, 0][..], &[4]] {
        let source = broken(chunks, |_| {});
        let error = place.download(&source, &Bbox::whole(&[8, 8]), &place.options()).expect_err("no grid");
        assert!(matches!(error, Error::Source { .. }), "{}", chain(&error));
    }
}

#[test]
fn panic_in_a_source_becomes_an_error() {
    let place = Place::new();
    let source = broken(&[4, 4], |_| panic!("a decoder that panics"));
    let error = place.download(&source, &Bbox::whole(&[8, 8]), &place.options()).expect_err("a panic");
    let Error::Painting { report, done: 0, total: 4 } = &error else { panic!("{}", chain(&error)) };
    assert!(report.contains("a decoder that panics"), "{report}");
    assert_eq!(place.left(), []);
}

#[test]
fn impossible_demo_volumes_are_refused() {
    let place = Place::new();
    for (number, spec) in [
        DemoSpec::new(&[8, 8], &[4], DType::U8),
        DemoSpec::new(&[8, 8], &[4, 0], DType::U8),
        DemoSpec::new(&[8, 8], &[4, 4], DType::U8).shards(&[8, 6]),
        DemoSpec::new(&[8, 8], &[4, 4], DType::U8).shards(&[8]),
        DemoSpec::new(&[8, 8], &[4, 4], DType::U8).shards(&[8, 8]).format(Format::ZarrV2),
        DemoSpec::new(&[8, 8], &[4, 4], DType::Bf16).format(Format::ZarrV2),
    ]
    .iter()
    .enumerate()
    {
        let path = place.path(&format!("demo-{number}"));
        assert!(matches!(demo::write_volume(&path, spec), Err(Error::NewVolume { .. })), "{spec:?}");
        assert!(!path.exists());
    }
    place.volume(&v3());
    assert!(matches!(demo::write_volume(&place.path("volume"), &v3()), Err(Error::Io { .. })), "it is there already");
}
