//! The Rust side of `scripts/bench-volumes`: one download of a volume, or upload of JPEG, for each line of standard
//! input.
//!
//! ```text
//! volumes serve VOLUME    answers `threads N [C|F]`, `processes N [C|F]` and `upload N` with one line of JSON each
//! volumes tiny [EDGE]     100,000 chunks: the rate of the first and of the last tenth
//! ```

#![allow(clippy::cast_precision_loss)] // counts become rates

use std::error::Error;
use std::io::{BufRead as _, Write as _};
use std::ops::Range;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ndarray_shm::{DType, Location, Order, default_directory, unlink};
use ndarray_shm_volume::{
    ChunkSource, DownloadOptions, Downloaded, Encoding, Fetched, NewVolume, ProcessWorkers, Result as VolumeResult,
    Scratch, StopFlag, UploadOptions, VolumeFormat, VolumeMeta, VolumeUrl, Workers, create_volume,
    download_to_shared_memory, open_volume, paint_as_worker, upload_from_shared_memory,
};
use serde_json::{Value, json};

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["serve", volume] => serve(volume),
        ["worker", volume, location] => worker(volume, location),
        ["tiny"] => tiny(4),
        ["tiny", edge] => tiny(edge.parse()?),
        _ => {
            println!("volumes serve VOLUME | volumes tiny [EDGE]: see scripts/bench-volumes");
            Ok(())
        }
    }
}

fn serve(volume: &str) -> Outcome<()> {
    let source = open_volume(volume)?;
    for line in std::io::stdin().lock().lines() {
        let answer = answer(volume, &*source, &line?).unwrap_or_else(|error| json!({"error": error.to_string()}));
        println!("{answer}");
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn answer(volume: &str, source: &dyn ChunkSource, line: &str) -> Outcome<Value> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (kind, count) = (*words.first().ok_or("no case")?, words.get(1).ok_or("no number")?.parse::<usize>()?);
    let order = words.get(2).map_or(Ok(Order::C), |order| order.parse())?;
    let location: Location = format!("bench-volumes-{}", std::process::id()).parse()?;
    if kind == "upload" {
        let done = download_to_shared_memory(source, &source.meta().domain(), &location, &DownloadOptions::new())?;
        let answer = upload(source.meta(), &location, done.order, count);
        unlink(&location)?;
        return answer;
    }
    let workers = match kind {
        "threads" => Workers::Threads(count),
        "processes" => {
            let (program, volume) = (std::env::current_exe()?, volume.to_owned());
            let name = location.to_string();
            Workers::Processes(ProcessWorkers::new(count, move || {
                let mut command = Command::new(&program);
                command.args(["worker", &volume, &name]);
                command
            }))
        }
        other => return Err(format!("{other} is no case").into()),
    };
    let options = DownloadOptions::new().workers(workers).order(order);
    let before = faults();
    let start = Instant::now();
    let done = download_to_shared_memory(source, &source.meta().domain(), &location, &options)?;
    let seconds = start.elapsed().as_secs_f64();
    let answer = report(&done, seconds, faults().saturating_sub(before));
    unlink(&location)?;
    Ok(answer)
}

/// Uploads an array into a new volume of JPEG chunks in memory, so that no disk is measured.
fn upload(meta: &VolumeMeta, location: &Location, order: Order, threads: usize) -> Outcome<Value> {
    let directory = tempfile::tempdir_in("/dev/shm")?;
    let mut new = NewVolume::new(VolumeFormat::Precomputed, &meta.shape, &meta.chunk_shape, meta.dtype);
    new.encoding = Encoding::Jpeg;
    new.origin.clone_from(&meta.origin);
    let sink = create_volume(VolumeUrl::local(directory.path()), &new)?;
    let options = UploadOptions::new().order(order).workers(threads);
    let start = Instant::now();
    let done = upload_from_shared_memory(&*sink, &sink.meta().domain(), location, &options)?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(json!({"seconds": seconds, "bytes": done.bytes, "total": done.stored_bytes, "peak": peak()}))
}

fn report(done: &Downloaded, seconds: f64, faults: u64) -> Value {
    let spent = done.spent;
    let seconds_of = |time: Duration| time.as_secs_f64();
    json!({
        "seconds": seconds, "bytes": done.bytes, "chunks": done.chunks, "painted": done.painted, "faults": faults,
        "peak": peak(), "warnings": done.warnings,
        "spent": {
            "making": seconds_of(spent.making), "claiming": seconds_of(spent.claiming),
            "fetching": seconds_of(spent.fetching), "decoding": seconds_of(spent.decoding),
            "copying": seconds_of(spent.copying), "waiting": seconds_of(spent.waiting),
        },
    })
}

/// Returns the peak memory of this process in bytes, including mapped shared memory.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Returns the number of page faults of this process so far.
fn faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    fields.split_whitespace().nth(7).and_then(|count| count.parse().ok()).unwrap_or_default()
}

