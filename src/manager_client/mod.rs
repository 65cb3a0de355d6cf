//! Floor 3: what a process tells the manager, and what it asks: the client's side, and the protocol.
//!
//! The manager itself is `src/manager/`, above. Nothing here waits for it or needs it.

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
