//! What this process has sent and nobody has received yet: it keeps those blocks, since nobody else would.
//!
//! A message says who sent it, not how to undo that: the receiver holds the block before he takes the message, but he cannot
//! take away a hold that is the sender's. So each process remembers the positions of its messages, and gives up its holds on
//! blocks that were received when it next comes by: whenever it sends, allocates, drops an array, or collects. What is left when
//! it leaves or dies is inherited by an estate (`estate.rs`), and messages stay valid.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::ground::Ground;
use super::ring::{Message, Refused, Ring};

/// A message: the position it got, and its block's slot.
type Sent = (u64, u32);

/// The messages that this process sent to a queue and that were not received when it last looked.
#[derive(Debug, Default)]
pub(super) struct SentList {
    /// In the order of their positions, which is that in which they are received.
    messages: Mutex<VecDeque<Sent>>,
    /// How many there are, to be asked in passing.
    count: AtomicUsize,
}

impl Ground {
    /// Sends a block that this process holds, and holds it once more until it is received.
    pub(super) fn send(&self, queue: u32, slot: u32) -> Result<(), Refused> {
        let (Some(words), Some(list)) = (self.queue_words(queue), self.sent.get(queue as usize)) else {
            return Err(Refused::Damaged);
        };
        if !self.slots().hold_invited(slot) {
            return Err(Refused::Damaged);
        }
        // Locked from before it has a position, so that they stand here in their order.
        let mut messages = list.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = words.ring.push(Message { sender: self.seat, slot });
        match sent {
            Ok(position) => messages.push_back((position, slot)),
            Err(_) => drop(self.release(slot)),
        }
        list.end_received(self, &words.ring, &mut messages);
        drop(messages);
        if sent.is_ok() {
            words.filled.notify();
        }
        sent.map(drop)
    }

    /// Receives a block, which this process holds from then on; returns its slot.
    pub(super) fn receive(&self, queue: u32) -> Result<u32, Refused> {
        let words = self.queue_words(queue).ok_or(Refused::Damaged)?;
        let slots = self.slots();
        let message = words.ring.pop(|slot| slots.hold_invited(slot), |slot| drop(self.release(slot)))?;
        words.emptied.notify();
        Ok(message.slot)
    }

    /// Gives up the holds on what was received since. Never waits, and costs next to nothing where nothing was sent.
    pub(crate) fn end_sent(&self) {
        for (queue, list) in (0u32..).zip(&self.sent) {
            if list.count.load(Ordering::Relaxed) == 0 || !self.is_own_process() {
                continue;
            }
            // Who has it locked does the same.
            let Ok(mut messages) = list.messages.try_lock() else { continue };
            if let Some(words) = self.queue_words(queue) {
                list.end_received(self, &words.ring, &mut messages);
            }
        }
    }
}

impl SentList {
    fn end_received(&self, ground: &Ground, ring: &Ring<'_, AtomicU64>, messages: &mut VecDeque<Sent>) {
        let received = messages.iter().take_while(|(position, _)| ring.is_consumed(*position)).count();
        messages.drain(..received).for_each(|(_, slot)| drop(ground.release(slot)));
        self.count.store(messages.len(), Ordering::Relaxed);
    }
}
