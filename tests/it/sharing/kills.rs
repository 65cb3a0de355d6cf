//! SIGKILL at any moment: what the dead leave is found by one `Reclaim`, and by a manager at once; the living never lose
//! their data.
//!
//! Each scenario is played ten times, or as often as `NDSHM_TEST_ROUNDS` says, and its process is killed after a random time;
//! `NDSHM_TEST_SEED` repeats a run. Everyone's memory has the round's number in it, so that another array's or
//! a half-written one is noticed.

use std::fmt::Write;
use std::time::{Duration, Instant, SystemTime};

use libtest_mimic::Trial;
use ndarray::Ix2;
use ndarray_shm::counted::{Channel, ChannelListener, Handle, HandleOptions, Reclaim, SharingStrategy};
use ndarray_shm::{Directory, RefcountedArray};

use super::managed::{self, Outcome, Stopwatch};
use super::meeting::{LONG, Meeting, all, names, repeats, share};
use crate::support::child::{Child, Role, hear, say};
use crate::support::files::age;
use crate::support::random::Random;
use crate::support::{Place, backend_of_child, eventually};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials("sharing", "kills", tests![memory_of_killed_processes_is_reclaimed])
}

pub const ROLES: &[(&str, Role)] = &[
    ("kill-creator", creator),
    ("kill-reader", last_reader),
    ("kill-middle", middle),
    ("end-of-chain", end_of_chain),
    ("kill-sender", sender),
    ("kill-attacher", attacher),
];

/// Processes are killed within this time after they began.
const LATEST: Duration = Duration::from_millis(5);

/// How long a handle protects its array here. Except where a sender is killed, the array has another holder until the handle is used.
pub const GRACE: Duration = Duration::from_millis(50);

/// What became of one scenario without a manager; what a manager makes of it is in `managed`.
#[derive(Debug)]
struct Row {
    scenario: &'static str,
    rounds: usize,
    /// Names that the dead had left when all other processes had ended, or that had to be reclaimed before.
    left: usize,
    /// Names after one `Reclaim`.
    after: usize,
}

/// The seed of a run: what the environment says, or the time.
fn seed() -> u64 {
    let seed = std::env::var("NDSHM_TEST_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    seed.unwrap_or_else(|| now().as_nanos() as u64)
}

/// Times at which processes are killed.
#[derive(Debug)]
pub struct Moments(pub Random);

impl Moments {
    /// Kills a child that has just begun something.
    pub fn kill(&mut self, child: &mut Child) {
        let (begin, after) = (Instant::now(), Duration::from_nanos(self.0.below(LATEST.as_nanos() as usize) as u64));
        while begin.elapsed() < after {
            std::hint::spin_loop();
        }
        child.kill();
    }
}

/// One scenario while it is played.
#[derive(Debug)]
pub struct Game<'a> {
    pub meeting: &'a Meeting,
    pub moments: &'a mut Moments,
    /// Names that were reclaimed in between.
    pub removed: usize,
    /// With a manager: how long it took each time.
    pub managed: Option<Stopwatch>,
}

impl Game<'_> {
    pub fn kill(&mut self, child: &mut Child) {
        self.moments.kill(child);
        if let Some(stopwatch) = &mut self.managed {
            stopwatch.start();
        }
    }

    /// All processes that took part have ended.
    fn end_round(&mut self) {
        if let Some(stopwatch) = &mut self.managed {
            stopwatch.wait_until_gone(&self.meeting.place.backend, 1);
        }
    }

    fn named(&self, value: f32) -> RefcountedArray<f32, Ix2> {
        named(&self.meeting.place.backend, value)
    }

    /// Reclaims while others live, which must not disturb them.
    fn reclaim(&mut self) {
        if self.managed.is_some() {
            return; // the manager does it all the time
        }
        let reclaimed = Reclaim::new().run(&self.meeting.place.backend).unwrap();
        self.removed += reclaimed.removed.len();
    }
}

