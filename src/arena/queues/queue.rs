//! Queues of arrays between the members of an arena. A message is one word, whatever the size of the array.
//!
//! The protocol is in `ring.rs`. Until a message is received, its sender holds the block (`sent.rs`). Waiting is in
//! `patience.rs`.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ndarray::Dimension;

use super::patience::Patience;
use crate::arena::Arena;
use crate::arena::array::ArenaArray;
use crate::arena::blocks::{Block, BlockContents};
use crate::arena::header::{ArenaHeader, QueueWords};
use crate::arena::tables::entries::SEATS;
use crate::arena::tables::event::Event;
use crate::arena::tables::ring::RingRefusal;
use crate::array::{DType, Element, Order};
use crate::backoff::Deadline;
use crate::error::{Error, ErrorKind, IntoError, Result};

/// Interval at which a waiting process checks whether members have died.
const CHECK: Duration = Duration::from_secs(1);
/// Shortest interval at which a receiver checks whether registered senders are alive. It is shorter than the longest
/// sleep, so a receiver checks after each full sleep.
const ASK: Duration = Duration::from_millis(20);

/// Error of receiving an array of one type. Gives the array back if it is of another type.
pub type ReceiveError = IntoError<Option<ArenaMessage>>;

/// A queue of arrays between the members of an arena, for any number of senders and receivers.
///
/// Every message is received once, by one receiver, and the messages of one sender arrive in order. Sending does not
/// copy: the message is one word, and the receiver holds the same block. Until the message is received, the sender's
/// process holds the block, even if the array is dropped. It releases the blocks of received messages whenever it
/// sends, allocates, drops an array, or [reclaims](Arena::reclaim).
///
/// Any process may be killed at any moment, and no other process waits for it. The messages that it has sent arrive,
/// the arrays that it has received are released, and the next receiver gets the next message. Receivers end when the
/// queue is [closed](Self::close), or when the last [registered sender](Self::sender) has left or died.
///
/// A process that has to wait spins for some microseconds if there is more than one CPU, and then sleeps. On Linux a
/// message wakes it. Elsewhere it polls, at least every 2 ms.
///
/// ```
/// use ndarray_shm::ndarray::Ix1;
/// use ndarray_shm::Arena;
///
/// let arena = Arena::create("queue-example", 1 << 20)?;
/// let queue = arena.queue(0)?;
/// queue.send(arena.from_array(&ndarray_shm::ndarray::arr1(&[1.0, 2.0]))?)?;
///
/// // Usually in another process, which has opened the arena by its name.
/// let received = queue.recv::<f64, Ix1>()?;
/// assert_eq!(received.view().sum(), 3.0);
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
pub struct Queue {
    header: Arc<ArenaHeader>,
    index: u32,
    /// How long to spin while waiting for messages, and for room.
    for_messages: Patience,
    for_room: Patience,
    /// When this value last checked whether members have died.
    checked: Mutex<Instant>,
    /// When this value last checked whether registered senders are alive.
    asked: Mutex<Option<Instant>>,
    /// Whether receivers go on waiting when all registered senders have left or died.
    keep_waiting: bool,
}

impl Arena {
    /// Returns one of the arena's queues, which are numbered from 0.
    ///
    /// # Errors
    ///
    /// [`InvalidSetting`](ErrorKind::InvalidSetting): the arena has fewer queues.
    pub fn queue(&self, index: u32) -> Result<Queue> {
        if self.header.queue_words(index).is_none() {
            return Err(Error::setting(
                "the number of the queue",
                index,
                "less than the number of queues that the arena was created with",
            ));
        }
        Ok(Queue::of(Arc::clone(&self.header), index))
    }
}

impl Queue {
    fn of(header: Arc<ArenaHeader>, index: u32) -> Self {
        let (for_messages, for_room) = (Patience::new(), Patience::new());
        let (checked, asked) = (Mutex::new(Instant::now()), Mutex::default());
        Self { header, index, for_messages, for_room, checked, asked, keep_waiting: false }
    }

