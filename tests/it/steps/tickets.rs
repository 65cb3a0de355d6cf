//! Tickets of which a process is stopped or killed while it changes the deadline.

use std::time::Duration;

use libtest_mimic::Trial;
use ndarray_shm::counted::{Handle, HandleOptions};

use crate::support::child::{Child, Role, say};
use crate::support::counted::create;
use crate::support::{Name, Place};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "steps",
        "tickets",
        tests![killed_change_leaves_the_old_deadline, resumed_change_spares_a_newer_handle_in_the_slot],
    )
}

pub const ROLES: &[(&str, Role)] = &[("step-expire", expire_child), ("step-renew", renew_child)];

fn expire_child(arguments: &[String]) {
    say(arguments[0].parse::<Handle>().unwrap().expire(seconds(1)).unwrap());
}

fn renew_child(arguments: &[String]) {
    say(arguments[0].parse::<Handle>().unwrap().renew(seconds(6000)).unwrap());
}

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

/// Starts a child that has read the deadline of the handle and not changed it yet.
fn start(place: &Place, role: &str, handle: &Handle) -> Child {
    Child::start_until(place, role, &[&handle.to_string()], "ticket: deadline read")
}

fn protected_for(place: &Place, name: &Name) -> Duration {
    let found = place.inspect(name).unwrap();
    assert_eq!(found.in_flight, 1);
    found.protected_for
}

/// A minute in which the test does the rest.
fn is_about(left: Duration, number: u64) -> bool {
    left <= seconds(number) && left > seconds(number - 60)
}

fn killed_change_leaves_the_old_deadline(place: &Place) {
    for role in ["step-expire", "step-renew"] {
        let name = place.location("killed");
        let array = create(place, &name);
        let handle = array.handle_with(HandleOptions::new().reusable().grace(seconds(600))).unwrap();
        start(place, role, &handle).kill();
        let left = protected_for(place, &name);
        assert!(is_about(left, 600), "{role}: {left:?}");
    }
}

fn resumed_change_spares_a_newer_handle_in_the_slot(place: &Place) {
    for (role, grace) in [("step-expire", 600), ("step-expire", 1200), ("step-renew", 1200), ("step-renew", 300)] {
        let name = place.location("newer");
        let array = create(place, &name);
        let old = array.handle_with(HandleOptions::new().reusable().grace(seconds(600))).unwrap();
        let mut child = start(place, role, &old);
        assert!(old.revoke().unwrap());
        // It takes the first free slot, which is that of the revoked handle.
        let newer = array.handle_with(HandleOptions::new().grace(seconds(grace))).unwrap();
        child.resume();
        child.expect("false");
        child.finish();
        let left = protected_for(place, &name);
        assert!(is_about(left, grace), "{role}, {grace} s: {left:?}");
        assert!(newer.revoke().unwrap());
    }
}
