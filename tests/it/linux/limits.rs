//! The machine's limits: free space, memory, file sizes. No data may be lost, and no process killed.

use std::sync::Mutex;

use libtest_mimic::Trial;
use ndarray_shm::{
    Access, ArrayReader, AttachOptions, CreateOptions, Directory, Error, FrozenArray, Pages, RenderBuffer, SharedArray,
    default_backend,
};

use super::sandbox::{self, MemoryGroup, unless};
use crate::support::child::{Child, ROLE, Role, program, say};
use crate::support::{Name, Place, Test};
use crate::tests;

const MIB: usize = 1 << 20;

pub fn trials(place: &Place) -> Vec<Trial> {
    let limits = |tests: &[(&str, Test)]| place.trials("linux", "limits", tests);
    let mut trials = limits(tests![exceeding_the_file_size_limit_is_an_error]);
    trials.extend(sandbox::with_private_mounts(limits(tests![
        a_full_file_system_is_an_error_and_leaves_nothing,
        file_system_without_inodes_is_reported,
    ])));
    if place.name == "shm" {
        trials.extend(sandbox::with_private_mounts(limits(tests![fallback_backend_is_the_same_in_all_processes,])));
        let grouped = limits(tests![a_memory_limit_is_an_error_and_the_process_lives]);
        trials.extend(unless("no memory control group can be made", MemoryGroup::new(64 << 20).is_some(), grouped));
    }
    trials
}

pub const ROLES: &[(&str, Role)] = &[
    ("fill-file-system", fill_file_system),
    ("no-inodes", no_inodes),
    ("create-with-fallback", create_with_fallback),
    ("open-with-fallback", open_with_fallback),
    ("exceed-memory", exceed_memory),
    ("exceed-file-size", exceed_file_size),
];

/// A child with a file size limit of 16 KiB.
fn exceed_file_size(arguments: &[String]) {
    let name = arguments[0].as_str();
    for error in [
        SharedArray::<u8, _>::create(name, MIB).unwrap_err(),
        CreateOptions::<SharedArray<u8, ndarray::Ix1>>::new().pages(Pages::Sparse).create(name, MIB).unwrap_err(),
        FrozenArray::<u8, _>::create_with(MIB, |_| {}).unwrap_err(),
        RenderBuffer::<u8, _>::create(name, MIB, MIB, "too large").unwrap_err(),
    ] {
        assert_no_space(&error, MIB, 16 << 10);
        assert!(error.to_string().contains("ulimit -f"), "{error}");
    }
    assert!(SharedArray::<u8, _>::create(name, 16 << 10).is_ok());
    say("alive");
}

fn exceeding_the_file_size_limit_is_an_error(place: &Place) {
    let name = place.location("file-size");
    let mut child = Child::spawn(sandbox::with_file_size(place, 16 << 10, "exceed-file-size", &[name.as_str()]));
    child.expect("alive");
    child.finish();
}

pub fn assert_no_space(error: &Error, wanted: usize, at_most: usize) {
    match error {
        Error::NoSpace { needed, available, .. } => {
            assert_eq!(*needed, wanted as u64);
            assert!(*available <= at_most as u64, "{available}");
        }
        other => panic!("{other}"),
    }
}

pub fn files() -> usize {
    default_backend().unwrap().list().unwrap().len()
}

/// Returns a command that mounts a small file system at the backend's directory.
pub fn small(place: &Place, options: &str) -> String {
    format!("mount -t tmpfs -o mode=0700,{options} none '{}'", place.directory().display())
}

/// A logger that keeps the warnings of this process.
struct Warnings(Mutex<Vec<String>>);

impl log::Log for Warnings {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        self.0.lock().unwrap().push(record.args().to_string());
    }
    fn flush(&self) {}
}

static WARNINGS: Warnings = Warnings(Mutex::new(Vec::new()));

