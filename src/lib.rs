//! Typed n-dimensional arrays in memory that several processes share.
//!
//! ```
//! use ndarray_shm::{unlink, SharedArray};
//!
//! // One process makes it: real shared memory on Linux, files with the same semantics elsewhere.
//! let array = SharedArray::<f32, _>::create("lib-example", (100, 100))?;
//! array.write()?.fill(1.0);
//!
//! // Any other opens it, by name, shape and type. So can numpy: the file holds the elements and nothing else.
//! let same = SharedArray::<f32, _>::open("lib-example", (100, 100))?;
//! assert_eq!(same.read()?.sum(), 10_000.0);
//!
//! // The name stays until someone removes it; the memory goes with the last attachment.
//! unlink("lib-example")?;
//! # Ok::<(), ndarray_shm::Error>(())
//! ```
//!
//! # Which type do I want?
//!
//! | I want to | type |
//! |---|---|
//! | share an array under a name | [`SharedArray`], with [`read`](SharedArray::read) and [`write`](SharedArray::write) guards |
//! | fill it before anyone can see it | [`SharedArray::create_with`], or [`Draft`] |
//! | read or write for long, without a descriptor | [`ArrayReader`], [`ArrayWriter`] |
//! | fill one array after the other, without paying for new memory each time | [`Pool`] |
//! | let many workers paint it at once, and survive their deaths | [`RenderBuffer`] |
//! | share an array that goes with its last user, and describes itself | [`RefcountedArray`] |
//! | hand it to another process | [`counted::Handle`]; `counted::Channel`, with the feature `channel` |
//! | have thousands or millions of them, in one mapping | [`Arena`] |
//! | pass them from process to process in a microsecond | [`arena::Queue`] of an [`Arena`] |
//! | lend memory of my own, and know when it is used no more | [`arena::loans`] |
//! | share something that never changes again, without locks | [`FrozenArray`] |
//! | synchronise by other means | `unsafe` [`SharedArray::view`], or [`SharedArray::raw_view`] |
//! | run this program in several processes | [`process::spawn`]; [`process::spawn_workers`] where any may be killed |
//!
//! `examples/README.md` lists a program for each idea.
//!
//! # What stays, and what goes
//!
//! - A *name* stays until [`unlink`], a reboot (in /dev/shm), or a logout where systemd's `RemoveIPC` is on. Dropping a handle
//!   only detaches.
//! - A *counted array's* name goes with its last handle. If all who had one were killed, it goes when somebody
//!   [reclaims](counted::reclaim()) it: the manager ([`manager`]), `ndshm gc`, or this program.
//! - *Memory* is freed when the name is gone and the last process has detached, however it ended.
//! - A *draft* that is dropped leaves nothing, nor does one whose maker is killed; only where files cannot be nameless (off
//!   Linux, and on a few file systems) a killed maker leaves a file whose name begins with `.ndshm-draft-`.
//! - A *lock* goes with its guard or its process. A killed reader lets the writer in at once; a killed painter's chunk is
//!   painted by someone else.
//! - An unfinished [`RenderBuffer`] stays, under a reserved name, so that it can be resumed; [`render::discard`] removes it.
//!
//! # Where arrays live
//!
//! In `/dev/shm`, if this process can write there, else as files in `NDSHM_EMULATED_DIR` or a directory of this user in the
//! temporary directory. `EMULATE_SHM=1`, [`set_emulate_shm`] or an explicit [`Directory`] choose otherwise. The semantics are the
//! same; the speed is the file system's.
//!
//! All memory is taken when an array is made: too little of it is [`Error::NoSpace`] then, and never a signal later.
//!
//! # Costs
//!
//! An attachment costs a mapping and no descriptor (on overlayfs, and off Linux, one). A guard or claim costs one descriptor
//! and a few microseconds, more with very many locks on one array: around 12 µs with 1,000 attachments, 0.3 ms with 10,000.
//!
//! # Features
//!
//! `half` (f16 and bf16 elements), `num-complex` (complex elements), `serde` (names, types and orders as text),
//! `channel` (arrays in messages between processes: `Channel`), `full` (all of them).
//!
//! # Not here
//!
//! `bool`, `char`, `usize` and structured elements; resizing; arrays over a network; protection against a writer that does not
//! take the locks.

// The documentation says which feature an item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod arena;
pub mod array;
pub mod backend;
mod backoff;
pub mod counted;
mod error;
pub mod manager;
mod manager_client;
mod os;
mod percent;
pub mod pool;
pub mod process;
mod random;
pub mod render;
mod segment;

/// The ndarray crate whose shapes, views and arrays are used here, so that a program needs no second version of it.
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
    ArrayReader, ArrayWriter, AttachOptions, CreateOptions, CreationMode, DType, Draft, Element, FrozenArray, Order,
    ReadGuard, SharedArray, WriteGuard,
};
#[doc(inline)]
pub use crate::backend::{Access, Directory, IntoLocation, Location, Pages, default_backend, set_emulate_shm};
#[doc(inline)]
pub use crate::counted::RefcountedArray;
pub use crate::error::{Error, IntoError, Result};
#[doc(inline)]
pub use crate::pool::Pool;
#[doc(inline)]
pub use crate::render::{NextClaim, RenderBuffer};

/// Removes a name in the default backend; attached processes keep the bytes, and the memory is freed with the last of
/// them.
///
/// `Ok(false)`: nothing had the name, neither there nor in the other usual place. [`Directory::unlink`] does the same elsewhere.
///
/// # Errors
///
/// [`Elsewhere`](Error::Elsewhere): an array in the other of the two usual places has the name, and keeps it ([`Error::is_not_found`] is
/// true of this error). [`PermissionDenied`](Error::PermissionDenied), [`NotAnArray`](Error::NotAnArray), and those of
/// [`default_backend`].
pub fn unlink(location: impl IntoLocation) -> Result<bool> {
    let (backend, location) = (default_backend()?, location.into_location()?);
    if backend.unlink(&location)? {
        return Ok(true);
    }
    backend::found_elsewhere(&backend, &location).map_or(Ok(false), Err)
}

/// Whether any process is attached to the array of this name in the default backend.
///
/// The kernel answers: processes that were killed do not count, and the question disturbs no process.
/// [`Directory::attached`] asks elsewhere.
///
/// # Errors
///
/// [`NotFound`](Error::NotFound), and those of [`default_backend`].
pub fn attached(location: impl IntoLocation) -> Result<bool> {
    default_backend()?.attached(location)
}

/// The README's examples, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[derive(Debug)]
pub struct Readme;
