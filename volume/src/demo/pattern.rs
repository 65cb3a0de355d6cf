//! The elements of demo volumes: functions of their coordinates, in integer arithmetic as far as possible, so that they
//! are the same on every machine.

use half::{bf16, f16};
use ndarray_shm::DType;

/// Edge of the blocks that share a label.
const BLOCK: u64 = 12;

/// Number of labels: few enough for signed 8-bit integers.
const LABELS: u64 = 128;

/// Steps from the minimum to the maximum of a smooth field: 15 bits.
const STEPS: u64 = 1 << 15;

/// The pattern of a demo volume's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pattern {
    /// Values that change little from one element to the next, as in an image.
    Smooth,
    /// Independent random values, which no codec packs well.
    Noise,
    /// Blocks with one value each, as in a segmentation.
    Labels,
}

impl Pattern {
    /// Appends the native bytes of the element at `place`.
    pub(super) fn append(self, place: &[u64], shape: &[u64], dtype: DType, bytes: &mut Vec<u8>) {
        match self {
            Self::Smooth => {
                let steps = smooth(place, shape);
                let scaled = match dtype {
                    DType::U8 => steps >> 7,
                    DType::I8 => steps >> 8,
                    _ => steps,
                };
                append_whole(scaled, dtype, bytes);
            }
            Self::Labels => append_whole(hash(place.iter().map(|at| at / BLOCK)) % LABELS, dtype, bytes),
            Self::Noise => append_noise(hash(place.iter().copied()), dtype, bytes),
        }
    }
}

/// Returns the mean of one triangle wave for each axis; the volume is two waves long.
fn smooth(place: &[u64], shape: &[u64]) -> u64 {
    let wave = |(at, length): (&u64, &u64)| {
        let phase = at * 4 * STEPS / length % (2 * STEPS);
        if phase < STEPS { phase } else { 2 * STEPS - 1 - phase }
    };
    let sum: u64 = place.iter().zip(shape).map(wave).sum();
    sum / (place.len() as u64).max(1)
}

/// Mixes coordinates (the finaliser of splitmix64).
fn hash(place: impl Iterator<Item = u64>) -> u64 {
    place.fold(0x9e37_79b9_7f4a_7c15, |state, at| {
        let mut mixed = (state ^ at).wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    })
}

/// Appends a small whole number as an element.
#[allow(clippy::cast_precision_loss)] // Integers up to 2^16; a 16-bit float rounds them, always in the same way.
pub(super) fn append_whole(value: u64, dtype: DType, bytes: &mut Vec<u8>) {
    let float = value as f64;
    match dtype {
        DType::F16 => bytes.extend(f16::from_f64(float).to_ne_bytes()),
        DType::Bf16 => bytes.extend(bf16::from_f64(float).to_ne_bytes()),
        DType::F32 => bytes.extend((value as f32).to_ne_bytes()),
        DType::F64 => bytes.extend(float.to_ne_bytes()),
        DType::Complex64 => bytes.extend([value as f32, 0.0].into_iter().flat_map(f32::to_ne_bytes)),
        DType::Complex128 => bytes.extend([float, 0.0].into_iter().flat_map(f64::to_ne_bytes)),
        integer => append_low_bytes(value, integer.size(), bytes),
    }
}

/// Appends random bits as an integer, or as a float in [0, 1). The imaginary part of a complex number is the other half
/// of the bits.
#[allow(clippy::cast_precision_loss)] // 24 bits and 32 bits fit.
fn append_noise(bits: u64, dtype: DType, bytes: &mut Vec<u8>) {
    let single = |bits: u64| (bits >> 40) as f32 / (1u32 << 24) as f32;
    let double = |bits: u64| (bits >> 32) as f64 / (1u64 << 32) as f64;
    let other = bits.rotate_left(32);
    match dtype {
        DType::F16 => bytes.extend(f16::from_f32(single(bits)).to_ne_bytes()),
        DType::Bf16 => bytes.extend(bf16::from_f32(single(bits)).to_ne_bytes()),
        DType::F32 => bytes.extend(single(bits).to_ne_bytes()),
        DType::F64 => bytes.extend(double(bits).to_ne_bytes()),
        DType::Complex64 => bytes.extend([bits, other].into_iter().flat_map(|bits| single(bits).to_ne_bytes())),
        DType::Complex128 => bytes.extend([bits, other].into_iter().flat_map(|bits| double(bits).to_ne_bytes())),
        integer => append_low_bytes(bits, integer.size(), bytes),
    }
}

/// Appends the lowest bytes of a number, in native order.
fn append_low_bytes(value: u64, count: usize, bytes: &mut Vec<u8>) {
    let little = value.to_le_bytes();
    let low = little.iter().take(count);
    if cfg!(target_endian = "little") { bytes.extend(low) } else { bytes.extend(low.rev()) }
}
