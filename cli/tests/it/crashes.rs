//! Signals and kills in the middle of a download: what remains, and that the finished chunks are not lost.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::BuildHasher as _;
#[cfg(unix)]
use std::io::Write as _;
use std::process::Command;

use ndarray_shm::{Location, render};
use serde_json::Value;
use sysinfo::{Pid, Signal};

#[cfg(unix)]
use crate::scene::heeding_hangup;
use crate::scene::{Running, Scene, is_running, run, signal, wait_until};
use crate::volume::{self, CHUNKS};

/// Returns a number below `limit` that differs from run to run.
fn random_below(limit: usize) -> usize {
    usize::try_from(RandomState::new().hash_one(limit) % limit as u64).expect("below a usize")
}

fn download(scene: &Scene, arguments: &[&str]) -> Command {
    let mut command = scene.ndshm(["download", "--location", "x", "--json"]);
    command.args(arguments).arg(scene.volume());
    command
}

/// Returns how many chunks are painted according to the ledger; 0 before it exists.
fn painted(scene: &Scene) -> usize {
    let location: Location = "x".parse().expect("a good name");
    render::ledger(&scene.directory(), &location).map_or(0, |ledger| ledger.done)
}

/// Waits until a download has painted at least `chunks` chunks. Fails if it ends before.
fn wait_for_chunks(scene: &Scene, running: &mut Running, chunks: usize) {
    wait_until("the middle of the download", || {
        assert!(running.is_running(), "it ended before it was in the middle");
        painted(scene) >= chunks
    });
}

/// Waits until `count` workers run. A worker that is just being started is not recognized as one yet.
fn wait_for_workers(running: &mut Running, count: usize) -> Vec<Pid> {
    let mut workers = Vec::new();
    wait_until("the start of all workers", || {
        assert!(running.is_running(), "it ended before all workers ran");
        workers = running.workers();
        workers.len() == count
    });
    workers
}

fn assert_complete(scene: &Scene) {
    assert!(fs::read(scene.emulated().join("x")).expect("there") == volume::expected_whole());
    assert_eq!(scene.files(), ["x"]);
}

fn number(report: &Value, field: &str) -> usize {
    usize::try_from(report[field].as_u64().unwrap_or_else(|| panic!("{field}: {report:#}"))).expect("small")
}

// Tests of interruptions are for Unix only: Windows has no program that sends Ctrl-C, and the system call for it is
// unsafe.
#[cfg(unix)]
#[test]
fn an_interrupted_download_leaves_nothing() {
    for (interruption, processes) in
        [(Signal::Interrupt, false), (Signal::Term, false), (Signal::Hangup, true), (Signal::Interrupt, true)]
    {
        // On a busy machine a download may be complete before the signal comes: then another one is interrupted.
        let interrupted = (0..10).any(|_| {
            let scene = Scene::new();
            volume::write(&scene.volume());
            let how: &[&str] = if processes { &["--processes", "--workers", "2"] } else { &[] };
            let mut running = Running::start(&mut heeding_hangup(&download(&scene, how)));
            let (count, mut workers) = (if processes { 2 } else { 0 }, Vec::new());
            wait_until("the middle of the download", || {
                workers = running.workers();
                !running.is_running() || (painted(&scene) >= 5 && workers.len() == count)
            });
            let is_alive = signal(running.pid(), interruption);
            let finished = running.finish();
            if finished.code == Some(0) {
                return false;
            }
            let finished = finished.expect_code(130);
            assert!(is_alive && finished.err.contains("nothing was left behind"), "{finished:?}");
            assert_eq!(scene.files(), [""; 0]);
            assert!(!workers.into_iter().any(is_running), "workers end before their parent");
            true
        });
        assert!(interrupted, "{interruption}");
    }
}

/// The download has created nothing yet, and the server may stay silent for minutes.
#[cfg(all(unix, feature = "remote"))]
#[test]
fn a_signal_ends_the_wait_for_a_silent_server() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/volume.zarr", silent.local_addr().expect("bound"));
    for interruption in [Signal::Interrupt, Signal::Term] {
        let scene = Scene::new();
        let running = Running::start(scene.ndshm(["download", "--location", "x"]).arg(&url));
        let (_connection, _) = silent.accept().expect("a connection");
        assert!(signal(running.pid(), interruption));
        let finished = running.finish().expect_code(130);
        assert!(finished.err.contains("interrupted while waiting for http://127.0.0.1"), "{finished:?}");
        assert_eq!(scene.files(), [""; 0]);
    }
}

