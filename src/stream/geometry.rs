//! The bytes of a stream's frames file: where each word and each frame is, and what the trailer says about them.
//!
//! ```text
//! header           4096   words: see `StreamGeometry`
//! entries           320   for each slot: number, epoch, times, flags, values beside the elements
//! ring                8   for each slot: the slot of frame n is at place n modulo the number of slots
//! zero                    up to a multiple of 4096
//! slots                   the elements of one frame each, from a multiple of 4096 on
//! dtype               8   numpy type string, padded with NUL                       (the trailer, written once)
//! order               1   'C' or 'F'
//! axes                1   at most 32
//! zero                2
//! meta fields         2   their number, at most 30
//! copied              2   1 if readers copy frames, 0 if they hold them
//! slots               8   their number
//! keeper             16   the random number of the keeper that the stream belongs to
//! shape               8   for each axis
//! meta fields        40   each: see meta.rs
//! notes                   lines as in the description of a plain array, up to the footer
//! footer             64   see segment/footer.rs
//! ```
//!
//! All numbers are little-endian. Any process may have written these bytes. They are copied once and checked before
//! they are used.

use super::meta::{FIELD, MOST_FIELDS, MetaField};
use crate::array::Description;
use crate::counted::fields::{self, Fields, MOST_AXES, check_axes};
use crate::error::{Error, ErrorKind, Result};
use crate::segment::LONGEST_DESCRIPTION;
use crate::segment::footer::{FOOTER, Footer, Kind};

/// Bytes of the header, and what entries and slots are aligned to.
const PAGE: u64 = 4096;
/// Bytes of a slot's entry.
const ENTRY: u64 = 320;
/// Where the values beside the elements begin in an entry.
const META_AT: u64 = 64;
/// Bytes of the field with the element type.
const DTYPE: usize = 8;
/// Fewest slots: one with the newest frame, one that is being written, one that a reader holds.
pub(super) const FEWEST_SLOTS: usize = 3;
/// Most slots. Their locks fit below the end of the lock space.
pub(super) const MOST_SLOTS: usize = 1 << 16;
/// Maximum length of a trailer.
pub(super) const LONGEST_TRAILER: usize = 40 + 8 * MOST_AXES + FIELD * MOST_FIELDS + LONGEST_DESCRIPTION + FOOTER;

/// What the frames of a stream are, and how many slots they have. Offsets are in bytes from the beginning of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StreamGeometry {
    /// Element type, shape and order of a frame, and notes: names of its axes, a resolution.
    pub(super) description: Description,
    pub(super) slots: usize,
    pub(super) fields: Vec<MetaField>,
    /// Whether readers copy frames instead of holding them. Then elements are words too.
    pub(super) is_copied: bool,
    /// The random number of the keeper.
    pub(super) keeper: u128,
}

impl StreamGeometry {
    /// The number of the newest frame; 0 before the first.
    pub(super) const HEAD: u64 = 0;
    /// Grows with each event that a reader waits for. Readers sleep on it.
    pub(super) const BELL: u64 = 8;
    /// What a reader has to expect: see `memory.rs`.
    pub(super) const STATE: u64 = 12;
    /// The number of writers so far, this one included.
    pub(super) const EPOCH: u64 = 16;
    /// Not 0: the writer could not take its lock on this file, which therefore says nothing about its life.
    pub(super) const UNWATCHED: u64 = 24;

    /// Refuses what no file can hold.
    pub(super) fn check(&self, name: &str) -> Result<()> {
        check_axes(self.description.shape())?;
        if !(FEWEST_SLOTS..=MOST_SLOTS).contains(&self.slots) {
            let expected = "from 3 to 65,536: one for the newest frame, one that is being written, and one for each frame that \
                            readers hold";
            return Err(Error::setting("the number of slots", self.slots, expected));
        }
        match self.length() {
            Some(length) if isize::try_from(length).is_ok() => Ok(()),
            _ => {
                let (shape, item) = (self.description.shape().to_vec(), self.description.dtype().size());
                Err(ErrorKind::TooLarge { shape, item }.at(name))
            }
        }
    }

    /// Returns the bytes from one slot to the next. `None`: they do not fit 64 bits.
    fn stride(&self) -> Option<u64> {
        self.description.bytes().max(1).checked_next_multiple_of(PAGE)
    }

    /// Returns the length of the file without its trailer. `None`: it does not fit 64 bits.
    pub(super) fn length(&self) -> Option<u64> {
        self.stride()?.checked_mul(self.slots as u64)?.checked_add(self.elements(0))
    }

    /// Returns where entries and ring end.
    fn entries(&self) -> u64 {
        self.place(0) + 8 * self.slots as u64
    }

    /// Returns where the words end, which no view of elements covers. The geometry was checked.
    pub(super) fn words(&self) -> u64 {
        if self.is_copied { self.length().unwrap_or(0) } else { self.entries() }
    }

    /// Returns the words of one frame. The geometry was checked.
    pub(super) fn frame_words(&self) -> usize {
        usize::try_from(self.description.bytes().div_ceil(8)).unwrap_or(usize::MAX)
    }

    /// Returns where a slot's number is; its epoch and its times follow.
    pub(super) fn entry(slot: usize) -> u64 {
        PAGE + ENTRY * slot as u64
    }

    /// Returns where the values beside a slot's elements are.
    pub(super) fn meta(slot: usize) -> u64 {
        Self::entry(slot) + META_AT
    }

    /// Returns how many bytes the values beside the elements have. Those behind them are zeros.
    pub(super) fn meta_bytes(&self) -> usize {
        self.fields.iter().map(MetaField::end).max().unwrap_or(0)
    }

    /// Returns where the ring has the slot of frame `number`.
    pub(super) fn place(&self, number: u64) -> u64 {
        Self::entry(self.slots) + 8 * (number % self.slots as u64)
    }