pub fn named(backend: &Directory, value: f32) -> RefcountedArray<f32, Ix2> {
    share(backend, SharingStrategy::FileSystem, value)
}

pub fn handle(array: &RefcountedArray<f32, Ix2>) -> Handle {
    array.handle_with(HandleOptions::new().grace(GRACE)).expect("a handle")
}

pub fn connect(arguments: &[String]) -> (Directory, Channel) {
    managed::join();
    let backend = backend_of_child();
    let _probed = backend.lock_survives_close().unwrap();
    (backend, Channel::connect(&arguments[0]).unwrap())
}

/// A child that makes arrays and leaves some of them, as fast as it can; its first it gives away.
fn creator(arguments: &[String]) {
    let (backend, channel) = connect(arguments);
    let value: f32 = arguments[1].parse().unwrap();
    let first = named(&backend, value);
    channel.send(&handle(&first), &[]).unwrap();
    hear();
    let mut some = Vec::new();
    loop {
        some.push(named(&backend, value));
        if some.len() > 3 {
            some.remove(0).close().unwrap();
        }
    }
}

fn creator_is_killed(game: &mut Game<'_>, round: usize) {
    let value = round as f32;
    let (mut child, channel) = game.meeting.child("kill-creator", &[&value.to_string()]);
    let array: RefcountedArray<f32, Ix2> = channel.receive::<Handle>().unwrap().message.attach().unwrap();
    child.tell("begin");
    game.kill(&mut child);
    assert!(all(&array, value), "what its maker gave away stays with us");
    *array.write().unwrap() += 1.0;
    assert!(all(&array, value + 1.0));
}

/// A child that is the only one to have an array, reads it for a while, and leaves it.
fn last_reader(arguments: &[String]) {
    let (_, channel) = connect(arguments);
    let value: f32 = arguments[1].parse().unwrap();
    let array: RefcountedArray<f32, Ix2> = channel.receive::<Handle>().unwrap().message.attach().unwrap();
    say("attached");
    hear();
    let begin = Instant::now();
    while begin.elapsed() < LATEST / 2 {
        assert!(all(&array, value));
    }
    drop(array);
    hear();
}

fn last_reader_is_killed(game: &mut Game<'_>, round: usize) {
    let value = round as f32;
    let (mut child, channel) = game.meeting.child("kill-reader", &[&value.to_string()]);
    let array = game.named(value);
    channel.send(&handle(&array), &[]).unwrap();
    child.expect("attached");
    drop(array);
    child.tell("begin");
    game.kill(&mut child);
}

/// A child that gets an array, and passes it on to the process that listens at a path.
fn middle(arguments: &[String]) {
    let (_, channel) = connect(arguments);
    let onward = Channel::connect(&arguments[1]).unwrap();
    say("connected");
    let array: RefcountedArray<f32, Ix2> = channel.receive::<Handle>().unwrap().message.attach().unwrap();
    *array.write().unwrap() += 1.0;
    onward.send(&handle(&array), &[]).unwrap();
    drop(array);
    hear();
}

/// A child that gets arrays from those in the middle, one from each, and says what it got.
fn end_of_chain(arguments: &[String]) {
    let (_, channel) = connect(arguments);
    let listener = ChannelListener::bind(&arguments[1]).unwrap();
    channel.send("listening", &[]).unwrap();
    while let Ok(received) = channel.receive::<f32>() {
        let value = received.message;
        let from = listener.accept_timeout(LONG).unwrap();
        match from.receive::<Handle>() {
            Ok(received) => {
                let array: RefcountedArray<f32, Ix2> = received.message.attach().unwrap();
                channel.send(&true, &[]).unwrap();
                channel.receive::<()>().unwrap();
                assert!(all(&array, value + 1.0), "the middle has gone, the array has not");
                drop(array);
                channel.send(&(), &[]).unwrap();
            }
            Err(error) => {
                assert!(error.is_closed(), "{error}");
                channel.send(&false, &[]).unwrap();
            }
        }
    }
}

