//! Threads share the chunks out among them, wait for busy ones only, and know when all are finished.

use std::time::{Duration, Instant};

use ndarray::Ix1;

use super::*;
use crate::backend::Directory;
use crate::render::{ChunkClaim, Claim, NextClaim, RenderBuffer, RenderOptions, RenderProgress};

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

fn again(schedule: &Schedule) -> Vec<usize> {
    let is_noted = |index: &usize| schedule.again[index / 64].load(Ordering::SeqCst) >> (index % 64) & 1 != 0;
    (0..schedule.total).filter(is_noted).collect()
}

fn given(schedule: &Schedule) -> usize {
    schedule.given.load(Ordering::SeqCst)
}

fn has_lookout(schedule: &Schedule) -> bool {
    schedule.has_lookout.load(Ordering::SeqCst)
}

#[test]
fn threads_never_try_the_same_chunk() {
    let schedule = Schedule::new(CHUNKS);
    let owners: Vec<AtomicUsize> = (0..CHUNKS).map(|_| AtomicUsize::new(0)).collect();
    let tries = AtomicUsize::new(0);
    // Every third chunk is busy when it is tried first.
    let work = |scheduled: ScheduledChunk, must_end: bool| {
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
                while !schedule.is_exhausted() {
                    while let Some(scheduled) = schedule.first(|_| false) {
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
        while again(&buffer.schedule) != [7] || !has_lookout(&buffer.schedule) || buffer.progress().done < CHUNKS - 1 {
            assert!(begin.elapsed() < Duration::from_mins(1), "the painters make no progress");
            thread::sleep(Duration::from_millis(1));
        }
        // All painters wait for one chunk, and one of them tries it.
        thread::sleep(Duration::from_millis(20));
        assert!(painters.iter().all(|painter| !painter.is_finished()));
        assert_eq!(buffer.schedule.next.load(Ordering::SeqCst), CHUNKS, "each was given out once");
        drop(held);
        painters.into_iter().map(|painter| painter.join().expect("no panic")).sum()
    });
    assert_eq!((painted, buffer.progress().done), (CHUNKS, CHUNKS));
    assert_eq!((again(&buffer.schedule), buffer.schedule.is_exhausted()), (vec![], true));
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
    assert_eq!((again(&buffer.schedule), given(&buffer.schedule)), (vec![0, 1], 0));
}

#[test]
fn no_thread_leaves_while_chunks_are_free() {
    const THREADS: usize = 8;
    let directory = directory();
    let (buffer, earlier) = (buffer(&directory, CHUNKS), buffer(&directory, CHUNKS));
    let is_free = |index: usize| index % 50 == 0;
    for index in (0..CHUNKS).filter(|index| !is_free(*index)) {
        let Claim::Chunk(chunk) = earlier.claim(index).expect("no error") else { panic!("it is free") };
        chunk.commit().expect("a commit");
    }
    let paint = || {
        while let NextClaim::Chunk(chunk) = buffer.claim_next().expect("no error") {
            chunk.commit().expect("a commit");
        }
        // The others have at most one chunk each.
        let RenderProgress { done, total } = buffer.progress();
        assert!(total - done < THREADS, "{done} of {total}");
    };
    thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(paint))));
    assert!(buffer.progress().is_complete());
}

#[test]
fn lost_chunk_is_found_again() {
    let directory = directory();
    let buffer = buffer(&directory, 3);
    drop(next(&buffer));
    buffer.schedule.again[0].store(0, Ordering::SeqCst); // as in the moment when another thread tries the chunk
    next(&buffer).commit().expect("a commit");
    next(&buffer).commit().expect("a commit");
    assert!(matches!(buffer.claim_next(), Ok(NextClaim::Busy)), "it begins anew");
    next(&buffer).commit().expect("a commit");
    assert!(matches!(buffer.claim_next(), Ok(NextClaim::AllDone)));
}

#[test]
fn forked_child_begins_anew_and_its_inheritance_changes_nothing() {
    let schedule = Schedule::new(70);
    for index in [0, 1] {
        assert_eq!(schedule.first(|_| false).expect("not given out").index(), index);
    }
    let (own, lookout) = (schedule.first(|_| false).expect("not given out"), schedule.look_out());
    let generation = os::fork_generation();
    schedule.generation.store((generation + 1) | RENEWING, Ordering::SeqCst); // as if an ancestor was renewing it
    let first = schedule.first(|_| false).expect("it begins anew");
    assert_eq!((first.index(), again(&schedule), given(&schedule)), (0, vec![], 1));
    let lookout_here = schedule.look_out().expect("that of the parent does not count");
    let mut inherited = own;
    inherited.given.generation = generation + 1;
    let mut lookout = lookout.expect("there was none");
    lookout.generation = generation + 1;
    drop((inherited, lookout));
    assert_eq!((again(&schedule), given(&schedule), has_lookout(&schedule)), (vec![], 1, true));
    drop((first, lookout_here));
    assert_eq!((again(&schedule), given(&schedule), has_lookout(&schedule)), (vec![0], 0, false));
}
