//! The Rust side of `scripts/bench-peers`: one process per case, which does its work once for every line of input and
//! prints a line of JSON for each.
//!
//! ```text
//! bench-peers machine                          touch KIND BYTES | copy BYTES THREADS | read BYTES
//! bench-peers fill CASE BYTES THREADS          create a segment, fill it by a copy, remove it
//! bench-peers recycle CASE BYTES               fill memory that was used before
//! bench-peers attach CASE BYTES                attach in a second process and read, twice
//! bench-peers small CASE BYTES COUNT           create, fill, publish and drop small segments, one after another
//! bench-peers many CASE BYTES COUNT            keep as many segments at once as possible
//! bench-peers arena ours BYTES COUNT           very many arrays at once, in two processes
//! bench-peers round-trip CASE WAY BYTES COUNT  send an array to another process and back; WAY: one-cpu, two-cpus, polling
//! bench-peers stream-latency CASE WAY READERS BYTES COUNT     frames to several processes
//! bench-peers stream-rate CASE WAY READERS BYTES MILLISECONDS frames as fast as possible
//! bench-peers stream-idle CASE MILLISECONDS                   a reader that waits
//! bench-peers stream-writer CASE KIND READERS COUNT           a frame, for its writer; KIND: holding, waiting
//! ```

mod arena;
mod machine;
mod messages;
mod peers;
mod recycled;
mod round_trip;
mod segments;
mod streams;

use std::io::{BufRead, Write};

use serde_json::{Value, json};

type Failable<T> = Result<T, Box<dyn std::error::Error>>;

/// Answers every line of standard input until it ends. An error is also an answer.
fn serve(mut answer: impl FnMut(&[&str]) -> Failable<Value>) -> Failable<()> {
    println!("{}", json!({"ready": true}));
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let reply = answer(&words).unwrap_or_else(|error| json!({"error": error.to_string()}));
        println!("{reply}");
        std::io::stdout().flush()?;
    }
    Ok(())
}

/// Returns an unused name. All names have one prefix, so that leftovers of a crash can be found.
fn fresh_name() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let prefix = std::env::var("BENCH_PREFIX").unwrap_or_else(|_| "ndshm-bench".into());
    format!("{prefix}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn run(words: &[&str]) -> Failable<()> {
    match words {
        ["machine"] => machine::serve(),
        ["fill", case, bytes, threads] => segments::fill(case, bytes.parse()?, threads.parse()?),
        ["recycle", case, bytes] => recycled::fill(case, bytes.parse()?),
        ["attach", case, bytes] => segments::attach(case, bytes.parse()?),
        ["attach-reader", case, bytes] => segments::read(case, bytes.parse()?),
        ["small", case, bytes, count] => segments::small(case, bytes.parse()?, count.parse()?),
        ["many", case, bytes, count] => segments::many(case, bytes.parse()?, count.parse()?),
        ["arena", _, bytes, count] => arena::share(bytes.parse()?, count.parse()?),
        ["arena-reader", name, count] => arena::read(name, count.parse()?),
        ["round-trip", case, way, bytes, count] => round_trip::ask(case, way, bytes.parse()?, count.parse()?),
        ["round-trip-answer", case, way, bytes, address] => round_trip::answer(case, way, bytes.parse()?, address),
        ["stream-latency", case, way, readers, bytes, count] => streams::latency(case, way, readers, bytes, count),
        ["stream-rate", case, way, readers, bytes, time] => streams::rate(case, way, readers, bytes, time),
        ["stream-idle", case, time] => streams::idle(case, time),
        ["stream-reader", case, way, index, readers, bytes, address] => {
            streams::read(case, way, index, readers, bytes, address)
        }
        ["stream-writer", case, kind, readers, count] => streams::cost(case, kind, readers, count),
        ["stream-crowd", case, kind, address] => streams::stay(case, kind, address),
        _ => Err("see the first lines of main.rs".into()),
    }
}

fn main() -> Failable<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    run(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}
