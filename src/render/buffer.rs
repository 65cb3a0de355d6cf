//! `RenderBuffer`: one array that many painters fill at the same time, chunk by chunk.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use ndarray::{Dimension, IntoDimension, RawArrayViewMut, ShapeBuilder};

use super::SharedWith;
use super::claim::{ChunkClaim, ChunkGuard, Claim, NextClaim, RenderProgress};
use super::grid::ChunkGrid;
use super::options::RenderOptions;
use super::pair::{ChunkStates, Pair};
use super::schedule::{Schedule, ScheduledChunk};
use crate::array::{Element, Layout, SharedArray, view};
use crate::backend::lock_space::cell;
use crate::backend::{Backend, IntoLocation, Location, Publish};
use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind, IntoError, Result};
use crate::interrupt;
use crate::os::{self, LockKind};
use crate::segment::Home;
use crate::segment::locks::{Hold, Wait};

/// An array that many threads and processes paint at the same time, and that gets its name when it is complete.
///
/// The array is divided into chunks. A *painter*, a thread or process, [claims](Self::claim_next) a chunk, paints it
/// through a safe view, and commits it. A claim is a kernel lock: no two painters hold the same chunk, and the chunk of
/// a killed painter is free again.
///
/// Readers never open a half-painted array. Until [`finish`](Self::finish), the array has a reserved name, and a ledger
/// beside it says which chunks are finished. If all painters stop early, creating a buffer with the same name and work
/// resumes it.
///
/// ```
/// use std::time::Duration;
///
/// use ndarray_shm::{unlink, NextClaim, RenderBuffer};
///
/// // Any number of threads and processes may run this. Each paints chunks that are still free.
/// let buffer = RenderBuffer::<f32, _>::create("render-example", (64, 64), (16, 16), "all ones")?;
/// while let NextClaim::Chunk(mut chunk) = buffer.claim_next_wait(Duration::MAX)? {
///     chunk.view_mut().fill(1.0);
///     chunk.commit()?;
/// }
/// let array = buffer.finish()?; // the first painter to finish gives it its name
/// assert_eq!(array.read()?.sum(), 4096.0);
///
/// unlink("render-example")?; // once, when it is no longer needed
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug)]
pub struct RenderBuffer<T, D> {
    pub(super) pair: Pair,
    home: Home,
    layout: Layout<T, D>,
    grid: ChunkGrid<D>,
    /// Whether finishing may replace an array that has the public name.
    replace: bool,
    /// How long finishing waits for another user to name the array.
    patience: Duration,
    /// Which chunks to try next. Only locks and ledger decide whether a chunk is free.
    pub(super) schedule: Arc<Schedule>,
}

impl<T, D> Deref for RenderBuffer<T, D> {
    type Target = Layout<T, D>;

    fn deref(&self) -> &Self::Target {
        &self.layout
    }
}

impl<T: Element, D: Dimension> RenderBuffer<T, D> {
    /// Begins a buffer of zeros, joins one that another process began, or resumes an interrupted one.
    ///
    /// `fingerprint` identifies what is painted: the source, the region, and everything else that distinguishes one
    /// work from another. All painters of a buffer must pass the same element type, shape, order, chunks and
    /// fingerprint.
    ///
    /// # Errors
    ///
    /// - [`Mismatch`](ErrorKind::Mismatch): a buffer of this name exists for another work. Its
    ///   [state](crate::render::OtherWork) says whether a process is attached to it. If none is,
    ///   [`replace`](RenderOptions::replace) replaces it.
    /// - [`AlreadyExists`](ErrorKind::AlreadyExists): a finished array has the name.
    ///   [`accept_finished`](RenderOptions::accept_finished) gives that array to painters that come late.
    /// - [`ForeignOwner`](ErrorKind::ForeignOwner): the buffer belongs to another user that was [not
    ///   chosen](RenderOptions::shared_with).
    /// - [`TimedOut`](ErrorKind::TimedOut): another process is beginning the buffer, and takes longer than the
    ///   [timeout](RenderOptions::timeout).
    /// - [`NoSpace`](ErrorKind::NoSpace): there is not enough memory; none was reserved. Also if another process began
    ///   the buffer with [`Pages::Sparse`](crate::Pages::Sparse), and this one did not choose that and so fills the
    ///   holes.
    /// - [`InvalidLocation`](ErrorKind::InvalidLocation): the location is not a valid name, or longer than 241 bytes.
    /// - [`InvalidSetting`](ErrorKind::InvalidSetting): a chunk has no extent, or the fingerprint is longer than 4096
    ///   bytes.
    /// - [`Trailer`](ErrorKind::Trailer): the ledger is damaged.
    pub fn create(
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = D>,
        chunk_shape: impl IntoDimension<Dim = D>,
        fingerprint: &str,
    ) -> Result<Self> {
        RenderOptions::new().create(location, shape, chunk_shape, fingerprint)
    }

