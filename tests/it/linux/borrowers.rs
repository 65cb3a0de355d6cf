//! Borrowers: libraries that map an array by themselves, as torch does, through a descriptor with a lease of its own.
//! They pass it on to other processes, and close it without a word.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use libtest_mimic::Trial;
use memmap2::{Mmap, MmapOptions};
use ndarray::Ix1;
use ndarray_shm::counted::SharingStrategy;
use ndarray_shm::{Access, CreateOptions, Error, ErrorKind, OpenOptions};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage};
use rustix::net::{SendFlags, recvmsg, sendmsg};

use crate::support::child::{Child, Role, hear, say};
use crate::support::counted::{create, open};
use crate::support::forks::in_forked_child;
use crate::support::{Place, backend_of_child, eventually};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "linux",
        "borrowers",
        tests![
            pool_keeps_the_memory_until_the_last_borrower_closes,
            borrowed_plain_array_is_attached,
            borrowed_counted_array_keeps_its_name,
            handle_that_leaves_last_removes_a_returned_array,
            borrowed_nameless_array_leaves_nothing,
            borrower_of_a_read_only_array_cannot_write,
            refused_descriptor_keeps_no_lease,
            forked_child_lends_what_no_pool_can_recycle,
        ],
    )
}

pub const ROLES: &[(&str, Role)] =
    &[("borrower", borrower), ("lend-and-leave", lend_and_leave), ("lend-in-forks", lend_in_forks)];

/// Lends an array.
macro_rules! lent {
    ($array:expr) => {{
        #[allow(unsafe_code)]
        // SAFETY: the tests do not use the elements in two ways at once.
        unsafe {
            $array.leased_descriptor()
        }
    }};
}

/// Elements of an array of `u32`: more than one page.
const LENGTH: usize = 5000;

/// Maps the beginning of a file, as a library does that has only the descriptor.
#[allow(unsafe_code)]
fn map(file: &File, bytes: usize) -> Mmap {
    // SAFETY: no process shortens the file. Writes by other processes are what the tests look for.
    unsafe { MmapOptions::new().len(bytes).map(file) }.unwrap()
}

fn first(bytes: &Mmap) -> u32 {
    u32::from_le_bytes(bytes[..4].try_into().unwrap())
}

/// A child that receives a descriptor through a socket, maps its file and says the first element when it is asked.
fn borrower(arguments: &[String]) {
    let socket = UnixStream::connect(&arguments[0]).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(&socket, &mut [IoSliceMut::new(&mut [0])], &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    let files = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => files.collect::<Vec<OwnedFd>>(),
        _ => Vec::new(),
    });
    let files: Vec<File> = files.map(File::from).collect();
    let bytes = map(&files[0], arguments[1].parse().unwrap());
    loop {
        say(first(&bytes));
        hear();
    }
}

/// Starts a borrower in another process and sends it the descriptor itself: not one of a new description.
fn lend(place: &Place, file: &File, bytes: usize) -> Child {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let mut child = Child::start(place, "borrower", &[path.to_str().unwrap(), &bytes.to_string()]);
    let socket = listener.accept().unwrap().0;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    sendmsg(&socket, &[IoSlice::new(&[1])], &mut control, SendFlags::empty()).unwrap();
    child.expect("7");
    child
}

fn pool_keeps_the_memory_until_the_last_borrower_closes(place: &Place) {
    let name = place.location("pooled");
    let pool = place.pool_options().create().unwrap();
    let mut draft = pool.take::<u32, _>(LENGTH).unwrap();
    draft.view_mut().fill(7);
    let array = draft.publish(name.location()).unwrap();
    let ours = lent!(array).unwrap();
    let theirs = ours.try_clone().unwrap();
    drop(ours); // closed, not unlocked
    let borrowed = map(&theirs, 4 * LENGTH);
    drop(array);
    let is_draining = || {
        let mut other = pool.take::<u32, _>(LENGTH).unwrap();
        other.view_mut().fill(8);
        let stats = pool.stats();
        !other.is_recycled() && stats.draining.arrays == 1
    };
    assert!(is_draining() && first(&borrowed) == 7);
    pool.trim();

    // Only the other process has the description, which came from this one.
    let mut child = lend(place, &theirs, 4 * LENGTH);
    drop((theirs, borrowed));
    for _ in 0..100 {
        assert!(is_draining());
        pool.trim();
    }
    assert_eq!(child.ask("look"), "7");
    child.kill();
    eventually("the killed borrower's memory is free", || pool.stats().idle.arrays == 1);
    let again = pool.take::<u32, _>(LENGTH).unwrap();
    assert_eq!((again.is_recycled(), again.view()[0]), (true, 7));
}