/// Plays the rounds of a chain. Its end lives through all of them.
fn chain(game: &mut Game<'_>, rounds: usize) {
    let path = game.meeting.path("end").display().to_string();
    let (child, end) = game.meeting.child("end-of-chain", &[&path]);
    assert_eq!(end.receive::<String>().unwrap().message, "listening");
    for round in 0..rounds {
        let value = round as f32;
        end.send(&value, &[]).unwrap();
        let (mut middle, channel) = game.meeting.child("kill-middle", &[&path]);
        middle.expect("connected");
        let array = game.named(value);
        channel.send(&handle(&array), &[]).unwrap();
        game.kill(&mut middle);
        if end.receive::<bool>().unwrap().message {
            // Half of the time its maker leaves first.
            let array = (round % 2 == 0).then_some(array);
            end.send(&(), &[]).unwrap();
            end.receive::<()>().unwrap();
            assert!(array.is_none_or(|array| all(&array, value + 1.0)));
        } else {
            let now = array.read().unwrap()[[0, 0]];
            assert!(now == value || now == value + 1.0, "{now} in round {round}");
            drop(array);
        }
        game.end_round();
    }
    drop(end);
    child.finish();
}

/// A child that sends an array by a handle, and leaves it.
fn sender(arguments: &[String]) {
    let (backend, channel) = connect(arguments);
    let value: f32 = arguments[1].parse().unwrap();
    say("connected");
    hear();
    let array = named(&backend, value);
    channel.send(&handle(&array), &[]).unwrap();
    let begin = Instant::now();
    while begin.elapsed() < LATEST / 4 {
        std::hint::spin_loop();
    }
    drop(array);
    hear();
}

fn sender_is_killed(game: &mut Game<'_>, round: usize) {
    let value = round as f32;
    let (mut child, channel) = game.meeting.child("kill-sender", &[&value.to_string()]);
    child.expect("connected");
    let begin = Instant::now();
    child.tell("begin");
    game.kill(&mut child);
    match channel.receive::<Handle>() {
        // Half of the handles are never used.
        Ok(_) if round % 2 == 1 => {}
        Ok(received) => {
            // Reclaiming in between must not take it away: its handle protects it.
            game.reclaim();
            match received.message.attach::<f32, Ix2>() {
                Ok(array) => assert!(all(&array, value)),
                // On a machine that was stopped for a moment the grace time may be over.
                Err(error) => assert!(error.is_not_found() && begin.elapsed() > GRACE, "round {round}: {error}"),
            }
        }
        Err(error) => assert!(error.is_closed(), "{error}"),
    }
}

/// A child that attaches by handle and leaves, again and again.
fn attacher(arguments: &[String]) {
    let (_, channel) = connect(arguments);
    let handles = channel.receive::<Vec<Handle>>().unwrap().message;
    say("connected");
    hear();
    for handle in handles {
        let array: RefcountedArray<f32, Ix2> = handle.attach().unwrap();
        drop(array);
    }
    hear();
}

fn attacher_is_killed(game: &mut Game<'_>, round: usize) {
    let value = round as f32;
    let (mut child, channel) = game.meeting.child("kill-attacher", &[]);
    let array = game.named(value);
    let handles: Vec<Handle> = (0..100).map(|_| handle(&array)).collect();
    channel.send(&handles, &[]).unwrap();
    child.expect("connected");
    child.tell("begin");
    game.kill(&mut child);
    game.reclaim();
    assert!(all(&array, value));
    // A dead handle that is still counted excludes no process.
    assert!(all(&array.try_clone().unwrap(), value));
}

