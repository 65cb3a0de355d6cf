//! Waiting for the end of children: with a timeout, repeatedly, from other threads, and one end at a time.

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
            join_timeout_does_not_wait_for_running_children,
            repeated_join_returns_the_same_result,
            ends_are_reported_once_and_in_order,
            ends_of_terminated_children_are_reported_too,
            handles_are_send_and_sync,
        ],
    )
}

fn join_timeout_does_not_wait_for_running_children() {
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

fn repeated_join_returns_the_same_result() {
    let scene = Scene::new();
    let processes = scene.spawn(1, "fail");
    let first = processes.join().unwrap_err();
    assert_eq!(processes.join(), Err(first.clone()));
    assert_eq!(processes.join_timeout(Duration::ZERO), Err(first));
}

fn ends_are_reported_once_and_in_order() {
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
    assert_eq!(processes.next_end(None), None, "each end is reported once");
}

fn ends_of_terminated_children_are_reported_too() {
    let scene = Scene::new();
    let processes = scene.spawn(3, "fail-if-last");
    let (index, how) = next(&processes);
    assert_eq!((index, how), (2, Err(failure(&processes))));
    let mut others: Vec<usize> = std::iter::from_fn(|| processes.next_end(None))
        .map(|(index, how)| {
            assert_ne!(how, Ok(()), "the child was terminated");
            index
        })
        .collect();
    others.sort_unstable();
    assert_eq!(others, [0, 1]);
}

fn handles_are_send_and_sync() {
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
