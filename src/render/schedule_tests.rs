//! Threads share the chunks out among them, wait for busy ones only, and know when all are finished.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use ndarray::Ix1;

use super::*;
use crate::backend::Directory;
use crate::render::{ChunkClaim, Claim, NextClaim, RenderBuffer, RenderOptions};

/// So many that trying all of them again in each pause would show.
const CHUNKS: usize = 3000;

/// Creates or joins a buffer of so many chunks in a directory.
fn buffer(directory: &tempfile::TempDir, chunks: usize) -> RenderBuffer<u8, Ix1> {
    let backend = Directory::new("test", directory.path());
    RenderOptions::new().directory(backend).create("schedule", chunks, 1, "a schedule").expect("a buffer")
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn next(buffer: &RenderBuffer<u8, Ix1>) -> ChunkClaim<'_, u8, Ix1> {
    let NextClaim::Chunk(chunk) = buffer.claim_next().expect("no error") else { panic!("a chunk is free") };
    chunk
}

fn state<R>(schedule: &Schedule, look: impl FnOnce(&mut ScheduleState) -> R) -> R {
    schedule.change(PATIENCE, look).expect("locked for moments only")
}

fn again(schedule: &Schedule) -> Vec<usize> {
    state(schedule, |state| state.again.iter().copied().collect())
}

#[test]
fn threads_never_try_the_same_chunk() {
    let schedule = Schedule::new(CHUNKS);
    let owners: Vec<AtomicUsize> = (0..CHUNKS).map(|_| AtomicUsize::new(0)).collect();
    let tries = AtomicUsize::new(0);
    // Every third chunk is busy when it is tried first.
    let work = |scheduled: ScheduledChunk<'_>, must_end: bool| {
        let index = scheduled.index();
        assert_eq!(owners[index].fetch_add(1, Ordering::SeqCst), 0, "chunk {index}");
        tries.fetch_add(1, Ordering::Relaxed);
        thread::yield_now();
        owners[index].fetch_sub(1, Ordering::SeqCst);
        if must_end || index % 3 != 0 {
            scheduled.finish();
        }
    };
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !schedule.is_all_done() {
                    while let Some(scheduled) = schedule.first() {
                        work(scheduled, false);
                    }
                    while let Some(scheduled) = schedule.again(0) {
                        work(scheduled, true);
                    }
                }
            });
        }
    });
    assert_eq!(tries.into_inner(), CHUNKS + CHUNKS / 3, "once, and the busy ones once more");
}

#[test]
fn only_busy_chunks_are_tried_again() {
    let directory = directory();
    let (buffer, of_another) = (buffer(&directory, CHUNKS), buffer(&directory, CHUNKS));
    let Claim::Chunk(held) = of_another.claim(7).expect("a claim") else { panic!("chunk 7 is free") };
    let paint = || {
        let mut painted = 0;
        while let NextClaim::Chunk(chunk) = buffer.claim_next_wait(Duration::MAX).expect("no error") {
            chunk.commit().expect("a commit");
            painted += 1;
        }
        painted
    };
    let painted: usize = thread::scope(|scope| {
        let painters = [scope.spawn(paint), scope.spawn(paint)];
        let begin = Instant::now();
        while !state(&buffer.schedule, |state| state.again.contains(&7) && state.has_lookout && state.given == 0) {
            assert!(begin.elapsed() < Duration::from_mins(1), "the painters make no progress");
            thread::sleep(Duration::from_millis(1));
        }
        // All painters wait for one chunk, and one of them tries it.
        thread::sleep(Duration::from_millis(20));
        assert!(painters.iter().all(|painter| !painter.is_finished()));
        assert_eq!((state(&buffer.schedule, |state| state.next), buffer.progress().done), (CHUNKS, CHUNKS - 1));
        drop(held);
        painters.into_iter().map(|painter| painter.join().expect("no panic")).sum()
    });
    assert_eq!((painted, buffer.progress().done), (CHUNKS, CHUNKS));
    assert_eq!((again(&buffer.schedule), buffer.schedule.is_all_done()), (vec![], true));
    assert!(matches!(of_another.claim_next(), Ok(NextClaim::AllDone)), "it finds all chunks finished");
}

