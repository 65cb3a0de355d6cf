//! Registered senders of a queue: its receivers end when all of them have left or died.
//!
//! The word of registrations is in `tables/senders.rs`. The kernel knows which of their processes are alive
//! (`members.rs`).

use std::fmt;
use std::time::Duration;

use super::queue::{Queue, Sendable};
use crate::error::{IntoError, Result};

/// A registered sender of a [`Queue`].
///
/// Once a sender has registered, receiving ends when every registered sender has been dropped, or its process has died,
/// and every message has been received. Then it fails with [`Closed`](crate::ErrorKind::Closed). A receiver that sleeps
/// notices a death within 100 ms. The queue stays open: when another sender registers, receiving goes on.
///
/// If several processes send, one may leave before the next has registered, and receivers would end in between. To
/// prevent that, the process that starts them keeps a sender of its own until all have registered, or receivers
/// [keep waiting](Queue::keep_waiting).
///
/// Each clone is registered separately. A forked child has none of its parent's senders.
///
/// ```
/// use ndarray_shm::ndarray::{Ix1, arr1};
/// use ndarray_shm::{Arena, ErrorKind};
///
/// let arena = Arena::create("sender-example", 1 << 20)?;
/// let queue = arena.queue(0)?;
/// let sender = queue.sender()?; // usually in another process
/// sender.send(arena.from_array(&arr1(&[1.0, 2.0]))?)?;
/// drop(sender); // or its process is killed
///
/// assert_eq!(queue.recv::<f64, Ix1>()?.view().sum(), 3.0);
/// assert!(matches!(queue.recv::<f64, Ix1>().unwrap_err().error().kind, ErrorKind::Closed { .. }));
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
pub struct Sender {
    queue: Queue,
}

impl Queue {
    /// Registers a sender: receiving ends when all registered senders have left or died, and no message is left.
    ///
    /// [`send`](Self::send) needs no registration. A queue on which no sender was ever registered ends only when it is
    /// closed.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) in a forked child.
    pub fn sender(&self) -> Result<Sender> {
        self.register_sender()?;
        Ok(Sender { queue: self.clone() })
    }
}

impl Sender {
    /// Sends an array. Waits for room.
    ///
    /// # Errors
    ///
    /// Those of [`Queue::send`].
    pub fn send<A: Sendable>(&self, array: A) -> Result<(), IntoError<A::GivenBack>> {
        self.queue.send(array)
    }

    /// Sends an array if there is room.
    ///
    /// # Errors
    ///
    /// Those of [`Queue::try_send`].
    pub fn try_send<A: Sendable>(&self, array: A) -> Result<(), IntoError<A::GivenBack>> {
        self.queue.try_send(array)
    }

    /// Sends an array. Waits for room for at most `limit`.
    ///
    /// # Errors
    ///
    /// Those of [`Queue::send_timeout`].
    pub fn send_timeout<A: Sendable>(&self, array: A, limit: Duration) -> Result<(), IntoError<A::GivenBack>> {
        self.queue.send_timeout(array, limit)
    }

    /// Returns the queue that it sends to.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }
}

impl Clone for Sender {
    fn clone(&self) -> Self {
        let _ = self.queue.register_sender(); // fails only in a forked child, in which no sender is registered
        Self { queue: self.queue.clone() }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.queue.unregister_sender();
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("queue", &self.queue).finish()
    }
}
