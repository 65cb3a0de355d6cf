//! Opening arrays that exist: plain and counted ones, for guards or with a lock that is held.

use std::time::Duration;

use ndarray::{Dimension, Ix1, ShapeBuilder};

use super::{ArrayReader, ArrayWriter, Description, Element, Layout, SharedArray, description};
use crate::backend::{Access, Directory, IntoLocation};
use crate::error::{Error, Result};
use crate::os::LockKind;
use crate::segment::{Attach, CellWait, Home, Segment};

/// Options for opening arrays that exist.
///
/// They may be set in any order. The last call chooses what is opened, and as what. A setting that has no meaning there
/// is refused with [`InvalidSetting`](crate::ErrorKind::InvalidSetting).
///
/// | setting | [`open`](Self::open) | `open_dyn`, `open_bytes`, `open_counted`, `attach` | `open_reader`, `open_writer` | `open_reader_dyn`, `open_writer_dyn`, `open_counted_reader`, `attach_reader` |
/// |---|---|---|---|---|
/// | [`directory`](Self::directory), [`leave_holes`](Self::leave_holes) | yes | yes | yes | yes |
/// | [`access`](Self::access), [`copy_on_write`](Self::copy_on_write), [`keep_fd`](Self::keep_fd) | yes | yes | | |
/// | [`reinterpret`](Self::reinterpret) | yes | | yes | |
/// | [`timeout`](Self::timeout) | | | yes | yes |
///
/// # Examples
///
/// ```
/// use ndarray_shm::{unlink, Access, OpenOptions, SharedArray};
///
/// SharedArray::<u16, _>::create("open-options-example", (4, 5))?;
/// let array = OpenOptions::new().access(Access::Read).open::<u16, _>("open-options-example", (4, 5))?;
/// assert!(array.write().is_err(), "it can only be read");
/// unlink("open-options-example")?;
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "options do nothing until an array is opened with them"]
#[allow(clippy::struct_excessive_bools)] // settings that do not depend on each other
pub struct OpenOptions {
    pub(crate) backend: Option<Directory>,
    access: Option<Access>,
    copy_on_write: bool,
    keep_descriptor: bool,
    leave_holes: bool,
    reinterpret: bool,
    timeout: Option<Duration>,
}

/// Whether the caller says the shape of the array to open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GivenShape {
    Yes,
    No,
}

impl OpenOptions {
    /// Begins with the defaults: the default directory, for reading and writing, holes filled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Uses this directory instead of the [default](crate::default_directory), or instead of the one that a handle
    /// names.
    pub fn directory(mut self, directory: Directory) -> Self {
        self.backend = Some(directory);
        self
    }

    /// Maps the elements for reading only, or for reading and writing, which is the default. Not for readers, which are
    /// mapped for reading, nor for writers, which are mapped for both.
    ///
    /// A plain array that is only read needs no write permission, with one exception: where reading a hole takes memory
    /// (in /dev/shm), the holes of a sparse file are filled, unless [`leave_holes`](Self::leave_holes) is set. A
    /// counted array always needs write permission, because attaching changes the count.
    pub fn access(mut self, access: Access) -> Self {
        self.access = Some(access);
        self
    }

    /// Keeps one descriptor open as long as the array lives, so that guards are available after the name is removed.
    /// Not for readers and writers, which take no guards.
    pub fn keep_fd(mut self, keep: bool) -> Self {
        self.keep_descriptor = keep;
        self
    }

    /// Attaches for reading only, through a private copy-on-write mapping (`MAP_PRIVATE`). Cannot go
    /// together with [`Access::ReadWrite`].
    ///
    /// The array is [read-only](SharedArray::is_readonly), and its reads see what other processes write. It is for code
    /// that may ignore that, such as a library in another language that gets the pointer of
    /// [`raw_view`](SharedArray::raw_view): a write through the pointer changes a copy of the page in this process,
    /// instead of ending the process with SIGSEGV. From then on this attachment no longer sees changes of that page.
    /// The copies take memory that is not reserved.
    pub fn copy_on_write(mut self) -> Self {
        self.copy_on_write = true;
        self
    }

    /// Leaves the holes of a sparse file as they are, instead of reserving memory for them.
    ///
    /// If no memory is left when a process touches a hole, the process is killed (SIGBUS). In /dev/shm this applies to
    /// reading too.
    pub fn leave_holes(mut self, leave: bool) -> Self {
        self.leave_holes = leave;
        self
    }

    /// Ignores the [description](super::Description) of a plain array, and uses the requested type, shape and order for
    /// its bytes.
    ///
    /// The number of bytes must still match. The record of a counted array is never ignored.
    ///
    /// # Examples
    ///
    /// ```
    /// use ndarray_shm::{unlink, OpenOptions, SharedArray};
    ///
    /// SharedArray::<f32, _>::create("reinterpret-example", 10)?;
    /// let bits = OpenOptions::new().reinterpret(true).open::<u32, _>("reinterpret-example", 10)?;
    /// assert_eq!(bits.read()?[3], 0f32.to_bits());
    /// unlink("reinterpret-example")?;
    /// # Ok::<(), ndarray_shm::Error>(())
    /// ```
    pub fn reinterpret(mut self, reinterpret: bool) -> Self {
        self.reinterpret = reinterpret;
        self
    }

