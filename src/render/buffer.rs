//! The renderbuffer: one array that many workers paint at once, chunk by chunk.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ndarray::{Dimension, IntoDimension, IxDyn, ShapeBuilder};

use super::claim::{ChunkClaim, ChunkGuard, Claim, NextClaim, RenderProgress};
use super::grid::ChunkGrid;
use super::ledger::Work;
use super::pair::{Making, Pair};
use crate::array::layout::Layout;
use crate::array::{Element, Order, SharedArray, view};
use crate::backend::lock_space::cell;
use crate::backend::{Backend, DraftOptions, IntoLocation, Location, Pages, Publish};
use crate::backoff::Backoff;
use crate::error::{Error, IntoError, Result};
use crate::os::LockKind;
use crate::pool::Pool;
use crate::segment::Home;
use crate::segment::locks::Wait;

/// Options for beginning and joining renderbuffers.
///
/// ```
/// use ndarray_shm::RenderOptions;
///
/// let buffer = RenderOptions::new()
///     .chunk_offset(&[2, 0])
///     .create::<u8, _>("render-options-example", (6, 8), (4, 4), "an example")?;
/// assert_eq!(buffer.grid().region(0), [0..2, 0..4]);
/// buffer.discard()?;
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "options do nothing until `create` or `open` is called"]
pub struct RenderOptions {
    backend: Option<Arc<dyn Backend>>,
    replace: bool,
    draft: DraftOptions,
    chunk_offset: Option<Vec<usize>>,
    pool: Option<Pool>,
}

impl RenderOptions {
    /// Begins with the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Uses this backend instead of the [default](crate::default_backend).
    pub fn backend(mut self, backend: Arc<dyn Backend>) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Lets the finished array take the name of one that exists; that one stays until then.
    ///
    /// Let one process begin with this, and the others [`open`](Self::open) what it began: one that comes when the array is
    /// finished would begin it anew.
    pub fn replace(mut self, replace: bool) -> Self {
        self.replace = replace;
        self
    }

    /// Paints into memory of this pool, in its backend and with its permissions, if this process is the one that begins the buffer.
    ///
    /// **Chunks begin with whatever was there.** The buffer and the finished array cost one descriptor more. The memory comes back
    /// when the array is [put](Pool::put) into the pool, or was [adopted](Pool::adopt) by it and is dropped; otherwise the array is
    /// like any other.
    pub fn pool(mut self, pool: &Pool) -> Self {
        self.backend = Some(Arc::clone(pool.backend()));
        self.draft.permissions = pool.permissions();
        self.pool = Some(pool.clone());
        self
    }

    /// Creates the files with these permission bits, whatever the umask; 0600 if not said. Windows has none.
    pub fn permissions(mut self, bits: u32) -> Self {
        self.draft.permissions = bits & 0o777;
        self
    }

    /// Takes memory only when it is painted. A painter that touches memory that is not there is killed (SIGBUS).
    pub fn sparse(mut self, sparse: bool) -> Self {
        self.draft.pages = self.draft.pages.with_sparse(sparse);
        self
    }

    /// Chooses what memory a new buffer gets; [`Pages::Auto`] if not said.
    pub fn pages(mut self, pages: Pages) -> Self {
        self.draft.pages = pages;
        self
    }

    /// Lets the first chunk of each axis begin this many elements before the buffer; zeros if not said.
    pub fn chunk_offset(mut self, offset: &[usize]) -> Self {
        self.chunk_offset = Some(offset.to_vec());
        self
    }

    /// Begins a buffer, joins others who began it, or resumes what an earlier run left.
    ///
    /// # Errors
    ///
    /// As [`RenderBuffer::create`].
    pub fn create<T: Element, D: Dimension>(
        self,
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = D>,
        chunk_shape: impl IntoDimension<Dim = D>,
        fingerprint: &str,
    ) -> Result<RenderBuffer<T, D>> {
        let home = Home::new(self.backend.as_ref(), location)?;
        let layout = Layout::new::<T>(shape, home.location.as_str())?;
        let offset = match &self.chunk_offset {
            Some(offset) => dimension(offset, layout.dim.ndim()).ok_or_else(|| Error::InvalidSetting {
                setting: "the chunk offset",
                value: format!("{offset:?}"),
                expected: "as many axes as the array has",
            })?,
            None => D::zeros(layout.dim.ndim()),
        };
        let grid = ChunkGrid::new(layout.dim.clone(), chunk_shape.into_dimension(), offset)?;
        let work = Work {
            dtype: T::DTYPE,
            order: layout.order,
            shape: grid.shape().to_vec(),
            chunk_shape: grid.chunk_shape().to_vec(),
            chunk_offset: grid.chunk_offset().to_vec(),
            fingerprint: fingerprint.to_owned(),
        };
        work.check()?;
        if let Some(pool) = &self.pool {
            require_same(pool, &home, self.draft.permissions)?;
        }
        let how = Making { draft: self.draft, replace: self.replace, pool: self.pool.as_ref() };
        let pair = Pair::open_or_create(&home, &work, layout.bytes::<T>(), &how)
            .map_err(|error| error.about(&home.location))?;
        Ok(RenderBuffer::of(pair, home, layout, grid, self.replace))
    }

