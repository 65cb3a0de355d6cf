//! Blocks of every size and compression: the elements that were written must be read.

use ndarray::{ArrayD, IxDyn};
use ndarray_shm::Order;
use ndarray_shm_volume::{ChunkSource, Missing, SourceFailure, Workers};
use serde_json::json;

use super::{attributes, block, dataset, element, elements, header, open, packings};
use crate::place::Place;

const SHAPE: [u64; 3] = [11, 10, 7];
const BLOCK: [u64; 3] = [4, 5, 3];

/// The stored size of a block at the edge.
#[derive(Clone, Copy, Debug)]
enum Edges {
    Cut,
    Whole,
}

/// Writes all blocks of a volume but the first.
fn write(directory: &std::path::Path, edges: Edges, compression: &serde_json::Value, pack: fn(&[u8]) -> Vec<u8>) {
    attributes(directory, &dataset(&SHAPE, &BLOCK, compression));
    for x in 0..3 {
        for y in 0..2 {
            for z in 0..3 {
                let start = [x * BLOCK[0], y * BLOCK[1], z * BLOCK[2]];
                let lengths: Vec<u32> = (0..3)
                    .map(|axis| match edges {
                        Edges::Cut => BLOCK[axis].min(SHAPE[axis] - start[axis]),
                        Edges::Whole => BLOCK[axis],
                    })
                    .map(|length| u32::try_from(length).expect("small"))
                    .collect();
                if (x, y, z) != (0, 0, 0) {
                    let bytes = [header(0, &lengths), pack(&elements(&start, &lengths))].concat();
                    block(directory, &format!("{x}/{y}/{z}"), &bytes);
                }
            }
        }
    }
}

/// Returns the expected elements of a region; those that are not stored are 0.
fn expected(start: [u64; 3], lengths: [usize; 3], is_stored: impl Fn(&[u64; 3]) -> bool) -> ArrayD<u16> {
    ArrayD::from_shape_fn(IxDyn(&lengths), |at| {
        let at: [u64; 3] = std::array::from_fn(|axis| start[axis] + at[axis] as u64);
        if is_stored(&at) { element(&at) } else { 0 }
    })
}

fn check(place: &Place, source: &dyn ChunkSource, text: &str, expected: &ArrayD<u16>) {
    let bbox = source.meta().parse_bbox(text).expect("a region");
    for order in [Order::C, Order::F] {
        let done = place
            .download(source, &bbox, &place.options().order(order).workers(Workers::Threads(2)))
            .expect("a download");
        let array = done.open::<u16, IxDyn>().expect("the array");
        assert!(array.read().expect("a guard").view() == expected, "{text} in {order}");
        drop(array);
        assert!(place.backend.unlink(&place.location).expect("unlink"));
    }
}

#[test]
fn blocks_of_every_codec_arrive_and_missing_are_zero() {
    let is_stored = |at: &[u64; 3]| (0..3).any(|axis| at[axis] >= BLOCK[axis]);
    for (name, compression, pack) in packings() {
        for edges in [Edges::Cut, Edges::Whole] {
            let place = Place::new();
            let path = place.path("volume");
            write(&path, edges, &compression, pack);
            let source = open(&path).expect("a volume");
            let meta = source.meta();
            assert_eq!((meta.shape.as_slice(), meta.chunk_shape.as_slice()), (&SHAPE[..], &BLOCK[..]), "{name}");
            assert_eq!((meta.axes.join(""), meta.fill.as_deref()), ("xyz".to_owned(), Some(&[0, 0][..])));
            check(&place, &*source, ":,:,:", &expected([0; 3], [11, 10, 7], is_stored));
            check(&place, &*source, "3:10,4:6,2:7", &expected([3, 4, 2], [7, 2, 5], is_stored));
            check(&place, &*source, "10:,9:,6:", &expected([10, 9, 6], [1; 3], is_stored));
        }
    }
}

#[test]
fn missing_block_is_an_error_only_on_request() {
    let place = Place::new();
    let path = place.path("volume");
    write(&path, Edges::Cut, &json!({"type": "raw"}), <[u8]>::to_vec);
    let source = open(&path).expect("a volume");
    let bbox = source.meta().parse_bbox("0:4,0:5,0:3").expect("a region");
    place.download(&*source, &bbox, &place.options().missing(Missing::Error)).expect_err("it is not stored");
    check(&place, &*source, "0:4,0:5,0:3", &ArrayD::zeros(IxDyn(&[4, 5, 3])));
}

