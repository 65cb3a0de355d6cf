//! Page-locked arrays: what is locked and unlocked when, which memory can be locked, and what a fork or a kill leaves.
//!
//! Each case runs in a process of its own, so that the double's counts are those of the case alone.

use std::env;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use ndarray::{Array1, Ix1, array};
use ndarray_shm::array::SealableDraft;
use ndarray_shm::counted::{Channel, SharingStrategy};
use ndarray_shm::{
    Access, ArrayReader, ArrayWriter, CreateOptions, Directory, Draft, FrozenArray, NextClaim, OpenOptions, Pages,
    Pool, RefcountedArray, RenderBuffer, SharedArray, unlink,
};
use ndarray_shm_cuda::{Device, DeviceArray, Error, PageLockable, PageLocked};

use crate::failures::fail_every_call;
use crate::named;
use crate::support::{Actor, LIMIT, Role, descriptors, double, is_real};

/// A case, and the environment of its process.
pub type Case = (&'static str, Role, &'static [(&'static str, &'static str)]);

/// Cases for the double alone, with what it is to lack.
const WITH_THE_DOUBLE: &[Case] = &[
    (
        "read_only_array_is_refused_where_the_flag_is_unknown",
        read_only_array_is_refused_where_the_flag_is_unknown,
        LACKS_READ_ONLY,
    ),
    ("gpu_without_locked_pages_is_an_error", gpu_without_locked_pages_is_an_error, &[("FAKE_CUDA_LACKS", "99")]),
    (
        "gpu_without_the_hosts_memory_is_an_error",
        gpu_without_the_hosts_memory_is_an_error,
        &[("FAKE_CUDA_LACKS", "19")],
    ),
    ("array_on_a_disk_is_refused_and_given_back", array_on_a_disk_is_refused_and_given_back, &[]),
    ("pages_serve_every_gpu", pages_serve_every_gpu, &[("FAKE_CUDA_DEVICES", "2")]),
    ("pages_that_stay_locked_are_never_unmapped", pages_that_stay_locked_are_never_unmapped, REFUSES_UNLOCKING),
    ("failed_lock_gives_the_array_back", failed_lock_gives_the_array_back, &[]),
    ("failed_unlock_is_tried_again", failed_unlock_is_tried_again, &[]),
    ("each_call_fails_once_without_a_leak", each_call_fails_once_without_a_leak, &[]),
];

const LACKS_READ_ONLY: &[(&str, &str)] = &[("FAKE_CUDA_LACKS", "113")];
const REFUSES_UNLOCKING: &[(&str, &str)] = &[("FAKE_CUDA_REFUSE", "cuMemHostUnregister")];

const CASES: &[(&str, Role)] = named![
    every_kind_of_array_is_locked_and_unlocked,
    array_without_elements_has_nothing_to_lock,
    array_with_holes_is_locked,
    array_on_huge_pages_is_locked,
    pool_takes_memory_back_after_it_is_unlocked,
    painted_array_reaches_the_gpu,
    pages_that_are_locked_already_are_refused,
    forked_child_unlocks_nothing,
    killed_process_leaves_no_lock,
];

const HELPERS: &[(&str, Role)] = named![paint, hold_locked_arrays];

pub fn roles() -> Vec<(&'static str, Role)> {
    let with_the_double = WITH_THE_DOUBLE.iter().map(|(name, role, _)| (*name, *role));
    CASES.iter().chain(HELPERS).copied().chain(with_the_double).collect()
}

pub fn trials() -> Vec<Trial> {
    let everywhere = CASES.iter().map(|(name, _)| trial("page_locked", name, &[]));
    let with_the_double = WITH_THE_DOUBLE.iter().map(|(name, _, variables)| trial("page_locked", name, variables));
    if is_real() { everywhere.collect() } else { everywhere.chain(with_the_double).collect() }
}

/// Why this system locks no pages, or none that are mapped read-only, if it does not.
fn refusal() -> Option<Error> {
    let draft = PageLocked::new(gpu(), Draft::<u8, _>::new(LENGTH).expect("a draft")).err().map(Error::from);
    let frozen = FrozenArray::from_array(&array![1u8]).expect("an array");
    draft.or_else(|| PageLocked::new(gpu(), frozen).err().map(Error::from))
}

