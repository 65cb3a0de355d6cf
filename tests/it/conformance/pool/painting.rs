//! Renderbuffers that are painted into memory of a pool.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::{Ix1, Ix2};
use ndarray_shm::render::{self, RenderOptions};
use ndarray_shm::{Error, ErrorKind, Location, NextClaim, Pool, SharedArray};

use super::{counts, expected, one, pool, unlink_in};
use crate::support::child::{Child, hear, say};
use crate::support::{Name, Place, backend_of_child};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "pool",
        tests![
            buffer_uses_the_memory_of_the_last_one,
            a_painter_in_another_process_keeps_the_memory,
            discard_spares_a_new_buffer_in_the_same_memory,
        ],
    )
}

fn paint(pool: &Pool, name: &Name, value: u32) -> SharedArray<u32, Ix2> {
    let options = RenderOptions::new().pool(pool);
    let buffer = options.create::<u32, Ix2>(name.location(), (60, 50), (16, 16), &format!("all {value}")).unwrap();
    while let NextClaim::Chunk(mut chunk) = buffer.claim_next_wait(Duration::from_secs(60)).unwrap() {
        chunk.view_mut().fill(value);
        chunk.commit().unwrap();
    }
    buffer.finish().unwrap()
}

fn buffer_uses_the_memory_of_the_last_one(place: &Place) {
    let name = place.location("buffer");
    let pool = pool(place);
    for value in 1..=5 {
        let array = paint(&pool, &name, value);
        assert!(array.read().unwrap().iter().all(|seen| *seen == value));
        assert_eq!(place.files_of(&name), [name.as_str()]);
        if value % 2 == 0 {
            pool.put(array).unwrap();
        } else {
            drop(pool.adopt(array).unwrap());
        }
        assert!(place.files_of(&name).is_empty());
    }
    let stats = pool.stats();
    assert_eq!((stats.hits, stats.misses), if Place::RECYCLES { (4, 1) } else { (0, 5) });
    // A taken name is refused. A discarded buffer leaves nothing in the pool.
    let taken = place.options().create::<u8, _>(name.location(), 1).unwrap();
    let begin = || RenderOptions::new().pool(&pool).create::<u32, Ix2>(name.location(), (60, 50), (16, 16), "x");
    assert_eq!(begin().unwrap_err().kind, ErrorKind::AlreadyExists);
    unlink_in(place, &name);
    drop(taken);
    begin().unwrap().discard().unwrap();
    assert_eq!(counts(&pool), (0, 0, 0));
    let other = RenderOptions::new().pool(&pool).permissions(0o644).create::<u8, Ix1>(name.location(), 9, 3, "x");
    assert!(matches!(other, Err(Error { kind: ErrorKind::InvalidSetting { .. }, .. })));
}

/// A child that joins a buffer, paints nothing, and stays.
pub fn painter(arguments: &[String]) {
    let options = RenderOptions::new().directory(backend_of_child());
    let buffer = options.open::<u32, Ix2>(arguments[0].as_str()).unwrap();
    say("joined");
    hear();
    drop(buffer);
    say("left");
    hear();
}

fn a_painter_in_another_process_keeps_the_memory(place: &Place) {
    let name = place.location("painter");
    let pool = pool(place);
    pool.put(paint(&pool, &name, 3)).unwrap();
    let buffer = RenderOptions::new().pool(&pool).create::<u32, Ix2>(name.location(), (60, 50), (16, 16), "x").unwrap();
    let mut child = Child::start(place, "pool-painter", &[name.as_str()]);
    child.expect("joined");
    while let NextClaim::Chunk(mut chunk) = buffer.claim_next().unwrap() {
        chunk.view_mut().fill(4);
        chunk.commit().unwrap();
    }
    pool.put(buffer.finish().unwrap()).unwrap();
    assert_eq!(counts(&pool), (0, one(), 0));
    assert!(!pool.take::<u32, _>((60, 50)).unwrap().is_recycled());
    pool.trim();
    assert_eq!(child.ask("leave"), "left");
    assert_eq!(counts(&pool), (one(), 0, 0));
    assert_eq!(pool.take::<u32, _>((60, 50)).unwrap().view()[[9, 9]], expected(4));
}

fn discard_spares_a_new_buffer_in_the_same_memory(place: &Place) {
    let name = place.location("anew");
    let pool = pool(place);
    let begin = |pool: &Pool, name: &Location| {
        RenderOptions::new().pool(pool).create::<u32, Ix2>(name.clone(), (60, 50), (60, 50), "anew").unwrap()
    };
    let (old, anew) = (begin(&pool, name.location()), Arc::new(Mutex::new(None)));
    // While another process is about to discard the buffer, its owner finishes it, puts the array and creates the
    // buffer anew.
    let (old, made) = (Mutex::new(Some(old)), Arc::clone(&anew));
    let (owners, location) = (pool.clone(), name.location().clone());
    let backend = place.meddling(move |operation, at| {
        if operation == "unlink" && at.is_some_and(|at| at.as_str().starts_with(".ndshm-part-")) {
            if let Some(old) = old.lock().unwrap().take() {
                let NextClaim::Chunk(chunk) = old.claim_next().unwrap() else { panic!("it is free") };
                chunk.commit().unwrap();
                owners.put(old.finish().unwrap()).unwrap();
                *made.lock().unwrap() = Some(begin(&owners, &location));
            }
        }
        Ok(())
    });
    render::discard(&backend, name.location()).unwrap();
    let anew = anew.lock().unwrap().take().expect("the payload was about to be unlinked");
    assert!(matches!(anew.claim_next().unwrap(), NextClaim::Chunk(_)), "the new buffer was discarded");
    anew.discard().unwrap();
}
