//! How whole arrays travel: a descriptor of the physical memory in a message of a channel, and what the receiver must
//! know beside it.

use std::os::fd::AsFd;
use std::sync::Arc;

use ndarray::Dimension;
use ndarray_shm::Element;
use ndarray_shm::counted::Foreign;
use serde::{Deserialize, Serialize};

use crate::array::{DeviceArray, DeviceMemory};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::layout;
use crate::memory::DeviceMapping;

/// The kind of the parcels of this crate, for [`Foreign`].
pub const KIND: &str = "cuda";

/// What a message says beside type, shape and order.
#[derive(Debug, Serialize, Deserialize)]
struct ArrayNote {
    version: u32,
    /// UUID of the GPU.
    device: String,
    /// Bytes of the physical memory, all of which is mapped.
    bytes: usize,
    /// Where the elements begin.
    offset: usize,
}

const VERSION: u32 = 2;

impl<T: Element, D: Dimension> DeviceArray<T, D> {
    /// Packs the array for a message of a [`Channel`](ndarray_shm::counted::Channel).
    ///
    /// The parcel holds a descriptor, and with it the memory, until it is dropped; so does a message that was not
    /// received yet. It can be sent any number of times. Received arrays can be sent on.
    ///
    /// This [waits](Self::synchronize) for work that writes to the array. A receiver has nothing to wait for, and needs
    /// no living sender.
    ///
    /// # Errors
    ///
    /// As [`synchronize`](Self::synchronize).
    pub fn parcel(&self) -> Result<Foreign> {
        let memory = self.memory();
        self.synchronize()?;
        let note = ArrayNote {
            version: VERSION,
            device: self.device().uuid().to_string(),
            bytes: memory.mapping.bytes(),
            offset: self.offset(),
        };
        let descriptor = memory.mapping.export()?;
        memory.share();
        let note = serde_json::to_string(&note).map_err(Error::malformed)?;
        Ok(Foreign::new(KIND, T::DTYPE, self.shape(), self.order(), note, descriptor)?)
    }

    /// Attaches an array that another process has sent, on the GPU that has its memory.
    ///
    /// # Errors
    ///
    /// - [`Malformed`](Error::Malformed): it is not an array on a GPU, or not one of this version.
    /// - [`DeviceNotVisible`](Error::DeviceNotVisible): `CUDA_VISIBLE_DEVICES` hides its GPU from this process.
    /// - [`DType`](Error::DType), [`Shape`](Error::Shape): it has another element type or number of axes.
    /// - failures of the driver.
    pub fn attach(parcel: &Foreign) -> Result<Self> {
        if parcel.kind() != KIND {
            return Err(Error::malformed(format_args!("its kind is {}, not {KIND}", parcel.kind())));
        }
        let note: ArrayNote = serde_json::from_str(parcel.note()).map_err(Error::malformed)?;
        if note.version != VERSION {
            return Err(Error::malformed(format_args!(
                "its version is {}, and this program reads {VERSION}",
                note.version
            )));
        }
        let layout = layout::of_message::<T, D>(parcel.dtype(), parcel.shape(), parcel.order())?;
        let device = Device::named(&note.device)?;
        layout::require_within(&layout, note.offset, note.bytes)?;
        let mapping = DeviceMapping::import(device, parcel.descriptor().as_fd(), note.bytes)?;
        Ok(Self::of_parts(Arc::new(DeviceMemory::new(mapping, true)), note.offset, layout))
    }
}
