//! Dropping a received array while a stopped process holds a lock that the drop needs.

use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::RefcountedArray;
use ndarray_shm::counted::{Channel, SharingStrategy};

use crate::support::child::{Child, Role};
use crate::support::{Name, Place};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials("steps", "drops", tests![received_array_is_dropped_without_waiting_for_a_process_that_stands])
}

pub const ROLES: &[(&str, Role)] = &[];

/// Far more than the 100 ms that a drop may wait for each lock, far less than the 5 and 10 s that other operations wait.
const PROMPT: Duration = Duration::from_secs(4);

/// Receives the array, stops a process at a step, and drops what was received meanwhile.
fn drop_beside(place: &Place, name: &Name, array: RefcountedArray<u8, Ix1>, role: &str, step: &str) -> Child {
    let (here, there) = Channel::pair().unwrap();
    here.send(&(), &[&array.by(SharingStrategy::FileSystem)]).unwrap();
    let received = there.receive::<()>().unwrap().arrays;
    assert_eq!(array.in_flight(), 1);
    drop(array);
    let child = Child::start_until(place, role, &[name.as_str()], step);
    let begun = Instant::now();
    drop(received);
    let took = begun.elapsed();
    assert!(took < PROMPT, "{step}: {took:?}");
    child.resume();
    child
}

fn received_array_is_dropped_without_waiting_for_a_process_that_stands(place: &Place) {
    let place = &place.private();
    let name = place.location("received");
    let array = || place.counted::<u8, Ix1>().create(name.location(), 100).unwrap();
    // The child has the lease of plain attachments alone; attaching waits for it.
    let mut opener = drop_beside(place, &name, array(), "step-open-frozen", "attach: end read");
    opener.expect("attached, frozen: false");
    opener.finish();
    place.reclaim(); // the handle was not taken back, and is to expire
    if place.has_hidden_drafts() {
        return; // replacing has no such step there
    }
    place.backend.unlink(name.location()).unwrap();
    // The child has locked the name, which the last handle removes.
    let mut replacer = drop_beside(place, &name, array(), "step-replace", "replace: linked");
    replacer.expect("filled");
    replacer.finish();
    assert!(place.attach::<u8, Ix1>().open(name.location(), 100).is_ok());
}
