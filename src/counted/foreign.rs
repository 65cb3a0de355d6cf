//! Descriptors of other libraries, which a channel carries and does not read.

use std::fs::File;

use serde::{Deserialize, Serialize};

use crate::array::description::bytes_of;
use crate::array::{DType, Order};
use crate::error::{Error, ErrorKind, Result};

/// Maximum length of a kind in bytes.
const LONGEST_KIND: usize = 64;

/// Stands for the location in errors about foreign descriptors.
pub(super) const FOREIGN: &str = "(foreign descriptor)";

/// An open descriptor of another library, such as memory of a GPU, with what its receiver must know.
///
/// For libraries that extend this one. A [`Channel`](super::Channel) carries the descriptor together with the type,
/// shape and order of an array, the *kind*, which says what library understands the descriptor, and a *note*, text for
/// that library. This crate never maps, locks, reads or writes what the descriptor leads to, and reads nothing in the
/// note.
///
/// Sending sends a duplicate: one value can be sent any number of times, and the receiver's descriptor outlives it. All
/// duplicates have one open file description, so they share its locks and its position. Only Linux can send
/// descriptors.
///
/// The receiver takes it with [`ReceivedArray::foreign`](super::ReceivedArray::foreign), and must treat everything in
/// it as untrusted: the sender can have written any type, shape and note, and sent a descriptor of anything.
///
/// # Examples
///
/// ```
/// # #[cfg(target_os = "linux")] {
/// use std::io::{Read, Write};
/// use std::os::fd::OwnedFd;
/// use std::os::unix::net::UnixStream;
///
/// use ndarray_shm::counted::{Channel, Foreign};
/// use ndarray_shm::{DType, Order};
///
/// let (here, there) = Channel::pair()?;
/// let (mut source, sink) = UnixStream::pair().expect("a stream");
/// let stream = Foreign::new("example-stream", DType::U8, &[5], Order::C, "ends by itself", OwnedFd::from(sink))?;
/// here.send("frames", &[&stream])?;
/// source.write_all(b"bytes").expect("a receiver");
/// drop(source);
///
/// // in another process, which knows this kind
/// let [received] = there.receive::<String>()?.arrays.try_into().expect("one array");
/// assert_eq!(received.kind(), Some("example-stream"));
/// let stream = received.foreign("example-stream")?;
/// assert_eq!((stream.shape(), stream.note()), (&[5][..], "ends by itself"));
/// let mut bytes = Vec::new();
/// stream.into_descriptor().read_to_end(&mut bytes).expect("a stream");
/// assert_eq!(bytes, b"bytes");
/// # }
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug)]
pub struct Foreign {
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    pub(super) order: Order,
    pub(super) label: Label,
    pub(super) descriptor: File,
}

/// What a message says about a foreign descriptor beside the array's type, shape and order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Label {
    pub(super) kind: ForeignKind,
    pub(super) note: String,
}

/// The name of a kind of descriptors: safe to print, whichever process has sent it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct ForeignKind(String);

impl ForeignKind {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ForeignKind {
    /// Without the name, which could be as long as a message.
    type Error = &'static str;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let is_kind = (1..=LONGEST_KIND).contains(&name.len()) && name.bytes().all(allowed);
        if is_kind { Ok(Self(name)) } else { Err("the kind of a foreign descriptor must be 1 to 64 of a-z, 0-9 and -") }
    }
}

impl Foreign {
    /// Creates a value that can be sent, from a descriptor of another library.
    ///
    /// The kind should begin with the name of the library that understands it. Type, shape and order describe the array
    /// as for arrays of this crate.
    ///
    /// # Errors
    ///
    /// - [`InvalidSetting`](ErrorKind::InvalidSetting): the kind is not 1 to 64 of `a-z`, `0-9` and `-`.
    /// - [`TooLarge`](ErrorKind::TooLarge): the array fits no address space.
    pub fn new(
        kind: &str,
        dtype: DType,
        shape: &[usize],
        order: Order,
        note: impl Into<String>,
        descriptor: impl Into<File>,
    ) -> Result<Self> {
        let kind = ForeignKind::try_from(kind.to_owned())
            .map_err(|_| Error::setting("the kind of a foreign descriptor", kind, "1 to 64 of a-z, 0-9 and -"))?;
        let label = Label { kind, note: note.into() };
        require_size(dtype, shape)?;
        Ok(Self { dtype, shape: shape.to_vec(), order, label, descriptor: descriptor.into() })
    }

    /// Returns the kind: what library understands the descriptor.
    pub fn kind(&self) -> &str {
        self.label.kind.as_str()
    }

    /// Returns the note, text for that library.
    pub fn note(&self) -> &str {
        &self.label.note
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the lengths of the axes. The elements fit into the address space.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the order of the axes in memory.
    pub fn order(&self) -> Order {
        self.order
    }

    /// Returns the descriptor.
    pub fn descriptor(&self) -> &File {
        &self.descriptor
    }

    /// Returns the descriptor, and drops the rest.
    pub fn into_descriptor(self) -> File {
        self.descriptor
    }
}

/// Fails with `TooLarge` if an array of this type and shape fits no address space.
pub(super) fn require_size(dtype: DType, shape: &[usize]) -> Result<()> {
    match bytes_of(dtype, shape) {
        Some(_) => Ok(()),
        None => Err(ErrorKind::TooLarge { shape: shape.to_vec(), item: dtype.size() }.at(FOREIGN)),
    }
}
