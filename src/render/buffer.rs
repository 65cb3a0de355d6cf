//! The renderbuffer: one array that many workers paint at once, chunk by chunk.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ndarray::{Dimension, IntoDimension, RawArrayViewMut, ShapeBuilder};

use super::claim::{ChunkClaim, ChunkGuard, Claim, NextClaim, RenderProgress};
use super::grid::ChunkGrid;
use super::options::RenderOptions;
use super::pair::Pair;
use super::sharing::SharedWith;
use crate::array::layout::Layout;
use crate::array::{Element, Order, SharedArray, view};
use crate::backend::lock_space::cell;
use crate::backend::{Backend, IntoLocation, Location, Publish};
use crate::backoff::Backoff;
use crate::error::{Error, IntoError, Result};
use crate::os::{self, LockKind};
use crate::segment::Home;
use crate::segment::locks::{Hold, Wait};

/// An array that many workers, threads or processes, paint at once, and that gets its name when it is complete.
///
/// The array is cut into chunks. A worker [claims](Self::claim_next) a chunk, paints it through a safe view, and commits
/// it. The kernel keeps two workers off the same chunk, and frees the chunk of one that dies. Readers by name never see a
/// half-painted array: until [`finish`](Self::finish) it stands under a reserved name, with a ledger of finished chunks
/// beside it. A process that begins the same work under the same name later continues where it stopped.
///
/// ```
/// use std::time::Duration;
///
/// use ndarray_shm::{unlink, NextClaim, RenderBuffer};
///
/// // Any number of threads and processes may run this; each paints what the others have not.
/// let buffer = RenderBuffer::<f32, _>::create("render-example", (64, 64), (16, 16), "all ones")?;
/// while let NextClaim::Chunk(mut chunk) = buffer.claim_next_wait(Duration::MAX)? {
///     chunk.view_mut().fill(1.0);
///     chunk.commit()?;
/// }
/// let array = buffer.finish()?; // the first call gives it its name
/// assert_eq!(array.read()?.sum(), 4096.0);
///
/// unlink("render-example")?; // once, when no process needs it any more
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug)]
pub struct RenderBuffer<T, D> {
    pub(super) pair: Pair,
    home: Home,
    layout: Layout<D>,
    grid: ChunkGrid<D>,
    replace: bool,
    /// How long finishing waits for another user.
    patience: Duration,
    /// Where the next search begins: behind the chunk that was claimed last, so that one slow painter costs no other a scan.
    next: AtomicUsize,
    elements: PhantomData<T>,
}

impl<T: Element, D: Dimension> RenderBuffer<T, D> {
    /// Begins a buffer of zeros, joins one that another process began, or resumes what an earlier run left.
    ///
    /// `fingerprint` says what is painted: source, region, anything that makes one work different from another. Only calls with the
    /// same fingerprint, shape, order and chunks work on the same buffer.
    ///
    /// # Errors
    ///
    /// - [`Mismatch`](Error::Mismatch): another work is being painted under the name.
    /// - [`AlreadyExists`](Error::AlreadyExists): a finished array has the name.
    /// - [`ForeignOwner`](Error::ForeignOwner): another user began it, and was [not chosen](RenderOptions::shared_with).
    /// - [`TimedOut`](Error::TimedOut): another process begins it, and [takes longer](RenderOptions::timeout) than it may.
    /// - [`NoSpace`](Error::NoSpace): the memory cannot be had; nothing was taken.
    /// - [`InvalidLocation`](Error::InvalidLocation): also for names longer than 241 bytes.
    /// - [`InvalidSetting`](Error::InvalidSetting): a chunk without extent, a fingerprint longer than 4096 bytes.
    /// - [`Trailer`](Error::Trailer): the ledger is damaged.
    pub fn create(
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = D>,
        chunk_shape: impl IntoDimension<Dim = D>,
        fingerprint: &str,
    ) -> Result<Self> {
        RenderOptions::new().create(location, shape, chunk_shape, fingerprint)
    }

