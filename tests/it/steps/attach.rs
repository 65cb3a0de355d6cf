//! A process that attaches to what looks like a counted array or an arena, while another has the same bytes as elements.

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::{Arena, RefcountedArray, SharedArray};

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
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[("step-open-frozen", open_frozen), ("step-open-arena", open_arena)];

/// Opens a counted array and says what became of it.
fn open_frozen(arguments: &[String]) {
    let options = RefcountedArray::<u8, Ix1>::options().backend(backend_of_child());
    match options.open(arguments[0].parse::<ndarray_shm::Location>().unwrap()) {
        Ok(array) => say(format!("attached, frozen: {}", array.is_frozen())),
        Err(error) => say(format!("refused: {}", error.is_not_counted())),
    }
}

/// Opens an arena and says what became of it.
fn open_arena(arguments: &[String]) {
    match Arena::options().backend(backend_of_child()).open(arguments[0].parse::<ndarray_shm::Location>().unwrap()) {
        Ok(_) => say("attached"),
        Err(error) => say(format!("refused: {}", error.is_not_counted())),
    }
}

/// Has a child open a plain array as something that counts its users. While the child stands at a step, a writer attaches and makes
/// the bytes look right; it is still there when the child goes on. Both may not have them.
fn lookalike(place: &Place, name: &Name, bytes: &[u8], role: &str) {
    let path = place.path(name);
    let zeros: SharedArray<u8, Ix1> = place.options().create(name.location(), bytes.len()).unwrap();
    drop(zeros);
    let mut child = Child::start_until(place, role, &[name.as_str()], "attach: leased");
    let writer: SharedArray<u8, Ix1> = place.options().open(name.location(), bytes.len()).unwrap();
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
    let arena = Arena::options().backend(place.backend.clone()).create(name.location(), 1 << 16).unwrap();
    let bytes = std::fs::read(place.path(&name)).unwrap();
    drop(arena);
    lookalike(place, &name, &bytes, "step-open-arena");
}
