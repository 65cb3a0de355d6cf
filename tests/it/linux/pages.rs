//! Huge pages: that they are there, for every process that attaches; that room is room all the same; that nothing is worse without.

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
    Access, AttachOptions, CreateOptions, Draft, Error, FrozenArray, Pages, RenderBuffer, Result, SharedArray,
    default_backend,
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

/// Three windows, and a tail that ends within a page.
const TAIL: usize = MIB + 5 * PAGE + 7;
const LENGTH: usize = 6 * MIB + TAIL;

pub fn trials(place: &Place) -> Vec<Trial> {
    let pages = |tests: &[(&str, Test)]| place.trials("linux", "pages", tests);
    let mut trials = sandbox::with_private_mounts(pages(tests![
        a_small_file_system_is_an_error_whatever_the_pages_and_the_processors,
        a_file_system_that_others_fill_meanwhile_is_an_error_or_room_that_is_there,
    ]));
    trials.extend(pages(tests![an_array_that_may_have_no_huge_pages_is_made_of_others]));
    if place.name == "shm" {
        let huge = pages(tests![
            large_arrays_are_on_huge_pages_for_who_makes_and_who_attaches_them,
            a_file_takes_its_length_and_no_byte_more,
            every_kind_of_array_can_be_on_huge_pages,
            asking_a_sparse_array_takes_no_memory,
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

/// Asked of the system, not of the library: Linux 6.1 with transparent huge pages of 2 MiB, not forbidden.
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

/// How many bytes of the mapping at an address are mapped by huge pages, as the kernel says.
fn mapped_huge(address: *const u8) -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let beginning = format!("{:x}-", address as usize);
    let own = maps.lines().skip_while(|line| !line.starts_with(&beginning)).skip(1);
    let field = own.take_while(|line| !line.contains('-')).find_map(|line| line.strip_prefix("ShmemPmdMapped:"));
    let kilobytes: usize = field.expect("the mapping begins there").trim().trim_end_matches(" kB").parse().unwrap();
    kilobytes * 1024
}

/// How many windows may be on huge pages. Those that are made as long as it pays are some, on a busy machine not all.
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

/// A child that reads what another process made.
fn attach_huge(arguments: &[String]) {
    let array =
        AttachOptions::<SharedArray<u8, Ix1>>::new().access(Access::Read).open(arguments[0].as_str(), LENGTH).unwrap();
    assert_eq!(array.read().unwrap().iter().map(|value| u64::from(*value)).sum::<u64>(), LENGTH as u64);
    say(mapped_huge(array.raw_view().as_ptr()));
    let PageUse { huge, base, .. } = array.pages().unwrap();
    say(format!("{huge} {base}"));
}

fn large_arrays_are_on_huge_pages_for_who_makes_and_who_attaches_them(place: &Place) {
    for pages in [Pages::Auto, Pages::Huge, Pages::Base] {
        let name = place.location("huge");
        let array = place.options::<u8, Ix1>().pages(pages).create(name.as_str(), LENGTH).unwrap();
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

fn a_file_takes_its_length_and_no_byte_more(place: &Place) {
    for length in [2 * MIB - 1, 2 * MIB, 4 * MIB, 4 * MIB + 1, LENGTH, 64 * MIB - 1] {
        for pages in [Pages::Auto, Pages::Huge, Pages::Base] {
            let name = place.location("exact");
            let array = place.options::<u8, Ix1>().pages(pages).create(name.as_str(), length).unwrap();
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

    // With a page of counts behind it, the last window may be the array's in part.
    let name = place.location("counted");
    let counted = place.counted::<u8, Ix1>().pages(Pages::Huge).create(name.as_str(), 4 * MIB - PAGE).unwrap();
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

fn asking_a_sparse_array_takes_no_memory(place: &Place) {
    let name = place.location("asked");
    let array = place.options::<u8, Ix1>().pages(Pages::Sparse).create(name.as_str(), 64 * MIB).unwrap();
    assert_eq!(array.pages().unwrap().base, 64 * MIB as u64);
    assert_eq!(allocated(&place.path(&name)), 0);
}

/// A child that may have no huge pages: `prctl(PR_SET_THP_DISABLE)`.
fn no_huge_pages(arguments: &[String]) {
    #[allow(unsafe_code)]
    // SAFETY: it concerns the kinds of pages that the kernel takes from now on, and no memory.
    let answer = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
    assert_eq!(answer, 0);
    for pages in [Pages::Auto, Pages::Huge] {
        let array =
            CreateOptions::<SharedArray<u8, Ix1>>::new().pages(pages).create(arguments[0].as_str(), LENGTH).unwrap();
        assert!(!array.is_sparse().unwrap());
        array.write().unwrap().fill(1);
        let asked = array.pages().unwrap();
        assert_eq!((asked.huge, asked.base), (0, LENGTH as u64));
        array.unlink().unwrap();
    }
    say("alive");
}

fn an_array_that_may_have_no_huge_pages_is_made_of_others(place: &Place) {
    let name = place.location("forbidden");
    let mut child = Child::start(place, "no-huge-pages", &[name.as_str()]);
    child.expect("alive");
    child.finish();
}

fn create(name: &str, length: usize, pages: Pages) -> Result<SharedArray<u8, Ix1>> {
    CreateOptions::<SharedArray<_, _>>::new().pages(pages).create(name, length)
}

/// Writes to every byte, which kills the process if one of them has no memory.
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

/// A child with 16 MiB for all its arrays, and as many threads as it is told.
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
        // Three windows each: two of them have room, but none is told which.
        let attempt = |thread: usize, round: usize| match create(&format!("{thread}-{round}"), 6 * MIB, pages) {
            Ok(array) => {
                touch(&array);
                1
            }
            Err(Error::NoSpace { .. }) => 0,
            Err(other) => panic!("{other}"),
        };
        let made: usize = std::thread::scope(|scope| {
            let rounds = |thread| move || (0..50).map(|round| attempt(thread, round)).sum::<usize>();
            let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(rounds(thread))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert!(made > 0 && (threads > 1 || made == 50), "{made}");
        assert_eq!(files(), 0);
        assert_eq!(default_backend().unwrap().available().unwrap(), 16 * MIB as u64, "everything was given back");
    }
    say("alive");
}

fn a_small_file_system_is_an_error_whatever_the_pages_and_the_processors(place: &Place) {
    for threads in ["1", "4"] {
        let mount = small(place, "size=16m");
        let mut child = Child::spawn(sandbox::with_mounts(place, &mount, "fill-with-huge-pages", &[threads]));
        child.expect("alive");
        child.finish();
    }
}

/// A child that takes room and gives it back, until it is told to end.
fn take_and_give_room(_: &[String]) {
    let directory = default_backend().unwrap().path().to_owned();
    std::thread::spawn(move || {
        for round in 0_u64.. {
            let path = directory.join("taken");
            let file = std::fs::File::create(&path).unwrap();
            for step in 0..(round * 7 % 16) {
                let _room_may_be_gone = rustix::fs::fallocate(&file, FallocateFlags::empty(), step << 20, 1 << 20);
            }
            std::fs::remove_file(&path).unwrap();
        }
    });
    say("ready");
    hear();
}

/// A child with 16 MiB, which another process takes and gives back meanwhile.
fn race_for_room(_: &[String]) {
    let mut command = Command::new(child::program());
    command.env(ROLE, "take-and-give-room");
    let mut other = Child::spawn(command);
    other.expect("ready");
    let mut made = 0;
    for round in 0..200 {
        let pages = [Pages::Huge, Pages::Auto][round % 2];
        match create("raced", 8 * MIB, pages) {
            Ok(array) => {
                touch(&array);
                made += 1;
            }
            Err(Error::NoSpace { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    other.kill();
    // Whatever it was about to take has gone, or goes with its name.
    let _gone = std::fs::remove_file(default_backend().unwrap().path().join("taken"));
    assert_eq!(files(), 0);
    assert_eq!(default_backend().unwrap().available().unwrap(), 16 * MIB as u64);
    eprintln!("{made} of 200 arrays were made while another process took and gave room");
    assert!(made > 0);
    say("alive");
}

fn a_file_system_that_others_fill_meanwhile_is_an_error_or_room_that_is_there(place: &Place) {
    let mount = small(place, "size=16m");
    let mut child = Child::spawn(sandbox::with_mounts(place, &mount, "race-for-room", &[]));
    child.expect("alive");
    child.finish();
}
