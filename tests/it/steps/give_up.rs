//! Giving up used handles while a receiver attaches, a sender pickles again, or one of them is killed.

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::ErrorKind;
use ndarray_shm::counted::{Handle, HandleOptions, give_up};

use crate::support::child::{Child, Role, hear, say};
use crate::support::counted::create;
use crate::support::{Name, Place};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "steps",
        "give_up",
        tests![
            receiver_that_has_begun_gets_the_array_or_a_spent_handle,
            receiver_between_look_and_revocation_keeps_the_array,
            receiver_that_comes_after_the_revocation_leaves_again,
            handle_renewed_after_the_look_stays,
            killed_receiver_and_sender_leave_nothing_for_long,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[("step-receive", receive), ("step-give-up", give_up_child)];

/// The steps of a receiver, and whether it has the lease there.
const RECEIVING: [(&str, bool); 5] = [
    ("attach: opened", false),
    ("attach: leased", true),
    ("attach: end read", true),
    ("attach: mapped", true),
    ("attach: counted", true),
];

/// A child that attaches with a handle, and keeps the array until it is told to end.
fn receive(arguments: &[String]) {
    match arguments[0].parse::<Handle>().unwrap().attach::<u32, Ix1>() {
        Ok(array) => {
            say(format!("sum {}", array.read().unwrap().sum()));
            hear();
        }
        Err(error) => say(format!("gone: {}", error.kind == ErrorKind::HandleSpent || error.is_not_found())),
    }
}

/// A child that gives a handle up, and reports whether that has freed the array.
fn give_up_child(arguments: &[String]) {
    say(give_up(&[arguments[0].parse().unwrap()], 1) > 0);
}

/// Returns a reusable handle with which a receiver has attached and left, of an array that the sender has dropped.
fn used(place: &Place, name: &Name) -> Handle {
    let array = create(place, name);
    let handle = array.handle_with(HandleOptions::new().reusable()).unwrap();
    assert_eq!(give_up([&handle], 1), 0, "not used, and attached");
    drop(array);
    assert_eq!(give_up([&handle], 1), 0, "not used");
    drop(handle.attach::<u32, Ix1>().unwrap());
    handle
}

fn start(place: &Place, role: &str, handle: &Handle, step: &str) -> Child {
    Child::start_until(place, role, &[&handle.to_string()], step)
}

fn receiver_that_has_begun_gets_the_array_or_a_spent_handle(place: &Place) {
    for (step, is_leased) in RECEIVING {
        let name = place.location("begun");
        let handle = used(place, &name);
        let mut receiver = start(place, "step-receive", &handle, step);
        assert_eq!(give_up([&handle], 1) > 0, !is_leased, "{step}");
        assert_eq!(place.path(&name).exists(), is_leased, "{step}");
        receiver.resume();
        if is_leased {
            receiver.expect("sum 4");
            receiver.tell("end");
        } else {
            receiver.expect("gone: true");
        }
        receiver.finish();
        assert_eq!(give_up([&handle], 1) > 0, is_leased, "{step}");
        assert!(!place.path(&name).exists(), "{step}");
    }
}

fn receiver_between_look_and_revocation_keeps_the_array(place: &Place) {
    let name = place.location("between");
    let handle = used(place, &name);
    let mut sender = start(place, "step-give-up", &handle, "give up: not attached");
    let array = handle.attach::<u32, Ix1>().unwrap();
    sender.resume();
    sender.expect("false");
    sender.finish();
    assert_eq!(array.read().unwrap().sum(), 4);
    assert!(handle.attach::<u32, Ix1>().unwrap_err().kind == ErrorKind::HandleSpent);
    drop(array);
    assert!(!place.path(&name).exists());
}

fn receiver_that_comes_after_the_revocation_leaves_again(place: &Place) {
    for step in ["attach: leased", "attach: mapped", "attach: counted"] {
        let name = place.location("after");
        let handle = used(place, &name);
        let mut sender = start(place, "step-give-up", &handle, "give up: not attached");
        let mut receiver = start(place, "step-receive", &handle, step);
        sender.resume();
        // One that is not counted yet does not keep the name.
        sender.expect(if step == "attach: counted" { "false" } else { "true" });
        sender.finish();
        receiver.resume();
        receiver.expect("gone: true");
        receiver.finish();
        assert!(!place.path(&name).exists(), "{step}");
    }
}

fn handle_renewed_after_the_look_stays(place: &Place) {
    let name = place.location("renewed");
    let handle = used(place, &name);
    let mut sender = start(place, "step-give-up", &handle, "give up: not attached");
    assert!(handle.renew(std::time::Duration::from_secs(60)).unwrap());
    sender.resume();
    sender.expect("false");
    sender.finish();
    assert_eq!(give_up([&handle], 1), 0, "no process has loaded it since");
    drop(handle.attach::<u32, Ix1>().unwrap());
    assert!(give_up([&handle], 1) > 0 && !place.path(&name).exists());
}

fn killed_receiver_and_sender_leave_nothing_for_long(place: &Place) {
    for (step, _) in RECEIVING {
        let name = place.location("killed");
        let handle = used(place, &name);
        start(place, "step-receive", &handle, step).kill();
        assert!(give_up([&handle], 1) > 0 && !place.path(&name).exists(), "{step}");
    }
    let name = place.location("sender");
    let handle = used(place, &name);
    start(place, "step-give-up", &handle, "give up: not attached").kill();
    drop(handle.attach::<u32, Ix1>().unwrap());
    start(place, "step-give-up", &handle, "give up: revoked").kill();
    assert!(handle.attach::<u32, Ix1>().unwrap_err().kind == ErrorKind::HandleSpent);
    place.reclaim();
    assert!(!place.path(&name).exists());
}