    /// Joins a buffer that someone began, whatever its shape.
    ///
    /// # Errors
    ///
    /// As [`RenderBuffer::open`].
    pub fn open<T: Element, D: Dimension>(self, location: impl IntoLocation) -> Result<RenderBuffer<T, D>> {
        let home = Home::new(self.backend.as_ref(), location)?;
        let pair = Pair::open(&home).map_err(|error| error.about(&home.location))?;
        let work = &pair.ledger.record().work;
        if work.dtype != T::DTYPE {
            return Err(Error::DTypeMismatch {
                location: home.location.to_string(),
                expected: T::DTYPE.to_string(),
                found: work.dtype.to_string(),
            });
        }
        let axes = |lengths: &[usize]| {
            dimension::<D>(lengths, work.shape.len()).ok_or_else(|| Error::ShapeMismatch {
                location: home.location.to_string(),
                expected: format!("{} axes", D::NDIM.unwrap_or_default()),
                found: format!("{:?}", work.shape),
            })
        };
        let dim = axes(&work.shape)?;
        let grid = ChunkGrid::new(dim.clone(), axes(&work.chunk_shape)?, axes(&work.chunk_offset)?)?;
        let layout = Layout::new::<T>(dim.set_f(work.order == Order::F), home.location.as_str())?;
        Ok(RenderBuffer::of(pair, home, layout, grid, self.replace))
    }
}

/// Refuses memory that lives elsewhere than the buffer is to, or that others may open than its users.
fn require_same(pool: &Pool, home: &Home, permissions: u32) -> Result<()> {
    let (setting, value) = if pool.backend().directory() != home.backend.directory() {
        ("the pool's directory", pool.backend().directory().display().to_string())
    } else if pool.permissions() != permissions {
        ("the permissions of the pool", format!("{:o}", pool.permissions()))
    } else {
        return Ok(());
    };
    Err(Error::InvalidSetting { setting, value, expected: "that of the buffer" })
}

/// Turns lengths into a dimension, if there are so many and the type has so many axes.
fn dimension<D: Dimension>(lengths: &[usize], axes: usize) -> Option<D> {
    (lengths.len() == axes).then(|| D::from_dimension(&IxDyn(lengths))).flatten()
}

/// An array that many workers, threads or processes, paint at once, and that gets its name when it is complete.
///
/// The array is cut into chunks. A worker [claims](Self::claim_next) a chunk, paints it through a safe view, and commits
/// it. The kernel keeps two workers off the same chunk, and frees the chunk of one that dies. Readers by name never see a
/// half-painted array: until [`finish`](Self::finish) it stands under a reserved name, with a ledger of finished chunks
/// beside it; whoever begins the same work under the same name later goes on where it stopped.
///
/// ```
/// use std::time::Duration;
///
/// use ndarray_shm::{NextClaim, RenderBuffer, unlink};
///
/// // Any number of threads and processes may run this; each paints what the others have not.
/// let buffer = RenderBuffer::<f32, _>::create("render-example", (64, 64), (16, 16), "all ones")?;
/// while let NextClaim::Chunk(mut chunk) = buffer.claim_next_wait(Duration::MAX)? {
///     chunk.view_mut().fill(1.0);
///     chunk.commit()?;
/// }
/// let array = buffer.finish()?; // whoever comes first gives it its name
/// assert_eq!(array.read()?.sum(), 4096.0);
///
/// unlink("render-example")?; // once, when nobody needs it any more
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug)]
pub struct RenderBuffer<T, D> {
    pair: Pair,
    home: Home,
    layout: Layout<D>,
    grid: ChunkGrid<D>,
    replace: bool,
    /// Where the next search begins: behind the chunk that was claimed last, so that one slow painter costs nobody a scan.
    next: AtomicUsize,
    elements: PhantomData<T>,
}

