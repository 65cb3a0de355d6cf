//! Children that are spawned together: how they succeed and fail, who hears of it, and that nothing of them stays.
//!
//! The first tests are those of `torch.multiprocessing.spawn`. Each has a directory of its own; the children wait for as
//! long as it exists, so that none outlives its test, whatever goes wrong.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use ndarray_shm::process::{self, ChildError, Context, Ending, EntryPoint, Processes, SpawnOptions};
use tempfile::TempDir;

use crate::support::child::Role;
#[cfg(unix)]
use crate::support::child::{Child, ROLE, program, say};
use crate::support::eventually;
use crate::tests;

pub fn trials() -> Vec<Trial> {
    crate::support::trials(
        "processes",
        tests![
            all_succeed,
            no_processes_have_all_succeeded,
            the_first_argument_is_the_index_and_the_others_are_the_same_for_all,
            a_join_with_a_limit_does_not_wait_for_those_that_still_run,
            an_error_in_one_of_them_comes_with_its_causes_and_ends_the_others,
            an_error_in_all_of_them_is_reported_once,
            a_panic_comes_with_its_place,
            a_panic_that_was_survived_is_no_reason_for_what_came_later,
            an_exit_code_is_reported,
            an_error_after_the_success_of_others_is_reported,
            the_last_one_to_start_may_be_the_first_to_fail,
            the_others_end_before_anybody_joins,
            a_very_long_message_arrives_cut,
            children_outlive_the_thread_that_asked_for_them,
            what_is_dropped_is_killed_at_once,
            those_that_were_told_to_end_have_not_failed,
            joining_again_says_the_same,
            ends_are_told_in_their_order_and_once,
            the_ends_of_those_that_fail_together_are_told_too,
            one_that_fails_does_not_disturb_those_that_keep_going,
            one_that_cannot_be_started_does_not_disturb_those_that_keep_going,
            those_that_keep_going_end_when_they_are_told_to,
            what_keeps_going_is_killed_when_it_is_dropped,
            programs_that_are_no_entries_report_their_exit_code,
            a_program_that_does_not_exist_is_named,
            pipes_can_be_taken,
            an_entry_that_nobody_announced_is_refused,
            handles_are_for_every_thread,
            #[cfg(unix)]
            a_signal_is_reported_by_its_name,
            #[cfg(unix)]
            one_that_is_killed_does_not_disturb_those_that_keep_going,
            #[cfg(unix)]
            an_abort_in_an_entry_is_a_signal_and_no_old_message,
            #[cfg(unix)]
            one_that_ignores_sigterm_is_killed_after_the_grace_period,
            #[cfg(unix)]
            one_that_cleans_up_on_sigterm_has_the_time,
            #[cfg(unix)]
            a_group_that_a_child_leads_ends_with_it,
            #[cfg(unix)]
            children_are_in_the_group_of_their_parent,
            #[cfg(unix)]
            an_exit_status_that_somebody_else_took_is_no_success,
            #[cfg(target_os = "linux")]
            killing_the_middle_kills_the_grandchildren,
            #[cfg(target_os = "linux")]
            what_a_child_starts_has_nothing_of_the_report,
            #[cfg(target_os = "linux")]
            nothing_of_them_stays,
            #[cfg(target_os = "linux")]
            waiting_takes_no_processor_time,
        ],
    )
}

/// What the children of these tests do.
pub const ENTRIES: &[(&str, EntryPoint)] = &[
    ("succeed", |_| Ok(())),
    ("note", note),
    ("wait", wait),
    ("fail", fail),
    ("fail-if-last", fail_if_last),
    ("fail-if-first", fail_if_first),
    ("succeed-if-last", succeed_if_last),
    ("take-turns", take_turns),
    ("fail-at-length", |_| Err("at length ".repeat(1 << 16).into())),
    ("panic", |context| panic!("the brush of {} broke", context.index())),
    ("survive", survive),
    ("exit-3", |_| std::process::exit(3)),
    ("abort", |_| std::process::abort()),
    ("spawn", spawn_others),
    #[cfg(target_os = "linux")]
    ("look-around", look_around),
    #[cfg(target_os = "linux")]
    ("leave-nothing", leave_nothing),
];

