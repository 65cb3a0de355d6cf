//! Allocates the memory of a new file: first on huge pages, as far as that pays, then all of it.
//!
//! A few threads request huge pages, window by window. A failure there costs only speed: the plain reservation of the
//! whole length at the end decides whether there is room. It takes no time where memory is allocated already. No window
//! goes beyond the end of the file.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::Pages;
use crate::interrupt;
use crate::os::{self, HugeWindows};

/// Smallest file that gets huge pages by default. Two huge pages take a quarter of the time that base pages take, one a
/// third. But the first call also makes every processor drain its lists of pages, and some machines have hundreds of
/// processors.
const SMALLEST_AUTO: u64 = 4 << 20;

/// How much more time base pages take than huge ones, made and filled, for each MiB on a machine with free memory.
const PRICE_OF_BASE_PAGES: Duration = Duration::from_micros(500);

/// The share of that price, one in so many, that may be lost before it is known that huge pages are slow at present.
const STAKE: u32 = 10;

/// The huge pages obtained may have cost so many times that price. Where a virtual machine's host must find the memory
/// first, both kinds cost more than twice as much, and attached processes read huge pages two or three times as fast.
const WORTH: u32 = 4;

/// The share of the elapsed time, one in so many, that counts as cost at least.
const PATIENCE: u32 = 4;

/// The smallest loss that is allowed: too small to notice.
const LEAST_STAKE: Duration = Duration::from_millis(2);

/// Most windows in a call. Every call waits for all processors once. One call for each window takes a third longer, on
/// a busy machine several times as long.
const LARGEST_GROUP: usize = 32;

/// Windows in the first call, which finds out whether there are huge pages at all.
const FIRST_GROUP: usize = 2;

/// Each call is for so many times as many windows as are on huge pages already.
const GROWTH: usize = 4;

/// Fewest windows for a thread. With fewer, starting the thread takes longer than it saves.
const WINDOWS_PER_THREAD: usize = 16;

/// More threads than this do not make memory faster.
const MOST_THREADS: usize = 8;

/// Allocates the first `length` bytes of a file that no other process can reach. Bytes already written stay. A shorter
/// file may get this length here; otherwise the caller sets it.
///
/// # Errors
///
/// There is no room. Memory allocated until then is freed with the file.
pub(crate) fn reserve(file: &File, length: u64, pages: Pages) -> io::Result<()> {
    reserve_with(file, length, pages, threads)
}

fn reserve_with(file: &File, length: u64, pages: Pages, threads: impl Fn(usize) -> usize) -> io::Result<()> {
    if wants_huge(length, pages) {
        // If the file cannot be mapped, it gets no huge pages. That is no error.
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
    let work = HugePageWork::new(windows, thrifty, threads);
    thread::scope(|scope| {
        for _ in 1..threads {
            // If a thread cannot be spawned, the others do its work. The scope joins all of them.
            let _ = thread::Builder::new().name("ndshm-reserve".to_owned()).spawn_scoped(scope, || work.run());
        }
        work.run();
    });
}

/// The work that the threads share.
#[derive(Debug)]
struct HugePageWork<'a> {
    windows: &'a HugeWindows<'a>,
    /// The first window of the next group.
    next: AtomicUsize,
    /// Number of windows on huge pages.
    taken: AtomicUsize,
    given_up: AtomicBool,
    largest_group: usize,
    /// How much each thread may lose; `None` for no limit on its cost.
    stake: Option<Duration>,
    /// How much one window on a huge page may have cost.
    worth: Duration,
}

/// The cost and the yield of one thread.
#[derive(Debug)]
struct Account {
    began: Instant,
    worked_before: Duration,
    taken: u32,
}

impl Account {
    fn open() -> Self {
        Self { began: Instant::now(), worked_before: os::thread_time(), taken: 0 }
    }

    /// Returns the processor time of the thread, or a share of the elapsed time if that is more.
    ///
    /// While other threads have the processor, base pages would not be ready any sooner: that time counts little. While
    /// the kernel waits for memory, they might be: that time must count.
    fn cost(&self) -> Duration {
        os::thread_time().saturating_sub(self.worked_before).max(self.began.elapsed() / PATIENCE)
    }
}

impl<'a> HugePageWork<'a> {
    fn new(windows: &'a HugeWindows<'a>, thrifty: bool, threads: usize) -> Self {
        let times = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let price = PRICE_OF_BASE_PAGES.saturating_mul(u32::try_from(windows.size() >> 20).unwrap_or(u32::MAX));
        let share = windows.count().div_ceil(threads.max(1));
        let stake = (price.saturating_mul(times(share)) / STAKE).max(LEAST_STAKE);
        Self {
            windows,
            next: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
            given_up: AtomicBool::new(false),
            largest_group: share.clamp(1, LARGEST_GROUP),
            stake: thrifty.then_some(stake),
            worth: price.saturating_mul(WORTH),
        }
    }

