//! Renderbuffers of which a beginning, finishing or discarding process is stopped or killed between two system calls.

use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::render::{self, RenderOptions};
use ndarray_shm::{Location, NextClaim, RenderBuffer};

use crate::support::child::{Child, Role, say};
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
        ],
    )
}

pub const ROLES: &[(&str, Role)] =
    &[("step-render-begin", begin_child), ("step-render-finish", finish_child), ("step-render-discard", discard_child)];

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
    let outcome = begin(RenderOptions::new().backend(backend_of_child()), &location(arguments));
    say(outcome.map_or_else(|error| error.to_string(), |buffer| format!("{} painted", buffer.progress().done)));
}

/// A child that joins the buffer, paints the missing chunks and finishes it.
fn finish_child(arguments: &[String]) {
    let buffer = begin(RenderOptions::new().backend(backend_of_child()), &location(arguments)).unwrap();
    while let NextClaim::Chunk(mut chunk) = buffer.claim_next().unwrap() {
        chunk.view_mut().fill(1);
        chunk.commit().unwrap();
    }
    buffer.finish().unwrap();
    say("finished");
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
    assert!(render::discard(&place.backend, name.location()).unwrap());
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
    assert!(old.claim_next().unwrap_err().is_unlinked());
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
    assert!(begin(options(), name.location()).unwrap_err().is_timed_out());
    assert!(options().open::<u8, Ix1>(name.location()).unwrap_err().is_timed_out());
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
    assert!(begin(options(), name.location()).unwrap_err().is_already_exists());
    finisher.resume();
    finisher.expect("finished");
    finisher.finish();
    drop(viewer);
    assert_eq!(place.files_of(&name), [name.as_str()]);
}
