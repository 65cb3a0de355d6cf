//! A bounded lock-free queue in shared memory, for any number of senders and receivers. A kill at any step blocks no
//! other process.
//!
//! A message is one word: one compare-exchange of a cell sends it, another one receives it. Position `p` is in cell
//! `p % cells`, in lap `p / cells`:
//!
//! ```text
//! a cell:  | lap: 25 bits | closed: 1 | sender + 1: 6, or 0: empty | block: 32 |
//!
//!    empty(lap) ──push──▶ full(lap, sender, block) ──pop──▶ empty(lap + 1)
//!                                │ orphan  ▲
//!                                └─────────┘ the message is orphaned now
//! ```
//!
//! - **The cells decide.** `head` (the next message to be received) and `tail` (the position of the next message to be
//!   sent) are hints that may lag by one: a process can be killed between its exchange of the cell and that of the
//!   position. A process that finds a lagging position advances it itself, and waits for no other process.
//! - **Laps prevent ABA.** A process may be stopped between its load of a cell and its exchange. When it goes on, the
//!   cell is in another lap and the exchange fails, even if the same sender has sent the same block again. (Laps repeat
//!   after 2^25.)
//! - **Closing is a mark in a cell**, the one that the next message would use. A sender and the process that closes
//!   exchange the same word: the message comes before the mark, or is refused.
//! - **Memory order.** Every exchange acquires and releases, every load acquires. A receiver therefore sees everything
//!   that the sender wrote to the block. And a process that finds a cell too far ahead of the position it has loaded
//!   sees, when it loads the position again, that it has moved on.
//!
//! New memory, which is zero, is an empty queue.
//!
//! This is the array queue of Shann, Huang and Chen ("A practical nonblocking queue algorithm using compare-and-swap",
//! ICPADS 2000), which Tsigas and Zhang also build on ("A simple, fast and scalable non-blocking concurrent FIFO queue
//! for shared memory multiprocessor systems", SPAA 2001). It too has a counter beside the content of each cell. Here
//! the counter is the lap, which tells the position of a cell, so a position need not be loaded twice. Content and lap
//! fit into 64 bits, so an ordinary compare-exchange is enough. And the queue can be closed.

use crate::arena::tables::entries::{SEATS, Word};

/// Stands for the sender of an orphaned message. The ORPHAN bit keeps the block in place of the sender, which has left
/// or died.
pub(crate) const ORPHAN_SENDER: u32 = SEATS + 1;

const ENTRY: u64 = u32::MAX as u64;
const SENDER_SHIFT: u32 = 32;
const SENDER: u64 = 0x3f << SENDER_SHIFT;
const CLOSED: u64 = 1 << 38;
const LAP_SHIFT: u32 = 39;
const LAPS: u64 = u64::MAX >> LAP_SHIFT;

/// A message of a queue: its sender and its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message {
    /// The seat of the member that sent it, or [`ORPHAN_SENDER`].
    pub(crate) sender: u32,
    /// The number of the block's entry.
    pub(crate) entry: u32,
}

/// Why a message cannot be sent or received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RingRefusal {
    /// There is no room for another message.
    Full,
    /// There is no message.
    Empty,
    /// There is no message, and all members that had registered as senders have left or died.
    Deserted,
    /// The queue is closed. A receiver gets this only after every message has been received.
    Closed,
    /// The queue holds bytes that no member can have written.
    Damaged,
}

/// A cell's content at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cell(u64);

impl Cell {
    /// Returns the cell with this message in it.
    fn filled(self, message: Message) -> Self {
        let sender = u64::from(message.sender + 1) << SENDER_SHIFT & SENDER;
        Self(self.0 & !(SENDER | ENTRY) | sender | u64::from(message.entry))
    }

    /// Returns the cell without its message, in the next lap. The mark of a closed queue stays.
    fn emptied(self) -> Self {
        Self((self.0 & !(SENDER | ENTRY)).wrapping_add(1 << LAP_SHIFT))
    }

    /// Returns how many laps the cell is ahead of `lap`, modulo 2^25: [`LAPS`] means one lap behind.
    fn lead(self, lap: u64) -> u64 {
        (self.0 >> LAP_SHIFT).wrapping_sub(lap) & LAPS
    }

    fn is_closed(self) -> bool {
        self.0 & CLOSED != 0
    }

    fn closed(self) -> Self {
        Self(self.0 | CLOSED)
    }

