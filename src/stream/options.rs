//! `StreamOptions`: options for creating, taking over and opening streams.

use ndarray::{Dimension, ShapeBuilder};

use super::begin::{IfThere, begin};
use super::cursors::Backpressure;
use super::geometry::StreamGeometry;
use super::meta::{MOST_FIELDS, MetaField};
use super::reader::{StreamCursor, StreamReader};
use super::writer::StreamWriter;
use crate::array::{DType, Description, Element, Layout};
use crate::backend::{Directory, DraftOptions, IntoLocation, Pages};
use crate::error::{Error, ErrorKind, Result};
use crate::segment::Home;

/// Options for creating, taking over and opening streams.
///
/// # Examples
///
/// ```
/// use ndarray_shm::DType;
/// use ndarray_shm::ndarray::Ix2;
/// use ndarray_shm::stream::StreamOptions;
///
/// let mut writer = StreamOptions::new()
///     .meta("exposure", DType::F64, 1)
///     .create::<u16, _>("stream-options-example", (4, 6), 8)?;
/// let mut frame = writer.frame()?;
/// frame.set_meta("exposure", &[0.02])?;
/// frame.commit()?;
///
/// let mut reader = StreamOptions::new().open::<u16, Ix2>("stream-options-example")?;
/// assert_eq!(reader.latest()?.expect("a frame").meta::<f64>("exposure")?, [0.02]);
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "options do nothing until `create` or `open` is called"]
pub struct StreamOptions {
    backend: Option<Directory>,
    draft: DraftOptions,
    there: IfThere,
    keep: bool,
    copied: bool,
    meta: Vec<(String, DType, usize)>,
    notes: Vec<(String, String)>,
}

impl Default for StreamOptions {
    fn default() -> Self {
        let there = IfThere { resume: false, replace: false };
        let draft = DraftOptions::default();
        Self { backend: None, draft, there, keep: false, copied: false, meta: Vec::new(), notes: Vec::new() }
    }
}

impl StreamOptions {
    /// Returns the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Uses this directory instead of the [default](crate::default_directory).
    pub fn directory(mut self, directory: Directory) -> Self {
        self.backend = Some(directory);
        self
    }

    /// Creates the frames with these permission bits, whatever the umask. The default is 0600. A user that may read the
    /// file can read the stream, for example with 0644. The owner can always read and write it. Windows has no
    /// permission bits.
    ///
    /// Open streams of users that you trust: the owner of the file can shorten it, which kills the processes that read
    /// it (SIGBUS).
    pub fn permissions(mut self, bits: u32) -> Self {
        self.draft.permissions = (bits & 0o777) | 0o600;
        self
    }

    /// Chooses which memory is allocated in advance, and on which pages. The default is [`Pages::Auto`].
    pub fn pages(mut self, pages: Pages) -> Self {
        self.draft.pages = pages;
        self
    }

    /// Takes over a stream of this name that has no writer: it was killed, or has ended a stream that is
    /// [kept](Self::keep). Numbers go on, and [`Frame::epoch`](super::Frame::epoch) grows. If there is none, it is
    /// created.
    ///
    /// Element type, shape, order, number of slots, values beside the elements, notes, and whether frames are
    /// [copied](Self::copied), must be those of the stream, unless [`replace`](Self::replace) is chosen too. Its
    /// permissions and pages stay.
    pub fn resume(mut self, resume: bool) -> Self {
        self.there.resume = resume;
        self
    }

    /// Replaces a stream of this name that has no writer. Its readers get [`Unlinked`](ErrorKind::Unlinked).
    pub fn replace(mut self, replace: bool) -> Self {
        self.there.replace = replace;
        self
    }

    /// Keeps the name and the frames when the writer ends the stream, for readers that come later. [`unlink`] removes
    /// them.
    ///
    /// [`unlink`]: super::unlink
    pub fn keep(mut self, keep: bool) -> Self {
        self.keep = keep;
        self
    }

    /// Lets readers copy frames instead of holding them. It is for small frames, up to about 4 KiB: neither writer nor
    /// reader takes a lock, which would last longer than the copy. A [`Frame`](super::Frame) is a copy then, and holds
    /// no slot.
    pub fn copied(mut self, copied: bool) -> Self {
        self.copied = copied;
        self
    }

    /// Gives each frame `count` values of this type beside its elements, under a name. All values of a frame have at
    /// most 240 bytes. Other languages read them by the same names.
    pub fn meta(mut self, name: impl Into<String>, dtype: DType, count: usize) -> Self {
        self.meta.push((name.into(), dtype, count));
        self
    }

