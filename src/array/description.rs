//! The description of a plain array: a few lines of text in an extended attribute of its file.
//!
//! ```text
//! ndshm 1
//! dtype <f4
//! shape 10 20 30
//! order C
//! bytes 24000
//! source precomputed://https://host/em
//! ```
//!
//! The first five lines stand in this order. Each further line is a note: a key and its text. The text is untrusted
//! input: any program that may write to the file can write it, and some programs replace the bytes and leave it as it
//! was. It is compared with what the caller asks for, and nothing sound depends on it.

use std::fmt::{self, Write as _};

use ndarray::Dimension;

use super::{DType, Element, Layout, Order};
use crate::backend::{Backend, Directory, DraftOptions, IntoLocation, Location};
use crate::error::{Error, ErrorKind, Result};
use crate::segment::{FoundDescription, LONGEST_DESCRIPTION, describe, read_description};

/// The first line: the name of the format and its version.
const HEAD: &str = "ndshm 1";

/// Maximum length of a note's key.
const LONGEST_KEY: usize = 64;

/// The description of a plain array: type, shape, order, and notes about its origin.
///
/// A [`SharedArray`](crate::SharedArray) gets its description when it gets its name, if the file system supports
/// extended attributes: tmpfs since Linux 6.6, ext4, overlayfs, APFS and many more; not on Windows. The bytes of the
/// file are still the elements and nothing else.
///
/// A description can be wrong or missing. Programs without this library change the bytes and leave the description as
/// it was, and many ways to copy a file lose it (`scp`, plain `cp`, `tar`, `rsync` without `-X`). A description for
/// another number of bytes than the file has is ignored. Any other is compared with the type, shape and order that an
/// array is opened with.
///
/// # Examples
///
/// ```
/// use ndarray_shm::array::Description;
/// use ndarray_shm::{DType, Order, SharedArray, default_directory, unlink};
///
/// SharedArray::<u16, _>::create("description-example", (4, 5))?;
///
/// let directory = default_directory()?;
/// if let Some(found) = directory.description("description-example")? {
///     assert_eq!((found.dtype(), found.shape(), found.order()), (DType::U16, &[4, 5][..], Order::C));
///     let noted = found.with_note("resolution", "8 8 40")?;
///     directory.describe("description-example", &noted)?;
/// }
/// unlink("description-example")?;
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    dtype: DType,
    shape: Vec<usize>,
    order: Order,
    bytes: u64,
    notes: Vec<(String, String)>,
}

impl Description {
    /// Creates the description of an array of this type, shape and order, without notes.
    ///
    /// # Errors
    ///
    /// [`TooLarge`](ErrorKind::TooLarge): the array fits no address space.
    pub fn new(dtype: DType, shape: &[usize], order: Order) -> Result<Self> {
        let shape = shape.to_vec();
        match bytes_of(dtype, &shape) {
            Some(bytes) => Ok(Self { dtype, order, bytes, notes: Vec::new(), shape }),
            None => Err(ErrorKind::TooLarge { shape, item: dtype.size() }.at("(description)")),
        }
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the lengths of the axes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the order of the axes in memory.
    pub fn order(&self) -> Order {
        self.order
    }

    /// Returns the size of all elements in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether an array of this type, shape and order has each element at the same offset.
    ///
    /// Axes of length 1 are ignored, neighbouring axes may be merged or split, and an array of one axis is in both
    /// orders.
    pub fn agrees_with(&self, dtype: DType, shape: &[usize], order: Order) -> bool {
        let same_bytes = bytes_of(dtype, shape) == Some(self.bytes);
        dtype == self.dtype && same_bytes && is_same_memory((&self.shape, self.order), (shape, order))
    }

    /// Returns the note with this key. Downloads write `source`, `bbox`, `resolution` and `unit`, for example.
    ///
    /// Any program that may write to the file can have written the text. Escape it before printing.
    pub fn note(&self, key: &str) -> Option<&str> {
        self.notes.iter().find(|(found, _)| found == key).map(|(_, text)| text.as_str())
    }

    /// Returns all notes as pairs of key and text.
    pub fn notes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.notes.iter().map(|(key, text)| (key.as_str(), text.as_str()))
    }

