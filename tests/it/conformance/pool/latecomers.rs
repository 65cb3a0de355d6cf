//! An attachment that opened a name before its array was dropped never reads the next array in that memory.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::{Error, ErrorKind, OpenOptions};

use super::{LENGTH, counts, pool, publish};
use crate::support::child::Child;
use crate::support::{Name, Place};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "pool",
        tests![
            late_attachment_never_gets_the_next_array,
            late_attachment_does_not_wait_for_a_draft,
            late_attachment_gets_the_current_array_of_the_name,
            failed_publish_returns_the_draft_unattached,
        ],
    )
}

/// A thread that opens the file, waits until it is told to go on, attaches, and returns the first element or the error.
struct Late {
    opened: Receiver<()>,
    go_on: Sender<()>,
    thread: std::thread::JoinHandle<Result<u32, Error>>,
}

impl Late {
    /// Returns when the file is open and not yet leased.
    fn begin(place: &Place, name: &Name, held: bool) -> Self {
        let ((opened, is_open), (go_on, told)) = (channel(), channel());
        let (told, waits) = (Mutex::new(told), AtomicBool::new(true));
        let backend = place.meddling(move |operation, _| {
            if operation == "opened" && waits.swap(false, Ordering::Relaxed) {
                opened.send(()).unwrap();
                told.lock().unwrap().recv().unwrap();
            }
            Ok(())
        });
        let location = name.location().clone();
        let thread = std::thread::spawn(move || {
            if held {
                let options = OpenOptions::new().directory(backend);
                options
                    .timeout(Duration::from_secs(30))
                    .open_reader::<u32, Ix1>(location, LENGTH)
                    .map(|reader| reader.view()[0])
            } else {
                let options = OpenOptions::new().directory(backend);
                options.open::<u32, Ix1>(location, LENGTH).and_then(|array| Ok(array.read()?[0]))
            }
        });
        is_open.recv().unwrap();
        Self { opened: is_open, go_on, thread }
    }

    fn end(self) -> Result<u32, Error> {
        self.go_on.send(()).unwrap();
        let got = self.thread.join().unwrap();
        drop(self.opened);
        got
    }
}

fn late_attachment_never_gets_the_next_array(place: &Place) {
    let [first, second] = ["first", "second"].map(|label| place.location(label));
    let pool = pool(place);
    for held in [false, true] {
        let array = publish(&pool, &first, 7);
        let late = Late::begin(place, &first, held);
        drop(array);
        let array = publish(&pool, &second, 8);
        let got = late.end();
        assert!(got.as_ref().is_err_and(Error::is_not_found), "{got:?}");
        assert_eq!(array.read().unwrap()[0], 8);
    }
    // The late attachment had the file open all the time, but without a lease: the memory was used again.
    assert_eq!(pool.stats().misses, if Place::RECYCLES { 1 } else { 4 });
}

fn late_attachment_does_not_wait_for_a_draft(place: &Place) {
    let name = place.location("waiting");
    let pool = pool(place);
    let late = {
        let _array = publish(&pool, &name, 7);
        Late::begin(place, &name, false)
    };
    let mut draft = pool.take::<u32, _>(LENGTH).unwrap();
    assert_eq!(draft.is_recycled(), Place::RECYCLES);
    let start = Instant::now();
    let got = late.end();
    assert!(got.as_ref().is_err_and(Error::is_not_found), "{got:?}");
    assert!(start.elapsed() < Duration::from_secs(4), "it waited for the lease: {:?}", start.elapsed());
    draft.view_mut().fill(8);
    assert_eq!(draft.publish(name.location()).unwrap().read().unwrap()[0], 8);
}

fn late_attachment_gets_the_current_array_of_the_name(place: &Place) {
    let name = place.location("by-then");
    let pool = pool(place);
    drop(publish(&pool, &name, 6));
    let late = {
        let _array = publish(&pool, &name, 7);
        Late::begin(place, &name, false)
    };
    let other = place.options().create_with::<u32, _>(name.location(), LENGTH, |mut view| view.fill(9)).unwrap();
    assert_eq!(late.end().unwrap(), 9);
    drop(other);
    place.backend.unlink(name.location()).unwrap();
    let late = {
        let _array = publish(&pool, &name, 7);
        Late::begin(place, &name, true)
    };
    let _array = publish(&pool, &name, 8);
    assert_eq!(late.end().unwrap(), 8, "the same file under the same name, by now another array");
}

fn failed_publish_returns_the_draft_unattached(place: &Place) {
    let [taken, free] = ["taken", "free"].map(|label| place.location(label));
    let _other = place.options().create::<u8, _>(taken.location(), 1).unwrap();
    let pool = pool(place);
    drop(publish(&pool, &free, 7));
    let late = {
        let _array = publish(&pool, &free, 7);
        Late::begin(place, &free, false)
    };
    let draft = pool.take::<u32, _>(LENGTH).unwrap();
    let refused = draft.publish(taken.location()).unwrap_err();
    assert_eq!(refused.error().kind, ErrorKind::AlreadyExists);
    let mut draft = refused.into_inner();
    assert!(late.end().unwrap_err().is_not_found());
    draft.view_mut().fill(8);
    assert_eq!(counts(&pool), (0, 0, 1));
    let array = draft.publish(free.location()).unwrap();
    let mut child = Child::start(place, "pool-attacher", &[free.as_str()]);
    child.expect("attached");
    assert_eq!(child.ask("read"), "8");
    drop(array);
    assert_eq!(child.ask("drop"), "dropped");
}
