//! Arrays that a forked child inherits, while its parent's pool recycles their memory.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::counted::SharingStrategy;
use ndarray_shm::pool::{Pool, PoolOptions};
use ndarray_shm::stream::{self, Backpressure, StreamCursor, StreamOptions, StreamReader, StreamWriter};
use ndarray_shm::{CreateOptions, Draft, ErrorKind, Location, OpenOptions, RefcountedArray, default_directory};

use crate::support::child::{Child, Role, hear, say};
use crate::support::forks::{end_within, fork, in_forked_child, wait};
use crate::support::{Place, backend_of_child, eventually};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "linux",
        "inherited",
        tests![
            forked_child_is_refused_recycled_memory,
            forked_child_uses_what_it_inherited,
            guard_of_a_forked_child_keeps_memory_from_the_pool,
            counted_array_that_a_child_has_inherited_is_not_recycled,
            parent_that_detaches_leaves_the_lease_to_its_child,
            draft_that_a_child_has_inherited_stays_its_parents,
            frame_that_a_child_has_inherited_never_changes,
            child_of_a_writer_can_neither_write_nor_end_its_stream,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[
    ("inherited-recycled", recycled),
    ("inherited-used", used),
    ("inherited-guarded", guarded),
    ("inherited-counted", counted),
    ("inherited-left", left),
    ("inherited-other", other),
    ("inherited-draft", draft),
    ("inherited-frames", frames),
    ("inherited-writer", written),
];

pub const LENGTH: usize = 5000;

/// How long a lock may take that is to be granted.
pub const SOON: Duration = Duration::from_secs(60);

/// Takes recycled memory for another array, which is filled with 7: a frozen counted array, or a plain one.
pub fn successor(pool: &Pool, frozen: bool, name: &str) -> Box<dyn Fn() -> bool> {
    let mut draft = pool.take::<u8, _>(LENGTH).unwrap();
    assert!(draft.is_recycled(), "this is about recycled memory");
    draft.view_mut().fill(7);
    if !frozen {
        let array = draft.publish(name).unwrap();
        return Box::new(move || array.read().unwrap().iter().all(|element| *element == 7));
    }
    let array = draft.into_draft().share(SharingStrategy::FileSystem).unwrap();
    array.freeze().unwrap();
    Box::new(move || array.refcount() == 1 && array.view().unwrap().iter().all(|element| *element == 7))
}

/// A process that forks, and recycles the memory of the array that the child has inherited.
fn recycled(arguments: &[String]) {
    let backend = backend_of_child();
    for kind in ["pooled", "kept"] {
        for frozen in [true, false] {
            let pool = PoolOptions::new().directory(backend.clone()).create().unwrap();
            let name = format!("{}-{kind}", arguments[0]);
            let options = CreateOptions::new().directory(backend.clone()).keep_fd(true);
            let pooled =
                (kind == "pooled").then(|| pool.take::<u8, _>(LENGTH).unwrap().publish(name.as_str()).unwrap());
            let kept = (kind == "kept").then(|| options.create::<u8, Ix1>(name.as_str(), LENGTH).unwrap());
            let (reader, mut writer) = UnixStream::pair().unwrap();
            let child = fork(|| {
                let _ = (&reader).read_exact(&mut [0]); // until the parent writes, or is dead
                let array = pooled.as_deref().or(kept.as_ref()).unwrap();
                let refused = [
                    array.write_timeout(SOON).map(drop).unwrap_err(),
                    array.try_write().map(drop).unwrap_err(),
                    array.read().map(drop).unwrap_err(),
                    array.lock_cell(3, SOON).map(drop).unwrap_err(),
                ];
                // Without a descriptor the guard goes by the name, which has gone. A kept one leads to the memory under
                // any name.
                refused.iter().all(|error| {
                    if kind == "kept" {
                        matches!(error.kind, ErrorKind::Unsupported { .. })
                    } else {
                        error.kind == ErrorKind::Unlinked
                    }
                })
            });
            drop(pooled);
            if let Some(array) = kept {
                pool.put(array).unwrap();
            }
            let unchanged = successor(&pool, frozen, &format!("{name}-next"));
            writer.write_all(b"x").unwrap();
            wait(child);
            assert!(unchanged(), "{kind}, frozen: {frozen}");
        }
    }
    say("done");
}

fn forked_child_is_refused_recycled_memory(place: &Place) {
    let place = &place.private();
    let name = place.location("recycled");
    let mut child = Child::start(place, "inherited-recycled", &[name.as_str()]);
    child.expect("done");
    child.finish();
    assert_eq!(place.everything(), [] as [&str; 0]);
}

/// A process with a forked child, which uses arrays that it inherited and that still exist.
fn used(arguments: &[String]) {
    let name = |label: &str| format!("{}-{label}", arguments[0]);
    let backend = backend_of_child();
    let pool = PoolOptions::new().directory(backend.clone()).create().unwrap();
    let pooled = pool.take_zeroed::<u8, _>(LENGTH).unwrap().publish(name("pooled")).unwrap();
    let options = CreateOptions::new().directory(backend.clone());
    let plain = options.create::<u8, Ix1>(name("plain"), LENGTH).unwrap();
    let kept = options.clone().keep_fd(true).create::<u8, Ix1>(name("kept"), LENGTH).unwrap();
    let counted: [RefcountedArray<u8, Ix1>; 2] = [SharingStrategy::FileDescriptor, SharingStrategy::FileSystem]
        .map(|strategy| CreateOptions::new().directory(backend.clone()).share(strategy, LENGTH).unwrap());
    for label in ["written", "read"] {
        drop(options.create::<u8, Ix1>(name(label), LENGTH).unwrap());
    }
    let attach = OpenOptions::new().directory(backend.clone());
    let writer = attach.open_writer::<u8, Ix1>(name("written"), LENGTH).unwrap();
    let reader = attach.open_reader::<u8, Ix1>(name("read"), LENGTH).unwrap();
    in_forked_child(|| {
        for array in [&*pooled, &plain] {
            array.write().unwrap()[1] += 1;
            assert_eq!(array.read_timeout(SOON).unwrap()[1], 1);
            drop(array.lock_cell(2, SOON).unwrap());
            assert!(array.is_sparse().is_ok());
        }
        assert!(matches!(kept.read().unwrap_err().kind, ErrorKind::Unsupported { .. }));
        for array in &counted {
            array.write().unwrap()[1] += 1;
            assert_eq!(array.read().unwrap()[1], 1);
        }
        assert_eq!((writer.view()[0], reader.view()[0]), (0, 0));
        true
    });
    assert_eq!((pooled.read().unwrap()[1], plain.read().unwrap()[1]), (1, 1));
    assert!(counted.iter().all(|array| array.read().unwrap()[1] == 1 && array.refcount() == 1));
    // The child's end has released nothing of the parent's.
    assert!(attach.open::<u8, Ix1>(name("written"), LENGTH).unwrap().try_read().is_err());
    assert!(attach.open::<u8, Ix1>(name("read"), LENGTH).unwrap().try_write().is_err());
    for label in ["plain", "kept", "written", "read"] {
        backend.unlink(name(label)).unwrap();
    }
    say("done");
}

fn forked_child_uses_what_it_inherited(place: &Place) {
    let place = &place.private();
    let name = place.location("used");
    let mut child = Child::start(place, "inherited-used", &[name.as_str()]);
    child.expect("done");
    child.finish();
    assert_eq!(place.everything(), [] as [&str; 0]);
}

/// A process that drops a pooled array while a forked child reads it under a guard.
fn guarded(arguments: &[String]) {
    let pool = PoolOptions::new().directory(backend_of_child()).create().unwrap();
    let mut array = Some(pool.take_zeroed::<u8, _>(LENGTH).unwrap().publish(arguments[0].as_str()).unwrap());
    let (mut parent, mut child_end) = UnixStream::pair().unwrap();
    let child = fork(|| {
        let guard = array.as_ref().unwrap().read().unwrap();
        child_end.write_all(b"r").unwrap();
        child_end.read_exact(&mut [0]).unwrap();
        let unchanged = guard.iter().all(|element| *element == 0);
        drop(guard);
        child_end.write_all(b"e").unwrap();
        unchanged
    });
    parent.read_exact(&mut [0]).unwrap();
    drop(array.take());
    let mut other = pool.take::<u8, _>(LENGTH).unwrap();
    assert!(!other.is_recycled(), "the child's guard has a lease of its own");
    other.view_mut().fill(7);
    parent.write_all(b"x").unwrap();
    parent.read_exact(&mut [0]).unwrap();
    wait(child);
    pool.maintain();
    assert_eq!((pool.stats().draining.arrays, pool.stats().idle.arrays), (0, 1));
    say("done");
}

fn guard_of_a_forked_child_keeps_memory_from_the_pool(place: &Place) {
    let place = &place.private();
    let name = place.location("guarded");
    let mut child = Child::start(place, "inherited-guarded", &[name.as_str()]);
    child.expect("done");
    child.finish();
    assert_eq!(place.everything(), [] as [&str; 0]);
}

/// A process that forks, and cannot recycle what its child has inherited.
fn counted(_: &[String]) {
    let options = CreateOptions::new().directory(backend_of_child()).keep_fd(true);
    let mut array = options.share::<u8, Ix1>(SharingStrategy::FileSystem, LENGTH).unwrap();
    assert!(array.recycle().unwrap(), "before the fork");
    array.write().unwrap().fill(7);
    let (reader, mut writer) = UnixStream::pair().unwrap();
    let child = fork(|| {
        let _ = (&reader).read_exact(&mut [0]);
        array.read().unwrap().iter().all(|element| *element == 7)
    });
    assert!(!array.recycle().unwrap(), "the kernel would grant the lock: parent and child share a description");
    writer.write_all(&[0]).unwrap();
    wait(child);
    assert!(!array.recycle().unwrap(), "nothing tells that the child has ended");
    // What is mapped after the fork, no child has.
    let mut later = options.share::<u8, Ix1>(SharingStrategy::FileSystem, LENGTH).unwrap();
    assert!(later.recycle().unwrap());
    in_forked_child(|| !later.recycle().unwrap_or(true));
    say("done");
}

fn counted_array_that_a_child_has_inherited_is_not_recycled(place: &Place) {
    let mut child = Child::start(place, "inherited-counted", &[]);
    child.expect("done");
    child.finish();
}

/// A process that attaches, forks a child that reads when it is told to, and detaches.
fn left(arguments: &[String]) {
    let options = OpenOptions::new().directory(backend_of_child()).keep_fd(true);
    let array = options.open_counted::<u8, Ix1>(arguments[0].as_str()).unwrap();
    let (mut parent, mut child_end) = UnixStream::pair().unwrap();
    let child = fork(|| {
        end_within(60);
        child_end.read_exact(&mut [0]).unwrap();
        array.read().unwrap().iter().all(|element| *element == 7)
    });
    array.close().unwrap();
    say("left");
    hear();
    parent.write_all(b"x").unwrap();
    wait(child);
    say("ended");
}

/// A process that creates a counted array, and recycles it when it is told to.
fn other(arguments: &[String]) {
    let options = CreateOptions::new().directory(backend_of_child()).keep_fd(true);
    let mut array = options.create_counted::<u8, Ix1>(arguments[0].as_str(), LENGTH).unwrap();
    array.write().unwrap().fill(7);
    while hear() == "recycle" {
        say(array.recycle().unwrap());
    }
}

fn parent_that_detaches_leaves_the_lease_to_its_child(place: &Place) {
    let place = &place.private();
    let name = place.location("left");
    let mut owner = Child::start(place, "inherited-other", &[name.as_str()]);
    eventually("it is created", || place.has(&name));
    let mut parent = Child::start(place, "inherited-left", &[name.as_str()]);
    parent.expect("left");
    assert_eq!(owner.ask("recycle"), "false", "a forked child may read");
    parent.tell("end");
    parent.expect("ended");
    parent.finish();
    assert_eq!(owner.ask("recycle"), "true");
    owner.tell("end");
    owner.finish();
    assert_eq!(place.everything(), [] as [&str; 0]);
}

/// A process with a draft that its forked child tries to publish, and to share after the parent has published it.
fn draft(arguments: &[String]) {
    let name = arguments[0].as_str();
    let mut draft = Some(Draft::<u8, Ix1>::new(LENGTH).unwrap());
    let (mut parent, mut child_end) = UnixStream::pair().unwrap();
    let child = fork(|| {
        end_within(60);
        let refused = |kind: &ErrorKind| matches!(kind, ErrorKind::Unsupported { .. });
        let error = draft.take().unwrap().publish(name).map(drop).unwrap_err();
        assert!(refused(&error.error().kind), "{error}");
        child_end.read_exact(&mut [0]).unwrap();
        let mut inherited = error.into_inner();
        for strategy in [SharingStrategy::FileDescriptor, SharingStrategy::FileSystem] {
            let error = inherited.share(strategy).map(drop).unwrap_err();
            assert!(refused(&error.error().kind), "{error}");
            inherited = error.into_inner();
        }
        true
    });
    let array = draft.unwrap().publish(name).unwrap();
    parent.write_all(b"x").unwrap();
    wait(child);
    assert_eq!(array.read().unwrap().len(), LENGTH, "a longer file would be refused");
    ndarray_shm::unlink(name).unwrap();
    say("done");
}

fn draft_that_a_child_has_inherited_stays_its_parents(place: &Place) {
    let place = &place.private();
    let name = place.location("draft");
    let mut child = Child::start(place, "inherited-draft", &[name.as_str()]);
    child.expect("done");
    child.finish();
    assert_eq!(place.everything(), [] as [&str; 0]);
}

/// Writes a frame of one value.
fn fill(writer: &mut StreamWriter<u8, Ix1>, value: u8) {
    let mut frame = writer.frame().unwrap();
    frame.view_mut().fill(value);
    frame.commit().unwrap();
}

/// Forks with a frame, which the parent gives up. Returns whether the child can hold it when `before` has been called,
/// and whether its elements are still there when 40 more frames were written, or as many as `writer` can.
fn held_by_a_child(
    name: &str,
    writer: &mut Option<StreamWriter<u8, Ix1>>,
    before: impl FnOnce(&mut Option<StreamWriter<u8, Ix1>>),
) -> (bool, bool) {
    let mut reader = StreamReader::<u8, Ix1>::open(name).unwrap();
    let frame = reader.latest().unwrap().unwrap();
    let value = frame.view()[0];
    let (mut parent, mut child_end) = UnixStream::pair().unwrap();
    let child = fork(|| {
        end_within(60);
        child_end.read_exact(&mut [0]).unwrap();
        let held = frame.hold();
        assert!(held.is_ok() || held.is_err_and(|error| error.kind == ErrorKind::Unlinked));
        child_end.write_all(&[u8::from(frame.hold().is_ok())]).unwrap();
        child_end.read_exact(&mut [0]).unwrap();
        let is_there = frame.hold().is_ok() && frame.view().iter().all(|element| *element == value);
        child_end.write_all(&[u8::from(is_there)]).unwrap();
        child_end.read_exact(&mut [0]).unwrap(); // holds it so long
        true
    });
    before(writer);
    let mut answer = [0];
    parent.write_all(b"h").unwrap();
    parent.read_exact(&mut answer).unwrap();
    let is_held = answer == [1];
    drop((frame, reader));
    for value in 100..140 {
        writer.iter_mut().for_each(|writer| fill(writer, value));
    }
    parent.write_all(b"l").unwrap();
    parent.read_exact(&mut answer).unwrap();
    if is_held && writer.is_some() {
        let place = (default_directory().unwrap(), Location::new(name).unwrap());
        let holders = stream::inspect(&place.0, &place.1).unwrap().holders;
        assert_eq!(holders, [u32::try_from(child).unwrap()], "the parent holds none any more");
    }
    parent.write_all(b"e").unwrap();
    wait(child);
    (is_held, answer == [1])
}

/// A process that forks with frames of its own stream.
fn frames(arguments: &[String]) {
    let name = arguments[0].as_str();
    let place = (default_directory().unwrap(), Location::new(name).unwrap());
    let begin = || {
        let mut writer = StreamOptions::new().create::<u8, Ix1>(name, LENGTH, 4).unwrap();
        fill(&mut writer, 1);
        Some(writer)
    };
    // While the stream has its name, the child holds the frame itself.
    let mut writer = begin();
    for _ in 0..20 {
        assert_eq!(held_by_a_child(name, &mut writer, |_| ()), (true, true));
    }
    assert_eq!(stream::inspect(&place.0, &place.1).unwrap().held, 0, "the child has ended");
    // An orderly end: no writer can come any more.
    assert_eq!(held_by_a_child(name, &mut writer, |writer| drop(writer.take())), (true, true));
    // Without the name the child cannot lock it, and the writer may overwrite it.
    writer = begin();
    let unlink = |_: &mut Option<_>| assert!(stream::unlink(&place.0, &place.1).unwrap());
    assert_eq!(held_by_a_child(name, &mut writer, unlink), (false, false));
    say("done");
}

fn frame_that_a_child_has_inherited_never_changes(place: &Place) {
    let place = &place.private();
    let name = place.location("frames");
    let mut child = Child::start(place, "inherited-frames", &[name.as_str()]);
    child.expect("done");
    child.finish();
    assert_eq!(place.everything(), [] as [&str; 0]);
}

/// A process that forks with a writer, a frame that is being written, and a cursor.
fn written(arguments: &[String]) {
    let name = arguments[0].as_str();
    let mut writer = Some(StreamOptions::new().create::<u8, Ix1>(name, LENGTH, 4).unwrap());
    let mut cursor = StreamCursor::<u8, Ix1>::open(name, "disk", Backpressure::Wait).unwrap();
    let mut reader = StreamReader::<u8, Ix1>::open(name).unwrap();
    let refused = |error: ndarray_shm::Error| matches!(error.kind, ErrorKind::Unsupported { .. });
    in_forked_child(|| {
        let writer = writer.as_mut().unwrap();
        refused(writer.frame().map(drop).unwrap_err()) && refused(writer.end().unwrap_err())
    });
    in_forked_child(|| refused(cursor.next().map(drop).unwrap_err()) && refused(cursor.acknowledge(0).unwrap_err()));
    in_forked_child(|| {
        drop(writer.take());
        true
    });
    let frame = writer.as_mut().unwrap().frame().unwrap();
    let child = fork(|| refused(frame.commit().unwrap_err()));
    wait(child);
    fill(writer.as_mut().unwrap(), 3);
    let frame = reader.next().unwrap().unwrap();
    assert!(frame.number() == 1 && frame.view().iter().all(|element| *element == 3), "the stream goes on");
    // A child keeps none of the writer's locks: a successor can start while it lives.
    let (mut parent, mut child_end) = UnixStream::pair().unwrap();
    let child = fork(|| {
        end_within(60);
        child_end.read_exact(&mut [0]).unwrap();
        true
    });
    drop((frame, cursor));
    writer.take().unwrap().end().unwrap();
    drop(StreamOptions::new().create::<u8, Ix1>(name, LENGTH, 4).unwrap());
    parent.write_all(b"e").unwrap();
    wait(child);
    say("done");
}

fn child_of_a_writer_can_neither_write_nor_end_its_stream(place: &Place) {
    let place = &place.private();
    let name = place.location("writer");
    let mut child = Child::start(place, "inherited-writer", &[name.as_str()]);
    child.expect("done");
    child.finish();
    assert_eq!(place.everything(), [] as [&str; 0]);
}
