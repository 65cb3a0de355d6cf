//! The receiver's side of lent memory: `Borrower`, which attaches loans, and `Borrowed`, which holds one.

use std::fmt;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ndarray::{Array, Dimension};
use ndarray_shm::arena::loans::{Counters, ReceivedLoan};
use ndarray_shm::array::Layout;
use ndarray_shm::counted::Foreign;
use ndarray_shm::{Element, IntoLocation};

use super::opened::{OPENING, Opened, bytes64};
use super::way::{WayNote, explained};
use super::{LentNote, PROCESS};
use crate::copies;
use crate::device::Device;
use crate::driver::{functions, functions_in_drop};
use crate::error::{Error, Result};
use crate::layout;
use crate::memory::DeviceMapping;
use crate::pending::Pending;
use crate::stream::Stream;

/// Attaches what a [`Lender`](super::Lender) of another process has lent. Cloning is cheap.
///
/// Each process that borrows takes one of the 46 places in the lender's file of counts, until the last clone and the
/// last [`Borrowed`] are dropped.
#[derive(Debug, Clone)]
pub struct Borrower {
    counters: Counters,
}

impl Borrower {
    /// Opens the counts of a lender, by its [location](super::Lender::location).
    ///
    /// # Errors
    ///
    /// As [`Counters::open`].
    pub fn open(location: impl IntoLocation) -> Result<Self> {
        functions()?;
        Ok(Self { counters: Counters::open(location)? })
    }

    /// Attaches lent memory, on the GPU that has it, without a copy. A parcel can be attached once.
    ///
    /// What the parcel says is checked against what the driver has opened.
    ///
    /// # Errors
    ///
    /// After an error of the first three kinds, the parcel can still be attached; after any other, its loan is over.
    ///
    /// - [`Malformed`](Error::Malformed): it is not a parcel of lent memory, or its shape does not fit the memory.
    /// - [`DType`](Error::DType), [`Shape`](Error::Shape): it has another element type or number of axes.
    /// - [`DeviceNotVisible`](Error::DeviceNotVisible): `CUDA_VISIBLE_DEVICES` hides its GPU from this process.
    /// - [`Host`](Error::Host): the parcel was attached or revoked, or is one of another lender.
    /// - [`LenderGone`](Error::LenderGone): the lender has ended.
    /// - [`Unsupported`](Error::Unsupported): the driver or system does not let this process open the memory, or this
    ///   is the process that lends it.
    /// - [`ForkedChild`](Error::ForkedChild), and failures of the driver.
    pub fn attach<T: Element, D: Dimension>(&self, parcel: &Foreign) -> Result<Borrowed<T, D>> {
        functions()?;
        let note = LentNote::of(parcel)?;
        let layout = layout::of_message::<T, D>(parcel.dtype(), parcel.shape(), parcel.order())?;
        let device = Device::named(&note.device)?;
        layout::require_within(&layout, note.offset, usize::MAX)?;
        if note.process == *PROCESS {
            let reason = "this process lends it (use the owner itself)".to_owned();
            return Err(Error::Unsupported { what: OPENING, reason });
        }
        // From here on the lender keeps the memory, so it can be opened.
        let loan = self.counters.receive(&note.loan)?;
        let source = BorrowedSource::open(device, &note, parcel).map_err(|error| match error {
            Error::Driver { .. } | Error::Unsupported { .. } if !loan.producer_lives().unwrap_or(true) => {
                Error::LenderGone
            }
            error => error,
        })?;
        let (start, bytes) = source.range();
        layout::require_within(&layout, note.offset, bytes)?;
        let (start, uses) = (start + note.offset as u64, Mutex::default());
        Ok(Borrowed { source, uses, loan, device, start, layout })
    }
}

/// A typed n-dimensional array in memory that another process lends. The lender keeps the memory until this value is
/// dropped or its process has ended.
///
/// Dropping it waits for the work that was said to [use](Self::used_on) it. [`Lender`](super::Lender) says how, and
/// what this memory cannot do.
pub struct Borrowed<T, D> {
    // Dropped in this order: the memory is closed before the lender may free it.
    source: BorrowedSource,
    /// Work of this process that uses it.
    uses: Mutex<Pending>,
    loan: ReceivedLoan,
    device: Device,
    start: u64,
    layout: Layout<T, D>,
}