    /// Waits for the lock of a reader or writer for at most `limit`; not at all if it is zero. By default the wait has
    /// no limit.
    ///
    /// The limit includes the wait for another process that decides whether the array is in use. Guards have timeouts
    /// of their own: [`read_timeout`](SharedArray::read_timeout) and [`write_timeout`](SharedArray::write_timeout).
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Attaches to the array of this name.
    ///
    /// # Errors
    ///
    /// As [`SharedArray::open`].
    pub fn open<T: Element, D: Dimension>(
        &self,
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = D>,
    ) -> Result<SharedArray<T, D>> {
        let (segment, layout) = self.plain(location, shape, self.for_guards(GivenShape::Yes)?)?;
        Ok(SharedArray::of(segment, layout))
    }

    /// Attaches to the array of this name, with the shape and order of its description.
    ///
    /// # Errors
    ///
    /// As [`SharedArray::open_dyn`].
    pub fn open_dyn<T: Element, D: Dimension>(&self, location: impl IntoLocation) -> Result<SharedArray<T, D>> {
        let (segment, layout) = self.plain_dyn(location, self.for_guards(GivenShape::No)?)?;
        Ok(SharedArray::of(segment, layout))
    }

    /// Attaches to all bytes of the plain array of this name, whatever its element type is, and returns its
    /// description, if it has one.
    ///
    /// For programs that learn the element type at run time.
    ///
    /// # Examples
    ///
    /// ```
    /// use ndarray_shm::{unlink, DType, OpenOptions, SharedArray};
    ///
    /// SharedArray::<f32, _>::create("bytes-example", (2, 5))?;
    /// let (bytes, description) = OpenOptions::new().open_bytes("bytes-example")?;
    /// assert_eq!(bytes.len(), 40);
    /// assert!(description.is_none_or(|found| found.dtype() == DType::F32 && found.shape() == [2, 5]));
    /// unlink("bytes-example")?;
    /// # Ok::<(), ndarray_shm::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`SharedArray::open`], except those of a mismatch.
    pub fn open_bytes(&self, location: impl IntoLocation) -> Result<(SharedArray<u8, Ix1>, Option<Description>)> {
        let how = self.for_guards(GivenShape::No)?;
        let home = Home::new(self.backend.as_ref(), location)?;
        let check = |length: u64, text: Option<&[u8]>| {
            let elements = usize::try_from(length).unwrap_or(usize::MAX); // too many elements: refused by the layout
            let layout = Layout::<u8, _>::named(elements, home.location.as_str())?;
            Ok((layout, text.and_then(Description::parse).filter(|found| found.bytes() == length)))
        };
        let (segment, (layout, description)) = Segment::attach_described(&home, how, check)?;
        Ok((SharedArray::of(segment, layout), description))
    }

    /// Attaches to a plain array for reading. Waits until the lock is free.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use ndarray_shm::{unlink, OpenOptions, SharedArray};
    ///
    /// let array = SharedArray::<u16, _>::create("open-reader-example", 10)?;
    /// let options = OpenOptions::new().timeout(Duration::from_millis(10));
    /// let reader = options.open_reader::<u16, _>("open-reader-example", 10)?;
    /// assert_eq!(reader.view().sum(), 0);
    /// assert!(array.try_write().is_err(), "the reader excludes writers until it is dropped");
    /// unlink("open-reader-example")?;
    /// # Ok::<(), ndarray_shm::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`SharedArray::open`], and [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock); with a
    /// [`timeout`](Self::timeout) instead [`TimedOut`](crate::ErrorKind::TimedOut), or
    /// [`WouldBlock`](crate::ErrorKind::WouldBlock) if it is zero.
    pub fn open_reader<T: Element, D: Dimension>(
        &self,
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = D>,
    ) -> Result<ArrayReader<T, D>> {
        let (segment, layout) = self.plain(location, shape, self.for_reading(GivenShape::Yes)?)?;
        Ok(ArrayReader::of(segment, layout))
    }

    /// Attaches to a plain array for reading, with the shape and order of its description. Waits until the lock is
    /// free.
    ///
    /// # Errors
    ///
    /// As [`open_reader`](Self::open_reader) and [`SharedArray::open_dyn`].
    pub fn open_reader_dyn<T: Element, D: Dimension>(&self, location: impl IntoLocation) -> Result<ArrayReader<T, D>> {
        let (segment, layout) = self.plain_dyn(location, self.for_reading(GivenShape::No)?)?;
        Ok(ArrayReader::of(segment, layout))
    }

