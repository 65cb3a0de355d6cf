//! Memory of a counted array that becomes that of the next one: only if the first has no other user, and under another
//! number.
//!
//! A process that has forked since it attached recycles nothing, and other tests of this program fork. So each test is
//! a process of its own.

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::RefcountedArray;
use ndarray_shm::counted::{HandleOptions, SharingStrategy};

use super::holder::Holder;
use crate::support::child::{Child, Role, say};
use crate::support::{Name, Place, Test, eventually};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "recycled",
        tests![
            recycled_array_has_another_number_and_the_same_memory,
            handle_of_the_old_array_never_attaches_the_new_one,
            handle_in_flight_keeps_the_array,
            attached_process_keeps_the_array,
            killed_receiver_does_not,
            array_that_may_be_found_otherwise_stays,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[("recycled", run)];

/// A child that runs one of the tests.
fn run(arguments: &[String]) {
    let test = BODIES.iter().find(|(name, _)| *name == arguments[0]).expect("a test of this file").1;
    test(&Place::of_parent("the parent's"));
    say("done");
}

/// Makes tests that run the functions of these names in `bodies`, each in a child.
macro_rules! in_children {
    ($($name:ident),* $(,)?) => {
        const BODIES: &[(&str, Test)] = &[$((stringify!($name), bodies::$name)),*];
        $(fn $name(place: &Place) {
            // A directory of its own, so that the children of the child find the same one.
            let private = place.private();
            let mut child = Child::start(&private, "recycled", &[stringify!($name)]);
            child.expect("done");
            child.finish();
        })*
    };
}

in_children! {
    recycled_array_has_another_number_and_the_same_memory,
    handle_of_the_old_array_never_attaches_the_new_one,
    handle_in_flight_keeps_the_array,
    attached_process_keeps_the_array,
    killed_receiver_does_not,
    array_that_may_be_found_otherwise_stays,
}

mod bodies {
    use super::{HandleOptions, Holder, Ix1, Name, Place, RefcountedArray, SharingStrategy, eventually};

    /// An array of four ones that keeps its descriptor.
    fn create(place: &Place, name: &Name) -> RefcountedArray<u32, Ix1> {
        place
            .options()
            .keep_fd(true)
            .create_counted_with(name.location(), 4, |mut view| view.fill(1))
            .expect("the name is free")
    }

    pub fn recycled_array_has_another_number_and_the_same_memory(place: &Place) {
        let name = place.location("same");
        let mut array = create(place, &name);
        let before = (array.id(), array.file_id(), array.raw_view().as_ptr() as usize);
        for round in 0..3 {
            assert_eq!(array.recycle().unwrap(), Place::RECYCLES, "{round}");
            assert_eq!(array.id() == before.0, !Place::RECYCLES);
            assert_eq!((array.file_id(), array.raw_view().as_ptr() as usize), (before.1, before.2));
            assert_eq!((array.refcount(), array.in_flight(), array.read().unwrap().sum()), (1, 0, 4));
            // Another process finds a whole array.
            let mut other = Holder::with(place, &name, "open");
            assert_eq!((other.ask("sum"), other.ask("count")), ("4".into(), "2".into()));
            assert_eq!(other.ask("drop"), "ok");
        }
        let found = place.inspect(&name).unwrap();
        assert!(found.is_attached && found.in_flight == 0);
        drop(array);
        assert!(!place.path(&name).exists());
    }

    pub fn handle_of_the_old_array_never_attaches_the_new_one(place: &Place) {
        let name = place.location("old");
        let mut array = create(place, &name);
        let [used, revoked] = [array.handle().unwrap(), array.handle_with(HandleOptions::new().reusable()).unwrap()];
        drop(used.attach::<u32, Ix1>().unwrap());
        assert!(revoked.revoke().unwrap());
        let expired = array.handle_with(HandleOptions::new().grace(std::time::Duration::ZERO)).unwrap();
        let is_new = array.recycle().unwrap();
        assert_eq!(is_new, Place::RECYCLES);
        if !is_new {
            return;
        }
        let mut other = Holder::start(place, &name);
        for handle in [&used, &revoked, &expired] {
            // An expired one still attaches as long as its array is there, but that array has gone.
            assert_eq!(other.ask(&format!("attach {handle}")), "HandleSpent");
            assert!(!array.redeem(handle) && !array.renew(handle, std::time::Duration::from_secs(60)));
            assert!(!handle.redeem().unwrap() && !handle.revoke().unwrap());
        }
        let new = array.handle().unwrap();
        assert_eq!((other.ask(&format!("attach {new}")), array.refcount()), ("ok".into(), 2));
    }

    pub fn handle_in_flight_keeps_the_array(place: &Place) {
        let name = place.location("flight");
        let mut array = create(place, &name);
        let (id, handle) = (array.id(), array.handle().unwrap());
        assert!(!array.recycle().unwrap() && array.id() == id);
        assert_eq!((array.refcount(), array.in_flight()), (1, 1), "a refusal changes nothing");
        assert!(array.write_timeout(std::time::Duration::from_secs(60)).is_ok(), "nor does it leave locks");
        // Two uses, of which another process has only one.
        assert!(array.renew(&handle, std::time::Duration::from_secs(60)));
        assert!(array.redeem(&handle) && !array.recycle().unwrap());
        assert!(array.redeem(&handle) && array.recycle().unwrap() == Place::RECYCLES);
    }

    pub fn attached_process_keeps_the_array(place: &Place) {
        let name = place.location("attached");
        let mut array = create(place, &name);
        for how in ["open", "readonly", "reader"] {
            let mut other = Holder::with(place, &name, how);
            assert!(!array.recycle().unwrap(), "{how}");
            assert_eq!(other.ask("sum"), "4");
            assert_eq!(other.ask("drop"), "ok");
            assert_eq!(array.recycle().unwrap(), Place::RECYCLES, "{how}");
        }
        // In this process too.
        let again = array.try_clone().unwrap();
        assert!(!array.recycle().unwrap());
        drop(again);
        assert_eq!(array.recycle().unwrap(), Place::RECYCLES);
    }

    pub fn killed_receiver_does_not(place: &Place) {
        let name = place.location("killed");
        let mut array = create(place, &name);
        let mut other = Holder::with(place, &name, "open");
        other.0.kill();
        assert_eq!(array.refcount(), 2, "it stays counted");
        eventually("its lease has ended", || array.recycle().unwrap() == Place::RECYCLES);
        assert_eq!(array.refcount(), if Place::RECYCLES { 1 } else { 2 });
        drop(array);
        assert!(!place.path(&name).exists());
    }

    pub fn array_that_may_be_found_otherwise_stays(place: &Place) {
        let name = place.location("stays");
        let mut unkept = place.options().create_counted::<u32, Ix1>(name.location(), 4).unwrap();
        if place.backend.lock_survives_close().unwrap() {
            assert!(!unkept.recycle().unwrap(), "it keeps no descriptor");
        }
        drop(unkept);
        let mut array = create(place, &name);
        array.keep().unwrap();
        assert!(!array.recycle().unwrap(), "kept");
        place.backend.unlink(name.location()).unwrap();
        assert!(!array.recycle().unwrap(), "without its name");
        drop(array);
        let mut array = create(place, &name);
        array.freeze().unwrap();
        assert!(!array.recycle().unwrap(), "frozen");
        drop(array);
        let mut array = create(place, &name);
        let mut other = Holder::with(place, &name, "open");
        other.0.kill();
        array.count_out().unwrap();
        assert!(!array.recycle().unwrap(), "counted out, beside the handle of a killed process");
        place.reclaim();
        assert!(place.path(&name).exists(), "this process has its lease");
        drop(other);
        drop(array);
        if SharingStrategy::FileDescriptor.is_supported() {
            let options = place.options().keep_fd(true);
            let mut nameless = options.share::<u32, Ix1>(SharingStrategy::FileDescriptor, 4).unwrap();
            assert!(!nameless.recycle().unwrap(), "nameless");
        }
    }
}
