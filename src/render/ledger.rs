//! The ledger: a second segment under a reserved name. It records what is painted and which chunks are finished.
//!
//! ```text
//! one state byte per chunk, 0 = pending, 1 = done; padded with zeros to 64 bytes      (the states, shared atomics)
//! dtype            8  numpy type string, padded with NUL                              (the trailer, written once)
//! order            1  'C' or 'F'
//! axes             1  at most 32
//! zero             2
//! fingerprint      4  its length in bytes, at most 4096
//! payload device   8  } the file that is painted
//! payload number   8  }
//! boot id         16
//! chunks           8  their number
//! shape            8 per axis
//! chunk shape      8 per axis
//! chunk offset     8 per axis
//! fingerprint         UTF-8
//! footer          64  see segment/footer.rs
//! ```
//!
//! *The payload* is the painted file, except in [`Footer`]: there it is the bytes before the trailer, here the states.
//!
//! All numbers are little-endian. Any process may have written these bytes. They are copied once and checked before
//! they are used.

use std::fs::File;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use ndarray::IxDyn;

use super::grid::ChunkGrid;
use crate::array::{DType, Order};
use crate::backend::lock_space::{BEGINNING, LEASE};
use crate::backend::{Access, Companion, DraftOptions, Location, Turn};
use crate::counted::fields::{self, Fields, MOST_AXES, check_axes};
use crate::error::{Error, ErrorKind, OtherWork, Result};
use crate::os::{self, Facts, FileId, LockKind};
use crate::segment::footer::{FOOTER, Footer, Kind};
use crate::segment::{Attach, DraftSegment, Expect, Home, Mapped, Segment, is_leased, pin, read_footer};

/// Maximum length of a fingerprint in bytes.
const LONGEST_FINGERPRINT: usize = 4096;
/// Bytes of the field with the element type.
const DTYPE: usize = 8;
/// Maximum length of a trailer: the fields, three numbers per axis, the fingerprint and the footer.
const LONGEST_TRAILER: usize = 56 + 3 * 8 * MOST_AXES + LONGEST_FINGERPRINT + FOOTER;
/// Number of state bytes that are read at a time.
const STEP: usize = 1 << 16;
/// The state bytes are padded to a multiple of this, the size of a cache line.
const STATE_ALIGNMENT: u64 = 64;

/// State of a finished chunk. Any other value means that the chunk is to be painted.
const DONE: u8 = 1;

/// The work: what is painted. All painters of a buffer must have the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RenderSpec {
    pub(crate) dtype: DType,
    pub(crate) order: Order,
    pub(crate) shape: Vec<usize>,
    pub(crate) chunk_shape: Vec<usize>,
    pub(crate) chunk_offset: Vec<usize>,
    pub(crate) fingerprint: String,
}

/// Returns only the words in which two texts differ, if both have equally many: fingerprints may be long.
fn differing_words(texts: [&str; 2]) -> [String; 2] {
    let [one, other] = texts.map(|text| text.split(' ').collect::<Vec<_>>());
    if one.len() != other.len() {
        return texts.map(str::to_owned);
    }
    let (one, other): (Vec<_>, Vec<_>) = one.into_iter().zip(other).filter(|(one, other)| one != other).unzip();
    [one.join(" "), other.join(" ")]
}

impl RenderSpec {
    /// Refuses a work that a ledger cannot hold.
    pub(crate) fn check(&self) -> Result<()> {
        if self.fingerprint.len() > LONGEST_FINGERPRINT {
            return Err(Error::setting(
                "the fingerprint",
                format!("{} bytes long", self.fingerprint.len()),
                "at most 4096 bytes of text (use a hash of a longer one)",
            ));
        }
        check_axes(&self.shape)
    }

