//! Huge pages: every attached process maps them, allocated space is still guaranteed, and arrays work the same without
//! them.

use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::array::SealableDraft;
use ndarray_shm::backend::PageUse;
use ndarray_shm::render::Claim;
use ndarray_shm::{
    Access, CreateOptions, Draft, Error, ErrorKind, FrozenArray, OpenOptions, Pages, RenderBuffer, Result, SharedArray,
    default_directory,
};
use rustix::fs::FallocateFlags;
use rustix::thread::CpuSet;

use super::limits::{assert_no_space, files, small};
use super::sandbox;
use crate::support::child::{self, Child, ROLE, Role, hear, say};
use crate::support::{Place, Test};
use crate::tests;

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

/// A tail after three windows of 2 MiB, which ends within a page.
const TAIL: usize = MIB + 5 * PAGE + 7;
const LENGTH: usize = 6 * MIB + TAIL;

pub fn trials(place: &Place) -> Vec<Trial> {
    let pages = |tests: &[(&str, Test)]| place.trials("linux", "pages", tests);
    let mut trials = sandbox::with_private_mounts(pages(tests![
        full_file_system_is_an_error_with_any_pages,
        concurrent_filling_gives_an_error_or_backed_memory,
    ]));
    trials.extend(pages(tests![array_without_huge_pages_has_base_pages]));
    if place.name == "shm" {
        let huge = pages(tests![
            large_arrays_have_huge_pages_in_every_attached_process,
            file_takes_exactly_its_length,
            every_kind_of_array_can_be_on_huge_pages,
            querying_pages_of_a_sparse_array_takes_no_memory,
        ]);
        trials.extend(sandbox::unless("the kernel makes no huge pages of files", has_huge_pages(), huge));
    }
    trials
}

pub const ROLES: &[(&str, Role)] = &[
    ("attach-huge", attach_huge),
    ("no-huge-pages", no_huge_pages),
    ("fill-with-huge-pages", fill_with_huge_pages),
    ("race-for-room", race_for_room),
    ("take-and-give-room", take_and_give_room),
];

/// Checks the system, not the library: Linux 6.1 or later, with transparent huge pages of 2 MiB that are not denied.
fn has_huge_pages() -> bool {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let version = read("/proc/sys/kernel/osrelease");
    let mut numbers = version.split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let folder = "/sys/kernel/mm/transparent_hugepage";
    let size = read(&format!("{folder}/hpage_pmd_size"));
    let mode = read(&format!("{folder}/shmem_enabled"));
    version >= (6, 1) && size.trim() == (2 * MIB).to_string() && !mode.contains("[deny]")
}

/// Returns how many bytes of the mapping at an address are on huge pages, according to the kernel.
fn mapped_huge(address: *const u8) -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let beginning = format!("{:x}-", address as usize);
    let own = maps.lines().skip_while(|line| !line.starts_with(&beginning)).skip(1);
    let field = own.take_while(|line| !line.contains('-')).find_map(|line| line.strip_prefix("ShmemPmdMapped:"));
    let kilobytes: usize = field.expect("the mapping begins there").trim().trim_end_matches(" kB").parse().unwrap();
    kilobytes * 1024
}

/// Returns how many windows of 2 MiB may be on huge pages. `Pages::Auto` stops when huge pages no longer pay, so that
/// on a busy machine only some windows have them.
fn windows(pages: Pages, length: usize) -> RangeInclusive<usize> {
    let all = length / (2 * MIB);
    match pages {
        Pages::Huge => all..=all,
        Pages::Auto if length >= 4 * MIB => 2..=all,
        _ => 0..=0,
    }
}

fn allocated(path: &Path) -> usize {
    usize::try_from(std::fs::metadata(path).unwrap().blocks() * 512).unwrap()
}

/// A child that reads an array of another process, and reports its huge pages.
fn attach_huge(arguments: &[String]) {
    let array = OpenOptions::new().access(Access::Read).open::<u8, Ix1>(arguments[0].as_str(), LENGTH).unwrap();
    assert_eq!(array.read().unwrap().iter().map(|value| u64::from(*value)).sum::<u64>(), LENGTH as u64);
    say(mapped_huge(array.raw_view().as_ptr()));
    let PageUse { huge, base, .. } = array.pages().unwrap();
    say(format!("{huge} {base}"));
}

