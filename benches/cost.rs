//! The cost model: time against size, number of arrays, attachments and processes, and of a cached chunk against the
//! locks of its cache, each compared with its yardstick.
//!
//! ```text
//! scripts/bench cost            # up to 4 GiB, five minutes
//! scripts/bench cost --quick    # does it work?
//! scripts/bench cost cache      # only this part
//! ```
//!
//! Prints tables. If `NDSHM_BENCH_JSON` names a file, the results are also written there, for `benches/report.py`.

#![allow(clippy::cast_precision_loss)] // measurements are less exact than a float

#[path = "yardstick/mod.rs"]
mod yardstick;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ndarray::Ix1;
use ndarray_shm::cache::{self, CachedChunk, ChunkCache, Lookup};
use ndarray_shm::{Arena, Error, SharedArray, unlink};
use serde_json::{Value, json};
#[cfg(target_os = "linux")]
use yardstick::calls;

/// The environment variable with the kind of work of a child process.
const WORK: &str = "NDSHM_BENCH_WORK";
const NAME: &str = "bench-cost";
const GIB: usize = 1 << 30;
/// Each array is mapped twice, and the number of mappings of a process is limited.
const MOST_SINGLE: usize = 10_000;

fn main() {
    if let Ok(work) = std::env::var(WORK) {
        return work_along(&work);
    }
    let quick = std::env::args().any(|argument| argument == "--quick");
    let plan = Plan { repetitions: if quick { 3 } else { 7 }, quick };
    let mut charts = BTreeMap::new();
    let measured: Vec<(&str, Chart)> = if std::env::args().any(|argument| argument == "cache") {
        vec![("cache", plan.cached_chunks())]
    } else {
        let others = [
            ("number", plan.numbers()),
            ("attachments", plan.attachments()),
            ("processes", plan.processes()),
            ("cache", plan.cached_chunks()),
        ];
        plan.sizes().into_iter().chain(others).collect()
    };
    for (name, chart) in measured {
        chart.print();
        charts.insert(name, chart.json());
    }
    if let Some(path) = std::env::var_os("NDSHM_BENCH_JSON") {
        std::fs::write(path, json!({"quick": quick, "charts": charts}).to_string()).expect("a file for the results");
    }
}

/// Measured times against one quantity, such as the size.
struct Chart {
    title: &'static str,
    x: &'static str,
    unit: &'static str,
    values: Vec<usize>,
    /// Each with a median for every value, or `None` where it cannot be measured.
    series: Vec<(&'static str, Vec<Option<f64>>)>,
}

impl Chart {
    fn json(&self) -> Value {
        let series: Vec<Value> =
            self.series.iter().map(|(label, points)| json!({"label": label, "points": points})).collect();
        json!({"title": self.title, "x": self.x, "unit": self.unit, "values": self.values, "series": series})
    }

