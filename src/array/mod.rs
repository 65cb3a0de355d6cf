//! Arrays under a name, and every safe way to access their elements.
//!
//! A [`SharedArray`] is a file that holds the elements and nothing else. Any number of processes can attach to it.
//! Guards, readers and writers hold kernel locks, which are released when they are dropped or when the process dies.
//!
//! ```
//! use ndarray_shm::{SharedArray, unlink};
//!
//! let array = SharedArray::<f32, _>::create("array-example", (4, 5))?;
//! array.write()?.fill(1.0); // no other guard reads or writes meanwhile
//! assert_eq!(array.read()?.sum(), 20.0);
//! unlink("array-example")?;
//! # Ok::<(), ndarray_shm::Error>(())
//! ```
//!
//! | to | use |
//! |---|---|
//! | read or write elements for a moment | [`SharedArray::read`], [`SharedArray::write`] |
//! | hold access for a long time, without a descriptor | [`ArrayReader`], [`ArrayWriter`] |
//! | fill an array before other processes see it | [`SharedArray::create_with`], [`Draft`] |
//! | share elements that never change again, without a lock | [`FrozenArray`] |
//! | lock parts of an array by numbers that the programs agree on | [`SharedArray::lock_cell`], which returns a [`CellGuard`] |
//! | learn the type and shape of an array before opening it | [`Directory::description`](crate::Directory::description) |
//! | handle an array of a type known only at run time | [`with_element`] |
//!
//! Not for arrays that are removed with their last handle ([`RefcountedArray`](crate::RefcountedArray)), for many
//! painters that write at the same time ([`RenderBuffer`](crate::RenderBuffer)), or for thousands of small arrays
//! ([`Arena`](crate::Arena)): each array here costs a file and a mapping.

mod access;
mod create;
pub(crate) mod description;
mod draft;
mod element;
mod frozen;
mod guard;
mod held;
pub(crate) mod layout;
mod memory;
mod open;
mod shared;
pub(crate) mod view;

pub(crate) use self::create::Creatable;
pub use self::create::{CreateOptions, CreationMode};
pub(crate) use self::description::description_at;
pub use self::description::{Description, SeenDescription};
pub use self::draft::Draft;
pub(crate) use self::draft::NAMELESS;
pub use self::element::{DType, Element};
pub use self::frozen::{FrozenArray, SealableDraft};
pub use self::guard::{ArrayLock, CellGuard, ReadGuard, WriteGuard};
pub use self::held::{ArrayReader, ArrayWriter};
pub use self::layout::{Layout, Order};
pub use self::open::OpenOptions;
pub use self::shared::SharedArray;
#[doc(inline)]
pub use crate::with_element;
