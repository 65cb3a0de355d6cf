//! Differences of neighbouring elements, as the filter `delta` of numcodecs stores them.
//!
//! The first element is stored unchanged, each other one as the difference to its predecessor in memory. Integers wrap
//! around, so that no information is lost; floating-point numbers are subtracted and summed in the precision that NumPy
//! uses.

use std::any::Any;
use std::borrow::Cow;
use std::num::NonZeroU64;
use std::sync::Arc;

use half::f16;
use serde_json::Value;
use zarrs::array::codec::api::{
    ArrayCodecTraits, PartialDecoderCapability, PartialEncoderCapability, RecommendedConcurrency,
};
use zarrs::array::{
    ArrayBytes, ArrayToArrayCodecTraits, CodecError, CodecMetadataOptions, CodecOptions, CodecTraits, DataType,
    FillValue, data_type,
};
use zarrs::metadata::Configuration;
use zarrs::plugin::{ExtensionName, PluginCreateError, PluginUnsupportedError, ZarrVersion};

use crate::zarr::configuration;

/// The filter, with the types of numbers and differences.
#[derive(Debug, Clone)]
pub(super) struct Delta {
    numbers: NumberKind,
    differences: NumberKind,
    /// Whether differences have the opposite byte order of the array.
    swapped: bool,
    configuration: Configuration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NumberKind {
    Whole { size: usize, signed: bool },
    F16,
    F32,
    F64,
}

impl Delta {
    /// Parses the types of numbers, `dtype`, and differences, `astype`, in NumPy's notation.
    ///
    /// # Errors
    ///
    /// A type, or the combination of both, is not supported.
    pub(super) fn new(configuration: Value) -> Result<Self, PluginCreateError> {
        let unsupported = |of: &Value| {
            let error = PluginUnsupportedError::new(
                format!("delta of elements {}", configuration::brief(of)),
                "codec".to_owned(),
            );
            PluginCreateError::Unsupported(error)
        };
        let written = |key: &str| configuration.get(key).filter(|name| !name.is_null());
        let dtype = written("dtype").ok_or_else(|| PluginCreateError::Other("delta without `dtype`".to_owned()))?;
        let astype = written("astype").unwrap_or(dtype);
        let is_big = configuration["big_endian"] == true;
        let (numbers, order) = NumberKind::read(dtype).ok_or_else(|| unsupported(dtype))?;
        let (differences, differences_order) = NumberKind::read(astype).ok_or_else(|| unsupported(astype))?;
        // Differences are meaningless if the byte order differs from the array's.
        if numbers.size() > 1 && order.is_some_and(|order| order != is_big) {
            return Err(unsupported(dtype));
        }
        if matches!(numbers, NumberKind::Whole { .. }) != matches!(differences, NumberKind::Whole { .. }) {
            return Err(unsupported(astype));
        }
        // In Zarr v3 another codec defines the byte order.
        let is_v2 = configuration["version"] == 2;
        let swapped = is_v2 && differences.size() > 1 && differences_order.is_some_and(|order| order != is_big);
        Ok(Self { numbers, differences, swapped, configuration: configuration::into_configuration(configuration) })
    }

    fn subtract(&self, bytes: &[u8]) -> Vec<u8> {
        let (from, to) = (self.numbers, self.differences);
        let mut differences = match from {
            NumberKind::Whole { .. } => {
                let mut last = 0u64;
                along(bytes, from, to, |number, into| {
                    let number = from.whole(number);
                    // As in NumPy, the difference is computed in the type of the numbers, then converted.
                    let difference = number.wrapping_sub(last).to_le_bytes();
                    last = number;
                    to.put_whole(from.of_le(difference), into);
                })
            }
            NumberKind::F16 => floats::<f16>(bytes, from, to, true),
            NumberKind::F32 => floats::<f32>(bytes, from, to, true),
            NumberKind::F64 => floats::<f64>(bytes, from, to, true),
        };
        self.swap(&mut differences);
        differences
    }

