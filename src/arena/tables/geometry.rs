//! Layout of an arena's file. Every offset follows from the record in its trailer, which never changes.
//!
//! ```text
//! header          4096   how many spans were ever used (8); how many members ever joined (8); zeros
//! members         4096   64 bytes for each of 46 members: state, process
//! queues                 256 bytes and the cells (8 bytes each, a power of two of them) for each queue, rounded up to 64
//! span table             8 bytes for each span, rounded up to 4096
//! entry table             256 entries of 16 bytes for each span
//! data                   spans of 64 KiB, the first at a multiple of that; counters have none
//! trailer         4096   as of a counted array: flags, name, the record below, footer of kind 3 (4: counters)
//!
//! record: version 2 (4) | 1 = sparse, 2 = counters (4) | spans (8) | queues (4) | cells of a queue (4) | creator's process (4) | zeros
//! ```

use crate::arena::tables::entries::SEATS;
use crate::segment::footer::Kind;
use crate::segment::trailer::{PAGE, RECORD};

/// Bytes of a span.
pub(crate) const SPAN: u64 = 1 << 16;
/// Entries of a span: the maximum number of blocks that it can be cut into.
pub(crate) const ENTRIES_OF_SPAN: u32 = 256;
/// Bytes of an entry, of a member, and of the head of a queue.
pub(crate) const ENTRY: u64 = 16;
pub(crate) const MEMBER: u64 = 64;
pub(crate) const QUEUE_HEAD: u64 = 256;
/// Entries are numbered with 32 bits, and there are 256 of them in each span.
pub(crate) const MOST_SPANS: u64 = (1 << 24) - 1;
pub(crate) const MOST_QUEUES: u32 = 1 << 10;
pub(crate) const MOST_CELLS: u32 = 1 << 24;

const VERSION: u32 = 2;
const SPARSE: u32 = 1;
const COUNTERS: u32 = 2;
const FIELDS: usize = 28;
/// Offset of the members.
pub(crate) const MEMBERS_AT: u64 = PAGE as u64;
const QUEUES_AT: u64 = MEMBERS_AT + PAGE as u64;

const _: () = assert!(SEATS as u64 * MEMBER <= PAGE as u64);

/// The contents of the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) spans: u32,
    pub(crate) queues: u32,
    pub(crate) cells: u32,
    pub(crate) sparse: bool,
    /// Whether the entries have no data: they count memory that lies elsewhere.
    pub(crate) counters: bool,
    /// Number of the process that created the file.
    pub(crate) creator: u32,
}

impl Geometry {
    /// Returns the number of words of a queue: its head, its cells, and padding to a cache line.
    pub(crate) fn queue_words(&self) -> u64 {
        (QUEUE_HEAD + u64::from(self.cells) * 8).next_multiple_of(64) / 8
    }

    /// Returns the offset of queue `index`.
    pub(crate) fn queue_at(&self, index: u32) -> u64 {
        QUEUES_AT + u64::from(index) * self.queue_words() * 8
    }

    pub(crate) fn spans_at(&self) -> u64 {
        self.queue_at(self.queues).next_multiple_of(PAGE as u64)
    }

    pub(crate) fn entries(&self) -> u32 {
        self.spans * ENTRIES_OF_SPAN
    }

    pub(crate) fn entries_at(&self) -> u64 {
        (self.spans_at() + u64::from(self.spans) * 8).next_multiple_of(PAGE as u64)
    }

    pub(crate) fn data_at(&self) -> u64 {
        (self.entries_at() + u64::from(self.entries()) * ENTRY).next_multiple_of(SPAN)
    }

    /// Returns the bytes of all spans. Counters have none.
    pub(crate) fn capacity(&self) -> u64 {
        if self.counters { 0 } else { u64::from(self.spans) * SPAN }
    }

    /// Returns the bytes before the trailer. The limits on spans, queues and cells keep it from overflowing.
    pub(crate) fn payload(&self) -> u64 {
        self.data_at() + self.capacity()
    }

    pub(crate) fn to_record(self) -> [u8; RECORD] {
        let mut record = [0; RECORD];
        let flags = if self.sparse { SPARSE } else { 0 } | if self.counters { COUNTERS } else { 0 };
        // The upper half of the number of spans is always zero.
        let fields = [VERSION, flags, self.spans, 0, self.queues, self.cells, self.creator];
        for (bytes, field) in record.chunks_exact_mut(4).zip(fields) {
            bytes.copy_from_slice(&field.to_le_bytes());
        }
        record
    }

