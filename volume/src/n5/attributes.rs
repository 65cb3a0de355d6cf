//! `attributes.json`, the only document of a dataset or group.

use std::sync::Arc;

use serde_json::Value;

use crate::error::{Error, Result, SourceFailure};
use crate::gzip;
use crate::store::Store;

/// Name of the document.
pub(super) const ATTRIBUTES: &str = "attributes.json";

/// Maximum length of a document, packed or unpacked.
pub(super) const LONGEST: u64 = 16 << 20;

/// Maximum length of a value in a message, in characters.
const BRIEF: usize = 80;

/// A parsed document.
#[derive(Debug)]
pub(super) struct N5Attributes {
    /// Path or URL of the dataset or group.
    volume: String,
    /// Path or URL of the document.
    name: String,
    /// Key of the dataset or group; `""` for the root of the store.
    prefix: String,
    json: Value,
    /// Tells this document from a later one under the same key.
    mark: String,
}

impl N5Attributes {
    /// Reads the document under a prefix, if there is one.
    ///
    /// # Errors
    ///
    /// [`Source`](Error::Source): the document is damaged. [`Store`](Error::Store): the document cannot be read.
    pub(super) fn read(store: &Arc<dyn Store>, prefix: &str) -> Result<Option<Self>> {
        let key = join(prefix, ATTRIBUTES);
        let Some(object) = store.get_at_most(&key, LONGEST)? else { return Ok(None) };
        let name = store.locate(&key);
        let damaged = |reason| Error::volume(SourceFailure::Damaged, &name, reason);
        let bytes = if object.gzip {
            let mut text = Vec::new();
            let longest = usize::try_from(LONGEST).unwrap_or(usize::MAX);
            gzip::unpack(&object.bytes, longest, &mut text)
                .map_err(|cause| damaged("it cannot be unpacked").because(cause))?;
            text
        } else {
            object.bytes
        };
        let json: Value =
            serde_json::from_slice(&bytes).map_err(|error| damaged("this is no JSON document").because(error))?;
        if !json.is_object() {
            return Err(damaged("this is no JSON object"));
        }
        let volume = name.strip_suffix(ATTRIBUTES).unwrap_or(&name).trim_end_matches(['/', '\\']).to_owned();
        let (length, checksum) = (bytes.len(), crc32fast::hash(&bytes));
        let mark = format!("attributes {length} bytes, crc32 {checksum:08x}, version {}", object.mark);
        Ok(Some(Self { volume, name, prefix: prefix.to_owned(), json, mark }))
    }

    /// Whether the document describes a dataset instead of a group.
    pub(super) fn is_dataset(&self) -> bool {
        self.json.get("dimensions").is_some()
    }

    pub(super) fn json(&self) -> &Value {
        &self.json
    }

    /// Returns the path or URL of the dataset or group.
    pub(super) fn volume(&self) -> &str {
        &self.volume
    }

    /// Returns the path or URL of the document.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the key of the dataset or group.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns a line that identifies the volume and its attributes.
    ///
    /// It includes the version of the document: a volume that was created anew is a different one, even if it has the
    /// same shape.
    pub(super) fn identity(&self) -> String {
        format!("n5 {:?} {}", self.volume, self.mark)
    }
}

/// Puts a prefix in front of a key.
pub(super) fn join(prefix: &str, key: &str) -> String {
    if prefix.is_empty() { key.to_owned() } else { format!("{prefix}/{key}") }
}

/// Returns the beginning of a value, for messages: values of a damaged document may have any length.
pub(super) fn brief(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if text.chars().count() <= BRIEF { text } else { format!("{}..", text.chars().take(BRIEF).collect::<String>()) }
}
