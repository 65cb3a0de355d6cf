//! What this process has sent and nobody has received yet: it keeps those blocks, since nobody else would.
//!
//! A message says who sent it, not how to undo that: the receiver holds the block before he takes the message, but he cannot
//! take away a hold that is the sender's. So each process remembers the positions of its messages, and gives up its holds on
//! blocks that were received when it next comes by: whenever it sends, allocates, drops an array, or collects. What is left when
//! it leaves or dies becomes orphaned (`members.rs`), and messages stay valid.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::arena::tables::ring::Ring;

/// A message: the position it got, and its block's slot.
pub(super) type SentMessage = (u64, u32);

/// The messages that this process sent to a queue and that were not received when it last looked.
#[derive(Debug, Default)]
pub(super) struct SentList {
    /// In the order of their positions, which is that in which they are received.
    messages: Mutex<VecDeque<SentMessage>>,
    /// How many there are, to be asked in passing.
    count: AtomicUsize,
}

impl SentList {
    /// Locks the list for a message that is about to be sent: positions stand in it in their order.
    pub(super) fn lock(&self) -> MutexGuard<'_, VecDeque<SentMessage>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the list, if there may be anything in it and no other thread has it locked: that thread does the same.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, VecDeque<SentMessage>>> {
        if self.count.load(Ordering::Relaxed) == 0 { None } else { self.messages.try_lock().ok() }
    }

    /// Removes what was received since, and gives up this process's holds on it.
    pub(super) fn end_received(
        &self,
        ring: &Ring<'_, AtomicU64>,
        messages: &mut VecDeque<SentMessage>,
        release: impl Fn(u32),
    ) {
        let received = messages.iter().take_while(|(position, _)| ring.is_consumed(*position)).count();
        messages.drain(..received).for_each(|(_, slot)| release(slot));
        self.count.store(messages.len(), Ordering::Relaxed);
    }
}
