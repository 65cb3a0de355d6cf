//! N5 volumes in the layouts of other tools, and damaged ones.
//!
//! The tests write volumes byte by byte, without this crate's code.

mod groups;
mod hostile;
mod reading;

use std::fs;
use std::io::Write as _;
use std::path::Path;

use ndarray_shm_volume::{ChunkSource, Result, VolumeUrl, open_volume};
use serde_json::{Value, json};

/// A compression of blocks: its name, the value of `compression`, and the function that packs bytes.
pub(super) type Pack = (&'static str, Value, fn(&[u8]) -> Vec<u8>);

/// Returns every compression that the tests can write.
pub(super) fn packings() -> Vec<Pack> {
    vec![
        ("raw", json!({"type": "raw"}), <[u8]>::to_vec),
        ("gzip", json!({"type": "gzip", "level": -1}), gzip),
        ("zlib", json!({"type": "gzip", "level": -1, "useZlib": true}), zlib),
        ("bzip2", json!({"type": "bzip2", "blockSize": 9}), bzip2),
        ("zstd", json!({"type": "zstd", "level": 3}), |bytes| zstd::bulk::compress(bytes, 3).expect("packed")),
        ("blosc", json!({"type": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 0}), blosc),
        #[cfg(feature = "codecs")]
        ("xz", json!({"type": "xz", "preset": 6}), xz),
    ]
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("packed");
    encoder.finish().expect("packed")
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("packed");
    encoder.finish().expect("packed")
}

fn bzip2(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ::bzip2::write::BzEncoder::new(Vec::new(), ::bzip2::Compression::fast());
    encoder.write_all(bytes).expect("packed");
    encoder.finish().expect("packed")
}

fn blosc(bytes: &[u8]) -> Vec<u8> {
    use zarrs::array::codec::{BloscCompressor, BloscShuffleMode, blosc_compress_bytes};
    let level = 5_u8.try_into().expect("a level");
    blosc_compress_bytes(bytes, level, BloscShuffleMode::NoShuffle, 1, BloscCompressor::LZ4, 0, 1).expect("packed")
}

#[cfg(feature = "codecs")]
fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
    encoder.write_all(bytes).expect("packed");
    encoder.finish().expect("packed")
}

/// Writes `attributes.json`.
pub(super) fn attributes(directory: &Path, json: &Value) {
    fs::create_dir_all(directory).expect("a directory");
    fs::write(directory.join("attributes.json"), json.to_string()).expect("the attributes");
}

/// Returns the attributes of a uint16 dataset.
pub(super) fn dataset(shape: &[u64], block: &[u64], compression: &Value) -> Value {
    json!({"dimensions": shape, "blockSize": block, "dataType": "uint16", "compression": compression})
}

/// Returns the bytes of a block's header.
pub(super) fn header(mode: u16, lengths: &[u32]) -> Vec<u8> {
    let axes = u16::try_from(lengths.len()).expect("few");
    let lengths = lengths.iter().flat_map(|length| length.to_be_bytes());
    [mode.to_be_bytes(), axes.to_be_bytes()].concat().into_iter().chain(lengths).collect()
}

/// Writes these bytes as a block.
pub(super) fn block(directory: &Path, key: &str, bytes: &[u8]) {
    let file = directory.join(key);
    fs::create_dir_all(file.parent().expect("a directory")).expect("a directory");
    fs::write(file, bytes).expect("a block");
}

/// Returns the element at a coordinate.
pub(super) fn element(at: &[u64]) -> u16 {
    let mixed = at.iter().fold(7_u64, |sum, number| sum * 31 + number * number + 1);
    u16::try_from(mixed % 60_013 + 1).expect("small")
}

/// Returns the elements of a box, big-endian, the first axis fastest.
pub(super) fn elements(start: &[u64], lengths: &[u32]) -> Vec<u8> {
    let count: u32 = lengths.iter().product();
    let mut bytes = Vec::new();
    for mut number in 0..count {
        let mut at = start.to_vec();
        for (at, length) in at.iter_mut().zip(lengths) {
            *at += u64::from(number % length);
            number /= length;
        }
        bytes.extend(element(&at).to_be_bytes());
    }
    bytes
}

pub(super) fn open(path: &Path) -> Result<Box<dyn ChunkSource>> {
    open_volume(VolumeUrl::local(path))
}
