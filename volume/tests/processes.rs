//! Downloads by worker processes, some of which are killed, fail, or never start.
//!
//! This binary is also the worker: with [`WORKER`] in the environment it joins a download instead of running tests. A
//! `marked` worker locks a file of its own; the lock tells a test whether the worker still runs. A `held` worker does
//! so too, paints one chunk, and continues when it is told to stop.

mod place;
#[path = "../../tests/it/support/start.rs"]
mod start;

use std::fs;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use ndarray::{Ix3, IxDyn};
use ndarray_shm::backend::EntryKind;
use ndarray_shm::render::{self, RenderOptions};
use ndarray_shm::{DType, Directory, Location, NextClaim, Order};
use ndarray_shm_volume::demo::{Codec, DemoSpec};
use ndarray_shm_volume::{
    Bbox, ChunkSource, Error, Fetched, ProcessWorkers, Result, Scratch, StopFlag, VolumeMeta, VolumeUrl, Workers,
    open_volume, paint_as_worker,
};

use self::place::{Place, corrupt};
use self::start::start;

/// Makes this process a worker. The value names what it does at its chunk number [`CHUNK`].
const WORKER: &str = "VOLUME_TEST_WORKER";
/// A chunk's number, counted from 1 by each worker; 0 means never.
const CHUNK: &str = "VOLUME_TEST_CHUNK";
/// The volume's path.
const VOLUME: &str = "VOLUME_TEST_VOLUME";
/// The directory of the arrays.
const ARRAYS: &str = "VOLUME_TEST_ARRAYS";
/// The array's location.
const LOCATION: &str = "VOLUME_TEST_LOCATION";
/// A directory. The worker that creates it is killed; or every marked worker has a file in it. Of workers that die
/// untold, a file.
const MARK: &str = "VOLUME_TEST_MARK";

