//! Damaged and malicious documents, indexes and chunks: an error must name the file, nothing may panic, and memory
//! stays small.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use ndarray_shm::DType;
use ndarray_shm_volume::{
    Bbox, ChunkSource, Encoding, Error, NewVolume, VolumeFormat, VolumeOptions, VolumeUrl, create_volume, open_volume,
};
use serde_json::{Value, json};

use super::{Whole, read, write};
use crate::place::Place;
use crate::refused::chain;

/// Creates a volume of 8 x 8 elements in one shard of 4 chunks, or in 4 chunks.
pub(super) fn volume(path: &Path, version: u8, sharded: bool, encoding: Encoding) -> Box<dyn ChunkSource> {
    let mut new = NewVolume::new(VolumeFormat::Zarr, &[8, 8], &[4, 4], DType::U16);
    (new.version, new.encoding, new.shard_shape) = (version, encoding, sharded.then(|| vec![8, 8]));
    let url = VolumeUrl::local(path);
    let sink = create_volume(&url, &new).expect("a volume");
    let elements: Vec<u8> = (0..64u16).flat_map(|at| (at * at + 1).to_ne_bytes()).collect();
    write(&*sink, &Whole { bytes: &elements, shape: &[8, 8], dtype: DType::U16 }).expect("its elements");
    open_volume(&url).expect("the volume")
}

pub(super) fn change(file: &Path, change: impl FnOnce(&mut Value)) {
    let mut json = serde_json::from_slice(&fs::read(file).expect("the metadata")).expect("a document");
    change(&mut json);
    fs::write(file, json.to_string()).expect("the metadata");
}

/// CRC-32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let bit = |sum: u32, _| if sum & 1 == 1 { (sum >> 1) ^ 0x82f6_3b78 } else { sum >> 1 };
    !bytes.iter().fold(!0, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), bit))
}

#[test]
fn oversized_chunk_file_is_refused_before_it_is_read() {
    for (encoding, version, file) in [
        (Encoding::Raw, 3, "c/0/0"),
        (Encoding::Zstd, 3, "c/0/0"),
        (Encoding::Gzip, 2, "0/0"),
        (Encoding::Blosc, 2, "0/0"),
    ] {
        let place = Place::new();
        let path = place.path("volume");
        let source = volume(&path, version, false, encoding);
        let chunk = fs::File::options().write(true).open(path.join(file)).expect("the chunk");
        chunk.set_len(256 << 20).expect("a hole");
        let error = read(&*source, &"0:4,0:4".parse().expect("a region")).expect_err("too long");
        let text = chain(&error);
        assert!(matches!(error, Error::Chunk { .. }) && text.contains(file), "{encoding:?}: {text}");
        assert!(text.contains("268435456 bytes are more than there can be in it"), "{encoding:?}: {text}");
    }
}