    /// Sets whether receivers go on waiting when all [registered senders](Self::sender) have left or died. The default
    /// is `false`: receiving ends.
    ///
    /// With `true`, receivers wait for a sender that registers later, such as a producer that is started again.
    ///
    /// ```
    /// # use ndarray_shm::ndarray::Ix1;
    /// # use ndarray_shm::Arena;
    /// let arena = Arena::create("keep-waiting-example", 1 << 20)?;
    /// let queue = arena.queue(0)?.keep_waiting(true);
    /// drop(queue.sender()?);
    /// assert!(queue.try_recv::<f64, Ix1>()?.is_none());
    /// # Ok::<(), ndarray_shm::Error>(())
    /// ```
    #[must_use]
    pub fn keep_waiting(mut self, keep_waiting: bool) -> Self {
        self.keep_waiting = keep_waiting;
        self
    }

    /// Returns the queue's number in the arena.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns how many messages the queue has room for.
    pub fn capacity(&self) -> usize {
        self.header.geometry.cells as usize
    }

    /// Returns how many messages are in the queue, or were a moment ago.
    pub fn len(&self) -> usize {
        self.words().map_or(0, |words| words.ring.len())
    }

    /// Returns whether the queue is empty, or was a moment ago.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sends an array. Waits for room.
    ///
    /// Takes an [`ArenaArray`], a received [message](ArenaMessage), or a reference to one of them, which the caller
    /// keeps.
    ///
    /// # Errors
    ///
    /// The error gives the array back, if it was not a reference. [`Closed`](ErrorKind::Closed): the queue was closed.
    /// [`InvalidSetting`](ErrorKind::InvalidSetting): the array is of another arena.
    /// [`Unsupported`](ErrorKind::Unsupported): this is a forked child. [`Trailer`](ErrorKind::Trailer): the queue's
    /// bytes are damaged.
    pub fn send<A: Sendable>(&self, array: A) -> Result<(), IntoError<A::GivenBack>> {
        self.send_within(array, None)
    }

    /// Sends an array if there is room. Does not wait.
    ///
    /// # Errors
    ///
    /// [`QueueFull`](ErrorKind::QueueFull), and those of [`send`](Self::send).
    pub fn try_send<A: Sendable>(&self, array: A) -> Result<(), IntoError<A::GivenBack>> {
        let send = |entry| self.header.send(self.index, entry).map_err(|refused| self.error(refused));
        self.entry_of(&array).and_then(send).map_err(|error| IntoError::new(error, array.into_given_back()))
    }

    /// Sends an array. Waits for room for at most `limit`.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](ErrorKind::TimedOut), and those of [`send`](Self::send).
    pub fn send_timeout<A: Sendable>(&self, array: A, limit: Duration) -> Result<(), IntoError<A::GivenBack>> {
        self.send_within(array, Some(limit))
    }

    fn send_within<A: Sendable>(&self, array: A, limit: Option<Duration>) -> Result<(), IntoError<A::GivenBack>> {
        let send = |entry| {
            let attempt = || self.header.send(self.index, entry);
            self.wait_while(RingRefusal::Full, limit, &self.for_room, &self.words()?.emptied, attempt)
        };
        self.entry_of(&array).and_then(send).map_err(|error| IntoError::new(error, array.into_given_back()))
    }

    /// Calls `attempt` until it succeeds, or is refused for another reason than this.
    fn wait_while<R>(
        &self,
        reason: RingRefusal,
        limit: Option<Duration>,
        patience: &Patience,
        event: &Event<'_>,
        attempt: impl Fn() -> Result<R, RingRefusal>,
    ) -> Result<R> {
        let attempt = || Some(attempt()).filter(|result| !matches!(result, Err(refused) if *refused == reason));
        match patience.wait(event, limit, attempt, || self.check()) {
            Some(result) => result.map_err(|refused| self.error(refused)),
            None => Err(ErrorKind::TimedOut { waited: limit.unwrap_or_default() }.at(self.header.name())),
        }
    }

