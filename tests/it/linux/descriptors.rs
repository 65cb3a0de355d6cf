//! Descriptors: how many a handle needs, which locks outlive them, and how forks and spawned processes affect both.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use libtest_mimic::Trial;
use ndarray::ShapeBuilder;
use ndarray_shm::{CreateOptions, Directory, Error, ErrorKind, FrozenArray, SharedArray, default_directory};

use super::sandbox;
use crate::support::Place;
use crate::support::child::{Child, Role, hear, say};
use crate::support::machine::{mappings, open_files};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    let mut trials = place.trials(
        "linux",
        "descriptors",
        tests![
            locks_survive_close_except_on_overlayfs,
            handle_keeps_no_descriptor_where_locks_survive,
            thousands_of_arrays_need_sixteen_descriptors,
            dropped_guard_unlocks_at_once_despite_spawned_processes,
            lock_probe_is_right_despite_spawned_processes,
            guard_dropped_in_a_forked_child_stays_locked,
            unsealed_descriptors_are_not_frozen_arrays,
        ],
    );
    let mounted = place.trials("linux", "descriptors", tests![without_proc_a_kept_descriptor_needs_the_name]);
    trials.extend(sandbox::with_private_mounts(mounted));
    trials
}

pub const ROLES: &[(&str, Role)] =
    &[("many-arrays", many_arrays), ("fork-with-guard", fork_with_guard), ("guards-without-proc", guards_without_proc)];

/// Returns how many descriptors of this process lead to the file with this inode number, whatever its name was. The
/// place must be private: elsewhere the number may belong to another file by now.
pub(super) fn descriptors_of(place: &Place, inode: u64) -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").expect("/proc").filter_map(Result::ok).map(|entry| entry.path());
    let is_there = |path: &PathBuf| std::fs::read_link(path).is_ok_and(|file| file.starts_with(place.directory()));
    entries.filter(is_there).filter(|path| std::fs::metadata(path).is_ok_and(|file| file.ino() == inode)).count()
}

/// Returns how many mappings of this process are of that file.
pub(super) fn mappings_of(place: &Place, inode: u64) -> usize {
    let (inode, directory) = (inode.to_string(), place.directory().display().to_string());
    mappings(&directory).iter().filter(|line| line.split_whitespace().nth(4) == Some(&inode)).count()
}

fn locks_survive_close_except_on_overlayfs(place: &Place) {
    const OVERLAYFS: u32 = 0x794c_7630;
    let kind = rustix::fs::statfs(place.directory()).unwrap().f_type as u32;
    assert_eq!(place.backend.lock_survives_close().unwrap(), kind != OVERLAYFS, "file system {kind:#x}");
}

fn handle_keeps_no_descriptor_where_locks_survive(place: &Place) {
    let place = &place.private();
    let name = place.location("no-descriptor");
    let survives = place.backend.lock_survives_close().unwrap();
    let array = place.options().create::<u8, _>(name.location(), 4).unwrap();
    let opened = place.open_options().open::<u8, _>(name.location(), 4).unwrap();
    let inode = std::fs::metadata(place.path(&name)).unwrap().ino();
    let mine = || descriptors_of(place, inode);
    assert_eq!(mine(), if survives { 0 } else { 2 });
    let guard = array.read().unwrap();
    assert_eq!(mine(), if survives { 1 } else { 3 });
    drop(guard);
    assert_eq!(mappings_of(place, inode), 2);
    drop((array, opened));
    assert_eq!((mine(), mappings_of(place, inode)), (0, 0));
}

/// A child that creates arrays and holds them all, under a limit of 64 descriptors.
fn many_arrays(arguments: &[String]) {
    let survives = default_directory().unwrap().lock_survives_close().unwrap();
    let mut arrays = Vec::new();
    let mut most = 0;
    let many: usize = arguments[1].parse().unwrap();
    for number in 0..many {
        match SharedArray::<u64, _>::create(format!("{}-{number}", arguments[0]), 4) {
            Ok(array) => arrays.push(array),
            Err(Error { kind: ErrorKind::TooManyOpenFiles { limit: 64, .. }, .. }) if !survives => break,
            Err(error) => panic!("array {number}: {error}"),
        }
        most = most.max(open_files());
    }
    for (number, array) in arrays.iter().enumerate().step_by(997) {
        array.write().unwrap().fill(number as u64);
    }
    if survives {
        assert!(most <= 16, "{most} descriptors at once");
        assert_eq!(arrays.len(), many);
    } else {
        assert!(arrays.len() < 64, "a descriptor each");
    }
    for array in &arrays {
        assert!(array.directory().unlink(array.location()).unwrap());
    }
    say(format!("{} arrays", arrays.len()));
}

/// A child without /proc.
fn guards_without_proc(arguments: &[String]) {
    let array = CreateOptions::new().keep_fd(true).create::<u8, _>(arguments[0].as_str(), 4).unwrap();
    array.write().unwrap().fill(3);
    assert_eq!(array.read().unwrap().sum(), 12);
    assert!(array.unlink().unwrap());
    let error = array.read().unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Unsupported { .. }) && error.to_string().contains("/proc"), "{error}");
    say("as expected");
}

