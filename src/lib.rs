//! Core.
mod array;
mod backend;
mod error;
mod os;
pub mod render;
mod segment;

#[cfg(feature = "half")]
#[doc(hidden)]
pub use half as __half;
#[cfg(feature = "num-complex")]
#[doc(hidden)]
pub use num_complex as __num_complex;

pub use crate::array::{
    ArrayOptions, ArrayReader, ArrayWriter, CreationMode, DType, Draft, Element, FrozenArray, Order, ReadGuard,
    SealableDraft, SharedArray, WriteGuard,
};
pub use crate::backend::{
    Access, Backend, Directory, DraftFile, DraftOptions, Entry, EntryKind, IntoLocation, Location, Publish,
    RESERVED_PREFIX, default_backend, set_emulate_shm,
};
pub use crate::error::{Error, IntoError, Result};
pub use crate::os::FileId;
pub use crate::render::{
    ChunkClaim, ChunkGrid, ChunkGuard, Claim, Ledger, NextClaim, RenderBuffer, RenderOptions, RenderProgress,
};

/// Removes a name in the default backend; attached processes keep the bytes, and the memory is freed with the last of
/// them.
///
/// `Ok(false)`: nothing had the name.
///
/// # Errors
///
/// [`PermissionDenied`](Error::PermissionDenied), [`NotAnArray`](Error::NotAnArray), and those of [`default_backend`].
pub fn unlink(location: impl IntoLocation) -> Result<bool> {
    default_backend()?.unlink(&location.into_location()?, None)
}

/// Whether any process is attached to the array of this name in the default backend.
///
/// The kernel answers: processes that were killed do not count, and the question disturbs nobody.
///
/// # Errors
///
/// [`NotFound`](Error::NotFound), and those of [`default_backend`].
pub fn attached(location: impl IntoLocation) -> Result<bool> {
    attached_in(&*default_backend()?, &location.into_location()?)
}

/// Whether any process is attached to the array of this name in a given backend.
///
/// # Errors
///
/// [`NotFound`](Error::NotFound).
pub fn attached_in(backend: &dyn Backend, location: &Location) -> Result<bool> {
    segment::is_attached(backend, location)
}