#[test]
fn released_chunks_come_last() {
    let directory = directory();
    let buffer = buffer(&directory, 4);
    let (first, second) = (next(&buffer), next(&buffer));
    drop(second);
    drop(first);
    for expected in [2, 3, 0, 1] {
        let chunk = next(&buffer);
        assert_eq!(chunk.index(), expected);
        chunk.commit().expect("a commit");
    }
    assert!(matches!(buffer.claim_next(), Ok(NextClaim::AllDone)));
}

#[test]
fn waiter_gets_a_released_chunk() {
    let directory = directory();
    let buffer = buffer(&directory, 1);
    let claim = next(&buffer);
    assert!(matches!(buffer.claim_next_wait(Duration::from_millis(5)), Ok(NextClaim::Busy)));
    thread::scope(|scope| {
        let wait = || match buffer.claim_next_wait(Duration::MAX).expect("no error") {
            NextClaim::Chunk(chunk) => chunk.commit().map(|()| 1).expect("a commit"),
            NextClaim::AllDone => 0,
            NextClaim::Busy => panic!("the wait has no limit"),
        };
        let waiters = [(); 3].map(|()| scope.spawn(wait));
        thread::sleep(Duration::from_millis(20));
        drop(claim);
        assert_eq!(waiters.map(|waiter| waiter.join().expect("no panic")).iter().sum::<i32>(), 1);
    });
}

/// Claims by number are no part of the schedule, which finds their chunks busy.
#[test]
fn all_done_needs_every_chunk() {
    let directory = directory();
    let buffer = buffer(&directory, 3);
    let by_number = |index| match buffer.claim(index).expect("no error") {
        Claim::Chunk(chunk) => chunk,
        other => panic!("{other:?}"),
    };
    let is_busy = || matches!(buffer.claim_next().expect("no error"), NextClaim::Busy);
    let direct = by_number(0);
    next(&buffer).commit().expect("a commit");
    let scheduled = next(&buffer);
    assert!(is_busy());
    scheduled.commit().expect("a commit");
    assert!(is_busy(), "one is claimed by its number");
    drop(direct);
    let released = next(&buffer);
    assert_eq!(released.index(), 0);
    assert!(is_busy());
    drop(released);
    let direct = by_number(0);
    assert!(is_busy(), "it was released, and claimed by its number");
    direct.commit().expect("a commit");
    assert!(matches!(buffer.claim_next(), Ok(NextClaim::AllDone)));
    let late = self::buffer(&directory, 3);
    assert!(matches!(late.claim_next(), Ok(NextClaim::AllDone)));
}

#[test]
fn failed_claim_loses_no_chunk() {
    let directory = directory();
    let buffer = buffer(&directory, 2);
    let first = next(&buffer);
    buffer.unlink().expect("its files are removed");
    for _ in 0..3 {
        assert!(buffer.claim_next().is_err());
        assert_eq!(again(&buffer.schedule), [1]);
    }
    drop(first);
    assert_eq!(again(&buffer.schedule), [0, 1]);
    assert!(buffer.claim_next_wait(Duration::MAX).is_err());
    assert_eq!((again(&buffer.schedule), state(&buffer.schedule, |state| state.given)), (vec![0, 1], 0));
}

#[test]
fn inherited_values_change_nothing() {
    let schedule = Schedule::new(1);
    let generation = os::fork_generation() + 1;
    let own = schedule.first().expect("not given out");
    drop(ScheduledChunk { schedule: &schedule, index: 0, is_finished: true, generation });
    let lookout = schedule.look_out().expect("there is none");
    drop(Lookout { schedule: &schedule, generation });
    assert!(schedule.look_out().is_none());
    assert_eq!(state(&schedule, |state| (state.given, state.has_lookout)), (1, true));
    drop((own, lookout));
    assert_eq!(state(&schedule, |state| (state.given, state.has_lookout)), (0, false));
}
