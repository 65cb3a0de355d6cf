//! Typed n-dimensional arrays in memory that several processes share.
//!
//! ```
//! use ndarray_shm::{unlink, SharedArray};
//!
//! // One process creates it: real shared memory on Linux, files with the same semantics elsewhere.
//! let array = SharedArray::<f32, _>::create("lib-example", (100, 100))?;
//! array.write()?.fill(1.0);
//!
//! // Any other process opens it, by name, shape and type. So can numpy: the file holds the elements and nothing else.
//! let same = SharedArray::<f32, _>::open("lib-example", (100, 100))?;
//! assert_eq!(same.read()?.sum(), 10_000.0);
//!
//! // The name stays until it is removed. The memory is freed with the last attachment.
//! unlink("lib-example")?;
//! # Ok::<(), ndarray_shm::Error>(())
//! ```
//!
//! # Which type do I want?
//!
//! | I want to | type |
//! |---|---|
//! | share an array under a name | [`SharedArray`], with [`read`](SharedArray::read) and [`write`](SharedArray::write) guards |
//! | fill an array before other processes can see it | [`SharedArray::create_with`], [`CreateOptions::try_create_with`], or [`Draft`] |
//! | hold read or write access for a long time, without a descriptor | [`ArrayReader`], [`ArrayWriter`] |
//! | fill one array after another, without paying for new memory each time | [`Pool`] |
//! | let many threads and processes paint one array at once, and survive their deaths | [`RenderBuffer`] |
//! | send frame after frame to any number of readers | [`StreamWriter`], [`StreamReader`]; [`stream::StreamCursor`] to miss none |
//! | make a costly chunk once per machine, for all processes | [`cache::ChunkCache`] |
//! | share an array that describes itself and is removed with its last handle | [`RefcountedArray`] |
//! | send it to another process | [`counted::Handle`]; `counted::Channel`, with the feature `channel` |
//! | share thousands or millions of arrays, in one mapping | [`Arena`] |
//! | pass them from process to process in a microsecond | [`arena::Queue`] of an [`Arena`] |
//! | lend memory of my own, and learn when the last borrower is done | [`arena::loans`] |
//! | share an array that never changes again, without locks | [`FrozenArray`] |
//! | synchronise by other means | `unsafe` [`SharedArray::view`], or [`SharedArray::raw_view`] |
//! | remove what other programs left in /dev/shm, with proof | [`foreign::Sweep`] |
//! | run this program in several processes | [`process::spawn`]; [`process::spawn_workers`] where any may be killed |
//!
//! `examples/README.md` lists an example program for each idea, and `docs/glossary.md` defines the words.
//!
//! # Lifetimes
//!
//! - A *name* stays until [`unlink`], a reboot (in /dev/shm), or a logout where systemd's `RemoveIPC` is on. Dropping a
//!   handle only detaches.
//! - A *counted array's* name is removed with its last handle. If all processes that held one were killed, the name
//!   stays until it is [reclaimed](counted::reclaim()): by the manager ([`manager`]), by `ndshm gc`, or by this
//!   program.
//! - *Memory* is freed when the name is gone and the last process has detached, however that process ended.
//! - A *draft* leaves nothing behind, whether it is dropped or its creator is killed. One exception: where files need a
//!   name (off Linux, and on a few file systems), a killed creator leaves a file with a name that begins with
//!   `.ndshm-draft-`.
//! - A *lock* is released with its guard or its process. A killed reader lets the writer in at once; a killed painter's
//!   chunk can be claimed again.
//! - An unfinished [`RenderBuffer`] stays, under a reserved name, so that it can be resumed. [`render::discard`]
//!   removes it.
//!
//! # Where arrays live
//!
//! In `/dev/shm`, if this process can write there. Otherwise as files in `NDSHM_EMULATED_DIR`, or in a directory of
//! this user in the temporary directory. `EMULATE_SHM=1`, [`set_emulate_shm`] or an explicit [`Directory`] choose
//! otherwise. The semantics are the same; the speed is the file system's.
//!
//! All memory is reserved when an array is created. If there is too little, creating fails with [`ErrorKind::NoSpace`];
//! later accesses never end in a signal.
//!
//! # Costs
//!
//! An attachment costs a mapping and no descriptor (on overlayfs, and off Linux, one). A guard or claim costs one
//! descriptor and a few microseconds. It takes longer with very many locks on one array: around 12 µs with 1,000
//! attachments, 0.3 ms with 10,000.
//!
//! # Features
//!
//! `half` (f16 and bf16 elements), `num-complex` (complex elements), `serde` (names, types and orders as text),
//! `channel` (arrays in messages between processes: `Channel`), `full` (all of them).
//!
//! # Not supported
//!
//! `bool`, `char`, `usize` and structured elements; resizing; arrays over a network; protection against a writer that
//! does not take the locks.