#[test]
fn short_block_is_zero_beyond_its_end() {
    let place = Place::new();
    let path = place.path("volume");
    // The last block is from when the dataset had 6 elements along x; it has since grown to 8.
    attributes(&path, &dataset(&[8, 3, 2], &[4, 3, 2], &json!({"type": "raw"})));
    for (key, start, length) in [("0/0/0", 0, 4), ("1/0/0", 4, 2)] {
        block(&path, key, &[header(0, &[length, 3, 2]), elements(&[start, 0, 0], &[length, 3, 2])].concat());
    }
    let source = open(&path).expect("a volume");
    let is_stored = |at: &[u64; 3]| at[0] < 6;
    check(&place, &*source, ":,:,:", &expected([0; 3], [8, 3, 2], is_stored));
    check(&place, &*source, "5:7,1:3,1:2", &expected([5, 1, 1], [2, 2, 1], is_stored));
    check(&place, &*source, "6:8,:,:", &ArrayD::zeros(IxDyn(&[2, 3, 2])));
}

#[test]
fn attributes_of_the_first_version_are_read() {
    for (name, _, pack) in packings().into_iter().filter(|(name, ..)| !matches!(*name, "zlib" | "zstd" | "blosc")) {
        let place = Place::new();
        let path = place.path("volume");
        let mut json = dataset(&[5], &[3], &json!(null));
        json["compressionType"] = json!(name);
        attributes(&path, &json);
        block(&path, "1", &[header(1, &[2]), 2_u32.to_be_bytes().to_vec(), pack(&elements(&[3], &[2]))].concat());
        let source = open(&path).expect("a volume");
        assert!(source.meta().description.contains(name), "{}", source.meta().description);
        let done = place.download(&*source, &source.meta().domain(), &place.options()).expect("a download");
        let array = done.open::<u16, IxDyn>().expect("the array");
        assert_eq!(
            array.read().expect("a guard").view().as_slice().expect("dense"),
            [0, 0, 0, element(&[3]), element(&[4])]
        );
        drop(array);
        assert!(place.backend.unlink(&place.location).expect("unlink"));
    }
}

/// Packed by the Python packages lz4 and xxhash: one sentence six times, in blocks of 64 bytes.
const LZ4_STREAM: &str = "4c5a34426c6f636b201c0000004000000089b74000ff024e3520616e64204c5a34426c6f636b2c20110017505a34426c6f\
                          4c5a34426c6f636b201b00000026000000e2598b00fc02636b2c204e3520616e64204c5a34426c6f1100506f636b2c20\
                          4c5a34426c6f636b10000000000000000000000000";

#[test]
fn lz4_needs_the_codecs_feature() {
    let digits: Vec<u8> = LZ4_STREAM.bytes().filter(u8::is_ascii_hexdigit).collect();
    let stream = digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("digits"), 16));
    let stream: Vec<u8> = stream.map(|byte| byte.expect("digits")).collect();
    let place = Place::new();
    let path = place.path("volume");
    attributes(&path, &dataset(&[51], &[51], &json!({"type": "lz4", "blockSize": 64})));
    block(&path, "0", &[header(0, &[51]), stream].concat());
    if cfg!(feature = "codecs") {
        let source = open(&path).expect("a volume");
        let done = place.download(&*source, &source.meta().domain(), &place.options()).expect("a download");
        let array = done.open::<u16, IxDyn>().expect("the array");
        let bytes = b"N5 and LZ4Block, ".repeat(6);
        let expected: Vec<u16> = bytes.chunks(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect();
        assert_eq!(array.read().expect("a guard").view().as_slice().expect("dense"), expected);
        drop(array);
        assert!(place.backend.unlink(&place.location).expect("unlink"));
    } else {
        for name in ["lz4", "xz"] {
            attributes(&path, &dataset(&[51], &[51], &json!({"type": name})));
            let error = open(&path).expect_err("not built in");
            assert_eq!(error.source_failure(), Some(SourceFailure::Unsupported));
            let text = error.to_string();
            assert!(text.contains(&format!("`{name}`")) && text.contains("feature `codecs`"), "{text}");
        }
    }
}
