//! The options for calls of zarrs codecs, and access to their configurations.

use std::sync::OnceLock;

use zarrs::array::{CodecMetadataOptions, CodecOptions, CodecTraits};

static ONE_THREAD: OnceLock<CodecOptions> = OnceLock::new();

/// Runs a call of zarrs that makes default options. They have the number of rayon's threads, and the question would start as many, which never
/// end: then Python warns at each fork. In a pool, the number is the pool's. This one has a thread for the time of the call.
pub(crate) fn without_pool<R: Send>(make: impl Fn() -> R + Sync) -> R {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1);
    pool.build_scoped(rayon::ThreadBuilder::run, |pool| pool.install(&make)).unwrap_or_else(|_| make())
}

/// Returns options for one thread: the workers already use all processors, so a chunk is not decoded by several threads.
pub(crate) fn options() -> CodecOptions {
    // Not by `get_or_init`: a child that is forked during the call would wait for its end for ever.
    ONE_THREAD.get().copied().unwrap_or_else(|| {
        let options = without_pool(|| CodecOptions::default().with_concurrent_target(1));
        let _ = ONE_THREAD.set(options); // another thread may have set the same
        options
    })
}

/// Returns one entry of a codec's configuration.
pub(super) fn configured<C: CodecTraits + ?Sized>(codec: &C, key: &str) -> Option<serde_json::Value> {
    let configuration = codec.configuration_v3(&CodecMetadataOptions::default())?;
    serde_json::to_value(&configuration).ok()?.get(key).cloned()
}