fn borrowed_plain_array_is_attached(place: &Place) {
    let name = place.location("plain");
    let array = place.options().create_with::<u32, _>(name.location(), LENGTH, |mut view| view.fill(7)).unwrap();
    let descriptor = lent!(array).unwrap();
    assert_eq!(descriptor.metadata().unwrap().len(), 4 * LENGTH as u64);
    drop(array);
    let attached = || place.backend.attached(name.location()).unwrap();
    assert!(attached());
    let mut child = lend(place, &descriptor, 4 * LENGTH);
    drop(descriptor);
    assert!(attached());
    // The borrower sees what is written under a guard.
    let again = place.open_options().open::<u32, Ix1>(name.location(), LENGTH).unwrap();
    again.write().unwrap().fill(9);
    drop(again);
    assert_eq!(child.ask("look"), "9");
    assert!(attached());
    child.kill();
    eventually("the killed borrower's lease has ended", || !attached());
}

fn borrowed_counted_array_keeps_its_name(place: &Place) {
    let place = &place.private();
    let name = place.location("counted");
    let array = create(place, &name);
    array.write().unwrap().fill(7);
    let descriptor = lent!(array).unwrap();
    assert_eq!((array.refcount(), descriptor.metadata().unwrap().len()), (2, 8192));
    drop(array);
    let is_kept = || {
        assert!(place.reclaim().removed.is_empty());
        let found = place.inspect(&name).unwrap();
        found.is_attached && found.refcount == 1
    };
    assert!(is_kept());
    let mut child = lend(place, &descriptor, 16);
    drop(descriptor);
    assert!(is_kept());
    let again = open(place, &name).unwrap();
    again.write().unwrap().fill(9);
    assert_eq!((again.refcount(), child.ask("look").as_str()), (2, "9"));
    drop(again);
    assert!(is_kept());
    child.kill();
    eventually("the killed borrower's lease has ended", || place.inspect(&name).unwrap().is_orphaned());
    assert_eq!(place.reclaim().removed.len(), 1);
    assert!(!place.has(&name));
}

/// A process that lends a counted array, gets it back and drops it.
fn lend_and_leave(arguments: &[String]) {
    let options = CreateOptions::new().directory(backend_of_child());
    let array = options.create_counted::<u32, Ix1>(arguments[0].as_str(), 4).unwrap();
    for _ in 0..3 {
        drop(lent!(array).unwrap());
    }
    assert_eq!(array.refcount(), 4, "no process subtracts what was lent");
    drop(array);
    say("left");
    hear();
}

fn handle_that_leaves_last_removes_a_returned_array(place: &Place) {
    let name = place.location("returned");
    // Not in this process: when it spawns another one, that has copies of the descriptors for a moment.
    let mut child = Child::start(place, "lend-and-leave", &[name.as_str()]);
    child.expect("left");
    assert!(!place.has(&name));
}

fn borrowed_nameless_array_leaves_nothing(place: &Place) {
    let place = &place.private();
    let before = place.everything();
    let array =
        place.options().share_with::<u32, _>(SharingStrategy::FileDescriptor, 4, |mut view| view.fill(7)).unwrap();
    let descriptor = lent!(array).unwrap();
    drop(array);
    let mut child = lend(place, &descriptor, 16);
    drop(descriptor);
    assert_eq!(child.ask("look"), "7");
    assert!(place.has_hidden_drafts() || place.everything() == before);
    child.kill();
    assert_eq!(place.everything(), before);
}

