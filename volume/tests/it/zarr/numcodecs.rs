//! Codecs of numcodecs and booleans: written elements are read back, and damaged or malicious data is refused.

use std::fs;
use std::path::Path;

use ndarray_shm::DType;
use ndarray_shm_volume::{ChunkSource, Encoding, Error, SourceFailure, VolumeOptions, VolumeUrl, open_volume};
use serde_json::{Value, json};

use super::hostile::{change, random, volume};
use super::{Whole, read, write};
use crate::place::Place;
use crate::refused::chain;

/// Returns filters and compressors of Zarr v2 for elements of uint16, and whether the last codec detects every change
/// of its bytes.
fn all() -> Vec<(Value, Value, bool)> {
    let checksum = |id: &str| (json!([{"id": id}]), Value::Null, true);
    #[cfg_attr(not(feature = "codecs"), expect(unused_mut, reason = "there are no more"))]
    let mut all = vec![
        (json!([{"id": "delta", "dtype": "<u2"}]), Value::Null, false),
        (json!([{"id": "delta", "dtype": "<u2", "astype": ">i4"}]), Value::Null, false),
        (json!([{"id": "shuffle", "elementsize": 2}]), json!({"id": "zlib"}), true),
        (json!([{"id": "delta", "dtype": "<u2"}, {"id": "crc32", "location": "end"}]), json!({"id": "blosc"}), false),
        checksum("crc32"),
        checksum("crc32c"),
        checksum("adler32"),
        checksum("fletcher32"),
        (Value::Null, json!({"id": "adler32"}), true),
    ];
    #[cfg(feature = "codecs")]
    all.extend([
        (Value::Null, json!({"id": "lz4", "acceleration": 1}), false),
        (Value::Null, json!({"id": "lzma"}), true),
        (Value::Null, json!({"id": "lzma", "format": 2}), false),
        (json!([{"id": "crc32"}]), json!({"id": "lzma", "format": 3, "filters": [{"id": 33, "preset": 1}]}), true),
        (json!([{"id": "delta", "dtype": "<u2"}]), json!({"id": "pcodec"}), false),
        (Value::Null, json!({"id": "pcodec", "level": 4}), false),
    ]);
    all
}

/// Creates a volume of 8 x 8 elements in 4 chunks with these codecs, and returns it with its elements.
fn packed(path: &Path, filters: &Value, compressor: &Value) -> (Box<dyn ChunkSource>, Vec<u8>) {
    drop(volume(path, 2, false, Encoding::Raw));
    change(&path.join(".zarray"), |json| {
        json["filters"] = filters.clone();
        json["compressor"] = compressor.clone();
    });
    let url = VolumeUrl::local(path);
    let sink =
        VolumeOptions::new().open_writable(&url).unwrap_or_else(|error| panic!("{filters}, {compressor}: {error:?}"));
    let elements: Vec<u8> = (0..64u16).flat_map(|at| (at * at + 300).to_ne_bytes()).collect();
    write(&*sink, &Whole { bytes: &elements, shape: &[8, 8], dtype: DType::U16 }).expect("its elements");
    (open_volume(&url).expect("the volume"), elements)
}

#[test]
fn elements_round_trip_through_every_codec() {
    for (filters, compressor, _) in all() {
        let place = Place::new();
        let (source, elements) = packed(&place.path("volume"), &filters, &compressor);
        let found = read(&*source, &source.meta().domain()).unwrap_or_else(|error| panic!("{compressor}: {error:?}"));
        assert!(found == elements, "{filters}, {compressor}");
    }
}

#[test]
fn damaged_chunks_never_panic_and_checksums_detect_damage() {
    let mut state = 5;
    for (filters, compressor, notices) in all() {
        let place = Place::new();
        let path = place.path("volume");
        let (source, _) = packed(&path, &filters, &compressor);
        let file = path.join("0/0");
        let stored = fs::read(&file).expect("the chunk");
        let sound = read(&*source, &"0:4,0:4".parse().expect("a region")).expect("its elements");
        for round in 0..crate::rounds(300) {
            let mut changed = stored.clone();
            let at = random(&mut state) % changed.len();
            changed[at] ^= 1 << (random(&mut state) % 8);
            // Every third chunk is truncated, down to nothing.
            let is_cut = round % 3 == 0;
            if is_cut {
                changed.truncate(random(&mut state) % stored.len());
            }
            fs::write(&file, &changed).expect("the chunk");
            let found = read(&*source, &"0:4,0:4".parse().expect("a region"));
            match found {
                // Some bits of a stream have no meaning, so a change of them is not detected.
                Ok(found) if notices => assert!(!is_cut && found == sound, "{filters}, {compressor}: {round}"),
                Ok(found) => assert!(!is_cut && found.len() == sound.len(), "{filters}, {compressor}: {round}"),
                Err(error) => {
                    assert!(matches!(error, Error::Chunk { .. }) && chain(&error).contains("0/0"), "{}", chain(&error));
                }
            }
        }
    }
}

