//! Replacing a name while another replacement of it is stopped.

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::{CreateOptions, CreationMode, Location, SharedArray};

use crate::support::child::{Child, Role, say};
use crate::support::{Place, backend_of_child};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials("steps", "names", tests![killed_waiting_replacement_leaves_nothing])
}

pub const ROLES: &[(&str, Role)] = &[("step-replace", replace)];

/// A child that replaces an array.
fn replace(arguments: &[String]) {
    let options = CreateOptions::<SharedArray<u8, Ix1>>::new().backend(backend_of_child()).mode(CreationMode::Replace);
    options
        .create_with(arguments[0].parse::<Location>().unwrap(), 100, |mut view| {
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
    drop(place.options::<u8, Ix1>().create(name.location(), 100).unwrap());
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
    let array = place.attach::<u8, Ix1>().open(name.location(), 100).unwrap();
    assert!(array.read().unwrap().iter().all(|element| *element == 7));
}
