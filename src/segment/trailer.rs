//! The trailer of a counted array, an arena or a file of counters: numbers that change, a record that does not, and the
//! footer.
//!
//! ```text
//! offset  size  (little-endian; this page begins at a multiple of 4096 behind the payload, zeros between)
//!      0     8  number of handles, flags: see counts.rs
//!      8    56  zero
//!     64  2048  128 tickets, each a number and a deadline (8 + 8)
//!   2112  1328  zero
//!   3440    16  the file in which it was created: device, inode number (8 + 8)
//!   3456   272  the name it has or will get: its length (2), UTF-8 (255), zeros
//!   3728   304  the record, in the form of counted/record.rs or arena/tables/geometry.rs
//!   4032    64  the footer; its checksum covers file, name and record
//! ```
//!
//! Arenas and counters have no tickets, and of the flags only *kept*.
//!
//! The bytes are input: [`Trailer`] is a copy that was checked. Only the counts are read from shared memory again.

use std::fs::File;
use std::time::Duration;

use super::counts::{self, Counts, MOST_TICKETS, State, Ticket};
use super::footer::{FOOTER, Footer, Kind, RawFooter};
use crate::error::{Error, ErrorKind, Result};
use crate::os::{self, Facts, FileId};

/// Bytes of the page. It also begins at a multiple of this.
pub(crate) const PAGE: usize = 4096;
/// Bytes of the record.
pub(crate) const RECORD: usize = 304;
/// Bytes of the footer, the last ones of the file.
pub(crate) const FOOTER_BYTES: u64 = FOOTER as u64;

const TICKETS_AT: usize = 64;
const TICKET: usize = 16;
/// Bytes of the name, with its length before it and zeros behind it.
const NAME: usize = 272;
const LONGEST_NAME: usize = 255;
const NAME_AT: usize = PAGE - FOOTER - RECORD - NAME;
const FILE_AT: usize = NAME_AT - 16;
const RECORD_AT: usize = NAME_AT + NAME;
const FOOTER_AT: usize = RECORD_AT + RECORD;

// The bytes used as atomics are exactly the counts and the tickets. They end before the constant bytes.
const _: () = assert!(size_of::<Counts>() == TICKETS_AT + TICKET * MOST_TICKETS && size_of::<Counts>() <= FILE_AT);
const _: () = assert!(PAGE % align_of::<Counts>() == 0);

/// A trailer. Its constant part was checked against the file, and its changing part is a copy from the time of reading.
#[derive(Debug, Clone)]
pub(crate) struct Trailer {
    pub(crate) kind: Kind,
    pub(crate) payload: u64,
    /// Random number of this array.
    pub(crate) id: u128,
    pub(crate) state: State,
    tickets: Vec<(u64, u64)>,
    /// The name for which it was created. Under another name the file is a copy.
    pub(crate) name: Box<str>,
    pub(crate) record: [u8; RECORD],
    /// The file in which it was created.
    made_in: FileId,
    /// The file from which it was read, and the length of that file.
    pub(crate) file: FileId,
    pub(crate) length: u64,
}

/// Returns the length of the file for a payload, padding and page included; `None` if no file can be that long.
pub(crate) fn file_length(payload: u64) -> Option<u64> {
    payload.checked_next_multiple_of(PAGE as u64)?.checked_add(PAGE as u64)
}

/// Returns whether a file of this length can end with the page: it is a whole number of them.
pub(crate) fn fits_in(length: u64) -> bool {
    length >= PAGE as u64 && length % PAGE as u64 == 0
}

/// Makes the page of a new array, which no other process can reach yet.
pub(crate) fn new_page(
    kind: Kind,
    payload: u64,
    id: u128,
    file: FileId,
    state: State,
    name: &str,
    record: &[u8; RECORD],
) -> Result<[u8; PAGE], String> {
    let trailer = file_length(payload).and_then(|length| u32::try_from(length - payload).ok());
    let trailer = trailer.ok_or_else(|| format!("{payload} bytes are too many for a file"))?;
    let mut page = [0; PAGE];
    page[..8].copy_from_slice(&state.to_bytes());
    let length = u16::try_from(name.len()).ok().filter(|_| name.len() <= LONGEST_NAME).ok_or("the name is too long")?;
    page[NAME_AT..NAME_AT + 2].copy_from_slice(&length.to_le_bytes());
    page[NAME_AT + 2..][..name.len()].copy_from_slice(name.as_bytes());
    page[FILE_AT..FILE_AT + 8].copy_from_slice(&file.device.to_le_bytes());
    page[FILE_AT + 8..NAME_AT].copy_from_slice(&file.number.to_le_bytes());
    page[RECORD_AT..FOOTER_AT].copy_from_slice(record);
    let footer = Footer { kind, payload, trailer, id }.to_bytes(&page[FILE_AT..FOOTER_AT]);
    page[FOOTER_AT..].copy_from_slice(&footer);
    Ok(page)
}

