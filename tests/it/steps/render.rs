//! Renderbuffers of which a beginning, finishing or discarding process is stopped or killed between two system calls.

use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::render::OtherWork;
use ndarray_shm::render::{self, RenderOptions};
use ndarray_shm::{Error, ErrorKind, Location, NextClaim, RenderBuffer};

use crate::support::child::{Child, Role, hear, say};
use crate::support::{Name, Place, backend_of_child};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "steps",
        "render",
        tests![
            killed_finisher_with_a_viewer_blocks_no_beginner,
            resumed_beginner_spares_a_newer_buffer,
            resumed_discard_spares_a_newer_buffer,
            reclaim_removes_the_payload_of_a_killed_discard,
            reclaim_removes_the_ledger_of_a_killed_beginner,
            stopped_beginner_is_waited_for_until_the_timeout,
            discard_waits_while_the_payload_gets_its_name,
            open_of_a_finished_buffer_ignores_a_stale_ledger,
            second_replacer_waits_and_joins_the_same_work,
            second_replacer_waits_and_refuses_other_work,
            late_replacer_joins_the_work_that_was_quicker,
            late_replacer_refuses_the_work_that_was_quicker,
            killed_replacer_leaves_what_the_next_one_mends,
            painter_that_joins_before_the_replacer_keeps_its_buffer,
            painter_that_joins_while_the_replacer_decides_keeps_its_buffer,
            painter_that_comes_after_the_removal_begins_anew,
            stopped_painter_keeps_its_buffer,
            painter_that_leaves_soon_is_waited_for,
            painter_that_accepts_waits_for_no_finisher,
            stopped_beginner_accepts_what_was_finished_meanwhile,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[
    ("step-render-begin", begin_child),
    ("step-render-finish", finish_child),
    ("step-render-discard", discard_child),
    ("step-render-replace", replace_child),
    ("step-render-accept", accept_child),
];

/// The limit for a child that must not wait for another process.
const PROMPT: Duration = Duration::from_secs(60);

fn begin(options: RenderOptions, location: &Location) -> ndarray_shm::Result<RenderBuffer<u8, Ix1>> {
    options.create(location, 1 << 16, 1 << 14, "steps")
}

fn location(arguments: &[String]) -> Location {
    arguments[0].parse().unwrap()
}

/// A child that begins or joins the buffer, and reports how many chunks are painted.
fn begin_child(arguments: &[String]) {
    let outcome = begin(RenderOptions::new().directory(backend_of_child()), &location(arguments));
    say(outcome.map_or_else(|error| error.to_string(), |buffer| format!("{} painted", buffer.progress().done)));
}

/// A child that joins the buffer, paints the missing chunks and finishes it.
fn finish_child(arguments: &[String]) {
    let buffer = begin(RenderOptions::new().directory(backend_of_child()), &location(arguments)).unwrap();
    while let NextClaim::Chunk(mut chunk) = buffer.claim_next().unwrap() {
        chunk.view_mut().fill(1);
        chunk.commit().unwrap();
    }
    buffer.finish().unwrap();
    say("finished");
}

/// A child that begins or joins a buffer with the work of its second argument, replacing an abandoned one, paints a
/// chunk, and stays attached until its parent says a word or ends.
fn replace_child(arguments: &[String]) {
    let options = RenderOptions::new().directory(backend_of_child()).replace(true);
    match options.create::<u8, _>(&location(arguments), 1 << 16, 1 << 14, &arguments[1]) {
        Ok(buffer) => {
            let NextClaim::Chunk(chunk) = buffer.claim_next().unwrap() else { panic!("one is free") };
            chunk.commit().unwrap();
            say(format!("{} painted", buffer.progress().done));
            hear();
        }
        Err(Error { kind: ErrorKind::Mismatch { found, state, .. }, .. }) => say(format!("{found} {state:?}")),
        Err(error) => say(error),
    }
}

/// A child that begins, joins or accepts, and reports how many chunks are painted.
fn accept_child(arguments: &[String]) {
    let options = RenderOptions::new().directory(backend_of_child()).accept_finished(true);
    let buffer = begin(options, &location(arguments));
    say(buffer.map_or_else(|error| format!("{error:?}"), |buffer| format!("{} painted", buffer.progress().done)));
}

fn discard_child(arguments: &[String]) {
    say(render::discard(&backend_of_child(), &location(arguments)).unwrap());
}

fn start(place: &Place, role: &str, name: &Name, step: &str) -> Child {
    Child::start_until(place, role, &[name.as_str()], step)
}

fn painted(place: &Place, name: &Name) -> RenderBuffer<u8, Ix1> {
    let buffer = begin(place.render_options(), name.location()).unwrap();
    let NextClaim::Chunk(chunk) = buffer.claim_next().unwrap() else { panic!("all are free") };
    chunk.commit().unwrap();
    buffer
}

/// Leaves a buffer with one painted chunk, as a killed painter does.
fn abandoned(place: &Place, name: &Name) {
    drop(painted(place, name));
}

fn replace_until(place: &Place, name: &Name, work: &str, step: &str) -> Child {
    Child::start_until(place, "step-render-replace", &[name.as_str(), work], step)
}

fn replace(place: &Place, name: &Name, work: &str) -> Child {
    Child::start(place, "step-render-replace", &[name.as_str(), work])
}

const LOCKED_OUT: &str = "render: other painters locked out";
const LEDGER_REMOVED: &str = "render: other ledger removed";

fn second_replacer_waits_and_joins_the_same_work(place: &Place) {
    let name = place.location("replacers");
    abandoned(place, &name);
    let mut first = replace_until(place, &name, "new", LOCKED_OUT);
    let mut second = replace(place, &name, "new");
    assert_eq!(second.line_within(Duration::from_millis(200)), None, "it waits");
    first.resume();
    let mut painted = [first.line(), second.line()];
    painted.sort();
    assert_eq!(painted, ["1 painted", "2 painted"], "both paint the same new buffer");
}

fn second_replacer_waits_and_refuses_other_work(place: &Place) {
    let name = place.location("rivals");
    abandoned(place, &name);
    let mut first = replace_until(place, &name, "new", LOCKED_OUT);
    let mut second = replace(place, &name, "newer");
    assert_eq!(second.line_within(Duration::from_millis(200)), None, "it waits");
    first.resume();
    let mut said = [first.line(), second.line()];
    said.sort();
    assert!(
        [["\"new\" Attached", "1 painted"], ["\"newer\" Attached", "1 painted"]].contains(&[&said[0], &said[1]]),
        "{said:?}: one of them has the buffer, and the other names its work"
    );
}

fn late_replacer_joins_the_work_that_was_quicker(place: &Place) {
    let name = place.location("late-joins");
    abandoned(place, &name);
    let mut late = replace_until(place, &name, "new", LEDGER_REMOVED);
    let mut quick = replace(place, &name, "new");
    quick.expect("1 painted");
    late.resume();
    late.expect("2 painted");
}

fn late_replacer_refuses_the_work_that_was_quicker(place: &Place) {
    let name = place.location("late-refuses");
    abandoned(place, &name);
    let mut late = replace_until(place, &name, "new", LEDGER_REMOVED);
    let mut quick = replace(place, &name, "newer");
    quick.expect("1 painted");
    late.resume();
    late.expect("\"newer\" Attached");
    quick.kill();
    replace(place, &name, "new").expect("1 painted");
}

fn killed_replacer_leaves_what_the_next_one_mends(place: &Place) {
    let place = &place.private(); // drafts of killed processes may stay
    for step in [LOCKED_OUT, LEDGER_REMOVED, "render: ledger published", "render: about to name the payload"] {
        let name = place.location("killed-replacer");
        abandoned(place, &name);
        replace_until(place, &name, "new", step).kill();
        let mut next = replace(place, &name, "newer");
        next.expect("1 painted");
        assert_eq!(place.files_of(&name).len(), 2, "{step}: payload and ledger, and nothing else");
        next.kill();
        assert!(render::discard(&place.backend, name.location()).unwrap());
        assert!(place.files_of(&name).is_empty(), "{step}");
    }
}

fn painter_that_joins_before_the_replacer_keeps_its_buffer(place: &Place) {
    let name = place.location("joins-before");
    abandoned(place, &name);
    // It has leased the payload, and not the ledger.
    let mut painter = start(place, "step-render-begin", &name, "attach: leased");
    replace(place, &name, "new").expect("\"steps\" Attached");
    painter.resume();
    painter.expect("1 painted");
    painter.finish();
}

fn painter_that_joins_while_the_replacer_decides_keeps_its_buffer(place: &Place) {
    let name = place.location("joins-while");
    abandoned(place, &name);
    let mut replacer = replace_until(place, &name, "new", LOCKED_OUT);
    let mut painter = Child::start(place, "step-render-begin", &[name.as_str()]);
    assert_eq!(
        painter.line_within(Duration::from_millis(200)),
        None,
        "it has leased the payload, and waits for the ledger"
    );
    replacer.resume();
    replacer.expect("\"steps\" Attached");
    painter.expect("1 painted");
}

fn painter_that_comes_after_the_removal_begins_anew(place: &Place) {
    let name = place.location("comes-after");
    abandoned(place, &name);
    let mut replacer = replace_until(place, &name, "new", LEDGER_REMOVED);
    let mut painter = Child::start(place, "step-render-begin", &[name.as_str()]);
    painter.expect("0 painted");
    painter.finish();
    replacer.resume();
    replacer.expect("1 painted"); // the painter's buffer is abandoned too by now
}

fn stopped_painter_keeps_its_buffer(place: &Place) {
    let name = place.location("stopped-painter");
    abandoned(place, &name);
    let mut painter = start(place, "step-render-finish", &name, "hold: granted");
    replace(place, &name, "new").expect("\"steps\" Attached");
    painter.kill();
    let refused = place.render_options().create::<u8, _>(name.location(), 1 << 16, 1 << 14, "new").unwrap_err();
    assert!(matches!(refused.kind, ErrorKind::Mismatch { state: OtherWork::Idle, .. }), "{refused}");
    replace(place, &name, "new").expect("1 painted");
}

/// As a child that is about to begin another program: until then it has its parent's descriptors.
fn painter_that_leaves_soon_is_waited_for(place: &Place) {
    let name = place.location("leaves-soon");
    abandoned(place, &name);
    let mut painter = start(place, "step-render-finish", &name, "hold: granted");
    let mut replacer = replace_until(place, &name, "new", "render: other painters attached");
    painter.kill();
    replacer.resume();
    replacer.expect("1 painted");
}

/// The finisher is stopped, and then killed, when the array has its name and the ledger is still there.
fn painter_that_accepts_waits_for_no_finisher(place: &Place) {
    if !place.describes() {
        return;
    }
    let name = place.location("accepts");
    let mut finisher = start(place, "step-render-finish", &name, "render: array named");
    for _ in 0..2 {
        let mut late = Child::start(place, "step-render-accept", &[name.as_str()]);
        late.expect("4 painted");
        late.finish();
        finisher.kill();
    }
    assert_eq!(place.files_of(&name), [name.as_str()], "the stale ledger is removed");
}

/// A buffer is finished between the look of another process and its begin.
fn stopped_beginner_accepts_what_was_finished_meanwhile(place: &Place) {
    if !place.describes() {
        return;
    }
    let name = place.location("meanwhile");
    let mut late = start(place, "step-render-accept", &name, "render: about to begin");
    let mut quick = Child::start(place, "step-render-finish", &[name.as_str()]);
    quick.expect("finished");
    quick.finish();
    late.resume();
    late.expect("4 painted");
    late.finish();
    assert_eq!(place.files_of(&name), [name.as_str()]);
}

fn killed_finisher_with_a_viewer_blocks_no_beginner(place: &Place) {
    let name = place.location("finisher");
    let viewer = painted(place, &name);
    let mut finisher = start(place, "step-render-finish", &name, "render: array named");
    finisher.kill();
    assert!(place.backend.unlink(name.location()).unwrap());
    let mut next = Child::start(place, "step-render-begin", &[name.as_str()]);
    assert_eq!(
        next.line_within(PROMPT).as_deref(),
        Some("0 painted"),
        "an attached viewer does not keep a stale ledger"
    );
    next.finish();
    assert!(viewer.progress().is_complete());
}

fn resumed_beginner_spares_a_newer_buffer(place: &Place) {
    let name = place.location("resumed");
    let mut late = start(place, "step-render-begin", &name, "render: ledger published");
    assert!(!render::discard(&place.backend, name.location()).unwrap(), "there is no payload yet");
    let other = painted(place, &name);
    late.resume();
    late.expect("1 painted");
    late.finish();
    assert!(matches!(other.claim_next().unwrap(), NextClaim::Chunk(_)), "its payload still has its name");
}

fn resumed_discard_spares_a_newer_buffer(place: &Place) {
    let name = place.location("late");
    let old = painted(place, &name);
    let mut discard = start(place, "step-render-discard", &name, "render: ledger removed");
    let other = painted(place, &name);
    discard.resume();
    discard.expect("true");
    discard.finish();
    assert!(matches!(other.claim_next().unwrap(), NextClaim::Chunk(_)), "the newer payload still has its name");
    assert_eq!(old.claim_next().unwrap_err().kind, ErrorKind::Unlinked);
}

fn reclaim_removes_the_payload_of_a_killed_discard(place: &Place) {
    let place = &place.private();
    let name = place.location("discard");
    let buffer = painted(place, &name);
    let mut discard = start(place, "step-render-discard", &name, "render: ledger removed");
    discard.kill();
    let files = place.files_of(&name);
    assert!(files.len() == 1 && files[0].contains("-part-"), "{files:?}");
    assert!(place.reclaim().removed.is_empty(), "a painter is attached");
    drop(buffer);
    let removed = place.reclaim().removed;
    assert_eq!(removed.iter().map(|removed| &removed.name).collect::<Vec<_>>(), files.iter().collect::<Vec<_>>());
    assert!(place.files_of(&name).is_empty());
}

fn reclaim_removes_the_ledger_of_a_killed_beginner(place: &Place) {
    let place = &place.private();
    let name = place.location("beginner");
    let mut beginner = start(place, "step-render-begin", &name, "render: ledger published");
    assert!(place.reclaim().removed.is_empty(), "the process that begins the buffer is stopped, not dead");
    beginner.kill();
    let removed = place.reclaim().removed;
    assert!(removed.iter().any(|removed| removed.name.contains("-ledger-")), "{removed:?}");
    assert!(place.files_of(&name).is_empty());
}

fn stopped_beginner_is_waited_for_until_the_timeout(place: &Place) {
    let name = place.location("stopped");
    let mut beginner = start(place, "step-render-begin", &name, "render: ledger published");
    let options = || place.render_options().timeout(Duration::from_millis(20));
    assert!(matches!(begin(options(), name.location()).unwrap_err().kind, ErrorKind::TimedOut { .. }));
    assert!(matches!(options().open::<u8, Ix1>(name.location()).unwrap_err().kind, ErrorKind::TimedOut { .. }));
    beginner.resume();
    beginner.expect("0 painted");
    beginner.finish();
    assert_eq!(begin(options(), name.location()).unwrap().progress().done, 0);
}

fn discard_waits_while_the_payload_gets_its_name(place: &Place) {
    let name = place.location("naming");
    let mut beginner = start(place, "step-render-begin", &name, "render: about to name the payload");
    let mut discard = Child::start(place, "step-render-discard", &[name.as_str()]);
    assert_eq!(discard.line_within(Duration::from_millis(200)), None, "the discard waits");
    beginner.resume();
    beginner.expect("0 painted");
    discard.expect("true");
    beginner.finish();
    discard.finish();
    assert!(place.files_of(&name).is_empty());
}

fn open_of_a_finished_buffer_ignores_a_stale_ledger(place: &Place) {
    let name = place.location("opener");
    let viewer = painted(place, &name);
    let mut finisher = start(place, "step-render-finish", &name, "render: array named");
    let options = || place.render_options().timeout(Duration::ZERO);
    assert!(options().open::<u8, Ix1>(name.location()).unwrap_err().is_not_found());
    assert_eq!(begin(options(), name.location()).unwrap_err().kind, ErrorKind::AlreadyExists);
    finisher.resume();
    finisher.expect("finished");
    finisher.finish();
    drop(viewer);
    assert_eq!(place.files_of(&name), [name.as_str()]);
}
