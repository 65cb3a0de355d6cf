//! Object stores under one contract: a local directory, or a server.
//!
//! A store knows keys and bytes, not volumes or formats. It retries temporary failures and describes permanent ones.
//! Calls block until the answer is there: for concurrent requests, call from several threads.

#[cfg(test)]
mod conformance;
pub(crate) mod indexed;
mod key;
mod local;
#[cfg(feature = "remote")]
mod remote;
pub(crate) mod url;
mod version;
pub(crate) mod wanted;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

pub(crate) use self::local::LocalStore;
pub use self::version::ObjectVersion;
pub(crate) use self::version::StoredVersion;
use crate::error::{Error, Result, SourceFailure};
use crate::store::url::{StorePlace, VolumeUrl};

/// The longest object that is read whole, 8 GiB: a false length must not exhaust memory.
const LARGEST_OBJECT: u64 = 8 << 30;

fn too_long(length: u64, most: u64) -> String {
    format!("{length} bytes are more than there can be in it ({most})")
}

/// An object as it is stored.
#[derive(Debug)]
pub(crate) struct Object {
    /// The bytes as they are stored.
    pub(crate) bytes: Vec<u8>,
    /// Whether the bytes are a gzip stream around the object itself: by the `Content-Encoding` of a server, or by the
    /// suffix `.gz` of a file.
    pub(crate) gzip: bool,
    /// A part of the identity of the volume that the object describes: its modification time, or the server's entity
    /// tag. A copy of a file may keep it, unlike the version.
    pub(crate) mark: String,
    pub(crate) version: StoredVersion,
}

/// A part of an object.
#[derive(Debug)]
pub(crate) struct ObjectPart {
    pub(crate) bytes: Vec<u8>,
    /// Length of the whole object.
    pub(crate) length: u64,
    pub(crate) version: StoredVersion,
}

/// Objects under keys, such as `0/0-64_0-64_0-64`: parts separated by `/`, none of them empty, `.` or `..`.
///
/// Every error is a [`Store`](crate::Error::Store) that names the object. A missing object is `None`, not an error.
pub(crate) trait Store: fmt::Debug + Send + Sync {
    /// Returns the path or URL of a key, for messages.
    fn locate(&self, key: &str) -> String;

    /// Returns the path or URL of the object that a key leads to; its name may have a suffix that the key lacks.
    fn locate_stored(&self, key: &str) -> String {
        self.locate(key)
    }

    /// Returns a text for the place of a key that is the same in every process: an absolute path without links, or a
    /// URL without user and password, with a hash of its query, and with the server that is meant where the URL does
    /// not say it. Objects of equal places and equal versions have equal bytes. `None` if there is no such text.
    fn cache_place(&self, key: &str) -> Option<String>;

    /// Whether answers come over a network.
    fn is_remote(&self) -> bool;

    /// Whether the store is a plain web server. It may serve the files of a directory unchanged: then a request for
    /// `NAME` does not find `NAME.gz`.
    fn is_web(&self) -> bool {
        false
    }

    /// Reads an object.
    fn get(&self, key: &str) -> Result<Option<Object>> {
        self.get_at_most(key, LARGEST_OBJECT)
    }

    /// Reads an object of at most `most` stored bytes. A longer one is an error before memory is allocated for it.
    fn get_at_most(&self, key: &str, most: u64) -> Result<Option<Object>>;

    /// Reads a part of an object that is stored without `gzip`. A range that reaches beyond its end is an error.
    fn get_range(&self, key: &str, range: Range<u64>) -> Result<Option<ObjectPart>>;

    /// Reads into `memory`: all of an object, or its part that begins at `start`. Returns `false`, with arbitrary
    /// content of the memory, if there is no such object, if it is stored with `gzip`, if it has another length or ends
    /// before the part does, or if this store cannot read into memory. The calls above tell which.
    fn fill(&self, _key: &str, _start: Option<u64>, _memory: &mut [u8]) -> Result<bool> {
        Ok(false)
    }

    /// Reads the last bytes of an object that is stored without `gzip`; all of it if it is shorter.
    fn get_suffix(&self, key: &str, length: u64) -> Result<Option<ObjectPart>>;