impl Trailer {
    /// Reads and checks the trailer of an open counted array.
    pub(crate) fn read(file: &File, facts: &Facts, name: &str) -> Result<Self> {
        Self::read_any(file, facts, name)?.of_kind(Kind::Counted, name)
    }

    /// Refuses a trailer of another kind.
    pub(crate) fn of_kind(self, kind: Kind, name: &str) -> Result<Self> {
        let reason = match self.kind {
            found if found == kind => return Ok(self),
            Kind::Counted => "it is a counted array (open it as a RefcountedArray)",
            Kind::Arena => "it is an arena (open it as an Arena)",
            Kind::Counters => "it is a file of counters (open it as Counters)",
            Kind::Ledger => "it is a ledger",
            Kind::Frames | Kind::Keeper => "it belongs to a stream",
            Kind::Cache => "it is a cache of chunks",
        };
        Err(ErrorKind::Reserved { reason }.at(name))
    }

    /// Reads and checks the trailer of an open counted array, arena or file of counters.
    pub(crate) fn read_any(file: &File, facts: &Facts, name: &str) -> Result<Self> {
        let not_counted = || ErrorKind::NotCounted.at(name);
        let start = facts.length.checked_sub(PAGE as u64).ok_or_else(not_counted)?;
        let mut page = [0; PAGE];
        os::read_exact_at(file, &mut page, start).map_err(|error| Error::os("read the end of", name, error))?;
        let footer = RawFooter::of(&page).filter(RawFooter::is_ours).ok_or_else(not_counted)?;
        Self::check(&page, &footer, facts.id, facts.length).map_err(|reason| ErrorKind::Trailer { reason }.at(name))
    }

    fn check(page: &[u8; PAGE], raw: &RawFooter, file: FileId, length: u64) -> Result<Self, String> {
        let kind = [Kind::Arena, Kind::Counters].into_iter().find(|kind| raw.claims(*kind)).unwrap_or(Kind::Counted);
        let footer = raw.validate(kind, length)?;
        let mut record = [0; RECORD];
        record.copy_from_slice(&page[RECORD_AT..FOOTER_AT]);
        if !raw.covers(&page[FILE_AT..FOOTER_AT]) {
            return Err("the checksum of file, name and record is wrong".into());
        }
        let name = name_of(&page[NAME_AT..RECORD_AT])?;
        let payload = footer.payload;
        if file_length(payload) != Some(length) {
            return Err(format!("a payload of {payload} bytes does not make a file of {length}"));
        }
        let number = |at: usize| page[at..].first_chunk::<8>().copied().unwrap_or_default();
        let ticket = |slot: usize| {
            let at = TICKETS_AT + TICKET * slot;
            (u64::from_le_bytes(number(at)), u64::from_le_bytes(number(at + 8)))
        };
        let [device, inode] = [FILE_AT, FILE_AT + 8].map(|at| u64::from_le_bytes(number(at)));
        let made_in = FileId { device, number: inode };
        let (state, tickets) = (State::of_bytes(number(0)), (0..MOST_TICKETS).map(ticket).collect());
        Ok(Self { kind, payload, id: footer.id, state, tickets, name, record, made_in, file, length })
    }

    /// Refuses an array that was created for another name.
    pub(crate) fn refuse_copy(&self, name: &str) -> Result<()> {
        if *self.name == *name {
            return Ok(());
        }
        let reason = format!("it was made for the name `{}`: this is a copy, or was renamed", self.name);
        Err(ErrorKind::Trailer { reason }.at(name))
    }

    /// Returns whether this is the file in which the array was created, as far as file numbers show.
    ///
    /// False for a copy under the same name in another directory, and for a file whose device got another number at a
    /// reboot. A file that is not the original is never removed.
    pub(crate) fn is_original(&self) -> bool {
        self.made_in == self.file
    }

