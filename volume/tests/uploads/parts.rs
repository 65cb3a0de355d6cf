//! A job array of four tasks writes one array into one volume. Each task is a process that knows only its environment.

use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use ndarray::{ArrayD, IxDyn};
use ndarray_shm::{CreateOptions, DType, Directory};
use ndarray_shm_volume::markers::{self, Marker};
use ndarray_shm_volume::{
    Alignment, ChunkSource as _, Shard, UploadOptions, VolumeMeta, VolumeUrl, plan, upload_from_shared_memory,
};

use crate::place::Place;
use crate::processes::{self, ROLE};
use crate::raw::Raw;
use crate::start::start;

const TASKS: usize = 4;

/// The longest time that a test waits for an event.
const LONG: Duration = Duration::from_mins(1);

/// The region of the array; its border cuts through objects.
const REGION: &str = "-9:46,3:20";

fn volume(directory: &Path) -> Raw {
    let mut meta = VolumeMeta::new(&[60, 24], &[4, 4], DType::U16);
    meta.origin = vec![-10, 0];
    meta.fill = Some(vec![0, 0]);
    let mut raw = Raw::new(directory, meta);
    raw.delay = Duration::from_millis(4);
    raw
}

fn array() -> ArrayD<u16> {
    let mut next = 0;
    ArrayD::from_shape_simple_fn(IxDyn(&[55, 17]), || {
        next += 1;
        next
    })
}

fn work(raw: &Raw) -> String {
    format!("a test to {}", raw.identity())
}

/// Runs one task: uploads its part and writes the part's marker. Returns 7 if the part is already marked as done.
pub(crate) fn task(volume_at: &Path, arrays: &Path, location: &str) -> u8 {
    let mut raw = volume(volume_at);
    processes::hold(&mut raw);
    let shard = Shard::from_environment(Some(TASKS)).expect("a part");
    let place = VolumeUrl::local(volume_at.join("markers"));
    let all = REGION.parse().expect("a box");
    if markers::is_done(&place, shard, &work(&raw), &all).expect("an answer") {
        return 7;
    }
    let part = plan(&raw.meta, &all, TASKS).expect("a plan").swap_remove(shard.index());
    let (mut chunks, mut bytes) = (0, 0);
    if let Some(part) = &part {
        let backend = Directory::new("test", arrays);
        let options =
            UploadOptions::new().directory(backend).alignment(Alignment::ReadModifyWrite).cutout(part.clone());
        let done = upload_from_shared_memory(&raw, &all, &location.parse().expect("a location"), &options.workers(1));
        let done = done.expect("an upload");
        (chunks, bytes) = (done.stored as u64, done.bytes);
    }
    markers::write(&place, &Marker { shard, work: work(&raw), bbox: all, part, chunks, bytes }).expect("a marker");
    0
}

/// Starts a task as SLURM does, for an array that was submitted as `--array=4-7`.
fn submit(place: &Place, task: usize) -> Child {
    start(&mut prepare(place, task)).expect("a process")
}

fn prepare(place: &Place, task: usize) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.env(ROLE, "task").env("SLURM_ARRAY_TASK_ID", (4 + task).to_string());
    command.envs([("SLURM_ARRAY_TASK_MIN", "4"), ("SLURM_ARRAY_TASK_MAX", "7"), ("SLURM_ARRAY_TASK_COUNT", "4")]);
    command.env(processes::VOLUME, place.path("volume")).env(processes::ARRAYS, place.backend.path());
    command.env(processes::LOCATION, place.location.as_str());
    command
}

fn ends(mut child: Child) -> Option<i32> {
    child.wait().expect("its end").code()
}

pub(crate) fn four_tasks_write_the_whole_array_in_any_order() {
    let place = Place::new();
    let raw = volume(&place.path("volume"));
    let array = array();
    let options = CreateOptions::new().directory(place.backend.clone());
    let shared =
        options.create_with::<u16, IxDyn>(place.location.clone(), IxDyn(&[55, 17]), |mut to| to.assign(&array));
    let _shared = shared.expect("an array");
    let markers_at = VolumeUrl::local(place.path("volume/markers"));
    let region = REGION.parse().expect("a box");
    let missing = || -> Vec<usize> {
        let missing = markers::missing(&markers_at, TASKS, &work(&raw), &region).expect("an answer");
        missing.into_iter().map(Shard::index).collect()
    };
    assert_eq!(missing(), [0, 1, 2, 3]);
    assert_eq!(ends(submit(&place, 2)), Some(0));
    assert_eq!(missing(), [0, 1, 3]);

    // One task is killed while it works, and another task does its part.
    let before = raw.objects().len();
    let mut killed = start(prepare(&place, 0).env(processes::HELD, "4")).expect("a process");
    let since = Instant::now();
    while raw.objects().len() < before + 3 {
        assert!(since.elapsed() < LONG && killed.try_wait().expect("its state").is_none(), "it must be at work");
        std::thread::sleep(Duration::from_millis(1));
    }
    let other = submit(&place, 3);
    killed.kill().expect("a kill");
    assert_eq!(ends(killed), if cfg!(windows) { Some(1) } else { None });
    assert_eq!(ends(other), Some(0));
    assert_eq!(missing(), [0, 1], "the killed task's part is not marked");

    // All tasks run again: tasks with a finished part end at once.
    let again: Vec<Child> = (0..TASKS).rev().map(|task| submit(&place, task)).collect();
    assert_eq!(again.into_iter().map(ends).collect::<Vec<_>>(), [Some(7), Some(7), Some(0), Some(0)]);
    assert_eq!(missing(), [0; 0]);
    assert!(raw.read_all::<u16>(&region, 0) == array);
    let around = raw.read_all::<u16>(&raw.meta.domain(), 0);
    let sum = |array: &ArrayD<u16>| array.iter().map(|element| u64::from(*element)).sum::<u64>();
    assert_eq!(sum(&around), sum(&array), "nothing else was written");
}