    /// Adds a note, or replaces the one with this key.
    ///
    /// # Errors
    ///
    /// [`InvalidSetting`](ErrorKind::InvalidSetting): the key is not 1 to 64 of `a-z`, `0-9` and `-`, or is reserved
    /// (`ndshm`, `dtype`, `shape`, `order`, `bytes`); the text contains a control character; or the description would
    /// exceed 3,500 bytes.
    pub fn with_note(mut self, key: &str, text: &str) -> Result<Self> {
        if !is_key(key) {
            let (value, expected) =
                (key.to_owned(), "1 to 64 of a-z, 0-9 and -, and none of dtype, shape, order, bytes");
            return Err(Error::setting("the key of a note", value, expected));
        }
        if text.contains(char::is_control) {
            let expected = "text without control characters";
            return Err(Error::setting("a note", text, expected));
        }
        self.notes.retain(|(found, _)| found != key);
        self.notes.push((key.to_owned(), text.to_owned()));
        if self.to_text().len() > LONGEST_DESCRIPTION {
            let expected = "short enough for a description of 3,500 bytes in all";
            return Err(Error::setting("a note", text, expected));
        }
        Ok(self)
    }

    /// Returns the text of the extended attribute.
    pub(crate) fn to_text(&self) -> String {
        head(self.dtype, &self.shape, self.order, self.bytes) + &self.note_lines()
    }

    /// Returns the lines of the notes.
    pub(crate) fn note_lines(&self) -> String {
        let mut lines = String::new();
        for (key, note) in &self.notes {
            let _ = writeln!(lines, "{key} {note}"); // writing to a string never fails
        }
        lines
    }

    /// Returns the same description with the notes of these lines. `None`: they are no notes.
    pub(crate) fn with_note_lines(self, lines: &str) -> Option<Self> {
        let notes = notes_of(lines).map(|(key, note)| (key.to_owned(), note.to_owned()));
        are_notes(lines).then(|| Self { notes: notes.collect(), ..self })
    }

    /// Parses such a text. Returns `None` if it is not a description, has another version, or contradicts itself.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let (dtype, shape, order, bytes, rest) = parse_head(text)?;
        Self { dtype, shape, order, bytes, notes: Vec::new() }.with_note_lines(rest)
    }
}

/// Writes, for example, "<u2 of shape [3, 4] in C order".
impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        in_words(self.dtype, &self.shape, self.order).fmt(f)
    }
}

fn in_words(dtype: DType, shape: &[usize], order: Order) -> String {
    format!("{dtype} of shape {shape:?} in {order} order")
}

/// Returns the size of an array's elements, or `None` if they fit no address space.
pub(crate) fn bytes_of(dtype: DType, shape: &[usize]) -> Option<u64> {
    // As in `Layout::checked`, the product of the non-empty axes must fit even if another axis is empty.
    let span =
        shape.iter().filter(|length| **length > 0).try_fold(dtype.size(), |so_far, length| so_far.checked_mul(*length));
    let span = span.filter(|bytes| isize::try_from(*bytes).is_ok())?;
    Some(if shape.contains(&0) { 0 } else { span as u64 })
}

fn is_key(key: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=LONGEST_KEY).contains(&key.len())
        && key.bytes().all(allowed)
        && !["ndshm", "dtype", "shape", "order", "bytes"].contains(&key)
}

/// Returns the five lines that every description has.
fn head(dtype: DType, shape: &[usize], order: Order, bytes: u64) -> String {
    let mut text = String::with_capacity(128);
    for part in [HEAD, "\ndtype ", dtype.as_str(), "\nshape"] {
        text.push_str(part);
    }
    for length in shape {
        let _ = write!(text, " {length}"); // writing to a string never fails
    }
    let order = match order {
        Order::C => "\norder C\nbytes ",
        Order::F => "\norder F\nbytes ",
    };
    text.push_str(order);
    let _ = writeln!(text, "{bytes}");
    text
}

/// Splits lines into pairs of key and text.
fn notes_of(lines: &str) -> impl Iterator<Item = (&str, &str)> {
    // For a line without a space the text is a control character, which `are_notes` refuses.
    lines.split_terminator('\n').map(|line| line.split_once(' ').unwrap_or((line, "\0")))
}

/// Returns whether each line is a valid note and no key stands twice.
fn are_notes(lines: &str) -> bool {
    let is_note = |(i, (key, note)): (usize, (&str, &str))| {
        is_key(key) && !note.contains(char::is_control) && !notes_of(lines).take(i).any(|(earlier, _)| earlier == key)
    };
    (lines.is_empty() || lines.ends_with('\n')) && notes_of(lines).enumerate().all(is_note)
}

