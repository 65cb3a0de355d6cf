//! Uploads by several processes, some of which are killed.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

use ndarray::{ArrayD, IxDyn};
use ndarray_shm::{CreateOptions, DType, Directory};
use ndarray_shm_volume::{
    Alignment, Bbox, ChunkSource as _, DownloadProgress, Progress, StopFlag, UploadOptions, VolumeMeta,
    upload_from_array, upload_from_shared_memory,
};

use crate::place::Place;
use crate::raw::Raw;
use crate::start::start;

/// The role that the process plays.
pub(crate) const ROLE: &str = "UPLOAD_TEST_ROLE";
pub(crate) const VOLUME: &str = "UPLOAD_TEST_VOLUME";
pub(crate) const ARRAYS: &str = "UPLOAD_TEST_ARRAYS";
pub(crate) const LOCATION: &str = "UPLOAD_TEST_LOCATION";
/// How many objects the process stores before it waits to be killed.
pub(crate) const HELD: &str = "UPLOAD_TEST_HELD";

/// Gives the volume another identity in this process, so that its locks are different ones.
const ALONE: &str = "UPLOAD_TEST_ALONE";

/// Rounds of two processes that change the same objects.
const ROUNDS: u16 = 60;

/// The longest time that a test waits for an event.
const LONG: Duration = Duration::from_mins(1);

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

/// Limits the stored objects to the number in the environment, if there is one.
pub(crate) fn hold(raw: &mut Raw) {
    if let Ok(count) = std::env::var(HELD) {
        raw.held = Some((count.parse().expect("a number"), StopFlag::new()));
    }
}

/// Plays the role in the environment, if there is one.
pub(crate) fn role() -> Option<ExitCode> {
    let role = std::env::var(ROLE).ok()?;
    let lost = match role.as_str() {
        "upload" => upload_slowly(),
        "left" | "right" => change_half(role == "left"),
        #[cfg(feature = "s3")]
        "s3" => {
            crate::s3::write_parts();
            0
        }
        "task" => {
            let (volume, arrays) = (variable(VOLUME), variable(ARRAYS));
            return Some(ExitCode::from(crate::parts::task(
                Path::new(&volume),
                Path::new(&arrays),
                &variable(LOCATION),
            )));
        }
        "change" => upload_value(CHANGED, "0:2,0:32", true),
        "whole" => upload_value(WHOLE, "0:2,0:64", false),
        _ => panic!("unknown role {role}"),
    };
    Some(if lost == 0 { ExitCode::SUCCESS } else { ExitCode::from(9) })
}

fn actor(role: &str, place: &Place) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .env(ROLE, role)
        .env(VOLUME, place.path("volume"))
        .env(ARRAYS, place.backend.path())
        .env(LOCATION, place.location.as_str());
    command
}

fn play(role: &str, place: &Place) -> Child {
    start(&mut actor(role, place)).expect("a process")
}

/// Opens a volume in which each object lies half in the left and half in the right region.
fn halves(directory: &Path) -> Raw {
    let mut meta = VolumeMeta::new(&[8, 64], &[2, 64], DType::U16);
    meta.fill = Some(vec![0, 0]);
    let mut raw = Raw::new(directory, meta);
    // The delay between reading an object and storing it is the time in which another process's write could get lost.
    raw.delay = Duration::from_millis(1);
    raw
}