#[cfg(unix)]
#[test]
fn interrupted_download_with_kept_chunks_is_resumed() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    let how = ["--keep-partial", "--processes", "--workers", "2"];
    let mut running = Running::start(&mut download(&scene, &how));
    wait_for_chunks(&scene, &mut running, 5);
    assert!(signal(running.pid(), Signal::Interrupt));
    let finished = running.finish().expect_code(130);
    assert!(finished.err.contains("the same command resumes"), "{finished:?}");
    assert!(!scene.files().contains(&"x".to_owned()), "no half-painted array under its name");
    let kept = painted(&scene);
    assert!((5..CHUNKS).contains(&kept), "{kept}");

    let report = run(&mut download(&scene, &how)).expect_code(0).json();
    assert_eq!(number(&report, "resumed"), kept);
    assert_eq!(number(&report, "painted"), CHUNKS - kept);
    assert_complete(&scene);
}

/// A download with `--share`, and its worker processes, continue a download that another user began.
#[cfg(unix)]
#[test]
fn download_of_another_user_is_resumed_only_with_share() {
    const STRANGER: u32 = 65534;
    let scene = Scene::new();
    if !rustix::process::geteuid().is_root() {
        writeln!(std::io::stderr(), "NOT RUN: only root can be two users").expect("written");
        return;
    }
    volume::write(&scene.volume());
    let how = ["--keep-partial", "--processes", "--workers", "2"];
    let mut running = Running::start(&mut download(&scene, &how));
    wait_for_chunks(&scene, &mut running, 5);
    assert!(signal(running.pid(), Signal::Interrupt));
    running.finish().expect_code(130);
    for file in scene.files() {
        std::os::unix::fs::chown(scene.emulated().join(file), Some(STRANGER), None).expect("root may");
    }
    let refused = run(&mut download(&scene, &how)).expect_code(1).err;
    let words = ["belongs to user 65534, and this process to user 0", "--share users:65534"];
    assert!(words.iter().all(|word| refused.contains(word)), "{refused}");
    let kept = painted(&scene);
    assert!(kept >= 5, "a refusal keeps the painted chunks");
    let report = run(download(&scene, &how).args(["--share", "users:65534"])).expect_code(0).json();
    assert_eq!((number(&report, "resumed"), number(&report, "painted")), (kept, CHUNKS - kept));
    assert_complete(&scene);
    run(download(&scene, &how).args(["--share", "all"])).expect_code(2);
}

/// Waits for the end of a killed download. On Windows a kill sets the exit code; elsewhere there is none.
fn assert_killed(running: Running) {
    let finished = running.finish();
    assert_eq!(finished.code, cfg!(windows).then_some(1), "{finished:?}");
    assert_eq!(finished.out, "", "a killed process prints nothing");
}

#[test]
fn download_survives_the_kill_of_one_worker() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    let mut deaths = 0;
    for _ in 0..50 {
        let mut running = Running::start(&mut download(&scene, &["--processes", "--workers", "4"]));
        let point = 1 + random_below(CHUNKS / 2);
        wait_until("the point of the kill", || !running.is_running() || painted(&scene) >= point);
        let workers = running.workers();
        // On a fast machine the download may finish before the kill. Such a run is checked too, but does not count.
        let victim = workers.get(random_below(workers.len().max(1)));
        let is_killed = victim.is_some_and(|&victim| signal(victim, Signal::Kill));
        let at = painted(&scene);
        let finished = running.finish().expect_code(0);
        let report = finished.json();
        assert_eq!(number(&report, "painted"), CHUNKS, "killed at chunk {at}: {finished:?}");
        let warnings = report["warnings"].as_array().expect("a list").len();
        assert_eq!(warnings, finished.err.matches("warning: worker").count(), "{finished:?}");
        assert_complete(&scene);
        run(&mut scene.ndshm(["unlink", "x"])).expect_code(0);
        if is_killed && warnings == 1 {
            deaths += 1;
        }
        if deaths == 10 {
            return;
        }
    }
    panic!("only {deaths} of 10 workers were killed in the middle");
}

#[test]
fn same_command_resumes_after_all_processes_are_killed() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    let how = ["--processes", "--workers", "4"];
    let mut running = Running::start(&mut download(&scene, &how));
    wait_for_chunks(&scene, &mut running, 1 + random_below(CHUNKS / 2));
    let workers = wait_for_workers(&mut running, 4);
    // Stop all of them first, so that no process can see another one die and clean up. Windows cannot stop processes:
    // there the parent is killed first, and workers that notice may exit before they are killed.
    #[cfg(unix)]
    {
        for &pid in workers.iter().chain([&running.pid()]) {
            assert!(signal(pid, Signal::Stop));
        }
        for &pid in &workers {
            assert!(signal(pid, Signal::Kill));
        }
    }
    running.kill();
    #[cfg(windows)]
    for &pid in &workers {
        signal(pid, Signal::Kill);
    }
    assert_killed(running);
    // Workers without a parent are reaped by init.
    wait_until("the end of the workers", || !workers.iter().any(|&pid| is_running(pid)));
    let kept = painted(&scene);
    assert!((1..CHUNKS).contains(&kept), "{kept}");

    let report = run(&mut download(&scene, &how)).expect_code(0).json();
    assert_eq!(number(&report, "resumed"), kept);
    assert_eq!(number(&report, "painted") + number(&report, "resumed"), CHUNKS);
    assert_complete(&scene);
}

