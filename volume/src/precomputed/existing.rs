//! Finds existing chunks of a scale and their layout: new chunks are named in the same way.

use super::key::{self, NameLayout};
use crate::error::{Result, StoreFailure};
use crate::store::Store;

/// Number of keys of a bucket that are searched for one of a chunk.
const KEYS: usize = 64;

/// Existing chunks of a scale.
#[derive(Debug, Default)]
pub(super) struct Existing {
    /// The key of a chunk in the flat layout.
    pub(super) flat: Option<String>,
    /// The key of a chunk in the nested layout.
    pub(super) nested: Option<String>,
}

impl Existing {
    /// Looks for a chunk of each layout among the keys that begin with `prefix`.
    ///
    /// Finds nothing on web servers, which cannot list keys.
    pub(super) fn look(store: &dyn Store, prefix: &str) -> Result<Self> {
        if store.is_web() {
            return Ok(Self::default());
        }
        if store.is_remote() { Self::in_bucket(store, prefix) } else { Self::in_directory(store, prefix) }
    }

    /// Looks only at the first keys: a bucket may have millions under one prefix, and usually all have the same layout.
    fn in_bucket(store: &dyn Store, prefix: &str) -> Result<Self> {
        let keys = match store.first_keys(prefix.trim_end_matches('/'), KEYS) {
            Ok(keys) => keys,
            // Credentials may permit reading and writing objects without listing them.
            Err(error) if error.store_failure() == Some(StoreFailure::CredentialsRefused) => Vec::new(),
            Err(error) => return Err(error),
        };
        let of = |layout| {
            let is_chunk = |key: &&String| {
                let name = key.strip_prefix(prefix).unwrap_or(key);
                key::layout_of(name.strip_suffix(".gz").unwrap_or(name)) == Some(layout)
            };
            keys.iter().find(is_chunk).cloned()
        };
        Ok(Self { flat: of(NameLayout::Flat), nested: of(NameLayout::Nested) })
    }

    fn in_directory(store: &dyn Store, prefix: &str) -> Result<Self> {
        let names = store.list(prefix.trim_end_matches('/'))?;
        let flat = names.iter().find(|name| key::layout_of(name) == Some(NameLayout::Flat));
        let flat = flat.map(|name| format!("{prefix}{name}"));
        for x in ranges(&names) {
            let x = format!("{prefix}{x}");
            for y in ranges(&store.list(x.trim_end_matches('/'))?) {
                let y = format!("{x}{y}");
                let names = store.list(y.trim_end_matches('/'))?;
                if let Some(z) = names.iter().find(|name| key::is_range(name)) {
                    return Ok(Self { flat, nested: Some(format!("{y}{z}")) });
                }
            }
        }
        Ok(Self { flat, nested: None })
    }
}

/// Returns the directories named by a range of a chunk, each with its slash at the end.
fn ranges(names: &[String]) -> impl Iterator<Item = &str> {
    names.iter().map(String::as_str).filter(|name| name.strip_suffix('/').is_some_and(key::is_range))
}
