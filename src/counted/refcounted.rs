//! `RefcountedArray`: an array that stores its type and shape, and loses its name with its last handle.

use std::fmt;
use std::fs::File;
use std::ops::Deref;
use std::time::Duration;

use ndarray::{ArrayRef, ArrayView, ArrayViewMut, Dimension, ShapeBuilder};

use super::handle::{Handle, HandleOptions};
use super::record::ArrayRecord;
use super::strategy::SharingStrategy;
use crate::array::layout::shape_like;
use crate::array::{ArrayReader, CreateOptions, Draft, Element, Layout, OpenOptions, SharedArray, view};
use crate::backend::{Access, IntoLocation, Location, Publish};
use crate::error::{Error, ErrorKind, IntoError, Result};
use crate::manager_client;
use crate::os::{self, LockKind};
use crate::random;
use crate::segment::trailer::Trailer;
use crate::segment::{Attach, CellWait, CountedSegment, Home};

/// How many random names are tried before giving up.
const TRIES: u32 = 100;

/// A reference-counted array: its name and memory are freed after the last process has detached or died.
///
/// The array stores its own element type, shape and order. Opening it needs none of them, and fails if the caller's
/// element type or number of axes is another.
///
/// Its file has one more page behind the elements, the trailer, which holds the reference count. The last handle to
/// detach removes the name. A killed process stays counted, but the kernel releases its lock. An array that only killed
/// processes have attached is an orphan: the next handle that detaches, [`reclaim`](crate::counted::reclaim()),
/// `ndshm gc` or a running manager removes it.
///
/// Every handle has a mapping of its own. A forked child shares its parent's mapping and is not counted.
///
/// ```
/// use ndarray_shm::RefcountedArray;
///
/// let array = RefcountedArray::<f32, _>::create("refcounted-example", (100, 100))?;
/// array.write()?.fill(1.0);
///
/// // in another process
/// let same = RefcountedArray::<f32, ndarray_shm::ndarray::Ix2>::open("refcounted-example")?;
/// assert_eq!((same.read()?.sum(), same.refcount()), (10_000.0, 2));
///
/// drop((array, same)); // the last handle removes the name
/// assert!(RefcountedArray::<f32, ndarray_shm::ndarray::Ix2>::open("refcounted-example").is_err());
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
pub struct RefcountedArray<T, D> {
    array: SharedArray<T, D>,
    /// Random number of the array, the same in all handles.
    id: u128,
}

impl<T: Element, D: Dimension> RefcountedArray<T, D> {
    /// Creates an array of zeros under a name that must be free, and reserves all its memory.
    ///
    /// [`CreateOptions`] changes the defaults, and creates arrays without a name of the caller's choice.
    ///
    /// # Errors
    ///
    /// As [`SharedArray::create`](crate::SharedArray::create).
    pub fn create(location: impl IntoLocation, shape: impl ShapeBuilder<Dim = D>) -> Result<Self> {
        CreateOptions::new().create_counted(location, shape)
    }

