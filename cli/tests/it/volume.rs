//! A volume in Zarr version 2 with gzip and many chunks, some of them missing. It is written without this project's
//! code, so elements read from it can be checked against the formula.

use std::fs;
use std::io::Write as _;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

use flate2::Compression;
use flate2::write::GzEncoder;

const CHUNK: [usize; 3] = [40, 48, 56];
const GRID: [usize; 3] = [6, 6, 5];
/// Number of elements by which the last chunk of each axis reaches beyond the volume.
const OVERHANG: [usize; 3] = [3, 0, 7];
const FILL: u16 = 4242;
const KINDS: usize = 7;

/// Length of each axis.
pub(crate) const SHAPE: [usize; 3] =
    [CHUNK[0] * GRID[0] - OVERHANG[0], CHUNK[1] * GRID[1] - OVERHANG[1], CHUNK[2] * GRID[2] - OVERHANG[2]];
/// Number of chunks of the whole volume, including missing ones.
pub(crate) const CHUNKS: usize = GRID[0] * GRID[1] * GRID[2];

/// Returns which bytes the chunk at a grid position has; `None` if it is not stored.
fn kind(at: [usize; 3]) -> Option<usize> {
    let number = (at[0] * GRID[1] + at[1]) * GRID[2] + at[2];
    (number % 29 != 5).then_some((number * 5 + at[1]) % KINDS)
}

/// Returns the element at an offset within a chunk of a kind: smooth enough to compress, different everywhere.
fn element(kind: usize, within: [usize; 3]) -> u16 {
    let offset = (within[0] * CHUNK[1] + within[1]) * CHUNK[2] + within[2];
    let mixed = offset.wrapping_mul(2_654_435_761) >> 7;
    u16::try_from((mixed ^ (kind * 9_973)) & 0x3fff).expect("14 bits")
}

/// Returns the element of the volume at a position.
pub(crate) fn expected_at(at: [usize; 3]) -> u16 {
    let chunk = [at[0] / CHUNK[0], at[1] / CHUNK[1], at[2] / CHUNK[2]];
    kind(chunk).map_or(FILL, |kind| element(kind, [at[0] % CHUNK[0], at[1] % CHUNK[1], at[2] % CHUNK[2]]))
}

/// Returns the bytes that a region must have in shared memory, in C or F order.
pub(crate) fn expected(region: &[Range<usize>; 3], c_order: bool) -> Vec<u8> {
    let [z, y, x] = region.clone();
    let mut bytes = Vec::with_capacity(z.len() * y.len() * x.len() * 2);
    if c_order {
        for at in z.flat_map(|z| y.clone().map(move |y| (z, y))) {
            for x in x.clone() {
                bytes.extend(expected_at([at.0, at.1, x]).to_ne_bytes());
            }
        }
    } else {
        for at in x.flat_map(|x| y.clone().map(move |y| (x, y))) {
            for z in z.clone() {
                bytes.extend(expected_at([z, at.1, at.0]).to_ne_bytes());
            }
        }
    }
    bytes
}

/// Returns the bytes of the whole volume in C order. They are computed once, because that takes a while.
pub(crate) fn expected_whole() -> &'static [u8] {
    static WHOLE: OnceLock<Vec<u8>> = OnceLock::new();
    WHOLE.get_or_init(|| expected(&SHAPE.map(|length| 0..length), true))
}

/// Writes the volume.
pub(crate) fn write(directory: &Path) {
    fs::create_dir_all(directory).expect("made");
    let metadata = serde_json::json!({
        "zarr_format": 2,
        "shape": SHAPE,
        "chunks": CHUNK,
        "dtype": "<u2",
        "compressor": {"id": "gzip", "level": 1},
        "fill_value": FILL,
        "order": "C",
        "filters": null,
    });
    fs::write(directory.join(".zarray"), metadata.to_string()).expect("written");
    let payloads: Vec<Vec<u8>> = (0..KINDS).map(payload).collect();
    for z in 0..GRID[0] {
        for y in 0..GRID[1] {
            for x in 0..GRID[2] {
                if let Some(kind) = kind([z, y, x]) {
                    fs::write(directory.join(format!("{z}.{y}.{x}")), &payloads[kind]).expect("written");
                }
            }
        }
    }
}

fn payload(kind: usize) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    for z in 0..CHUNK[0] {
        for y in 0..CHUNK[1] {
            let row: Vec<u8> = (0..CHUNK[2]).flat_map(|x| element(kind, [z, y, x]).to_le_bytes()).collect();
            encoder.write_all(&row).expect("a Vec takes everything");
        }
    }
    encoder.finish().expect("a Vec takes everything")
}
