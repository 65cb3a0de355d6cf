//! `ndshm demo`: creates volumes, downloads each of them with worker processes, and verifies the arrays.
//!
//! The volumes differ in chunks, codecs, element types and Zarr versions. Each is downloaded into an array of the same
//! name. Every element is compared with the volume, which is read again without a shared array; a sample is compared
//! with the formula that made the volume. The first volume of the gallery is downloaded last, and its array stays.

use std::io::Write;
use std::ops::Range;
use std::path::Path;

use ndarray::{ArrayViewD, Axis, IxDyn, ShapeBuilder as _, Slice};
use ndarray_shm::backend::EntryKind;
use ndarray_shm::{Access, Directory, Element, Location, OpenOptions, Order, SharedArray, render, with_element};
use ndarray_shm_volume::demo::{DemoSpec, write_volume};
use ndarray_shm_volume::{Bbox, ChunkSource, DownloadOptions, Elements, Scratch, StopFlag, VolumeUrl, open_volume};
use serde::Serialize;

use crate::args::{DEMO_LOCATION, DemoArgs};
use crate::arrays::places;
use crate::exit::{Exit, Failure};
use crate::interrupt;
use crate::machine::host;
use crate::show::report::{self, Column, Table};
use crate::show::units;
use crate::transfer::destination;
use crate::transfer::progress::Display;
use crate::transfer::request::{DownloadReport, DownloadRequest};

/// Elements along each axis of the sample that is compared with the formula.
const SAMPLE: i64 = 8;

/// The result, as `demo --json` prints it.
#[derive(Debug, Serialize)]
struct Demonstration {
    /// Whether the array was removed again.
    cleaned: bool,
    /// One for each volume. Only the array of the last one stays.
    downloads: Vec<DemoDownload>,
}

#[derive(Debug, Serialize)]
struct DemoDownload {
    /// Name of the volume in the gallery.
    volume: String,
    /// Its format, for people.
    format: String,
    /// Elements along each axis of a chunk.
    chunk_shape: Vec<u64>,
    /// Whether every element equals an independent read. Always true: a difference ends the demo.
    verified: bool,
    #[serde(flatten)]
    report: DownloadReport,
}

/// Runs `ndshm demo`.
pub(crate) fn run(args: &DemoArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let stop = interrupt::flag()?;
    let backend = destination::backend(args.emulate)?;
    let directory = tempfile::Builder::new().prefix("ndshm-demo-").tempdir().map_err(|error| {
        Failure::new(Exit::Failed, format!("cannot create a temporary directory: {error}"))
            .advice(format!("set {} to a directory that you can write to", host::TEMPORARY_DIRECTORY))
    })?;
    // A name that the user chose may belong to an array that is still needed. Only demos use the default name.
    let is_default = args.location().as_str() == DEMO_LOCATION;
    if is_default {
        discard_leftovers(&backend, args.location())?;
    }
    let stage = DemoRun { args, backend: &backend, stop: &stop };
    let mut array = None;
    let mut downloads = Vec::new();
    for (number, (name, spec)) in DemoSpec::gallery().into_iter().enumerate().rev() {
        let order = if number % 2 == 0 { Order::C } else { Order::F };
        let replace = is_default || array.is_some();
        let path = directory.path().join(name);
        downloads.push(stage.download(name, &spec, &path, order, replace, &mut array)?);
    }
    if args.clean
        && let Some(array) = array.take()
    {
        array.remove()?;
    }
    let demonstration = Demonstration { cleaned: args.clean, downloads };
    if args.output.json {
        report::json(out, &demonstration)?;
    } else {
        write(&demonstration, args, out)?;
    }
    if let Some(mut array) = array {
        array.keep = true;
    }
    Ok(Exit::Done)
}

/// The array of the demo. Dropping it unlinks the array, unless `keep` is set: a demo that fails leaves nothing.
#[derive(Debug)]
struct Made<'a> {
    backend: &'a Directory,
    location: &'a Location,
    keep: bool,
}

impl Made<'_> {
    /// Unlinks the array now, and returns the error if that fails.
    fn remove(mut self) -> Result<(), Failure> {
        self.keep = true;
        self.backend.unlink(self.location)?;
        Ok(())
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        if !self.keep {
            // The error that ended the demo matters, not this one.
            let _ = self.backend.unlink(self.location);
        }
    }
}

/// Arguments that are the same for every volume.
#[derive(Debug)]
struct DemoRun<'a> {
    args: &'a DemoArgs,
    backend: &'a Directory,
    stop: &'a StopFlag,
}