/// Parses the five lines of `head`. The last value returned is the rest of the text, which contains valid notes only.
fn parse_head(text: &[u8]) -> Option<(DType, Vec<usize>, Order, u64, &str)> {
    let text = std::str::from_utf8(text).ok().filter(|text| text.len() <= LONGEST_DESCRIPTION)?;
    let mut rest = text.strip_prefix(HEAD)?.strip_prefix('\n')?;
    let mut line = |key: &str| {
        let (line, behind) = rest.split_once('\n')?;
        rest = behind;
        let value = line.strip_prefix(key)?;
        if value.is_empty() { Some(value) } else { value.strip_prefix(' ') }
    };
    let dtype: DType = line("dtype")?.parse().ok()?;
    // Only digits: `parse` alone would accept a sign, too.
    let number =
        |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<u64>().ok()).flatten();
    let length = |digits: &str| number(digits).and_then(|length| usize::try_from(length).ok());
    let shape = line("shape")?;
    let shape: Vec<usize> =
        if shape.is_empty() { Vec::new() } else { shape.split(' ').map(length).collect::<Option<_>>()? };
    let order = match line("order")? {
        "C" => Order::C,
        "F" => Order::F,
        _ => return None,
    };
    let bytes = number(line("bytes")?)?;
    (bytes_of(dtype, &shape) == Some(bytes) && are_notes(rest)).then_some((dtype, shape, order, bytes, rest))
}

/// Returns the description of an array of this layout, without notes.
pub(crate) fn text_of<T: Element, D: Dimension>(layout: &Layout<T, D>) -> String {
    head(T::DTYPE, layout.shape(), layout.order(), layout.bytes())
}

/// Compares a layout with a file's length and description. Fails if the length differs, or if the description is of
/// another array.
pub(crate) fn check<T: Element, D: Dimension>(
    layout: &Layout<T, D>,
    length: u64,
    text: Option<&[u8]>,
    location: &Location,
) -> Result<()> {
    let expected = layout.bytes();
    // The usual case, a few hundred nanoseconds cheaper than parsing: the text begins with the lines that this crate
    // writes for this layout. The notes behind them need no check: with damaged notes the description would be ignored,
    // and the result be the same.
    if expected == length && text.is_some_and(|text| text.starts_with(text_of::<T, D>(layout).as_bytes())) {
        return Ok(());
    }
    let found = text.and_then(parse_head).filter(|(.., bytes, _)| *bytes == length);
    if expected != length {
        let description = found.map(|(dtype, shape, order, ..)| in_words(dtype, &shape, order));
        return Err(ErrorKind::SizeMismatch { expected, found: length, description }.at(location));
    }
    let Some((dtype, shape, order, ..)) = found else { return Ok(()) };
    let lengths = layout.shape();
    if dtype == T::DTYPE && is_same_memory((&shape, order), (lengths, layout.order())) {
        return Ok(());
    }
    Err(ErrorKind::DescriptionMismatch {
        expected: in_words(T::DTYPE, lengths, layout.order()),
        found: in_words(dtype, &shape, order),
    }
    .at(location))
}

/// Returns the layout from the description of a file of this length.
pub(crate) fn layout_of<T: Element, D: Dimension>(
    length: u64,
    text: Option<&[u8]>,
    location: &Location,
) -> Result<Layout<T, D>> {
    match text.and_then(parse_head) {
        Some((dtype, shape, order, bytes, _)) if bytes == length => {
            Layout::<T, _>::described(dtype, &shape, order, location.as_str())
        }
        _ => Err(ErrorKind::NotDescribed.at(location)),
    }
}

/// Returns whether two arrays with equal numbers of elements have each element at the same offset. Axes of length 1 are
/// ignored, and neighbouring axes may be merged.
fn is_same_memory(a: (&[usize], Order), b: (&[usize], Order)) -> bool {
    let long = |shape: &[usize]| shape.iter().copied().filter(|length| *length != 1).collect::<Vec<_>>();
    let (one, other) = (long(a.0), long(b.0));
    // A single axis is contiguous in both orders. An empty array has no element to compare.
    if one.len() <= 1 || other.len() <= 1 || one.contains(&0) {
        return true;
    }
    a.1 == b.1 && (is_merged(&one, &other) || is_merged(&other, &one))
}

/// Returns whether each axis of `coarse` is the product of consecutive axes of `fine`.
fn is_merged(coarse: &[usize], fine: &[usize]) -> bool {
    let mut rest = fine.iter();
    let made = |length: &usize| {
        let mut so_far = 1usize;
        while so_far < *length {
            match rest.next() {
                Some(next) => so_far = so_far.saturating_mul(*next),
                None => return false,
            }
        }
        so_far == *length
    };
    coarse.iter().all(made)
}

/// A plain array as it was when its description was read, from [`Directory::see_description`].
///
/// It keeps the file open, which needs one descriptor, so that no other array can pass for this one.
#[derive(Debug)]
pub struct SeenDescription(FoundDescription<Box<[u8]>>);

impl SeenDescription {
    /// Returns the description, as [`Directory::description`] does.
    pub fn description(&self) -> Option<Description> {
        parse_found(self.0.text.as_deref(), self.0.length)
    }

    /// Returns the size of the array in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.length
    }
}

/// Parses the description of a file of this length.
fn parse_found(text: Option<&[u8]>, length: u64) -> Option<Description> {
    text.and_then(Description::parse).filter(|found| found.bytes == length)
}

