//! Downloads of volumes whose every element is known, and of much that is no volume.

#[path = "../place/mod.rs"]
mod place;

mod formats;
mod interrupted;
mod pooled;
mod precomputed;
mod refused;
mod regions;
mod zarr;
