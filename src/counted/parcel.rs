//! Parcels: how a message refers to an array, by its type and shape and a handle or descriptor.

use std::fs::File;

use ndarray::Dimension;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::foreign::{FOREIGN, Foreign, Label, require_size};
use super::handle::{Handle, address, backend_at, path_of_text, path_to_text};
use super::refcounted::{RefcountedArray, reader_of_descriptor};
use super::strategy::SharingStrategy;
use crate::array::{ArrayReader, DType, Element, FrozenArray, Layout, NAMELESS, OpenOptions, Order};
use crate::backend::{Access, Directory, Location};
use crate::error::{Error, ErrorKind, IntoError, Result};
use crate::os;
use crate::segment::Home;

/// One array in the body of a message. wire.rs sends the descriptor that belongs to it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Parcel {
    dtype: DType,
    shape: Vec<usize>,
    order: Order,
    #[serde(flatten)]
    way: Way,
}

/// By what means the receiver attaches.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "strategy", rename_all = "snake_case")]
enum Way {
    FileSystem {
        handle: Handle,
    },
    /// The directory is encoded as in a handle.
    FileDescriptor {
        backend: String,
        directory: String,
        location: Location,
    },
    Sealed {},
    Foreign(Label),
}

impl Parcel {
    fn new<T: Element>(shape: &[usize], order: Order, way: Way) -> Self {
        Self { dtype: T::DTYPE, shape: shape.to_vec(), order, way }
    }

    /// Returns whether a descriptor belongs to the parcel. Every strategy but one has a descriptor, unknown ones too:
    /// otherwise a parcel of a later version would leave its descriptor in the stream, where the next message should
    /// begin.
    pub(super) fn comes_with_descriptor(parcel: &Value) -> bool {
        parcel.get("strategy").and_then(Value::as_str).is_some_and(|strategy| strategy != "file_system")
    }

    /// Revokes the handle in a parcel that could not be sent. Does not wait for long: the caller's time may be over.
    pub(super) fn revoke(&self) {
        if let Way::FileSystem { handle } = &self.way {
            handle.revoke_or_expire(None); // if that fails, it expires
        }
    }
}

/// What a [`Channel`](super::Channel) can send: counted arrays, by their own strategy or
/// [another](RefcountedArray::by), frozen arrays, and [foreign](Foreign) descriptors.
pub trait Shareable: private::Pack {}

mod private {
    use super::{File, Parcel, Result};

    /// Seals [`Shareable`](super::Shareable): only types of this crate can be packed.
    pub trait Pack {
        /// Returns the array's parcel, with a new handle in it or a new descriptor beside it.
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

/// An array together with the strategy by which to send it, returned by [`RefcountedArray::by`].
#[derive(Debug)]
pub struct By<'a, T: Element, D: Dimension> {
    array: &'a RefcountedArray<T, D>,
    strategy: SharingStrategy,
}

impl<T: Element, D: Dimension> RefcountedArray<T, D> {
    /// Chooses a strategy for sending the array that may differ from its own.
    ///
    /// To send a nameless array by name, the channel [publishes](Self::publish) it first. An array that is sent by
    /// descriptor keeps its name. Elements are not copied.
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
        let given_up = || unsupported("its descriptor was closed, and there is no other way to send it");
        let file = os::reopen(self.file().ok_or_else(given_up)?, false).map_err(failed)?;
        Ok((Parcel::new::<T>(self.shape(), self.order(), Way::Sealed {}), Some(file)))
    }
}

impl<T: Element, D: Dimension> Shareable for FrozenArray<T, D> {}

impl Pack for Foreign {
    /// The descriptor is duplicated, not opened again: that is impossible for many kinds of files.
    #[allow(private_interfaces)]
    fn pack(&self) -> Result<(Parcel, Option<File>)> {
        let file = self.descriptor().try_clone().map_err(|error| Error::os("send", FOREIGN, error))?;
        let way = Way::Foreign(self.label.clone());
        Ok((Parcel { dtype: self.dtype, shape: self.shape.clone(), order: self.order, way }, Some(file)))
    }
}

impl Shareable for Foreign {}

