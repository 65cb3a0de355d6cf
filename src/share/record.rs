//! What a counted array says about itself, as bytes that never change.
//!
//! ```text
//! offset  size  field (little-endian)
//!      0    16  element type, a numpy type string, padded with NUL
//!     16     1  order, 'C' or 'F'
//!     17     1  number of axes, at most 32
//!     18     2  zero
//!     20     4  number of the process that made it
//!     24     8  when, in nanoseconds since 1970
//!     32   256  lengths of the axes, 8 bytes each; the rest zero
//!    288    16  zero
//! ```

use std::ops::Range;
use std::time::{Duration, SystemTime};

use ndarray::Dimension;

use crate::array::layout::Layout;
use crate::array::{DType, Element, Order};
use crate::error::{Error, Result};
use crate::segment::trailer::{RECORD, Trailer};

/// Most axes that can be written down.
const MOST_AXES: usize = 32;

const DTYPE_AT: Range<usize> = 0..16;
const ORDER_AT: usize = DTYPE_AT.end;
const AXES_AT: usize = ORDER_AT + 1;
const PADDING_AT: Range<usize> = AXES_AT + 1..AXES_AT + 3;
const MAKER_AT: Range<usize> = PADDING_AT.end..PADDING_AT.end + 4;
const CREATED_AT: Range<usize> = MAKER_AT.end..MAKER_AT.end + 8;
const SHAPE_AT: Range<usize> = CREATED_AT.end..CREATED_AT.end + 8 * MOST_AXES;
const REST_AT: Range<usize> = SHAPE_AT.end..RECORD;

/// What a counted array is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) dtype: DType,
    pub(super) order: Order,
    pub(super) shape: Vec<usize>,
    /// Number of the process that made it.
    pub(super) maker: u32,
    pub(super) created: SystemTime,
}

impl Record {
    /// Describes an array of this process.
    pub(super) fn new<T: Element, D: Dimension>(layout: &Layout<D>) -> Result<Self> {
        let shape = layout.dim.slice().to_vec();
        if shape.len() > MOST_AXES {
            return Err(Error::InvalidSetting {
                setting: "the shape",
                value: format!("{} axes", shape.len()),
                expected: "at most 32 axes",
            });
        }
        let (maker, created) = (std::process::id(), SystemTime::now());
        Ok(Self { dtype: T::DTYPE, order: layout.order, shape, maker, created })
    }