    /// Creates an array and lets `fill` write it before other processes can see it.
    ///
    /// # Errors
    ///
    /// As [`SharedArray::create_with`](crate::SharedArray::create_with).
    pub fn create_with(
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = D>,
        fill: impl FnOnce(ArrayViewMut<'_, T, D>),
    ) -> Result<Self> {
        CreateOptions::new().create_counted_with(location, shape, fill)
    }

    /// Attaches to an existing array for reading and writing, or only for reading if it is frozen.
    ///
    /// [`OpenOptions`] changes the defaults. For a read lock that lasts as long as the attachment, open an
    /// [`ArrayReader`] with [`open_counted_reader`](OpenOptions::open_counted_reader) instead.
    ///
    /// # Errors
    ///
    /// - [`NotFound`](ErrorKind::NotFound), or [`Elsewhere`](ErrorKind::Elsewhere) if the other usual place has it: no
    ///   array has the name, or the last handle is just removing it.
    /// - [`DTypeMismatch`](ErrorKind::DTypeMismatch), [`ShapeMismatch`](ErrorKind::ShapeMismatch): it has another
    ///   element type or another number of axes.
    /// - [`NotCounted`](ErrorKind::NotCounted): it is a plain array, without a trailer.
    /// - [`Trailer`](ErrorKind::Trailer): its trailer is malformed, or that of an array with another name.
    /// - [`PermissionDenied`](ErrorKind::PermissionDenied): this user may not read and write the file.
    /// - [`TooManyHandles`](ErrorKind::TooManyHandles): 2^32 - 1 handles are counted.
    pub fn open(location: impl IntoLocation) -> Result<Self> {
        OpenOptions::new().open_counted(location)
    }

    pub(super) fn of(memory: CountedSegment, layout: Layout<T, D>, id: u128) -> Self {
        Self { array: SharedArray::of(memory, layout), id }
    }

    fn memory(&self) -> &CountedSegment {
        self.array.counted()
    }

    pub(super) fn home(&self) -> &Home {
        self.memory().home()
    }

    /// Attaches through a received descriptor.
    pub(super) fn of_descriptor(file: &File, home: &Home, access: Access) -> Result<Self> {
        let how = Attach { keep_descriptor: true, ..Attach::new(access) };
        let (memory, (layout, id)) =
            CountedSegment::attach_descriptor(file, home, how, |trailer| read::<T, D>(trailer, home))?;
        Ok(Self::of(memory, layout, id))
    }

    /// Returns the random number of this array, the same in all handles. No other array has it.
    pub fn id(&self) -> u128 {
        self.id
    }

    /// Returns the number of attached handles in all processes.
    ///
    /// Handles of killed processes stay counted, and [leased descriptors](SharedArray::leased_descriptor) that are
    /// closed. [`inspect`](crate::counted::inspect()) returns whether any process is attached.
    pub fn refcount(&self) -> u32 {
        self.memory().counts().state().handles()
    }

    /// Returns the number of handles in flight that have not expired.
    pub fn in_flight(&self) -> usize {
        self.memory().counts().in_flight(os::since_boot()).0
    }

    /// Returns the array's name.
    ///
    /// Returns `None` if the array has no name, or if its last counted handle removed the name before this handle
    /// attached by descriptor.
    pub fn location(&self) -> Option<&Location> {
        (self.strategy() == SharingStrategy::FileSystem).then_some(&self.home().location)
    }

    /// Returns the random name that the array has, or would get if it were [published](Self::publish).
    ///
    /// It leads to no array, or another one, if the array has no name: compare the [numbers](Self::id).
    pub fn name_if_published(&self) -> &Location {
        &self.home().location
    }

    /// Returns how the array can be sent at present: by name if it has one, else by descriptor.
    pub fn strategy(&self) -> SharingStrategy {
        let state = self.memory().counts().state();
        if state.is_named() && !state.is_dead() { SharingStrategy::FileSystem } else { SharingStrategy::FileDescriptor }
    }

    /// Keeps the name after the last handle has detached. From now on only [`unlink`](crate::unlink) removes it.
    ///
    /// # Errors
    ///
    /// - [`Unsupported`](ErrorKind::Unsupported): the array has no name. [`publish`](Self::publish) it first.
    /// - [`Unlinked`](ErrorKind::Unlinked): in a forked child, the last handle has removed the name.
    pub fn keep(&self) -> Result<()> {
        if self.strategy() == SharingStrategy::FileDescriptor {
            return Err(self.nameless(
                "it is shared by the strategy file_descriptor, and so has no name to keep; publish() it first",
            ));
        }
        if !self.memory().counts().keep() {
            return Err(ErrorKind::Unlinked.at(&self.home().location)); // by another process, since the query
        }
        Ok(())
    }

    /// Returns whether the name is kept after the last handle has detached.
    pub fn is_kept(&self) -> bool {
        self.memory().counts().state().is_kept()
    }

    /// Freezes the array: waits for all guards to be dropped, then forbids writing for ever.
    ///
    /// Later write guards fail in every process, and later attachments map the elements read-only. [`view`](Self::view)
    /// then needs no guard. The mapping of this handle becomes read-only (on Linux), so a write through an old
    /// [`raw_view`](SharedArray::raw_view) of it ends the process. Other handles, of this and other processes, keep
    /// their mappings. The locks are advisory: code that does not take them can still write there. The kernel enforces
    /// it for a [`FrozenArray`](crate::FrozenArray).
    ///
    /// # Errors
    ///
    /// As [`write`](SharedArray::write).
    pub fn freeze(&self) -> Result<()> {
        self.memory().freeze()
    }

    /// Returns whether the array is frozen.
    pub fn is_frozen(&self) -> bool {
        self.memory().is_frozen()
    }

    /// Returns a view of a frozen array, without a guard.
    ///
    /// # Errors
    ///
    /// - [`Unsupported`](ErrorKind::Unsupported): the array is not frozen. Use [`read`](SharedArray::read).
    /// - [`Unlinked`](ErrorKind::Unlinked): in a forked child, the last handle has let the array go, which was not
    ///   frozen.
    #[allow(unsafe_code)]
    pub fn view(&self) -> Result<ArrayView<'_, T, D>> {
        if !self.is_frozen() {
            return Err(self.nameless("a view without a guard needs a frozen array; use read(), or freeze() the array"));
        }
        // SAFETY: the flag was set by a process that held write locks on all cells, so no write guard existed then.
        // Since then every write guard finds the flag after taking its lock, and is refused. The flag is never cleared.
        // So no process writes.
        Ok(unsafe { view::shared(self.array.segment(), &self.array) })
    }

