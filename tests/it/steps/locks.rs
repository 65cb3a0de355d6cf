//! Locks of a process that is stopped, killed or forked while it holds them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::backend::Backend;
use ndarray_shm::counted::SharingStrategy;
use ndarray_shm::pool::PoolOptions;
use ndarray_shm::{Arena, ErrorKind, OpenOptions, SharedArray, default_directory};

use crate::linux::rights::as_stranger;
use crate::support::child::{Child, Role, is_stopped, say};
use crate::support::forks::{end_within, fork, fork_until_input_ends, in_forked_child, wait};
use crate::support::held_fork::{act_beside_step, fork_beside, release_fork};
use crate::support::machine::send_signal;
use crate::support::{Place, arena_of_child, backend_of_child, eventually, meddling};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "steps",
        "locks",
        tests![
            stopped_writer_delays_guards_for_a_limited_time,
            new_array_under_a_removed_name_keeps_it,
            forked_child_finds_directories_despite_a_held_lock,
            seat_ends_with_its_process_despite_a_fork,
            guard_of_a_stopped_forked_child_gets_no_recycled_memory,
            name_is_unlocked_despite_a_forked_child,
            stop_of_a_waiting_member_makes_no_later_pause_longer,
        ],
    )
}

/// A process with a forked child, which opens an array's name for a guard and is stopped before it locks anything.
/// Meanwhile the memory is recycled.
///
/// The forked child stops itself (`NDSHM_STEP`), because only an inherited attachment has that step.
fn guard_in_forked_child(arguments: &[String]) {
    let pool = PoolOptions::new().directory(backend_of_child()).create().unwrap();
    let mut array = Some(pool.take_zeroed::<u8, _>(5000).unwrap().publish(arguments[0].as_str()).unwrap());
    let child = fork(|| {
        array.as_ref().unwrap().write_timeout(Duration::from_secs(60)).unwrap_err().kind == ErrorKind::Unlinked
    });
    eventually("the forked child reaches its step", || is_stopped(child as u32));
    drop(array.take());
    let mut next = pool.take::<u8, _>(5000).unwrap();
    assert!(next.is_recycled());
    next.view_mut().fill(7);
    let next = next.into_draft().share(SharingStrategy::FileSystem).unwrap();
    next.freeze().unwrap();
    send_signal("CONT", child as u32);
    wait(child);
    assert!(next.view().unwrap().iter().all(|element| *element == 7));
    say("done");
}

fn guard_of_a_stopped_forked_child_gets_no_recycled_memory(place: &Place) {
    let place = &place.private();
    let name = place.location("inherited");
    let mut child = Child::start_with_step(place, "step-guard-in-fork", &[name.as_str()], "hold: inherited and opened");
    child.expect("done");
    child.finish();
    assert_eq!(place.everything(), [] as [&str; 0]);
}

/// A process that drops an array of a pool. Another thread forks while NAME is locked, and the child has a copy of the
/// descriptor, as a spawned process has until its program runs.
fn drop_beside_a_fork(arguments: &[String]) {
    let pool = PoolOptions::new().directory(backend_of_child()).create().unwrap();
    let name = |number: u32| format!("{}-{number}", arguments[0]);
    act_beside_step(|| {
        fork_until_input_ends();
        say("forked");
    });
    for number in 0..3 {
        let draft = pool.take::<u8, _>(5000).unwrap();
        assert_eq!(draft.is_recycled(), number > 0);
        drop(draft.publish(name(number)).unwrap());
    }
    say(format!("dropped {}", pool.stats().dropped));
}

fn name_is_unlocked_despite_a_forked_child(place: &Place) {
    let place = &place.private();
    let name = place.location("dropped");
    let mut child = Child::start_until(place, "step-drop-beside-fork", &[name.as_str()], "name: locked");
    child.resume();
    child.expect("forked");
    child.expect("dropped 0");
    child.finish(); // also ends the forked child, which reads the same input
    assert_eq!(place.everything(), [] as [&str; 0]);
}

pub const ROLES: &[(&str, Role)] = &[
    ("step-guard", guard),
    ("step-join", join_while_forking),
    ("step-directory", find_directory),
    ("step-unlink", unlink),
    ("step-guard-in-fork", guard_in_forked_child),
    ("step-drop-beside-fork", drop_beside_a_fork),
    ("step-wait-for-block", wait_for_block),
];

type Array = SharedArray<u8, Ix1>;

/// A child that takes the kind of guard that its argument names, and reports success.
fn guard(arguments: &[String]) {
    let array: Array = OpenOptions::new().directory(backend_of_child()).open(arguments[1].as_str(), 10).unwrap();
    match arguments[0].as_str() {
        "read" => drop(array.read().unwrap()),
        "write" => drop(array.write().unwrap()),
        "cell" => drop(array.lock_cell(5, Duration::from_secs(600)).unwrap()),
        "try" => eventually("a try succeeds", || array.try_read().is_ok()),
        other => panic!("no guard is called {other}"),
    }
    say("done");
}

fn stopped_writer_delays_guards_for_a_limited_time(place: &Place) {
    let name = place.location("stopped");
    let array: Array = place.options().create(name.location(), 10).unwrap();
    // The writer is stopped while it keeps the gate closed. Other processes may pass the gate after a limited time.
    let stopped = Child::start_until(place, "step-guard", &["write", name.as_str()], "guard: past the gate");
    assert_eq!(array.try_read().unwrap_err().kind, ErrorKind::WouldBlock, "a waiting writer goes first");
    let mut others =
        ["read", "write", "cell", "try"].map(|kind| Child::start(place, "step-guard", &[kind, name.as_str()]));
    others.iter_mut().for_each(|other| other.expect("done"));
    others.into_iter().for_each(Child::finish);
    stopped.resume();
    let mut stopped = stopped;
    stopped.expect("done");
    stopped.finish();
    drop(array.try_read().unwrap());
}