/// A received array that is not attached yet, or a foreign descriptor.
///
/// Dropping it unattached revokes its handle or closes its descriptor.
#[derive(Debug)]
pub struct ReceivedArray {
    parcel: Parcel,
    file: Option<File>,
    /// Whether its handle may still be unused, so that dropping this must revoke it.
    pending: bool,
    /// The fork generation that received it. A forked child's copy must not revoke the parent's handle.
    generation: u64,
    backend: Option<Directory>,
}

impl ReceivedArray {
    pub(super) fn new(parcel: Parcel, file: Option<File>) -> Self {
        Self { parcel, file, pending: true, generation: os::fork_generation(), backend: None }
    }

    /// Returns the element type that the sender claims.
    pub fn dtype(&self) -> DType {
        self.parcel.dtype
    }

    /// Returns the lengths of the axes that the sender claims.
    pub fn shape(&self) -> &[usize] {
        &self.parcel.shape
    }

    /// Returns the order of the axes in memory that the sender claims.
    pub fn order(&self) -> Order {
        self.parcel.order
    }

    /// Returns the strategy by which it was sent. A frozen array and a foreign descriptor are always sent by
    /// descriptor.
    pub fn strategy(&self) -> SharingStrategy {
        match self.parcel.way {
            Way::FileSystem { .. } => SharingStrategy::FileSystem,
            Way::FileDescriptor { .. } | Way::Sealed {} | Way::Foreign(_) => SharingStrategy::FileDescriptor,
        }
    }

    /// Returns whether it is a [`FrozenArray`].
    pub fn is_sealed(&self) -> bool {
        matches!(self.parcel.way, Way::Sealed {})
    }

    /// Returns the kind of a [foreign](Foreign) descriptor, or `None` for an array.
    pub fn kind(&self) -> Option<&str> {
        match &self.parcel.way {
            Way::Foreign(label) => Some(label.kind.as_str()),
            _ => None,
        }
    }

    /// Uses this directory instead of the one that the sender names. Both must have the same path.
    pub fn directory(mut self, backend: Directory) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Attaches to the counted array.
    ///
    /// An array that was sent by descriptor keeps a descriptor open while it is attached, for its guards and to be sent
    /// on.
    ///
    /// # Errors
    ///
    /// The error gives the received array back.
    ///
    /// - [`Unsupported`](ErrorKind::Unsupported): it is a frozen array or a foreign descriptor.
    /// - those of [`RefcountedArray::open`] and [`Handle::attach`].
    pub fn attach<T: Element, D: Dimension>(self) -> Result<RefcountedArray<T, D>, IntoError<Self>> {
        self.take(|received| match &received.parcel.way {
            Way::FileSystem { handle } => {
                let mut options = OpenOptions::new();
                options.backend.clone_from(&received.backend);
                options.attach(handle)
            }
            Way::FileDescriptor { .. } => {
                let (file, home) = received.descriptor()?;
                RefcountedArray::of_descriptor(file, &home, Access::ReadWrite)
            }
            Way::Sealed {} => Err(unsupported("it is a frozen array; take it with frozen()")),
            Way::Foreign(label) => Err(is_foreign(label)),
        })
    }

    /// Attaches to the counted array for reading, once its read lock is granted. Writers are excluded until the reader
    /// is dropped.
    ///
    /// The reader keeps no descriptor, where a mapping keeps its locks without one.
    ///
    /// # Errors
    ///
    /// As [`attach`](Self::attach).
    pub fn reader<T: Element, D: Dimension>(self) -> Result<ArrayReader<T, D>, IntoError<Self>> {
        self.take(|received| match &received.parcel.way {
            Way::FileSystem { handle } => {
                let mut options = OpenOptions::new();
                options.backend.clone_from(&received.backend);
                options.attach_reader(handle)
            }
            Way::FileDescriptor { .. } => {
                let (file, home) = received.descriptor()?;
                reader_of_descriptor(file, &home)
            }
            Way::Sealed {} => Err(unsupported("it is a frozen array; take it with frozen()")),
            Way::Foreign(label) => Err(is_foreign(label)),
        })
    }

