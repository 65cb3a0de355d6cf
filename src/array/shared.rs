//! `SharedArray`: the array that processes share by name.

use std::fs::File;
use std::ops::Deref;

use ndarray::{ArrayRef, ArrayView, ArrayViewMut, Dimension, ShapeBuilder};

use super::layout::shape_like;
use super::memory::ArrayMemory;
use super::{CreateOptions, Element, Layout, OpenOptions, view};
use crate::backend::{IntoLocation, Location};
use crate::error::Result;
use crate::segment::{CountedSegment, Segment};

/// A typed n-dimensional array in shared memory, attached under a name.
///
/// The file holds the elements and nothing else, `len * size_of::<T>()` bytes from offset 0, so any program that can
/// map a file can use it. Type, shape and order are stored beside the bytes, where the file system supports it: see
/// [`Description`](super::Description).
///
/// The handle holds no descriptor (on overlayfs: one). Dropping it detaches. The name and the bytes stay until a
/// process [unlinks](crate::unlink) the name. After that no new guard is available, unless the array
/// keeps its descriptor: [`CreateOptions::keep_fd`], [`OpenOptions::keep_fd`].
///
/// A [`RefcountedArray`](crate::RefcountedArray) dereferences to this type for its guards, locks and views. Its file
/// has a trailer behind the elements, its name is removed with its last handle, and [`location`](Self::location) is
/// then the name that it has or would get.
///
/// Elements are accessed through guards, [`read`](Self::read) and [`write`](Self::write). They hold kernel locks, which
/// are released when the process dies. Access without a guard is `unsafe`.
///
/// ```
/// use ndarray_shm::{unlink, SharedArray};
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
    memory: ArrayMemory,
    layout: Layout<T, D>,
}

impl<T: Element, D: Dimension> SharedArray<T, D> {
    /// Creates an array of zeros under a name that must be free, and reserves all its memory.
    ///
    /// `shape` is any shape that ndarray accepts: `(10, 10, 10)`, or `(10, 10, 10).f()` for Fortran order.
    /// [`CreateOptions`] changes the other defaults, such as directory and permissions.
    ///
    /// # Errors
    ///
    /// - [`AlreadyExists`](crate::ErrorKind::AlreadyExists): the name is taken.
    /// - [`NoSpace`](crate::ErrorKind::NoSpace): there is not enough memory; none was reserved.
    /// - [`InvalidLocation`](crate::ErrorKind::InvalidLocation), [`Reserved`](crate::ErrorKind::Reserved): the location
    ///   is not a valid name.
    /// - [`TooLarge`](crate::ErrorKind::TooLarge): the array fits no address space.
    /// - those of [`default_directory`](crate::default_directory).
    pub fn create(location: impl IntoLocation, shape: impl ShapeBuilder<Dim = D>) -> Result<Self> {
        CreateOptions::new().create(location, shape)
    }