/// Returns the description of the plain array of this name, which may be a reserved one.
pub(crate) fn description_at(directory: &Directory, location: &Location) -> Result<Option<Description>> {
    let mut buffer = [0; LONGEST_DESCRIPTION];
    let found = read_description(directory, location, &mut buffer)?;
    Ok(parse_found(found.text, found.length))
}

impl Directory {
    /// Returns the description of the plain array of this name.
    ///
    /// Returns `None` if it has no description, or one that is malformed or for another number of bytes.
    /// [`Description`] has an example.
    ///
    /// # Errors
    ///
    /// - [`Reserved`](ErrorKind::Reserved): the file is bookkeeping of this crate, or a counted array, which
    ///   [`inspect`](crate::counted::inspect()) reads.
    /// - [`NotFound`](ErrorKind::NotFound), [`PermissionDenied`](ErrorKind::PermissionDenied),
    ///   [`NotAnArray`](ErrorKind::NotAnArray), and the errors of the location.
    pub fn description(&self, location: impl IntoLocation) -> Result<Option<Description>> {
        description_at(self, &location.into_location()?)
    }

    /// Returns the plain array of this name as it is now, with its description, for
    /// [`describe_seen`](Self::describe_seen).
    ///
    /// # Examples
    ///
    /// ```
    /// use ndarray_shm::{SharedArray, default_directory, unlink};
    ///
    /// SharedArray::<u16, _>::create("seen-example", (4, 5))?;
    ///
    /// let directory = default_directory()?;
    /// let seen = directory.see_description("seen-example")?;
    /// if let Some(found) = seen.description() {
    ///     // Fails with `Changed` if another process has replaced the array or its description since.
    ///     directory.describe_seen("seen-example", &seen, Some(&found.with_note("unit", "nm")?))?;
    /// }
    /// unlink("seen-example")?;
    /// # Ok::<(), ndarray_shm::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`description`](Self::description).
    pub fn see_description(&self, location: impl IntoLocation) -> Result<SeenDescription> {
        let mut buffer = [0; LONGEST_DESCRIPTION];
        Ok(SeenDescription(read_description(self, &location.into_location()?, &mut buffer)?.into_owned()))
    }

    /// Replaces the description of a plain array that this process has seen, or removes it with `None`. The bytes do
    /// not change.
    ///
    /// Array and description must be the ones that were seen. Processes that change a description exclude each other.
    ///
    /// # Errors
    ///
    /// - [`Changed`](ErrorKind::Changed): the name leads to another array by now, or the array has another length or
    ///   description.
    /// - those of [`describe`](Self::describe).
    pub fn describe_seen(
        &self,
        location: impl IntoLocation,
        seen: &SeenDescription,
        new: Option<&Description>,
    ) -> Result<()> {
        let new = new.map(|new| (new.bytes, new.to_text()));
        let new = new.as_ref().map(|(bytes, text)| (*bytes, text.as_bytes()));
        describe(self, &location.into_location()?, new, Some(&seen.0))
    }

    /// Replaces the description of the plain array of this name: type, shape, order and notes. The bytes do not change.
    ///
    /// This is the array that has the name now, whatever another process has written or replaced since its description
    /// was read. To change a description that was read, use [`describe_seen`](Self::describe_seen).
    ///
    /// # Errors
    ///
    /// - [`SizeMismatch`](ErrorKind::SizeMismatch): the array has another number of bytes than the description.
    /// - [`Unsupported`](ErrorKind::Unsupported): the file system supports no descriptions.
    /// - [`PermissionDenied`](ErrorKind::PermissionDenied): this user may not write to the file.
    /// - [`TimedOut`](ErrorKind::TimedOut): another process is changing the description or removing the name, and has
    ///   been stopped.
    /// - those of [`description`](Self::description).
    pub fn describe(&self, location: impl IntoLocation, description: &Description) -> Result<()> {
        let text = description.to_text();
        describe(self, &location.into_location()?, Some((description.bytes, text.as_bytes())), None)
    }

    /// Removes the description of the plain array that has the name now. The bytes do not change.
    ///
    /// # Errors
    ///
    /// As [`describe`](Self::describe).
    pub fn clear_description(&self, location: impl IntoLocation) -> Result<()> {
        describe(self, &location.into_location()?, None, None)
    }

    /// Returns whether arrays in this directory can have descriptions. Tries it with a nameless file.
    ///
    /// # Errors
    ///
    /// Those of creating the nameless file.
    pub fn can_describe(&self) -> Result<bool> {
        let draft = self.draft(0, DraftOptions::default())?;
        Ok(self.set_attribute(draft.file(), Some(HEAD.as_bytes())).is_ok())
    }
}
