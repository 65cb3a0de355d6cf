//! Holes: pages without room, of which the count of allocated bytes says nothing. No access may end a process (SIGBUS)
//! unless it chose that.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::arena::ArenaOptions;
use ndarray_shm::render::RenderOptions;
use ndarray_shm::{Access, Arena, ErrorKind, OpenOptions, Pages, RenderBuffer, SharedArray, default_directory};
use rustix::fs::{FallocateFlags, XattrFlags, fallocate, fsetxattr};

use super::limits::{assert_no_space, small};
use super::sandbox;
use crate::support::child::{Child, ROLE, Role, program, say};
use crate::support::{Place, Test};
use crate::tests;

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

pub fn trials(place: &Place) -> Vec<Trial> {
    let holes = |tests: &[(&str, Test)]| place.trials("linux", "holes", tests);
    let mut trials = holes(tests![room_beyond_the_end_hides_no_hole, holes_that_an_arena_does_not_mention_are_filled]);
    trials.extend(sandbox::with_private_mounts(holes(tests![joining_takes_no_memory_beyond_the_limit])));
    if place.name == "emulated" {
        let ext4 = holes(tests![room_of_attributes_hides_no_hole, reserved_array_opens_on_a_full_disk]);
        trials.extend(sandbox::unless("no image with ext4 can be mounted", can_mount(EXT4), ext4));
    }
    if place.name == "shm" {
        let huge = holes(tests![room_of_huge_pages_hides_no_hole]);
        trials.extend(sandbox::unless("no tmpfs with huge pages can be mounted", has_huge_mounts(), huge));
    }
    trials
}

pub const ROLES: &[(&str, Role)] = &[
    ("hole-behind-attributes", hole_behind_attributes),
    ("hole-behind-huge-pages", hole_behind_huge_pages),
    ("open-on-full-disk", open_on_full_disk),
    ("create-sparse", create_sparse),
    ("join-sparse", join_sparse),
];

/// How to make a small ext4. A journal would free room later.
const EXT4: &str = "truncate -s 16M \"$image\"; mkfs.ext4 -q -m 0 -b 4096 -O ^has_journal \"$image\"";

/// How to make the smallest XFS.
const XFS: &str = "truncate -s 300M \"$image\"; mkfs.xfs -q \"$image\"";

/// A file with a file system in it.
struct Image {
    files: tempfile::TempDir,
    make: &'static str,
}

impl Image {
    fn new(make: &'static str) -> Self {
        Self { files: tempfile::tempdir().unwrap(), make }
    }

    /// Returns a script that makes the file system and mounts it at a directory.
    fn mount(&self, directory: &Path) -> String {
        let image = self.files.path().join("image");
        format!("image='{}'\n{}\nmount -o loop \"$image\" '{}'", image.display(), self.make, directory.display())
    }
}

fn can_mount(make: &'static str) -> bool {
    let image = Image::new(make);
    sandbox::has_private_mounts() && {
        let mut command = sandbox::in_mounts(&image.mount(Path::new("/mnt")));
        command.arg("true").output().is_ok_and(|output| output.status.success())
    }
}

/// Whether a tmpfs can be mounted that has its files on huge pages, as it reports by their preferred size of blocks.
fn has_huge_mounts() -> bool {
    sandbox::has_private_mounts() && {
        let mut command = sandbox::in_mounts("mount -t tmpfs -o huge=always none /mnt\ntouch /mnt/file");
        let output = command.args(["stat", "-c", "%o", "/mnt/file"]).output().unwrap();
        output.status.success() && output.stdout.starts_with(b"2097152")
    }
}

fn allocated(file: &File) -> usize {
    usize::try_from(file.metadata().unwrap().blocks() * 512).unwrap()
}

fn path(name: &str) -> PathBuf {
    default_directory().unwrap().path().join(name)
}

/// Takes all room of the file system, until the result is dropped.
struct Ballast(PathBuf);

