//! Blocks inside one large allocation, which is shared once: `Chunk`, its producer's end.
//!
//! Which ranges are free is known to the producer alone. A sent block is a loan of the core's [`Counters`]: the
//! kernel's locks show which receivers live, and the [`Limbo`] keeps a dropped block until they are done with it.

#![allow(unsafe_code)]

mod block;
mod received;
mod room;

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ndarray::{ArrayRef, Dimension, ShapeBuilder};
use ndarray_shm::arena::loans::{Counters, Limbo, Memory};
use ndarray_shm::array::Layout;
use ndarray_shm::counted::Foreign;
use ndarray_shm::{DType, Element, IntoLocation, Location, Order};
use serde::{Deserialize, Serialize};

pub use self::block::{BlockTicket, DeviceBlock};
pub use self::received::{ReceivedBlock, ReceivedChunk};
use self::room::{ALIGNMENT, FreeRanges};
use crate::context::may_still_run;
use crate::copies;
use crate::device::Device;
use crate::driver::{functions, functions_in_drop};
use crate::error::{Error, Result};
use crate::layout;
use crate::memory::DeviceMapping;
use crate::pending::{Pending, Unfinished};
use crate::reaper;

/// The kind of the parcels of chunks, for [`Foreign`].
pub const CHUNK_KIND: &str = "cuda-chunk";

const VERSION: u32 = 2;

/// How many blocks can be with receivers, or on their way, at one time: 16 bytes each in the file of counts.
const LOANS: u32 = 1 << 16;

/// What a message says about a chunk beside its length.
#[derive(Debug, Serialize, Deserialize)]
struct ChunkNote {
    version: u32,
    /// UUID of the GPU.
    device: String,
    /// Name of the file of counts, in the default directory.
    counts: String,
    /// Number of that file: another one may have its name later.
    number: u64,
}

/// One large allocation of a GPU, from which its producer sends many arrays: its *blocks*.
///
/// The allocation is [sent](Self::parcel) once to each receiver. A block is then sent as a [ticket](DeviceBlock::send),
/// in any message. When the producer has dropped a block, and each receiver has dropped it or died, its room is used
/// again. The kernel shows which receivers live.
///
/// Blocks begin at multiples of 256 bytes. The file of counts has room for 65,536 loans at one time, to at most 45
/// receiving processes.
///
/// If the producer ends, receivers keep the memory and the blocks that they hold; tickets that were not received are
/// void. A ticket that was lost, such as one sent to a process that was killed before it read it, keeps its block until
/// it is [revoked](Self::revoke).
///
/// ```no_run
/// use ndarray::{Ix1, array};
/// use ndarray_shm::counted::Channel;
/// use ndarray_shm_cuda::{BlockTicket, CHUNK_KIND, Chunk, Device, ReceivedChunk};
///
/// let (here, there) = Channel::pair()?;
/// let chunk = Chunk::create(Device::new(0)?, 64 << 20, "frames")?;
/// here.send("chunk", &[&chunk.parcel()?])?;
/// let block = chunk.from_host(&array![1.0f32, 2.0, 3.0])?;
/// here.send(&block.send()?, &[])?;
/// drop(block); // its room is used again when the receiver is done
///
/// // in another process
/// let parcel = there.receive::<String>()?.arrays.remove(0).foreign(CHUNK_KIND)?;
/// let chunk = ReceivedChunk::attach(&parcel)?;
/// let ticket = there.receive::<BlockTicket>()?.message;
/// let block = chunk.receive::<f32, Ix1>(&ticket)?;
/// assert_eq!(block.to_host()?.sum(), 6.0);
/// # Ok::<(), ndarray_shm_cuda::Error>(())
/// ```
pub struct Chunk {
    state: Arc<ChunkState>,
    counters: Counters,
    limbo: Limbo<BlockRange>,
}

