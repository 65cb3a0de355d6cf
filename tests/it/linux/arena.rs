//! Arenas under a limit on descriptors, and in forked children.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use libtest_mimic::Trial;
use ndarray::{Array, Ix1};
use ndarray_shm::arena::{ArenaArray, ArenaHandle};
use ndarray_shm::{ErrorKind, OpenOptions};

use super::sandbox;
use crate::support::child::{Child, Role, say};
use crate::support::forks::{fork_until_input_ends, in_forked_child};
use crate::support::machine::{mappings, open_paths};
use crate::support::{Place, arena_of_child, backend_of_child, eventually, meddling};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "linux",
        "arena",
        tests![
            many_arena_arrays_take_few_descriptors_and_mappings,
            a_forked_child_is_refused_and_disturbs_nothing,
            parent_death_is_noticed_despite_a_living_forked_child,
            refused_open_leaves_no_lease_in_a_forked_child,
        ],
    )
}

pub const ROLES: &[(&str, Role)] =
    &[("arena-crowd", crowd), ("arena-fork", fork_with_arena), ("arena-orphan", orphan), ("arena-refused", refused)];

const CROWD: u64 = 100_000;

/// A child with few descriptors. The first one creates the arrays and writes their handles to a file; the second one
/// attaches to them by those handles.
fn crowd(arguments: &[String]) {
    let arena = arena_of_child(arguments);
    let path = &arguments[1];
    let arrays: Vec<ArenaArray<u64, Ix1>> = if std::path::Path::new(path).exists() {
        let bytes = std::fs::read(path).unwrap();
        let handles = bytes.chunks_exact(24).map(|bytes| ArenaHandle::from_bytes(bytes.try_into().unwrap()).unwrap());
        handles.map(|handle| arena.get(&handle).unwrap()).collect()
    } else {
        let make = |number| {
            let mut draft = arena.draft(128).unwrap();
            draft.view_mut().fill(number);
            draft.share().unwrap()
        };
        let arrays: Vec<_> = (0..CROWD).map(make).collect();
        let handles: Vec<u8> = arrays.iter().flat_map(|array| array.handle().to_bytes()).collect();
        std::fs::write(path, handles).unwrap();
        arrays
    };
    for (number, array) in (0..).zip(&arrays) {
        assert!(array.view().iter().all(|value| *value == number));
    }
    let name = arguments[0].as_str();
    let is_own = |path: &&PathBuf| path.display().to_string().contains(name);
    let files = open_paths("self").iter().filter(is_own).count();
    say(format!("{} {} {}", arrays.len(), mappings(name).len() <= 2, files <= 2));
    crate::support::child::hear();
}

fn many_arena_arrays_take_few_descriptors_and_mappings(place: &Place) {
    let place = &place.private();
    let (name, file) = (place.location("crowd"), place.location("crowd-handles"));
    let options = place.arena_options();
    let arena = options.create(name.as_str(), (CROWD / 60 + 1) << 16).unwrap();
    let path = place.path(&file).display().to_string();
    let start = || {
        let mut child = Child::spawn(sandbox::with_descriptors(place, 64, "arena-crowd", &[name.as_str(), &path]));
        child.expect(&format!("{CROWD} true true"));
        child
    };
    let (mut maker, mut getter) = (start(), start());
    maker.kill();
    assert_eq!(arena.reclaim().unwrap().blocks, 0, "the other process holds every array");
    getter.tell("end");
    getter.finish();
    assert_eq!(arena.stats().unwrap().arrays, 0);
}

/// A process that forks a child, which tries every operation on the values that it inherited.
fn fork_with_arena(arguments: &[String]) {
    let arena = arena_of_child(arguments);
    let array = arena.from_array(&Array::from_elem(10, 1u64)).unwrap();
    let draft = arena.draft::<u64, _>(10).unwrap();
    let queue = arena.queue(0).unwrap();
    queue.send(&array).unwrap();
    let sender = queue.sender().unwrap();
    let mut inherited = Some((arena.clone(), array.clone(), draft));
    let mut inherited_sender = Some(sender.clone());
    std::panic::set_hook(Box::new(|_| ())); // the child's panic is expected
    in_forked_child(|| {
        let (arena, array, draft) = inherited.take().expect("inherited");
        let looks = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| array.view().sum()));
        let refused = [
            arena.draft::<u64, _>(1).map(drop),
            arena.get::<u64, Ix1>(&array.handle()).map(drop),
            arena.reclaim().map(drop),
            arena.stats().map(drop),
            draft.share().map(drop).map_err(Into::into),
            array.clone().try_into_draft().map(drop).map_err(Into::into),
            queue.send(&array).map_err(Into::into),
            queue.try_recv::<u64, Ix1>().map(drop).map_err(Into::into),
            queue.recv_any().map(drop),
            queue.close().map(drop),
            queue.sender().map(drop),
            inherited_sender.as_ref().unwrap().clone().send(&array).map_err(Into::into),
        ];
        drop(inherited_sender.take());
        let again = arena_of_child(arguments);
        let same = again.get::<u64, Ix1>(&array.handle()).unwrap();
        let fine = same.view().sum() == 10 && same.members() == 2 && again.queue(0).unwrap().len() == 1;
        drop((array, arena, same, again));
        fine && looks.is_err()
            && refused.iter().all(|refused| {
                refused.as_ref().is_err_and(|error| {
                    matches!(error.kind, ErrorKind::Unsupported { .. }) && error.to_string().contains("forked")
                })
            })
    });
    let (_, _, draft) = inherited.expect("the parent's");
    drop(queue.recv::<u64, Ix1>().unwrap());
    drop(sender);
    assert!(queue.try_recv_any().unwrap().is_none(), "one of two senders is left, as if there had been no child");
    drop(inherited_sender);
    assert!(matches!(queue.try_recv_any().unwrap_err().kind, ErrorKind::Closed { .. }));
    assert_eq!((array.members(), array.view().sum(), arena.stats().unwrap().arrays), (1, 10, 2));
    drop(draft.share().unwrap());
    let left: Vec<_> = arena.stats().unwrap().members.iter().map(|member| member.process).collect();
    assert!(left.contains(&std::process::id()) && left.len() == 2, "{left:?}");
    say("done");
}

