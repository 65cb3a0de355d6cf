//! Volumes that an oracle wrote: this crate must read the elements that the oracle reads.

use std::fs;

use ndarray::IxDyn;
use ndarray_shm::{Element, Order, with_element};
use ndarray_shm_volume::{
    Bbox, ChunkSource, DownloadOptions, Missing, ReadOptions, VolumeUrl, Workers, download_to_shared_memory,
    open_volume, read,
};
use serde_json::{Value, json};

use crate::matrix::{Described, Kept, Row, dtype};
use crate::python::{World, remove};
use crate::table::{Direction, Outcome};

/// Largest difference between this crate's decoded JPEG elements and an oracle's: both round the cosine transform and
/// the colours.
const PICTURES: u8 = 3;

/// Lets an oracle write a volume, and compares what the oracle reads with what this crate downloads, region by region.
pub(crate) fn check(world: &World, row: &Row, number: usize, kept: Kept) -> Result<(), String> {
    let described = Described::new(row.format, row.encoding, row.dtypes, row.channels, number, kept);
    let (place, url) = world.place(kept);
    let volume = described.json(&place);
    let oracle = row.oracle.name();
    let question =
        json!({"do": "write", "oracle": oracle, "volume": volume, "kind": described.kind, "seed": described.seed});
    world.ask(&question)?;

    // Every second URL names no format, which then has to be recognised by the volume's files.
    let url = if number.is_multiple_of(2) { format!("{}://{url}", row.format.scheme()) } else { url };
    let source = open(&url)?;
    let meta = source.meta();
    let facts = (&meta.origin, &meta.shape, &meta.chunk_shape, meta.dtype);
    let expected = (&described.origin, &described.shape, &described.chunk, dtype(described.dtype));
    if facts != expected {
        return Err(format!("origin, shape, chunk, type: {facts:?} instead of {expected:?}"));
    }
    let regions = described.regions();
    let expected = read_by_oracle(world, oracle, &volume, &regions)?;
    let mut rest = &expected[..];
    for (count, (name, bbox)) in regions.iter().enumerate() {
        let (region, others) = rest.split_at(bbox.shape().iter().product::<usize>() * meta.dtype.size());
        rest = others;
        // The first region, which is the whole volume, is read in both orders. Each other region is read in one; the
        // order alternates with the element types of a row.
        for order in [Order::C, Order::F] {
            if count > 0 && (order == Order::C) != (count + number).is_multiple_of(2) {
                continue;
            }
            let found = downloaded(world, &*source, bbox, order)?;
            let tolerance = if described.is_lossy() { PICTURES } else { 0 };
            compare(&found, region, tolerance)
                .map_err(|wrong| format!("{name} region {bbox}, order {order}, {described:?}: {wrong}"))?;
            let found = with_element!(
                meta.dtype, T => read_directly::<T>(&*source, bbox, order), else => unreachable!("volumes have other types")
            )?;
            compare(&found, region, tolerance)
                .map_err(|wrong| format!("{name} region {bbox}, read in order {order}, {described:?}: {wrong}"))?;
        }
    }
    assert!(rest.is_empty());
    drop(source);
    remove(&place)?;
    world.note(Outcome {
        format: row.format,
        encoding: row.encoding,
        direction: Direction::Read,
        oracle: row.oracle,
        kept,
        dtype: described.dtype,
    });
    Ok(())
}

/// Returns the elements of regions as an oracle reads them, one region after the other.
pub(crate) fn read_by_oracle(
    world: &World,
    oracle: &str,
    volume: &Value,
    regions: &[(&'static str, Bbox)],
) -> Result<Vec<u8>, String> {
    let file = world.path("regions");
    let ranges = |bbox: &Bbox| bbox.ranges().iter().map(|range| [range.start, range.end]).collect::<Vec<_>>();
    let regions: Vec<_> = regions.iter().map(|(_, bbox)| ranges(bbox)).collect();
    world.ask(&json!({"do": "read", "oracle": oracle, "volume": volume, "regions": regions, "into": file}))?;
    let bytes = fs::read(&file).map_err(|error| error.to_string())?;
    fs::remove_file(&file).map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// Opens a volume by its URL.
pub(crate) fn open(url: &str) -> Result<Box<dyn ChunkSource>, String> {
    let url: VolumeUrl = url.parse().map_err(|error: ndarray_shm_volume::Error| error.to_string())?;
    open_volume(&url).map_err(|error| in_full(&error))
}

/// Downloads a region and returns its elements in C order.
pub(crate) fn downloaded(
    world: &World,
    source: &dyn ChunkSource,
    bbox: &Bbox,
    order: Order,
) -> Result<Vec<u8>, String> {
    // Writers leave out chunks of zeros.
    let options = DownloadOptions::new()
        .order(order)
        .workers(Workers::Threads(2))
        .directory(world.backend.clone())
        .missing(Missing::Fill);
    let location = world.location();
    let done = download_to_shared_memory(source, bbox, &location, &options)
        .map_err(|error| format!("{bbox}: {}", in_full(&error)))?;
    assert_eq!((&done.shape, done.dtype), (&bbox.shape(), source.meta().dtype));
    // An array with at most one axis longer than 1 is in both orders.
    assert!(done.order == order || done.shape.iter().filter(|length| **length > 1).count() < 2, "order {}", done.order);
    let bytes = elements_of(&done)?;
    world.backend.unlink(&location).map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// Reads a region into memory of this process, and returns its elements in C order.
fn read_directly<T: Element>(source: &dyn ChunkSource, bbox: &Bbox, order: Order) -> Result<Vec<u8>, String> {
    let options = ReadOptions::new().order(order).missing(Missing::Fill);
    let array = read::<T, IxDyn>(source, bbox, &options).map_err(|error| format!("{bbox}: {}", in_full(&error)))?;
    Ok(bytemuck::cast_slice(array.as_standard_layout().as_slice().expect("in C order")).to_vec())
}

/// Returns the elements of a downloaded array, in C order.
pub(crate) fn elements_of(done: &ndarray_shm_volume::Downloaded) -> Result<Vec<u8>, String> {
    with_element!(done.dtype, T => elements::<T>(done), else => unreachable!("volumes have other types"))
}

fn elements<T: Element>(done: &ndarray_shm_volume::Downloaded) -> Result<Vec<u8>, String> {
    let array = done.open::<T, IxDyn>().map_err(|error| in_full(&error))?;
    let guard = array.read().map_err(|error| error.to_string())?;
    let view = guard.view();
    let in_c_order = view.as_standard_layout();
    Ok(bytemuck::cast_slice(in_c_order.as_slice().expect("in C order")).to_vec())
}

/// Fails with the difference if elements differ by more than the tolerance.
pub(crate) fn compare(found: &[u8], expected: &[u8], tolerance: u8) -> Result<(), String> {
    if found.len() != expected.len() {
        return Err(format!("{} bytes instead of {}", found.len(), expected.len()));
    }
    if found == expected {
        return Ok(()); // the closure below is slow in an unoptimized build
    }
    let wrong = |(a, b): (&u8, &u8)| a.abs_diff(*b) > tolerance;
    let Some(first) = found.iter().zip(expected).position(wrong) else { return Ok(()) };
    let count = found.iter().zip(expected).filter(|pair| wrong(*pair)).count();
    Err(format!(
        "{count} of {} bytes differ, first byte {first}: {} instead of {}",
        found.len(),
        found[first],
        expected[first]
    ))
}

/// Returns the text of an error and of all its causes.
pub(crate) fn in_full(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