    /// Returns the entry of an array, if it may be sent through this queue.
    fn entry_of(&self, array: &impl Sendable) -> Result<u32> {
        self.header.check_process()?;
        let block = array.block();
        if !Arc::ptr_eq(&block.header, &self.header) {
            return Err(Error::setting(
                "the array to be sent",
                block.header.name(),
                "an array of the queue's arena, from the same `Arena` or a clone of it",
            ));
        }
        Ok(block.entry)
    }

    /// Receives the next array. Waits for it.
    ///
    /// # Errors
    ///
    /// - [`Closed`](ErrorKind::Closed): every message has been received, and the queue was closed or all
    ///   [registered senders](Self::sender) have left or died.
    /// - [`DTypeMismatch`](ErrorKind::DTypeMismatch), [`ShapeMismatch`](ErrorKind::ShapeMismatch): the array is of
    ///   another type. The error gives it back; dropping the error releases it.
    /// - [`Unsupported`](ErrorKind::Unsupported): this is a forked child.
    /// - [`Trailer`](ErrorKind::Trailer): bytes of the queue or the array are damaged.
    pub fn recv<T: Element, D: Dimension>(&self) -> Result<ArenaArray<T, D>, ReceiveError> {
        self.recv_any().map_err(nothing).and_then(typed)
    }

    /// Receives the next array, if there is one. Does not wait.
    ///
    /// # Errors
    ///
    /// Those of [`recv`](Self::recv).
    pub fn try_recv<T: Element, D: Dimension>(&self) -> Result<Option<ArenaArray<T, D>>, ReceiveError> {
        self.try_recv_any().map_err(nothing)?.map(typed).transpose()
    }

    /// Receives the next array. Waits for it for at most `limit`.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](ErrorKind::TimedOut), and those of [`recv`](Self::recv).
    pub fn recv_timeout<T: Element, D: Dimension>(&self, limit: Duration) -> Result<ArenaArray<T, D>, ReceiveError> {
        self.recv_any_timeout(limit).map_err(nothing).and_then(typed)
    }

    /// Receives the next array, of any type. Waits for it.
    ///
    /// # Errors
    ///
    /// Those of [`recv`](Self::recv), without mismatches.
    pub fn recv_any(&self) -> Result<ArenaMessage> {
        self.recv_within(None)
    }

    /// Receives the next array, of any type, if there is one. Does not wait.
    ///
    /// # Errors
    ///
    /// Those of [`recv_any`](Self::recv_any).
    pub fn try_recv_any(&self) -> Result<Option<ArenaMessage>> {
        self.header.check_process()?;
        let received = match self.receive() {
            Err(RingRefusal::Empty) if self.notice_deaths() => self.receive(),
            received => received,
        };
        match received {
            Ok(entry) => ArenaMessage::of_held(&self.header, entry).map(Some),
            Err(RingRefusal::Empty) => Ok(None),
            Err(refused) => Err(self.error(refused)),
        }
    }

    /// Receives the next array, of any type. Waits for it for at most `limit`.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](ErrorKind::TimedOut), and those of [`recv_any`](Self::recv_any).
    pub fn recv_any_timeout(&self, limit: Duration) -> Result<ArenaMessage> {
        self.recv_within(Some(limit))
    }

    fn recv_within(&self, limit: Option<Duration>) -> Result<ArenaMessage> {
        self.header.check_process()?;
        let attempt = || self.receive();
        let received = self.wait_while(RingRefusal::Empty, limit, &self.for_messages, &self.words()?.filled, attempt);
        let entry = match received {
            // Senders are checked after every sleep. If the limit was too short for a sleep, they are checked here.
            Err(error) if matches!(error.kind, ErrorKind::TimedOut { .. }) && self.notice_deaths() => {
                match self.receive() {
                    Err(RingRefusal::Empty) => return Err(error),
                    received => received.map_err(|refused| self.error(refused))?,
                }
            }
            received => received?,
        };
        ArenaMessage::of_held(&self.header, entry)
    }

