//! What every attached array can do, plain or counted: guards, locks and views.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use ndarray::{ArrayViewMut, Dimension, RawArrayView, RawArrayViewMut};

use super::{ArrayLock, CellGuard, Element, ReadGuard, SharedArray, WriteGuard, view};
use crate::backend::lock_space::{ALL_CELLS, cell};
use crate::backend::{Access, Directory, FileId, PageUse};
use crate::error::{Error, ErrorKind, Result};
use crate::os::LockKind;
use crate::segment::locks::{KeepWaiting, Wait};

impl<T: Element, D: Dimension> SharedArray<T, D> {
    /// Returns the directory of the array's file.
    ///
    /// Other programs map `array.directory().path().join(location.as_str())`, where `location` is the array's
    /// location.
    pub fn directory(&self) -> &Directory {
        &self.segment().home().backend
    }

    /// Returns the identity of the array's file, to compare with that of an open file.
    ///
    /// No other file has this identity while the array is attached.
    pub fn file_id(&self) -> FileId {
        self.segment().id()
    }

    /// Returns whether the array was attached for reading only.
    pub fn is_readonly(&self) -> bool {
        self.segment().access() == Access::Read
    }

    /// Returns whether the file has holes: pages that get memory only when they are touched. If there is
    /// none left then, the access ends in SIGBUS.
    ///
    /// The answer is certain in /dev/shm, and on file systems of Linux that list extents (ext4, XFS, ..).
    /// Elsewhere, and on a tmpfs mounted with huge pages, it is `true` only if fewer bytes are allocated
    /// than the file has: a missing page goes unnoticed where allocated bytes belong to something else,
    /// such as an attribute or the rest of a huge page. Where writing takes new room (Btrfs, and files that
    /// share extents with a clone), no answer promises that there is some.
    ///
    /// # Errors
    ///
    /// [`Unlinked`](ErrorKind::Unlinked): the name was removed, so the file cannot be queried.
    pub fn is_sparse(&self) -> Result<bool> {
        self.segment().is_sparse()
    }

    /// Returns on what kind of pages the elements are, as the kernel reports it: whether the requested
    /// [`Pages`](crate::Pages) were granted.
    ///
    /// This is slow. It maps one page of each window that could be a huge page, if that page has memory.
    /// The kernel then goes through all pages of this process at lower addresses: some milliseconds per GiB
    /// of base pages. Off Linux all pages are base pages.
    ///
    /// # Errors
    ///
    /// [`Os`](ErrorKind::Os): /proc is not mounted.
    pub fn pages(&self) -> Result<PageUse> {
        self.segment().pages(self.segment().location().as_str())
    }

