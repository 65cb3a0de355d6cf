//! Access that is held as long as the array is attached. The cells are locked on the mapping's own open file
//! description, so it costs no descriptor.

use std::marker::PhantomData;
use std::time::Duration;

use ndarray::{ArrayView, ArrayViewMut, Dimension, ShapeBuilder};

use super::layout::{Layout, Order};
use super::{AttachOptions, Attachable, Element, view};
use crate::backend::{Access, IntoLocation, Location};
use crate::error::Result;
use crate::os::LockKind;
use crate::segment::{Attach, CellWait, CountedSegment, Segment};

/// The attached segment: a plain one, or a handle of a counted array.
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
            layout: Layout<D>,
            elements: PhantomData<T>,
        }

        impl<T: Element, D: Dimension> $name<T, D> {
            /// Attaches to a plain array. Waits until the lock is free.
            ///
            /// # Errors
            ///
            /// As [`SharedArray::open`](super::SharedArray::open), and [`WouldDeadlock`](crate::Error::WouldDeadlock):
            /// this thread holds a conflicting lock.
            pub fn open(location: impl IntoLocation, shape: impl ShapeBuilder<Dim = D>) -> Result<Self> {
                AttachOptions::<Self>::new().open(location, shape)
            }

            /// Attaches to a plain array, with the shape and order of its description. Waits until the lock is free.
            ///
            /// # Errors
            ///
            /// As [`SharedArray::open_dyn`](super::SharedArray::open_dyn), and
            /// [`WouldDeadlock`](crate::Error::WouldDeadlock): this thread holds a conflicting lock.
            pub fn open_dyn(location: impl IntoLocation) -> Result<Self> {
                AttachOptions::<Self>::new().open_dyn(location)
            }

            pub(crate) fn of(memory: impl Into<HeldSegment>, layout: Layout<D>) -> Self {
                Self { memory: memory.into(), layout, elements: PhantomData }
            }

            /// Returns a view of the elements.
            #[allow(unsafe_code)]
            pub fn view(&self) -> ArrayView<'_, T, D> {
                // SAFETY: the mapping's own description keeps every cell locked until it is unmapped, so no other
                // process or handle writes. Writing through this handle needs `&mut self`.
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

            /// Returns the name under which the array was attached.
            pub fn location(&self) -> &Location {
                self.memory.segment().location()
            }
        }

        #[allow(private_interfaces)] // see the trait
        impl<T: Element, D: Dimension> Attachable for $name<T, D> {
            fn how() -> Attach {
                Attach { held: Some(($kind, CellWait::Forever)), ..Attach::new($access) }
            }
        }

        impl<T: Element, D: Dimension> AttachOptions<$name<T, D>> {
            /// Waits for the lock for at most `limit`; not at all if it is zero. By default the wait has no limit.
            ///
            /// The limit includes the wait for another process that decides whether the array is in use.
            pub fn timeout(mut self, limit: Duration) -> Self {
                self.how.held = Some(($kind, CellWait::Patience));
                self.how.patience = limit;
                self
            }

            /// Attaches to a plain array. Waits until the lock is free.
            ///
            /// # Errors
            ///
            /// As [`SharedArray::open`](super::SharedArray::open), and [`WouldDeadlock`](crate::Error::WouldDeadlock);
            /// with a [`timeout`](Self::timeout) also [`TimedOut`](crate::Error::TimedOut) or
            /// [`WouldBlock`](crate::Error::WouldBlock).
            pub fn open(&self, location: impl IntoLocation, shape: impl ShapeBuilder<Dim = D>) -> Result<$name<T, D>> {
                let (segment, layout) = self.plain::<T, D>(location, shape)?;
                Ok($name::of(segment, layout))
            }

            /// Attaches to a plain array, with the shape and order of its description. Waits until the lock is free.
            ///
            /// # Errors
            ///
            /// As [`open`](Self::open) and [`SharedArray::open_dyn`](super::SharedArray::open_dyn).
            pub fn open_dyn(&self, location: impl IntoLocation) -> Result<$name<T, D>> {
                let (segment, layout) = self.plain_dyn::<T, D>(location)?;
                Ok($name::of(segment, layout))
            }
        }
    };
}

held! {
    /// An array attached for reading. It excludes writers until it is dropped.
    ///
    /// If another thread was spawning a process when the array was opened, the lock can last a moment longer: until the
    /// child calls exec.
    ///
    /// It costs no descriptor (on overlayfs: one). For short accesses use
    /// [`SharedArray::read`](super::SharedArray::read).
    ArrayReader, LockKind::Shared, Access::Read
}

held! {
    /// An array attached for writing. It excludes all other readers and writers until it is dropped.
    ///
    /// If another thread was spawning a process when the array was opened, the lock can last a moment longer: until the
    /// child calls exec.
    ///
    /// It costs no descriptor (on overlayfs: one). For short accesses use
    /// [`SharedArray::write`](super::SharedArray::write).
    ArrayWriter, LockKind::Exclusive, Access::ReadWrite
}

impl<T: Element, D: Dimension> ArrayWriter<T, D> {
    /// Returns a mutable view of the elements.
    #[allow(unsafe_code)]
    #[allow(clippy::missing_panics_doc)] // a writer is never mapped read-only
    pub fn view_mut(&mut self) -> ArrayViewMut<'_, T, D> {
        // SAFETY: as in `view`, with write locks; `&mut self` excludes every other view of this handle.
        let view = unsafe { view::exclusive(self.memory.segment(), &self.layout) };
        view.expect("a writer is mapped for writing")
    }
}