/// A test that runs a role in a process of its own.
pub fn trial(suite: &str, name: &'static str, variables: &'static [(&'static str, &'static str)]) -> Trial {
    Trial::test(format!("{suite}::{name}"), move || {
        if let Some(error) = is_real().then(refusal).flatten() {
            println!("REFUSED {name}: {error}");
            return Ok(());
        }
        let mut child = Actor::start_with(name, variables);
        if child.wait().success() { Ok(()) } else { Err(Failed::from("the process of the case failed")) }
    })
}

pub fn gpu() -> Device {
    Device::new(0).expect("a GPU")
}

/// A name in shared memory, which is removed at the end.
pub struct Name(pub String);

impl Name {
    pub fn new(what: &str) -> Self {
        Self(format!("it-cuda-{what}-{}", std::process::id()))
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let _ = unlink(self.0.as_str()); // a test that failed may not have made it
    }
}

/// Fails unless this many arrays are locked, and the driver was used well.
pub fn assert_locked(count: u64) {
    if !is_real() {
        assert_eq!(double::live("registered"), count, "locked arrays");
        double::assert_no_violation();
    }
}

/// Locks an array, looks at it, and takes it out again.
fn lock_and_unlock<A: PageLockable>(array: A) -> A {
    let locked = PageLocked::new(gpu(), array).unwrap_or_else(|refused| panic!("{refused}"));
    assert_locked(1);
    assert_ne!(locked.device_pointer().expect("an address"), 0);
    let array = locked.into_inner().unwrap_or_else(|refused| panic!("{refused}"));
    assert_locked(0);
    array
}

/// Locks an array twice: it is taken out, and then dropped while its pages are locked.
fn lock_and_drop<A: PageLockable>(array: A) {
    let array = lock_and_unlock(array);
    let locked = PageLocked::new(gpu(), array).unwrap_or_else(|refused| panic!("{refused}"));
    assert_locked(1);
    drop(locked);
    assert_locked(0);
}

const LENGTH: usize = 100_000;

fn every_kind_of_array_is_locked_and_unlocked(_: Channel) {
    let name = Name::new("kinds");
    let name = name.0.as_str();
    let shared = SharedArray::<u32, _>::create(name, LENGTH).expect("an array");
    shared.write().expect("a guard").fill(7);
    lock_and_drop(shared);
    let read_only = OpenOptions::new().access(Access::Read);
    lock_and_drop(read_only.open::<u32, _>(name, LENGTH).expect("an array"));
    lock_and_drop(ArrayReader::<u32, _>::open(name, LENGTH).expect("a reader"));
    let mut writer =
        PageLocked::new(gpu(), ArrayWriter::<u32, _>::open(name, LENGTH).expect("a writer")).expect("a lock");
    writer.view_mut().fill(8);
    assert_eq!(
        DeviceArray::from_host(gpu(), &writer.view()).expect("a copy").to_host().expect("a copy")[LENGTH - 1],
        8
    );
    drop(writer);
    assert_locked(0);

    let mut draft = PageLocked::new(gpu(), Draft::<u32, _>::new(LENGTH).expect("a draft")).expect("a lock");
    draft.view_mut().fill(9);
    assert_eq!(DeviceArray::from_host(gpu(), &draft.view()).expect("a copy").to_host().expect("a copy")[0], 9);
    lock_and_drop(draft.into_inner().expect("a draft"));

    let mut sealable = PageLocked::new(gpu(), SealableDraft::<u32, _>::new(LENGTH).expect("a draft")).expect("a lock");
    sealable.view_mut().fill(10);
    let frozen = sealable.into_inner().expect("a draft").freeze().expect("a frozen array");
    assert_eq!(frozen[LENGTH - 1], 10);
    lock_and_drop(frozen.clone());
    lock_and_drop(frozen.without_fd());

    for strategy in [SharingStrategy::FileSystem, SharingStrategy::FileDescriptor] {
        let counted = Draft::<u32, _>::new(LENGTH).expect("a draft").share(strategy).expect("a counted array");
        counted.write().expect("a guard").fill(11);
        let counted = lock_and_unlock(counted);
        let locked = PageLocked::new(gpu(), counted).expect("a lock");
        locked.publish().expect("a name"); // does not move the elements
        locked.freeze().expect("no guard");
        let again = locked.try_clone().expect("an array mapped read-only");
        assert!(again.is_readonly());
        assert_locked(1);
        drop(locked);
        lock_and_drop(again.into_reader().expect("a reader"));
    }
    let counted = Draft::<u32, _>::new(LENGTH).expect("a draft").share(SharingStrategy::FileSystem).expect("an array");
    let location = counted.location().expect("a name").clone();
    drop(PageLocked::new(gpu(), counted).expect("a lock"));
    assert_locked(0);
    assert!(RefcountedArray::<u32, Ix1>::open(location).is_err(), "the last handle removes the name");
}

