//! Arrays in an arena. Only its creator can reach a draft; an array is shared and never changes.
//!
//! Why safe code may read without a lock: the elements of a shared array are never written. Only a draft gives write
//! access. A block becomes a draft only when it is free, or when the array that is turned into a draft is its only
//! hold. From that moment until the draft is shared, no handle leads to the block. Every array holds its block by a bit
//! of its process, and only that process clears the bit while it lives.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use ndarray::{ArrayView, ArrayViewMut, Dimension, RawArrayView, RawArrayViewMut};

use crate::arena::blocks::{Block, BlockContents};
use crate::arena::handle::ArenaHandle;
use crate::arena::header::{ArenaHeader, DROP_WAIT};
use crate::arena::tables::entries::BlockEntry;
use crate::array::{Element, Layout};
use crate::backoff::Deadline;
use crate::error::{ErrorKind, IntoError, Result};

/// An array in an arena that only its creator can reach, so filling it is ordinary, safe Rust.
///
/// The elements begin with whatever the memory held before; [`Arena::zeroed`](crate::Arena::zeroed) makes a draft of
/// zeros. Dropping a draft frees its memory.
pub struct ArenaDraft<T, D> {
    /// The only hold on the block. The block is not shared, so the serial has no meaning yet.
    array: ArenaArray<T, D>,
}

impl<T: Element, D: Dimension> ArenaDraft<T, D> {
    /// Allocates a block. With a limit, waits for a free one.
    pub(super) fn new(header: &Arc<ArenaHeader>, layout: Layout<T, D>, limit: Option<Duration>) -> Result<Self> {
        let block = Block::allocate::<T, D>(header, &layout, limit)?;
        Ok(Self { array: ArenaArray::new(block, 0, layout) })
    }

    /// Returns a view of the elements.
    ///
    /// # Panics
    ///
    /// In a forked child, which is not a member of the arena.
    pub fn view(&self) -> ArrayView<'_, T, D> {
        self.array.view()
    }

    /// Returns a mutable view of the elements.
    ///
    /// # Panics
    ///
    /// In a forked child, which is not a member of the arena.
    #[allow(unsafe_code)]
    pub fn view_mut(&mut self) -> ArrayViewMut<'_, T, D> {
        let pointer = self.array.block.pointer().cast::<T>();
        // SAFETY: nothing is dereferenced; the pointer is aligned and not null, and the layout was checked not to
        // overflow.
        let view = unsafe { RawArrayViewMut::from_shape_ptr(self.array.layout.shape_with_order(), pointer) };
        // SAFETY: the block has room for the layout, and every bit pattern is a value of `T`. The block is mapped for
        // writing as long as it is held, which is at least as long as the borrow. No other process can reach a draft,
        // and in this process `&mut self` excludes every other access.
        unsafe { view.deref_into_view_mut() }
    }

    /// Shares the draft: it becomes an array that other processes can get by its handle. It never changes from now on.
    ///
    /// # Errors
    ///
    /// The error gives the draft back. [`Unsupported`](ErrorKind::Unsupported): this is a forked child, which is not a
    /// member.
    pub fn share(mut self) -> Result<ArenaArray<T, D>, IntoError<Self>> {
        let block = &self.array.block;
        if let Err(error) = block.header.check_process() {
            return Err(IntoError::new(error, self));
        }
        self.array.serial = block.header.entries().share(block.entry);
        Ok(self.array)
    }
}

/// An array in an [`Arena`](crate::Arena). It never changes while any process holds it, so reading it needs no lock.
///
/// Cloning is cheap, and the clones share one hold. The memory becomes free when the last process releases its last
/// hold. What a killed process held is reclaimed by the next process that finds no free memory, or calls
/// [`Arena::reclaim`](crate::Arena::reclaim).
pub struct ArenaArray<T, D> {
    pub(super) block: Arc<Block>,
    serial: u64,
    layout: Layout<T, D>,
}

impl<T: Element, D: Dimension> ArenaArray<T, D> {
    fn new(block: Block, serial: u64, layout: Layout<T, D>) -> Self {
        Self { block: Arc::new(block), serial, layout }
    }

    /// Takes over a hold on a shared block. Releases it if the block does not contain elements `T` with the axes of
    /// `D`.
    pub(crate) fn of_held(header: &Arc<ArenaHeader>, entry: u32, serial: u64) -> Result<Self> {
        let (block, found) = Block::of_held(header, entry)?;
        Ok(Self::of_block(block, serial, &found)?)
    }

    /// Takes over a hold on a shared block. Gives it back if its contents are not elements `T` with the axes of `D`.
    pub(super) fn of_block(block: Block, serial: u64, found: &BlockContents) -> Result<Self, IntoError<Block>> {
        match Layout::<T, _>::described(found.dtype, found.shape.slice(), found.order, block.header.name()) {
            Ok(layout) => Ok(Self::new(block, serial, layout)),
            Err(error) => Err(IntoError::new(error, block)),
        }
    }

