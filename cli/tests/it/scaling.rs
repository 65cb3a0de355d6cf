//! The scripts of docs/scale.md, run unchanged with `ndshm` in the PATH: tasks of a SLURM array one after the other,
//! and Dask.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ndarray::{ArrayD, IxDyn};
use ndarray_shm::{DType, Directory};
use ndarray_shm_volume::demo::{self, DemoSpec};
use ndarray_shm_volume::{
    DownloadOptions, NewVolume, VolumeFormat, VolumeUrl, create_volume, download_to_shared_memory, open_volume,
};

use crate::scene::{Scene, names_in, run};

const SHAPE: [u64; 3] = [50, 40, 60];

/// Returns a source. Its chunk shape differs from the target's.
fn spec() -> DemoSpec {
    DemoSpec::new(&SHAPE, &[16, 20, 30], DType::U16)
}

fn make_target(scene: &Scene) -> PathBuf {
    let path = scene.temporary().join("target");
    let new = NewVolume::new(VolumeFormat::Zarr, &SHAPE, &[10, 20, 20], DType::U16);
    create_volume(VolumeUrl::local(&path), &new).expect("a new volume");
    path
}

fn read(scene: &Scene, volume: &Path) -> ArrayD<u16> {
    let volume = open_volume(VolumeUrl::local(volume)).expect("the volume");
    let backend = Directory::new("test", scene.temporary());
    let location = "read".parse().expect("a name");
    let options = DownloadOptions::new().directory(backend);
    let done = download_to_shared_memory(&*volume, &volume.meta().domain(), &location, &options).expect("a download");
    let array = done.open::<u16, IxDyn>().expect("the array");
    let elements = array.read().expect("a guard").to_owned();
    fs::remove_file(scene.temporary().join("read")).expect("the array");
    elements
}

fn expected() -> ArrayD<u16> {
    spec().expected(&ndarray_shm_volume::Bbox::whole(&SHAPE)).expect("all of it")
}

/// Returns a command for a program that finds the tested `ndshm` and uses this scene.
fn command(scene: &Scene, program: impl Into<OsString>, python: Option<&Path>) -> Command {
    let ndshm = scene.ndshm([""; 0]);
    let mut command = Command::new(program.into());
    for (name, value) in ndshm.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut places = vec![Path::new(ndshm.get_program()).parent().expect("its directory").to_owned()];
    places.extend(python.and_then(Path::parent).map(Path::to_owned));
    places.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    command.env("PATH", std::env::join_paths(places).expect("a PATH"));
    command
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/scale").join(name)
}

/// Returns the Python that has Dask and NumPy. If there is none, prints that the test did not run, past the harness's
/// capture.
fn python(test: &str) -> Option<PathBuf> {
    use std::io::Write as _;
    let python = std::env::var_os("NDSHM_TEST_PYTHON").map(PathBuf::from);
    if python.is_none() {
        let _ =
            writeln!(std::io::stderr(), "NOT RUN: {test} needs NDSHM_TEST_PYTHON, a Python with dask (scripts/test)");
    }
    python
}

/// Sets the variables that SLURM sets for a task of `--array=0-3`.
fn as_task(command: &mut Command, task: u32) -> &mut Command {
    command.env("SLURM_ARRAY_TASK_ID", task.to_string()).envs([
        ("SLURM_ARRAY_JOB_ID", "4711"),
        ("SLURM_ARRAY_TASK_MIN", "0"),
        ("SLURM_ARRAY_TASK_MAX", "3"),
        ("SLURM_ARRAY_TASK_COUNT", "4"),
        ("SLURM_ARRAY_TASK_STEP", "1"),
    ])
}

#[test]
fn slurm_tasks_upload_one_file_in_any_order() {
    let scene = Scene::new();
    let target = make_target(&scene);
    let (file, markers) = (scene.temporary().join("elements"), scene.temporary().join("markers"));
    fs::write(&file, expected().iter().flat_map(|element| element.to_le_bytes()).collect::<Vec<u8>>()).expect("a file");
    let task = |task: u32, file: &Path| {
        let mut command = command(&scene, "bash", None);
        command.arg(script("slurm.sh")).env("FILE", file).env("TARGET", &target).env("MARKERS", &markers);
        run(as_task(&mut command, task))
    };
    // A failed part gets no marker.
    assert_ne!(task(1, &scene.temporary().join("nothing")).code, Some(0));
    assert!(!markers.exists() || names_in(&markers).is_empty());
    for number in [2, 0, 0, 3] {
        task(number, &file).expect_code(0);
    }
    assert_eq!(
        names_in(&markers),
        ["part-00000-of-00004.json", "part-00002-of-00004.json", "part-00003-of-00004.json"]
    );
    assert_ne!(read(&scene, &target), expected());
    // In a second submission, tasks of finished parts end at once and do not write their objects again.
    let chunk = target.join("c/0/0/0");
    let before = fs::metadata(&chunk).expect("a chunk").modified().expect("a time");
    for number in 0..4 {
        task(number, &file).expect_code(0);
    }
    assert_eq!(fs::metadata(&chunk).expect("a chunk").modified().expect("a time"), before);
    assert_eq!(names_in(&markers).len(), 4);
    assert_eq!(read(&scene, &target), expected());
}

