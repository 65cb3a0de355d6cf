//! Volumes that this crate writes: oracles must read the elements that were written.

use std::fs;
use std::path::Path;

use ndarray::{ArrayD, IxDyn, ShapeBuilder as _, SliceInfoElem};
use ndarray_shm::{CreateOptions, Element, Location, Order, with_element};
use ndarray_shm_volume::{
    Alignment, Bbox, ChunkSink, Encoding, Error, NewVolume, UploadOptions, VolumeFormat, VolumeKind, VolumeOptions,
    VolumeUrl, create_volume, upload_from_shared_memory,
};
use serde_json::{Value, json};

use crate::matrix::{Described, Format, Kept, Oracle, Row, Written, dtype};
use crate::python::{World, remove};
use crate::reading::{compare, downloaded, in_full, open};
use crate::table::{Direction, Outcome};

/// Largest loss of a smooth JPEG picture: a few of 256 shades.
const PICTURES: u8 = 20;

/// Creates a volume and writes it in parts. After each part, oracles compare the volume with the expected elements.
pub(crate) fn check(world: &World, written: &Written, number: usize, kept: Kept) -> Result<(), String> {
    let described = Described::new(written.format, written.encoding, written.dtypes, written.channels, number, kept);
    let (place, url) = world.place(kept);
    let url = format!("{}://{url}", described.format.scheme());
    let parsed: VolumeUrl = url.parse().map_err(|error: Error| error.to_string())?;
    let sink = create_volume(&parsed, &new_volume(&described)).map_err(|error| in_full(&error))?;
    Upload { world, described: &described, place: &place, url: &url, readers: written.readers }.run(&*sink, number)?;
    drop(sink);
    remove(&place)?;
    for oracle in written.readers {
        note(world, &described, Direction::Written, *oracle, kept);
    }
    Ok(())
}

/// Lets an oracle create a volume, writes the elements, and lets the oracle compare.
pub(crate) fn check_theirs(world: &World, row: &Row, number: usize, kept: Kept) -> Result<(), String> {
    let described = Described::new(row.format, row.encoding, row.dtypes, row.channels, number, kept);
    let (place, url) = world.place(kept);
    let url = format!("{}://{url}", described.format.scheme());
    world.ask(&json!({"do": "make", "oracle": row.oracle.name(), "volume": described.json(&place)}))?;
    let parsed: VolumeUrl = url.parse().map_err(|error: Error| error.to_string())?;
    let sink = VolumeOptions::new().open_writable(&parsed).map_err(|error| in_full(&error))?;
    Upload { world, described: &described, place: &place, url: &url, readers: &[row.oracle] }.run(&*sink, number)?;
    drop(sink);
    remove(&place)?;
    note(world, &described, Direction::WrittenIntoTheirs, row.oracle, kept);
    Ok(())
}

fn note(world: &World, described: &Described, direction: Direction, oracle: Oracle, kept: Kept) {
    let Described { format, encoding, dtype, .. } = *described;
    world.note(Outcome { format, encoding, direction, oracle, kept, dtype });
}

struct Upload<'a> {
    world: &'a World,
    described: &'a Described,
    place: &'a Value,
    url: &'a str,
    readers: &'a [Oracle],
}