    /// Receives the next message's entry, without waiting.
    fn receive(&self) -> Result<u32, RingRefusal> {
        if self.keep_waiting { self.header.receive(self.index) } else { self.header.receive_until_deserted(self.index) }
    }

    /// Asks the kernel whether registered senders are alive, at most once per [`ASK`]. Returns whether it asked.
    fn notice_deaths(&self) -> bool {
        if self.keep_waiting || self.words().is_ok_and(|words| words.senders.load().seats().next().is_none()) {
            return false;
        }
        // If it is locked, another thread is asking.
        let Ok(mut asked) = self.asked.try_lock() else { return false };
        if asked.is_some_and(|asked| asked.elapsed() < ASK) {
            return false;
        }
        *asked = Some(Instant::now());
        self.header.forget_dead_senders(self.index);
        true
    }

    pub(super) fn register_sender(&self) -> Result<()> {
        self.header.check_process()?;
        self.header.register_sender(self.index).map_err(|refused| self.error(refused))
    }

    /// Ends the registration of one sender. In a forked child there is none.
    pub(super) fn unregister_sender(&self) {
        if self.header.is_own_process() {
            self.header.unregister_sender(self.index);
        }
    }

    /// Closes the queue for ever. Sending fails from now on; receivers get the messages that were sent before, and then
    /// [`Closed`](ErrorKind::Closed).
    ///
    /// Returns whether the queue was open. Closing takes effect in one step: a message that is sent at the same time is
    /// either received or refused.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported): this is a forked child. [`Trailer`](ErrorKind::Trailer): the queue's
    /// bytes are damaged.
    pub fn close(&self) -> Result<bool> {
        self.header.check_process()?;
        let words = self.words()?;
        let was_open = words.ring.close().map_err(|refused| self.error(refused))?;
        // Wakes also if the queue was closed already: the process that closed it may have been killed before it woke
        // the sleepers.
        words.filled.notify_all();
        words.emptied.notify_all();
        Ok(was_open)
    }

    /// Returns whether the queue is closed. It may still hold messages.
    pub fn is_closed(&self) -> bool {
        self.words().is_ok_and(|words| words.ring.is_closed() == Ok(true))
    }

    fn words(&self) -> Result<QueueWords<'_>> {
        self.header.queue_words(self.index).ok_or_else(|| self.error(RingRefusal::Damaged))
    }

    /// Reclaims the holds of dead members, at most once per [`CHECK`]. The process that this one waits for may need
    /// their memory.
    fn check(&self) {
        self.notice_deaths();
        // If it is locked, another thread is checking.
        let Ok(mut checked) = self.checked.try_lock() else { return };
        if checked.elapsed() < CHECK {
            return;
        }
        *checked = Instant::now();
        self.header.end_sent();
        let has_died = |seat| self.header.is_taken(seat) && self.header.is_alive(seat).is_ok_and(|alive| !alive);
        if (0..SEATS).any(has_died) {
            let _ = self.header.reclaim_dead(Deadline::after(Duration::ZERO)); // fails while another process reclaims
        }
    }

    fn error(&self, refused: RingRefusal) -> Error {
        let location = self.header.name();
        match refused {
            RingRefusal::Full => ErrorKind::QueueFull { queue: self.index, capacity: self.capacity() }.at(location),
            RingRefusal::Empty => ErrorKind::WouldBlock.at(location),
            RingRefusal::Closed => ErrorKind::Closed { reason: "the queue was closed" }.at(location),
            RingRefusal::Deserted => {
                let reason = "the queue is empty, and all of its registered senders have left or died (keep_waiting waits for others)";
                ErrorKind::Closed { reason }.at(location)
            }
            RingRefusal::Damaged => {
                let reason = format!("queue {} has bytes that no member wrote", self.index);
                ErrorKind::Trailer { reason }.at(location)
            }
        }
    }
}

