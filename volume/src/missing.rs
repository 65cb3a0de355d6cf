//! The elements of chunks that are not stored: the caller's choice, and its bytes.
//!
//! Pure values: nothing here knows chunks or arrays.

use std::fmt;
use std::str::FromStr;

use ndarray_shm::{DType, Element, with_element};

use crate::error::{Error, Result};
use crate::volume::VolumeMeta;

/// What a download does with chunks that are not stored.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Missing {
    /// As the volume says: the elements get [its fill value](VolumeMeta::fill). In a volume without one, a missing
    /// chunk is an error, because it may be a lost one.
    #[default]
    AsStored,
    /// An error, even if the volume has a fill value.
    Error,
    /// The elements get the volume's fill value, or 0 if it has none.
    Fill,
    /// The elements get this value, whatever the volume says. Also called background.
    FillWith(FillValue),
}

impl Missing {
    /// Returns the bytes of each element of a missing chunk, or `None` if a missing chunk is an error.
    pub(crate) fn element(&self, meta: &VolumeMeta) -> Result<Option<Vec<u8>>> {
        match self {
            Self::AsStored => Ok(meta.fill.clone()),
            Self::Error => Ok(None),
            Self::Fill => Ok(Some(meta.fill.clone().unwrap_or_else(|| vec![0; meta.dtype.size()]))),
            Self::FillWith(value) if value.dtype == meta.dtype => Ok(Some(value.bytes.clone())),
            Self::FillWith(value) => Err(Error::FillValue {
                value: value.to_string(),
                dtype: meta.dtype.to_string(),
                reason: format!("it was created for elements of {}", value.dtype),
            }),
        }
    }
}

/// One element of a type that is known only at run time.
///
/// ```
/// use ndarray_shm::DType;
/// use ndarray_shm_volume::FillValue;
///
/// assert_eq!(FillValue::parse("-1", DType::I16)?, FillValue::of(-1i16));
/// assert!(FillValue::parse("256", DType::U8).is_err());
/// # Ok::<(), ndarray_shm_volume::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FillValue {
    dtype: DType,
    bytes: Vec<u8>,
}

impl FillValue {
    /// Parses a value: a whole number for integer types, any number, `nan` or `inf` for floating-point types, and for
    /// complex types one number, or two with a comma between.
    ///
    /// Floating-point values are rounded to the nearest value of the type.
    ///
    /// # Errors
    ///
    /// [`FillValue`](Error::FillValue): the text is not a number, or the number is out of the type's range.
    pub fn parse(text: &str, dtype: DType) -> Result<Self> {
        let text = text.trim();
        let refused = |reason: &str| Error::FillValue {
            value: text.to_owned(),
            dtype: dtype.to_string(),
            reason: reason.to_owned(),
        };
        let bytes = match dtype {
            DType::U8 => whole::<u8>(text),
            DType::U16 => whole::<u16>(text),
            DType::U32 => whole::<u32>(text),
            DType::U64 => whole::<u64>(text),
            DType::I8 => whole::<i8>(text),
            DType::I16 => whole::<i16>(text),
            DType::I32 => whole::<i32>(text),
            DType::I64 => whole::<i64>(text),
            DType::Complex64 | DType::Complex128 => {
                let part = if dtype == DType::Complex64 { DType::F32 } else { DType::F64 };
                let (real, imaginary) = text.split_once(',').unwrap_or((text, "0"));
                float(real, part).and_then(|mut bytes| {
                    bytes.extend(float(imaginary, part)?);
                    Ok(bytes)
                })
            }
            _ => float(text, dtype),
        }
        .map_err(refused)?;
        Ok(Self { dtype, bytes })
    }

    /// Creates a fill value from an element.
    pub fn of<T: Element>(value: T) -> Self {
        Self { dtype: T::DTYPE, bytes: bytemuck::bytes_of(&value).to_vec() }
    }

    /// Returns the type of the value.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the bytes of the value, native endian.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Display for FillValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        with_element!(
            self.dtype,
            T => write!(f, "{}", bytemuck::pod_read_unaligned::<T>(&self.bytes)),
            else => write!(f, "{:?}", self.bytes)
        )
    }
}

