//! `DeviceArray`: an array in a GPU's memory, which other processes can attach.

#![allow(unsafe_code)]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::CUdeviceptr;
use ndarray::{Array, ArrayRef, Axis, Dimension, RemoveAxis, ShapeBuilder};
use ndarray_shm::array::Layout;
use ndarray_shm::{Element, Order};

use crate::captures::{self, Capture};
use crate::copies;
use crate::device::Device;
use crate::driver::functions;
use crate::error::{Error, Result};
use crate::layout;
use crate::memory::DeviceMapping;
use crate::pending::{Pending, Unfinished};
use crate::reaper;
use crate::stream::Stream;

/// A typed n-dimensional array in the memory of a GPU, contiguous in C or Fortran order.
///
/// The memory is an allocation of its own, of at least 2 MiB: [`Chunk`](crate::Chunk) shares one allocation among many
/// arrays. It can be [sent](Self::parcel) to other processes, which attach it without a copy. It is freed with the last
/// process that has it, in whatever order they end, and whether they are killed: the driver counts, in the kernel.
///
/// Safe code writes elements only before the array is shared: with [`zeroed`](Self::zeroed),
/// [`from_host`](Self::from_host) and [`write`](Self::write). Kernels get the [address](Self::device_pointer); running
/// one is `unsafe` in every library, and its caller promises that it does not race. [`written_on`](Self::written_on)
/// and [`wait_on`](Self::wait_on) bring work of several streams and processes in order.
///
/// ```no_run
/// use ndarray::array;
/// use ndarray_shm::counted::Channel;
/// use ndarray_shm_cuda::{Device, DeviceArray, KIND};
///
/// let (here, there) = Channel::pair()?;
/// let array = DeviceArray::from_host(Device::new(0)?, &array![1.0f32, 2.0, 3.0])?;
/// here.send("weights", &[&array.parcel()?])?;
/// drop(array);
///
/// // in another process
/// let received = there.receive::<String>()?.arrays.remove(0);
/// let same = DeviceArray::<f32, ndarray::Ix1>::attach(&received.foreign(KIND)?)?;
/// assert_eq!(same.to_host()?, array![1.0, 2.0, 3.0]);
/// # Ok::<(), ndarray_shm_cuda::Error>(())
/// ```
pub struct DeviceArray<T, D> {
    memory: Arc<DeviceMemory>,
    /// Where the elements begin, in bytes from the start of the memory.
    offset: usize,
    layout: Layout<T, D>,
}

/// One allocation, of which several arrays of this process can be parts.
pub(crate) struct DeviceMemory {
    /// Given to [`reaper`] by this type's `Drop`.
    pub(crate) mapping: ManuallyDrop<DeviceMapping>,
    /// Whether other code may read it: it was sent, received, exported or split.
    shared: AtomicBool,
    /// Whether another library of this process has its address. That library need not say what it does with it.
    exported: AtomicBool,
    /// Work that still writes to it.
    pending: Mutex<Pending>,
    /// Work that still reads it.
    reading: Mutex<Pending>,
}

impl DeviceMemory {
    pub(crate) fn new(mapping: DeviceMapping, shared: bool) -> Self {
        Self {
            mapping: ManuallyDrop::new(mapping),
            shared: AtomicBool::new(shared),
            exported: AtomicBool::new(false),
            pending: Mutex::default(),
            reading: Mutex::default(),
        }
    }

    /// Returns the work that is said to write to it still.
    ///
    /// # Errors
    ///
    /// [`Error::ForkedChild`]: a thread of the parent may have had the lock at the fork, and the child would wait for
    /// it for ever.
    pub(crate) fn said(&self) -> Result<MutexGuard<'_, Pending>> {
        functions()?;
        Ok(self.pending.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the work that may write to it still. If another library has its address, that includes what the legacy
    /// default stream has to do now: libraries use that stream unless told otherwise, and do not say so.
    ///
    /// # Errors
    ///
    /// As [`said`](Self::said), and [`Error::Unsupported`] if a stream that the legacy stream waits for is captured.
    pub(crate) fn pending(&self) -> Result<MutexGuard<'_, Pending>> {
        let mut pending = self.said()?;
        if self.is_exported() {
            pending.add(&Stream::legacy_of(self.mapping.device().context()))?;
        }
        Ok(pending)
    }

