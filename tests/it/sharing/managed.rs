//! The scenarios of `kills` with a manager: how soon it removes what dead processes left, also when the manager is
//! killed too.
//!
//! The environment determines a process's manager. So each scenario runs within a director, a child with its own
//! environment. The director reports each round, and the test adds up the results. The end of the test ends every
//! manager that is left.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use ndarray::Ix2;
use ndarray_shm::backend::EntryKind;
use ndarray_shm::counted::{Handle, HandleOptions, Reclaim};
use ndarray_shm::manager::{self, Program, Status};
use ndarray_shm::{Directory, RefcountedArray};

use super::kills::{Game, Moments, Rounds, SCENARIOS, connect, named, one_by_one};
use super::meeting::{Meeting, all};
use crate::support::child::{Child, ROLE, Role, hear, program, say};
use crate::support::machine::send_signal;
use crate::support::manager_socket::ManagerSocket;
use crate::support::random::Random;
use crate::support::{Place, Test, eventually};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    let managed: &[(&str, Test)] = tests![array_of_an_expired_handle_is_removed];
    if cfg!(target_os = "linux") { place.trials("sharing", "managed", managed) } else { Vec::new() }
}

pub const ROLES: &[(&str, Role)] =
    &[("managed-director", director), ("managed-client", client), ("managed-leaver", leaver)];

/// The variable that tells children to use a manager.
const MANAGED: &str = "NDSHM_TEST_MANAGED";

/// The time after which a removal counts as late.
const SOON: Duration = Duration::from_secs(1);

/// The time after which the test fails. It allows for slow machines, and is shorter than the ten seconds between a
/// manager's sweeps, so that a sweep that no death triggered does not pass the test.
const PATIENCE: Duration = Duration::from_secs(8);

/// The scenarios in which the manager itself is killed.
const OTHERS: [(&str, Rounds); 2] = [
    ("the manager alone", |game, rounds| one_by_one(game, rounds, manager_is_killed)),
    ("the manager and all clients", |game, rounds| one_by_one(game, rounds, all_are_killed)),
];

/// The result of one scenario.
#[derive(Debug)]
pub struct Outcome {
    pub scenario: &'static str,
    pub rounds: usize,
    /// Names that were left when the manager was dead as well.
    pub left: usize,
    /// Names after one `Reclaim`, if there was one.
    pub after: Option<usize>,
    late: usize,
    times: Vec<Duration>,
}

impl Outcome {
    /// Returns the table's cells about the manager: names left after a second, median time, worst time.
    pub fn times(&self) -> String {
        let mut times = self.times.clone();
        times.sort_unstable();
        let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
        format!("{} | {:.1} ms | {:.1} ms", self.late, median.as_secs_f64() * 1e3, worst.as_secs_f64() * 1e3)
    }
}

/// Makes a child with [`MANAGED`] a client of the manager, and has it end with its parent.
pub fn join() {
    if std::env::var_os(MANAGED).is_some() {
        #[cfg(target_os = "linux")]
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
        manager::set_program(Program::Search);
    }
}

/// Measures, in the director, the time from a death until the arrays are removed.
#[derive(Debug, Default)]
pub struct Stopwatch {
    since: Option<Instant>,
    left: usize,
    after: Option<usize>,
}

impl Stopwatch {
    /// Starts the measurement. A handle in flight delays the start until it expires.
    pub fn start(&mut self) {
        self.since = Some(Instant::now());
    }

