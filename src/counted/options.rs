//! What creating and attaching is for counted arrays; which of it can be chosen stands with the plain ones.

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
    /// Makes an array that other processes can be given, by descriptor or under a name that cannot be guessed.
    ///
    /// # Errors
    ///
    /// As [`Draft::share`]; [`InvalidSetting`](Error::InvalidSetting) with any [`mode`](Self::mode) but
    /// [`CreationMode::CreateNew`], since no name can be taken.
    pub fn share(&self, strategy: SharingStrategy, shape: impl ShapeBuilder<Dim = D>) -> Result<RefcountedArray<T, D>> {
        self.share_with(strategy, shape, |_| {})
    }

    /// As [`share`](Self::share), with elements that `fill` writes.
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
        if self.mode != CreationMode::CreateNew {
            let (setting, value) = ("the creation mode", format!("{:?}", self.mode));
            return Err(Error::InvalidSetting {
                setting,
                value,
                expected: "CreateNew: what is shared gets a name of its own",
            });
        }
        let backend = self.backend.clone().map_or_else(default_backend, Ok)?;
        let mut draft = self.draft(&backend, Layout::new::<T>(shape, NAMELESS)?)?;
        fill(draft.view_mut());
        Ok(draft.share(strategy)?)
    }
}

impl<T: Element, D: Dimension> AttachOptions<RefcountedArray<T, D>> {
    /// Attaches to the array that has the name.
    ///
    /// # Errors
    ///
    /// As [`RefcountedArray::open`].
    pub fn open(&self, location: impl IntoLocation) -> Result<RefcountedArray<T, D>> {
        let (memory, layout, id) =
            attach::<T, D>(&Home::new(self.backend.as_ref(), location)?, self.how, CountedBy::Name)?;
        Ok(RefcountedArray::of(memory, layout, id))
    }

    /// Attaches with a handle, using it up if it is for one.
    ///
    /// # Errors
    ///
    /// [`HandleSpent`](Error::HandleSpent), and those of [`RefcountedArray::open`].
    pub fn attach(&self, handle: &Handle) -> Result<RefcountedArray<T, D>> {
        let (memory, layout, id) = attach::<T, D>(&handle.home(self.backend.as_ref())?, self.how, handle.entry())?;
        Ok(RefcountedArray::of(memory, layout, id))
    }
}

impl Handle {
    /// Attaches, and uses the handle up if it is for one.
    ///
    /// # Errors
    ///
    /// - [`HandleSpent`](Error::HandleSpent): it was used or taken back, or the name is another array's by now.
    /// - [`NotFound`](Error::NotFound): the array is gone; no process had it when the grace time was over.
    /// - those of [`RefcountedArray::open`]; after a wrong type or number of axes the handle is still good.
    pub fn attach<T: Element, D: Dimension>(&self) -> Result<RefcountedArray<T, D>> {
        AttachOptions::<RefcountedArray<_, _>>::new().attach(self)
    }
}

impl<T: Element, D: Dimension> AttachOptions<ArrayReader<T, D>> {
    /// Attaches to the counted array that has the name, as soon as the lock can be had.
    ///
    /// # Errors
    ///
    /// As [`RefcountedArray::open`], and those that waiting has in [`open`](Self::open).
    pub fn open_counted(&self, location: impl IntoLocation) -> Result<ArrayReader<T, D>> {
        let home = Home::new(self.backend.as_ref(), location)?;
        let (memory, layout, _) = attach::<T, D>(&home, self.how, CountedBy::Name)?;
        Ok(ArrayReader::of(memory, home.location, layout))
    }

    /// Attaches with a handle, using it up if it is for one, as soon as the lock can be had.
    ///
    /// # Errors
    ///
    /// [`HandleSpent`](Error::HandleSpent), and those of [`open_counted`](Self::open_counted).
    pub fn attach(&self, handle: &Handle) -> Result<ArrayReader<T, D>> {
        let home = handle.home(self.backend.as_ref())?;
        let (memory, layout, _) = attach::<T, D>(&home, self.how, handle.entry())?;
        Ok(ArrayReader::of(memory, home.location, layout))
    }
}

/// Attaches to what has the name, and reads what it is.
fn attach<T: Element, D: Dimension>(
    home: &Home,
    how: Attach,
    entry: CountedBy,
) -> Result<(CountedSegment, Layout<D>, u128)> {
    manager_client::announce(&home.backend); // before there is anything that our death could leave behind
    let how = Attach { farewell: Some(manager_client::remind), ..how };
    let (memory, (layout, id)) = CountedSegment::attach(home, how, entry, |trailer| read::<T, D>(trailer, home))?;
    Ok((memory, layout, id))
}