    fn print(&self) {
        println!("\n{} ({})\n", self.title, self.unit);
        let row = |first: &str, cells: Vec<String>| {
            println!("{first:>18} {}", cells.iter().fold(String::new(), |line, cell| line + &format!("{cell:>24}")));
        };
        row(self.x, self.series.iter().map(|(label, _)| (*label).to_owned()).collect());
        for (index, value) in self.values.iter().enumerate() {
            let cell = |points: &[Option<f64>]| points[index].map_or("-".into(), |point| format!("{point:.2}"));
            row(&value.to_string(), self.series.iter().map(|(_, points)| cell(points)).collect());
        }
    }
}

fn median(mut times: Vec<f64>) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// How thorough the measurements are.
struct Plan {
    repetitions: usize,
    quick: bool,
}

impl Plan {
    /// Creating and filling, attaching and reading, dropping, from a page to 4 GiB.
    fn sizes(&self) -> [(&'static str, Chart); 3] {
        let largest = if self.quick { GIB / 16 } else { 4 * GIB };
        let values: Vec<usize> =
            std::iter::successors(Some(4096), |bytes| Some(bytes * 4)).take_while(|bytes| *bytes <= largest).collect();
        let mut charts = [
            ("size-create", "Create an array and fill it by copying", vec!["ndarray-shm", "system calls", "warm copy"]),
            ("size-attach", "Attach to an array and read it once", vec!["ndarray-shm", "system calls", "warm read"]),
            ("size-drop", "Drop an array and its name", vec!["ndarray-shm", "system calls"]),
        ]
        .map(|(name, title, series)| {
            let series = series.into_iter().map(|label| (label, Vec::new())).collect();
            (name, Chart { title, x: "size in bytes", unit: "us", values: values.clone(), series })
        });
        for bytes in &values {
            let mut times: BTreeMap<(usize, usize), Vec<f64>> = BTreeMap::new();
            let (source, mut target) = (vec![1_u8; *bytes], vec![0_u8; *bytes]);
            // One small array is too quick to be timed.
            let batch = (1 << 20) / bytes.min(&(1 << 20));
            for _ in 0..self.repetitions {
                for (place, time) in size_once(&source, &mut target, batch) {
                    times.entry(place).or_default().push(time / batch as f64);
                }
            }
            for (number, (_, chart)) in charts.iter_mut().enumerate() {
                for (series, (_, points)) in chart.series.iter_mut().enumerate() {
                    points.push(median(times.remove(&(number, series)).unwrap_or_default()));
                }
            }
        }
        charts
    }

    /// Creating and attaching many arrays of 1 KiB that all stay attached: each in its own file, or all in an arena.
    fn numbers(&self) -> Chart {
        let last = if self.quick { 1000 } else { 1_000_000 };
        let values: Vec<usize> =
            std::iter::successors(Some(1), |count| Some(count * 10)).take_while(|count| *count <= last).collect();
        let labels = ["create", "attach", "system calls: attach", "arena: make", "arena: get"];
        let mut series: Vec<_> = labels.map(|label| (label, Vec::new())).into();
        for count in &values {
            let mut times = vec![Vec::new(); series.len()];
            for _ in 0..self.repetitions {
                let single = if *count <= MOST_SINGLE { numbers_once(*count) } else { Vec::new() };
                let once = single.into_iter().chain(arena_once(*count));
                once.for_each(|(series, time)| times[series].push(time / *count as f64));
            }
            series.iter_mut().zip(times).for_each(|((_, points), times)| points.push(median(times)));
        }
        Chart { title: "Many arrays of 1 KiB, each", x: "number of arrays", unit: "us", values, series }
    }

    /// Guards of one array with many attachments. Each attachment is a lock in the list that the kernel searches.
    fn attachments(&self) -> Chart {
        let values = if self.quick { vec![1, 10, 100] } else { vec![1, 10, 100, 1000, 10_000] };
        let mut series = vec![("read guard", Vec::new()), ("attach and drop", Vec::new())];
        let array = SharedArray::<u8, _>::create(NAME, 1024).expect("room");
        let mut attached = Vec::new();
        for count in &values {
            attached.resize_with(*count - 1, || SharedArray::<u8, _>::open(NAME, 1024).expect("a mapping"));
            let mut times = [Vec::new(), Vec::new()];
            for _ in 0..self.repetitions {
                times[0].push(each(50, || drop(array.read().expect("a guard"))));
                times[1].push(each(50, || drop(SharedArray::<u8, _>::open(NAME, 1024).expect("a mapping"))));
            }
            series.iter_mut().zip(times).for_each(|((_, points), times)| points.push(median(times)));
        }
        unlink(NAME).expect("it is there");
        Chart { title: "One array with many attachments", x: "attachments", unit: "us", values, series }
    }

    /// Finding a chunk of 64^3 bytes in a cache and copying it, with as many chunks held by another process. Each is a
    /// lock in the list that the kernel searches.
    fn cached_chunks(&self) -> Chart {
        let values = if self.quick { vec![1, 64] } else { vec![1, 16, 64, 256, 1024] };
        let labels = ["find and copy", "find, copy, new mapping", "copy, warm"];
        let mut series: Vec<_> = labels.map(|label| (label, Vec::new())).into();
        let cache = ChunkCache::create(NAME, 256 << 20).expect("room");
        for count in &values {
            let mut times = [Vec::new(), Vec::new(), Vec::new()];
            // It holds the locks until it is dropped.
            let holder = Worker::new(&format!("hold {count}"));
            let mut target = vec![0_u8; CHUNK];
            let source = vec![1_u8; CHUNK];
            for number in 0..50 {
                drop(cached(&cache, key(number, 1), CHUNK));
            }
            for _ in 0..self.repetitions {
                let mut next = (0..50).cycle();
                times[0].push(each(500, || {
                    copy_cached(&cache, key(next.next().expect("a cycle"), 1), &mut target);
                }));
                let opened = ChunkCache::open(NAME).expect("it is there");
                let mut next = 0..50;
                times[1].push(each(50, || copy_cached(&opened, key(next.next().expect("50"), 1), &mut target)));
                times[2].push(each(500, || {
                    std::hint::black_box(&mut target).copy_from_slice(std::hint::black_box(&source));
                }));
            }
            drop(holder);
            series.iter_mut().zip(times).for_each(|((_, points), times)| points.push(median(times)));
        }
        cache::unlink(cache.directory(), cache.location()).expect("it is there");
        Chart { title: "A cached chunk of 256 KiB", x: "locks on the cache", unit: "us", values, series }
    }

    /// Several processes doing the same at the same time: microseconds per operation, as one process measures it.
    fn processes(&self) -> Chart {
        let values = if self.quick { vec![1, 2] } else { vec![1, 2, 4, 8, 16] };
        let array = SharedArray::<u8, _>::create(NAME, 1024).expect("room");
        let works = ["attach and drop", "read guard", "write guard", "calls: attach and drop"];
        let mut series: Vec<_> = works.map(|work| (work, Vec::new())).into();
        for count in &values {
            for (work, points) in &mut series {
                let mut crew: Vec<Worker> = (0..*count).map(|_| Worker::new(work)).collect();
                points.push(
                    median((0..self.repetitions).map(|_| together(&mut crew)).collect()).filter(|time| *time > 0.0),
                );
            }
        }
        drop(array);
        unlink(NAME).expect("it is there");
        Chart { title: "Many processes using one array at once", x: "processes", unit: "us", values, series }
    }
}

/// Repeats an operation, and returns the microseconds of one repetition.
fn each(times: u32, mut what: impl FnMut()) -> f64 {
    let begin = Instant::now();
    (0..times).for_each(|_| what());
    micros(begin.elapsed()) / f64::from(times)
}

fn floats(bytes: &[u8]) -> &[f32] {
    bytemuck::cast_slice(bytes)
}

/// Measures all series of all charts once for a size, a batch at a time. The keys are the numbers of chart and series.
fn size_once(source: &[u8], target: &mut [u8], batch: usize) -> BTreeMap<(usize, usize), f64> {
    let bytes = source.len();
    let mut times = BTreeMap::new();
    let mut add = |chart, series, begin: Instant| {
        *times.entry((chart, series)).or_insert(0.0) += micros(begin.elapsed());
    };
    let cold = |huge| yardstick::touch(if bytes < 1 << 20 { 0 } else { bytes * 3 / 2 }, huge);
    cold(true);
    for _ in 0..batch {
        let begin = Instant::now();
        let array = SharedArray::<u8, _>::create_with(NAME, bytes, |mut view| {
            view.as_slice_mut().expect("in order").copy_from_slice(source);
        });
        let array = array.expect("room");
        add(0, 0, begin);
        let begin = Instant::now();
        let same = SharedArray::<u8, _>::open(NAME, bytes).expect("it is there");
        yardstick::sum(floats(same.read().expect("a guard").as_slice().expect("in order")));
        add(1, 0, begin);
        drop(same);
        let begin = Instant::now();
        drop(array);
        unlink(NAME).expect("it is there");
        add(2, 0, begin);
    }
    #[cfg(target_os = "linux")]
    {
        cold(false);
        for _ in 0..batch {
            let begin = Instant::now();
            let map = calls::create(NAME, bytes, true, |memory| memory.copy_from_slice(source)).expect("room");
            add(0, 1, begin);
            let begin = Instant::now();
            // SAFETY: nothing writes to the file while it is mapped here.
            #[allow(unsafe_code)]
            let same = unsafe { memmap2::Mmap::map(&calls::open(NAME).expect("it is there")) };
            let same = same.expect("a mapping");
            yardstick::sum(floats(&same));
            add(1, 1, begin);
            drop(same);
            let begin = Instant::now();
            drop(map);
            calls::unlink(NAME).expect("it is there");
            add(2, 1, begin);
        }
    }
    for _ in 0..batch {
        let begin = Instant::now();
        target.copy_from_slice(source);
        add(0, 2, begin);
        let begin = Instant::now();
        yardstick::sum(floats(target));
        add(1, 2, begin);
    }
    times
}

/// Creates `count` arrays and attaches to each. All stay attached. Then attaches to the same files with bare system
/// calls.
fn numbers_once(count: usize) -> Vec<(usize, f64)> {
    let names: Vec<String> = (0..count).map(|index| format!("{NAME}-{index}")).collect();
    let begin = Instant::now();
    let arrays: Vec<_> = names.iter().map(|name| SharedArray::<u8, _>::create(name.as_str(), 1024)).collect();
    let created = micros(begin.elapsed());
    let begin = Instant::now();
    let opened: Vec<_> = names.iter().map(|name| SharedArray::<u8, _>::open(name.as_str(), 1024)).collect();
    let mut times = vec![(0, created)];
    times.push((1, micros(begin.elapsed())));
    let failed = arrays.iter().chain(&opened).find_map(|array| array.as_ref().err().map(Error::to_string));
    drop(opened);
    #[cfg(target_os = "linux")]
    {
        let begin = Instant::now();
        let mapped: Vec<_> = names.iter().map(|name| calls::attach(name)).collect();
        times.push((2, micros(begin.elapsed())));
        drop(mapped);
    }
    drop(arrays);
    names.iter().for_each(|name| drop(unlink(name.as_str())));
    assert_eq!(failed, None, "{count} arrays");
    times
}

/// Creates `count` arrays in an arena and gets each by its handle. All are kept.
fn arena_once(count: usize) -> [(usize, f64); 2] {
    let arena = Arena::create(NAME, (count * 1536) as u64).expect("room");
    let begin = Instant::now();
    let made: Vec<_> = (0..count).map(|_| arena.draft::<u8, _>(1024).expect("room").share().expect("ours")).collect();
    let time = micros(begin.elapsed());
    let begin = Instant::now();
    let got: Vec<_> = made.iter().map(|array| arena.get::<u8, Ix1>(&array.handle()).expect("it is held")).collect();
    let times = [(3, time), (4, micros(begin.elapsed()))];
    drop((made, got));
    times
}

/// Bytes of a chunk.
const CHUNK: usize = 64 * 64 * 64;

/// A key as spread as a hash.
fn key(number: u32, of: u32) -> u128 {
    let half = |part: u64| {
        let mut hash = DefaultHasher::new();
        (number, of, part).hash(&mut hash);
        u128::from(hash.finish())
    };
    half(0) << 64 | half(1)
}

/// Finds a chunk, or makes it first.
fn cached(cache: &ChunkCache, key: u128, length: usize) -> CachedChunk {
    loop {
        match cache.look(key, length, 0, Duration::ZERO).expect("a cache") {
            Lookup::Found(chunk) => return chunk,
            Lookup::Claimed(mut claim) => {
                let mut chunk = claim.room().expect("a cache").expect("room");
                chunk.bytes_mut().expect("ours").fill(1);
                chunk.publish(1, cache.now()).expect("ours");
            }
            other => panic!("{other:?}"),
        }
    }
}

fn copy_cached(cache: &ChunkCache, key: u128, target: &mut [u8]) {
    let chunk = cache.find(key, CHUNK, 0).expect("a cache").expect("it is there");
    target.copy_from_slice(chunk.bytes().expect("ours"));
}

/// A child process that does one kind of work for each line that it gets.
struct Worker {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Worker {
    fn new(work: &str) -> Self {
        let program = std::env::current_exe().expect("this program's path");
        let child = Command::new(program).env(WORK, work).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("a process");
        let answers = BufReader::new(child.stdout.take().expect("piped above"));
        let mut worker = Self { child, answers };
        worker.answer();
        worker
    }

