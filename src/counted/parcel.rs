//! What an array is on the way between two channels: what it says about itself, and a handle or a descriptor.

use std::fs::File;

use ndarray::Dimension;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::handle::{Handle, address, backend_at, path_of_text, path_to_text};
use super::refcounted::{RefcountedArray, reader_of_descriptor};
use super::strategy::SharingStrategy;
use crate::array::layout::Layout;
use crate::array::{ArrayReader, AttachOptions, DType, Element, FrozenArray, NAMELESS, Order};
use crate::backend::{Access, Directory, Location};
use crate::error::{Error, IntoError, Result};
use crate::os;
use crate::segment::Home;
use crate::segment::locks::Wait;

/// One array in the body of a message.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Parcel {
    dtype: DType,
    shape: Vec<usize>,
    order: Order,
    #[serde(flatten)]
    way: Way,
}

/// How it travels.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "strategy", rename_all = "snake_case")]
enum Way {
    FileSystem {
        handle: Handle,
    },
    /// The directory is written as in a handle.
    FileDescriptor {
        backend: String,
        directory: String,
        location: Location,
    },
    Sealed {},
}

impl Parcel {
    fn new<T: Element>(shape: &[usize], order: Order, way: Way) -> Self {
        Self { dtype: T::DTYPE, shape: shape.to_vec(), order, way }
    }

    /// Whether a descriptor comes with it, even if the rest of it cannot be read.
    pub(super) fn comes_with_descriptor(parcel: &Value) -> bool {
        matches!(parcel.get("strategy").and_then(Value::as_str), Some("file_descriptor" | "sealed"))
    }

    /// No process will receive it.
    pub(super) fn revoke(&self) {
        if let Way::FileSystem { handle } = &self.way {
            let _it_expires_otherwise = handle.revoke();
        }
    }
}

/// What can be sent through a [`Channel`](super::Channel): counted arrays, by their own strategy or
/// [another](RefcountedArray::by), and frozen ones.
pub trait Shareable: private::Pack {}

mod private {
    use super::{File, Parcel, Result};

    /// Only arrays of this crate can be packed.
    pub trait Pack {
        /// Describes the array, and makes a handle or a descriptor of its own for the way.
        #[allow(private_interfaces)]
        fn pack(&self) -> Result<(Parcel, Option<File>)>;
    }
}

use private::Pack;

impl<T: Element, D: Dimension> Pack for RefcountedArray<T, D> {
    #[allow(private_interfaces)]
    fn pack(&self) -> Result<(Parcel, Option<File>)> {
        self.by(self.strategy()).pack()
    }
}

impl<T: Element, D: Dimension> Shareable for RefcountedArray<T, D> {}

/// An array that is to be sent by a strategy of the sender's choice, from [`RefcountedArray::by`].
#[derive(Debug)]
pub struct By<'a, T: Element, D: Dimension> {
    array: &'a RefcountedArray<T, D>,
    strategy: SharingStrategy,
}

impl<T: Element, D: Dimension> RefcountedArray<T, D> {
    /// Says by which strategy it is to be sent, whatever its own: one without a name is [published](Self::publish) first,
    /// one with a name is sent as a descriptor beside it. Nothing is copied.
    pub fn by(&self, strategy: SharingStrategy) -> By<'_, T, D> {
        By { array: self, strategy }
    }
}

impl<T: Element, D: Dimension> Pack for By<'_, T, D> {
    #[allow(private_interfaces)]
    fn pack(&self) -> Result<(Parcel, Option<File>)> {
        let array = self.array;
        let (way, file) = match self.strategy {
            SharingStrategy::FileSystem => {
                array.publish()?;
                (Way::FileSystem { handle: array.handle()? }, None)
            }
            SharingStrategy::FileDescriptor => {
                let file = array.descriptor_to_send()?;
                let Home { backend, location } = array.home();
                let ((backend, directory), location) = (address(backend), location.clone());
                (Way::FileDescriptor { backend, directory: path_to_text(&directory), location }, Some(file))
            }
        };
        Ok((Parcel::new::<T>(array.shape(), array.order(), way), file))
    }
}

impl<T: Element, D: Dimension> Shareable for By<'_, T, D> {}

impl<T: Element, D: Dimension> Pack for FrozenArray<T, D> {
    #[allow(private_interfaces)]
    fn pack(&self) -> Result<(Parcel, Option<File>)> {
        let failed = |error| Error::os("send", NAMELESS, error);
        let given_up = || unsupported("its descriptor was given up, and there is no other way to send it");
        let file = os::reopen(self.file().ok_or_else(given_up)?, false).map_err(failed)?;
        Ok((Parcel::new::<T>(self.shape(), self.order(), Way::Sealed {}), Some(file)))
    }
}

impl<T: Element, D: Dimension> Shareable for FrozenArray<T, D> {}

/// An array that has arrived, and is not attached yet.
///
/// Dropped unattached it is given up: its handle is taken back, its descriptor closed.
#[derive(Debug)]
pub struct ReceivedArray {
    parcel: Parcel,
    file: Option<File>,
    /// Whether it is still to be attached.
    pending: bool,
    /// Of the process that received it: a forked child's copy gives nothing up.
    generation: u64,
    backend: Option<Directory>,
}

impl ReceivedArray {
    pub(super) fn new(parcel: Parcel, file: Option<File>) -> Self {
        Self { parcel, file, pending: true, generation: os::fork_generation(), backend: None }
    }

