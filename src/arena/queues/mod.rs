//! Queues of arrays, from process to process.

mod patience;
mod queue;

pub use self::queue::{ArenaMessage, Queue, ReceiveError, Sendable};
