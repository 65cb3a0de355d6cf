//! Floor 3: the client's side of the manager, and the protocol.
//!
//! The manager itself is `src/manager/`, on a higher floor. Arrays work without it, and announcing a directory never
//! waits for it.

pub(crate) mod address;
mod announce;
mod program;
mod query;
pub(crate) mod wire;

pub use self::address::socket_path;
pub use self::announce::announce;
pub(crate) use self::announce::remind;
pub use self::program::{Program, set_program};
pub use self::query::{status, stop};
pub use self::wire::Status;