    /// Issues a handle with which one process can attach. It protects the array for 30 seconds.
    ///
    /// Send it as text: in a message, or on a command line.
    ///
    /// # Errors
    ///
    /// As [`handle_with`](Self::handle_with).
    pub fn handle(&self) -> Result<Handle> {
        self.handle_with(HandleOptions::new())
    }

    /// Issues a handle with options: whether it is reusable, and how long it protects the array.
    ///
    /// # Errors
    ///
    /// - [`Unsupported`](ErrorKind::Unsupported): the array has no name. [`publish`](Self::publish) it, or send it by
    ///   descriptor.
    /// - [`TooManyHandles`](ErrorKind::TooManyHandles): 128 handles of this array are in flight. Use one reusable
    ///   handle instead.
    /// - [`Unlinked`](ErrorKind::Unlinked): in a forked child, the last handle has removed the name.
    pub fn handle_with(&self, options: HandleOptions) -> Result<Handle> {
        if self.strategy() == SharingStrategy::FileDescriptor {
            return Err(self.nameless(
                "an array that is shared by the strategy file_descriptor has no name, and so no handle as text: choose \
                 SharingStrategy::FileSystem (NDSHM_SHARING_STRATEGY=file_system), publish() the array, or send it over a \
                 Channel",
            ));
        }
        Handle::issue(self.memory(), self.id, options)
    }

    /// Renews a handle of this array, as [`Handle::renew`] does, without attaching once more.
    ///
    /// Returns `false` if the handle is not one of this array, and as [`Handle::renew`] does.
    pub fn renew(&self, handle: &Handle, grace: Duration) -> bool {
        handle.renew_with(self.memory(), self.id, grace)
    }

    /// Prolongs a handle of this array, as [`Handle::prolong`] does, without attaching once more.
    ///
    /// Returns `false` if the handle is not one of this array, and as [`Handle::prolong`] does. With a `grace` of 0 it
    /// tells whether the handle still protects the array, and changes nothing.
    pub fn prolong(&self, handle: &Handle, grace: Duration) -> bool {
        handle.prolong_with(self.memory(), self.id, grace)
    }

    /// Uses up a handle of this array that has arrived, as [`Handle::attach`] does, without attaching once more.
    ///
    /// For a process that receives many handles of one array. Returns `false` if the handle was used or revoked, or is
    /// not one of this array.
    ///
    /// ```
    /// use ndarray_shm::RefcountedArray;
    /// use ndarray_shm::counted::SharingStrategy;
    ///
    /// let array = ndarray_shm::CreateOptions::new().share::<u16, _>(SharingStrategy::FileSystem, (2, 3))?;
    /// let handle = array.handle()?;
    /// assert!(array.redeem(&handle) && !array.redeem(&handle));
    /// assert_eq!(array.in_flight(), 0);
    /// # Ok::<(), ndarray_shm::Error>(())
    /// ```
    pub fn redeem(&self, handle: &Handle) -> bool {
        handle.redeem_with(self.memory(), self.id)
    }

