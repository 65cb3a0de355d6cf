//! Where the time goes: counters that workers add to, and the report at the end.
//!
//! Costs a few relaxed additions for each chunk, on counters that all workers of a process share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Where the time went, summed over all workers: two workers spend two seconds in each second.
///
/// The first touch of new memory is part of [`copying`](Self::copying) if it was not part of [`making`](Self::making).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Spent {
    /// Creating the array before any worker began: space, pages, zeros. One thread's time.
    pub making: Duration,
    /// Claiming chunks, and waiting for chunks that other workers have claimed.
    pub claiming: Duration,
    /// Fetching bytes. If the volume fetches and decodes in one step, that time is in [`decoding`](Self::decoding).
    pub fetching: Duration,
    /// Decoding bytes.
    pub decoding: Duration,
    /// Copying elements to their places, and marking chunks as finished.
    pub copying: Duration,
    /// Waiting: fetchers for space in the budget or the queue, decoders for bytes.
    pub waiting: Duration,
}

/// What the workers have done so far.
#[derive(Debug, Default)]
pub(crate) struct DownloadTally {
    painted: AtomicU64,
    filled: AtomicU64,
    fetched: AtomicU64,
    claiming: AtomicU64,
    fetching: AtomicU64,
    decoding: AtomicU64,
    copying: AtomicU64,
    waiting: AtomicU64,
}

/// What a worker spends time on.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Phase {
    Claiming,
    Fetching,
    Decoding,
    Copying,
    Waiting,
}

impl DownloadTally {
    /// Adds a painted chunk; `is_filled` means that it is not stored.
    pub(crate) fn painted(&self, is_filled: bool) {
        self.painted.fetch_add(1, Ordering::Relaxed);
        self.filled.fetch_add(u64::from(is_filled), Ordering::Relaxed);
    }

    /// Adds bytes that were fetched.
    pub(crate) fn fetched(&self, bytes: usize) {
        self.fetched.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn spent(&self, phase: Phase, time: Duration) {
        let counter = match phase {
            Phase::Claiming => &self.claiming,
            Phase::Fetching => &self.fetching,
            Phase::Decoding => &self.decoding,
            Phase::Copying => &self.copying,
            Phase::Waiting => &self.waiting,
        };
        counter.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns the current numbers.
    pub(crate) fn totals(&self) -> Totals {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let time = |counter: &AtomicU64| Duration::from_nanos(read(counter));
        let spent = Spent {
            making: Duration::ZERO,
            claiming: time(&self.claiming),
            fetching: time(&self.fetching),
            decoding: time(&self.decoding),
            copying: time(&self.copying),
            waiting: time(&self.waiting),
        };
        Totals { painted: read(&self.painted), filled: read(&self.filled), fetched: read(&self.fetched), spent }
    }
}

/// What workers did in total.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Totals {
    /// Chunks painted.
    pub(crate) painted: u64,
    /// Painted chunks that are not stored.
    pub(crate) filled: u64,
    /// Bytes fetched.
    pub(crate) fetched: u64,
    pub(crate) spent: Spent,
}

/// Prefix of the lines in which a worker process reports its totals.
const LINE: &str = "ndarray-shm-volume worker:";

impl Totals {
    /// Adds the totals of another process.
    pub(crate) fn add(&mut self, other: &Self) {
        self.painted = self.painted.saturating_add(other.painted);
        self.filled = self.filled.saturating_add(other.filled);
        self.fetched = self.fetched.saturating_add(other.fetched);
        let (a, b) = (&mut self.spent, &other.spent);
        a.making = a.making.saturating_add(b.making);
        a.claiming = a.claiming.saturating_add(b.claiming);
        a.fetching = a.fetching.saturating_add(b.fetching);
        a.decoding = a.decoding.saturating_add(b.decoding);
        a.copying = a.copying.saturating_add(b.copying);
        a.waiting = a.waiting.saturating_add(b.waiting);
    }

    /// Returns the line in which a worker process reports these totals.
    pub(crate) fn to_line(self) -> String {
        let Spent { claiming, fetching, decoding, copying, waiting, .. } = self.spent;
        let times = [claiming, fetching, decoding, copying, waiting].map(|time| time.as_nanos().to_string()).join(" ");
        format!("{LINE} {} {} {} {times}\n", self.painted, self.filled, self.fetched)
    }

    /// Parses such a line. Returns `None` for any other output of a worker.
    pub(crate) fn of_line(line: &str) -> Option<Self> {
        let mut numbers = line.strip_prefix(LINE)?.split_ascii_whitespace().map(str::parse::<u64>);
        let mut next = || numbers.next()?.ok();
        let (painted, filled, fetched) = (next()?, next()?, next()?);
        let mut time = || next().map(Duration::from_nanos);
        let spent = Spent {
            making: Duration::ZERO,
            claiming: time()?,
            fetching: time()?,
            decoding: time()?,
            copying: time()?,
            waiting: time()?,
        };
        Some(Self { painted, filled, fetched, spent })
    }
}

/// Adds the time between two phases to a tally.
#[derive(Debug)]
pub(crate) struct Stopwatch<'a> {
    tally: &'a DownloadTally,
    last: Instant,
}

impl<'a> Stopwatch<'a> {
    pub(crate) fn start(tally: &'a DownloadTally) -> Self {
        Self { tally, last: Instant::now() }
    }

    /// Books the time since the last call under `phase`.
    pub(crate) fn was(&mut self, phase: Phase) {
        let now = Instant::now();
        self.tally.spent(phase, now.duration_since(self.last));
        self.last = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_survive_line_format_and_addition() {
        let tally = DownloadTally::default();
        tally.painted(false);
        tally.painted(true);
        tally.fetched(77);
        tally.spent(Phase::Fetching, Duration::from_nanos(5));
        tally.spent(Phase::Fetching, Duration::from_nanos(6));
        tally.spent(Phase::Waiting, Duration::from_secs(1));
        let totals = tally.totals();
        assert_eq!((totals.painted, totals.filled, totals.fetched), (2, 1, 77));
        assert_eq!(totals.spent.fetching.as_nanos(), 11);
        assert_eq!(Totals::of_line(&totals.to_line()), Some(totals));
        let mut both = totals;
        both.add(&totals);
        assert_eq!((both.painted, both.filled, both.spent.waiting), (4, 2, Duration::from_secs(2)));
        for line in
            ["", "tests::a_test: test", LINE, "ndarray-shm-volume worker: 1 2 3 4 5 6 7", "worker: 1 2 3 4 5 6 7 8"]
        {
            assert_eq!(Totals::of_line(line), None, "{line}");
        }
    }
}