fn large_arrays_have_huge_pages_in_every_attached_process(place: &Place) {
    for pages in [Pages::Auto, Pages::Huge, Pages::Base] {
        let name = place.location("huge");
        let array = place.options().pages(pages).create::<u8, Ix1>(name.as_str(), LENGTH).unwrap();
        let asked = array.pages().unwrap();
        let huge = mapped_huge(array.raw_view().as_ptr());
        assert_eq!((asked.huge, asked.base), (huge as u64, (LENGTH - huge) as u64), "{pages:?}");
        assert!(windows(pages, LENGTH).contains(&(huge / (2 * MIB))), "{pages:?} {huge}");
        assert!(array.read().unwrap().iter().all(|value| *value == 0), "{pages:?}");
        array.write().unwrap().fill(1);
        let mut child = Child::start(place, "attach-huge", &[name.as_str()]);
        child.expect(&huge.to_string());
        child.expect(&format!("{huge} {}", LENGTH - huge));
        child.finish();
    }
}

fn file_takes_exactly_its_length(place: &Place) {
    for length in [2 * MIB - 1, 2 * MIB, 4 * MIB, 4 * MIB + 1, LENGTH, 64 * MIB - 1] {
        for pages in [Pages::Auto, Pages::Huge, Pages::Base] {
            let name = place.location("exact");
            let array = place.options().pages(pages).create::<u8, Ix1>(name.as_str(), length).unwrap();
            assert_eq!(std::fs::metadata(place.path(&name)).unwrap().len(), length as u64);
            assert_eq!(allocated(&place.path(&name)), length.next_multiple_of(PAGE), "{pages:?} {length}");
            let huge = array.pages().unwrap().huge as usize / (2 * MIB);
            assert!(windows(pages, length).contains(&huge), "{pages:?} {length} {huge}");
        }
    }
}

fn every_kind_of_array_can_be_on_huge_pages(place: &Place) {
    let mut draft = SealableDraft::<u8, Ix1>::new(LENGTH).unwrap();
    let huge = draft.pages().unwrap().huge;
    assert!(windows(Pages::Auto, LENGTH).contains(&(huge as usize / (2 * MIB))), "{huge}");
    draft.view_mut().fill(1);
    let frozen: FrozenArray<u8, Ix1> = draft.freeze().unwrap();
    assert_eq!((frozen.pages().unwrap().huge, frozen[LENGTH - 1]), (huge, 1));
    assert_eq!(mapped_huge(frozen.as_ptr()) as u64, huge);

    // With the trailer's page behind the elements, the last window contains both.
    let name = place.location("counted");
    let counted = place.options().pages(Pages::Huge).create_counted::<u8, Ix1>(name.as_str(), 4 * MIB - PAGE).unwrap();
    let asked = counted.pages().unwrap();
    assert_eq!((asked.huge, asked.base), ((4 * MIB - PAGE) as u64, 0));
    counted.close().unwrap();

    let name = place.location("rendered");
    let buffer: RenderBuffer<u8, Ix1> =
        place.render_options().pages(Pages::Huge).create(name.as_str(), LENGTH, LENGTH, "pages").unwrap();
    let Claim::Chunk(mut claim) = buffer.claim(0).unwrap() else { panic!("no other process paints") };
    claim.view_mut().fill(1);
    claim.commit().unwrap();
    assert_eq!(buffer.finish().unwrap().pages().unwrap().huge, 6 * MIB as u64);

    let draft = Draft::<u8, Ix1>::new(LENGTH).unwrap();
    let PageUse { huge, base, .. } = draft.pages().unwrap();
    assert_eq!(huge + base, LENGTH as u64);
}

fn querying_pages_of_a_sparse_array_takes_no_memory(place: &Place) {
    let name = place.location("asked");
    let array = place.options().pages(Pages::Sparse).create::<u8, Ix1>(name.as_str(), 64 * MIB).unwrap();
    assert_eq!(array.pages().unwrap().base, 64 * MIB as u64);
    assert_eq!(allocated(&place.path(&name)), 0);
}

/// A child without huge pages: `prctl(PR_SET_THP_DISABLE)`.
fn no_huge_pages(arguments: &[String]) {
    #[allow(unsafe_code)]
    // SAFETY: the call takes no pointer. It only affects which kind of pages the kernel chooses from now on.
    let answer = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
    assert_eq!(answer, 0);
    for pages in [Pages::Auto, Pages::Huge] {
        let array = CreateOptions::new().pages(pages).create::<u8, Ix1>(arguments[0].as_str(), LENGTH).unwrap();
        assert!(!array.is_sparse().unwrap());
        array.write().unwrap().fill(1);
        let asked = array.pages().unwrap();
        assert_eq!((asked.huge, asked.base), (0, LENGTH as u64));
        array.unlink().unwrap();
    }
    say("alive");
}

fn array_without_huge_pages_has_base_pages(place: &Place) {
    let name = place.location("forbidden");
    let mut child = Child::start(place, "no-huge-pages", &[name.as_str()]);
    child.expect("alive");
    child.finish();
}