fn whole<T: Element + FromStr<Err = std::num::ParseIntError>>(text: &str) -> Result<Vec<u8>, &'static str> {
    use std::num::IntErrorKind::{NegOverflow, PosOverflow};

    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("it is not a whole number");
    }
    match text.parse::<T>() {
        Ok(value) => Ok(bytemuck::bytes_of(&value).to_vec()),
        Err(error) if matches!(error.kind(), NegOverflow | PosOverflow) => Err("it is out of range"),
        // "-5" for a type without negative numbers.
        Err(_) => Err("it is out of range"),
    }
}

#[allow(clippy::cast_possible_truncation)] // rounding is intended; `fits` detects overflow
fn float(text: &str, dtype: DType) -> Result<Vec<u8>, &'static str> {
    let value: f64 = text.trim().parse().map_err(|_| "it is not a number")?;
    let fits =
        |rounded: f64| if rounded.is_infinite() && value.is_finite() { Err("it is out of range") } else { Ok(()) };
    match dtype {
        DType::F16 => {
            let rounded = half::f16::from_f64(value);
            fits(rounded.to_f64()).map(|()| rounded.to_ne_bytes().to_vec())
        }
        DType::Bf16 => {
            let rounded = half::bf16::from_f64(value);
            fits(rounded.to_f64()).map(|()| rounded.to_ne_bytes().to_vec())
        }
        DType::F32 => fits(f64::from(value as f32)).map(|()| (value as f32).to_ne_bytes().to_vec()),
        DType::F64 => fits(value).map(|()| value.to_ne_bytes().to_vec()),
        _ => Err("elements of this type cannot be written as text"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_parse_in_their_type_or_are_refused() {
        let bytes = |text: &str, dtype| FillValue::parse(text, dtype).expect(text).bytes;
        assert_eq!(bytes("255", DType::U8), [255]);
        assert_eq!(bytes(" -2 ", DType::I32), (-2i32).to_ne_bytes());
        assert_eq!(bytes("18446744073709551615", DType::U64), u64::MAX.to_ne_bytes());
        assert_eq!(bytes("1.5", DType::F16), half::f16::from_f32(1.5).to_ne_bytes());
        assert_eq!(bytes("-3e4", DType::Bf16), half::bf16::from_f32(-3e4).to_ne_bytes());
        assert_eq!(bytes("0.1", DType::F32), 0.1f32.to_ne_bytes());
        assert_eq!(bytes("inf", DType::F64), f64::INFINITY.to_ne_bytes());
        assert_eq!(bytes("2,-1", DType::Complex64), [2f32.to_ne_bytes(), (-1f32).to_ne_bytes()].concat());
        assert_eq!(bytes("2", DType::Complex128), [2f64.to_ne_bytes(), 0f64.to_ne_bytes()].concat());
        for (text, dtype) in [
            ("256", DType::U8),
            ("-1", DType::U64),
            ("-129", DType::I8),
            ("1.0", DType::I8),
            ("+1", DType::U8),
            ("", DType::U8),
            ("0x10", DType::U16),
            ("1e10", DType::F16),
            ("1e39", DType::F32),
            ("one", DType::F64),
            ("1,2,3", DType::Complex64),
        ] {
            let error = FillValue::parse(text, dtype).expect_err(text);
            assert!(matches!(error, Error::FillValue { .. }), "{error}");
        }
    }

    #[test]
    fn missing_elements_follow_the_choice_and_the_volume() {
        let mut meta = VolumeMeta::new(&[4], &[2], DType::I16);
        let seven = Missing::FillWith(FillValue::of(7i16));
        assert_eq!(Missing::AsStored.element(&meta).expect("no question of types"), None);
        assert_eq!(Missing::Fill.element(&meta).expect("no question of types"), Some(vec![0, 0]));
        assert_eq!(seven.element(&meta).expect("the same type"), Some(7i16.to_ne_bytes().to_vec()));
        meta.fill = Some(vec![1, 1]);
        assert_eq!(Missing::AsStored.element(&meta).expect("no question of types"), Some(vec![1, 1]));
        assert_eq!(Missing::Fill.element(&meta).expect("no question of types"), Some(vec![1, 1]));
        assert_eq!(Missing::Error.element(&meta).expect("no question of types"), None);
        meta.dtype = DType::U16;
        assert!(matches!(seven.element(&meta), Err(Error::FillValue { .. })));
    }
}