    #[allow(clippy::cast_possible_truncation)] // the block is the lower half
    fn message(self) -> Option<Message> {
        let sender = (self.0 & SENDER) >> SENDER_SHIFT;
        (sender != 0).then(|| Message { sender: sender as u32 - 1, entry: self.0 as u32 })
    }
}

/// A queue in shared memory. The number of cells is a power of two.
#[derive(Debug)]
pub(crate) struct Ring<'a, W> {
    /// The position of the next message to be received, or the one before.
    head: &'a W,
    /// The position that the next message gets, or the one before.
    tail: &'a W,
    cells: &'a [W],
}

impl<'a, W: Word> Ring<'a, W> {
    /// Returns the queue in these words. Zeros are an empty queue.
    ///
    /// `None` unless the number of cells is a power of two.
    pub(crate) fn new(head: &'a W, tail: &'a W, cells: &'a [W]) -> Option<Self> {
        cells.len().is_power_of_two().then_some(Self { head, tail, cells })
    }

    /// Returns the cell of a position, its content, and how many laps the content is ahead of the position. One lap
    /// behind is [`LAPS`].
    fn at(&self, position: u64) -> (&'a W, Cell, u64) {
        let length = self.cells.len() as u64;
        #[allow(clippy::cast_possible_truncation)] // less than the number of cells
        let place = &self.cells[(position & (length - 1)) as usize];
        let cell = Cell(place.load());
        (place, cell, cell.lead(position >> length.trailing_zeros()))
    }

    /// Moves a position from `from` to the next one.
    ///
    /// A process calls this after its own exchange of a cell, and also when it finds that another process was stopped
    /// or killed between its exchange of the cell and that of the position.
    fn advance(position: &W, from: u64) {
        let _ = position.exchange(from, from.wrapping_add(1)); // fails if another process has advanced it already
    }

    /// Appends a message and returns its position.
    ///
    /// The caller holds the block until the message [is consumed](Self::is_consumed).
    pub(crate) fn push(&self, message: Message) -> Result<u64, RingRefusal> {
        loop {
            let (tail, place, cell) = self.end()?;
            if cell.is_closed() {
                return Err(RingRefusal::Closed);
            }
            if cell.message().is_some() {
                return Err(RingRefusal::Full);
            }
            // Fails if another sender has used the cell, or another process has closed the queue, since the load:
            // retry.
            if place.exchange(cell.0, cell.filled(message).0).is_ok() {
                // If the sender is killed here, the message is sent. The next process that searches for the end
                // advances the tail.
                Self::advance(self.tail, tail);
                return Ok(tail);
            }
        }
    }

    /// Takes the message at the beginning.
    ///
    /// The receiver holds the block before it takes the message. In the other order, the sender could see that the
    /// message is consumed, and release the block before the receiver holds it.
    ///
    /// So `hold` may come too late: another receiver has taken the message and released the block, which is free, or
    /// contains another array by now. Then `hold` may refuse. If it succeeds, the exchange of the cell fails and
    /// `release` undoes the hold. In between, the hold must not disturb the block's new owner.
    pub(crate) fn pop(
        &self,
        mut hold: impl FnMut(u32) -> bool,
        mut release: impl FnMut(u32),
    ) -> Result<Message, RingRefusal> {
        loop {
            let head = self.head.load();
            let (place, cell, lead) = self.at(head);
            match (lead, cell.message()) {
                (0, Some(message)) => {
                    if !hold(message.entry) {
                        // The sender's hold, or ORPHAN, keeps the block as long as the message is there. If the message
                        // is still there, its block was not kept: damage. Otherwise another receiver has taken it, or
                        // it was orphaned: retry.
                        if place.load() == cell.0 {
                            return Err(RingRefusal::Damaged);
                        }
                        continue;
                    }
                    if place.exchange(cell.0, cell.emptied().0).is_ok() {
                        // If the receiver is killed here, it has taken the message. The next receiver advances the
                        // head.
                        Self::advance(self.head, head);
                        return Ok(message);
                    }
                    release(message.entry); // the message was received or orphaned, or the queue was closed: retry
                }
                // The message of this position was never sent, so the head does not lag: there is no message.
                (0, None) if cell.is_closed() => return Err(RingRefusal::Closed),
                (0, None) => return Err(RingRefusal::Empty),
                // Another receiver has taken the message and not yet advanced the head, or was killed before it could.
                // The cell may contain a message of the next lap by now.
                (1, _) => Self::advance(self.head, head),
                _ => Self::unless_damaged(self.head, head)?,
            }
        }
    }

