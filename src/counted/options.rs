//! Creating and attaching counted arrays with options. The options themselves are in src/array/create.rs and
//! src/array/open.rs.

use ndarray::{ArrayViewMut, Dimension, ShapeBuilder};

use super::handle::Handle;
use super::refcounted::{RefcountedArray, read, share_as};
use super::strategy::SharingStrategy;
use crate::array::{ArrayReader, Creatable, CreateOptions, Draft, Element, Layout, NAMELESS, OpenOptions};
use crate::backend::{IntoLocation, Publish};
use crate::error::{Error, ErrorKind, IntoError, Result};
use crate::manager_client;
use crate::random;
use crate::segment::{Attach, CountedBy, CountedSegment, Home};

impl<T: Element, D: Dimension> Creatable<T, D> for RefcountedArray<T, D> {
    const COUNTED: bool = true;

    fn refuse_taken(home: &Home) -> Result<()> {
        home.refuse_taken_by_the_living()
    }

    fn open_same(home: &Home, layout: &Layout<T, D>, how: Attach) -> Result<Self> {
        let (memory, found, id) = attach::<T, D>(home, how, CountedBy::Name)?;
        if found != *layout {
            let describe = |layout: &Layout<T, D>| format!("{:?} in {} order", layout.shape(), layout.order());
            let (expected, found) = (describe(layout), describe(&found));
            return Err(ErrorKind::ShapeMismatch { expected, found }.at(&home.location));
        }
        Ok(Self::of(memory, found, id))
    }

    fn publish(draft: Draft<T, D>, home: &Home, mode: Publish) -> Result<Self, IntoError<Draft<T, D>>> {
        share_as(draft, home, Some(mode), random::number())
    }
}

/// Counted arrays.
impl CreateOptions {
    /// Creates a counted array of zeros.
    ///
    /// # Errors
    ///
    /// As [`RefcountedArray::create`], and [`InvalidSetting`](ErrorKind::InvalidSetting) if there are
    /// [notes](Self::note). With [`OpenOrCreate`](crate::CreationMode::OpenOrCreate) also as [`RefcountedArray::open`].
    pub fn create_counted<T: Element, D: Dimension>(
        &self,
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = D>,
    ) -> Result<RefcountedArray<T, D>> {
        self.create_counted_with(location, shape, |_| {})
    }

