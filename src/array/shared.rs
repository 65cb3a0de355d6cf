//! The array that processes share by name.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use ndarray::{ArrayRef, ArrayView, ArrayViewMut, Dimension, RawArrayView, RawArrayViewMut, ShapeBuilder};

use super::layout::{Layout, Order, shape_like};
use super::{ArrayOptions, ArrayReader, ArrayWriter, CellGuard, DType, Element, ReadGuard, WriteGuard, view};
use crate::backend::lock_space::{ALL_CELLS, cell};
use crate::backend::{Access, Backend, IntoLocation, Location, PageUse};
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::os::LockKind;
use crate::segment::locks::Wait;
use crate::segment::{Home, Segment};

/// A typed n-dimensional array in shared memory, attached under a name.
///
/// The file behind it holds the elements and nothing else, `len * size_of::<T>()` bytes from offset 0, so any program that
/// can map a file can use it. The handle holds no descriptor (on overlayfs: one). Dropping it detaches; the name and the
/// bytes stay until someone [unlinks](crate::unlink) them.
///
/// Access is through guards that the kernel keeps for this process and releases when it dies:
/// [`read`](Self::read), [`write`](Self::write). Everything else is `unsafe` and says why.
///
/// ```
/// use ndarray_shm::{SharedArray, unlink};
///
/// let array = SharedArray::<u8, _>::create("shared-array-example", (10, 10, 10))?;
/// array.write()?[[1, 2, 3]] = 42;
///
/// // in another process
/// let same = SharedArray::<u8, _>::open("shared-array-example", (10, 10, 10))?;
/// assert_eq!(same.read()?[[1, 2, 3]], 42);
///
/// unlink("shared-array-example")?;
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug)]
pub struct SharedArray<T, D> {
    segment: Segment,
    home: Home,
    layout: Layout<D>,
    elements: PhantomData<T>,
}

impl<T: Element, D: Dimension> SharedArray<T, D> {
    /// Creates an array of zeros under a name that must be free, and reserves all its memory.
    ///
    /// `shape` is whatever ndarray takes: `(10, 10, 10)`, or `(10, 10, 10).f()` for Fortran order.
    ///
    /// # Errors
    ///
    /// - [`AlreadyExists`](Error::AlreadyExists): the name is taken.
    /// - [`NoSpace`](Error::NoSpace): the memory cannot be had; nothing was taken.
    /// - [`InvalidLocation`](Error::InvalidLocation), [`Reserved`](Error::Reserved): it cannot be a name.
    /// - [`TooLarge`](Error::TooLarge): no address space is large enough.
    /// - those of [`default_backend`](crate::default_backend).
    pub fn create(location: impl IntoLocation, shape: impl ShapeBuilder<Dim = D>) -> Result<Self> {
        ArrayOptions::new().create(location, shape)
    }

    /// Creates an array and lets `fill` write it before anyone else can see it.
    ///
    /// If `fill` panics, nothing was created.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create).
    pub fn create_with(
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = D>,
        fill: impl FnOnce(ArrayViewMut<'_, T, D>),
    ) -> Result<Self> {
        ArrayOptions::new().create_with(location, shape, fill)
    }

    /// Creates a copy of an array; Fortran order is kept, every other order of axes becomes C.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create).
    pub fn from_array(location: impl IntoLocation, array: &ArrayRef<T, D>) -> Result<Self> {
        Self::create_with(location, shape_like(array), |mut view| view.assign(array))
    }

    /// Attaches to an array that exists, for reading and writing.
    ///
    /// The file knows neither shape nor type: both must be those it was created with, and their product must be its size.
    /// Holes of a file that another program made sparse are filled.
    ///
    /// # Errors
    ///
    /// - [`NotFound`](Error::NotFound); [`NotAnArray`](Error::NotAnArray): a directory, a link, ..
    /// - [`SizeMismatch`](Error::SizeMismatch): shape and type need another number of bytes.
    /// - [`Reserved`](Error::Reserved): the file is this crate's own bookkeeping.
    /// - [`PermissionDenied`](Error::PermissionDenied); [`NoSpace`](Error::NoSpace) if holes cannot be filled.
    pub fn open(location: impl IntoLocation, shape: impl ShapeBuilder<Dim = D>) -> Result<Self> {
        ArrayOptions::new().open(location, shape)
    }

    /// Attaches for reading only: needs no permission to write, and cannot write by accident.
    ///
    /// One exception: where reading a hole takes memory (in /dev/shm), the holes of a sparse file are filled, which needs
    /// that permission; [`sparse(true)`](ArrayOptions::sparse) leaves them.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_readonly(location: impl IntoLocation, shape: impl ShapeBuilder<Dim = D>) -> Result<Self> {
        ArrayOptions::new().open_readonly(location, shape)
    }

