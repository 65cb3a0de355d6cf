//! How children are started: their arguments, pipes, threads and groups.

use std::process::{Command, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;
use ndarray_shm::process::{self, SpawnOptions};

use super::{Scene, end, failure};
use crate::support;
use crate::tests;

pub fn trials() -> Vec<Trial> {
    support::trials(
        "processes",
        tests![
            all_succeed,
            no_processes_have_all_succeeded,
            the_first_argument_is_the_index_and_the_others_are_the_same_for_all,
            a_program_that_does_not_exist_is_named,
            an_entry_that_nobody_announced_is_refused,
            pipes_can_be_taken,
            children_outlive_the_thread_that_asked_for_them,
            #[cfg(unix)]
            children_are_in_the_group_of_their_parent,
        ],
    )
}

fn all_succeed() {
    end(&process::spawn(3, "succeed", &[]).unwrap()).unwrap();
}

fn no_processes_have_all_succeeded() {
    let none = process::spawn(0, "succeed", &[]).unwrap();
    end(&none).unwrap();
    assert!(none.pids().is_empty());
}

fn the_first_argument_is_the_index_and_the_others_are_the_same_for_all() {
    let scene = Scene::new();
    let odd = ["", "two words", "--help", "größer", "line\nbreak"];
    let arguments = [&[scene.path()], &odd[..]].concat();
    let processes = SpawnOptions::new()
        .configure(|index, command| {
            command.arg(format!("own {index}"));
        })
        .spawn(3, "note", &arguments)
        .unwrap();
    end(&processes).unwrap();
    for index in 0..3 {
        let own = format!("own {index}");
        let expected = [&odd[..], &[&own]].concat();
        assert_eq!(scene.read(&index.to_string()), format!("{index} of 3: {expected:?}"));
    }
}

fn a_program_that_does_not_exist_is_named() {
    let scene = Scene::new();
    let missing = scene.file("no-such-program");
    let error = SpawnOptions::new().spawn_commands(2, |_| Command::new(&missing)).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("no-such-program") && said.contains("starting"), "{said}");
    assert!(!error.is_not_found(), "that is said of arrays");
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::NotFound);
}

fn an_entry_that_nobody_announced_is_refused() {
    let error = process::spawn(1, "unheard-of", &[]).unwrap_err();
    assert!(error.to_string().contains("unheard-of") && error.to_string().contains("process::init"), "{error}");
}

fn pipes_can_be_taken() {
    use std::io::Read as _;
    let scene = Scene::new();
    let piped = SpawnOptions::new().configure(|_, command| {
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    });
    let mut processes = piped.spawn(2, "panic", &[scene.path()]).unwrap();
    assert!(processes.take_stdin(1).is_some());
    assert!(processes.take_stdin(1).is_none(), "it was taken");
    assert!(processes.take_stdout(0).is_none() && processes.take_stderr(2).is_none());
    let error = failure(&processes);
    let mut said = String::new();
    processes.take_stderr(error.index()).unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains(&format!("the brush of {} broke", error.index())), "{said}");
}

fn children_outlive_the_thread_that_asked_for_them() {
    let scene = Scene::new();
    let path = scene.path().to_owned();
    let asked = std::thread::spawn(move || process::spawn(2, "wait", &[&path]).unwrap());
    let processes = asked.join().unwrap();
    scene.wait_for(&["here-0", "here-1"]);
    assert_eq!(processes.join_timeout(Duration::from_millis(300)), Ok(false));
    scene.go();
    end(&processes).unwrap();
}

#[cfg(unix)]
fn children_are_in_the_group_of_their_parent() {
    let scene = Scene::new();
    let script = "ps -o pgid= -p $$ > \"$1/group\"";
    end(&SpawnOptions::new().spawn_commands(1, |_| scene.shell(script)).unwrap()).unwrap();
    let own = Command::new("ps").args(["-o", "pgid=", "-p", &std::process::id().to_string()]).output().unwrap();
    assert_eq!(scene.read("group").trim(), String::from_utf8(own.stdout).unwrap().trim());
}