fn a_forked_child_is_refused_and_disturbs_nothing(place: &Place) {
    let name = place.location("forked");
    let arena = place.arena_options().create(name.as_str(), 1 << 20).unwrap();
    let mut child = Child::start(place, "arena-fork", &[name.as_str()]);
    child.expect("done");
    child.finish();
    let stats = arena.stats().unwrap();
    assert_eq!((stats.arrays, stats.members.len()), (0, 1));
    arena.close().unwrap();
    assert!(!place.has(&name));
}

/// A process that holds an array and a sender, forks a child that lives on, and waits to be killed.
#[allow(unsafe_code)]
fn orphan(arguments: &[String]) {
    let arena = arena_of_child(arguments);
    let array = arena.from_array(&Array::from_elem(10, 1u64)).unwrap();
    let _sender = arena.queue(0).unwrap().sender().unwrap();
    // SAFETY: this process has one thread, and the child only sleeps.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
    }
    say(format!("{child} {}", array.handle()));
    crate::support::child::hear();
}

#[allow(unsafe_code)]
fn parent_death_is_noticed_despite_a_living_forked_child(place: &Place) {
    let name = place.location("orphan");
    let arena = place.arena_options().create(name.as_str(), 1 << 20).unwrap();
    let mut child = Child::start(place, "arena-orphan", &[name.as_str()]);
    let line = child.line();
    let (forked, handle) = line.split_once(' ').unwrap();
    let handle: ArenaHandle = handle.parse().unwrap();
    assert_eq!(arena.get::<u64, Ix1>(&handle).unwrap().view().sum(), 10);
    let queue = arena.queue(0).unwrap();
    assert!(matches!(queue.recv_any_timeout(std::time::Duration::ZERO).unwrap_err().kind, ErrorKind::TimedOut { .. }));
    child.kill();
    // Where a lock lasts only as long as its descriptor, the forked child's copy keeps the parent's seat locked.
    if place.backend.lock_survives_close().unwrap() {
        assert!(
            matches!(queue.recv_any().unwrap_err().kind, ErrorKind::Closed { .. }),
            "its registered sender is dead"
        );
        assert_eq!(arena.reclaim().unwrap().members, 1);
        assert!(arena.get::<u64, Ix1>(&handle).unwrap_err().kind == ErrorKind::HandleSpent);
    }
    // SAFETY: the forked child sleeps in an endless loop. So it still runs, and its number belongs to no other process.
    unsafe { libc::kill(forked.parse().unwrap(), libc::SIGKILL) };
    eventually("the forked child ends", || arena.reclaim().unwrap().members == 1 || arena.stats().unwrap().arrays == 0);
}

/// Tries to open an arena as another kind of array, and forks a child each time the file is open. A thread that starts
/// a program forks at any moment too, and until the program runs, the child has a copy of every descriptor.
fn refused(arguments: &[String]) {
    static FORKS: AtomicUsize = AtomicUsize::new(0);
    let backend = meddling(&backend_of_child(), |operation, _| {
        if operation == "opened" {
            FORKS.fetch_add(1, Ordering::Relaxed);
            fork_until_input_ends();
        }
        Ok(())
    });
    let name = arguments[0].as_str();
    let length = std::fs::metadata(&arguments[1]).unwrap().len() as usize;
    let plain = OpenOptions::new().directory(backend.clone());
    let counted = OpenOptions::new().directory(backend);
    assert!(matches!(plain.open::<u8, Ix1>(name, length).unwrap_err().kind, ErrorKind::Reserved { .. }));
    assert!(matches!(counted.open_counted::<u8, Ix1>(name).unwrap_err().kind, ErrorKind::Reserved { .. }));
    say(format!("refused after {} forks", FORKS.load(Ordering::Relaxed)));
}

fn refused_open_leaves_no_lease_in_a_forked_child(place: &Place) {
    let name = place.location("refused");
    let arena = place.arena_options().create(name.as_str(), 1).unwrap();
    let path = place.path(&name).display().to_string();
    let mut child = Child::start(place, "arena-refused", &[name.as_str(), &path]);
    child.expect("refused after 2 forks");
    arena.close().unwrap();
    assert!(!place.has(&name), "the last member removes the name; a refused open is not a member");
    child.finish();
}