fn array_without_elements_has_nothing_to_lock(_: Channel) {
    let mut draft = PageLocked::new(gpu(), Draft::<f64, _>::new((0, 5)).expect("a draft")).expect("nothing to lock");
    assert_locked(0);
    assert_eq!(draft.view_mut().shape(), [0, 5]);
    assert_eq!(draft.device_pointer().expect("no address"), 0);
    let stream = gpu().new_stream().expect("a stream");
    let (copy, draft) = DeviceArray::upload(draft, &stream).expect("a transfer").wait().expect("its end");
    assert_eq!((copy.shape(), copy.is_empty()), (&[0, 5][..], true));
    let draft = copy.download(draft, &stream).expect("a transfer").wait().expect("its end");
    assert_eq!(draft.into_inner().expect("a draft").shape(), [0, 5]);
}

fn array_with_holes_is_locked(_: Channel) {
    let name = Name::new("holes");
    let sparse = CreateOptions::new().pages(Pages::Sparse);
    let sparse = sparse.create::<u8, _>(name.0.as_str(), 64 << 20).expect("an array");
    lock_and_drop(sparse);
}

fn array_on_huge_pages_is_locked(_: Channel) {
    let name = Name::new("huge");
    let huge = CreateOptions::new().pages(Pages::Huge);
    let huge = huge.create::<u8, _>(name.0.as_str(), (4 << 20) + 1).expect("an array");
    lock_and_drop(huge);
}

fn pool_takes_memory_back_after_it_is_unlocked(_: Channel) {
    let (pool, name) = (Pool::new().expect("a pool"), Name::new("pool"));
    let mut hits = 0;
    // Arrays of different lengths in one memory: publishing a shorter one maps the memory anew.
    for (round, length) in [LENGTH, LENGTH - 9000, LENGTH - 18_000, LENGTH, LENGTH].into_iter().enumerate() {
        let draft = pool.take::<u32, _>(length).expect("a draft");
        hits += u64::from(draft.is_recycled());
        let mut draft = PageLocked::new(gpu(), draft).expect("a lock");
        draft.view_mut().fill(round as u32);
        let array = draft.into_inner().expect("a draft").publish(name.0.as_str()).expect("a name");
        assert_locked(0);
        let array = PageLocked::new(gpu(), array).expect("a lock");
        assert_locked(1);
        let copy = DeviceArray::from_host(gpu(), &array.read().expect("a guard")).expect("a copy");
        assert_eq!(copy.to_host().expect("a copy"), Array1::from_elem(length, round as u32));
        drop(array);
        assert_locked(0);
    }
    drop(PageLocked::new(gpu(), pool.take::<u32, _>(LENGTH).expect("a draft")).expect("a lock"));
    assert!(pool.take::<u32, _>(LENGTH).expect("a draft").is_recycled(), "the dropped draft returned to the pool");
    assert!(hits >= 3, "only {hits} arrays were in recycled memory");
    assert_eq!(pool.stats().lent.arrays, 0);
    assert_locked(0);
}

