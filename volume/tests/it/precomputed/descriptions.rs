//! Wrong descriptions, volumes that cannot be created, and properties that a description does not contain.

use std::fs;

use ndarray_shm::DType;
use ndarray_shm_volume::{
    Encoding, Error, NewVolume, SourceFailure, VolumeOptions, VolumeUrl, create_volume, open_volume,
};
use serde_json::{Value, json};

use super::hostile::{Runs, new, open};
use crate::place::Place;
use crate::refused::{chain, with_slashes};

/// Writes a description with a change, and returns the metadata or the error of opening it.
fn changed(place: &Place, change: impl FnOnce(&mut Value)) -> String {
    let path = place.path("described");
    let mut info = json!({
        "@type": "neuroglancer_multiscale_volume",
        "type": "image",
        "data_type": "uint8",
        "num_channels": 1,
        "scales": [{
            "key": "1_1_1", "size": [64, 64, 64], "chunk_sizes": [[16, 16, 16]], "resolution": [1, 1, 1],
            "voxel_offset": [0, 0, 0], "encoding": "raw",
        }],
    });
    change(&mut info);
    fs::create_dir_all(&path).expect("a directory");
    fs::write(path.join("info"), info.to_string()).expect("a description");
    match open(&path) {
        Ok(source) => format!("{:?}", source.meta()),
        Err(error) => {
            let text = chain(&error);
            assert!(
                text.contains(&with_slashes(&path.join("info").display().to_string())),
                "the error names the file: {text}"
            );
            assert!(text.len() < 1000, "{text}");
            text
        }
    }
}

#[test]
fn whole_numbers_may_be_written_as_floats() {
    let place = Place::new();
    let plain = changed(&place, |_| {});
    let floats = changed(&place, |info| {
        info["num_channels"] = json!(1.0);
        let scale = &mut info["scales"][0];
        scale["size"] = json!([64.0, 64.0, 6.4e1]);
        scale["chunk_sizes"] = json!([[16.0, 16, 16.0]]);
        scale["voxel_offset"] = json!([0.0, -0.0, 0.0]);
    });
    assert_eq!(floats, plain);
    let offset = changed(&place, |info| info["scales"][0]["voxel_offset"] = json!([-7.0, 3.0, 1e6]));
    assert!(offset.contains("[-7, 3, 1000000, 0]"), "{offset}");
}

