//! Guards and held access, between threads and between processes: which excludes which, and until when.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use ndarray::{Ix1, ShapeBuilder};
use ndarray_shm::{Access, Error, ErrorKind, OpenOptions, Order, SharedArray};

use crate::support::Place;
use crate::support::child::{Child, Role, hear, say};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "guards",
        tests![
            guards_of_one_process_exclude_each_other,
            reader_excludes_writer_until_released_or_killed,
            writer_in_another_process_excludes_readers,
            locked_cell_is_exclusive_until_its_holder_dies,
            waiting_for_own_guard_is_a_deadlock_error,
            guard_fails_when_the_name_leads_elsewhere,
            waiting_guard_fails_when_the_name_is_unlinked,
            kept_descriptor_allows_guards_without_a_name,
            guard_on_a_shortened_file_is_refused,
            held_access_lasts_as_long_as_the_value,
            lock_without_a_view_excludes_like_a_guard,
            lock_stops_at_its_limit_or_on_request,
            waiting_lock_keeps_new_readers_out,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[("hold-read", hold_read), ("hold-write", hold_write), ("hold-cell", hold_cell)];

fn guards_of_one_process_exclude_each_other(place: &Place) {
    let name = place.location("guards");
    let one = place.options().create::<u8, _>(name.location(), 4).unwrap();
    let two = place.open_options().open::<u8, _>(name.location(), 4).unwrap();
    let (reader, another) = (one.read().unwrap(), two.try_read().unwrap());
    assert_eq!(two.try_write().unwrap_err().kind, ErrorKind::WouldBlock);
    assert_eq!(one.try_write().unwrap_err().kind, ErrorKind::WouldBlock);
    drop((reader, another));
    let writer = two.try_write().unwrap();
    assert_eq!(one.try_read().unwrap_err().kind, ErrorKind::WouldBlock);
    let start = Instant::now();
    std::thread::scope(|scope| {
        let error = scope.spawn(|| one.read_timeout(Duration::from_millis(50)).unwrap_err()).join().unwrap();
        assert!(matches!(error.kind, ErrorKind::TimedOut { .. }), "{error}");
    });
    assert!(start.elapsed() >= Duration::from_millis(50));
    drop(writer);
    assert!(one.try_read().is_ok());
}

/// A child that holds a read guard on an array of four bytes until it is told to release it.
fn hold_read(arguments: &[String]) {
    let array = OpenOptions::new().access(Access::Read).open::<u8, _>(arguments[0].as_str(), 4).unwrap();
    let guard = array.read().unwrap();
    say("reading");
    hear();
    drop(guard);
    say("done");
    hear();
}

/// A child that holds a write guard on an array of four bytes until it is told to release it.
fn hold_write(arguments: &[String]) {
    let array = SharedArray::<u8, _>::open(arguments[0].as_str(), 4).unwrap();
    let mut guard = array.write().unwrap();
    guard.fill(1);
    say("writing");
    hear();
    guard.fill(2);
    drop(guard);
    say("done");
    hear();
}

/// A child that holds the last cell of an array of four bytes until it is killed.
fn hold_cell(arguments: &[String]) {
    let array = SharedArray::<u8, _>::open(arguments[0].as_str(), 4).unwrap();
    let _cell = array.lock_cell(u32::MAX, Duration::ZERO).unwrap();
    say("locked");
    hear();
}

fn locked_cell_is_exclusive_until_its_holder_dies(place: &Place) {
    let name = place.location("cells");
    let array = place.options().create::<u8, _>(name.location(), 4).unwrap();
    let mut child = Child::start(place, "hold-cell", &[name.as_str()]);
    child.expect("locked");
    assert!(matches!(
        array.lock_cell(u32::MAX, Duration::from_millis(5)).unwrap_err().kind,
        ErrorKind::TimedOut { .. }
    ));
    let another = array.lock_cell(7, Duration::ZERO).unwrap();
    assert_eq!(array.try_read().unwrap_err().kind, ErrorKind::WouldBlock, "a read guard takes all cells");
    drop(another);
    assert_eq!(array.try_write().unwrap_err().kind, ErrorKind::WouldBlock);
    child.kill();
    drop(array.lock_cell(u32::MAX, Duration::ZERO).unwrap());
    drop(array.try_write().unwrap());
    array.unlink().unwrap();
    assert!(matches!(array.lock_cell(7, Duration::ZERO).unwrap_err().kind, ErrorKind::Unlinked));
}

fn reader_excludes_writer_until_released_or_killed(place: &Place) {
    let name = place.location("killed-reader");
    let array = place.options().create::<u8, _>(name.location(), 4).unwrap();
    let mut child = Child::start(place, "hold-read", &[name.as_str()]);
    child.expect("reading");
    assert_eq!(array.try_write().unwrap_err().kind, ErrorKind::WouldBlock);
    assert!(matches!(array.write_timeout(Duration::from_millis(30)).unwrap_err().kind, ErrorKind::TimedOut { .. }));
    drop(array.try_read().unwrap());
    child.tell("let go");
    child.expect("done");
    drop(array.try_write().unwrap());
    drop(child);

    let mut child = Child::start(place, "hold-read", &[name.as_str()]);
    child.expect("reading");
    std::thread::scope(|scope| {
        let mut child = child; // a failing assertion kills it before the scope waits for the writer
        let writer = scope.spawn(|| drop(array.write().unwrap()));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!writer.is_finished(), "the reader is alive");
        child.kill();
        writer.join().unwrap();
    });
}