impl<T: Element, D: Dimension> RenderBuffer<T, D> {
    /// Begins a buffer of zeros, joins others who began it, or resumes what an earlier run left.
    ///
    /// `fingerprint` says what is painted: source, region, anything that makes one work different from another. Only those
    /// who give the same one, with the same shape, order and chunks, work on the same buffer.
    ///
    /// # Errors
    ///
    /// - [`Mismatch`](Error::Mismatch): another work is being painted under the name.
    /// - [`AlreadyExists`](Error::AlreadyExists): a finished array has the name.
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
    /// - [`NotFound`](Error::NotFound): nobody began it, or it is finished.
    /// - [`DTypeMismatch`](Error::DTypeMismatch), [`ShapeMismatch`](Error::ShapeMismatch): other elements, or another
    ///   number of axes.
    /// - [`Trailer`](Error::Trailer): the ledger is damaged.
    pub fn open(location: impl IntoLocation) -> Result<Self> {
        RenderOptions::new().open(location)
    }

    fn of(pair: Pair, home: Home, layout: Layout<D>, grid: ChunkGrid<D>, replace: bool) -> Self {
        Self { pair, home, layout, grid, replace, next: AtomicUsize::new(0), elements: PhantomData }
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
        &self.pair.ledger.record().work.fingerprint
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
        self.pair.payload.refuse_inherited(&self.home)?;
        let hold = match self.pair.payload.hold(&self.pair.partial, LockKind::Exclusive, cell(index), Wait::No) {
            Ok(hold) => hold,
            Err(Error::WouldBlock { .. }) => return Ok(Claim::Busy),
            // It gets its public name only when every chunk is finished.
            Err(Error::Unlinked { .. }) if self.pair.ledger.is_done(index) => return Ok(Claim::Done),
            Err(error) => return Err(error.about(&self.home.location)),
        };
        // Finished by another between the look and the lock?
        if self.pair.ledger.is_done(index) {
            return Ok(Claim::Done);
        }
        let raw = view::raw_mut(&self.pair.payload, &self.layout).ok_or_else(|| self.discarded())?;
        Ok(Claim::Chunk(ChunkClaim::new(self, index, raw, hold)))
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
        self.pair.payload.refuse_inherited(&self.home)?;
        let hold = self.pair.payload.hold(&self.pair.partial, LockKind::Shared, cell(index), Wait::Forever);
        let hold = hold.map_err(|error| error.about(&self.home.location))?;
        let raw = view::raw_mut(&self.pair.payload, &self.layout).ok_or_else(|| self.discarded())?;
        Ok(Some(ChunkGuard::new(self, index, raw, hold)))
    }

    /// Returns how many chunks are finished.
    pub fn progress(&self) -> RenderProgress {
        RenderProgress { done: self.pair.ledger.done(), total: self.grid.len() }
    }

    /// Waits until every chunk is finished, whoever paints them.
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
    /// Every worker may call it; whoever comes second gets the same array, while it has its name.
    ///
    /// # Errors
    ///
    /// The error gives the buffer back. [`Incomplete`](Error::Incomplete): chunks are missing.
    /// [`AlreadyExists`](Error::AlreadyExists): meanwhile something else has the name.
    /// [`Unlinked`](Error::Unlinked): the buffer was discarded, or finished by another and its name taken away since.
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
            Err(error) => return Err(error),
        }
        self.pair.ledger.unlink()?;
        Ok(())
    }

    /// Removes the unfinished buffer; other painters notice at their next claim.
    ///
    /// # Errors
    ///
    /// [`PermissionDenied`](Error::PermissionDenied).
    pub fn discard(self) -> Result<()> {
        let payload = || self.home.backend.unlink(&self.pair.partial.location, Some(self.pair.payload.id()));
        self.pair.ledger.unlink().and_then(|_| payload()).map(drop).map_err(|error| error.about(&self.home.location))
    }

    pub(super) fn set_done(&self, index: usize) {
        self.pair.ledger.set_done(index);
    }

    fn discarded(&self) -> Error {
        Error::Unlinked { location: self.home.location.to_string() }
    }
}