    /// Returns the work that still reads it. As [`said`](Self::said).
    pub(crate) fn reading(&self) -> Result<MutexGuard<'_, Pending>> {
        functions()?;
        Ok(self.reading.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn share(&self) {
        self.shared.store(true, Ordering::Relaxed);
    }

    /// Notes that another library of this process gets the address.
    /// While a graph is known to be captured, it may be for that graph, and the memory stays until the process ends.
    pub(crate) fn export(&self) {
        self.share();
        if captures::is_known(self.mapping.device().context()).unwrap_or(false) {
            self.mapping.keep();
        }
        self.exported.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_exported(&self) -> bool {
        self.exported.load(Ordering::Relaxed)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // Unmapping under work that still uses it would be an error of the GPU, for the whole context.
        let said = [&mut self.pending, &mut self.reading]
            .map(|pending| pending.get_mut().unwrap_or_else(PoisonError::into_inner).events());
        let unsaid = self.is_exported();
        // SAFETY: nothing uses the field after this.
        let mapping = unsafe { ManuallyDrop::take(&mut self.mapping) };
        reaper::end(mapping.device().context(), Unfinished::concat(said), unsaid, Box::new(mapping));
    }
}

impl<T, D> Deref for DeviceArray<T, D> {
    type Target = Layout<T, D>;

    fn deref(&self) -> &Self::Target {
        &self.layout
    }
}

impl<T: Element, D: Dimension> DeviceArray<T, D> {
    /// Creates an array of zeros.
    ///
    /// # Errors
    ///
    /// - [`NoSpace`](Error::NoSpace): the GPU has too little free memory; none was taken.
    /// - [`TooLarge`](Error::TooLarge), [`Unsupported`](Error::Unsupported), [`ForkedChild`](Error::ForkedChild), and
    ///   failures of the driver.
    pub fn zeroed(device: Device, shape: impl ShapeBuilder<Dim = D>) -> Result<Self> {
        let array = Self::undefined(device, layout::of_shape::<T, _>(shape)?)?;
        copies::fill(device, array.start(), 0, layout::in_memory(&array.layout))?;
        Ok(array)
    }

    /// Creates a copy of an array of the host. Fortran order is kept; every other order of axes becomes C.
    ///
    /// The copy is fastest from [page-locked](crate::PageLocked) memory.
    ///
    /// # Errors
    ///
    /// As [`zeroed`](Self::zeroed).
    pub fn from_host(device: Device, array: &ArrayRef<T, D>) -> Result<Self> {
        let copy = Self::undefined(device, layout::of_copy(array)?)?;
        copies::upload(device, copy.start(), &copy.layout, array)?;
        Ok(copy)
    }

    /// Takes memory for an array. What it contains is not defined.
    pub(crate) fn undefined(device: Device, layout: Layout<T, D>) -> Result<Self> {
        let mapping = DeviceMapping::create(device, layout::in_memory(&layout))?;
        Ok(Self { memory: Arc::new(DeviceMemory::new(mapping, false)), offset: 0, layout })
    }

    /// Makes an array of a part of memory, which the caller has checked to be long enough.
    pub(crate) fn of_parts(memory: Arc<DeviceMemory>, offset: usize, layout: Layout<T, D>) -> Self {
        Self { memory, offset, layout }
    }

    pub(crate) fn memory(&self) -> &Arc<DeviceMemory> {
        &self.memory
    }

    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    fn start(&self) -> CUdeviceptr {
        self.memory.mapping.start() + self.offset as u64
    }

    /// Returns the GPU.
    pub fn device(&self) -> Device {
        self.memory.mapping.device()
    }

    /// Returns whether other code may read the elements: the array was sent, received, exported or split. That never
    /// ends.
    pub fn is_shared(&self) -> bool {
        self.memory.shared.load(Ordering::Relaxed)
    }

    /// Returns the address of the first element on the GPU, for kernels and other libraries.
    ///
    /// The address is valid while this array, or a part of it, lives. Code that uses it must [wait](Self::wait_on) for
    /// earlier writes, and [say](Self::written_on) what it has written.
    pub fn device_pointer(&self) -> u64 {
        self.start()
    }

    /// Lets a GPU other than the array's own read and write the elements.
    ///
    /// # Errors
    ///
    /// [`NoPeerAccess`](Error::NoPeerAccess), and failures of the driver.
    pub fn allow_access(&self, device: Device) -> Result<()> {
        self.memory.mapping.allow(device)
    }

    /// Copies the elements to the host, after all writes that this process knows of.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported): the array was exported, and a stream that the legacy stream waits for is
    /// captured. Failures of the driver.
    pub fn to_host(&self) -> Result<Array<T, D>> {
        self.ready()?;
        copies::download(self.device(), self.start(), &self.layout)
    }

    /// Replaces the elements by those of an array of the same shape.
    ///
    /// # Errors
    ///
    /// - [`Shared`](Error::Shared): other code may read the array. [`overwrite`](Self::overwrite) leaves that to the
    ///   caller.
    /// - [`Shape`](Error::Shape): the shapes differ.
    /// - failures of the driver.
    pub fn write(&mut self, array: &ArrayRef<T, D>) -> Result<()> {
        if self.is_shared() {
            return Err(Error::Shared);
        }
        self.replace(array)
    }

    /// Replaces the elements of an array that is shared.
    ///
    /// # Safety
    ///
    /// No process and no kernel reads or writes the elements until this returns, except in streams that wait for it.
    ///
    /// # Errors
    ///
    /// [`Shape`](Error::Shape), and failures of the driver.
    pub unsafe fn overwrite(&self, array: &ArrayRef<T, D>) -> Result<()> {
        self.replace(array)
    }

    fn replace(&self, array: &ArrayRef<T, D>) -> Result<()> {
        if array.shape() != self.shape() {
            return Err(Error::Shape { expected: format!("{:?}", self.shape()), found: array.shape().to_vec() });
        }
        self.ready()?;
        let reading = self.memory.reading()?.unfinished()?;
        reading.wait_on(self.device().stream())?;
        copies::upload(self.device(), self.start(), &self.layout, array)
    }

    /// Brings the next copy of this crate after what is known to write to the array.
    fn ready(&self) -> Result<()> {
        let writing = self.memory.pending()?.unfinished()?; // the lock is released before the wait
        writing.wait_on(self.device().stream())
    }

    /// Lets the work that is enqueued on the stream from now on wait for everything that is known to use the array:
    /// what was [said](Self::written_on) in this process, and downloads. Then it may read and write.
    ///
    /// If the stream is captured, this thread waits for all that instead, and the memory stays until the process ends:
    /// no event says when the graph is launched for the last time.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported): it is the legacy stream, which would have to wait for a stream that is
    /// captured. Failures of the driver.
    pub fn wait_on(&self, stream: &Stream) -> Result<()> {
        match stream.capture()? {
            Capture::Nothing => {}
            Capture::OfAnother => return Err(Stream::captured()),
            Capture::OfIt => {
                let writing = self.memory.pending()?.unfinished()?;
                let reading = self.memory.reading()?.unfinished()?;
                writing.synchronize().and(reading.synchronize())?;
                self.memory.mapping.keep();
                return Ok(());
            }
        }
        self.after_writes(stream)?;
        let reading = self.memory.reading()?.unfinished()?;
        reading.wait_on(stream)
    }

    /// Lets the work that is enqueued on the stream from now on wait for everything that is known to write to the
    /// array. Then it may read.
    pub(crate) fn after_writes(&self, stream: &Stream) -> Result<()> {
        let writing = self.memory.pending()?.unfinished()?;
        writing.wait_on(stream)
    }

    /// Says that the work that the stream has now writes to the array. Copies to the host and [parcels](Self::parcel)
    /// wait for it; so does the end of the memory.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported): the stream is captured. Failures of the driver. The caller must then wait
    /// for the work before the array is read or dropped.
    pub fn written_on(&self, stream: &Stream) -> Result<()> {
        self.memory.said()?.add(stream).map(drop)
    }

    /// Says that the work that the stream has now reads the array. Work that [waits](Self::wait_on) comes after it; so
    /// does the end of the memory.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported): the stream is captured. Failures of the driver. The caller must then wait
    /// for the work before the array is written or dropped.
    pub fn used_on(&self, stream: &Stream) -> Result<()> {
        self.memory.reading()?.add(stream).map(drop)
    }

    /// Waits until everything that is known to write to the array is done.
    ///
    /// # Errors
    ///
    /// Failures of the driver.
    pub fn synchronize(&self) -> Result<()> {
        let writing = self.memory.pending()?.unfinished()?;
        writing.synchronize()
    }
}

impl<T: Element, D: RemoveAxis> DeviceArray<T, D> {
    /// Returns a part of the array without a copy: a range along the axis that is outermost in memory, the first in C
    /// order and the last in Fortran order.
    ///
    /// Both arrays count as [shared](Self::is_shared) from then on.
    ///
    /// # Errors
    ///
    /// [`Shape`](Error::Shape): the range is beyond the axis, or the array has no axes.
    pub fn part(&self, range: Range<usize>) -> Result<Self> {
        let axis = if self.order() == Order::C { 0 } else { self.shape().len().saturating_sub(1) };
        let Some(&length) = self.shape().get(axis) else {
            return Err(Error::Shape { expected: "one with axes".into(), found: Vec::new() });
        };
        if range.start > range.end || range.end > length {
            return Err(Error::Shape {
                expected: format!("one with {range:?} along axis {axis}"),
                found: self.shape().to_vec(),
            });
        }
        let mut dim = self.raw_dim();
        let inner = dim.remove_axis(Axis(axis)).size() * size_of::<T>();
        dim[axis] = range.len();
        let layout = layout::of_shape(dim.set_f(self.order() == Order::F))?;
        self.memory.share();
        Ok(Self::of_parts(Arc::clone(&self.memory), self.offset + range.start * inner, layout))
    }
}

impl<T: Element, D: Dimension> fmt::Debug for DeviceArray<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceArray")
            .field("device", &self.device())
            .field("dtype", &T::DTYPE)
            .field("shape", &self.shape())
            .finish_non_exhaustive()
    }
}
