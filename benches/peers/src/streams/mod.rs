//! Frames from one writer to several readers: how late they are, how many there are in a second, and what a reader
//! costs that waits. `crowd.rs` measures what a frame costs the writer of very many readers.
//!
//! The writer's process starts those of its readers. A reader answers lines of input, as every case does, and is idle
//! between them.

mod board;
mod crowd;
mod ring;
mod ways;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use self::board::{Board, now, spin, used, wait_for};
pub use self::crowd::{cost, stay};
use self::ways::{Look, Reading, Writing};
use crate::machine::{Source, pin};
use crate::{Failable, fresh_name};

/// A reader looks at the clock after so many attempts, and gives up when its writer is gone.
const ATTEMPTS: u64 = 1 << 20;

/// Frames before the measured ones: other cases have used the caches in between.
const WARMING: u64 = 2 * ways::SLOTS as u64;

/// How a case is measured, as its words say.
#[derive(Clone)]
struct Case<'a> {
    name: &'a str,
    /// `polling`, `one-cpu` or `two-cpus`; in the last two, readers wait.
    way: &'a str,
    readers: usize,
    bytes: usize,
}

impl<'a> Case<'a> {
    fn new(name: &'a str, way: &'a str, readers: &str, bytes: &str) -> Failable<Self> {
        Ok(Self { name, way, readers: readers.parse()?, bytes: bytes.parse()? })
    }

    fn waits(&self) -> bool {
        self.way != "polling"
    }

    /// The writer has a CPU of its own, unless all processes share one. Several readers share the other.
    fn pin(&self, is_writer: bool) -> Failable<()> {
        pin(if is_writer || self.way == "one-cpu" { &[0] } else { &[1] })
    }
}

/// The processes of the readers.
struct Readers(Vec<(Child, BufReader<ChildStdout>)>);

impl Readers {
    /// Starts one process for each line of words, and waits until all are ready.
    fn start(lines: impl Iterator<Item = Vec<String>>) -> Failable<Self> {
        let mut readers = Self(Vec::new());
        for words in lines {
            let mut child = Command::new(std::env::current_exe()?);
            let mut child = child.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
            let output = BufReader::new(child.stdout.take().ok_or("piped above")?);
            readers.0.push((child, output));
        }
        readers.answers()?;
        Ok(readers)
    }

    fn of(case: &Case, address: &str) -> Failable<Self> {
        let words = |index: usize| {
            let numbers = [index, case.readers, case.bytes].map(|number| number.to_string());
            let [index, readers, bytes] = numbers;
            ["stream-reader", case.name, case.way, &index, &readers, &bytes, address].map(String::from).to_vec()
        };
        Self::start((0..case.readers).map(words))
    }

    fn ask(&mut self, line: &str) -> Failable<()> {
        for (child, _) in &mut self.0 {
            writeln!(child.stdin.as_mut().ok_or("piped above")?, "{line}")?;
        }
        Ok(())
    }

    /// Returns a line of each reader.
    fn answers(&mut self) -> Failable<Vec<Value>> {
        let mut answers = Vec::new();
        for (_, output) in &mut self.0 {
            let mut line = String::new();
            output.read_line(&mut line)?;
            let answer: Value = serde_json::from_str(&line).map_err(|_| "a reader has ended")?;
            match answer.get("error") {
                Some(error) => return Err(error.to_string().into()),
                None => answers.push(answer),
            }
        }
        Ok(answers)
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        for (child, _) in &mut self.0 {
            drop(child.stdin.take()); // it ends at the end of its input
        }
        for (child, _) in &mut self.0 {
            let _ = child.wait();
        }
    }
}

/// The writer with its readers, and what a frame is copied from.
struct Stage<'a> {
    case: Case<'a>,
    writer: Box<dyn Writing>,
    readers: Readers,
    board: Board,
    source: Source,
    number: u64,
}

