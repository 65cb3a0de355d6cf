//! The cells of a grid that a region touches: its chunks, or its stored objects.
//!
//! Pure arithmetic on coordinates. A cell is identified by its number along each axis, counted from the grid's origin.

use std::ops::Range;

use crate::bbox::Bbox;

/// An iterator over the cells of a grid that a region touches, each clipped to the region; the last axis runs fastest.
#[derive(Debug, Clone)]
pub struct Cells {
    bbox: Bbox,
    origin: Vec<i64>,
    cell: Vec<u64>,
    /// Numbers of the first cell and of the end along each axis.
    numbers: Vec<Range<u64>>,
    next: Option<Vec<u64>>,
}

impl Cells {
    /// Creates the iterator. The region must not begin before `origin`, and no length of `cell` may be 0.
    pub(crate) fn new(bbox: &Bbox, origin: &[i64], cell: &[u64]) -> Self {
        let axes = bbox.ranges().iter().zip(origin).zip(cell);
        let numbers: Vec<Range<u64>> = axes
            .map(|((range, origin), cell)| {
                let start = range.start.max(*origin).abs_diff(*origin) / cell;
                let end = range.end.max(*origin).abs_diff(*origin).div_ceil(*cell);
                start..end
            })
            .collect();
        let next =
            numbers.iter().all(|range| range.start < range.end).then(|| numbers.iter().map(|n| n.start).collect());
        Self { bbox: bbox.clone(), origin: origin.to_vec(), cell: cell.to_vec(), numbers, next }
    }

    /// Returns the range of cell numbers along each axis.
    pub(crate) fn numbers(&self) -> &[Range<u64>] {
        &self.numbers
    }

    /// Returns the total number of cells, also during the iteration.
    pub fn total(&self) -> u64 {
        self.numbers.iter().fold(1, |product, range| product.saturating_mul(range.end - range.start))
    }

    fn region(&self, numbers: &[u64]) -> Vec<Range<i64>> {
        let axes = numbers.iter().zip(&self.cell).zip(&self.origin).zip(self.bbox.ranges());
        axes.map(|(((number, cell), origin), range)| {
            let start = origin.saturating_add_unsigned(number.saturating_mul(*cell));
            start.max(range.start)..start.saturating_add_unsigned(*cell).min(range.end)
        })
        .collect()
    }
}

impl Iterator for Cells {
    type Item = Vec<Range<i64>>;

    fn next(&mut self) -> Option<Self::Item> {
        let numbers = self.next.take()?;
        let mut following = numbers.clone();
        for (number, range) in following.iter_mut().zip(&self.numbers).rev() {
            *number += 1;
            if *number < range.end {
                self.next = Some(following);
                break;
            }
            *number = range.start;
        }
        Some(self.region(&numbers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_tile_their_region() {
        let bbox: Bbox = "-3:5,10:13".parse().expect("a box");
        let cells = Cells::new(&bbox, &[-4, 0], &[4, 12]);
        assert_eq!((cells.numbers(), cells.total()), ([0..3, 0..2].as_slice(), 6));
        let texts: Vec<String> = cells.map(|cell| Bbox::new(cell).expect("not empty").to_string()).collect();
        assert_eq!(texts, ["-3:0,10:12", "-3:0,12:13", "0:4,10:12", "0:4,12:13", "4:5,10:12", "4:5,12:13"]);
    }

    #[test]
    fn point_has_one_cell_and_empty_box_none() {
        assert_eq!(Cells::new(&Bbox::whole(&[]), &[], &[]).collect::<Vec<_>>(), [Vec::new()]);
        assert_eq!(Cells::new(&Bbox::whole(&[0, 4]), &[0, 0], &[2, 2]).count(), 0);
    }
}
