//! Volumes: opening and creating them, and dividing a region among machines.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ndarray_shm::cache::ChunkCache;
use ndarray_shm::{DType, Order};
use ndarray_shm_volume::markers::{self, Marker};
use ndarray_shm_volume::{
    Bbox, ChunkSink, ChunkSource, Encoding, Error, NewVolume, Recheck, Result, ScaleInfo, Shard, SourceFailure,
    VolumeFormat, VolumeKind, VolumeMeta, VolumeNotes, VolumeOptions, VolumeUrl, create_volume, plan,
};
use pyo3::prelude::*;

use crate::array::RawArray;
use crate::cache::RawCache;
use crate::errors::{exception, volume_exception};
use crate::forks::forks;
use crate::job::Job;
use crate::memory::ElementType;
use crate::signals::interruptibly;
use crate::transfer::element_of;

/// The address of a volume, and the volume once it was opened. `ndshm.Volume` has one.
#[pyclass(frozen, module = "ndshm._core")]
pub(crate) struct RawVolume {
    target: Arc<Target>,
}

/// A volume that is opened when it is first used, and again in a forked child, which lacks the threads of its parent.
pub(crate) struct Target {
    pub(crate) url: VolumeUrl,
    pub(crate) mip: usize,
    cache: Option<ChunkCache>,
    recheck: Recheck,
    source: Mutex<Option<InProcess<dyn ChunkSource>>>,
    /// How often this object has written to the volume. What was opened before a write knows old facts about shards,
    /// and takes cached chunks for up to date.
    writes: AtomicU64,
}

/// A volume, and how often this process had been forked when it was opened.
struct InProcess<V: ?Sized> {
    volume: Arc<V>,
    forks: u32,
    writes: u64,
}

impl Target {
    /// Returns the volume, opened for reading.
    pub(crate) fn source(&self) -> Result<Arc<dyn ChunkSource>> {
        let (forks, writes) = (forks(), self.writes.load(Ordering::Acquire));
        let known = |slot: &Option<InProcess<dyn ChunkSource>>| {
            let open = slot.as_ref().filter(|open| (open.forks, open.writes) == (forks, writes));
            open.map(|open| Arc::clone(&open.volume))
        };
        // In a forked child a thread of the parent may have locked it for ever: the volume is opened anew then.
        if let Some(open) = self.source.try_lock().ok().and_then(|slot| known(&slot)) {
            return Ok(open);
        }
        // The lock is not held while a server answers.
        let volume: Arc<dyn ChunkSource> = Arc::from(self.options().open(self.url.clone())?);
        if let Ok(mut slot) = self.source.try_lock() {
            *slot = Some(InProcess { volume: Arc::clone(&volume), forks, writes });
        }
        Ok(volume)
    }

    /// Opens the volume anew when it is read next.
    pub(crate) fn forget(&self) {
        self.writes.fetch_add(1, Ordering::AcqRel);
    }

    /// Opens the volume for writing. It is opened each time, because other programs may have changed it.
    pub(crate) fn sink(&self, encoding: Option<Encoding>) -> Result<Box<dyn ChunkSink>> {
        let options = match encoding {
            Some(encoding) => self.options().encoding(encoding),
            None => self.options(),
        };
        options.open_writable(self.url.clone())
    }

    fn options(&self) -> VolumeOptions {
        let options = VolumeOptions::new().mip(self.mip).recheck(self.recheck);
        match &self.cache {
            Some(cache) => options.cache(cache),
            None => options,
        }
    }
}

/// A scale for Python: key, resolution, unit, origin, shape, shape of a chunk, shape of a stored object, dtype, kind,
/// fill value, names of axes, description.
type Row = (
    String,
    Vec<f64>,
    String,
    Vec<i64>,
    Vec<u64>,
    Vec<u64>,
    Vec<u64>,
    &'static str,
    Option<&'static str>,
    Option<Vec<u8>>,
    Vec<String>,
    String,
);

/// What a scale is, as an array: origin, shape, shape of a chunk, shape of a stored object, dtype, order of its
/// elements, fill value, words of the axes.
type VolumeFacts = (Vec<i64>, Vec<u64>, Vec<u64>, Vec<u64>, &'static str, &'static str, Option<Vec<u8>>, Vec<String>);

