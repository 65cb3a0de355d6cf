//! `ndshm replay`: writes the frames of a recording to a stream.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use ndarray::{ArrayViewD, IxDyn, ShapeBuilder as _};
use ndarray_shm::stream::{StreamOptions, StreamWriter};
use ndarray_shm::{Directory, Element, Error, ErrorKind, Order, with_element};
use ndarray_shm_volume::{Recorded, StopFlag};
use serde::Serialize;

use crate::args::ReplayArgs;
use crate::exit::{Exit, Failure};
use crate::interrupt;
use crate::show::{report, units};
use crate::transfer::destination;

/// How long a wait may last before signals are looked at.
const SLICE: Duration = Duration::from_millis(100);

/// A replay, as `replay --json` prints it.
#[derive(Debug, Serialize)]
struct Replayed {
    place: String,
    name: String,
    frames: usize,
    seconds: f64,
}

/// Runs `ndshm replay`.
pub(crate) fn run(args: &ReplayArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let stop = interrupt::flag()?;
    let recorded = Recorded::open(&args.place)?;
    let directory = destination::backend(args.emulate)?;
    let begin = Instant::now();
    with_element!(recorded.dtype(), T => replay::<T>(args, &recorded, &directory, &stop)?, else => {
        return Err(Failure::no_elements(recorded.dtype()));
    });
    let replayed = Replayed {
        place: args.place.display().to_string(),
        name: args.location.to_string(),
        frames: recorded.times().len(),
        seconds: begin.elapsed().as_secs_f64(),
    };
    if args.report.json {
        report::json(out, &replayed)?;
    } else {
        let Replayed { place, name, frames, seconds } = &replayed;
        writeln!(out, "replayed {}", units::printable(place))?;
        report::facts(out, &[("stream", name.clone()), ("frames", format!("{frames} in {seconds:.1} s"))])?;
    }
    Ok(Exit::Done)
}

fn replay<T: Element>(
    args: &ReplayArgs,
    recorded: &Recorded,
    directory: &Directory,
    stop: &StopFlag,
) -> Result<(), Failure> {
    let mut options = StreamOptions::new().directory(directory.clone());
    for (name, dtype, count) in recorded.values() {
        options = options.meta(name, dtype, count);
    }
    for (key, text) in recorded.notes() {
        options = options.note(key, text);
    }
    let shape = recorded.shape();
    let ordered = IxDyn(&shape).set_f(recorded.order() == Order::F);
    let mut writer = options.create::<T, IxDyn>(&args.location, ordered, args.slots)?;
    // Where each value of the recording belongs in the values of a frame.
    let places: Vec<_> = recorded
        .values()
        .iter()
        .map(|(name, ..)| {
            let field = writer.meta_fields().iter().find(|field| field.name == *name);
            field.map_or(0..0, |field| field.offset..field.offset + field.count * field.dtype.size())
        })
        .collect();
    let (times, begin) = (recorded.times(), Instant::now());
    let per_chunk = recorded.frames_per_chunk().max(1);
    for first in (0..times.len()).step_by(per_chunk) {
        let chunk = first..(first + per_chunk).min(times.len());
        let elements = recorded.read::<T>(chunk.clone())?;
        let values: Vec<Vec<u8>> =
            (0..places.len()).map(|number| recorded.read_value(number, chunk.clone())).collect::<Result<_, _>>()?;
        let size = elements.len() / chunk.len();
        for (row, number) in chunk.enumerate() {
            let due = match args.rate {
                Some(rate) => Duration::try_from_secs_f64(1.0 / rate)
                    .unwrap_or(Duration::MAX)
                    .saturating_mul(u32::try_from(number).unwrap_or(u32::MAX)),
                None => Duration::from_nanos(u64::try_from(times[number] - times[0]).unwrap_or(0)),
            };
            pause(begin, due, stop)?;
            let view = ArrayViewD::from_shape(IxDyn(&shape), &elements[row * size..(row + 1) * size]);
            let view = view.map_err(|_| Failure::new(Exit::Failed, "the recording has frames of another shape"))?;
            let mut meta = [0; 240];
            for (place, values) in places.iter().zip(&values) {
                let size = place.len();
                meta[place.clone()].copy_from_slice(&values[row * size..(row + 1) * size]);
            }
            write(&mut writer, &view, &meta, stop)?;
        }
    }
    Ok(writer.end()?)
}

/// Waits until so much time has passed since the begin.
fn pause(begin: Instant, due: Duration, stop: &StopFlag) -> Result<(), Failure> {
    loop {
        interrupt::check(stop)?;
        let left = due.saturating_sub(begin.elapsed());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(SLICE));
    }
}

fn write<T: Element>(
    writer: &mut StreamWriter<T, IxDyn>,
    elements: &ArrayViewD<'_, T>,
    meta: &[u8; 240],
    stop: &StopFlag,
) -> Result<(), Failure> {
    loop {
        match writer.frame_wait(SLICE) {
            Ok(mut frame) => {
                frame.view_mut().assign(elements);
                frame.set_meta_bytes(meta);
                frame.commit()?;
                return Ok(());
            }
            Err(Error { kind: ErrorKind::SlotsHeld { .. }, .. }) => interrupt::check(stop)?,
            Err(error) => return Err(error.into()),
        }
    }
}