    /// Lets the memory be that of a new array, with another [number](Self::id) and the same name, type, shape and
    /// elements.
    ///
    /// For a sender of many arrays of one shape: memory that was written before is several times as fast to fill.
    /// Handles of the old array lead nowhere.
    ///
    /// Returns `false`, and changes nothing, unless this is certainly the only user of the array: no other handle is
    /// attached in any process, none is in flight, and this process has not forked since it attached (a child may still
    /// read). Also if the array is nameless, frozen or [kept](Self::keep), keeps no descriptor
    /// ([`CreateOptions::keep_fd`](crate::CreateOptions::keep_fd)), was [counted out](Self::count_out), or if the
    /// platform cannot prove that it is alone (all but Linux).
    ///
    /// A descriptor of the array that is on its way over a channel leads to the new array.
    ///
    /// ```
    /// use ndarray_shm::counted::SharingStrategy;
    /// use ndarray_shm::CreateOptions;
    ///
    /// let options = CreateOptions::new().keep_fd(true);
    /// let mut array = options.share::<u8, _>(SharingStrategy::FileSystem, 100)?;
    /// let (before, handle) = (array.id(), array.handle()?);
    /// assert!(!array.recycle()?, "a handle is in flight");
    /// drop(handle.attach::<u8, ndarray_shm::ndarray::Ix1>()?);
    /// # if cfg!(target_os = "linux") {
    /// assert!(array.recycle()? && array.id() != before);
    /// # }
    /// # Ok::<(), ndarray_shm::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of locking, and of reading and writing the end of the file.
    pub fn recycle(&mut self) -> Result<bool> {
        let id = random::number();
        let is_new = self.array.counted_mut().renumber(id)?;
        if is_new {
            self.id = id;
        }
        Ok(is_new)
    }

    /// Gives a nameless array its random name. From now on it is shared by name.
    ///
    /// Nothing is copied. This handle keeps its descriptor. If the array has its name already, nothing changes.
    ///
    /// # Errors
    ///
    /// - [`Unlinked`](ErrorKind::Unlinked): the array had a name, which was removed. The kernel does not link such a
    ///   file again.
    /// - [`Unsupported`](ErrorKind::Unsupported): a file of this kind can never get a name.
    pub fn publish(&self) -> Result<()> {
        manager_client::announce(&self.home().backend);
        self.memory().publish()
    }

    /// Attaches once more. The new handle has a mapping of its own and is counted.
    ///
    /// # Errors
    ///
    /// [`Unlinked`](ErrorKind::Unlinked): the name was removed, or leads to another array. Also the errors of
    /// [`open`](Self::open).
    pub fn try_clone(&self) -> Result<Self> {
        let (access, home) = (self.segment().access(), self.home().clone());
        let file = self.memory().descriptor_to_send()?;
        if self.strategy() == SharingStrategy::FileDescriptor {
            return Self::of_descriptor(&file, &home, access);
        }
        let keep = self.segment().keeps_descriptor();
        let options = OpenOptions::new().directory(home.backend).access(access).keep_fd(keep);
        match options.open_counted(home.location) {
            Ok(again) if again.id == self.id => Ok(again),
            // Otherwise the error is about an array that took the name.
            Err(error) if self.home().leads_to(self.segment().id())? => Err(error),
            _ => Err(ErrorKind::Unlinked.at(&self.home().location)),
        }
    }

    /// Turns the array into a reader, once its read lock is granted. Writers are excluded until the reader is dropped.
    ///
    /// The reader keeps no descriptor, where a mapping keeps its locks without one.
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
        let file = self.memory().descriptor_to_send()?;
        reader_of_descriptor(&file, self.home())
    }

    /// Counts this handle out and, if it was the last, removes the name, as dropping it does. The memory stays mapped
    /// as long as the handle lives, for readers and writers that have it already; the array cannot be sent any more.
    ///
    /// For a process that is about to end without dropping its values, as by [`std::process::exit`]: what it has
    /// attached would stay until another process reclaims it. Called twice, it does nothing the second time.
    ///
    /// ```
    /// use ndarray_shm::counted::SharingStrategy;
    /// use ndarray_shm::{CreateOptions, RefcountedArray};
    ///
    /// let array = CreateOptions::new().share::<u8, _>(SharingStrategy::FileSystem, 100)?;
    /// let name = array.name_if_published().clone();
    /// array.count_out()?;
    /// assert!(RefcountedArray::<u8, ndarray_shm::ndarray::Ix1>::open(name).is_err());
    /// assert!(array.handle().is_err());
    /// # Ok::<(), ndarray_shm::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of removing a name.
    pub fn count_out(&self) -> Result<()> {
        self.memory().count_out()
    }

    /// Detaches, and reports errors. Dropping detaches too, and ignores them.
    ///
    /// # Errors
    ///
    /// [`PermissionDenied`](ErrorKind::PermissionDenied): this was the last handle, and this user may not remove the
    /// name.
    pub fn close(self) -> Result<()> {
        self.array.into_counted().close()
    }

    fn nameless(&self, what: &'static str) -> Error {
        let is_dead = self.memory().counts().state().is_dead();
        if is_dead { ErrorKind::Unlinked } else { ErrorKind::Unsupported { what: what.into() } }
            .at(&self.home().location)
    }

    /// Opens a new descriptor for a receiver.
    #[cfg(feature = "channel")]
    pub(super) fn descriptor_to_send(&self) -> Result<File> {
        self.memory().descriptor_to_send()
    }
}