fn without_proc_a_kept_descriptor_needs_the_name(place: &Place) {
    let name = place.location("no-proc");
    let mount = "mount -t tmpfs none /proc";
    let mut child = Child::spawn(sandbox::with_mounts(place, mount, "guards-without-proc", &[name.as_str()]));
    child.expect("as expected");
    child.finish();
}

fn thousands_of_arrays_need_sixteen_descriptors(place: &Place) {
    let name = place.location("many");
    let many = if place.name == "shm" { "10000" } else { "1000" }; // a disk takes its time
    let mut child = Child::spawn(sandbox::with_descriptors(place, 64, "many-arrays", &[name.as_str(), many]));
    let line = child.line();
    if place.backend.lock_survives_close().unwrap() {
        assert_eq!(line, format!("{many} arrays"));
    }
    child.finish();
    let left = place.backend.list().unwrap().into_iter().filter(|entry| entry.name.starts_with(name.as_str())).count();
    assert_eq!(left, 0);
}

fn dropped_guard_unlocks_at_once_despite_spawned_processes(place: &Place) {
    let name = place.location("spawn");
    let array = place.options().create::<u8, _>(name.location(), 4).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let spawner = scope.spawn(|| {
            let mut spawned = 0;
            while !stop.load(Ordering::Relaxed) {
                spawned += usize::from(Command::new("true").status().is_ok());
            }
            spawned
        });
        for round in 0..10_000 {
            drop(array.write().unwrap());
            let taken = array.try_write();
            assert!(taken.is_ok(), "round {round}: {:?}", taken.unwrap_err());
        }
        stop.store(true, Ordering::Relaxed);
        assert!(spawner.join().unwrap() > 0);
    });
}

fn lock_probe_is_right_despite_spawned_processes(place: &Place) {
    let stop = AtomicBool::new(false);
    let expected = place.backend.lock_survives_close().unwrap();
    let wrong = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _spawned = Command::new("true").status();
                }
            });
        }
        let is_wrong = || Directory::new("fresh", place.directory()).lock_survives_close().unwrap() != expected;
        let wrong = (0..1000).filter(|_| is_wrong()).count();
        stop.store(true, Ordering::Relaxed);
        wrong
    });
    assert_eq!(wrong, 0);
}

/// A child that forks while it holds a write guard.
#[allow(unsafe_code)]
fn fork_with_guard(arguments: &[String]) {
    let array = SharedArray::<u8, _>::open(arguments[0].as_str(), 4).unwrap();
    let guard = array.write().unwrap();
    // SAFETY: this process has one thread; the child drops a guard, which closes a descriptor, and exits at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(guard);
        // SAFETY: ends the process without running anything else.
        unsafe { libc::_exit(0) };
    }
    let mut status = -1;
    // SAFETY: waits for the child just made; the status is a valid place to write to.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0));
    say("forked");
    hear();
    drop(guard);
    say("done");
    hear();
}

fn guard_dropped_in_a_forked_child_stays_locked(place: &Place) {
    let name = place.location("fork");
    let array = place.options().create::<u8, _>(name.location(), 4).unwrap();
    let mut child = Child::start(place, "fork-with-guard", &[name.as_str()]);
    child.expect("forked");
    assert_eq!(array.try_read().unwrap_err().kind, ErrorKind::WouldBlock);
    child.tell("let go");
    child.expect("done");
    assert!(array.try_read().is_ok());
}

fn unsealed_descriptors_are_not_frozen_arrays(place: &Place) {
    let name = place.location("not-sealed");
    place.options().create::<u8, _>(name.location(), 4).unwrap();
    let file = File::open(place.path(&name)).unwrap();
    let error = FrozenArray::<u8, _>::from_fd(file, 4).unwrap_err();
    assert!(
        matches!(error.kind, ErrorKind::Unsupported { .. }) && error.to_string().contains("F_SEAL_WRITE"),
        "{error}"
    );
    let frozen = FrozenArray::<u16, _>::create_with((2, 3).f(), |mut view| view.fill(7)).unwrap();
    let copy = frozen.clone();
    let file = frozen.file().unwrap().try_clone().unwrap();
    let error = FrozenArray::<u16, _>::from_fd(file.try_clone().unwrap(), 5).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::SizeMismatch { expected: 10, found: 12, .. }), "{error}");
    let again = FrozenArray::<u16, _>::from_fd(file.try_clone().unwrap(), (2, 3).f()).unwrap();
    drop(frozen);
    assert_eq!((again.sum(), copy.view().sum()), (42, 42));
    assert!(file.write_at(b"x", 0).is_err(), "sealed against writing");
    assert!(file.set_len(0).is_err(), "sealed against shrinking");
    let empty = FrozenArray::<u16, _>::create_with((0, 3), |_| {}).unwrap();
    assert_eq!(FrozenArray::<u16, _>::from_fd(empty.file().unwrap().try_clone().unwrap(), (0, 3)).unwrap().len(), 0);
    assert_eq!(FrozenArray::from_array(&again).unwrap().view(), again.view());
}
