//! One N5 dataset as a volume.

use std::fmt;
use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;

use ndarray::{ArrayView, ArrayViewMut, Axis, IxDyn, ShapeBuilder as _, Slice};
use ndarray_shm::Order;

use super::attributes::N5Attributes;
use super::block;
use super::layout::DatasetLayout;
use super::scales::AxesInfo;
use crate::bbox::{ranges_text, to_usize};
use crate::description::Encoding;
use crate::error::{Cause, Error, Result};
use crate::gzip;
use crate::scratch::Scratch;
use crate::store::{self, ObjectVersion, Store};
use crate::volume::{ChunkSource, Fetched, VolumeMeta};

/// An open dataset.
pub(super) struct N5Volume {
    store: Arc<dyn Store>,
    layout: DatasetLayout,
    meta: VolumeMeta,
    geometry: AxesInfo,
    identity: String,
    /// Key of the dataset; `""` for the root of the store.
    prefix: String,
    /// Path of the dataset in its group; empty without a group.
    scale: String,
}

impl N5Volume {
    /// Opens the dataset that attributes describe; `geometry` returns the known facts about a given number of axes.
    pub(super) fn open(
        store: &Arc<dyn Store>,
        attributes: &N5Attributes,
        scale: &str,
        geometry: impl FnOnce(usize) -> AxesInfo,
    ) -> Result<Self> {
        let layout = DatasetLayout::read(attributes)?;
        let geometry = geometry(layout.shape.len());
        let meta = VolumeMeta {
            kind: None,
            origin: vec![0; layout.shape.len()],
            shape: layout.shape.clone(),
            chunk_shape: layout.block.clone(),
            stored_shape: layout.block.clone(),
            dtype: layout.dtype,
            // Writers leave out blocks that are all 0; the format has no other fill value.
            fill: Some(vec![0; layout.dtype.size()]),
            axes: geometry.axes.clone(),
            description: format!("N5, {}", layout.packing_name),
        };
        Ok(Self {
            store: Arc::clone(store),
            layout,
            meta,
            geometry,
            identity: attributes.identity(),
            prefix: attributes.prefix().to_owned(),
            scale: scale.to_owned(),
        })
    }

    /// Returns the description of the volume, and the facts about its axes.
    pub(super) fn into_parts(self) -> (VolumeMeta, AxesInfo) {
        (self.meta, self.geometry)
    }

    /// Returns the key of the block that contains a region, and the window of the region in the block.
    fn locate(&self, region: &[Range<i64>]) -> Result<(String, Vec<Range<usize>>)> {
        let wrong = |reason: String| Error::bbox(ranges_text(region), reason);
        if region.len() != self.meta.shape.len() {
            return Err(wrong(format!("the volume has {} axes", self.meta.shape.len())));
        }
        let mut key = self.prefix.clone();
        let mut window = Vec::with_capacity(region.len());
        for ((range, length), block) in region.iter().zip(&self.meta.shape).zip(&self.layout.block) {
            let bounds = (u64::try_from(range.start), u64::try_from(range.end));
            let (Ok(start), Ok(end)) = bounds else { return Err(wrong("it does not lie in the volume".to_owned())) };
            let number = start / block;
            if start >= end || end > *length || (end - 1) / block != number {
                return Err(wrong("it does not lie in one chunk of the volume".to_owned()));
            }
            let separator = if key.is_empty() { "" } else { "/" };
            let _ = write!(key, "{separator}{number}"); // writing to a string cannot fail
            window.push(to_usize(start % block)..to_usize(start % block + (end - start)));
        }
        Ok((key, window))
    }

    fn failed(&self, key: &str, region: &[Range<i64>], cause: Cause) -> Error {
        Error::chunk(self.store.locate_stored(key), ranges_text(region), cause)
    }

    /// Converts a store's error to an error of the block, unless a retry may help.
    fn refused(&self, error: Error, region: &[Range<i64>]) -> Error {
        let region = ranges_text(region);
        if self.is_remote() { error.of_answer(region) } else { error.of_file(region) }
    }

    fn fetch_stored(&self, region: &[Range<i64>]) -> Result<(Fetched, ObjectVersion)> {
        let (key, _) = self.locate(region)?;
        let header = block::most_header_bytes(region.len());
        let most = gzip::most_stored(self.layout.most_bytes()).saturating_add(header);
        let object = self.store.get_at_most(&key, most);
        let object = object.map_err(|error| self.refused(error, region))?;
        let Some(object) = object else { return Ok((Fetched::Missing, ObjectVersion::Missing)) };
        let version = object.version.into();
        if !object.gzip {
            return Ok((Fetched::Packed(object.bytes), version));
        }
        let mut bytes = Vec::new();
        gzip::unpack(&object.bytes, usize::try_from(most).unwrap_or(usize::MAX), &mut bytes)
            .map_err(|cause| self.failed(&key, region, cause))?;
        Ok((Fetched::Packed(bytes), version))
    }