/// Paints the chunks of the buffer of this name.
fn paint(channel: Channel) {
    let name: String = channel.receive_timeout(LIMIT).expect("a name").message;
    let buffer = RenderBuffer::<u32, _>::create(name.as_str(), (64, 64), (8, 8), "page-locked").expect("a buffer");
    while let NextClaim::Chunk(mut chunk) = buffer.claim_next_wait(Duration::MAX).expect("a claim") {
        let index = chunk.index() as u32;
        chunk.view_mut().fill(index);
        chunk.commit().expect("a chunk");
    }
    channel.send(&(), &[]).expect("the test");
}

fn painted_array_reaches_the_gpu(_: Channel) {
    let name = Name::new("painted");
    let buffer = RenderBuffer::<u32, _>::create(name.0.as_str(), (64, 64), (8, 8), "page-locked").expect("a buffer");
    let painters = [Actor::start("paint"), Actor::start("paint")];
    painters.iter().for_each(|painter| painter.tell(&name.0));
    painters.iter().for_each(Actor::hear::<()>);
    let painted = PageLocked::new(gpu(), buffer.finish().expect("all chunks are painted")).expect("a lock");
    let copy = DeviceArray::from_host(gpu(), &painted.read().expect("a guard")).expect("a copy");
    let back = copy.to_host().expect("a copy");
    assert_eq!(back, painted.read().expect("a guard").to_owned());
    assert_eq!((back[[0, 0]], back[[63, 63]]), (0, 63));
    drop(painted);
    assert_locked(0);
    painters.into_iter().for_each(Actor::join);
}

fn pages_that_are_locked_already_are_refused(_: Channel) {
    let frozen = FrozenArray::from_array(&array![1u8, 2, 3]).expect("an array");
    let first = PageLocked::new(gpu(), frozen.clone()).expect("a lock");
    let refused = PageLocked::new(gpu(), frozen).expect_err("both are one mapping");
    assert!(matches!(refused.error(), Error::NotPinnable { .. }), "{refused}");
    assert_eq!(refused.into_inner()[2], 3);
    assert_locked(1);
    drop(first);
    assert_locked(0);
}

fn read_only_array_is_refused_where_the_flag_is_unknown(_: Channel) {
    let name = Name::new("read-only");
    SharedArray::<u8, _>::create(name.0.as_str(), LENGTH).expect("an array");
    let refused = PageLocked::new(gpu(), ArrayReader::<u8, _>::open(name.0.as_str(), LENGTH).expect("a reader"));
    let refused = refused.expect_err("the mapping is read-only");
    let Error::NotPinnable { location, reason } = refused.error() else { panic!("{refused}") };
    assert_eq!(location, &name.0);
    assert!(reason.contains("read-only"), "{reason}");
    drop(refused);
    lock_and_drop(ArrayWriter::<u8, _>::open(name.0.as_str(), LENGTH).expect("a writer"));
}

fn gpu_without_locked_pages_is_an_error(_: Channel) {
    let refused = PageLocked::new(gpu(), Draft::<u8, _>::new(LENGTH).expect("a draft")).expect_err("no support");
    assert!(matches!(refused.error(), Error::Unsupported { .. }), "{refused}");
    assert_locked(0);
}

fn gpu_without_the_hosts_memory_is_an_error(_: Channel) {
    let locked = PageLocked::new(gpu(), Draft::<u8, _>::new(LENGTH).expect("a draft")).expect("a lock");
    assert!(matches!(locked.device_pointer(), Err(Error::Unsupported { .. })));
    drop(locked);
    assert_locked(0);
}

/// A directory that is not in memory; it is removed at the end.
struct OnDisk(PathBuf);

impl OnDisk {
    fn find() -> Option<Self> {
        let program = env::current_exe().ok()?;
        let places = [Some(Path::new(env!("CARGO_TARGET_TMPDIR"))), program.parent(), Some(Path::new("/var/tmp"))];
        let place = places.into_iter().flatten().find(|place| is_on_disk(place))?;
        let directory = place.join(format!("it-cuda-{}", std::process::id()));
        fs::create_dir_all(&directory).ok()?;
        Some(Self(directory))
    }
}

