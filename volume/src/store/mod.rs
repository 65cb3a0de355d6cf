//! Where objects are kept: files of a directory, or a server's answers, under one contract.
//!
//! A store knows keys and bytes. It knows no volume and no format; it retries what is worth it and says in words what is not.
//! Calls block until the answer is there: for many at a time, call from many threads.

#[cfg(test)]
mod conformance;
mod key;
mod local;
#[cfg(feature = "remote")]
mod remote;
pub(crate) mod url;
pub(crate) mod wanted;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::store::url::{StorePlace, VolumeUrl};

/// The longest object that is read whole, 8 GiB: what lies about its length must not take all memory.
const LARGEST_OBJECT: u64 = 8 << 30;

fn too_long(length: u64, most: u64) -> String {
    format!("{length} bytes are more than there can be in it ({most})")
}

/// An object, as it was found.
#[derive(Debug)]
pub(crate) struct Object {
    /// Its bytes, as they are stored.
    pub(crate) bytes: Vec<u8>,
    /// Whether the bytes are a gzip stream that is no part of the object itself: the `Content-Encoding` of a server, or the suffix
    /// `.gz` of a file.
    pub(crate) gzip: bool,
    /// Tells this object from another that may stand in its place later: its time of change, or what a server calls its tag.
    pub(crate) version: String,
}

/// Objects under keys, such as `0/0-64_0-64_0-64`: parts separated by `/`, none of them empty, `.` or `..`.
///
/// Every error is a [`Store`](crate::Error::Store) that names the object. What is not there is `None`, not an error.
pub(crate) trait Store: fmt::Debug + Send + Sync {
    /// Returns the path or URL of a key, for people.
    fn locate(&self, key: &str) -> String;

    /// The same of the object that a key leads to, where its name may have a suffix that the key lacks.
    fn locate_stored(&self, key: &str) -> String {
        self.locate(key)
    }

    /// Whether answers come over a network.
    fn is_remote(&self) -> bool;

    /// Whether it is a web server, which may have the files of a directory as they are: then `NAME.gz` does not stand for `NAME`.
    fn is_web(&self) -> bool {
        false
    }

    /// Reads an object.
    fn get(&self, key: &str) -> Result<Option<Object>> {
        self.get_at_most(key, LARGEST_OBJECT)
    }

    /// Reads an object, unless it has more than `most` bytes as it is stored: that is an error before memory is taken for them.
    fn get_at_most(&self, key: &str, most: u64) -> Result<Option<Object>>;

    /// Reads a part of an object that is stored without `gzip`. A range that reaches beyond its end is an error.
    fn get_range(&self, key: &str, range: Range<u64>) -> Result<Option<Vec<u8>>>;

    /// Reads the last bytes of an object that is stored without `gzip`; all of it if it is shorter.
    fn get_suffix(&self, key: &str, length: u64) -> Result<Option<Vec<u8>>>;

    /// Returns how many bytes an object has, as it is stored; reads nothing of it.
    fn size(&self, key: &str) -> Result<Option<u64>>;

    /// Writes an object in place of the one that is there: others see the one or the other, never a part. `gzip` says that the bytes
    /// are a gzip stream, as in [`Object`].
    fn put(&self, key: &str, bytes: Vec<u8>, gzip: bool) -> Result<()>;

    /// Writes an object where there is none, in one step as [`put`](Self::put) does. `false`: there is one, and it stays. Of servers that know
    /// no condition it is a promise only as long as no other process writes.
    fn put_new(&self, key: &str, bytes: Vec<u8>) -> Result<bool>;

    /// Removes an object, however it is encoded. Returns whether it was there.
    fn delete(&self, key: &str) -> Result<bool>;

    /// Returns some of the keys under a prefix, in whatever depth, at most `most` of them. If not said otherwise, those directly under it.
    fn first_keys(&self, prefix: &str, most: usize) -> Result<Vec<String>> {
        let names = self.list(prefix)?.into_iter().filter(|name| !name.ends_with('/'));
        let separator = if prefix.is_empty() { "" } else { "/" };
        Ok(names.take(most).map(|name| format!("{prefix}{separator}{name}")).collect())
    }

    /// Lists the names directly under a prefix, `""` being the root: objects as they are, groups with a `/` at the end; sorted.
    fn list(&self, prefix: &str) -> Result<Vec<String>>;
}

/// Writes the object that makes a volume: of several who do so at the same time one has made it. `false`: there is one already, of the
/// same bytes.
///
/// # Errors
///
/// [`Source`](Error::Source): another one is there.
pub(crate) fn make(store: &dyn Store, key: &str, bytes: &[u8]) -> Result<bool> {
    // A server that is asked by several at once may refuse all of them; once is enough to see that.
    for _ in 0..2 {
        if store.put_new(key, bytes.to_vec())? {
            return Ok(true);
        }
        match store.get(key)? {
            // It may even be this one: the answer to an earlier attempt may have been lost.
            Some(there) if !there.gzip && there.bytes == bytes => return Ok(false),
            Some(_) => break,
            None => {}
        }
    }
    Err(Error::volume(
        ErrorKind::AlreadyExists,
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
    Error::volume(ErrorKind::NotBuiltIn, shown, reason)
}

/// Returns where a volume is, in a form that leads there again: without user, password, query or signature.
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

/// Writes lengths as a note of a description.
pub(crate) fn resolution_note(resolution: &[f64]) -> String {
    resolution.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// Opens the store that a URL means.
pub(crate) fn open(url: &VolumeUrl) -> Result<Arc<dyn Store>> {
    match url.place() {
        StorePlace::Local(path) => Ok(Arc::new(local::LocalStore::new(path))),
        #[cfg(feature = "remote")]
        StorePlace::Remote(url) => remote::open(url),
        #[cfg(not(feature = "remote"))]
        StorePlace::Remote(url) => Err(not_built_in(&url::shown(url))),
    }
}
