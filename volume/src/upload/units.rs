//! The stored objects that an upload touches, and whether it covers each completely.
//!
//! Pure arithmetic on coordinates, and all checks that are possible before the first object is stored.

use std::ops::Range;

use crate::bbox::{Bbox, length};
use crate::error::{Error, Result};
use crate::grid::Cells;
use crate::upload::options::{Alignment, UploadOptions};
use crate::volume::ChunkSink;

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
    /// [`Bbox`](Error::Bbox), [`Alignment`](Error::Alignment), and [`Source`](Error::Source) if the sink's chunks
    /// cannot tile.
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
        if options.alignment == Alignment::Require {
            meta.check_aligned(&cutout)?;
        }
        let aligned = meta.aligned(&cutout);
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