    /// Joins a buffer that someone began, by its public name; the ledger knows shape and chunks.
    ///
    /// # Errors
    ///
    /// - [`NotFound`](Error::NotFound): it was not begun, or it is finished.
    /// - [`DTypeMismatch`](Error::DTypeMismatch), [`ShapeMismatch`](Error::ShapeMismatch): other elements, or another
    ///   number of axes.
    /// - [`ForeignOwner`](Error::ForeignOwner), [`TimedOut`](Error::TimedOut): as for [`create`](Self::create).
    /// - [`Trailer`](Error::Trailer): the ledger is damaged.
    pub fn open(location: impl IntoLocation) -> Result<Self> {
        RenderOptions::new().open(location)
    }

    pub(super) fn of(pair: Pair, home: Home, layout: Layout<D>, grid: ChunkGrid<D>, options: &RenderOptions) -> Self {
        let RenderOptions { replace, timeout, .. } = *options;
        let patience = if options.shared_with == SharedWith::OnlyMe { Duration::ZERO } else { timeout };
        Self { pair, home, layout, grid, replace, patience, next: AtomicUsize::new(0), elements: PhantomData }
    }

    /// Returns how the array is cut into chunks.
    pub fn grid(&self) -> &ChunkGrid<D> {
        &self.grid
    }

    /// Returns the lengths of the array's axes.
    pub fn shape(&self) -> &[usize] {
        self.layout.dim.slice()
    }

    /// Returns the order of the axes in memory.
    pub fn order(&self) -> Order {
        self.layout.order
    }

    /// Returns the name that the finished array will have.
    pub fn location(&self) -> &Location {
        &self.home.location
    }

    /// Returns what its maker said is painted.
    pub fn fingerprint(&self) -> &str {
        &self.pair.ledger.record.work.fingerprint
    }