/// What an open volume is known to be: see [`RawVolume::seen`].
type Seen = (Vec<u64>, Vec<u64>, &'static str, Vec<String>, String);

fn row(scale: ScaleInfo) -> Row {
    let ScaleInfo { key, meta, resolution, unit, .. } = scale;
    let names = if meta.axes.is_empty() { Vec::new() } else { meta.axis_words() };
    let VolumeMeta { origin, shape, chunk_shape, stored_shape, dtype, kind, fill, description, .. } = meta;
    let kind = kind.map(VolumeKind::name);
    (key, resolution, unit, origin, shape, chunk_shape, stored_shape, dtype.as_str(), kind, fill, names, description)
}

/// Returns a region's start and end for each axis.
pub(crate) fn ends(bbox: &Bbox) -> Vec<(i64, i64)> {
    bbox.ranges().iter().map(|range| (range.start, range.end)).collect()
}

/// Returns the region that the text means in this volume; without a text, all of it.
pub(crate) fn region(meta: &VolumeMeta, text: Option<&str>) -> Result<Bbox> {
    text.map_or_else(|| Ok(meta.domain()), |text| meta.parse_bbox(text))
}

#[pymethods]
impl RawVolume {
    #[new]
    #[pyo3(signature = (url, mip, cache=None, recheck="open"))]
    fn new(py: Python<'_>, url: &str, mip: usize, cache: Option<&RawCache>, recheck: &str) -> PyResult<Self> {
        let url: VolumeUrl = url.parse().map_err(|error| volume_exception(py, &error))?;
        let recheck = match recheck {
            "always" => Recheck::Always,
            "never" => Recheck::Never,
            _ => Recheck::Open,
        };
        let cache = cache.map(|raw| raw.cache.clone());
        let (source, writes) = (Mutex::default(), AtomicU64::new(0));
        Ok(Self { target: Arc::new(Target { url, mip, cache, recheck, source, writes }) })
    }

    /// The URL or path, without password and query.
    #[getter]
    fn url(&self) -> String {
        self.target.url.to_string()
    }

    #[getter]
    fn mip(&self) -> usize {
        self.target.mip
    }

    /// Returns shape, shape of a chunk, dtype, names of axes and description of the scale, or None if this process has
    /// not opened it.
    #[getter]
    fn seen(&self) -> Option<Seen> {
        let source = self.target.source.try_lock().ok()?;
        let open = source.as_ref().filter(|open| open.forks == forks())?;
        let meta = open.volume.meta();
        let names = if meta.axes.is_empty() { Vec::new() } else { meta.axis_words() };
        Some((meta.shape.clone(), meta.chunk_shape.clone(), meta.dtype.as_str(), names, meta.description.clone()))
    }

    /// Returns what the scale is: see [`VolumeFacts`].
    fn facts(&self, py: Python<'_>) -> PyResult<VolumeFacts> {
        let target = self.target();
        interruptibly(py, || {
            let source = target.source()?;
            let VolumeMeta { origin, shape, chunk_shape, stored_shape, fill, .. } = source.meta().clone();
            let order = if source.order() == Order::F { "F" } else { "C" };
            let (dtype, axes) = (element_of(&*source).as_str(), source.meta().axis_words());
            Ok((origin, shape, chunk_shape, stored_shape, dtype, order, fill, axes))
        })
    }

    /// Returns the ends of a region.
    fn resolve(&self, py: Python<'_>, region_text: Option<&str>) -> PyResult<Vec<(i64, i64)>> {
        let target = self.target();
        interruptibly(py, || Ok(ends(&region(target.source()?.meta(), region_text)?)))
    }

    /// Starts to list the scales.
    fn scales(&self) -> PyResult<Job> {
        let target = Arc::clone(&self.target);
        let work = move |_: &_| VolumeOptions::new().scales(target.url.clone());
        Job::start(work, |py, scales: Vec<ScaleInfo>| {
            let rows: Vec<Row> = scales.into_iter().map(row).collect();
            Ok(rows.into_pyobject(py)?.into_any().unbind())
        })
    }

    /// Starts to open the volume. The result is the line that identifies it.
    fn open(&self) -> PyResult<Job> {
        let target = self.target();
        Job::start(
            move |_| Ok(target.source()?.identity()),
            |py, line: String| Ok(line.into_pyobject(py)?.into_any().unbind()),
        )
    }

    /// Starts to divide a region into parts. The result has the ends of each part, or None for an empty one.
    fn plan(&self, region_text: Option<String>, count: usize) -> PyResult<Job> {
        let target = self.target();
        let work = move |_: &_| {
            let source = target.source()?;
            let meta = source.meta();
            plan(meta, &region(meta, region_text.as_deref())?, count)
        };
        Job::start(work, |py, parts: Vec<Option<Bbox>>| {
            let parts: Vec<_> = parts.iter().map(|part| part.as_ref().map(ends)).collect();
            Ok(parts.into_pyobject(py)?.into_any().unbind())
        })
    }
}

impl RawVolume {
    pub(crate) fn target(&self) -> Arc<Target> {
        Arc::clone(&self.target)
    }
}

/// What a new volume is like: an array or a volume.
enum VolumeModel {
    Array { dtype: DType, lengths: Vec<usize>, notes: Box<VolumeNotes> },
    Volume(Arc<Target>),
}

impl VolumeModel {
    /// Returns element type, shape and notes.
    fn look(self) -> Result<(DType, Vec<u64>, VolumeNotes)> {
        match self {
            Self::Array { dtype, lengths, notes } => {
                Ok((dtype, lengths.into_iter().map(|length| length as u64).collect(), *notes))
            }
            Self::Volume(target) => {
                let source = target.source()?;
                let meta = source.meta();
                Ok((meta.dtype, meta.shape.clone(), VolumeNotes::of(&*source)?))
            }
        }
    }
}

/// A new volume, as the caller described it. What is `None` is taken from the model.
struct NewVolumeRequest {
    format: VolumeFormat,
    version: u8,
    shape: Option<Vec<u64>>,
    chunk: Option<Vec<u64>>,
    dtype: Option<DType>,
    origin: Option<Vec<i64>>,
    shard: Option<Vec<u64>>,
    encoding: Option<Encoding>,
    quality: Option<u8>,
    resolution: Option<Vec<f64>>,
    kind: Option<VolumeKind>,
}

impl NewVolumeRequest {
    /// Returns the volume to create, and what it does not keep of the model or assumes.
    fn describe(self, url: &VolumeUrl, model: Option<VolumeModel>) -> Result<(NewVolume, Vec<String>)> {
        let is_like = model.is_some();
        let (dtype, shape, mut notes) = match model {
            Some(model) => model.look()?,
            None => (DType::U8, Vec::new(), VolumeNotes::default()),
        };
        // What the caller says is not taken over, so that nothing is said about it either. A volume of another shape
        // begins elsewhere.
        if self.origin.is_some() || self.shape.as_ref().is_some_and(|wanted| !is_same_extent(wanted, &shape)) {
            notes.bbox = None;
        }
        if self.resolution.is_some() {
            notes.resolution.clear();
        }
        if self.chunk.is_some() {
            notes.chunk_shape.clear();
            notes.shard_shape.clear();
        }
        if self.encoding.is_some() {
            notes.encoding = None;
        }
        if self.kind.is_some() {
            notes.kind = None;
        }
        let shape = self.shape.unwrap_or(shape);
        let mut new = NewVolume::new(self.format, &shape, &[], self.dtype.unwrap_or(dtype));
        (new.version, new.shard_shape) = (self.version, self.shard);
        let mut said = new.take_over(&notes, dtype);
        new.origin = self.origin.unwrap_or(new.origin);
        new.chunk_shape = self.chunk.unwrap_or(new.chunk_shape);
        new.encoding = self.encoding.unwrap_or(new.encoding);
        new.jpeg_quality = self.quality;
        new.resolution = self.resolution.unwrap_or(new.resolution);
        new.kind = self.kind.or(new.kind);
        if new.chunk_shape.is_empty() && !new.shape.is_empty() {
            let reason = "the array does not say which chunks its volume has: give chunk=".to_owned();
            return Err(Error::NewVolume { volume: url.to_string(), reason, cause: None });
        }
        if is_like && new.format == VolumeFormat::Precomputed && new.resolution.is_empty() {
            said.push("the resolution is not known, and assumed to be 1 nm: give resolution=".to_owned());
        }
        Ok((new, said))
    }
}

/// Whether two shapes are the same, apart from a last axis of one channel.
fn is_same_extent(one: &[u64], other: &[u64]) -> bool {
    let plain = |shape: &[u64]| shape.strip_suffix(&[1]).filter(|rest| rest.len() == 3).unwrap_or(shape).to_vec();
    plain(one) == plain(other)
}

/// Starts to create a volume, like an array or a volume if one is given. With `exist_ok`, one that exists and has the
/// same description is good too. The result is what the new volume does not keep.
///
/// The Python side has checked the names of format, encoding and kind.
#[pyfunction]
#[pyo3(signature = (
    url, format, version, shape, chunk, dtype, *, like_array, like_volume, origin, shard, encoding, quality, resolution, kind, exist_ok
))]
#[allow(clippy::too_many_arguments)] // Python gives them by name
pub(crate) fn new_volume(
    py: Python<'_>,
    url: &str,
    format: &str,
    version: u8,
    shape: Option<Vec<u64>>,
    chunk: Option<Vec<u64>>,
    dtype: Option<&str>,
    like_array: Option<&RawArray>,
    like_volume: Option<&RawVolume>,
    origin: Option<Vec<i64>>,
    shard: Option<Vec<u64>>,
    encoding: Option<&str>,
    quality: Option<u8>,
    resolution: Option<Vec<f64>>,
    kind: Option<&str>,
    exist_ok: bool,
) -> PyResult<Job> {
    let url: VolumeUrl = url.parse().map_err(|error| volume_exception(py, &error))?;
    let dtype = dtype.map(ElementType::parse).transpose().map_err(|error| exception(py, &error))?;
    let model = match (like_array, like_volume) {
        (Some(array), _) => {
            let (dtype, lengths) = (array.layout().element.dtype, array.window().lengths);
            Some(VolumeModel::Array { dtype, lengths, notes: Box::new(array.volume_notes()) })
        }
        (None, Some(volume)) => Some(VolumeModel::Volume(volume.target())),
        (None, None) => None,
    };
    let request = NewVolumeRequest {
        format: if format == "precomputed" { VolumeFormat::Precomputed } else { VolumeFormat::Zarr },
        version,
        shape,
        chunk,
        dtype: dtype.map(|element| element.dtype),
        origin,
        shard,
        encoding: encoding.and_then(Encoding::named),
        quality,
        resolution,
        kind: kind.and_then(VolumeKind::named),
    };
    let work = move |_: &_| {
        let (new, said) = request.describe(&url, model)?;
        match create_volume(url.clone(), &new) {
            Err(error) if exist_ok && error.source_failure() == Some(SourceFailure::AlreadyExists) => {
                let there = VolumeOptions::new().encoding(new.encoding).open_writable(url)?;
                if new.is_like(there.meta()) { Ok(said) } else { Err(error) }
            }
            made => made.map(|_| said),
        }
    };
    Job::start(work, |py, said: Vec<String>| Ok(said.into_pyobject(py)?.into_any().unbind()))
}

