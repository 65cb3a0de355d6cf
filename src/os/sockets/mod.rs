//! Stream sockets between processes of one machine, on Linux and Apple's systems.
//!
//! `lacking/sockets.rs` replaces this folder where there are none.

pub(crate) mod credentials;
#[cfg_attr(not(feature = "channel"), allow(dead_code))] // the manager needs less
mod listener;
#[cfg_attr(not(feature = "channel"), allow(dead_code, unreachable_pub))] // the manager needs less
mod socket;
#[cfg(test)]
pub(crate) mod testing;

pub(crate) use self::listener::{Listener, connect, listen};
#[cfg_attr(not(feature = "channel"), allow(unreachable_pub))]
pub use self::socket::Socket;
#[cfg(feature = "channel")]
pub(crate) use self::socket::{SOCKETS_CARRY_FILES, pair};
