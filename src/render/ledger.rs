//! The ledger: a second, reserved segment that says what is painted into the buffer, and which chunks are finished.
//!
//! ```text
//! one state byte per chunk, 0 = pending, 1 = done; padded with zeros to 64 bytes      (the payload, shared atomics)
//! dtype            8  numpy type string, padded with NUL                              (the trailer, written once)
//! order            1  'C' or 'F'
//! axes             1  at most 32
//! zero             2
//! fingerprint      4  its length in bytes, at most 4096
//! payload device   8  } which file is painted
//! payload number   8  }
//! boot id         16
//! chunks           8  how many
//! shape            8 per axis
//! chunk shape      8 per axis
//! chunk offset     8 per axis
//! fingerprint         UTF-8
//! footer          64  see segment/footer.rs
//! ```
//!
//! All numbers are little-endian. Every byte is input: it is copied out once and checked before anything is believed.

use std::fmt;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use ndarray::IxDyn;

use super::grid::ChunkGrid;
use crate::array::{DType, Order};
use crate::backend::lock_space::BEGINNING;
use crate::backend::{Access, Backend, Companion, DraftOptions, Location};
use crate::error::{Error, Result};
use crate::os::{self, Facts, FileId, LockKind};
use crate::segment::footer::{FOOTER, Footer, Kind};
use crate::segment::{Attach, DraftSegment, Expect, Home, Segment, is_leased, read_footer};

/// Longest fingerprint, in bytes.
const LONGEST_FINGERPRINT: usize = 4096;
/// Most axes that a ledger can describe.
const MOST_AXES: usize = 32;
/// Longest trailer: the fields, three numbers per axis, the fingerprint and the footer.
const LONGEST_TRAILER: usize = 56 + 3 * 8 * MOST_AXES + LONGEST_FINGERPRINT + FOOTER;
/// State bytes that are read at a time.
const STEP: usize = 1 << 16;
/// State bytes are padded to this, a cache line.
const STATE_ALIGNMENT: u64 = 64;

/// A chunk that is finished; every other value is a chunk to be painted.
const DONE: u8 = 1;

/// What is painted: everything that must be the same for two painters to work on one buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) dtype: DType,
    pub(crate) order: Order,
    pub(crate) shape: Vec<usize>,
    pub(crate) chunk_shape: Vec<usize>,
    pub(crate) chunk_offset: Vec<usize>,
    pub(crate) fingerprint: String,
}

impl Work {
    /// Refuses what a ledger cannot write down.
    pub(crate) fn check(&self) -> Result<()> {
        if self.fingerprint.len() > LONGEST_FINGERPRINT {
            return Err(Error::InvalidSetting {
                setting: "the fingerprint",
                value: format!("{} bytes long", self.fingerprint.len()),
                expected: "at most 4096 bytes of text (hash what is longer)",
            });
        }
        if self.shape.len() > MOST_AXES {
            return Err(Error::InvalidSetting {
                setting: "the shape",
                value: format!("{} axes", self.shape.len()),
                expected: "at most 32 axes",
            });
        }
        Ok(())
    }

    /// Says how this differs from what was found, if it does.
    pub(crate) fn require(&self, found: &Self, location: &Location) -> Result<()> {
        fn same<V: PartialEq + fmt::Debug>(
            what: &'static str,
            expected: &V,
            found: &V,
        ) -> Result<(), (&'static str, String, String)> {
            if expected == found { Ok(()) } else { Err((what, format!("{expected:?}"), format!("{found:?}"))) }
        }
        same("element type", &self.dtype.as_str(), &found.dtype.as_str())
            .and_then(|()| same("shape", &self.shape, &found.shape))
            .and_then(|()| same("order", &self.order, &found.order))
            .and_then(|()| same("chunk shape", &self.chunk_shape, &found.chunk_shape))
            .and_then(|()| same("chunk offset", &self.chunk_offset, &found.chunk_offset))
            .and_then(|()| same("fingerprint", &self.fingerprint, &found.fingerprint))
            .map_err(|(what, expected, found)| Error::Mismatch {
                location: location.to_string(),
                what,
                expected,
                found,
            })
    }

    /// Returns the bytes of the painted array, if there can be so many.
    pub(crate) fn bytes(&self) -> Option<u64> {
        let item = self.dtype.size() as u64;
        self.shape.iter().try_fold(item, |so_far, length| so_far.checked_mul(*length as u64))
    }

