//! The round trip of a 1 MiB array from one process to another and back, compared with bare words of shared memory.
//!
//! ```text
//! cargo bench --bench queue
//! ```
//!
//! Nothing is copied. The yardsticks are a word of shared memory that both processes poll (*spin*), and one on which
//! they sleep with futex(2). Each table is one run: quote its ratios. The two processes share one CPU or have one each.
//! The tables show the median and the 99th percentile.

#[cfg(target_os = "linux")]
mod linux {
    use std::hint;
    use std::process::{Child, Command};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    use memmap2::MmapRaw;
    use ndarray::Ix1;
    use ndarray_shm::Arena;
    use ndarray_shm::arena::{ArenaArray, Queue};
    use rustix::process::{Signal, set_parent_process_death_signal};
    use rustix::thread::{CpuSet, Pid, futex, sched_getaffinity, sched_setaffinity};

    const ELEMENTS: usize = 1 << 18;
    const ARENA: &str = "bench-queue";
    /// The environment variable with the role of a process (near or far) and the number of its table.
    const PART: &str = "NDSHM_BENCH_PART";

    /// One table: how the processes wait, and on how many CPUs they run.
    #[derive(Clone, Copy, PartialEq)]
    struct Table {
        title: &'static str,
        is_polling: bool,
        one_cpu: bool,
        rounds: usize,
    }

    const TABLES: [Table; 3] = [
        Table { title: "polling, two CPUs", is_polling: true, one_cpu: false, rounds: 100_000 },
        Table { title: "waiting, one CPU", is_polling: false, one_cpu: true, rounds: 20_000 },
        Table { title: "waiting, two CPUs", is_polling: false, one_cpu: false, rounds: 20_000 },
    ];

    /// Two words that two processes set in turn. Each word has a cache line of its own.
    struct Words(MmapRaw);

    impl Words {
        const THERE: usize = 0;
        const BACK: usize = 64;

        fn open() -> Self {
            let path = format!("/dev/shm/{ARENA}-words");
            let file = std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
            let file = file.expect("a file");
            file.set_len(4096).expect("room");
            Self(MmapRaw::map_raw(&file).expect("it can be mapped"))
        }

        #[allow(unsafe_code)]
        fn at(&self, offset: usize) -> &AtomicU32 {
            assert!(offset < 4096 && offset % 4 == 0, "within the page, and aligned");
            let word = self.0.as_mut_ptr().wrapping_add(offset).cast();
            // SAFETY: the page is mapped as long as `self`, both processes access it as atomics only, and the offset is
            // aligned.
            unsafe { AtomicU32::from_ptr(word) }
        }

        fn set(&self, offset: usize, turn: u32, wakes: bool) {
            self.at(offset).store(turn, Ordering::Release);
            if wakes {
                futex::wake(self.at(offset), futex::Flags::empty(), 1).expect("futex(2)");
            }
        }

        fn wait(&self, offset: usize, turn: u32, sleeps: bool) {
            loop {
                let now = self.at(offset).load(Ordering::Acquire);
                if now == turn {
                    return;
                }
                if sleeps {
                    let _ = futex::wait(self.at(offset), futex::Flags::empty(), now, None); // the loop checks again
                } else {
                    hint::spin_loop();
                }
            }
        }
    }

    fn receive(queue: &Queue, is_polling: bool) -> ArenaArray<f32, Ix1> {
        if !is_polling {
            return queue.recv().expect("an array");
        }
        loop {
            if let Some(array) = queue.try_recv().expect("an array") {
                return array;
            }
            hint::spin_loop();
        }
    }

    /// Times each round, and prints median and 99th percentile.
    fn report(name: &str, rounds: usize, yardstick: Option<Duration>, mut round: impl FnMut(u32)) -> Duration {
        let mut times: Vec<Duration> = Vec::with_capacity(rounds);
        for turn in 0..rounds + rounds / 10 {
            let begin = Instant::now();
            round(u32::try_from(turn).unwrap_or(0) + 1);
            times.push(begin.elapsed());
        }
        let mut times = times.split_off(rounds / 10); // the first ones warm up
        times.sort_unstable();
        let (median, most) = (times[times.len() / 2], times[times.len() * 99 / 100]);
        let ratio =
            yardstick.map_or(String::new(), |bare| format!("{:>8.2}", median.as_secs_f64() / bare.as_secs_f64()));
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        println!("  {name:<44}{:>10.2}{:>10.2}{ratio}", micros(median), micros(most));
        median
    }

