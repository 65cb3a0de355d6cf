//! The measurements of segments: creating, filling, attaching and removing; a large one, small ones, many at once.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use crate::machine::{Source, floats, sum};
use crate::{Failable, fresh_name, peers};

/// One segment at a time. Measures the seconds to create and fill it, and the seconds to remove it.
pub fn fill(case: &str, bytes: usize, threads: usize) -> Failable<()> {
    let peer = peers::of(case)?;
    let source = Source::new(bytes, threads)?;
    crate::serve(|_| {
        let name = fresh_name();
        let begin = Instant::now();
        let segment = peer.create(&name, &source)?;
        let made = begin.elapsed();
        drop(segment);
        peer.remove(&name)?;
        let gone = begin.elapsed() - made;
        Ok(json!({"seconds": made.as_secs_f64(), "drop": gone.as_secs_f64()}))
    })
}

/// Creates one segment. For every line, another process attaches to it.
pub fn attach(case: &str, bytes: usize) -> Failable<()> {
    let (peer, name) = (peers::of(case)?, fresh_name());
    let segment = peer.create(&name, &Source::new(bytes, 1)?)?;
    let program = std::env::current_exe()?;
    let words = ["attach-reader", case, &bytes.to_string()].map(String::from);
    let mut reader = Command::new(program).args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut ask = reader.stdin.take().ok_or("piped above")?;
    let mut answers = BufReader::new(reader.stdout.take().ok_or("piped above")?).lines();
    answers.next().ok_or("the reader ended")??;
    crate::serve(|_| {
        writeln!(ask, "{name}")?;
        let line = answers.next().ok_or("the reader ended")??;
        Ok(serde_json::from_str::<Value>(&line)?)
    })?;
    drop(ask);
    reader.wait()?;
    drop(segment);
    peer.remove(&name)
}

/// Runs in the other process. Measures the seconds to attach and read everything once, and the seconds to read it
/// again.
pub fn read(case: &str, bytes: usize) -> Failable<()> {
    let peer = peers::of(case)?;
    crate::serve(|words| {
        let [name] = words else { return Err("a name".into()) };
        let (mut first, mut warm) = (0.0, 0.0);
        let begin = Instant::now();
        peer.read(name, bytes, &mut |memory| {
            sum(floats(memory));
            first = begin.elapsed().as_secs_f64();
            let again = Instant::now();
            sum(floats(memory));
            warm = again.elapsed().as_secs_f64();
        })?;
        Ok(json!({"seconds": first, "warm": warm}))
    })
}

/// Small segments, one after another. Measures the seconds for each.
pub fn small(case: &str, bytes: usize, count: u32) -> Failable<()> {
    let peer = peers::of(case)?;
    let source = Source::new(bytes, 1)?;
    crate::serve(|_| {
        let begin = Instant::now();
        for _ in 0..count {
            let name = fresh_name();
            drop(peer.create(&name, &source)?);
            peer.remove(&name)?;
        }
        Ok(json!({"seconds": begin.elapsed().as_secs_f64() / f64::from(count)}))
    })
}

/// As many segments at once as possible. Measures their number, the seconds for each, their cost for the process, and
/// the error that ended it.
pub fn many(case: &str, bytes: usize, count: usize) -> Failable<()> {
    let peer = peers::of(case)?;
    let source = Source::new(bytes, 1)?;
    crate::serve(|_| {
        let (mut kept, mut ended) = (Vec::new(), None);
        let mut names = Vec::new();
        let (descriptors, _) = costs();
        let begin = Instant::now();
        while kept.len() < count {
            let name = fresh_name();
            // One of the libraries panics when descriptors run out.
            let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| peer.create(&name, &source)));
            let made = made.unwrap_or_else(|_| Err("it panicked".into()));
            match made {
                Ok(segment) => kept.push(segment),
                Err(error) => {
                    ended = Some(error.to_string());
                    break;
                }
            }
            names.push(name);
        }
        let seconds = begin.elapsed().as_secs_f64();
        let made = kept.len();
        // Counting needs a descriptor itself, so one segment is dropped first.
        if ended.is_some() {
            kept.pop();
        }
        let (open, mappings) = costs();
        let facts = json!({
            "made": made,
            "seconds": seconds / made.max(1) as f64,
            "descriptors": open.saturating_sub(descriptors),
            "mappings": mappings,
            "ended": ended,
        });
        drop(kept);
        for name in &names {
            peer.remove(name)?;
        }
        Ok(facts)
    })
}

/// Returns the numbers of descriptors and mappings of this process.
pub fn costs() -> (usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    (descriptors, std::fs::read_to_string("/proc/self/maps").map_or(0, |text| text.lines().count()))
}