    /// Waits until nobody writes, then attaches for reading in a way that keeps writers out for as long as the value lives.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open), and [`WouldDeadlock`](Error::WouldDeadlock).
    pub fn open_reader(location: impl IntoLocation, shape: impl ShapeBuilder<Dim = D>) -> Result<ArrayReader<T, D>> {
        ArrayOptions::new().open_reader(location, shape)
    }

    /// Waits until nobody reads or writes, then attaches in a way that keeps everyone else out for as long as the value
    /// lives.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open), and [`WouldDeadlock`](Error::WouldDeadlock).
    pub fn open_writer(location: impl IntoLocation, shape: impl ShapeBuilder<Dim = D>) -> Result<ArrayWriter<T, D>> {
        ArrayOptions::new().open_writer(location, shape)
    }

    /// Returns options for everything that `create` and `open` decide by themselves.
    pub fn options() -> ArrayOptions<T, D> {
        ArrayOptions::new()
    }

    pub(crate) fn of(segment: Segment, home: Home, layout: Layout<D>) -> Self {
        Self { segment, home, layout, elements: PhantomData }
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    pub(crate) fn into_segment(self) -> Segment {
        self.segment
    }

    /// Takes it apart: memory, name, layout.
    pub(crate) fn into_parts(self) -> (Segment, Home, Layout<D>) {
        (self.segment, self.home, self.layout)
    }

    /// Closes the descriptor that would be needed to use the memory again, if it is needed for nothing else.
    pub(crate) fn without_recycling(mut self) -> Self {
        self.segment.forget_recycling(&*self.home.backend);
        self
    }

    pub(crate) fn home(&self) -> &Home {
        &self.home
    }

    pub(crate) fn layout(&self) -> &Layout<D> {
        &self.layout
    }

    /// Returns the lengths of the axes.
    pub fn shape(&self) -> &[usize] {
        self.layout.dim.slice()
    }

    /// Returns the lengths of the axes in ndarray's own type.
    pub fn raw_dim(&self) -> D {
        self.layout.dim.clone()
    }

    /// Returns the order of the axes in memory.
    pub fn order(&self) -> Order {
        self.layout.order
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.layout.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.layout.len == 0
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> DType {
        T::DTYPE
    }

    /// Returns the name under which it was attached.
    ///
    /// The name may have gone since. (A counted array that has none yet: the name it would get.)
    pub fn location(&self) -> Option<&Location> {
        Some(&self.home.location)
    }

    /// Returns where it lives.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.home.backend
    }

    /// Whether it was attached for reading only.
    pub fn is_readonly(&self) -> bool {
        self.segment.access() == Access::Read
    }

    /// Whether the segment has holes: memory that is taken only when it is touched, and may then not be there.
    ///
    /// # Errors
    ///
    /// [`Unlinked`](Error::Unlinked): the name has gone, and with it the way to ask.
    pub fn is_sparse(&self) -> Result<bool> {
        let facts = self.segment.facts(&self.home)?;
        Ok(facts.allocated < facts.length)
    }

    /// Tells on what pages the elements are, as the kernel says: whether [`Pages`](crate::Pages) were had.
    ///
    /// Not for every day: a page of each window that could be a huge one is mapped, if it has memory, and the kernel goes through
    /// all pages of this process that are mapped before these, some milliseconds for each GiB of base pages. Off Linux
    /// everything is on base pages.
    ///
    /// # Errors
    ///
    /// [`Os`](Error::Os): /proc is not mounted.
    pub fn pages(&self) -> Result<PageUse> {
        self.segment.pages(self.home.location.as_str())
    }

    /// Waits for reading access.
    ///
    /// Any number of readers share the array; a waiting writer is let in before new readers.
    ///
    /// # Errors
    ///
    /// - [`Unlinked`](Error::Unlinked): the name has gone or means something else by now.
    /// - [`WouldDeadlock`](Error::WouldDeadlock): this thread itself holds a write guard, writer or claim.
    /// - [`SizeMismatch`](Error::SizeMismatch): another program changed the length of the file.
    /// - [`TooManyOpenFiles`](Error::TooManyOpenFiles): a guard needs a descriptor.
    pub fn read(&self) -> Result<ReadGuard<'_, T, D>> {
        self.reading(Wait::Forever)
    }