/// A child that removes a name, and reports whether there was one.
fn unlink(arguments: &[String]) {
    let backend = backend_of_child();
    say(backend.unlink_within(&arguments[0].parse().unwrap(), None, Duration::ZERO).unwrap());
}

/// Two processes remove the same name while a third, which may only read the file, keeps them from locking it
/// exclusively.
///
/// The child is stopped after it decided to remove the name. Meanwhile this process removes the name and creates a new
/// array under it. The resumed child must not remove the new array's name.
fn new_array_under_a_removed_name_keeps_it(place: &Place) {
    let place = &place.private();
    let (name, program) = (place.location("successor"), place.location("program"));
    let options = || place.options().permissions(0o644);
    let old = options().create::<u8, Ix1>(name.location(), 10).unwrap();
    let mut keeper = as_stranger(place, &program, "keep-read-locks", &[&place.path(&name).display().to_string()]);
    keeper.expect("kept");
    let stopped = Child::start_until(place, "step-unlink", &[name.as_str()], "name: about to be removed beside others");
    assert!(place.backend.unlink_within(name.location(), None, Duration::ZERO).unwrap());
    let new = options().create::<u8, Ix1>(name.location(), 20).unwrap();
    stopped.resume();
    let mut stopped = stopped;
    stopped.expect("false");
    stopped.finish();
    drop(new.read().expect("the new array keeps its name"));
    assert_eq!(place.hidden_drafts(), 0);
    drop(old);
}

/// Finds the default backend while another thread forks. The forked child inherits the locked table of directories, and
/// must be able to find the default backend too.
fn find_directory(_: &[String]) {
    act_beside_step(|| {
        in_forked_child(|| {
            end_within(60);
            default_directory().is_ok()
        });
        say("forked");
    });
    drop(default_directory().unwrap());
    say("found");
}

fn forked_child_finds_directories_despite_a_held_lock(place: &Place) {
    let mut child = Child::start_until(place, "step-directory", &[], "directories: locked");
    child.resume();
    child.expect("forked");
    child.expect("found");
    child.finish();
}

/// Opens an arena while another thread forks. The forked child has a copy of every descriptor, and the forking thread
/// has not yet run the library's fork handlers.
fn join_while_forking(arguments: &[String]) {
    static PROBES: AtomicUsize = AtomicUsize::new(0);
    let backend = meddling(&backend_of_child(), |operation, _| {
        // The first probe is for the arena, the second for the seat. The seat's file is open by then, so that the child
        // gets a copy.
        if operation == "probe" && PROBES.fetch_add(1, Ordering::Relaxed) == 1 {
            fork_beside();
        }
        Ok(())
    });
    let flag = arguments[1].clone();
    std::thread::spawn(move || {
        eventually("the fork may go on", || std::path::Path::new(&flag).exists());
        release_fork();
    });
    let arena = Arena::open_in(&backend, arguments[0].as_str()).unwrap();
    assert!(PROBES.load(Ordering::Relaxed) > 1);
    say("joined");
    std::thread::sleep(Duration::MAX);
    drop(arena);
}

fn seat_ends_with_its_process_despite_a_fork(place: &Place) {
    let place = &place.private();
    let name = place.location("arena");
    let go_on = place.location("go-on");
    let arena = place.arena_options().create(name.location(), 1 << 16).unwrap();
    let flag = place.path(&go_on).display().to_string();
    let mut child =
        Child::start_with_step(place, "step-join", &[name.as_str(), &flag], "seat: a child may have its lock");
    let mut found_fork = false;
    eventually("the child joins, or finds the fork", || {
        if child.is_stopped() {
            found_fork = true;
            std::fs::write(&flag, "").unwrap();
            child.resume();
        }
        child.line_within(Duration::from_millis(10)).is_some_and(|line| line == "joined")
    });
    child.kill();
    let mut found = 0;
    if place.backend.lock_survives_close().unwrap() {
        found = arena.reclaim().unwrap().members;
        assert_eq!(found, 1, "the member's seat is free, although its forked child lives");
        assert!(found_fork, "the forked child had a copy of the seat's descriptor");
    }
    child.end(); // also ends the forked child, which reads the same input
    eventually("the member is reclaimed after its forked child has ended", || {
        found += arena.reclaim().unwrap().members;
        found == 1
    });
}

/// A child that waits without limit for memory of an arena.
fn wait_for_block(arguments: &[String]) {
    let arena = arena_of_child(arguments);
    arena.draft_wait::<u8, _>(50_000, Duration::MAX).unwrap();
    say("got");
}

/// The member is stopped after a search in vain, for longer than any pause. Then memory is free.
fn stop_of_a_waiting_member_makes_no_later_pause_longer(place: &Place) {
    let name = place.location("stopped-search");
    let arena = place.arena_options().create(name.location(), 1 << 16).unwrap();
    let block = arena.draft::<u8, _>(50_000).unwrap();
    let mut waiter = Child::start_until(place, "step-wait-for-block", &[name.as_str()], "allocate: none free");
    std::thread::sleep(Duration::from_secs(3));
    drop(block);
    waiter.resume();
    // A pause of four times the stop would be 12 seconds.
    assert_eq!(waiter.line_within(Duration::from_secs(8)).as_deref(), Some("got"));
    waiter.finish();
}
