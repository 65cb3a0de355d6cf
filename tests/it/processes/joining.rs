//! Waiting for the end of children: with a limit, again, from other threads, and for one end after the other.

use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use ndarray_shm::process::{ChildError, Ending, Processes};

use super::{PATIENCE, Scene, end, failure, next, three_that_take_turns};
use crate::support;
use crate::tests;

pub fn trials() -> Vec<Trial> {
    support::trials(
        "processes",
        tests![
            a_join_with_a_limit_does_not_wait_for_those_that_still_run,
            joining_again_says_the_same,
            ends_are_told_in_their_order_and_once,
            the_ends_of_those_that_fail_together_are_told_too,
            handles_are_for_every_thread,
        ],
    )
}

fn a_join_with_a_limit_does_not_wait_for_those_that_still_run() {
    let scene = Scene::new();
    let processes = scene.spawn(2, "wait");
    scene.wait_for(&["here-0", "here-1"]);
    assert_eq!(processes.join_timeout(Duration::ZERO), Ok(false));
    assert_eq!(processes.join_timeout(Duration::from_millis(50)), Ok(false));
    let said: Vec<u32> = (0..2).map(|index| scene.read(&format!("here-{index}")).parse().unwrap()).collect();
    assert_eq!(processes.pids(), said);
    scene.go();
    assert_eq!(processes.join_timeout(PATIENCE), Ok(true));
    assert_eq!(processes.join_timeout(Duration::ZERO), Ok(true));
}

fn joining_again_says_the_same() {
    let scene = Scene::new();
    let processes = scene.spawn(1, "fail");
    let first = processes.join().unwrap_err();
    assert_eq!(processes.join(), Err(first.clone()));
    assert_eq!(processes.join_timeout(Duration::ZERO), Err(first));
}

fn ends_are_told_in_their_order_and_once() {
    let scene = Scene::new();
    let processes = three_that_take_turns(&scene);
    assert_eq!(processes.next_end(Some(Duration::ZERO)), None);
    let begin = Instant::now();
    assert_eq!(processes.next_end(Some(Duration::from_millis(50))), None);
    assert!(begin.elapsed() >= Duration::from_millis(50));
    for index in [2, 1] {
        scene.let_go(index);
        assert_eq!(next(&processes), (index, Ok(())));
        assert_eq!(processes.join_timeout(Duration::ZERO), Ok(false));
    }
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| processes.next_end(None));
        scene.let_go(0);
        let (index, how) = waiting.join().unwrap().unwrap();
        assert_eq!((index, how.as_ref().map_err(ChildError::ending)), (0, Err(Ending::Exited(1))));
        assert_eq!(end(&processes), how);
    });
    assert_eq!(processes.next_end(None), None, "each end is told once");
}

fn the_ends_of_those_that_fail_together_are_told_too() {
    let scene = Scene::new();
    let processes = scene.spawn(3, "fail-if-last");
    let (index, how) = next(&processes);
    assert_eq!((index, how), (2, Err(failure(&processes))));
    let mut others: Vec<usize> = std::iter::from_fn(|| processes.next_end(None))
        .map(|(index, how)| {
            assert_ne!(how, Ok(()), "it was ended");
            index
        })
        .collect();
    others.sort_unstable();
    assert_eq!(others, [0, 1]);
}

fn handles_are_for_every_thread() {
    fn shared<T: Send + Sync>() {}
    shared::<Processes>();
    shared::<ChildError>();
    let scene = Scene::new();
    let processes = scene.spawn(1, "wait");
    std::thread::scope(|scope| {
        let joined = scope.spawn(|| processes.join());
        scene.wait_for(&["here-0"]);
        processes.terminate();
        assert_eq!(joined.join().unwrap(), Ok(()));
    });
}
