//! Arrays for other libraries of the same process: what a DLPack tensor or `__cuda_array_interface__` says, and an
//! owner that keeps the memory.

use std::fmt;
use std::sync::Arc;

use ndarray::Dimension;
use ndarray_shm::{DType, Element, Order};

use crate::array::{DeviceArray, DeviceMemory};
use crate::device::Device;
use crate::error::Result;
use crate::stream::Stream;

/// An array of which another library has the address.
///
/// The memory stays until this value is dropped, also after the array. The fields of a DLPack tensor are the address,
/// the device (type 2, `kDLCUDA`, and [`Device::ordinal`]), the type, the lengths and the strides; its deleter drops
/// this value, on any thread.
///
/// ```no_run
/// use ndarray_shm_cuda::{Device, DeviceArray, Stream};
///
/// let gpu = Device::new(0)?;
/// let array = DeviceArray::<f32, _>::zeroed(gpu, (2, 3))?;
/// let consumer = gpu.new_stream()?;
/// array.wait_on(&consumer)?; // the consumer's work begins when the elements are there
/// let exported = array.export();
/// assert_eq!((exported.shape(), exported.strides()), (&[2, 3][..], &[3, 1][..]));
/// # Ok::<(), ndarray_shm_cuda::Error>(())
/// ```
pub struct ExportedArray {
    memory: Arc<DeviceMemory>,
    pointer: u64,
    dtype: DType,
    shape: Vec<usize>,
    strides: Vec<usize>,
}

impl<T: Element, D: Dimension> DeviceArray<T, D> {
    /// Gives the array to another library of this process, which counts as [sharing](Self::is_shared) it. Nothing is
    /// copied.
    ///
    /// The other library's work must come after earlier writes: [`wait_on`](Self::wait_on) brings it in order. What
    /// that work writes must be [said](Self::written_on), unless it is in the legacy default stream: from now on copies
    /// come after what that stream has to do, and parcels wait for it.
    ///
    /// The memory ends after all work that the context has when the last use is dropped, said or not; dropping does not
    /// wait for that. It stays while a stream is captured that is [known](Device::may_be_captured); another capture is
    /// lost. If such a stream is captured now, the memory stays until the process ends: its graph may use it.
    pub fn export(&self) -> ExportedArray {
        self.memory().export();
        ExportedArray {
            memory: Arc::clone(self.memory()),
            pointer: self.device_pointer(),
            dtype: T::DTYPE,
            shape: self.shape().to_vec(),
            strides: strides(self.shape(), self.order()),
        }
    }

    /// Returns a stream: its next work comes after everything that is known to write to the array, or `None` if all of
    /// that is done.
    ///
    /// For libraries that are told a stream to wait for, as by `__cuda_array_interface__`. Where the consumer names its
    /// own stream, as in DLPack, [`wait_on`](Self::wait_on) is better: the returned stream has all copies of this crate
    /// too.
    ///
    /// # Errors
    ///
    /// Failures of the driver.
    pub fn ready_stream(&self) -> Result<Option<&'static Stream>> {
        let writing = self.memory().pending()?.unfinished()?;
        if writing.is_empty() {
            return Ok(None);
        }
        let stream = self.device().stream();
        writing.wait_on(stream)?;
        Ok(Some(stream))
    }
}

impl ExportedArray {
    /// Returns the address of the first element on the GPU.
    pub fn device_pointer(&self) -> u64 {
        self.pointer
    }

    /// Returns the GPU.
    pub fn device(&self) -> Device {
        self.memory.mapping.device()
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the lengths of the axes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the distance from each element to the next, for each axis, in elements.
    pub fn strides(&self) -> &[usize] {
        &self.strides
    }
}

impl fmt::Debug for ExportedArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExportedArray")
            .field("device", &self.device())
            .field("dtype", &self.dtype)
            .field("shape", &self.shape)
            .field("strides", &self.strides)
            .finish_non_exhaustive()
    }
}

/// Returns the strides of a contiguous array in elements. An axis without elements counts as one of length 1, as in
/// numpy.
fn strides(shape: &[usize], order: Order) -> Vec<usize> {
    let (mut strides, mut step) = (vec![0; shape.len()], 1);
    let mut set = |axis: usize| {
        strides[axis] = step;
        step *= shape[axis].max(1);
    };
    match order {
        Order::C => (0..shape.len()).rev().for_each(&mut set),
        Order::F => (0..shape.len()).for_each(&mut set),
    }
    strides
}