fn writer_in_another_process_excludes_readers(place: &Place) {
    let name = place.location("writer");
    let array = place.options().create::<u8, _>(name.location(), 4).unwrap();
    let mut child = Child::start(place, "hold-write", &[name.as_str()]);
    child.expect("writing");
    assert_eq!(array.try_read().unwrap_err().kind, ErrorKind::WouldBlock);
    child.tell("let go");
    assert_eq!(array.read().unwrap().to_vec(), [2; 4], "everything that was written under the guard");
    child.expect("done");
}

fn waiting_for_own_guard_is_a_deadlock_error(place: &Place) {
    let name = place.location("deadlock");
    let array = place.options().create::<u8, _>(name.location(), 4).unwrap();
    let reader = array.read().unwrap();
    assert_eq!(array.write().unwrap_err().kind, ErrorKind::WouldDeadlock);
    assert_eq!(array.try_write().unwrap_err().kind, ErrorKind::WouldBlock);
    assert!(
        place.open_options().open_writer::<u8, _>(name.location(), 4).unwrap_err().kind == ErrorKind::WouldDeadlock
    );
    let nested = array.read().unwrap();
    drop((reader, nested));
    let writer = array.write().unwrap();
    assert_eq!(array.read().unwrap_err().kind, ErrorKind::WouldDeadlock);
    // Another thread waits, as it should.
    std::thread::scope(|scope| {
        let other = scope.spawn(|| array.read().map(|guard| guard.len()));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!other.is_finished());
        drop(writer);
        assert_eq!(other.join().unwrap().unwrap(), 4);
    });
}

fn guard_fails_when_the_name_leads_elsewhere(place: &Place) {
    let name = place.location("means-else");
    let old = place.options().create::<u8, _>(name.location(), 4).unwrap();
    old.unlink().unwrap();
    assert_eq!(old.read().unwrap_err().kind, ErrorKind::Unlinked);
    let new = place.options().create::<u8, _>(name.location(), 4).unwrap();
    assert_eq!(old.write().unwrap_err().kind, ErrorKind::Unlinked);
    assert!(new.write().is_ok());
}

fn waiting_guard_fails_when_the_name_is_unlinked(place: &Place) {
    const LONG: Duration = Duration::from_secs(60);
    type Array = SharedArray<u8, Ix1>;
    let guards: [fn(&Array) -> Option<Error>; 3] = [
        |array| array.read_timeout(LONG).err(),
        |array| array.write_timeout(LONG).err(),
        |array| array.lock_cell(7, LONG).err(),
    ];
    for (number, guard) in guards.into_iter().enumerate() {
        for made_anew in [false, true] {
            let name = place.location(&format!("goes-{number}-{made_anew}"));
            let array = place.options().create::<u8, _>(name.location(), 4).unwrap();
            let mut child = Child::start(place, "hold-write", &[name.as_str()]);
            child.expect("writing");
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| guard(&array));
                // Should it start to wait only after the unlink, it finds no name and fails in the same way.
                std::thread::sleep(Duration::from_millis(50));
                assert!(!waiting.is_finished());
                array.unlink().unwrap();
                let _new = made_anew.then(|| place.options().create::<u8, _>(name.location(), 4).unwrap());
                child.tell("let go");
                let error = waiting.join().unwrap();
                assert!(
                    error.as_ref().is_some_and(|error| error.kind == ErrorKind::Unlinked),
                    "guard {number}: {error:?}"
                );
            });
            child.expect("done");
        }
    }
}

fn kept_descriptor_allows_guards_without_a_name(place: &Place) {
    let name = place.location("keep-fd");
    let array = place.options().keep_fd(true).create::<u8, _>(name.location(), 4).unwrap();
    array.unlink().unwrap();
    array.write().unwrap().fill(5);
    assert!(matches!(array.read(), Ok(guard) if guard.sum() == 20));
    let (reader, writer) = (array.read().unwrap(), array.try_write());
    assert_eq!(writer.unwrap_err().kind, ErrorKind::WouldBlock);
    drop(reader);
}

fn guard_on_a_shortened_file_is_refused(place: &Place) {
    for keep in [false, true] {
        let name = place.location("shortened");
        let array = place.options().keep_fd(keep).create::<u8, _>(name.location(), 1 << 20).unwrap();
        let file = std::fs::File::options().write(true).open(place.path(&name)).unwrap();
        if cfg!(windows) && file.set_len(4096).is_err() {
            drop(array.try_write().expect("Windows lets no process shorten a mapped file"));
            continue;
        }
        file.set_len(4096).unwrap();
        for error in [array.read().unwrap_err(), array.try_write().unwrap_err()] {
            assert!(matches!(error.kind, ErrorKind::SizeMismatch { expected: 0x10_0000, found: 4096, .. }), "{error}");
        }
    }
}