impl<'a> Stage<'a> {
    fn new(case: Case<'a>) -> Failable<Self> {
        case.pin(true)?;
        let address = fresh_name();
        let board = Board::create(&address, case.readers)?;
        let writer = ways::writer(case.name, &address, case.bytes, case.readers, case.waits())?;
        let readers = Readers::of(&case, &address)?;
        let source = Source::new(case.bytes, 1)?;
        Ok(Self { case, writer, readers, board, source, number: 0 })
    }

    fn send(&mut self) -> Failable<()> {
        self.number += 1;
        self.writer.send(self.source.bytes(), [now(), self.number])
    }

    /// Gives the readers something to do, and waits until they do it.
    fn begin(&mut self, line: &str) -> Failable<()> {
        for reader in 0..self.case.readers {
            self.board.ready(reader).store(0, Ordering::Relaxed);
            self.board.done(reader).store(0, Ordering::Relaxed);
        }
        self.board.stop().store(0, Ordering::Release);
        self.readers.ask(line)?;
        for reader in 0..self.case.readers {
            wait_for(self.board.ready(reader), 1, || std::thread::sleep(Duration::from_micros(100)))?;
        }
        std::thread::sleep(Duration::from_millis(2));
        Ok(())
    }

    /// Lets the readers go back to where they poll or sleep.
    fn rest(&self) {
        let each = Duration::from_micros(if self.case.waits() { 60 } else { 5 });
        let all = each * u32::try_from(self.case.readers).unwrap_or(1);
        if self.case.way == "one-cpu" { std::thread::sleep(all) } else { spin(all) }
    }

    /// Sends `count` frames, each after all readers have read the one before. Returns the latencies.
    fn latencies(&mut self, count: u64) -> Failable<Vec<f64>> {
        self.begin(&format!("latency {count}"))?;
        for sent in 1..=WARMING + count {
            self.rest();
            self.send()?;
            for reader in 0..self.case.readers {
                let is_alone = self.case.way != "one-cpu";
                wait_for(self.board.done(reader), sent, || {
                    if is_alone { std::hint::spin_loop() } else { std::thread::sleep(Duration::from_micros(20)) }
                })?;
            }
        }
        let answers = self.readers.answers()?;
        let latencies = answers.iter().filter_map(|answer| answer["nanoseconds"].as_array()).flatten();
        Ok(latencies.filter_map(Value::as_f64).map(|nanoseconds| nanoseconds / 1e9).collect())
    }

    /// Sends frames for some time. Returns how many were sent and read in a second.
    fn rate(&mut self, time: Duration) -> Failable<Value> {
        self.begin("rate")?;
        let (begin, mut sent) = (Instant::now(), 0_u32);
        while begin.elapsed() < time {
            self.send()?;
            sent += 1;
        }
        let seconds = begin.elapsed().as_secs_f64();
        self.board.stop().store(1, Ordering::Release);
        let answers = self.readers.answers()?;
        let read: f64 = answers.iter().filter_map(|answer| answer["read"].as_f64()).sum();
        let read = read / answers.len() as f64;
        Ok(json!({"seconds": seconds / f64::from(sent), "read": read / seconds, "share": read / f64::from(sent)}))
    }
}

/// The latency of frames, from just before their writer begins them until a reader has read all elements.
pub fn latency(name: &str, way: &str, readers: &str, bytes: &str, count: &str) -> Failable<()> {
    let mut stage = Stage::new(Case::new(name, way, readers, bytes)?)?;
    let count = count.parse()?;
    stage.latencies(20)?;
    crate::serve(|_| {
        let mut times = stage.latencies(count)?;
        times.sort_by(f64::total_cmp);
        let at = |share: usize| times.get(times.len() * share / 100).copied().ok_or("no frame was read");
        Ok(json!({"seconds": at(50)?, "p99": at(99)?, "least": at(0)?}))
    })
}