pub const ROLES: &[(&str, Role)] = &[
    #[cfg(unix)]
    ("spawn-and-ignore", spawn_and_ignore),
];

type Outcome = Result<(), Box<dyn Error>>;

/// How long anything may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(120);

/// The first argument of every entry: the directory of the test.
fn directory(context: &Context) -> &Path {
    Path::new(&context.arguments()[0])
}

/// Says that this child has come so far, and who it is.
fn arrive(context: &Context) -> std::io::Result<()> {
    let name = |stage| directory(context).join(format!("{stage}-{}", context.index()));
    fs::write(name("coming"), std::process::id().to_string())?;
    // Whoever sees the name can read the number.
    fs::rename(name("coming"), name("here"))
}

/// Waits until the test lets go, or is over.
fn wait(context: &Context) -> Outcome {
    arrive(context)?;
    let directory = directory(context);
    while directory.exists() && !directory.join("go").exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn note(context: &Context) -> Outcome {
    let words = format!("{} of {}: {:?}", context.index(), context.count(), &context.arguments()[1..]);
    Ok(fs::write(directory(context).join(context.index().to_string()), words)?)
}

#[derive(Debug, thiserror::Error)]
#[error("chunk {0} cannot be painted")]
struct Unpaintable(usize, #[source] std::io::Error);

fn fail(context: &Context) -> Outcome {
    Err(Unpaintable(context.index(), std::io::Error::other("the colour ran out")).into())
}

/// The last one fails when all the others are there, which wait.
fn fail_if_last(context: &Context) -> Outcome {
    if context.index() + 1 < context.count() {
        return wait(context);
    }
    let others = 0..context.index();
    eventually("the others arrive", || {
        others.clone().all(|index| directory(context).join(format!("here-{index}")).exists())
    });
    fail(context)
}

/// The first one fails when it is told to; the others succeed.
fn fail_if_first(context: &Context) -> Outcome {
    if context.index() == 0 { wait(context).and_then(|()| fail(context)) } else { Ok(()) }
}

/// Ends when it is told to by its index; the first one fails.
fn take_turns(context: &Context) -> Outcome {
    arrive(context)?;
    let (directory, go) = (directory(context), directory(context).join(format!("go-{}", context.index())));
    while directory.exists() && !go.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    if context.index() == 0 { fail(context) } else { Ok(()) }
}

/// Panics, recovers, and ends otherwise.
fn survive(_: &Context) -> Outcome {
    let survived = std::panic::catch_unwind(|| panic!("forgiven"));
    assert!(survived.is_err());
    std::process::exit(4);
}

/// The last one succeeds at once, the others wait.
fn succeed_if_last(context: &Context) -> Outcome {
    if context.index() + 1 < context.count() { wait(context) } else { Ok(()) }
}

/// Spawns two that wait and one that does not, and waits for them.
fn spawn_others(context: &Context) -> Outcome {
    let inner = directory(context).join("inner");
    fs::create_dir(&inner)?;
    Ok(process::spawn(3, "succeed-if-last", &[inner.to_str().unwrap()])?.join()?)
}

/// A test's directory, and the words that tell the children where it is.
struct Scene(TempDir);

impl Scene {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap()
    }

    /// Spawns children whose words on standard error nobody needs to see.
    fn spawn(&self, count: usize, entry: &str) -> Processes {
        quietly().spawn(count, entry, &[self.path()]).unwrap()
    }

    fn wait_for(&self, names: &[&str]) {
        eventually("the children arrive", || names.iter().all(|name| self.file(name).exists()));
    }

    fn go(&self) {
        fs::write(self.file("go"), "").unwrap();
    }

    /// The same for one that takes its turn.
    fn let_go(&self, index: usize) {
        fs::write(self.file(&format!("go-{index}")), "").unwrap();
    }

    /// A shell script that finds the directory as `$1`.
    #[cfg(unix)]
    fn shell(&self, script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-e", "-c", script, "sh", self.path()]);
        command
    }
}

fn quietly() -> SpawnOptions<'static> {
    SpawnOptions::new().configure(|_, command| {
        command.stderr(Stdio::null());
    })
}