    /// Maps a frozen array. It keeps its descriptor, so that it can be sent on; [`FrozenArray::without_fd`] closes it.
    ///
    /// # Errors
    ///
    /// The error gives the received array back.
    ///
    /// - [`Unsupported`](ErrorKind::Unsupported): it is not a frozen array, or the kernel has not sealed it although
    ///   the sender says so.
    /// - [`DTypeMismatch`](ErrorKind::DTypeMismatch), [`ShapeMismatch`](ErrorKind::ShapeMismatch): the sender claims
    ///   another element type or number of axes.
    /// - [`SizeMismatch`](ErrorKind::SizeMismatch): the memory does not have the size of an array of this type and
    ///   shape.
    pub fn frozen<T: Element, D: Dimension>(self) -> Result<FrozenArray<T, D>, IntoError<Self>> {
        self.take(|received| {
            let file = match (&received.parcel.way, &received.file) {
                (Way::Sealed {}, Some(file)) => file,
                (Way::Foreign(label), _) => return Err(is_foreign(label)),
                _ => return Err(unsupported("it is not a frozen array; take it with attach() or reader()")),
            };
            let layout = received.layout::<T, D>()?;
            let file = file.try_clone().map_err(|error| Error::os("take", NAMELESS, error))?;
            FrozenArray::of_sealed(file, layout)
        })
    }

    /// Takes a [foreign](Foreign) descriptor of this kind. For the library that understands the kind.
    ///
    /// # Errors
    ///
    /// The error gives the received value back.
    ///
    /// - [`Unsupported`](ErrorKind::Unsupported): it is an array of this crate, or a descriptor of another kind.
    /// - [`TooLarge`](ErrorKind::TooLarge): an array of this type and shape fits no address space.
    pub fn foreign(mut self, kind: &str) -> Result<Foreign, IntoError<Self>> {
        let Parcel { dtype, ref shape, order, ref way } = self.parcel;
        let checked = match way {
            Way::Foreign(label) if label.kind.as_str() == kind => {
                require_size(dtype, shape).map(|()| (shape.clone(), label.clone()))
            }
            Way::Foreign(label) => Err(is_foreign(label)),
            _ => Err(unsupported("it is not a foreign descriptor; take it with attach(), reader() or frozen()")),
        };
        match (checked, self.file.take()) {
            (Ok((shape, label)), Some(descriptor)) => Ok(Foreign { dtype, shape, order, label, descriptor }),
            (checked, file) => {
                self.file = file;
                let error = checked.err().unwrap_or_else(|| unsupported("it arrived without a descriptor"));
                Err(IntoError::new(error, self))
            }
        }
    }

    /// Runs `attach`, and returns the received array in the error if it fails.
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
            return Err(unsupported("it arrived without a descriptor"));
        };
        let named = || {
            let directory = path_of_text(directory).ok_or_else(|| unsupported("its sender names no directory"))?;
            backend_at(backend, &directory)
        };
        let backend = self.backend.clone().map_or_else(named, Ok)?;
        Ok((file, Home { backend, location: location.clone() }))
    }

    /// Returns the layout that the sender claims. Sealed memory has no trailer to compare it with.
    fn layout<T: Element, D: Dimension>(&self) -> Result<Layout<T, D>> {
        Layout::<T, _>::described(self.parcel.dtype, &self.parcel.shape, self.parcel.order, NAMELESS)
    }
}

impl Drop for ReceivedArray {
    fn drop(&mut self) {
        let pending = self.pending && self.generation == os::fork_generation();
        if let (true, Way::FileSystem { handle }) = (pending, &self.parcel.way) {
            handle.revoke_or_expire(self.backend.as_ref());
        }
    }
}

fn unsupported(what: &'static str) -> Error {
    ErrorKind::Unsupported { what: what.into() }.at(NAMELESS)
}

fn is_foreign(label: &Label) -> Error {
    let kind = label.kind.as_str();
    let what = format!(
        "it is a foreign descriptor of the kind {kind}; the library of this kind takes it with foreign({kind:?})"
    );
    ErrorKind::Unsupported { what: what.into() }.at(FOREIGN)
}
