//! Files of other programs while the process that removes them is stopped between two steps.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use ndarray_shm::foreign::{Finding, Sweep};

use crate::linux::foreign::write;
use crate::support::child::{Child, Role, say};
use crate::support::{Place, backend_of_child, eventually};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    if place.name != "shm" {
        return Vec::new(); // leases count on tmpfs only
    }
    place.trials(
        "steps",
        "foreign",
        tests![
            opener_during_the_lease_keeps_its_file,
            opener_after_the_check_gets_no_named_file,
            name_that_is_replaced_after_it_was_found_stays,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[("step-sweep", sweep)];

/// A child that removes every unused file, and reports what it found.
fn sweep(_: &[String]) {
    let swept = Sweep::new().older_than(Duration::ZERO).run(&backend_of_child(), |_, _| true).unwrap();
    assert!(swept.failed.is_empty(), "{:?}", swept.failed);
    let found: Vec<Finding> = swept.removed.iter().chain(&swept.kept).map(|file| file.finding).collect();
    say(format!("{found:?}"));
}

/// Whether a process waits for the lease on the file with this number: `proc_locks(5)`.
fn is_waited_for(number: u64) -> bool {
    let locks = fs::read_to_string("/proc/locks").unwrap();
    let number = format!(":{number} ");
    locks.lines().any(|line| line.contains("LEASE") && line.contains("BREAKING") && line.contains(&number))
}

fn opener_during_the_lease_keeps_its_file(place: &Place) {
    let place = place.private();
    let path = place.directory().join("psm_x");
    write(&path, 1);
    let mut child = Child::start_until(&place, "step-sweep", &[], "foreign: leased");
    let refused = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::WouldBlock);
    let number = fs::metadata(&path).unwrap().ino();
    let opener = thread::spawn({
        let path = path.clone();
        move || OpenOptions::new().read(true).write(true).open(path).unwrap()
    });
    eventually("an opener waits", || is_waited_for(number));
    child.resume();
    child.expect("[Changed]"); // the signal has not ended it
    child.finish();
    let file = opener.join().unwrap();
    assert_eq!((file.metadata().unwrap().nlink(), fs::metadata(&path).unwrap().ino()), (1, number));
}

fn opener_after_the_check_gets_no_named_file(place: &Place) {
    let place = place.private();
    let path = place.directory().join("psm_x");
    write(&path, 1);
    let mut child = Child::start_until(&place, "step-sweep", &[], "foreign: checked");
    let error = OpenOptions::new().read(true).write(true).open(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    // A file that has taken the name meanwhile is another.
    let new = File::create(&path).unwrap();
    child.resume();
    child.expect("[Unused]");
    child.finish();
    assert_eq!(new.metadata().unwrap().nlink(), 1);
    assert_eq!(place.everything(), ["psm_x"]);
}

fn name_that_is_replaced_after_it_was_found_stays(place: &Place) {
    for step in ["foreign: found", "foreign: leased", "foreign: compared"] {
        let place = place.private();
        let path = place.directory().join("psm_x");
        write(&path, 1);
        let mut child = Child::start_until(&place, "step-sweep", &[], step);
        let new = place.directory().join("new");
        let file = File::create(&new).unwrap();
        fs::rename(&new, &path).unwrap();
        child.resume();
        child.expect(if step == "foreign: found" { "[]" } else { "[Changed]" });
        child.finish();
        assert_eq!(file.metadata().unwrap().nlink(), 1, "{step}");
        assert_eq!(place.everything(), ["psm_x"], "{step}");
    }
}
