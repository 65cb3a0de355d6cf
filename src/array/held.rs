//! Held access: the cells are locked through the mapping itself, so safe views cost no descriptor and last as long as
//! the value.

use std::marker::PhantomData;
use std::time::Duration;

use ndarray::{ArrayView, ArrayViewMut, Dimension, ShapeBuilder};

use super::layout::{Layout, Order};
use super::{AttachOptions, Attachable, Element, view};
use crate::backend::{Access, IntoLocation, Location};
use crate::error::Result;
use crate::os::LockKind;
use crate::segment::locks::Wait;
use crate::segment::{Attach, CountedSegment, Segment};

/// What is held: a plain segment, or one of a counted array's handles.
#[derive(Debug)]
pub(crate) enum HeldSegment {
    Plain(Segment),
    Counted(CountedSegment),
}

impl HeldSegment {
    fn segment(&self) -> &Segment {
        match self {
            Self::Plain(segment) => segment,
            Self::Counted(counted) => counted.segment(),
        }
    }
}

impl From<Segment> for HeldSegment {
    fn from(segment: Segment) -> Self {
        Self::Plain(segment)
    }
}

impl From<CountedSegment> for HeldSegment {
    fn from(counted: CountedSegment) -> Self {
        Self::Counted(counted)
    }
}

macro_rules! held {
    ($(#[$attribute:meta])* $name:ident, $kind:expr, $access:expr) => {
        $(#[$attribute])*
        #[derive(Debug)]
        pub struct $name<T, D> {
            memory: HeldSegment,
            location: Location,
            layout: Layout<D>,
            elements: PhantomData<T>,
        }

        impl<T: Element, D: Dimension> $name<T, D> {
            /// Attaches to a plain array as soon as the lock can be had.
            ///
            /// # Errors
            ///
            /// As [`SharedArray::open`](super::SharedArray::open), and [`WouldDeadlock`](crate::Error::WouldDeadlock).
            pub fn open(location: impl IntoLocation, shape: impl ShapeBuilder<Dim = D>) -> Result<Self> {
                AttachOptions::<Self>::new().open(location, shape)
            }

            /// Attaches to a plain array, with the shape and order that it says, as soon as the lock can be had.
            ///
            /// # Errors
            ///
            /// As [`SharedArray::open_dyn`](super::SharedArray::open_dyn), and [`WouldDeadlock`](crate::Error::WouldDeadlock).
            pub fn open_dyn(location: impl IntoLocation) -> Result<Self> {
                AttachOptions::<Self>::new().open_dyn(location)
            }

            pub(crate) fn of(memory: impl Into<HeldSegment>, location: Location, layout: Layout<D>) -> Self {
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

        #[allow(private_interfaces)] // see the trait
        impl<T: Element, D: Dimension> Attachable for $name<T, D> {
            fn how() -> Attach {
                Attach { held: Some(($kind, Wait::Forever)), ..Attach::new($access) }
            }
        }

        impl<T: Element, D: Dimension> AttachOptions<$name<T, D>> {
            /// Waits for the lock no longer than this; zero means not at all. If not said, without limit.
            pub fn timeout(mut self, limit: Duration) -> Self {
                let wait = if limit.is_zero() { Wait::No } else { Wait::For(limit) };
                self.how.held = Some(($kind, wait));
                self
            }

            /// Attaches to a plain array as soon as the lock can be had.
            ///
            /// # Errors
            ///
            /// As [`SharedArray::open`](super::SharedArray::open), and [`WouldDeadlock`](crate::Error::WouldDeadlock); with a
            /// [`timeout`](Self::timeout) also [`TimedOut`](crate::Error::TimedOut) or [`WouldBlock`](crate::Error::WouldBlock).
            pub fn open(&self, location: impl IntoLocation, shape: impl ShapeBuilder<Dim = D>) -> Result<$name<T, D>> {
                let (segment, home, layout) = self.plain::<T, D>(location, shape)?;
                Ok($name::of(segment, home.location, layout))
            }

            /// Attaches to a plain array, with the shape and order that it says, as soon as the lock can be had.
            ///
            /// # Errors
            ///
            /// As [`open`](Self::open) and [`SharedArray::open_dyn`](super::SharedArray::open_dyn).
            pub fn open_dyn(&self, location: impl IntoLocation) -> Result<$name<T, D>> {
                let (segment, home, layout) = self.plain_dyn::<T, D>(location)?;
                Ok($name::of(segment, home.location, layout))
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
    ArrayReader, LockKind::Shared, Access::Read
}

held! {
    /// An array attached for writing, with everyone else kept out while this lives.
    ///
    /// (And a moment longer, if another thread was just spawning a process when this was opened.)
    ///
    /// It costs no descriptor (on overlayfs: one). For access that comes and goes use
    /// [`SharedArray::write`](super::SharedArray::write).
    ArrayWriter, LockKind::Exclusive, Access::ReadWrite
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