#[test]
fn error_for_a_wrong_index_names_the_shard() {
    const INDEX: usize = 4 * 16;
    for encoding in [Encoding::Raw, Encoding::Gzip] {
        let place = Place::new();
        let path = place.path("volume");
        let _ = volume(&path, 3, true, encoding);
        let shard = path.join("c/0/0");
        let bytes = fs::read(&shard).expect("the shard");
        let data = bytes.len() - INDEX - 4;
        let length = u64::from_le_bytes(bytes[data + 8..data + 16].try_into().expect("a word"));
        let cases: [(&str, [u64; 2], bool); 8] = [
            ("beyond the end of the shard", [data as u64, length], true),
            ("beyond the end of the shard", [1 << 62, length], true),
            ("beyond any file", [u64::MAX - 3, length], true),
            ("beyond any file", [length, u64::MAX], true),
            ("beyond the end of the shard", [0, 1 << 61], true),
            ("beyond the end of the shard", [u64::MAX, 0], true),
            ("beyond the end of the shard", [0, u64::MAX], true),
            ("damaged", [0, length], false),
        ];
        for (reason, entry, summed) in cases {
            let mut bytes = bytes.clone();
            for (word, at) in entry.iter().zip([data, data + 8]) {
                bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            let sum = if summed { crc32c(&bytes[data..data + INDEX]) } else { 7 };
            bytes[data + INDEX..].copy_from_slice(&sum.to_le_bytes());
            fs::write(&shard, bytes).expect("the shard");
            let source = open_volume(VolumeUrl::local(&path)).expect("the volume");
            let error = read(&*source, &"0:2,0:4".parse().expect("a region")).expect_err(reason);
            let text = chain(&error);
            assert!(matches!(error, Error::Chunk { .. }) && text.contains("c/0/0"), "{encoding:?}, {entry:?}: {text}");
            assert!(text.contains(reason), "{encoding:?}, {entry:?}: {text}");
        }
    }
}

#[test]
fn leading_index_is_not_read_as_a_chunk() {
    let place = Place::new();
    let path = place.path("volume");
    let _ = volume(&path, 3, true, Encoding::Raw);
    change(&path.join("zarr.json"), |json| json["codecs"][0]["configuration"]["index_location"] = json!("start"));
    let shard = path.join("c/0/0");
    let mut bytes: Vec<u8> = [0u64, 32].iter().cycle().take(8).flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend(crc32c(&bytes).to_le_bytes());
    bytes.extend([1; 128]);
    fs::write(&shard, bytes).expect("the shard");
    let source = open_volume(VolumeUrl::local(&path)).expect("the volume");
    let error = read(&*source, &source.meta().domain()).expect_err("the index as a chunk");
    assert!(chain(&error).contains("in the index itself"), "{}", chain(&error));
}

#[test]
fn a_bomb_is_an_error_and_takes_no_memory() {
    // Each bomb is short: a file that is much longer than a chunk can be would not be read at all.
    let zeros = vec![0u8; 16 << 20];
    let bombs: [(&str, Vec<u8>); 4] = [
        ("gzip", {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            gzip.write_all(&zeros).expect("packed");
            gzip.finish().expect("packed")
        }),
        ("zlib", {
            let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
            zlib.write_all(&zeros).expect("packed");
            zlib.finish().expect("packed")
        }),
        ("bz2", {
            let mut bz2 = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
            bz2.write_all(&zeros[..8 << 20]).expect("packed");
            bz2.finish().expect("packed")
        }),
        ("zstd", zstd::bulk::compress(&zeros, 1).expect("packed")),
    ];
    for (codec, bomb) in bombs {
        assert!(bomb.len() < 1 << 17, "{codec}");
        let place = Place::new();
        let path = place.path("volume");
        let source = volume(&path, 2, false, Encoding::Gzip);
        change(&path.join(".zarray"), |json| json["compressor"] = json!({"id": codec, "level": 1}));
        fs::write(path.join("0/1"), &bomb).expect("the chunk");
        drop(source);
        let source = open_volume(VolumeUrl::local(&path)).expect("the volume");
        let error = read(&*source, &"0:4,4:8".parse().expect("a region")).expect_err("a bomb");
        let text = chain(&error);
        assert!(text.contains("0/1") && text.contains("longer than the 32 bytes"), "{codec}: {text}");
    }
}

#[test]
fn error_for_an_invalid_document_names_its_file() {
    type Change = fn(&mut Value);
    let sharding: [(&str, Change); 12] = [
        ("do not tile", |s| s["chunk_shape"] = json!([3, 4])),
        ("do not tile", |s| s["chunk_shape"] = json!([4])),
        ("do not tile", |s| s["chunk_shape"] = json!([16, 8])),
        ("", |s| s["chunk_shape"] = json!([0, 4])),
        ("", |s| s["chunk_shape"] = json!([-4, 4])),
        ("", |s| s["chunk_shape"] = json!([4.5, 4])),
        ("", |s| s["index_location"] = json!("middle")),
        ("", |s| s["codecs"] = json!([])),
        ("", |s| s["codecs"] = json!([{"name": "squash"}])),
        ("cannot be known", |s| {
            let gzip = json!({"name": "gzip", "configuration": {"level": 1}});
            s["index_codecs"].as_array_mut().expect("codecs").push(gzip);
        }),
        ("", |s| s["index_codecs"] = json!([])),
        ("", |s| *s = json!(7)),
    ];
    for (number, (reason, made)) in sharding.into_iter().enumerate() {
        let place = Place::new();
        let path = place.path("volume");
        drop(volume(&path, 3, true, Encoding::Raw));
        change(&path.join("zarr.json"), |json| made(&mut json["codecs"][0]["configuration"]));
        let error = open_volume(VolumeUrl::local(&path)).expect_err("no shards");
        let text = chain(&error);
        assert!(matches!(error, Error::Source { .. }) && text.contains("zarr.json"), "{number}: {text}");
        assert!(text.contains(reason), "{number}: {text}");
    }
    let documents: [(&str, Change); 17] = [
        (if usize::BITS == 32 { "address space" } else { "an index of more than" }, |json| {
            json["shape"] = json!([1u64 << 20, 1u64 << 20]);
            json["chunk_grid"]["configuration"]["chunk_shape"] = json!([1u64 << 20, 1u64 << 20]);
        }),
        ("address space", |json| json["chunk_grid"]["configuration"]["chunk_shape"] = json!([1u64 << 40, 1u64 << 40])),
        ("", |json| json["chunk_grid"]["configuration"]["chunk_shape"] = json!([8, -8])),
        ("", |json| json["chunk_grid"]["configuration"]["chunk_shape"] = json!([8, 8.5])),
        ("", |json| json["shape"] = json!([8, -8])),
        ("", |json| json["shape"] = json!([8, 1e300])),
        ("beyond any coordinate", |json| json["shape"] = json!([8, u64::MAX])),
        ("default_suffix", |json| {
            json["chunk_key_encoding"] =
                json!({"name": "default_suffix", "configuration": {"separator": "/", "suffix": "/../../../secret"}});
        }),
        ("", |json| json["chunk_key_encoding"]["configuration"]["separator"] = json!("/../")),
        ("", |json| json["chunk_key_encoding"] = json!("../x")),
        ("", |json| json["storage_transformers"] = json!([{"name": "elsewhere", "configuration": {"path": "/etc"}}])),
        ("", |json| json["dimension_names"] = json!(["x"])),
        ("", |json| json["must_have"] = json!({"must_understand": true, "name": "must_have"})),
        ("", |json| {
            json["codecs"] = json!([{"name": "transpose", "configuration": {"order": [1, 1]}}, {"name": "bytes"}]);
        }),
        ("", |json| {
            let bytes = json!({"name": "bytes", "configuration": {"endian": "little"}});
            json["codecs"] = json!([{"name": "transpose", "configuration": {"order": [0, 2, 1]}}, bytes]);
        }),
        ("", |json| json["fill_value"] = json!(70_000)),
        ("", |json| json["zarr_format"] = json!(4)),
    ];
    for (number, (reason, made)) in documents.into_iter().enumerate() {
        let place = Place::new();
        let path = place.path("volume");
        drop(volume(&path, 3, true, Encoding::Raw));
        change(&path.join("zarr.json"), made);
        let Err(error) = open_volume(VolumeUrl::local(&path)) else { panic!("document {number} was opened") };
        let text = chain(&error);
        assert!(matches!(error, Error::Source { .. }) && text.contains("zarr.json"), "{number}: {text}");
        assert!(text.contains(reason), "{number}: {text}");
    }
}

#[test]
fn scale_path_out_of_its_group_is_refused() {
    let place = Place::new();
    drop(volume(&place.path("secret"), 3, false, Encoding::Raw));
    let group = place.path("group");
    fs::create_dir(&group).expect("a directory");
    drop(volume(&group.join("0"), 3, false, Encoding::Raw));
    for (path, reason) in [
        ("../secret", "leads out"),
        ("/etc", "leads out"),
        ("0/../../secret", "leads out"),
        ("", "leads out"),
        ("1", "no such array"),
    ] {
        let document = json!({"zarr_format": 3, "node_type": "group", "attributes": {"ome": {"version": "0.5", "multiscales": [
            {"axes": [], "datasets": [{"path": "0"}, {"path": path}]}]}}});
        fs::write(group.join("zarr.json"), document.to_string()).expect("the metadata");
        let url = VolumeUrl::local(&group);
        let error = VolumeOptions::new().mip(1).open(&url).expect_err(path);
        let text = chain(&error);
        assert!(text.contains("zarr.json") && text.contains(reason), "{path}: {text}");
        assert!(VolumeOptions::new().scales(&url).is_err(), "{path}");
    }
    for damaged in [json!([]), json!([{}]), json!([{"datasets": []}]), json!([{"datasets": [7]}]), json!([[]])] {
        let document = json!({"zarr_format": 3, "node_type": "group", "attributes": {"multiscales": damaged}});
        fs::write(group.join("zarr.json"), document.to_string()).expect("the metadata");
        let error = open_volume(VolumeUrl::local(&group)).expect_err("damaged");
        assert!(chain(&error).contains("zarr.json"), "{}", chain(&error));
    }
}

/// Returns pseudorandom numbers that are the same in every run.
pub(super) fn random(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    usize::try_from(*state >> 33).expect("31 bits")
}

#[test]
fn damaged_documents_never_panic() {
    let replacements: [&[u8]; 12] = [
        b"0",
        b"-1",
        b"99999999999999999999",
        b"1e9",
        b"null",
        b"[]",
        b"{}",
        b"\"\"",
        b"\"..\"",
        b"[[",
        b"",
        b"4294967296",
    ];
    let mut state = 7;
    for (version, sharded) in [(2, false), (3, false), (3, true)] {
        let place = Place::new();
        let path = place.path("volume");
        drop(volume(&path, version, sharded, Encoding::Gzip));
        let file = path.join(if version == 2 { ".zarray" } else { "zarr.json" });
        let document = fs::read(&file).expect("the metadata");
        let mut opened = 0;
        for _ in 0..crate::rounds(1500) {
            let mut changed = document.clone();
            for _ in 0..=random(&mut state) % 2 {
                let start = random(&mut state) % changed.len();
                let end = (start + random(&mut state) % 6).min(changed.len());
                let by = replacements[random(&mut state) % replacements.len()];
                changed.splice(start..end, by.iter().copied());
            }
            fs::write(&file, &changed).expect("the metadata");
            let Ok(source) = open_volume(VolumeUrl::local(&path)) else { continue };
            opened += 1;
            let region = source.meta().shape.iter().map(|length| 0..i64::try_from(*length).expect("checked").min(4));
            let Ok(bbox) = Bbox::new(region.collect()) else { continue };
            let _ = read(&*source, &bbox);
        }
        assert!(opened > crate::rounds(20), "{opened}: too few volumes opened to test reading");
    }
}

#[test]
fn damaged_chunks_never_panic() {
    let mut state = 11;
    for encoding in [Encoding::Raw, Encoding::Gzip, Encoding::Zstd, Encoding::Blosc] {
        for sharded in [false, true] {
            let place = Place::new();
            let path = place.path("volume");
            drop(volume(&path, 3, sharded, encoding));
            let file = path.join("c/0/0");
            let stored = fs::read(&file).expect("the chunk");
            let mut refused = 0;
            for _ in 0..crate::rounds(400) {
                let mut changed = stored.clone();
                for _ in 0..=random(&mut state) % 3 {
                    let at = random(&mut state) % changed.len();
                    changed[at] = u8::try_from(random(&mut state) % 256).expect("a byte");
                }
                changed.truncate(changed.len() - random(&mut state) % 2 * (random(&mut state) % changed.len()));
                fs::write(&file, &changed).expect("the chunk");
                let source = open_volume(VolumeUrl::local(&path)).expect("the volume");
                if let Err(error) = read(&*source, &"0:4,0:4".parse().expect("a region")) {
                    assert!(chain(&error).contains("c/0/0"), "{}", chain(&error));
                    refused += 1;
                }
            }
            assert!(refused > crate::rounds(100), "{encoding:?}, sharded {sharded}: {refused}");
        }
    }
}