impl Ballast {
    fn new() -> Self {
        let path = path("ballast");
        let file = File::create(&path).unwrap();
        let mut end = 0;
        for step in [MIB, PAGE] {
            while fallocate(&file, FallocateFlags::empty(), end, step as u64).is_ok() {
                end += step as u64;
            }
        }
        Self(path)
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

/// Opens arrays of another program: the allocated bytes suffice for the length, but one page has none. `make` makes
/// such an array; `kinds` are those of access for which the hole must be filled.
fn open_with_hidden_hole(make: impl Fn(&File), length: usize, hole: usize, kinds: &[Access]) {
    let make = || {
        let file = File::create(path("holed")).unwrap();
        make(&file);
        assert!(allocated(&file) >= length, "the hole is hidden: {} of {length} bytes", allocated(&file));
    };
    let open = |access| OpenOptions::new().access(access).open::<u8, Ix1>("holed", length);
    for access in kinds {
        make();
        let array = open(*access).unwrap();
        let full = Ballast::new();
        if *access == Access::ReadWrite {
            array.write().unwrap()[hole] = 1;
        }
        let expected = usize::from(*access == Access::ReadWrite);
        assert_eq!(array.read().unwrap().iter().map(|value| usize::from(*value)).sum::<usize>(), expected);
        drop((array, full));
        make();
        let _full = Ballast::new();
        let refused = open(*access).expect_err("there is no room for the hole");
        assert!(matches!(refused.kind, ErrorKind::NoSpace { .. }), "{refused}");
    }
}

fn hole_behind_attributes(_: &[String]) {
    const LENGTH: usize = 16 * PAGE;
    let make = |file: &File| {
        fsetxattr(file, "user.other", &[b'x'; 3000], XattrFlags::empty()).unwrap();
        file.write_all_at(&vec![0; LENGTH - PAGE], 0).unwrap();
        file.set_len(LENGTH as u64).unwrap();
        file.sync_all().unwrap();
    };
    // Reading a hole takes no room on a disk.
    open_with_hidden_hole(make, LENGTH, LENGTH - 1, &[Access::ReadWrite]);
    say("alive");
}

/// ext4 counts the blocks of extended attributes.
fn room_of_attributes_hides_no_hole(place: &Place) {
    run_on_disk(place, EXT4, "hole-behind-attributes");
}

fn run_on_disk(place: &Place, make: &'static str, role: &str) {
    let image = Image::new(make);
    let mut child = Child::spawn(sandbox::with_mounts(place, &image.mount(place.directory()), role, &[]));
    child.expect("alive");
    child.finish();
}

/// A child that reserves most of a disk for an array, and opens it when the rest is taken.
fn open_on_full_disk(_: &[String]) {
    let length = usize::try_from(default_directory().unwrap().available().unwrap()).unwrap() / 4 * 3;
    drop(SharedArray::<u8, _>::create("reserved", length).unwrap());
    let modified = std::fs::metadata(path("reserved")).unwrap().modified().unwrap();
    let _full = Ballast::new();
    let array = SharedArray::<u8, Ix1>::open("reserved", length).unwrap();
    assert!(!array.is_sparse().unwrap());
    assert_eq!(
        std::fs::metadata(path("reserved")).unwrap().modified().unwrap(),
        modified,
        "nothing was reserved again"
    );
    array.write().unwrap().fill(1);
    say("alive");
}

/// XFS refuses to reserve again what a file has already, if the disk has no more of that size.
fn reserved_array_opens_on_a_full_disk(place: &Place) {
    run_on_disk(place, EXT4, "open-on-full-disk");
    if can_mount(XFS) {
        run_on_disk(place, XFS, "open-on-full-disk");
    } else {
        eprintln!("NOT RUN: reserved_array_opens_on_a_full_disk with XFS: no image can be mounted");
    }
}

fn hole_behind_huge_pages(_: &[String]) {
    const LENGTH: usize = 2 * MIB + PAGE;
    let make = |file: &File| {
        file.set_len(LENGTH as u64).unwrap();
        for at in [0, 2 * MIB] {
            file.write_all_at(&[0], at as u64).unwrap();
        }
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(file, punch, PAGE as u64, PAGE as u64).unwrap();
    };
    open_with_hidden_hole(make, LENGTH, PAGE, &[Access::ReadWrite, Access::Read]);
    say("alive");
}

/// A huge page goes beyond the end of the file, and counts as a whole.
fn room_of_huge_pages_hides_no_hole(place: &Place) {
    let mount = small(place, "size=16m,huge=always");
    let mut child = Child::spawn(sandbox::with_mounts(place, &mount, "hole-behind-huge-pages", &[]));
    child.expect("alive");
    child.finish();
}

fn room_beyond_the_end_hides_no_hole(place: &Place) {
    const LENGTH: usize = 16 * PAGE;
    let name = place.location("beyond-the-end");
    let file = File::create(place.path(&name)).unwrap();
    file.set_len(LENGTH as u64).unwrap();
    // One page more: on a tmpfs as many pages beyond the end as are missing before it could not be told from these.
    fallocate(&file, FallocateFlags::KEEP_SIZE, LENGTH as u64, (LENGTH + PAGE) as u64).unwrap();
    let before = allocated(&file);
    assert!(before > LENGTH);
    let _array = place.open_options().open::<u8, Ix1>(name.location(), LENGTH).unwrap();
    assert_eq!(allocated(&file), before + LENGTH);
}

const LARGE: usize = 64 * MIB;

/// A child that has little room, creates a sparse arena and a sparse buffer all the same, and has another process join
/// them.
fn create_sparse(_: &[String]) {
    let arena = ArenaOptions::new().pages(Pages::Sparse).create("arena", LARGE as u64).unwrap();
    let buffer = RenderOptions::new().pages(Pages::Sparse).create::<u8, _>("buffer", LARGE, MIB, "sparse").unwrap();
    let mut command = Command::new(program());
    command.env(ROLE, "join-sparse");
    let mut other = Child::spawn(command);
    say(other.line());
    other.finish();
    assert_eq!((arena.stats().unwrap().members.len(), buffer.progress().done), (1, 0));
}

fn join_sparse(_: &[String]) {
    let refused = Arena::open("arena").unwrap_err();
    assert!(matches!(refused.kind, ErrorKind::Unsupported { .. }), "{refused}");
    assert!(refused.to_string().contains("ArenaOptions::pages(Pages::Sparse)"), "{refused}");
    assert_no_space(&RenderBuffer::<u8, Ix1>::open("buffer").unwrap_err(), LARGE, 16 * MIB);
    let again = RenderBuffer::<u8, _>::create("buffer", LARGE, MIB, "sparse");
    assert_no_space(&again.unwrap_err(), LARGE, 16 * MIB);
    // A process that chooses it joins both.
    drop(ArenaOptions::new().pages(Pages::Sparse).open("arena").unwrap());
    drop(RenderOptions::new().pages(Pages::Sparse).open::<u8, Ix1>("buffer").unwrap());
    say("alive");
}

fn joining_takes_no_memory_beyond_the_limit(place: &Place) {
    let mount = small(place, "size=16m");
    let mut child = Child::spawn(sandbox::with_mounts(place, &mount, "create-sparse", &[]));
    child.expect("alive");
    child.finish();
}

fn holes_that_an_arena_does_not_mention_are_filled(place: &Place) {
    let name = place.location("punched");
    let _arena = place.arena_options().create(name.location(), MIB as u64).unwrap();
    let file = File::options().write(true).open(place.path(&name)).unwrap();
    let full = allocated(&file);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, MIB as u64 / 2, MIB as u64 / 4).unwrap();
    assert_eq!(allocated(&file), full - MIB / 4);
    Arena::open_in(&place.backend, name.location()).unwrap();
    assert!(allocated(&file) >= full);
}
