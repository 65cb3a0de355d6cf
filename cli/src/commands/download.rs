//! `ndshm download`: paints a region of a volume, or one part of it, into an array, and prints how to open the array.

use std::fs::Metadata;
use std::io::Write;

use ndarray_shm_volume::{DownloadOptions, FillValue, Missing, VolumeMeta, VolumeOptions};

use crate::args::{DownloadArgs, MissingChoice};
use crate::exit::{Exit, Failure};
use crate::interrupt;
use crate::machine::host;
use crate::show::report;
use crate::transfer::part::{self, IdlePart, Part};
use crate::transfer::progress::Display;
use crate::transfer::request::DownloadRequest;
use crate::transfer::{destination, region};

/// Runs `ndshm download`.
pub(crate) fn run(args: &DownloadArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let stop = interrupt::flag()?;
    part::wait_for_servers(&args.part);
    let (backend, location) = destination::of_download(args)?;
    let source = interrupt::opening(&stop, &args.source, || VolumeOptions::new().mip(args.mip).open(&args.source))?;
    let meta = source.meta();
    let whole = region::parse(meta, args.bbox.as_deref(), args.channels.as_deref())?;
    let missing = missing(args, meta)?;
    // The path is part of the identity: a marker for an array of the same size in another place does not count.
    let path = backend.path().join(location.as_str());
    let work =
        format!("download of {} to {} order={} missing={missing:?}", source.identity(), path.display(), args.order);
    let part = Part::choose(&args.part, meta, &whole, work)?;
    let bbox = match &part {
        None => &whole,
        Some(Part { region: Some(region), .. }) => region,
        Some(part) => {
            part.mark(None, 0, 0)?;
            return IdlePart::write(part, None, "nothing", args.report.json, out);
        }
    };
    let made = || path.metadata().ok().filter(Metadata::is_file);
    if let Some(part) = &part {
        let bytes =
            bbox.shape().iter().fold(meta.dtype.size() as u64, |bytes, length| bytes.saturating_mul(*length as u64));
        // A marker outlives the memory of the machine that wrote it, and another program may have created an array of
        // that name.
        let found = made().filter(|found| found.len() == bytes).as_ref().map(host::mark);
        if part.is_marked(found.as_deref())? && found.is_some() {
            return IdlePart::write(part, Some(path.display().to_string()), "already done", args.report.json, out);
        }
    }
    let display = Display::new(location.as_str(), "chunk", args.report.quiet);
    let request = DownloadRequest {
        url: &args.source,
        mip: args.mip,
        source: &*source,
        bbox,
        location: &location,
        backend: &backend,
        workers: usize::from(args.workers.unwrap_or(0)),
        processes: args.processes,
        keep_partial: args.keep_partial,
        options: DownloadOptions::new()
            .order(args.order)
            .requests(usize::from(args.requests.unwrap_or(0)))
            .missing(missing)
            .replace(args.replace)
            .shared_with(args.share.clone()),
    };
    let mut result = request.run(&display, &stop)?;
    if let Some(part) = &part {
        part.mark(made().as_ref().map(host::mark).as_deref(), result.chunks as u64, result.bytes)?;
        result.shard = Some(part.shard.to_string());
    }
    if args.report.json {
        report::json(out, &result)?;
    } else {
        result.write(out)?;
    }
    Ok(Exit::Done)
}

/// Returns how to treat chunks that are not stored, from `--missing` and `--fill`.
fn missing(args: &DownloadArgs, meta: &VolumeMeta) -> Result<Missing, Failure> {
    Ok(match (args.missing, &args.fill) {
        (None, None) => Missing::AsStored,
        (Some(MissingChoice::Error), _) => Missing::Error,
        (Some(MissingChoice::Fill), None) => Missing::Fill,
        (_, Some(value)) => Missing::FillWith(FillValue::parse(value, meta.dtype)?),
    })
}