impl Drop for OnDisk {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // the test has its result
    }
}

fn is_on_disk(place: &Path) -> bool {
    let path = CString::new(place.as_os_str().as_bytes()).expect("a path");
    // SAFETY: every bit pattern is a value of this structure of numbers.
    let mut system: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is a C string, `system` is valid for the write of the structure.
    let answer = unsafe { libc::statfs(path.as_ptr(), &raw mut system) };
    answer == 0 && system.f_type != libc::TMPFS_MAGIC && system.f_type != libc::HUGETLBFS_MAGIC
}

fn array_on_a_disk_is_refused_and_given_back(_: Channel) {
    let Some(disk) = OnDisk::find() else {
        println!("NOT RUN: array_on_a_disk_is_refused_and_given_back: every directory of this machine is in memory");
        return;
    };
    let backend = Directory::new("disk", &disk.0);
    let options = CreateOptions::new().directory(backend.clone());
    let array = options.create_with::<u8, _>("it-cuda", LENGTH, |mut view| view.fill(3)).expect("an array");
    let refused = PageLocked::new(gpu(), array).expect_err("the pages of files on disks cannot be locked");
    let Error::NotPinnable { location, reason } = refused.error() else { panic!("{refused}") };
    assert_eq!(Path::new(location), disk.0.join("it-cuda"));
    assert!(reason.contains("/dev/shm"), "{reason}");
    // The array works, also for copies.
    let array = refused.into_inner();
    let copy = DeviceArray::from_host(gpu(), &array.read().expect("a guard")).expect("a copy");
    assert_eq!(copy.to_host().expect("a copy")[LENGTH - 1], 3);
    drop(array);

    let pool = ndarray_shm::pool::PoolOptions::new().directory(backend).create().expect("a pool");
    let refused = PageLocked::new(gpu(), pool.take::<u8, _>(LENGTH).expect("a draft")).expect_err("on the disk");
    assert!(refused.to_string().contains(&disk.0.display().to_string()), "{refused}");
    drop(refused);
    assert_eq!(pool.stats().lent.arrays, 0, "the draft returned to the pool");
    assert_locked(0);
}

fn pages_serve_every_gpu(_: Channel) {
    let other = Device::new(1).expect("a second GPU");
    let mut draft = PageLocked::new(gpu(), Draft::<u16, _>::new(LENGTH).expect("a draft")).expect("a lock");
    draft.view_mut().fill(5);
    let copy = DeviceArray::from_host(other, &draft.view()).expect("a copy");
    let stream = other.new_stream().expect("a stream");
    let refused = DeviceArray::upload(draft, &stream).expect_err("the pages were locked for the first GPU");
    assert!(matches!(refused.error(), Error::Unsupported { .. }), "{refused}");
    let mut draft = refused.into_inner();
    draft.view_mut().fill(0);
    let draft = copy.download(draft, &stream).expect("a transfer").wait().expect("its end");
    assert_eq!(draft.view()[LENGTH - 1], 5);
    drop(draft);
    assert_locked(0);
}

/// Whether a shared mapping begins at an address of this process.
fn is_mapped(address: usize) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").expect("/proc");
    maps.lines().any(|line| line.starts_with(&format!("{address:x}-")) && line.contains(" rw-s "))
}

fn pages_that_stay_locked_are_never_unmapped(_: Channel) {
    let name = Name::new("stuck");
    let array = SharedArray::<u8, _>::create(name.0.as_str(), LENGTH).expect("an array");
    let locked = PageLocked::new(gpu(), array).expect("a lock");
    let refused = locked.into_inner().expect_err("the driver refuses");
    assert!(matches!(refused.error(), Error::Driver { call: "cuMemHostUnregister", .. }), "{refused}");
    let locked = refused.into_inner();
    locked.write().expect("a guard")[0] = 1;
    let address = locked.raw_view().as_ptr().addr();
    assert!(is_mapped(address));
    drop(locked);
    assert!(is_mapped(address), "other memory could be mapped where the driver has locked pages");
    assert_locked(1);
}

