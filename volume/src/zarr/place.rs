//! Copies elements, as bytes, between blocks of different shapes: for shards that are decoded whole, and for chunks
//! that reach beyond the volume.

use std::ops::Range;

use ndarray::{ArrayView, ArrayViewMut, Axis, IxDyn, ShapeBuilder as _, Slice};
use ndarray_shm::Order;

use crate::error::Cause;

/// Returns a block filled with one element.
pub(super) fn filled(shape: &[usize], element: &[u8]) -> Result<Vec<u8>, Cause> {
    let count = shape.iter().try_fold(1usize, |count, length| count.checked_mul(*length));
    let size = count.and_then(|count| count.checked_mul(element.len())).ok_or("the chunk is larger than memory")?;
    let mut bytes = Vec::new();
    if element.iter().all(|byte| *byte == 0) {
        // `vec![0; size]` gets zeroed memory from the system without writing to it; the reservation reports a lack of
        // memory first.
        bytes.try_reserve_exact(size)?;
        drop(bytes);
        return Ok(vec![0; size]);
    }
    bytes.try_reserve_exact(size)?;
    for _ in 0..count.unwrap_or(0) {
        bytes.extend_from_slice(element);
    }
    Ok(bytes)
}

/// Copies a dense block into a window of a larger block that is in C order.
pub(super) fn put(
    block: &[u8],
    shape: &[usize],
    order: Order,
    into: &mut [u8],
    into_shape: &[usize],
    window: &[Range<usize>],
) -> Result<(), Cause> {
    let count: usize = shape.iter().product();
    let element = block.len().checked_div(count).unwrap_or(1);
    // The bytes of an element are one more axis, the fastest in both orders.
    let from = match order {
        Order::C => ArrayView::from_shape(IxDyn(&[shape, &[element]].concat()), block)?,
        Order::F => {
            let mut axes: Vec<usize> = (1..=shape.len()).collect();
            axes.push(0);
            let first = [&[element], shape].concat();
            ArrayView::from_shape(IxDyn(&first).f(), block)?.permuted_axes(IxDyn(&axes))
        }
    };
    let mut to = ArrayViewMut::from_shape(IxDyn(&[into_shape, &[element]].concat()), into)?;
    if window.len() != into_shape.len() || window.iter().zip(into_shape).any(|(range, length)| range.end > *length) {
        return Err("a chunk lies beyond what it is a part of".into());
    }
    for (axis, range) in window.iter().enumerate() {
        to.slice_axis_inplace(Axis(axis), Slice::from(range.clone()));
    }
    if to.shape() != from.shape() {
        return Err("a chunk has another shape than its place".into());
    }
    to.assign(&from);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_is_put_in_place_in_both_orders() {
        let mut whole = filled(&[3, 4], &[9, 9]).expect("small");
        put(&[1, 10, 2, 20, 3, 30, 4, 40], &[2, 2], Order::C, &mut whole, &[3, 4], &[1..3, 2..4]).expect("it fits");
        put(&[5, 50, 6, 60], &[2, 1], Order::F, &mut whole, &[3, 4], &[0..2, 0..1]).expect("it fits");
        put(&[1, 0, 3, 0, 2, 0, 4, 0], &[2, 2], Order::F, &mut whole, &[3, 4], &[0..2, 2..4]).expect("it fits");
        let pairs: Vec<u8> = whole.chunks_exact(2).map(|pair| pair[0]).collect();
        assert_eq!(pairs, [5, 9, 1, 2, 6, 9, 3, 4, 9, 9, 3, 4]);
        assert_eq!(whole[1], 50);
    }

    #[test]
    fn oversized_blocks_are_errors() {
        let mut whole = filled(&[3, 4], &[0]).expect("small");
        assert_eq!(whole, [0; 12]);
        assert!(put(&[1; 4], &[2, 2], Order::C, &mut whole, &[3, 4], &[2..4, 0..2]).is_err());
        assert!(put(&[1; 4], &[2, 2], Order::C, &mut whole, &[3, 4], &[0..2, 0..3]).is_err());
        assert!(put(&[1; 4], &[2, 2], Order::C, &mut whole, &[3, 4], &[0..2, 0..2, 0..1]).is_err());
        assert!(filled(&[usize::MAX, 2], &[1, 2]).is_err());
        assert!(filled(&[usize::MAX / if usize::BITS == 32 { 3 } else { 8 }], &[1, 2]).is_err());
    }
}
