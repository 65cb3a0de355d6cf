//! Which chunk is next: every index once, then those that other workers had claimed, until none is claimed any more.
//!
//! A renderbuffer finds free chunks by itself; this adds that the workers of one process never ask for the same chunk twice, and
//! that waiting for others costs as much as they have chunks, not as much as there are.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::thread;
use std::time::Duration;

use ndarray::IxDyn;
use ndarray_shm::render::{ChunkClaim, Claim};
use ndarray_shm::{Element, RenderBuffer};

use crate::error::Result;
use crate::progress::StopFlag;

/// How long a worker waits before it looks again at chunks that others paint.
const FIRST_PAUSE: Duration = Duration::from_micros(50);

/// The longest such wait: one of the others may die, and its chunk is ours then.
const LONGEST_PAUSE: Duration = Duration::from_millis(2);

/// The way of all workers of one process through the chunks.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    /// The first index that no worker of this process has asked for.
    next: AtomicUsize,
    /// Chunks that others had when they were asked for.
    busy: Mutex<Vec<usize>>,
}

/// The answer to a worker that wants something to do.
pub(crate) enum Step<'a, T: Element> {
    /// A chunk to paint.
    Chunk(ChunkClaim<'a, T, IxDyn>),
    /// There is nothing more to do.
    End(WalkEnd),
}

/// Why a worker's way through the chunks ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WalkEnd {
    /// Every chunk is finished, or being painted by a colleague of the same process.
    Complete,
    /// A flag was raised.
    Stopped,
}

impl Walk {
    /// Claims the next chunk. Where only others' chunks are left, waits for one of them to give up or die.
    pub(crate) fn next<'a, T: Element>(
        &self,
        buffer: &'a RenderBuffer<T, IxDyn>,
        flags: [&StopFlag; 2],
    ) -> Result<Step<'a, T>> {
        let mut pause = FIRST_PAUSE;
        loop {
            if flags.iter().any(|flag| flag.is_stopped()) {
                return Ok(Step::End(WalkEnd::Stopped));
            }
            if let Some(chunk) = self.first_visit(buffer)? {
                return Ok(Step::Chunk(chunk));
            }
            // One worker at a time asks for what others have; its colleagues could only ask the same.
            match self.busy.try_lock() {
                Ok(mut busy) => {
                    if let Some(chunk) = visit_again(buffer, &mut busy)? {
                        return Ok(Step::Chunk(chunk));
                    }
                    if busy.is_empty() {
                        return Ok(Step::End(WalkEnd::Complete));
                    }
                }
                Err(TryLockError::WouldBlock) => {}
                // What a panicking colleague leaves is a list of numbers all the same.
                Err(TryLockError::Poisoned(_)) => self.busy.clear_poison(),
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn first_visit<'a, T: Element>(
        &self,
        buffer: &'a RenderBuffer<T, IxDyn>,
    ) -> Result<Option<ChunkClaim<'a, T, IxDyn>>> {
        let total = buffer.grid().len();
        while self.next.load(Ordering::Relaxed) < total {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= total {
                break;
            }
            match buffer.claim(index)? {
                Claim::Chunk(chunk) => return Ok(Some(chunk)),
                Claim::Busy => self.busy.lock().unwrap_or_else(PoisonError::into_inner).push(index),
                Claim::Done => {}
            }
        }
        Ok(None)
    }
}

/// Forgets the chunks that are finished, and claims one that is free.
fn visit_again<'a, T: Element>(
    buffer: &'a RenderBuffer<T, IxDyn>,
    busy: &mut Vec<usize>,
) -> Result<Option<ChunkClaim<'a, T, IxDyn>>> {
    let mut free = None;
    let mut at = 0;
    while at < busy.len() && free.is_none() {
        match buffer.claim(busy[at])? {
            Claim::Done => {
                busy.swap_remove(at);
            }
            Claim::Chunk(chunk) => {
                busy.swap_remove(at);
                free = Some(chunk);
            }
            Claim::Busy => at += 1,
        }
    }
    Ok(free)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use ndarray_shm::Directory;
    use ndarray_shm::render::RenderOptions;

    use super::*;

    /// Many more than there may ever be looks at all that is left.
    const CHUNKS: usize = 3000;

    #[test]
    fn only_busy_chunks_are_claimed_again() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let backend = Directory::new("test", directory.path());
        let options = RenderOptions::new().backend(backend);
        let buffer = options.create::<u8, _>("walk", IxDyn(&[CHUNKS]), IxDyn(&[1]), "a walk").expect("a buffer");
        let Claim::Chunk(of_another) = buffer.claim(7).expect("a claim") else { panic!("chunk 7 is free") };

        let (walk, never) = (Walk::default(), StopFlag::new());
        let paint = || {
            let mut painted = 0;
            while let Step::Chunk(chunk) = walk.next(&buffer, [&never, &never]).expect("a step") {
                chunk.commit().expect("a commit");
                painted += 1;
            }
            painted
        };
        let painted: usize = thread::scope(|scope| {
            let painters = [scope.spawn(paint), scope.spawn(paint)];
            let begin = Instant::now();
            while buffer.progress().done < CHUNKS - 1 || walk.busy.lock().expect("the list").is_empty() {
                assert!(begin.elapsed() < Duration::from_mins(1), "the walk stands still");
                thread::sleep(Duration::from_millis(1));
            }
            // All wait for one chunk, and ask for that alone.
            thread::sleep(Duration::from_millis(20));
            assert!(painters.iter().any(|painter| !painter.is_finished()));
            assert!(walk.next.load(Ordering::Relaxed) <= CHUNKS + painters.len(), "each index is taken once");
            assert_eq!(*walk.busy.lock().expect("the list"), [7]);
            drop(of_another);
            painters.into_iter().map(|painter| painter.join().expect("no panic")).sum()
        });
        assert_eq!((painted, buffer.progress().done), (CHUNKS, CHUNKS));
        assert_eq!(*walk.busy.lock().expect("the list"), [0; 0]);
        buffer.discard().expect("it is not needed");
    }
}
