//! Chunks under keys, decoded once per machine: a cache that all processes of a user, or of [a group](SharedWith),
//! share.
//!
//! A [`ChunkCache`] keeps bytes that are costly to make, such as decoded chunks of a volume. The first process that
//! needs a chunk fills it while the others wait; all later ones copy it. It outlives its processes, which is its use:
//! [for an hour](CacheOptions::keep) after it was last used.
//!
//! ```
//! use std::time::Duration;
//!
//! use ndarray_shm::cache::{ChunkCache, Lookup};
//!
//! let cache = ChunkCache::open_or_create("cache-example", 1 << 20)?;
//! let (key, version) = (0x1234, 1); // a hash of what the chunk is, and of its state in the store
//! for turn in 0..2 {
//!     let opened = cache.now();
//!     match cache.look(key, 5, opened, Duration::from_secs(5))? {
//!         Lookup::Found(chunk) => assert_eq!((turn, chunk.bytes()?), (1, &b"bytes"[..])),
//!         Lookup::Claimed(mut claim) => {
//!             // Only this process makes the chunk now.
//!             let checked = cache.now();
//!             if let Some(mut chunk) = claim.room()? {
//!                 chunk.bytes_mut()?.copy_from_slice(b"bytes");
//!                 chunk.publish(version, checked)?;
//!             }
//!         }
//!         Lookup::Bypass(reason) => panic!("{reason:?}: make it without the cache"),
//!         other => panic!("{other:?}"), // more may be added
//!     }
//! }
//! # ndarray_shm::cache::unlink(cache.directory(), cache.location())?;
//! # Ok::<(), ndarray_shm::Error>(())
//! ```
//!
//! Most programs use it through a volume: `CachedVolume` of the crate ndarray-shm-volume.
//!
//! Not for arrays that processes change: those have names of their own.
//!
//! # How it works
//!
//! A key leads to two sets of 16 places. Which chunk is in a place says a record, and whether the place is being read
//! or filled says the kernel's lock table: a killed process leaves a place that can be filled again, and a key that the
//! next process fills. Nothing counts, nothing lists, and the least recently used of those places that no process
//! reads makes way.
//!
//! # Costs
//!
//! A chunk that is found costs a lock and its release, about 2 µs, and the copy. On Linux the memory of a slot is taken
//! when it is first filled; elsewhere, and on file systems that cannot do so, all of it when the cache is created.

// From the lowest to the highest: geometry (arithmetic), table (words), holds (locks), chunk_cache (opening, looking),
// claim (filling). docs/layout/cache.md describes bytes and locks to other languages.
mod chunk_cache;
mod claim;
mod geometry;
mod holds;
mod memory;
mod table;

pub use self::chunk_cache::{Bypass, CacheInspection, CacheOptions, CachedChunk, ChunkCache, Lookup};
pub use self::claim::{KeyClaim, NewChunk};
use crate::backend::{Access, Companion, Directory, Location};
use crate::error::Result;
pub use crate::segment::SharedWith;
use crate::segment::{Home, is_attached, pin};

/// Removes the name of a cache, damaged or not. Returns `false` if there was none.
///
/// Processes that have it open go on, each for itself or together; no process finds it any more. The memory is freed
/// with the last of them.
///
/// # Examples
///
/// ```
/// use ndarray_shm::cache::{self, ChunkCache};
///
/// let cache = ChunkCache::create("unlink-cache-example", 1 << 20)?;
/// assert!(cache::unlink(cache.directory(), cache.location())?);
/// assert!(!cache::unlink(cache.directory(), cache.location())?);
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
///
/// # Errors
///
/// [`PermissionDenied`](crate::ErrorKind::PermissionDenied): this user may not remove the file.
pub fn unlink(backend: &Directory, location: &Location) -> Result<bool> {
    let home = Home { backend: backend.clone(), location: location.clone() }.companion(Companion::Cache)?;
    let removed = pin(backend, &home.location, Access::Read).and_then(|found| match found {
        Some((_file, facts)) => home.unlink(facts.id),
        None => Ok(false),
    });
    removed.map_err(|error| error.about(location))
}

/// Returns whether any process has a cache open.
///
/// # Examples
///
/// ```
/// use ndarray_shm::cache::{self, ChunkCache};
///
/// let cache = ChunkCache::create("attached-cache-example", 1 << 20)?;
/// let (directory, name) = (cache.directory().clone(), cache.location().clone());
/// assert!(cache::attached(&directory, &name)?);
/// drop(cache);
/// assert!(!cache::attached(&directory, &name)?);
/// cache::unlink(&directory, &name)?;
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
///
/// # Errors
///
/// [`NotFound`](crate::ErrorKind::NotFound); [`PermissionDenied`](crate::ErrorKind::PermissionDenied).
pub fn attached(backend: &Directory, location: &Location) -> Result<bool> {
    is_attached(backend, &location.companion(Companion::Cache)?).map_err(|error| error.about(location))
}
