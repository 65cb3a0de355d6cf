//! The types that can be elements, and their names in text.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// A type that arrays in shared memory can have as elements.
///
/// Every bit pattern of such a type is a valid value, and it has no padding, so whatever bytes another process writes
/// are valid elements. This excludes `bool` and `char`. `usize` and `isize` are excluded because their size depends on
/// the platform.
///
/// The trait is sealed: structured elements are not supported.
///
/// # Examples
///
/// ```
/// use ndarray_shm::{DType, Element};
///
/// fn describe<T: Element>() -> String {
///     format!("{} bytes, numpy's {}", size_of::<T>(), T::DTYPE)
/// }
/// assert_eq!(describe::<f32>(), "4 bytes, numpy's <f4");
/// assert_eq!("<u2".parse::<DType>()?, DType::U16);
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
pub trait Element: bytemuck::Pod + fmt::Debug + Send + Sync + sealed::Sealed {
    /// The type as a run-time value.
    const DTYPE: DType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! dtypes {
    ($($(#[$attribute:meta])* $variant:ident $text:literal $size:literal $type:ty $(, feature = $feature:literal)?;)*) => {
        /// The type of an array's elements, at run time.
        ///
        /// As text it has numpy's name: `|u1`, `<u2`, `<f4`, .. Bytes are little-endian on every platform that this
        /// crate supports. `bfloat16`, which numpy lacks, has the name that numpy's extension packages give it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[cfg_attr(feature = "serde", serde(try_from = "String", into = "String"))]
        pub enum DType { $($(#[$attribute])* $variant,)* }

        impl DType {
            /// All types, including those of features that are not enabled.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Returns the size of one element in bytes.
            pub const fn size(self) -> usize {
                match self { $(Self::$variant => $size,)* }
            }

            /// Returns numpy's name of the type. Its number counts bytes, so `<u8` is `u64`.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        $(
            $(#[cfg(feature = $feature)])?
            impl sealed::Sealed for $type {}
            $(#[cfg(feature = $feature)])?
            impl Element for $type {
                const DTYPE: DType = DType::$variant;
            }
        )*

        #[cfg(test)]
        #[test]
        fn dtype_size_equals_type_size() {
            $($(#[cfg(feature = $feature)])? assert_eq!(DType::$variant.size(), size_of::<$type>());)*
        }
    };
}

dtypes! {
    /// Unsigned, 8 bits.
    U8 "|u1" 1 u8;
    /// Unsigned, 16 bits.
    U16 "<u2" 2 u16;
    /// Unsigned, 32 bits.
    U32 "<u4" 4 u32;
    /// Unsigned, 64 bits.
    U64 "<u8" 8 u64;
    /// Signed, 8 bits.
    I8 "|i1" 1 i8;
    /// Signed, 16 bits.
    I16 "<i2" 2 i16;
    /// Signed, 32 bits.
    I32 "<i4" 4 i32;
    /// Signed, 64 bits.
    I64 "<i8" 8 i64;
    /// Floating point, 32 bits.
    F32 "<f4" 4 f32;
    /// Floating point, 64 bits.
    F64 "<f8" 8 f64;
    /// Floating point, 16 bits (feature `half`).
    F16 "<f2" 2 half::f16, feature = "half";
    /// Floating point, 16 bits, with the exponent range of 32-bit floats (feature `half`).
    Bf16 "bfloat16" 2 half::bf16, feature = "half";
    /// Complex of two 32-bit floats (feature `num-complex`).
    Complex64 "<c8" 8 num_complex::Complex<f32>, feature = "num-complex";
    /// Complex of two 64-bit floats (feature `num-complex`).
    Complex128 "<c16" 16 num_complex::Complex<f64>, feature = "num-complex";
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for DType {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.iter().copied().find(|dtype| dtype.as_str() == text).ok_or_else(|| {
            Error::setting(
                "the element type",
                text,
                "one of |u1 <u2 <u4 <u8 |i1 <i2 <i4 <i8 <f2 <f4 <f8 bfloat16 <c8 <c16",
            )
        })
    }
}

impl TryFrom<String> for DType {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<DType> for String {
    fn from(dtype: DType) -> Self {
        dtype.as_str().to_owned()
    }
}

/// Evaluates an expression with a type alias for the element type of a [`DType`] that is known only at run time.
///
/// The expression after `else` is evaluated for types of features that are not enabled.
///
/// ```
/// use ndarray_shm::{with_element, DType};
///
/// let dtype: DType = "<f4".parse()?;
/// let size = with_element!(dtype, T => size_of::<T>(), else => 0);
/// assert_eq!(size, 4);
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[doc(hidden)] // documented at its re-export in the module `array`
#[macro_export]
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr, else => $other:expr) => {
        match $dtype {
            $crate::DType::U8 => { type $T = u8; $body }
            $crate::DType::U16 => { type $T = u16; $body }
            $crate::DType::U32 => { type $T = u32; $body }
            $crate::DType::U64 => { type $T = u64; $body }
            $crate::DType::I8 => { type $T = i8; $body }
            $crate::DType::I16 => { type $T = i16; $body }
            $crate::DType::I32 => { type $T = i32; $body }
            $crate::DType::I64 => { type $T = i64; $body }
            $crate::DType::F32 => { type $T = f32; $body }
            $crate::DType::F64 => { type $T = f64; $body }
            dtype => $crate::__with_half!(dtype, $T => $body, else =>
                $crate::__with_complex!(dtype, $T => $body, else => $other)),
        }
    };
}

// A macro is expanded in the caller's crate, which has other features. So `cfg` selects a whole macro here, not an arm
// inside it.
#[cfg(feature = "half")]
#[doc(hidden)]
#[macro_export]
macro_rules! __with_half {
    ($dtype:expr, $T:ident => $body:expr, else => $other:expr) => {
        match $dtype {
            $crate::DType::F16 => {
                type $T = $crate::__half::f16;
                $body
            }
            $crate::DType::Bf16 => {
                type $T = $crate::__half::bf16;
                $body
            }
            _ => $other,
        }
    };
}

#[cfg(not(feature = "half"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __with_half {
    ($dtype:expr, $T:ident => $body:expr, else => $other:expr) => {
        $other
    };
}

#[cfg(feature = "num-complex")]
#[doc(hidden)]
#[macro_export]
macro_rules! __with_complex {
    ($dtype:expr, $T:ident => $body:expr, else => $other:expr) => {
        match $dtype {
            $crate::DType::Complex64 => {
                type $T = $crate::__num_complex::Complex<f32>;
                $body
            }
            $crate::DType::Complex128 => {
                type $T = $crate::__num_complex::Complex<f64>;
                $body
            }
            _ => $other,
        }
    };
}

#[cfg(not(feature = "num-complex"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __with_complex {
    ($dtype:expr, $T:ident => $body:expr, else => $other:expr) => {{
        let _ = $dtype;
        $other
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsing_inverts_formatting_for_every_type() {
        for dtype in DType::ALL {
            assert_eq!(dtype.to_string().parse::<DType>().expect("its own text"), *dtype);
        }
        for text in ["", "u1", ">f4", "|b1", "<U4", "<f16"] {
            assert!(text.parse::<DType>().is_err(), "{text}");
        }
    }
}
