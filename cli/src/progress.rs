//! How far a transfer is, on the standard error: a bar on a terminal, else a line now and then.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ndarray_shm_volume::{DownloadProgress, Progress};

use crate::units;

/// Lines come at most this often, the last one excepted.
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// What the bar looks like, in indicatif's words. No colours.
const TEMPLATE: &str = "{prefix} [{bar:30}] {pos}/{len} {msg}";

/// Shows the progress of one transfer: chunks of a volume, objects, or blocks of a file, and always the bytes of the array.
#[derive(Debug)]
pub(crate) enum Display {
    /// A bar that redraws itself, and what is counted.
    Bar(ProgressBar, &'static str),
    /// Plain lines, for logs: about what, what is counted, and when the last one was.
    Lines(String, &'static str, Mutex<Pace>),
    /// Nothing.
    Quiet,
}

impl Display {
    /// Chooses by what the standard error is. What is counted is a `noun`.
    pub(crate) fn new(label: &str, noun: &'static str, quiet: bool) -> Self {
        if quiet {
            Self::Quiet
        } else if io::stderr().is_terminal() {
            Self::Bar(bar(label), noun)
        } else {
            Self::Lines(units::printable(label), noun, Mutex::new(Pace::default()))
        }
    }

    /// Tells how many bytes of an array have gone into a file or come from one, block by block.
    pub(crate) fn blocks(&self, bytes: u64, bytes_total: u64, block: usize, begin: Instant) {
        let count = |bytes: u64| usize::try_from(bytes.div_ceil(block as u64)).unwrap_or(usize::MAX);
        let (done, total, elapsed) = (count(bytes), count(bytes_total), begin.elapsed());
        let progress =
            DownloadProgress { done, total, painted_here: done, bytes, bytes_total, elapsed, ..Default::default() };
        self.update(progress);
    }

    /// Takes the bar away, so that what is printed next stands alone.
    pub(crate) fn clear(&self) {
        if let Self::Bar(bar, _) = self {
            bar.finish_and_clear();
        }
    }
}

impl Progress for Display {
    fn update(&self, progress: DownloadProgress) {
        match self {
            Self::Bar(bar, noun) => {
                bar.set_length(progress.total as u64);
                bar.set_position(progress.done as u64);
                bar.set_message(format!("{noun}s, {}", amounts(&progress)));
            }
            Self::Lines(label, noun, pace) => {
                // A poisoned pace only means that a line may be late.
                let mut pace = pace.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                if pace.is_due(&progress, Instant::now()) {
                    let _ = writeln!(io::stderr(), "{label}: {}", line(&progress, noun));
                }
            }
            Self::Quiet => {}
        }
    }

    fn warning(&self, message: &str) {
        let text = format!("warning: {message}");
        match self {
            Self::Bar(bar, _) => bar.println(text),
            // Quiet is about progress; this is something else.
            Self::Lines(..) | Self::Quiet => {
                let _ = writeln!(io::stderr(), "{text}");
            }
        }
    }
}

/// When the last line was printed, and what it said.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    last: Option<(Instant, usize)>,
}

impl Pace {
    /// Decides whether this progress deserves a line: the first, the last, and in between one a second if it moved.
    fn is_due(&mut self, progress: &DownloadProgress, now: Instant) -> bool {
        let due = match self.last {
            None => true,
            Some((_, done)) if done == progress.done => false,
            Some((then, _)) => progress.done == progress.total || now.duration_since(then) >= LINE_INTERVAL,
        };
        if due {
            self.last = Some((now, progress.done));
        }
        due
    }
}

fn line(progress: &DownloadProgress, noun: &str) -> String {
    let percent = (progress.done * 100).checked_div(progress.total).unwrap_or(100);
    let total = units::count(progress.total, noun);
    format!("{} of {total} ({percent} %), {}", progress.done, amounts(progress))
}

/// Bytes, rate and time left, as far as they are known: "1.5 MiB of 3.0 MiB, 1.0 MiB/s, 2 s left".
fn amounts(progress: &DownloadProgress) -> String {
    let mut text = format!("{} of {}", units::size(progress.bytes), units::size(progress.bytes_total));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "for people, and it saturates")]
    if let Some(rate) = progress.rate() {
        text = format!("{text}, {}/s", units::size(rate as u64));
    }
    if let Some(left) = progress.time_left().filter(|_| progress.done < progress.total) {
        text = format!("{text}, {} left", units::left(left));
    }
    text
}

fn bar(label: &str) -> ProgressBar {
    // Shown only when it looks as it should.
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    // The template is a constant, tested below; should it not parse, the default bar is better than none.
    if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_prefix(units::printable(label));
    bar.set_draw_target(ProgressDrawTarget::stderr());
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(done: usize) -> DownloadProgress {
        DownloadProgress { done, total: 8, painted_here: done, ..DownloadProgress::default() }
    }

    #[test]
    fn lines_come_first_last_and_once_a_second() {
        let mut pace = Pace::default();
        let start = Instant::now();
        assert!(pace.is_due(&at(0), start));
        assert!(!pace.is_due(&at(1), start + Duration::from_millis(999)));
        assert!(pace.is_due(&at(2), start + LINE_INTERVAL));
        assert!(!pace.is_due(&at(2), start + Duration::from_secs(9)), "nothing new");
        assert!(pace.is_due(&at(8), start + Duration::from_millis(1001)), "the last one at once");
        assert!(!pace.is_due(&at(8), start + Duration::from_secs(9)), "and only once");
    }

    #[test]
    fn an_empty_region_is_complete() {
        let nothing = DownloadProgress::default();
        assert_eq!(line(&nothing, "chunk"), "0 of 0 chunks (100 %), 0 B of 0 B");
    }

    #[test]
    fn a_line_says_how_fast_it_is_and_how_long_it_takes() {
        let half = DownloadProgress {
            painted_here: 4,
            bytes: 4 << 20,
            bytes_total: 8 << 20,
            elapsed: Duration::from_secs(2),
            ..at(4)
        };
        assert_eq!(line(&half, "object"), "4 of 8 objects (50 %), 4.0 MiB of 8.0 MiB, 2.0 MiB/s, 2 s left");
        let over = DownloadProgress { bytes: 8 << 20, painted_here: 8, ..half };
        let over = DownloadProgress { done: 8, ..over };
        assert_eq!(line(&over, "object"), "8 of 8 objects (100 %), 8.0 MiB of 8.0 MiB, 4.0 MiB/s");
    }

    #[test]
    fn the_bar_is_drawn_by_a_template_that_parses() {
        assert!(ProgressStyle::with_template(TEMPLATE).is_ok());
    }
}