    /// Returns the type of its elements, as its sender says.
    pub fn dtype(&self) -> DType {
        self.parcel.dtype
    }

    /// Returns the lengths of its axes, as its sender says.
    pub fn shape(&self) -> &[usize] {
        &self.parcel.shape
    }

    /// Returns the order of its axes in memory, as its sender says.
    pub fn order(&self) -> Order {
        self.parcel.order
    }

    /// Returns how it travelled. A frozen array travels by descriptor.
    pub fn strategy(&self) -> SharingStrategy {
        match self.parcel.way {
            Way::FileSystem { .. } => SharingStrategy::FileSystem,
            Way::FileDescriptor { .. } | Way::Sealed {} => SharingStrategy::FileDescriptor,
        }
    }

    /// Whether it is a [`FrozenArray`].
    pub fn is_sealed(&self) -> bool {
        matches!(self.parcel.way, Way::Sealed {})
    }

    /// Uses this backend instead of the one its sender names, which must be in the same directory.
    pub fn backend(mut self, backend: Directory) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Attaches it. What came by descriptor keeps one as long as it lives, for guards and to be sent on.
    ///
    /// # Errors
    ///
    /// The error gives what was received back. As [`RefcountedArray::open`] and [`Handle::attach`];
    /// [`Unsupported`](Error::Unsupported): it is a frozen array.
    pub fn attach<T: Element, D: Dimension>(self) -> Result<RefcountedArray<T, D>, IntoError<Self>> {
        self.take(|received| match &received.parcel.way {
            Way::FileSystem { handle } => {
                let mut options = AttachOptions::<RefcountedArray<_, _>>::new();
                options.backend.clone_from(&received.backend);
                options.attach(handle)
            }
            Way::FileDescriptor { .. } => {
                let (file, home) = received.descriptor()?;
                RefcountedArray::of_descriptor(file, &home, Access::ReadWrite)
            }
            Way::Sealed {} => Err(unsupported("it is a frozen array; take it with frozen()")),
        })
    }

    /// Waits until no process writes, then attaches it for reading in a way that keeps writers out for as long as the value
    /// lives. The descriptor is given up.
    ///
    /// # Errors
    ///
    /// As [`attach`](Self::attach).
    pub fn reader<T: Element, D: Dimension>(self) -> Result<ArrayReader<T, D>, IntoError<Self>> {
        self.take(|received| match &received.parcel.way {
            Way::FileSystem { handle } => {
                let mut options = AttachOptions::<ArrayReader<_, _>>::new();
                options.backend.clone_from(&received.backend);
                options.attach(handle)
            }
            Way::FileDescriptor { .. } => {
                let (file, home) = received.descriptor()?;
                reader_of_descriptor(file, &home, Wait::Forever)
            }
            Way::Sealed {} => Err(unsupported("it is a frozen array; take it with frozen()")),
        })
    }

    /// Maps a frozen array; its descriptor is kept, to be sent on ([`FrozenArray::without_fd`] gives it up).
    ///
    /// # Errors
    ///
    /// The error gives what was received back. [`Unsupported`](Error::Unsupported): it is not frozen, or not sealed by the
    /// kernel whatever its sender says; [`DTypeMismatch`](Error::DTypeMismatch), [`ShapeMismatch`](Error::ShapeMismatch),
    /// [`SizeMismatch`](Error::SizeMismatch).
    pub fn frozen<T: Element, D: Dimension>(self) -> Result<FrozenArray<T, D>, IntoError<Self>> {
        self.take(|received| {
            let (Way::Sealed {}, Some(file)) = (&received.parcel.way, &received.file) else {
                return Err(unsupported("it is not a frozen array; take it with attach() or reader()"));
            };
            let layout = received.layout::<T, D>()?;
            let file = file.try_clone().map_err(|error| Error::os("take", NAMELESS, error))?;
            FrozenArray::of_sealed(file, layout)
        })
    }

    /// Turns what was received into an array, or gives it back.
    fn take<R>(mut self, attach: impl FnOnce(&Self) -> Result<R>) -> Result<R, IntoError<Self>> {
        match attach(&self) {
            Ok(array) => {
                self.pending = false;
                Ok(array)
            }
            Err(error) => Err(IntoError::new(error, self)),
        }
    }

    fn descriptor(&self) -> Result<(&File, Home)> {
        let (Way::FileDescriptor { backend, directory, location }, Some(file)) = (&self.parcel.way, &self.file) else {
            return Err(unsupported("it came without a descriptor"));
        };
        let named = || {
            let directory = path_of_text(directory).ok_or_else(|| unsupported("its sender names no directory"))?;
            backend_at(backend, &directory)
        };
        let backend = self.backend.clone().map_or_else(named, Ok)?;
        Ok((file, Home { backend, location: location.clone() }))
    }

    /// The layout that its sender says it has; memory that is sealed has no trailer to say it.
    fn layout<T: Element, D: Dimension>(&self) -> Result<Layout<D>> {
        Layout::described::<T>(self.parcel.dtype, &self.parcel.shape, self.parcel.order, NAMELESS)
    }
}

impl Drop for ReceivedArray {
    fn drop(&mut self) {
        let pending = self.pending && self.generation == os::fork_generation();
        if let (true, Way::FileSystem { handle }) = (pending, &self.parcel.way) {
            handle.give_up(self.backend.as_ref());
        }
    }
}

fn unsupported(what: &'static str) -> Error {
    Error::Unsupported { location: NAMELESS.to_owned(), what: what.into() }
}
