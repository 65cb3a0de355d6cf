//! The stored objects that an upload touches, and whether it covers each completely.
//!
//! Pure arithmetic on coordinates, and all checks that are possible before the first object is stored.

use std::ops::Range;

use crate::bbox::{Bbox, length};
use crate::error::{Error, Result};
use crate::grid::Cells;
use crate::upload::options::{Alignment, UploadOptions};
use crate::volume::{ChunkSink, VolumeMeta};

/// The objects of one upload.
#[derive(Debug)]
pub(crate) struct Units {
    /// The region that is written.
    pub(crate) cutout: Bbox,
    /// The same region, grown to whole stored objects.
    aligned: Bbox,
    cells: Cells,
}

impl Units {
    /// Computes the objects of an upload.
    ///
    /// # Errors
    ///
    /// [`Bbox`](Error::Bbox), [`Alignment`](Error::Alignment), and [`Source`](Error::Source) if the sink's chunks cannot tile.
    pub(crate) fn of(sink: &dyn ChunkSink, bbox: &Bbox, options: &UploadOptions<'_>) -> Result<Self> {
        let meta = sink.meta();
        meta.check(&sink.identity())?;
        let cutout = match &options.cutout {
            None => bbox.clone(),
            Some(cutout) => {
                cutout.check_within(bbox).map_err(|error| match error {
                    Error::Bbox { bbox: given, reason } => {
                        let reason = format!("it is to be cut out of the array's region {bbox}, but {reason}");
                        Error::Bbox { bbox: given, reason }
                    }
                    other => other,
                })?;
                cutout.clone()
            }
        };
        cutout.check_within(&meta.domain())?;
        let aligned = aligned(meta, &cutout);
        if options.alignment == Alignment::Require && aligned != cutout {
            return Err(Error::Alignment {
                region: cutout.to_string(),
                stored: meta.stored_shape.clone(),
                origin: meta.origin.clone(),
                aligned: aligned.to_string(),
            });
        }
        let cells = meta.stored(&aligned);
        Ok(Self { cutout, aligned, cells })
    }

    /// Iterates over the regions of the objects. Each is a whole object, except that it ends where the volume ends.
    pub(crate) fn cells(&self) -> Cells {
        self.cells.clone()
    }

    /// Returns the number of objects.
    pub(crate) fn total(&self) -> usize {
        usize::try_from(self.cells.total()).unwrap_or(usize::MAX)
    }

    /// Whether every object is written whole.
    pub(crate) fn are_whole(&self) -> bool {
        self.aligned == self.cutout
    }

    /// Returns the part of a region that is written.
    pub(crate) fn written(&self, region: &[Range<i64>]) -> Option<Vec<Range<i64>>> {
        let part = |(a, b): (&Range<i64>, &Range<i64>)| a.start.max(b.start)..a.end.min(b.end);
        let part: Vec<_> = region.iter().zip(self.cutout.ranges()).map(part).collect();
        part.iter().all(|range| range.start < range.end).then_some(part)
    }

    /// Returns how many elements of a region are written.
    pub(crate) fn count(&self, region: &[Range<i64>]) -> u64 {
        self.written(region).map_or(0, |part| part.iter().map(|range| length(range) as u64).product())
    }

    /// Whether the written region covers all of `region`.
    pub(crate) fn cover(&self, region: &[Range<i64>]) -> bool {
        region.iter().zip(self.cutout.ranges()).all(|(part, all)| all.start <= part.start && part.end <= all.end)
    }
}

/// Returns the smallest region around `bbox` that cuts through no stored object. It ends where the volume ends.
pub(crate) fn aligned(meta: &VolumeMeta, bbox: &Bbox) -> Bbox {
    let cells = meta.stored(bbox);
    let domain = meta.domain();
    let axes = cells.numbers().iter().zip(&meta.stored_shape).zip(&meta.origin).zip(domain.ranges());
    let ranges = axes.map(|(((numbers, stored), origin), whole)| {
        let at = |number: u64| origin.saturating_add_unsigned(number.saturating_mul(*stored)).min(whole.end);
        at(numbers.start)..at(numbers.end)
    });
    let ranges: Vec<_> = ranges.collect();
    // Cannot fail: a box around a box with elements has elements.
    Bbox::new(ranges).unwrap_or_else(|_| bbox.clone())
}

#[cfg(test)]
mod tests {
    use ndarray_shm::DType;

    use super::*;

    #[test]
    fn aligned_region_ends_at_the_volume() {
        let mut meta = VolumeMeta::new(&[10, 10, 4], &[2, 3, 4], DType::U8);
        meta.stored_shape = vec![4, 3, 4];
        meta.origin = vec![-5, 100, 0];
        let grown = |text: &str| aligned(&meta, &text.parse().expect("a box")).to_string();
        assert_eq!(grown("-5:-1,100:103,0:4"), "-5:-1,100:103,0:4");
        assert_eq!(grown("-2:0,104:105,1:2"), "-5:3,103:106,0:4");
        assert_eq!(grown("3:4,109:110,0:1"), "3:5,109:110,0:4");
    }
}