    /// Returns the number of chunks.
    fn chunks(&self) -> Result<usize> {
        let grid = ChunkGrid::new(IxDyn(&self.shape), IxDyn(&self.chunk_shape), IxDyn(&self.chunk_offset))?;
        Ok(grid.len())
    }
}

/// What a ledger says, beyond the states of the chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) work: Work,
    /// The file that is painted.
    pub(crate) payload: FileId,
    /// The boot in which the states were written.
    pub(crate) boot: [u8; 16],
}

impl Record {
    #[allow(clippy::cast_possible_truncation)] // `Work::check` bounds the two lengths far below
    fn to_trailer(&self, chunks: usize, state_bytes: u64, id: u128) -> Vec<u8> {
        let work = &self.work;
        let mut bytes = Vec::new();
        let mut dtype = [0; 8];
        dtype[..work.dtype.as_str().len()].copy_from_slice(work.dtype.as_str().as_bytes());
        bytes.extend_from_slice(&dtype);
        bytes.push(if work.order == Order::F { b'F' } else { b'C' });
        bytes.push(work.shape.len() as u8);
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(&(work.fingerprint.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.payload.device.to_le_bytes());
        bytes.extend_from_slice(&self.payload.number.to_le_bytes());
        bytes.extend_from_slice(&self.boot);
        bytes.extend_from_slice(&(chunks as u64).to_le_bytes());
        for lengths in [&work.shape, &work.chunk_shape, &work.chunk_offset] {
            for length in lengths {
                bytes.extend_from_slice(&(*length as u64).to_le_bytes());
            }
        }
        bytes.extend_from_slice(work.fingerprint.as_bytes());
        Footer::append_to(Kind::Ledger, state_bytes, id, &mut bytes);
        bytes
    }

    /// Reads a trailer without its footer; also returns the number of chunks it speaks of.
    fn parse(mut bytes: &[u8]) -> Result<(Self, u64), String> {
        fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Result<&'a [u8], String> {
            let (head, tail) = bytes.split_at_checked(count).ok_or("the trailer is cut short")?;
            *bytes = tail;
            Ok(head)
        }
        fn number(bytes: &mut &[u8]) -> Result<u64, String> {
            Ok(u64::from_le_bytes(take(bytes, 8)?.try_into().map_err(|_| "the trailer is cut short")?))
        }
        let from = &mut bytes;
        let dtype = std::str::from_utf8(take(from, 8)?).unwrap_or_default().trim_end_matches('\0');
        let dtype = dtype.parse().map_err(|_| format!("{dtype:?} is no element type"))?;
        let order = match take(from, 1)?[0] {
            b'C' => Order::C,
            b'F' => Order::F,
            other => return Err(format!("{other} is no order")),
        };
        let axes = usize::from(take(from, 1)?[0]);
        if axes > MOST_AXES || take(from, 2)? != [0; 2] {
            return Err(format!("{axes} axes, or bytes that must be zero are not"));
        }
        let length = take(from, 4)?.iter().rev().fold(0usize, |so_far, byte| so_far << 8 | usize::from(*byte));
        let payload = FileId { device: number(from)?, number: number(from)? };
        let boot = take(from, 16)?.try_into().map_err(|_| "the trailer is cut short")?;
        let chunks = number(from)?;
        let mut lengths = || -> Result<Vec<usize>, String> {
            (0..axes)
                .map(|_| Ok(usize::try_from(number(from)?).unwrap_or(usize::MAX))) // which no axis can have
                .collect()
        };
        let (shape, chunk_shape, chunk_offset) = (lengths()?, lengths()?, lengths()?);
        if length > LONGEST_FINGERPRINT || bytes.len() != length {
            return Err(format!("a fingerprint of {length} bytes where {} are left", bytes.len()));
        }
        let fingerprint = std::str::from_utf8(bytes).map_err(|_| "the fingerprint is not UTF-8")?.to_owned();
        let work = Work { dtype, order, shape, chunk_shape, chunk_offset, fingerprint };
        Ok((Self { work, payload, boot }, chunks))
    }

    /// Checks the number of chunks it speaks of against its states and the number that its shape makes.
    fn check(&self, chunks: u64, expected: usize, footer: &Footer) -> Result<(), String> {
        self.work.bytes().ok_or("the array it speaks of has more bytes than can be counted")?;
        if expected as u64 != chunks || state_bytes(chunks) != Some(footer.payload) {
            let states = footer.payload;
            return Err(format!("{chunks} chunks and {states} state bytes, where the shape makes {expected} chunks"));
        }
        Ok(())
    }
}

