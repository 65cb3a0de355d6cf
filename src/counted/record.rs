//! The record of a counted array: element type, shape, order and creator, in the trailer. It never changes.
//!
//! ```text
//! offset  size  field (little-endian)
//!      0    16  element type, a numpy type string, padded with NUL
//!     16     1  order, 'C' or 'F'
//!     17     1  number of axes, at most 32
//!     18     2  zero
//!     20     4  process number of the creator
//!     24     8  time of creation, in nanoseconds since 1970
//!     32   256  lengths of the axes, 8 bytes each; the rest zero
//!    288    16  zero
//! ```

use std::time::{Duration, SystemTime};

use ndarray::Dimension;

use super::fields::{self, Fields, MOST_AXES, check_axes};
use crate::array::{DType, Element, Layout, Order};
use crate::error::{ErrorKind, Result};
use crate::segment::trailer::{RECORD, Trailer};

/// Bytes of the field with the element type.
const DTYPE: usize = 16;

/// The decoded record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ArrayRecord {
    pub(super) dtype: DType,
    pub(super) order: Order,
    pub(super) shape: Vec<usize>,
    /// Process number of the creator.
    pub(super) creator: u32,
    pub(super) created: SystemTime,
}

impl ArrayRecord {
    /// Returns the record of an array that this process creates now.
    pub(super) fn new<T: Element, D: Dimension>(layout: &Layout<T, D>) -> Result<Self> {
        let shape = layout.shape().to_vec();
        check_axes(&shape)?;
        let (creator, created) = (std::process::id(), SystemTime::now());
        Ok(Self { dtype: T::DTYPE, order: layout.order(), shape, creator, created })
    }

    pub(super) fn to_bytes(&self) -> [u8; RECORD] {
        let created = self.created.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let created = u64::try_from(created.as_nanos()).unwrap_or(u64::MAX);
        let mut bytes = fields::head(DTYPE, self.dtype, self.order, self.shape.len());
        bytes.extend(self.creator.to_le_bytes());
        bytes.extend(created.to_le_bytes());
        bytes.extend(fields::lengths(&self.shape));
        let mut record = [0; RECORD];
        record[..bytes.len()].copy_from_slice(&bytes);
        record
    }

    /// Decodes the record of a trailer, and checks it against the size of the payload.
    pub(super) fn of(trailer: &Trailer, name: &str) -> Result<Self> {
        Self::of_bytes(&trailer.record, trailer.payload).map_err(|reason| ErrorKind::Trailer { reason }.at(name))
    }

    fn of_bytes(bytes: &[u8; RECORD], payload: u64) -> Result<Self, String> {
        let mut fields = Fields(bytes);
        let (dtype, order, axes) = fields.head::<DTYPE>()?;
        let creator = u32::from_le_bytes(fields.take()?);
        let created = SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(fields.number()?));
        let lengths: Vec<u64> = (0..MOST_AXES).map(|_| fields.number()).collect::<Result<_, _>>()?;
        let (lengths, rest) = lengths.split_at(axes);
        if rest.iter().any(|length| *length != 0) || fields.0.iter().any(|byte| *byte != 0) {
            return Err("bytes that must be zero are not".into());
        }
        let item = dtype.size() as u64;
        if lengths.iter().try_fold(item, |so_far, length| so_far.checked_mul(*length)) != Some(payload) {
            return Err(format!("an array of shape {lengths:?} and type {dtype} does not take {payload} bytes"));
        }
        let shape = lengths.iter().map(|length| usize::try_from(*length)).collect::<Result<_, _>>();
        let shape = shape.map_err(|_| "the shape is larger than the address space")?;
        Ok(Self { dtype, order, shape, creator, created: created.unwrap_or(SystemTime::UNIX_EPOCH) })
    }

    /// Returns the layout, if the record has the element type `T` and the number of axes of `D`.
    pub(super) fn layout<T: Element, D: Dimension>(&self, name: &str) -> Result<Layout<T, D>> {
        Layout::<T, _>::described(self.dtype, &self.shape, self.order, name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> ArrayRecord {
        let created = SystemTime::UNIX_EPOCH + Duration::from_nanos(1_234_567_890_123_456_789);
        ArrayRecord { dtype: DType::F32, order: Order::F, shape: vec![2, 3, 4], creator: 4711, created }
    }

    #[test]
    fn decoding_gives_the_encoded_record_back() {
        let record = sample();
        assert_eq!(ArrayRecord::of_bytes(&record.to_bytes(), 96), Ok(record));
        let record = ArrayRecord { shape: Vec::new(), dtype: DType::Complex128, ..sample() };
        assert_eq!(ArrayRecord::of_bytes(&record.to_bytes(), 16), Ok(record));
        let record = ArrayRecord { shape: vec![0; 32], ..sample() };
        assert_eq!(ArrayRecord::of_bytes(&record.to_bytes(), 0), Ok(record));
    }

    /// The checksum catches damage, but a forger can compute it too. So every field is checked.
    #[test]
    fn inconsistent_records_are_refused() {
        let lies: &[(usize, &[u8])] = &[
            (0, b"<f3"),
            (5, b"x"),
            (16, b"A"),
            (17, &[33]),
            (17, &[2]),
            (18, &[1]),
            (32, &(1u64 << 63).to_le_bytes()),
            (32, &3u64.to_le_bytes()),
            (32 + 8 * 31, &[1]),
            (288, &[1]),
        ];
        for (at, lie) in lies {
            let mut bytes = sample().to_bytes();
            bytes[*at..at + lie.len()].copy_from_slice(lie);
            assert!(ArrayRecord::of_bytes(&bytes, 96).is_err(), "{lie:?} at {at}");
        }
    }
}
