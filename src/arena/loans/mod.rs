//! Loans of memory that only its producer can free: GPU memory, a pinned buffer, a private mapping.
//!
//! [`Counters`] are thousands of reference counts in one file, without data. A [`Limbo`] lends memory and counts the
//! loans there. It keeps memory that the producer has dropped until the last receiver has released it or died.
//!
//! ```
//! use ndarray_shm::arena::loans::{Counters, Limbo, Memory};
//!
//! struct Buffer(Vec<u8>);
//! impl Memory for Buffer {
//!     fn bytes(&self) -> u64 {
//!         self.0.len() as u64
//!     }
//! }
//!
//! let limbo = Limbo::new(&Counters::create("loans-example", 1000)?);
//! let lent = limbo.lend(Buffer(vec![7; 100]))?;
//! let handle = lent.send()?; // 24 bytes for one receiver, with which it calls `Counters::receive`
//! drop(lent);
//! assert_eq!(limbo.len(), 1); // the memory waits for that receiver
//! # Ok::<(), ndarray_shm::Error>(())
//! ```
//!
//! Not for elements that an [`Arena`](crate::Arena) or a [`RefcountedArray`](crate::RefcountedArray) can hold: those do
//! not need the producer to stay alive.

mod counters;
mod limbo;

pub use self::counters::{Counters, ReceivedLoan};
pub use self::limbo::{LentMemory, Limbo, Memory};
pub use super::handle::CounterHandle;