/// How many bytes the states of so many chunks take.
fn state_bytes(chunks: u64) -> Option<u64> {
    chunks.checked_next_multiple_of(STATE_ALIGNMENT)
}

/// A ledger's file, opened and read but not leased: looking at a buffer is not using it.
#[derive(Debug)]
pub(crate) struct LedgerFile {
    home: Home,
    file: File,
    facts: Facts,
    record: Record,
    chunks: usize,
}

impl LedgerFile {
    /// Opens the ledger of a buffer and checks it, its owner first; `None` if there is none.
    pub(crate) fn open(buffer: &Home, admit: impl FnOnce(&Facts) -> Result<()>) -> Result<Option<Self>> {
        let location = buffer.location.companion(Companion::Ledger)?;
        let home = Home { backend: Arc::clone(&buffer.backend), location };
        let file = match home.backend.open(&home.location, Access::ReadWrite) {
            Err(Error::NotFound { .. }) => return Ok(None),
            other => other?,
        };
        let facts = os::facts(&file).map_err(|error| Error::os("look at", &home.location, error))?;
        admit(&facts)?;
        let invalid = |reason| Error::Trailer { location: buffer.location.to_string(), reason };
        let raw = read_footer(&file, facts.length, &home.location)?;
        let raw = raw.ok_or_else(|| invalid("it is shorter than a footer".into()))?;
        let footer = raw.validate(Kind::Ledger, facts.length).map_err(invalid)?;
        if footer.trailer as usize > LONGEST_TRAILER {
            return Err(invalid(format!(
                "a trailer of {} bytes, where {LONGEST_TRAILER} are the most",
                footer.trailer
            )));
        }
        let mut trailer = vec![0; footer.trailer as usize - FOOTER];
        os::read_exact_at(&file, &mut trailer, footer.payload)
            .map_err(|error| Error::os("read the ledger of", &buffer.location, error))?;
        if !raw.covers(&trailer) {
            return Err(invalid("the trailer's checksum is wrong".into()));
        }
        let (record, chunks) = Record::parse(&trailer).map_err(invalid)?;
        let work = &record.work;
        // It is not damaged: another process may have more address space.
        let too_large = || {
            let (location, shape, item) = (buffer.location.to_string(), work.shape.clone(), work.dtype.size());
            Error::TooLarge { location, shape, item }
        };
        if [&work.shape, &work.chunk_shape, &work.chunk_offset]
            .into_iter()
            .flatten()
            .any(|length| *length == usize::MAX)
        {
            return Err(too_large());
        }
        let expected = work.chunks().map_err(|error| match error {
            Error::TooLarge { .. } => too_large(),
            error => invalid(error.to_string()),
        })?;
        record.check(chunks, expected, &footer).map_err(invalid)?;
        Ok(Some(Self { home, file, facts, record, chunks: expected }))
    }

    pub(crate) fn record(&self) -> &Record {
        &self.record
    }

    /// Whether anybody is attached to this very ledger: painting, or about to.
    pub(crate) fn is_in_use(&self) -> Result<bool> {
        is_leased(&self.file, &self.home.location)
    }

    /// Whether the process that began the buffer lives and has not named the payload yet.
    pub(crate) fn is_young(&self) -> Result<bool> {
        os::is_locked(&self.file, LockKind::Exclusive, BEGINNING)
            .map_err(|error| Error::os("ask for the beginner of", &self.home.location, error))
    }

    /// Removes the ledger's name, if it is still this one's.
    pub(crate) fn unlink(&self) -> Result<bool> {
        self.home.backend.unlink(&self.home.location, Some(self.facts.id))
    }

    /// Leases and maps it. `None`: it was unlinked meanwhile.
    pub(crate) fn attach(self) -> Result<Option<LedgerSegment>> {
        let Self { home, file, record, chunks, .. } = self;
        let how = Attach { sparse: true, ..Attach::new(Access::ReadWrite) };
        let segment = Segment::attach_file(file, &home, Expect::Bookkeeping, how)?;
        Ok(segment.map(|segment| LedgerSegment { segment, home, record, chunks }))
    }

    /// Reads what it says now, states included.
    #[allow(clippy::naive_bytecount)] // a hundred million chunks take a moment
    pub(crate) fn look(&self) -> Result<Ledger> {
        let mut buffer = vec![0; STEP.min(self.chunks)];
        let (mut done, mut at) = (0, 0);
        while at < self.chunks {
            let states = &mut buffer[..STEP.min(self.chunks - at)];
            os::read_exact_at(&self.file, states, at as u64)
                .map_err(|error| Error::os("read the ledger", &self.home.location, error))?;
            done += states.iter().filter(|state| **state == DONE).count();
            at += states.len();
        }
        let Work { dtype, order, shape, chunk_shape, chunk_offset, fingerprint } = self.record.work.clone();
        Ok(Ledger { dtype, order, shape, chunk_shape, chunk_offset, fingerprint, done, total: self.chunks })
    }
}

