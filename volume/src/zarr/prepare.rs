//! Makes the tables that zarrs makes when they are first needed.

use std::sync::Arc;

use serde_json::{Value, json};
use zarrs::array::{Array, ArrayMetadata};
use zarrs::storage::store::MemoryStore;

use super::codec_settings::without_pool;
use super::extensions;

/// Makes all tables that opening a Zarr volume would make on first use.
///
/// It takes less than a millisecond, and matters only to a program that forks while other threads open volumes: a child
/// that is forked while a thread makes such a table would wait for that thread for ever, which it does not have. Call
/// it in the thread that forks, before the others start.
pub fn prepare() {
    extensions::register();
    // Each search goes through all plugins of a kind before it fails, and meets their tables of names.
    let unknown = json!("ndarray-shm.unknown");
    for (key, value) in [
        ("data_type", unknown.clone()),
        ("chunk_grid", json!({"name": unknown, "configuration": {}})),
        ("chunk_key_encoding", json!({"name": unknown})),
        ("codecs", json!([{"name": unknown}])),
        ("codecs", json!([{"name": "bytes", "configuration": {"endian": "little"}}])),
    ] {
        let mut document = json!({
            "zarr_format": 3, "node_type": "array", "shape": [1], "data_type": "uint16", "fill_value": 0,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        });
        document[key] = value;
        make(document);
    }
    for (dtype, compressor) in [("<u2", Value::Null), ("<u2", json!({"id": unknown})), ("<x9", Value::Null)] {
        let document = json!({
            "zarr_format": 2, "shape": [1], "chunks": [1], "dtype": dtype, "compressor": compressor, "fill_value": 0, "order": "C",
            "filters": null,
        });
        make(document);
    }
}

/// Makes an array of a document, and drops it. Most documents here are refused, on purpose.
fn make(document: Value) {
    if let Ok(metadata) = serde_json::from_value::<ArrayMetadata>(document) {
        // Without a thread, opening a volume fails with that error.
        drop(without_pool(|| Array::new_with_metadata(Arc::new(MemoryStore::new()), "/", metadata)));
    }
}