    /// Creates an array and lets `fill` write it before other processes can see it.
    ///
    /// If `fill` panics, no array is created.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create).
    pub fn create_with(
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = D>,
        fill: impl FnOnce(ArrayViewMut<'_, T, D>),
    ) -> Result<Self> {
        CreateOptions::new().create_with(location, shape, fill)
    }

    /// Creates a copy of an array. Fortran order is kept; every other order of axes becomes C.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create).
    pub fn from_array(location: impl IntoLocation, array: &ArrayRef<T, D>) -> Result<Self> {
        Self::create_with(location, shape_like(array), |mut view| view.assign(array))
    }

    /// Attaches to an existing array, for reading and writing.
    ///
    /// Shape and type must be those that the array was created with: they must give the file's size, and agree with the
    /// array's [description](super::Description), if it has one. Axes of length 1 are ignored and neighbouring axes may
    /// be merged. [`reinterpret`](OpenOptions::reinterpret) skips the comparison with the description.
    ///
    /// Memory is reserved for the holes of a sparse file, unless [`leave_holes`](OpenOptions::leave_holes) is set.
    /// [`OpenOptions`] changes the other defaults, such as attaching for reading only.
    ///
    /// For access that lasts, open an [`ArrayReader`](super::ArrayReader) or [`ArrayWriter`](super::ArrayWriter)
    /// instead.
    ///
    /// # Errors
    ///
    /// - [`NotFound`](crate::ErrorKind::NotFound): no file has the name. [`Elsewhere`](crate::ErrorKind::Elsewhere):
    ///   nor here, but one in the other of the two usual places, `/dev/shm` and the emulated directory, has it.
    ///   [`is_not_found`](crate::Error::is_not_found) is true for both.
    /// - [`NotAnArray`](crate::ErrorKind::NotAnArray): it is a directory, a link or another special file.
    /// - [`SizeMismatch`](crate::ErrorKind::SizeMismatch): shape and type need another number of bytes.
    /// - [`DescriptionMismatch`](crate::ErrorKind::DescriptionMismatch): the description has another type, shape or
    ///   order.
    /// - [`Reserved`](crate::ErrorKind::Reserved): the file is bookkeeping of this crate.
    /// - [`PermissionDenied`](crate::ErrorKind::PermissionDenied): this user may not open the file, or not for writing.
    /// - [`NoSpace`](crate::ErrorKind::NoSpace): there is not enough memory to fill the holes.
    pub fn open(location: impl IntoLocation, shape: impl ShapeBuilder<Dim = D>) -> Result<Self> {
        OpenOptions::new().open(location, shape)
    }

    /// Attaches to an existing array, for reading and writing, with the shape and order of its
    /// [description](super::Description).
    ///
    /// `D` is [`IxDyn`](type@ndarray::IxDyn) for any number of axes, or a type with a fixed number of axes. The element
    /// type must be the described one; [`Directory::description`](crate::Directory::description) returns it.
    ///
    /// # Examples
    ///
    /// ```
    /// use ndarray_shm::ndarray::{IxDyn, ShapeBuilder};
    /// use ndarray_shm::{unlink, Error, ErrorKind, Order, SharedArray};
    ///
    /// SharedArray::<u16, _>::create("open-dyn-example", (3, 4).f())?;
    /// match SharedArray::<u16, IxDyn>::open_dyn("open-dyn-example") {
    ///     Ok(array) => assert_eq!((array.shape(), array.order()), (&[3, 4][..], Order::F)),
    ///     Err(Error { kind: ErrorKind::NotDescribed, .. }) => {} // Windows, and tmpfs before Linux 6.6
    ///     Err(error) => return Err(error),
    /// }
    /// unlink("open-dyn-example")?;
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`NotDescribed`](crate::ErrorKind::NotDescribed): the array has no description, or one that is malformed or
    ///   for another number of bytes.
    /// - [`DTypeMismatch`](crate::ErrorKind::DTypeMismatch): the elements have another type.
    /// - [`ShapeMismatch`](crate::ErrorKind::ShapeMismatch): the number of axes differs from that of `D`.
    /// - those of [`open`](Self::open).
    pub fn open_dyn(location: impl IntoLocation) -> Result<Self> {
        OpenOptions::new().open_dyn(location)
    }

    pub(crate) fn of(memory: impl Into<ArrayMemory>, layout: Layout<T, D>) -> Self {
        Self { memory: memory.into(), layout }
    }

    pub(super) fn memory(&self) -> &ArrayMemory {
        &self.memory
    }

    pub(crate) fn segment(&self) -> &Segment {
        self.memory.segment()
    }

    /// Returns the handle of a counted array.
    pub(crate) fn counted(&self) -> &CountedSegment {
        self.memory.counted()
    }

    pub(crate) fn counted_mut(&mut self) -> &mut CountedSegment {
        self.memory.counted_mut()
    }

    pub(crate) fn into_counted(self) -> CountedSegment {
        self.memory.into_counted()
    }

    /// Returns the parts of a plain array: memory and layout.
    pub(crate) fn into_parts(self) -> (Segment, Layout<T, D>) {
        (self.memory.into_plain(), self.layout)
    }

    /// Closes the descriptor that a pool needs to use the memory of a plain array again, unless something else needs
    /// it.
    pub(crate) fn without_recycling(self) -> Self {
        let (mut segment, layout) = self.into_parts();
        segment.stop_recycling();
        Self::of(segment, layout)
    }

