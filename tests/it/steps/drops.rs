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
    place.trials("steps", "drops", tests![drop_of_received_array_ignores_a_stopped_process])
}

pub const ROLES: &[(&str, Role)] = &[];

/// Far more than the 100 ms that a drop may wait for each lock, and far less than the 5 s and 10 s of other operations.
const PROMPT: Duration = Duration::from_secs(4);

/// Receives the array, stops a process at a step, and drops the received array while that process is stopped.
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

fn drop_of_received_array_ignores_a_stopped_process(place: &Place) {
    let place = &place.private();
    let name = place.location("received");
    let array = || place.options().create_counted::<u8, Ix1>(name.location(), 100).unwrap();
    // The stopped child holds the lease of plain attachments exclusively. Attaching would wait for it.
    let mut opener = drop_beside(place, &name, array(), "step-open-frozen", "attach: end read");
    opener.expect("attached, frozen: false");
    opener.finish();
    place.reclaim(); // the drop could not revoke the handle, which stays until it expires
    if place.has_hidden_drafts() {
        return; // replacing by a hidden draft has no such step
    }
    place.backend.unlink(name.location()).unwrap();
    // The stopped child has locked the name, which the drop of the last handle would remove.
    let mut replacer = drop_beside(place, &name, array(), "step-replace", "replace: linked");
    replacer.expect("filled");
    replacer.finish();
    assert!(place.open_options().open::<u8, Ix1>(name.location(), 100).is_ok());
}