    /// Waits until only `others` arrays are left, and reports how long that took.
    pub fn wait_until_gone(&mut self, backend: &Directory, others: usize) {
        let Some(mut since) = self.since.take() else { return };
        let mut late = None;
        loop {
            let protected = Reclaim::new().dry_run(true).run(backend).unwrap().next;
            let now = Instant::now();
            since = protected.map_or(since, |left| since.max(now + left));
            let names = arrays(backend);
            if names <= others {
                let late = late.unwrap_or(0);
                return say(format!("round {late} {}", now.saturating_duration_since(since).as_micros()));
            }
            let took = now.saturating_duration_since(since);
            if took > SOON {
                late = late.or(Some(names - others));
            }
            assert!(took < PATIENCE, "{} arrays of dead processes are left", names - others);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Returns how many arrays have a name. Hidden drafts are not counted, since managers leave them alone for a minute.
fn arrays(backend: &Directory) -> usize {
    backend.list().unwrap().iter().filter(|entry| entry.kind == EntryKind::Array).count()
}

/// A directory for arrays, and a socket for a manager.
struct Stage {
    socket: ManagerSocket, // declared first, so that its manager ends before the directory is removed
    place: Place,
}

impl Stage {
    fn new(place: &Place) -> Self {
        Self { socket: ManagerSocket::new(), place: place.private() }
    }

    /// Starts a child that uses this stage's manager. With `starts`, it starts the manager if none runs.
    fn child(&self, role: &str, arguments: &[&str], starts: bool) -> Child {
        let mut command = Command::new(program());
        command.env(ROLE, role).envs(self.place.environment()).args(arguments);
        command.env(MANAGED, "1").env("NDSHM_MANAGER_SOCKET", &self.socket.path);
        command.env(
            "NDSHM_MANAGER",
            if starts { self.socket.directory.path().join("ndshm") } else { "/nonexistent".into() },
        );
        Child::spawn(command)
    }
}

/// Runs every scenario, or none on platforms without managers.
pub fn play_all(place: &Place, moments: &mut Moments, rounds: usize) -> Vec<Outcome> {
    let scenarios = SCENARIOS.iter().chain(&OTHERS).enumerate().filter(|_| cfg!(target_os = "linux"));
    scenarios.map(|(number, (scenario, _))| play(place, moments, (scenario, number), rounds)).collect()
}

fn play(place: &Place, moments: &mut Moments, (scenario, number): (&'static str, usize), rounds: usize) -> Outcome {
    let stage = Stage::new(place);
    let mut outcome = Outcome { scenario, rounds, left: 0, after: None, late: 0, times: Vec::new() };
    let seed = moments.0.number();
    println!("{scenario}, with a manager: seed {seed}");
    let arguments = [place.name.to_owned(), number.to_string(), rounds.to_string(), seed.to_string()];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // When all processes are killed, no client may start another manager.
    let mut director = stage.child("managed-director", &arguments, scenario != OTHERS[1].0);
    loop {
        let line = director.line();
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["round", late, micros] => {
                outcome.late += late.parse::<usize>().unwrap();
                outcome.times.push(Duration::from_micros(micros.parse().unwrap()));
            }
            ["end", left, after] => {
                (outcome.left, outcome.after) = (left.parse().unwrap(), after.parse().ok());
                break;
            }
            _ => panic!("{line}"),
        }
    }
    director.finish();
    assert!(outcome.times.len() >= rounds / 2, "{outcome:?}");
    assert_eq!(outcome.after.unwrap_or(0), 0, "{scenario}");
    outcome
}

/// A role: runs a scenario.
fn director(arguments: &[String]) {
    let place = ["shm", "emulated", "hidden"].into_iter().find(|name| *name == arguments[0]).unwrap();
    let numbers: Vec<u64> = arguments[1..].iter().map(|number| number.parse().unwrap()).collect();
    let [scenario, rounds, seed] = numbers[..] else { panic!("{arguments:?}") };
    let socket = manager::socket_path(None).unwrap();
    let meeting = Meeting::of_parent(Place::of_parent(place), socket.parent().unwrap());
    let backend = meeting.place.backend.clone();
    let (_, all_rounds) = *SCENARIOS.iter().chain(&OTHERS).nth(scenario as usize).unwrap();
    let mut moments = Moments(Random::new(seed));
    let managed = Some(Stopwatch::default());
    let mut game = Game { meeting: &meeting, moments: &mut moments, removed: 0, managed };
    // The director is a client too, except where all clients are killed.
    if scenario as usize != SCENARIOS.len() + 1 {
        become_client(&backend);
    }
    // An unrelated array, held through the whole scenario.
    let watched = named(&backend, -1.0);
    all_rounds(&mut game, rounds as usize);
    assert!(all(&watched, -1.0));
    drop(watched);
    assert_eq!(arrays(&backend), 0);
    let Stopwatch { left, after, .. } = game.managed.unwrap();
    say(format!("end {left} {}", after.map_or("-".to_owned(), |after| after.to_string())));
}

/// Makes a director a client, and starts the manager.
fn become_client(backend: &Directory) {
    // No other thread starts a process meanwhile: its child would inherit the open file, and a file that is open for
    // writing cannot be executed.
    let path = PathBuf::from(std::env::var_os("NDSHM_MANAGER").unwrap());
    let text = format!("#!/bin/sh\n{ROLE}=manager-client exec '{}' \"$@\"\n", program().display());
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
    join();
    running(backend);
    eventually("the client is known", || manager::status(None).unwrap().is_some_and(|status| status.clients > 0));
}

/// Announces this process again and again until a manager answers, and returns its status.
fn running(backend: &Directory) -> Status {
    let mut found = None;
    eventually("there is a manager", || {
        manager::announce(backend);
        found = manager::status(None).unwrap();
        found.is_some()
    });
    found.unwrap()
}

/// A child that only announces itself.
fn client(arguments: &[String]) {
    let (backend, _channel) = connect(arguments);
    manager::announce(&backend);
    say("announced");
    hear();
}

fn manager_is_killed(game: &mut Game<'_>, round: usize) {
    let backend = &game.meeting.place.backend;
    let value = round as f32;
    let manager = running(backend);
    let (mut child, channel) = game.meeting.child("kill-creator", &[&value.to_string()]);
    let array: RefcountedArray<f32, Ix2> = channel.receive::<Handle>().unwrap().message.attach().unwrap();
    child.tell("begin");
    std::thread::sleep(Duration::from_micros(game.moments.0.below(5000) as u64));
    // The child dies first in every third round, the manager in the others.
    if round % 3 == 0 {
        game.kill(&mut child);
        send_signal("KILL", manager.pid);
    } else {
        send_signal("KILL", manager.pid);
        game.kill(&mut child);
    }
    assert!(all(&array, value), "a living process loses nothing");
    let left = arrays(backend) - 2;
    // A client that connects to a dying manager would not notice its death: wait for that first.
    eventually("the manager is dead", || manager::status(None).unwrap().is_none_or(|status| status.pid != manager.pid));
    // The next announcement starts another.
    let (mut client, _channel) = game.meeting.child("managed-client", &[]);
    client.expect("announced");
    let stopwatch = game.managed.as_mut().unwrap();
    stopwatch.left += left;
    stopwatch.start();
    stopwatch.wait_until_gone(backend, 2);
    assert!(all(&array, value), "a living process loses nothing");
    assert_ne!(running(backend).pid, manager.pid);
}

fn all_are_killed(game: &mut Game<'_>, round: usize) {
    let place = &game.meeting.place;
    let manager = || {
        let mut manager = Child::start(place, "manager", &[]);
        manager.expect("listens");
        manager
    };
    let mut all: Vec<Child> = vec![manager()];
    for number in 0..3 {
        let (child, channel) = game.meeting.child("kill-creator", &[&number.to_string()]);
        // The handle is never used.
        channel.receive::<Handle>().unwrap();
        all.push(child);
    }
    all.iter_mut().skip(1).for_each(|child| child.tell("begin"));
    while !all.is_empty() {
        let next = game.moments.0.below(all.len());
        game.moments.kill(&mut all.swap_remove(next));
    }
    let stopwatch = game.managed.as_mut().unwrap();
    stopwatch.left += arrays(&place.backend) - 1;
    if round % 2 == 0 {
        let handles = || Reclaim::new().dry_run(true).run(&place.backend).unwrap().next;
        eventually("handles expire", || handles().is_none());
        let reclaimed = Reclaim::new().run(&place.backend).unwrap();
        assert!(reclaimed.failed.is_empty(), "{reclaimed:?}");
        *stopwatch.after.get_or_insert(0) += arrays(&place.backend) - 1;
    } else {
        let _another = manager();
        stopwatch.start();
        stopwatch.wait_until_gone(&place.backend, 1);
    }
}

/// How many arrays the leaver leaves to their handles.
const MANY: usize = 50;

/// The time from the first array's creation until the first handle expires.
const LEFT: Duration = Duration::from_secs(1);

/// A role: creates arrays with a handle each, and drops the arrays, so that only the handles keep them.
fn leaver(_arguments: &[String]) {
    let backend = Place::of_parent("emulated").backend;
    become_client(&backend);
    // A new manager sweeps so often that it would find the arrays without a reminder.
    std::thread::sleep(Duration::from_millis(10_700).saturating_sub(running(&backend).uptime));
    let before = running(&backend).sweeps;
    let begin = Instant::now();
    for number in 0..MANY {
        let array = named(&backend, 1.0);
        // The handles expire one millisecond after the other, however long creating the arrays takes.
        let expiry = LEFT + Duration::from_millis(number as u64);
        let options = HandleOptions::new().grace(expiry.saturating_sub(begin.elapsed()));
        let _handle = array.handle_with(options).unwrap();
        match number % 3 {
            0 => drop(array),
            1 => array.close().unwrap(),
            _ => drop(array.into_reader().unwrap()),
        }
    }
    let mut stopwatch = Stopwatch::default();
    stopwatch.start();
    let left = arrays(&backend);
    assert!(left == MANY || begin.elapsed() > LEFT, "a handle protects each: {left}");
    stopwatch.wait_until_gone(&backend, 0);
    say(running(&backend).sweeps - before);
    hear();
}

fn array_of_an_expired_handle_is_removed(place: &Place) {
    let stage = Stage::new(place);
    let mut leaver = stage.child("managed-leaver", &[], true);
    let said = leaver.line();
    let micros: u64 = said.rsplit(' ').next().unwrap().parse().unwrap();
    println!("{MANY} arrays were gone {micros} us after the last handle had expired");
    // Without a client's reminder, the manager would find the arrays only in its sweep every ten seconds.
    assert!(micros < 8_000_000, "{said}");
    let sweeps: usize = leaver.line().parse().unwrap();
    println!("{sweeps} sweeps");
    assert!(sweeps < MANY, "{sweeps} sweeps for {MANY} arrays");
    leaver.tell("end");
    leaver.finish();
}
