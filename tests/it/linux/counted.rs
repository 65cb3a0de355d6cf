//! Counted arrays on Linux: forks, hundreds of arrays without descriptors, permission bits, links and pipes under a
//! name.

use std::os::unix::fs::{MetadataExt, symlink};
use std::process::Command;
use std::str::FromStr;

use libtest_mimic::Trial;
use ndarray::{Ix1, IxDyn};
use ndarray_shm::backend::Backend;
use ndarray_shm::counted::SharingStrategy::{FileDescriptor, FileSystem};
use ndarray_shm::counted::inspect_in;
use ndarray_shm::{Access, CreateOptions, CreationMode, Error, ErrorKind, Location, OpenOptions, default_directory};

use super::sandbox;
use crate::support::child::{self, Child, ROLE, Role, hear, say};
use crate::support::machine::{mappings, open_files};
use crate::support::{Place, backend_of_child};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "linux",
        "counted",
        tests![
            a_forked_child_is_not_counted_and_removes_nothing,
            counted_arrays_keep_no_descriptors,
            nothing_remains_after_many_rounds,
            permissions_are_exact_and_counting_needs_to_write,
            links_and_pipes_are_refused_and_left_alone,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[
    ("fork-with-counted", fork_with_counted),
    ("make-many-counted", make_many_counted),
    ("open-many-counted", open_many_counted),
    ("many-rounds", many_rounds),
    ("count-without-writing", count_without_writing),
];

/// A child that forks while it has counted arrays. The forked child drops or closes its copies.
#[allow(unsafe_code)]
fn fork_with_counted(arguments: &[String]) {
    let options = OpenOptions::new().directory(backend_of_child());
    let open = || options.open_counted::<u32, IxDyn>(arguments[0].as_str());
    let (first, second) = (open(), open());
    let reader = options.open_counted_reader::<u32, IxDyn>(arguments[0].as_str()).unwrap();
    let before = first.as_ref().unwrap().refcount();
    // SAFETY: this process has one thread; the child only drops its copies, attaches once, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(first);
        let closed = second.unwrap().close();
        drop(reader);
        // An attachment of the forked child's own is counted.
        let own = open().unwrap();
        let counted = own.refcount() == before + 1;
        drop(own);
        // SAFETY: ends the process without running anything else.
        unsafe { libc::_exit(i32::from(closed.is_err() || !counted)) };
    }
    let mut status = -1;
    // SAFETY: waits for the child just made; the status is a valid place to write to.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0));
    let first = first.unwrap();
    assert_eq!(first.refcount(), before);
    say("forked");
    hear();
    assert_eq!(first.read().unwrap().sum(), reader.view().sum());
    drop((first, second, reader));
    say("left");
    hear();
}

fn a_forked_child_is_not_counted_and_removes_nothing(place: &Place) {
    let place = &place.private();
    let name = place.location("fork");
    let array = place.options().create_counted::<u32, _>(name.location(), 4).unwrap();
    let mut child = Child::start(place, "fork-with-counted", &[name.as_str()]);
    child.expect("forked");
    assert_eq!((array.refcount(), place.inspect(&name).unwrap().is_attached), (4, true));
    drop(array);
    assert!(place.has(&name));
    child.tell("leave");
    child.expect("left");
    assert!(!place.has(&name));
}

/// A child that creates counted arrays and holds them all, under a limit of 64 descriptors.
fn make_many_counted(arguments: &[String]) {
    let many = arguments[1].parse().unwrap();
    let mut arrays = Vec::new();
    for number in 0..many {
        let options = CreateOptions::new().directory(backend_of_child());
        arrays.push(options.create_counted::<u64, _>(format!("{}-{number}", arguments[0]), 4).unwrap());
        arrays[number].write().unwrap().fill(number as u64);
    }
    assert!(open_files() < 20, "{} descriptors", open_files());
    say("made");
    hear();
    drop(arrays);
    say("left");
    hear();
}

