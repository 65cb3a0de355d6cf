//! Copies that go on while the program does other things. They own the host's memory that they use, so that a forgotten
//! one leaks it and harms nothing.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use ndarray::Dimension;
use ndarray_shm::{Element, Order};

use crate::array::DeviceArray;
use crate::device::Device;
use crate::driver::{call, functions, functions_in_drop};
use crate::error::{Error, IntoError, Result};
use crate::layout;
use crate::page_lockable::{LockedSource, LockedTarget};
use crate::page_locked::PageLocked;
use crate::stream::{DeviceEvent, Stream};

/// A copy between host and GPU that goes on while the program does other things.
///
/// It owns what the copy uses, `V`, and gives it back at the end: [`wait`](Self::wait) waits for that. So does dropping
/// the value; a copy ends by itself. A value that is forgotten ([`std::mem::forget`]) leaks its memory and keeps its
/// locks until the process ends. In a forked child nothing is waited for.
#[must_use = "dropping a transfer waits for its end"]
pub struct Transfer<V> {
    device: Device,
    /// The end of the copy. If it could not be recorded, the end of all work of the GPU is waited for.
    end: Option<Arc<DeviceEvent>>,
    /// There until `wait` or `drop` takes it.
    value: Option<V>,
}

const THERE: &str = "the value is there until the end";

impl<V> Transfer<V> {
    /// Begins a copy with a function that enqueues it and records its end.
    fn begin(
        device: Device,
        value: V,
        enqueue: impl FnOnce(&mut V) -> Result<Arc<DeviceEvent>>,
    ) -> Result<Self, IntoError<V>> {
        let mut transfer = Self { device, end: None, value: Some(value) };
        match enqueue(transfer.value.as_mut().expect(THERE)) {
            Ok(end) => {
                transfer.end = Some(end);
                Ok(transfer)
            }
            // Part of it may have been enqueued.
            Err(error) => match transfer.wait() {
                Ok(value) => Err(IntoError::new(error, value)),
                // The GPU may still use the value. The caller learns that when waiting.
                Err(refused) => Ok(refused.into_inner()),
            },
        }
    }

    /// Returns whether the copy is done, so that [`wait`](Self::wait) does not wait.
    ///
    /// # Errors
    ///
    /// [`ForkedChild`](Error::ForkedChild), and failures of the driver, those of the copy included.
    pub fn is_done(&self) -> Result<bool> {
        self.end.as_ref().map_or(Ok(false), |end| end.is_complete())
    }

    /// Waits for the end of the copy, and returns what it used.
    ///
    /// # Errors
    ///
    /// The error gives this value back, because the GPU may still be copying. [`ForkedChild`](Error::ForkedChild), and
    /// failures of the driver, those of the copy included.
    #[allow(clippy::missing_panics_doc)] // the value is there
    pub fn wait(mut self) -> Result<V, IntoError<Self>> {
        match self.synchronize() {
            Ok(()) => Ok(self.value.take().expect(THERE)),
            Err(error) => Err(IntoError::new(error, self)),
        }
    }

    fn synchronize(&self) -> Result<()> {
        self.end.as_ref().map_or_else(|| self.device.synchronize(), |end| end.synchronize())
    }
}

impl<T, D, A> Transfer<(DeviceArray<T, D>, A)> {
    /// Returns the copy on the GPU, which can be used before it is complete: what reads it waits.
    #[allow(clippy::missing_panics_doc)] // the value is there
    pub fn array(&self) -> &DeviceArray<T, D> {
        &self.value.as_ref().expect(THERE).0
    }
}

impl<V> Drop for Transfer<V> {
    fn drop(&mut self) {
        let Some(value) = self.value.take() else { return };
        let is_over = functions_in_drop().is_none() // a forked child: the memory is a copy, or the parent waits
            || self.synchronize().is_ok()
            || self.device.synchronize().is_ok();
        if !is_over {
            // The driver does not say whether the GPU still uses the memory. So it stays as it is.
            std::mem::forget(value);
        }
    }
}

impl<V> fmt::Debug for Transfer<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer").field("device", &self.device).finish_non_exhaustive()
    }
}

