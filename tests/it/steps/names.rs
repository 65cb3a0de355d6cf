//! Names that are replaced by a process that does not get on.

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::{CreateOptions, CreationMode, Location, SharedArray};

use crate::support::child::{Child, Role, say};
use crate::support::{Place, backend_of_child};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials("steps", "names", tests![a_replacement_that_is_killed_while_it_waits_leaves_nothing])
}

pub const ROLES: &[(&str, Role)] = &[("step-replace", replace)];

/// Replaces an array.
fn replace(arguments: &[String]) {
    let options = CreateOptions::<SharedArray<u8, Ix1>>::new().backend(backend_of_child()).mode(CreationMode::Replace);
    options
        .create_with(arguments[0].parse::<Location>().unwrap(), 100, |mut view| {
            view.fill(7);
            say("filled");
        })
        .unwrap();
}

fn a_replacement_that_is_killed_while_it_waits_leaves_nothing(place: &Place) {
    if place.has_hidden_drafts() {
        return; // there the draft has a hidden name from the beginning
    }
    let place = &place.private();
    let name = place.location("replaced");
    drop(place.options::<u8, Ix1>().create(name.location(), 100).unwrap());
    let mut first = Child::start_until(place, "step-replace", &[name.as_str()], "replace: linked");
    first.expect("filled");
    assert_eq!(place.hidden_drafts(), 1);
    // It has the right to the name; another one waits for that.
    let mut second = Child::start(place, "step-replace", &[name.as_str()]);
    second.expect("filled");
    assert_eq!(second.line_within(std::time::Duration::from_millis(100)), None);
    assert!(!second.is_stopped(), "it waits, and has not ended");
    second.kill();
    assert_eq!(place.hidden_drafts(), 1, "that of the first");
    first.resume();
    first.finish();
    assert_eq!(place.hidden_drafts(), 0);
    let array = place.attach::<u8, Ix1>().open(name.location(), 100).unwrap();
    assert!(array.read().unwrap().iter().all(|element| *element == 7));
}
