//! `ndshm record`: stores the frames of a stream in a Zarr group that grows. A cursor keeps the frames that are not on
//! the disk yet, so that a killed recorder goes on without a gap.

use std::io::Write;
use std::time::{Duration, Instant};

use ndarray::IxDyn;
use ndarray_shm::backend::EntryKind;
use ndarray_shm::stream::{self, Backpressure, StreamCursor, StreamOptions};
use ndarray_shm::{Directory, Element, Error, ErrorKind, with_element};
use ndarray_shm_volume::{Recording, RecordingOptions, StopFlag};
use serde::Serialize;

use crate::args::{PolicyChoice, RecordArgs};
use crate::arrays::places::Search;
use crate::exit::{Exit, Failure};
use crate::interrupt;
use crate::show::{report, units};
use crate::transfer::new_volume;

/// How long a wait for a frame may last before signals are looked at.
const SLICE: Duration = Duration::from_millis(100);

/// Pause between two lines about the progress.
const PACE: Duration = Duration::from_secs(1);

/// A recording, as `record --json` prints it.
#[derive(Debug, Serialize)]
struct RecordReport {
    name: String,
    /// The Zarr group.
    place: String,
    /// Frames in the recording, those of earlier runs included.
    frames: u64,
    /// Number of the last frame; 0 if there is none.
    last: u64,
    /// The first and the last number of each gap between the frames.
    missing: Vec<(u64, u64)>,
    /// Python lines that read the frames.
    python: Vec<String>,
}

/// Runs `ndshm record`.
pub(crate) fn run(args: &RecordArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let stop = interrupt::flag()?;
    let directory = Search::new(args.backend)?.find(&args.location, &[EntryKind::Frames])?.backend;
    let found = stream::inspect(&directory, &args.location)?;
    let is_known = found.cursors.iter().flatten().any(|cursor| cursor.name == args.cursor);
    let dtype = found.description.dtype();
    let recording = with_element!(dtype, T => record::<T>(args, &directory, is_known, &stop)?, else => {
        return Err(Failure::no_elements(dtype));
    });
    let place = args.place.display().to_string();
    let missing = recording.missing()?;
    let recorded = RecordReport {
        name: args.location.to_string(),
        frames: recording.frames(),
        last: recording.last(),
        missing: missing.into_iter().map(|range| (*range.start(), *range.end())).collect(),
        python: vec![
            "import zarr".to_owned(),
            format!("frames = zarr.open_group({}, mode=\"r\")[\"frames\"]", serde_json::Value::from(place.clone())),
        ],
        place,
    };
    if args.report.json {
        report::json(out, &recorded)?;
        return Ok(Exit::Done);
    }
    writeln!(out, "recorded {}", args.location)?;
    let missing: Vec<String> = recorded.missing.iter().map(|(first, last)| numbers(*first, *last)).collect();
    let mut facts = vec![
        ("place", units::printable(&recorded.place)),
        ("frames", format!("{}, the last has number {}", recorded.frames, recorded.last)),
    ];
    if !missing.is_empty() {
        facts.push(("missing", missing.join(", ")));
    }
    report::facts(out, &facts)?;
    report::python(out, &recorded.python)?;
    Ok(Exit::Done)
}

fn numbers(first: u64, last: u64) -> String {
    if first == last { first.to_string() } else { format!("{first} to {last}") }
}

/// Records until there are as many frames as are wanted, or the stream ends.
fn record<T: Element>(
    args: &RecordArgs,
    directory: &Directory,
    is_known: bool,
    stop: &StopFlag,
) -> Result<Recording, Failure> {
    let options = StreamOptions::new().directory(directory.clone());
    let policy = match args.policy {
        PolicyChoice::WaitWhileAlive => Backpressure::WaitWhileAlive,
        PolicyChoice::Wait => Backpressure::Wait,
        PolicyChoice::Overwrite => Backpressure::Overwrite,
    };
    let mut cursor = options.open_cursor::<T, IxDyn>(&args.location, &args.cursor, policy)?;
    let mut options = RecordingOptions::default();
    options.frames_per_chunk = args.per_chunk;
    options.encoding = args.encoding.map(new_volume::encoding);
    let mut recording = match Recording::open(&args.place, &cursor, &options) {
        Ok(recording) => recording,
        Err(error) => {
            drop(cursor);
            if !is_known {
                let _ = stream::unlink_cursor(directory, &args.location, &args.cursor);
            }
            return Err(error.into());
        }
    };
    let ended = frames(args, &mut cursor, &mut recording, stop);
    // Whatever ended it, what was received is kept. If even that fails, the cursor keeps it.
    let acknowledged = recording.store()?;
    if acknowledged > cursor.acknowledged() {
        cursor.acknowledge(acknowledged)?;
    }
    ended?;
    drop(cursor);
    // Nothing will be recorded any more: the writer needs not keep frames.
    match stream::unlink_cursor(directory, &args.location, &args.cursor) {
        Err(error) if !matches!(error.kind, ErrorKind::NotFound | ErrorKind::Unlinked) => Err(error.into()),
        _ => Ok(recording),
    }
}

fn frames<T: Element>(
    args: &RecordArgs,
    cursor: &mut StreamCursor<T, IxDyn>,
    recording: &mut Recording,
    stop: &StopFlag,
) -> Result<(), Failure> {
    let (mut is_orphan, mut told) = (false, Instant::now());
    while args.frames.is_none_or(|wanted| recording.frames() + recording.pending() < wanted) {
        if stop.is_stopped() {
            let text = "interrupted; all frames that had come are stored, and the same command goes on behind them";
            return Err(Failure::new(Exit::Interrupted, text));
        }
        if !args.report.quiet && told.elapsed() >= PACE {
            told = Instant::now();
            eprintln!("{}: frames recorded: {}", args.location, recording.frames());
        }
        match cursor.next_wait(SLICE) {
            Ok(frame) => {
                is_orphan = false;
                // A recorder that was killed had stored them, and not acknowledged.
                let is_stored = frame.number() <= recording.last();
                let number = frame.number();
                if !is_stored && !recording.push(&frame) {
                    continue;
                }
                drop(frame);
                cursor.acknowledge(if is_stored { number } else { recording.store()? })?;
            }
            Err(Error { kind: ErrorKind::TimedOut { .. }, .. }) => {}
            Err(Error { kind: ErrorKind::Closed { .. }, .. }) => return Ok(()),
            Err(Error { kind: ErrorKind::NoWriter, .. }) => {
                if !std::mem::replace(&mut is_orphan, true) {
                    eprintln!(
                        "{}: the writer was killed; waiting for another one (Ctrl-C ends the recording)",
                        args.location
                    );
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
