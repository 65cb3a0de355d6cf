//! What there is in shared memory: the directories, how a name is found in them, and what each file says about itself.

pub(crate) mod arena;
pub(crate) mod cache;
pub(crate) mod counted;
pub(crate) mod description;
pub(crate) mod item;
pub(crate) mod places;
pub(crate) mod stream;
pub(crate) mod typed;