    /// Returns the name under which the array was attached. The name may have been removed since.
    pub fn location(&self) -> &Location {
        self.segment().location()
    }

    /// Opens a descriptor that keeps the array attached, for a library that maps the file by itself, such as torch.
    ///
    /// The descriptor has an open file description of its own with a lease of its own. The lease lasts until the last
    /// duplicate of the descriptor is closed, in whatever process: until then the array counts as attached, and no
    /// [`Pool`](crate::Pool) uses the memory again, also after this handle was dropped. The elements are the whole
    /// file, except for counted arrays. The descriptor is open for writing unless the array was opened read-only.
    ///
    /// Close the descriptor and its duplicates, and do not unlock: unlocking one ends the lease of all.
    ///
    /// Of a [counted](crate::RefcountedArray) array, the elements are at the beginning of the file, and the library
    /// must map no more than those: the bytes behind them are the trailer. The descriptor counts as one more handle, so
    /// that the array keeps its name until the last duplicate is closed. The kernel closes it without telling this
    /// crate, so the handle stays counted, like that of a killed process: the array is then removed by the next handle
    /// that is dropped, by [`reclaim`](crate::counted::reclaim()), by `ndshm gc` or by the manager. An array without a
    /// name leaves nothing to remove. A frozen array's descriptor is not open for writing.
    ///
    /// # Safety
    ///
    /// - What reads or writes through the descriptor, a duplicate or a mapping of it takes no lock. The caller ensures
    ///   that it does so only when no other code reads or writes the same elements.
    /// - When the array is frozen, nothing writes through the descriptor any more.
    /// - The length of the file is not changed.
    ///
    /// # Errors
    ///
    /// - [`Unsupported`](crate::ErrorKind::Unsupported): off Linux, and in a forked child if its parent can recycle the
    ///   memory.
    /// - [`Unlinked`](crate::ErrorKind::Unlinked): the name was removed, or now belongs to another array. An array that
    ///   [keeps its descriptor](crate::OpenOptions::keep_fd) needs no name for this.
    /// - [`SizeMismatch`](crate::ErrorKind::SizeMismatch): another program changed the length of the file.
    /// - [`TooManyHandles`](crate::ErrorKind::TooManyHandles): 2^32 - 1 handles of the counted array are counted.
    /// - [`TooManyOpenFiles`](crate::ErrorKind::TooManyOpenFiles): there is no descriptor left.
    ///
    /// # Examples
    ///
    /// ```
    /// use ndarray_shm::{Error, ErrorKind, SharedArray, attached, unlink};
    ///
    /// let array = SharedArray::<u8, _>::create("leased-descriptor-example", 10)?;
    /// // SAFETY: the elements are not used.
    /// match unsafe { array.leased_descriptor() } {
    ///     Ok(descriptor) => {
    ///         drop(array);
    ///         assert!(attached("leased-descriptor-example")?);
    ///         drop(descriptor);
    ///         assert!(!attached("leased-descriptor-example")?);
    ///     }
    ///     Err(Error { kind: ErrorKind::Unsupported { .. }, .. }) => {} // off Linux
    ///     Err(error) => return Err(error),
    /// }
    /// unlink("leased-descriptor-example")?;
    /// # Ok::<(), Error>(())
    /// ```
    #[allow(unsafe_code)]
    pub unsafe fn leased_descriptor(&self) -> Result<File> {
        self.memory.leased_descriptor()
    }

    /// Returns a view of the elements, without a lock.
    ///
    /// # Safety
    ///
    /// For as long as the view lives,
    /// - no process and no thread writes to the elements, and
    /// - no process shortens the file.
    #[allow(unsafe_code)]
    pub unsafe fn view(&self) -> ArrayView<'_, T, D> {
        // SAFETY: the caller promises that nothing writes to the elements and that the file keeps its length.
        unsafe { view::shared(self.segment(), &self.layout) }
    }
}

impl<T, D> Deref for SharedArray<T, D> {
    type Target = Layout<T, D>;

    fn deref(&self) -> &Self::Target {
        &self.layout
    }
}
