//! A bounded queue in shared memory for any number of senders and receivers, of whom anyone may be killed at any step.
//!
//! Every message is one word, put there by one compare-exchange and taken by one. The two *positions*, where the next
//! message goes and where the next one is, are only hints beside that: whoever finds that one lags moves it on, so
//! that nobody waits for one that was stopped before he did. This is the array queue of Shann, Huang and Chen ("A
//! practical nonblocking queue algorithm using compare-and-swap", ICPADS 2000), which also Tsigas and Zhang ("A simple,
//! fast and scalable non-blocking concurrent FIFO queue for shared memory multiprocessor systems", SPAA 2001) work on;
//! as there, each cell has a counter beside its content, here of laps, so that an exchange that comes too late fails.
//! Unlike theirs a cell says by its lap alone which position it is at, so a position need not be looked at twice; a
//! message moves no more than one word, so one exchange of 64 bits is enough; and it can be closed:
//!
//! ```text
//! a cell:  | lap: 25 bits | closed: 1 | sender + 1: 6, or 0: empty | block: 32 |
//!
//!    empty(lap) ──push──▶ full(lap, sender, block) ──pop──▶ empty(lap + 1)
//!                                │ orphan  ▲
//!                                └─────────┘ the message is orphaned now
//! ```
//!
//! The cell at which the next message would go is marked *closed*; a mark is where the end of the queue is for ever, so
//! whoever sends is either before it or refused. New memory, which is zero, is an empty queue.

use crate::arena::tables::slots::{SEATS, Word};

/// The sender of an orphaned message, whose sender has left or died: the ORPHAN bit keeps the block.
pub(crate) const ORPHAN_SENDER: u32 = SEATS + 1;

const SLOT: u64 = u32::MAX as u64;
const SENDER_SHIFT: u32 = 32;
const SENDER: u64 = 0x3f << SENDER_SHIFT;
const CLOSED: u64 = 1 << 38;
const LAP_SHIFT: u32 = 39;
const LAPS: u64 = u64::MAX >> LAP_SHIFT;

/// What is in a queue: who sent it, and the block that it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message {
    /// The seat of the member that sent it, or [`ORPHAN_SENDER`].
    pub(crate) sender: u32,
    /// The number of the block's slot.
    pub(crate) slot: u32,
}

/// Why a message cannot be put there or taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RingRefusal {
    /// There is no room for another message.
    Full,
    /// There is no message.
    Empty,
    /// There is no message, and all members that had registered as senders have left or died.
    Deserted,
    /// It is closed: nobody sends any more, or, to who receives, nobody ever will.
    Closed,
    /// These bytes are not what anybody here could have written.
    Damaged,
}

/// A cell's content, as it was read at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cell(u64);

impl Cell {
    /// The same with this message in it.
    fn filled(self, message: Message) -> Self {
        let sender = u64::from(message.sender + 1) << SENDER_SHIFT & SENDER;
        Self(self.0 & !(SENDER | SLOT) | sender | u64::from(message.slot))
    }

    /// The same without its message, as it is in the next lap.
    fn emptied(self) -> Self {
        Self((self.0 & !(SENDER | SLOT)).wrapping_add(1 << LAP_SHIFT))
    }

    /// How many laps it is ahead of a position; a lag of one is the largest number that there is.
    fn lead(self, lap: u64) -> u64 {
        (self.0 >> LAP_SHIFT).wrapping_sub(lap) & LAPS
    }

    fn is_closed(self) -> bool {
        self.0 & CLOSED != 0
    }

    fn closed(self) -> Self {
        Self(self.0 | CLOSED)
    }

    #[allow(clippy::cast_possible_truncation)] // the lower half is what is asked for
    fn message(self) -> Option<Message> {
        let sender = (self.0 & SENDER) >> SENDER_SHIFT;
        (sender != 0).then(|| Message { sender: sender as u32 - 1, slot: self.0 as u32 })
    }
}

/// A queue as it lies in shared memory. The number of cells is a power of two.
#[derive(Debug)]
pub(crate) struct Ring<'a, W> {
    /// The position of the next message to be taken, or the one before.
    head: &'a W,
    /// The position that the next message gets, or the one before.
    tail: &'a W,
    cells: &'a [W],
}

impl<'a, W: Word> Ring<'a, W> {
    /// Takes words for a queue, as others do or will; zeros are an empty one.
    ///
    /// `None` unless the number of cells is a power of two.
    pub(crate) fn new(head: &'a W, tail: &'a W, cells: &'a [W]) -> Option<Self> {
        cells.len().is_power_of_two().then_some(Self { head, tail, cells })
    }

    /// The cell of a position, what is in it, and how many laps that is ahead of the position; a lag of one is [`LAPS`].
    fn at(&self, position: u64) -> (&'a W, Cell, u64) {
        let length = self.cells.len() as u64;
        #[allow(clippy::cast_possible_truncation)] // less than the number of cells
        let place = &self.cells[(position & (length - 1)) as usize];
        let cell = Cell(place.load());
        (place, cell, cell.lead(position >> length.trailing_zeros()))
    }

