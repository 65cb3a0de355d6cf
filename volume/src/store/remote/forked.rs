//! A store on a server that forked children go on using.
//!
//! A child has neither the thread that moves the bytes nor a right to the parent's connections. So with its first
//! request it connects anew, and forgets what it has inherited: dropping that would wake threads that it does not have.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread;

use super::connect::Settings;
use super::{RemoteStore, connect_to};
use crate::error::Result;
use crate::store::{Object, ObjectPart, Store, StoredVersion, url};

/// Number of times that a thread tries to lock the connection. After that it connects for one request: a forked child
/// may have inherited the lock from a thread that it does not have.
const TRIES: usize = 200;

/// A store that is connected in each process that uses it.
pub(super) struct ForkedStore {
    place: String,
    settings: Settings,
    shown: String,
    is_web: bool,
    current: Mutex<Arc<RemoteStore>>,
}

impl ForkedStore {
    pub(super) fn open(place: &str, settings: &Settings) -> Result<Self> {
        let store = connect_to(place, settings)?;
        let (shown, is_web) = (store.shown.clone(), store.server.is_web);
        let (place, settings) = (place.to_owned(), settings.clone());
        Ok(Self { place, settings, shown, is_web, current: Mutex::new(Arc::new(store)) })
    }

    /// Returns the store of this process.
    fn store(&self) -> Result<Arc<RemoteStore>> {
        if let Some(current) = self.lock().filter(|current| current.io.is_of_this_process()) {
            return Ok(Arc::clone(&current));
        }
        // Without the lock, which is held for moments only.
        let store = Arc::new(connect_to(&self.place, &self.settings)?);
        if let Some(mut current) = self.lock() {
            if current.io.is_of_this_process() {
                return Ok(Arc::clone(&current)); // another thread was faster
            }
            std::mem::forget(std::mem::replace(&mut *current, Arc::clone(&store)));
        }
        Ok(store)
    }

    fn lock(&self) -> Option<MutexGuard<'_, Arc<RemoteStore>>> {
        for _ in 0..TRIES {
            match self.current.try_lock() {
                Ok(current) => return Some(current),
                // No thread panics while it holds the lock.
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => thread::yield_now(),
            }
        }
        None
    }
}

impl Drop for ForkedStore {
    fn drop(&mut self) {
        // In a child that has not used it, the connection is the parent's.
        let inherited = self.lock().filter(|current| !current.io.is_of_this_process()).map(|store| Arc::clone(&store));
        std::mem::forget(inherited);
    }
}

/// The settings may have passwords.
impl fmt::Debug for ForkedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForkedStore").field("url", &self.shown).finish_non_exhaustive()
    }
}

impl Store for ForkedStore {
    fn locate(&self, key: &str) -> String {
        url::join(&self.shown, key)
    }

    fn cache_place(&self, key: &str) -> Option<String> {
        self.store().ok()?.cache_place(key)
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn is_web(&self) -> bool {
        self.is_web
    }

    fn get_at_most(&self, key: &str, most: u64) -> Result<Option<Object>> {
        self.store()?.get_at_most(key, most)
    }

    fn get_range(&self, key: &str, range: Range<u64>) -> Result<Option<ObjectPart>> {
        self.store()?.get_range(key, range)
    }

    fn get_suffix(&self, key: &str, length: u64) -> Result<Option<ObjectPart>> {
        self.store()?.get_suffix(key, length)
    }

    fn size(&self, key: &str) -> Result<Option<u64>> {
        self.store()?.size(key)
    }

    fn version(&self, key: &str) -> Result<Option<StoredVersion>> {
        self.store()?.version(key)
    }

    fn put(&self, key: &str, bytes: Vec<u8>, gzip: bool) -> Result<()> {
        self.store()?.put(key, bytes, gzip)
    }

    fn put_new(&self, key: &str, bytes: Vec<u8>) -> Result<bool> {
        self.store()?.put_new(key, bytes)
    }

    fn delete(&self, key: &str) -> Result<bool> {
        self.store()?.delete(key)
    }

    fn first_keys(&self, prefix: &str, most: usize) -> Result<Vec<String>> {
        self.store()?.first_keys(prefix, most)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        self.store()?.list(prefix)
    }
}
