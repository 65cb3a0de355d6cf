//! The array that counts its handles: it describes itself, and its name goes with the last of them.

use std::fmt;
use std::marker::PhantomData;

use ndarray::{ArrayRef, ArrayView, ArrayViewMut, Dimension, ShapeBuilder};

use super::handle::{Handle, HandleOptions};
use super::record::ArrayRecord;
use super::strategy::SharingStrategy;
use crate::array::access::guarded;
use crate::array::layout::{Layout, shape_like};
use crate::array::{ArrayReader, AttachOptions, CreateOptions, Draft, Element, view};
use crate::backend::{Access, IntoLocation, Location, Publish};
use crate::error::{Error, IntoError, Result};
use crate::manager_client;
use crate::os::{self, LockKind, LockRange};
use crate::random;
use crate::segment::locks::{Hold, Wait};
use crate::segment::trailer::Trailer;
use crate::segment::{Attach, CountedSegment, Home, Segment};

/// How often another name is made up when one is taken.
const TRIES: u32 = 100;

/// An array that is removed, memory and name, with the last process that uses it, however that ends.
///
/// It describes itself: opening needs neither shape nor element type, and refuses the wrong ones. Behind the elements its
/// file has one page more, with the number of handles. The last handle to leave removes the name. A killed process cannot
/// decrement the number, but the kernel releases its lease. The next handle that leaves, [`reclaim`](crate::counted::reclaim()), `ndshm gc`
/// or a running manager then removes the array.
///
/// Every handle is a mapping of its own; a forked child shares its parent's and is not counted.
///
/// ```
/// use ndarray_shm::RefcountedArray;
///
/// let array = RefcountedArray::<f32, _>::create("refcounted-example", (100, 100))?;
/// array.write()?.fill(1.0);
///
/// // in another process
/// let same = RefcountedArray::<f32, ndarray::Ix2>::open("refcounted-example")?;
/// assert_eq!((same.read()?.sum(), same.refcount()), (10_000.0, 2));
///
/// drop((array, same)); // the last one out removes the name
/// assert!(RefcountedArray::<f32, ndarray::Ix2>::open("refcounted-example").is_err());
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
pub struct RefcountedArray<T, D> {
    memory: CountedSegment,
    layout: Layout<D>,
    /// Random number of the array, the same for all handles.
    id: u128,
    elements: PhantomData<T>,
}

impl<T: Element, D: Dimension> RefcountedArray<T, D> {
    /// Creates an array of zeros under a name that must be free, and reserves all its memory.
    ///
    /// [`CreateOptions`] has everything that this decides by itself, and makes arrays without a name of the caller's choice.
    ///
    /// # Errors
    ///
    /// As [`SharedArray::create`](crate::SharedArray::create).
    pub fn create(location: impl IntoLocation, shape: impl ShapeBuilder<Dim = D>) -> Result<Self> {
        CreateOptions::new().create(location, shape)
    }