    /// Fails with `Mismatch`, naming the first difference, unless both works are the same. `state` is that of the
    /// buffer that was found.
    pub(crate) fn require(&self, found: &Self, location: &Location, state: OtherWork) -> Result<()> {
        let [own, other] = differing_words([&self.fingerprint, &found.fingerprint]);
        let described = |work: &Self, fingerprint: &str| {
            [
                ("element type", format!("{:?}", work.dtype.as_str())),
                ("shape", format!("{:?}", work.shape)),
                ("order", format!("{:?}", work.order)),
                ("chunk shape", format!("{:?}", work.chunk_shape)),
                ("chunk offset", format!("{:?}", work.chunk_offset)),
                ("fingerprint", format!("{fingerprint:?}")),
            ]
        };
        let mut pairs = described(self, &own).into_iter().zip(described(found, &other));
        pairs.find(|(expected, found)| expected != found).map_or(Ok(()), |((what, expected), (_, found))| {
            Err(ErrorKind::Mismatch { what, expected, found, state }.at(location))
        })
    }

    /// Returns a digest of all that distinguishes this work from others, as 32 hexadecimal digits: FNV-1a with 128
    /// bits, of the fields of the ledger's trailer that say what is painted. Other works have other digests, but for
    /// accidents and for attackers.
    pub(crate) fn digest(&self) -> String {
        const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        let head = fields::head(DTYPE, self.dtype, self.order, self.shape.len());
        let lengths = self.lengths().concat();
        let bytes = head.into_iter().chain(fields::lengths(&lengths)).chain(self.fingerprint.bytes());
        let digest = bytes.fold(BASIS, |digest, byte| (digest ^ u128::from(byte)).wrapping_mul(PRIME));
        format!("{digest:032x}")
    }

    /// Returns the size of the painted array in bytes. `None`: it does not fit 64 bits.
    pub(crate) fn bytes(&self) -> Option<u64> {
        let item = self.dtype.size() as u64;
        self.shape.iter().try_fold(item, |so_far, length| so_far.checked_mul(*length as u64))
    }

    /// Returns the lengths of array, chunks and offset.
    fn lengths(&self) -> [&[usize]; 3] {
        [&self.shape, &self.chunk_shape, &self.chunk_offset]
    }

    /// Returns the number of chunks.
    pub(crate) fn chunks(&self) -> Result<usize> {
        let [shape, chunk, offset] = self.lengths().map(IxDyn);
        ChunkGrid::new(shape, chunk, offset).map(|grid| grid.len())
    }

    /// Returns the error for an array that exceeds the address space of this process. Another process may have more.
    pub(crate) fn too_large(&self, location: &Location) -> Error {
        ErrorKind::TooLarge { shape: self.shape.clone(), item: self.dtype.size() }.at(location)
    }
}

/// The boot in which the states of a ledger were written: its number, or zeros if the creator could not read that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Boot(pub(crate) [u8; 16]);

impl Boot {
    /// Returns this boot, as far as this process can tell.
    pub(crate) fn current() -> Self {
        Self(os::known_boot_id().unwrap_or_default())
    }

    /// Returns whether it is this boot; `None` if that cannot be told.
    fn is_current(self) -> Option<bool> {
        let boots = [self, Self::current()];
        (!boots.contains(&Self([0; 16]))).then(|| boots[0] == boots[1])
    }
}

/// The decoded trailer of a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LedgerRecord {
    pub(crate) work: RenderSpec,
    /// The file that is painted.
    pub(crate) payload: FileId,
    pub(crate) boot: Boot,
    pub(crate) chunks: usize,
}

