//! `ndshm upload`: writes an array, or a file of elements, into a region of a volume, and creates the volume on
//! request.

use std::io::Write;
use std::time::Instant;

use ndarray_shm_volume::{
    Alignment, NewVolume, Progress as _, SourceFailure, UploadOptions, VolumeFormat, VolumeKind, VolumeMeta,
    VolumeOptions,
};
use serde::Serialize;

use crate::args::UploadArgs;
use crate::exit::{Exit, Failure};
use crate::interrupt;
use crate::show::{report, units};
use crate::transfer::part::{self, IdlePart, Part};
use crate::transfer::progress::Display;
use crate::transfer::source::{UploadSource, lengths};
use crate::transfer::{new_volume, region};

/// Runs `ndshm upload`.
pub(crate) fn run(args: &UploadArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let stop = interrupt::flag()?;
    part::wait_for_servers(&args.part);
    let source = UploadSource::find(args)?;
    let (sink, plan) = if args.create {
        let (sink, plan) = interrupt::opening(&stop, &args.destination, || new_volume::create(args, &source))?;
        (sink, Some(plan))
    } else {
        let open = || VolumeOptions::new().mip(args.mip).open_writable(&args.destination);
        let sink =
            interrupt::opening(&stop, &args.destination, open).map_err(|error| match error.source_failure() {
                Some(SourceFailure::Absent) => {
                    Failure::from(error).advice("--create creates the volume; `ndshm upload --help` says what it needs")
                }
                _ => error.into(),
            })?;
        (sink, None)
    };
    if !args.ignore_description {
        source.check_axes(&*sink)?;
    }
    let meta = sink.meta();
    let bbox = match &args.bbox {
        None if !args.create => source.region_in(&*sink)?,
        text => region::parse(meta, text.as_deref(), None)?,
    };
    if !args.create {
        source.check_fits(meta.dtype, &lengths(&bbox), args)?;
    }
    let whole = match &args.cutout {
        Some(text) => meta.parse_bbox(text)?,
        None => bbox.clone(),
    };
    let name = args.source.to_string_lossy();
    // The array's path and version are part of the identity: another array, or a changed one, must be stored again.
    let order = source.order(args, bbox.shape().into_iter().map(|length| length as u64))?;
    let work = format!("upload of {name} ({}) at {bbox} to {} order={order}", source.version()?, sink.identity());
    let part = Part::choose(&args.part, meta, &whole, work)?;
    let cutout = match &part {
        None => whole.clone(),
        Some(part) => {
            let Some(region) = part.region.clone() else {
                part.mark(None, 0, 0)?;
                return IdlePart::write(part, None, "nothing", args.report.json, out);
            };
            if part.is_marked(None)? {
                return IdlePart::write(part, None, "already done", args.report.json, out);
            }
            region
        }
    };
    let display = Display::new(&name, "object", args.report.quiet);
    let left_out = plan.as_ref().map(|plan| plan.left_out.clone()).unwrap_or_default();
    left_out.iter().for_each(|text| display.warning(text));
    let options = UploadOptions::new()
        .order(order)
        .reinterpret(args.ignore_description)
        .cutout(cutout)
        .alignment(if args.read_modify_write { Alignment::ReadModifyWrite } else { Alignment::Require })
        .skip_background(args.skip_background)
        .workers(usize::from(args.workers.unwrap_or(0)))
        .requests(usize::from(args.requests.unwrap_or(0)))
        .progress(&display)
        .stop(&stop);
    let start = Instant::now();
    let uploaded = source.upload(&*sink, &bbox, options, args);
    display.clear();
    let uploaded = uploaded.map_err(|failure| match failure.exit() {
        Exit::Interrupted => {
            failure.advice("every stored object is complete; the same command stores all of them again")
        }
        _ => failure,
    })?;
    let seconds = start.elapsed();
    if let Some(part) = &part {
        part.mark(None, (uploaded.stored + uploaded.background) as u64, uploaded.bytes)?;
    }
    let report = UploadReport {
        source: name.into_owned(),
        destination: args.destination.to_string(),
        bbox: uploaded.bbox.to_string(),
        shard: part.as_ref().map(|part| part.shard.to_string()),
        dtype: meta.dtype.to_string(),
        kind: meta.kind.map(VolumeKind::name),
        is_kind_assumed: meta.kind == Some(VolumeKind::Image)
            && plan.as_ref().is_some_and(|plan| plan.new.kind.is_none()),
        created: plan.as_ref().map(|plan| NewVolumeReport::new(&plan.new, meta, args)),
        order: order.to_string(),
        stored: uploaded.stored,
        background: uploaded.background,
        bytes: uploaded.bytes,
        stored_bytes: uploaded.stored_bytes,
        seconds: seconds.as_secs_f64(),
        bytes_per_second: units::rate(uploaded.bytes, seconds),
        warnings: left_out.into_iter().chain(uploaded.warnings).collect(),
    };
    if args.report.json {
        report::json(out, &report)?;
    } else {
        report.write(out)?;
    }
    Ok(Exit::Done)
}

