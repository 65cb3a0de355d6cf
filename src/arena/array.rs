//! Arrays in an arena: a draft is its maker's alone, an array is everybody's and never changes.
//!
//! Why safe code may look without a lock: the elements of a shared array are never written. Only a draft gives write access, and
//! a block becomes a draft only when nobody holds it (it was free), or nobody but the one who turns it into a draft; no handle
//! leads to it from that moment until it is shared. Whoever has an array holds its block, by a bit that his process alone clears.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use ndarray::{ArrayView, ArrayViewMut, Dimension, RawArrayView, RawArrayViewMut};

use crate::arena::blocks::{Block, BlockContents};
use crate::arena::handle::ArenaHandle;
use crate::arena::header::{ArenaHeader, DROP_WAIT};
use crate::arena::tables::slots::Slot;
use crate::array::layout::Layout;
use crate::array::{Element, Order};
use crate::error::{Error, IntoError, Result};

/// An array in an arena that only its maker can reach, so that filling it is ordinary, safe Rust.
///
/// What its elements are in the beginning is whatever was there before; [`Arena::zeroed`](crate::Arena::zeroed) makes one of zeros.
/// Dropped, it leaves nothing.
pub struct ArenaDraft<T, D> {
    /// The only one that has the block, which is not shared: its serial means nothing yet.
    array: ArenaArray<T, D>,
}

impl<T: Element, D: Dimension> ArenaDraft<T, D> {
    /// Takes memory; with a limit, waits for it.
    pub(super) fn new(header: &Arc<ArenaHeader>, layout: Layout<D>, limit: Option<Duration>) -> Result<Self> {
        let block = Block::allocate::<T, D>(header, &layout, limit)?;
        Ok(Self { array: ArenaArray::new(block, 0, layout) })
    }

    /// Returns the lengths of the axes.
    pub fn shape(&self) -> &[usize] {
        self.array.shape()
    }

    /// Returns the order of the axes in memory.
    pub fn order(&self) -> Order {
        self.array.order()
    }

    /// Looks at the elements.
    ///
    /// # Panics
    ///
    /// In a forked child, which is no member of the arena.
    pub fn view(&self) -> ArrayView<'_, T, D> {
        self.array.view()
    }

    /// Looks at and writes to the elements.
    ///
    /// # Panics
    ///
    /// In a forked child, which is no member of the arena.
    #[allow(unsafe_code)]
    pub fn view_mut(&mut self) -> ArrayViewMut<'_, T, D> {
        let pointer = self.array.block.pointer().cast::<T>();
        // SAFETY: nothing is dereferenced; the pointer is aligned and not null, and the layout was checked not to overflow.
        let view = unsafe { RawArrayViewMut::from_shape_ptr(self.array.layout.shape(), pointer) };
        // SAFETY: the block has room for the layout, is mapped for writing as long as it is held, which is as long as the
        // borrow, and every bit pattern is a value of `T`; nobody else can reach a draft, and in this process `&mut self`
        // keeps everyone else out.
        unsafe { view.deref_into_view_mut() }
    }

    /// Makes it an array that others can be given. Nobody can change it from now on.
    ///
    /// # Errors
    ///
    /// The error gives the draft back. [`Unsupported`](Error::Unsupported): this is a forked child, which is no member.
    pub fn share(mut self) -> Result<ArenaArray<T, D>, IntoError<Self>> {
        let block = &self.array.block;
        if let Err(error) = block.header.check_process() {
            return Err(IntoError::new(error, self));
        }
        self.array.serial = block.header.slots().share(block.slot);
        Ok(self.array)
    }
}

/// An array in an [`Arena`](crate::Arena). It never changes while any process holds it, so looking at it needs no lock.
///
/// Cloning is cheap, and holds the same hold. The memory is free for others when the last hold, in whatever process, has gone;
/// a killed process holds nothing as soon as somebody notices, at the latest when memory is needed.
pub struct ArenaArray<T, D> {
    pub(super) block: Arc<Block>,
    serial: u64,
    layout: Layout<D>,
    elements: PhantomData<T>,
}

impl<T: Element, D: Dimension> ArenaArray<T, D> {
    fn new(block: Block, serial: u64, layout: Layout<D>) -> Self {
        Self { block: Arc::new(block), serial, layout, elements: PhantomData }
    }

    /// Takes over a hold on a shared block, if what is there are elements `T` with the axes of `D`; else releases it.
    pub(crate) fn of_held(header: &Arc<ArenaHeader>, slot: u32, serial: u64) -> Result<Self> {
        let (block, found) = Block::of_held(header, slot)?;
        Ok(Self::of_block(block, serial, &found)?)
    }