fn main() -> ExitCode {
    if let Ok(behaviour) = std::env::var(WORKER) {
        return worker(&behaviour);
    }
    let trial = |name: &str, test: fn()| {
        Trial::test(name, move || {
            test();
            Ok::<(), Failed>(())
        })
    };
    let tests = vec![
        trial("worker_processes_paint_the_same_as_threads", worker_processes_paint_the_same_as_threads),
        #[cfg(target_os = "linux")]
        trial("worker_processes_paint_real_shared_memory", worker_processes_paint_real_shared_memory),
        trial("killed_worker_is_only_a_warning", killed_worker_is_only_a_warning),
        trial("killed_workers_unreported_chunk_is_counted", killed_workers_unreported_chunk_is_counted),
        trial("same_call_resumes_after_all_workers_are_killed", same_call_resumes_after_all_workers_are_killed),
        trial("download_fails_if_no_worker_starts", download_fails_if_no_worker_starts),
        trial("worker_that_does_not_start_is_a_warning", worker_that_does_not_start_is_a_warning),
        trial("workers_that_give_up_are_quoted", workers_that_give_up_are_quoted),
        trial("program_other_than_a_worker_is_an_error", program_other_than_a_worker_is_an_error),
        trial("broken_chunk_is_named_in_the_error", broken_chunk_is_named_in_the_error),
        trial("stopped_download_leaves_no_process_or_file", stopped_download_leaves_no_process_or_file),
        trial("a_worker_ends_when_its_parent_is_gone", a_worker_ends_when_its_parent_is_gone),
        trial("a_worker_for_another_volume_refuses", a_worker_for_another_volume_refuses),
        trial("no_more_workers_start_than_chunks", no_more_workers_start_than_chunks),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

/// A volume that misbehaves at the given number of decoded chunks.
#[derive(Debug)]
struct Unusual {
    volume: Box<dyn ChunkSource>,
    behaviour: String,
    chunk: usize,
    count: std::sync::atomic::AtomicUsize,
    stop: StopFlag,
}

impl ChunkSource for Unusual {
    fn meta(&self) -> &VolumeMeta {
        self.volume.meta()
    }

    fn identity(&self) -> String {
        self.volume.identity()
    }

    fn decode(&self, region: &[Range<i64>], fetched: Fetched, scratch: &mut Scratch) -> Result<()> {
        let count = 1 + self.count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if count == self.chunk {
            match self.behaviour.as_str() {
                "die" => kill_myself(),
                "die-once" if fs::create_dir(variable(MARK)).is_ok() => kill_myself(),
                "give-up" => {
                    eprintln!("first a line\nI have had enough");
                    std::process::exit(3);
                }
                _ => {}
            }
        }
        if self.behaviour == "held" && count > 1 {
            until("the worker is told to stop", || self.stop.is_stopped());
        }
        self.volume.decode(region, fetched, scratch)
    }
}

/// Kills this process: by SIGKILL, or by an abort where there are no signals.
fn kill_myself() {
    if cfg!(not(unix)) {
        std::process::abort();
    }
    let killed = Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
    panic!("still alive after kill: {killed:?}");
}

/// The text of the exit status of a worker that killed itself.
const KILLED: &str = if cfg!(unix) { "signal: 9" } else { "exit code: 0xc0000409" };

fn variable(name: &str) -> PathBuf {
    std::env::var_os(name).unwrap_or_else(|| panic!("{name} is not set")).into()
}

fn worker(behaviour: &str) -> ExitCode {
    let stop = StopFlag::new();
    stop.stop_when_stdin_ends();
    let _mark = matches!(behaviour, "marked" | "held").then(|| {
        let mark = fs::File::create_new(variable(MARK).join(std::process::id().to_string())).expect("a new mark file");
        mark.try_lock().expect("the lock of a new file");
        mark
    });
    let volume = match open_volume(VolumeUrl::local(variable(VOLUME))) {
        Ok(volume) => volume,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let chunk = std::env::var(CHUNK).expect("a number").parse().expect("a number");
    let source = Unusual { volume, behaviour: behaviour.to_owned(), chunk, count: 0.into(), stop: stop.clone() };
    let backend = Directory::new("test", variable(ARRAYS));
    let location = std::env::var(LOCATION).expect("a location").parse().expect("a location");
    if behaviour == "die-untold" {
        // The first worker dies with this lock. The others wait for it, so that chunks are left when it dies.
        let mark = fs::OpenOptions::new().read(true).append(true).create(true).open(variable(MARK)).expect("the mark");
        mark.lock().expect("the lock of the mark");
        if mark.metadata().expect("the mark").len() == 0 {
            (&mark).write_all(b"first").expect("the mark");
            paint_one_and_die(&backend, &location);
        }
    }
    match paint_as_worker(&source, backend, &location, &stop) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Dies after it has finished its first chunk and before it reports the chunk.
fn paint_one_and_die(backend: &Directory, location: &Location) {
    let buffer = RenderOptions::new().directory(backend.clone() as _).open::<u16, IxDyn>(location).expect("the buffer");
    let NextClaim::Chunk(mut claim) = buffer.claim_next().expect("a claim") else { panic!("no chunk is left") };
    let whole = region();
    let moved = claim.region().iter().zip(whole.ranges()).map(|(range, origin)| {
        origin.start + i64::try_from(range.start).expect("small")
            ..origin.start + i64::try_from(range.end).expect("small")
    });
    let here = Bbox::new(moved.collect()).expect("a region");
    claim.view_mut().assign(&spec().expected::<u16>(&here).expect("inside"));
    claim.commit().expect("finished");
    kill_myself();
}

fn command(place: &Place, behaviour: &str, chunk: usize) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command
        .env(WORKER, behaviour)
        .env(CHUNK, chunk.to_string())
        .env(VOLUME, place.path("volume"))
        .env(ARRAYS, place.backend.path())
        .env(LOCATION, place.location.as_str())
        .env(MARK, place.path("mark"));
    command
}

/// Returns workers with this behaviour at their `chunk`th chunk.
fn workers(place: &Place, count: usize, behaviour: &str, chunk: usize) -> Workers {
    let (directory, backend, location) =
        (place.path("volume"), place.backend.path().to_owned(), place.location.clone());
    let (behaviour, mark) = (behaviour.to_owned(), place.path("mark"));
    Workers::Processes(ProcessWorkers::new(count, move || {
        let mut command = Command::new(std::env::current_exe().expect("this binary"));
        command
            .env(WORKER, &behaviour)
            .env(CHUNK, chunk.to_string())
            .env(VOLUME, &directory)
            .env(ARRAYS, &backend)
            .env(LOCATION, location.as_str())
            .env(MARK, &mark);
        command
    }))
}

fn spec() -> DemoSpec {
    DemoSpec::new(&[40, 40, 30], &[16, 16, 16], DType::U16).codec(Codec::Blosc)
}

fn region() -> Bbox {
    "1:40,0:40,3:30".parse().expect("a region")
}

/// Chunks that the region touches.
const CHUNKS: usize = 3 * 3 * 2;

const PARTIAL: [EntryKind; 2] = [EntryKind::Ledger, EntryKind::Partial];

fn check(place: &Place, done: &ndarray_shm_volume::Downloaded) {
    let array = done.open::<u16, Ix3>().expect("the array");
    let expected = spec().expected::<u16>(&region()).expect("the region");
    assert_eq!(array.read().expect("a guard").view().into_dyn(), expected);
    assert_eq!(place.left(), [EntryKind::Array]);
}

/// The warnings, without those of workers that Wine failed to start, which it does now and then (see
/// `support/start.rs`). The others did their work.
fn warnings(done: &ndarray_shm_volume::Downloaded) -> Vec<&str> {
    let is_of_wine =
        |warning: &str| cfg!(windows) && warning.contains("could not be started") && warning.contains("os error 1359");
    done.warnings.iter().map(String::as_str).filter(|warning| !is_of_wine(warning)).collect()
}

fn worker_processes_paint_the_same_as_threads() {
    for order in [Order::C, Order::F] {
        let place = Place::new();
        let volume = place.volume(&spec());
        let options = place.options().order(order).workers(workers(&place, 3, "usual", 0));
        let done = place.download(&*volume, &region(), &options).expect("a download");
        assert_eq!((done.chunks, done.painted, done.resumed, done.order), (CHUNKS, CHUNKS, 0, order));
        assert_eq!(warnings(&done), [""; 0]);
        check(&place, &done);
    }
}

#[cfg(target_os = "linux")]
fn worker_processes_paint_real_shared_memory() {
    let place = Place::in_shared_memory();
    let volume = place.volume(&spec());
    let options = place.options().workers(workers(&place, 2, "usual", 0));
    check(&place, &place.download(&*volume, &region(), &options).expect("a download"));
}

fn killed_worker_is_only_a_warning() {
    for chunk in [1, 2, 3] {
        let place = Place::new();
        let volume = place.volume(&spec());
        let options = place.options().workers(workers(&place, 4, "die-once", chunk));
        let done = place.download(&*volume, &region(), &options).expect("the other workers finish");
        assert_eq!((done.painted, done.chunks), (CHUNKS, CHUNKS));
        // No worker is killed if none reaches its `chunk`th chunk.
        let killed = usize::from(place.path("mark").exists());
        let warnings = warnings(&done);
        assert_eq!(warnings.len(), killed, "{warnings:?}");
        assert!(warnings.iter().all(|warning| warning.contains(KILLED)), "{warnings:?}");
        assert!(chunk > 1 || killed == 1, "some worker decoded a first chunk");
        check(&place, &done);
    }
}

fn killed_workers_unreported_chunk_is_counted() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let options = place.options().workers(workers(&place, 2, "die-untold", 0));
    let done = place.download(&*volume, &region(), &options).expect("the other worker finishes");
    assert_eq!((done.painted, done.chunks), (CHUNKS, CHUNKS));
    assert_eq!(warnings(&done).len(), 1, "{:?}", done.warnings);
    check(&place, &done);
}

fn same_call_resumes_after_all_workers_are_killed() {
    for place in Place::of_each_kind() {
        let volume = place.volume(&spec());
        let options = place.options().workers(workers(&place, 3, "die", 4));
        let error = place.download(&*volume, &region(), &options).expect_err("no worker is left");
        let Error::Worker { report, done, total: CHUNKS } = &error else { panic!("{error}") };
        assert_eq!(*done, 9, "three chunks each: {report}");
        assert_eq!(report.matches(KILLED).count(), 3, "{report}");
        assert_eq!(place.left(), PARTIAL);

        let options = place.options().workers(workers(&place, 3, "usual", 0));
        let done = place.download(&*volume, &region(), &options).expect("the rest");
        assert_eq!((done.resumed, done.painted), (9, CHUNKS - 9));
        check(&place, &done);
    }
}

fn download_fails_if_no_worker_starts() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let none = ProcessWorkers::new(2, || Command::new("/nowhere/a-worker"));
    let options = place.options().workers(Workers::Processes(none));
    let error = place.download(&*volume, &region(), &options).expect_err("no worker");
    let Error::Painting { report, done: 0, total: CHUNKS } = &error else { panic!("{error}") };
    assert!(report.contains("worker 1 could not be started") && report.contains("worker 2"), "{report}");
    assert_eq!(place.left(), []);
}

fn worker_that_does_not_start_is_a_warning() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let first = std::sync::atomic::AtomicBool::new(true);
    let (directory, backend, location) =
        (place.path("volume"), place.backend.path().to_owned(), place.location.clone());
    let some = ProcessWorkers::new(2, move || {
        if first.swap(false, std::sync::atomic::Ordering::Relaxed) {
            return Command::new("/nowhere/a-worker");
        }
        let mut command = Command::new(std::env::current_exe().expect("this binary"));
        command.env(WORKER, "usual").env(CHUNK, "0").env(VOLUME, &directory).env(ARRAYS, &backend);
        command.env(LOCATION, location.as_str());
        command
    });
    let options = place.options().workers(Workers::Processes(some));
    let done = place.download(&*volume, &region(), &options).expect("the other worker paints");
    assert_eq!(done.warnings.len(), 1, "{:?}", done.warnings);
    check(&place, &done);
}

