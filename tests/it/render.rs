//! The contract of renderbuffers on every backend: claims, commits, finishing, and what excludes what.

use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::{Array, Dimension};
use ndarray_shm::{ArrayOptions, Claim, Element, Error, NextClaim, RenderBuffer, RenderOptions};

use crate::support::{Name, Place, eventually};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "render",
        tests![
            chunks_are_painted_by_one_claim_each,
            a_finished_buffer_has_its_name_and_nothing_else,
            chunks_can_be_read_while_others_are_painted,
            an_unfinished_buffer_cannot_be_finished_and_is_given_back,
            a_claim_and_a_write_guard_exclude_each_other,
        ],
    )
}

fn options<T: Element, D: Dimension>(place: &Place) -> ArrayOptions<T, D> {
    ArrayOptions::new().backend(place.backend.clone())
}

fn buffer(place: &Place, name: &Name) -> RenderBuffer<u32, ndarray::Ix2> {
    let options = RenderOptions::new().backend(place.backend.clone());
    options.create(name.location(), (6, 10), (4, 3), "a test").unwrap()
}

/// Paints every element of every free chunk with its own index.
fn paint(buffer: &RenderBuffer<u32, ndarray::Ix2>) -> usize {
    let mut painted = 0;
    while let NextClaim::Chunk(mut chunk) = buffer.claim_next().unwrap() {
        let (rows, columns) = (chunk.region()[0].start, chunk.region()[1].start);
        chunk.view_mut().indexed_iter_mut().for_each(|((i, j), value)| *value = ((rows + i) * 10 + columns + j) as u32);
        chunk.commit().unwrap();
        painted += 1;
    }
    painted
}

fn chunks_are_painted_by_one_claim_each(place: &Place) {
    let name = place.location("claims");
    let (one, two) = (buffer(place, &name), buffer(place, &name));
    let NextClaim::Chunk(first) = one.claim_next().unwrap() else { panic!("all are free") };
    assert_eq!(first.index(), 0);
    let NextClaim::Chunk(second) = two.claim_next().unwrap() else { panic!("seven are free") };
    assert_eq!(second.index(), 1, "the first is busy");
    assert!(matches!(two.claim(0).unwrap(), Claim::Busy));
    drop(first);
    let Claim::Chunk(first) = two.claim(0).unwrap() else { panic!("dropped, so free again") };
    first.commit().unwrap();
    assert!(matches!(one.claim(0).unwrap(), Claim::Done));
    assert_eq!((one.progress().done, two.progress().total), (1, 8));
    drop(second);
}

fn a_finished_buffer_has_its_name_and_nothing_else(place: &Place) {
    let name = place.location("finish");
    let one = buffer(place, &name);
    assert!(options::<u32, _>(place).open(name.location(), (6, 10)).unwrap_err().is_not_found());
    assert_eq!(place.files_of(&name).len(), 2, "payload and ledger under reserved names");
    assert!(ndarray_shm::render::attached(&*place.backend, name.location()).unwrap());
    assert_eq!(paint(&one), 8);
    one.wait(Duration::ZERO).unwrap();
    let two = buffer(place, &name);
    let array = one.finish().unwrap();
    assert_eq!(place.files_of(&name), [name.as_str()]);
    let expected = Array::from_shape_fn((6, 10), |(i, j)| (i * 10 + j) as u32);
    assert_eq!(*array.read().unwrap(), *expected);
    assert!(matches!(two.claim_next().unwrap(), NextClaim::AllDone));
    assert_eq!(*two.finish().unwrap().read().unwrap(), *expected, "whoever comes second gets the same array");
    let again = RenderOptions::new().backend(place.backend.clone()).create::<u32, _>(
        name.location(),
        (6, 10),
        (4, 3),
        "a test",
    );
    assert!(again.unwrap_err().is_already_exists());
}

fn chunks_can_be_read_while_others_are_painted(place: &Place) {
    let name = place.location("chunk");
    let buffer = buffer(place, &name);
    assert!(buffer.chunk(0).unwrap().is_none());
    let Claim::Chunk(mut claim) = buffer.claim(5).unwrap() else { panic!("free") };
    claim.view_mut().fill(6);
    claim.commit().unwrap();
    let Claim::Chunk(busy) = buffer.claim(0).unwrap() else { panic!("free") };
    let chunk = buffer.chunk(5).unwrap().expect("finished");
    assert_eq!((chunk.shape(), chunk.region()), ([2, 3].as_slice(), [4..6, 3..6].as_slice()));
    assert_eq!(chunk.sum(), 36);
    drop(busy);
}

fn an_unfinished_buffer_cannot_be_finished_and_is_given_back(place: &Place) {
    let name = place.location("incomplete");
    let buffer = buffer(place, &name);
    let error = buffer.finish().unwrap_err();
    assert!(matches!(error.error(), Error::Incomplete { done: 0, total: 8, .. }), "{error}");
    let buffer = error.into_inner();
    paint(&buffer);
    buffer.finish().unwrap();
}

fn a_claim_and_a_write_guard_exclude_each_other(place: &Place) {
    let name = place.location("claim-write");
    let buffer = buffer(place, &name);
    // The payload has a reserved name while it is painted; under a second, ordinary name any program could open it.
    let partial = place.files_of(&name).into_iter().find(|file| file.contains("part")).expect("a payload");
    let alias = place.location("claim-write-alias");
    std::fs::hard_link(place.directory().join(partial), place.directory().join(alias.as_str())).unwrap();
    let array = options::<u32, _>(place).open(alias.location(), (6, 10)).unwrap();
    let Claim::Chunk(claim) = buffer.claim(3).unwrap() else { panic!("free") };
    assert!(array.try_write().unwrap_err().is_would_block());
    assert!(array.write().unwrap_err().is_would_deadlock());
    drop(claim);
    let writer = array.try_write().unwrap();
    assert!(matches!(buffer.claim_next().unwrap(), NextClaim::Busy));
    assert!(matches!(buffer.claim_next_wait(Duration::from_millis(20)).unwrap(), NextClaim::Busy));
    drop(writer);
    std::thread::scope(|scope| {
        let reader = array.read().unwrap();
        let painter =
            scope.spawn(|| matches!(buffer.claim_next_wait(Duration::from_secs(60)).unwrap(), NextClaim::Chunk(_)));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!painter.is_finished());
        drop(reader);
        assert!(painter.join().unwrap());
    });
    eventually("the claim is given up", || matches!(buffer.claim(0).unwrap(), Claim::Chunk(_)));
}
