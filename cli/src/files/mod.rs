//! Files of other programs: .npy headers, and files that have their name only when they are complete.

pub(crate) mod npy;
pub(crate) mod output;