    /// Returns how many bytes an object has, as it is stored; reads nothing of it.
    fn size(&self, key: &str) -> Result<Option<u64>>;

    /// Returns the version of the object that [`get`](Self::get) would read; reads nothing of it.
    fn version(&self, key: &str) -> Result<Option<StoredVersion>>;

    /// Writes an object, replacing an existing one atomically: readers see the old object or the new one, never a part.
    /// `gzip` says that the bytes are a gzip stream, as in [`Object`].
    fn put(&self, key: &str, bytes: Vec<u8>, gzip: bool) -> Result<()>;

    /// Writes an object if there is none, atomically like [`put`](Self::put). Returns `false` if there is one, which
    /// stays. On servers without conditional requests an existing object is replaced, and `true` is returned.
    fn put_new(&self, key: &str, bytes: Vec<u8>) -> Result<bool>;

    /// Removes an object, however it is encoded. Returns whether it was there.
    fn delete(&self, key: &str) -> Result<bool>;

    /// Returns at most `most` keys under a prefix, at any depth. The default implementation returns only keys directly
    /// under it.
    fn first_keys(&self, prefix: &str, most: usize) -> Result<Vec<String>> {
        let names = self.list(prefix)?.into_iter().filter(|name| !name.ends_with('/'));
        let separator = if prefix.is_empty() { "" } else { "/" };
        Ok(names.take(most).map(|name| format!("{prefix}{separator}{name}")).collect())
    }

    /// Lists the names directly under a prefix (`""` is the root), sorted: objects by name, groups with a `/` at the
    /// end.
    fn list(&self, prefix: &str) -> Result<Vec<String>>;
}

/// Writes the object that creates a volume. If several processes do so at the same time, exactly one succeeds. Returns
/// `false` if an object of the same bytes exists already.
///
/// # Errors
///
/// [`Source`](Error::Source): another object exists.
pub(crate) fn make(store: &dyn Store, key: &str, bytes: &[u8]) -> Result<bool> {
    // A server may refuse all of several concurrent requests, so that no object exists afterwards: try once more.
    for _ in 0..2 {
        if store.put_new(key, bytes.to_vec())? {
            return Ok(true);
        }
        match store.get(key)? {
            // This call itself may have written it: the answer to an earlier attempt may have been lost.
            Some(there) if !there.gzip && there.bytes == bytes => return Ok(false),
            Some(_) => break,
            None => {}
        }
    }
    Err(Error::volume(
        SourceFailure::AlreadyExists,
        store.locate(key),
        "another process has made another volume here at the same time: choose another place, or open what is there",
    ))
}

/// The error for a URL with a scheme that needs a feature of this crate.
fn not_built_in(shown: &str) -> Error {
    let (scheme, _) = shown.split_once("://").unwrap_or_default();
    let feature = match scheme {
        "gs" => "gcs",
        "az" => "azure",
        "https" => "http",
        other => other,
    };
    let reason = format!("this program was built without `{scheme}://`: build it with the feature `{feature}`");
    Error::volume(SourceFailure::NotBuiltIn, shown, reason)
}

/// Returns the place of a volume as a URL that opens it again: without user, password, query or signature.
pub(crate) fn source(store: &dyn Store, format: &str, key: &str) -> String {
    let shown = store.locate(key);
    let place = shown.split_once('?').map_or(shown.as_str(), |(place, _)| place);
    let place = if store.is_remote() {
        place.to_owned()
    } else {
        std::path::absolute(&shown).map_or(shown.clone(), |path| path.display().to_string())
    };
    format!("{format}://{}", place.trim_end_matches(['/', '\\']))
}

/// Opens the store of a URL.
pub(crate) fn open(url: &VolumeUrl) -> Result<Arc<dyn Store>> {
    match url.place() {
        StorePlace::Local(path) => Ok(Arc::new(LocalStore::new(path))),
        #[cfg(feature = "remote")]
        StorePlace::Remote(url) => remote::open(url),
        #[cfg(not(feature = "remote"))]
        StorePlace::Remote(url) => Err(not_built_in(&url::shown(url))),
    }
}