fn create(name: &str, length: usize, pages: Pages) -> Result<SharedArray<u8, Ix1>> {
    CreateOptions::new().pages(pages).create(name, length)
}

/// Writes to every byte. The kernel kills the process if a byte has no memory behind it.
fn touch(array: &SharedArray<u8, Ix1>) {
    array.write().unwrap().as_slice_mut().expect("in C order").fill(1);
    array.unlink().unwrap();
}

fn use_one_processor() {
    let mut processors = rustix::thread::sched_getaffinity(None).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|number| processors.is_set(*number)).expect("a processor");
    processors.clear();
    processors.set(first);
    rustix::thread::sched_setaffinity(None, &processors).unwrap();
}

/// A child with 16 MiB for all its arrays, and as many threads as its argument says.
fn fill_with_huge_pages(arguments: &[String]) {
    let threads: usize = arguments[0].parse().unwrap();
    if threads == 1 {
        use_one_processor();
    }
    for pages in [Pages::Huge, Pages::Auto, Pages::Base] {
        for length in [64 * MIB, 16 * MIB + 1] {
            assert_no_space(&create("large", length, pages).unwrap_err(), length, 16 * MIB);
            assert_eq!(files(), 0);
        }
        let all = create("all", 16 * MIB, pages).unwrap();
        assert_no_space(&create("more", 2 * MIB, pages).unwrap_err(), 2 * MIB, 0);
        touch(&all);
        drop(all);
        // Each array has three windows. There is room for two arrays at a time, so that with several threads some
        // attempts fail.
        let attempt = |thread: usize, round: usize| match create(&format!("{thread}-{round}"), 6 * MIB, pages) {
            Ok(array) => {
                touch(&array);
                1
            }
            Err(Error { kind: ErrorKind::NoSpace { .. }, .. }) => 0,
            Err(other) => panic!("{other}"),
        };
        let made: usize = std::thread::scope(|scope| {
            let rounds = |thread| move || (0..50).map(|round| attempt(thread, round)).sum::<usize>();
            let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(rounds(thread))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert!(made > 0 && (threads > 1 || made == 50), "{made}");
        assert_eq!(files(), 0);
        assert_eq!(default_directory().unwrap().available().unwrap(), 16 * MIB as u64, "everything was given back");
    }
    say("alive");
}

fn full_file_system_is_an_error_with_any_pages(place: &Place) {
    for threads in ["1", "4"] {
        let mount = small(place, "size=16m");
        let mut child = Child::spawn(sandbox::with_mounts(place, &mount, "fill-with-huge-pages", &[threads]));
        child.expect("alive");
        child.finish();
    }
}

/// A child that allocates space and frees it, until it is told to end.
fn take_and_give_room(_: &[String]) {
    let directory = default_directory().unwrap().path().to_owned();
    std::thread::spawn(move || {
        for round in 0_u64.. {
            let path = directory.join("taken");
            let file = std::fs::File::create(&path).unwrap();
            for step in 0..(round * 7 % 16) {
                // Fails while the arrays have taken the space.
                let _ = rustix::fs::fallocate(&file, FallocateFlags::empty(), step << 20, 1 << 20);
            }
            std::fs::remove_file(&path).unwrap();
        }
    });
    say("ready");
    hear();
}

/// A child with 16 MiB, of which another process keeps allocating and freeing parts.
fn race_for_room(_: &[String]) {
    let mut command = Command::new(child::program());
    command.env(ROLE, "take-and-give-room");
    let mut other = Child::spawn(command);
    other.expect("ready");
    let (mut made, mut round) = (0, 0);
    // Beside load, the other process may have the room for a long time.
    while round < 200 || made == 0 && round < 20_000 {
        round += 1;
        let pages = [Pages::Huge, Pages::Auto][round % 2];
        match create("raced", 8 * MIB, pages) {
            Ok(array) => {
                touch(&array);
                made += 1;
            }
            Err(Error { kind: ErrorKind::NoSpace { .. }, .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    other.kill();
    // The killed process may have left its file.
    let _ = std::fs::remove_file(default_directory().unwrap().path().join("taken"));
    assert_eq!(files(), 0);
    assert_eq!(default_directory().unwrap().available().unwrap(), 16 * MIB as u64);
    eprintln!("{made} of {round} arrays were made while another process took and gave room");
    assert!(made > 0);
    say("alive");
}

fn concurrent_filling_gives_an_error_or_backed_memory(place: &Place) {
    let mount = small(place, "size=16m");
    let mut child = Child::spawn(sandbox::with_mounts(place, &mount, "race-for-room", &[]));
    child.expect("alive");
    child.finish();
}