    fn pin(cpu: usize) {
        let mut set = CpuSet::new();
        set.set(cpu);
        sched_setaffinity(None::<Pid>, &set).expect("it may run there");
    }

    /// The CPUs of the two processes.
    fn cpus(table: Table) -> Option<(usize, usize)> {
        let set = sched_getaffinity(None).expect("it runs somewhere");
        let mut allowed = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu));
        let first = allowed.next()?;
        Some((first, if table.one_cpu { first } else { allowed.next()? }))
    }

    fn start(part: &str, index: usize) -> Child {
        let program = std::env::current_exe().expect("this program's path");
        Command::new(program).env(PART, format!("{part} {index}")).spawn().expect("a second process")
    }

    /// The other process: sends back every word and array that it receives.
    fn far(index: usize) {
        let table = TABLES[index];
        let words = Words::open();
        let rounds = u32::try_from(table.rounds + table.rounds / 10).expect("few");
        for sleeps in [false, true].into_iter().filter(|sleeps| is_measured(table, *sleeps)) {
            for turn in 1..=rounds {
                let turn = turn | u32::from(sleeps) << 31;
                words.wait(Words::THERE, turn, sleeps);
                words.set(Words::BACK, turn, sleeps);
            }
        }
        let arena = Arena::open(ARENA).expect("it was made");
        let (there, back) = (arena.queue(0).expect("the first"), arena.queue(1).expect("the second"));
        for _ in 0..2 * rounds {
            let array = receive(&there, table.is_polling);
            assert!(array.view()[ELEMENTS - 1] >= 0.0);
            back.send(array).expect("there is room");
        }
    }

    /// Returns whether a yardstick belongs to a table: spinning belongs to polling, the futex to waiting. On one CPU,
    /// spinning would keep the other process from running.
    fn is_measured(table: Table, sleeps: bool) -> bool {
        sleeps != table.is_polling
    }

    /// The first process: sends, and waits for the answers.
    fn near(index: usize) {
        let table = TABLES[index];
        let (own, other) = cpus(table).expect("enough CPUs");
        let arena = Arena::create(ARENA, 16 << 20).expect("room");
        let (there, back) = (arena.queue(0).expect("the first"), arena.queue(1).expect("the second"));
        let words = Words::open();
        pin(other);
        let mut child = start("far", index);
        pin(own);
        println!("{:<46}{:>10}{:>10}{:>8}", table.title, "median us", "99 % us", "ratio");
        let mut bare = None;
        for sleeps in [false, true].into_iter().filter(|sleeps| is_measured(table, *sleeps)) {
            let name = if sleeps { "futex(2) on two words" } else { "spin on two words" };
            bare = Some(report(name, table.rounds, None, |turn| {
                let turn = turn | u32::from(sleeps) << 31;
                words.set(Words::THERE, turn, sleeps);
                words.wait(Words::BACK, turn, sleeps);
            }));
        }
        let array = arena.draft::<f32, _>(ELEMENTS).expect("room").share().expect("it is ours");
        report("queue, the same 1 MiB there and back", table.rounds, bare, |_| {
            there.send(&array).expect("there is room");
            assert_eq!(receive(&back, table.is_polling).handle(), array.handle());
        });
        report("queue, 1 MiB newly allocated each time", table.rounds, bare, |_| {
            let mut draft = arena.draft::<f32, _>(ELEMENTS).expect("room");
            draft.view_mut()[ELEMENTS - 1] = 1.0;
            there.send(draft.share().expect("it is ours")).expect("there is room");
            drop(receive(&back, table.is_polling));
        });
        let status = child.wait().expect("it ends");
        assert!(status.success(), "{status}");
    }

    pub(super) fn main() {
        if let Ok(part) = std::env::var(PART) {
            // Without this, the process would wait for ever after its parent was killed.
            set_parent_process_death_signal(Some(Signal::KILL)).expect("prctl(2)");
            let (part, index) = part.split_once(' ').expect("two words");
            let index = index.parse().expect("a number");
            return if part == "near" { near(index) } else { far(index) };
        }
        for (index, table) in TABLES.into_iter().enumerate() {
            if cpus(table).is_none() {
                println!("{}: needs more CPUs than this process may use", table.title);
                continue;
            }
            let status = start("near", index).wait().expect("it ends");
            assert!(status.success(), "{status}");
        }
        std::fs::remove_file(format!("/dev/shm/{ARENA}-words")).expect("it was made");
    }
}

fn main() {
    #[cfg(target_os = "linux")]
    linux::main();
    #[cfg(not(target_os = "linux"))]
    println!("this benchmark runs on Linux only: its yardsticks are Linux system calls");
}
