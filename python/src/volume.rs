//! Volumes: opening and creating them, and dividing a region among machines.

use std::sync::{Arc, Mutex, PoisonError};

use ndarray_shm::DType;
use ndarray_shm_volume::markers::{self, Marker};
use ndarray_shm_volume::{
    Bbox, ChunkSink, ChunkSource, Encoding, ErrorKind, NewVolume, Result, ScaleInfo, Shard, VolumeFormat, VolumeKind,
    VolumeMeta, VolumeOptions, VolumeUrl, create_volume, plan,
};
use pyo3::prelude::*;

use crate::array::forks;
use crate::errors::{exception, volume_exception};
use crate::job::Job;
use crate::memory::ElementType;

/// The address of a volume, and the volume once it was opened. `ndshm.Volume` has one.
#[pyclass(frozen, module = "ndshm._core")]
pub(crate) struct RawVolume {
    target: Arc<Target>,
}

/// A volume that is opened when it is first used, and again in a forked child, which lacks the threads of its parent.
pub(crate) struct Target {
    pub(crate) url: VolumeUrl,
    pub(crate) mip: usize,
    source: Mutex<Option<InProcess<dyn ChunkSource>>>,
}

/// A volume, and how often this process had been forked when it was opened.
struct InProcess<V: ?Sized> {
    volume: Arc<V>,
    forks: u32,
}

impl Target {
    /// Returns the volume, opened for reading.
    pub(crate) fn source(&self) -> Result<Arc<dyn ChunkSource>> {
        let source = || self.source.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = source().as_ref().filter(|open| open.forks == forks()) {
            return Ok(Arc::clone(&open.volume));
        }
        // The lock is not held while a server answers.
        let volume: Arc<dyn ChunkSource> = Arc::from(self.options().open(self.url.clone())?);
        *source() = Some(InProcess { volume: Arc::clone(&volume), forks: forks() });
        Ok(volume)
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
        VolumeOptions::new().mip(self.mip)
    }
}

/// A scale for Python: key, resolution, unit, origin, shape, shape of a chunk, shape of a stored object, dtype, kind, fill value, names of
/// axes, description.
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

fn row(scale: ScaleInfo) -> Row {
    let ScaleInfo { key, meta, resolution, unit, .. } = scale;
    let VolumeMeta { origin, shape, chunk_shape, stored_shape, dtype, kind, fill, axes, description } = meta;
    let kind = kind.map(VolumeKind::name);
    (key, resolution, unit, origin, shape, chunk_shape, stored_shape, dtype.as_str(), kind, fill, axes, description)
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
    fn new(py: Python<'_>, url: &str, mip: usize) -> PyResult<Self> {
        let url: VolumeUrl = url.parse().map_err(|error| volume_exception(py, &error))?;
        Ok(Self { target: Arc::new(Target { url, mip, source: Mutex::default() }) })
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

/// Returns the encoding of this name.
pub(crate) fn encoding_named(name: &str) -> Option<Encoding> {
    Some(match name {
        "raw" => Encoding::Raw,
        "gzip" => Encoding::Gzip,
        "zstd" => Encoding::Zstd,
        "blosc" => Encoding::Blosc,
        "jpeg" => Encoding::Jpeg,
        "png" => Encoding::Png,
        "compressed_segmentation" => Encoding::CompressedSegmentation,
        "compressed_segmentation_gzip" => Encoding::CompressedSegmentationGzip,
        _ => return None,
    })
}

/// Starts to create a volume. With `exist_ok`, one that exists and has the same description is good too.
///
/// The Python side has checked the names of format, encoding and kind.
#[pyfunction]
#[pyo3(signature = (url, format, version, shape, chunk, dtype, *, origin, shard, encoding, quality, resolution, kind, exist_ok))]
#[allow(clippy::too_many_arguments)] // Python gives them by name
pub(crate) fn new_volume(
    py: Python<'_>,
    url: &str,
    format: &str,
    version: u8,
    shape: Vec<u64>,
    chunk: Vec<u64>,
    dtype: &str,
    origin: Option<Vec<i64>>,
    shard: Option<Vec<u64>>,
    encoding: &str,
    quality: Option<u8>,
    resolution: Vec<f64>,
    kind: Option<&str>,
    exist_ok: bool,
) -> PyResult<Job> {
    let url: VolumeUrl = url.parse().map_err(|error| volume_exception(py, &error))?;
    let element = ElementType::parse(dtype).map_err(|error| exception(py, &error))?;
    let dtype: DType = element.dtype;
    let format = if format == "precomputed" { VolumeFormat::Precomputed } else { VolumeFormat::Zarr };
    let mut new = NewVolume::new(format, &[], &[], dtype);
    new.version = version;
    new.origin = origin.unwrap_or_else(|| vec![0; shape.len()]);
    new.shape = shape;
    new.chunk_shape = chunk;
    new.shard_shape = shard;
    new.encoding = encoding_named(encoding).unwrap_or(new.encoding);
    new.jpeg_quality = quality;
    new.resolution = resolution;
    new.kind = kind.map(|kind| if kind == "image" { VolumeKind::Image } else { VolumeKind::Segmentation });
    let work = move |_: &_| match create_volume(url.clone(), &new) {
        Err(error) if exist_ok && error.kind() == Some(ErrorKind::AlreadyExists) => {
            let there = VolumeOptions::new().encoding(new.encoding).open_writable(url)?;
            if new.is_like(there.meta()) { Ok(()) } else { Err(error) }
        }
        made => made.map(drop),
    };
    Job::start(work, |py, ()| Ok(py.None()))
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
