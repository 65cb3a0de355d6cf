//! One worker's loop: claim a chunk, decode it into a temporary, copy it to its place, commit.
//!
//! The temporary is deliberate. A codec that writes straight into the array would need `&mut` to all of it, which is false
//! while other processes paint; a claim is exclusive for its own chunk only, and a copy costs little beside decoding.

use std::ops::Range;
use std::time::Duration;

use ndarray::IxDyn;
use ndarray_shm::{ChunkClaim, Element, NextClaim, RenderBuffer};

use crate::bbox::{Bbox, ranges_text};
use crate::copy::Copier;
use crate::error::{Error, Result};
use crate::progress::StopFlag;
use crate::scratch::{Elements, Scratch};
use crate::volume::ChunkSource;

/// How long a worker waits for chunks that others paint before it looks at the flags again.
const PATIENCE: Duration = Duration::from_millis(50);

/// Returns how many workers to use where 0 means one for each processor.
pub(crate) fn worker_count(asked: usize) -> usize {
    if asked == 0 { std::thread::available_parallelism().map_or(1, usize::from) } else { asked }
}

/// What one worker needs to know.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work<'a> {
    pub(crate) source: &'a dyn ChunkSource,
    pub(crate) bbox: &'a Bbox,
    /// Raised by the caller.
    pub(crate) stop: &'a StopFlag,
    /// Raised by a worker that failed, for its colleagues.
    pub(crate) abort: &'a StopFlag,
}

/// Why a worker's loop ended without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Every chunk is painted.
    Complete,
    /// A flag was raised.
    Stopped,
}

/// Paints until nothing is left, or a flag is raised. `heard` is called after each chunk.
pub(crate) fn paint<T: Element>(
    buffer: &RenderBuffer<T, IxDyn>,
    work: &Work<'_>,
    heard: &mut dyn FnMut(),
) -> Result<Ended> {
    let (mut scratch, mut copier) = (Scratch::new(), Copier::new());
    loop {
        if work.stop.is_stopped() || work.abort.is_stopped() {
            return Ok(Ended::Stopped);
        }
        let next = match buffer.claim_next()? {
            // Others are at work on all that is left: one of them may die, and its chunk is ours then.
            NextClaim::Busy => buffer.claim_next_wait(PATIENCE)?,
            next => next,
        };
        match next {
            NextClaim::Chunk(claim) => {
                paint_chunk(claim, work, &mut scratch, &mut copier)?;
                heard();
            }
            NextClaim::Busy => {}
            NextClaim::AllDone => return Ok(Ended::Complete),
        }
    }
}

fn paint_chunk<T: Element>(
    mut claim: ChunkClaim<'_, T, IxDyn>,
    work: &Work<'_>,
    scratch: &mut Scratch,
    copier: &mut Copier<T>,
) -> Result<()> {
    let region = in_volume(claim.region(), work.bbox);
    work.source.read(&region, scratch)?;
    if let Some(fill) = &work.source.meta().fill {
        scratch.fill_if_missing(fill);
    }
    match scratch.elements::<T>(&region)? {
        Elements::Missing => {
            let region = ranges_text(&region);
            return Err(Error::Missing { chunk: region.clone(), region });
        }
        Elements::Fill(value) => {
            claim.view_mut().fill(value);
        }
        Elements::Block(block) => copier.copy(&block, claim.view_mut()),
    }
    claim.commit()?;
    Ok(())
}

/// Moves a region of the buffer to the volume's coordinates.
pub(crate) fn in_volume(region: &[Range<usize>], bbox: &Bbox) -> Vec<Range<i64>> {
    let moved = |(range, origin): (&Range<usize>, &Range<i64>)| {
        origin.start.saturating_add_unsigned(range.start as u64)..origin.start.saturating_add_unsigned(range.end as u64)
    };
    region.iter().zip(bbox.ranges()).map(moved).collect()
}
