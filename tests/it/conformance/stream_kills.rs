//! Writer, readers and recorder of one stream are stopped and killed at random moments, again and again: no frame is
//! torn, each reader misses only what it is told, and the recorder gets every frame that was committed.
//!
//! `NDSHM_TEST_KILLS` is the number of processes that are killed; `scripts/soak` kills a thousand. `NDSHM_TEST_FRAMES`
//! has the size of a frame in bytes, the rate in frames per second, and which part of a frame readers check: with
//! 24883200/60/4096 a camera of 2160 x 3840 pixels in 3 colours, one word in each page. It needs `--release`.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use ndarray::{ArrayView1, Ix1};
use ndarray_shm::ErrorKind;
use ndarray_shm::stream::{Backpressure, Frame, StreamCursor, StreamOptions, StreamReader, StreamWriter, inspect};

use crate::support::Place;
use crate::support::backend_of_child;
use crate::support::child::{Child, Role, hear, say};
use crate::support::random::random;
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "stream_kills",
        tests![killed_processes_tear_and_lose_nothing, killed_processes_of_a_copied_stream_neither],
    )
}

pub const ROLES: &[(&str, Role)] = &[("storm-write", write), ("storm-read", read), ("storm-record", record)];

/// Frames of a test.
#[derive(Clone, Copy)]
struct Camera {
    /// Elements of a frame.
    length: usize,
    /// Frames per second at most.
    rate: Option<f64>,
    /// How many elements are from one that a reader checks to the next.
    step: usize,
}

impl Camera {
    fn new() -> Self {
        let Ok(text) = std::env::var("NDSHM_TEST_FRAMES") else {
            return Self { length: 3000, rate: None, step: 1 }; // more than a page
        };
        let numbers: Vec<usize> = text.split('/').map(|number| number.parse().expect("a number")).collect();
        let [bytes, rate, step] = numbers[..] else { panic!("BYTES/RATE/STEP, and not {text}") };
        Self { length: bytes / 8, rate: Some(rate as f64), step: step / 8 }
    }
}

/// All readers together hold at most 7 frames.
const SLOTS: usize = 12;
/// How long a process waits for others before the test fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// What a writer is told if frames are to be copied.
const COPIED: &str = "copied";
/// What the readers do. The recorder is another role.
const READERS: [&str; 5] = ["next", "slow", "late", "latest", "hold"];

fn kills() -> usize {
    std::env::var("NDSHM_TEST_KILLS").map_or(25, |text| text.parse().expect("a number"))
}

fn options() -> StreamOptions {
    StreamOptions::new().directory(backend_of_child())
}

fn element(number: u64, index: usize) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index as u64
}

fn check(frame: &Frame<u64, Ix1>) {
    let step = Camera::new().step;
    let is_whole = |view: ArrayView1<'_, u64>| {
        view.iter().enumerate().step_by(step).all(|(index, found)| *found == element(frame.number(), index))
    };
    assert!(is_whole(frame.view()), "torn: {frame:?}");
    assert_eq!(frame.meta::<u64>("copy").unwrap(), [frame.number()], "{frame:?}");
}

/// Reports a line to the parent in one write(2), so that a kill never cuts it.
fn report(line: &str) {
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).expect("the parent listens");
    std::io::stdout().flush().expect("the parent listens");
}

/// A child that writes frames until it hears something, and then ends the stream.
fn write(arguments: &[String]) {
    let camera = Camera::new();
    let options = options().resume(true).copied(arguments[1] == COPIED).meta("copy", ndarray_shm::DType::U64, 1);
    let mut writer: StreamWriter<u64, Ix1> = options.create(&arguments[0], camera.length, SLOTS).unwrap();
    say("writing");
    hear();
    let ends = std::thread::spawn(hear);
    let mut due = Instant::now();
    while !ends.is_finished() {
        let mut frame = writer.frame_wait(PATIENCE).unwrap();
        let number = frame.number();
        for (index, value) in frame.view_mut().iter_mut().enumerate() {
            *value = element(number, index);
        }
        frame.set_meta("copy", &[number]).unwrap();
        if random() % 16 == 0 {
            drop(frame); // it never was
        } else {
            frame.commit().unwrap();
        }
        if let Some(rate) = camera.rate {
            due = Instant::now().max(due + Duration::from_secs_f64(1.0 / rate));
            std::thread::sleep(due - Instant::now());
        } else if random() % 4 == 0 {
            std::thread::sleep(Duration::from_micros(random() % 500));
        }
    }
    writer.end().unwrap();
    say(writer.head());
}