    /// Joins a buffer that another process began, by its public name. Shape and chunks are read from the ledger.
    ///
    /// The holes of a buffer that was begun with [`Pages::Sparse`](crate::Pages::Sparse) are filled, unless
    /// [`RenderOptions::pages`] chooses that too.
    ///
    /// # Errors
    ///
    /// - [`NotFound`](ErrorKind::NotFound): no such buffer was begun, or it is finished. A painter that may come late
    ///   calls [`create`](Self::create) with [`accept_finished`](RenderOptions::accept_finished).
    /// - [`DTypeMismatch`](ErrorKind::DTypeMismatch), [`ShapeMismatch`](ErrorKind::ShapeMismatch): it has another
    ///   element type or another number of axes.
    /// - [`ForeignOwner`](ErrorKind::ForeignOwner), [`TimedOut`](ErrorKind::TimedOut), [`NoSpace`](ErrorKind::NoSpace):
    ///   as for [`create`](Self::create).
    /// - [`Trailer`](ErrorKind::Trailer): the ledger is damaged.
    pub fn open(location: impl IntoLocation) -> Result<Self> {
        RenderOptions::new().open(location)
    }

    pub(super) fn of(
        pair: Pair,
        home: Home,
        layout: Layout<T, D>,
        grid: ChunkGrid<D>,
        options: &RenderOptions,
    ) -> Self {
        let RenderOptions { replace, timeout, .. } = *options;
        let patience = if options.shared_with == SharedWith::OnlyMe { Duration::ZERO } else { timeout };
        let schedule = Schedule::new(grid.len());
        Self { pair, home, layout, grid, replace, patience, schedule }
    }

    /// Returns how the array is divided into chunks.
    pub fn grid(&self) -> &ChunkGrid<D> {
        &self.grid
    }

    /// Returns the name that the finished array will have.
    pub fn location(&self) -> &Location {
        &self.home.location
    }

    /// Returns the fingerprint of the work.
    pub fn fingerprint(&self) -> &str {
        &self.pair.chunks.work().fingerprint
    }

