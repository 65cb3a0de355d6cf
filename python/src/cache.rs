//! Caches of chunks: opening one, what it says about itself, and chunks that Python code finds and makes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ndarray_shm::DType;
use ndarray_shm::cache::{self, CacheOptions, CachedChunk, ChunkCache, KeyClaim, Lookup, SharedWith};
use pyo3::IntoPyObjectExt as _;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arguments::{Name, seconds};
use crate::errors::exception;
use crate::export::{Elements, Kept};
use crate::guard;
use crate::memory::ElementType;
use crate::signals::interruptibly;

/// How often a chunk is looked at again because another process has made another version of it.
const ROUNDS: usize = 3;

/// A number of 128 bits, as Python's hash functions give it.
type Digest = [u8; 16];

/// An open cache. `ndshm.ChunkCache` has one.
#[pyclass(frozen, module = "ndshm._core")]
pub(crate) struct RawCache {
    pub(crate) cache: ChunkCache,
}

#[pymethods]
impl RawCache {
    /// Opens a cache; with a size, creates it if there is none. Without a name it is the one of this user. It stays for
    /// `keep` seconds after its last use, or for ever if they are infinite. `share` says with which users it is shared.
    #[new]
    #[pyo3(signature = (name, nbytes, keep=None, share=None))]
    #[allow(clippy::needless_pass_by_value)] // Python gives it as an object, from which the value is extracted
    fn new(
        py: Python<'_>,
        name: Option<Name>,
        nbytes: Option<u64>,
        keep: Option<f64>,
        share: Option<&str>,
    ) -> PyResult<Self> {
        let mut options = CacheOptions::new();
        if let Some(share) = share {
            let users: SharedWith = share.parse().map_err(|error| exception(py, &error))?;
            options = options.shared_with(users);
        }
        if let Some(keep) = keep {
            // Too long for a duration is for ever.
            options = options.keep(Duration::try_from_secs_f64(keep).unwrap_or(Duration::MAX));
        }
        let name = name.as_deref();
        if (name, nbytes) == (None, None) {
            return Err(PyValueError::new_err("a cache without a name needs a size"));
        }
        let open = || match (name, nbytes) {
            (Some(name), Some(nbytes)) => options.open_or_create(name, nbytes),
            (Some(name), None) => options.open(name),
            (None, nbytes) => options.of_user(nbytes.unwrap_or_default()),
        };
        Ok(Self { cache: interruptibly(py, || Ok(open()?))? })
    }

    #[getter]
    fn name(&self) -> &str {
        self.cache.location().as_str()
    }

    #[getter]
    fn nbytes(&self) -> u64 {
        self.cache.bytes()
    }

    /// Frees memory until the chunks have at most so many bytes.
    fn trim(&self, py: Python<'_>, nbytes: u64) -> PyResult<u64> {
        interruptibly(py, || Ok(self.cache.trim(nbytes)?))
    }

    /// Removes the name.
    fn unlink(&self, py: Python<'_>) -> PyResult<bool> {
        interruptibly(py, || Ok(cache::unlink(self.cache.directory(), self.cache.location())?))
    }

