//! Uploads by several processes, some of which are killed.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

use ndarray::{ArrayD, IxDyn};
use ndarray_shm::{CreateOptions, DType, Directory, SharedArray};
use ndarray_shm_volume::{
    Alignment, Bbox, ChunkSource as _, DownloadProgress, Progress, StopFlag, UploadOptions, VolumeMeta,
    upload_from_array, upload_from_shared_memory,
};

use crate::place::Place;
use crate::raw::Raw;

/// Set: which role to play.
pub(crate) const ROLE: &str = "UPLOAD_TEST_ROLE";
pub(crate) const VOLUME: &str = "UPLOAD_TEST_VOLUME";
pub(crate) const ARRAYS: &str = "UPLOAD_TEST_ARRAYS";
pub(crate) const LOCATION: &str = "UPLOAD_TEST_LOCATION";
/// Set: how many objects the process stores before it waits to be killed.
pub(crate) const HELD: &str = "UPLOAD_TEST_HELD";

/// Set: the process calls the volume by a name of its own, so that it has other locks.
const ALONE: &str = "UPLOAD_TEST_ALONE";

/// Rounds of two processes that change the same objects.
const ROUNDS: u16 = 60;

/// How long a test waits for what must come.
const LONG: Duration = Duration::from_mins(1);

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

/// Stores no more objects than the environment says, if it does.
pub(crate) fn hold(raw: &mut Raw) {
    if let Ok(count) = std::env::var(HELD) {
        raw.held = Some((count.parse().expect("a number"), StopFlag::new()));
    }
}

/// Plays a role, if the environment has one.
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
        _ => panic!("{role} is no role"),
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
    actor(role, place).spawn().expect("a process")
}

/// Every object is half the one's, half the other's.
fn halves(directory: &Path) -> Raw {
    let mut meta = VolumeMeta::new(&[8, 64], &[2, 64], DType::U16);
    meta.fill = Some(vec![0, 0]);
    let mut raw = Raw::new(directory, meta);
    // Between reading and writing back: time to lose what the other wrote.
    raw.delay = Duration::from_millis(1);
    raw
}

