//! The array that processes share by name.

use std::marker::PhantomData;

use ndarray::{ArrayRef, ArrayView, ArrayViewMut, Dimension, ShapeBuilder};

use super::access::guarded;
use super::layout::{Layout, shape_like};
use super::{AttachOptions, Attachable, CreateOptions, Element, view};
use crate::backend::{Access, IntoLocation, Location};
use crate::error::{Error, Result};
use crate::os::{LockKind, LockRange};
use crate::segment::locks::{Hold, Wait};
use crate::segment::{Attach, Home, Segment};

/// A typed n-dimensional array in shared memory, attached under a name.
///
/// The file behind it holds the elements and nothing else, `len * size_of::<T>()` bytes from offset 0, so any program that
/// can map a file can use it. Type, shape and order stand beside it where the file system can ([`Description`](super::Description)). The handle holds no descriptor (on overlayfs: one). Dropping it detaches; the name and the
/// bytes stay until some process [unlinks](crate::unlink) them. After that no guard can be had, unless the array [keeps its
/// descriptor](crate::CreateOptions::keep_fd).
///
/// Access is through guards that the kernel keeps for this process and releases when it dies:
/// [`read`](Self::read), [`write`](Self::write). Everything else is `unsafe` and says why.
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
    segment: Segment,
    home: Home,
    layout: Layout<D>,
    elements: PhantomData<T>,
}

impl<T: Element, D: Dimension> SharedArray<T, D> {
    /// Creates an array of zeros under a name that must be free, and reserves all its memory.
    ///
    /// `shape` is whatever ndarray takes: `(10, 10, 10)`, or `(10, 10, 10).f()` for Fortran order. [`CreateOptions`] has everything that
    /// this decides by itself.
    ///
    /// # Errors
    ///
    /// - [`AlreadyExists`](Error::AlreadyExists): the name is taken.
    /// - [`NoSpace`](Error::NoSpace): the memory cannot be had; nothing was taken.
    /// - [`InvalidLocation`](Error::InvalidLocation), [`Reserved`](Error::Reserved): it cannot be a name.
    /// - [`TooLarge`](Error::TooLarge): no address space is large enough.
    /// - those of [`default_backend`](crate::default_backend).
    pub fn create(location: impl IntoLocation, shape: impl ShapeBuilder<Dim = D>) -> Result<Self> {
        CreateOptions::new().create(location, shape)
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
        CreateOptions::new().create_with(location, shape, fill)
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
    /// Shape and type must be those it was created with. Their product must be the file's size; and where the array
    /// [describes itself](super::Description) they are compared with that. Axes of length 1 and flattening make no difference,
    /// and [`reinterpret`](AttachOptions::reinterpret) leaves the comparison out. Holes of a file that another program made sparse are filled, unless [they are left](AttachOptions::leave_holes).
    /// [`AttachOptions`] has everything that this decides by itself, such as attaching for reading only.
    ///
    /// For access that lasts, [`ArrayReader`](super::ArrayReader) and [`ArrayWriter`](super::ArrayWriter) are opened themselves.
    ///
    /// # Errors
    ///
    /// - [`NotFound`](Error::NotFound); [`NotAnArray`](Error::NotAnArray): a directory, a link, ..
    /// - [`SizeMismatch`](Error::SizeMismatch): shape and type need another number of bytes.
    /// - [`DescriptionMismatch`](Error::DescriptionMismatch): the array says that it has another type, shape or order.
    /// - [`Reserved`](Error::Reserved): the file is this crate's own bookkeeping.
    /// - [`PermissionDenied`](Error::PermissionDenied); [`NoSpace`](Error::NoSpace) if holes cannot be filled.
    pub fn open(location: impl IntoLocation, shape: impl ShapeBuilder<Dim = D>) -> Result<Self> {
        AttachOptions::<Self>::new().open(location, shape)
    }

    /// Attaches to an array that exists, for reading and writing, with the shape and order that it [says](super::Description).
    ///
    /// `D` is [`IxDyn`](type@ndarray::IxDyn) for any number of axes, or that of a fixed number. The element type is compared;
    /// [`Directory::description`](crate::Directory::description) tells it beforehand.
    ///
    /// # Examples
    ///
    /// ```
    /// use ndarray_shm::ndarray::{IxDyn, ShapeBuilder};
    /// use ndarray_shm::{unlink, Error, Order, SharedArray};
    ///
    /// SharedArray::<u16, _>::create("open-dyn-example", (3, 4).f())?;
    /// match SharedArray::<u16, IxDyn>::open_dyn("open-dyn-example") {
    ///     Ok(array) => assert_eq!((array.shape(), array.order()), (&[3, 4][..], Order::F)),
    ///     Err(Error::NotDescribed { .. }) => {} // Windows, and tmpfs before Linux 6.6
    ///     Err(error) => return Err(error),
    /// }
    /// unlink("open-dyn-example")?;
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`NotDescribed`](Error::NotDescribed): it says nothing, or nothing that could be true of its bytes.
    /// - [`DTypeMismatch`](Error::DTypeMismatch), [`ShapeMismatch`](Error::ShapeMismatch): it has other elements, or another number of
    ///   axes than `D`.
    /// - those of [`open`](Self::open).
    pub fn open_dyn(location: impl IntoLocation) -> Result<Self> {
        AttachOptions::<Self>::new().open_dyn(location)
    }

    pub(crate) fn of(segment: Segment, home: Home, layout: Layout<D>) -> Self {
        Self { segment, home, layout, elements: PhantomData }
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Takes it apart: memory, name, layout.
    pub(crate) fn into_parts(self) -> (Segment, Home, Layout<D>) {
        (self.segment, self.home, self.layout)
    }

    /// Closes the descriptor that would be needed to use the memory again, if it is needed for nothing else.
    pub(crate) fn without_recycling(mut self) -> Self {
        self.segment.stop_recycling(&self.home.backend);
        self
    }

    fn hold(&self, kind: LockKind, range: LockRange, wait: Wait) -> Result<Hold> {
        self.segment.hold(&self.home, kind, range, wait)
    }

    fn read_only(&self) -> Error {
        self.segment.read_only(&self.home)
    }

    pub(crate) fn home(&self) -> &Home {
        &self.home
    }

    pub(crate) fn layout(&self) -> &Layout<D> {
        &self.layout
    }

    /// Returns the name under which it was attached; it may have gone since.
    pub fn location(&self) -> &Location {
        &self.home.location
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
}

guarded!(SharedArray);

#[allow(private_interfaces)] // see the trait
impl<T: Element, D: Dimension> Attachable for SharedArray<T, D> {
    fn how() -> Attach {
        Attach::new(Access::ReadWrite)
    }
}
