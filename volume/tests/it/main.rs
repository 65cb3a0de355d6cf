//! Downloads of volumes with known elements, and of files that are no volume.

#[path = "../place/mod.rs"]
mod place;
#[cfg(feature = "remote")]
#[path = "../servers/mod.rs"]
mod servers;

mod cloudvolume_defects;
mod described;
mod formats;
mod interrupted;
mod missing;
mod n5;
mod other_places;
mod pooled;
mod precomputed;
mod python;
mod refused;
mod regions;
mod remote;
mod taken_over;
mod zarr;
