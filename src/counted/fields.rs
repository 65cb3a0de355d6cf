//! Encodes and decodes element type, order and shape, for the record of a counted array and the ledger of a
//! renderbuffer.
//!
//! The bytes that are read may come from any process, so every field is checked. Errors are texts that say what is
//! wrong.

use crate::array::{DType, Order};
use crate::error::{Error, Result};

/// Maximum number of axes that a record or ledger can hold.
pub(crate) const MOST_AXES: usize = 32;

/// Refuses a shape with more than [`MOST_AXES`] axes.
pub(crate) fn check_axes(shape: &[usize]) -> Result<()> {
    if shape.len() <= MOST_AXES {
        return Ok(());
    }
    let (value, expected) = (format!("{} axes", shape.len()), "at most 32 axes");
    Err(Error::setting("the shape", value, expected))
}

/// Encodes the first fields of a record or ledger: the element type, padded with NUL to `width` bytes, the order, the
/// number of axes, and two zeros.
pub(crate) fn head(width: usize, dtype: DType, order: Order, axes: usize) -> Vec<u8> {
    let mut bytes = dtype.as_str().as_bytes().to_vec();
    bytes.resize(width, 0);
    bytes.push(if order == Order::F { b'F' } else { b'C' });
    bytes.push(u8::try_from(axes).unwrap_or(u8::MAX));
    bytes.extend([0; 2]);
    bytes
}

/// Encodes lengths as 8 little-endian bytes each.
pub(crate) fn lengths(lengths: &[usize]) -> impl Iterator<Item = u8> {
    lengths.iter().flat_map(|length| (*length as u64).to_le_bytes())
}

/// The fields that have not been read yet.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl Fields<'_> {
    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (field, rest) = self.0.split_first_chunk().ok_or("it is cut short")?;
        self.0 = rest;
        Ok(*field)
    }

    pub(crate) fn number(&mut self) -> Result<u64, String> {
        self.take().map(u64::from_le_bytes)
    }

    /// Decodes the fields that [`head`] encodes, with `WIDTH` bytes for the element type.
    pub(crate) fn head<const WIDTH: usize>(&mut self) -> Result<(DType, Order, usize), String> {
        let text = self.take::<WIDTH>()?;
        let text = std::str::from_utf8(&text).unwrap_or_default().trim_end_matches('\0');
        let dtype = text.parse().map_err(|_| format!("{text:?} is not an element type"))?;
        let order = match self.take()? {
            [b'C'] => Order::C,
            [b'F'] => Order::F,
            [other] => return Err(format!("{other} is not an order")),
        };
        match self.take()? {
            [axes, 0, 0] if usize::from(axes) <= MOST_AXES => Ok((dtype, order, axes.into())),
            [axes, ..] => Err(format!("{axes} axes, or bytes that must be zero are not")),
        }
    }
}
