//! `ndshm view`: a picture of a plane of an array, in a PNG file or in the terminal; of a stream, one after another.

mod live;
mod picture;
mod plane;

use std::io::{self, IsTerminal as _, Write};
use std::path::Path;

use console::Term;
use ndarray_shm::backend::EntryKind;
use serde::Serialize;

use self::picture::Picture;
use self::plane::{Plane, Section};
use crate::args::ViewArgs;
use crate::arrays::places::Search;
use crate::arrays::typed::{ArrayKind, Described};
use crate::exit::{Exit, Failure};
use crate::files::output::Output;
use crate::show::{report, units};

/// Lines of a terminal that are left for the text above and below a picture.
const OTHER_LINES: usize = 3;

/// Pixels that one line of a terminal shows.
const PIXELS_OF_A_LINE: usize = 2;

/// Kinds of files that can be shown.
const WANTED: [EntryKind; 2] = [EntryKind::Array, EntryKind::Partial];

/// A picture that was made, as `view --json` prints it.
#[derive(Debug, Serialize)]
struct Viewed {
    location: String,
    /// The element type as `NumPy` writes it: "<u2".
    dtype: String,
    shape: Vec<usize>,
    /// A word for each axis: its name, or its number.
    axes: Vec<String>,
    /// Where the other axes are cut: "z=10".
    slice: String,
    /// The same in the coordinates of the volume that the array came from: "z=110"; `null` if they are unknown.
    slice_in_volume: Option<String>,
    /// Pixels to the right and down.
    width: usize,
    height: usize,
    /// The axis that goes to the right, and the one that goes down.
    right: usize,
    down: Option<usize>,
    /// Every Nth element of both axes is shown.
    every: usize,
    /// The values shown as black and as white; `null` for labels.
    range: Option<[f64; 2]>,
    /// Whether the array is an unfinished renderbuffer, in which missing chunks are shown as 0.
    partial: bool,
    /// The file; `null` if no file was written.
    file: Option<String>,
}

/// Runs `ndshm view`.
pub(crate) fn run(args: &ViewArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let columns = match (&args.out, args.columns) {
        (Some(_), _) => None,
        (None, Some(columns)) => Some((usize::from(columns), usize::MAX)),
        (None, None) if args.json || !io::stdout().is_terminal() => {
            // If there is no such array, that error comes first.
            let wanted = if args.live { &[EntryKind::Frames][..] } else { &WANTED };
            Search::new(args.layout.backend)?.find(&args.location, wanted)?;
            let message = "standard output is not a terminal, so the picture cannot be drawn";
            return Err(Failure::new(Exit::Usage, message)
                .advice("write a file with --out FILE.png, or draw anyway with --columns N"));
        }
        (None, None) => {
            let (lines, columns) = Term::stdout().size();
            Some((usize::from(columns), usize::from(lines).saturating_sub(OTHER_LINES).max(1)))
        }
    };
    if args.live {
        return live::run(args, columns.unwrap_or_default(), out);
    }
    refuse_other_pictures(args.out.as_deref())?;
    let array = Described::find(&args.location, &args.layout, &WANTED)?;
    let mut cuts = args.slice.clone();
    cuts.extend(args.channel.map(|index| crate::args::words::AxisCut { axis: "c".to_owned(), index }));
    let words = array.notes.axis_words(array.shape.len());
    let section = Section::choose(&array.shape, array.order, words, args.axes.as_deref(), &cuts)?;
    let every = step(args, section.lengths(&array.shape), columns);
    let plane = Plane::read(&array, &section, every, &args.share)?;
    let (picture, range) = if args.labels {
        (Picture::colours(&plane), None)
    } else {
        let span = args.range.unwrap_or_else(|| picture::span(&plane));
        (Picture::shades(&plane, span), Some([span.low, span.high]))
    };
    let viewed = Viewed {
        location: array.location.to_string(),
        dtype: array.dtype.to_string(),
        axes: section.words.clone(),
        slice: section.describe(&[]),
        slice_in_volume: array.notes.bbox.as_ref().map(|bbox| {
            let begin: Vec<i64> = bbox.ranges().iter().map(|range| range.start).collect();
            section.describe(&begin)
        }),
        width: picture.width,
        height: picture.height,
        right: section.right,
        down: section.down,
        every,
        range,
        partial: array.kind == ArrayKind::Partial,
        file: args.out.as_ref().map(|path| path.display().to_string()),
        shape: array.shape,
    };
    match &args.out {
        Some(path) if path == Path::new("-") => {
            out.write_all(&picture.png()?)?;
            return Ok(Exit::Done);
        }
        Some(path) => {
            let mut file = Output::begin(path, args.replace)?;
            file.put(&picture.png()?)?;
            file.finish()?;
        }
        None => picture.write_blocks(out, knows_true_colour())?,
    }
    if args.json {
        report::json(out, &viewed)?;
    } else {
        viewed.write(&section, out)?;
    }
    Ok(Exit::Done)
}

/// Returns how many elements of an axis there are for a pixel: in the terminal, of so many columns and lines, the
/// picture fits.
fn step(args: &ViewArgs, (right, down): (usize, usize), columns: Option<(usize, usize)>) -> usize {
    match (args.every, columns) {
        (Some(every), _) => usize::from(every),
        (None, Some((columns, lines))) => {
            let fits = down.div_ceil(lines.saturating_mul(PIXELS_OF_A_LINE));
            right.div_ceil(columns.max(1)).max(fits).max(1)
        }
        (None, None) => 1,
    }
}

/// Fails if the name of the file is that of a picture of another format.
fn refuse_other_pictures(file: Option<&Path>) -> Result<(), Failure> {
    const OTHERS: [&str; 10] = ["avif", "bmp", "gif", "jpeg", "jpg", "pdf", "svg", "tif", "tiff", "webp"];

    let Some(path) = file else { return Ok(()) };
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    if !OTHERS.contains(&&*extension) {
        return Ok(());
    }
    let reason = format!("`{}`: pictures are written as PNG files only", path.display());
    Err(Failure::new(Exit::Usage, reason).advice(format!("choose `{}`", path.with_extension("png").display())))
}

/// Whether the terminal claims to support 24 bit colours.
fn knows_true_colour() -> bool {
    std::env::var("COLORTERM").is_ok_and(|words| words.contains("truecolor") || words.contains("24bit"))
}

impl Viewed {
    fn write(&self, section: &Section, out: &mut dyn Write) -> Result<(), Failure> {
        let mut cut = if self.slice.is_empty() { String::new() } else { format!(" at {}", self.slice) };
        if let Some(coordinates) = self.slice_in_volume.as_ref().filter(|coordinates| **coordinates != self.slice) {
            cut = format!("{cut} ({coordinates} in the volume)");
        }
        let down = self.down.map_or_else(String::new, |down| format!(", {} down", section.axis(down)));
        let cut = units::printable(&cut);
        let mut line = format!("{}{cut}: {} to the right{down}", self.location, section.axis(self.right));
        if self.every > 1 {
            line = format!("{line}, one element in {} of both", self.every);
        }
        if let Some([low, high]) = self.range {
            line = format!("{line}; black is {low}, white {high}");
        }
        writeln!(out, "{line}")?;
        if self.partial {
            writeln!(out, "the array is not finished: missing chunks are shown as 0")?;
        }
        if let Some(file) = &self.file {
            writeln!(out, "wrote {} ({} x {})", units::printable(file), self.width, self.height)?;
        }
        Ok(())
    }
}
