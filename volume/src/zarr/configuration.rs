//! The names by which zarrs finds this crate's codecs, and their configurations as values of JSON.

use serde_json::Value;
use zarrs::metadata::Configuration;

/// Differences of neighbouring elements.
pub(super) const DELTA: &str = "ndarray-shm.delta";
/// A checksum before or behind the bytes.
pub(super) const CHECKSUM: &str = "ndarray-shm.checksum";
/// An LZ4 block behind its size.
pub(super) const LZ4: &str = "ndarray-shm.lz4";
/// An xz stream, a legacy LZMA stream, or raw LZMA.
pub(super) const LZMA: &str = "ndarray-shm.lzma";

pub(super) const NAMES: &[&str] = &[DELTA, CHECKSUM, LZ4, LZMA];

/// Whether a name is one of this crate's private codec names, which are invalid in documents.
pub(super) fn is_name(name: &str) -> bool {
    NAMES.contains(&name)
}

/// Returns the beginning of a value, for messages: values of a damaged document may be of any length.
pub(super) fn brief(value: &Value) -> String {
    const LONGEST: usize = 80;
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}..", &text[..end]),
        None => text,
    }
}

/// Converts a configuration to the type of zarrs.
pub(super) fn into_configuration(value: Value) -> Configuration {
    match value {
        Value::Object(map) => map.into(),
        _ => Configuration::default(),
    }
}