/// A finished upload, as `upload --json` prints it.
#[derive(Debug, Serialize)]
struct UploadReport {
    source: String,
    destination: String,
    /// The region that was written.
    bbox: String,
    /// Which part of a larger region it is; `null` for the whole region.
    shard: Option<String>,
    /// The element type as `NumPy` writes it: "<u2".
    dtype: String,
    /// Whether the elements of a Precomputed volume are an "image" or a "segmentation"; `null` if the volume does not
    /// specify it.
    #[serde(rename = "type")]
    kind: Option<&'static str>,
    /// Whether the type is the default, because no type was given.
    #[serde(skip)]
    is_kind_assumed: bool,
    /// What `--create` asked for; `null` without it.
    created: Option<NewVolumeReport>,
    /// Memory order of the array: "C" or "F".
    order: String,
    /// Objects that were stored.
    stored: usize,
    /// Objects of only background, which were not stored.
    background: usize,
    /// Bytes of the array that were written.
    bytes: u64,
    /// Bytes that were stored.
    stored_bytes: u64,
    seconds: f64,
    /// Bytes of the array per second.
    bytes_per_second: u64,
    /// Problems that did not stop the upload.
    warnings: Vec<String>,
}

/// The volume that `--create` created, or found as it should be.
#[derive(Debug, Serialize)]
struct NewVolumeReport {
    /// "zarr2", "zarr3" or "precomputed".
    format: &'static str,
    /// Whether the format is the default, because neither an option nor the URL gave one.
    #[serde(skip)]
    is_format_assumed: bool,
    /// Coordinates of the first element.
    origin: Vec<i64>,
    chunk_shape: Vec<u64>,
    encoding: &'static str,
    /// Names of the axes; empty if the volume does not record them.
    axes: Vec<String>,
    /// Size of one element along each axis; empty if the volume does not record it.
    resolution: Vec<f64>,
    unit: String,
    /// Whether neither an option nor the array's description gave the resolution.
    is_resolution_assumed: bool,
}

impl NewVolumeReport {
    fn new(new: &NewVolume, meta: &VolumeMeta, args: &UploadArgs) -> Self {
        let is_assumed = new.format == VolumeFormat::Precomputed && new.resolution.is_empty();
        // A new volume does not record a step of time.
        let is_time = |axis: usize| matches!(new.axes.get(axis).map(String::as_str), Some("t" | "time"));
        let recorded = |(axis, size): (usize, &f64)| if is_time(axis) { 1.0 } else { *size };
        Self {
            format: match (new.format, new.version) {
                (VolumeFormat::Zarr, 2) => "zarr2",
                (VolumeFormat::Zarr, _) => "zarr3",
                _ => "precomputed",
            },
            is_format_assumed: args.format.is_none() && args.destination.expected_format().is_none(),
            origin: meta.origin.clone(),
            chunk_shape: meta.chunk_shape.clone(),
            encoding: new.encoding.name(),
            axes: if new.format == VolumeFormat::Zarr && new.version > 2 { new.axes.clone() } else { Vec::new() },
            resolution: if is_assumed {
                vec![1.0; 3]
            } else {
                new.resolution.iter().enumerate().map(recorded).collect()
            },
            unit: new.unit.clone(),
            is_resolution_assumed: is_assumed,
        }
    }

    fn facts(&self) -> [(&'static str, String); 4] {
        let unit = units::printable(&self.unit);
        let resolution = if self.is_resolution_assumed {
            format!("1 {unit} (assumed; --resolution gives it)")
        } else if self.resolution.is_empty() {
            "not recorded (--resolution gives it)".to_owned()
        } else {
            units::resolution(&self.resolution, &self.axes, &self.unit)
        };
        let chunks = self.chunk_shape.iter().map(u64::to_string).collect::<Vec<_>>().join(" x ");
        let format =
            format!("{}{}", self.format, if self.is_format_assumed { " (assumed; --format gives it)" } else { "" });
        [("format", format), ("resolution", resolution), ("chunks", chunks), ("encoding", self.encoding.to_owned())]
    }
}

impl UploadReport {
    fn write(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let objects = units::count(self.stored, "object");
        writeln!(out, "stored {objects}; {} with only background were not stored", self.background)?;
        let mut facts = vec![
            ("from", units::printable(&self.source)),
            ("to", units::printable(&self.destination)),
            ("region", self.bbox.clone()),
            ("order", self.order.clone()),
            ("size", format!("{}, stored as {}", units::size(self.bytes), units::size(self.stored_bytes))),
            ("time", format!("{:.2} s, {}/s", self.seconds, units::size(self.bytes_per_second))),
        ];
        if let Some(kind) = self.kind {
            let assumed = if self.is_kind_assumed { " (assumed; for labels give --type segmentation)" } else { "" };
            facts.insert(3, ("type", format!("{kind}{assumed}")));
        }
        if let Some(created) = &self.created {
            let at = facts.iter().position(|(key, _)| *key == "order").unwrap_or(facts.len());
            facts.splice(at..at, created.facts());
        }
        if let Some(shard) = &self.shard {
            facts.insert(2, ("part", shard.clone()));
        }
        report::facts(out, &facts)?;
        Ok(())
    }
}
