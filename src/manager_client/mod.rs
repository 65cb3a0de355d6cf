//! Floor 1: what an array tells the manager.
//!
//! The manager itself, and questions to it, are `src/manager/`, on a higher floor. Arrays work without it, and
//! announcing a directory never waits for it.

pub(crate) mod address;
mod announce;
mod program;
pub(crate) mod wire;

pub use self::address::socket_path;
pub use self::announce::announce;
pub(crate) use self::announce::remind;
pub use self::program::{Program, set_program};
