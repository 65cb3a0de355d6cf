//! Drafts and arrays in memory of a pool, which return the memory when they are dropped.

use std::fmt;
use std::ops::Deref;

use ndarray::{ArrayViewMut, Dimension};

use super::{DROP_WAIT, FOREIGN, Pool};
use crate::array::{Draft, Element, NAMELESS, SharedArray};
use crate::backend::IntoLocation;
use crate::error::{ErrorKind, IntoError};
use crate::interrupt;
use crate::segment::AfterUse;

/// A value lent by a pool. Dropping it calls `give_back`; `end` takes the value out instead.
struct Loan<A> {
    value: Option<A>,
    bytes: u64,
    pool: Pool,
    /// Called while dropping: must neither panic nor wait for long.
    give_back: fn(A, &Pool),
}

impl<A> Loan<A> {
    fn new(value: A, bytes: u64, pool: Pool, give_back: fn(A, &Pool)) -> Self {
        pool.with_shelf(|shelf| shelf.stats.lent.add(bytes));
        Self { value: Some(value), bytes, pool, give_back }
    }

    /// Ends the loan without giving the value back.
    fn end(mut self) -> (A, Pool) {
        (self.value.take().expect(THERE), self.pool.clone())
    }

    fn get_mut(&mut self) -> &mut A {
        self.value.as_mut().expect(THERE)
    }
}

/// Only `end` and `drop` take the value out, and nothing uses the loan after them.
const THERE: &str = "the value is there until the loan ends";

impl<A> Drop for Loan<A> {
    fn drop(&mut self) {
        self.pool.with_shelf(|shelf| {
            let lent = &mut shelf.stats.lent;
            lent.arrays = lent.arrays.saturating_sub(1);
            lent.bytes = lent.bytes.saturating_sub(self.bytes);
        });
        if let Some(value) = self.value.take() {
            interrupt::uninterrupted(|| (self.give_back)(value, &self.pool));
        }
    }
}

fn give_draft_back<T: Element, D: Dimension>(draft: Draft<T, D>, pool: &Pool) {
    pool.keep(draft.into_parts().0);
}

fn give_array_back<T: Element, D: Dimension>(array: SharedArray<T, D>, pool: &Pool) {
    if !pool.is_mine() {
        return; // a forked child: name and memory belong to the parent
    }
    if let Err(refused) = pool.absorb(array, DROP_WAIT) {
        let (error, array) = refused.into_parts();
        // The memory cannot be used again. Its name is removed all the same, unless the name is locked: that would mean
        // to wait once more.
        if !matches!(error.kind, ErrorKind::TimedOut { .. }) {
            let segment = array.segment();
            let _ = segment.home().unlink_within(segment.id(), DROP_WAIT); // a drop cannot report errors
        }
        pool.count_dropped();
    }
}

/// A draft in memory of a [`Pool`]. When it is dropped, before or after it is published, the memory returns to the
/// pool.
///
/// In all other respects it is a [`Draft`]. It begins with the old contents of the memory, unless it comes from
/// [`Pool::take_zeroed`].
pub struct PooledDraft<T: Element, D: Dimension> {
    loan: Loan<Draft<T, D>>,
    is_recycled: bool,
}

impl<T: Element, D: Dimension> PooledDraft<T, D> {
    pub(super) fn new(draft: Draft<T, D>, pool: Pool, is_recycled: bool) -> Self {
        let bytes = draft.bytes();
        Self { loan: Loan::new(draft, bytes, pool, give_draft_back), is_recycled }
    }

    /// Returns whether the memory was used before. If not, it was zeroed when it was taken.
    pub fn is_recycled(&self) -> bool {
        self.is_recycled
    }

    /// Returns a mutable view of the elements.
    ///
    /// # Panics
    ///
    /// Panics in a forked child: the draft belongs to its parent.
    pub fn view_mut(&mut self) -> ArrayViewMut<'_, T, D> {
        self.loan.get_mut().view_mut()
    }

    /// Gives the array its name. From then on other processes can open it, until the returned value is dropped.
    ///
    /// # Errors
    ///
    /// The error returns the draft. Those of [`Draft::publish`], and [`Unsupported`](ErrorKind::Unsupported) in a
    /// forked child.
    pub fn publish(self, location: impl IntoLocation) -> Result<PooledArray<T, D>, IntoError<Self>> {
        if !self.loan.pool.is_mine() {
            let error = ErrorKind::Unsupported { what: FOREIGN.into() }.at(NAMELESS);
            return Err(IntoError::new(error, self));
        }
        let Self { loan, is_recycled } = self;
        let (draft, pool) = loan.end();
        match draft.publish(location) {
            Ok(array) => Ok(PooledArray::new(array, pool)),
            Err(refused) => {
                let (error, draft) = refused.into_parts();
                Err(IntoError::new(error, Self::new(draft, pool, is_recycled)))
            }
        }
    }

    /// Takes the draft out of the pool for good. It becomes an ordinary draft.
    ///
    /// If the memory was used before and the draft is then shared by descriptor, without a name, it cannot get a name
    /// later.
    pub fn into_draft(self) -> Draft<T, D> {
        let (mut memory, layout, keep_descriptor) = self.loan.end().0.into_parts();
        memory.set_after_use(AfterUse::Freed);
        Draft::from_parts(memory, layout, keep_descriptor)
    }
}

impl<T: Element, D: Dimension> Deref for PooledDraft<T, D> {
    type Target = Draft<T, D>;

    fn deref(&self) -> &Self::Target {
        self.loan.value.as_ref().expect(THERE)
    }
}

impl<T: Element, D: Dimension> fmt::Debug for PooledDraft<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledDraft").field("shape", &self.shape()).finish_non_exhaustive()
    }
}

/// An array in memory of a [`Pool`]. When it is dropped, it loses its name and the memory returns to the pool.
///
/// In all other respects it is a [`SharedArray`]. It holds one descriptor. Other attached processes keep the bytes, and
/// the pool does not use the memory again until they detach. If another process keeps the name locked for 100 ms while
/// this is dropped, name and memory stay.
pub struct PooledArray<T: Element, D: Dimension> {
    loan: Loan<SharedArray<T, D>>,
}

impl<T: Element, D: Dimension> PooledArray<T, D> {
    pub(super) fn new(array: SharedArray<T, D>, pool: Pool) -> Self {
        let bytes = array.bytes();
        Self { loan: Loan::new(array, bytes, pool, give_array_back) }
    }

    /// Takes the array out of the pool for good. It becomes an ordinary array and keeps its name when it is dropped.
    pub fn into_array(self) -> SharedArray<T, D> {
        self.loan.end().0.without_recycling()
    }
}

impl<T: Element, D: Dimension> Deref for PooledArray<T, D> {
    type Target = SharedArray<T, D>;

    fn deref(&self) -> &Self::Target {
        self.loan.value.as_ref().expect(THERE)
    }
}

impl<T: Element, D: Dimension> fmt::Debug for PooledArray<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledArray").field("location", &self.location()).finish_non_exhaustive()
    }
}