/// A child that attaches to all of those arrays.
fn open_many_counted(arguments: &[String]) {
    let many: usize = arguments[1].parse().unwrap();
    let options = || OpenOptions::new().directory(backend_of_child());
    let open = |number| options().open_counted::<u64, Ix1>(format!("{}-{number}", arguments[0])).unwrap();
    let arrays: Vec<_> = (0..many).map(open).collect();
    assert!(open_files() < 20, "{} descriptors", open_files());
    say("opened");
    hear();
    for (number, array) in arrays.iter().enumerate() {
        assert_eq!((array.refcount(), array.read().unwrap()[3]), (1, number as u64));
    }
    drop(arrays);
    say("left");
    hear();
}

fn counted_arrays_keep_no_descriptors(place: &Place) {
    let place = &place.private();
    if !place.backend.lock_survives_close().unwrap() {
        return; // every array keeps a descriptor there
    }
    let name = place.location("many");
    let many = 500;
    let arguments = [name.as_str(), &many.to_string()];
    let start = |role| Child::spawn(sandbox::with_descriptors(place, 64, role, &arguments));
    let mut maker = start("make-many-counted");
    maker.expect("made");
    let mut opener = start("open-many-counted");
    opener.expect("opened");
    maker.tell("leave");
    maker.expect("left");
    assert_eq!(place.backend.list().unwrap().len(), many);
    opener.tell("leave");
    opener.expect("left");
    assert!(place.backend.list().unwrap().is_empty());
}

/// A child that uses arrays in every way, round after round, and then checks its own descriptors and mappings.
fn many_rounds(arguments: &[String]) {
    let rounds = arguments[1].parse().unwrap();
    let backend = backend_of_child();
    let options = || CreateOptions::new().directory(backend.clone());
    let attach = || OpenOptions::new().directory(backend.clone());
    let directory = backend.path().display().to_string();
    let round = |number: usize| {
        let name = format!("{}-{}", arguments[0], number % 3);
        let array = options().create_counted::<u32, Ix1>(name.as_str(), 4).unwrap();
        array.write().unwrap().fill(number as u32);
        let (clone, readonly) = (
            array.try_clone().unwrap(),
            attach().access(Access::Read).open_counted::<u32, Ix1>(name.as_str()).unwrap(),
        );
        let attached = attach().attach::<u32, Ix1>(&array.handle().unwrap()).unwrap();
        let reader = attach().open_counted_reader::<u32, Ix1>(name.as_str()).unwrap();
        assert_eq!((reader.view()[3], array.refcount()), (number as u32, 5));
        assert!(options().create_counted::<u32, Ix1>(name.as_str(), 4).is_err());
        assert!(OpenOptions::new().directory(backend.clone()).open_counted::<f32, Ix1>(name.as_str()).is_err());
        drop((array, clone));
        attached.into_reader().unwrap();
        readonly.close().unwrap();
        drop(reader);
        assert!(attach().open_counted::<u32, Ix1>(name.as_str()).unwrap_err().is_not_found());
        let nameless = options().share::<u32, Ix1>(FileDescriptor, 4).unwrap();
        let clone = nameless.try_clone().unwrap();
        if number % 2 == 0 && nameless.publish().is_ok() {
            assert_eq!(backend.list().unwrap().len(), 1);
        }
        clone.freeze().unwrap();
        drop(nameless);
        clone.into_reader().unwrap();
        options().share::<u32, Ix1>(FileSystem, 4).unwrap().close().unwrap();
    };
    round(0);
    let before = open_files();
    assert_eq!(mappings(&directory).len(), 0);
    (1..rounds).for_each(round);
    assert_eq!((open_files(), mappings(&directory).len()), (before, 0));
    assert!(backend.list().unwrap().is_empty());
    say("nothing");
}

fn nothing_remains_after_many_rounds(place: &Place) {
    let place = &place.private();
    let name = place.location("rounds");
    let mut child = Child::start(place, "many-rounds", &[name.as_str(), "200"]);
    child.expect("nothing");
    child.finish();
    assert!(place.backend.list().unwrap().is_empty());
}