fn worker(volume: &str, location: &str) -> Outcome<()> {
    let stop = StopFlag::new();
    stop.stop_when_stdin_ends();
    let source = open_volume(&volume.parse::<VolumeUrl>()?)?;
    paint_as_worker(&*source, default_directory()?, &location.parse()?, &stop)?;
    Ok(())
}

/// A volume of many tiny chunks that takes no time to read, and records when each tenth of them began.
#[derive(Debug)]
struct Tiny {
    meta: VolumeMeta,
    tenths: Mutex<(usize, Vec<Instant>)>,
}

impl ChunkSource for Tiny {
    fn meta(&self) -> &VolumeMeta {
        &self.meta
    }
    fn identity(&self) -> String {
        "tiny chunks".to_owned()
    }
    fn decode(&self, _region: &[Range<i64>], _fetched: Fetched, scratch: &mut Scratch) -> VolumeResult<()> {
        let mut tenths = self.tenths.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if tenths.0.is_multiple_of(TINY / 10) {
            tenths.1.push(Instant::now());
        }
        tenths.0 += 1;
        drop(tenths);
        let shape: Vec<usize> =
            self.meta.chunk_shape.iter().map(|length| usize::try_from(*length).unwrap_or(usize::MAX)).collect();
        let mut bytes = scratch.take_memory();
        bytes.resize(shape.iter().product(), 1);
        let window = shape.iter().map(|length| 0..*length).collect();
        scratch.block(bytes, shape, Order::C, window);
        Ok(())
    }
}

const TINY: usize = 100_000;

fn tiny(edge: u64) -> Outcome<()> {
    for round in 0..3 {
        let meta = VolumeMeta::new(&[40 * edge, 50 * edge, 50 * edge], &[edge; 3], DType::U8);
        let source = Tiny { meta, tenths: Mutex::new((0, Vec::new())) };
        let location: Location = format!("bench-tiny-{}", std::process::id()).parse()?;
        let options = DownloadOptions::new().workers(Workers::Threads(2));
        let before = peak();
        let done = download_to_shared_memory(&source, &source.meta.domain(), &location, &options)?;
        let end = Instant::now();
        unlink(&location)?;
        let mut tenths = source.tenths.into_inner()?.1;
        tenths.push(end);
        let rate = |at: usize| (TINY / 10) as f64 / tenths[at + 1].duration_since(tenths[at]).as_secs_f64();
        println!(
            "{TINY} chunks of {edge}^3, round {round}: {:.0} chunks/s in the first tenth, {:.0} in the last ({:.2} times); array {} \
             KiB, peak {} KiB, before {} KiB; {:?}",
            rate(0),
            rate(9),
            rate(9) / rate(0),
            done.bytes >> 10,
            peak().unwrap_or_default() >> 10,
            before.unwrap_or_default() >> 10,
            done.spent,
        );
    }
    Ok(())
}
