//! Floor 4: arrays that count who uses them, and how they get from process to process.
//!
//! `record.rs` is what such an array says about itself, `fields.rs` how parts of it are written; `refcounted.rs` and `options.rs` make, open and leave them;
//! `strategy.rs` decides whether they travel by descriptor or by name, `handle.rs` is the name on its way;
//! `inspect.rs` and `reclaim.rs` look after what others left behind.

#[cfg(feature = "channel")]
mod channel;
pub(crate) mod fields;
mod handle;
mod inspect;
mod options;
#[cfg(feature = "channel")]
mod parcel;
mod reclaim;
mod record;
mod refcounted;
mod strategy;
#[cfg(feature = "channel")]
mod turns;
#[cfg(feature = "channel")]
mod wire;

#[cfg(feature = "channel")]
pub use self::channel::{Channel, ChannelListener, Received};
pub use self::handle::{Handle, HandleOptions};
pub use self::inspect::{Inspection, inspect, inspect_in};
#[cfg(feature = "channel")]
pub use self::parcel::{By, ReceivedArray, Shareable};
pub use self::reclaim::{Reclaim, Reclaimed, Removed, reclaim};
pub use self::refcounted::{RefcountedArray, to_shared};
pub use self::strategy::SharingStrategy;
#[cfg(feature = "channel")]
pub use crate::os::{Peer, Socket};