/// A child with 16 MiB for all its arrays.
fn fill_file_system(_: &[String]) {
    log::set_logger(&WARNINGS).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let error = SharedArray::<u8, _>::create("large", 64 * MIB).unwrap_err();
    assert_no_space(&error, 64 * MIB, 16 * MIB);
    let text = error.to_string();
    assert!(text.contains("`large` needs 67108864 bytes") && text.contains("--shm-size"), "{text}");
    assert_eq!(files(), 0);
    let error = RenderBuffer::<u8, _>::create("large", 64 * MIB, MIB, "too large").unwrap_err();
    assert_no_space(&error, 64 * MIB, 16 * MIB);
    assert_eq!(files(), 0, "neither payload nor ledger");

    let half = SharedArray::<u8, _>::create_with("half", 10 * MIB, |mut view| view.fill(1)).unwrap();
    // The warning is for disks, which other programs share. Shared memory may be filled.
    let about_disk =
        || WARNINGS.0.lock().unwrap().iter().filter(|text| text.contains("less than 1 GiB of its disk")).count();
    assert_eq!(about_disk(), usize::from(default_backend().unwrap().name() == "emulated"));
    let error = SharedArray::<u8, _>::create("half-again", 10 * MIB).unwrap_err();
    assert_no_space(&error, 10 * MIB, 6 * MIB);
    let error = SharedArray::<u8, _>::create("half", 64 * MIB).unwrap_err();
    assert!(error.is_already_exists(), "a full memory does not hide that the name is taken: {error}");

    // A foreign sparse file is opened only if its holes can be filled, since on tmpfs even reading a hole allocates memory.
    let path = default_backend().unwrap().path().join("sparse");
    std::fs::File::create(&path).unwrap().set_len(64 * MIB as u64).unwrap();
    assert_no_space(&SharedArray::<u8, _>::open("sparse", 64 * MIB).unwrap_err(), 64 * MIB, 6 * MIB);
    assert_no_space(
        &AttachOptions::<SharedArray<u8, _>>::new().access(Access::Read).open("sparse", 64 * MIB).unwrap_err(),
        64 * MIB,
        6 * MIB,
    );
    assert_no_space(&ArrayReader::<u8, _>::open("sparse", 64 * MIB).unwrap_err(), 64 * MIB, 6 * MIB);
    let options = AttachOptions::<SharedArray<u8, _>>::new().access(Access::Read).leave_holes(true);
    assert!(options.open("sparse", 64 * MIB).unwrap().is_sparse().unwrap());
    std::fs::remove_file(&path).unwrap();

    // Many small arrays end with the same error, and every array created before it is usable.
    let mut small = Vec::new();
    let error = loop {
        match SharedArray::<u8, _>::create(format!("small-{}", small.len()), MIB / 16) {
            Ok(array) => small.push(array),
            Err(error) => break error,
        }
    };
    assert!(error.is_no_space(), "{error}");
    for array in &small {
        array.write().unwrap().fill(9);
    }
    assert_eq!(half.read().unwrap().iter().map(|value| u64::from(*value)).sum::<u64>(), 10 * MIB as u64);
    assert!(about_disk() <= 1, "the warning is logged once");
    // The mount's size does not limit sealed memory.
    assert_eq!(FrozenArray::<u8, _>::create_with(32 * MIB, |mut view| view.fill(2)).unwrap()[7], 2);
    say("alive");
}

fn a_full_file_system_is_an_error_and_leaves_nothing(place: &Place) {
    let mount = small(place, "size=16m");
    let mut child = Child::spawn(sandbox::with_mounts(place, &mount, "fill-file-system", &[]));
    child.expect("alive");
    child.finish();
}

/// A child on a file system with few inodes.
fn no_inodes(_: &[String]) {
    let mut arrays = Vec::new();
    let error = loop {
        match SharedArray::<u8, _>::create(format!("array-{}", arrays.len()), 4) {
            Ok(array) => arrays.push(array),
            Err(error) => break error,
        }
        assert!(arrays.len() < 10);
    };
    assert!(error.is_no_space() && error.to_string().contains("inodes"), "{error}");
    say("alive");
}

fn file_system_without_inodes_is_reported(place: &Place) {
    let mount = small(place, "size=16m,nr_inodes=6");
    let mut child = Child::spawn(sandbox::with_mounts(place, &mount, "no-inodes", &[]));
    child.expect("alive");
    child.finish();
}