/// Attaches through a descriptor, with a read lock on the mapping's own description, and keeps no descriptor.
pub(super) fn reader_of_descriptor<T: Element, D: Dimension>(file: &File, home: &Home) -> Result<ArrayReader<T, D>> {
    let how = Attach { held: Some((LockKind::Shared, CellWait::Forever)), ..Attach::new(Access::Read) };
    let (memory, (layout, _)) =
        CountedSegment::attach_descriptor(file, home, how, |trailer| read::<T, D>(trailer, home))?;
    Ok(ArrayReader::of(memory, layout))
}

/// Returns the layout and the random number in a trailer, if its array has element type `T` and the number of axes of
/// `D`.
pub(super) fn read<T: Element, D: Dimension>(trailer: &Trailer, home: &Home) -> Result<(Layout<T, D>, u128)> {
    let name = home.location.as_str();
    Ok((ArrayRecord::of(trailer, name)?.layout::<T, D>(name)?, trailer.id))
}

impl<T, D> Deref for RefcountedArray<T, D> {
    type Target = SharedArray<T, D>;

    fn deref(&self) -> &Self::Target {
        &self.array
    }
}

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
    /// Turns the draft into a counted array to be sent to other processes: without a name, or with a random one, as
    /// `strategy` says.
    ///
    /// Nothing is copied. The file grows by its trailer.
    ///
    /// # Errors
    ///
    /// The error gives the draft back.
    ///
    /// - [`NoSpace`](ErrorKind::NoSpace): there is no room for the trailer.
    /// - [`Unsupported`](ErrorKind::Unsupported): the platform does not support the strategy.
    pub fn share(self, strategy: SharingStrategy) -> Result<RefcountedArray<T, D>, IntoError<Self>> {
        let mut draft = self;
        for _ in 0..TRIES {
            let number = random::number();
            let home = Home { backend: draft.directory().clone(), location: Location::unique(number) };
            if let Err(error) = strategy.check(home.location.as_str()) {
                return Err(IntoError::new(error, draft));
            }
            let mode = (strategy == SharingStrategy::FileSystem).then_some(Publish::New);
            match share_as(draft, &home, mode, number) {
                Err(error) if error.error().kind == ErrorKind::AlreadyExists => draft = error.into_inner(),
                other => return other,
            }
        }
        Err(IntoError::new(ErrorKind::AlreadyExists.at("(any name)"), draft))
    }
}

/// Writes the trailer of a draft, and publishes it if there is a `mode`.
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
        // Before the file has a name, so that the manager knows this directory if the process is killed afterwards.
        manager_client::announce(&home.backend);
    }
    match memory.share(home, mode, keep) {
        Ok(memory) => Ok(RefcountedArray::of(memory, layout, id)),
        Err((error, memory)) => Err(IntoError::new(error, Draft::from_parts(memory, layout, keep))),
    }
}

/// Copies an array into shared memory, to be sent to other processes by the [current](SharingStrategy::current)
/// strategy.
///
/// Fortran order is kept; every other order of axes becomes C.
///
/// ```
/// use ndarray_shm::ndarray::array;
///
/// let shared = ndarray_shm::counted::to_shared(&array![[1.0, 2.0], [3.0, 4.0]])?;
/// assert_eq!(shared.read()?[[1, 0]], 3.0);
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
///
/// # Errors
///
/// - [`NoSpace`](ErrorKind::NoSpace): there is not enough memory.
/// - those of [`SharingStrategy::current`].
pub fn to_shared<T: Element, D: Dimension>(array: &ArrayRef<T, D>) -> Result<RefcountedArray<T, D>> {
    let strategy = SharingStrategy::current()?;
    CreateOptions::new().share_with(strategy, shape_like(array), |mut view| view.assign(array))
}
