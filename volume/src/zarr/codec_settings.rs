//! The options for calls of zarrs codecs, and access to their configurations.

use std::sync::OnceLock;

use zarrs::array::{CodecMetadataOptions, CodecOptions, CodecTraits};

use crate::error::{Error, Result};

static ONE_THREAD: OnceLock<CodecOptions> = OnceLock::new();

/// Runs a call of zarrs that makes default options. They have the number of rayon's threads, and the question would
/// start as many, which never end: then Python warns at each fork. In a pool, the number is the pool's. This one has a
/// thread for the time of the call.
///
/// Fails if the thread cannot be started.
pub(crate) fn without_pool<R: Send>(make: impl FnOnce() -> R + Send) -> Result<R> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1);
    let outcome = pool.build_scoped(rayon::ThreadBuilder::run, |pool| {
        pool.install(|| {
            if ONE_THREAD.get().is_none() {
                let _ = ONE_THREAD.set(one_thread()); // another thread may have set the same
            }
            make()
        })
    });
    outcome.map_err(|error| Error::io("starting a thread for", "a volume", std::io::Error::other(error)))
}

fn one_thread() -> CodecOptions {
    CodecOptions::default().with_concurrent_target(1)
}

/// Returns options for one thread: the workers already use all processors, so a chunk is not decoded by several
/// threads.
pub(crate) fn options() -> CodecOptions {
    // They were made when the volume was opened. Not by `get_or_init`: a child that is forked during the call would
    // wait for its end for ever.
    ONE_THREAD.get().copied().unwrap_or_else(one_thread)
}

/// Returns one entry of a codec's configuration.
pub(super) fn configured<C: CodecTraits + ?Sized>(codec: &C, key: &str) -> Option<serde_json::Value> {
    let configuration = codec.configuration_v3(&CodecMetadataOptions::default())?;
    serde_json::to_value(&configuration).ok()?.get(key).cloned()
}