    /// Creates an array and lets `fill` write it before anyone else can see it.
    ///
    /// # Errors
    ///
    /// As [`SharedArray::create_with`](crate::SharedArray::create_with).
    pub fn create_with(
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = D>,
        fill: impl FnOnce(ArrayViewMut<'_, T, D>),
    ) -> Result<Self> {
        CreateOptions::new().create_with(location, shape, fill)
    }

    /// Attaches for reading and writing. An array that is frozen is attached for reading.
    ///
    /// [`AttachOptions`] has everything that this decides by itself. For reading that lasts, those of an [`ArrayReader`] have
    /// [`open_counted`](AttachOptions::open_counted).
    ///
    /// # Errors
    ///
    /// - [`NotFound`](Error::NotFound), also when the last handle is just going.
    /// - [`DTypeMismatch`](Error::DTypeMismatch), [`ShapeMismatch`](Error::ShapeMismatch): it has other elements, or another
    ///   number of axes.
    /// - [`NotCounted`](Error::NotCounted): it is a plain array, which does not say what it is.
    /// - [`Trailer`](Error::Trailer): what it says about itself cannot be true.
    /// - [`PermissionDenied`](Error::PermissionDenied), [`TooManyHandles`](Error::TooManyHandles).
    pub fn open(location: impl IntoLocation) -> Result<Self> {
        AttachOptions::<Self>::new().open(location)
    }

    pub(super) fn of(memory: CountedSegment, layout: Layout<D>, id: u128) -> Self {
        Self { memory, layout, id, elements: PhantomData }
    }

    pub(super) fn segment(&self) -> &Segment {
        self.memory.segment()
    }

    pub(super) fn home(&self) -> &Home {
        self.memory.home()
    }

    fn hold(&self, kind: LockKind, range: LockRange, wait: Wait) -> Result<Hold> {
        self.memory.hold(kind, range, wait)
    }

    fn read_only(&self) -> Error {
        self.memory.read_only()
    }

    /// Attaches by descriptor.
    pub(super) fn of_descriptor(file: &std::fs::File, home: &Home, access: Access) -> Result<Self> {
        let how = Attach { keep_descriptor: true, farewell: Some(manager_client::remind), ..Attach::new(access) };
        let (memory, (layout, id)) =
            CountedSegment::attach_descriptor(file, home, how, |trailer| read::<T, D>(trailer, home))?;
        Ok(Self::of(memory, layout, id))
    }

    /// Returns how many handles there are, in all processes. Those of killed processes stay counted;
    /// [`inspect`](crate::counted::inspect) says whether any process is alive.
    pub fn refcount(&self) -> u32 {
        self.memory.counts().state().handles()
    }

    /// Returns how many handles are in flight and have not expired.
    pub fn in_flight(&self) -> usize {
        self.memory.counts().in_flight(os::since_boot()).0
    }

    /// Returns its name; `None` while it has none, and after the last counted handle removed it, before this handle
    /// came by descriptor.
    pub fn location(&self) -> Option<&Location> {
        (self.strategy() == SharingStrategy::FileSystem).then_some(&self.home().location)
    }

    /// Returns whether it is shared by descriptor or by name, as things are now.
    pub fn strategy(&self) -> SharingStrategy {
        let state = self.memory.counts().state();
        if state.is_named() && !state.is_dead() { SharingStrategy::FileSystem } else { SharingStrategy::FileDescriptor }
    }

    /// Makes the name outlive all handles: from now on only [`unlink`](crate::unlink) removes it.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported): it has no name; [`publish`](Self::publish) it first.
    pub fn keep(&self) -> Result<()> {
        if self.strategy() == SharingStrategy::FileDescriptor {
            return Err(self.nameless("it has no name that could be kept, as it is shared by the strategy file_descriptor; publish() it first"));
        }
        self.memory.counts().keep();
        Ok(())
    }

    /// Whether the name outlives all handles.
    pub fn is_kept(&self) -> bool {
        self.memory.counts().state().is_kept()
    }

    /// Waits until no process reads or writes, then forbids writing to all processes for ever.
    ///
    /// Every later write guard is refused, every later attachment maps the elements read-only, and [`view`](Self::view)
    /// needs no guard. Processes that do not take the locks are not bound to it; see
    /// [`FrozenArray`](crate::FrozenArray) for memory that the kernel protects.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn freeze(&self) -> Result<()> {
        self.memory.freeze()
    }

    /// Whether no process can write to it any more.
    pub fn is_frozen(&self) -> bool {
        self.memory.is_frozen()
    }