    /// Claims one chunk, without waiting.
    ///
    /// # Errors
    ///
    /// [`Unlinked`](Error::Unlinked): the buffer was discarded.
    /// [`TooManyOpenFiles`](Error::TooManyOpenFiles): a claim needs a descriptor.
    ///
    /// # Panics
    ///
    /// If there is no such chunk.
    pub fn claim(&self, index: usize) -> Result<Claim<'_, T, D>> {
        if self.pair.ledger.is_done(index) {
            return Ok(Claim::Done);
        }
        let (raw, hold) = match self.lock(index, LockKind::Exclusive, Wait::No) {
            Ok(locked) => locked,
            Err(Error::WouldBlock { .. }) => return Ok(Claim::Busy),
            // It gets its public name only when every chunk is finished.
            Err(Error::Unlinked { .. }) if self.pair.ledger.is_done(index) => return Ok(Claim::Done),
            Err(error) => return Err(error),
        };
        // Finished by another between the look and the lock?
        if self.pair.ledger.is_done(index) {
            return Ok(Claim::Done);
        }
        Ok(Claim::Chunk(ChunkClaim::new(self, index, raw, hold)))
    }

    /// Locks the cell of a chunk; also returns the whole array, without looking at it.
    fn lock(&self, index: usize, kind: LockKind, wait: Wait) -> Result<(RawArrayViewMut<T, D>, Hold)> {
        let Pair { payload, partial, .. } = &self.pair;
        payload.refuse_inherited(&self.home)?;
        let hold = payload.hold(partial, kind, cell(index), wait).map_err(|error| error.about(&self.home.location))?;
        let raw = view::raw_mut(payload, &self.layout).ok_or_else(|| self.discarded())?;
        Ok((raw, hold))
    }

    /// Claims a chunk that is neither finished nor being painted, without waiting.
    ///
    /// Chunks come in the order of their numbers, except that what others gave up comes at the end.
    ///
    /// # Errors
    ///
    /// As [`claim`](Self::claim).
    pub fn claim_next(&self) -> Result<NextClaim<'_, T, D>> {
        let next = self.next.load(Ordering::Relaxed);
        let mut busy = false;
        for index in (next..self.grid.len()).chain(0..next) {
            match self.claim(index)? {
                Claim::Chunk(chunk) => {
                    self.next.store(index + 1, Ordering::Relaxed);
                    return Ok(NextClaim::Chunk(chunk));
                }
                Claim::Busy => busy = true,
                Claim::Done => {}
            }
        }
        Ok(if busy { NextClaim::Busy } else { NextClaim::AllDone })
    }

    /// Claims the next chunk; while all that are left are being painted by others, waits for one of them to give up or die.
    ///
    /// `Busy` means that the time ran out. A thread that holds the last claim itself would wait for itself: commit or drop
    /// it first.
    ///
    /// # Errors
    ///
    /// As [`claim`](Self::claim).
    pub fn claim_next_wait(&self, limit: Duration) -> Result<NextClaim<'_, T, D>> {
        let mut backoff = Backoff::new(limit);
        loop {
            match self.claim_next()? {
                NextClaim::Busy if backoff.pause() => {}
                answer => return Ok(answer),
            }
        }
    }

    /// Reads a finished chunk while others are still being painted; `None` if it is not finished.
    ///
    /// # Errors
    ///
    /// [`Unlinked`](Error::Unlinked): the buffer was discarded, or finished by another process: open the array by its
    /// name. [`TooManyOpenFiles`](Error::TooManyOpenFiles): a guard needs a descriptor.
    ///
    /// # Panics
    ///
    /// If there is no such chunk.
    pub fn chunk(&self, index: usize) -> Result<Option<ChunkGuard<'_, T, D>>> {
        if !self.pair.ledger.is_done(index) {
            return Ok(None);
        }
        let (raw, hold) = self.lock(index, LockKind::Shared, Wait::Forever)?;
        Ok(Some(ChunkGuard::new(self, index, raw, hold)))
    }

    /// Returns how many chunks are finished.
    pub fn progress(&self) -> RenderProgress {
        RenderProgress { done: self.pair.ledger.done(), total: self.grid.len() }
    }

    /// Waits until every chunk is finished, whichever worker paints it.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](Error::TimedOut).
    pub fn wait(&self, limit: Duration) -> Result<()> {
        let mut backoff = Backoff::new(limit);
        while !self.progress().is_complete() {
            if !backoff.pause() {
                return Err(Error::TimedOut { location: self.home.location.to_string(), waited: limit });
            }
        }
        Ok(())
    }

    /// Gives the complete array its public name and clears the ledger away.
    ///
    /// Every worker may call it; later calls get the same array, while it has its name.
    ///
    /// # Errors
    ///
    /// The error gives the buffer back. [`Incomplete`](Error::Incomplete): chunks are missing.
    /// [`AlreadyExists`](Error::AlreadyExists): meanwhile something else has the name.
    /// [`Unlinked`](Error::Unlinked): the buffer was discarded, or finished by another and its name taken away since.
    /// [`PermissionDenied`](Error::PermissionDenied): another user alone may name it, and did not.
    pub fn finish(self) -> Result<SharedArray<T, D>, IntoError<Self>> {
        match self.give_name() {
            Ok(()) => Ok(SharedArray::of(self.pair.payload, self.home, self.layout)),
            Err(error) => Err(IntoError::new(error.about(&self.home.location), self)),
        }
    }

    fn give_name(&self) -> Result<()> {
        let RenderProgress { done, total } = self.progress();
        if done < total {
            return Err(Error::Incomplete { location: self.home.location.to_string(), done, total });
        }
        let (payload, partial) = (&self.pair.payload, &self.pair.partial);
        let mode = if self.replace { Publish::Replace } else { Publish::New };
        match self.home.backend.rename(&partial.location, &self.home.location, payload.id(), mode) {
            Ok(()) => {}
            Err(Error::NotFound { .. }) if self.home.leads_to(payload.id())? => {}
            Err(Error::NotFound { .. }) => return Err(self.discarded()),
            // In a directory with the sticky bit only the payload's owner may.
            Err(error @ Error::PermissionDenied { .. }) => {
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
        match self.pair.ledger.unlink() {
            Ok(_) | Err(Error::PermissionDenied { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes the unfinished buffer; other painters notice at their next claim.
    ///
    /// # Errors
    ///
    /// [`PermissionDenied`](Error::PermissionDenied).
    pub fn discard(self) -> Result<()> {
        let payload = || self.pair.partial.unlink(self.pair.payload.id());
        self.pair.ledger.unlink().and_then(|_| payload()).map(drop).map_err(|error| error.about(&self.home.location))
    }

    fn discarded(&self) -> Error {
        Error::Unlinked { location: self.home.location.to_string() }
    }
}
