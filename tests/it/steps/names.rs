//! Replacing a name while another replacement of it is stopped.

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::backend::interruptible;
use ndarray_shm::{CreateOptions, CreationMode, ErrorKind, Location};

use crate::support::child::{Child, Role, say};
use crate::support::{Place, backend_of_child};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "steps",
        "names",
        tests![killed_waiting_replacement_leaves_nothing, interrupted_wait_for_a_name_changes_nothing],
    )
}

pub const ROLES: &[(&str, Role)] = &[("step-replace", replace)];

/// A child that replaces an array.
fn replace(arguments: &[String]) {
    let options = CreateOptions::new().directory(backend_of_child()).mode(CreationMode::Replace);
    options
        .create_with::<u8, Ix1>(arguments[0].parse::<Location>().unwrap(), 100, |mut view| {
            view.fill(7);
            say("filled");
        })
        .unwrap();
}

fn killed_waiting_replacement_leaves_nothing(place: &Place) {
    if place.has_hidden_drafts() {
        return; // a hidden draft has its name from the beginning
    }
    let place = &place.private();
    let name = place.location("replaced");
    drop(place.options().create::<u8, Ix1>(name.location(), 100).unwrap());
    let mut first = Child::start_until(place, "step-replace", &[name.as_str()], "replace: linked");
    first.expect("filled");
    assert_eq!(place.hidden_drafts(), 1);
    // The first child holds the name lock, for which the second one waits.
    let mut second = Child::start(place, "step-replace", &[name.as_str()]);
    second.expect("filled");
    assert_eq!(second.line_within(std::time::Duration::from_millis(100)), None);
    assert!(!second.is_stopped(), "the second child waits for the name lock, before its step");
    second.kill();
    assert_eq!(place.hidden_drafts(), 1, "the first child's draft");
    first.resume();
    first.finish();
    assert_eq!(place.hidden_drafts(), 0);
    let array = place.open_options().open::<u8, Ix1>(name.location(), 100).unwrap();
    assert!(array.read().unwrap().iter().all(|element| *element == 7));
}

fn interrupted_wait_for_a_name_changes_nothing(place: &Place) {
    if place.has_hidden_drafts() {
        return; // as above
    }
    let place = &place.private();
    let name = place.location("interrupted");
    let old = place.options().create::<u8, Ix1>(name.location(), 100).unwrap();
    // The child holds the name lock.
    let mut child = Child::start_until(place, "step-replace", &[name.as_str()], "replace: linked");
    child.expect("filled");
    let replacing = place.options().mode(CreationMode::Replace);
    let error = interruptible(|| false, || replacing.create::<u8, Ix1>(name.location(), 100)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Interrupted, "{error}");
    let removals: [&dyn Fn() -> _; 2] = [&|| place.backend.unlink(name.location()), &|| old.unlink()];
    for remove in removals {
        let removed = interruptible(|| false, remove);
        assert!(removed.as_ref().is_err_and(|error| error.kind == ErrorKind::Interrupted), "{removed:?}");
    }
    assert_eq!(place.open_options().open::<u8, Ix1>(name.location(), 100).unwrap().file_id(), old.file_id());
    assert_eq!(place.hidden_drafts(), 1, "the child's draft");
    child.resume();
    child.finish();
}
