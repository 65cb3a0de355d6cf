//! What children use and leave: descriptors, threads, processes, files and processor time.

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;
use ndarray_shm::process::{Context, SpawnOptions};

use super::entries::{Outcome, directory};
use super::{Scene, end, failure};
use crate::support;
use crate::support::machine::send_signal;
use crate::tests;

pub fn trials() -> Vec<Trial> {
    support::trials(
        "processes",
        tests![
            programs_of_a_child_do_not_inherit_its_report,
            children_leave_nothing_behind,
            waiting_takes_no_processor_time
        ],
    )
}

/// An entry: starts a program, and writes that program's open descriptors to a file.
pub fn look_around(context: &Context) -> Outcome {
    let open = |name: &str| -> Result<String, Box<dyn Error>> {
        let output = Command::new("ls").args(["-l", name]).stderr(Stdio::null()).output()?;
        Ok(String::from_utf8(output.stdout)?)
    };
    let own = open(&format!("/proc/{}/fd", std::process::id()))?;
    assert!(own.contains("memfd:"), "there is a report: {own}");
    let others = open("/proc/self/fd")?;
    fs::write(directory(context).join("open"), others)?;
    Ok(())
}

fn programs_of_a_child_do_not_inherit_its_report() {
    let scene = Scene::new();
    end(&scene.spawn(1, "look-around")).unwrap();
    let open = scene.read("open");
    assert!(open.contains("/proc/") && !open.contains("memfd"), "{open}");
}

/// Returns this process's descriptors with their targets, its number of threads, and its children.
fn belongings() -> (Vec<String>, usize, String) {
    let listed = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let mut descriptors: Vec<String> = listed
        .filter_map(|path| Some(format!("{} -> {}", path.display(), fs::read_link(&path).ok()?.display())))
        .filter(|line| !line.ends_with("/fd"))
        .collect();
    descriptors.sort();
    let threads: Vec<PathBuf> = fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap().path()).collect();
    let children = threads.iter().map(|thread| fs::read_to_string(thread.join("children")).unwrap_or_default());
    (descriptors, threads.len(), children.collect())
}

/// An entry: has children end in every way, in a process without other tests, and checks what is left after each.
pub fn leave_nothing(context: &Context) -> Outcome {
    let scene = Scene(tempfile::tempdir_in(directory(context))?);
    let missing = |index: usize| Command::new(if index < 2 { "yes" } else { "/no/such/program" });
    let silent = || {
        SpawnOptions::new().configure(|_, command| {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        })
    };
    let ways: &[(&str, &dyn Fn())] = &[
        ("success", &|| end(&scene.spawn(3, "succeed")).unwrap()),
        ("failure", &|| drop(failure(&scene.spawn(3, "fail")))),
        ("panic", &|| drop(failure(&scene.spawn(3, "panic")))),
        ("drop", &|| drop(scene.spawn(3, "wait"))),
        ("a program that is missing", &|| drop(silent().spawn_commands(4, missing).unwrap_err())),
        ("an entry that is missing", &|| drop(silent().spawn(1, "unheard-of", &[]).unwrap_err())),
        ("kill", &|| {
            let processes = scene.spawn(3, "wait");
            send_signal("KILL", processes.pids()[1]);
            drop(failure(&processes));
        }),
        ("terminate", &|| {
            let processes = silent().spawn_commands(3, |_| Command::new("yes")).unwrap();
            processes.terminate();
            end(&processes).unwrap();
        }),
    ];
    let temporary = std::env::temp_dir();
    let files = || fs::read_dir(&temporary).unwrap().count();
    let (before, files_before) = (belongings(), files());
    for (way, go) in ways {
        for _ in 0..3 {
            go();
            assert_eq!(belongings(), before, "after {way}");
            assert_eq!(files(), files_before, "after {way}");
        }
    }
    Ok(())
}

fn children_leave_nothing_behind() {
    let (scene, temporary) = (Scene::new(), tempfile::tempdir().unwrap());
    let alone = SpawnOptions::new().configure(|_, command| {
        command.env("TMPDIR", temporary.path());
    });
    end(&alone.spawn(1, "leave-nothing", &[scene.path()]).unwrap()).unwrap();
}

/// Returns how much processor time a process has used, in clock ticks.
fn ticks(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

fn waiting_takes_no_processor_time() {
    let scene = Scene::new();
    let processes = scene.spawn(1, "spawn");
    scene.wait_for(&["inner/here-0", "inner/here-1"]);
    let before = ticks(processes.pids()[0]);
    std::thread::sleep(Duration::from_secs(1));
    let used = ticks(processes.pids()[0]) - before;
    assert!(used < 10, "waiting for two of three took {used} hundredths of a second");
}