#[test]
fn error_names_the_fault_of_a_description() {
    let place = Place::new();
    assert!(changed(&place, |_| {}).contains("Precomputed, raw"));
    for (member, value, says) in [
        ("key", json!("../other"), "leads out of the volume"),
        ("key", json!("a/../../b"), "leads out of the volume"),
        ("key", json!("/etc"), "absolute"),
        ("key", json!("s3://elsewhere/x"), "absolute"),
        ("key", json!("a\\..\\b"), "characters"),
        ("key", json!(7), "`key` is 7"),
        ("size", json!([64, 64]), "`size`"),
        ("size", json!([64, -64, 64]), "`size`"),
        ("size", json!([64, 1e30, 64]), "`size`"),
        ("size", json!([64.5, 64, 64]), "`size`"),
        ("size", json!([-64.0, 64, 64]), "`size`"),
        // 2^53: beyond it, a float may stand for another whole number.
        ("size", json!([9_007_199_254_740_992.0, 64, 64]), "`size`"),
        ("chunk_sizes", json!([[16.25, 16, 16]]), "`chunk_sizes`"),
        ("voxel_offset", json!([0.5, 0, 0]), "`voxel_offset`"),
        ("size", json!("x".repeat(1_000_000)), "`size`"),
        ("chunk_sizes", json!([16, 16, 16]), "`chunk_sizes`"),
        ("chunk_sizes", json!([]), "`chunk_sizes`"),
        ("chunk_sizes", json!([[16, 0, 16]]), "`chunk_sizes`"),
        ("chunk_sizes", json!([[16, -1, 16]]), "`chunk_sizes`"),
        ("chunk_sizes", json!([[16.5, 16, 16]]), "`chunk_sizes`"),
        ("chunk_sizes", json!([[16, 16, "16"]]), "`chunk_sizes`"),
        ("voxel_offset", json!([0, 0.5, 0]), "`voxel_offset`"),
        ("voxel_offset", json!([0, i64::MAX, 0]), "beyond any coordinate"),
        ("resolution", json!([1, 1]), "`resolution`"),
        ("encoding", json!(null), "`encoding`"),
        ("encoding", json!("compresso"), "encoded as `compresso`: raw, jpeg"),
        ("encoding", json!("crackle"), "encoded as `crackle`"),
        ("encoding", json!("kempressed"), "encoded as `kempressed`"),
        ("encoding", json!("fpzip"), "encoded as `fpzip`"),
        ("encoding", json!("zfpc"), "encoded as `zfpc`"),
        ("encoding", json!("jxl"), "encoded as `jxl`"),
        ("encoding", json!("tiff"), "`tiff`, which is not known"),
        ("encoding", json!("compressed_segmentation"), "needs uint32 or uint64"),
        ("sharding", json!([]), "`sharding`"),
        ("sharding", json!({"@type": "neuroglancer_uint64_sharded_v1", "hash": "md5"}), "`hash`"),
    ] {
        let text = changed(&place, |info| info["scales"][0][member] = value.clone());
        assert!(text.contains(says), "{member}: {text}");
    }
    let huge = changed(&place, |info| {
        info["scales"][0]["size"] = json!([1u64 << 40, 1u64 << 40, 1u64 << 40]);
        info["scales"][0]["chunk_sizes"] = json!([[1u64 << 40, 1u64 << 40, 1u64 << 40]]);
    });
    assert!(huge.contains("cannot be decoded whole"), "{huge}");
    for (member, value, says) in [
        ("data_type", json!("string"), "elements of type string"),
        ("data_type", json!(8), "`data_type`"),
        ("num_channels", json!(0), "`num_channels`"),
        ("num_channels", json!(u64::MAX), "cannot be decoded whole"),
        ("num_channels", json!(1.5), "`num_channels`"),
        ("scales", json!([]), "`scales`"),
        ("scales", json!({"key": 1}), "`scales`"),
        ("scales", json!([7]), "`key`"),
        ("@type", json!("neuroglancer_annotations_v1"), "annotations"),
        ("@type", json!("neuroglancer_multilod_draco"), "meshes"),
        ("@type", json!("neuroglancer_skeletons"), "skeletons"),
        ("@type", json!("neuroglancer_segment_properties"), "properties of segments"),
        ("graph", json!({"chunk_size": [1, 1, 1]}), "graphene"),
    ] {
        let text = changed(&place, |info| info[member] = value.clone());
        assert!(text.contains(says), "{member}: {text}");
    }
    assert!(
        changed(&place, |info| *info = json!({"mesh": "mesh", "data_type": "uint8"})).contains("meshes or skeletons")
    );
    assert!(changed(&place, |info| *info = json!([1])).contains("no JSON object"));
    let path = place.path("described");
    for text in [&b""[..], b"{", b"\xff\xfe", b"null", &[0x1f, 0x8b, 8, 0, 0]] {
        fs::write(path.join("info"), text).expect("a description");
        let error = open(&path).expect_err("damaged");
        assert_eq!(error.source_failure(), Some(SourceFailure::Damaged), "{error}");
        assert!(error.to_string().contains("info` is damaged: "), "{error}");
    }
    for (kind, document) in [
        (SourceFailure::NotAVolume, json!({"@type": "neuroglancer_skeletons"})),
        (SourceFailure::Unsupported, json!({"data_type": "string", "scales": []})),
        (SourceFailure::Damaged, json!({"data_type": "uint8", "scales": []})),
    ] {
        fs::write(path.join("info"), document.to_string()).expect("a description");
        assert_eq!(open(&path).expect_err("no volume").source_failure(), Some(kind), "{document}");
    }
    fs::remove_file(path.join("info")).expect("the description");
    let url: VolumeUrl = format!("precomputed://{}", path.display()).parse().expect("a URL");
    assert_eq!(VolumeOptions::new().open(&url).expect_err("nothing").source_failure(), Some(SourceFailure::Absent));
    changed(&place, |_| {});
    let error = VolumeOptions::new().mip(3).open(VolumeUrl::local(&path)).expect_err("no such scale");
    assert!(chain(&error).contains("no scale 3: it has 1 (1_1_1)"), "{error}");
}

#[test]
fn members_outside_the_format_are_ignored() {
    let place = Place::new();
    let text = changed(&place, |info| {
        info["mesh"] = json!("mesh");
        info["skeletons"] = json!("skeletons");
        info["anything"] = json!({"scales": 7});
        info["scales"][0]["hidden"] = json!(true);
        info["scales"][0]["chunk_sizes"] = json!([[16, 16, 16], [64, 64, 1]]);
        info["scales"][0]["key"] = json!("./a/../1_1_1");
        info["scales"][0].as_object_mut().expect("a scale").remove("voxel_offset");
    });
    assert!(text.contains("Precomputed, raw") && text.contains("[16, 16, 16, 1]"), "{text}");
}