#[test]
fn oversized_chunks_are_errors_in_every_codec() {
    for (filters, compressor, _) in all() {
        let place = Place::new();
        let (source, path) = (packed(&place.path("volume"), &filters, &compressor).0, place.path("volume/0/0"));
        // The chunk is that of another volume, with the same codecs and a thousand times as many elements.
        let large = place.path("large");
        drop(volume(&large, 2, false, Encoding::Raw));
        change(&large.join(".zarray"), |json| {
            json["filters"] = filters.clone();
            json["compressor"] = compressor.clone();
            json["shape"] = json!([128, 128]);
            json["chunks"] = json!([128, 128]);
        });
        let sink = VolumeOptions::new().open_writable(VolumeUrl::local(&large)).expect("a volume");
        let elements = vec![1; 2 * 128 * 128];
        write(&*sink, &Whole { bytes: &elements, shape: &[128, 128], dtype: DType::U16 }).expect("its elements");
        fs::copy(large.join("0/0"), &path).expect("the chunk");
        let error = read(&*source, &"0:4,0:4".parse().expect("a region")).expect_err("too many elements");
        assert!(matches!(error, Error::Chunk { .. }) && chain(&error).contains("0/0"), "{}", chain(&error));
    }
}

#[test]
fn damaged_codec_documents_never_panic() {
    let replacements: [&[u8]; 9] =
        [b"0", b"-1", b"99999999999999999999", b"null", b"[]", b"\"\"", b"", b"4294967296", b"1e9"];
    let mut state = 3;
    let mut opened = 0;
    for (filters, compressor, _) in all() {
        let place = Place::new();
        let path = place.path("volume");
        drop(packed(&path, &filters, &compressor));
        let file = path.join(".zarray");
        let document: Value = serde_json::from_slice(&fs::read(&file).expect("the metadata")).expect("JSON");
        for _ in 0..crate::rounds(120) {
            let mut codecs = serde_json::to_vec(&json!([filters, compressor])).expect("text");
            let start = random(&mut state) % codecs.len();
            let end = (start + random(&mut state) % 6).min(codecs.len());
            codecs.splice(start..end, replacements[random(&mut state) % replacements.len()].iter().copied());
            let Ok(codecs) = serde_json::from_slice::<Value>(&codecs) else { continue };
            let mut document = document.clone();
            (document["filters"], document["compressor"]) = (codecs[0].clone(), codecs[1].clone());
            fs::write(&file, document.to_string()).expect("the metadata");
            let Ok(source) = open_volume(VolumeUrl::local(&path)) else { continue };
            opened += 1;
            let _ = read(&*source, &"0:4,0:4".parse().expect("a region"));
        }
    }
    assert!(opened > crate::rounds(20), "{opened}: too few volumes opened to test reading");
}

#[test]
fn invalid_codecs_are_refused_with_their_error_kind() {
    let place = Place::new();
    let path = place.path("volume");
    drop(volume(&path, 2, false, Encoding::Raw));
    let kind = |filters: Value, compressor: Value| {
        change(&path.join(".zarray"), |json| (json["filters"], json["compressor"]) = (filters, compressor));
        let error = open_volume(VolumeUrl::local(&path)).expect_err("invalid codecs");
        let text = chain(&error);
        assert!(text.contains(".zarray") && text.len() < 1000, "{}", text.chars().take(2000).collect::<String>());
        error.source_failure()
    };
    for (filter, expected) in [
        (json!({"id": "delta", "dtype": "<u4"}), SourceFailure::Unsupported),
        (json!({"id": "delta", "dtype": "<M8[ns]"}), SourceFailure::Unsupported),
        (json!({"id": "delta", "dtype": ">u2"}), SourceFailure::Unsupported),
        (json!({"id": "delta"}), SourceFailure::Damaged),
        (json!({"id": "crc32", "location": "middle"}), SourceFailure::Damaged),
        (json!({"id": "shuffle", "elementsize": 0}), SourceFailure::Damaged),
        (json!({"id": "jenkins_lookup3"}), SourceFailure::Unsupported),
        (json!({"id": "x".repeat(1 << 20)}), SourceFailure::Unsupported),
        (json!({"name": "x".repeat(1 << 20)}), SourceFailure::Damaged),
        (json!({"id": "delta", "dtype": "x".repeat(1 << 20)}), SourceFailure::Unsupported),
        (json!({"id": 7}), SourceFailure::Damaged),
        (json!("delta"), SourceFailure::Damaged),
    ] {
        assert_eq!(kind(json!([&filter]), Value::Null), Some(expected), "{filter}");
    }
    #[cfg(feature = "codecs")]
    for (compressor, expected) in [
        (json!({"id": "lzma", "format": 9}), SourceFailure::Damaged),
        (json!({"id": "lzma", "format": 3, "filters": [{"id": 4}]}), SourceFailure::Unsupported),
        (json!({"id": "pcodec", "level": 99}), SourceFailure::Damaged),
    ] {
        assert_eq!(kind(Value::Null, compressor.clone()), Some(expected), "{compressor}");
    }
}