    pub(super) fn to_bytes(&self) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        let dtype = self.dtype.as_str().as_bytes();
        bytes[DTYPE_AT][..dtype.len()].copy_from_slice(dtype);
        bytes[ORDER_AT] = if self.order == Order::F { b'F' } else { b'C' };
        bytes[AXES_AT] = u8::try_from(self.shape.len()).unwrap_or(u8::MAX);
        bytes[MAKER_AT].copy_from_slice(&self.maker.to_le_bytes());
        let created = self.created.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let created = u64::try_from(created.as_nanos()).unwrap_or(u64::MAX);
        bytes[CREATED_AT].copy_from_slice(&created.to_le_bytes());
        for (length, to) in self.shape.iter().zip(bytes[SHAPE_AT].chunks_exact_mut(8)) {
            to.copy_from_slice(&(*length as u64).to_le_bytes());
        }
        bytes
    }

    /// Reads what a trailer says, and holds it against the payload.
    pub(super) fn of(trailer: &Trailer, name: &str) -> Result<Self> {
        Self::of_bytes(&trailer.record, trailer.payload)
            .map_err(|reason| Error::Trailer { location: name.to_owned(), reason })
    }

    fn of_bytes(bytes: &[u8; RECORD], payload: u64) -> Result<Self, String> {
        let dtype = text(&bytes[DTYPE_AT])?;
        let dtype: DType = dtype.parse().map_err(|_| format!("the element type {dtype:?} is unknown"))?;
        let order = match bytes[ORDER_AT] {
            b'C' => Order::C,
            b'F' => Order::F,
            other => return Err(format!("the order {other} is unknown")),
        };
        let axes = usize::from(bytes[AXES_AT]);
        if axes > MOST_AXES {
            return Err(format!("{axes} axes are too many"));
        }
        let number = |range: Range<usize>| range.rev().fold(0, |number, at| number << 8 | u64::from(bytes[at]));
        let lengths: Vec<u64> = SHAPE_AT.step_by(8).map(|at| number(at..at + 8)).collect();
        if lengths[axes..].iter().any(|length| *length != 0) || !all_zero(&bytes[PADDING_AT]) {
            return Err("bytes that must be zero are not".into());
        }
        let item = dtype.size() as u64;
        let bytes_needed = lengths[..axes].iter().try_fold(item, |so_far, length| so_far.checked_mul(*length));
        if bytes_needed != Some(payload) {
            return Err(format!(
                "an array of shape {:?} and type {dtype} does not take {payload} bytes",
                &lengths[..axes]
            ));
        }
        let shape: Result<Vec<usize>, _> = lengths[..axes].iter().copied().map(usize::try_from).collect();
        let shape = shape.map_err(|_| "the shape is larger than the address space".to_owned())?;
        if !all_zero(&bytes[REST_AT]) {
            return Err("bytes that must be zero are not".into());
        }
        #[allow(clippy::cast_possible_truncation)] // four bytes were read
        let maker = number(MAKER_AT) as u32;
        let created = SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(number(CREATED_AT)));
        Ok(Self { dtype, order, shape, maker, created: created.unwrap_or(SystemTime::UNIX_EPOCH) })
    }

    /// Returns the layout, if elements and number of axes are those asked for.
    pub(super) fn layout<T: Element, D: Dimension>(&self, name: &str) -> Result<Layout<D>> {
        Layout::described::<T>(self.dtype, &self.shape, self.order, name)
    }
}

fn all_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Reads text that is padded with NUL.
fn text(bytes: &[u8]) -> Result<&str, String> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    if !all_zero(&bytes[end..]) {
        return Err("bytes that must be zero are not".into());
    }
    std::str::from_utf8(&bytes[..end]).map_err(|_| "the element type is not text".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Record {
        let created = SystemTime::UNIX_EPOCH + Duration::from_nanos(1_234_567_890_123_456_789);
        Record { dtype: DType::F32, order: Order::F, shape: vec![2, 3, 4], maker: 4711, created }
    }

    #[test]
    fn what_was_written_is_read() {
        let record = sample();
        assert_eq!(Record::of_bytes(&record.to_bytes(), 96), Ok(record));
        let record = Record { shape: Vec::new(), dtype: DType::Complex128, ..sample() };
        assert_eq!(Record::of_bytes(&record.to_bytes(), 16), Ok(record));
        let record = Record { shape: vec![0; 32], ..sample() };
        assert_eq!(Record::of_bytes(&record.to_bytes(), 0), Ok(record));
    }

    /// Checksums would notice most of it, but whoever writes a lie can write its checksum too.
    #[test]
    fn no_lie_is_believed() {
        let lies: &[(usize, &[u8])] = &[
            (DTYPE_AT.start, b"<f3"),
            (DTYPE_AT.start + 5, b"x"),
            (ORDER_AT, b"A"),
            (AXES_AT, &[33]),
            (AXES_AT, &[2]),
            (PADDING_AT.start, &[1]),
            (SHAPE_AT.start, &(1u64 << 63).to_le_bytes()),
            (SHAPE_AT.start, &3u64.to_le_bytes()),
            (SHAPE_AT.start + 8 * 31, &[1]),
            (REST_AT.start, &[1]),
        ];
        for (at, lie) in lies {
            let mut bytes = sample().to_bytes();
            bytes[*at..at + lie.len()].copy_from_slice(lie);
            assert!(Record::of_bytes(&bytes, 96).is_err(), "{lie:?} at {at}");
        }
    }
}
