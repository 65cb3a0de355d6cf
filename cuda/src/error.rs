//! What can go wrong, in words that say what to do about it.

use std::fmt;

use ndarray_shm::DType;

use crate::uuid::Uuid;

/// A result with the error [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong with an array on a GPU.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The driver's library was not found.
    #[error(
        "the CUDA driver is not installed: libcuda.so.1 was not found (install NVIDIA's driver; no toolkit is needed)"
    )]
    NoDriver,
    /// The driver's library lacks a function.
    #[error("the CUDA driver is too old: it has no {function} (install a driver for CUDA 11.4 or later)")]
    DriverTooOld {
        /// The missing function.
        function: &'static str,
    },
    /// A call of the driver failed.
    #[error("{call} failed: {text} ({name}, {code})")]
    Driver {
        /// The driver's function.
        call: &'static str,
        /// The driver's number of the error.
        code: u32,
        /// The driver's name of the error.
        name: String,
        /// The driver's description of the error.
        text: String,
    },
    /// The GPU has too little free memory. None was taken.
    #[error("{bytes} bytes do not fit into the memory of GPU {device} (free other arrays, or use another GPU)")]
    NoSpace {
        /// The GPU.
        device: Uuid,
        /// Bytes that were asked for.
        bytes: u64,
    },
    /// No free range of a chunk is long enough.
    #[error(
        "{bytes} bytes do not fit into the chunk: {free} are free, the longest range has {longest}, and {waiting} wait for receivers \
         (drop blocks, let receivers drop theirs, or create a larger chunk)"
    )]
    ChunkFull {
        /// Bytes that were asked for.
        bytes: usize,
        /// Bytes that are free.
        free: usize,
        /// Bytes of the longest free range.
        longest: usize,
        /// Bytes of dropped blocks that receivers still hold.
        waiting: u64,
    },
    /// This process is a forked child of one that used the driver, which CUDA does not support.
    #[error(
        "CUDA cannot be used in a forked child of a process that used it (start workers with spawn or forkserver instead of fork)"
    )]
    ForkedChild,
    /// There is no GPU with this number.
    #[error("there is no GPU {ordinal}: this process sees {count} (check CUDA_VISIBLE_DEVICES)")]
    NoDevice {
        /// The number asked for.
        ordinal: usize,
        /// How many GPUs this process sees.
        count: usize,
    },
    /// The memory is on a GPU that this process does not see.
    #[error(
        "the memory is on GPU {device}, which this process does not see (check CUDA_VISIBLE_DEVICES, or copy it through the host)"
    )]
    DeviceNotVisible {
        /// The GPU.
        device: Uuid,
    },
    /// One GPU cannot access the memory of the other.
    #[error("GPU {from} cannot access the memory of GPU {to} (copy the array through the host)")]
    NoPeerAccess {
        /// The GPU that was to get access.
        from: Uuid,
        /// The GPU that has the memory.
        to: Uuid,
    },
    /// The GPU, driver or system cannot do this.
    #[error("{what} is not supported here: {reason}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
        /// Why it is not there, and what to do.
        reason: String,
    },
    /// The array is shared, so a safe write could race with other code.
    #[error(
        "the array is shared, and another process may be reading it (write before it is shared, or use `overwrite`)"
    )]
    Shared,
    /// The process that lent the memory has ended, or has dropped its lender, and the memory is gone with it.
    #[error("the lender of the memory has ended, and the memory with it (a lender must outlive its borrowers)")]
    LenderGone,
    /// What was received is not an array that this crate sent.
    #[error("this is not an array on a GPU: {reason}")]
    Malformed {
        /// What is wrong.
        reason: String,
    },
    /// The elements have another type.
    #[error("the elements have the type {found}, not {expected}")]
    DType {
        /// The type asked for.
        expected: DType,
        /// The type of the elements.
        found: DType,
    },
    /// The shape has another number of axes, or other lengths.
    #[error("the shape is {found:?}, not {expected}")]
    Shape {
        /// What was asked for.
        expected: String,
        /// The array's shape.
        found: Vec<usize>,
    },
    /// The array is larger than the address space.
    #[error("an array of shape {shape:?} with elements of {item} bytes is larger than the address space")]
    TooLarge {
        /// The shape asked for.
        shape: Vec<usize>,
        /// Bytes of one element.
        item: usize,
    },
    /// The driver cannot lock the pages of this memory.
    #[error("`{location}` cannot be page-locked: {reason}")]
    NotPinnable {
        /// The array's name.
        location: String,
        /// Why, and what to do.
        reason: String,
    },
    /// Shared memory on the host failed, or a channel.
    #[error(transparent)]
    Host(#[from] ndarray_shm::Error),
    /// A failure of the operating system.
    #[error("cannot {op}")]
    Os {
        /// What was tried.
        op: &'static str,
        /// The system's reason.
        #[source]
        error: std::io::Error,
    },
}

impl<A> From<ndarray_shm::IntoError<A>> for Error {
    fn from(refused: ndarray_shm::IntoError<A>) -> Self {
        Self::Host(refused.into())
    }
}

impl<A> From<IntoError<A>> for Error {
    fn from(refused: IntoError<A>) -> Self {
        refused.into_parts().0
    }
}

impl Error {
    pub(crate) fn malformed(reason: impl fmt::Display) -> Self {
        Self::Malformed { reason: reason.to_string() }
    }

    /// Returns the driver's number of the error, if a call of the driver failed.
    pub fn driver_code(&self) -> Option<u32> {
        if let Self::Driver { code, .. } = self { Some(*code) } else { None }
    }
}

/// An error of a function that takes a value, together with that value.
///
/// `?` turns it into an [`Error`] and drops the value.
pub type IntoError<A> = ndarray_shm::IntoError<A, Error>;
