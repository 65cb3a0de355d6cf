//! A block at its producer, and the ticket by which a receiver gets it.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ndarray::{Array, ArrayRef, Dimension};
use ndarray_shm::arena::loans::{CounterHandle, LentMemory};
use ndarray_shm::array::Layout;
use ndarray_shm::{DType, Element, Order};
use serde::{Deserialize, Serialize};

use super::{BlockRange, ChunkState};
use crate::copies;
use crate::device::Device;
use crate::driver::functions;
use crate::error::{Error, Result};
use crate::stream::Stream;

/// An array in a [`Chunk`](super::Chunk), at its producer. Dropping it frees its room as soon as no receiver needs it.
///
/// Safe code writes its elements only while no receiver has it.
pub struct DeviceBlock<T, D> {
    // Dropped first: it gives its room back to the chunk.
    range: LentMemory<BlockRange>,
    chunk: Arc<ChunkState>,
    layout: Layout<T, D>,
    /// Whether a ticket may be on its way or received.
    sent: AtomicBool,
}

/// What one receiver needs to get one block: some hundred bytes for any message, as any format of serde writes them.
///
/// It can be received once. Until then it keeps the block's memory, unless its producer [revokes](super::Chunk::revoke)
/// it or ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockTicket {
    pub(super) loan: CounterHandle,
    /// Where the elements begin in the chunk, in bytes.
    pub(super) offset: usize,
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    pub(super) order: Order,
}

impl BlockTicket {
    /// Returns the type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the lengths of the axes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the order of the axes in memory.
    pub fn order(&self) -> Order {
        self.order
    }
}

impl<T, D> Deref for DeviceBlock<T, D> {
    type Target = Layout<T, D>;

    fn deref(&self) -> &Self::Target {
        &self.layout
    }
}

impl<T: Element, D: Dimension> DeviceBlock<T, D> {
    pub(super) fn new(range: LentMemory<BlockRange>, chunk: Arc<ChunkState>, layout: Layout<T, D>) -> Self {
        Self { range, chunk, layout, sent: AtomicBool::new(false) }
    }

    /// Makes a ticket for one receiver that has the chunk. This waits for work that [writes](Self::written_on) to the
    /// block.
    ///
    /// # Errors
    ///
    /// - [`Host`](Error::Host): 65,536 blocks are with receivers or on their way.
    /// - [`ForkedChild`](Error::ForkedChild), and failures of the driver.
    pub fn send(&self) -> Result<BlockTicket> {
        self.synchronize()?;
        self.sent.store(true, Ordering::Relaxed);
        let loan = self.range.send()?;
        let (shape, order) = (self.shape().to_vec(), self.order());
        Ok(BlockTicket { loan, offset: self.range.start, dtype: T::DTYPE, shape, order })
    }

    /// Returns how many receivers hold the block or are about to, without those that have died.
    ///
    /// # Errors
    ///
    /// As [`LentMemory::count`].
    pub fn count(&self) -> Result<usize> {
        functions()?;
        Ok(self.range.count()?)
    }

    /// Copies the elements to the host, after all writes that this process knows of.
    ///
    /// # Errors
    ///
    /// Failures of the driver.
    pub fn to_host(&self) -> Result<Array<T, D>> {
        let writing = self.range.pending()?.unfinished()?;
        writing.wait_on(self.device().stream())?;
        copies::download(self.device(), self.device_pointer(), &self.layout)
    }

    /// Replaces the elements by those of an array of the same shape.
    ///
    /// # Errors
    ///
    /// - [`Shared`](Error::Shared): a receiver has the block, or a ticket is on its way.
    /// - [`Shape`](Error::Shape): the shapes differ.
    /// - failures of the driver.
    pub fn write(&mut self, array: &ArrayRef<T, D>) -> Result<()> {
        if array.shape() != self.shape() {
            return Err(Error::Shape { expected: format!("{:?}", self.shape()), found: array.shape().to_vec() });
        }
        if self.sent.load(Ordering::Relaxed) && self.count()? > 0 {
            return Err(Error::Shared);
        }
        self.wait_on(self.device().stream())?;
        copies::upload(self.device(), self.device_pointer(), &self.layout, array)
    }

    /// Lets the work that is enqueued on the stream from now on wait for what was said to use the block.
    ///
    /// # Errors
    ///
    /// Failures of the driver.
    pub fn wait_on(&self, stream: &Stream) -> Result<()> {
        let (writing, reading) = (self.range.pending()?.unfinished()?, self.range.reading()?.unfinished()?);
        writing.wait_on(stream)?;
        reading.wait_on(stream)
    }

    /// Says that the work that the stream has now writes to the block. Copies to the host, later tickets, and the next
    /// block in the same room wait for it.
    ///
    /// # Errors
    ///
    /// Failures of the driver. The caller must then wait for the work before the block is sent, read or dropped.
    pub fn written_on(&self, stream: &Stream) -> Result<()> {
        self.range.pending()?.add(stream).map(drop)
    }

    /// Waits until everything that was said to write to the block is done.
    ///
    /// # Errors
    ///
    /// Failures of the driver.
    pub fn synchronize(&self) -> Result<()> {
        let writing = self.range.pending()?.unfinished()?;
        writing.synchronize()
    }

    /// Says that the work that the stream has now reads the block. The next block in the same room waits for it.
    ///
    /// # Errors
    ///
    /// Failures of the driver. The caller must then wait for the work before the block is written or dropped.
    pub fn used_on(&self, stream: &Stream) -> Result<()> {
        self.range.reading()?.add(stream).map(drop)
    }

    /// Returns the GPU.
    pub fn device(&self) -> Device {
        self.chunk.mapping.device()
    }

    /// Returns the address of the first element on the GPU, for kernels and other libraries. It is valid while this
    /// value lives.
    pub fn device_pointer(&self) -> u64 {
        self.chunk.mapping.start() + self.range.start as u64
    }
}

impl<T: Element, D: Dimension> fmt::Debug for DeviceBlock<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("device", &self.device())
            .field("dtype", &T::DTYPE)
            .field("shape", &self.shape())
            .finish_non_exhaustive()
    }
}