#[test]
fn reopened_volume_packs_as_told_until_a_chunk_exists() {
    let place = Place::new();
    for (number, (made, said, packed)) in [
        (Encoding::Gzip, Some(Encoding::Gzip), true),
        (Encoding::Gzip, None, false),
        (Encoding::Raw, Some(Encoding::Raw), false),
        (Encoding::CompressedSegmentation, Some(Encoding::CompressedSegmentation), false),
        (Encoding::CompressedSegmentation, None, false),
        (Encoding::CompressedSegmentationGzip, Some(Encoding::CompressedSegmentationGzip), true),
    ]
    .into_iter()
    .enumerate()
    {
        let path = place.path(&format!("volume-{number}"));
        let url = VolumeUrl::local(&path);
        create_volume(&url, &new(DType::U32, made)).expect("a volume");
        let mut options = VolumeOptions::new();
        for said in [said, None, Some(Encoding::Raw), Some(Encoding::Gzip)] {
            // From the second round on there is a chunk, which takes precedence over the options.
            if let Some(said) = said {
                options = options.encoding(said);
            }
            let sink = options.open_writable(&url).expect("a volume");
            let region = sink.meta().domain();
            let encoded = sink.encode(region.ranges(), &Runs(4)).expect("encoded");
            sink.store(region.ranges(), encoded).expect("stored");
            let file = path.join("1_1_1/0-16_0-16_0-16");
            assert_eq!((file.is_file(), file.with_extension("gz").is_file()), (!packed, packed), "{made:?} {said:?}");
        }
    }
}

type Change = fn(&mut NewVolume);

#[test]
fn unsupported_new_volumes_are_refused_and_leave_nothing() {
    let place = Place::new();
    let changes: [(&str, Change); 14] = [
        ("not 2 axes", |new| (new.shape, new.chunk_shape) = (vec![4, 4], vec![4, 4])),
        ("do not divide", |new| new.chunk_shape = vec![4, 0, 4]),
        ("all 3 channels", |new| (new.shape, new.chunk_shape) = (vec![4, 4, 4, 3], vec![4, 4, 4, 1])),
        ("has no elements", |new| (new.shape, new.chunk_shape) = (vec![0, 4, 4], vec![4, 4, 4])),
        ("without shards only", |new| new.shard_shape = Some(vec![8, 8, 8])),
        ("begin at 0", |new| new.origin = vec![0, 0, 0, 5]),
        ("three lengths", |new| new.resolution = vec![1.0, f64::NAN, 1.0]),
        ("no elements of type", |new| new.dtype = DType::F64),
        ("raw, gzip, jpeg", |new| new.encoding = Encoding::Zstd),
        ("needs uint8", |new| (new.dtype, new.encoding) = (DType::U16, Encoding::Jpeg)),
        ("jpeg chunks only", |new| new.jpeg_quality = Some(60)),
        ("1 to 100, not 0", |new| (new.encoding, new.jpeg_quality) = (Encoding::Jpeg, Some(0))),
        ("1 to 100, not 101", |new| (new.encoding, new.jpeg_quality) = (Encoding::Jpeg, Some(101))),
        ("cannot be decoded whole", |new| {
            (new.shape, new.chunk_shape) = (vec![1 << 14; 3], vec![1 << 14; 3]);
        }),
    ];
    for (number, (reason, change)) in changes.into_iter().enumerate() {
        let path = place.path(&format!("volume-{number}"));
        let mut new = new(DType::U8, Encoding::Raw);
        change(&mut new);
        let error = create_volume(VolumeUrl::local(&path), &new).expect_err(reason);
        assert!(matches!(error, Error::NewVolume { .. }), "{number}: {error:?}");
        assert!(chain(&error).contains(reason), "{number}: {}", chain(&error));
        assert!(!path.exists(), "{number}");
    }
    let path = place.path("volume");
    create_volume(VolumeUrl::local(&path), &new(DType::U8, Encoding::Raw)).expect("a volume");
    let error = create_volume(VolumeUrl::local(&path), &new(DType::U8, Encoding::Raw)).expect_err("it is there");
    assert!(chain(&error).contains("already"), "{}", chain(&error));
}

#[test]
fn a_lower_quality_makes_smaller_pictures() {
    let place = Place::new();
    let mut lengths = Vec::new();
    for quality in [None, Some(100), Some(85), Some(20)] {
        let path = place.path(&format!("volume-{quality:?}"));
        let mut new = new(DType::U8, Encoding::Jpeg);
        new.jpeg_quality = quality;
        let sink = create_volume(VolumeUrl::local(&path), &new).expect("a volume");
        let there = open_volume(&path).expect("the volume");
        assert!(new.is_like(there.meta()), "{quality:?}: {}", there.meta().description);
        new.jpeg_quality = Some(50);
        assert!(!new.is_like(there.meta()), "{quality:?}: {}", there.meta().description);
        let region = sink.meta().domain();
        let encoded = sink.encode(region.ranges(), &Runs(1)).expect("encoded");
        sink.store(region.ranges(), encoded).expect("stored");
        lengths.push(fs::metadata(path.join("1_1_1/0-16_0-16_0-16")).expect("a chunk").len());
    }
    assert!(lengths[1] > lengths[2] && lengths[2] > lengths[3], "{lengths:?}");
    assert_eq!(lengths[0], lengths[2], "85 is the default quality");
}
