//! Arrays under a name, and every safe way to look at their elements.
//!
//! A [`SharedArray`] is a file of elements and nothing else, attached by any number of processes. Guards, held readers and
//! writers are locks that the kernel keeps for this process and releases when it dies.
//!
//! ```
//! use ndarray_shm::{SharedArray, unlink};
//!
//! let array = SharedArray::<f32, _>::create("array-example", (4, 5))?;
//! array.write()?.fill(1.0); // no other process reads or writes meanwhile
//! assert_eq!(array.read()?.sum(), 20.0);
//! unlink("array-example")?;
//! # Ok::<(), ndarray_shm::Error>(())
//! ```
//!
//! | to | use |
//! |---|---|
//! | look at elements for a moment | [`SharedArray::read`], [`SharedArray::write`] |
//! | keep them for long, without a descriptor | [`ArrayReader`], [`ArrayWriter`] |
//! | fill an array before other processes see it | [`SharedArray::create_with`], [`Draft`] |
//! | share elements that never change again, without a lock | [`FrozenArray`] |
//! | agree with other programs on locks of parts of an array | [`SharedArray::lock_cell`], which gives a [`CellGuard`] |
//! | learn type and shape of an array before it is opened | [`Directory::description`](crate::Directory::description), which gives a [`Description`] |
//! | treat an array by the type that it turns out to have | [`with_element`] |
//!
//! Not here: an array that describes itself and goes with its last user is a [`RefcountedArray`](crate::RefcountedArray); many
//! workers that write at the same time paint a [`RenderBuffer`](crate::RenderBuffer); thousands of small arrays live in an
//! [`Arena`](crate::Arena), since each array here costs a file and a mapping.

pub(crate) mod access;
pub(crate) mod description;
mod draft;
mod element;
mod frozen;
mod guard;
mod held;
pub(crate) mod layout;
mod options;
mod shared;
pub(crate) mod view;

pub use self::description::Description;
pub use self::draft::Draft;
pub(crate) use self::draft::NAMELESS;
pub use self::element::{DType, Element};
pub use self::frozen::{FrozenArray, SealableDraft};
pub use self::guard::{CellGuard, ReadGuard, WriteGuard};
pub use self::held::{ArrayReader, ArrayWriter};
pub use self::layout::Order;
pub use self::options::{AttachOptions, CreateOptions, CreationMode};
pub(crate) use self::options::{Attachable, Creatable};
pub use self::shared::SharedArray;
#[doc(inline)]
pub use crate::with_element;
