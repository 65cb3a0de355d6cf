//! The order in which workers try chunks: every index once, then those that other processes had claimed, until none is
//! left.
//!
//! A renderbuffer finds free chunks by itself. This adds two properties: on the first pass the workers of one process
//! never try the same chunk, and waiting costs time in proportion to the chunks claimed elsewhere, not to all chunks.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::thread;
use std::time::Duration;

use ndarray::IxDyn;
use ndarray_shm::render::{ChunkClaim, Claim};
use ndarray_shm::{Element, RenderBuffer};

use crate::error::Result;
use crate::progress::StopFlag;

/// First pause before a worker tries the busy chunks again.
const FIRST_PAUSE: Duration = Duration::from_micros(50);

/// Longest such pause. A process that dies releases its claim, and its chunk is then free to paint here.
const LONGEST_PAUSE: Duration = Duration::from_millis(2);

/// The progress of all workers of one process through the chunks.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    /// The first index that no worker of this process has tried.
    next: AtomicUsize,
    /// Chunks that were claimed elsewhere when a worker tried them.
    busy: Mutex<Vec<usize>>,
}

/// The next step of a worker.
#[allow(clippy::large_enum_variant)] // a claim is large on Windows, and moved once
pub(crate) enum Step<Chunk> {
    /// A chunk to paint.
    Chunk(Chunk),
    /// No chunk is left for this worker.
    End(WalkEnd),
}

/// Why a worker's walk ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WalkEnd {
    /// Every chunk is finished, or another worker of the same process is painting it.
    Complete,
    /// A flag was raised.
    Stopped,
}

impl Walk {
    /// Claims the next chunk. If the only chunks left are claimed elsewhere, waits until they are finished or released.
    pub(crate) fn next<'a, T: Element>(
        &self,
        buffer: &'a RenderBuffer<T, IxDyn>,
        flags: [&StopFlag; 2],
    ) -> Result<Step<ChunkClaim<'a, T, IxDyn>>> {
        let mut pause = FIRST_PAUSE;
        loop {
            if flags.iter().any(|flag| flag.is_stopped()) {
                return Ok(Step::End(WalkEnd::Stopped));
            }
            if let Some(chunk) = self.first_visit(buffer)? {
                return Ok(Step::Chunk(chunk));
            }
            // One worker at a time tries the busy chunks: the others would only repeat the same claims, so they sleep
            // instead.
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
                // A worker that panicked with the lock leaves a valid list of indices.
                Err(TryLockError::Poisoned(_)) => self.busy.clear_poison(),
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Claims the next chunk that no worker of this process has tried, and notes those that are busy.
    fn first_visit<'a, T: Element>(
        &self,
        buffer: &'a RenderBuffer<T, IxDyn>,
    ) -> Result<Option<ChunkClaim<'a, T, IxDyn>>> {
        let total = buffer.grid().len();
        // Relaxed: only the atomicity of the addition matters, and claiming a chunk synchronizes by itself. The load
        // comes first so that waiting workers, which call this after every pause, do not increment `next` without end.
        while self.next.load(Ordering::Relaxed) < total {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            // Another worker may take the last index between the load and the addition.
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

/// Removes the finished chunks from `busy`, and claims the first one that is free.
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

    /// So many that trying all of them again in each pause would show.
    const CHUNKS: usize = 3000;

    #[test]
    fn only_busy_chunks_are_tried_again() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let backend = Directory::new("test", directory.path());
        let options = RenderOptions::new().directory(backend);
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
                assert!(begin.elapsed() < Duration::from_mins(1), "the walk makes no progress");
                thread::sleep(Duration::from_millis(1));
            }
            // All painters wait for one chunk, and try only that one.
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