    /// Looks at the elements of a frozen array. No guard is needed.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported): it is not frozen; take [`read`](Self::read).
    #[allow(unsafe_code)]
    pub fn view(&self) -> Result<ArrayView<'_, T, D>> {
        if !self.is_frozen() {
            return Err(self.nameless("looking without a guard needs a frozen array; take read(), or freeze() it"));
        }
        // SAFETY: the process that froze the array had every cell write-locked, so no write guard existed then, and
        // none is granted afterwards; the flag is never cleared.
        Ok(unsafe { view::shared(self.segment(), &self.layout) })
    }

    /// Makes a handle that one process can attach with, within 30 seconds for certain: send it as text, in a message, on
    /// a command line.
    ///
    /// # Errors
    ///
    /// As [`handle_with`](Self::handle_with).
    pub fn handle(&self) -> Result<Handle> {
        self.handle_with(HandleOptions::new())
    }

    /// Makes a handle, saying how often it can be used and how long it keeps the array alive by itself.
    ///
    /// # Errors
    ///
    /// - [`Unsupported`](Error::Unsupported): it has no name; [`publish`](Self::publish) it, or send it by descriptor.
    /// - [`TooManyHandles`](Error::TooManyHandles): 128 handles of this array are on their way; a reusable one will do.
    pub fn handle_with(&self, options: HandleOptions) -> Result<Handle> {
        if self.strategy() == SharingStrategy::FileDescriptor {
            return Err(self.nameless(
                "an array that is shared by the strategy file_descriptor has no name, and so no handle as text: choose \
                 SharingStrategy::FileSystem (NDSHM_SHARING_STRATEGY=file_system), publish() the array, or send it over a \
                 Channel",
            ));
        }
        Handle::issue(&self.memory, self.id, options)
    }

    /// Gives a nameless array its name, without copying: from now on it is shared by name. The descriptor is kept as long as
    /// this handle lives.
    ///
    /// # Errors
    ///
    /// [`Unlinked`](Error::Unlinked): it had a name already, which has gone; the kernel gives none a second time.
    pub fn publish(&self) -> Result<()> {
        manager_client::announce(&self.home().backend);
        self.memory.publish()
    }

    /// Attaches once more, with a mapping and a count of its own.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open); [`Unlinked`](Error::Unlinked) if the name has gone.
    pub fn try_clone(&self) -> Result<Self> {
        let (access, home) = (self.segment().access(), self.home().clone());
        let file = self.memory.descriptor_to_send()?;
        if self.strategy() == SharingStrategy::FileDescriptor {
            return Self::of_descriptor(&file, &home, access);
        }
        let keep = self.segment().keeps_descriptor();
        let options = AttachOptions::<Self>::new().backend(home.backend).access(access).keep_fd(keep);
        match options.open(home.location) {
            Ok(again) if again.id == self.id => Ok(again),
            Ok(_) | Err(Error::NotFound { .. }) => Err(Error::Unlinked { location: self.home().location.to_string() }),
            other => other,
        }
    }

    /// Waits until no process writes, then keeps writers out for as long as the value lives, without a descriptor.
    ///
    /// # Errors
    ///
    /// The error gives the array back. As [`ArrayReader::open`].
    pub fn into_reader(self) -> Result<ArrayReader<T, D>, IntoError<Self>> {
        match self.reader() {
            Ok(reader) => Ok(reader),
            Err(error) => Err(IntoError::new(error, self)),
        }
    }

    fn reader(&self) -> Result<ArrayReader<T, D>> {
        let file = self.memory.descriptor_to_send()?;
        reader_of_descriptor(&file, self.home(), Wait::Forever)
    }

    /// Leaves, and says if something went wrong: dropping does the same in silence.
    ///
    /// # Errors
    ///
    /// [`PermissionDenied`](Error::PermissionDenied): the last one out may not remove the name.
    pub fn close(self) -> Result<()> {
        self.memory.close()
    }

    fn nameless(&self, what: &'static str) -> Error {
        Error::Unsupported { location: self.home().location.to_string(), what: what.into() }
    }

    /// Opens a descriptor to be sent.
    #[cfg(feature = "channel")]
    pub(super) fn descriptor_to_send(&self) -> Result<std::fs::File> {
        self.memory.descriptor_to_send()
    }
}

/// Attaches by descriptor, keeps writers out through the mapping itself, and gives the descriptor up.
pub(super) fn reader_of_descriptor<T: Element, D: Dimension>(
    file: &std::fs::File,
    home: &Home,
    wait: Wait,
) -> Result<ArrayReader<T, D>> {
    let how = Attach {
        held: Some((LockKind::Shared, wait)),
        farewell: Some(manager_client::remind),
        ..Attach::new(Access::Read)
    };
    let (memory, (layout, _)) =
        CountedSegment::attach_descriptor(file, home, how, |trailer| read::<T, D>(trailer, home))?;
    Ok(ArrayReader::of(memory, home.location.clone(), layout))
}

