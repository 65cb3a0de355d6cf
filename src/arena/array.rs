//! Arrays in an arena: a draft is its maker's alone, an array is everybody's and never changes.
//!
//! Why safe code may look without a lock: the elements of a shared array are never written. Only a draft gives write access, and
//! a block becomes a draft only when nobody holds it (it was free), or nobody but the one who turns it into a draft; no handle
//! leads to it from that moment until it is shared. Whoever has an array holds its block, by a bit that his process alone clears.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use ndarray::{ArrayView, ArrayViewMut, Dimension, RawArrayView, RawArrayViewMut};

use super::block::{Block, Description};
use super::ground::{DROP_WAIT, Ground};
use super::handle::ArenaHandle;
use super::slots::Slot;
use crate::array::layout::Layout;
use crate::array::{Element, Order};
use crate::error::{Error, IntoError, Result};

/// An array in an arena that only its maker can reach, so that filling it is ordinary, safe Rust.
///
/// What its elements are in the beginning is whatever was there before; [`Arena::zeroed`](super::Arena::zeroed) makes one of zeros.
/// Dropped, it leaves nothing.
pub struct ArenaDraft<T, D> {
    block: Block,
    layout: Layout<D>,
    elements: PhantomData<T>,
}

impl<T: Element, D: Dimension> ArenaDraft<T, D> {
    pub(super) fn new(ground: &Arc<Ground>, layout: Layout<D>) -> Result<Self> {
        let block = Block::allocate::<T, D>(ground, &layout)?;
        Ok(Self { block, layout, elements: PhantomData })
    }

    /// Returns the lengths of the axes.
    pub fn shape(&self) -> &[usize] {
        self.layout.dim.slice()
    }

    /// Returns the order of the axes in memory.
    pub fn order(&self) -> Order {
        self.layout.order
    }

    /// Looks at the elements.
    ///
    /// # Panics
    ///
    /// In a forked child, which is no member of the arena.
    #[allow(unsafe_code)]
    pub fn view(&self) -> ArrayView<'_, T, D> {
        // SAFETY: nobody else can reach a draft, and in this process the borrow of `self` keeps writers out.
        unsafe { shared(&self.block, &self.layout) }
    }

    /// Looks at and writes to the elements.
    ///
    /// # Panics
    ///
    /// In a forked child, which is no member of the arena.
    #[allow(unsafe_code)]
    pub fn view_mut(&mut self) -> ArrayViewMut<'_, T, D> {
        let pointer = self.block.pointer().cast::<T>();
        // SAFETY: nothing is dereferenced; the pointer is aligned and not null, and the layout was checked not to overflow.
        let view = unsafe { RawArrayViewMut::from_shape_ptr(self.layout.shape(), pointer) };
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
    pub fn share(self) -> Result<ArenaArray<T, D>, IntoError<Self>> {
        if let Err(error) = self.block.ground().check_process() {
            return Err(IntoError::new(error, self));
        }
        let Self { block, layout, elements } = self;
        let serial = block.ground().slots().share(block.slot());
        Ok(ArenaArray { block: Arc::new(block), serial, layout, elements })
    }
}

/// An array in an arena. It never changes while anybody has it, so looking at it needs no lock.
///
/// Cloning is cheap, and holds the same hold. The memory is free for others when the last hold, in whatever process, has gone;
/// a killed process holds nothing as soon as somebody notices, at the latest when memory is needed.
pub struct ArenaArray<T, D> {
    block: Arc<Block>,
    serial: u64,
    layout: Layout<D>,
    elements: PhantomData<T>,
}

impl<T: Element, D: Dimension> ArenaArray<T, D> {
    /// Takes over a hold on a shared block, if what is there are elements `T` with the axes of `D`; else releases it.
    pub(crate) fn of_held(ground: &Arc<Ground>, slot: u32, serial: u64) -> Result<Self> {
        let (block, found) = Block::of_held(ground, slot)?;
        Ok(Self::of_block(block, serial, &found)?)
    }