fn failed_lock_gives_the_array_back(_: Channel) {
    gpu();
    for call in ["cuMemHostRegister_v2", "cuDeviceGetAttribute", "cuCtxPushCurrent_v2"] {
        let mut draft = Draft::<u8, _>::new(LENGTH).expect("a draft");
        draft.view_mut().fill(4);
        double::fail(call, 1, 999);
        let refused = PageLocked::new(gpu(), draft).expect_err("the call fails");
        assert!(matches!(refused.error(), Error::Driver { call: named, code: 999, .. } if *named == call), "{refused}");
        assert_locked(0);
        assert_eq!(refused.into_inner().view()[LENGTH - 1], 4);
    }
    let draft = Draft::<u8, _>::new(LENGTH).expect("a draft");
    for code in [1, 2, 304, 801] {
        double::fail("cuMemHostRegister_v2", 1, code);
        let refused =
            PageLocked::new(gpu(), Draft::<u8, _>::new(LENGTH).expect("a draft")).expect_err("the call fails");
        assert!(matches!(refused.error(), Error::NotPinnable { .. }), "{refused}");
        assert!(refused.to_string().contains("cuMemHostRegister_v2"), "{refused}");
    }
    lock_and_drop(draft);
}

fn failed_unlock_is_tried_again(_: Channel) {
    for call in ["cuMemHostUnregister", "cuCtxPushCurrent_v2"] {
        let locked = PageLocked::new(gpu(), Draft::<u8, _>::new(LENGTH).expect("a draft")).expect("a lock");
        double::fail(call, 1, 999);
        drop(locked);
        assert_locked(0);
    }
}

fn each_call_fails_once_without_a_leak(_: Channel) {
    let pool = Pool::new().expect("a pool");
    // Memory for the draft and for the array, so that all runs have the same descriptors open.
    drop([pool.take::<u8, _>(LENGTH).expect("a draft"), pool.take::<u8, _>(LENGTH).expect("a draft")]);
    let seen = fail_every_call(|| {
        let stream = gpu().new_stream()?;
        let mut draft = PageLocked::new(gpu(), pool.take::<u8, _>(LENGTH)?)?;
        draft.view_mut().fill(6);
        draft.device_pointer()?;
        let (copy, draft) = DeviceArray::upload(draft, &stream)?.wait()?;
        drop(draft.into_inner()?);
        let target = PageLocked::new(gpu(), pool.take::<u8, _>(LENGTH)?)?;
        let transfer = copy.download(target, &stream)?;
        transfer.is_done()?;
        let target = transfer.wait()?;
        assert_eq!(target.view()[LENGTH - 1], 6);
        Ok(())
    });
    println!("{seen} failures of the driver were reported");
    assert!(seen > 30, "only {seen} failures were reported");
}

/// Forks. Fails unless the child, which inherits everything, returns true.
fn in_forked_child(act: impl FnOnce() -> bool) {
    // SAFETY: this process has one thread, apart from streams of the double that are idle; the child ends without
    // running anything of the parent's.
    match unsafe { libc::fork() } {
        0 => {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).unwrap_or(false);
            // SAFETY: it has no requirements.
            unsafe { libc::_exit(i32::from(!done)) }
        }
        child => {
            let mut status = -1;
            // SAFETY: `status` is valid for writes.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "the forked child failed");
        }
    }
}