fn workers_that_give_up_are_quoted() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let options = place.options().workers(workers(&place, 2, "give-up", 2));
    let error = place.download(&*volume, &region(), &options).expect_err("both give up");
    let Error::Worker { report, done: 2, .. } = &error else { panic!("{error}") };
    // "exit status: 3" or "exit code: 3", as the platform calls it.
    assert!(report.contains(": 3)") && report.contains("first a line / I have had enough"), "{report}");
    assert_eq!(place.left(), PARTIAL, "nothing is wrong with the volume");
}

fn program_other_than_a_worker_is_an_error() {
    // With `--list` this program succeeds, with an unknown argument it fails.
    for argument in ["--list", "--paint"] {
        let place = Place::new();
        let volume = place.volume(&spec());
        let strangers = ProcessWorkers::new(2, move || {
            let mut command = Command::new(std::env::current_exe().expect("this binary"));
            command.arg(argument);
            command
        });
        let options = place.options().workers(Workers::Processes(strangers));
        let error = place.download(&*volume, &region(), &options).expect_err("nothing was painted");
        assert!(matches!(error, Error::Painting { done: 0, .. }), "{error}");
        assert_eq!(place.left(), []);
    }
}

fn broken_chunk_is_named_in_the_error() {
    let place = Place::new();
    let volume = place.volume(&spec().codec(Codec::Zstd).complete(true));
    let chunk = place.path("volume/c/1/1/0");
    corrupt(&chunk);
    let options = place.options().workers(workers(&place, 3, "usual", 0));
    let error = place.download(&*volume, &region(), &options).expect_err("a broken chunk");
    let Error::Chunk { chunk: named, .. } = &error else { panic!("{error}") };
    assert_eq!(dunce::canonicalize(chunk).expect("the chunk"), Path::new(named));
    assert_eq!(place.left(), []);
}

