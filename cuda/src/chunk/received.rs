//! The receiver's side: `ReceivedChunk`, which takes tickets, and `ReceivedBlock`, which holds one loan.

#![allow(unsafe_code)]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::sync::Arc;

use ndarray::{Array, Dimension};
use ndarray_shm::arena::loans::{Counters, ReceivedLoan};
use ndarray_shm::array::Layout;
use ndarray_shm::counted::Foreign;
use ndarray_shm::{DType, Element};

use super::{BlockTicket, CHUNK_KIND, ChunkNote, VERSION};
use crate::copies;
use crate::device::Device;
use crate::driver::functions;
use crate::error::{Error, Result};
use crate::layout;
use crate::memory::DeviceMapping;
use crate::pending::Unfinished;
use crate::reaper;
use crate::stream::Stream;

/// A [`Chunk`](super::Chunk) of another process, from which this one takes blocks. Cloning is cheap.
#[derive(Clone)]
pub struct ReceivedChunk {
    state: Arc<ReceivedState>,
}

struct ReceivedState {
    /// Given to [`reaper`] by this type's `Drop`.
    mapping: ManuallyDrop<DeviceMapping>,
    counters: Counters,
}

impl Drop for ReceivedState {
    fn drop(&mut self) {
        // Streams may still read blocks that were dropped. The memory must not be unmapped under them.
        // SAFETY: nothing uses the field after this.
        let mapping = unsafe { ManuallyDrop::take(&mut self.mapping) };
        reaper::end(mapping.device().context(), Unfinished::default(), true, Box::new(mapping));
    }
}

impl ReceivedChunk {
    /// Attaches a chunk that another process has sent, on the GPU that has its memory.
    ///
    /// # Errors
    ///
    /// - [`Malformed`](Error::Malformed): it is not a chunk, or not one of this version.
    /// - [`DeviceNotVisible`](Error::DeviceNotVisible): `CUDA_VISIBLE_DEVICES` hides its GPU from this process.
    /// - [`Host`](Error::Host): its counts cannot be opened, for instance because the producer has ended.
    /// - [`ForkedChild`](Error::ForkedChild), and failures of the driver.
    pub fn attach(parcel: &Foreign) -> Result<Self> {
        if parcel.kind() != CHUNK_KIND {
            return Err(Error::malformed(format_args!("its kind is {}, not {CHUNK_KIND}", parcel.kind())));
        }
        let note: ChunkNote = serde_json::from_str(parcel.note()).map_err(Error::malformed)?;
        if note.version != VERSION {
            let found = note.version;
            return Err(Error::malformed(format_args!("its version is {found}, and this program reads {VERSION}")));
        }
        let device = Device::named(&note.device)?;
        let (DType::U8, &[bytes]) = (parcel.dtype(), parcel.shape()) else {
            return Err(Error::malformed("a chunk is a number of bytes"));
        };
        let mapping = DeviceMapping::import(device, parcel.descriptor().as_fd(), bytes)?;
        let counters = Counters::open(note.counts.as_str())?;
        if counters.number() != note.number {
            return Err(Error::malformed("its producer has ended, and another chunk has the name of its counts"));
        }
        Ok(Self { state: Arc::new(ReceivedState { mapping: ManuallyDrop::new(mapping), counters }) })
    }

    /// Takes a block by its ticket. This succeeds once for each ticket.
    ///
    /// What the ticket says is checked against the chunk.
    ///
    /// # Errors
    ///
    /// After an error of the first two kinds in this list the ticket can still be received.
    ///
    /// - [`DType`](Error::DType), [`Shape`](Error::Shape): the block has another element type or number of axes.
    /// - [`Malformed`](Error::Malformed): the ticket leads out of the chunk.
    /// - [`Host`](Error::Host): the ticket was received or revoked, is one of another chunk, or its producer has ended.
    /// - [`ForkedChild`](Error::ForkedChild).
    pub fn receive<T: Element, D: Dimension>(&self, ticket: &BlockTicket) -> Result<ReceivedBlock<T, D>> {
        functions()?;
        let ReceivedState { mapping, counters, .. } = &*self.state;
        let layout = layout::of_message::<T, D>(ticket.dtype, &ticket.shape, ticket.order)?;
        layout::require_within(&layout, ticket.offset, mapping.bytes())?;
        let loan = counters.receive(&ticket.loan)?;
        Ok(ReceivedBlock {
            loan: Arc::new(loan),
            chunk: Arc::clone(&self.state),
            start: mapping.start() + ticket.offset as u64,
            layout,
        })
    }

    /// Returns the GPU.
    pub fn device(&self) -> Device {
        self.state.mapping.device()
    }
}

impl fmt::Debug for ReceivedChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.state.mapping.bytes();
        f.debug_struct("ReceivedChunk").field("device", &self.device()).field("bytes", &bytes).finish_non_exhaustive()
    }
}

/// A block of another process's chunk. The producer keeps its memory as it is until this value is dropped or this
/// process ends.
///
/// Dropping it does not wait, unless it is the last that has the chunk. If work was said to [use](Self::used_on) the
/// block, the producer gets it back once that work is done.
pub struct ReceivedBlock<T, D> {
    /// Released when this value is dropped and no stream keeps it any more.
    loan: Arc<ReceivedLoan>,
    chunk: Arc<ReceivedState>,
    start: u64,
    layout: Layout<T, D>,
}

impl<T, D> Deref for ReceivedBlock<T, D> {
    type Target = Layout<T, D>;

    fn deref(&self) -> &Self::Target {
        &self.layout
    }
}

impl<T: Element, D: Dimension> ReceivedBlock<T, D> {
    /// Copies the elements to the host.
    ///
    /// # Errors
    ///
    /// Failures of the driver.
    pub fn to_host(&self) -> Result<Array<T, D>> {
        copies::download(self.device(), self.start, &self.layout)
    }

    /// Says that the work that the stream has now reads the block: the producer gets it back only after that work.
    ///
    /// # Errors
    ///
    /// Failures of the driver. The caller must then wait for the work before it drops this value.
    pub fn used_on(&self, stream: &Stream) -> Result<()> {
        stream.keep(Arc::clone(&self.loan) as Arc<dyn Send + Sync>)
    }

    /// Returns the GPU.
    pub fn device(&self) -> Device {
        self.chunk.mapping.device()
    }

    /// Returns the address of the first element on the GPU, for kernels and other libraries. It is valid while this
    /// value lives.
    ///
    /// Code that uses it must [say](Self::used_on) afterwards what it has enqueued.
    pub fn device_pointer(&self) -> u64 {
        self.start
    }
}

impl<T: Element, D: Dimension> fmt::Debug for ReceivedBlock<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceivedBlock")
            .field("device", &self.device())
            .field("dtype", &T::DTYPE)
            .field("shape", &self.shape())
            .finish_non_exhaustive()
    }
}
