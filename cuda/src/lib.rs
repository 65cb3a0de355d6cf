//! Arrays in GPU memory that several processes share, and shared arrays of the host that a GPU copies at full speed.
//!
//! The driver's library is found when the program runs. A program with this crate therefore builds and starts on machines without a GPU;
//! there, functions return [`Error::NoDriver`].
//!
//! | I want to | use |
//! |---|---|
//! | share an array on a GPU | [`DeviceArray`] |
//! | give it to another library of this process | [`DeviceArray::export`] |
//! | know whether there is a driver | [`find_driver`] |
//!
//! Linux only. CUDA does not work in a forked child of a process that used it: every function returns
//! [`Error::ForkedChild`] there, and dropping a value leaves the parent's memory alone.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod array;
mod copies;
mod device;
mod driver;
mod error;
mod export;
mod layout;
mod memory;
mod parcel;
mod stream;

pub use crate::array::DeviceArray;
pub use crate::device::{Device, MemoryInfo, Uuid};
pub use crate::driver::find_driver;
pub use crate::error::{Error, Result};
pub use crate::export::Exported;
pub use crate::parcel::KIND;
pub use crate::stream::{Event, Stream};
