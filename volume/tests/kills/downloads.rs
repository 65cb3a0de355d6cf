//! Downloads that are killed midway: the same command, run again, fetches and paints only the rest.
//!
//! This binary is also the command: with [`COMMAND`] in the environment it downloads instead of running tests.

use std::collections::HashMap;
use std::fs;
use std::io::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use ndarray::Ix3;
use ndarray_shm::backend::EntryKind;
use ndarray_shm::{DType, Directory, Location, OpenOptions, render};
use ndarray_shm_volume::demo::{DemoSpec, Pattern};
use ndarray_shm_volume::{
    ChunkSource, DownloadOptions, Fetched, ProcessWorkers, Result, Scratch, StopFlag, VolumeMeta, VolumeUrl, Workers,
    download_to_shared_memory, open_volume, paint_as_worker,
};

use crate::place::Place;

/// Makes this process a command. `threads`, `remote` and `processes` download; `worker` is what `processes` starts.
const COMMAND: &str = "KILL_TEST_COMMAND";
/// The volume's path.
const VOLUME: &str = "KILL_TEST_VOLUME";
/// The array's location.
const LOCATION: &str = "KILL_TEST_LOCATION";
/// The file that logs every fetch.
const LOG: &str = "KILL_TEST_LOG";
/// Makes the command stop fetching at three quarters and wait to be killed.
const HELD: &str = "KILL_TEST_HELD";

/// Requests at a time of the remote volume.
const REQUESTS: usize = 6;
/// Threads or processes that decode.
const WORKERS: usize = 2;

