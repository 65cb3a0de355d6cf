//! `ndshm view --live`: the newest frame of a stream in the terminal, again and again. It holds a frame for as long as
//! a plane of it is copied.

use std::io::{self, IsTerminal as _, Write};
use std::time::{Duration, Instant};

use ndarray::IxDyn;
use ndarray_shm::backend::EntryKind;
use ndarray_shm::stream::{self, StreamOptions, StreamReader};
use ndarray_shm::{Directory, Element, Error, ErrorKind, with_element};
use ndarray_shm_volume::{StopFlag, VolumeNotes};

use super::picture::{self, Picture};
use super::plane::{Plane, Section};
use crate::args::ViewArgs;
use crate::arrays::places::Search;
use crate::exit::{Exit, Failure};
use crate::interrupt;

/// Shortest time between two pictures.
const PACE: Duration = Duration::from_millis(100);

/// Moves to the first line and column, and clears what follows.
const AGAIN: &str = "\x1b[H\x1b[J";

/// Draws until the stream ends, or a signal comes. `size` is that of the terminal: columns and lines.
pub(super) fn run(args: &ViewArgs, size: (usize, usize), out: &mut dyn Write) -> Result<Exit, Failure> {
    let stop = interrupt::flag()?;
    let directory = Search::new(args.layout.backend)?.find(&args.location, &[EntryKind::Frames])?.backend;
    let dtype = stream::inspect(&directory, &args.location)?.description.dtype();
    with_element!(dtype, T => draw::<T>(args, &directory, size, &stop, out)?, else => {
        return Err(Failure::no_elements(dtype));
    });
    Ok(Exit::Done)
}

fn draw<T: Element>(
    args: &ViewArgs,
    directory: &Directory,
    size: (usize, usize),
    stop: &StopFlag,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let mut reader: StreamReader<T, IxDyn> = StreamOptions::new().directory(directory.clone()).open(&args.location)?;
    let (shape, order) = (reader.layout().shape().to_vec(), reader.layout().order());
    let words = VolumeNotes::read(reader.description(), &shape).axis_words(shape.len());
    let mut cuts = args.slice.clone();
    cuts.extend(args.channel.map(|index| crate::args::words::AxisCut { axis: "c".to_owned(), index }));
    let section = Section::choose(&shape, order, words, args.axes.as_deref(), &cuts)?;
    let every = super::step(args, section.lengths(&shape), Some(size));
    let (clear, colours) = (io::stdout().is_terminal(), super::knows_true_colour());
    while !stop.is_stopped() {
        let begin = Instant::now();
        let (plane, number) = match reader.latest_wait(PACE) {
            Ok(frame) => (Plane::of(frame.view(), &section, every)?, frame.number()),
            Err(Error { kind: ErrorKind::TimedOut { .. } | ErrorKind::NoWriter, .. }) => continue,
            Err(Error { kind: ErrorKind::Closed { .. } | ErrorKind::Unlinked, .. }) => break,
            Err(error) => return Err(error.into()),
        };
        let (picture, range) = if args.labels {
            (Picture::colours(&plane), String::new())
        } else {
            let span = args.range.unwrap_or_else(|| picture::span(&plane));
            (Picture::shades(&plane, span), format!("; black is {}, white {}", span.low, span.high))
        };
        if clear {
            write!(out, "{AGAIN}")?;
        }
        picture.write_blocks(out, colours)?;
        writeln!(out, "{}: frame {number}{range}", args.location)?;
        out.flush()?;
        std::thread::sleep(PACE.saturating_sub(begin.elapsed()));
    }
    Ok(())
}
