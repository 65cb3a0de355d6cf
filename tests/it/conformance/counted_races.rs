//! Many processes that create, attach to, leave and reclaim counted arrays under one name.

use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::counted::{HandleOptions, Reclaim};
use ndarray_shm::{Access, CreateOptions, CreationMode, Error, ErrorKind, OpenOptions, ReadGuard, RefcountedArray};

use crate::support::child::{Child, Role, hear, say};
use crate::support::machine::open_files;
use crate::support::random::random;
use crate::support::{Place, backend_of_child};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "counted_races",
        tests![attachers_and_reclaimers_do_not_disturb_each_other, four_processes_create_and_leave_one_name,],
    )
}

pub const ROLES: &[(&str, Role)] = &[
    ("leave-orphans", leave_orphans),
    ("attach-and-look", attach_and_look),
    ("reclaim-again-and-again", reclaim_again_and_again),
    ("churn-counted", churn_counted),
];

/// The longest that a handle protects an array here.
const LONGEST_GRACE: Duration = Duration::from_millis(2);

/// Whether a race may cause this error.
fn is_usual(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::NotFound | ErrorKind::AlreadyExists)
}

/// Takes a read guard. The array keeps its name while it is attached, so this must succeed.
fn guard(array: &RefcountedArray<u64, Ix1>) -> ReadGuard<'_, u64, Ix1> {
    array.read().expect("the name stays while the array is attached")
}

/// Repeats an action until the parent ends this child. Says `once` after the first success.
fn race(mut succeeds: impl FnMut() -> bool) {
    let ends = std::thread::spawn(hear);
    let mut is_said = false;
    while !ends.is_finished() {
        if succeeds() && !is_said {
            say("once");
            is_said = true;
        }
    }
}

/// A child that drops arrays which only a handle in flight still protects, for a moment.
fn leave_orphans(arguments: &[String]) {
    race(|| {
        let options = CreateOptions::new().directory(backend_of_child());
        let tag = random();
        match options.create_counted_with::<u64, _>(arguments[0].as_str(), 600, |mut view| view.fill(tag)) {
            Ok(array) => {
                let grace = Duration::from_micros(random() % LONGEST_GRACE.as_micros() as u64);
                array.handle_with(HandleOptions::new().grace(grace)).unwrap();
                true
            }
            Err(error) => {
                assert!(is_usual(&error), "{error}");
                false
            }
        }
    });
}

/// A child that attaches, and checks that the array is whole and keeps its name.
fn attach_and_look(arguments: &[String]) {
    race(|| {
        let options = OpenOptions::new().directory(backend_of_child());
        let array = match options.open_counted::<u64, Ix1>(arguments[0].as_str()) {
            Ok(array) => array,
            Err(error) => {
                assert!(is_usual(&error), "{error}");
                return false;
            }
        };
        for _ in 0..random() % 4 {
            let guard = guard(&array);
            assert!(guard[0] != 0 && guard.iter().all(|value| *value == guard[0]));
            assert!(array.refcount() >= 1);
            drop(guard);
            std::thread::sleep(Duration::from_micros(random() % 500));
        }
        array.close().unwrap();
        true
    });
}

/// A child that reclaims what it can.
fn reclaim_again_and_again(_: &[String]) {
    let backend = backend_of_child();
    race(|| {
        let reclaimed = Reclaim::new().run(&backend).unwrap();
        assert!(reclaimed.failed.is_empty(), "{reclaimed:?}");
        !reclaimed.removed.is_empty()
    });
}

fn attachers_and_reclaimers_do_not_disturb_each_other(place: &Place) {
    let place = &place.private();
    let name = place.location("race");
    let roles = ["leave-orphans", "attach-and-look", "attach-and-look", "reclaim-again-and-again"];
    let mut children = roles.map(|role| Child::start(place, role, &[name.as_str()]));
    // Every process succeeds at some time. On slow platforms the reclaimer, the last of them, may never meet an orphan.
    let busy = if cfg!(windows) { 3 } else { 4 };
    children[..busy].iter_mut().for_each(|child| child.expect("once"));
    let seconds = std::env::var("NDSHM_TEST_STRESS_SECONDS").map_or(0.5, |seconds| seconds.parse().unwrap());
    std::thread::sleep(Duration::from_secs_f64(seconds));
    children.iter_mut().for_each(|child| child.tell("end"));
    children.into_iter().for_each(Child::finish);
    std::thread::sleep(2 * LONGEST_GRACE);
    place.reclaim();
    assert_eq!(place.left(), [] as [&str; 0]);
}

/// A child that creates, attaches to and leaves one name in turn, as quickly as it can.
fn churn_counted(arguments: &[String]) {
    const LENGTH: usize = 1500;
    let name = arguments[0].as_str();
    let backend = backend_of_child();
    let options = || CreateOptions::new().directory(backend.clone());
    let attach = || OpenOptions::new().directory(backend.clone());
    // The first call of a process opens files that stay open; they are no leak.
    drop(options().create_counted::<u64, Ix1>(format!("{name}-{}", std::process::id()), 1).unwrap());
    let before = open_files();
    let whole = |array: &RefcountedArray<u64, Ix1>| {
        let guard = guard(array);
        assert!(guard[0] != 0 && guard.iter().all(|value| *value == guard[0]), "a mix of two arrays, or half of one");
    };
    let mut held = Vec::new();
    for round in 1..=1000u64 {
        let tag = random();
        let fill = |mut view: ndarray::ArrayViewMut1<'_, u64>| view.fill(tag);
        let outcome = match random() % 4 {
            0 => options().create_counted_with::<u64, Ix1>(name, LENGTH, fill),
            1 => options().mode(CreationMode::OpenOrCreate).create_counted_with::<u64, Ix1>(name, LENGTH, fill),
            2 => attach().open_counted::<u64, Ix1>(name),
            _ => attach().access(Access::Read).open_counted::<u64, Ix1>(name).and_then(|array| array.try_clone()),
        };
        match outcome {
            Ok(array) => {
                whole(&array);
                held.push(array);
            }
            Err(error) => assert!(is_usual(&error), "round {round}: {error}"),
        }
        match random() % 9 {
            0..3 => held.drain(..).for_each(|array| array.close().unwrap()),
            3..5 => drop(held.pop()),
            _ => {}
        }
    }
    drop(held);
    assert_eq!(open_files(), before);
    say("no surprises");
}

fn four_processes_create_and_leave_one_name(place: &Place) {
    let place = &place.private();
    let name = place.location("churn");
    let mut children = [(); 4].map(|()| Child::start(place, "churn-counted", &[name.as_str()]));
    children.iter_mut().for_each(|child| child.expect("no surprises"));
    children.into_iter().for_each(Child::finish);
    assert_eq!(place.left(), [] as [&str; 0], "the last handle unlinks the name");
}
