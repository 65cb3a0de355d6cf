//! JPEG, by pure Rust crates or, with the feature `turbojpeg`, by libjpeg-turbo.
//!
//! Both refuse incomplete pictures. Pictures are gray, or have three interleaved colours.

#[cfg(not(feature = "turbojpeg"))]
mod rust;
#[cfg(feature = "turbojpeg")]
mod turbo;
mod whole;

#[cfg(not(feature = "turbojpeg"))]
pub(super) use self::rust::{decode, encode};
#[cfg(feature = "turbojpeg")]
pub(super) use self::turbo::{decode, encode};

/// The crate or library that decodes. Two of them may round to different elements.
pub(super) const DECODER: &str = if cfg!(feature = "turbojpeg") { "libjpeg-turbo" } else { "zune-jpeg" };

/// Longest side of a JPEG, in pixels.
pub(super) const LONGEST_SIDE: usize = 65535;

/// Pictures with more scans are refused: each scan costs a walk over all blocks, however few bytes it has. Encoders
/// make about ten.
const MOST_SCANS: usize = 100;