fn stopped_download_leaves_no_process_or_file() {
    for keep in [false, true] {
        let place = Place::new();
        let volume = place.volume(&spec());
        fs::create_dir(place.path("mark")).expect("a directory");
        let stop = StopFlag::new();
        let raised = stop.clone();
        let options = place.options().workers(workers(&place, 2, "held", 0)).stop(&stop).keep_partial(keep);
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                // Stops only when there is something that could be left behind.
                until("a chunk is painted", || {
                    render::ledger(&place.backend, &place.location).is_ok_and(|ledger| ledger.done > 0)
                });
                raised.stop();
            });
            place.download(&*volume, &region(), &options).expect_err("it was stopped")
        });
        let Error::Interrupted { done, total: CHUNKS } = error else { panic!("{error}") };
        assert!((1..=4).contains(&done), "two chunks each: {done}");
        assert_eq!(place.left(), if keep { PARTIAL.as_slice() } else { &[] });
        let marks: Vec<PathBuf> = fs::read_dir(place.path("mark"))
            .expect("the marks")
            .map(|entry| entry.expect("a worker's file").path())
            .collect();
        assert!(!marks.is_empty(), "chunks were painted");
        for mark in marks {
            let lock = fs::File::open(&mark).expect("a worker's file").try_lock();
            assert!(lock.is_ok(), "the worker of {} is still there", mark.display());
        }
    }
}