/// A child with a memory limit of 64 MiB.
fn exceed_memory(arguments: &[String]) {
    let (name, kept) = (arguments[0].as_str(), arguments[1].as_str());
    let error = SharedArray::<u8, _>::create(name, 256 * MIB).unwrap_err();
    assert_no_space(&error, 256 * MIB, 64 * MIB);
    assert!(error.to_string().contains("memory limit of the container"), "{error}");
    assert!(SharedArray::<u8, _>::create_with(kept, 16 * MIB, |mut view| view.fill(1)).is_ok());
    let error = FrozenArray::<u8, _>::create_with(256 * MIB, |_| {}).unwrap_err();
    assert_no_space(&error, 256 * MIB, 64 * MIB);
    let error = RenderBuffer::<u8, _>::create(name, 256 * MIB, MIB, "too large").unwrap_err();
    assert_no_space(&error, 256 * MIB, 64 * MIB);
    say("alive");
}

fn a_memory_limit_is_an_error_and_the_process_lives(place: &Place) {
    let group = MemoryGroup::new(64 << 20).expect("checked before");
    let names: [Name; 2] = [place.location("memory"), place.location("memory-kept")];
    let mut child = Child::spawn(group.command(place, "exceed-memory", &[names[0].as_str(), names[1].as_str()]));
    child.expect("alive");
    child.finish();
    assert!(place.files_of(&names[0]).is_empty());
}

/// Acts as a library that prefers real shared memory, and uses files where shared memory has no room for an array.
fn with_fallback<R>(
    is_worth_another_try: impl Fn(&Error) -> bool,
    attempt: impl Fn(Directory) -> Result<R, Error>,
) -> Result<R, Error> {
    match Directory::shm().and_then(&attempt) {
        Err(error) if error.is_unsupported() || is_worth_another_try(&error) => attempt(Directory::emulated()?),
        other => other,
    }
}

/// The lengths of the library's arrays.
const LENGTHS: [(&str, usize); 2] = [("small", MIB), ("large", 32 * MIB)];

/// A child that creates its arrays where there is room, has another process open them, and reports their backends.
fn create_with_fallback(names: &[String]) {
    let arrays = names.iter().zip(LENGTHS).map(|(name, (_, length))| {
        let create = |directory: Directory| {
            let options = CreateOptions::<SharedArray<u8, _>>::new().backend(directory);
            options.create_with(name, length, |mut view| view.fill(3))
        };
        with_fallback(|error| error.is_no_space() || error.is_permission_denied(), create).unwrap()
    });
    let arrays: Vec<_> = arrays.collect();
    let mut command = std::process::Command::new(program());
    command.env(ROLE, "open-with-fallback").args(names);
    let mut other = Child::spawn(command);
    other.expect("changed");
    other.finish();
    for array in &arrays {
        assert_eq!(array.read().unwrap()[7], 4, "the other process changed it");
        assert!(array.unlink().unwrap());
    }
    say(arrays.iter().map(|array| array.backend().name().to_owned()).collect::<Vec<_>>().join(" "));
}

/// The other process, which gets only the names.
fn open_with_fallback(names: &[String]) {
    for (name, (_, length)) in names.iter().zip(LENGTHS) {
        let open =
            |directory: Directory| AttachOptions::<SharedArray<u8, _>>::new().backend(directory).open(name, length);
        let array = with_fallback(Error::is_not_found, open).unwrap();
        assert_eq!(array.read().unwrap()[length - 1], 3);
        array.write().unwrap()[7] = 4;
    }
    say("changed");
}

fn fallback_backend_is_the_same_in_all_processes(place: &Place) {
    for (options, places) in
        [("size=16m", "shm emulated"), ("size=64m", "shm shm"), ("size=64m,ro", "emulated emulated")]
    {
        let files = tempfile::tempdir().unwrap();
        let names = LENGTHS.map(|(name, _)| format!("fallback-{name}"));
        let mount = format!("mount -t tmpfs -o {options} none /dev/shm");
        let mut command =
            sandbox::with_mounts(place, &mount, "create-with-fallback", &[names[0].as_str(), names[1].as_str()]);
        command.env("NDSHM_EMULATED_DIR", files.path()).env_remove("EMULATE_SHM");
        let mut child = Child::spawn(command);
        child.expect(places);
        child.finish();
        assert_eq!(std::fs::read_dir(files.path()).unwrap().count(), 0, "{options}");
    }
}
