//! The options for calls of zarrs codecs, and access to their configurations.

use zarrs::array::{CodecMetadataOptions, CodecOptions, CodecTraits};

/// Returns options for one thread: the workers already use all processors, so a chunk is not decoded by several threads.
pub(super) fn options() -> CodecOptions {
    CodecOptions::default().with_concurrent_target(1)
}

/// Returns one entry of a codec's configuration.
pub(super) fn configured<C: CodecTraits + ?Sized>(codec: &C, key: &str) -> Option<serde_json::Value> {
    let configuration = codec.configuration_v3(&CodecMetadataOptions::default())?;
    serde_json::to_value(&configuration).ok()?.get(key).cloned()
}
