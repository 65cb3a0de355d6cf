//! `PageLocked`: a page-locked array of the host, which a GPU copies at full speed.

#![allow(unsafe_code)]

use std::ffi::{c_uint, c_void};
use std::fmt;
use std::ops::Deref;

use cudarc::driver::sys::{
    CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_PORTABLE, CU_MEMHOSTREGISTER_READ_ONLY, CUdevice_attribute,
};
use ndarray::{ArrayViewMut, Dimension};
use ndarray_shm::{ArrayWriter, Element};

use crate::device::Device;
use crate::driver::{call, code, functions, functions_in_drop};
use crate::error::{Error, IntoError, Result};
use crate::page_lockable::{LockedElements, LockedTarget, PageLockable};

/// An array of the host with pages that are locked in memory, as long as this value lives.
///
/// A GPU copies locked pages by itself, at the full speed of the bus and [in the
/// background](crate::DeviceArray::upload). Other pages the driver first copies to a buffer of its own. The lock serves
/// all GPUs that this process sees, and all copies: [`from_host`](crate::DeviceArray::from_host) and
/// [`write`](crate::DeviceArray::write) too are fast from such memory.
///
/// `A` is any array of the core crate: [`SharedArray`](ndarray_shm::SharedArray),
/// [`ArrayReader`](ndarray_shm::ArrayReader), [`ArrayWriter`], [`Draft`](ndarray_shm::Draft),
/// [`SealableDraft`](ndarray_shm::array::SealableDraft), [`FrozenArray`](ndarray_shm::FrozenArray),
/// [`RefcountedArray`](ndarray_shm::RefcountedArray), or a [draft](ndarray_shm::pool::PooledDraft) or
/// [array](ndarray_shm::pool::PooledArray) of a pool. The value dereferences to it. What painters have painted is a
/// `SharedArray` once the [`RenderBuffer`](ndarray_shm::RenderBuffer) is finished.
///
/// The pages are unlocked before the array is unmapped, and before a pool uses its memory again. To publish, share or
/// freeze a locked draft, [take it out](Self::into_inner) first: that can move its memory. If the process is killed,
/// the kernel unlocks the pages. A forked child drops the value without unlocking the pages of its parent.
///
/// Locked pages take memory that the kernel cannot use otherwise, those of holes in a sparse array included. Of an
/// array that was attached [copy-on-write](ndarray_shm::OpenOptions::copy_on_write), the kernel may lock copies,
/// which no longer show what other processes write. Locking takes about as long as touching every page, so it pays for
/// memory that is copied more than once or in the background.
///
/// ```no_run
/// use ndarray_shm::SharedArray;
/// use ndarray_shm_cuda::{Device, DeviceArray, PageLocked};
///
/// let gpu = Device::new(0)?;
/// let array = SharedArray::<f32, _>::open("volume", (512, 512, 512))?;
/// let array = PageLocked::new(gpu, array)?;
/// let copy = DeviceArray::from_host(gpu, &array.read()?)?;
/// # Ok::<(), ndarray_shm_cuda::Error>(())
/// ```
///
/// The array cannot be replaced by another one while its pages are locked:
///
/// ```compile_fail,E0594
/// fn replace(locked: &mut ndarray_shm_cuda::PageLocked<ndarray_shm::Draft<u8, ndarray::Ix1>>) {
///     *std::ops::Deref::deref(locked) = ndarray_shm::Draft::new(1).unwrap();
/// }
/// ```
pub struct PageLocked<A: PageLockable> {
    device: Device,
    /// There until `into_inner` or `drop` takes it.
    array: Option<A>,
    /// Whether the driver has locked the pages: not those of an array without elements.
    is_locked: bool,
}

const THERE: &str = "the array is there until the value ends";

impl<A: PageLockable> PageLocked<A> {
    /// Locks the pages of an array.
    ///
    /// # Errors
    ///
    /// The error gives the array back.
    ///
    /// - [`NotPinnable`](Error::NotPinnable): the system cannot lock these pages, such as those of files on most disks,
    ///   or they are locked already.
    /// - [`Unsupported`](Error::Unsupported): the GPU or its driver cannot use locked pages of arrays.
    /// - [`ForkedChild`](Error::ForkedChild), and failures of the driver.
    ///
    /// # Panics
    ///
    /// Panics in a forked child if the array is a draft of its parent, as the draft's `view` does.
    pub fn new(device: Device, array: A) -> Result<Self, IntoError<A>> {
        match register(device, &array) {
            Ok(is_locked) => Ok(Self { device, array: Some(array), is_locked }),
            Err(error) => Err(IntoError::new(error, array)),
        }
    }

    /// Unlocks the pages and returns the array.
    ///
    /// # Errors
    ///
    /// The error gives this value back. [`ForkedChild`](Error::ForkedChild), and failures of the driver.
    #[allow(clippy::missing_panics_doc)] // the array is there
    pub fn into_inner(mut self) -> Result<A, IntoError<Self>> {
        match self.unlock() {
            Ok(()) => Ok(self.array.take().expect(THERE)),
            Err(error) => Err(IntoError::new(error, self)),
        }
    }