impl<T: Element, D: Dimension> DeviceArray<T, D> {
    /// Begins to copy an array to the GPU for which its pages are locked, on a stream of that GPU.
    ///
    /// The transfer owns the source until the end, and with it the lock that keeps other processes from writing to it.
    /// The [copy](Transfer::array) can be used at once: what reads it waits for the end of the transfer.
    ///
    /// ```no_run
    /// use ndarray_shm::ArrayReader;
    /// use ndarray_shm_cuda::{Device, DeviceArray, PageLocked};
    ///
    /// let gpu = Device::new(0)?;
    /// let source = ArrayReader::<f32, _>::open("volume", (512, 512, 512))?;
    /// let transfer = DeviceArray::upload(PageLocked::new(gpu, source)?, &gpu.new_stream()?)?;
    /// // Meanwhile the program does other things.
    /// let (copy, source) = transfer.wait()?;
    /// # Ok::<(), ndarray_shm_cuda::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The error gives the source back. As [`zeroed`](Self::zeroed), and [`Unsupported`](Error::Unsupported): the
    /// stream belongs to another GPU.
    #[allow(clippy::type_complexity)] // the two sides of a copy
    pub fn upload<A>(
        source: PageLocked<A>,
        stream: &Stream,
    ) -> Result<Transfer<(Self, PageLocked<A>)>, IntoError<PageLocked<A>>>
    where
        A: LockedSource<Element = T, Dim = D>,
    {
        let device = source.device();
        let room = || {
            require(stream, device)?;
            Self::undefined(device, layout::of_copy(&source.source_view())?)
        };
        let array = match room() {
            Ok(array) => array,
            Err(error) => return Err(IntoError::new(error, source)),
        };
        let begun = Transfer::begin(device, (array, source), |(array, source)| {
            let elements = source.source_view();
            let (to, from, bytes) = (array.device_pointer(), elements.as_ptr().cast(), layout::in_memory(array));
            if bytes > 0 {
                let current = device.enter()?;
                // SAFETY: the source is contiguous and in the order of the target, which was made for it. The transfer
                // owns both, and gives them up only after the copy: nothing writes to the source and nothing is
                // unmapped until then.
                unsafe { call!(current.functions, cuMemcpyHtoDAsync_v2(to, from, bytes, stream.raw())) }?;
            }
            array.memory().pending()?.add(stream)
        });
        begun.map_err(|refused| refused.map(|(_, source)| source))
    }

    /// Begins to copy the elements to a draft of the same shape and order, on a stream of the array's GPU, after all
    /// writes that this process knows of.
    ///
    /// The transfer owns the draft until the end. The array may be dropped or written meanwhile: a write waits for the
    /// copy, and so does the end of the memory.
    ///
    /// ```no_run
    /// use ndarray_shm::Draft;
    /// use ndarray_shm_cuda::{Device, DeviceArray, PageLocked};
    ///
    /// let gpu = Device::new(0)?;
    /// let result = DeviceArray::<f32, _>::zeroed(gpu, (512, 512, 512))?;
    /// let draft = PageLocked::new(gpu, Draft::new((512, 512, 512))?)?;
    /// let transfer = result.download(draft, &gpu.new_stream()?)?;
    /// // Meanwhile the program does other things.
    /// let draft = transfer.wait()?.into_inner()?;
    /// draft.publish("result")?;
    /// # Ok::<(), ndarray_shm_cuda::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The error gives the draft back.
    ///
    /// - [`Shape`](Error::Shape): the draft has another shape or order.
    /// - [`Unsupported`](Error::Unsupported): the stream belongs to another GPU.
    /// - [`ForkedChild`](Error::ForkedChild), and failures of the driver.
    pub fn download<A>(
        &self,
        target: PageLocked<A>,
        stream: &Stream,
    ) -> Result<Transfer<PageLocked<A>>, IntoError<PageLocked<A>>>
    where
        A: LockedTarget<Element = T, Dim = D>,
    {
        let ready = || {
            require(stream, self.device())?;
            let found = target.source_view();
            let is_in_order =
                if self.order() == Order::C { found.is_standard_layout() } else { found.t().is_standard_layout() };
            if found.shape() != self.shape() || !is_in_order {
                let expected = format!("{:?} in order {:?}", self.shape(), self.order());
                return Err(Error::Shape { expected, found: found.shape().to_vec() });
            }
            self.after_writes(stream)
        };
        if let Err(error) = ready() {
            return Err(IntoError::new(error, target));
        }
        Transfer::begin(self.device(), target, |target| {
            let (from, bytes) = (self.device_pointer(), layout::in_memory(self));
            let to = target.view_mut().as_mut_ptr().cast();
            if bytes > 0 {
                let current = self.device().enter()?;
                // SAFETY: the target has the array's length. The transfer owns it, and gives it up only after the copy;
                // no other process can reach it. The end of the array's memory waits for the event that is recorded
                // below.
                unsafe { call!(current.functions, cuMemcpyDtoHAsync_v2(to, from, bytes, stream.raw())) }?;
            }
            self.memory().reading()?.add(stream)
        })
    }
}

/// Fails if a stream belongs to another GPU than an array.
fn require(stream: &Stream, device: Device) -> Result<()> {
    functions()?;
    if stream.is_in(device.context()) {
        return Ok(());
    }
    let reason = format!("the copy is one of GPU {} (make a stream of that GPU)", device.uuid());
    Err(Error::Unsupported { what: "a copy on the stream of another GPU", reason })
}
