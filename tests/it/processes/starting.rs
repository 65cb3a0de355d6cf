//! Starting children: their arguments, pipes, threads and process groups.

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
            join_of_no_children_succeeds,
            children_get_their_index_and_the_same_arguments,
            missing_program_is_named_in_the_error,
            unregistered_entry_is_refused,
            pipes_can_be_taken,
            children_outlive_the_spawning_thread,
            #[cfg(unix)]
            children_are_in_their_parents_process_group,
        ],
    )
}

fn all_succeed() {
    end(&process::spawn(3, "succeed", &[]).unwrap()).unwrap();
}

fn join_of_no_children_succeeds() {
    let none = process::spawn(0, "succeed", &[]).unwrap();
    end(&none).unwrap();
    assert!(none.pids().is_empty());
}

fn children_get_their_index_and_the_same_arguments() {
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

fn missing_program_is_named_in_the_error() {
    let scene = Scene::new();
    let missing = scene.file("no-such-program");
    let error = SpawnOptions::new().spawn_commands(2, |_| Command::new(&missing)).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("no-such-program") && said.contains("starting"), "{said}");
    assert!(!error.is_not_found(), "is_not_found is about arrays");
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::NotFound);
}

fn unregistered_entry_is_refused() {
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
    assert!(processes.take_stdin(1).is_none(), "the pipe was taken before");
    assert!(processes.take_stdout(0).is_none() && processes.take_stderr(2).is_none());
    let error = failure(&processes);
    let mut said = String::new();
    processes.take_stderr(error.index()).unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains(&format!("the brush of {} broke", error.index())), "{said}");
}

fn children_outlive_the_spawning_thread() {
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
fn children_are_in_their_parents_process_group() {
    let scene = Scene::new();
    let script = "ps -o pgid= -p $$ > \"$1/group\"";
    end(&SpawnOptions::new().spawn_commands(1, |_| scene.shell(script)).unwrap()).unwrap();
    let own = Command::new("ps").args(["-o", "pgid=", "-p", &std::process::id().to_string()]).output().unwrap();
    assert_eq!(scene.read("group").trim(), String::from_utf8(own.stdout).unwrap().trim());
}