pub(crate) fn main() -> ExitCode {
    if let Ok(command) = std::env::var(COMMAND) {
        return match run(&command) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    let trial = |name: &str, command: &'static str| {
        Trial::test(name, move || {
            killed_in_the_middle(command);
            Ok::<(), Failed>(())
        })
    };
    let tests = vec![
        trial("killed_download_by_threads_is_resumed", "threads"),
        trial("killed_remote_download_fetches_only_the_rest", "remote"),
        trial("killed_download_by_processes_is_resumed", "processes"),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

/// A slow volume that logs every fetch before it begins.
#[derive(Debug)]
struct Noting {
    volume: Box<dyn ChunkSource>,
    is_remote: bool,
    log: fs::File,
    /// Backend and location of an array: fetches for it stop when three quarters of its chunks are painted.
    held: Option<(Directory, Location)>,
}

impl ChunkSource for Noting {
    fn meta(&self) -> &VolumeMeta {
        self.volume.meta()
    }
    fn identity(&self) -> String {
        self.volume.identity()
    }
    fn is_remote(&self) -> bool {
        self.is_remote
    }
    fn fetch(&self, region: &[Range<i64>]) -> Result<Fetched> {
        // One write of a short line to a file that is open for appending: lines of several processes do not mix.
        (&self.log).write_all(format!("{region:?}\n").as_bytes()).expect("the log");
        std::thread::sleep(Duration::from_millis(4));
        while let Some((backend, location)) = &self.held {
            if render::ledger(backend, location).is_ok_and(|ledger| ledger.done < CHUNKS / 4 * 3) {
                break;
            }
            std::thread::sleep(Duration::from_millis(4));
        }
        self.volume.fetch(region)
    }
    fn decode(&self, region: &[Range<i64>], fetched: Fetched, scratch: &mut Scratch) -> Result<()> {
        self.volume.decode(region, fetched, scratch)
    }
}

fn variable(name: &str) -> PathBuf {
    std::env::var_os(name).unwrap_or_else(|| panic!("{name} is not set")).into()
}

fn run(command: &str) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let location: Location = std::env::var(LOCATION)?.parse()?;
    let backend = Directory::shm()?;
    let held = std::env::var_os(HELD).map(|_| (backend.clone(), location.clone()));
    let source = Noting {
        volume: open_volume(VolumeUrl::local(variable(VOLUME)))?,
        is_remote: command == "remote",
        log: fs::OpenOptions::new().append(true).create(true).open(variable(LOG))?,
        held,
    };
    if command == "worker" {
        let stop = StopFlag::new();
        stop.stop_when_stdin_ends();
        paint_as_worker(&source, backend, &location, &stop)?;
        return Ok(());
    }
    let workers = if command == "processes" {
        Workers::Processes(ProcessWorkers::new(WORKERS, || {
            let mut command = Command::new(std::env::current_exe().expect("this binary"));
            command.env(COMMAND, "worker");
            command
        }))
    } else {
        Workers::Threads(WORKERS)
    };
    let options = DownloadOptions::new().directory(backend).workers(workers).requests(REQUESTS);
    let done = download_to_shared_memory(&source, &source.meta().domain(), &location, &options)?;
    println!("painted {} resumed {} of {}", done.painted, done.resumed, done.chunks);
    Ok(())
}

fn spec() -> DemoSpec {
    DemoSpec::new(&[48, 40, 64], &[8, 8, 8], DType::U8).pattern(Pattern::Noise).complete(true)
}

const CHUNKS: usize = 6 * 5 * 8;

fn killed_in_the_middle(command: &str) {
    let place = Place::in_shared_memory();
    place.volume(&spec());
    let log = place.path("log");

    let mut child = start(&place, command, &log, true);
    let begin = Instant::now();
    loop {
        let done = render::ledger(&place.backend, &place.location).map_or(0, |ledger| ledger.done);
        if done >= CHUNKS / 2 {
            break;
        }
        assert!(child.0.try_wait().expect("its state").is_none(), "it ended too early");
        assert!(begin.elapsed() < Duration::from_mins(1), "{done} chunks after a minute");
        std::thread::sleep(Duration::from_millis(2));
    }
    let group = format!("-{}", child.0.id());
    assert!(Command::new("kill").args(["-9", "--", &group]).status().expect("kill").success());
    assert!(!child.0.wait().expect("its end").success());
    wait_until_painting_stops(&place);
    assert_eq!(place.left(), [EntryKind::Ledger, EntryKind::Partial]);
    let kept = render::ledger(&place.backend, &place.location).expect("the ledger").done;
    assert!((CHUNKS / 2..CHUNKS).contains(&kept), "{kept} of {CHUNKS}");

    let again = start(&place, command, &log, false);
    let said = again.said();
    assert_eq!(said, format!("painted {} resumed {kept} of {CHUNKS}\n", CHUNKS - kept));
    let array = OpenOptions::new().directory(place.backend.clone()).open::<u8, Ix3>(&place.location, (48, 40, 64));
    let expected = spec().expected::<u8>(&ndarray_shm_volume::Bbox::whole(&[48, 40, 64])).expect("all of it");
    assert!(array.expect("the array").read().expect("a guard").view().into_dyn() == expected);
    assert_eq!(place.left(), [EntryKind::Array]);

    let mut fetched: HashMap<String, usize> = HashMap::new();
    for line in fs::read_to_string(&log).expect("the log").lines() {
        *fetched.entry(line.to_owned()).or_default() += 1;
    }
    assert_eq!(fetched.len(), CHUNKS);
    assert!(fetched.values().all(|count| *count <= 2), "nothing is fetched three times");
    let twice = fetched.values().filter(|count| **count == 2).count();
    // Chunks in progress at the kill: one per fetching thread, those in the queue, and one per decoding thread.
    let under_way = if command == "remote" { REQUESTS + 2 * WORKERS } else { WORKERS };
    assert!(twice <= under_way, "{twice} chunks were fetched twice");
}

fn wait_until_painting_stops(place: &Place) {
    let begin = Instant::now();
    let mut before = None;
    loop {
        let done = render::ledger(&place.backend, &place.location).expect("the ledger").done;
        if before == Some(done) && begin.elapsed() > Duration::from_millis(200) {
            return;
        }
        assert!(begin.elapsed() < Duration::from_mins(1), "a painter is still alive");
        before = Some(done);
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A child that does not outlive its test.
struct Guarded(Child);

impl Guarded {
    /// Waits until the process ends, and returns its standard output.
    fn said(mut self) -> String {
        let mut said = String::new();
        let mut stdout = self.0.stdout.take().expect("its standard output");
        std::io::Read::read_to_string(&mut stdout, &mut said).expect("text");
        assert!(self.0.wait().expect("its end").success());
        said
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(place: &Place, what: &str, log: &Path, held: bool) -> Guarded {
    use std::os::unix::process::CommandExt as _;

    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command
        .env(COMMAND, what)
        .env(VOLUME, place.path("volume"))
        .env(LOCATION, place.location.as_str())
        .env(LOG, log)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0);
    if held {
        command.env(HELD, "");
    }
    Guarded(command.spawn().expect("this binary"))
}