/// Frames as fast as the writer copies them.
pub fn rate(name: &str, way: &str, readers: &str, bytes: &str, milliseconds: &str) -> Failable<()> {
    let mut stage = Stage::new(Case::new(name, way, readers, bytes)?)?;
    let time = Duration::from_millis(milliseconds.parse()?);
    stage.rate(time / 10)?;
    crate::serve(|_| stage.rate(time))
}

/// The processor time of a reader that waits for a frame that does not come.
pub fn idle(name: &str, milliseconds: &str) -> Failable<()> {
    let mut stage = Stage::new(Case::new(name, "two-cpus", "1", "4096")?)?;
    stage.latencies(20)?;
    crate::serve(|_| {
        stage.readers.ask(&format!("idle {milliseconds}"))?;
        stage.readers.answers()?.pop().ok_or_else(|| "no reader".into())
    })
}

/// A reader's process.
pub fn read(name: &str, way: &str, index: &str, readers: &str, bytes: &str, address: &str) -> Failable<()> {
    let (case, index) = (Case::new(name, way, readers, bytes)?, index.parse()?);
    case.pin(false)?;
    let board = Board::open(address)?;
    let mut side = ways::reader(name, address, case.bytes, case.readers, case.waits())?;
    crate::serve(|words| match words {
        ["latency", count] => latencies(side.as_mut(), &case, &board, index, count.parse()?),
        ["rate"] => frames(side.as_mut(), &case, &board, index),
        ["idle", milliseconds] => sleep(side.as_mut(), Duration::from_millis(milliseconds.parse()?)),
        _ => Err("latency COUNT, rate or idle MILLISECONDS".into()),
    })
}

fn latencies(side: &mut dyn Reading, case: &Case, board: &Board, index: usize, count: u64) -> Failable<Value> {
    let mut found = Vec::new();
    board.ready(index).store(1, Ordering::Release);
    for done in 1..=WARMING + count {
        let mut attempts = 0;
        let seen = loop {
            let seen =
                if case.waits() { side.wait(Duration::from_secs(30), Look::Whole)? } else { side.poll(Look::Whole)? };
            if let Some(seen) = seen {
                break seen;
            }
            attempts += 1;
            if case.waits() || attempts > 100 * ATTEMPTS {
                return Err("no frame came".into());
            }
            // Readers that share a CPU let one another run.
            if case.readers > 1 { std::thread::yield_now() } else { std::hint::spin_loop() }
        };
        if done > WARMING {
            found.push(seen.latency);
        }
        board.done(index).store(done, Ordering::Release);
    }
    Ok(json!({"nanoseconds": found}))
}

fn frames(side: &mut dyn Reading, case: &Case, board: &Board, index: usize) -> Failable<Value> {
    while side.poll(Look::Pages)?.is_some() {} // frames of the time before
    board.ready(index).store(1, Ordering::Release);
    let (mut read, mut last) = (0_u64, 0);
    while board.stop().load(Ordering::Acquire) == 0 {
        let seen =
            if case.waits() { side.wait(Duration::from_millis(20), Look::Pages)? } else { side.poll(Look::Pages)? };
        if let Some(seen) = seen {
            if seen.number <= last {
                return Err("a frame came twice".into());
            }
            last = seen.number;
            read += 1;
        }
    }
    Ok(json!({"read": read}))
}

fn sleep(side: &mut dyn Reading, time: Duration) -> Failable<Value> {
    let (begin, used_before, wakes_before) = (Instant::now(), used(), waits());
    if side.wait(time, Look::Whole)?.is_some() {
        return Err("there was a frame".into());
    }
    let seconds = begin.elapsed().as_secs_f64();
    Ok(json!({
        "seconds": (used() - used_before) as f64 / 1e9 / seconds,
        "wakes": (waits() - wakes_before) as f64 / seconds,
    }))
}

/// How often this process has gone to sleep, in all its threads.
fn waits() -> u64 {
    // SAFETY: zeros are a value of this type.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is that of a value of the type that getrusage(2) writes.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    usage.ru_nvcsw.unsigned_abs()
}
