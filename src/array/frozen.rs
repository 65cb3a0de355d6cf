//! Frozen arrays: the one kind of shared memory that is safe to read without any lock, because the kernel refuses every
//! change to it.

use std::fmt;
use std::fs::File;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ndarray::{ArrayRef, ArrayView, ArrayViewMut, Dimension, ShapeBuilder};

use super::draft::NAMELESS;
use super::{Element, Layout, Order, view};
use crate::backend::{self, PageUse, Pages};
use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::os;
use crate::segment::Mapped;

/// How long sealing waits for a writable mapping that is about to disappear.
const SEAL_WAIT: Duration = Duration::from_secs(5);

/// An array in shared memory that never has a name, to be filled and then sealed.
///
/// [`Draft::new_sealable`](super::Draft::new_sealable) creates one. No other process can reach it, so filling it is
/// safe. It holds one descriptor. If it is dropped, or its process killed, nothing is left behind.
#[derive(Debug)]
pub struct SealableDraft<T, D> {
    mapped: Mapped,
    file: File,
    layout: Layout<T, D>,
}

impl<T, D> Deref for SealableDraft<T, D> {
    type Target = Layout<T, D>;

    fn deref(&self) -> &Self::Target {
        &self.layout
    }
}

impl<T: Element, D: Dimension> SealableDraft<T, D> {
    /// Creates an array of zeros and reserves all its memory.
    ///
    /// # Errors
    ///
    /// - [`Unsupported`](ErrorKind::Unsupported) off Linux.
    /// - [`TooLarge`](ErrorKind::TooLarge): the array fits no address space.
    /// - [`NoSpace`](ErrorKind::NoSpace): there is not enough memory.
    pub fn new(shape: impl ShapeBuilder<Dim = D>) -> Result<Self> {
        let layout = Layout::new(shape)?;
        let needed = layout.bytes();
        let no_space = |room: os::Room| {
            let (location, advice) =
                (NAMELESS.to_owned(), backend::advice(room.bound, backend::Place::Nameless, Path::new(NAMELESS)));
            ErrorKind::NoSpace { needed, available: room.bytes, in_flight: 0, advice }.at(location)
        };
        let largest = os::largest_file();
        if needed > largest {
            return Err(no_space(os::Room { bytes: largest, bound: os::Bound::FileSize }));
        }
        if let Some(room) = os::available_memory().filter(|room| room.bytes < needed) {
            return Err(no_space(room));
        }
        let file = os::create_sealable().map_err(|error| match error.kind() {
            std::io::ErrorKind::Unsupported => ErrorKind::Unsupported {
                what: "memory cannot be sealed on this platform; publish the array and share it with read guards"
                    .into(),
            }
            .at(NAMELESS),
            _ => Error::os("make sealable memory", NAMELESS, error),
        })?;
        file.set_len(needed).and_then(|()| backend::reserve(&file, needed, Pages::Auto)).map_err(|error| {
            if os::is_out_of_room(&error) {
                no_space(os::Room { bytes: 0, bound: os::Bound::Machine })
            } else {
                Error::os("reserve memory", NAMELESS, error)
            }
        })?;
        let mapped = Mapped::of_draft(&file, needed, NAMELESS)?;
        Ok(Self { mapped, file, layout })
    }

    /// Returns a view of the elements.
    ///
    /// # Panics
    ///
    /// Panics in a forked child: the draft belongs to its parent.
    #[allow(unsafe_code)]
    pub fn view(&self) -> ArrayView<'_, T, D> {
        view::require_creator(&self.mapped);
        // SAFETY: no other process holds this descriptor. Within this process, the borrow of `self` excludes writers.
        unsafe { view::shared(&self.mapped, &self.layout) }
    }

    /// Returns a mutable view of the elements.
    ///
    /// # Panics
    ///
    /// Panics in a forked child: the draft belongs to its parent.
    #[allow(unsafe_code)]
    pub fn view_mut(&mut self) -> ArrayViewMut<'_, T, D> {
        view::require_creator(&self.mapped);
        // SAFETY: no other process holds this descriptor. Within this process, `&mut self` excludes every other access.
        let view = unsafe { view::exclusive(&self.mapped, &self.layout) };
        view.expect("a draft is mapped for writing")
    }

    /// Returns on what kind of pages the elements are; see [`SharedArray::pages`](super::SharedArray::pages).
    ///
    /// # Errors
    ///
    /// [`Os`](ErrorKind::Os): /proc is not mounted.
    pub fn pages(&self) -> Result<PageUse> {
        self.mapped.pages(NAMELESS)
    }

    /// Seals the array: from then on no process, this one included, can change it.
    ///
    /// # Errors
    ///
    /// [`Os`](ErrorKind::Os): the kernel refused for 5 seconds, because a debugger or another process maps the memory
    /// for writing through /proc. The array is lost.
    pub fn freeze(self) -> Result<FrozenArray<T, D>> {
        let Self { mapped, file, layout, .. } = self;
        drop(mapped); // the kernel refuses to seal memory that is mapped for writing
        // If another thread is spawning a process, the child keeps a copy of the mapping until it calls exec. So retry.
        let mut backoff = Backoff::new(SEAL_WAIT);
        while let Err(error) = os::seal(&file) {
            if error.kind() != std::io::ErrorKind::ResourceBusy || !backoff.pause() {
                return Err(Error::os("seal", NAMELESS, error));
            }
        }
        FrozenArray::of_sealed(file, layout)
    }
}