    /// Fails if a position is still `was` after a cell was found in a lap that does not match it.
    ///
    /// Between its load of the position and that of the cell, a process may be stopped while other processes use the
    /// cell again and again. They had loaded a later position before they exchanged the cell, so this load returns a
    /// later position too. If it does not, the bytes were not written by a member.
    fn unless_damaged(position: &W, was: u64) -> Result<(), RingRefusal> {
        if position.load() == was { Err(RingRefusal::Damaged) } else { Ok(()) }
    }

    /// Returns whether the message with this position has been received.
    pub(crate) fn is_consumed(&self, position: u64) -> bool {
        let (_, cell, lead) = self.at(position);
        lead != 0 || cell.message().is_none()
    }

    /// Closes the queue. Senders are refused from now on. Receivers get the messages that are left, and then
    /// [`RingRefusal::Closed`].
    ///
    /// Returns whether the queue was open. In a full queue the mark goes into the cell of the oldest message, and stays
    /// there when the message is received.
    pub(crate) fn close(&self) -> Result<bool, RingRefusal> {
        loop {
            let (_, place, cell) = self.end()?;
            if cell.is_closed() {
                return Ok(false);
            }
            // Fails if a sender has used the cell since the load, or its old message was received or orphaned. The end
            // may be elsewhere: retry.
            if place.exchange(cell.0, cell.closed().0).is_ok() {
                return Ok(true);
            }
        }
    }

    /// Returns whether the queue is closed.
    pub(crate) fn is_closed(&self) -> Result<bool, RingRefusal> {
        self.end().map(|(.., cell)| cell.is_closed())
    }

    /// Returns the position that the next message would get, its cell, and the cell's content. In a full queue that is
    /// an old message.
    fn end(&self) -> Result<(u64, &'a W, Cell), RingRefusal> {
        loop {
            let tail = self.tail.load();
            let (place, cell, lead) = self.at(tail);
            match (lead, cell.message()) {
                (0, None) | (LAPS, Some(_)) => return Ok((tail, place, cell)),
                // Another sender has sent this message and not yet advanced the tail, or was killed before it could.
                // The message may have been received already.
                (0, Some(_)) | (1, None) => Self::advance(self.tail, tail),
                _ => Self::unless_damaged(self.tail, tail)?,
            }
        }
    }

    /// Returns how many messages there are, or were a moment ago.
    #[allow(clippy::cast_possible_truncation)] // at most the number of cells
    pub(crate) fn len(&self) -> usize {
        // Head first, then tail. If other processes send and receive in between, the tail only advances, so the
        // difference is never negative. Each may lag by one, which is corrected.
        let head = self.head.load();
        let (.., lead) = self.at(head);
        let head = head.wrapping_add(u64::from(lead == 1));
        let _ = self.end(); // advances a lagging tail
        self.tail.load().wrapping_sub(head).min(self.cells.len() as u64) as usize
    }

    /// Turns the messages of a member into orphaned messages. The member must not send any more.
    ///
    /// `keep` is called for each block before its message changes, and keeps the block until no orphaned message for it
    /// is [found](Self::messages). If a receiver takes the message in between, the block was kept in vain, and the next
    /// process that reclaims releases it. One process at a time may orphan messages or search for such blocks. If it is
    /// killed midway, another process can repeat all of it.
    pub(crate) fn orphan_messages(&self, sender: u32, mut keep: impl FnMut(u32) -> bool) {
        for place in self.cells {
            let mut cell = Cell(place.load());
            while let Some(message) = cell.message().filter(|message| message.sender == sender) {
                let heir = Message { sender: ORPHAN_SENDER, ..message };
                // A block that cannot be kept is free: a receiver has taken the message since the load, or the bytes
                // are damaged. In both cases nothing is left to do for this message. The exchange fails if the cell has
                // changed since the load.
                let done = !keep(message.entry) || place.exchange(cell.0, cell.filled(heir).0).is_ok();
                let now = Cell(place.load());
                if done && now == cell {
                    break;
                }
                cell = now;
            }
        }
    }

    /// Iterates over the messages in the order of the cells. Finds every message that stays during the iteration, and
    /// perhaps others.
    pub(crate) fn messages(self) -> impl Iterator<Item = Message> + 'a {
        self.cells.iter().filter_map(|place| Cell(place.load()).message())
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
