//! The messages that this process has sent and that have not been received. The process holds their blocks until they
//! are.
//!
//! The receiver holds the block before it takes the message, but cannot release the sender's hold, which is counted in
//! the sender's process. So each process remembers the positions of its messages, and releases the blocks of received
//! ones whenever it sends, allocates, drops an array or reclaims. When it leaves or dies, the remaining messages become
//! orphaned (`members.rs`) and stay valid.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::arena::tables::ring::Ring;

/// A message: its position, and the entry of its block.
pub(super) type SentMessage = (u64, u32);

/// The messages that this process sent to a queue and that were not received when the list was last checked.
#[derive(Debug, Default)]
pub(super) struct SentList {
    /// In the order of their positions, in which they are received.
    messages: Mutex<VecDeque<SentMessage>>,
    /// Length of the list, read without the lock. It may be outdated: then received messages are released at the next
    /// call.
    count: AtomicUsize,
}

impl SentList {
    /// Locks the list. A sender locks it before the message gets its position, so that the list is in the order of
    /// positions.
    pub(super) fn lock(&self) -> MutexGuard<'_, VecDeque<SentMessage>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the list, unless it is empty or locked. The thread that holds the lock calls `end_received` itself.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, VecDeque<SentMessage>>> {
        if self.count.load(Ordering::Relaxed) == 0 { None } else { self.messages.try_lock().ok() }
    }

    /// Removes messages that have been received, and releases their blocks.
    pub(super) fn end_received(
        &self,
        ring: &Ring<'_, AtomicU64>,
        messages: &mut VecDeque<SentMessage>,
        release: impl Fn(u32),
    ) {
        let received = messages.iter().take_while(|(position, _)| ring.is_consumed(*position)).count();
        messages.drain(..received).for_each(|(_, entry)| release(entry));
        self.count.store(messages.len(), Ordering::Relaxed);
    }
}
