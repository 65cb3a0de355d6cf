//! What a pool lends, and how it comes back: when it is dropped, whatever it is by then.

use std::fmt;
use std::ops::Deref;

use ndarray::{ArrayViewMut, Dimension};

use super::{DROP_WAIT, FOREIGN, Pool};
use crate::array::{Draft, Element, NAMELESS, SharedArray};
use crate::backend::{Backend, IntoLocation};
use crate::error::{Error, IntoError};

/// Something lent, which goes back when it is dropped, unless it was taken out before.
struct Loan<A> {
    value: Option<A>,
    bytes: u64,
    pool: Pool,
    /// Must neither panic nor wait for long.
    give_back: fn(A, &Pool),
}

impl<A> Loan<A> {
    fn new(value: A, bytes: u64, pool: Pool, give_back: fn(A, &Pool)) -> Self {
        pool.with_shelf(|shelf| shelf.stats.lent.add(bytes));
        Self { value: Some(value), bytes, pool, give_back }
    }

    /// Ends the loan without giving back.
    fn end(mut self) -> (A, Pool) {
        (self.value.take().expect(THERE), self.pool.clone())
    }

    fn get_mut(&mut self) -> &mut A {
        self.value.as_mut().expect(THERE)
    }
}

/// Only `end` and `drop` take the value out, and nothing comes after them.
const THERE: &str = "the value is there until the loan ends";

impl<A> Drop for Loan<A> {
    fn drop(&mut self) {
        self.pool.with_shelf(|shelf| {
            let lent = &mut shelf.stats.lent;
            lent.arrays = lent.arrays.saturating_sub(1);
            lent.bytes = lent.bytes.saturating_sub(self.bytes);
        });
        if let Some(value) = self.value.take() {
            (self.give_back)(value, &self.pool);
        }
    }
}

fn give_draft_back<T: Element, D: Dimension>(draft: Draft<T, D>, pool: &Pool) {
    pool.keep(draft.into_parts().0);
}

fn give_array_back<T: Element, D: Dimension>(array: SharedArray<T, D>, pool: &Pool) {
    if !pool.is_mine() {
        return; // neither the name nor the memory is this process's to take away
    }
    if let Err(refused) = pool.absorb(array, DROP_WAIT) {
        let (error, array) = refused.into_parts();
        // It cannot be used again. Its name goes all the same, unless that would mean waiting again.
        if !matches!(error, Error::TimedOut { .. }) {
            let (home, id) = (array.home(), array.segment().id());
            let _nobody_to_tell = home.backend.unlink_within(&home.location, Some(id), DROP_WAIT);
        }
        pool.count_dropped();
    }
}

/// A draft in memory of a [`Pool`]: dropped, or dropped after it was published, it gives the memory back.
///
/// Otherwise it is a [`Draft`]. Its elements are whatever the memory held, unless zeros were asked for.
pub struct PooledDraft<T: Element, D: Dimension> {
    loan: Loan<Draft<T, D>>,
    is_recycled: bool,
}

impl<T: Element, D: Dimension> PooledDraft<T, D> {
    pub(super) fn new(draft: Draft<T, D>, pool: Pool, is_recycled: bool) -> Self {
        let bytes = draft.layout().bytes::<T>();
        Self { loan: Loan::new(draft, bytes, pool, give_draft_back), is_recycled }
    }

    /// Whether its memory was used before. If not, it holds zeros.
    pub fn is_recycled(&self) -> bool {
        self.is_recycled
    }

    /// Looks at and writes to the elements.
    pub fn view_mut(&mut self) -> ArrayViewMut<'_, T, D> {
        self.loan.get_mut().view_mut()
    }

    /// Gives the array its name: from this moment others can open it, until the returned value is dropped.
    ///
    /// # Errors
    ///
    /// The error gives the draft back. Those of [`Draft::publish`], and [`Unsupported`](Error::Unsupported) in a forked child.
    pub fn publish(self, location: impl IntoLocation) -> Result<PooledArray<T, D>, IntoError<Self>> {
        if !self.loan.pool.is_mine() {
            let error = Error::Unsupported { location: NAMELESS.into(), what: FOREIGN.into() };
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

    /// Takes the draft out of the pool for good: it becomes an ordinary one.
    ///
    /// If its memory was used before and it is shared by descriptor, without a name, it can have none later.
    pub fn into_draft(self) -> Draft<T, D> {
        let (mut memory, layout, keep_descriptor) = self.loan.end().0.into_parts();
        memory.set_recyclable(false);
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

/// An array in memory of a [`Pool`]: dropped, it loses its name and gives the memory back.
///
/// Otherwise it is a [`SharedArray`]. It costs one descriptor. Other processes that are attached keep the bytes, and keep the pool
/// from using them again; if somebody else is about to remove the name just when this is dropped, and does not get on, the name
/// stays and the memory with it.
pub struct PooledArray<T: Element, D: Dimension> {
    loan: Loan<SharedArray<T, D>>,
}

impl<T: Element, D: Dimension> PooledArray<T, D> {
    pub(super) fn new(array: SharedArray<T, D>, pool: Pool) -> Self {
        let bytes = array.layout().bytes::<T>();
        Self { loan: Loan::new(array, bytes, pool, give_array_back) }
    }

    /// Takes the array out of the pool for good: its name stays when it is dropped.
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
