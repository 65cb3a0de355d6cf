//! A Python process that takes our locks with fcntl: each side excludes the other, and the process's death releases its
//! locks.

use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::IxDyn;
use ndarray_shm::{ErrorKind, Order, SharedArray};

use super::peer::{Peer, path};
use super::sample::{assert_same, create, fill};
use crate::support::{Name, Place, eventually};
use crate::tests;

const SHAPE: [usize; 3] = [5, 6, 7];
/// Long enough to show that a process is waiting.
const A_WHILE: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(60);

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "interop",
        "locks",
        tests![
            python_reads_and_writes_under_our_locks,
            python_reader_excludes_writers_but_not_readers,
            python_writer_excludes_readers_and_writers,
            our_guards_keep_python_out,
            killed_python_reader_admits_a_waiting_writer,
            python_locks_after_our_guard_is_dropped,
            our_waiting_writer_goes_before_new_python_readers,
            a_waiting_python_writer_goes_before_our_new_readers,
            attached_reports_a_python_process_until_its_death,
            unlink_waits_while_python_locks_the_name,
            unlink_is_noticed_in_both_directions,
        ],
    )
}

/// Returns an array, a Python process attached to it, and the array's path.
fn both(place: &Place, name: &Name) -> (SharedArray<u16, IxDyn>, Peer, String) {
    let array = create::<u16>(place, name, &SHAPE, Order::C, 1);
    let (mut python, path) = (Peer::start(place, "locks_peer.py"), path(place, name));
    python.expect(format!("attach {path}"), "done");
    (array, python, path)
}

fn python_reads_and_writes_under_our_locks(place: &Place) {
    let name = place.location("lock-values");
    let (array, mut python, path) = both(place, &name);
    python.expect(format!("check {path} <u2 5,6,7 1"), "same");
    python.expect(format!("fill {path} <u2 5,6,7 2"), "done");
    assert_same(&array, 2);
    fill(&array, 3);
    python.expect(format!("check {path} <u2 5,6,7 3"), "same");
    python.finish();
}

fn python_reader_excludes_writers_but_not_readers(place: &Place) {
    let name = place.location("lock-reader");
    let (array, mut python, path) = both(place, &name);
    python.expect(format!("read {path} now"), "done");
    assert_eq!(array.try_write().unwrap_err().kind, ErrorKind::WouldBlock);
    assert!(matches!(array.write_timeout(A_WHILE).unwrap_err().kind, ErrorKind::TimedOut { .. }));
    drop(array.try_read().unwrap());
    python.expect(format!("release {path}"), "done");
    drop(array.try_write().unwrap());
}

fn python_writer_excludes_readers_and_writers(place: &Place) {
    let name = place.location("lock-writer");
    let (array, mut python, path) = both(place, &name);
    python.expect(format!("write {path} now"), "done");
    assert_eq!(array.try_write().unwrap_err().kind, ErrorKind::WouldBlock);
    assert_eq!(array.try_read().unwrap_err().kind, ErrorKind::WouldBlock);
    assert!(matches!(array.read_timeout(A_WHILE).unwrap_err().kind, ErrorKind::TimedOut { .. }));
    python.expect(format!("release {path}"), "done");
    drop(array.try_read().unwrap());
    drop(array.try_write().unwrap());
}

fn our_guards_keep_python_out(place: &Place) {
    let name = place.location("lock-ours");
    let (array, mut python, path) = both(place, &name);
    let reader = array.read().unwrap();
    python.expect_error(format!("write {path} now"), "BlockingIOError");
    python.expect_error(format!("claim_cell {path} 3"), "BlockingIOError");
    python.expect(format!("read {path} now"), "done");
    python.expect(format!("release {path}"), "done");
    drop(reader);
    let writer = array.write().unwrap();
    python.expect_error(format!("read {path} now"), "BlockingIOError");
    python.expect_error(format!("write {path} now"), "BlockingIOError");
    python.expect_error(format!("claim_cell {path} 3"), "BlockingIOError");
    drop(writer);
    python.expect(format!("write {path} now"), "done");
}

fn killed_python_reader_admits_a_waiting_writer(place: &Place) {
    let name = place.location("lock-killed");
    let (array, mut python, path) = both(place, &name);
    python.expect(format!("read {path} now"), "done");
    let array = &array;
    // The closure owns the process, so that a failed assertion kills it. Otherwise the scope would wait for the writer
    // thread forever, and the writer thread for the process's read lock.
    std::thread::scope(move |scope| {
        let writer = scope.spawn(|| drop(array.write().unwrap()));
        std::thread::sleep(A_WHILE);
        assert!(!writer.is_finished(), "the reader lives");
        python.kill();
        writer.join().unwrap();
    });
}