    /// Returns the footer with which the file becomes that of the next array, with this random number. Everything else
    /// that never changes stays.
    ///
    /// # Errors
    ///
    /// Those of [`new_page`]: none, as the trailer was made by it.
    pub(crate) fn next_footer(&self, id: u128) -> Result<[u8; FOOTER], String> {
        let page = new_page(self.kind, self.payload, id, self.made_in, self.state, &self.name, &self.record)?;
        let mut footer = [0; FOOTER];
        footer.copy_from_slice(&page[FOOTER_AT..]);
        Ok(footer)
    }

    /// Returns the number of tickets in flight, and how long the last of them protects the array.
    pub(crate) fn in_flight(&self, now: Option<Duration>) -> (usize, Duration) {
        counts::count(self.tickets.iter().copied(), now)
    }

    /// Returns whether a reusable ticket was used since it was last renewed.
    pub(crate) fn is_used(&self, ticket: Ticket) -> bool {
        self.tickets.iter().any(|(number, _)| ticket.is_used_in(*number))
    }

    /// Returns the deadlines that replace those by an unknown clock, each with its place in the file.
    pub(crate) fn dated(&self, now: Option<Duration>) -> Vec<(u64, u64)> {
        let start = self.length - PAGE as u64 + (TICKETS_AT + TICKET / 2) as u64;
        let places = (start..).step_by(TICKET).zip(&self.tickets);
        let dated = |(at, (number, until)): (u64, &(u64, u64))| {
            counts::dated(*until, now).filter(|_| counts::is_ticket(*number)).map(|new| (at, new))
        };
        places.filter_map(dated).collect()
    }
}

/// Reads the name that stands before the record.
fn name_of(bytes: &[u8]) -> Result<Box<str>, String> {
    let length = usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
    let (name, rest) = bytes[2..].split_at_checked(length.min(LONGEST_NAME)).ok_or("the name is too long")?;
    if length > LONGEST_NAME || rest.iter().any(|byte| *byte != 0) {
        return Err("the name is too long, or bytes that must be zero are not".into());
    }
    std::str::from_utf8(name).map(Into::into).map_err(|_| "the name is not UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: FileId = FileId { device: 1, number: 2 };

    fn read(page: &[u8], length: u64) -> Result<Trailer, String> {
        let page: &[u8; PAGE] = page.try_into().expect("a page");
        Trailer::check(page, &RawFooter::of(page).expect("long enough"), ID, length)
    }

    #[test]
    fn written_trailer_is_read_back() {
        for (payload, length) in [(0, 4096), (1, 8192), (4096, 8192), (4097, 12288)] {
            assert_eq!(file_length(payload), Some(length));
            let page = new_page(Kind::Counted, payload, 7, ID, State::new(true), "it", &[9; RECORD]).expect("it fits");
            let trailer = read(&page, length).expect("valid");
            assert_eq!((trailer.payload, trailer.id, trailer.record), (payload, 7, [9; RECORD]));
            assert_eq!(&*trailer.name, "it");
            assert!(trailer.is_original());
            assert_eq!((trailer.state, trailer.in_flight(Some(Duration::ZERO)).0), (State::new(true), 0));
        }
        assert_eq!(file_length(u64::MAX), None);
        assert!(new_page(Kind::Counted, u64::MAX - 1, 7, ID, State::new(true), "it", &[9; RECORD]).is_err());
    }

    #[test]
    fn next_footer_changes_the_number_alone() {
        let mut page = new_page(Kind::Counted, 100, 7, ID, State::new(true), "it", &[9; RECORD]).expect("it fits");
        let before = read(&page, 8192).expect("valid");
        page[FOOTER_AT..].copy_from_slice(&before.next_footer(8).expect("it fits"));
        let after = read(&page, 8192).expect("valid");
        assert_eq!((after.id, after.is_original()), (8, true));
        assert_eq!((after.payload, &after.name, after.record), (before.payload, &before.name, before.record));
    }

    #[test]
    fn flipped_bit_of_record_or_footer_is_detected() {
        let page = new_page(Kind::Counted, 100, 7, ID, State::new(true), "it", &[9; RECORD]).expect("it fits");
        for bit in FILE_AT * 8..PAGE * 8 {
            let mut page = page;
            page[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&page, 8192).is_err(), "bit {bit}");
        }
        assert!(read(&page, 12288).is_err() && read(&page, 4096).is_err());
    }
}
