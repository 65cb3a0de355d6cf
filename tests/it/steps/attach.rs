//! Attaching to a file that looks like a counted array or an arena, while another process uses the same bytes as
//! elements.

use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::array::Description;
use ndarray_shm::counted::Handle;
use ndarray_shm::{Arena, DType, ErrorKind, OpenOptions, Order, SharedArray};

use crate::support::child::{Child, Role, say};
use crate::support::{Name, Place, backend_of_child};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "steps",
        "attach",
        tests![
            writable_elements_never_pass_for_a_frozen_array,
            writable_elements_never_pass_for_an_arena,
            attaching_waits_for_a_refused_plain_open,
            revoke_fails_during_a_stopped_plain_open,
            memory_being_opened_is_not_recycled,
            describing_follows_the_name_away_from_recycled_memory,
            change_of_a_description_that_was_seen_is_waited_for,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[
    ("step-open-frozen", open_frozen),
    ("step-open-arena", open_arena),
    ("step-open-plain", open_plain),
    ("step-take-back", take_back),
    ("step-describe", describe),
    ("step-describe-seen", describe_seen),
];

/// A child that opens a counted array, and reports the result.
fn open_frozen(arguments: &[String]) {
    let options = OpenOptions::new().directory(backend_of_child());
    match options.open_counted::<u8, Ix1>(arguments[0].parse::<ndarray_shm::Location>().unwrap()) {
        Ok(array) => say(format!("attached, frozen: {}", array.is_frozen())),
        Err(error) => say(format!("refused: {}", error.kind == ErrorKind::NotCounted)),
    }
}

/// A child that opens an arena, and reports the result.
fn open_arena(arguments: &[String]) {
    match Arena::open_in(&backend_of_child(), arguments[0].parse::<ndarray_shm::Location>().unwrap()) {
        Ok(_) => say("attached"),
        Err(error) => say(format!("refused: {}", error.kind == ErrorKind::NotCounted)),
    }
}

/// A child that opens a counted array or an arena as a plain array, and reports the refusal.
fn open_plain(arguments: &[String]) {
    let options = OpenOptions::new().directory(backend_of_child());
    let refused = options.open::<u8, Ix1>(arguments[0].parse::<ndarray_shm::Location>().unwrap(), 100).unwrap_err();
    say(format!("refused: {}", matches!(refused.kind, ErrorKind::Reserved { .. })));
}

/// A child that revokes a handle, and reports the result.
fn take_back(arguments: &[String]) {
    say(format!("{:?}", arguments[0].parse::<Handle>().unwrap().revoke()));
}

/// A child that describes an array of 100 bytes, and reports the result.
fn describe(arguments: &[String]) {
    let description = Description::new(DType::U8, &[10, 10], Order::C).unwrap();
    say(match backend_of_child().describe(arguments[0].as_str(), &description) {
        Err(error) if !matches!(error.kind, ErrorKind::Unsupported { .. }) => error.to_string(),
        _ => "done".into(),
    });
}

/// A child that removes the description that it has seen, and reports the result.
fn describe_seen(arguments: &[String]) {
    let (directory, name) = (backend_of_child(), arguments[0].as_str());
    let seen = directory.see_description(name).unwrap();
    say(match directory.describe_seen(name, &seen, None) {
        Err(error) if !matches!(error.kind, ErrorKind::Unsupported { .. }) => error.to_string(),
        _ => "done".into(),
    });
}

/// Has a child open a plain array as a counted array or an arena. While the child is stopped after taking its lease, a
/// writer attaches and gives the elements the bytes that the child looks for. The writer is still attached when the
/// child goes on, so that the child must refuse the file.
fn lookalike(place: &Place, name: &Name, bytes: &[u8], role: &str) {
    let path = place.path(name);
    let zeros: SharedArray<u8, Ix1> = place.options().create(name.location(), bytes.len()).unwrap();
    drop(zeros);
    let mut child = Child::start_until(place, role, &[name.as_str()], "attach: leased");
    let writer: SharedArray<u8, Ix1> = place.open_options().open(name.location(), bytes.len()).unwrap();
    let mut elements = writer.write().unwrap();
    elements.iter_mut().zip(bytes).for_each(|(element, byte)| *element = *byte);
    child.resume();
    child.expect("refused: true");
    child.finish();
    assert!(path.exists());
    drop(elements);
}

fn writable_elements_never_pass_for_a_frozen_array(place: &Place) {
    let place = &place.private();
    let name = place.location("frozen");
    let array = place.options().create_counted::<u8, Ix1>(name.location(), 100).unwrap();
    array.freeze().unwrap();
    let bytes = std::fs::read(place.path(&name)).unwrap();
    array.close().unwrap();
    lookalike(place, &name, &bytes, "step-open-frozen");
}

fn writable_elements_never_pass_for_an_arena(place: &Place) {
    let place = &place.private();
    let name = place.location("arena");
    let arena = place.arena_options().create(name.location(), 1 << 16).unwrap();
    let bytes = std::fs::read(place.path(&name)).unwrap();
    drop(arena);
    lookalike(place, &name, &bytes, "step-open-arena");
}

fn attaching_waits_for_a_refused_plain_open(place: &Place) {
    let place = &place.private();
    let (counted, arena) = (place.location("counted"), place.location("arena"));
    let array = place.options().create_counted::<u8, Ix1>(counted.location(), 100).unwrap();
    let members = place.arena_options().create(arena.location(), 1 << 16).unwrap();
    let handle = array.handle().unwrap().to_string();
    let cases = [
        (&counted, "step-open-frozen", counted.as_str(), "attached, frozen: false"),
        (&arena, "step-open-arena", arena.as_str(), "attached"),
        (&counted, "step-take-back", &handle, "Ok(true)"),
    ];
    for (name, role, argument, answer) in cases {
        let mut plain = Child::start_until(place, "step-open-plain", &[name.as_str()], "attach: leased");
        let mut other = Child::start(place, role, &[argument]);
        assert_eq!(other.line_within(Duration::from_millis(200)), None, "{role} waits");
        plain.resume();
        plain.expect("refused: true");
        other.expect(answer);
        plain.finish();
        other.finish();
    }
    drop((array, members));
    assert_eq!(place.left(), [] as [&str; 0]);
}

fn revoke_fails_during_a_stopped_plain_open(place: &Place) {
    let place = &place.private();
    let name = place.location("taken-back");
    let array = place.options().create_counted::<u8, Ix1>(name.location(), 100).unwrap();
    let handle = array.handle().unwrap();
    let mut plain = Child::start_until(place, "step-open-plain", &[name.as_str()], "attach: leased");
    assert_eq!(
        handle.revoke().unwrap_err().kind,
        ErrorKind::NotCounted,
        "revoke must not claim that the handle was used"
    );
    plain.resume();
    plain.expect("refused: true");
    plain.finish();
    assert!(handle.revoke().unwrap());
}

fn memory_being_opened_is_not_recycled(place: &Place) {
    let place = &place.private();
    let name = place.location("opened");
    let pool = place.pool_options().create().unwrap();
    let array = pool.take::<u8, _>(100).unwrap().publish(name.location()).unwrap();
    let mut opener = Child::start_until(place, "step-open-frozen", &[name.as_str()], "attach: leased");
    drop(array);
    let stats = pool.stats();
    assert_eq!((stats.idle.arrays, stats.draining.arrays), (0, usize::from(Place::RECYCLES)));
    opener.resume();
    opener.expect("refused: false"); // the name was removed meanwhile
    opener.finish();
    pool.maintain();
    assert_eq!(pool.stats().idle.arrays, usize::from(Place::RECYCLES));
}

/// The pool keeps the lease of the memory that it has taken back, and the child must not wait for that.
fn describing_follows_the_name_away_from_recycled_memory(place: &Place) {
    let place = &place.private();
    let name = place.location("recycled");
    let pool = place.pool_options().create().unwrap();
    let array = pool.take::<u8, _>(100).unwrap().publish(name.location()).unwrap();
    let mut describer = Child::start_until(place, "step-describe", &[name.as_str()], "describe: opened");
    drop(array);
    assert_eq!(pool.stats().idle.arrays, usize::from(Place::RECYCLES));
    let newer = place.options().create::<u8, _>(name.location(), 100).unwrap();
    describer.resume();
    describer.expect("done");
    describer.finish();
    if place.describes() {
        let found = place.backend.description(name.location()).unwrap().unwrap();
        assert_eq!(found.shape(), [10, 10]);
    }
    drop(newer);
    assert!(place.backend.unlink(name.location()).unwrap());
}

fn change_of_a_description_that_was_seen_is_waited_for(place: &Place) {
    let place = &place.private();
    let name = place.location("seen");
    drop(place.options().create::<u8, _>(name.location(), 100).unwrap());
    let mut first = Child::start_until(place, "step-describe-seen", &[name.as_str()], "describe: name locked");
    let mut second = Child::start(place, "step-describe", &[name.as_str()]);
    assert_eq!(second.line_within(Duration::from_millis(200)), None, "it would be overwritten by an older change");
    first.resume();
    for child in [&mut first, &mut second] {
        child.expect("done");
    }
    if place.describes() {
        assert_eq!(place.backend.description(name.location()).unwrap().unwrap().shape(), [10, 10], "the later one");
    }
    first.finish();
    second.finish();
    assert!(place.backend.unlink(name.location()).unwrap());
}