/// All rounds of a scenario.
pub type Rounds = fn(&mut Game<'_>, usize);

/// The scenarios that are played without a manager and with one.
pub const SCENARIOS: [(&str, Rounds); 5] = [
    ("creator", |game, rounds| one_by_one(game, rounds, creator_is_killed)),
    ("last reader", |game, rounds| one_by_one(game, rounds, last_reader_is_killed)),
    ("middle of A -> B -> C", chain),
    ("sender with a handle in flight", |game, rounds| one_by_one(game, rounds, sender_is_killed)),
    ("receiver while attaching", |game, rounds| one_by_one(game, rounds, attacher_is_killed)),
];

pub fn one_by_one(game: &mut Game<'_>, rounds: usize, round: fn(&mut Game<'_>, usize)) {
    for number in 0..rounds {
        round(game, number);
        game.end_round();
    }
}

/// Plays a scenario, and looks at what is left.
fn play(place: &Place, moments: &mut Moments, (scenario, rounds): (&'static str, usize), all_rounds: Rounds) -> Row {
    let meeting = Meeting::new(place);
    let backend = &meeting.place.backend;
    // One array that has nothing to do with any of it, held through everything.
    let watched = named(backend, -1.0);
    let mut game = Game { meeting: &meeting, moments, removed: 0, managed: None };
    all_rounds(&mut game, rounds);
    let removed_before = game.removed;
    let left = meeting.names() - 1;
    age_drafts(backend);
    // Where descriptors are kept, a process that another test is just spawning has them too, until it executes its program.
    eventually("handles expire, and no process has a copy of a descriptor", || {
        Reclaim::new().dry_run(true).run(backend).unwrap().removed.len() == left
    });
    let reclaimed = Reclaim::new().run(backend).unwrap();
    assert!(reclaimed.failed.is_empty(), "{scenario}: {reclaimed:?}");
    let after = meeting.names() - 1;
    assert!(all(&watched, -1.0), "{scenario}");
    assert_eq!(reclaimed.removed.len(), left - after, "{scenario}: {reclaimed:?}");
    drop(watched);
    if after == 0 {
        meeting.is_clean();
    }
    Row { scenario, rounds, left: left + removed_before, after }
}

/// Drafts are left alone for a minute after they were begun: makes those that are here older.
fn age_drafts(backend: &Directory) {
    for entry in backend.list().unwrap() {
        if entry.kind == ndarray_shm::backend::EntryKind::Draft {
            age(&backend.path().join(entry.name), 90);
        }
    }
    assert!(names(backend) > 0, "the array that is held through everything");
}

fn memory_of_killed_processes_is_reclaimed(place: &Place) {
    let seed = seed();
    let mut moments = Moments(Random::new(seed));
    let rounds = repeats(10);
    println!("kills on {}: NDSHM_TEST_SEED={seed}", place.name);
    let rows = SCENARIOS.map(|(scenario, all_rounds)| play(place, &mut moments, (scenario, rounds), all_rounds));
    assert!(rows.iter().all(|row| row.after == 0), "seed {seed}: {rows:?}");
    let managed = managed::play_all(place, &mut moments, rounds);
    println!("{}", table(place, &rows, &managed));
}

/// Written in one piece: other tests write too.
fn table(place: &Place, rows: &[Row], managed: &[Outcome]) -> String {
    let mut table = format!(
        "| killed, on {} | rounds | names left | after one Reclaim | with a manager: after 1 s | median | worst |\n",
        place.name
    );
    table += "|---|---|---|---|---|---|---|\n";
    let mut line = |scenario, rounds, left, after: Option<usize>, managed: Option<&Outcome>| {
        let after = after.map_or("-".to_owned(), |after| after.to_string());
        let managed = managed.map_or("- | - | -".to_owned(), Outcome::times);
        writeln!(table, "| {scenario} | {rounds} | {left} | {after} | {managed} |").expect("a string");
    };
    for (number, Row { scenario, rounds, left, after }) in rows.iter().enumerate() {
        line(*scenario, *rounds, *left, Some(*after), managed.get(number));
    }
    for outcome in managed.iter().skip(rows.len()) {
        line(outcome.scenario, outcome.rounds, outcome.left, outcome.after, Some(outcome));
    }
    table
}
