//! Queues of arrays, from process to process.

mod patience;
mod queue;
mod sender;

pub use self::queue::{ArenaMessage, Queue, ReceiveError, Sendable};
pub use self::sender::Sender;