/// Writes its half of every object again and again, and counts how often it is not there afterwards.
fn change_half(left: bool) -> usize {
    let raw = halves(Path::new(&variable(VOLUME)));
    let half: Bbox = if left { "0:8,0:32" } else { "0:8,32:64" }.parse().expect("a box");
    let options = UploadOptions::new().alignment(Alignment::ReadModifyWrite).workers(2);
    // Neither begins before the other is there.
    let here = |left: bool| format!("{}-{left}", variable(VOLUME));
    std::fs::write(here(left), []).expect("a file");
    let since = Instant::now();
    while !Path::new(&here(!left)).exists() {
        assert!(since.elapsed() < LONG, "the other one does not come");
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

/// Returns the files of locks that a volume left.
fn locks(raw: &Raw) -> usize {
    let name = format!("ndshm-write-{:08x}", crc32fast::hash(raw.identity().as_bytes()));
    let place = Directory::shm().or_else(|_| Directory::emulated()).expect("a place of locks");
    place.list().expect("its files").iter().filter(|entry| entry.name == name).count()
}

pub(crate) fn two_processes_that_write_halves_of_the_same_objects_lose_nothing() {
    let place = Place::new();
    let mut children = [play("left", &place), play("right", &place)];
    assert!(children.each_mut().map(|child| child.wait().expect("its end").success()) == [true; 2]);
    let raw = halves(&place.path("volume"));
    let last = raw.read_all::<u16>(&raw.meta.domain(), 0);
    assert!(last.iter().all(|element| *element == ROUNDS), "{last}");
    assert_eq!(locks(&raw), 0);
}

/// The test above would notice: what is stored between reading and storing of a process that knows of no lock is lost.
pub(crate) fn without_a_common_lock_they_would() {
    let place = Place::new();
    let raw = halves(&place.path("volume"));
    let (mut change, gate) = changing(&place);
    assert!(actor("whole", &place).env(ALONE, "").status().expect("a process").success());
    std::fs::remove_file(gate).expect("the gate");
    assert!(change.wait().expect("its end").success());
    let found = raw.read_all::<u16>(&"0:2,0:64".parse().expect("a box"), 0);
    assert!(found.iter().any(|element| *element != WHOLE), "nothing was lost: {found}");
    assert_eq!(locks(&raw), 0);
}

/// What the process writes that changes a part of an object, and the other, which has all of it.
const CHANGED: u16 = 5;
const WHOLE: u16 = 7;

/// How often an upload that waits says so before it is believed.
const TOLD: u64 = 4;

/// Notes in a file how often it was asked, so that others see that it waits.
struct Told(PathBuf);

impl Progress for Told {
    fn update(&self, _progress: DownloadProgress) {
        let mut file = File::options().append(true).create(true).open(&self.0).expect("a file");
        file.write_all(b".").expect("a note");
    }
}

/// Fills a region, which is in one object, with a value.
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

/// Starts a process that has read an object and is about to store it, changed.
fn changing(place: &Place) -> (Child, PathBuf) {
    let gate = place.path("volume/new/gate");
    let mut child = play("change", place);
    let since = Instant::now();
    while !gate.exists() {
        assert!(since.elapsed() < LONG && child.try_wait().expect("its state").is_none(), "it must come to the gate");
        std::thread::sleep(Duration::from_millis(1));
    }
    (child, gate)
}

/// A process that changes a part of an object has read the rest, and stores it again: what is stored whole in between would be lost.
pub(crate) fn what_is_stored_whole_waits_for_who_changes_a_part() {
    let place = Place::new();
    let raw = halves(&place.path("volume"));
    let (mut change, gate) = changing(&place);
    let told = place.path(&format!("volume/new/told-{WHOLE}"));
    std::fs::write(&told, "").expect("a file");
    let mut whole = play("whole", &place);
    let since = Instant::now();
    // Until it has ended, as it should not, or has been waiting for a while.
    while whole.try_wait().expect("its state").is_none() && std::fs::metadata(&told).expect("a file").len() < TOLD {
        assert!(since.elapsed() < LONG, "it must be at work");
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

/// The kernel frees its lock; its name stays until the next upload ends.
pub(crate) fn who_is_killed_while_changing_a_part_keeps_nobody_waiting() {
    let place = Place::new();
    let raw = halves(&place.path("volume"));
    let (mut change, _gate) = changing(&place);
    change.kill().expect("a kill");
    change.wait().expect("its end");
    assert_eq!(locks(&raw), 1, "no process could remove it");
    assert!(play("whole", &place).wait().expect("its end").success());
    let found = raw.read_all::<u16>(&"0:2,0:64".parse().expect("a box"), 0);
    assert_eq!(found.iter().find(|element| **element != WHOLE), None, "{found}");
    assert_eq!(locks(&raw), 0);
}

/// 40 objects, which take a while; in two columns that a region can cut through.
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
    let options = UploadOptions::new().backend(backend).alignment(Alignment::ReadModifyWrite).workers(2);
    let region = REGION.parse().expect("a box");
    let done = upload_from_shared_memory(&raw, &region, &location, &options).expect("an upload");
    assert_eq!(done.stored, 40);
    0
}

/// Kills an upload when it has stored a number of objects; however late the kill comes, one more at most.
fn kill_at(place: &Place, raw: &Raw, objects: usize) {
    let mut child = actor("upload", place).env(HELD, objects.to_string()).spawn().expect("a process");
    let since = Instant::now();
    while raw.objects().len() < objects {
        assert!(since.elapsed() < LONG && child.try_wait().expect("its state").is_none(), "it must be at work");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().expect("a kill");
    assert!(!child.wait().expect("its end").success());
}

fn check_kills(place: &Place, at: &[usize]) {
    let raw = slow(&place.path("volume"));
    let array = array();
    let options = CreateOptions::<SharedArray<u16, IxDyn>>::new().backend(place.backend.clone());
    let shared = options.create_with(place.location.clone(), IxDyn(&[80, 6]), |mut to| to.assign(&array));
    let shared = shared.expect("an array");
    for objects in at {
        kill_at(place, &raw, *objects);
        assert!(shared.try_read().expect("it is free").view() == array, "the array is as it was");
        assert!(locks(&raw) <= 1, "all have one name");
    }
    assert!(play("upload", place).wait().expect("its end").success());
    assert_eq!(raw.objects().len(), 40);
    assert_eq!(raw.read_all::<u16>(&REGION.parse().expect("a box"), 0), array);
    assert_eq!(raw.read_all::<u16>(&"0:80,6:8".parse().expect("a box"), 1).sum(), 0, "what is beside it is as it was");
    assert_eq!(locks(&raw), 0);
}

pub(crate) fn a_killed_upload_is_finished_by_the_same_call() {
    for place in Place::of_each_kind() {
        check_kills(&place, &[1, 5, 15]);
    }
}

/// Objects that are only changed come last: the locks are held when it is killed.
pub(crate) fn a_holder_of_locks_that_is_killed_leaves_them_free() {
    check_kills(&Place::new(), &[22, 30, 38]);
}
