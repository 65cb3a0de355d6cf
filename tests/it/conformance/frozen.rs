//! Freezing a counted array: it waits for current readers and writers, and then no process can write any more.

use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::{Ix1, IxDyn};
use ndarray_shm::{CreationMode, ErrorKind};

use super::holder::Holder;
use crate::support::Place;
use crate::support::counted::create;
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "frozen",
        tests![
            unfrozen_array_needs_a_guard,
            freezing_waits_for_writers_and_readers_in_other_processes,
            earlier_attachments_cannot_write_after_freezing,
            later_attachments_are_readonly_and_need_no_guard,
            guard_holder_cannot_freeze,
            frozen_array_goes_with_its_last_holder,
        ],
    )
}

fn unfrozen_array_needs_a_guard(place: &Place) {
    let name = place.location("not-frozen");
    let array = create(place, &name);
    let error = array.view().unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Unsupported { .. }) && error.to_string().contains("read()"), "{error}");
    let mut child = Holder::with(place, &name, "readonly");
    assert_eq!(child.ask("view"), "Unsupported");
    assert!(!array.is_frozen() && !place.inspect(&name).unwrap().is_frozen);
}

fn freezing_waits_for_writers_and_readers_in_other_processes(place: &Place) {
    let name = place.location("freeze-waits");
    let array = create(place, &name);
    let mut child = Holder::with(place, &name, "open");
    child.0.tell("write-on 7");
    child.0.expect("writing");
    std::thread::scope(|scope| {
        let mut child = child; // a failing assertion kills it before the scope waits for its threads
        let freezing = scope.spawn(|| array.freeze());
        std::thread::sleep(Duration::from_millis(100));
        assert!(!freezing.is_finished() && !array.is_frozen(), "another thread writes");
        child.0.tell("finish");
        child.0.expect("written");
        freezing.join().unwrap().unwrap();
        assert_eq!(array.view().unwrap().to_vec(), [7; 4], "all earlier writes are there");
        assert_eq!(child.ask("fill 8"), "PermissionDenied");
    });
    let name = place.location("freeze-waits-reader");
    let array = create(place, &name);
    let mut child = Holder::with(place, &name, "reader");
    std::thread::scope(|scope| {
        let freezing = scope.spawn(|| array.freeze());
        std::thread::sleep(Duration::from_millis(50));
        assert!(!freezing.is_finished(), "another thread reads");
        child.0.kill();
        freezing.join().unwrap().unwrap();
    });
    assert!(array.is_frozen());
}

fn earlier_attachments_cannot_write_after_freezing(place: &Place) {
    let name = place.location("mapped-before");
    let array = create(place, &name);
    let mut child = Holder::with(place, &name, "open");
    assert_eq!((child.ask("is-readonly"), child.ask("fill 3")), ("false".into(), "ok".into()));
    array.freeze().unwrap();
    array.freeze().unwrap(); // which changes nothing
    assert_eq!([child.ask("try-write"), child.ask("fill 4")], ["PermissionDenied"; 2]);
    assert_eq!((child.ask("view"), child.ask("sum")), ("12".into(), "12".into()));
    for error in [array.write().unwrap_err(), array.try_write().unwrap_err()] {
        assert!(
            matches!(error.kind, ErrorKind::PermissionDenied { .. }) && error.to_string().contains("frozen"),
            "{error}"
        );
    }
    assert_eq!((array.read().unwrap().sum(), array.view().unwrap().sum()), (12, 12));
    // Any process can freeze.
    let name = place.location("frozen-by-child");
    let array = create(place, &name);
    let mut child = Holder::with(place, &name, "open");
    assert_eq!(child.ask("freeze"), "ok");
    assert!(array.is_frozen() && matches!(array.write().unwrap_err().kind, ErrorKind::PermissionDenied { .. }));
    child.0.kill();
    assert!(
        matches!(array.write().unwrap_err().kind, ErrorKind::PermissionDenied { .. }),
        "it stays frozen after the child's death"
    );
}

fn later_attachments_are_readonly_and_need_no_guard(place: &Place) {
    let name = place.location("frozen-later");
    let array = create(place, &name);
    array.freeze().unwrap();
    let later = place.open_options().open_counted::<u32, Ix1>(name.location()).unwrap();
    assert!(later.is_readonly() && later.is_frozen() && later.raw_view_mut().is_none());
    assert_eq!(later.view().unwrap().to_vec(), [1; 4]);
    let error = later.write().unwrap_err();
    assert!(
        matches!(error.kind, ErrorKind::PermissionDenied { .. }) && error.to_string().contains("frozen"),
        "{error}"
    );
    let mut child = Holder::with(place, &name, "open");
    assert_eq!((child.ask("is-readonly"), child.ask("view")), ("true".into(), "4".into()));
    let options = place.options().mode(CreationMode::OpenOrCreate);
    assert!(options.create_counted::<u32, _>(name.location(), 4).unwrap().is_frozen());
    assert_eq!(later.try_clone().unwrap().view().unwrap().sum(), 4);
    assert_eq!(place.open_options().open_counted_reader::<u32, IxDyn>(name.location()).unwrap().view().sum(), 4);
    let handle = array.handle().unwrap();
    let attached = place.open_options().attach::<u32, Ix1>(&handle).unwrap();
    assert_eq!(attached.view().unwrap().sum(), 4);
}

fn guard_holder_cannot_freeze(place: &Place) {
    let name = place.location("own-guard");
    let array = create(place, &name);
    for guard in [Ok(array.read().unwrap()), Err(array.try_clone().unwrap())] {
        match guard {
            Ok(reading) => {
                assert_eq!(array.freeze().unwrap_err().kind, ErrorKind::WouldDeadlock);
                drop(reading);
            }
            Err(other) => {
                let writing = other.write().unwrap();
                assert_eq!(array.freeze().unwrap_err().kind, ErrorKind::WouldDeadlock);
                drop(writing);
            }
        }
        assert!(!array.is_frozen());
    }
    array.freeze().unwrap();
}

fn frozen_array_goes_with_its_last_holder(place: &Place) {
    let name = place.location("frozen-last");
    let array = create(place, &name);
    array.freeze().unwrap();
    let mut child = Holder::with(place, &name, "open");
    drop(array);
    assert!(place.has(&name));
    assert_eq!((child.ask("view"), child.ask("close")), ("4".into(), "ok".into()));
    assert!(!place.has(&name));
    let again = create(place, &name);
    assert!(!again.is_frozen() && again.write().is_ok());
}