/// A child that may read a counted array's file, but not write to it.
fn count_without_writing(arguments: &[String]) {
    let backend = default_directory().unwrap();
    let location = Location::from_str(&arguments[0]).unwrap();
    let options = || OpenOptions::new().directory(backend.clone());
    for outcome in [
        options().open_counted::<u32, Ix1>(&location).map(drop),
        options().access(Access::Read).open_counted::<u32, Ix1>(&location).map(drop),
    ] {
        assert!(
            matches!(outcome, Err(Error { kind: ErrorKind::PermissionDenied { mode: 0o400, .. }, .. })),
            "{outcome:?}"
        );
    }
    let reader = OpenOptions::new().directory(backend.clone());
    assert!(matches!(
        reader.open_counted_reader::<u32, Ix1>(&location).unwrap_err().kind,
        ErrorKind::PermissionDenied { .. }
    ));
    assert_eq!(inspect_in(&backend, &location).unwrap().refcount, 1, "looking needs no more than reading");
    say("looked");
}

fn permissions_are_exact_and_counting_needs_to_write(place: &Place) {
    let place = &place.private();
    let name = place.location("permissions");
    let mode = || std::fs::metadata(place.path(&name)).unwrap().mode() & 0o7777;
    drop(place.options().create_counted::<u32, _>(name.location(), 4).map(|array| (array, assert_eq!(mode(), 0o600))));
    for bits in [0o660, 0o666, 0o400] {
        let array = place.options().permissions(bits).create_counted::<u32, _>(name.location(), 4).unwrap();
        assert_eq!(mode(), bits, "whatever the umask");
        if bits == 0o400 {
            // Without capabilities, root has only the rights that the permission bits give.
            let mut command = Command::new("setpriv");
            command.args(["--bounding-set=-all", "--inh-caps=-all"]).arg(child::program());
            if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
                command = Command::new(child::program());
            }
            command.env(ROLE, "count-without-writing").envs(place.environment()).arg(name.as_str());
            let mut child = Child::spawn(command);
            child.expect("looked");
            child.finish();
        }
        array.close().unwrap();
        assert!(!place.has(&name));
    }
}

fn links_and_pipes_are_refused_and_left_alone(place: &Place) {
    let place = &place.private();
    let (link, pipe, target) = (place.location("link"), place.location("pipe"), place.location("target"));
    let array = place.options().create_counted::<u32, _>(target.location(), 4).unwrap();
    symlink(place.path(&target), place.path(&link)).unwrap();
    assert!(Command::new("mkfifo").arg(place.path(&pipe)).status().unwrap().success());
    for name in [&link, &pipe] {
        let options = || place.options();
        let errors = [
            place.open_options().open_counted::<u32, Ix1>(name.location()).unwrap_err(),
            place.open_options().access(Access::Read).open_counted::<u32, Ix1>(name.location()).unwrap_err(),
            place.open_options().open_counted_reader::<u32, Ix1>(name.location()).unwrap_err(),
            options().create_counted::<u32, Ix1>(name.location(), 4).unwrap_err(),
            options().mode(CreationMode::Replace).create_counted::<u32, Ix1>(name.location(), 4).unwrap_err(),
            options().mode(CreationMode::OpenOrCreate).create_counted::<u32, Ix1>(name.location(), 4).unwrap_err(),
            place.inspect(name).unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error.kind, ErrorKind::NotAnArray { .. }), "{error}");
        }
    }
    assert_eq!(array.refcount(), 1);
    assert!(place.reclaim().removed.is_empty());
    // A link that replaces the name of an array that is still attached.
    let other = place.location("planted");
    let old = place.options().create_counted::<u32, _>(other.location(), 4).unwrap();
    let handle = old.handle().unwrap();
    std::fs::remove_file(place.path(&other)).unwrap();
    symlink(place.path(&target), place.path(&other)).unwrap();
    assert_eq!(old.read().unwrap_err().kind, ErrorKind::Unlinked);
    assert!(matches!(
        place.open_options().attach::<u32, Ix1>(&handle).unwrap_err(),
        Error { kind: ErrorKind::NotAnArray { .. }, .. }
    ));
    drop(old);
    for name in [&link, &other] {
        assert!(std::fs::symlink_metadata(place.path(name)).unwrap().is_symlink());
        std::fs::remove_file(place.path(name)).unwrap();
    }
    std::fs::remove_file(place.path(&pipe)).unwrap();
    assert!(place.backend.open(target.location(), Access::Read).is_ok());
    assert_eq!(array.read().unwrap().len(), 4);
}