    /// Takes over a hold on a shared block, if what was found there are elements `T` with the axes of `D`; else gives it back.
    pub(super) fn of_block(block: Block, serial: u64, found: &BlockContents) -> Result<Self, IntoError<Block>> {
        match Layout::described::<T>(found.dtype, found.shape.slice(), found.order, block.header.name()) {
            Ok(layout) => Ok(Self::new(block, serial, layout)),
            Err(error) => Err(IntoError::new(error, block)),
        }
    }

    /// Looks at the elements. No lock is needed.
    ///
    /// # Panics
    ///
    /// In a forked child, which is no member of the arena: open that again in the child.
    #[allow(unsafe_code)]
    pub fn view(&self) -> ArrayView<'_, T, D> {
        let pointer = self.block.pointer().cast::<T>().cast_const();
        // SAFETY: nothing is dereferenced; the pointer is aligned and not null, and the layout was checked not to overflow.
        let view = unsafe { RawArrayView::from_shape_ptr(self.layout.shape(), pointer) };
        // SAFETY: the block has room for the layout (it was allocated for it, or described itself and was checked), and is
        // mapped as long as it is held, which is as long as the borrow; every bit pattern is a value of `T`. While the borrow
        // lives no process and no thread writes to the elements: a shared block is never written to, see the first lines of
        // this file, and only `ArenaDraft::view_mut` writes to one that is not shared, for which it borrows this mutably.
        unsafe { view.deref_into_view() }
    }

    /// Returns the lengths of the axes.
    pub fn shape(&self) -> &[usize] {
        self.layout.dim.slice()
    }

    /// Returns the order of the axes in memory.
    pub fn order(&self) -> Order {
        self.layout.order
    }

    /// Returns what others can get the array by, as long as somebody holds it.
    pub fn handle(&self) -> ArenaHandle {
        ArenaHandle { owner: self.block.header.tag(), slot: self.block.slot, serial: self.serial }
    }

    /// How many members of the arena hold it now; processes that were killed count until somebody notices.
    pub fn members(&self) -> u32 {
        let table = self.block.header.slot_table();
        table.get(self.block.slot as usize).map_or(0, Slot::members)
    }

    /// Makes it a draft again, without copying: if nobody else has it, here or elsewhere. Handles to it lead nowhere then.
    ///
    /// # Errors
    ///
    /// The error gives the array back. [`WouldBlock`](Error::WouldBlock): somebody else holds it, or a message about it waits.
    /// [`Unsupported`](Error::Unsupported): this is a forked child.
    pub fn try_into_draft(mut self) -> Result<ArenaDraft<T, D>, IntoError<Self>> {
        match self.make_exclusive() {
            Ok(()) => Ok(ArenaDraft { array: self }),
            Err(error) => Err(IntoError::new(error, self)),
        }
    }

    /// Makes the block this value's alone.
    fn make_exclusive(&mut self) -> Result<()> {
        self.block.header.check_process()?;
        let is_taken = Arc::get_mut(&mut self.block).is_some_and(|block| {
            let (header, slot) = (&block.header, block.slot);
            // It may be kept only for a message of a dead member that was received long ago.
            let reclaim = || {
                let _others_are_at_it = header.reclaim_dead(DROP_WAIT);
                header.slots().make_exclusive(slot)
            };
            let is_orphaned = || header.slot_table().get(slot as usize).is_some_and(Slot::is_orphaned);
            header.slots().make_exclusive(slot) || is_orphaned() && reclaim()
        });
        if is_taken { Ok(()) } else { Err(Error::WouldBlock { location: self.block.header.name().to_owned() }) }
    }

    /// Gives the array up, and says if something is wrong: dropping does the same in silence.
    ///
    /// # Errors
    ///
    /// [`HandleSpent`](Error::HandleSpent): this process did not hold it, which no safe code can bring about.
    /// [`Unsupported`](Error::Unsupported): this is a forked child, which holds nothing.
    pub fn release(self) -> Result<()> {
        match Arc::try_unwrap(self.block) {
            Ok(block) => block.release(),
            Err(_a_clone_holds_it) => Ok(()),
        }
    }
}

impl<T, D: Clone> Clone for ArenaArray<T, D> {
    fn clone(&self) -> Self {
        let (block, layout) = (Arc::clone(&self.block), self.layout.clone());
        Self { block, serial: self.serial, layout, elements: PhantomData }
    }
}

fn describe<T: Element, D: Dimension>(f: &mut fmt::Formatter<'_>, what: &str, layout: &Layout<D>) -> fmt::Result {
    f.debug_struct(what)
        .field("dtype", &<T as Element>::DTYPE)
        .field("shape", &layout.dim.slice())
        .field("order", &layout.order)
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
