//! Reference-counted arrays, and the ways to send them to other processes.
//!
//! A [`RefcountedArray`] stores its own type and shape. The caller may choose its name, or leave it to this crate. The
//! last handle to detach removes the name. If all attached processes were killed, [`reclaim()`], the
//! [`manager`](crate::manager) or `ndshm gc` removes it.
//!
//! ```
//! use ndarray_shm::ndarray::Ix2;
//! use ndarray_shm::RefcountedArray;
//! use ndarray_shm::counted::Handle;
//!
//! let array = RefcountedArray::<f64, _>::create("counted-room-example", (2, 2))?;
//! array.write()?.fill(2.5);
//! let text = array.handle()?.to_string(); // one line, for a command line or a message
//!
//! // in another process, which needs neither shape nor name
//! let same = text.parse::<Handle>()?.attach::<f64, Ix2>()?;
//! assert_eq!(same.read()?.sum(), 10.0);
//! # Ok::<(), ndarray_shm::Error>(())
//! ```
//!
//! | to | use |
//! |---|---|
//! | send an array to another process as text | [`RefcountedArray::handle`], [`Handle`] |
//! | send arrays in messages over a socket | `Channel`, with the feature `channel` |
//! | send a descriptor of another library with them | `Foreign`, with the feature `channel` |
//! | choose between descriptors and names, per array or for the program | [`SharingStrategy`] |
//! | read an array's properties without attaching | [`inspect()`], [`inspect_in`] |
//! | free arrays that only your used handles keep, when memory runs out | [`give_up`], [`on_no_space`] |
//! | remove the files that killed processes left | [`reclaim()`], [`Reclaim`] |
//!
//! Not for arrays that other programs map as plain bytes: use a [`SharedArray`](crate::SharedArray), which has no
//! trailer. For many small arrays, a message of an [`arena::Queue`](crate::arena::Queue) costs less than one handle per
//! array.
//!
//! # Source
//!
//! The two strategies, the counting of handles in flight, and the manager follow `torch.multiprocessing`. Unlike there,
//! a killed process does not leak its count: the kernel's locks show which processes are alive.

#[cfg(feature = "channel")]
mod channel;
pub(crate) mod fields;
#[cfg(feature = "channel")]
mod foreign;
mod give_up;
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
#[cfg(feature = "channel")]
pub use self::foreign::Foreign;
pub use self::give_up::{give_up, on_no_space};
pub use self::handle::{Handle, HandleOptions};
pub use self::inspect::{Inspection, inspect, inspect_in};
#[cfg(feature = "channel")]
pub use self::parcel::{By, ReceivedArray, Shareable};
pub use self::reclaim::{Reclaim, Reclaimed, Removed, RemovedKind, reclaim};
pub use self::refcounted::{RefcountedArray, to_shared};
pub use self::strategy::SharingStrategy;
#[cfg(feature = "channel")]
pub use crate::os::{Peer, Socket};
