//! Queues that pass arrays between processes.

mod patience;
mod queue;
mod sender;

pub use self::queue::{ArenaMessage, Queue, ReceiveError, Sendable};
pub use self::sender::Sender;
