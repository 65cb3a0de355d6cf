//! Random damage of stored objects. A damaged chunk must be an error that names it, or the elements that another
//! program reads too.
//!
//! Each test is one encoding. One stored object at a time is cut, or some of its bits or bytes are changed, removed or
//! inserted, from a fixed seed; `NDSHM_TEST_CORRUPTIONS` sets how often.
//!
//! Elements may change for every reader where no checksum covers them: blosc, zstd as it is usually written,
//! `compressed_segmentation` without gzip, and JPEG, where changed bits may be other elements. Raw is not tested: any
//! bytes are elements.

use std::fs;
use std::path::{Path, PathBuf};

use ndarray_shm::Order;
use ndarray_shm_volume::{DownloadOptions, Error, Workers, download_to_shared_memory, open_volume};
use serde_json::json;

use crate::matrix::{Described, Format, Kept, Oracle};
use crate::python::{World, remove};
use crate::reading::{compare, elements_of, in_full, read_by_oracle};

/// How often an object of each encoding is damaged, unless the environment says otherwise.
const CORRUPTIONS: usize = 200;

/// An encoding of a format, and the program that writes it and also reads the damaged volume.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Damaged {
    pub(crate) format: Format,
    pub(crate) encoding: &'static str,
    oracle: Oracle,
    pub(crate) dtype: &'static str,
    pub(crate) channels: u64,
    /// Largest difference from the other program's elements.
    tolerance: u8,
}

/// In pictures, fewer than one in this many elements may differ by more than the tolerance. A damaged block may hold
/// values that no picture has; what is far off the scale becomes black in one program and white in another.
const PICTURE_ELEMENTS: usize = 100;

/// Returns every encoding that can show damage: all but raw.
pub(crate) fn all() -> Vec<Damaged> {
    use Format::{Precomputed, Zarr2, Zarr3};
    use Oracle::{CloudVolume, Tensorstore, ZarrPython};
    let of = |format, encoding, oracle, dtype| Damaged { format, encoding, oracle, dtype, channels: 1, tolerance: 0 };
    let mut all = vec![
        of(Precomputed, "gzip", CloudVolume, "uint16"),
        of(Precomputed, "compressed_segmentation", CloudVolume, "uint64"),
        of(Precomputed, "compressed_segmentation", Tensorstore, "uint32"),
        // Decoders round the cosine transform differently, and colours once more. The difference grows with the
        // distance from the scale.
        Damaged { tolerance: 3, ..of(Precomputed, "jpeg", Tensorstore, "uint8") },
        Damaged { channels: 3, tolerance: 6, ..of(Precomputed, "jpeg", Tensorstore, "uint8") },
        of(Precomputed, "png", Tensorstore, "uint8"),
        Damaged { channels: 3, ..of(Precomputed, "png", Tensorstore, "uint16") },
        of(Precomputed, "sharded gzip", Tensorstore, "uint16"),
        of(Precomputed, "sharded compressed_segmentation", Tensorstore, "uint64"),
        of(Zarr3, "sharded transpose and blosc", ZarrPython, "uint16"),
    ];
    all.extend(["zlib", "gzip", "bz2", "blosc", "zstd"].map(|encoding| of(Zarr2, encoding, Tensorstore, "uint16")));
    let v3 = ["gzip", "zstd", "blosc", "crc32c", "sharded gzip", "sharded zstd"];
    all.extend(v3.map(|encoding| of(Zarr3, encoding, Tensorstore, "int32")));
    all
}

impl Damaged {
    /// Fails with the difference if this crate and the other program read different elements from a damaged volume.
    fn compare(self, ours: &[u8], theirs: &[u8]) -> Result<(), String> {
        compare(ours, theirs, self.tolerance).or_else(|wrong| {
            let count = ours.iter().zip(theirs).filter(|(a, b)| a.abs_diff(**b) > self.tolerance).count();
            let is_alike = self.tolerance > 0 && ours.len() == theirs.len() && count * PICTURE_ELEMENTS < ours.len();
            if is_alike { Ok(()) } else { Err(wrong) }
        })
    }
}

/// The results of damage.
#[derive(Debug, Default)]
struct Count {
    refused: usize,
    unchanged: usize,
    /// Changed elements that the other program reads too.
    as_theirs: usize,
}

