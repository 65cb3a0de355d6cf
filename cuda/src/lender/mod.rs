//! GPU memory that other libraries own, lent to other processes: `Lender`, its loans, and what a message says about
//! one.

#![allow(unsafe_code)]

mod borrowed;
mod opened;
mod pools;
mod way;

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use ndarray::{Dimension, ShapeBuilder};
use ndarray_shm::arena::loans::{CounterHandle, Counters, LentMemory, Limbo, Memory};
use ndarray_shm::array::Layout;
use ndarray_shm::counted::Foreign;
use ndarray_shm::{Element, IntoLocation, Location};
use serde::{Deserialize, Serialize};

pub use self::borrowed::{Borrowed, Borrower};
use self::way::{LendingWay, WayNote};
use crate::context::may_still_run;
use crate::device::Device;
use crate::driver::functions;
use crate::error::{Error, Result};
use crate::layout;
use crate::pending::Pending;
use crate::stream::Stream;

/// The kind of the parcels of lent memory, for [`Foreign`].
pub const LENT_KIND: &str = "cuda-lent";

/// How many loans a lender can have at one time, as in a file of torch.
const LOANS: u32 = 10_000;

/// What a message says about a loan beside type, shape and order.
#[derive(Debug, Serialize, Deserialize)]
struct LentNote {
    version: u32,
    /// UUID of the GPU.
    device: String,
    /// The lending process, as [`PROCESS`] in it.
    process: u64,
    loan: CounterHandle,
    way: WayNote,
    /// Where the elements begin in the memory that the way leads to, in bytes.
    offset: usize,
}

const VERSION: u32 = 2;

/// A random number of this process: its own memory cannot be opened as that of another one. Nothing secret depends on
/// it.
static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish());

/// Lends memory of a GPU that another library owns, such as torch or `CuPy`, to other processes.
///
/// The lender keeps an *owner* of the memory, such as a tensor, until every receiver has released its loan or has died.
/// The kernel shows which receivers live, so a killed one keeps nothing. A [`Borrower`] attaches what was lent.
///
/// A [`DeviceArray`](crate::DeviceArray) needs no lender, and other libraries can use one through its address. Prefer
/// it where you choose how memory is allocated.
///
/// # How memory travels
///
/// The driver is asked what the memory is. Receivers see the same type for all of it; a parcel always has one
/// descriptor, of `/dev/null` where none is needed.
///
/// | memory | travels as | weaknesses |
/// |---|---|---|
/// | virtual memory (`cuMemCreate`, torch's expandable segments) | a descriptor of the physical memory | an array must lie in one piece; its library must have asked for descriptors |
/// | a pool that allows descriptors (`cuMemPoolCreate`) | a descriptor of the pool, and 64 bytes | the lender must outlive its borrowers |
/// | `cudaMalloc` (torch's and `CuPy`'s default) | 64 bytes | as pools; see below |
/// | anything else, such as the default pool of `cudaMallocAsync` | not at all: [`Unsupported`](Error::Unsupported) | |
///
/// - **The lender must outlive its borrowers**, except for virtual memory. When its process ends, the driver defines
///   what a receiver still reads; [`Borrowed::to_host`] answers
///   [`LenderGone`](Error::LenderGone) from then on.
/// - **`cudaMalloc`** needs processes that share an IPC namespace (containers: `--ipc=host`) and see the GPU. A
///   receiver can open each allocation once: this crate counts its own uses, but another library that opens the same
///   allocation in the same process makes that fail.
/// - **More than the array is shared.** A receiver can reach the whole allocation around it: with torch, a block of 2
///   MiB or more that holds other tensors; with virtual memory, a piece of a segment.
/// - **Pools**: a driver of 2025 (580) is reported to end a receiver that opens an allocation of more than 5 GiB.
/// - A receiver can write, with a kernel, and the lender sees that.
/// - A loan that was sent and never received keeps the memory until it is [revoked](Lent::revoke). Received memory
///   cannot be lent on, except virtual memory.
///
/// ```no_run
/// use ndarray_shm::counted::Channel;
/// use ndarray_shm_cuda::{Borrower, Device, LENT_KIND, Lender};
///
/// # fn pointer_of(tensor: &Vec<u8>) -> u64 { 0 }
/// # let tensor = vec![0u8];
/// let (here, there) = Channel::pair()?;
/// let lender = Lender::create(Device::new(0)?, "loans")?;
/// // SAFETY: the tensor has 2 x 3 elements at this address until it is dropped, and nothing writes to them.
/// let lent = unsafe { lender.lend::<f32, _>(pointer_of(&tensor), (2, 3), tensor) }?;
/// here.send("weights", &[&lent.parcel()?])?;
/// drop(lent); // the lender keeps the tensor until the receiver is done
///
/// // in another process
/// let borrower = Borrower::open("loans")?;
/// let received = there.receive::<String>()?.arrays.remove(0);
/// let borrowed = borrower.attach::<f32, ndarray::Ix2>(&received.foreign(LENT_KIND)?)?;
/// println!("{}", borrowed.to_host()?);
/// # Ok::<(), ndarray_shm_cuda::Error>(())
/// ```
pub struct Lender {
    device: Device,
    counters: Counters,
    limbo: Limbo<Owner>,
}