    /// Returns a view of the elements. Takes no lock.
    ///
    /// # Panics
    ///
    /// In a forked child, which is not a member of the arena: open the arena again in the child.
    #[allow(unsafe_code)]
    pub fn view(&self) -> ArrayView<'_, T, D> {
        let pointer = self.block.pointer().cast::<T>().cast_const();
        // SAFETY: nothing is dereferenced; the pointer is aligned and not null, and the layout was checked not to
        // overflow.
        let view = unsafe { RawArrayView::from_shape_ptr(self.layout.shape_with_order(), pointer) };
        // SAFETY: the block has room for the layout: it was allocated for it, or its description was checked against
        // its size. It is mapped as long as it is held, which is at least as long as the borrow. Every bit pattern is a
        // value of `T`. While the borrow lives, no process and no thread writes to the elements: a shared block is
        // never written, as the first lines of this file show, and only `ArenaDraft::view_mut` writes to one that is
        // not shared, which borrows this mutably.
        unsafe { view.deref_into_view() }
    }

    /// Returns a handle, by which other members get the array as long as any process holds it.
    pub fn handle(&self) -> ArenaHandle {
        ArenaHandle { owner: self.block.header.tag(), entry: self.block.entry, serial: self.serial }
    }

    /// Returns how many members of the arena hold the array. A killed process counts until its holds are reclaimed.
    pub fn members(&self) -> u32 {
        let table = self.block.header.entry_table();
        table.get(self.block.entry as usize).map_or(0, BlockEntry::members)
    }

    /// Turns the array into a draft again, without copying. This value must be the only hold, in this and every other
    /// process.
    ///
    /// From then on, handles to the array lead nowhere.
    ///
    /// # Errors
    ///
    /// The error gives the array back. [`WouldBlock`](ErrorKind::WouldBlock): another value or process holds it, or a
    /// message with it has not been received. [`Unsupported`](ErrorKind::Unsupported): this is a forked child.
    pub fn try_into_draft(mut self) -> Result<ArenaDraft<T, D>, IntoError<Self>> {
        match self.make_exclusive() {
            Ok(()) => Ok(ArenaDraft { array: self }),
            Err(error) => Err(IntoError::new(error, self)),
        }
    }

    /// Takes the block exclusively for this value.
    fn make_exclusive(&mut self) -> Result<()> {
        self.block.header.check_process()?;
        let is_taken = Arc::get_mut(&mut self.block).is_some_and(|block| {
            let (header, entry) = (&block.header, block.entry);
            // Besides this hold, only the ORPHAN bit of a message that was received since may keep the block.
            // Reclaiming clears it.
            let reclaim = || {
                // May fail while another process reclaims; `make_exclusive` decides.
                let _ = header.reclaim_dead(Deadline::after(DROP_WAIT));
                header.entries().make_exclusive(entry)
            };
            let is_orphaned = || header.entry_table().get(entry as usize).is_some_and(BlockEntry::is_orphaned);
            header.entries().make_exclusive(entry) || is_orphaned() && reclaim()
        });
        if is_taken { Ok(()) } else { Err(ErrorKind::WouldBlock.at(self.block.header.name())) }
    }

    /// Releases the array, and reports errors. Dropping releases it too, and ignores them. If it has clones, the last
    /// of them does that.
    ///
    /// # Errors
    ///
    /// [`HandleSpent`](ErrorKind::HandleSpent): this process did not hold it, which safe code cannot cause.
    /// [`Unsupported`](ErrorKind::Unsupported): this is a forked child, which holds nothing.
    pub fn release(self) -> Result<()> {
        match Arc::try_unwrap(self.block) {
            Ok(block) => block.release(),
            Err(_) => Ok(()), // a clone keeps the hold
        }
    }
}

impl<T, D: Clone> Clone for ArenaArray<T, D> {
    fn clone(&self) -> Self {
        let (block, layout) = (Arc::clone(&self.block), self.layout.copied());
        Self { block, serial: self.serial, layout }
    }
}

impl<T, D> Deref for ArenaDraft<T, D> {
    type Target = Layout<T, D>;

    fn deref(&self) -> &Self::Target {
        &self.array.layout
    }
}

impl<T, D> Deref for ArenaArray<T, D> {
    type Target = Layout<T, D>;

    fn deref(&self) -> &Self::Target {
        &self.layout
    }
}

fn describe<T: Element, D: Dimension>(f: &mut fmt::Formatter<'_>, what: &str, layout: &Layout<T, D>) -> fmt::Result {
    f.debug_struct(what)
        .field("dtype", &<T as Element>::DTYPE)
        .field("shape", &layout.shape())
        .field("order", &layout.order())
        .finish_non_exhaustive()
}

impl<T: Element, D: Dimension> fmt::Debug for ArenaDraft<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe::<T, D>(f, "ArenaDraft", &self.array.layout)
    }
}

impl<T: Element, D: Dimension> fmt::Debug for ArenaArray<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe::<T, D>(f, "ArenaArray", &self.layout)
    }
}
