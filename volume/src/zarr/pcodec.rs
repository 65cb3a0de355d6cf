//! pcodec: compression of numbers by their statistics. Decodes exactly as many numbers as the chunk has.
//!
//! zarrs encodes. Its decoder allocates as many numbers as the stream claims; this one as many as the chunk has. Other
//! memory that the header of a stream may reserve is bounded by the format at 256 MiB, which are not touched unless the
//! stream is that long.

use bytemuck::Pod;
use ndarray_shm::DType;
use pco::data_types::Number;
use pco::standalone::simple_decompress_into;

use crate::error::Cause;

/// Whether pcodec supports this element type.
pub(super) fn has(dtype: DType) -> bool {
    !matches!(dtype, DType::U8 | DType::I8 | DType::Bf16)
}

/// Unpacks elements of a type. Returns `size` bytes.
///
/// # Errors
///
/// The stream is damaged, or has another element type or number of elements.
pub(super) fn unpack(packed: &[u8], dtype: DType, size: usize) -> Result<Vec<u8>, Cause> {
    match dtype {
        DType::U16 => numbers::<u16>(packed, size),
        DType::U32 => numbers::<u32>(packed, size),
        DType::U64 => numbers::<u64>(packed, size),
        DType::I16 => numbers::<i16>(packed, size),
        DType::I32 => numbers::<i32>(packed, size),
        DType::I64 => numbers::<i64>(packed, size),
        DType::F16 => numbers::<half::f16>(packed, size),
        DType::F32 | DType::Complex64 => numbers::<f32>(packed, size),
        DType::F64 | DType::Complex128 => numbers::<f64>(packed, size),
        other => Err(format!("pcodec has no elements of type {other}").into()),
    }
}

fn numbers<T: Number + Pod>(packed: &[u8], size: usize) -> Result<Vec<u8>, Cause> {
    let count = size / size_of::<T>();
    // Memory of words is aligned for every type.
    let mut words: Vec<u64> = Vec::new();
    words.try_reserve_exact(size.div_ceil(size_of::<u64>()))?;
    words.resize(size.div_ceil(size_of::<u64>()), 0);
    let numbers = bytemuck::cast_slice_mut::<u64, T>(&mut words).get_mut(..count).ok_or("a part of an element")?;
    let progress = simple_decompress_into(packed, numbers)?;
    if !progress.finished {
        return Err(format!("what is packed here is longer than the {count} elements there can be").into());
    }
    if progress.n_processed != count {
        return Err(format!("it unpacks to {} elements, where {count} belong", progress.n_processed).into());
    }
    Ok(bytemuck::cast_slice(numbers).to_vec())
}

#[cfg(test)]
mod tests {
    use pco::ChunkConfig;
    use pco::standalone::simple_compress;

    use super::*;

    #[test]
    fn numbers_come_back_and_other_counts_are_errors() {
        let numbers: Vec<u32> = (0..70_001u32).map(|at| at.wrapping_mul(at) / 7).collect();
        let bytes: &[u8] = bytemuck::cast_slice(&numbers);
        let packed = simple_compress(&numbers, &ChunkConfig::default()).expect("packed");
        assert!(unpack(&packed, DType::U32, bytes.len()).expect("it fits") == bytes);
        for wrong in [4, 1024, bytes.len() - 4, bytes.len() + 4, bytes.len() * 2] {
            unpack(&packed, DType::U32, wrong).expect_err("another count");
        }
        for other in [DType::F32, DType::U16, DType::U64, DType::U8] {
            unpack(&packed, other, bytes.len()).expect_err("another type");
        }
        for end in (0..packed.len()).step_by(61) {
            unpack(&packed[..end], DType::U32, bytes.len()).expect_err("cut short");
        }
    }

    #[test]
    fn bomb_is_an_error_within_the_limit() {
        let bomb = simple_compress(&vec![7u64; 4 << 20], &ChunkConfig::default()).expect("packed");
        assert!(bomb.len() < 1 << 14, "{}", bomb.len());
        let error = unpack(&bomb, DType::U64, 800).expect_err("a bomb").to_string();
        assert!(error.contains("longer than the 100 elements"), "{error}");
    }

    #[test]
    fn damaged_streams_never_panic() {
        let numbers: Vec<i64> = (0..3000i64).map(|at| at * at % 977).collect();
        let packed = simple_compress(&numbers, &ChunkConfig::default()).expect("packed");
        for at in 0..packed.len().min(400) {
            for bits in [0x01, 0x10, 0x80, 0xff] {
                let mut damaged = packed.clone();
                damaged[at] ^= bits;
                let _ = unpack(&damaged, DType::I64, numbers.len() * 8);
            }
        }
    }
}
