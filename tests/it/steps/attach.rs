//! A process that attaches to what looks like a counted array or an arena, while another has the same bytes as elements.

use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::counted::Handle;
use ndarray_shm::{Arena, AttachOptions, RefcountedArray, SharedArray};

use crate::support::child::{Child, Role, say};
use crate::support::{Name, Place, backend_of_child};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "steps",
        "attach",
        tests![
            bytes_that_a_writer_has_as_elements_are_no_frozen_array,
            bytes_that_a_writer_has_as_elements_are_no_arena,
            a_plain_open_that_passes_by_is_waited_for,
            a_handle_was_not_used_because_a_plain_open_does_not_pass_by,
            memory_that_is_being_opened_as_a_counted_array_is_not_used_again,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[
    ("step-open-frozen", open_frozen),
    ("step-open-arena", open_arena),
    ("step-open-plain", open_plain),
    ("step-take-back", take_back),
];

/// Opens a counted array and says what became of it.
fn open_frozen(arguments: &[String]) {
    let options = AttachOptions::<RefcountedArray<u8, Ix1>>::new().backend(backend_of_child());
    match options.open(arguments[0].parse::<ndarray_shm::Location>().unwrap()) {
        Ok(array) => say(format!("attached, frozen: {}", array.is_frozen())),
        Err(error) => say(format!("refused: {}", error.is_not_counted())),
    }
}

/// Opens an arena and says what became of it.
fn open_arena(arguments: &[String]) {
    match Arena::open_in(&backend_of_child(), arguments[0].parse::<ndarray_shm::Location>().unwrap()) {
        Ok(_) => say("attached"),
        Err(error) => say(format!("refused: {}", error.is_not_counted())),
    }
}

/// Opens what is no plain array.
fn open_plain(arguments: &[String]) {
    let options = AttachOptions::<SharedArray<u8, Ix1>>::new().backend(backend_of_child());
    let refused = options.open(arguments[0].parse::<ndarray_shm::Location>().unwrap(), 100).unwrap_err();
    say(format!("refused: {}", refused.is_reserved()));
}

/// Takes a handle back.
fn take_back(arguments: &[String]) {
    say(format!("{:?}", arguments[0].parse::<Handle>().unwrap().revoke()));
}

/// Has a child open a plain array as something that counts its users. While the child stands at a step, a writer attaches and makes
/// the bytes look right; it is still there when the child goes on. Both may not have them.
fn lookalike(place: &Place, name: &Name, bytes: &[u8], role: &str) {
    let path = place.path(name);
    let zeros: SharedArray<u8, Ix1> = place.options().create(name.location(), bytes.len()).unwrap();
    drop(zeros);
    let mut child = Child::start_until(place, role, &[name.as_str()], "attach: leased");
    let writer: SharedArray<u8, Ix1> = place.attach().open(name.location(), bytes.len()).unwrap();
    let mut elements = writer.write().unwrap();
    elements.iter_mut().zip(bytes).for_each(|(element, byte)| *element = *byte);
    child.resume();
    child.expect("refused: true");
    child.finish();
    assert!(path.exists());
    drop(elements);
}

fn bytes_that_a_writer_has_as_elements_are_no_frozen_array(place: &Place) {
    let place = &place.private();
    let name = place.location("frozen");
    let array = place.counted::<u8, Ix1>().create(name.location(), 100).unwrap();
    array.freeze().unwrap();
    let bytes = std::fs::read(place.path(&name)).unwrap();
    array.close().unwrap();
    lookalike(place, &name, &bytes, "step-open-frozen");
}

fn bytes_that_a_writer_has_as_elements_are_no_arena(place: &Place) {
    let place = &place.private();
    let name = place.location("arena");
    let arena = place.arena_options().create(name.location(), 1 << 16).unwrap();
    let bytes = std::fs::read(place.path(&name)).unwrap();
    drop(arena);
    lookalike(place, &name, &bytes, "step-open-arena");
}

fn a_plain_open_that_passes_by_is_waited_for(place: &Place) {
    let place = &place.private();
    let (counted, arena) = (place.location("counted"), place.location("arena"));
    let array = place.counted::<u8, Ix1>().create(counted.location(), 100).unwrap();
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
        assert_eq!(other.line_within(Duration::from_millis(200)), None, "{role}: it waits");
        plain.resume();
        plain.expect("refused: true");
        other.expect(answer);
        plain.finish();
        other.finish();
    }
    drop((array, members));
    assert_eq!(place.left(), [] as [&str; 0]);
}

fn a_handle_was_not_used_because_a_plain_open_does_not_pass_by(place: &Place) {
    let place = &place.private();
    let name = place.location("taken-back");
    let array = place.counted::<u8, Ix1>().create(name.location(), 100).unwrap();
    let handle = array.handle().unwrap();
    let mut plain = Child::start_until(place, "step-open-plain", &[name.as_str()], "attach: leased");
    assert!(handle.revoke().unwrap_err().is_not_counted(), "unknown whether it was used");
    plain.resume();
    plain.expect("refused: true");
    plain.finish();
    assert!(handle.revoke().unwrap());
}

fn memory_that_is_being_opened_as_a_counted_array_is_not_used_again(place: &Place) {
    let place = &place.private();
    let name = place.location("opened");
    let pool = place.pool_options().create().unwrap();
    let array = pool.take::<u8, _>(100).unwrap().publish(name.location()).unwrap();
    let mut opener = Child::start_until(place, "step-open-frozen", &[name.as_str()], "attach: leased");
    drop(array);
    let stats = pool.stats();
    assert_eq!((stats.idle.arrays, stats.draining.arrays), (0, usize::from(Place::RECYCLES)));
    opener.resume();
    opener.expect("refused: false"); // its name has gone
    opener.finish();
    pool.maintain();
    assert_eq!(pool.stats().idle.arrays, usize::from(Place::RECYCLES));
}
