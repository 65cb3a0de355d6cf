//! The scenarios of `kills` beside a manager: how soon it has removed what the dead left, and what becomes of that when the
//! manager is killed too.
//!
//! Which manager a process has is said by its environment. So each scenario has a director, a child with an environment in which the
//! whole of it is played; it says how each round went, and the test adds up. Whatever manager is left is ended with the test.

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
    let managed: &[(&str, Test)] = tests![array_left_to_a_handle_is_removed_when_it_expires];
    if cfg!(target_os = "linux") { place.trials("sharing", "managed", managed) } else { Vec::new() }
}

pub const ROLES: &[(&str, Role)] =
    &[("managed-director", director), ("managed-client", client), ("managed-leaver", leaver)];

/// Says in the environment that there is a manager.
const MANAGED: &str = "NDSHM_TEST_MANAGED";

/// How soon everything is to be gone.
const SOON: Duration = Duration::from_secs(1);

/// How long it may take on a machine that was stopped for a moment, before the test fails; less than the ten seconds after which
/// a manager looks without a word.
const PATIENCE: Duration = Duration::from_secs(8);

/// Those in which the manager itself is killed.
const OTHERS: [(&str, Rounds); 2] = [
    ("the manager alone", |game, rounds| one_by_one(game, rounds, manager_is_killed)),
    ("the manager and all clients", |game, rounds| one_by_one(game, rounds, all_are_killed)),
];

/// What became of one scenario.
#[derive(Debug)]
pub struct Outcome {
    pub scenario: &'static str,
    pub rounds: usize,
    /// Names that were left when the manager was dead too.
    pub left: usize,
    /// Names after one `Reclaim`, if there was one.
    pub after: Option<usize>,
    late: usize,
    times: Vec<Duration>,
}

impl Outcome {
    /// The cells of the table that say how the manager did: names still there after a second, median, worst.
    pub fn times(&self) -> String {
        let mut times = self.times.clone();
        times.sort_unstable();
        let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
        format!("{} | {:.1} ms | {:.1} ms", self.late, median.as_secs_f64() * 1e3, worst.as_secs_f64() * 1e3)
    }
}

/// In a child: becomes a client, and ends with its parent, if there is to be a manager.
pub fn join() {
    if std::env::var_os(MANAGED).is_some() {
        #[cfg(target_os = "linux")]
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
        manager::set_program(Program::Search);
    }
}

/// Measures, in the director, how long it takes from a death until a directory is empty.
#[derive(Debug, Default)]
pub struct Stopwatch {
    since: Option<Instant>,
    left: usize,
    after: Option<usize>,
}

impl Stopwatch {
    /// From now on, unless a handle in flight protects something for longer.
    pub fn start(&mut self) {
        self.since = Some(Instant::now());
    }

    /// Waits until there are no arrays but `others`, and says how long it took.
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
            assert!(took < PATIENCE, "{} arrays of the dead are still there", names - others);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// How many arrays have a name. Drafts with hidden names are left alone for a minute, by managers too.
fn arrays(backend: &Directory) -> usize {
    backend.list().unwrap().iter().filter(|entry| entry.kind == EntryKind::Array).count()
}

/// A directory for arrays, and a socket for a manager.
struct Stage {
    socket: ManagerSocket, // its manager ends before the arrays go
    place: Place,
}

impl Stage {
    fn new(place: &Place) -> Self {
        Self { socket: ManagerSocket::new(), place: place.private() }
    }

    /// A child that uses this stage's manager; with `starts` it starts one if there is none.
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

/// Has every scenario played; none where there are no managers.
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
    // When all are killed, none is to begin anew.
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

/// A role: plays a scenario.
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
    // Except where all clients are killed, its own process is one.
    if scenario as usize != SCENARIOS.len() + 1 {
        become_client(&backend);
    }
    // One array that has nothing to do with any of it, held through everything.
    let watched = named(&backend, -1.0);
    all_rounds(&mut game, rounds as usize);
    assert!(all(&watched, -1.0));
    drop(watched);
    assert_eq!(arrays(&backend), 0);
    let Stopwatch { left, after, .. } = game.managed.unwrap();
    say(format!("end {left} {}", after.map_or("-".to_owned(), |after| after.to_string())));
}

/// In a director: becomes a client, and starts the manager.
fn become_client(backend: &Directory) {
    // No thread starts a process meanwhile: what is open for writing cannot be executed.
    let path = PathBuf::from(std::env::var_os("NDSHM_MANAGER").unwrap());
    let text = format!("#!/bin/sh\n{ROLE}=manager-client exec '{}' \"$@\"\n", program().display());
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
    join();
    running(backend);
    eventually("it knows this process", || manager::status(None).unwrap().is_some_and(|status| status.clients > 0));
}

/// Says again and again that this process is a client, until there is a manager.
fn running(backend: &Directory) -> Status {
    let mut found = None;
    eventually("there is a manager", || {
        manager::announce(backend);
        found = manager::status(None).unwrap();
        found.is_some()
    });
    found.unwrap()
}

/// A child that does no more than say that it is there.
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
    // Either of the two may be the first.
    if round % 3 == 0 {
        game.kill(&mut child);
        send_signal("KILL", manager.pid);
    } else {
        send_signal("KILL", manager.pid);
        game.kill(&mut child);
    }
    assert!(all(&array, value), "who lives loses nothing");
    let left = arrays(backend) - 2;
    // A client that connects to a dying manager cannot know.
    eventually("it is dead", || manager::status(None).unwrap().is_none_or(|status| status.pid != manager.pid));
    // The next announcement starts another.
    let (mut client, _channel) = game.meeting.child("managed-client", &[]);
    client.expect("announced");
    let stopwatch = game.managed.as_mut().unwrap();
    stopwatch.left += left;
    stopwatch.start();
    stopwatch.wait_until_gone(backend, 2);
    assert!(all(&array, value), "who lives loses nothing");
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
        // Never used.
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

/// Arrays that the leaver leaves.
const MANY: usize = 50;

/// When the first of their handles expires, from when the first of them is made.
const LEFT: Duration = Duration::from_secs(1);

/// A role: makes arrays and handles, and leaves all of it to those.
fn leaver(_arguments: &[String]) {
    let backend = Place::of_parent("emulated").backend;
    become_client(&backend);
    // A new manager looks so often that it would find them by itself.
    std::thread::sleep(Duration::from_millis(10_700).saturating_sub(running(&backend).uptime));
    let before = running(&backend).sweeps;
    let begin = Instant::now();
    for number in 0..MANY {
        let array = named(&backend, 1.0);
        // However long making them takes, they expire one soon after the other.
        let expiry = LEFT + Duration::from_millis(number as u64);
        let options = HandleOptions::new().grace(expiry.saturating_sub(begin.elapsed()));
        let _unused = array.handle_with(options).unwrap();
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

fn array_left_to_a_handle_is_removed_when_it_expires(place: &Place) {
    let stage = Stage::new(place);
    let mut leaver = stage.child("managed-leaver", &[], true);
    let said = leaver.line();
    let micros: u64 = said.rsplit(' ').next().unwrap().parse().unwrap();
    println!("{MANY} arrays were gone {micros} us after the last handle had expired");
    // Without a word they would be found by the look that is taken every ten seconds.
    assert!(micros < 8_000_000, "{said}");
    let sweeps: usize = leaver.line().parse().unwrap();
    println!("{sweeps} looks");
    assert!(sweeps < MANY, "one word, and few looks, for all of them: {sweeps}");
    leaver.tell("end");
    leaver.finish();
}