    /// Decodes a record, and checks it against the length of the payload.
    ///
    /// # Errors
    ///
    /// A text that says what is wrong.
    pub(crate) fn of_record(kind: Kind, record: &[u8; RECORD], payload: u64) -> Result<Self, String> {
        let field = |field: usize| u32::from_le_bytes(std::array::from_fn(|byte| record[field * 4 + byte]));
        let [version, flags, spans, more_spans, queues, cells, creator] = std::array::from_fn(field);
        if version != VERSION {
            return Err(format!("its record is of version {version}, and this program reads {VERSION}"));
        }
        if flags & !(SPARSE | COUNTERS) != 0 || record[FIELDS..].iter().any(|byte| *byte != 0) {
            return Err("bytes that must be zero are not".into());
        }
        let counters = flags & COUNTERS != 0;
        if counters != (kind == Kind::Counters) {
            return Err("footer and record disagree on whether it has data".into());
        }
        let cells_fit = cells.is_power_of_two() || (cells == 0 && queues == 0);
        if queues > MOST_QUEUES || cells > MOST_CELLS || !cells_fit {
            return Err(format!("{queues} queues of {cells} cells are not possible"));
        }
        let all_spans = u64::from(more_spans) << 32 | u64::from(spans);
        if !(1..=MOST_SPANS).contains(&all_spans) {
            return Err(format!("{all_spans} spans are not possible"));
        }
        let geometry = Self { spans, queues, cells, sparse: flags & SPARSE != 0, counters, creator };
        if geometry.payload() != payload {
            return Err(format!("{spans} spans, {queues} queues of {cells} cells do not make {payload} bytes"));
        }
        Ok(geometry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: Geometry = Geometry { spans: 10, queues: 8, cells: 1024, sparse: true, counters: false, creator: 7 };

    #[test]
    fn written_record_is_read_back() {
        assert_eq!(Geometry::of_record(Kind::Arena, &SAMPLE.to_record(), SAMPLE.payload()), Ok(SAMPLE));
        let least = Geometry { spans: 1, queues: 0, cells: 0, sparse: false, counters: false, creator: 0 };
        assert_eq!(Geometry::of_record(Kind::Arena, &least.to_record(), least.payload()), Ok(least));
        let counters = Geometry { counters: true, ..least };
        let (record, payload) = (counters.to_record(), counters.payload());
        assert_eq!(Geometry::of_record(Kind::Counters, &record, payload), Ok(counters));
        assert!(Geometry::of_record(Kind::Arena, &record, payload).is_err());
        assert_eq!(counters.payload(), counters.data_at());
    }

    #[test]
    fn largest_geometry_does_not_overflow() {
        #[allow(clippy::cast_possible_truncation)] // it is less
        let spans = MOST_SPANS as u32;
        let most = Geometry { spans, queues: MOST_QUEUES, cells: MOST_CELLS, ..SAMPLE };
        assert_eq!(Geometry::of_record(Kind::Arena, &most.to_record(), most.payload()), Ok(most));
        assert!(most.payload() > most.capacity() && most.entries() > u32::MAX - 512);
    }

    /// Checksums find most damage, but a hostile process can write a checksum that fits.
    #[test]
    fn changed_record_is_refused() {
        for bit in 0..FIELDS * 8 {
            let mut record = SAMPLE.to_record();
            record[bit / 8] ^= 1 << (bit % 8);
            let read = Geometry::of_record(Kind::Arena, &record, SAMPLE.payload());
            // The flag `sparse` and the creator's number may have any value: no offset depends on them. A few cells
            // more or less can be lost in rounding; they fit into the file in any case.
            let told = bit == 32 || bit >= 24 * 8;
            let hidden =
                (16 * 8..24 * 8).contains(&bit) && read.as_ref().is_ok_and(|read| read.payload() == SAMPLE.payload());
            assert!(read.is_err() || told || hidden, "bit {bit}: {read:?}");
        }
        for spans in [0, MOST_SPANS + 1, u64::MAX] {
            let mut record = SAMPLE.to_record();
            record[8..16].copy_from_slice(&spans.to_le_bytes());
            assert!(Geometry::of_record(Kind::Arena, &record, SAMPLE.payload()).is_err(), "{spans}");
        }
        let mut record = SAMPLE.to_record();
        record[RECORD - 1] = 1;
        assert!(Geometry::of_record(Kind::Arena, &record, SAMPLE.payload()).is_err());
        assert!(Geometry::of_record(Kind::Arena, &SAMPLE.to_record(), SAMPLE.payload() + 1).is_err());
    }
}