// The documentation shows which feature an item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod arena;
pub mod array;
pub mod backend;
mod backoff;
pub mod cache;
pub mod counted;
mod error;
pub mod foreign;
mod interrupt;
pub mod manager;
mod manager_client;
mod os;
mod percent;
pub mod pool;
pub mod process;
mod random;
pub mod render;
mod search_time;
mod segment;
pub mod stream;

/// The version of ndarray that this crate uses for shapes, views and arrays, so that a program needs no second one.
pub use ndarray;

#[cfg(feature = "half")]
#[doc(hidden)]
pub use half as __half;
#[cfg(feature = "num-complex")]
#[doc(hidden)]
pub use num_complex as __num_complex;

#[doc(inline)]
pub use crate::arena::Arena;
#[doc(inline)]
pub use crate::array::{
    ArrayReader, ArrayWriter, CreateOptions, CreationMode, DType, Draft, Element, FrozenArray, OpenOptions, Order,
    ReadGuard, SharedArray, WriteGuard,
};
#[doc(inline)]
pub use crate::backend::{Access, Directory, IntoLocation, Location, Pages, default_directory, set_emulate_shm};
#[doc(inline)]
pub use crate::counted::RefcountedArray;
pub use crate::error::{Error, ErrorKind, IntoError, Result};
#[doc(hidden)]
pub use crate::error::{one_error_of_each_kind, with_causes};
#[doc(inline)]
pub use crate::pool::Pool;
#[doc(inline)]
pub use crate::render::{NextClaim, RenderBuffer};
#[doc(inline)]
pub use crate::stream::{StreamReader, StreamWriter};

/// Removes the name of an array in the default directory.
///
/// Attached processes keep the bytes. The memory is freed when the last of them detaches. Returns `Ok(false)` if the
/// name exists neither here nor in the other of the two usual places, `/dev/shm` and the emulated directory.
/// [`Directory::unlink`] removes names in any directory.
///
/// # Errors
///
/// - [`Elsewhere`](ErrorKind::Elsewhere): the name exists only in the other usual place. It is not removed, and
///   [`Error::is_not_found`] returns `true` for this error.
/// - [`PermissionDenied`](ErrorKind::PermissionDenied), [`NotAnArray`](ErrorKind::NotAnArray), and the errors of
///   [`default_directory`].
pub fn unlink(location: impl IntoLocation) -> Result<bool> {
    let (backend, location) = (default_directory()?, location.into_location()?);
    if backend.unlink(&location)? {
        return Ok(true);
    }
    backend::found_elsewhere(&backend, &location).map_or(Ok(false), Err)
}

/// Returns whether any process is attached to the array of this name in the default directory.
///
/// The answer comes from the kernel's lock table, so killed processes do not count. Asking delays no process.
/// [`Directory::attached`] asks in any directory.
///
/// # Errors
///
/// [`NotFound`](ErrorKind::NotFound), and the errors of [`default_directory`].
pub fn attached(location: impl IntoLocation) -> Result<bool> {
    default_directory()?.attached(location)
}

/// The programs of the README and of the guides, as tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../docs/guide/sharing.md")]
    mod sharing {}
    #[doc = include_str!("../docs/guide/rendering.md")]
    mod rendering {}
    #[doc = include_str!("../docs/guide/counted.md")]
    mod counted {}
    #[doc = include_str!("../docs/guide/streams.md")]
    mod streams {}
    #[doc = include_str!("../docs/guide/pools-and-arenas.md")]
    mod pools_and_arenas {}
}
