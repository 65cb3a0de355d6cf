//! The machine's limits: free space, memory, file sizes. No data may be lost, and no process killed.

use std::any::Any;
use std::fs::File;
use std::sync::{Arc, Mutex};

use libtest_mimic::Trial;
use ndarray_shm::arena::ArenaOptions;
use ndarray_shm::arena::loans::Counters;
use ndarray_shm::backend::Backend;
use ndarray_shm::counted::{Handle, HandleOptions, SharingStrategy, give_up, on_no_space};
use ndarray_shm::render::{self, RenderOptions};
use ndarray_shm::{
    Access, ArrayReader, CreateOptions, Directory, Error, ErrorKind, FrozenArray, Location, OpenOptions, Pages,
    RenderBuffer, SharedArray, default_directory,
};

use super::sandbox::{self, MemoryGroup, unless};
use crate::support::child::{Child, ROLE, Role, program, say};
use crate::support::{Name, Place, Test, backend_of_child, meddling};
use crate::tests;

const MIB: usize = 1 << 20;

pub fn trials(place: &Place) -> Vec<Trial> {
    let limits = |tests: &[(&str, Test)]| place.trials("linux", "limits", tests);
    let mut trials = limits(tests![
        exceeding_the_file_size_limit_is_an_error,
        failed_create_leaves_no_name_however_few_descriptors_there_are,
        arena_that_cannot_be_joined_leaves_no_name,
    ]);
    trials.extend(sandbox::with_private_mounts(limits(tests![
        a_full_file_system_is_an_error_and_leaves_nothing,
        file_system_without_inodes_is_reported,
        used_handles_are_given_up_when_there_is_no_room,
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
    ("give-up-for-room", give_up_for_room),
    ("create-with-fallback", create_with_fallback),
    ("open-with-fallback", open_with_fallback),
    ("exceed-memory", exceed_memory),
    ("exceed-file-size", exceed_file_size),
    ("few-descriptors", few_descriptors),
    ("no-descriptors-to-join", no_descriptors_to_join),
];

/// A child with a file size limit of 16 KiB.
fn exceed_file_size(arguments: &[String]) {
    let name = arguments[0].as_str();
    for error in [
        SharedArray::<u8, _>::create(name, MIB).unwrap_err(),
        CreateOptions::new().pages(Pages::Sparse).create::<u8, ndarray::Ix1>(name, MIB).unwrap_err(),
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
        Error { kind: ErrorKind::NoSpace { needed, available, .. }, .. } => {
            assert_eq!(*needed, wanted as u64);
            assert!(*available <= at_most as u64, "{available}");
        }
        other => panic!("{other}"),
    }
}

pub fn files() -> usize {
    default_directory().unwrap().list().unwrap().len()
}

/// Returns a command that mounts a small file system at the backend's directory.
pub fn small(place: &Place, options: &str) -> String {
    format!("mount -t tmpfs -o mode=0700,{options} none '{}'", place.directory().display())
}

/// A child with 16 MiB for all its arrays. It sends some of 3 MiB with reusable handles, which it gives up when there
/// is no room.
fn give_up_for_room(_: &[String]) {
    static SENT: Mutex<Vec<Handle>> = Mutex::new(Vec::new());
    let send = || {
        let array = CreateOptions::new().share::<u8, _>(SharingStrategy::FileSystem, 3 * MIB)?;
        let handle = array.handle_with(HandleOptions::new().reusable())?;
        SENT.lock().unwrap().push(handle.clone());
        Ok::<_, Error>(handle)
    };
    let use_it = |handle: &Handle| drop(handle.attach::<u8, ndarray::Ix1>().unwrap());
    let unused = send().unwrap();
    (0..4).for_each(|_| use_it(&send().unwrap()));
    let error = send().unwrap_err();
    assert!(
        matches!(&error, Error { kind: ErrorKind::NoSpace { in_flight, .. }, .. } if *in_flight > 15 * MIB as u64),
        "{error}"
    );
    assert!(
        error.to_string().contains("keep 16 MiB of arrays") && error.to_string().contains("gc --in-flight"),
        "{error}"
    );

    let calls = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&calls);
    assert!(on_no_space(move |directory, bytes| {
        assert_eq!(directory.path(), default_directory().unwrap().path());
        noted.lock().unwrap().push(bytes);
        SharedArray::<u8, _>::create("inner", 64 * MIB).unwrap_err(); // does not call this again
        give_up(&*SENT.lock().unwrap(), bytes) > 0
    }));
    assert!(!on_no_space(|_, _| true), "the first one stays");
    // Every kind of array: the memory of one that was sent is free each time, the oldest first.
    let [old, new] = [1, 4].map(|number: usize| SENT.lock().unwrap()[number].clone());
    let plain = SharedArray::<u8, _>::create("plain", 3 * MIB).unwrap();
    assert!(old.attach::<u8, ndarray::Ix1>().is_err() && new.attach::<u8, ndarray::Ix1>().is_ok());
    let painted = RenderBuffer::<u8, _>::create("painted", 3 * MIB, MIB, "no room").unwrap();
    let arena = ArenaOptions::new().create("arena", 2 * MIB as u64).unwrap();
    for _ in 0..50 {
        use_it(&send().unwrap());
    }
    assert_eq!(unused.attach::<u8, ndarray::Ix1>().unwrap().len(), 3 * MIB, "no receiver has had it");
    let before = calls.lock().unwrap().len();
    assert!(before >= 50);
    // What would not suffice is not given up.
    let last = SENT.lock().unwrap().last().unwrap().clone();
    assert_no_space(&SharedArray::<u8, _>::create("large", 64 * MIB).unwrap_err(), 64 * MIB, 16 * MIB);
    assert_eq!(calls.lock().unwrap().len(), before + 1);
    assert!(last.attach::<u8, ndarray::Ix1>().is_ok());
    drop((arena, painted));
    render::discard(&default_directory().unwrap(), &"painted".parse().unwrap()).unwrap();
    plain.unlink().unwrap();
    for handle in SENT.lock().unwrap().iter() {
        handle.revoke().unwrap();
    }
    assert_eq!(files(), 0);
    say("done");
}

fn used_handles_are_given_up_when_there_is_no_room(place: &Place) {
    let place = &place.private();
    let mut child = Child::spawn(sandbox::with_mounts(place, &small(place, "size=16m"), "give-up-for-room", &[]));
    child.expect("done");
    child.finish();
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
    assert!(text.contains("`large`: 67108864 bytes are needed") && text.contains("remount,size="), "{text}");
    // Emulated shared memory is not Docker's mount, and cannot be emulated once more.
    let is_real = default_directory().unwrap().name() == "shm";
    assert_eq!((text.contains("--shm-size"), text.contains("EMULATE_SHM=1")), (is_real, is_real), "{text}");
    assert_eq!(files(), 0);
    let error = RenderBuffer::<u8, _>::create("large", 64 * MIB, MIB, "too large").unwrap_err();
    assert_no_space(&error, 64 * MIB, 16 * MIB);
    assert_eq!(files(), 0, "neither payload nor ledger");

    let half = SharedArray::<u8, _>::create_with("half", 10 * MIB, |mut view| view.fill(1)).unwrap();
    // The warning is for disks, which other programs share. Shared memory may be filled.
    let about_disk =
        || WARNINGS.0.lock().unwrap().iter().filter(|text| text.contains("less than 1 GiB of its disk")).count();
    assert_eq!(about_disk(), usize::from(default_directory().unwrap().name() == "emulated"));
    let error = SharedArray::<u8, _>::create("half-again", 10 * MIB).unwrap_err();
    assert_no_space(&error, 10 * MIB, 6 * MIB);
    let error = SharedArray::<u8, _>::create("half", 64 * MIB).unwrap_err();
    assert_eq!(error.kind, ErrorKind::AlreadyExists, "a full memory does not hide that the name is taken: {error}");

    // A foreign sparse file is opened only if its holes can be filled, since on tmpfs even reading a hole allocates
    // memory.
    let path = default_directory().unwrap().path().join("sparse");
    std::fs::File::create(&path).unwrap().set_len(64 * MIB as u64).unwrap();
    assert_no_space(&SharedArray::<u8, _>::open("sparse", 64 * MIB).unwrap_err(), 64 * MIB, 6 * MIB);
    assert_no_space(
        &OpenOptions::new().access(Access::Read).open::<u8, _>("sparse", 64 * MIB).unwrap_err(),
        64 * MIB,
        6 * MIB,
    );
    assert_no_space(&ArrayReader::<u8, _>::open("sparse", 64 * MIB).unwrap_err(), 64 * MIB, 6 * MIB);
    let options = OpenOptions::new().access(Access::Read).leave_holes(true);
    assert!(options.open::<u8, _>("sparse", 64 * MIB).unwrap().is_sparse().unwrap());
    std::fs::remove_file(&path).unwrap();

    // Many small arrays end with the same error, and every array created before it is usable.
    let mut small = Vec::new();
    let error = loop {
        match SharedArray::<u8, _>::create(format!("small-{}", small.len()), MIB / 16) {
            Ok(array) => small.push(array),
            Err(error) => break error,
        }
    };
    assert!(matches!(error.kind, ErrorKind::NoSpace { .. }), "{error}");
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
    assert!(matches!(error.kind, ErrorKind::NoSpace { .. }) && error.to_string().contains("inodes"), "{error}");
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
        Err(error) if matches!(error.kind, ErrorKind::Unsupported { .. }) || is_worth_another_try(&error) => {
            attempt(Directory::emulated()?)
        }
        other => other,
    }
}

/// The lengths of the library's arrays.
const LENGTHS: [(&str, usize); 2] = [("small", MIB), ("large", 32 * MIB)];

/// A child that creates its arrays where there is room, has another process open them, and reports their backends.
fn create_with_fallback(names: &[String]) {
    let arrays = names.iter().zip(LENGTHS).map(|(name, (_, length))| {
        let create = |directory: Directory| {
            let options = CreateOptions::new().directory(directory);
            options.create_with::<u8, _>(name, length, |mut view| view.fill(3))
        };
        with_fallback(
            |error| {
                matches!(error.kind, ErrorKind::NoSpace { .. })
                    || matches!(error.kind, ErrorKind::PermissionDenied { .. })
            },
            create,
        )
        .unwrap()
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
    say(arrays.iter().map(|array| array.directory().name().to_owned()).collect::<Vec<_>>().join(" "));
}

/// The other process, which gets only the names.
fn open_with_fallback(names: &[String]) {
    for (name, (_, length)) in names.iter().zip(LENGTHS) {
        let open = |directory: Directory| OpenOptions::new().directory(directory).open::<u8, _>(name, length);
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

type Created = ndarray_shm::Result<Box<dyn Any>>;
type Kind = (&'static str, fn(&Directory) -> Created);

/// A child that creates something of each kind with no free descriptor, with one, and so on, until there are enough.
fn few_descriptors(_arguments: &[String]) {
    fn boxed(created: impl Any) -> Box<dyn Any> {
        Box::new(created)
    }
    const KINDS: [Kind; 6] = [
        ("array", |place| {
            let options = CreateOptions::new().directory(place.clone());
            options.create::<u8, ndarray::Ix1>("few", 8).map(boxed)
        }),
        ("counted array", |place| {
            let options = CreateOptions::new().directory(place.clone());
            options.create_counted::<u8, ndarray::Ix1>("few", 8).map(boxed)
        }),
        ("arena", |place| ArenaOptions::new().directory(place.clone()).create("few", 1 << 16).map(boxed)),
        ("kept arena", |place| {
            ArenaOptions::new().directory(place.clone()).keep(true).create("few", 1 << 16).map(boxed)
        }),
        ("counters", |place| Counters::create_in(place, "few", 8).map(boxed)),
        ("renderbuffer", |place| {
            RenderOptions::new().directory(place.clone()).create::<u8, ndarray::Ix1>("few", 8, 8, "few").map(boxed)
        }),
    ];
    let (place, name) = (backend_of_child(), "few".parse().unwrap());
    let mut wrong = Vec::new();
    for (kind, create) in KINDS {
        let enough = (0..32).find(|free| {
            let mut taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
            taken.truncate(taken.len() - free);
            let created = create(&place);
            drop(taken);
            let names: Vec<String> = place.list().unwrap().into_iter().map(|entry| entry.name).collect();
            if let Err(error) = &created {
                // Without a descriptor for /proc, the overflow user (65534) cannot be told from users without a number.
                let is_doubted = matches!(error.kind, ErrorKind::ForeignOwner { .. })
                    && rustix::process::geteuid().as_raw() == 65534;
                if !(matches!(error.kind, ErrorKind::TooManyOpenFiles { .. }) || is_doubted) || !names.is_empty() {
                    wrong.push(format!("{kind} with {free} descriptors: {error}; left {names:?}"));
                }
            }
            let is_enough = created.is_ok();
            drop(created);
            render::discard(&place, &name).unwrap();
            Backend::unlink(&place, &name, None).unwrap();
            is_enough
        });
        assert!(enough.is_some_and(|enough| enough > 0), "{kind}: {enough:?}");
        assert!(place.list().unwrap().is_empty(), "{kind}");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    say("as expected");
}

/// A child that has no descriptor left when its arena or its counters have got their name.
fn no_descriptors_to_join(_arguments: &[String]) {
    let place = backend_of_child();
    let taken = Arc::new(Mutex::new(Vec::new()));
    let all = Arc::clone(&taken);
    let meddling = meddling(&place, move |what, _| {
        if what == "publish" {
            all.lock().unwrap().extend(std::iter::from_fn(|| File::open("/dev/null").ok()));
        }
        Ok(())
    });
    let name: Location = "joining".parse().unwrap();
    for keep in [false, true] {
        let error = ArenaOptions::new().directory(meddling.clone()).keep(keep).create(&name, 1 << 16).unwrap_err();
        taken.lock().unwrap().clear();
        assert!(matches!(error.kind, ErrorKind::TooManyOpenFiles { .. }), "{error}");
        assert!(place.list().unwrap().is_empty(), "kept: {keep}");
    }
    let error = Counters::create_in(&meddling, &name, 8).unwrap_err();
    taken.lock().unwrap().clear();
    assert!(matches!(error.kind, ErrorKind::TooManyOpenFiles { .. }), "{error}");
    assert!(place.list().unwrap().is_empty());
    say("as expected");
}

fn arena_that_cannot_be_joined_leaves_no_name(place: &Place) {
    if place.has_hidden_drafts() {
        return; // naming a hidden draft takes descriptors itself
    }
    let place = &place.private();
    let mut child = Child::spawn(sandbox::with_descriptors(place, 40, "no-descriptors-to-join", &[]));
    child.expect("as expected");
    child.finish();
}

fn failed_create_leaves_no_name_however_few_descriptors_there_are(place: &Place) {
    if place.has_hidden_drafts() {
        return; // the test's own backend opens files too
    }
    let place = &place.private();
    let mut child = Child::spawn(sandbox::with_descriptors(place, 40, "few-descriptors", &[]));
    child.expect("as expected");
    child.finish();
}
