//! What a pool lends, and how it comes back: when it is dropped, whatever it is by then.

use std::fmt;
use std::ops::Deref;

use ndarray::{ArrayView, ArrayViewMut, Dimension};

use super::{DROP_WAIT, FOREIGN, Pool};
use crate::array::{Draft, Element, NAMELESS, Order, SharedArray};
use crate::backend::IntoLocation;
use crate::error::{Error, IntoError};

/// Something whose memory a pool wants back.
trait Lent {
    fn bytes(&self) -> u64;
    /// Gives the memory back; must neither panic nor wait for long.
    fn give_back(self, pool: &Pool);
}

impl<T: Element, D: Dimension> Lent for Draft<T, D> {
    fn bytes(&self) -> u64 {
        self.layout().bytes::<T>()
    }

    fn give_back(self, pool: &Pool) {
        let (memory, ..) = self.into_parts();
        pool.keep(memory);
    }
}

impl<T: Element, D: Dimension> Lent for SharedArray<T, D> {
    fn bytes(&self) -> u64 {
        self.layout().bytes::<T>()
    }

    fn give_back(self, pool: &Pool) {
        if !pool.is_mine() {
            return; // neither the name nor the memory is this process's to take away
        }
        if let Err(refused) = pool.take_back(self, DROP_WAIT) {
            let (error, array) = refused.into_parts();
            // It cannot be used again. Its name goes all the same, unless that would mean waiting again.
            if !matches!(error, Error::TimedOut { .. }) {
                let (home, id) = (array.home(), array.segment().id());
                let _nobody_to_tell = home.backend.unlink_within(&home.location, Some(id), DROP_WAIT);
            }
            pool.with_state(|state| state.dropped += 1);
        }
    }
}

/// Something lent, which goes back when it is dropped, unless it was taken out before.
struct Loan<A: Lent> {
    value: Option<A>,
    pool: Pool,
}

impl<A: Lent> Loan<A> {
    fn new(value: A, pool: Pool) -> Self {
        pool.with_state(|state| state.lent.add(value.bytes()));
        Self { value: Some(value), pool }
    }

    /// Ends the loan without giving back.
    fn end(mut self) -> (A, Pool) {
        let pool = self.pool.clone();
        (self.take().expect(THERE), pool)
    }

    fn take(&mut self) -> Option<A> {
        let value = self.value.take()?;
        let bytes = value.bytes();
        self.pool.with_state(|state| {
            state.lent.arrays = state.lent.arrays.saturating_sub(1);
            state.lent.bytes = state.lent.bytes.saturating_sub(bytes);
        });
        Some(value)
    }

    fn get(&self) -> &A {
        self.value.as_ref().expect(THERE)
    }

    fn get_mut(&mut self) -> &mut A {
        self.value.as_mut().expect(THERE)
    }
}

/// Only `end` and `drop` take the value out, and nothing comes after them.
const THERE: &str = "the value is there until the loan ends";

impl<A: Lent> Drop for Loan<A> {
    fn drop(&mut self) {
        if let Some(value) = self.take() {
            value.give_back(&self.pool);
        }
    }
}

/// A draft in memory of a [`Pool`]: dropped, or dropped after it was published, it gives the memory back.
///
/// Its elements are whatever the memory held, unless zeros were asked for.
pub struct PooledDraft<T: Element, D: Dimension> {
    loan: Loan<Draft<T, D>>,
    is_recycled: bool,
}

impl<T: Element, D: Dimension> PooledDraft<T, D> {
    pub(super) fn new(draft: Draft<T, D>, pool: Pool, is_recycled: bool) -> Self {
        Self { loan: Loan::new(draft, pool), is_recycled }
    }

    /// Whether its memory was used before. If not, it holds zeros.
    pub fn is_recycled(&self) -> bool {
        self.is_recycled
    }

    /// Returns the lengths of the axes.
    pub fn shape(&self) -> &[usize] {
        self.loan.get().shape()
    }

    /// Returns the order of the axes in memory.
    pub fn order(&self) -> Order {
        self.loan.get().order()
    }

    /// Looks at the elements.
    pub fn view(&self) -> ArrayView<'_, T, D> {
        self.loan.get().view()
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
        Self { loan: Loan::new(array, pool) }
    }

    /// Takes the array out of the pool for good: its name stays when it is dropped.
    pub fn into_array(self) -> SharedArray<T, D> {
        self.loan.end().0.without_recycling()
    }
}

impl<T: Element, D: Dimension> Deref for PooledArray<T, D> {
    type Target = SharedArray<T, D>;

    fn deref(&self) -> &Self::Target {
        self.loan.get()
    }
}

impl<T: Element, D: Dimension> fmt::Debug for PooledArray<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledArray").field("location", &self.location()).finish_non_exhaustive()
    }
}