    /// Returns where a slot's elements begin. The geometry was checked.
    pub(super) fn elements(&self, slot: usize) -> u64 {
        self.entries().next_multiple_of(PAGE) + self.stride().unwrap_or(0) * slot as u64
    }

    /// Encodes the trailer, footer included.
    pub(super) fn to_trailer(&self, payload: u64, id: u128) -> Vec<u8> {
        let (description, shape) = (&self.description, self.description.shape());
        let mut bytes = fields::head(DTYPE, description.dtype(), description.order(), shape.len());
        bytes.extend(u16::try_from(self.fields.len()).unwrap_or(u16::MAX).to_le_bytes());
        bytes.extend(u16::from(self.is_copied).to_le_bytes());
        bytes.extend((self.slots as u64).to_le_bytes());
        bytes.extend(self.keeper.to_le_bytes());
        bytes.extend(fields::lengths(shape));
        self.fields.iter().for_each(|field| bytes.extend(field.to_bytes()));
        bytes.extend(description.note_lines().into_bytes());
        Footer::append_to(Kind::Frames, payload, id, &mut bytes);
        bytes
    }

    /// Decodes a trailer without its footer, and checks it against the length of what is before it.
    ///
    /// # Errors
    ///
    /// What is wrong, in words.
    pub(super) fn parse(bytes: &[u8], payload: u64) -> Result<Self, String> {
        let mut fields = Fields(bytes);
        let length = |number: u64| usize::try_from(number).map_err(|_| format!("a length is {number}"));
        let (dtype, order, axes) = fields.head::<DTYPE>()?;
        let count = usize::from(u16::from_le_bytes(fields.take()?));
        let is_copied = match u16::from_le_bytes(fields.take()?) {
            0 => false,
            1 => true,
            other => return Err(format!("{other} is no way to read frames")),
        };
        let slots = length(fields.number()?)?;
        let keeper = u128::from_le_bytes(fields.take()?);
        let shape = (0..axes).map(|_| length(fields.number()?)).collect::<Result<Vec<_>, _>>()?;
        if count > MOST_FIELDS {
            return Err(format!("it has {count} fields, but may have at most {MOST_FIELDS}"));
        }
        let meta = (0..count).map(|_| MetaField::parse(&fields.take::<FIELD>()?)).collect::<Result<Vec<_>, _>>()?;
        let plain = Description::new(dtype, &shape, order).map_err(|_| "its frames fit no memory")?;
        let notes = std::str::from_utf8(fields.0).ok().filter(|lines| lines.len() <= LONGEST_DESCRIPTION);
        let description = notes.and_then(|lines| plain.with_note_lines(lines)).ok_or("the notes are malformed")?;
        let found = Self { description, slots, fields: meta, is_copied, keeper };
        if !(FEWEST_SLOTS..=MOST_SLOTS).contains(&slots) || found.length() != Some(payload) {
            return Err(format!("{slots} slots of its shape do not make {payload} bytes"));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::{DType, Order};

    fn sample(shape: &[usize], slots: usize) -> StreamGeometry {
        let fields = vec![MetaField::new("gain", DType::F64, 1, 0).expect("a field")];
        let description = Description::new(DType::U16, shape, Order::C).expect("small");
        let description = if slots == 3 { description } else { description.with_note("axes", "y x").expect("a note") };
        StreamGeometry { description, slots, fields, is_copied: slots == 7, keeper: 7 }
    }

    #[test]
    fn trailer_is_read_back() {
        for (shape, slots) in [(&[][..], 3), (&[0, 5], 3), (&[3, 4], 7), (&[1000], 100)] {
            let geometry = sample(shape, slots);
            geometry.check("x").expect("small");
            let payload = geometry.length().expect("small");
            let bytes = geometry.to_trailer(payload, 1);
            assert_eq!(StreamGeometry::parse(&bytes[..bytes.len() - FOOTER], payload), Ok(geometry.clone()));
            assert!(StreamGeometry::parse(&bytes[..bytes.len() - FOOTER], payload + 1).is_err());
            let without_notes = bytes.len() - FOOTER - geometry.description.note_lines().len();
            for cut in (0..bytes.len() - FOOTER).filter(|cut| *cut != without_notes) {
                assert!(StreamGeometry::parse(&bytes[..cut], payload).is_err(), "cut at {cut}");
            }
        }
    }

    #[test]
    fn nothing_overlaps() {
        let geometry = sample(&[3, 4], 5);
        assert!(StreamGeometry::meta(4) + super::super::meta::MOST_BYTES as u64 <= geometry.place(0));
        assert_eq!((geometry.place(4) + 8, geometry.elements(0) % PAGE), (geometry.words(), 0));
        assert!(geometry.words() <= geometry.elements(0));
        let copied = StreamGeometry { is_copied: true, ..geometry.clone() };
        assert_eq!((copied.elements(0), Some(copied.words())), (geometry.elements(0), geometry.length()));
        assert!(copied.elements(4) + 8 * copied.frame_words() as u64 <= copied.words());
        assert_eq!(geometry.length(), Some(geometry.elements(5)));
        assert_eq!((geometry.place(5), geometry.place(7)), (geometry.place(0), geometry.place(2)));
    }

    #[test]
    fn slots_and_sizes_are_limited() {
        for slots in [0, 2, MOST_SLOTS + 1] {
            let error = sample(&[1], slots).check("x").unwrap_err();
            assert!(matches!(error.kind, ErrorKind::InvalidSetting { .. }), "{error}");
        }
        let error = sample(&[isize::MAX as usize / 4], 3).check("x").unwrap_err();
        assert!(matches!(error.kind, ErrorKind::TooLarge { .. }), "{error}");
    }
}