fn python_locks_after_our_guard_is_dropped(place: &Place) {
    let name = place.location("lock-wait");
    let (array, mut python, path) = both(place, &name);
    for question in ["read", "write"] {
        let guard = array.write().unwrap();
        python.tell(format!("{question} {path} wait"));
        assert_eq!(python.answer_within(A_WHILE), None, "{question}");
        drop(guard);
        assert_eq!(python.answer_within(LONG).as_deref(), Some("done"), "{question}");
        python.expect(format!("release {path}"), "done");
    }
}

/// Waits until a waiting writer has closed the gate. The check runs in its own thread, which holds no guard.
fn until_the_gate_is_closed(array: &SharedArray<u16, IxDyn>) {
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| eventually("a writer waits at the gate", || array.try_read().is_err()));
        asking.join().unwrap();
    });
}

fn our_waiting_writer_goes_before_new_python_readers(place: &Place) {
    let name = place.location("lock-gate-ours");
    let (array, mut python, path) = both(place, &name);
    let mut second = Peer::start(place, "locks_peer.py");
    second.expect(format!("attach {path}"), "done");
    python.expect(format!("read {path} now"), "done");
    let array = &array;
    std::thread::scope(move |scope| {
        let writer = scope.spawn(|| fill(array, 2));
        until_the_gate_is_closed(array);
        second.expect_error(format!("read {path} now"), "BlockingIOError");
        second.tell(format!("check {path} <u2 5,6,7 2"));
        assert_eq!(second.answer_within(A_WHILE), None);
        assert!(!writer.is_finished());
        python.expect(format!("release {path}"), "done");
        writer.join().unwrap();
        assert_eq!(second.answer_within(LONG).as_deref(), Some("same"), "what the writer wrote");
    });
}

fn a_waiting_python_writer_goes_before_our_new_readers(place: &Place) {
    let name = place.location("lock-gate-python");
    let (array, mut python, path) = both(place, &name);
    let reader = array.read().unwrap();
    python.tell(format!("write {path} wait"));
    until_the_gate_is_closed(&array);
    assert_eq!(python.answer_within(A_WHILE), None);
    drop(reader);
    assert_eq!(python.answer_within(LONG).as_deref(), Some("done"));
    python.expect(format!("release {path}"), "done");
    drop(array.try_read().unwrap());
}

fn attached_reports_a_python_process_until_its_death(place: &Place) {
    let name = place.location("lock-lease");
    let (array, mut python, path) = both(place, &name);
    let attached = || place.backend.attached(name.location()).unwrap();
    python.expect(format!("attached {path}"), "True");
    drop(array);
    assert!(attached(), "Python is still attached");
    python.expect(format!("detach {path}"), "done");
    assert!(!attached());
    python.expect(format!("attached {path}"), "False");
    python.expect(format!("attach {path}"), "done");
    assert!(attached());
    python.kill();
    assert!(!attached());
}

fn unlink_waits_while_python_locks_the_name(place: &Place) {
    let name = place.location("lock-name");
    let (array, mut python, path) = both(place, &name);
    python.expect(format!("hold_name {path}"), "done");
    let (array, name) = (&array, &name);
    std::thread::scope(move |scope| {
        let unlinking = scope.spawn(|| array.unlink().unwrap());
        std::thread::sleep(A_WHILE);
        assert!(!unlinking.is_finished());
        assert_eq!(place.files_of(name), [name.as_str()]);
        python.kill();
        assert!(unlinking.join().unwrap());
    });
    assert!(place.files_of(name).is_empty());
}

fn unlink_is_noticed_in_both_directions(place: &Place) {
    let name = place.location("lock-unlink");
    let (array, mut python, path) = both(place, &name);
    python.expect(format!("unlink {path}"), "True");
    python.expect(format!("unlink {path}"), "False");
    assert_eq!(array.read().unwrap_err().kind, ErrorKind::Unlinked);
    python.expect_error(format!("read {path} now"), "FileNotFoundError");
    let newer = create::<u16>(place, &name, &SHAPE, Order::C, 2);
    python.expect_error(format!("read {path} now"), "FileNotFoundError");
    python.expect(format!("detach {path}"), "done");
    python.expect(format!("attach {path}"), "done");
    python.expect(format!("check {path} <u2 5,6,7 2"), "same");
    assert!(newer.unlink().unwrap());
    python.expect_error(format!("read {path} now"), "FileNotFoundError");
}
