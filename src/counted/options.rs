//! Creating and attaching counted arrays with options. The option types themselves are in src/array/options.rs.

use ndarray::{ArrayViewMut, Dimension, ShapeBuilder};

use super::handle::Handle;
use super::refcounted::{RefcountedArray, read, share_as};
use super::strategy::SharingStrategy;
use crate::array::layout::Layout;
use crate::array::{
    ArrayReader, AttachOptions, Attachable, Creatable, CreateOptions, CreationMode, Draft, Element, NAMELESS,
};
use crate::backend::{Access, IntoLocation, Publish, default_backend};
use crate::error::{Error, IntoError, Result};
use crate::manager_client;
use crate::random;
use crate::segment::{Attach, CountedBy, CountedSegment, Home};

#[allow(private_interfaces)] // see the trait
impl<T: Element, D: Dimension> Creatable for RefcountedArray<T, D> {
    type Element = T;
    type Dim = D;
    const COUNTED: bool = true;

    fn refuse_taken(home: &Home) -> Result<()> {
        home.refuse_taken_by_the_living()
    }

    fn open_same(home: &Home, layout: &Layout<D>, how: Attach) -> Result<Self> {
        let (memory, found, id) = attach::<T, D>(home, how, CountedBy::Name)?;
        if found != *layout {
            let describe = |layout: &Layout<D>| format!("{:?} in {} order", layout.dim.slice(), layout.order);
            let (expected, found) = (describe(layout), describe(&found));
            return Err(Error::ShapeMismatch { location: home.location.to_string(), expected, found });
        }
        Ok(Self::of(memory, found, id))
    }

    fn publish(draft: Draft<T, D>, home: &Home, mode: Publish) -> Result<Self, IntoError<Draft<T, D>>> {
        share_as(draft, home, Some(mode), random::number())
    }
}

#[allow(private_interfaces)] // see the trait
impl<T: Element, D: Dimension> Attachable for RefcountedArray<T, D> {
    fn how() -> Attach {
        Attach::new(Access::ReadWrite)
    }
}

impl<T: Element, D: Dimension> CreateOptions<RefcountedArray<T, D>> {
    /// Creates an array of zeros to be sent to other processes: without a name, or with a random one, as `strategy`
    /// says.
    ///
    /// # Errors
    ///
    /// [`InvalidSetting`](Error::InvalidSetting): the [`mode`](Self::mode) is not [`CreationMode::CreateNew`]. A random
    /// name cannot replace or open an existing array. Also the errors of [`Draft::share`].
    pub fn share(&self, strategy: SharingStrategy, shape: impl ShapeBuilder<Dim = D>) -> Result<RefcountedArray<T, D>> {
        self.share_with(strategy, shape, |_| {})
    }

    /// Creates an array as [`share`](Self::share) does, and lets `fill` write it before other processes can see it.
    ///
    /// # Errors
    ///
    /// As [`share`](Self::share).
    pub fn share_with(
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
    pub fn try_share_with<E: From<Error>>(
        &self,
        strategy: SharingStrategy,
        shape: impl ShapeBuilder<Dim = D>,
        fill: impl FnOnce(ArrayViewMut<'_, T, D>) -> Result<(), E>,
    ) -> Result<RefcountedArray<T, D>, E> {
        if self.mode != CreationMode::CreateNew {
            let (setting, value) = ("the creation mode", format!("{:?}", self.mode));
            let expected = "CreateNew, because a shared array gets a random name";
            return Err(Error::InvalidSetting { setting, value, expected }.into());
        }
        strategy.check(NAMELESS)?;
        let backend = self.backend.clone().map_or_else(default_backend, Ok)?;
        let mut draft = self.draft(&backend, Layout::new::<T>(shape, NAMELESS)?)?;
        fill(draft.view_mut())?;
        Ok(draft.share(strategy).map_err(Error::from)?)
    }
}

impl<T: Element, D: Dimension> AttachOptions<RefcountedArray<T, D>> {
    /// Attaches to the array with this name.
    ///
    /// # Errors
    ///
    /// As [`RefcountedArray::open`].
    pub fn open(&self, location: impl IntoLocation) -> Result<RefcountedArray<T, D>> {
        let (memory, layout, id) =
            attach::<T, D>(&Home::new(self.backend.as_ref(), location)?, self.how, CountedBy::Name)?;
        Ok(RefcountedArray::of(memory, layout, id))
    }

    /// Attaches with a handle, and uses it up unless it is reusable.
    ///
    /// # Errors
    ///
    /// As [`Handle::attach`].
    pub fn attach(&self, handle: &Handle) -> Result<RefcountedArray<T, D>> {
        let (memory, layout, id) = attach::<T, D>(&handle.home(self.backend.as_ref())?, self.how, handle.entry())?;
        Ok(RefcountedArray::of(memory, layout, id))
    }
}

impl Handle {
    /// Attaches to the array, and uses the handle up unless it is reusable.
    ///
    /// # Errors
    ///
    /// - [`HandleSpent`](Error::HandleSpent): the handle was used or revoked, or another array has the name by now.
    /// - [`NotFound`](Error::NotFound): the array was removed, because no process was attached when the grace time was
    ///   over.
    /// - those of [`RefcountedArray::open`]. A wrong element type or number of axes does not use the handle up.
    pub fn attach<T: Element, D: Dimension>(&self) -> Result<RefcountedArray<T, D>> {
        AttachOptions::<RefcountedArray<_, _>>::new().attach(self)
    }
}

impl<T: Element, D: Dimension> AttachOptions<ArrayReader<T, D>> {
    /// Attaches to the counted array with this name, once its read lock is granted.
    ///
    /// # Errors
    ///
    /// As [`RefcountedArray::open`], and the errors of waiting of [`open`](Self::open).
    pub fn open_counted(&self, location: impl IntoLocation) -> Result<ArrayReader<T, D>> {
        let home = Home::new(self.backend.as_ref(), location)?;
        let (memory, layout, _) = attach::<T, D>(&home, self.how, CountedBy::Name)?;
        Ok(ArrayReader::of(memory, layout))
    }

    /// Attaches with a handle, once the array's read lock is granted, and uses the handle up unless it is reusable.
    ///
    /// # Errors
    ///
    /// [`HandleSpent`](Error::HandleSpent), and those of [`open_counted`](Self::open_counted).
    pub fn attach(&self, handle: &Handle) -> Result<ArrayReader<T, D>> {
        let home = handle.home(self.backend.as_ref())?;
        let (memory, layout, _) = attach::<T, D>(&home, self.how, handle.entry())?;
        Ok(ArrayReader::of(memory, layout))
    }
}

/// Attaches, and returns the segment with its layout and random number.
fn attach<T: Element, D: Dimension>(
    home: &Home,
    how: Attach,
    entry: CountedBy,
) -> Result<(CountedSegment, Layout<D>, u128)> {
    // First of all, so that the manager knows this directory if the process is killed while it is attached.
    manager_client::announce(&home.backend);
    let how = Attach { farewell: Some(manager_client::remind), ..how };
    let (memory, (layout, id)) = CountedSegment::attach(home, how, entry, |trailer| read::<T, D>(trailer, home))?;
    Ok((memory, layout, id))
}
