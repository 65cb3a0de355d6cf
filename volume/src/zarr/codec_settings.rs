//! What a codec of zarrs says of itself, and what every call of one is told.

use zarrs::array::{CodecMetadataOptions, CodecOptions, CodecTraits};

/// The workers are the parallelism: were each chunk decoded by several threads too, they would outnumber the processors.
pub(super) fn options() -> CodecOptions {
    CodecOptions::default().with_concurrent_target(1)
}

/// Returns one entry of a codec's configuration.
pub(super) fn configured<C: CodecTraits + ?Sized>(codec: &C, key: &str) -> Option<serde_json::Value> {
    let configuration = codec.configuration_v3(&CodecMetadataOptions::default())?;
    serde_json::to_value(&configuration).ok()?.get(key).cloned()
}