    /// Adds a note to what the stream says about its frames: what the axes are called, how large an element is.
    /// Readers, recordings and `ndshm view --live` use those of volumes:
    ///
    /// ```
    /// use ndarray_shm::ndarray::Ix2;
    /// use ndarray_shm::stream::StreamOptions;
    ///
    /// let options = StreamOptions::new().note("axes", "y x").note("resolution", "0.65 0.65").note("unit", "um");
    /// let writer = options.create::<u16, _>("stream-note-example", (4, 6), 8)?;
    ///
    /// let reader = StreamOptions::new().open::<u16, Ix2>("stream-note-example")?;
    /// assert_eq!(reader.description().note("axes"), Some("y x"));
    /// # Ok::<(), ndarray_shm::Error>(())
    /// ```
    ///
    /// The note `axes` has a different word for each axis, in the order of the shape. Keys and texts are those of
    /// [`Description::with_note`].
    pub fn note(mut self, key: &str, text: &str) -> Self {
        self.notes.push((key.to_owned(), text.to_owned()));
        self
    }

    /// Returns the description of frames of this layout.
    fn description<T: Element, D: Dimension>(&self, layout: &Layout<T, D>) -> Result<Description> {
        let plain = Description::new(T::DTYPE, layout.shape(), layout.order())?;
        let noted = self.notes.iter().try_fold(plain, |noted, (key, text)| noted.with_note(key, text))?;
        if let Some(text) = noted.note("axes") {
            let words: Vec<&str> = text.split(' ').collect();
            let is_name = |(at, word): (usize, &&str)| !word.is_empty() && !words[..at].contains(word);
            if words.len() != layout.shape().len() || !words.iter().enumerate().all(is_name) {
                let expected = "a different word for each axis, in the order of the shape, with a space between them";
                return Err(Error::setting("the note `axes`", text, expected));
            }
        }
        Ok(noted)
    }

    fn fields(&self) -> Result<Vec<MetaField>> {
        let mut fields = Vec::<MetaField>::new();
        for (name, dtype, count) in &self.meta {
            if fields.len() == MOST_FIELDS || fields.iter().any(|field| field.name == *name) {
                return Err(Error::setting("the name of a value", name, "one of at most 30 different names"));
            }
            fields.push(MetaField::new(name, *dtype, *count, fields.last().map_or(0, MetaField::end))?);
        }
        Ok(fields)
    }

    /// Creates a stream: see [`StreamWriter::create`].
    ///
    /// # Errors
    ///
    /// As [`StreamWriter::create`]. With [`resume`](Self::resume) or [`replace`](Self::replace)
    /// [`HasWriter`](ErrorKind::HasWriter) if its writer lives. With `resume` alone also
    /// [`DTypeMismatch`](ErrorKind::DTypeMismatch), [`ShapeMismatch`](ErrorKind::ShapeMismatch) or
    /// [`InvalidSetting`](ErrorKind::InvalidSetting) if the stream has other frames.
    pub fn create<T: Element, D: Dimension>(
        &self,
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = D>,
        slots: usize,
    ) -> Result<StreamWriter<T, D>> {
        let home = Home::new(self.backend.as_ref(), location)?;
        let layout = Layout::named(shape, home.location.as_str())?;
        let geometry = StreamGeometry {
            description: self.description(&layout)?,
            slots,
            fields: self.fields()?,
            is_copied: self.copied,
            keeper: 0,
        };
        geometry.check(home.location.as_str())?;
        let begun = begin(&home, &geometry, self.draft, self.there).map_err(|error| about(error, &home))?;
        Ok(StreamWriter::start(begun, layout, self.keep))
    }

    /// Opens a stream for reading: see [`StreamReader::open`].
    ///
    /// # Errors
    ///
    /// As [`StreamReader::open`].
    pub fn open<T: Element, D: Dimension>(&self, location: impl IntoLocation) -> Result<StreamReader<T, D>> {
        let home = Home::new(self.backend.as_ref(), location)?;
        StreamReader::open_at(&home).map_err(|error| about(error, &home))
    }

    /// Opens a cursor: see [`StreamCursor::open`].
    ///
    /// # Errors
    ///
    /// As [`StreamCursor::open`].
    pub fn open_cursor<T: Element, D: Dimension>(
        &self,
        location: impl IntoLocation,
        name: &str,
        policy: Backpressure,
    ) -> Result<StreamCursor<T, D>> {
        let home = Home::new(self.backend.as_ref(), location)?;
        StreamCursor::open_at(&home, name, policy).map_err(|error| about(error, &home))
    }
}

/// Names the stream instead of its files.
fn about(error: Error, home: &Home) -> Error {
    match error.kind {
        ErrorKind::InvalidLocation { .. } => error,
        _ => error.about(&home.location),
    }
}
