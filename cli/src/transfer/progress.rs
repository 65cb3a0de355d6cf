//! Progress of a transfer, on standard error: a bar on a terminal, else one line a second.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ndarray_shm_volume::{DownloadProgress, Progress, Retry};

use crate::interrupt::RETRIED;
use crate::show::units;

/// Shortest time between two lines, except before the last one.
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// Shortest time between two lines about what is being retried.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Template of the bar, in indicatif's syntax. No colours.
const TEMPLATE: &str = "{prefix} [{bar:30}] {pos}/{len} {msg}";

/// Shows the progress of one transfer: a number of chunks, objects or blocks, and the bytes of the array.
#[derive(Debug)]
pub(crate) enum Display {
    /// A bar that is redrawn, the noun for what is counted, and what is being retried.
    Bar(ProgressBar, &'static str, Mutex<Option<String>>),
    /// Plain lines, for logs: the label, the noun for what is counted, and the last line.
    Lines(String, &'static str, Mutex<Pace>),
    /// Nothing.
    Quiet,
}

impl Display {
    /// Chooses a bar if standard error is a terminal, else lines. `noun` names what is counted.
    pub(crate) fn new(label: &str, noun: &'static str, quiet: bool) -> Self {
        if quiet {
            Self::Quiet
        } else if io::stderr().is_terminal() {
            Self::Bar(bar(label), noun, Mutex::default())
        } else {
            Self::Lines(units::printable(label), noun, Mutex::new(Pace::default()))
        }
    }

    /// Updates the display while an array is written to a file or read from one, block by block.
    pub(crate) fn blocks(&self, bytes: u64, bytes_total: u64, block: usize, begin: Instant) {
        let count = |bytes: u64| usize::try_from(bytes.div_ceil(block as u64)).unwrap_or(usize::MAX);
        let (done, total, elapsed) = (count(bytes), count(bytes_total), begin.elapsed());
        let progress =
            DownloadProgress { done, total, painted_here: done, bytes, bytes_total, elapsed, ..Default::default() };
        self.update(progress);
    }

    /// Removes the bar, so that it does not mix with later output.
    pub(crate) fn clear(&self) {
        if let Self::Bar(bar, ..) = self {
            bar.finish_and_clear();
        }
    }
}

impl Progress for Display {
    fn update(&self, progress: DownloadProgress) {
        match self {
            Self::Bar(bar, noun, retry) => {
                bar.set_length(progress.total as u64);
                bar.set_position(progress.done as u64);
                let retry = retry.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
                bar.set_message(retry.unwrap_or_else(|| format!("{noun}s, {}", amounts(&progress))));
            }
            Self::Lines(label, noun, pace) => {
                // If the lock is poisoned, at worst a line is late.
                let mut pace = pace.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                if pace.is_due(&progress, Instant::now()) {
                    let _ = writeln!(io::stderr(), "{label}: {}", line(&progress, noun));
                }
            }
            Self::Quiet => {}
        }
    }

    fn retrying(&self, retry: Option<&Retry>) {
        let retry = retry.filter(|retry| retry.elapsed >= RETRIED);
        let text = retry.map(|retry| units::printable(&retry.to_string()));
        match self {
            Self::Bar(bar, _, shown) => {
                if let Some(text) = &text {
                    bar.set_message(text.clone());
                }
                // Without a retry, the next update shows the amounts again.
                *shown.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = text;
            }
            Self::Lines(label, _, pace) => {
                let (Some(retry), Some(text)) = (retry, text) else { return };
                let mut pace = pace.lock().unwrap_or_else(std::sync::PoisonError::into_inner); // as above
                if pace.is_retry_due(&retry.reason, Instant::now()) {
                    let _ = writeln!(io::stderr(), "{label}: {text}");
                }
            }
            Self::Quiet => {}
        }
    }

    fn warning(&self, message: &str) {
        let text = format!("warning: {message}");
        match self {
            Self::Bar(bar, ..) => bar.println(text),
            // --quiet silences progress, not warnings.
            Self::Lines(..) | Self::Quiet => {
                let _ = writeln!(io::stderr(), "{text}");
            }
        }
    }
}

/// When the last line was printed, and its count. The same of the last line about a retry, and its reason.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    last: Option<(Instant, usize)>,
    last_retry: Option<(Instant, String)>,
}

impl Pace {
    /// Decides whether to print a line: the first, the last, and between them at most one a second, if the count
    /// changed.
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

    /// Decides whether to print a line about a retry: one for each reason, and then one every [`RETRY_INTERVAL`].
    fn is_retry_due(&mut self, reason: &str, now: Instant) -> bool {
        let due = match &self.last_retry {
            Some((then, last)) => last != reason || now.duration_since(*then) >= RETRY_INTERVAL,
            None => true,
        };
        if due {
            self.last_retry = Some((now, reason.to_owned()));
        }
        due
    }
}

fn line(progress: &DownloadProgress, noun: &str) -> String {
    let percent = (progress.done * 100).checked_div(progress.total).unwrap_or(100);
    let total = units::count(progress.total, noun);
    format!("{} of {total} ({percent} %), {}", progress.done, amounts(progress))
}

/// Returns bytes, rate and time left, as far as known: "1.5 MiB of 3.0 MiB, 1.0 MiB/s, 2 s left".
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
    // Hidden until the style is set.
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    // The template is a constant that a test below parses. If it did not parse, the default bar is better than none.
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
    fn lines_are_printed_first_last_and_once_a_second() {
        let mut pace = Pace::default();
        let start = Instant::now();
        assert!(pace.is_due(&at(0), start));
        assert!(!pace.is_due(&at(1), start + Duration::from_millis(999)));
        assert!(pace.is_due(&at(2), start + LINE_INTERVAL));
        assert!(!pace.is_due(&at(2), start + Duration::from_secs(9)), "same count");
        assert!(pace.is_due(&at(8), start + Duration::from_millis(1001)), "the last line is not delayed");
        assert!(!pace.is_due(&at(8), start + Duration::from_secs(9)), "and is printed once");
    }

    #[test]
    fn retries_are_printed_once_for_each_reason_and_now_and_then() {
        let mut pace = Pace::default();
        let start = Instant::now();
        assert!(pace.is_retry_due("refused", start));
        assert!(!pace.is_retry_due("refused", start + Duration::from_secs(9)));
        assert!(pace.is_retry_due("timeout", start + Duration::from_secs(9)));
        assert!(!pace.is_retry_due("timeout", start + RETRY_INTERVAL));
        assert!(pace.is_retry_due("timeout", start + Duration::from_secs(19)));
    }

    #[test]
    fn an_empty_region_is_complete() {
        let nothing = DownloadProgress::default();
        assert_eq!(line(&nothing, "chunk"), "0 of 0 chunks (100 %), 0 B of 0 B");
    }

    #[test]
    fn line_shows_rate_and_time_left() {
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
    fn template_of_the_bar_parses() {
        assert!(ProgressStyle::with_template(TEMPLATE).is_ok());
    }
}