fn forked_child_unlocks_nothing(_: Channel) {
    let (name, pool) = (Name::new("forked"), Pool::new().expect("a pool"));
    let mut draft = PageLocked::new(gpu(), pool.take::<u8, _>(LENGTH).expect("a draft")).expect("a lock");
    draft.view_mut().fill(1);
    let array = SharedArray::<u8, _>::create(name.0.as_str(), LENGTH).expect("an array");
    let array = PageLocked::new(gpu(), array).expect("a lock");
    let reader = ArrayReader::<u8, _>::open(name.0.as_str(), LENGTH).expect("a reader");
    let stream = gpu().new_stream().expect("a stream");
    let transfer = DeviceArray::upload(PageLocked::new(gpu(), reader).expect("a lock"), &stream).expect("a transfer");
    let copy = DeviceArray::<u8, _>::zeroed(gpu(), LENGTH).expect("an array");
    // Moved into the child's closure by copies of memory, as a fork does: the parent forgets its own only in the child.
    let mut all = Some((draft, array, transfer, stream, copy));
    in_forked_child(|| {
        let (draft, array, transfer, stream, copy) = all.take().expect("inherited");
        let is_forked = |error: &Error| matches!(error, Error::ForkedChild);
        let refused = array.device_pointer().is_err_and(|error| is_forked(&error))
            && transfer.is_done().is_err_and(|error| is_forked(&error))
            && transfer.wait().is_err_and(|refused| is_forked(refused.error()))
            && array.into_inner().is_err_and(|refused| is_forked(refused.error()))
            && PageLocked::new(gpu_of(&copy), SharedArray::<u8, _>::open(name.0.as_str(), LENGTH).expect("an array"))
                .is_err_and(|refused| is_forked(refused.error()) && refused.into_inner().len() == LENGTH);
        let draft = match copy.download(draft, &stream) {
            Err(refused) if is_forked(refused.error()) => refused.into_inner(),
            _ => return false,
        };
        let draft = match DeviceArray::upload(draft, &stream) {
            Err(refused) if is_forked(refused.error()) => refused.into_inner(),
            _ => return false,
        };
        let files = descriptors();
        drop(draft); // returns nothing to the parent's pool
        refused && descriptors() < files
    });
    let (draft, array, transfer, stream, copy) = all.take().expect("the child has taken its own");
    assert_locked(3);
    assert_eq!(pool.stats().lent.arrays, 1);
    let (uploaded, reader) = transfer.wait().expect("the end");
    assert_eq!(uploaded.to_host().expect("a copy"), reader.view().to_owned());
    let draft = copy.download(draft, &stream).expect("a transfer").wait().expect("its end");
    assert_eq!(draft.view()[0], 0);
    drop((draft, array, reader));
    assert_locked(0);
    assert_eq!(pool.stats().idle.arrays, 1);
}

/// The GPU of an array, which a forked child knows without asking the driver.
fn gpu_of(array: &DeviceArray<u8, Ix1>) -> Device {
    array.device()
}

/// Locks arrays, begins to copy them, and waits to be killed.
fn hold_locked_arrays(channel: Channel) {
    let name: String = channel.receive_timeout(LIMIT).expect("a name").message;
    let pool = Pool::new().expect("a pool");
    let draft = PageLocked::new(gpu(), pool.take::<u8, _>(LENGTH).expect("a draft")).expect("a lock");
    let writer = ArrayWriter::<u8, _>::open(name.as_str(), LENGTH).expect("a writer");
    let stream = gpu().new_stream().expect("a stream");
    let writer = PageLocked::new(gpu(), writer).expect("a lock");
    let upload = DeviceArray::upload(writer, &stream).expect("a transfer");
    let _download = upload.array().download(draft, &stream).expect("a transfer");
    channel.send(&(), &[]).expect("the test");
    let _ = channel.receive::<String>();
}

fn killed_process_leaves_no_lock(_: Channel) {
    let name = Name::new("killed");
    let array = SharedArray::<u8, _>::create(name.0.as_str(), LENGTH).expect("an array");
    let in_use = || if is_real() { 0 } else { double::memory_in_use() };
    gpu();
    let before = in_use();
    // Each operation of the child's GPU takes 10 seconds, so that both copies are under way.
    let mut child = Actor::start_with("hold_locked_arrays", &[("FAKE_CUDA_DELAY_US", "10000000")]);
    child.tell(&name.0);
    child.hear::<()>();
    assert!(array.try_write().is_err(), "the child holds the array for writing");
    child.kill();
    array.write_timeout(LIMIT).expect("the kernel has released the child's lock").fill(1);
    crate::support::until("the memory of the killed process", || in_use() == before);
    lock_and_drop(array);
}