#[test]
fn f_order_without_axes_is_accepted() {
    let place = Place::new();
    let path = place.path("volume");
    fs::create_dir(&path).expect("a directory");
    let document = json!({
        "zarr_format": 2, "shape": [], "chunks": [], "dtype": "<u2", "order": "F", "fill_value": 0,
        "compressor": null, "filters": [{"id": "adler32"}],
    });
    fs::write(path.join(".zarray"), document.to_string()).expect("the metadata");
    let source = open_volume(VolumeUrl::local(&path)).expect("an array without axes");
    assert!(source.meta().shape.is_empty());
}

/// Creates a volume of 8 x 8 booleans in 4 chunks, and returns its elements; every second one is true.
fn bools(path: &Path, version: u8, encoding: Encoding) -> Vec<u8> {
    drop(volume(path, version, false, encoding));
    let file = path.join(if version == 2 { ".zarray" } else { "zarr.json" });
    change(&file, |json| {
        json[if version == 2 { "dtype" } else { "data_type" }] = json!(if version == 2 { "|b1" } else { "bool" });
        json["fill_value"] = json!(true);
    });
    let elements: Vec<u8> = (0..64).map(|at| at % 2).collect();
    let sink = VolumeOptions::new().open_writable(VolumeUrl::local(path)).expect("a volume");
    write(&*sink, &Whole { bytes: &elements, shape: &[8, 8], dtype: DType::U8 }).expect("its elements");
    elements
}

#[test]
fn only_bytes_0_and_1_are_read_as_booleans() {
    for (version, encoding) in [(2, Encoding::Raw), (3, Encoding::Raw), (2, Encoding::Zstd), (3, Encoding::Gzip)] {
        let place = Place::new();
        let path = place.path("volume");
        let elements = bools(&path, version, encoding);
        let source = open_volume(VolumeUrl::local(&path)).expect("the volume");
        assert!(source.meta().dtype == DType::U8 && source.meta().fill == Some(vec![1]));
        assert!(source.meta().description.contains("elements of bool"), "{}", source.meta().description);
        assert!(source.notes().contains(&("elements", "bool".to_owned())), "{:?}", source.notes());
        assert!(read(&*source, &source.meta().domain()).expect("elements") == elements);

        // A whole chunk and part of one take two different ways of decoding.
        let file = path.join(if version == 2 { "0/0" } else { "c/0/0" });
        let other = place.path("bytes");
        drop(volume(&other, version, false, encoding));
        let name = if version == 2 { ".zarray" } else { "zarr.json" };
        change(&other.join(name), |json| {
            json[if version == 2 { "dtype" } else { "data_type" }] = json!(if version == 2 { "|u1" } else { "uint8" });
        });
        let sink = VolumeOptions::new().open_writable(VolumeUrl::local(&other)).expect("a volume");
        write(&*sink, &Whole { bytes: &[2; 64], shape: &[8, 8], dtype: DType::U8 }).expect("its elements");
        fs::copy(other.join(if version == 2 { "0/0" } else { "c/0/0" }), &file).expect("the chunk");
        for region in ["0:4,0:4", "1:2,0:4"] {
            let error = read(&*source, &region.parse().expect("a region")).expect_err("a byte of 2");
            assert!(matches!(error, Error::Chunk { .. }), "{error:?}");
            assert!(chain(&error).contains("the byte 2"), "{}", chain(&error));
        }
    }
}

#[test]
fn only_booleans_are_written_to_boolean_volumes() {
    let place = Place::new();
    let path = place.path("volume");
    let elements = bools(&path, 3, Encoding::Gzip);
    let sink = VolumeOptions::new().open_writable(VolumeUrl::local(&path)).expect("a volume");
    let mut wrong = vec![1; 64];
    wrong[5] = 2;
    let error = write(&*sink, &Whole { bytes: &wrong, shape: &[8, 8], dtype: DType::U8 }).expect_err("a byte of 2");
    assert!(matches!(error, Error::Bbox { .. }), "{error:?}");
    assert!(error.to_string().contains("neither 0 nor 1"), "{error}");
    let found = read(&*sink, &"0:4,4:8".parse().expect("a region")).expect("elements");
    assert_eq!(found[..4], elements[4..8], "nothing was stored");
}

#[test]
fn description_of_downloaded_booleans_says_bool() {
    let place = Place::new();
    let path = place.path("volume");
    drop(bools(&path, 2, Encoding::Zstd));
    let source = open_volume(VolumeUrl::local(&path)).expect("the volume");
    place.download(&*source, &source.meta().domain(), &place.options()).expect("a download");
    let found = place.backend.description(&place.location).expect("a plain array");
    assert_eq!(found.is_some(), place.backend.can_describe().expect("a test file"));
    if let Some(found) = found {
        assert_eq!((found.dtype(), found.note("elements")), (DType::U8, Some("bool")));
    }
}