/// A child that reads in one of the [`READERS`]' ways until the stream ends. It checks that it is told what it misses.
fn read(arguments: &[String]) {
    let how = arguments[1].as_str();
    let mut reader: StreamReader<u64, Ix1> = options().open(&arguments[0]).unwrap();
    say("reading");
    let (mut last, mut epoch, mut count, mut held) = (0, 0, 0, Vec::new());
    loop {
        let missed = reader.lost();
        let found = if how == "latest" { reader.latest_wait(PATIENCE) } else { reader.next_wait(PATIENCE) };
        let frame = match found {
            Ok(frame) => frame,
            Err(error) if error.kind == ErrorKind::NoWriter => continue,
            Err(error) if matches!(error.kind, ErrorKind::Closed { .. }) => break,
            Err(error) => panic!("{error}"),
        };
        check(&frame);
        assert!(frame.number() > last && frame.epoch() >= epoch, "{frame:?} after {last} of {epoch}");
        if last > 0 && how != "latest" {
            assert_eq!(
                frame.number() - last - 1,
                reader.lost() - missed,
                "told what it misses: {frame:?} after {last}"
            );
        }
        (last, epoch, count) = (frame.number(), frame.epoch(), count + 1);
        match how {
            "hold" => held.push(frame),
            "slow" => std::thread::sleep(Duration::from_micros(random() % 4000)),
            "late" => {
                drop(frame);
                std::thread::sleep(Duration::from_micros(random() % 20_000));
            }
            _ => {}
        }
        if held.len() == 3 {
            check(&held.remove(0));
        }
    }
    held.iter().for_each(check);
    report(&format!("end {last} {count}"));
}

/// A child that reads with the cursor `disk` until the stream ends, and reports each frame before it acknowledges it.
fn record(arguments: &[String]) {
    let options = options();
    let mut cursor: StreamCursor<u64, Ix1> = options.open_cursor(&arguments[0], "disk", Backpressure::Wait).unwrap();
    say("reading");
    loop {
        let frame = match cursor.next_wait(PATIENCE) {
            Ok(frame) => frame,
            Err(error) if error.kind == ErrorKind::NoWriter => continue,
            Err(error) if matches!(error.kind, ErrorKind::Closed { .. }) => break,
            Err(error) => panic!("{error}"),
        };
        check(&frame);
        report(&format!("got {}", frame.number()));
        let number = frame.number();
        drop(frame);
        cursor.acknowledge(number).unwrap();
    }
    report("end");
}

/// A child, and what it is to do again after it was killed.
struct Player {
    role: &'static str,
    how: &'static str,
    child: Child,
}

impl Player {
    fn start(place: &Place, name: &str, role: &'static str, how: &'static str) -> Self {
        let mut child = Child::start(place, role, &[name, how]);
        child.expect(if role == "storm-write" { "writing" } else { "reading" });
        Self { role, how, child }
    }
}

fn killed_processes_tear_and_lose_nothing(place: &Place) {
    storm(place, "held");
}

fn killed_processes_of_a_copied_stream_neither(place: &Place) {
    storm(place, COPIED);
}

fn storm(place: &Place, kind: &'static str) {
    let name = place.location(kind);
    let mut players = vec![Player::start(place, name.as_str(), "storm-write", kind)];
    players.push(Player::start(place, name.as_str(), "storm-record", ""));
    players.extend(READERS.map(|how| Player::start(place, name.as_str(), "storm-read", how)));
    players[0].child.tell("go");
    let mut got = BTreeSet::new();
    let is_over = AtomicBool::new(false);
    let mut enter = |lines: Vec<String>| {
        let numbers = lines.iter().filter_map(|line| line.strip_prefix("got "));
        got.extend(numbers.map(|number| number.parse::<u64>().expect("a number")));
        is_over.fetch_or(lines.iter().any(|line| line.starts_with("end")), Ordering::Relaxed)
    };
    let begin = Instant::now();
    for _ in 0..kills() {
        std::thread::sleep(Duration::from_micros(random() % 20_000));
        let player = &mut players[random() as usize % (READERS.len() + 2)];
        if random() % 4 == 0 {
            player.child.stop();
            std::thread::sleep(Duration::from_micros(random() % 10_000));
        }
        player.child.kill_alive();
        enter(player.child.rest());
        *player = Player::start(place, name.as_str(), player.role, player.how);
        if player.role == "storm-write" {
            player.child.tell("go");
        }
    }
    assert!(!is_over.load(Ordering::Relaxed), "no reader has ended");
    std::thread::sleep(Duration::from_millis(20));
    let found = inspect(&place.backend, name.location()).unwrap();
    players[0].child.tell("end");
    let head: u64 = players[0].child.line().parse().unwrap();
    let (seconds, mut frames) = (begin.elapsed().as_secs_f64(), 0);
    for player in &mut players {
        let status = player.child.end();
        assert!(status.success(), "{} {}: {status}", player.role, player.how);
        let lines = player.child.rest();
        if let Some(words) = lines.last().and_then(|line| line.strip_prefix("end ")) {
            let (last, count) = words.split_once(' ').expect("two numbers");
            frames += count.parse::<u64>().expect("a number");
            assert_eq!(last.parse::<u64>(), Ok(head), "{} has seen the last frame", player.how);
        }
        enter(lines);
    }
    println!(
        "{}, {kind}: {} killed, {head} frames in {seconds:.1} s by {} writers; the last readers checked {frames}",
        place.name,
        kills(),
        found.epoch
    );
    let lost: Vec<_> = (1..=head).filter(|number| !got.contains(number)).collect();
    assert!(lost.is_empty() && got.last() == Some(&head), "{lost:?} of {head} were not recorded");
    assert!(head > found.epoch, "there was time to write: {head}");
    assert!(!place.has(&name), "the writer has removed the name");
}
