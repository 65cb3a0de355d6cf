//! Divides a region among machines, so that no two parts touch the same stored object.
//!
//! Pure arithmetic on coordinates, in integers: the result is the same on every machine.
//!
//! The region's stored objects are a box of cells. To divide a box into N parts, it is cut in two along one axis,
//! between two layers of cells. Each half gets a share of the N parts as close as possible to its share of the cells.
//! The candidates are the two layers nearest to the middle of each axis. The best cut minimizes the expected size of
//! the largest part; among equals it is the one along the slowest axis, so that parts are slabs if that is no worse.
//! Both halves are divided in the same way.

use std::ops::Range;

use crate::bbox::Bbox;
use crate::error::{Error, Result};
use crate::volume::VolumeMeta;

/// Maximum number of parts: more than any number of machines. Each part takes memory here.
const MOST_PARTS: usize = 1 << 20;

/// Divides a region of a volume into `count` parts, aligned to stored objects, with about the same number of objects
/// each.
///
/// Every element of the region is in exactly one part, and every stored object is touched by only one part, so that
/// machines can write their parts at the same time without coordination. If the region itself cuts through objects, so
/// do the parts at its border. If there are fewer objects than parts, the last parts are `None`.
///
/// # Errors
///
/// [`Bbox`](Error::Bbox): the region is not in the volume, or `count` is 0 or more than a million.
///
/// # Examples
///
/// ```
/// use ndarray_shm::DType;
/// use ndarray_shm_volume::{VolumeMeta, plan};
///
/// let meta = VolumeMeta::new(&[100, 64, 64], &[32, 32, 32], DType::U8);
/// let parts: Vec<String> = plan(&meta, &meta.domain(), 3)?.iter().flatten().map(ToString::to_string).collect();
/// // Of 16 stored objects: 4, 6 and 6. Three slabs would have 4, 4 and 8.
/// assert_eq!(parts, ["0:32,0:64,0:64", "32:100,0:32,0:64", "32:100,32:64,0:64"]);
/// # Ok::<(), ndarray_shm_volume::Error>(())
/// ```
pub fn plan(meta: &VolumeMeta, bbox: &Bbox, count: usize) -> Result<Vec<Option<Bbox>>> {
    meta.check("the volume that is to be divided")?;
    bbox.check_within(&meta.domain())?;
    if count == 0 || count > MOST_PARTS {
        return Err(Error::bbox(bbox, format!("it can be divided into 1 to {MOST_PARTS} parts, not {count}")));
    }
    let mut axes: Vec<usize> = (0..meta.shape.len()).collect();
    if meta.axes.first().is_some_and(|name| name == "x") {
        // Precomputed volumes name the fastest axis first.
        axes.reverse();
    }
    let all = meta.stored(bbox).numbers().to_vec();
    let most = usize::try_from(cells(&all)).unwrap_or(usize::MAX);
    let mut parts = Vec::with_capacity(count);
    divide(all, count.min(most), &axes, &mut |part| parts.push(region(meta, bbox, &part)));
    parts.resize(count, None);
    Ok(parts)
}

fn cells(numbers: &[Range<u64>]) -> u128 {
    numbers.iter().fold(1, |product: u128, range| product.saturating_mul(u128::from(range.end - range.start)))
}

/// One way to cut a box: before layer `at` of `axis`, with `parts` parts before the cut.
#[derive(Debug, Clone, Copy)]
struct BoxCut {
    axis: usize,
    at: u64,
    parts: usize,
    /// Cells of the largest part after this cut, if all further cuts were exact, as a fraction.
    fullest: (u128, u128),
}

impl BoxCut {
    fn is_better(&self, other: &Self) -> bool {
        // Exact up to 2^64 cells; beyond that it saturates, and any cut is acceptable.
        self.fullest.0.saturating_mul(other.fullest.1) < other.fullest.0.saturating_mul(self.fullest.1)
    }
}

