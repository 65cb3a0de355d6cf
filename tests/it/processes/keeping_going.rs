//! Children spawned with `keep_going`: one child's failure does not end the others.

use std::process::{Command, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;
use ndarray_shm::process::{Ending, SpawnOptions};

use super::{Scene, end, exists, failing_program, failure, next, three_that_take_turns};
use crate::support;
#[cfg(unix)]
use crate::support::machine::send_signal;
use crate::tests;

pub fn trials() -> Vec<Trial> {
    support::trials(
        "processes",
        tests![
            failed_child_leaves_the_others_running,
            unstartable_child_leaves_the_others_running,
            terminate_ends_children_that_keep_going,
            dropped_handle_kills_children_that_keep_going,
            #[cfg(unix)]
            killed_child_leaves_the_others_running,
        ],
    )
}

fn failed_child_leaves_the_others_running() {
    let scene = Scene::new();
    let processes = three_that_take_turns(&scene);
    scene.let_go(0);
    let (index, how) = next(&processes);
    let error = how.unwrap_err();
    assert_eq!((index, error.index(), error.pid()), (0, 0, processes.pids()[0]));
    assert_eq!(error.message(), Some("chunk 0 cannot be painted: the colour ran out"));
    assert_eq!(error.status().and_then(|status| status.code()), Some(1));
    assert_eq!(processes.next_end(Some(Duration::from_millis(300))), None, "the others go on");
    assert_eq!(processes.join_timeout(Duration::ZERO), Ok(false));
    scene.let_go(1);
    assert_eq!(next(&processes), (1, Ok(())));
    scene.let_go(2);
    assert_eq!(failure(&processes), error);
    assert_eq!(next(&processes), (2, Ok(())), "told after the join too");
}

fn unstartable_child_leaves_the_others_running() {
    let scene = Scene::new();
    let missing = scene.file("no-such-program");
    let program = |index| {
        if index == 1 {
            return Command::new(&missing);
        }
        let mut command = failing_program();
        command.stderr(Stdio::piped());
        command
    };
    let mut processes = SpawnOptions::new().keep_going(true).spawn_commands(3, program).unwrap();
    let (index, how) = next(&processes);
    let error = how.unwrap_err();
    assert_eq!((index, error.ending(), error.status()), (1, Ending::NotStarted, None));
    let said = error.to_string();
    assert!(said.starts_with("process 1 could not be started: `") && said.contains("no-such-program"), "{said}");
    assert_eq!((error.pid(), processes.pids()[1]), (0, 0));
    assert!(processes.take_stderr(1).is_none() && processes.take_stderr(2).is_some(), "pipes keep their index");
    assert_eq!(failure(&processes), error);
    let mut others = [next(&processes).0, next(&processes).0];
    others.sort_unstable();
    assert_eq!(others, [0, 2]);

    let none = SpawnOptions::new().keep_going(true).spawn_commands(2, |_| Command::new(&missing)).unwrap();
    assert_eq!(failure(&none).index(), 0);
    assert_eq!([next(&none).0, next(&none).0], [0, 1]);
    assert_eq!(none.next_end(None), None);
}

fn terminate_ends_children_that_keep_going() {
    let scene = Scene::new();
    let processes = three_that_take_turns(&scene);
    processes.terminate();
    assert_eq!(end(&processes), Ok(()));
    assert_eq!(std::iter::from_fn(|| processes.next_end(None)).filter(|(_, how)| how.is_err()).count(), 3);
}

fn dropped_handle_kills_children_that_keep_going() {
    let scene = Scene::new();
    let processes = three_that_take_turns(&scene);
    let pids = processes.pids().to_vec();
    drop(processes);
    assert!(pids.iter().all(|pid| !exists(*pid)), "{pids:?}");
}

#[cfg(unix)]
fn killed_child_leaves_the_others_running() {
    let scene = Scene::new();
    let processes = three_that_take_turns(&scene);
    send_signal("KILL", processes.pids()[1]);
    let (index, how) = next(&processes);
    let error = how.unwrap_err();
    assert_eq!((index, error.ending().signal_name().as_deref()), (1, Some("SIGKILL")));
    assert_eq!(processes.next_end(Some(Duration::from_millis(300))), None, "the others go on");
    let pids = processes.pids();
    assert!(exists(pids[0]) && !exists(pids[1]) && exists(pids[2]), "{pids:?}");
    scene.let_go(2);
    assert_eq!(next(&processes), (2, Ok(())));
    scene.let_go(0);
    assert_eq!(next(&processes).0, 0);
    assert_eq!(failure(&processes), error, "the first failure, not the last");
}