impl Clone for Queue {
    fn clone(&self) -> Self {
        Self { keep_waiting: self.keep_waiting, ..Self::of(Arc::clone(&self.header), self.index) }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Queue");
        shown.field("arena", &self.header.name()).field("index", &self.index).field("len", &self.len());
        shown.field("capacity", &self.capacity()).finish_non_exhaustive()
    }
}

/// An array received from a [`Queue`], before its element type is known.
#[derive(Debug)]
pub struct ArenaMessage {
    block: Block,
    serial: u64,
    description: BlockContents,
}

impl ArenaMessage {
    fn of_held(header: &Arc<ArenaHeader>, entry: u32) -> Result<Self> {
        let (block, description) = Block::of_held(header, entry)?;
        let serial = header.entries().serial(entry).ok_or_else(|| {
            ErrorKind::Trailer { reason: format!("the array in entry {entry} was sent before it was shared") }
                .at(header.name())
        })?;
        Ok(Self { block, serial, description })
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> DType {
        self.description.dtype
    }

    /// Returns the order of the axes in memory.
    pub fn order(&self) -> Order {
        self.description.order
    }

    /// Returns the lengths of the axes.
    pub fn shape(&self) -> &[usize] {
        self.description.shape.slice()
    }

    /// Turns the message into an array of elements `T` with the axes of `D`.
    ///
    /// # Errors
    ///
    /// The error gives the message back. [`DTypeMismatch`](ErrorKind::DTypeMismatch),
    /// [`ShapeMismatch`](ErrorKind::ShapeMismatch).
    pub fn into_array<T: Element, D: Dimension>(self) -> Result<ArenaArray<T, D>, IntoError<Self>> {
        let Self { block, serial, description } = self;
        let array = ArenaArray::of_block(block, serial, &description);
        array.map_err(|error| error.map(|block| Self { block, serial, description }))
    }
}

fn typed<T: Element, D: Dimension>(message: ArenaMessage) -> Result<ArenaArray<T, D>, ReceiveError> {
    message.into_array().map_err(|error| error.map(Some))
}

fn nothing(error: Error) -> ReceiveError {
    IntoError::new(error, None)
}

/// A value that a [`Queue`] sends: an [`ArenaArray`], an [`ArenaMessage`], or a reference to one.
pub trait Sendable: sealed::HoldsBlock {
    /// What the error gives back if the value could not be sent: the value. `()` for a reference, as the caller has the
    /// value: so `?` can convert the error to a `Box<dyn Error>`.
    type GivenBack;

    /// Returns what the error gives back.
    #[doc(hidden)]
    fn into_given_back(self) -> Self::GivenBack;
}

mod sealed {
    pub trait HoldsBlock {
        #[allow(private_interfaces)] // outside the crate, `Block` has no methods
        fn block(&self) -> &super::Block;
    }
}

impl<T: Element, D: Dimension> sealed::HoldsBlock for ArenaArray<T, D> {
    #[allow(private_interfaces)]
    fn block(&self) -> &Block {
        &self.block
    }
}

impl sealed::HoldsBlock for ArenaMessage {
    #[allow(private_interfaces)]
    fn block(&self) -> &Block {
        &self.block
    }
}

impl<A: sealed::HoldsBlock> sealed::HoldsBlock for &A {
    #[allow(private_interfaces)]
    fn block(&self) -> &Block {
        (**self).block()
    }
}

impl<T: Element, D: Dimension> Sendable for ArenaArray<T, D> {
    type GivenBack = Self;

    fn into_given_back(self) -> Self {
        self
    }
}

impl Sendable for ArenaMessage {
    type GivenBack = Self;

    fn into_given_back(self) -> Self {
        self
    }
}

impl<A: Sendable> Sendable for &A {
    type GivenBack = ();

    fn into_given_back(self) {}
}