impl<'a> DemoRun<'a> {
    /// Creates one volume, downloads it, verifies the array, and removes the volume.
    fn download(
        &self,
        name: &str,
        spec: &DemoSpec,
        path: &Path,
        order: Order,
        replace: bool,
        made: &mut Option<Made<'a>>,
    ) -> Result<DemoDownload, Failure> {
        let location = self.args.location();
        interrupt::check(self.stop)?;
        write_volume(path, spec)?;
        interrupt::check(self.stop)?;
        let url = VolumeUrl::local(path);
        let source = open_volume(&url)?;
        let bbox = Bbox::whole(&source.meta().shape);
        let display = Display::new(name, "chunk", self.args.output.json);
        let request = DownloadRequest {
            url: &url,
            mip: 0,
            source: &*source,
            bbox: &bbox,
            location,
            backend: self.backend,
            workers: usize::from(self.args.workers),
            processes: true,
            keep_partial: false,
            options: DownloadOptions::new().order(order).replace(replace).shared_with(self.args.share.clone()),
        };
        let report = request.run(&display, self.stop)?;
        *made = match made.take() {
            None => Some(Made { backend: self.backend, location, keep: false }),
            same => same,
        };
        interrupt::check(self.stop)?;
        let dtype = source.meta().dtype;
        let compared = with_element!(
            dtype,
            T => compare::<T>(&*source, spec, self.backend, location, order),
            else => Err(Failure::no_elements(dtype))
        );
        compared.map_err(|failure| failure.while_doing(format!("the array of the volume `{name}` is wrong")))?;
        let meta = source.meta();
        let (format, chunk_shape) = (meta.description.clone(), meta.chunk_shape.clone());
        // Removed now, not at the end: the temporary directory may be small.
        let _ = std::fs::remove_dir_all(path);
        Ok(DemoDownload { volume: name.to_owned(), format, chunk_shape, verified: true, report })
    }
}

/// Removes the unfinished renderbuffer of a killed demo, unless another demo is painting it.
fn discard_leftovers(backend: &Directory, location: &Location) -> Result<(), Failure> {
    let entries = backend.list()?;
    let partial =
        entries.iter().find(|entry| entry.kind == EntryKind::Partial && entry.location().as_ref() == Some(location));
    if partial.is_none_or(|entry| places::attached(backend, entry) == Some(false)) {
        render::discard(backend, location)?;
    }
    Ok(())
}

/// Compares an array with its volume.
fn compare<T: Element + PartialEq>(
    source: &dyn ChunkSource,
    spec: &DemoSpec,
    backend: &Directory,
    location: &Location,
    order: Order,
) -> Result<(), Failure> {
    let meta = source.meta();
    let shape = IxDyn(&Bbox::whole(&meta.shape).shape()).set_f(order == Order::F);
    let array: SharedArray<T, IxDyn> =
        OpenOptions::new().directory(backend.clone()).access(Access::Read).open(location, shape)?;
    let guard = array.read()?;
    let mut scratch = Scratch::new();
    for region in meta.chunks(&meta.domain()) {
        source.read(&region, &mut scratch)?;
        if let Some(fill) = &meta.fill {
            scratch.fill_if_missing(fill);
        }
        let painted = part(guard.view(), &region);
        let is_same = match scratch.elements::<T>(&region)? {
            Elements::Missing => false,
            Elements::Fill(value) => painted.iter().all(|element| *element == value),
            Elements::Block(block) => painted == block,
        };
        if !is_same {
            return Err(difference(&region, "the volume, read again,"));
        }
    }
    let middle: Vec<Range<i64>> = meta
        .domain()
        .ranges()
        .iter()
        .map(|range| {
            let start = (range.end / 2 - SAMPLE / 2).max(0);
            start..(start + SAMPLE).min(range.end)
        })
        .collect();
    if part(guard.view(), &middle) != spec.expected::<T>(&Bbox::new(middle.clone())?)? {
        return Err(difference(&middle, "the formula that made the volume"));
    }
    Ok(())
}

/// Cuts a region out of a view of the whole volume.
fn part<'a, T>(mut whole: ArrayViewD<'a, T>, region: &[Range<i64>]) -> ArrayViewD<'a, T> {
    // The array is in memory, so its coordinates fit.
    let coordinate = |at: i64| isize::try_from(at).unwrap_or(isize::MAX);
    for (axis, range) in region.iter().enumerate() {
        let slice = Slice::from(coordinate(range.start)..coordinate(range.end));
        whole.slice_axis_inplace(Axis(axis), slice);
    }
    whole
}

fn difference(region: &[Range<i64>], from: &str) -> Failure {
    let axes: Vec<String> = region.iter().map(|range| format!("{}:{}", range.start, range.end)).collect();
    Failure::new(Exit::Failed, format!("{from} has other elements in the region {}", axes.join(",")))
        .advice("this is a bug in ndshm: please report it, with the output of `ndshm doctor`")
}

fn write(demonstration: &Demonstration, args: &DemoArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let mut table = Table::new(&[
        Column::Left("VOLUME"),
        Column::Left("FORMAT"),
        Column::Left("SHAPE"),
        Column::Left("CHUNKS OF"),
        Column::Left("DTYPE"),
        Column::Left("ORDER"),
        Column::Right("SIZE"),
        Column::Right("TIME"),
    ]);
    for DemoDownload { volume, format, chunk_shape, report, .. } in &demonstration.downloads {
        table.row([
            volume.clone(),
            format.clone(),
            units::shape(&report.shape),
            units::shape(&Bbox::whole(chunk_shape).shape()),
            report.dtype.clone(),
            report.order.clone(),
            units::size(report.bytes),
            format!("{:.2} s", report.seconds),
        ]);
    }
    let workers = match args.workers {
        1 => "1 worker process".to_owned(),
        many => format!("{many} worker processes"),
    };
    writeln!(out, "painted by {workers}; every element equals an independent read:\n")?;
    table.write(out)?;
    let Some(DemoDownload { report, .. }) = demonstration.downloads.last() else { return Ok(()) };
    writeln!(out)?;
    report.write_python(out)?;
    let location = args.location();
    if args.clean {
        writeln!(out, "\neverything was removed again (--clean)")?;
    } else {
        writeln!(out, "\n`ndshm info {location}` shows more, `ndshm unlink {location}` removes it")?;
    }
    Ok(())
}