    /// Moves a position on, unless somebody did.
    fn advance(position: &W, from: u64) {
        let _moved = position.exchange(from, from.wrapping_add(1));
    }

    /// Puts a message at the end; returns its position.
    ///
    /// Until it [is consumed](Self::is_consumed) the caller keeps the block.
    pub(crate) fn push(&self, message: Message) -> Result<u64, RingRefusal> {
        loop {
            let (tail, place, cell) = self.end()?;
            if cell.is_closed() {
                return Err(RingRefusal::Closed);
            }
            if cell.message().is_some() {
                return Err(RingRefusal::Full);
            }
            if place.exchange(cell.0, cell.filled(message).0).is_ok() {
                Self::advance(self.tail, tail);
                return Ok(tail);
            }
        }
    }

    /// Takes the message at the beginning.
    ///
    /// The block is held before the message is taken, since nobody else might keep it afterwards. A message that
    /// another receiver takes meanwhile keeps its block no longer, so `hold` may be about a block that is no more, or is
    /// another's by now: it may refuse, and must do no harm until it is undone by `release`.
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
                    if !hold(message.slot) {
                        // Who sends keeps the block as long as the message is there.
                        if place.load() == cell.0 {
                            return Err(RingRefusal::Damaged);
                        }
                        continue;
                    }
                    if place.exchange(cell.0, cell.emptied().0).is_ok() {
                        Self::advance(self.head, head);
                        return Ok(message);
                    }
                    release(message.slot);
                }
                (0, None) if cell.is_closed() => return Err(RingRefusal::Closed),
                (0, None) => return Err(RingRefusal::Empty),
                // Somebody took the message, and may never come to say so; there may even be another.
                (1, _) => Self::advance(self.head, head),
                _ => Self::unless_damaged(self.head, head)?,
            }
        }
    }

    /// A cell that is laps away from a position means that the position has moved on; else nobody here wrote it.
    fn unless_damaged(position: &W, was: u64) -> Result<(), RingRefusal> {
        if position.load() == was { Err(RingRefusal::Damaged) } else { Ok(()) }
    }

    /// Whether the message that got this position has been taken.
    pub(crate) fn is_consumed(&self, position: u64) -> bool {
        let (_, cell, lead) = self.at(position);
        lead != 0 || cell.message().is_none()
    }

    /// Marks where the queue ends: nobody sends any more, and who receives gets what is there and then the end.
    ///
    /// Returns whether that was news.
    pub(crate) fn close(&self) -> Result<bool, RingRefusal> {
        loop {
            let (_, place, cell) = self.end()?;
            if cell.is_closed() {
                return Ok(false);
            }
            if place.exchange(cell.0, cell.closed().0).is_ok() {
                return Ok(true);
            }
        }
    }

    /// Whether nobody can send any more.
    pub(crate) fn is_closed(&self) -> Result<bool, RingRefusal> {
        self.end().map(|(.., cell)| cell.is_closed())
    }

    /// The position that the next message would get, its cell, and what is in that: another message if the queue is full.
    fn end(&self) -> Result<(u64, &'a W, Cell), RingRefusal> {
        loop {
            let tail = self.tail.load();
            let (place, cell, lead) = self.at(tail);
            match (lead, cell.message()) {
                (0, None) | (LAPS, Some(_)) => return Ok((tail, place, cell)),
                // Another sender put a message there, and may be killed before it moves the tail. The message may even have been
                // taken.
                (0, Some(_)) | (1, None) => Self::advance(self.tail, tail),
                _ => Self::unless_damaged(self.tail, tail)?,
            }
        }
    }

    /// How many messages there are, or were a moment ago.
    #[allow(clippy::cast_possible_truncation)] // at most the number of cells
    pub(crate) fn len(&self) -> usize {
        // Either may lag by one. In this order they never seem to be less than none apart.
        let head = self.head.load();
        let (.., lead) = self.at(head);
        let head = head.wrapping_add(u64::from(lead == 1));
        let _all_counted = self.end();
        self.tail.load().wrapping_sub(head).min(self.cells.len() as u64) as usize
    }

    /// Makes the messages of a member that sends no more orphaned ones.
    ///
    /// `keep` is called for each block first, perhaps in vain, and keeps it until no orphaned message is
    /// [found](Self::messages) for it; one at a time may do either. Done in part, it can be done again.
    pub(crate) fn orphan_messages(&self, sender: u32, mut keep: impl FnMut(u32) -> bool) {
        for place in self.cells {
            let mut cell = Cell(place.load());
            while let Some(message) = cell.message().filter(|message| message.sender == sender) {
                let heir = Message { sender: ORPHAN_SENDER, ..message };
                // What cannot be kept was taken meanwhile, or was never anybody's.
                let done = !keep(message.slot) || place.exchange(cell.0, cell.filled(heir).0).is_ok();
                let now = Cell(place.load());
                if done && now == cell {
                    break;
                }
                cell = now;
            }
        }
    }

    /// Every message that is there all the while, some of those that come or go, and in no order.
    pub(crate) fn messages(self) -> impl Iterator<Item = Message> + 'a {
        self.cells.iter().filter_map(|place| Cell(place.load()).message())
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
