//! Guards: access to the elements under kernel locks that are held as long as the guard lives.

use std::fmt;
use std::ops::{Deref, DerefMut};

use ndarray::{ArrayRef, ArrayView, ArrayViewMut, Dimension};

use super::Element;
use crate::segment::locks::Hold;

/// Read access. Other readers may hold it at the same time; writers and painters wait.
///
/// New readers let a waiting writer go first, for at most 10 seconds. Dereferences to ndarray's array. A guard holds
/// one descriptor.
///
/// A guard may be sent to another thread, but counts as held by the thread that took it. If that thread then requests
/// conflicting access, it gets [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock), although the other thread might drop
/// the guard in time. The methods with a timeout wait instead.
#[must_use = "the array is unlocked when the guard is dropped"]
pub struct ReadGuard<'a, T: Element, D: Dimension> {
    view: ArrayView<'a, T, D>,
    _hold: Hold,
}

/// Exclusive write access. All other readers, writers and painters wait.
///
/// Dereferences mutably to ndarray's array. A guard holds one descriptor. The notes on threads at [`ReadGuard`] apply
/// here too.
#[must_use = "the array is unlocked when the guard is dropped"]
pub struct WriteGuard<'a, T: Element, D: Dimension> {
    view: ArrayViewMut<'a, T, D>,
    _hold: Hold,
}

/// An advisory lock on one of an array's numbered cells. Processes agree on what each number protects.
///
/// [`SharedArray::lock_cell`](crate::SharedArray::lock_cell) returns one. It gives no access to elements. A writer of
/// the whole array holds all cells.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use ndarray_shm::{SharedArray, unlink};
///
/// let array = SharedArray::<u8, _>::create("cell-example", 100)?;
/// let row = array.lock_cell(7, Duration::from_secs(1))?; // by agreement: the seventh row
/// drop(row);
/// unlink("cell-example")?;
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[must_use = "the cell is unlocked when the guard is dropped"]
#[derive(Debug)]
pub struct CellGuard {
    _hold: Hold,
}

/// A lock on all elements of an array, without a view of them.
///
/// [`SharedArray::lock`](crate::SharedArray::lock) returns one. It excludes the same locks as a [`ReadGuard`] or a
/// [`WriteGuard`], and is not tied to the array's lifetime. It is for code that reaches the elements by pointer, such
/// as bindings for another language. The notes on threads at [`ReadGuard`] apply here too.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use ndarray_shm::{Access, SharedArray, unlink};
///
/// let array = SharedArray::<u8, _>::create("array-lock-example", 100)?;
/// let lock = array.lock(Access::ReadWrite, Some(Duration::from_secs(1)), || true)?;
/// assert!(array.try_read().is_err());
/// drop(lock);
/// assert!(array.try_read().is_ok());
/// unlink("array-lock-example")?;
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[must_use = "the array is unlocked when the lock is dropped"]
#[derive(Debug)]
pub struct ArrayLock {
    hold: Hold,
}

impl ArrayLock {
    pub(crate) fn new(hold: Hold) -> Self {
        Self { hold }
    }

    /// Makes the lock one that another thread will drop.
    ///
    /// Without this, a request of the thread that took the lock fails with
    /// [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock) if the lock is in its way, because the thread would wait for
    /// itself. Afterwards it waits.
    pub fn leave_thread(mut self) -> Self {
        self.hold.leave_thread();
        self
    }
}

impl CellGuard {
    pub(crate) fn new(hold: Hold) -> Self {
        Self { _hold: hold }
    }
}

impl<'a, T: Element, D: Dimension> ReadGuard<'a, T, D> {
    /// Joins a view with the hold that makes it valid.
    pub(crate) fn new(view: ArrayView<'a, T, D>, hold: Hold) -> Self {
        Self { view, _hold: hold }
    }
}

impl<'a, T: Element, D: Dimension> WriteGuard<'a, T, D> {
    /// Joins a view with the hold that makes it valid.
    pub(crate) fn new(view: ArrayViewMut<'a, T, D>, hold: Hold) -> Self {
        Self { view, _hold: hold }
    }
}

// The target is ndarray's reference type, not the view. A view could be copied out with the array's lifetime and
// outlive the guard; a borrow of the reference type ends with the borrow of the guard.
impl<T: Element, D: Dimension> Deref for ReadGuard<'_, T, D> {
    type Target = ArrayRef<T, D>;

    fn deref(&self) -> &Self::Target {
        &self.view
    }
}

impl<T: Element, D: Dimension> Deref for WriteGuard<'_, T, D> {
    type Target = ArrayRef<T, D>;

    fn deref(&self) -> &Self::Target {
        &self.view
    }
}

impl<T: Element, D: Dimension> DerefMut for WriteGuard<'_, T, D> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.view
    }
}

impl<T: Element, D: Dimension> fmt::Debug for ReadGuard<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadGuard").field("shape", &self.view.shape()).finish_non_exhaustive()
    }
}

impl<T: Element, D: Dimension> fmt::Debug for WriteGuard<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteGuard").field("shape", &self.view.shape()).finish_non_exhaustive()
    }
}