    fn tell(&mut self) {
        writeln!(self.child.stdin.as_ref().expect("piped"), "go").expect("it listens");
    }

    fn answer(&mut self) -> f64 {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it answers");
        line.trim().parse().expect("a number")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait(); // the child ends at the end of its standard input
    }
}

/// Lets all child processes work at the same time, and returns the median of their times.
fn together(crew: &mut [Worker]) -> f64 {
    crew.iter_mut().for_each(Worker::tell);
    median(crew.iter_mut().map(Worker::answer).collect()).unwrap_or_default()
}

/// Runs in a child process. Prints the microseconds of one operation for every line of input, and 0 if the platform
/// lacks the operation.
fn work_along(work: &str) {
    const ROUNDS: u32 = 500;
    if let Some(count) = work.strip_prefix("hold ") {
        let cache = ChunkCache::open(NAME).expect("it is there");
        // Smaller ones, so that none needs the places of those that are found.
        let held: Vec<_> =
            (0..count.parse::<u32>().expect("a number")).map(|number| cached(&cache, key(number, 2), 4096)).collect();
        println!("0");
        std::io::stdin().lock().lines().for_each(drop);
        return drop(held);
    }
    let array = SharedArray::<u8, _>::open(NAME, 1024).expect("it is there");
    let once = || match work {
        "attach and drop" => each(ROUNDS, || drop(SharedArray::<u8, _>::open(NAME, 1024).expect("a mapping"))),
        "read guard" => each(ROUNDS, || drop(array.read().expect("a guard"))),
        "write guard" => each(ROUNDS, || drop(array.write().expect("a guard"))),
        #[cfg(target_os = "linux")]
        "calls: attach and drop" => each(ROUNDS, || drop(calls::attach(NAME).expect("a mapping"))),
        _ => 0.0,
    };
    println!("0");
    for _ in std::io::stdin().lock().lines() {
        println!("{}", once());
    }
}