impl LedgerRecord {
    fn to_trailer(&self, state_bytes: u64, id: u128) -> Vec<u8> {
        let work = &self.work;
        let mut bytes = fields::head(DTYPE, work.dtype, work.order, work.shape.len());
        bytes.extend(u32::try_from(work.fingerprint.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend(self.payload.device.to_le_bytes());
        bytes.extend(self.payload.number.to_le_bytes());
        bytes.extend(self.boot.0);
        bytes.extend(fields::lengths(&[self.chunks]));
        bytes.extend(fields::lengths(&work.lengths().concat()));
        bytes.extend(work.fingerprint.as_bytes());
        Footer::append_to(Kind::Ledger, state_bytes, id, &mut bytes);
        bytes
    }

    /// Decodes a trailer without its footer. A length that does not fit a `usize` is decoded as `usize::MAX`.
    fn parse(bytes: &[u8]) -> Result<Self, String> {
        fn length(fields: &mut Fields<'_>) -> Result<usize, String> {
            Ok(usize::try_from(fields.number()?).unwrap_or(usize::MAX))
        }
        let mut fields = Fields(bytes);
        let (dtype, order, axes) = fields.head::<DTYPE>()?;
        let fingerprint_length = u32::from_le_bytes(fields.take()?) as usize;
        let payload = FileId { device: fields.number()?, number: fields.number()? };
        let (boot, chunks) = (Boot(fields.take()?), length(&mut fields)?);
        let mut lengths = || (0..axes).map(|_| length(&mut fields)).collect::<Result<Vec<_>, _>>();
        let (shape, chunk_shape, chunk_offset) = (lengths()?, lengths()?, lengths()?);
        let left = fields.0.len();
        if fingerprint_length > LONGEST_FINGERPRINT || left != fingerprint_length {
            return Err(format!("the fingerprint should have {fingerprint_length} bytes, but {left} are left"));
        }
        let fingerprint = std::str::from_utf8(fields.0).map_err(|_| "the fingerprint is not UTF-8")?.to_owned();
        let work = RenderSpec { dtype, order, shape, chunk_shape, chunk_offset, fingerprint };
        Ok(Self { work, payload, boot, chunks })
    }
}

/// Returns the size of the padded states of this many chunks.
fn state_bytes(chunks: usize) -> Option<u64> {
    (chunks as u64).checked_next_multiple_of(STATE_ALIGNMENT)
}

/// An opened and decoded ledger. It is not leased, so the buffer does not count as in use.
#[derive(Debug)]
pub(crate) struct LedgerFile {
    home: Home,
    file: File,
    id: FileId,
    pub(super) record: LedgerRecord,
}

impl LedgerFile {
    /// Opens the ledger of a buffer, lets `admit` check its owner, and decodes it. Returns `None` if there is none.
    pub(crate) fn open(buffer: &Home, admit: impl FnOnce(&Facts) -> Result<()>) -> Result<Option<Self>> {
        let home = buffer.companion(Companion::Ledger)?;
        let Some((file, facts)) = pin(&home.backend, &home.location, Access::ReadWrite)? else { return Ok(None) };
        admit(&facts)?;
        let invalid = |reason| ErrorKind::Trailer { reason }.at(&buffer.location);
        let raw = read_footer(&file, facts.length, &home.location)?;
        let raw = raw.ok_or_else(|| invalid("it is shorter than a footer".into()))?;
        let footer = raw.validate(Kind::Ledger, facts.length).map_err(invalid)?;
        if footer.trailer as usize > LONGEST_TRAILER {
            return Err(invalid(format!(
                "the trailer has {} bytes, but may have at most {LONGEST_TRAILER}",
                footer.trailer
            )));
        }
        let mut trailer = vec![0; footer.trailer as usize - FOOTER];
        os::read_exact_at(&file, &mut trailer, footer.payload)
            .map_err(|error| Error::os("read the ledger of", &buffer.location, error))?;
        if !raw.covers(&trailer) {
            return Err(invalid("the trailer's checksum is wrong".into()));
        }
        let record = LedgerRecord::parse(&trailer).map_err(invalid)?;
        let work = &record.work;
        let chunks = work.chunks();
        // The ledger is not damaged: a process with a larger address space may have written it.
        if work.lengths().concat().contains(&usize::MAX)
            || matches!(chunks, Err(Error { kind: ErrorKind::TooLarge { .. }, .. }))
        {
            return Err(work.too_large(&buffer.location));
        }
        let chunks = chunks.map_err(|error| invalid(error.to_string()))?;
        if work.bytes().is_none() {
            return Err(invalid("the size of the array does not fit 64 bits".into()));
        }
        if chunks != record.chunks || state_bytes(chunks) != Some(footer.payload) {
            let (found, states) = (record.chunks, footer.payload);
            return Err(invalid(format!(
                "it has {found} chunks and {states} state bytes, but its shape needs {chunks} chunks"
            )));
        }
        Ok(Some(Self { home, file, id: facts.id, record }))
    }

    /// Returns whether the states were written in this boot; `None` if this process, or the creator, could not tell its
    /// boot.
    pub(crate) fn is_of_this_boot(&self) -> Option<bool> {
        self.record.boot.is_current().or_else(|| os::is_lost_at_boot(&self.file).then_some(true))
    }

    /// Returns whether a process is attached to this ledger.
    pub(crate) fn is_in_use(&self) -> Result<bool> {
        is_leased(&self.file, &self.home.location)
    }

    /// Returns whether the creator is alive and has not named the payload yet: it holds BEGINNING until then.
    pub(crate) fn is_young(&self) -> Result<bool> {
        os::is_locked(&self.file, LockKind::Exclusive, BEGINNING)
            .map_err(|error| Error::os("query the lock of the creator of", &self.home.location, error))
    }

    /// Returns whether the name still leads to this ledger.
    pub(crate) fn is_current(&self) -> Result<bool> {
        self.home.leads_to(self.id)
    }

    /// Locks out processes that begin, join or replace the buffer, without waiting.
    pub(crate) fn lock_out(&self) -> Result<LockedOut> {
        let failed = |error| Error::os("lock the ledger of", &self.home.location, error);
        let mut alone = Turn::new(self.file.try_clone().map_err(failed)?);
        // BEGINNING first: a process that has it, and with it the lease, is at work for a moment only, and is no
        // painter.
        if !alone.try_lock(LockKind::Exclusive, BEGINNING).map_err(failed)? {
            return Ok(LockedOut::Changing);
        }
        if !alone.try_lock(LockKind::Exclusive, LEASE).map_err(failed)? {
            return Ok(LockedOut::Attached);
        }
        Ok(LockedOut::Alone(alone))
    }

    /// Removes the ledger's name, if it still leads to this file. Waits at most `limit` for another process that
    /// changes the name.
    pub(crate) fn unlink_within(&self, limit: Duration) -> Result<bool> {
        self.home.unlink_within(self.id, limit)
    }

    /// Leases and maps the ledger. Returns `None` if it was unlinked meanwhile. Waits at most `patience` for its lease.
    pub(crate) fn attach(self, patience: Duration) -> Result<Option<LedgerSegment>> {
        let Self { home, file, record, .. } = self;
        let how = Attach { patience, ..Attach::new(Access::ReadWrite) };
        let segment = Segment::attach_file(file, &home, Expect::Bookkeeping, how)?;
        Ok(segment.map(|segment| LedgerSegment { segment, record }))
    }

    /// Returns the properties of the buffer, and how many chunks are finished.
    #[allow(clippy::naive_bytecount)] // fast enough for a hundred million chunks
    pub(crate) fn look(&self) -> Result<Ledger> {
        let total = self.record.chunks;
        let mut buffer = vec![0; STEP.min(total)];
        let (mut done, mut at) = (0, 0);
        while at < total {
            let states = &mut buffer[..STEP.min(total - at)];
            os::read_exact_at(&self.file, states, at as u64)
                .map_err(|error| Error::os("read the ledger", &self.home.location, error))?;
            done += states.iter().filter(|state| **state == DONE).count();
            at += states.len();
        }
        let RenderSpec { dtype, order, shape, chunk_shape, chunk_offset, fingerprint } = self.record.work.clone();
        Ok(Ledger { dtype, order, shape, chunk_shape, chunk_offset, fingerprint, done, total })
    }
}

/// Result of locking out the processes of a buffer.
pub(crate) enum LockedOut {
    /// No process is attached to the ledger, and until the locks are dropped none can attach, begin or replace the
    /// buffer.
    Alone(Turn),
    /// A process is attached.
    Attached,
    /// A process begins the buffer, or replaces it.
    Changing,
}

/// An attached ledger. Its lease marks the buffer as in use.
#[derive(Debug)]
pub(crate) struct LedgerSegment {
    pub(super) segment: Segment,
    pub(super) record: LedgerRecord,
}

impl LedgerSegment {
    /// Creates the draft of a ledger in which every chunk is pending.
    pub(crate) fn draft(home: &Home, record: &LedgerRecord, options: DraftOptions) -> Result<DraftSegment> {
        let states = state_bytes(record.chunks).ok_or_else(|| record.work.too_large(&home.location))?;
        let trailer = record.to_trailer(states, crate::random::number());
        let draft = DraftSegment::new(home.backend.clone(), states + trailer.len() as u64, options)?;
        write_trailer(draft.mapped(), &trailer);
        Ok(draft)
    }

    /// Returns whether the name still leads to this ledger.
    pub(crate) fn is_current(&self) -> Result<bool> {
        self.segment.home().leads_to(self.segment.id())
    }

    /// Removes the ledger's name, if it still leads to this file.
    pub(crate) fn unlink(&self) -> Result<bool> {
        self.segment.home().unlink(self.segment.id())
    }

    /// As [`unlink`](Self::unlink). Waits at most `limit` for another process that changes the name.
    pub(crate) fn unlink_within(&self, limit: Duration) -> Result<bool> {
        self.segment.home().unlink_within(self.segment.id(), limit)
    }

    /// Returns whether a chunk is finished.
    ///
    /// The load is an acquire load and pairs with the release store in [`set_done`](Self::set_done): a process that
    /// sees the state also sees all elements that the painter wrote before, even without taking the lock on the chunk's
    /// cell.
    pub(crate) fn is_done(&self, index: usize) -> bool {
        os::point(false);
        self.state(index).load(Ordering::Acquire) == DONE
    }

    /// Marks a chunk as finished. The caller holds the write lock on the chunk's cell, and has written all elements.
    ///
    /// The store is a release store, so the elements become visible before the state does.
    pub(crate) fn set_done(&self, index: usize) {
        os::point(true);
        self.state(index).store(DONE, Ordering::Release);
    }

    /// Returns the number of finished chunks. Loads every state.
    pub(crate) fn done(&self) -> usize {
        (0..self.record.chunks).filter(|index| self.is_done(*index)).count()
    }

    #[allow(unsafe_code)]
    fn state(&self, index: usize) -> &AtomicU8 {
        let chunks = self.record.chunks;
        assert!(index < chunks && index < self.segment.length(), "chunk {index} of {chunks}");
        // SAFETY: the index is less than the number of mapped bytes.
        let byte = unsafe { self.segment.pointer().add(index) };
        // SAFETY: the byte is mapped for writing as long as `self` lives. All processes, this one included, access the
        // states of a ledger only through atomics or system calls, because a file with a footer cannot be opened as an
        // array.
        unsafe { AtomicU8::from_ptr(byte) }
    }
}

/// Copies the trailer to the end of a draft.
#[allow(unsafe_code)]
fn write_trailer(draft: &Mapped, trailer: &[u8]) {
    assert!(trailer.len() <= draft.length(), "the draft has room for this trailer");
    // SAFETY: the offset is at most the length of the mapping.
    let to = unsafe { draft.pointer().add(draft.length() - trailer.len()) };
    // SAFETY: from `to` to the end of the mapping are `trailer.len()` bytes, mapped for writing. Only its creator can
    // reach a draft, so no other process accesses them.
    unsafe { std::ptr::copy_nonoverlapping(trailer.as_ptr(), to, trailer.len()) };
}

/// The properties of an unfinished renderbuffer, returned by [`ledger`](super::ledger()).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ledger {
    /// Element type.
    pub dtype: DType,
    /// Order of the axes in memory.
    pub order: Order,
    /// Lengths of the array's axes.
    pub shape: Vec<usize>,
    /// Lengths of a chunk's axes.
    pub chunk_shape: Vec<usize>,
    /// Elements that the first chunk lacks along each axis.
    pub chunk_offset: Vec<usize>,
    /// The fingerprint: what is painted, in the creator's words.
    pub fingerprint: String,
    /// Number of finished chunks.
    pub done: usize,
    /// Number of all chunks.
    pub total: usize,
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