    /// Creates a counted array that `fill` writes before other processes can see it. An existing array that is opened
    /// is not filled.
    ///
    /// # Errors
    ///
    /// As [`create_counted`](Self::create_counted).
    pub fn create_counted_with<T: Element, D: Dimension>(
        &self,
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = D>,
        fill: impl FnOnce(ArrayViewMut<'_, T, D>),
    ) -> Result<RefcountedArray<T, D>> {
        self.try_create_counted_with(location, shape, |view| {
            fill(view);
            Ok(())
        })
    }

    /// Creates a counted array as [`create_counted_with`](Self::create_counted_with) does. If `fill` fails, no array is
    /// created.
    ///
    /// # Errors
    ///
    /// That of `fill`, and those of [`create_counted`](Self::create_counted).
    pub fn try_create_counted_with<T: Element, D: Dimension, E: From<Error>>(
        &self,
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = D>,
        fill: impl FnOnce(ArrayViewMut<'_, T, D>) -> Result<(), E>,
    ) -> Result<RefcountedArray<T, D>, E> {
        self.create_named(location, shape, fill)
    }

    /// Creates an array of zeros to be sent to other processes: without a name, or with a random one, as `strategy`
    /// says.
    ///
    /// # Errors
    ///
    /// [`InvalidSetting`](ErrorKind::InvalidSetting): there are [notes](Self::note), or the [`mode`](Self::mode) is not
    /// [`CreateNew`](crate::CreationMode::CreateNew). A random name cannot replace or open an existing array. Also the
    /// errors of [`Draft::share`].
    pub fn share<T: Element, D: Dimension>(
        &self,
        strategy: SharingStrategy,
        shape: impl ShapeBuilder<Dim = D>,
    ) -> Result<RefcountedArray<T, D>> {
        self.share_with(strategy, shape, |_| {})
    }

    /// Creates an array as [`share`](Self::share) does, and lets `fill` write it before other processes can see it.
    ///
    /// # Errors
    ///
    /// As [`share`](Self::share).
    pub fn share_with<T: Element, D: Dimension>(
        &self,
        strategy: SharingStrategy,
        shape: impl ShapeBuilder<Dim = D>,
        fill: impl FnOnce(ArrayViewMut<'_, T, D>),
    ) -> Result<RefcountedArray<T, D>> {
        self.try_share_with(strategy, shape, |view| {
            fill(view);
            Ok(())
        })
    }

    /// Creates an array as [`share_with`](Self::share_with) does. If `fill` fails, no array is created.
    ///
    /// # Errors
    ///
    /// That of `fill`, and those of [`share`](Self::share).
    pub fn try_share_with<T: Element, D: Dimension, E: From<Error>>(
        &self,
        strategy: SharingStrategy,
        shape: impl ShapeBuilder<Dim = D>,
        fill: impl FnOnce(ArrayViewMut<'_, T, D>) -> Result<(), E>,
    ) -> Result<RefcountedArray<T, D>, E> {
        strategy.check(NAMELESS)?;
        Ok(self.create_nameless(shape, fill)?.share(strategy).map_err(Error::from)?)
    }
}

/// Counted arrays.
impl OpenOptions {
    /// Attaches to the counted array with this name.
    ///
    /// # Errors
    ///
    /// As [`RefcountedArray::open`].
    pub fn open_counted<T: Element, D: Dimension>(&self, location: impl IntoLocation) -> Result<RefcountedArray<T, D>> {
        let how = self.counted_for_guards()?;
        let (memory, layout, id) = attach(&Home::new(self.backend.as_ref(), location)?, how, CountedBy::Name)?;
        Ok(RefcountedArray::of(memory, layout, id))
    }

    /// Attaches with a handle, and uses it up unless it is reusable.
    ///
    /// # Errors
    ///
    /// As [`Handle::attach`].
    pub fn attach<T: Element, D: Dimension>(&self, handle: &Handle) -> Result<RefcountedArray<T, D>> {
        let how = self.counted_for_guards()?;
        let (memory, layout, id) = attach(&handle.home(self.backend.as_ref())?, how, handle.entry())?;
        Ok(RefcountedArray::of(memory, layout, id))
    }

    /// Attaches to the counted array with this name for reading, once its read lock is granted.
    ///
    /// # Errors
    ///
    /// As [`RefcountedArray::open`], and the errors of waiting of [`open_reader`](Self::open_reader).
    pub fn open_counted_reader<T: Element, D: Dimension>(
        &self,
        location: impl IntoLocation,
    ) -> Result<ArrayReader<T, D>> {
        let how = self.counted_for_reading()?;
        let (memory, layout, _) = attach(&Home::new(self.backend.as_ref(), location)?, how, CountedBy::Name)?;
        Ok(ArrayReader::of(memory, layout))
    }

    /// Attaches with a handle for reading, once the array's read lock is granted, and uses the handle up unless it is
    /// reusable.
    ///
    /// # Errors
    ///
    /// [`HandleSpent`](ErrorKind::HandleSpent), and those of [`open_counted_reader`](Self::open_counted_reader).
    pub fn attach_reader<T: Element, D: Dimension>(&self, handle: &Handle) -> Result<ArrayReader<T, D>> {
        let how = self.counted_for_reading()?;
        let (memory, layout, _) = attach(&handle.home(self.backend.as_ref())?, how, handle.entry())?;
        Ok(ArrayReader::of(memory, layout))
    }
}

impl Handle {
    /// Attaches to the array, and uses the handle up unless it is reusable.
    ///
    /// # Errors
    ///
    /// - [`HandleSpent`](ErrorKind::HandleSpent): the handle was used or revoked, or another array has the name by now.
    /// - [`NotFound`](ErrorKind::NotFound): the array was removed, because no process was attached when the grace time
    ///   was over.
    /// - those of [`RefcountedArray::open`]. A wrong element type or number of axes does not use the handle up.
    pub fn attach<T: Element, D: Dimension>(&self) -> Result<RefcountedArray<T, D>> {
        OpenOptions::new().attach(self)
    }
}

/// Attaches, and returns the segment with its layout and random number.
fn attach<T: Element, D: Dimension>(
    home: &Home,
    how: Attach,
    entry: CountedBy,
) -> Result<(CountedSegment, Layout<T, D>, u128)> {
    // First of all, so that the manager knows this directory if the process is killed while it is attached.
    manager_client::announce(&home.backend);
    let (memory, (layout, id)) = CountedSegment::attach(home, how, entry, |trailer| read::<T, D>(trailer, home))?;
    Ok((memory, layout, id))
}