/// What keeps the memory open.
#[derive(Debug)]
enum BorrowedSource {
    Nothing,
    /// It outlives the lender.
    Physical(DeviceMapping),
    Opened(Opened),
}

impl BorrowedSource {
    fn open(device: Device, note: &LentNote, parcel: &Foreign) -> Result<Self> {
        let descriptor = parcel.descriptor().as_fd();
        Ok(match &note.way {
            WayNote::Nothing => Self::Nothing,
            WayNote::Physical { bytes } => Self::Physical(
                DeviceMapping::import(device, descriptor, *bytes)
                    .map_err(|error| explained(error, OPENING, "the driver refuses the descriptor"))?,
            ),
            WayNote::Pooled { pool, pointer } => {
                Self::Opened(Opened::pooled(device, (note.process, *pool), descriptor, bytes64(pointer)?)?)
            }
            WayNote::Legacy { handle } => Self::Opened(Opened::legacy(device, bytes64(handle)?)?),
        })
    }

    /// Returns the first address, and the length from there.
    fn range(&self) -> (u64, usize) {
        match self {
            Self::Nothing => (0, 0),
            Self::Physical(mapping) => (mapping.start(), mapping.bytes()),
            Self::Opened(opened) => (opened.start, opened.bytes),
        }
    }
}

fn locked(pending: &Mutex<Pending>) -> MutexGuard<'_, Pending> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T, D> Deref for Borrowed<T, D> {
    type Target = Layout<T, D>;

    fn deref(&self) -> &Self::Target {
        &self.layout
    }
}

impl<T: Element, D: Dimension> Borrowed<T, D> {
    /// Returns the GPU.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Returns the address of the first element on the GPU, for kernels and other libraries. It is valid while this
    /// value lives.
    ///
    /// Code that uses it must [say](Self::used_on) afterwards what it has enqueued.
    /// What it writes, the lender sees.
    pub fn device_pointer(&self) -> u64 {
        self.start
    }

    /// Returns whether the lender still lives, or the memory does not need it to. The answer can be outdated when it
    /// arrives.
    ///
    /// # Errors
    ///
    /// As [`ReceivedLoan::producer_lives`].
    pub fn is_backed(&self) -> Result<bool> {
        functions()?;
        match self.source {
            BorrowedSource::Nothing | BorrowedSource::Physical(_) => Ok(true),
            BorrowedSource::Opened(_) => Ok(self.loan.producer_lives()?),
        }
    }

    /// Copies the elements to the host.
    ///
    /// # Errors
    ///
    /// [`LenderGone`](Error::LenderGone): the lender has ended, and the memory does not outlive it. Also failures of
    /// the driver.
    pub fn to_host(&self) -> Result<Array<T, D>> {
        self.require_backed()?;
        let copy = copies::download(self.device, self.start, &self.layout)?;
        self.require_backed()?; // the lender may have ended meanwhile
        Ok(copy)
    }

    fn require_backed(&self) -> Result<()> {
        if self.is_backed()? { Ok(()) } else { Err(Error::LenderGone) }
    }

    /// Says that the work that the stream has now reads or writes the array: the end of the loan waits for it.
    ///
    /// # Errors
    ///
    /// Failures of the driver. The caller must then wait for the work before this value is dropped.
    pub fn used_on(&self, stream: &Stream) -> Result<()> {
        functions()?;
        locked(&self.uses).add(stream).map(drop)
    }
}

impl<T, D> Drop for Borrowed<T, D> {
    fn drop(&mut self) {
        if functions_in_drop().is_none() {
            return; // the parent has the memory, its lock and its loan
        }
        self.uses.get_mut().unwrap_or_else(PoisonError::into_inner).settle();
    }
}

impl<T: Element, D: Dimension> fmt::Debug for Borrowed<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Borrowed")
            .field("device", &self.device)
            .field("dtype", &T::DTYPE)
            .field("shape", &self.shape())
            .finish_non_exhaustive()
    }
}