    /// Passes a region of a block to `scratch`. A block may be smaller than its grid cell, at the end of an axis, or if
    /// the dataset has grown since it was written. The missing elements are 0, like elements that were never stored.
    fn hand_over(
        &self,
        bytes: Vec<u8>,
        shape: Vec<usize>,
        window: Vec<Range<usize>>,
        scratch: &mut Scratch,
    ) -> Result<(), Cause> {
        if window.iter().zip(&shape).all(|(range, length)| range.end <= *length) {
            scratch.block(bytes, shape, Order::F, window);
            return Ok(());
        }
        let common: Vec<Range<usize>> =
            window.iter().zip(&shape).map(|(range, length)| range.start..range.end.min(*length)).collect();
        if common.iter().any(Range::is_empty) {
            scratch.fill(&vec![0; self.meta.dtype.size()]);
            return Ok(());
        }
        // The bytes of an element are one more axis, the fastest.
        let size = self.meta.dtype.size();
        let wanted: Vec<usize> = [size].into_iter().chain(window.iter().map(ExactSizeIterator::len)).collect();
        let mut whole = Vec::new();
        // At most the length of a whole block.
        let length = wanted.iter().product();
        whole.try_reserve_exact(length)?;
        whole.resize(length, 0);
        let stored: Vec<usize> = [size].into_iter().chain(shape).collect();
        let mut from = ArrayView::from_shape(IxDyn(&stored).f(), &bytes)?;
        let mut to = ArrayViewMut::from_shape(IxDyn(&wanted).f(), &mut whole)?;
        for (axis, range) in common.iter().enumerate() {
            from.slice_axis_inplace(Axis(axis + 1), Slice::from(range.clone()));
            to.slice_axis_inplace(Axis(axis + 1), Slice::from(0..range.len()));
        }
        to.assign(&from);
        crate::spare::give(bytes);
        let all = wanted[1..].iter().map(|length| 0..*length).collect();
        scratch.block(whole, wanted[1..].to_vec(), Order::F, all);
        Ok(())
    }
}

impl ChunkSource for N5Volume {
    fn meta(&self) -> &VolumeMeta {
        &self.meta
    }

    fn identity(&self) -> String {
        self.identity.clone()
    }

    fn cache_identity(&self) -> Option<String> {
        let place = self.store.cache_place(&self.prefix)?;
        let DatasetLayout { block, dtype, packing, packing_name, .. } = &self.layout;
        Some(format!("n5 {place} {dtype}, blocks of {block:?}, {packing_name} ({packing:?})"))
    }

    fn notes(&self) -> Vec<(&'static str, String)> {
        let mut notes = vec![("source", store::source(&*self.store, "n5", ""))];
        notes.extend((!self.scale.is_empty()).then(|| ("scale", self.scale.clone())));
        notes.extend(self.geometry.lengths.notes());
        let encoding = Encoding::named(&self.layout.packing_name);
        notes.extend(encoding.map(|encoding| ("encoding", encoding.name().to_owned())));
        notes
    }

    fn is_remote(&self) -> bool {
        self.store.is_remote()
    }

    fn fetch(&self, region: &[Range<i64>]) -> Result<Fetched> {
        self.fetch_stored(region).map(|(fetched, _)| fetched)
    }

    fn version(&self, region: &[Range<i64>]) -> Result<ObjectVersion> {
        let (key, _) = self.locate(region)?;
        self.store.version(&key).map(ObjectVersion::from).map_err(|error| self.refused(error, region))
    }

    fn fetch_with_version(&self, region: &[Range<i64>]) -> Result<(Fetched, ObjectVersion)> {
        self.fetch_stored(region)
    }

    fn decode(&self, region: &[Range<i64>], fetched: Fetched, scratch: &mut Scratch) -> Result<()> {
        let stored = match fetched {
            Fetched::Packed(bytes) => bytes,
            Fetched::Missing => {
                scratch.missing();
                return Ok(());
            }
            // `fetch` of this source never returns this.
            Fetched::Later => return self.decode(region, self.fetch(region)?, scratch),
        };
        let (key, window) = self.locate(region)?;
        let mut bytes = scratch.take_memory();
        let shape = block::decode(&stored, &self.layout, &mut bytes);
        crate::spare::give(stored);
        shape
            .and_then(|shape| self.hand_over(bytes, shape, window, scratch))
            .map_err(|cause| self.failed(&key, region, cause))
    }

    fn order(&self) -> Order {
        Order::F
    }
}

impl fmt::Debug for N5Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("N5Volume")
            .field("volume", &self.store.locate(&self.prefix))
            .field("meta", &self.meta)
            .finish_non_exhaustive()
    }
}