fn a_worker_ends_when_its_parent_is_gone() {
    let place = Place::new();
    let volume = place.volume(&spec());
    fs::create_dir(place.path("mark")).expect("a directory");
    // A download that is stopped at once leaves a new buffer and the line in its ledger.
    let stop = StopFlag::new();
    stop.stop();
    let options = place.options().stop(&stop).keep_partial(true);
    place.download(&*volume, &region(), &options).expect_err("it was stopped");
    let buffer =
        RenderOptions::new().directory(place.backend.clone()).open::<u16, Ix3>(&place.location).expect("the buffer");

    let mut worker = command(&place, "held", 0);
    let mut child = Guarded(start(worker.stdin(Stdio::piped()).stderr(Stdio::null())).expect("a worker"));
    until("a chunk is painted", || buffer.progress().done > 0);
    // The parent's end of the pipe closes, as it does when the parent dies.
    drop(child.0.stdin.take());
    until("the worker has ended", || child.0.try_wait().expect("its state").is_some());
    assert!(!buffer.progress().is_complete(), "it ended before the work did");
}

fn a_worker_for_another_volume_refuses() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let stop = StopFlag::new();
    stop.stop();
    place.download(&*volume, &region(), &place.options().stop(&stop).keep_partial(true)).expect_err("it was stopped");
    fs::remove_dir_all(place.path("volume")).expect("the volume");
    place.volume(&spec().complete(true));
    let mut worker = command(&place, "usual", 0);
    let worker = start(worker.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped())).expect("a worker");
    let output = worker.wait_with_output().expect("its end");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("being painted with another volume"), "{said}");
}

fn no_more_workers_start_than_chunks() {
    let place = Place::new();
    let volume = place.volume(&spec());
    fs::create_dir(place.path("mark")).expect("a directory");
    let options = place.options().workers(workers(&place, 50, "marked", 0));
    let bbox: Bbox = "0:16,0:20,0:16".parse().expect("a region of two chunks");
    let done = place.download(&*volume, &bbox, &options).expect("a download");
    assert_eq!((done.painted, done.chunks), (2, 2));
    let started = fs::read_dir(place.path("mark")).expect("the marks").count();
    assert!(started <= 2, "{started} workers for two chunks");
}

/// Waits for a condition, but at most two minutes.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_mins(2), "timed out waiting: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A child that does not outlive its test.
struct Guarded(Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