/// Divides a box into parts, at most as many as it has cells.
fn divide(numbers: Vec<Range<u64>>, parts: usize, axes: &[usize], found: &mut impl FnMut(Vec<Range<u64>>)) {
    let Some(cut) = (parts > 1).then(|| best(&numbers, parts, axes)).flatten() else {
        return found(numbers);
    };
    let (mut before, mut behind) = (numbers.clone(), numbers);
    before[cut.axis].end = cut.at;
    behind[cut.axis].start = cut.at;
    divide(before, cut.parts, axes, found);
    divide(behind, parts - cut.parts, axes, found);
}

fn best(numbers: &[Range<u64>], parts: usize, axes: &[usize]) -> Option<BoxCut> {
    let mut best: Option<BoxCut> = None;
    for &axis in axes {
        let Range { start, end } = numbers[axis];
        let layers = end - start;
        let layer = cells(numbers) / u128::from(layers);
        // The share of layers for half of the parts, rounded down.
        let share = u128::from(layers) * (parts / 2) as u128 / parts as u128;
        for before in [share, share + 1] {
            let behind = u128::from(layers).saturating_sub(before);
            if before == 0 || behind == 0 {
                continue;
            }
            let (before_cells, behind_cells) = (before.saturating_mul(layer), behind.saturating_mul(layer));
            // The proportional number of parts, rounded to nearest. Each half gets at least one part, and at most as
            // many as it has cells.
            let fair = (2 * before * parts as u128 + u128::from(layers)) / (2 * u128::from(layers));
            let least = (parts as u128).saturating_sub(behind_cells).max(1);
            let most = before_cells.min(parts as u128 - 1);
            let Ok(given) = usize::try_from(fair.clamp(least, most)) else { continue };
            let Ok(offset) = u64::try_from(before) else { continue };
            let halves = [(before_cells, given as u128), (behind_cells, (parts - given) as u128)];
            let first = halves[0].0.saturating_mul(halves[1].1) > halves[1].0.saturating_mul(halves[0].1);
            let cut =
                BoxCut { axis, at: start + offset, parts: given, fullest: if first { halves[0] } else { halves[1] } };
            if best.is_none_or(|best| cut.is_better(&best)) {
                best = Some(cut);
            }
        }
    }
    best
}

fn region(meta: &VolumeMeta, bbox: &Bbox, numbers: &[Range<u64>]) -> Option<Bbox> {
    let axes = numbers.iter().zip(&meta.stored_shape).zip(&meta.origin).zip(bbox.ranges());
    let ranges = axes.map(|(((numbers, stored), origin), range)| {
        let at = |number: u64| origin.saturating_add_unsigned(number.saturating_mul(*stored));
        at(numbers.start).max(range.start)..at(numbers.end).min(range.end)
    });
    Bbox::new(ranges.collect()).ok()
}

#[cfg(test)]
mod tests {
    use ndarray_shm::DType;

    use super::*;

    /// Pseudorandom numbers, the same in every run.
    struct RandomNumbers(u64);