    fn inspect<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = self.cache.inspect().map_err(|error| exception(py, &error))?;
        let facts = PyDict::new(py);
        let fields = [
            ("nbytes", found.bytes),
            ("filled", found.filled),
            ("allocated", found.allocated),
            ("hits", found.hits),
            ("fills", found.fills),
            ("waits", found.waits),
            ("evictions", found.evictions),
            ("stale", found.stale),
            ("too_long", found.too_long),
            ("held", found.held),
            ("no_space", found.no_space),
            ("late", found.late),
            ("unversioned", found.unversioned),
        ];
        fields.into_iter().try_for_each(|(name, value)| facts.set_item(name, value))?;
        let keep = if found.keep == Duration::MAX { f64::INFINITY } else { found.keep.as_secs_f64() };
        for (name, value) in [("keep", keep), ("unused", found.unused.as_secs_f64())] {
            facts.set_item(name, value)?;
        }
        Ok(facts)
    }

    /// Returns the bytes of the chunk of a key that was made from this version of the stored object, or None. An error
    /// of the cache is None too: the caller makes the chunk without it.
    fn find(&self, py: Python<'_>, key: Digest, length: usize, version: Digest) -> PyResult<Option<Py<PyAny>>> {
        let found = self.cache.find_version(number(key), length, number(version));
        found.ok().flatten().map(|chunk| bytes_of(py, chunk)).transpose()
    }

    /// As `find`. If the chunk is not there, claims the key, waiting at most `patience` seconds for a process that has
    /// it. Returns the bytes, the claim, or None: then the caller makes the chunk without the cache.
    fn claim(&self, py: Python<'_>, key: Digest, length: usize, version: Digest, patience: f64) -> PyResult<Py<PyAny>> {
        let (key, version, patience) = (number(key), number(version), seconds(patience)?);
        match py.detach(|| self.find_or_claim(key, length, version, patience)) {
            Some(Claimed::Chunk(chunk)) => bytes_of(py, chunk),
            Some(Claimed::Claim(claim)) => RawKeyClaim { claim: Mutex::new(Some(claim)), version }.into_py_any(py),
            None => Ok(py.None()),
        }
    }
}

enum Claimed {
    Chunk(CachedChunk),
    Claim(KeyClaim),
}

impl RawCache {
    fn find_or_claim(&self, key: u128, length: usize, version: u128, patience: Duration) -> Option<Claimed> {
        let mut since = 0;
        for _ in 0..ROUNDS {
            match self.cache.look(key, length, since, patience).ok()? {
                Lookup::Found(chunk) if chunk.version() == version => return Some(Claimed::Chunk(chunk)),
                Lookup::Claimed(claim) if claim.old().is_none_or(|old| old.version() != version) => {
                    return Some(Claimed::Claim(claim));
                }
                // Another version, which only the owner of the key may forget.
                Lookup::Found(_) => since = self.cache.now(),
                // This version, which was made since.
                Lookup::Claimed(_) => since = 0,
                _ => return None,
            }
        }
        None
    }
}

fn number(digest: Digest) -> u128 {
    u128::from_le_bytes(digest)
}

impl Kept for CachedChunk {}

/// Returns the bytes of a chunk that was found, which is held as long as they live. For code that copies them at once:
/// in a forked child, they may be another chunk's.
fn bytes_of(py: Python<'_>, chunk: CachedChunk) -> PyResult<Py<PyAny>> {
    let held = chunk.bytes().map(|bytes| (bytes.as_ptr().cast_mut(), bytes.len()));
    let (address, length) = held.map_err(|error| exception(py, &error))?;
    let of_bytes = ElementType { dtype: DType::U8, is_bool: false };
    guard::read_only(py, Elements::new(address, of_bytes, vec![length], vec![1], Arc::new(chunk)), None)
}

/// The exclusive right to make a chunk of one version. Others wait for it.
#[pyclass(frozen, module = "ndshm._core")]
pub(crate) struct RawKeyClaim {
    claim: Mutex<Option<KeyClaim>>,
    version: u128,
}

#[pymethods]
impl RawKeyClaim {
    /// Keeps the chunk, if there is room, and gives the claim up. Returns whether it is kept.
    #[allow(clippy::needless_pass_by_value)] // Python gives it as an object, from which the value is extracted
    fn publish(&self, py: Python<'_>, bytes: PyBuffer<u8>) -> PyResult<bool> {
        let Some(mut claim) = self.take() else { return Ok(false) };
        let Ok(Some(mut room)) = claim.room() else { return Ok(false) };
        let Ok(memory) = room.bytes_mut() else { return Ok(false) };
        bytes.copy_to_slice(py, memory)?;
        // Users of the key compare versions, and never the times of checks.
        Ok(room.publish(self.version, 0).is_ok())
    }

    /// Gives the claim up. One of the processes that wait for it makes the chunk.
    fn release(&self) {
        drop(self.take());
    }
}

impl RawKeyClaim {
    fn take(&self) -> Option<KeyClaim> {
        self.claim.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
