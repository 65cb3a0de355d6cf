//! Floor 5: many arrays in one segment.

pub(crate) mod ring;