/// An array that can never change, in memory that any number of processes may map.
///
/// A clone is cheap and shares the memory and the descriptor. To share the array with another process, send its
/// descriptor ([`file`](Self::file)) over a Unix socket or let a child inherit it, and map it there with
/// [`from_fd`](Self::from_fd). The memory is freed with the last mapping and descriptor. There is no name, so nothing
/// can be left behind.
///
/// Dereferences to ndarray's array, so every reading method works on it directly.
///
/// ```
/// # #[cfg(target_os = "linux")] {
/// use ndarray_shm::FrozenArray;
///
/// let squares = FrozenArray::<u32, _>::create_with(5, |mut view| {
///     for (i, value) in view.iter_mut().enumerate() {
///         *value = (i * i) as u32;
///     }
/// })?;
/// assert_eq!(squares[3], 9);
/// # }
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
pub struct FrozenArray<T: Element, D: Dimension> {
    frozen: Arc<Frozen<T, D>>,
}

/// The view is valid only as long as the mapping beside it, whatever its lifetime says, and is never handed out with
/// that lifetime.
struct Frozen<T: Element, D: Dimension> {
    view: ArrayView<'static, T, D>,
    layout: Layout<T, D>,
    file: Option<File>,
    mapped: Mapped,
}

impl<T: Element, D: Dimension> FrozenArray<T, D> {
    /// Creates an array, lets `fill` write it, and freezes it.
    ///
    /// # Errors
    ///
    /// As [`SealableDraft::new`] and [`SealableDraft::freeze`].
    pub fn create_with(shape: impl ShapeBuilder<Dim = D>, fill: impl FnOnce(ArrayViewMut<'_, T, D>)) -> Result<Self> {
        let mut draft = SealableDraft::new(shape)?;
        fill(draft.view_mut());
        draft.freeze()
    }

    /// Creates a frozen copy of an array. Fortran order is kept; every other order of axes becomes C.
    ///
    /// # Errors
    ///
    /// As [`create_with`](Self::create_with).
    pub fn from_array(array: &ArrayRef<T, D>) -> Result<Self> {
        Self::create_with(super::layout::shape_like(array), |mut view| view.assign(array))
    }

    /// Maps sealed memory, such as another process's frozen array, by its descriptor.
    ///
    /// The descriptor is not trusted: its seals and its size are read from the kernel and checked.
    ///
    /// # Errors
    ///
    /// - [`Unsupported`](ErrorKind::Unsupported): the memory is not sealed against writing, shrinking and growing.
    /// - [`SizeMismatch`](ErrorKind::SizeMismatch): shape and type need another number of bytes.
    pub fn from_fd(file: impl Into<File>, shape: impl ShapeBuilder<Dim = D>) -> Result<Self> {
        Self::of_sealed(file.into(), Layout::new(shape)?)
    }

    #[allow(unsafe_code)]
    pub(crate) fn of_sealed(file: File, layout: Layout<T, D>) -> Result<Self> {
        if !os::is_sealed(&file) {
            return Err(ErrorKind::Unsupported {
                what:
                    "the descriptor is not sealed against writing, shrinking and growing (a memfd with F_SEAL_WRITE, \
                       F_SEAL_SHRINK and F_SEAL_GROW); ask its creator to freeze it"
                        .into(),
            }
            .at(NAMELESS));
        }
        let found = os::facts(&file).map_err(|error| Error::os("look at", NAMELESS, error))?.length;
        let expected = layout.bytes();
        if found != expected {
            return Err(ErrorKind::SizeMismatch { expected, found, description: None }.at(NAMELESS));
        }
        let mapped = Mapped::of_sealed(&file, found, NAMELESS)?;
        // SAFETY: the memory is sealed: the kernel lets no process change the bytes or their number.
        let view = unsafe { view::shared::<T, D>(&mapped, &layout) };
        // SAFETY: the mapping does not move with `mapped` and lives as long as the value that is built here. No view
        // with this lifetime is handed out.
        let view = unsafe { view.raw_view().deref_into_view() };
        Ok(Self { frozen: Arc::new(Frozen { view, layout, file: Some(file), mapped }) })
    }

    /// Returns a view of the elements. No lock is needed.
    pub fn view(&self) -> ArrayView<'_, T, D> {
        self.frozen.view.view()
    }

    /// Returns on what kind of pages the elements are; see [`SharedArray::pages`](super::SharedArray::pages).
    ///
    /// # Errors
    ///
    /// [`Os`](ErrorKind::Os): /proc is not mounted.
    pub fn pages(&self) -> Result<PageUse> {
        self.frozen.mapped.pages(NAMELESS)
    }

    /// Returns the order of the axes in memory.
    pub fn order(&self) -> Order {
        self.frozen.layout.order()
    }

    /// Returns the descriptor, to send to other processes or to let children inherit; `None` after
    /// [`without_fd`](Self::without_fd).
    pub fn file(&self) -> Option<&File> {
        self.frozen.file.as_ref()
    }

    /// Closes the descriptor. The array then costs none and cannot be sent any more.
    ///
    /// If clones exist, they share the descriptor, and it stays open.
    pub fn without_fd(mut self) -> Self {
        if let Some(frozen) = Arc::get_mut(&mut self.frozen) {
            frozen.file = None;
        }
        self
    }
}

impl<T: Element, D: Dimension> Deref for FrozenArray<T, D> {
    type Target = ArrayRef<T, D>;

    fn deref(&self) -> &Self::Target {
        &self.frozen.view
    }
}

impl<T: Element, D: Dimension> Clone for FrozenArray<T, D> {
    fn clone(&self) -> Self {
        Self { frozen: Arc::clone(&self.frozen) }
    }
}

impl<T: Element, D: Dimension> fmt::Debug for FrozenArray<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrozenArray")
            .field("dtype", &T::DTYPE)
            .field("shape", &self.frozen.layout.shape())
            .field("order", &self.frozen.layout.order())
            .finish_non_exhaustive()
    }
}