    /// Claims one chunk, without waiting.
    ///
    /// # Errors
    ///
    /// - [`Unlinked`](ErrorKind::Unlinked): the buffer was discarded.
    /// - [`TooManyOpenFiles`](ErrorKind::TooManyOpenFiles): a claim needs a descriptor.
    ///
    /// # Panics
    ///
    /// If `index` is not less than the number of chunks.
    pub fn claim(&self, index: usize) -> Result<Claim<'_, T, D>> {
        if self.pair.chunks.is_done(index) {
            return Ok(Claim::Done);
        }
        let (raw, hold) = match self.lock(index, LockKind::Exclusive, Wait::No) {
            Ok(locked) => locked,
            Err(Error { kind: ErrorKind::WouldBlock, .. }) => return Ok(Claim::Busy),
            // The payload has lost its reserved name. If the chunk was finished since the first check, another process
            // may have finished the whole buffer: that is no error. Otherwise the buffer was discarded.
            Err(Error { kind: ErrorKind::Unlinked, .. }) if self.pair.chunks.is_done(index) => return Ok(Claim::Done),
            Err(error) => return Err(error),
        };
        // Checked again under the lock: another painter may have committed the chunk and released the lock since the
        // first check.
        if self.pair.chunks.is_done(index) {
            return Ok(Claim::Done);
        }
        Ok(Claim::Chunk(ChunkClaim::new(self, index, raw, hold)))
    }

    /// Locks the cell of a chunk, on an open file description of its own. Also returns a pointer to the whole array.
    ///
    /// Fails with `Unlinked` if the payload has lost its reserved name. The caller looks at the chunk's state under the
    /// lock.
    fn lock(&self, index: usize, kind: LockKind, wait: Wait) -> Result<(RawArrayViewMut<T, D>, Hold)> {
        let payload = &self.pair.payload;
        // In a forked child, a pool of the parent could recycle the memory while the child paints.
        self.refuse_inherited()?;
        let hold = payload.hold(kind, cell(index), wait).map_err(|error| error.about(&self.home.location))?;
        // Never `None`: a payload is mapped for writing.
        let raw = view::raw_mut(payload, &self.layout).ok_or_else(|| self.discarded())?;
        Ok((raw, hold))
    }

    /// Claims any chunk that is neither finished nor claimed, without waiting.
    ///
    /// The threads that share this buffer claim chunks in the order of their numbers. Then they try those again that
    /// other painters had claimed, and those that were released unpainted.
    ///
    /// # Errors
    ///
    /// As [`claim`](Self::claim).
    pub fn claim_next(&self) -> Result<NextClaim<'_, T, D>> {
        let untried = self.claim_untried()?;
        if !matches!(untried, NextClaim::Busy) {
            return Ok(untried);
        }
        let mut from = 0;
        while let Some(scheduled) = self.schedule.again(from) {
            from = scheduled.index() + 1;
            if let Some(chunk) = self.claim_scheduled(scheduled)? {
                return Ok(NextClaim::Chunk(chunk));
            }
        }
        Ok(self.none_claimed())
    }

    /// As `claim_next`, but tries no chunk again.
    fn claim_untried(&self) -> Result<NextClaim<'_, T, D>> {
        while let Some(scheduled) = self.schedule.first(|index| self.pair.chunks.is_done(index)) {
            if let Some(chunk) = self.claim_scheduled(scheduled)? {
                return Ok(NextClaim::Chunk(chunk));
            }
        }
        Ok(self.none_claimed())
    }

    /// Claims the chunk that the schedule gave out, and returns it to the schedule if that fails.
    fn claim_scheduled(&self, scheduled: ScheduledChunk) -> Result<Option<ChunkClaim<'_, T, D>>> {
        match self.claim(scheduled.index())? {
            Claim::Chunk(chunk) => return Ok(Some(chunk.scheduled(scheduled))),
            Claim::Busy => {}
            Claim::Done => scheduled.finish(),
        }
        Ok(None)
    }

    fn none_claimed(&self) -> NextClaim<'_, T, D> {
        if !self.schedule.is_exhausted() {
            return NextClaim::Busy;
        }
        if self.progress().is_complete() {
            return NextClaim::AllDone;
        }
        // Another thread took and returned a chunk while this one looked.
        self.schedule.restart();
        NextClaim::Busy
    }

    /// Claims any chunk. While all unfinished chunks are claimed, waits until one is released or all are finished.
    ///
    /// Returns `Busy` when `limit` has passed. Commit or drop your claims before calling this: a thread that holds the
    /// last unfinished chunk waits for itself.
    ///
    /// # Errors
    ///
    /// As [`claim`](Self::claim).
    pub fn claim_next_wait(&self, limit: Duration) -> Result<NextClaim<'_, T, D>> {
        if limit.is_zero() {
            return self.claim_next();
        }
        let mut backoff = Backoff::new(limit);
        let mut lookout = None;
        loop {
            lookout = lookout.or_else(|| self.schedule.look_out());
            let answer = if lookout.is_some() { self.claim_next()? } else { self.claim_untried()? };
            if !matches!(answer, NextClaim::Busy) || !backoff.pause() {
                return Ok(answer);
            }
        }
    }

    /// Takes a read lock on a finished chunk, while other chunks may still be painted. Returns `None` if the chunk is
    /// not finished.
    ///
    /// # Errors
    ///
    /// - [`Unlinked`](ErrorKind::Unlinked): the buffer was discarded, or another process finished it. In the latter
    ///   case, open the array by its name.
    /// - [`TooManyOpenFiles`](ErrorKind::TooManyOpenFiles): a guard needs a descriptor.
    ///
    /// # Panics
    ///
    /// If `index` is not less than the number of chunks.
    pub fn chunk(&self, index: usize) -> Result<Option<ChunkGuard<'_, T, D>>> {
        if !self.pair.chunks.is_done(index) {
            return Ok(None);
        }
        // A finished chunk is not painted again. Its cell is locked for a moment by a painter that did not know yet
        // that it is finished, and longer only by a write guard of the whole payload.
        let (raw, hold) = self.lock(index, LockKind::Shared, Wait::Forever)?;
        Ok(Some(ChunkGuard::new(self, index, raw, hold)))
    }

    /// Returns how many chunks are finished, and how many there are.
    pub fn progress(&self) -> RenderProgress {
        RenderProgress { done: self.pair.chunks.done(), total: self.grid.len() }
    }

    /// Waits until every chunk is finished, by this or other processes.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](ErrorKind::TimedOut): `limit` has passed.
    pub fn wait(&self, limit: Duration) -> Result<()> {
        let mut backoff = Backoff::new(limit);
        while !self.progress().is_complete() {
            if !backoff.pause() {
                return Err(ErrorKind::TimedOut { waited: limit }.at(&self.home.location));
            }
        }
        Ok(())
    }

    /// Gives the complete array its public name, and removes the ledger.
    ///
    /// Every painter may call this. If another painter has named the array already, `finish` returns the same array, as
    /// long as the array still has that name.
    ///
    /// # Errors
    ///
    /// The error gives the buffer back.
    ///
    /// - [`Incomplete`](ErrorKind::Incomplete): chunks are missing.
    /// - [`AlreadyExists`](ErrorKind::AlreadyExists): another file got the name meanwhile.
    /// - [`Unlinked`](ErrorKind::Unlinked): the buffer was discarded, or another process finished it and the array lost
    ///   its name since.
    /// - [`PermissionDenied`](ErrorKind::PermissionDenied): only another user may name the array, and did not within
    ///   the [timeout](RenderOptions::timeout).
    /// - [`Unsupported`](ErrorKind::Unsupported): this is a forked child, and its parent can recycle the memory.
    pub fn finish(self) -> Result<SharedArray<T, D>, IntoError<Self>> {
        match self.give_name() {
            Ok(()) => Ok(SharedArray::of(self.pair.payload.renamed(self.home), self.layout)),
            Err(error) => Err(IntoError::new(error.about(&self.home.location), self)),
        }
    }

    fn give_name(&self) -> Result<()> {
        let RenderProgress { done, total } = self.progress();
        if done < total {
            return Err(ErrorKind::Incomplete { done, total }.at(&self.home.location));
        }
        let payload = &self.pair.payload;
        self.refuse_inherited()?; // the memory may be that of another buffer with the same names by now
        let ChunkStates::Ledger(ledger) = &self.pair.chunks else {
            return if self.home.leads_to(payload.id())? { Ok(()) } else { Err(self.discarded()) };
        };
        let mode = if self.replace { Publish::Replace } else { Publish::New };
        match self.home.backend.rename(payload.location(), &self.home.location, payload.id(), mode) {
            Ok(()) => {}
            // The reserved name is gone: another process has finished the buffer, unless it was discarded.
            Err(Error { kind: ErrorKind::NotFound, .. }) if self.home.leads_to(payload.id())? => {}
            Err(Error { kind: ErrorKind::NotFound, .. }) => return Err(self.discarded()),
            // In a directory with the sticky bit, only the payload's owner may rename it. Waits for a process of that
            // user.
            Err(error @ Error { kind: ErrorKind::PermissionDenied { .. }, .. }) => {
                let mut backoff = Backoff::new(self.patience);
                while !self.home.leads_to(payload.id())? {
                    if !backoff.pause() {
                        return Err(error);
                    }
                }
            }
            Err(error) => return Err(error),
        }
        os::step("render: array named");
        match interrupt::uninterrupted(|| ledger.unlink()) {
            // Only its owner may remove the ledger. It is stale now, and the next process of the owner that finds it
            // removes it.
            Ok(_) | Err(Error { kind: ErrorKind::PermissionDenied { .. }, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes the unfinished buffer. In other painters, the next claim fails. An array that is
    /// [finished](RenderOptions::accept_finished) stays.
    ///
    /// # Errors
    ///
    /// - [`PermissionDenied`](ErrorKind::PermissionDenied): this user may not remove the files.
    /// - [`Unsupported`](ErrorKind::Unsupported): this is a forked child, and its parent can recycle the memory.
    pub fn discard(self) -> Result<()> {
        self.unlink()
    }

    /// Removes the unfinished buffer as [`discard`](Self::discard) does, but stays attached: the memory is freed when
    /// this value and all other attachments are dropped. The next claim fails in every process, this one included.
    ///
    /// For code that may still have pointers to the elements, such as bindings for another language.
    ///
    /// # Errors
    ///
    /// As [`discard`](Self::discard).
    pub fn unlink(&self) -> Result<()> {
        self.refuse_inherited()?; // as in `give_name`
        let ChunkStates::Ledger(ledger) = &self.pair.chunks else { return Ok(()) };
        // The ledger first: a payload without a ledger belongs to no buffer (see pair.rs).
        let payload = &self.pair.payload;
        let payload = || interrupt::uninterrupted(|| payload.home().unlink(payload.id()));
        ledger.unlink().and_then(|_| payload()).map(drop).map_err(|error| error.about(&self.home.location))
    }

    fn refuse_inherited(&self) -> Result<()> {
        self.pair.payload.refuse_inherited().map_err(|error| error.about(&self.home.location))
    }

    fn discarded(&self) -> Error {
        ErrorKind::Unlinked.at(&self.home.location)
    }
}