    fn add(&self, differences: Cow<'_, [u8]>) -> Vec<u8> {
        let mut differences = differences;
        if self.swapped {
            self.swap(differences.to_mut());
        }
        let (from, to) = (self.differences, self.numbers);
        // Sums have the larger of both types, as in NumPy.
        match if from.size() > to.size() { from } else { to } {
            NumberKind::Whole { .. } => {
                let mut sum = 0u64;
                along(&differences, from, to, |difference, into| {
                    sum = sum.wrapping_add(from.whole(difference));
                    to.put_whole(sum, into);
                })
            }
            NumberKind::F16 => floats::<f16>(&differences, from, to, false),
            NumberKind::F32 => floats::<f32>(&differences, from, to, false),
            NumberKind::F64 => floats::<f64>(&differences, from, to, false),
        }
    }

    fn swap(&self, bytes: &mut [u8]) {
        if self.swapped {
            bytes.chunks_exact_mut(self.differences.size()).for_each(<[u8]>::reverse);
        }
    }

    /// Checks that the bytes are the elements of one chunk.
    fn check(bytes: &[u8], shape: &[NonZeroU64], number: NumberKind) -> Result<(), CodecError> {
        let count = shape.iter().try_fold(number.size() as u64, |size, length| size.checked_mul(length.get()));
        if count == Some(bytes.len() as u64) {
            return Ok(());
        }
        Err(CodecError::Other(format!("{} bytes are not the differences of a chunk {shape:?}", bytes.len())))
    }
}

impl NumberKind {
    /// Parses a type in NumPy's notation. Also returns whether it is big-endian, if the notation says so.
    fn read(name: &Value) -> Option<(Self, Option<bool>)> {
        let name = name.as_str()?;
        let (order, kind) = match name.split_at_checked(1)? {
            ("<", kind) => (Some(false), kind),
            (">", kind) => (Some(true), kind),
            ("|" | "=", kind) => (None, kind),
            _ => (None, name),
        };
        let whole = |size, signed| Self::Whole { size, signed };
        let number = match kind {
            "u1" | "uint8" => whole(1, false),
            "u2" | "uint16" => whole(2, false),
            "u4" | "uint32" => whole(4, false),
            "u8" | "uint64" => whole(8, false),
            "i1" | "int8" => whole(1, true),
            "i2" | "int16" => whole(2, true),
            "i4" | "int32" => whole(4, true),
            "i8" | "int64" => whole(8, true),
            "f2" | "float16" => Self::F16,
            "f4" | "float32" => Self::F32,
            "f8" | "float64" => Self::F64,
            _ => return None,
        };
        Some((number, order))
    }

