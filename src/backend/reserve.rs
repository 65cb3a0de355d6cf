//! Taking the memory of a new file: on huge pages as far as that pays, then, always, all of it.
//!
//! Huge pages are asked for window by window, by a few threads. Whatever goes wrong with them costs speed, nothing else:
//! what decides whether there is room is the plain reservation of the whole length at the end, which takes no time
//! where memory is there already. A window is never asked for that goes beyond the end of the file.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::Pages;
use crate::os::{self, HugeWindows};

/// From this size on a file gets huge pages unless something else is said. Two of them take a quarter of the time that base
/// pages take, one a third; but the first call also makes every processor put its lists of pages in order, and there are
/// machines with hundreds.
const SMALLEST_AUTO: u64 = 4 << 20;

/// What making and filling base pages costs more than filling huge ones, for each MiB: as long as huge pages cost no more,
/// they pay.
const PRICE_OF_BASE_PAGES: Duration = Duration::from_micros(500);

/// The share of that price, one in so many, that may be lost before it is known that huge pages are dear today.
const STAKE: u32 = 10;

/// A loss so small that nobody notices.
const LEAST_STAKE: Duration = Duration::from_millis(2);

/// Windows in a call. Every call waits for all processors once, so one for each window takes a third longer.
const LARGEST_GROUP: usize = 32;

/// Windows in the first call, which finds out whether there are huge pages at all.
const FIRST_GROUP: usize = 2;

/// Each thread has so many windows to do, or it takes longer to start than it helps.
const WINDOWS_PER_THREAD: usize = 16;

/// More threads than this do not make memory faster.
const MOST_THREADS: usize = 8;

/// Takes room for the first `length` bytes of a file that nobody else can reach; bytes already written stay. A file that
/// is shorter gets this length, or gets it from the caller.
///
/// # Errors
///
/// There is no room: what was taken goes with the file.
pub(crate) fn reserve(file: &File, length: u64, pages: Pages) -> io::Result<()> {
    if wants_huge(length, pages) {
        // Without a place to map them there are no huge pages, and that is all.
        if let Ok(Some(windows)) = HugeWindows::of(file, length) {
            take(&windows, pages == Pages::Auto, threads(windows.count()));
        }
    }
    os::reserve(file, length, true)
}

fn wants_huge(length: u64, pages: Pages) -> bool {
    match pages {
        Pages::Auto => length >= SMALLEST_AUTO,
        Pages::Huge => true,
        Pages::Base | Pages::Sparse => false,
    }
}

fn threads(windows: usize) -> usize {
    let useful = (windows / WINDOWS_PER_THREAD).clamp(1, MOST_THREADS);
    if useful == 1 { 1 } else { useful.min(thread::available_parallelism().map_or(1, usize::from)) }
}

fn take(windows: &HugeWindows<'_>, thrifty: bool, threads: usize) {
    let work = Work::new(windows, thrifty, threads);
    thread::scope(|scope| {
        for _ in 1..threads {
            // A thread that cannot be had is not missed: the others do its work.
            let _ended_by_the_scope = thread::Builder::new().spawn_scoped(scope, || work.run());
        }
        work.run();
    });
}

/// What the threads have to do together.
#[derive(Debug)]
struct Work<'a> {
    windows: &'a HugeWindows<'a>,
    /// Where the next group begins.
    next: AtomicUsize,
    /// How many windows are on huge pages.
    taken: AtomicUsize,
    given_up: AtomicBool,
    largest_group: usize,
    began: Instant,
    /// How much longer than base pages it may take in all; `None`: it may take any time.
    stake: Option<Duration>,
    /// What one window would cost on base pages.
    price: Duration,
    threads: u32,
}

impl<'a> Work<'a> {
    fn new(windows: &'a HugeWindows<'a>, thrifty: bool, threads: usize) -> Self {
        let times = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let price = PRICE_OF_BASE_PAGES.saturating_mul(u32::try_from(windows.size() >> 20).unwrap_or(u32::MAX));
        let stake = (price.saturating_mul(times(windows.count())) / STAKE).max(LEAST_STAKE);
        Self {
            windows,
            next: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
            given_up: AtomicBool::new(false),
            largest_group: windows.count().div_ceil(threads).clamp(1, LARGEST_GROUP),
            began: Instant::now(),
            stake: thrifty.then_some(stake),
            price,
            threads: times(threads),
        }
    }

    fn run(&self) {
        while let Some(group) = self.next_group() {
            if !self.take_group(group) {
                self.given_up.store(true, Ordering::Relaxed);
            }
        }
    }

    /// The first groups are small: little is lost if there are no huge pages, or if they are dear.
    fn next_group(&self) -> Option<Range<usize>> {
        if self.given_up.load(Ordering::Relaxed) || !self.pays() {
            return None;
        }
        let size = self.taken.load(Ordering::Relaxed).max(FIRST_GROUP).min(self.largest_group);
        let start = self.next.fetch_add(size, Ordering::Relaxed);
        let end = start.saturating_add(size).min(self.windows.count());
        (start < end).then_some(start..end)
    }

    /// Whether what was had so far did not take much longer than base pages would have.
    fn pays(&self) -> bool {
        let Some(stake) = self.stake else { return true };
        let taken = u32::try_from(self.taken.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        // Threads that share the work would have shared the cost of filling base pages, too.
        self.began.elapsed() <= stake + self.price.saturating_mul(taken) / self.threads
    }

    /// Says whether to go on with others.
    fn take_group(&self, group: Range<usize>) -> bool {
        if self.windows.prepare(group.clone()).is_err() {
            return false; // no room: the reservation will say it
        }
        if self.windows.collapse(group.clone()).is_ok() {
            self.taken.fetch_add(group.len(), Ordering::Relaxed);
            return true;
        }
        for window in group {
            match self.windows.collapse(window..window + 1) {
                Ok(()) => _ = self.taken.fetch_add(1, Ordering::Relaxed),
                // Refused before there was any: it always will be.
                Err(error)
                    if error.kind() == io::ErrorKind::InvalidInput && self.taken.load(Ordering::Relaxed) == 0 =>
                {
                    return false;
                }
                // Memory is in pieces, or a page was busy: this window is not the next.
                Err(_) if self.pays() => {}
                Err(_) => return false,
            }
        }
        true
    }
}