    /// Takes reading access if it can be had at once.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](Error::WouldBlock), and those of [`read`](Self::read).
    pub fn try_read(&self) -> Result<ReadGuard<'_, T, D>> {
        self.reading(Wait::No)
    }

    /// Waits for reading access, but no longer than this.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](Error::TimedOut), and those of [`read`](Self::read) but `WouldDeadlock`.
    pub fn read_timeout(&self, limit: Duration) -> Result<ReadGuard<'_, T, D>> {
        self.reading(Wait::For(limit))
    }

    /// Waits for writing access, alone.
    ///
    /// # Errors
    ///
    /// [`PermissionDenied`](Error::PermissionDenied) if it was attached read-only, and those of [`read`](Self::read).
    pub fn write(&self) -> Result<WriteGuard<'_, T, D>> {
        self.writing(Wait::Forever)
    }

    /// Takes writing access if it can be had at once.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](Error::WouldBlock), and those of [`write`](Self::write).
    pub fn try_write(&self) -> Result<WriteGuard<'_, T, D>> {
        self.writing(Wait::No)
    }

    /// Waits for writing access, but no longer than this.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](Error::TimedOut), and those of [`write`](Self::write) but `WouldDeadlock`.
    pub fn write_timeout(&self, limit: Duration) -> Result<WriteGuard<'_, T, D>> {
        self.writing(Wait::For(limit))
    }

    /// Waits for the cell of this number, but no longer than this.
    ///
    /// An array has a cell for every number, however many elements; what a number means, its users agree on. The kernel frees a cell
    /// with its holder. A cell keeps out whoever wants the same one, reads or writes, and nobody who has another: so a name that is
    /// [removed](Self::unlink) under a [write guard](Self::write) is never one under which somebody has a cell.
    ///
    /// # Errors
    ///
    /// As [`write_timeout`](Self::write_timeout).
    pub fn lock_cell(&self, number: u32, limit: Duration) -> Result<CellGuard> {
        self.segment.hold(&self.home, LockKind::Exclusive, cell(number as usize), Wait::For(limit)).map(CellGuard::new)
    }

    #[allow(unsafe_code)]
    fn reading(&self, wait: Wait) -> Result<ReadGuard<'_, T, D>> {
        let hold = self.segment.hold(&self.home, LockKind::Shared, ALL_CELLS, wait)?;
        // SAFETY: the hold has all cells read-locked, so that no guard, claim or writer of any process writes while it
        // lives; the guard keeps the two together.
        let view = unsafe { view::shared(&self.segment, &self.layout) };
        Ok(ReadGuard::new(view, hold))
    }

    #[allow(unsafe_code)]
    fn writing(&self, wait: Wait) -> Result<WriteGuard<'_, T, D>> {
        let hold = self.segment.hold(&self.home, LockKind::Exclusive, ALL_CELLS, wait)?;
        // SAFETY: the hold has all cells write-locked, so that no guard or claim of any process or thread, nor another of
        // this handle, looks while it lives; the guard keeps the two together.
        let view = unsafe { view::exclusive(&self.segment, &self.layout) };
        view.map(|view| WriteGuard::new(view, hold)).ok_or_else(|| self.segment.read_only(&self.home))
    }

    /// Looks at the elements without a lock.
    ///
    /// # Safety
    ///
    /// For as long as the view lives,
    /// - no process and no thread writes to the elements, and
    /// - no process shortens the file.
    #[allow(unsafe_code)]
    pub unsafe fn view(&self) -> ArrayView<'_, T, D> {
        // SAFETY: the caller's promise.
        unsafe { view::shared(&self.segment, &self.layout) }
    }

    /// Looks at and writes to the elements without a lock.
    ///
    /// # Errors
    ///
    /// [`PermissionDenied`](Error::PermissionDenied) if it was attached read-only.
    ///
    /// # Safety
    ///
    /// For as long as the view lives,
    /// - no process and no thread reads or writes the elements through anything else, another view of this handle
    ///   included, and
    /// - no process shortens the file.
    #[allow(unsafe_code)]
    #[allow(clippy::mut_from_ref)] // what others may do meanwhile is exactly what the caller promises
    pub unsafe fn view_mut(&self) -> Result<ArrayViewMut<'_, T, D>> {
        // SAFETY: the caller's promise.
        let view = unsafe { view::exclusive(&self.segment, &self.layout) };
        view.ok_or_else(|| self.segment.read_only(&self.home))
    }

    /// Returns a view whose elements are reached by pointer only, for code that brings its own synchronisation.
    pub fn raw_view(&self) -> RawArrayView<T, D> {
        view::raw(&self.segment, &self.layout)
    }

    /// Returns a view whose elements are written by pointer only; `None` if it was attached read-only.
    pub fn raw_view_mut(&self) -> Option<RawArrayViewMut<T, D>> {
        view::raw_mut(&self.segment, &self.layout)
    }

    /// Removes the name of this very array; every attachment keeps the bytes.
    ///
    /// `Ok(false)`: the name had gone, or meant another array already.
    ///
    /// # Errors
    ///
    /// [`PermissionDenied`](Error::PermissionDenied).
    pub fn unlink(&self) -> Result<bool> {
        self.home.backend.unlink(&self.home.location, Some(self.segment.id()))
    }
}