/// The end of processes that must come to one.
fn end(processes: &Processes) -> Result<(), ChildError> {
    match processes.join_timeout(PATIENCE) {
        Ok(ended) => {
            assert!(ended, "they still run");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

fn failure(processes: &Processes) -> ChildError {
    end(processes).expect_err("one of them failed")
}

/// Whether a process runs; one that has ended and was not waited for does not.
#[cfg(target_os = "linux")]
fn runs(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next()).is_some_and(|state| state != 'Z')
}

/// Whether there is a process of this number, running or not waited for.
#[cfg(unix)]
fn exists(pid: u32) -> bool {
    Command::new("kill").args(["-0", &pid.to_string()]).stderr(Stdio::null()).status().unwrap().success()
}

/// Whether there is a process of this number: cannot be asked so simply.
#[cfg(not(unix))]
fn exists(_pid: u32) -> bool {
    false
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

fn an_error_in_one_of_them_comes_with_its_causes_and_ends_the_others() {
    let scene = Scene::new();
    let processes = scene.spawn(3, "fail-if-last");
    let error = failure(&processes);
    assert_eq!((error.index(), error.pid()), (2, processes.pids()[2]));
    assert_eq!(error.ending(), Ending::Exited(1));
    let message = "chunk 2 cannot be painted: the colour ran out";
    assert_eq!(error.message(), Some(message));
    assert_eq!(error.to_string(), format!("process 2 (pid {}) failed: {message}", error.pid()));
    assert!(processes.pids().iter().all(|pid| !exists(*pid)), "the others have ended and were waited for");
}

fn an_error_in_all_of_them_is_reported_once() {
    let scene = Scene::new();
    let processes = scene.spawn(4, "fail");
    let error = failure(&processes);
    assert_eq!(error.message(), Some(&*format!("chunk {} cannot be painted: the colour ran out", error.index())));
    assert_eq!(error.pid(), processes.pids()[error.index()]);
}

fn a_panic_comes_with_its_place() {
    let scene = Scene::new();
    let error = failure(&scene.spawn(1, "panic"));
    let message = error.message().unwrap();
    assert!(message.starts_with("panicked at tests") && message.contains("processes.rs:"), "{message}");
    assert!(message.ends_with(": the brush of 0 broke"), "{message}");
    assert_eq!(error.ending(), Ending::Exited(101));
}

fn a_panic_that_was_survived_is_no_reason_for_what_came_later() {
    let scene = Scene::new();
    let error = failure(&scene.spawn(1, "survive"));
    assert_eq!(error.message(), None);
    assert_eq!(error.ending(), Ending::Exited(4));
}

fn an_exit_code_is_reported() {
    let scene = Scene::new();
    let error = failure(&scene.spawn(1, "exit-3"));
    assert_eq!(error.ending().code(), Some(3));
    assert_eq!(error.to_string(), format!("process 0 (pid {}) ended with exit code 3", error.pid()));
}

fn an_error_after_the_success_of_others_is_reported() {
    let scene = Scene::new();
    let processes = scene.spawn(3, "fail-if-first");
    scene.wait_for(&["here-0"]);
    #[cfg(unix)]
    eventually("the others end", || !processes.pids()[1..].iter().any(|pid| exists(*pid)));
    assert_eq!(processes.join_timeout(Duration::ZERO), Ok(false));
    scene.go();
    assert_eq!(failure(&processes).index(), 0);
}

fn the_last_one_to_start_may_be_the_first_to_fail() {
    let scene = Scene::new();
    let error = failure(&scene.spawn(4, "fail-if-last"));
    assert_eq!(error.index(), 3);
}

fn the_others_end_before_anybody_joins() {
    let scene = Scene::new();
    let processes = scene.spawn(3, "fail-if-last");
    #[cfg(unix)]
    eventually("all end", || !processes.pids().iter().any(|pid| exists(*pid)));
    assert_eq!(failure(&processes).index(), 2);
}

fn a_very_long_message_arrives_cut() {
    let scene = Scene::new();
    let error = failure(&scene.spawn(2, "fail-at-length"));
    let message = error.message().unwrap();
    assert!(message.starts_with("at length at length") && message.len() > 10_000, "{}", message.len());
    assert!(message.len() <= 1 << 16);
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

fn what_is_dropped_is_killed_at_once() {
    let scene = Scene::new();
    let processes = scene.spawn(2, "wait");
    scene.wait_for(&["here-0", "here-1"]);
    let (pids, begin) = (processes.pids().to_vec(), Instant::now());
    drop(processes);
    assert!(begin.elapsed() < Duration::from_secs(20), "the grace period is 30 s");
    assert!(pids.iter().all(|pid| !exists(*pid)), "{pids:?}");
}

fn those_that_were_told_to_end_have_not_failed() {
    let scene = Scene::new();
    let processes = scene.spawn(2, "wait");
    scene.wait_for(&["here-0", "here-1"]);
    processes.terminate();
    processes.terminate();
    assert_eq!(end(&processes), Ok(()));
    assert!(!scene.file("go").exists());
}

fn joining_again_says_the_same() {
    let scene = Scene::new();
    let processes = scene.spawn(1, "fail");
    let first = processes.join().unwrap_err();
    assert_eq!(processes.join(), Err(first.clone()));
    assert_eq!(processes.join_timeout(Duration::ZERO), Err(first));
}

/// The next end, which must come.
fn next(processes: &Processes) -> (usize, Result<(), ChildError>) {
    processes.next_end(Some(PATIENCE)).expect("somebody ends")
}

/// Three that end one after the other, the first of them with a failure.
fn three_that_take_turns(scene: &Scene) -> Processes {
    let processes = quietly().keep_going(true).spawn(3, "take-turns", &[scene.path()]).unwrap();
    scene.wait_for(&["here-0", "here-1", "here-2"]);
    processes
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

fn one_that_fails_does_not_disturb_those_that_keep_going() {
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

fn one_that_cannot_be_started_does_not_disturb_those_that_keep_going() {
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

fn those_that_keep_going_end_when_they_are_told_to() {
    let scene = Scene::new();
    let processes = three_that_take_turns(&scene);
    processes.terminate();
    assert_eq!(end(&processes), Ok(()));
    assert_eq!(std::iter::from_fn(|| processes.next_end(None)).filter(|(_, how)| how.is_err()).count(), 3);
}

fn what_keeps_going_is_killed_when_it_is_dropped() {
    let scene = Scene::new();
    let processes = three_that_take_turns(&scene);
    let pids = processes.pids().to_vec();
    drop(processes);
    assert!(pids.iter().all(|pid| !exists(*pid)), "{pids:?}");
}

#[cfg(unix)]
fn one_that_is_killed_does_not_disturb_those_that_keep_going() {
    let scene = Scene::new();
    let processes = three_that_take_turns(&scene);
    let killed = Command::new("kill").args(["-KILL", &processes.pids()[1].to_string()]).status().unwrap();
    assert!(killed.success());
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

/// A command of this very program that ends with a failure of its own: it has no such option.
fn failing_program() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg("--no-such-option").stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn programs_that_are_no_entries_report_their_exit_code() {
    let code = failing_program().status().unwrap().code().unwrap();
    assert_ne!(code, 0);
    let error = failure(&SpawnOptions::new().spawn_commands(1, |_| failing_program()).unwrap());
    assert_eq!(error.ending(), Ending::Exited(code));
    assert_eq!(error.message(), None);
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

fn an_entry_that_nobody_announced_is_refused() {
    let error = process::spawn(1, "unheard-of", &[]).unwrap_err();
    assert!(error.to_string().contains("unheard-of") && error.to_string().contains("process::init"), "{error}");
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

#[cfg(unix)]
fn a_signal_is_reported_by_its_name() {
    for name in ["KILL", "TERM", "INT", "SEGV"] {
        let scene = Scene::new();
        let processes = SpawnOptions::new().spawn_commands(1, |_| scene.shell(&format!("kill -{name} $$"))).unwrap();
        let error = failure(&processes);
        assert_eq!(error.ending().signal_name().as_deref(), Some(&*format!("SIG{name}")));
        assert_eq!(error.to_string(), format!("process 0 (pid {}) was killed by SIG{name}", error.pid()));
    }
}

#[cfg(unix)]
fn an_abort_in_an_entry_is_a_signal_and_no_old_message() {
    let scene = Scene::new();
    let error = failure(&scene.spawn(1, "abort"));
    assert!(error.to_string().ends_with("was killed by SIGABRT"), "{error}");
}

#[cfg(unix)]
fn one_that_ignores_sigterm_is_killed_after_the_grace_period() {
    const GRACE: Duration = Duration::from_millis(400);
    let scene = Scene::new();
    let stubborn = "trap '' TERM; : > \"$1/deaf\"; while [ -e \"$1\" ]; do sleep 0.05; done";
    let failing = "while ! [ -e \"$1/go\" ]; do sleep 0.05; done; exit 3";
    let scripts = [stubborn, failing];
    let options = SpawnOptions::new().grace(GRACE);
    let processes = options.spawn_commands(2, |index| scene.shell(scripts[index])).unwrap();
    scene.wait_for(&["deaf"]);
    let begin = Instant::now();
    scene.go();
    let error = failure(&processes);
    assert_eq!((error.index(), error.ending()), (1, Ending::Exited(3)));
    assert!(begin.elapsed() >= GRACE, "{:?}", begin.elapsed());
    assert!(!exists(processes.pids()[0]));
}

#[cfg(unix)]
fn one_that_cleans_up_on_sigterm_has_the_time() {
    let scene = Scene::new();
    let careful =
        "trap 'sleep 0.3; : > \"$1/clean\"; exit 0' TERM; : > \"$1/ready\"; while [ -e \"$1\" ]; do sleep 0.05; done";
    let processes = SpawnOptions::new().spawn_commands(1, |_| scene.shell(careful)).unwrap();
    scene.wait_for(&["ready"]);
    processes.terminate();
    end(&processes).unwrap();
    assert!(scene.file("clean").exists());
}

#[cfg(unix)]
fn a_group_that_a_child_leads_ends_with_it() {
    use std::os::unix::process::CommandExt as _;
    let scene = Scene::new();
    let script = "(while [ -e \"$1\" ]; do sleep 0.05; done) & echo $! > \"$1/new\"; mv \"$1/new\" \"$1/pid\"; wait";
    let grouped = SpawnOptions::new().configure(|_, command| {
        command.process_group(0);
    });
    let processes = grouped.spawn_commands(1, |_| scene.shell(script)).unwrap();
    scene.wait_for(&["pid"]);
    let grandchild: u32 = scene.read("pid").trim().parse().unwrap();
    assert!(exists(grandchild));
    processes.terminate();
    end(&processes).unwrap();
    // Somebody else waits for it, some time.
    #[cfg(target_os = "linux")]
    eventually("the grandchild ends", || !runs(grandchild));
}

#[cfg(unix)]
fn children_are_in_the_group_of_their_parent() {
    let scene = Scene::new();
    let script = "ps -o pgid= -p $$ > \"$1/group\"";
    end(&SpawnOptions::new().spawn_commands(1, |_| scene.shell(script)).unwrap()).unwrap();
    let own = Command::new("ps").args(["-o", "pgid=", "-p", &std::process::id().to_string()]).output().unwrap();
    assert_eq!(scene.read("group").trim(), String::from_utf8(own.stdout).unwrap().trim());
}

/// A child in which the system waits for children by itself; it says what it hears of one that it spawns.
#[cfg(unix)]
#[allow(unsafe_code)]
fn spawn_and_ignore(_: &[String]) {
    // SAFETY: no function is installed as a handler.
    let before = unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    assert_ne!(before, libc::SIG_ERR);
    match process::spawn(1, "succeed", &[]).unwrap().join() {
        Ok(()) => say("it succeeded"),
        Err(error) => say(error),
    }
}

#[cfg(unix)]
fn an_exit_status_that_somebody_else_took_is_no_success() {
    let mut command = Command::new(program());
    command.env(ROLE, "spawn-and-ignore");
    let said = Child::spawn(command).line();
    assert!(said.contains("nobody knows how") && said.contains("SIGCHLD is ignored"), "{said}");
}

#[cfg(target_os = "linux")]
fn killing_the_middle_kills_the_grandchildren() {
    let scene = Scene::new();
    let processes = scene.spawn(1, "spawn");
    scene.wait_for(&["inner/here-0", "inner/here-1"]);
    let inner: Vec<u32> =
        ["inner/here-0", "inner/here-1"].iter().map(|name| scene.read(name).parse().unwrap()).collect();
    assert!(inner.iter().all(|pid| runs(*pid)));
    let killed = Command::new("kill").args(["-KILL", &processes.pids()[0].to_string()]).status().unwrap();
    assert!(killed.success());
    let error = failure(&processes);
    assert!(error.to_string().ends_with("was killed by SIGKILL"), "{error}");
    eventually("the grandchildren end", || !inner.iter().any(|pid| runs(*pid)));
    assert!(scene.file("inner").exists(), "they would have waited for this");
}

/// Sees whether what a child starts has more open than it should.
#[cfg(target_os = "linux")]
fn look_around(context: &Context) -> Outcome {
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

#[cfg(target_os = "linux")]
fn what_a_child_starts_has_nothing_of_the_report() {
    let scene = Scene::new();
    end(&scene.spawn(1, "look-around")).unwrap();
    let open = scene.read("open");
    assert!(open.contains("/proc/") && !open.contains("memfd"), "{open}");
}

/// Descriptors, threads and children of this process: names of the first, numbers of the others.
#[cfg(target_os = "linux")]
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

/// Every way in which children end, in a process that nobody disturbs, and a look at what is left of each.
#[cfg(target_os = "linux")]
fn leave_nothing(context: &Context) -> Outcome {
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
            let killed = Command::new("kill").args(["-KILL", &processes.pids()[1].to_string()]).status().unwrap();
            assert!(killed.success());
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

#[cfg(target_os = "linux")]
fn nothing_of_them_stays() {
    let (scene, temporary) = (Scene::new(), tempfile::tempdir().unwrap());
    let alone = SpawnOptions::new().configure(|_, command| {
        command.env("TMPDIR", temporary.path());
    });
    end(&alone.spawn(1, "leave-nothing", &[scene.path()]).unwrap()).unwrap();
}

/// How much processor time this process has used, in clock ticks.
#[cfg(target_os = "linux")]
fn ticks(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[cfg(target_os = "linux")]
fn waiting_takes_no_processor_time() {
    let scene = Scene::new();
    let processes = scene.spawn(1, "spawn");
    scene.wait_for(&["inner/here-0", "inner/here-1"]);
    let before = ticks(processes.pids()[0]);
    std::thread::sleep(Duration::from_secs(1));
    let used = ticks(processes.pids()[0]) - before;
    assert!(used < 10, "waiting for two of three took {used} hundredths of a second");
}
