//! Paints one claimed chunk: decodes it into a temporary, copies it to its place, commits.
//!
//! In a renderbuffer the temporary is deliberate. A codec that writes into the array directly would need `&mut` to all
//! of it, which would be false while other processes paint. A claim is exclusive only for its own chunk, and a copy
//! costs little beside decoding. In memory that only this process can reach, a chunk with a contiguous place is decoded
//! straight into it.

use std::ops::Range;

use ndarray_shm::Element;
use ndarray_shm::backend::goes_on;

use crate::bbox::{Bbox, ranges_text};
use crate::copy::Copier;
use crate::download::canvas::{Canvas, CanvasChunk, NextChunk, PaintEnd};
use crate::download::spent::{DownloadTally, Phase, Stopwatch};
use crate::error::{Error, Result};
use crate::progress::StopFlag;
use crate::region_memory::{RegionMemory, ViewPlace};
use crate::retries::Retries;
use crate::scratch::{Elements, Scratch};
use crate::volume::{ChunkSource, Fetched, Placed};

/// Returns `asked`, or the number of processors if it is 0.
pub(crate) fn worker_count(asked: usize) -> usize {
    if asked == 0 { std::thread::available_parallelism().map_or(1, usize::from) } else { asked }
}

/// The job of all workers of one process, and the state that they share.
#[derive(Clone, Copy)]
pub(crate) struct PaintWork<'a> {
    pub(crate) source: &'a dyn ChunkSource,
    pub(crate) bbox: &'a Bbox,
    /// The bytes of each element of a missing chunk; `None` if a missing chunk is an error.
    pub(crate) missing: Option<&'a [u8]>,
    /// Maximum number of concurrent fetches from a remote source.
    pub(crate) requests: usize,
    /// Maximum number of bytes in flight from a remote source.
    pub(crate) in_flight: u64,
    /// Raised by the caller.
    pub(crate) stop: &'a StopFlag,
    /// Raised by a worker that failed, to stop the other workers.
    pub(crate) abort: &'a StopFlag,
    pub(crate) tally: &'a DownloadTally,
    /// The requests that are being retried.
    pub(crate) retries: &'a Retries,
    /// Called after each chunk.
    pub(crate) heard: &'a (dyn Fn() + Sync),
}

impl<'a> PaintWork<'a> {
    pub(crate) fn flags(&self) -> [&'a StopFlag; 2] {
        [self.stop, self.abort]
    }

    /// Returns the answer to a request. Work that is stopped while a server is silent does not report the server.
    fn answer<R>(&self, answer: Result<R>) -> Result<R> {
        match answer {
            Err(Error::Store { .. }) if self.flags().iter().any(|flag| flag.is_stopped()) || !goes_on() => {
                Err(Error::Interrupted { done: 0, total: 0 })
            }
            other => other,
        }
    }
}

/// Fetches, decodes and paints until no chunk is left or a flag is raised. All the work of one worker with a local
/// source.
pub(crate) fn paint<T: Element>(canvas: &impl Canvas<T>, work: &PaintWork<'_>) -> Result<PaintEnd> {
    let mut painter = Painter::new(work);
    let mut watch = Stopwatch::start(work.tally);
    loop {
        let chunk = match canvas.next(work.flags())? {
            NextChunk::Chunk(chunk) => chunk,
            NextChunk::End(end) => return Ok(end),
        };
        watch.was(Phase::Claiming);
        let region = chunk.region(work.bbox);
        match painter.paint(chunk, &region, Fetched::Later, &mut watch) {
            Err(Error::Interrupted { .. }) => return Ok(PaintEnd::Stopped),
            other => other?,
        }
    }
}

/// Paints chunks one after the other, reusing the same temporary memory.
pub(crate) struct Painter<'a, T> {
    work: PaintWork<'a>,
    scratch: Scratch,
    copier: Copier<T>,
}

impl<'a, T: Element> Painter<'a, T> {
    pub(crate) fn new(work: &PaintWork<'a>) -> Self {
        Self { work: *work, scratch: Scratch::new(), copier: Copier::new() }
    }

    /// Fetches a chunk, unless that was done, paints it and marks it as finished. If that fails, raises the `abort`
    /// flag before it releases the chunk, so that no waiting worker claims the chunk and fails too.
    pub(crate) fn paint(
        &mut self,
        mut chunk: impl CanvasChunk<T>,
        region: &[Range<i64>],
        fetched: Fetched,
        watch: &mut Stopwatch<'_>,
    ) -> Result<()> {
        let abort = self.work.abort;
        let is_missing = self.fill(&mut chunk, region, fetched, watch).inspect_err(|_| abort.stop())?;
        chunk.commit().inspect_err(|_| abort.stop())?;
        self.work.tally.painted(is_missing);
        (self.work.heard)();
        watch.was(Phase::Copying);
        Ok(())
    }

    /// Decodes a chunk and copies it to its place. Returns whether it is not stored.
    ///
    /// A missing chunk is filled here too, by the worker that has it: so the fill never overwrites a chunk of another
    /// worker, and the memory's previous content never remains.
    fn fill<C: CanvasChunk<T>>(
        &mut self,
        chunk: &mut C,
        region: &[Range<i64>],
        mut fetched: Fetched,
        watch: &mut Stopwatch<'_>,
    ) -> Result<bool> {
        let PaintWork { source, tally, .. } = self.work;
        let is_fetched = !matches!(fetched, Fetched::Later);
        if C::IS_PRIVATE {
            let mut place = ViewPlace::new(chunk.view_mut(), &mut self.copier);
            match self.work.answer(source.decode_into(region, fetched, &mut RegionMemory::of(&mut place)))? {
                Placed::Filled { fetched } => {
                    tally.fetched(fetched);
                    watch.was(Phase::Decoding);
                    return Ok(false);
                }
                Placed::Declined(rest) => fetched = rest,
            }
        }
        if matches!(fetched, Fetched::Later) {
            fetched = self.work.answer(source.fetch(region))?;
        }
        if !is_fetched {
            tally.fetched(fetched.len());
            watch.was(Phase::Fetching);
        }
        source.decode(region, fetched, &mut self.scratch)?;
        let is_missing = self.scratch.is_missing();
        if let Some(fill) = self.work.missing {
            self.scratch.fill_if_missing(fill);
        }
        let elements = self.scratch.elements::<T>(region)?;
        watch.was(Phase::Decoding);
        match elements {
            Elements::Missing => return Err(missing(region)),
            Elements::Fill(value) => {
                chunk.view_mut().fill(value);
            }
            Elements::Block(block) => self.copier.copy(&block, chunk.view_mut()),
        }
        Ok(is_missing)
    }
}

/// The error for a chunk that is not stored and has no fill value.
pub(crate) fn missing(region: &[Range<i64>]) -> Error {
    let region = ranges_text(region);
    Error::Missing { chunk: region.clone(), region }
}