impl Upload<'_> {
    fn run(&self, sink: &dyn ChunkSink, number: usize) -> Result<(), String> {
        with_element!(
            dtype(self.described.dtype),
            T => self.parts::<T>(sink, number),
            else => unreachable!("volumes have other types")
        )
    }

    fn parts<T: Element>(&self, sink: &dyn ChunkSink, number: usize) -> Result<(), String> {
        let described = self.described;
        let (first, second) = if number.is_multiple_of(2) { (Order::C, Order::F) } else { (Order::F, Order::C) };

        // The whole volume.
        let mut expected = self.generated::<T>(described.kind, described.seed)?;
        self.upload(sink, &expected, &described.domain(), first, UploadOptions::new(), "whole")?;
        self.compare(&expected, "after all of it was written")?;
        if described.is_lossy() {
            return Ok(());
        }

        // One stored object, as a cutout of an array of the whole volume.
        let other = self.generated::<T>("smooth", described.seed + 100)?;
        let aligned = described.aligned();
        let options = UploadOptions::new().cutout(aligned.clone());
        self.upload(sink, &other, &described.domain(), second, options, "cutout")?;
        overlay(&mut expected, &other, described, &aligned);
        self.compare(&expected, "after one stored object was written again")?;

        // A region that cuts through stored objects: refused unless read-modify-write is requested.
        let third = self.generated::<T>("noise", described.seed + 200)?;
        let unaligned = described.unaligned();
        let part = cut(&third, described, &unaligned);
        match self.upload(sink, &part, &unaligned, second, UploadOptions::new(), "refused") {
            Err(error) if error.contains("cuts through") => {}
            other => return Err(format!("{unaligned} is not aligned, but: {other:?}")),
        }
        let options = UploadOptions::new().alignment(Alignment::ReadModifyWrite);
        self.upload(sink, &part, &unaligned, second, options, "unaligned")?;
        overlay(&mut expected, &third, described, &unaligned);
        self.compare(&expected, "after a region was changed")
    }

    fn generated<T: Element>(&self, kind: &str, seed: usize) -> Result<ArrayD<T>, String> {
        let file = self.world.path("elements");
        let volume = self.described.json(self.place);
        self.world.ask(&json!({"do": "generate", "volume": volume, "kind": kind, "seed": seed, "into": file}))?;
        let bytes = fs::read(&file).map_err(|error| error.to_string())?;
        fs::remove_file(&file).map_err(|error| error.to_string())?;
        let elements = bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect();
        ArrayD::from_shape_vec(IxDyn(&lengths(&self.described.shape)), elements).map_err(|error| error.to_string())
    }

    /// Puts elements into shared memory, uploads them, and checks that the array has not changed.
    fn upload<T: Element>(
        &self,
        sink: &dyn ChunkSink,
        elements: &ArrayD<T>,
        bbox: &Bbox,
        order: Order,
        options: UploadOptions<'_>,
        what: &str,
    ) -> Result<(), String> {
        let world = self.world;
        let location = world.location();
        let shape = IxDyn(elements.shape()).set_f(order == Order::F);
        let array = CreateOptions::new()
            .directory(world.backend.clone())
            .create_with::<T, IxDyn>(&location, shape, |mut view| view.assign(elements))
            .map_err(|error| error.to_string())?;
        let options = options.order(order).directory(world.backend.clone()).workers(2);
        let done = upload_from_shared_memory(sink, bbox, &location, &options);
        let kept = {
            let guard = array.read().map_err(|error| error.to_string())?;
            let kept = guard.view().iter().zip(elements).all(|(a, b)| bytemuck::bytes_of(a) == bytemuck::bytes_of(b));
            kept && is_there(world, &location)
        };
        world.backend.unlink(&location).map_err(|error| error.to_string())?;
        if !kept {
            return Err(format!("{what}: the upload changed the array"));
        }
        done.map(|_| ()).map_err(|error| format!("{what}: {}", in_full(&error)))
    }

    /// Compares the whole volume, as each oracle and this crate read it, with the expected elements.
    fn compare<T: Element>(&self, expected: &ArrayD<T>, when: &str) -> Result<(), String> {
        let bytes: &[u8] = bytemuck::cast_slice(expected.as_slice().expect("in C order"));
        let file = self.world.path("expected");
        fs::write(&file, bytes).map_err(|error| error.to_string())?;
        let tolerance = if self.described.is_lossy() { PICTURES } else { 0 };
        for oracle in self.readers {
            self.compare_with(*oracle, &file, tolerance, when)?;
        }
        fs::remove_file(&file).map_err(|error| error.to_string())?;
        let source = open(self.url)?;
        let found = downloaded(self.world, &*source, &self.described.domain(), Order::C)?;
        compare(&found, bytes, tolerance).map_err(|wrong| format!("our own reading {when}: {wrong}"))
    }

    fn compare_with(&self, oracle: Oracle, file: &Path, tolerance: u8, when: &str) -> Result<(), String> {
        let volume = self.described.json(self.place);
        let name = oracle.name();
        let question =
            json!({"do": "compare", "oracle": name, "volume": volume, "expected": file, "tolerance": tolerance});
        let answer = self.world.ask(&question)?;
        match answer["difference"].as_str() {
            Some("") => Ok(()),
            difference => Err(format!("{name} {when}, {:?}: {difference:?}", self.described)),
        }
    }
}

fn new_volume(described: &Described) -> NewVolume {
    let inner = described.encoding.strip_prefix("sharded ");
    let encoding = match inner.unwrap_or(described.encoding) {
        "raw" => Encoding::Raw,
        "gzip" => Encoding::Gzip,
        "zstd" => Encoding::Zstd,
        "blosc" => Encoding::Blosc,
        "jpeg" => Encoding::Jpeg,
        "png" => Encoding::Png,
        "compressed_segmentation" => Encoding::CompressedSegmentation,
        "compressed_segmentation_gzip" => Encoding::CompressedSegmentationGzip,
        other => panic!("no encoding is called {other}"),
    };
    let (format, version) = match described.format {
        Format::Precomputed => (VolumeFormat::Precomputed, 1),
        Format::Zarr2 => (VolumeFormat::Zarr, 2),
        Format::Zarr3 => (VolumeFormat::Zarr, 3),
        Format::N5 => unreachable!("N5 is not written"),
    };
    let mut new = NewVolume::new(format, &described.shape, &described.chunk, dtype(described.dtype));
    new.version = version;
    new.origin.clone_from(&described.origin);
    new.shard_shape = inner.map(|_| described.stored());
    new.encoding = encoding;
    if format == VolumeFormat::Precomputed {
        new.kind = VolumeKind::implied(encoding, new.dtype).or(Some(VolumeKind::Image));
    }
    new
}

fn lengths(shape: &[u64]) -> Vec<usize> {
    shape.iter().map(|length| usize::try_from(*length).expect("small")).collect()
}

fn window(described: &Described, bbox: &Bbox) -> Vec<SliceInfoElem> {
    let axes = bbox.ranges().iter().zip(&described.origin);
    let to = |coordinate: i64, origin: &i64| isize::try_from(coordinate - origin).expect("small");
    axes.map(|(range, origin)| SliceInfoElem::Slice {
        start: to(range.start, origin),
        end: Some(to(range.end, origin)),
        step: 1,
    })
    .collect()
}

fn cut<T: Element>(array: &ArrayD<T>, described: &Described, bbox: &Bbox) -> ArrayD<T> {
    array.slice(&window(described, bbox)[..]).to_owned()
}

fn overlay<T: Element>(array: &mut ArrayD<T>, with: &ArrayD<T>, described: &Described, bbox: &Bbox) {
    let window = window(described, bbox);
    array.slice_mut(&window[..]).assign(&with.slice(&window[..]));
}

fn is_there(world: &World, location: &Location) -> bool {
    let entries = world.backend.list().expect("the backend's entries");
    entries.iter().any(|entry| entry.location().as_ref() == Some(location))
}