    /// Takes over a hold on a shared block, if what was found there are elements `T` with the axes of `D`; else gives it back.
    pub(super) fn of_block(block: Block, serial: u64, found: &Description) -> Result<Self, IntoError<Block>> {
        match Layout::described::<T>(found.dtype, found.shape.slice(), found.order, block.ground().name()) {
            Ok(layout) => Ok(Self { block: Arc::new(block), serial, layout, elements: PhantomData }),
            Err(error) => Err(IntoError::new(error, block)),
        }
    }

    pub(super) fn block(&self) -> &Block {
        &self.block
    }

    /// Looks at the elements. No lock is needed.
    ///
    /// # Panics
    ///
    /// In a forked child, which is no member of the arena: open that again in the child.
    #[allow(unsafe_code)]
    pub fn view(&self) -> ArrayView<'_, T, D> {
        // SAFETY: the block was shared, and this process holds it; see the first lines of this file.
        unsafe { shared(&self.block, &self.layout) }
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
        ArenaHandle::new(self.block.ground().tag(), self.block.slot(), self.serial)
    }

    /// How many members of the arena hold it now; processes that were killed count until somebody notices.
    pub fn members(&self) -> u32 {
        let table = self.block.ground().slot_table();
        table.get(self.block.slot() as usize).map_or(0, Slot::members)
    }

    /// Makes it a draft again, without copying: if nobody else has it, here or elsewhere. Handles to it lead nowhere then.
    ///
    /// # Errors
    ///
    /// The error gives the array back. [`WouldBlock`](Error::WouldBlock): somebody else holds it, or a message about it waits.
    /// [`Unsupported`](Error::Unsupported): this is a forked child.
    pub fn try_into_draft(self) -> Result<ArenaDraft<T, D>, IntoError<Self>> {
        if let Err(error) = self.block.ground().check_process() {
            return Err(IntoError::new(error, self));
        }
        let Self { block, serial, layout, elements } = self;
        let location = block.ground().name().to_owned();
        let held = |block| {
            let error = Error::WouldBlock { location: location.clone() };
            IntoError::new(error, Self { block, serial, layout: layout.clone(), elements })
        };
        let block = Arc::try_unwrap(block).map_err(&held)?;
        let ground = block.ground();
        let mut taken = ground.slots().take_back(block.slot());
        // It may be kept only for a message of a dead member that was received long ago.
        if !taken && ground.slot_table().get(block.slot() as usize).is_some_and(Slot::is_in_estate) {
            let _others_are_at_it = ground.settle_estates_within(DROP_WAIT);
            taken = ground.slots().take_back(block.slot());
        }
        if taken { Ok(ArenaDraft { block, layout, elements }) } else { Err(held(Arc::new(block))) }
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

/// Looks at the elements of a block.
///
/// # Safety
///
/// For as long as the view lives, nobody writes to these elements: no process, no thread.
#[allow(unsafe_code)]
unsafe fn shared<'a, T: Element, D: Dimension>(block: &'a Block, layout: &Layout<D>) -> ArrayView<'a, T, D> {
    let pointer = block.pointer().cast::<T>().cast_const();
    // SAFETY: nothing is dereferenced; the pointer is aligned and not null, and the layout was checked not to overflow.
    let view = unsafe { RawArrayView::from_shape_ptr(layout.shape(), pointer) };
    // SAFETY: the block has room for the layout (it was allocated for it, or described itself and was checked), and is mapped
    // as long as it is held, which is as long as the borrow; every bit pattern is a value of `T`; that nobody writes is the
    // caller's promise.
    unsafe { view.deref_into_view() }
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
        describe::<T, D>(f, "ArenaDraft", &self.layout)
    }
}

impl<T: Element, D: Dimension> fmt::Debug for ArenaArray<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe::<T, D>(f, "ArenaArray", &self.layout)
    }
}