/// What keeps lent memory, and what its receivers must know. Dropped when no receiver needs the memory any more.
struct Owner {
    way: LendingWay,
    offset: usize,
    bytes: u64,
    /// Work that still writes to it.
    pending: Mutex<Pending>,
    /// Never locked: it makes a value that is only `Send` one that threads can share. Dropped by this type's `Drop`,
    /// after the work.
    memory: ManuallyDrop<Mutex<Box<dyn Send>>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        // In a forked child the limbo forgets its owners instead.
        self.pending.get_mut().unwrap_or_else(PoisonError::into_inner).settle();
        if !may_still_run() {
            // SAFETY: nothing uses the value after this.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

impl Owner {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory for Owner {
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Lender {
    /// Creates a lender of memory of one GPU, and a file for its counts under a name that must be free. At most 10,000
    /// loans can be out at one time, to at most 45 processes.
    ///
    /// # Errors
    ///
    /// As [`Counters::create`].
    pub fn create(device: Device, location: impl IntoLocation) -> Result<Self> {
        functions()?;
        let counters = Counters::create(location, LOANS)?;
        Ok(Self { device, limbo: Limbo::new(&counters), counters })
    }

    /// Lends an array, contiguous in the shape's order. The owner is dropped after the returned value, once no receiver
    /// is left: by the next call that lends, by [`reclaim`](Self::reclaim), or when another [`Lent`] is dropped.
    ///
    /// An owner is never dropped if its receivers outlive the lender and all its [`Lent`] values.
    ///
    /// # Errors
    ///
    /// The owner is dropped.
    ///
    /// - [`Unsupported`](Error::Unsupported): this memory cannot be lent; the error says why.
    /// - [`TooLarge`](Error::TooLarge), [`ForkedChild`](Error::ForkedChild), and failures of the driver.
    ///
    /// # Safety
    ///
    /// - `pointer` is the address of elements of this type, shape and order, in memory of this GPU, until the owner is
    ///   dropped. Nothing frees the memory before. A shape without elements has no memory, and any address will do.
    /// - The owner may be dropped in any thread that uses this lender.
    /// - Nothing writes to the elements while receivers can read them, except work that
    ///   [`written_on`](Lent::written_on) has named before [`parcel`](Lent::parcel) was called. That includes the
    ///   allocation itself, where a stream does it.
    pub unsafe fn lend<T: Element, D: Dimension>(
        &self,
        pointer: u64,
        shape: impl ShapeBuilder<Dim = D>,
        owner: impl Send + 'static,
    ) -> Result<Lent<T, D>> {
        functions()?;
        let layout = layout::of_shape::<T, _>(shape)?;
        let (way, offset) = LendingWay::of(self.device, pointer, layout::in_memory(&layout))?;
        layout::require_within(&layout, offset, usize::MAX)?;
        let (bytes, pending) = (layout.bytes(), Mutex::default());
        let owner = Owner { way, offset, bytes, pending, memory: ManuallyDrop::new(Mutex::new(Box::new(owner))) };
        let memory = self.limbo.lend(owner)?;
        Ok(Lent { memory, device: self.device, pointer, layout })
    }

    /// Drops the owners of which all receivers have released their loans or died. Returns their number.
    ///
    /// # Errors
    ///
    /// As [`Limbo::reclaim`].
    pub fn reclaim(&self) -> Result<usize> {
        functions()?;
        Ok(self.limbo.reclaim()?)
    }

    /// Returns how many owners wait for their receivers after their [`Lent`] was dropped.
    pub fn waiting(&self) -> usize {
        self.limbo.len()
    }

    /// Returns the GPU.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Returns the name by which a [`Borrower`] opens the counts.
    pub fn location(&self) -> &Location {
        self.counters.location()
    }
}

impl fmt::Debug for Lender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lender")
            .field("device", &self.device)
            .field("location", self.location())
            .finish_non_exhaustive()
    }
}

/// Lent memory. Dropping it leaves receivers their loans: the [`Lender`] keeps the owner until they are done.
pub struct Lent<T, D> {
    memory: LentMemory<Owner>,
    device: Device,
    pointer: u64,
    layout: Layout<T, D>,
}

impl<T, D> Deref for Lent<T, D> {
    type Target = Layout<T, D>;

    fn deref(&self) -> &Self::Target {
        &self.layout
    }
}

impl<T: Element, D: Dimension> Lent<T, D> {
    /// Packs a loan for one receiver, to be sent in a message of a [`Channel`](ndarray_shm::counted::Channel). This
    /// waits for work that [writes](Self::written_on) to the array.
    ///
    /// Each receiver needs a parcel of its own, and can attach it once. The memory is kept from now on, until that
    /// receiver is done; if it never comes, until the parcel is [revoked](Self::revoke).
    ///
    /// # Errors
    ///
    /// - [`Unsupported`](Error::Unsupported): the driver or system does not let this memory go to other processes.
    /// - an error of the core's with the kind "too many handles": 10,000 loans are out.
    /// - [`ForkedChild`](Error::ForkedChild), and failures of the driver.
    pub fn parcel(&self) -> Result<Foreign> {
        self.synchronize()?;
        let (way, descriptor) = self.memory.way.describe(self.device)?;
        let loan = self.memory.send()?;
        let note = LentNote {
            version: VERSION,
            device: self.device.uuid().to_string(),
            process: *PROCESS,
            loan,
            way,
            offset: self.memory.offset,
        };
        let packed = serde_json::to_string(&note)
            .map_err(Error::malformed)
            .and_then(|note| Ok(Foreign::new(LENT_KIND, T::DTYPE, self.shape(), self.order(), note, descriptor)?));
        packed.inspect_err(|_| {
            let _ = self.memory.revoke(&loan); // it was not sent
        })
    }

    /// Takes a loan back that was not received, for a parcel that could not be sent or that its receiver did not attach
    /// before it died. Returns `Ok(false)` if it was received, or is not one of this memory.
    ///
    /// # Errors
    ///
    /// - [`Malformed`](Error::Malformed): it is not a parcel of lent memory.
    /// - [`ForkedChild`](Error::ForkedChild).
    pub fn revoke(&self, parcel: &Foreign) -> Result<bool> {
        functions()?;
        Ok(self.memory.revoke(&LentNote::of(parcel)?.loan)?)
    }

    /// Returns how many loans are held or in flight, without those of receivers that have died.
    ///
    /// # Errors
    ///
    /// As [`LentMemory::count`].
    pub fn count(&self) -> Result<usize> {
        functions()?;
        Ok(self.memory.count()?)
    }

    /// Says that the work that the stream has now writes to the array. Later [parcels](Self::parcel) wait for it, and
    /// the owner is dropped only after it.
    ///
    /// # Errors
    ///
    /// Failures of the driver.
    pub fn written_on(&self, stream: &Stream) -> Result<()> {
        functions()?;
        self.memory.pending().add(stream).map(drop)
    }

    /// Waits until everything that is known to write to the array is done.
    ///
    /// # Errors
    ///
    /// Failures of the driver.
    pub fn synchronize(&self) -> Result<()> {
        functions()?;
        let writing = self.memory.pending().unfinished()?; // the lock is released before the wait
        writing.synchronize()
    }

    /// Returns the GPU.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Returns the address of the first element on the GPU.
    pub fn device_pointer(&self) -> u64 {
        self.pointer
    }
}

impl<T: Element, D: Dimension> fmt::Debug for Lent<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent")
            .field("device", &self.device)
            .field("dtype", &T::DTYPE)
            .field("shape", &self.shape())
            .finish_non_exhaustive()
    }
}

impl LentNote {
    /// Reads what a parcel says about a loan.
    fn of(parcel: &Foreign) -> Result<Self> {
        if parcel.kind() != LENT_KIND {
            return Err(Error::malformed(format_args!("its kind is {}, not {LENT_KIND}", parcel.kind())));
        }
        let note: Self = serde_json::from_str(parcel.note()).map_err(Error::malformed)?;
        if note.version != VERSION {
            let found = note.version;
            return Err(Error::malformed(format_args!("its version is {found}, and this program reads {VERSION}")));
        }
        Ok(note)
    }
}
