//! Floor 5: many arrays in one segment.

pub(crate) mod event;
pub(crate) mod ring;
