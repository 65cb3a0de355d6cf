//! JPEG, by crates of nothing but Rust or, with the feature `turbojpeg`, by libjpeg-turbo.
//!
//! Both refuse pictures of which something is missing. Pictures are gray, or have three colours that stand together.

#[cfg(not(feature = "turbojpeg"))]
mod rust;
#[cfg(feature = "turbojpeg")]
mod turbo;
mod whole;

#[cfg(not(feature = "turbojpeg"))]
pub(super) use self::rust::{decode, encode};
#[cfg(feature = "turbojpeg")]
pub(super) use self::turbo::{decode, encode};

/// Longest side that a JPEG may have.
pub(super) const LONGEST_SIDE: usize = 65535;

/// Pictures of more scans are refused: each costs a walk over all blocks, however few bytes it has. Encoders make about ten.
const MOST_SCANS: usize = 100;
