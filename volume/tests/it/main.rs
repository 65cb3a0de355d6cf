//! Downloads of volumes with known elements, and of files that are no volume.

#[path = "../place/mod.rs"]
mod place;
#[cfg(feature = "remote")]
#[path = "../servers/mod.rs"]
mod servers;

mod cached;
mod cloudvolume_defects;
mod described;
mod formats;
mod identities;
mod interrupted;
mod missing;
mod n5;
mod other_places;
mod pooled;
mod precomputed;
mod python;
mod reads;
mod refused;
mod regions;
mod remote;
mod taken_over;
#[cfg(unix)]
mod versions;
mod zarr;

/// Returns how often a test damages bytes at random. Decoders are the same on all platforms, and the files that each
/// round writes are slow on Windows.
fn rounds(usual: usize) -> usize {
    if cfg!(windows) { usual / 8 } else { usual }
}