    impl RandomNumbers {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % limit
        }
    }

    fn volume(numbers: &mut RandomNumbers) -> (VolumeMeta, Bbox) {
        let axes = 1 + numbers.below(4);
        let chunk: Vec<u64> = (0..axes).map(|_| 1 + numbers.below(9)).collect();
        let shape: Vec<u64> = chunk.iter().map(|length| 1 + numbers.below(length * 12)).collect();
        let mut meta = VolumeMeta::new(&shape, &chunk, DType::U8);
        meta.stored_shape = chunk.iter().map(|length| length * (1 + numbers.below(3))).collect();
        meta.origin = (0..axes).map(|_| i64::try_from(numbers.below(1000)).expect("small") - 500).collect();
        if numbers.below(2) == 0 {
            meta.axes = vec!["x".to_owned(); chunk.len()];
        }
        let domain = meta.domain();
        let ranges = domain.ranges().iter().map(|range| {
            let length = range.start.abs_diff(range.end);
            let skip = numbers.below(length);
            let start = range.start.saturating_add_unsigned(skip);
            start..start.saturating_add_unsigned(1 + numbers.below(length - skip))
        });
        let bbox = Bbox::new(ranges.collect()).expect("not empty");
        (meta, bbox)
    }

    #[test]
    fn parts_are_an_aligned_and_balanced_partition() {
        let mut numbers = RandomNumbers(7);
        for _ in 0..2000 {
            let (meta, bbox) = volume(&mut numbers);
            let objects = meta.stored(&bbox).total();
            let count = usize::try_from(1 + numbers.below(40)).expect("small");
            let context = format!("{bbox} of {:?} from {:?}, {count} parts", meta.stored_shape, meta.origin);
            let parts = plan(&meta, &bbox, count).expect(&context);
            assert_eq!(parts, plan(&meta, &bbox, count).expect(&context), "the same answer again");
            assert_eq!(parts.len(), count);
            let real: Vec<&Bbox> = parts.iter().flatten().collect();
            assert_eq!(real.len() as u64, objects.min(count as u64), "{context}");
            assert!(parts[real.len()..].iter().all(Option::is_none), "those without work come last: {context}");

            // Disjoint parts within the region are a partition if their volumes sum to the whole.
            let elements = |bbox: &Bbox| bbox.shape().iter().map(|length| *length as u64).product::<u64>();
            assert_eq!(real.iter().map(|part| elements(part)).sum::<u64>(), elements(&bbox), "{context}");
            for (index, part) in real.iter().enumerate() {
                part.check_within(&bbox).expect(&context);
                assert!(real[..index].iter().all(|other| other.intersection(part).is_none()), "{context}");
            }
            // The numbers of objects sum to the total too, so no object is touched twice.
            let sizes: Vec<u64> = real.iter().map(|part| meta.stored(part).total()).collect();
            assert_eq!(sizes.iter().sum::<u64>(), objects, "{context}");

            let layer = meta.stored(&bbox).numbers().iter().map(|range| objects / (range.end - range.start)).max();
            let (least, most) = (sizes.iter().min().expect("a part"), sizes.iter().max().expect("a part"));
            assert!(most - least <= layer.expect("an axis").max(1), "{sizes:?}: {context}");
            assert!(*most <= 2 * objects.div_ceil(real.len() as u64), "{sizes:?}: {context}");
        }
    }

    #[test]
    fn parts_are_slabs_if_that_is_no_worse() {
        let texts = |meta: &VolumeMeta, count: usize| -> Vec<String> {
            let parts = plan(meta, &meta.domain(), count).expect("a plan");
            parts.iter().map(|part| part.as_ref().map_or("-".to_owned(), ToString::to_string)).collect()
        };
        let mut meta = VolumeMeta::new(&[8, 8, 8], &[2, 2, 2], DType::U8);
        assert_eq!(texts(&meta, 4), ["0:2,0:8,0:8", "2:4,0:8,0:8", "4:6,0:8,0:8", "6:8,0:8,0:8"]);
        assert_eq!(texts(&meta, 1), ["0:8,0:8,0:8"]);
        meta.axes = ["x", "y", "z"].map(str::to_owned).to_vec();
        assert_eq!(texts(&meta, 2), ["0:8,0:8,0:4", "0:8,0:8,4:8"]);
        let point = VolumeMeta::new(&[], &[], DType::U8);
        assert_eq!(texts(&point, 3), ["", "-", "-"]);
    }

    #[test]
    fn impossible_divisions_are_errors() {
        let meta = VolumeMeta::new(&[8], &[2], DType::U8);
        assert!(plan(&meta, &meta.domain(), 0).is_err());
        assert!(plan(&meta, &meta.domain(), MOST_PARTS + 1).is_err());
        assert!(plan(&meta, &"4:9".parse().expect("a box"), 2).is_err());
        // Enormous sizes must not panic.
        let mut vast = VolumeMeta::new(&[u64::MAX >> 1, u64::MAX >> 1, 1 << 40], &[1, 1, 1], DType::U8);
        assert_eq!(plan(&vast, &vast.domain(), 1000).expect("a plan").iter().flatten().count(), 1000);
        vast.chunk_shape = vec![0, 1, 1];
        assert!(plan(&vast, &vast.domain(), 2).is_err());
    }
}
