//! Held access: the cells are locked through the mapping itself, so safe views cost no descriptor and last as long as
//! the value.

use std::marker::PhantomData;

use ndarray::{ArrayView, ArrayViewMut, Dimension};

use super::layout::{Layout, Order};
use super::{Element, view};
use crate::backend::Location;
use crate::segment::{CountedSegment, Segment};

/// What is held: a plain segment, or one of a counted array's handles.
#[derive(Debug)]
pub(crate) enum Memory {
    Plain(Segment),
    Counted(CountedSegment),
}

impl Memory {
    fn segment(&self) -> &Segment {
        match self {
            Self::Plain(segment) => segment,
            Self::Counted(counted) => counted.segment(),
        }
    }
}

impl From<Segment> for Memory {
    fn from(segment: Segment) -> Self {
        Self::Plain(segment)
    }
}

impl From<CountedSegment> for Memory {
    fn from(counted: CountedSegment) -> Self {
        Self::Counted(counted)
    }
}

macro_rules! held {
    ($(#[$attribute:meta])* $name:ident) => {
        $(#[$attribute])*
        #[derive(Debug)]
        pub struct $name<T, D> {
            memory: Memory,
            location: Location,
            layout: Layout<D>,
            elements: PhantomData<T>,
        }

        impl<T: Element, D: Dimension> $name<T, D> {
            pub(crate) fn of(memory: impl Into<Memory>, location: Location, layout: Layout<D>) -> Self {
                Self { memory: memory.into(), location, layout, elements: PhantomData }
            }

            /// Looks at the elements.
            #[allow(unsafe_code)]
            pub fn view(&self) -> ArrayView<'_, T, D> {
                // SAFETY: the mapping's own description has every cell locked until it is unmapped, so that no other
                // process or handle writes; in this one, writing needs `&mut self`.
                unsafe { view::shared(self.memory.segment(), &self.layout) }
            }

            /// Returns the lengths of the axes.
            pub fn shape(&self) -> &[usize] {
                self.layout.dim.slice()
            }

            /// Returns the order of the axes in memory.
            pub fn order(&self) -> Order {
                self.layout.order
            }

            /// Returns the name under which it was attached.
            pub fn location(&self) -> &Location {
                &self.location
            }
        }
    };
}

held! {
    /// An array attached for reading, with writers kept out while this lives.
    ///
    /// (And a moment longer, if another thread was just spawning a process when this was opened.)
    ///
    /// It costs no descriptor (on overlayfs: one). For access that comes and goes use
    /// [`SharedArray::read`](super::SharedArray::read).
    ArrayReader
}

held! {
    /// An array attached for writing, with everyone else kept out while this lives.
    ///
    /// (And a moment longer, if another thread was just spawning a process when this was opened.)
    ///
    /// It costs no descriptor (on overlayfs: one). For access that comes and goes use
    /// [`SharedArray::write`](super::SharedArray::write).
    ArrayWriter
}

impl<T: Element, D: Dimension> ArrayWriter<T, D> {
    /// Looks at and writes to the elements.
    #[allow(unsafe_code)]
    #[allow(clippy::missing_panics_doc)] // a writer is never mapped read-only
    pub fn view_mut(&mut self) -> ArrayViewMut<'_, T, D> {
        // SAFETY: as in `view`, with write locks; `&mut self` excludes every other view of this handle.
        let view = unsafe { view::exclusive(self.memory.segment(), &self.layout) };
        view.expect("a writer is mapped for writing")
    }
}