/// Writes its half of every object repeatedly, and returns how often the half was lost afterwards.
fn change_half(left: bool) -> usize {
    let raw = halves(Path::new(&variable(VOLUME)));
    let half: Bbox = if left { "0:8,0:32" } else { "0:8,32:64" }.parse().expect("a box");
    let options = UploadOptions::new().alignment(Alignment::ReadModifyWrite).workers(2);
    // Neither process begins before the other has started.
    let here = |left: bool| format!("{}-{left}", variable(VOLUME));
    std::fs::write(here(left), []).expect("a file");
    let since = Instant::now();
    while !Path::new(&here(!left)).exists() {
        assert!(since.elapsed() < LONG, "the other process does not start");
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut lost = 0;
    for round in 1..=ROUNDS {
        let array = ArrayD::from_elem(IxDyn(&[8, 32]), round);
        upload_from_array(&raw, &half, &array.view(), &options).expect("an upload");
        lost += usize::from(raw.read_all::<u16>(&half, 0) != array);
    }
    lost
}

/// Returns the number of lock files that a volume has.
fn locks(raw: &Raw) -> usize {
    let name = format!("ndshm-write-{:08x}", crc32fast::hash(raw.identity().as_bytes()));
    let place = Directory::shm().or_else(|_| Directory::emulated()).expect("the directory of locks");
    place.list().expect("its files").iter().filter(|entry| entry.name == name).count()
}

pub(crate) fn processes_writing_halves_of_objects_lose_nothing() {
    let place = Place::new();
    let mut children = [play("left", &place), play("right", &place)];
    assert!(children.each_mut().map(|child| child.wait().expect("its end").success()) == [true; 2]);
    let raw = halves(&place.path("volume"));
    let last = raw.read_all::<u16>(&raw.meta.domain(), 0);
    assert!(last.iter().all(|element| *element == ROUNDS), "{last}");
    assert_eq!(locks(&raw), 0);
}

/// Shows that the test above can fail. One process, with other locks, stores an object while another process is between
/// reading and storing the same object: the first process's elements are lost.
pub(crate) fn without_a_common_lock_elements_are_lost() {
    let place = Place::new();
    let raw = halves(&place.path("volume"));
    let (mut change, gate) = changing(&place);
    assert!(start(actor("whole", &place).env(ALONE, "")).expect("a process").wait().expect("its end").success());
    std::fs::remove_file(gate).expect("the gate");
    assert!(change.wait().expect("its end").success());
    let found = raw.read_all::<u16>(&"0:2,0:64".parse().expect("a box"), 0);
    assert!(found.iter().any(|element| *element != WHOLE), "nothing was lost: {found}");
    assert_eq!(locks(&raw), 0);
}

/// The value of the process that changes part of an object.
const CHANGED: u16 = 5;
/// The value of the process that stores whole objects.
const WHOLE: u16 = 7;

/// After this many progress reports the upload is taken to be waiting.
const TOLD: u64 = 4;

/// Counts the progress reports in a file, which shows another process that the upload is waiting.
struct Told(PathBuf);

impl Progress for Told {
    fn update(&self, _progress: DownloadProgress) {
        let mut file = File::options().append(true).create(true).open(&self.0).expect("a file");
        file.write_all(b".").expect("a note");
    }
}

/// Fills a region, which lies in one object, with a value.
fn upload_value(value: u16, region: &str, at_gate: bool) -> usize {
    let directory = PathBuf::from(variable(VOLUME));
    let mut raw = halves(&directory);
    if std::env::var_os(ALONE).is_some() {
        raw.suffix.push_str("alone");
    }
    raw.gate = at_gate.then(|| directory.join("new/gate"));
    let region: Bbox = region.parse().expect("a box");
    let array = ArrayD::from_elem(IxDyn(&region.shape()), value);
    let told = Told(directory.join(format!("new/told-{value}")));
    let options = UploadOptions::new().alignment(Alignment::ReadModifyWrite).workers(1).progress(&told);
    upload_from_array(&raw, &region, &array.view(), &options).expect("an upload");
    0
}

/// Starts a process, and returns when the process has read an object and is about to store it, changed.
fn changing(place: &Place) -> (Child, PathBuf) {
    let gate = place.path("volume/new/gate");
    let mut child = play("change", place);
    let since = Instant::now();
    while !gate.exists() {
        assert!(
            since.elapsed() < LONG && child.try_wait().expect("its state").is_none(),
            "the process must reach the gate"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    (child, gate)
}

/// A process that changes part of an object reads the rest and stores it again. A whole write in between would be lost.
pub(crate) fn whole_write_waits_for_a_partial_change() {
    let place = Place::new();
    let raw = halves(&place.path("volume"));
    let (mut change, gate) = changing(&place);
    let told = place.path(&format!("volume/new/told-{WHOLE}"));
    std::fs::write(&told, "").expect("a file");
    let mut whole = play("whole", &place);
    let since = Instant::now();
    // Waits until the process has reported often enough to be waiting, or has ended, which it should not.
    while whole.try_wait().expect("its state").is_none() && std::fs::metadata(&told).expect("a file").len() < TOLD {
        assert!(since.elapsed() < LONG, "the process must report progress");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::fs::remove_file(gate).expect("the gate");
    for child in [&mut change, &mut whole] {
        assert!(child.wait().expect("its end").success());
    }
    let found = raw.read_all::<u16>(&"0:2,0:64".parse().expect("a box"), 0);
    assert_eq!(found.iter().find(|element| **element != WHOLE), None, "the whole object came last: {found}");
    assert_eq!(locks(&raw), 0);
}

/// The kernel releases the killed process's lock. The lock's name stays until the next upload ends.
pub(crate) fn killed_partial_change_blocks_no_other_upload() {
    let place = Place::new();
    let raw = halves(&place.path("volume"));
    let (mut change, _gate) = changing(&place);
    change.kill().expect("a kill");
    change.wait().expect("its end");
    assert_eq!(locks(&raw), 1, "the killed process left the name of its lock");
    assert!(play("whole", &place).wait().expect("its end").success());
    let found = raw.read_all::<u16>(&"0:2,0:64".parse().expect("a box"), 0);
    assert_eq!(found.iter().find(|element| **element != WHOLE), None, "{found}");
    assert_eq!(locks(&raw), 0);
}

/// Opens a slow volume of 40 objects, in two columns that a region can cut through.
fn slow(directory: &Path) -> Raw {
    let mut meta = VolumeMeta::new(&[80, 8], &[4, 4], DType::U16);
    meta.fill = Some(vec![0, 0]);
    let mut raw = Raw::new(directory, meta);
    raw.delay = Duration::from_millis(10);
    raw
}

const REGION: &str = "0:80,0:6";

fn array() -> ArrayD<u16> {
    let mut next = 0;
    ArrayD::from_shape_simple_fn(IxDyn(&[80, 6]), || {
        next += 1;
        next
    })
}

fn upload_slowly() -> usize {
    let mut raw = slow(Path::new(&variable(VOLUME)));
    hold(&mut raw);
    let backend = Directory::new("test", variable(ARRAYS));
    let location = variable(LOCATION).parse().expect("a location");
    let options = UploadOptions::new().directory(backend).alignment(Alignment::ReadModifyWrite).workers(2);
    let region = REGION.parse().expect("a box");
    let done = upload_from_shared_memory(&raw, &region, &location, &options).expect("an upload");
    assert_eq!(done.stored, 40);
    0
}

/// Kills an upload that has stored a number of objects. Until the kill it waits, having stored one more at most.
fn kill_at(place: &Place, raw: &Raw, objects: usize) {
    let mut child = start(actor("upload", place).env(HELD, objects.to_string())).expect("a process");
    let since = Instant::now();
    while raw.objects().len() < objects {
        assert!(since.elapsed() < LONG && child.try_wait().expect("its state").is_none(), "the upload must run");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().expect("a kill");
    assert!(!child.wait().expect("its end").success());
}

fn check_kills(place: &Place, at: &[usize]) {
    let raw = slow(&place.path("volume"));
    let array = array();
    let options = CreateOptions::new().directory(place.backend.clone());
    let shared = options.create_with::<u16, IxDyn>(place.location.clone(), IxDyn(&[80, 6]), |mut to| to.assign(&array));
    let shared = shared.expect("an array");
    for objects in at {
        kill_at(place, &raw, *objects);
        assert!(shared.try_read().expect("no lock is left on the array").view() == array, "the array is unchanged");
        assert!(locks(&raw) <= 1, "all locks have one name");
    }
    assert!(play("upload", place).wait().expect("its end").success());
    assert_eq!(raw.objects().len(), 40);
    assert_eq!(raw.read_all::<u16>(&REGION.parse().expect("a box"), 0), array);
    assert_eq!(
        raw.read_all::<u16>(&"0:80,6:8".parse().expect("a box"), 1).sum(),
        0,
        "elements beside the region are unchanged"
    );
    assert_eq!(locks(&raw), 0);
}

pub(crate) fn same_call_finishes_a_killed_upload() {
    for place in Place::of_each_kind() {
        check_kills(&place, &[1, 5, 15]);
    }
}

/// Objects that are only partly changed come last, so the upload holds locks when it is killed.
pub(crate) fn killed_lock_holder_releases_its_locks() {
    check_kills(&Place::new(), &[22, 30, 38]);
}
