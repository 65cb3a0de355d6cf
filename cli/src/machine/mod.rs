//! Facts about platform, machine and user, and which processes have a file open.

pub(crate) mod holders;
pub(crate) mod host;
pub(crate) mod logind;