    fn size(self) -> usize {
        match self {
            Self::Whole { size, .. } => size,
            Self::F16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    /// Returns the integer in these native bytes, sign-extended.
    fn whole(self, bytes: &[u8]) -> u64 {
        let mut little = [0; 8];
        little[..bytes.len()].copy_from_slice(bytes);
        if cfg!(target_endian = "big") {
            little[..bytes.len()].reverse();
        }
        self.of_le(little)
    }

    /// Returns the integer in the first bytes, which are little-endian, sign-extended.
    fn of_le(self, little: [u8; 8]) -> u64 {
        let (size, signed) = match self {
            Self::Whole { size, signed } => (size, signed),
            Self::F16 | Self::F32 | Self::F64 => (8, false),
        };
        let unused = 8 * (little.len() - size);
        let high = u64::from_le_bytes(little) << unused;
        if signed { ((high.cast_signed()) >> unused).cast_unsigned() } else { high >> unused }
    }

    fn put_whole(self, number: u64, into: &mut [u8]) {
        into.copy_from_slice(&number.to_le_bytes()[..self.size()]);
        if cfg!(target_endian = "big") {
            into.reverse();
        }
    }

    fn data_type(self) -> DataType {
        match self {
            Self::Whole { size: 1, signed: false } => data_type::uint8(),
            Self::Whole { size: 2, signed: false } => data_type::uint16(),
            Self::Whole { size: 4, signed: false } => data_type::uint32(),
            Self::Whole { signed: false, .. } => data_type::uint64(),
            Self::Whole { size: 1, signed: true } => data_type::int8(),
            Self::Whole { size: 2, signed: true } => data_type::int16(),
            Self::Whole { size: 4, signed: true } => data_type::int32(),
            Self::Whole { signed: true, .. } => data_type::int64(),
            Self::F16 => data_type::float16(),
            Self::F32 => data_type::float32(),
            Self::F64 => data_type::float64(),
        }
    }
}

/// Converts each number to another one, in order.
fn along(bytes: &[u8], from: NumberKind, to: NumberKind, mut each: impl FnMut(&[u8], &mut [u8])) -> Vec<u8> {
    let mut made = vec![0; bytes.len() / from.size() * to.size()];
    for (number, into) in bytes.chunks_exact(from.size()).zip(made.chunks_exact_mut(to.size())) {
        each(number, into);
    }
    made
}

/// A floating-point type in which numbers are added.
trait Float: Copy {
    fn of(value: f64) -> Self;
    fn value(self) -> f64;
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
}

macro_rules! float {
    ($type:ty, $of:expr, $value:expr) => {
        impl Float for $type {
            fn of(value: f64) -> Self {
                $of(value)
            }
            fn value(self) -> f64 {
                $value(self)
            }
            fn plus(self, other: Self) -> Self {
                self + other
            }
            fn minus(self, other: Self) -> Self {
                self - other
            }
        }
    };
}

float!(f16, f16::from_f64, f64::from);
#[expect(clippy::cast_possible_truncation, reason = "rounding to the nearest one, as NumPy does")]
mod rounded {
    pub(super) fn to_f32(value: f64) -> f32 {
        value as f32
    }
}
float!(f32, rounded::to_f32, f64::from);
float!(f64, std::convert::identity, std::convert::identity);

/// Sums or subtracts floating-point numbers of any size in the type `T`.
fn floats<T: Float>(bytes: &[u8], from: NumberKind, to: NumberKind, is_difference: bool) -> Vec<u8> {
    let mut last: Option<T> = None;
    along(bytes, from, to, |number, into| {
        let number = T::of(match from {
            NumberKind::F16 => f64::from(bytemuck::pod_read_unaligned::<f16>(number)),
            NumberKind::F32 => f64::from(bytemuck::pod_read_unaligned::<f32>(number)),
            NumberKind::Whole { .. } | NumberKind::F64 => bytemuck::pod_read_unaligned(number),
        });
        // The first number is taken unchanged, not added to 0: 0 + -0 would be 0.
        let made = match last {
            None => number,
            Some(last) if is_difference => number.minus(last),
            Some(last) => last.plus(number),
        };
        last = Some(if is_difference { number } else { made });
        match to {
            NumberKind::F16 => into.copy_from_slice(bytemuck::bytes_of(&f16::from_f64(made.value()))),
            NumberKind::F32 => into.copy_from_slice(bytemuck::bytes_of(&rounded::to_f32(made.value()))),
            NumberKind::Whole { .. } | NumberKind::F64 => into.copy_from_slice(bytemuck::bytes_of(&made.value())),
        }
    })
}

impl ExtensionName for Delta {
    fn name(&self, _version: ZarrVersion) -> Option<Cow<'static, str>> {
        Some(Cow::Borrowed(configuration::DELTA))
    }
}

impl CodecTraits for Delta {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn configuration(&self, _version: ZarrVersion, _options: &CodecMetadataOptions) -> Option<Configuration> {
        Some(self.configuration.clone())
    }

    fn partial_decoder_capability(&self) -> PartialDecoderCapability {
        PartialDecoderCapability { partial_read: false, partial_decode: false }
    }

    fn partial_encoder_capability(&self) -> PartialEncoderCapability {
        PartialEncoderCapability { partial_encode: false }
    }
}

impl ArrayCodecTraits for Delta {
    fn recommended_concurrency(
        &self,
        _shape: &[NonZeroU64],
        _data_type: &DataType,
    ) -> Result<RecommendedConcurrency, CodecError> {
        Ok(RecommendedConcurrency::new_maximum(1))
    }
}

impl ArrayToArrayCodecTraits for Delta {
    fn into_dyn(self: Arc<Self>) -> Arc<dyn ArrayToArrayCodecTraits> {
        self
    }

    fn encoded_data_type(&self, decoded: &DataType) -> Result<DataType, CodecError> {
        if decoded.fixed_size() != Some(self.numbers.size()) {
            return Err(CodecError::UnsupportedDataType(decoded.clone(), "delta".to_owned()));
        }
        // Signed and unsigned numbers are subtracted alike, so the array's type can stay.
        if self.numbers == self.differences { Ok(decoded.clone()) } else { Ok(self.differences.data_type()) }
    }

