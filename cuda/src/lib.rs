//! Arrays in GPU memory that several processes share, and shared arrays of the host that a GPU copies at full speed.
//!
//! The driver's library is found when the program runs. A program with this crate therefore builds and starts on
//! machines without a GPU; there, functions return [`Error::NoDriver`].
//!
//! | I want to | use |
//! |---|---|
//! | share an array on a GPU | [`DeviceArray`] |
//! | share many arrays of one allocation | [`Chunk`], [`ReceivedChunk`] |
//! | share GPU memory that another library has allocated | [`Lender`], [`Borrower`] |
//! | copy shared arrays of the host to a GPU at full speed | [`PageLocked`] |
//! | copy while the program does other things | [`DeviceArray::upload`], [`DeviceArray::download`], [`Transfer`] |
//! | give it to another library of this process | [`DeviceArray::export`] |
//! | know whether there is a driver | [`find_driver`] |
//!
//! Linux only. CUDA does not work in a forked child of a process that used it: every function returns
//! [`Error::ForkedChild`] there, and dropping a value leaves the parent's memory alone.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod array;
mod captures;
mod chunk;
mod context;
mod copies;
mod device;
mod driver;
mod error;
mod export;
mod layout;
mod lender;
mod memory;
mod page_lockable;
mod page_locked;
mod parcel;
mod pending;
mod reaper;
mod stream;
mod transfer;
mod uuid;

pub use crate::array::DeviceArray;
pub use crate::chunk::{BlockTicket, CHUNK_KIND, Chunk, DeviceBlock, ReceivedBlock, ReceivedChunk};
pub use crate::device::{Device, MemoryInfo};
pub use crate::driver::find_driver;
pub use crate::error::{Error, IntoError, Result};
pub use crate::export::ExportedArray;
pub use crate::lender::{Borrowed, Borrower, LENT_KIND, Lender, Lent};
pub use crate::page_lockable::{LockedSource, LockedTarget, PageLockable};
pub use crate::page_locked::PageLocked;
pub use crate::parcel::KIND;
pub use crate::stream::Stream;
pub use crate::transfer::Transfer;
pub use crate::uuid::Uuid;

/// The programs of the guide, as tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../docs/guide/gpu.md")]
    mod gpu {}
}
