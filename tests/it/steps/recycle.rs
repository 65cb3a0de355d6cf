//! Recycling a counted array while a receiver attaches, or while the owner is killed.

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::{CreateOptions, OpenOptions};

use crate::support::child::{Child, Role, hear, say};
use crate::support::{Place, backend_of_child};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "steps",
        "recycle",
        tests![
            receiver_that_has_begun_gets_its_array_or_a_spent_handle,
            owner_that_is_alone_is_waited_for,
            killed_owner_leaves_an_orphan_that_is_reclaimed,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[("step-recycle", recycle), ("step-open", open)];

/// A child that creates an array, and recycles it whenever it is told to. It reports whether it could. An argument
/// more: at once.
fn recycle(arguments: &[String]) {
    let options = CreateOptions::new().directory(backend_of_child()).keep_fd(true);
    let mut array = options.create_counted::<u32, Ix1>(arguments[0].as_str(), 4).unwrap();
    if arguments.len() > 1 {
        say(array.recycle().unwrap());
        hear();
        return;
    }
    loop {
        match hear().as_str() {
            "handle" => say(array.handle().unwrap()),
            // Through its own mapping: a receiver that is stopped while it attaches keeps others from attaching.
            text if text.starts_with("ndshm1:") => say(array.redeem(&text.parse().unwrap())),
            "recycle" => say(array.recycle().unwrap()),
            _ => return,
        }
    }
}

/// A child that attaches by name.
fn open(arguments: &[String]) {
    let options = OpenOptions::new().directory(backend_of_child());
    match options.open_counted::<u32, Ix1>(arguments[0].as_str()) {
        Ok(array) => say(format!("sum {}", array.read().unwrap().sum())),
        Err(error) => say(format!("gone: {}", error.is_not_found())),
    }
}

fn receiver_that_has_begun_gets_its_array_or_a_spent_handle(place: &Place) {
    for step in ["attach: opened", "attach: leased", "attach: end read", "attach: mapped", "attach: counted"] {
        let name = place.location("begun");
        let mut owner = Child::start(place, "step-recycle", &[name.as_str()]);
        let handle = owner.ask("handle");
        let mut receiver = Child::start_until(place, "step-receive", &[&handle], step);
        // Only the receiver's lease keeps the array from now on.
        assert_eq!(owner.ask(&handle), "true");
        let is_leased = step != "attach: opened";
        assert_eq!(owner.ask("recycle"), (!is_leased).to_string(), "{step}");
        receiver.resume();
        receiver.expect("gone: true"); // its handle was used
        receiver.finish();
        assert_eq!(owner.ask("recycle"), "true", "{step}");
        owner.tell("end");
        owner.finish();
        assert!(!place.path(&name).exists(), "{step}");
    }
}

fn owner_that_is_alone_is_waited_for(place: &Place) {
    let place = &place.private(); // where no other test's orphans are
    for step in ["renumber: alone", "renumber: renumbered"] {
        let name = place.location("alone");
        let mut owner = Child::start_until(place, "step-recycle", &[name.as_str(), "now"], step);
        let mut other = Child::start(place, "step-open", &[name.as_str()]);
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(place.reclaim().removed.is_empty(), "its owner lives");
        owner.resume();
        owner.expect("true");
        other.expect("sum 0");
        other.finish();
        owner.tell("end");
        owner.finish();
        assert!(!place.path(&name).exists());
    }
}

fn killed_owner_leaves_an_orphan_that_is_reclaimed(place: &Place) {
    let place = &place.private(); // where no other test's orphans are
    for step in ["renumber: to be alone", "renumber: alone", "renumber: renumbered"] {
        let name = place.location("orphan");
        Child::start_until(place, "step-recycle", &[name.as_str(), "now"], step).kill();
        assert!(place.path(&name).exists(), "{step}");
        place.reclaim();
        assert!(!place.path(&name).exists(), "{step}");
    }
}