/// Reads what a trailer says: the layout, if it is that of elements `T` and axes `D`, and the array's random number.
pub(super) fn read<T: Element, D: Dimension>(trailer: &Trailer, home: &Home) -> Result<(Layout<D>, u128)> {
    let name = home.location.as_str();
    Ok((ArrayRecord::of(trailer, name)?.layout::<T, D>(name)?, trailer.id))
}

guarded!(RefcountedArray);

impl<T: Element, D: Dimension> fmt::Debug for RefcountedArray<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefcountedArray")
            .field("location", &self.home().location)
            .field("dtype", &T::DTYPE)
            .field("shape", &self.shape())
            .field("order", &self.order())
            .field("strategy", &self.strategy())
            .finish_non_exhaustive()
    }
}

impl<T: Element, D: Dimension> Draft<T, D> {
    /// Makes the draft an array that other processes can be given, by descriptor or under a random name.
    ///
    /// Nothing is copied; the file gets one page more.
    ///
    /// # Errors
    ///
    /// The error gives the draft back. [`NoSpace`](Error::NoSpace): there is no room for that page.
    /// [`Unsupported`](Error::Unsupported): this platform does not have the strategy.
    pub fn share(self, strategy: SharingStrategy) -> Result<RefcountedArray<T, D>, IntoError<Self>> {
        let mut draft = self;
        for _ in 0..TRIES {
            let number = random::number();
            let home = Home { backend: draft.backend(), location: Location::unique(number) };
            if let Err(error) = strategy.check(home.location.as_str()) {
                return Err(IntoError::new(error, draft));
            }
            let mode = (strategy == SharingStrategy::FileSystem).then_some(Publish::New);
            match share_as(draft, &home, mode, number) {
                Err(error) if error.error().is_already_exists() => draft = error.into_inner(),
                other => return other,
            }
        }
        Err(IntoError::new(Error::AlreadyExists { location: "(any name)".to_owned() }, draft))
    }
}

/// Writes the trailer of a draft and gives it its name, or leaves it without one.
pub(super) fn share_as<T: Element, D: Dimension>(
    draft: Draft<T, D>,
    home: &Home,
    mode: Option<Publish>,
    id: u128,
) -> Result<RefcountedArray<T, D>, IntoError<Draft<T, D>>> {
    let (mut memory, layout, keep) = draft.into_parts();
    let record = ArrayRecord::new::<T, D>(&layout).map(|record| record.to_bytes());
    let counted = record.and_then(|record| memory.count(id, mode.is_some(), &record, home.location.as_str()));
    if let Err(error) = counted {
        return Err(IntoError::new(error, Draft::from_parts(memory, layout, keep)));
    }
    if mode.is_some() {
        manager_client::announce(&home.backend); // before there is a name that our death could leave behind
    }
    match memory.share(home, mode, keep, Some(manager_client::remind)) {
        Ok(memory) => Ok(RefcountedArray::of(memory, layout, id)),
        Err((error, memory)) => Err(IntoError::new(error, Draft::from_parts(memory, layout, keep))),
    }
}

/// Copies an array into shared memory, so that other processes can be given it, with the
/// [current](SharingStrategy::current) strategy; Fortran order is kept, every other order of axes becomes C.
///
/// ```
/// use ndarray::array;
///
/// let shared = ndarray_shm::counted::to_shared(&array![[1.0, 2.0], [3.0, 4.0]])?;
/// assert_eq!(shared.read()?[[1, 0]], 3.0);
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
///
/// # Errors
///
/// [`NoSpace`](Error::NoSpace), and those of [`SharingStrategy::current`].
pub fn to_shared<T: Element, D: Dimension>(array: &ArrayRef<T, D>) -> Result<RefcountedArray<T, D>> {
    let strategy = SharingStrategy::current()?;
    CreateOptions::new().share_with(strategy, shape_like(array), |mut view| view.assign(array))
}