#[test]
fn slurm_tasks_process_parts_in_shared_memory() {
    let Some(python) = python("the SLURM array that processes") else { return };
    let scene = Scene::new();
    demo::write_volume(&scene.volume(), &spec()).expect("a volume");
    let target = make_target(&scene);
    let program = scene.temporary().join("program");
    let text = "#!/usr/bin/env python3\nimport numpy, os, sys\n\
                path = os.path.join(os.environ['NDSHM_EMULATED_DIR'], sys.argv[1])\n\
                array = numpy.memmap(path, dtype='<u2', mode='r+')\nnumpy.invert(array, out=array)\n";
    fs::write(&program, text).expect("a program");
    let run_it = scene.temporary().join("run");
    fs::write(
        &run_it,
        "#!/bin/sh\nexec python3 \"$0/../program\" \"$@\"\n".replace("$0/..", &scene.temporary().display().to_string()),
    )
    .expect("a program");
    run(Command::new("chmod").arg("+x").arg(&run_it)).expect_code(0);
    // The last task has nothing to do: there are only 30 objects.
    for number in [3, 1, 0, 2, 2, 31] {
        let mut command = command(&scene, "bash", Some(&python));
        command.arg(script("slurm_process.sh")).env("PARTS", if number == 31 { "32" } else { "4" });
        command.env("SOURCE", scene.volume()).env("TARGET", &target).env("PROGRAM", &run_it);
        run(as_task(&mut command, number)).expect_code(0);
    }
    assert_eq!(read(&scene, &target), expected().mapv(|element| !element));
    assert_eq!(scene.files(), [""; 0], "no array is left");
}

#[test]
fn dask_copies_a_volume_and_repeats_only_failed_parts() {
    let Some(python) = python("Dask") else { return };
    let scene = Scene::new();
    demo::write_volume(&scene.volume(), &spec().complete(true)).expect("a volume");
    let target = make_target(&scene);
    let done = scene.temporary().join("done");
    let copy = || {
        let mut command = command(&scene, &python, Some(&python));
        command.arg(script("dask_parts.py")).arg(scene.volume()).arg(&target);
        run(command.args(["--parts", "6", "--workers", "2", "--invert", "--done"]).arg(&done))
    };
    let broken = scene.volume().join("c/3/0/0");
    let intact = fs::read(&broken).expect("a chunk");
    fs::write(&broken, b"no chunk").expect("a broken chunk");
    let failed = copy().expect_code(1);
    // Two parts need the broken chunk. All other parts are done in spite of that.
    for part in ["part 0/6: ndshm download", "part 1/6: ndshm download", "c/3/0/0", "4 of 6 parts are done"] {
        assert!(failed.err.contains(part) || failed.out.contains(part), "{part}: {failed:?}");
    }
    assert_eq!(names_in(&done), [2, 3, 4, 5].map(|part| format!("part-{part:05}.json")));
    let stored = target.join("c/0/1/1");
    let before = fs::metadata(&stored).expect("a chunk of part 3").modified().expect("a time");
    assert_eq!(scene.files(), [""; 0], "no array is left");

    fs::write(&broken, intact).expect("the chunk");
    let finished = copy().expect_code(0);
    assert!(finished.out.contains("6 of 6 parts are done"), "{finished:?}");
    assert_eq!(names_in(&done).len(), 6);
    assert_eq!(fs::metadata(&stored).expect("it").modified().expect("a time"), before, "it was not done again");
    let expected: ArrayD<u16> = spec().complete(true).expected(&ndarray_shm_volume::Bbox::whole(&SHAPE)).expect("all");
    assert_eq!(read(&scene, &target), expected.mapv(|element| !element));
    assert_eq!(scene.files(), [""; 0], "no array is left");
}