fn borrower_of_a_read_only_array_cannot_write(place: &Place) {
    let [plain, counted] = ["plain", "counted"].map(|label| place.location(label));
    let _creator = place.options().create::<u32, _>(plain.location(), LENGTH).unwrap();
    let reader = place.open_options().access(Access::Read).open::<u32, Ix1>(plain.location(), LENGTH).unwrap();
    let frozen = create(place, &counted);
    assert!(lent!(frozen).unwrap().write_at(&[7, 0, 0, 0], 0).is_ok());
    frozen.freeze().unwrap();
    for descriptor in [lent!(reader), lent!(frozen)] {
        assert!(descriptor.unwrap().write_at(&[8], 0).is_err());
    }
    assert_eq!(frozen.view().unwrap()[0], 7);
}

fn refused_descriptor_keeps_no_lease(place: &Place) {
    let [name, moved] = ["name", "moved"].map(|label| place.location(label));
    let create = |keep| place.options().keep_fd(keep).create::<u32, _>(name.location(), LENGTH).unwrap();
    let rename = || std::fs::rename(place.path(&name), place.path(&moved)).unwrap();
    let is_free = || eventually("it is free", || !place.backend.attached(moved.location()).unwrap());

    // The name is lost before the descriptor is opened, or just afterwards.
    let array = create(false);
    rename();
    assert_eq!(lent!(array).unwrap_err().kind, ErrorKind::Unlinked);
    drop(array);
    is_free();
    drop(create(false));
    let (from, to) = (place.path(&name), place.path(&moved));
    let is_lending = Arc::new(AtomicBool::new(false));
    let lending = is_lending.clone();
    let meddling = place.meddling(move |operation, _| {
        if operation == "opened" && lending.load(Ordering::Relaxed) {
            std::fs::rename(&from, &to).unwrap();
        }
        Ok(())
    });
    let options = OpenOptions::new().directory(meddling);
    let array = options.open::<u32, Ix1>(name.location(), LENGTH).unwrap();
    is_lending.store(true, Ordering::Relaxed);
    assert_eq!(lent!(array).unwrap_err().kind, ErrorKind::Unlinked);
    drop(array);
    is_free();

    // A kept descriptor needs no name.
    let array = create(true);
    rename();
    let descriptor = lent!(array).unwrap();
    drop(array);
    assert!(place.backend.attached(moved.location()).unwrap());
    drop(descriptor);
    is_free();

    // Another program has shortened the file.
    let array = create(false);
    File::options().write(true).open(place.path(&name)).unwrap().set_len(8).unwrap();
    assert!(matches!(lent!(array), Err(Error { kind: ErrorKind::SizeMismatch { found: 8, .. }, .. })));
    drop(array);
    eventually("it is free", || !place.backend.attached(name.location()).unwrap());
}

/// A process with forked children that lend the arrays that they inherited.
fn lend_in_forks(arguments: &[String]) {
    let (backend, name) = (backend_of_child(), arguments[0].as_str());
    let create = |keep| {
        let options = CreateOptions::new().directory(backend.clone());
        options.keep_fd(keep).create::<u32, Ix1>(name, LENGTH).unwrap()
    };
    let array = create(false);
    let survives = backend.lock_survives_close().unwrap();
    in_forked_child(|| match lent!(array) {
        Ok(_) => survives,
        Err(error) => !survives && matches!(error.kind, ErrorKind::Unsupported { .. }),
    });
    backend.unlink(name).unwrap();
    in_forked_child(|| lent!(array).is_err());
    drop(array);
    // The parent can give this array to a pool, which recycles the memory although the forked child has it.
    let array = create(true);
    in_forked_child(|| matches!(lent!(array).unwrap_err().kind, ErrorKind::Unsupported { .. }));
    say("done");
    hear();
}

fn forked_child_lends_what_no_pool_can_recycle(place: &Place) {
    let name = place.location("forked");
    let mut child = Child::start(place, "lend-in-forks", &[name.as_str()]);
    child.expect("done");
}