fn held_access_lasts_as_long_as_the_value(place: &Place) {
    let name = place.location("held");
    let array = place.options().create_with::<u8, _>(name.location(), (2, 2).f(), |mut view| view.fill(1)).unwrap();
    let reader = place.open_options().open_reader::<u8, _>(name.location(), (2, 2).f()).unwrap();
    let another = place.open_options().open_reader::<u8, _>(name.location(), 4).unwrap();
    assert_eq!((reader.view().sum(), reader.order(), another.shape()), (4, Order::F, [4].as_slice()));
    assert_eq!(array.try_write().unwrap_err().kind, ErrorKind::WouldBlock);
    assert!(array.try_read().is_ok());
    let none = Duration::ZERO;
    assert!(
        place.open_options().timeout(none).open_writer::<u8, _>(name.location(), (2, 2).f()).unwrap_err().kind
            == ErrorKind::WouldBlock
    );
    drop((reader, another));
    // A process that another test is spawning may briefly hold a copy of the open file description.
    let soon = Duration::from_secs(60);
    let mut writer = place.open_options().timeout(soon).open_writer::<u8, _>(name.location(), (2, 2).f()).unwrap();
    writer.view_mut().fill(2);
    assert_eq!(writer.view().sum(), 8);
    assert_eq!(array.try_read().unwrap_err().kind, ErrorKind::WouldBlock);
    let brief = Duration::from_millis(20);
    assert!(matches!(
        place.open_options().timeout(brief).open_reader::<u8, _>(name.location(), (2, 2).f()).unwrap_err().kind,
        ErrorKind::TimedOut { .. }
    ));
    drop(writer);
    assert_eq!(array.read_timeout(soon).unwrap().sum(), 8);
}

fn lock_without_a_view_excludes_like_a_guard(place: &Place) {
    let name = place.location("lock");
    let array = place.options().create::<u8, _>(name.location(), 4).unwrap();
    let mut child = Child::start(place, "hold-read", &[name.as_str()]);
    child.expect("reading");
    drop(array.lock(Access::Read, Some(Duration::ZERO), || true).unwrap());
    let refused = array.lock(Access::ReadWrite, Some(Duration::ZERO), || unreachable!("it does not wait"));
    assert_eq!(refused.unwrap_err().kind, ErrorKind::WouldBlock);
    child.kill();
    let writing = array.lock(Access::ReadWrite, None, || true).unwrap();
    assert_eq!(array.try_read().unwrap_err().kind, ErrorKind::WouldBlock);
    assert_eq!(array.lock(Access::Read, None, || true).unwrap_err().kind, ErrorKind::WouldDeadlock);
    drop(writing);
    assert!(array.try_write().is_ok());
    let reader = place.open_options().access(Access::Read).open::<u8, _>(name.location(), 4).unwrap();
    assert!(matches!(
        reader.lock(Access::ReadWrite, None, || true).unwrap_err().kind,
        ErrorKind::PermissionDenied { .. }
    ));
}

fn lock_stops_at_its_limit_or_on_request(place: &Place) {
    let name = place.location("given-up");
    let array = place.options().create::<u8, _>(name.location(), 4).unwrap();
    let mut child = Child::start(place, "hold-write", &[name.as_str()]);
    child.expect("writing");
    let start = Instant::now();
    let limit = Duration::from_millis(250);
    let mut turns = 0;
    let late = array.lock(Access::Read, Some(limit), || {
        turns += 1;
        true
    });
    assert!(matches!(late.unwrap_err(), Error { kind: ErrorKind::TimedOut { waited, .. }, .. } if waited == limit));
    assert!(start.elapsed() >= limit);
    assert!(turns >= 1, "the closure is called during the wait");
    assert_eq!(array.lock(Access::Read, None, || false).unwrap_err().kind, ErrorKind::WouldBlock);
    child.kill();
    drop(array.lock(Access::Read, None, || true).unwrap());
}

fn waiting_lock_keeps_new_readers_out(place: &Place) {
    let name = place.location("gate");
    let array = place.options().create::<u8, _>(name.location(), 4).unwrap();
    let other = place.open_options().open::<u8, _>(name.location(), 4).unwrap();
    let mut child = Child::start(place, "hold-read", &[name.as_str()]);
    child.expect("reading");
    let asked = AtomicU32::new(0);
    let relaxed = Ordering::Relaxed;
    std::thread::scope(|scope| {
        let mut child = child; // a failing assertion kills it before the scope waits for the writer
        let (array, asked) = (&array, &asked);
        let writer = scope.spawn(move || {
            array.lock(Access::ReadWrite, None, || {
                asked.fetch_add(1, relaxed);
                true
            })
        });
        while asked.load(relaxed) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        // While the writer waits, no reader gets in: not even while the writer calls its closure, between two attempts.
        while asked.load(relaxed) < 4 {
            assert_eq!(other.try_read().unwrap_err().kind, ErrorKind::WouldBlock);
        }
        child.kill();
        drop(writer.join().unwrap().unwrap());
    });
    assert!(other.try_read().is_ok());
}