/// An attached ledger: as long as it lives, its buffer is in use.
#[derive(Debug)]
pub(crate) struct LedgerSegment {
    segment: Segment,
    home: Home,
    record: Record,
    chunks: usize,
}

impl LedgerSegment {
    /// Writes a ledger in which every chunk is pending, as a draft.
    pub(crate) fn draft(backend: &Arc<dyn Backend>, record: &Record, options: DraftOptions) -> Result<DraftSegment> {
        let chunks = record.work.chunks()?;
        let too_large = || Error::TooLarge { location: "ledger".into(), shape: record.work.shape.clone(), item: 1 };
        let states = state_bytes(chunks as u64).ok_or_else(too_large)?;
        let trailer = record.to_trailer(chunks, states, crate::random::number());
        let draft = DraftSegment::new(Arc::clone(backend), states + trailer.len() as u64, options)?;
        write_trailer(draft.segment(), &trailer);
        Ok(draft)
    }

    /// Takes over a draft that was published.
    pub(crate) fn of(segment: Segment, home: Home, record: Record) -> Result<Self> {
        let chunks = record.work.chunks()?;
        Ok(Self { segment, home, record, chunks })
    }

    pub(crate) fn record(&self) -> &Record {
        &self.record
    }

    pub(crate) fn location(&self) -> &Location {
        &self.home.location
    }

    /// Whether the name still leads to this very ledger.
    pub(crate) fn is_current(&self) -> Result<bool> {
        self.home.leads_to(self.segment.id())
    }

    /// Removes the ledger's name, if it is still this one's.
    pub(crate) fn unlink(&self) -> Result<bool> {
        self.home.backend.unlink(&self.home.location, Some(self.segment.id()))
    }

    /// Whether a chunk is finished; if so, what its painter wrote is visible.
    pub(crate) fn is_done(&self, index: usize) -> bool {
        self.state(index).load(Ordering::Acquire) == DONE
    }

    /// Marks a chunk as finished, making what was written to it visible to whoever sees the mark.
    pub(crate) fn set_done(&self, index: usize) {
        self.state(index).store(DONE, Ordering::Release);
    }

    /// Counts the finished chunks.
    pub(crate) fn done(&self) -> usize {
        (0..self.chunks).filter(|index| self.is_done(*index)).count()
    }

    #[allow(unsafe_code)]
    fn state(&self, index: usize) -> &AtomicU8 {
        assert!(index < self.chunks && index < self.segment.length(), "chunk {index} of {}", self.chunks);
        // SAFETY: the index is less than the number of mapped bytes.
        let byte = unsafe { self.segment.pointer().add(index) };
        // SAFETY: the byte is mapped for writing as long as `self` lives, and every process, this one included, reaches
        // the states of a ledger through atomics or system calls only: no array can be opened over a file with a footer.
        unsafe { AtomicU8::from_ptr(byte) }
    }
}

/// Writes the trailer at the end of a draft.
#[allow(unsafe_code)]
fn write_trailer(draft: &Segment, trailer: &[u8]) {
    assert!(trailer.len() <= draft.length(), "the draft was made for this trailer");
    // SAFETY: the difference is within the mapping's bytes.
    let to = unsafe { draft.pointer().add(draft.length() - trailer.len()) };
    // SAFETY: the destination has as many bytes, mapped for writing, and nobody else can reach a draft.
    unsafe { std::ptr::copy_nonoverlapping(trailer.as_ptr(), to, trailer.len()) };
}

/// What the ledger of an unfinished renderbuffer says, for programs that do not know its type.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ledger {
    /// Type of the elements.
    pub dtype: DType,
    /// Order of the axes in memory.
    pub order: Order,
    /// Lengths of the array's axes.
    pub shape: Vec<usize>,
    /// Lengths of a chunk's axes.
    pub chunk_shape: Vec<usize>,
    /// Elements that the first chunk lacks along each axis.
    pub chunk_offset: Vec<usize>,
    /// What is painted, in its maker's words.
    pub fingerprint: String,
    /// Chunks that are finished.
    pub done: usize,
    /// Chunks there are.
    pub total: usize,
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
