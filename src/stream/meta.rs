//! Values beside the elements of a frame: a gain, a stage's position, a flag of the camera.

use bytemuck::Pod;

use crate::array::{DType, Element};
use crate::error::{Error, Result};

/// Bytes of all values of one frame.
pub(super) const MOST_BYTES: usize = 240;
/// Most fields.
pub(super) const MOST_FIELDS: usize = 30;
/// Bytes of a field in the trailer.
pub(super) const FIELD: usize = 40;
/// Bytes of its element type there.
const DTYPE: usize = 8;
/// Longest name in bytes.
const LONGEST_NAME: usize = FIELD - DTYPE - 4;

/// A named value, or several of one type, that each frame of a stream has beside its elements.
///
/// [`StreamOptions::meta`](super::StreamOptions::meta) adds one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MetaField {
    /// Its name, unique in the stream.
    pub name: String,
    /// The type of its values.
    pub dtype: DType,
    /// How many values it has.
    pub count: usize,
    /// Where its values begin in [`Frame::meta_bytes`](super::Frame::meta_bytes), in bytes.
    pub offset: usize,
}

impl MetaField {
    /// Checks a field that begins at `from` or later: values are aligned to their size.
    pub(super) fn new(name: &str, dtype: DType, count: usize, from: usize) -> Result<Self> {
        if name.is_empty() || name.len() > LONGEST_NAME || name.contains('\0') {
            return Err(Error::setting("the name of a value", name, "1 to 28 bytes of UTF-8, without NUL"));
        }
        let offset = from.next_multiple_of(dtype.size().min(8));
        let end = dtype.size().checked_mul(count).and_then(|bytes| bytes.checked_add(offset));
        if count == 0 || end.is_none_or(|end| end > MOST_BYTES) {
            let expected = "at least 1, and small enough that all values of a frame have at most 240 bytes";
            return Err(Error::setting("the number of values", count, expected));
        }
        Ok(Self { name: name.into(), dtype, count, offset })
    }

    /// Returns where its values end.
    pub(super) fn end(&self) -> usize {
        self.offset + self.dtype.size() * self.count
    }

    /// Encodes it: offset (2), number of values (2), element type (8), name (28), padded with NUL.
    pub(super) fn to_bytes(&self) -> [u8; FIELD] {
        let mut bytes = [0; FIELD];
        let number = |value: usize| u16::try_from(value).unwrap_or(u16::MAX).to_le_bytes();
        bytes[..2].copy_from_slice(&number(self.offset));
        bytes[2..4].copy_from_slice(&number(self.count));
        bytes[4..][..self.dtype.as_str().len()].copy_from_slice(self.dtype.as_str().as_bytes());
        bytes[4 + DTYPE..][..self.name.len()].copy_from_slice(self.name.as_bytes());
        bytes
    }

    /// Decodes what [`to_bytes`](Self::to_bytes) encodes.
    pub(super) fn parse(bytes: &[u8; FIELD]) -> Result<Self, String> {
        let number = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
        let text = |bytes: &[u8]| std::str::from_utf8(bytes).map(|text| text.trim_end_matches('\0').to_owned());
        let (dtype, name) = (text(&bytes[4..4 + DTYPE]), text(&bytes[4 + DTYPE..]));
        let dtype = dtype.ok().and_then(|text| text.parse().ok()).ok_or("a field has no element type")?;
        let name = name.map_err(|_| "the name of a field is not UTF-8")?;
        match Self::new(&name, dtype, number(2), number(0)) {
            Ok(field) if field.offset == number(0) => Ok(field),
            _ => Err(format!("the field {name:?} is not valid")),
        }
    }
}

/// Returns the field of this name, if its values are of type `T`.
pub(super) fn find<'a, T: Element>(fields: &'a [MetaField], name: &str) -> Result<&'a MetaField> {
    let found = fields.iter().find(|field| field.name == name);
    let found = found.ok_or_else(|| {
        Error::setting("the name of a value", name, "one that the stream was created with (`StreamOptions::meta`)")
    })?;
    if found.dtype != T::DTYPE {
        let expected = "the type that the stream was created with (`StreamOptions::meta`)";
        return Err(Error::setting("the type of a value", format!("{} of {name:?}", T::DTYPE), expected));
    }
    Ok(found)
}

/// Copies the values of a field out of a frame's bytes.
pub(super) fn read<T: Pod>(field: &MetaField, bytes: &[u8]) -> Vec<T> {
    bytes[field.offset..field.end()].chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_is_read_back() {
        for (name, dtype, count, from) in
            [("a", DType::U8, 1, 0), ("stage position", DType::F64, 3, 5), ("é", DType::Complex128, 2, 16)]
        {
            let field = MetaField::new(name, dtype, count, from).expect("a field");
            assert_eq!(MetaField::parse(&field.to_bytes()), Ok(field.clone()));
            assert!(field.offset >= from && field.offset % dtype.size().min(8) == 0);
        }
    }

    #[test]
    fn impossible_fields_are_refused() {
        let long = "x".repeat(29);
        for (name, count) in [("", 1), (long.as_str(), 1), ("a\0b", 1), ("a", 0), ("a", 31), ("a", usize::MAX)] {
            assert!(MetaField::new(name, DType::F64, count, 0).is_err(), "{name:?} {count}");
        }
        assert!(MetaField::parse(&[0; FIELD]).is_err() && MetaField::parse(&[255; FIELD]).is_err());
    }

    #[test]
    fn values_are_found_by_name_and_type() {
        let fields = [MetaField::new("gain", DType::F32, 2, 0).expect("a field")];
        assert_eq!(read::<f32>(find::<f32>(&fields, "gain").expect("it is there"), &[0; 240]), [0.0, 0.0]);
        assert!(find::<f32>(&fields, "offset").is_err() && find::<f64>(&fields, "gain").is_err());
    }
}