/// The memory, and which of it is free.
#[derive(Debug)]
struct ChunkState {
    /// Given to [`reaper`] by this type's `Drop`.
    mapping: ManuallyDrop<DeviceMapping>,
    room: Mutex<FreeRanges>,
}

impl ChunkState {
    fn room(&self) -> MutexGuard<'_, FreeRanges> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ChunkState {
    fn drop(&mut self) {
        // Blocks that receivers hold are in the limbo for ever, with the work that writes to them. The memory must not
        // be unmapped under it.
        // SAFETY: nothing uses the field after this.
        let mapping = unsafe { ManuallyDrop::take(&mut self.mapping) };
        reaper::end(mapping.device().context(), Unfinished::default(), true, Box::new(mapping));
    }
}

/// A range of a chunk that is in use. Dropping it makes it free.
struct BlockRange {
    /// Gone when the chunk and all blocks are: then there is nothing left to be used again.
    state: Weak<ChunkState>,
    start: usize,
    bytes: usize,
    /// Work of this process that writes to it.
    pending: Mutex<Pending>,
    /// Work of this process that reads it.
    reading: Mutex<Pending>,
}

impl BlockRange {
    /// Returns the work of this process that writes to it. Fails in a forked child, for which a thread of the parent
    /// may hold the lock for ever.
    fn pending(&self) -> Result<MutexGuard<'_, Pending>> {
        functions()?;
        Ok(self.pending.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the work of this process that reads it. As [`pending`](Self::pending).
    fn reading(&self) -> Result<MutexGuard<'_, Pending>> {
        functions()?;
        Ok(self.reading.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Memory for BlockRange {
    fn bytes(&self) -> u64 {
        self.bytes as u64
    }
}

impl Drop for BlockRange {
    fn drop(&mut self) {
        let (Some(state), Some(_)) = (self.state.upgrade(), functions_in_drop()) else { return };
        // Work for this block must not use the next one in this room.
        for pending in [&mut self.pending, &mut self.reading] {
            pending.get_mut().unwrap_or_else(PoisonError::into_inner).settle();
        }
        if !may_still_run() {
            state.room().give_back(self.start, self.bytes);
        }
    }
}

impl Chunk {
    /// Takes at least this many bytes of a GPU's memory, and creates a file of counts under a name that must be free.
    ///
    /// # Errors
    ///
    /// - [`NoSpace`](Error::NoSpace), [`Unsupported`](Error::Unsupported), [`ForkedChild`](Error::ForkedChild), and
    ///   failures of the driver.
    /// - [`Host`](Error::Host): those of [`Counters::create`].
    pub fn create(device: Device, bytes: usize, location: impl IntoLocation) -> Result<Self> {
        let mapping = DeviceMapping::create(device, bytes)?;
        let counters = Counters::create(location, LOANS)?;
        let room = Mutex::new(FreeRanges::new(mapping.bytes()));
        Ok(Self {
            state: Arc::new(ChunkState { mapping: ManuallyDrop::new(mapping), room }),
            limbo: Limbo::new(&counters),
            counters,
        })
    }

    /// Packs the chunk for a message of a [`Channel`](ndarray_shm::counted::Channel). A receiver needs it once, before
    /// its first ticket.
    ///
    /// The parcel keeps the memory until it is dropped, and can be sent any number of times.
    ///
    /// # Errors
    ///
    /// Failures of the driver.
    pub fn parcel(&self) -> Result<Foreign> {
        let mapping = &self.state.mapping;
        let descriptor = mapping.export()?;
        let (device, counts) = (mapping.device().uuid().to_string(), self.location().to_string());
        let note = ChunkNote { version: VERSION, device, counts, number: self.counters.number() };
        let note = serde_json::to_string(&note).map_err(Error::malformed)?;
        Ok(Foreign::new(CHUNK_KIND, DType::U8, &[mapping.bytes()], Order::C, note, descriptor)?)
    }

    /// Makes a block of zeros.
    ///
    /// # Errors
    ///
    /// - [`ChunkFull`](Error::ChunkFull): no free range is long enough, not even after what dead receivers held was
    ///   reclaimed.
    /// - [`TooLarge`](Error::TooLarge), [`ForkedChild`](Error::ForkedChild), and failures of the driver.
    pub fn zeroed<T: Element, D: Dimension>(&self, shape: impl ShapeBuilder<Dim = D>) -> Result<DeviceBlock<T, D>> {
        let block = self.undefined(layout::of_shape::<T, _>(shape)?)?;
        copies::fill(self.device(), block.device_pointer(), 0, layout::in_memory(&block))?;
        Ok(block)
    }

    /// Makes a block that is a copy of an array of the host. Fortran order is kept; every other order of axes becomes
    /// C.
    ///
    /// # Errors
    ///
    /// As [`zeroed`](Self::zeroed).
    pub fn from_host<T: Element, D: Dimension>(&self, array: &ArrayRef<T, D>) -> Result<DeviceBlock<T, D>> {
        let block = self.undefined(layout::of_copy(array)?)?;
        copies::upload(self.device(), block.device_pointer(), &block, array)?;
        Ok(block)
    }

    fn undefined<T: Element, D: Dimension>(&self, layout: Layout<T, D>) -> Result<DeviceBlock<T, D>> {
        functions()?;
        let bytes = layout::in_memory(&layout);
        let whole = bytes.checked_next_multiple_of(ALIGNMENT).ok_or_else(|| self.full(bytes))?;
        let take = || self.state.room().take(whole);
        let mut start = take();
        if start.is_none() {
            self.reclaim()?;
            start = take();
        }
        let start = start.ok_or_else(|| self.full(bytes))?;
        let (state, pending, reading) = (Arc::downgrade(&self.state), Mutex::default(), Mutex::default());
        let range = self.limbo.lend(BlockRange { state, start, bytes: whole, pending, reading })?;
        Ok(DeviceBlock::new(range, Arc::clone(&self.state), layout))
    }

    fn full(&self, bytes: usize) -> Error {
        let (free, longest) = {
            let room = self.state.room();
            (room.free(), room.longest())
        };
        Error::ChunkFull { bytes, free, longest, waiting: self.limbo.bytes() }
    }

    /// Takes back a ticket that was not delivered, also of a block that was dropped. Returns `Ok(false)` if it was
    /// received, or is not one of this chunk.
    ///
    /// # Errors
    ///
    /// [`ForkedChild`](Error::ForkedChild), and [`Host`](Error::Host) with those of [`Limbo::revoke`].
    pub fn revoke(&self, ticket: &BlockTicket) -> Result<bool> {
        functions()?;
        Ok(self.limbo.revoke(&ticket.loan)?)
    }

    /// Frees the dropped blocks that no living receiver holds. Returns their number.
    ///
    /// A chunk does so by itself, in part whenever a block is made or dropped, and as a whole when it is full.
    ///
    /// # Errors
    ///
    /// As [`Limbo::reclaim`].
    pub fn reclaim(&self) -> Result<usize> {
        functions()?;
        Ok(self.limbo.reclaim()?)
    }

    /// Returns how many bytes are free; 0 in a forked child. Those of dropped blocks that receivers still hold are not
    /// free.
    pub fn free_bytes(&self) -> usize {
        functions().map_or(0, |_| self.state.room().free())
    }

    /// Returns how many dropped blocks wait for their receivers; 0 in a forked child.
    pub fn waiting(&self) -> usize {
        self.limbo.len()
    }

    /// Returns how many bytes the chunk has.
    pub fn bytes(&self) -> usize {
        self.state.mapping.bytes()
    }

    /// Returns the GPU.
    pub fn device(&self) -> Device {
        self.state.mapping.device()
    }

    /// Returns the name of the file of counts.
    pub fn location(&self) -> &Location {
        self.counters.location()
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunk")
            .field("device", &self.device())
            .field("bytes", &self.bytes())
            .field("location", self.location())
            .finish_non_exhaustive()
    }
}