    /// Waits for read access.
    ///
    /// Any number of readers share the array. A waiting writer goes before new readers, for at most 10
    /// seconds. So a writer that is stopped (SIGSTOP) while it waits delays readers for at most that long,
    /// and overlapping reads of more than 10 seconds each can keep a writer waiting.
    ///
    /// # Errors
    ///
    /// - [`Unlinked`](ErrorKind::Unlinked): the name was removed, or now belongs to another array.
    /// - [`WouldDeadlock`](ErrorKind::WouldDeadlock): this thread itself holds a write guard, writer or claim.
    /// - [`SizeMismatch`](ErrorKind::SizeMismatch): another program changed the length of the file.
    /// - [`TooManyOpenFiles`](ErrorKind::TooManyOpenFiles): a guard needs a descriptor.
    pub fn read(&self) -> Result<ReadGuard<'_, T, D>> {
        self.reading(Wait::Forever)
    }

    /// Takes read access without waiting. Fails also while a writer waits and has waited for less than 10
    /// seconds.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](ErrorKind::WouldBlock), and those of [`read`](Self::read) except `WouldDeadlock`.
    pub fn try_read(&self) -> Result<ReadGuard<'_, T, D>> {
        self.reading(Wait::No)
    }

    /// Waits for read access for at most `limit`.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](ErrorKind::TimedOut), and those of [`read`](Self::read) except `WouldDeadlock`.
    pub fn read_timeout(&self, limit: Duration) -> Result<ReadGuard<'_, T, D>> {
        self.reading(Wait::For(limit))
    }

    /// Waits for exclusive write access.
    ///
    /// # Errors
    ///
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) if the array was attached read-only, and those of
    /// [`read`](Self::read).
    pub fn write(&self) -> Result<WriteGuard<'_, T, D>> {
        self.writing(Wait::Forever)
    }

    /// Takes exclusive write access without waiting.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](ErrorKind::WouldBlock), and those of [`write`](Self::write) except `WouldDeadlock`.
    pub fn try_write(&self) -> Result<WriteGuard<'_, T, D>> {
        self.writing(Wait::No)
    }

    /// Waits for exclusive write access for at most `limit`.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](ErrorKind::TimedOut), and those of [`write`](Self::write) except `WouldDeadlock`.
    pub fn write_timeout(&self, limit: Duration) -> Result<WriteGuard<'_, T, D>> {
        self.writing(Wait::For(limit))
    }

    /// Waits for the cell of this number for at most `limit`.
    ///
    /// A cell is an advisory lock. Every number has one, however many elements the array has. Processes
    /// agree on what each number protects. The kernel releases a cell when its holder dies. A held cell
    /// excludes guards, readers and writers of the whole array and holders of the same number, but not
    /// holders of other numbers. No process holds a cell while a [write guard](Self::write) lives, so
    /// [removing the name](Self::unlink) under a write guard affects no holder of a cell.
    ///
    /// # Errors
    ///
    /// As [`write_timeout`](Self::write_timeout).
    pub fn lock_cell(&self, number: u32, limit: Duration) -> Result<CellGuard> {
        self.memory().hold(LockKind::Exclusive, cell(number as usize), Wait::For(limit)).map(CellGuard::new)
    }

    /// Locks all elements for reading or writing, without a view of them.
    ///
    /// Waits for at most `limit`, or without limit if it is `None`. While it waits it calls `keep_waiting`
    /// about ten times a second, and gives up when that returns false.
    ///
    /// # Errors
    ///
    /// - [`WouldBlock`](ErrorKind::WouldBlock): `keep_waiting` returned false, or `limit` is zero.
    /// - [`TimedOut`](ErrorKind::TimedOut): the limit has passed.
    /// - [`WouldDeadlock`](ErrorKind::WouldDeadlock): there is no limit, and this thread itself has a
    ///   conflicting lock.
    /// - [`PermissionDenied`](ErrorKind::PermissionDenied): the lock is for writing, and the array was attached
    ///   read-only.
    /// - those of [`read`](Self::read).
    pub fn lock(
        &self,
        access: Access,
        limit: Option<Duration>,
        keep_waiting: impl FnMut() -> bool,
    ) -> Result<ArrayLock> {
        let kind = if access == Access::ReadWrite { LockKind::Exclusive } else { LockKind::Shared };
        if limit.is_none() {
            self.segment().refuse_deadlock(kind, ALL_CELLS)?;
        }
        let (keep_waiting, gave_up) = (RefCell::new(keep_waiting), Cell::new(false));
        let ask = || {
            gave_up.set(!(keep_waiting.borrow_mut())());
            !gave_up.get()
        };
        let wait = match limit {
            Some(Duration::ZERO) => Wait::No,
            limit => Wait::While(limit.unwrap_or(Duration::MAX), KeepWaiting(&ask)),
        };
        match self.memory().hold(kind, ALL_CELLS, wait) {
            Err(Error { kind: ErrorKind::TimedOut { .. }, location, .. }) if gave_up.get() => {
                Err(ErrorKind::WouldBlock.at(location))
            }
            taken => taken.map(ArrayLock::new),
        }
    }

    #[allow(unsafe_code)]
    fn reading(&self, wait: Wait<'_>) -> Result<ReadGuard<'_, T, D>> {
        let hold = self.memory().hold(LockKind::Shared, ALL_CELLS, wait)?;
        // SAFETY: the hold keeps all cells read-locked, so no guard, claim or writer of any process writes
        // while it lives; the guard keeps view and hold together.
        let view = unsafe { view::shared(self.segment(), self) };
        Ok(ReadGuard::new(view, hold))
    }

    #[allow(unsafe_code)]
    fn writing(&self, wait: Wait<'_>) -> Result<WriteGuard<'_, T, D>> {
        let hold = self.memory().hold(LockKind::Exclusive, ALL_CELLS, wait)?;
        // SAFETY: the hold keeps all cells write-locked, so no other guard or claim of any process, thread
        // or handle, this handle included, accesses the elements while it lives; the guard keeps view and
        // hold together.
        let view = unsafe { view::exclusive(self.segment(), self) };
        view.map(|view| WriteGuard::new(view, hold)).ok_or_else(|| self.memory().read_only())
    }

    /// Returns a mutable view of the elements, without a lock.
    ///
    /// # Errors
    ///
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) if the array was attached read-only.
    ///
    /// # Safety
    ///
    /// For as long as the view lives,
    /// - no process and no thread reads or writes the elements through anything else, another view of this
    ///   handle included, and
    /// - no process shortens the file.
    #[allow(unsafe_code)]
    #[allow(clippy::mut_from_ref)] // the caller promises that nothing else accesses the elements
    pub unsafe fn view_mut(&self) -> Result<ArrayViewMut<'_, T, D>> {
        // SAFETY: the caller promises exclusive access and that the file keeps its length.
        let view = unsafe { view::exclusive(self.segment(), self) };
        view.ok_or_else(|| self.memory().read_only())
    }

    /// Returns a view that gives access to the elements by pointer only, for code that brings its own
    /// synchronisation.
    pub fn raw_view(&self) -> RawArrayView<T, D> {
        view::raw(self.segment(), self)
    }

    /// Returns a mutable view that gives access to the elements by pointer only.
    ///
    /// Returns `None` if the array was attached read-only.
    pub fn raw_view_mut(&self) -> Option<RawArrayViewMut<T, D>> {
        view::raw_mut(self.segment(), self)
    }

    /// Removes the array's name. Attachments keep the bytes; the memory is freed with the last of them.
    ///
    /// Returns `Ok(false)`, and removes nothing, if the name was removed before or now belongs to another
    /// array.
    ///
    /// # Errors
    ///
    /// [`PermissionDenied`](ErrorKind::PermissionDenied).
    pub fn unlink(&self) -> Result<bool> {
        self.segment().home().unlink(self.segment().id())
    }
}