/// Returns how many bytes of memory this process could allocate now, or None if the system does not report it.
#[pyfunction]
pub(crate) fn available_memory() -> Option<u64> {
    ndarray_shm::backend::available_memory()
}

/// Returns index and count of the part of this process, from the variables of its scheduler.
#[pyfunction]
pub(crate) fn shard_from_environment(py: Python<'_>, count: Option<usize>) -> PyResult<(usize, usize)> {
    let shard = Shard::from_environment(count).map_err(|error| volume_exception(py, &error))?;
    Ok((shard.index(), shard.count()))
}

/// Starts to write the marker of a finished part. Regions are texts with both ends of each range.
#[pyfunction]
pub(crate) fn write_marker(
    place: String,
    index: usize,
    count: usize,
    work: String,
    whole: String,
    part: Option<String>,
    bytes: u64,
) -> PyResult<Job> {
    let write = move |_: &_| {
        let part: Option<Bbox> = part.map(|part| part.parse()).transpose()?;
        let shard = Shard::new(index, count)?;
        markers::write(&place.parse()?, &Marker { shard, work, bbox: whole.parse()?, part, chunks: 0, bytes })
    };
    Job::start(write, |py, ()| Ok(py.None()))
}

/// Starts to look which of `count` parts have no marker. The result has their indexes.
#[pyfunction]
pub(crate) fn missing_markers(place: String, count: usize, work: String, whole: String) -> PyResult<Job> {
    let look = move |_: &_| markers::missing(&place.parse()?, count, &work, &whole.parse()?);
    Job::start(look, |py, missing: Vec<Shard>| {
        let indexes: Vec<usize> = missing.into_iter().map(Shard::index).collect();
        Ok(indexes.into_pyobject(py)?.into_any().unbind())
    })
}