/// The killed command and this one paint different work under one name.
#[test]
fn other_download_replaces_what_a_kill_left_only_when_told() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    let mut running = Running::start(&mut download(&scene, &["--order", "f"]));
    wait_for_chunks(&scene, &mut running, 1);
    running.kill();
    assert_killed(running);
    let refused = run(&mut download(&scene, &["--order", "c"])).expect_code(1);
    let words = ["another order", "no process is attached", "give --replace", "`ndshm unlink --partial x`"];
    assert!(words.iter().all(|word| refused.err.contains(word)), "{refused:?}");
    assert!(!refused.err.contains("replace(true)"), "no words of the library: {refused:?}");
    let report = run(&mut download(&scene, &["--order", "c", "--replace"])).expect_code(0).json();
    assert_eq!((number(&report, "resumed"), number(&report, "painted")), (0, CHUNKS));
    assert_eq!(scene.files(), ["x"]);
}

/// Kills the whole process group at about half, with threads and with processes. Workers in groups of their own die as
/// well.
#[cfg(target_os = "linux")]
#[test]
fn same_command_resumes_after_a_process_group_is_killed() {
    use std::os::unix::process::CommandExt as _;

    for how in [&["--workers", "2"][..], &["--processes", "--workers", "2"]] {
        let scene = Scene::new();
        volume::write(&scene.volume());
        let mut running = Running::start(download(&scene, how).process_group(0));
        wait_for_chunks(&scene, &mut running, CHUNKS / 2);
        let workers = running.workers();
        let group = format!("-{}", running.pid());
        assert!(Command::new("kill").args(["-9", "--", &group]).status().expect("kill(1)").success());
        assert_killed(running);
        wait_until("the end of the workers", || !workers.iter().any(|&pid| is_running(pid)));
        let kept = painted(&scene);
        assert!((CHUNKS / 2..CHUNKS).contains(&kept), "{kept}");
        let report = run(&mut download(&scene, how)).expect_code(0).json();
        println!("{how:?}: killed at {kept} of {CHUNKS}; then {} painted", report["painted"]);
        assert_eq!((number(&report, "resumed"), number(&report, "painted")), (kept, CHUNKS - kept));
        assert_complete(&scene);
    }
}

#[test]
fn workers_do_not_outlive_a_killed_parent() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    let mut running = Running::start(&mut download(&scene, &["--processes", "--workers", "2"]));
    wait_for_chunks(&scene, &mut running, 2);
    let workers = wait_for_workers(&mut running, 2);
    running.kill();
    assert_killed(running);
    wait_until("the end of the workers", || !workers.iter().any(|&pid| is_running(pid)));
    assert!(!scene.files().contains(&"x".to_owned()), "workers alone do not finish an array");
}

/// Only Linux kills a stopped worker. Elsewhere a worker must run to notice that its standard input has ended.
#[cfg(target_os = "linux")]
#[test]
fn stopped_workers_die_with_their_parent() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    let mut running = Running::start(&mut download(&scene, &["--processes", "--workers", "2"]));
    wait_for_chunks(&scene, &mut running, 2);
    let workers = wait_for_workers(&mut running, 2);
    for &pid in &workers {
        assert!(signal(pid, Signal::Stop));
    }
    running.kill();
    wait_until("the end of the workers", || !workers.iter().any(|&pid| is_running(pid)));
    assert_killed(running);
}

#[test]
fn parent_of_killed_workers_advises_to_resume() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    let how = ["--processes", "--workers", "2"];
    // Finding the processes can take as long as painting the rest. A download that has finished by then proves nothing
    // and is repeated.
    let killed = |_| {
        let mut running = Running::start(&mut download(&scene, &how));
        wait_for_chunks(&scene, &mut running, 2);
        let workers = wait_for_workers(&mut running, 2);
        let killed = workers.into_iter().filter(|pid| signal(*pid, Signal::Kill)).count();
        let finished = running.finish();
        if finished.code == Some(0) {
            run(&mut scene.ndshm(["unlink", "x"])).expect_code(0);
            return None;
        }
        assert!(killed > 0, "{finished:?}");
        Some(finished.expect_code(1))
    };
    let finished = (0..20).find_map(killed).expect("a download with its workers killed in time");
    assert!(finished.err.contains("the same command resumes"), "{finished:?}");
    let report = run(&mut download(&scene, &how)).expect_code(0).json();
    assert!(number(&report, "resumed") >= 2, "{report:#}");
    assert_complete(&scene);
}