    /// Attaches to a plain array for writing. Waits until the lock is free.
    ///
    /// # Errors
    ///
    /// As [`open_reader`](Self::open_reader).
    pub fn open_writer<T: Element, D: Dimension>(
        &self,
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = D>,
    ) -> Result<ArrayWriter<T, D>> {
        let (segment, layout) = self.plain(location, shape, self.for_writing(GivenShape::Yes)?)?;
        Ok(ArrayWriter::of(segment, layout))
    }

    /// Attaches to a plain array for writing, with the shape and order of its description. Waits until the lock is
    /// free.
    ///
    /// # Errors
    ///
    /// As [`open_reader_dyn`](Self::open_reader_dyn).
    pub fn open_writer_dyn<T: Element, D: Dimension>(&self, location: impl IntoLocation) -> Result<ArrayWriter<T, D>> {
        let (segment, layout) = self.plain_dyn(location, self.for_writing(GivenShape::No)?)?;
        Ok(ArrayWriter::of(segment, layout))
    }

    /// Returns how a counted array is attached, for guards.
    pub(crate) fn counted_for_guards(&self) -> Result<Attach> {
        self.for_guards(GivenShape::No)
    }

    /// Returns how a counted array is attached, with a read lock that is held.
    pub(crate) fn counted_for_reading(&self) -> Result<Attach> {
        self.for_reading(GivenShape::No)
    }

    fn for_guards(&self, shape: GivenShape) -> Result<Attach> {
        self.refuse_reinterpret(shape)?;
        let access = match (self.access, self.copy_on_write) {
            (Some(Access::ReadWrite), true) => {
                return refused("the access", "ReadWrite", "Read, or none: copy_on_write attaches for reading only");
            }
            (access, false) => access.unwrap_or(Access::ReadWrite),
            (_, true) => Access::Read,
        };
        if let Some(limit) = self.timeout {
            let expected = "none, because attaching for guards waits for no lock: the guards have timeouts";
            return refused("the timeout", &format!("{limit:?}"), expected);
        }
        let (sparse, copy_on_write, keep_descriptor) = (self.leave_holes, self.copy_on_write, self.keep_descriptor);
        Ok(Attach { sparse, keep_descriptor, copy_on_write, ..Attach::new(access) })
    }

    fn for_reading(&self, shape: GivenShape) -> Result<Attach> {
        self.held(LockKind::Shared, Access::Read, shape)
    }

    fn for_writing(&self, shape: GivenShape) -> Result<Attach> {
        self.held(LockKind::Exclusive, Access::ReadWrite, shape)
    }

    fn held(&self, kind: LockKind, access: Access, shape: GivenShape) -> Result<Attach> {
        self.refuse_reinterpret(shape)?;
        if let Some(access) = self.access {
            let expected = "none: a reader is mapped for reading, a writer for reading and writing";
            return refused("the access", &format!("{access:?}"), expected);
        }
        if self.copy_on_write {
            return refused("copy_on_write", "true", "false: a reader or writer excludes all that would write");
        }
        if self.keep_descriptor {
            return refused("keep_fd", "true", "false: a reader or writer has its lock already, and takes no guards");
        }
        let how = Attach { sparse: self.leave_holes, ..Attach::new(access) };
        Ok(match self.timeout {
            None => Attach { held: Some((kind, CellWait::Forever)), ..how },
            Some(patience) => Attach { held: Some((kind, CellWait::Patience)), patience, ..how },
        })
    }

    fn refuse_reinterpret(&self, shape: GivenShape) -> Result<()> {
        if self.reinterpret && shape == GivenShape::No {
            return refused(
                "reinterpret",
                "true",
                "false, because no shape is given to use instead of the array's own",
            );
        }
        Ok(())
    }

    /// Attaches a plain array.
    fn plain<T: Element, D: Dimension>(
        &self,
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = D>,
        how: Attach,
    ) -> Result<(Segment, Layout<T, D>)> {
        let home = Home::new(self.backend.as_ref(), location)?;
        let layout = Layout::named(shape, home.location.as_str())?;
        let check = |length, text: Option<&[u8]>| {
            let text = text.filter(|_| !self.reinterpret);
            description::check::<T, D>(&layout, length, text, &home.location)
        };
        let (segment, ()) = Segment::attach_described(&home, how, check)?;
        Ok((segment, layout))
    }

    /// Attaches a plain array with the shape and order of its description.
    fn plain_dyn<T: Element, D: Dimension>(
        &self,
        location: impl IntoLocation,
        how: Attach,
    ) -> Result<(Segment, Layout<T, D>)> {
        let home = Home::new(self.backend.as_ref(), location)?;
        let check = |length, text: Option<&[u8]>| description::layout_of::<T, D>(length, text, &home.location);
        let (segment, layout) = Segment::attach_described(&home, how, check)?;
        Ok((segment, layout))
    }
}

fn refused<R>(setting: &'static str, value: &str, expected: &'static str) -> Result<R> {
    Err(Error::setting(setting, value, expected))
}