/// Damages a volume repeatedly, and checks what is read each time.
pub(crate) fn check(world: &World, damaged: Damaged) -> Result<(), String> {
    let corruptions = match std::env::var("NDSHM_TEST_CORRUPTIONS") {
        Ok(text) => text.parse().map_err(|_| format!("NDSHM_TEST_CORRUPTIONS={text} is no number"))?,
        Err(_) => CORRUPTIONS,
    };
    let Damaged { format, encoding, oracle, dtype, channels, .. } = damaged;
    // The volume has the size of those on S3, but it is in files, which the test can damage.
    let described = Described::new(format, encoding, &[dtype], &[channels], 0, Kept::S3);
    let kind = if matches!(encoding, "jpeg" | "png") { "smooth" } else { "noise" };
    let (place, _) = world.place(Kept::Files);
    let volume = described.json(&place);
    world.ask(&json!({"do": "write", "oracle": oracle.name(), "volume": volume, "kind": kind, "seed": 5}))?;
    let path = PathBuf::from(place["file"].as_str().expect("a path"));
    let before = read(world, &path).map_err(|error| in_full(&error))?;
    let objects = objects(&path, &path)?;

    let mut random = Random(0x5EED ^ (encoding.len() as u64) << 8 ^ channels);
    let (mut count, mut silent) = (Count::default(), Vec::new());
    for _ in 0..corruptions {
        let object = &objects[random.below(objects.len())];
        let file = path.join(object);
        let whole = fs::read(&file).map_err(|error| error.to_string())?;
        let (bytes, what) = corrupt(&whole, &mut random);
        fs::write(&file, &bytes).map_err(|error| error.to_string())?;
        match read(world, &path) {
            Err(error) => {
                names(&error, object).map_err(|wrong| format!("{what} of {object}: {wrong}"))?;
                count.refused += 1;
            }
            Ok(found) if found == before => count.unchanged += 1,
            Ok(found) => {
                let regions = [("whole", described.domain())];
                let theirs = read_by_oracle(world, oracle.name(), &volume, &regions);
                match theirs.and_then(|theirs| damaged.compare(&found, &theirs)) {
                    Ok(()) => count.as_theirs += 1,
                    Err(theirs) => {
                        let ours = compare(&found, &before, 0).err().unwrap_or_default();
                        silent.push(format!("{what} of {object}: {ours}; {}: {theirs}", oracle.name()));
                    }
                }
            }
        }
        fs::write(&file, &whole).map_err(|error| error.to_string())?;
    }
    eprintln!(
        "damage of {} {encoding}, {dtype}, {channels} channels, by {}: {corruptions} times; {count:?}, {} silent differences",
        format.name(),
        oracle.name(),
        silent.len()
    );
    remove(&place)?;
    if silent.is_empty() { Ok(()) } else { Err(silent.join("\n")) }
}

/// Returns the elements of the whole volume.
fn read(world: &World, path: &Path) -> Result<Vec<u8>, Error> {
    let source = open_volume(path)?;
    let options = DownloadOptions::new().order(Order::C).workers(Workers::Threads(1)).directory(world.backend.clone());
    let location = world.location();
    let done = download_to_shared_memory(&*source, &source.meta().domain(), &location, &options)?;
    let elements = elements_of(&done).expect("an array");
    world.backend.unlink(&location)?;
    Ok(elements)
}

/// Fails if an error is not about one chunk or does not name its object.
fn names(error: &Error, object: &str) -> Result<(), String> {
    let text = in_full(error);
    let is_of_chunk = matches!(error, Error::Chunk { .. } | Error::Missing { .. });
    if is_of_chunk && text.contains(object) { Ok(()) } else { Err(format!("not named: {text}")) }
}

/// Returns the paths, with slashes, of the stored objects below a directory, without descriptions.
fn objects(path: &Path, root: &Path) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(|error| error.to_string())? {
        let path = entry.map_err(|error| error.to_string())?.path();
        if path.is_dir() {
            found.extend(objects(&path, root)?);
            continue;
        }
        let name = path.strip_prefix(root).expect("below it").to_str().expect("text").replace('\\', "/");
        let is_description = name.starts_with('.') || ["info", "provenance", "zarr.json"].contains(&name.as_str());
        if !is_description {
            found.push(name);
        }
    }
    found.sort();
    Ok(found)
}

/// A generator of numbers that are the same in each run.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % limit
    }

    fn byte(&mut self) -> u8 {
        self.below(256).to_le_bytes()[0]
    }
}

/// Damages bytes, and returns them with a text that says how.
fn corrupt(whole: &[u8], random: &mut Random) -> (Vec<u8>, String) {
    let mut bytes = whole.to_vec();
    let at = random.below(bytes.len());
    let end = bytes.len().min(at + 1 + random.below(64));
    let what = match random.below(7) {
        0 => {
            bytes.truncate(at);
            "cut off"
        }
        1 => {
            bytes[at] ^= 1 << random.below(8);
            "one bit"
        }
        2 => {
            for _ in 0..2 + random.below(20) {
                let at = random.below(bytes.len());
                bytes[at] ^= 1 << random.below(8);
            }
            "many bits"
        }
        3 => {
            bytes[at..end].iter_mut().for_each(|byte| *byte = random.byte());
            "changed bytes"
        }
        4 => {
            bytes[at..end].fill([0, 0xFF][random.below(2)]);
            "equal bytes"
        }
        5 => {
            bytes.drain(at..end);
            "missing bytes"
        }
        _ => {
            let more: Vec<u8> = (at..end).map(|_| random.byte()).collect();
            bytes.splice(at..at, more);
            "more bytes"
        }
    };
    (bytes, format!("{what} from byte {at} of {}", whole.len()))
}
