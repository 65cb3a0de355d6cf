//! `ndshm upload`: writes an array, or a file of elements, into a region of a volume, and creates the volume on request.

use std::io::Write;
use std::time::Instant;

use ndarray_shm_volume::{Alignment, ErrorKind, UploadOptions, VolumeKind, VolumeOptions};
use serde::Serialize;

use crate::cli::UploadArgs;
use crate::exit::{Exit, Failure};
use crate::part::{IdlePart, Part};
use crate::progress::Display;
use crate::upload_source::UploadSource;
use crate::{interrupt, new_volume, region, report, units};

/// Runs `ndshm upload`.
pub(crate) fn run(args: &UploadArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let stop = interrupt::flag()?;
    let source = UploadSource::find(args)?;
    let sink = if args.create {
        interrupt::opening(&stop, &args.destination, || new_volume::create(args, &source))?
    } else {
        let open = || VolumeOptions::new().mip(args.mip).open_writable(&args.destination);
        interrupt::opening(&stop, &args.destination, open).map_err(|error| match error.kind() {
            Some(ErrorKind::Absent) => {
                Failure::from(error).advice("--create creates the volume; `ndshm upload --help` says what it needs")
            }
            _ => error.into(),
        })?
    };
    let meta = sink.meta();
    let bbox = region::parse(meta, args.bbox.as_deref(), None)?;
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
                return IdlePart::write(part, None, "nothing", args.json, out);
            };
            if part.is_marked(None)? {
                return IdlePart::write(part, None, "already done", args.json, out);
            }
            region
        }
    };
    let display = Display::new(&name, "object", args.quiet);
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
        is_kind_assumed: args.create && args.kind.is_none() && meta.kind == Some(VolumeKind::Image),
        order: order.to_string(),
        stored: uploaded.stored,
        background: uploaded.background,
        bytes: uploaded.bytes,
        stored_bytes: uploaded.stored_bytes,
        seconds: seconds.as_secs_f64(),
        bytes_per_second: units::rate(uploaded.bytes, seconds),
        warnings: uploaded.warnings,
    };
    if args.json {
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
    /// Whether the elements of a Precomputed volume are an "image" or a "segmentation"; `null` if the volume does not specify it.
    #[serde(rename = "type")]
    kind: Option<&'static str>,
    /// Whether the type is the default, because no type was given.
    #[serde(skip)]
    is_kind_assumed: bool,
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
        if let Some(shard) = &self.shard {
            facts.insert(2, ("part", shard.clone()));
        }
        report::facts(out, &facts)?;
        Ok(())
    }
}
