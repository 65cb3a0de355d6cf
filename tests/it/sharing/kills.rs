//! SIGKILL at random moments: one `Reclaim` frees what dead processes leave, a manager frees it at once, and living
//! processes never lose data.
//!
//! Each scenario runs ten times, or as often as `NDSHM_TEST_ROUNDS` says, and kills its process after a random time.
//! `NDSHM_TEST_SEED` repeats a run. Every array holds the round's number, so that a half-written array or that of
//! another round is noticed.

use std::fmt::Write;
use std::time::{Duration, Instant, SystemTime};

use libtest_mimic::Trial;
use ndarray::Ix2;
use ndarray_shm::counted::{Channel, ChannelListener, Handle, HandleOptions, Reclaim, SharingStrategy};
use ndarray_shm::{Directory, ErrorKind, RefcountedArray};

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

/// How long a handle protects its array. Except where a sender is killed, another process holds the array until the
/// handle is used.
pub const GRACE: Duration = Duration::from_millis(50);

/// The result of one scenario without a manager. Results with a manager are in `managed`.
#[derive(Debug)]
struct Row {
    scenario: &'static str,
    rounds: usize,
    /// Names of dead processes that were left at the end of all processes, or that were reclaimed during the rounds.
    left: usize,
    /// Names after one `Reclaim`.
    after: usize,
}

/// Returns the seed of a run: from the environment, or from the time.
fn seed() -> u64 {
    let seed = std::env::var("NDSHM_TEST_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    seed.unwrap_or_else(|| now().as_nanos() as u64)
}

/// Random times at which processes are killed.
#[derive(Debug)]
pub struct Moments(pub Random);

impl Moments {
    /// Kills a child within [`LATEST`].
    pub fn kill(&mut self, child: &mut Child) {
        let (begin, after) = (Instant::now(), Duration::from_nanos(self.0.below(LATEST.as_nanos() as usize) as u64));
        while begin.elapsed() < after {
            std::hint::spin_loop();
        }
        child.kill();
    }
}

/// A running scenario.
#[derive(Debug)]
pub struct Game<'a> {
    pub meeting: &'a Meeting,
    pub moments: &'a mut Moments,
    /// Names that were reclaimed during the rounds.
    pub removed: usize,
    /// With a manager: measures how long it takes to free the memory.
    pub managed: Option<Stopwatch>,
}

impl Game<'_> {
    pub fn kill(&mut self, child: &mut Child) {
        self.moments.kill(child);
        if let Some(stopwatch) = &mut self.managed {
            stopwatch.start();
        }
    }

    /// Ends a round, after all its processes have ended.
    fn end_round(&mut self) {
        if let Some(stopwatch) = &mut self.managed {
            stopwatch.wait_until_gone(&self.meeting.place.backend, 1);
        }
    }

    fn named(&self, value: f32) -> RefcountedArray<f32, Ix2> {
        named(&self.meeting.place.backend, value)
    }

    /// Reclaims while other processes live, which must not disturb them.
    fn reclaim(&mut self) {
        if self.managed.is_some() {
            return; // the manager reclaims all the time
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
    let _ = backend.lock_survives_close().unwrap(); // the probe is over before the kills begin
    (backend, Channel::connect(&arguments[0]).unwrap())
}

/// A child that sends a handle to its first array, and then creates and closes arrays as fast as it can.
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
    assert!(all(&array, value), "the attached array outlives its creator");
    *array.write().unwrap() += 1.0;
    assert!(all(&array, value + 1.0));
}

/// A child that reads an array for a while as its only holder, and drops it.
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

/// A child that receives an array, and forwards it to the process that listens at a path.
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

/// A child that receives one array from each process in the middle, and reports whether it arrived.
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
                assert!(all(&array, value + 1.0), "the array outlives the process in the middle");
                drop(array);
                channel.send(&(), &[]).unwrap();
            }
            Err(error) => {
                assert!(matches!(error.kind, ErrorKind::Closed { .. }), "{error}");
                channel.send(&false, &[]).unwrap();
            }
        }
    }
}

/// Runs the rounds of a chain. The process at its end lives through all of them.
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
            // In every other round the array's creator drops it first.
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

/// A child that sends a handle to an array, and drops the array.
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
        // In every other round the handle is never used.
        Ok(_) if round % 2 == 1 => {}
        Ok(received) => {
            // Reclaiming now must not free the array, which its handle protects.
            game.reclaim();
            match received.message.attach::<f32, Ix2>() {
                Ok(array) => assert!(all(&array, value)),
                // On a slow machine the grace time may be over.
                Err(error) => assert!(error.is_not_found() && begin.elapsed() > GRACE, "round {round}: {error}"),
            }
        }
        Err(error) => assert!(matches!(error.kind, ErrorKind::Closed { .. }), "{error}"),
    }
}

/// A child that attaches by handle and drops the array, again and again.
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
    // The dead process is still counted, and must not prevent an attachment.
    assert!(all(&array.try_clone().unwrap(), value));
}

/// Runs all rounds of a scenario.
pub type Rounds = fn(&mut Game<'_>, usize);

/// The scenarios, which run both without a manager and with one.
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

/// Runs a scenario without a manager, and checks what is left.
fn play(place: &Place, moments: &mut Moments, (scenario, rounds): (&'static str, usize), all_rounds: Rounds) -> Row {
    let meeting = Meeting::new(place);
    let backend = &meeting.place.backend;
    // An unrelated array, held through the whole scenario.
    let watched = named(backend, -1.0);
    let mut game = Game { meeting: &meeting, moments, removed: 0, managed: None };
    all_rounds(&mut game, rounds);
    let removed_before = game.removed;
    let left = meeting.names() - 1;
    age_drafts(backend);
    // Where arrays keep descriptors, a child that another test is spawning has copies of them until its program runs.
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

/// Makes drafts look old, since `Reclaim` leaves drafts alone for their first minute.
fn age_drafts(backend: &Directory) {
    for entry in backend.list().unwrap() {
        if entry.kind == ndarray_shm::backend::EntryKind::Draft {
            age(&backend.path().join(entry.name), 90);
        }
    }
    assert!(names(backend) > 0, "the array that is held through the scenario");
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

/// Returns the whole table as one text, so that the output of other tests does not interrupt it.
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
