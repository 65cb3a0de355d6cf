//! Floor 4: arrays that count who uses them, and how they get from process to process.
//!
//! `record.rs` is what such an array says about itself; `refcounted.rs` and `options.rs` make, open and leave them;
//! `strategy.rs` decides whether they travel by descriptor or by name, `handle.rs` is the name on its way;
//! `inspect.rs` and `reclaim.rs` look after what others left behind.

mod handle;
mod inspect;
mod options;
mod reclaim;
mod record;
mod refcounted;
mod strategy;
#[cfg(feature = "channel")]
mod turns;
#[cfg(feature = "channel")]
mod wire;

pub use self::handle::{Handle, HandleOptions};
pub use self::inspect::{Inspection, inspect, inspect_in};
pub use self::options::RefcountedOptions;
pub use self::reclaim::{Reclaim, Reclaimed, Removed, reclaim};
pub use self::refcounted::{RefcountedArray, to_shared};
pub use self::strategy::SharingStrategy;