    fn encode<'a>(
        &self,
        bytes: ArrayBytes<'a>,
        shape: &[NonZeroU64],
        _data_type: &DataType,
        _fill_value: &FillValue,
        _options: &CodecOptions,
    ) -> Result<ArrayBytes<'a>, CodecError> {
        let bytes = bytes.into_fixed()?;
        Self::check(&bytes, shape, self.numbers)?;
        Ok(ArrayBytes::from(self.subtract(&bytes)))
    }

    fn decode<'a>(
        &self,
        bytes: ArrayBytes<'a>,
        shape: &[NonZeroU64],
        _data_type: &DataType,
        _fill_value: &FillValue,
        _options: &CodecOptions,
    ) -> Result<ArrayBytes<'a>, CodecError> {
        let bytes = bytes.into_fixed()?;
        Self::check(&bytes, shape, self.differences)?;
        Ok(ArrayBytes::from(self.add(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn delta(dtype: &str, astype: &str) -> Delta {
        Delta::new(json!({"dtype": dtype, "astype": astype, "version": 2})).expect("a filter")
    }

    #[test]
    fn differences_are_those_of_numcodecs() {
        let filter = delta("<i2", "<i1");
        let numbers: Vec<u8> = (100..120i16).step_by(2).flat_map(i16::to_ne_bytes).collect();
        assert_eq!(filter.subtract(&numbers), [100, 2, 2, 2, 2, 2, 2, 2, 2, 2]);
        assert_eq!(filter.add(Cow::Borrowed(&[100, 2, 2, 2, 2, 2, 2, 2, 2, 2])), numbers);
        // A difference that does not fit its type wraps around and is lost, as in numcodecs.
        assert_eq!(delta("<u1", "<u1").add(Cow::Borrowed(&[7, 255, 3])), [7, 6, 9]);
        assert_eq!(delta("<f4", "<f4").add(Cow::Owned((-0.0f32).to_ne_bytes().to_vec())), (-0.0f32).to_ne_bytes());
    }

    #[test]
    fn numbers_survive_a_round_trip() {
        let bytes: Vec<u8> = (0..4096u32).map(|at| (at * at / 7).to_le_bytes()[0]).collect();
        for (dtype, astype) in
            [("<u1", "<u1"), ("<i2", "<i8"), ("<u4", ">u4"), ("<u8", "<i8"), ("<i1", ">i4"), ("<u8", ">u8")]
        {
            let filter = delta(dtype, astype);
            assert_eq!(filter.add(filter.subtract(&bytes).into()), bytes, "{dtype} as {astype}");
        }
        let halves: Vec<u8> = (0..512u16).flat_map(|at| f16::from_f32(f32::from(at)).to_ne_bytes()).collect();
        for astype in ["<f2", "<f8", ">f4"] {
            let filter = delta("<f2", astype);
            assert_eq!(filter.add(filter.subtract(&halves).into()), halves, "{astype}");
        }
    }

    #[test]
    fn other_types_are_refused_by_name() {
        for (dtype, astype) in
            [("<c8", "<c8"), ("|b1", "|b1"), ("<M8[ns]", "<i8"), ("|O", "|O"), (">u2", "<u2"), ("", "")]
        {
            let error = Delta::new(json!({"dtype": dtype, "astype": astype, "version": 2})).expect_err(dtype);
            assert!(matches!(error, PluginCreateError::Unsupported(_)), "{dtype}: {error}");
            assert!(error.to_string().contains(dtype), "{dtype}: {error}");
        }
        let error = Delta::new(json!({"dtype": "<f4", "astype": "<i4"})).expect_err("rounded");
        assert!(error.to_string().contains("<i4"), "{error}");
        assert!(Delta::new(json!({})).is_err());
    }

    #[test]
    fn elements_of_another_size_are_an_error() {
        let filter = delta("<u2", "<u4");
        let shape = [NonZeroU64::MIN; 2];
        assert!(filter.encoded_data_type(&data_type::uint32()).is_err());
        assert_eq!(filter.encoded_data_type(&data_type::int16()).expect("as large"), data_type::uint32());
        let fill = FillValue::from(0u16);
        for length in [0, 1, 3, 5] {
            let bytes = ArrayBytes::from(vec![0; length]);
            let decoded = filter.decode(bytes, &shape, &data_type::uint16(), &fill, &CodecOptions::default());
            assert!(decoded.is_err(), "{length}");
        }
    }
}
