//! From a URL to a volume: which format is there, which of its scales is meant, and what a new one is to be like.

use ndarray_shm::DType;

use crate::error::{Error, Result};
use crate::store::url::{Place, VolumeFormat, VolumeUrl};
use crate::volume::{ChunkSink, ChunkSource};
use crate::{precomputed, store, zarr};

/// One scale of a volume, also called mip or level: the same picture at one resolution.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ScaleInfo {
    /// What the volume calls it.
    pub key: String,
    /// What one would read.
    pub meta: crate::VolumeMeta,
    /// Size of one element along each axis, in `unit`; empty where the volume does not say.
    pub resolution: Vec<f64>,
    /// Unit of the resolution: "nm".
    pub unit: String,
}

/// How a volume is opened.
#[derive(Debug, Clone, Default)]
pub struct VolumeOptions {
    mip: usize,
}

impl VolumeOptions {
    /// Begins with the defaults: the first, finest scale.
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses a scale by its place in the volume's list, from 0, the finest.
    pub fn mip(mut self, mip: usize) -> Self {
        self.mip = mip;
        self
    }

    /// Opens a volume for reading.
    ///
    /// # Errors
    ///
    /// - [`Source`](Error::Source): nothing is there, or it cannot be read (the message says why, and lists what is there instead);
    /// - [`UnsupportedDType`](Error::UnsupportedDType): its elements cannot be in shared memory;
    /// - [`Store`](Error::Store), [`Url`](Error::Url): the store cannot be reached.
    pub fn open(&self, url: &VolumeUrl) -> Result<Box<dyn ChunkSource>> {
        if url.expected_format() == Some(VolumeFormat::Precomputed) {
            return precomputed::open(store::open(url)?, self.mip);
        }
        match url.place() {
            Place::Local(path) => zarr::open(path),
            Place::Remote(place) => {
                Err(Error::Url { url: place.clone(), reason: "remote volumes cannot be read yet".to_owned() })
            }
        }
    }

    /// Opens a volume for reading and writing.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open), and [`Source`](Error::Source) if it can be read but not written.
    pub fn open_writable(&self, url: &VolumeUrl) -> Result<Box<dyn ChunkSink>> {
        if url.expected_format() == Some(VolumeFormat::Precomputed) {
            return precomputed::open_writable(store::open(url)?, self.mip);
        }
        Err(Error::no_volume(url, "volumes cannot be written yet"))
    }

    /// Lists the scales of a volume, the finest first.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open).
    pub fn scales(&self, url: &VolumeUrl) -> Result<Vec<ScaleInfo>> {
        if url.expected_format() == Some(VolumeFormat::Precomputed) {
            return precomputed::scales(&store::open(url)?);
        }
        Err(Error::no_volume(url, "scales cannot be listed yet"))
    }
}

/// Opens the first scale of a volume for reading: [`VolumeOptions::open`] with the defaults.
///
/// # Errors
///
/// The same.
pub fn open_volume(url: &VolumeUrl) -> Result<Box<dyn ChunkSource>> {
    VolumeOptions::new().open(url)
}

/// How the chunks of a new volume are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Encoding {
    /// Not at all. Precomputed calls it raw.
    Raw,
    /// By gzip.
    Gzip,
    /// By zstd; Zarr only.
    Zstd,
    /// By blosc with lz4; Zarr only.
    Blosc,
    /// As pictures that lose detail; Precomputed with 8 bit elements only.
    Jpeg,
    /// As pictures; Precomputed with 8 or 16 bit elements only.
    Png,
    /// As blocks of labels; Precomputed with 32 or 64 bit labels only.
    CompressedSegmentation,
}

/// What a volume that is made is like.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct NewVolume {
    /// Its format.
    pub format: VolumeFormat,
    /// Version of the format where it has several: Zarr 2 or 3.
    pub version: u8,
    /// Coordinates of the first element; Zarr volumes begin at 0.
    pub origin: Vec<i64>,
    /// Elements along each axis; a Precomputed volume has x, y, z and, behind them, channels.
    pub shape: Vec<u64>,
    /// Elements along each axis of a chunk.
    pub chunk_shape: Vec<u64>,
    /// Elements along each axis of a shard, if there are to be shards; Zarr version 3 only.
    pub shard_shape: Option<Vec<u64>>,
    /// Type of the elements.
    pub dtype: DType,
    /// How chunks are encoded.
    pub encoding: Encoding,
    /// Size of one element along each axis, in nanometres; 1 where it is empty.
    pub resolution: Vec<f64>,
}

/// Makes a volume without chunks, for writing.
///
/// # Errors
///
/// [`Source`](Error::Source): something is there already, or the format does not have what is asked for.
/// [`Store`](Error::Store), [`Url`](Error::Url): the store cannot be reached or written.
pub fn create_volume(url: &VolumeUrl, new: &NewVolume) -> Result<Box<dyn ChunkSink>> {
    if new.format == VolumeFormat::Precomputed {
        return precomputed::create(store::open(url)?, new);
    }
    Err(Error::no_volume(url, "volumes cannot be made yet"))
}