    /// Returns the GPU for which the pages were locked. Other GPUs can use them too.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Returns the address by which kernels on the GPU reach the elements in the host's memory; 0 if there are none.
    ///
    /// It is valid as long as this value lives. Code that uses it holds access to the elements for that time, as all
    /// code does that uses [`raw_view`](ndarray_shm::SharedArray::raw_view). Elements that are mapped read-only must
    /// not be written by the GPU either.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported): the GPU cannot reach memory of the host; copy the array.
    /// [`ForkedChild`](Error::ForkedChild), and failures of the driver.
    pub fn device_pointer(&self) -> Result<u64> {
        let current = self.device.enter()?;
        let LockedElements { start, bytes, .. } = self.array().elements();
        if bytes == 0 {
            return Ok(0);
        }
        if self.device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY)? == 0 {
            let reason = format!("GPU {} cannot reach memory of the host (copy the array)", self.device.uuid());
            return Err(Error::Unsupported { what: "an address of the host's memory on the GPU", reason });
        }
        let mut address = 0;
        // SAFETY: `address` is valid for the write of an address; the driver checks that `start` begins locked memory.
        unsafe { call!(current.functions, cuMemHostGetDevicePointer_v2(&raw mut address, start, 0)) }?;
        Ok(address)
    }

    fn array(&self) -> &A {
        self.array.as_ref().expect(THERE)
    }

    /// Unlocks the pages. After an error they may still be locked.
    fn unlock(&mut self) -> Result<()> {
        functions()?; // in a forked child, drafts of the parent have no view
        if self.is_locked {
            let start = self.array().elements().start;
            // The driver also answers with errors of earlier work, and so leaves open whether it has unlocked the
            // pages. The answer to a second call tells.
            unregister(self.device, start).or_else(|_| unregister(self.device, start))?;
            self.is_locked = false;
        }
        Ok(())
    }
}

impl<A: LockedTarget> PageLocked<A> {
    /// Returns a mutable view of a draft's elements.
    ///
    /// # Panics
    ///
    /// Panics in a forked child: the draft belongs to its parent.
    pub fn view_mut(&mut self) -> ArrayViewMut<'_, A::Element, A::Dim> {
        self.array.as_mut().expect(THERE).target_view()
    }
}

impl<T: Element, D: Dimension> PageLocked<ArrayWriter<T, D>> {
    /// Returns a mutable view of the elements.
    #[allow(clippy::missing_panics_doc)] // the array is there
    pub fn view_mut(&mut self) -> ArrayViewMut<'_, T, D> {
        self.array.as_mut().expect(THERE).view_mut()
    }
}

/// There is no `DerefMut`: code that swaps two arrays would separate them from the locks on their pages.
impl<A: PageLockable> Deref for PageLocked<A> {
    type Target = A;

    fn deref(&self) -> &A {
        self.array()
    }
}

impl<A: PageLockable> Drop for PageLocked<A> {
    fn drop(&mut self) {
        if self.array.is_some() && functions_in_drop().is_some() && self.unlock().is_err() {
            // The driver would take other memory, which is mapped there next, for the locked pages. So nothing else may
            // be mapped there.
            std::mem::forget(self.array.take());
        }
    }
}

impl<A: PageLockable + fmt::Debug> fmt::Debug for PageLocked<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageLocked").field("device", &self.device).field("array", self.array()).finish_non_exhaustive()
    }
}

/// Locks the pages of an array. Returns false if it has none.
fn register<A: PageLockable>(device: Device, array: &A) -> Result<bool> {
    let current = device.enter()?;
    let LockedElements { start, bytes, are_writable } = array.elements();
    if bytes == 0 {
        return Ok(false);
    }
    if device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED)? == 0 {
        let reason = format!("GPU {} cannot use locked pages of shared memory (copy without)", device.uuid());
        return Err(Error::Unsupported { what: "page-locked memory", reason });
    }
    let refused = |reason| Error::NotPinnable { location: array.name(), reason };
    // A GPU that cannot map the memory accepts DEVICEMAP too: asking for the address fails then.
    let mut flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
    if !are_writable {
        if device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED)? != 0 {
            flags |= CU_MEMHOSTREGISTER_READ_ONLY;
        } else if device
            .attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES)?
            == 0
        {
            let what = "it is mapped read-only, and this GPU's driver locks only memory that is mapped for writing";
            return Err(refused(format!("{what} (open the array for writing, or copy it into a draft)")));
        }
    }
    // SAFETY: the bytes are mapped, and stay so until `unlock` has ended the registration.
    let answer = unsafe { call!(current.functions, cuMemHostRegister_v2(start, bytes, c_uint::from(flags))) };
    let Err(error) = answer else { return Ok(true) };
    let advice = match error.driver_code() {
        Some(code::HOST_MEMORY_ALREADY_REGISTERED) => {
            "its pages are locked already (use the value that has locked them)"
        }
        Some(code::OUT_OF_MEMORY) => "the system cannot lock so much memory (unlock other arrays)",
        Some(code::INVALID_VALUE | code::OPERATING_SYSTEM | code::NOT_SUPPORTED) => {
            "the system cannot lock the pages of this file (use an array in /dev/shm: most file systems on disks refuse it)"
        }
        _ => {
            // It may be an error of earlier work, after which the pages are locked all the same.
            let _ = unregister(device, start);
            return Err(error);
        }
    };
    Err(refused(format!("{advice}; {error}")))
}

/// Unlocks pages. It is no error if they are not locked.
fn unregister(device: Device, start: *mut c_void) -> Result<()> {
    let current = device.enter()?;
    // SAFETY: the driver checks the address. No copy uses the pages: a transfer has the value that locks them until its
    // end.
    match unsafe { call!(current.functions, cuMemHostUnregister(start)) } {
        Err(error) if error.driver_code() == Some(code::HOST_MEMORY_NOT_REGISTERED) => Ok(()),
        answer => answer,
    }
}
