//! What every shared array offers once it is attached, whatever keeps its memory: its layout, and guards.

/// Writes the methods of an array type that has `segment()`, `home()`, `hold(..)`, `read_only()` and a field `layout`.
macro_rules! guarded {
    ($name:ident) => {
        const _: () = {
            use std::time::Duration;

            use ndarray::{ArrayViewMut, Dimension, RawArrayView, RawArrayViewMut};

            use crate::array::{CellGuard, DType, Element, Order, ReadGuard, WriteGuard, view};
            use crate::backend::lock_space::{ALL_CELLS, cell};
            use crate::backend::{Access, Directory, PageUse};
            #[cfg(doc)]
            use crate::error::Error;
            use crate::error::Result;
            use crate::os::LockKind;
            use crate::segment::locks::Wait;

            impl<T: Element, D: Dimension> $name<T, D> {
                /// Returns the lengths of the axes.
                pub fn shape(&self) -> &[usize] {
                    self.layout.dim.slice()
                }

                /// Returns the lengths of the axes in ndarray's own type.
                pub fn raw_dim(&self) -> D {
                    self.layout.dim.clone()
                }

                /// Returns the order of the axes in memory.
                pub fn order(&self) -> Order {
                    self.layout.order
                }

                /// Returns the number of elements.
                pub fn len(&self) -> usize {
                    self.layout.len
                }

                /// Whether there are no elements.
                pub fn is_empty(&self) -> bool {
                    self.layout.len == 0
                }

                /// Returns the type of the elements.
                pub fn dtype(&self) -> DType {
                    T::DTYPE
                }

                /// Returns the directory that it lives in.
                ///
                /// The file that other programs map is `array.backend().path().join(location.as_str())`, with the array's
                /// location.
                pub fn backend(&self) -> &Directory {
                    &self.home().backend
                }

                /// Whether it was attached for reading only.
                pub fn is_readonly(&self) -> bool {
                    self.segment().access() == Access::Read
                }

                /// Whether the segment has holes: memory that is taken only when it is touched, and may then not be there.
                ///
                /// # Errors
                ///
                /// [`Unlinked`](Error::Unlinked): the name has gone, and with it the way to ask.
                pub fn is_sparse(&self) -> Result<bool> {
                    let facts = self.segment().facts(self.home())?;
                    Ok(facts.allocated < facts.length)
                }

                /// Tells on what pages the elements are, as the kernel says: whether [`Pages`](crate::Pages) were had.
                ///
                /// Not for every day: a page of each window that could be a huge one is mapped, if it has memory, and the kernel goes through
                /// all pages of this process that are mapped before these, some milliseconds for each GiB of base pages. Off Linux
                /// everything is on base pages.
                ///
                /// # Errors
                ///
                /// [`Os`](Error::Os): /proc is not mounted.
                pub fn pages(&self) -> Result<PageUse> {
                    self.segment().pages(self.home().location.as_str())
                }

                /// Waits for reading access.
                ///
                /// Any number of readers share the array; a waiting writer is let in before new readers. That turn is kept for 10 seconds: a
                /// writer that is stopped (SIGSTOP) while it waits delays others for so long, and a writer can be kept waiting by
                /// reads that overlap and take longer than that.
                ///
                /// # Errors
                ///
                /// - [`Unlinked`](Error::Unlinked): the name has gone or means something else by now.
                /// - [`WouldDeadlock`](Error::WouldDeadlock): this thread itself holds a write guard, writer or claim.
                /// - [`SizeMismatch`](Error::SizeMismatch): another program changed the length of the file.
                /// - [`TooManyOpenFiles`](Error::TooManyOpenFiles): a guard needs a descriptor.
                pub fn read(&self) -> Result<ReadGuard<'_, T, D>> {
                    self.reading(Wait::Forever)
                }

                /// Takes reading access if it can be had at once, and no writer has been waiting for less than 10 seconds.
                ///
                /// # Errors
                ///
                /// [`WouldBlock`](Error::WouldBlock), and those of [`read`](Self::read).
                pub fn try_read(&self) -> Result<ReadGuard<'_, T, D>> {
                    self.reading(Wait::No)
                }

                /// Waits for reading access, but no longer than this.
                ///
                /// # Errors
                ///
                /// [`TimedOut`](Error::TimedOut), and those of [`read`](Self::read) but `WouldDeadlock`.
                pub fn read_timeout(&self, limit: Duration) -> Result<ReadGuard<'_, T, D>> {
                    self.reading(Wait::For(limit))
                }

                /// Waits for writing access, alone.
                ///
                /// # Errors
                ///
                /// [`PermissionDenied`](Error::PermissionDenied) if it was attached read-only, and those of [`read`](Self::read).
                pub fn write(&self) -> Result<WriteGuard<'_, T, D>> {
                    self.writing(Wait::Forever)
                }

                /// Takes writing access if it can be had at once.
                ///
                /// # Errors
                ///
                /// [`WouldBlock`](Error::WouldBlock), and those of [`write`](Self::write).
                pub fn try_write(&self) -> Result<WriteGuard<'_, T, D>> {
                    self.writing(Wait::No)
                }

                /// Waits for writing access, but no longer than this.
                ///
                /// # Errors
                ///
                /// [`TimedOut`](Error::TimedOut), and those of [`write`](Self::write) but `WouldDeadlock`.
                pub fn write_timeout(&self, limit: Duration) -> Result<WriteGuard<'_, T, D>> {
                    self.writing(Wait::For(limit))
                }

                /// Waits for the cell of this number, but no longer than this.
                ///
                /// An array has a cell for every number, however many elements; what a number means, its users agree on. The kernel frees a cell
                /// with its holder. A cell keeps out whoever wants the same one, reads or writes, and nobody who has another: so a name that is
                /// [removed](Self::unlink) under a [write guard](Self::write) is never one under which somebody has a cell.
                ///
                /// # Errors
                ///
                /// As [`write_timeout`](Self::write_timeout).
                pub fn lock_cell(&self, number: u32, limit: Duration) -> Result<CellGuard> {
                    self.hold(LockKind::Exclusive, cell(number as usize), Wait::For(limit)).map(CellGuard::new)
                }

                #[allow(unsafe_code)]
                fn reading(&self, wait: Wait) -> Result<ReadGuard<'_, T, D>> {
                    let hold = self.hold(LockKind::Shared, ALL_CELLS, wait)?;
                    // SAFETY: the hold has all cells read-locked, so that no guard, claim or writer of any process writes while it
                    // lives; the guard keeps the two together.
                    let view = unsafe { view::shared(self.segment(), &self.layout) };
                    Ok(ReadGuard::new(view, hold))
                }

                #[allow(unsafe_code)]
                fn writing(&self, wait: Wait) -> Result<WriteGuard<'_, T, D>> {
                    let hold = self.hold(LockKind::Exclusive, ALL_CELLS, wait)?;
                    // SAFETY: the hold has all cells write-locked, so that no guard or claim of any process or thread, nor another of
                    // this handle, looks while it lives; the guard keeps the two together.
                    let view = unsafe { view::exclusive(self.segment(), &self.layout) };
                    view.map(|view| WriteGuard::new(view, hold)).ok_or_else(|| self.read_only())
                }

                /// Looks at and writes to the elements without a lock.
                ///
                /// # Errors
                ///
                /// [`PermissionDenied`](Error::PermissionDenied) if it was attached read-only.
                ///
                /// # Safety
                ///
                /// For as long as the view lives,
                /// - no process and no thread reads or writes the elements through anything else, another view of this handle
                ///   included, and
                /// - no process shortens the file.
                #[allow(unsafe_code)]
                #[allow(clippy::mut_from_ref)] // what others may do meanwhile is exactly what the caller promises
                pub unsafe fn view_mut(&self) -> Result<ArrayViewMut<'_, T, D>> {
                    // SAFETY: the caller's promise.
                    let view = unsafe { view::exclusive(self.segment(), &self.layout) };
                    view.ok_or_else(|| self.read_only())
                }

                /// Returns a view whose elements are reached by pointer only, for code that brings its own synchronisation.
                pub fn raw_view(&self) -> RawArrayView<T, D> {
                    view::raw(self.segment(), &self.layout)
                }

                /// Returns a view whose elements are written by pointer only; `None` if it was attached read-only.
                pub fn raw_view_mut(&self) -> Option<RawArrayViewMut<T, D>> {
                    view::raw_mut(self.segment(), &self.layout)
                }

                /// Removes the name of this very array; every attachment keeps the bytes.
                ///
                /// `Ok(false)`: the name had gone, or meant another array already.
                ///
                /// # Errors
                ///
                /// [`PermissionDenied`](Error::PermissionDenied).
                pub fn unlink(&self) -> Result<bool> {
                    self.home().unlink(self.segment().id())
                }
            }
        };
    };
}

pub(crate) use guarded;