    fn run(&self) {
        let mut account = Account::open();
        while let Some(group) = self.next_group() {
            // The thread of the caller alone has a callback. The largest group has 64 MiB.
            let goes_on = interrupt::check().is_ok() && self.take_group(group, &mut account) && self.pays(&account);
            if !goes_on {
                self.given_up.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Claims the next windows. The first groups are small, so that little is lost if there are no huge pages, or if
    /// they are slow.
    fn next_group(&self) -> Option<Range<usize>> {
        // Relaxed suffices: `fetch_add` alone gives each window to one thread, and the other values only set the pace.
        if self.given_up.load(Ordering::Relaxed) {
            return None;
        }
        let size = (self.taken.load(Ordering::Relaxed) * GROWTH).max(FIRST_GROUP).min(self.largest_group);
        let start = self.next.fetch_add(size, Ordering::Relaxed);
        let end = start.saturating_add(size).min(self.windows.count());
        (start < end).then_some(start..end)
    }

    /// Returns whether the huge pages that a thread got so far are worth their cost.
    fn pays(&self, account: &Account) -> bool {
        self.stake.is_none_or(|stake| account.cost() <= stake + self.worth.saturating_mul(account.taken))
    }

    fn note(&self, taken: usize, account: &mut Account) {
        self.taken.fetch_add(taken, Ordering::Relaxed);
        account.taken = account.taken.saturating_add(u32::try_from(taken).unwrap_or(u32::MAX));
    }

    /// Puts the windows of a group on huge pages. Returns whether to go on with further groups.
    fn take_group(&self, group: Range<usize>, account: &mut Account) -> bool {
        if self.windows.prepare(group.clone()).is_err() {
            return false; // no room: the reservation at the end reports it
        }
        if self.windows.collapse(group.clone()).is_ok() {
            self.note(group.len(), account);
            return true;
        }
        for window in group {
            match self.windows.collapse(window..window + 1) {
                Ok(()) => self.note(1, account),
                // Refused before any window was put on a huge page: every window will be refused.
                Err(error)
                    if error.kind() == io::ErrorKind::InvalidInput && self.taken.load(Ordering::Relaxed) == 0 =>
                {
                    return false;
                }
                // Memory is fragmented, or a page was busy: this window stays on base pages.
                Err(_) if self.pays(account) => {}
                Err(_) => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::backend::Directory;

    const SMALL: &str = "NDSHM_TEST_SMALL";
    const MIB: u64 = 1 << 20;

    /// Runs the test again, alone, in a process with a directory of 16 MiB. Returns `false` if this user cannot mount
    /// one.
    fn again_with_little_room(test: &str) -> bool {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let script =
            "mount -t tmpfs -o size=16m none \"$NDSHM_TEST_SMALL\" && echo mounted && exec \"$0\" --exact \"$1\"";
        let run = |user: &[&str]| {
            let mut command = Command::new("unshare");
            command.args(user).args(["-m", "--propagation", "private", "sh", "-c", script]);
            command.arg(std::env::current_exe().expect("this program")).arg(test).env(SMALL, directory.path());
            command.output().ok().map(|output| (String::from_utf8_lossy(&output.stdout).into_owned(), output.status))
        };
        let mounted =
            [&[][..], &["-U", "-r"]].into_iter().filter_map(run).find(|(text, _)| text.starts_with("mounted"));
        let Some((printed, status)) = mounted else {
            println!("NOT RUN: {test}: private mounts cannot be had");
            return false;
        };
        assert!(status.success() && printed.contains("1 passed"), "{status}: {printed}");
        true
    }

    #[test]
    fn reservation_beyond_the_room_fails_and_leaves_nothing() {
        let Some(small) = std::env::var_os(SMALL) else {
            again_with_little_room(concat!(
                "backend::reserve::tests::",
                "reservation_beyond_the_room_fails_and_leaves_nothing"
            ));
            return;
        };
        let directory = Directory::new("small", small);
        let new = || os::create_nameless(directory.path(), 0o600).expect("a file");
        let room = || directory.available().expect("an answer");
        let all = room();
        assert_eq!(all, 16 * MIB);
        for (pages, threads) in [1, 2, 4, 7].into_iter().flat_map(|n| [(Pages::Huge, n), (Pages::Auto, n)]) {
            let reserve = |file: &File, length| reserve_with(file, length, pages, |_| threads);
            for length in [16 * MIB + 1, 18 * MIB, 64 * MIB] {
                let error = reserve(&new(), length).expect_err("more than there is");
                assert!(os::is_out_of_room(&error), "{error}");
                assert_eq!(room(), all, "{pages:?} {threads} {length}");
            }
            let other = new();
            os::reserve(&other, 3 * MIB, true).expect("room");
            assert!(os::is_out_of_room(&reserve(&new(), 13 * MIB + 1).expect_err("more than is left")));
            let file = new();
            reserve(&file, 13 * MIB).expect("what is left");
            assert_eq!((os::facts(&file).expect("facts").allocated, room()), (13 * MIB, 0));
            // Every byte can be written without allocating more.
            os::write_all_at(&file, &vec![1; 13 << 20], 0).expect("room");
            drop((file, other));
            assert_eq!(room(), all);
        }
    }

    #[test]
    fn reservation_keeps_written_bytes() {
        let Ok(file) = os::create_sealable() else { return };
        let bytes: Vec<u8> = (0..7_u32 << 20).map(|i| (i % 251) as u8).collect();
        os::write_all_at(&file, &bytes, 0).expect("a write");
        reserve_with(&file, 9 * MIB, Pages::Huge, |_| 3).expect("memory");
        let mut found = vec![1; 9 << 20];
        os::read_exact_at(&file, &mut found, 0).expect("the bytes");
        assert!(found[..bytes.len()] == bytes && found[bytes.len()..].iter().all(|byte| *byte == 0));
    }
}
