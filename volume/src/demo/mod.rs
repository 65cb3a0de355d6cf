//! Writes volumes with known elements, for demonstrations, tests and benchmarks.
//!
//! Each element is computed from its coordinates alone, by code that shares nothing with reading: a download can be
//! checked against it.

use std::fs;
use std::path::Path;

use ndarray::{ArrayD, Dimension as _, IxDyn};
use ndarray_shm::{DType, Element};
use serde_json::{Value, json};
use zarrs::array::{Array, ArrayMetadata};
use zarrs::filesystem::FilesystemStore;

use crate::bbox::{Bbox, to_usize};
use crate::description::dtype_name;
use crate::error::{Error, Result};
use crate::zarr::{codec_options, sharding_codec, without_pool};

mod pattern;

pub use self::pattern::Pattern;

/// The value of elements in chunks that are left out.
const FILL: u8 = 7;

/// One chunk in this many is left out.
const MISSING: u64 = 5;

/// The compression of a demo volume's chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Codec {
    /// No compression.
    Uncompressed,
    /// zstd.
    Zstd,
    /// blosc: lz4, after shuffling bytes.
    Blosc,
    /// gzip.
    Gzip,
}

/// The format of a demo volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// Zarr version 2.
    ZarrV2,
    /// Zarr version 3.
    ZarrV3,
}

/// The description of a demo volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DemoSpec {
    shape: Vec<u64>,
    chunk_shape: Vec<u64>,
    shard_shape: Option<Vec<u64>>,
    dtype: DType,
    pattern: Pattern,
    codec: Codec,
    format: Format,
    big_endian: bool,
    f_order: bool,
    complete: bool,
}

impl DemoSpec {
    /// Describes a smooth field as a Zarr version 3 array with zstd, in which every fifth chunk is left out. Shapes are
    /// in elements along each axis.
    pub fn new(shape: &[u64], chunk_shape: &[u64], dtype: DType) -> Self {
        Self {
            shape: shape.to_vec(),
            chunk_shape: chunk_shape.to_vec(),
            shard_shape: None,
            dtype,
            pattern: Pattern::Smooth,
            codec: Codec::Zstd,
            format: Format::ZarrV3,
            big_endian: false,
            f_order: false,
            complete: false,
        }
    }

    /// Returns descriptions of volumes of a few megabytes that differ in chunks, codecs, element types, patterns and
    /// versions.
    pub fn gallery() -> Vec<(&'static str, Self)> {
        vec![
            ("smooth-zstd", Self::new(&[128, 160, 96], &[32, 64, 48], DType::U16)),
            (
                "labels-blosc",
                Self::new(&[120, 128, 130], &[64, 64, 64], DType::U64).pattern(Pattern::Labels).codec(Codec::Blosc),
            ),
            (
                "noise-gzip-v2",
                Self::new(&[100, 100, 100], &[30, 40, 50], DType::U8)
                    .pattern(Pattern::Noise)
                    .codec(Codec::Gzip)
                    .format(Format::ZarrV2),
            ),
            ("slices-uncompressed", Self::new(&[24, 256, 256], &[1, 256, 256], DType::F32).codec(Codec::Uncompressed)),
            ("smooth-sharded", Self::new(&[128, 128, 128], &[32, 32, 32], DType::F32).shards(&[64, 128, 128])),
        ]
    }

    /// Chooses the pattern of the elements.
    pub fn pattern(mut self, pattern: Pattern) -> Self {
        self.pattern = pattern;
        self
    }

    /// Chooses the compression of chunks.
    pub fn codec(mut self, codec: Codec) -> Self {
        self.codec = codec;
        self
    }

    /// Chooses the format.
    pub fn format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// Groups chunks in shards of this shape, which must be a multiple of the chunk's. Version 3 only.
    pub fn shards(mut self, shape: &[u64]) -> Self {
        self.shard_shape = Some(shape.to_vec());
        self
    }

    /// Stores elements with the most significant byte first.
    pub fn big_endian(mut self, big: bool) -> Self {
        self.big_endian = big;
        self
    }

    /// Stores chunks with the first axis contiguous.
    pub fn f_order(mut self, f: bool) -> Self {
        self.f_order = f;
        self
    }

    /// Leaves no chunk out.
    pub fn complete(mut self, complete: bool) -> Self {
        self.complete = complete;
        self
    }

    /// Returns the elements along each axis.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Returns the elements along each axis of a chunk.
    pub fn chunk_shape(&self) -> &[u64] {
        &self.chunk_shape
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Computes the elements that a download of this region must return.
    ///
    /// # Errors
    ///
    /// [`Bbox`](Error::Bbox) if the region is not in the volume, [`Array`](Error::Array) if `T` is not the volume's
    /// element type.
    pub fn expected<T: Element>(&self, bbox: &Bbox) -> Result<ArrayD<T>> {
        bbox.check_within(&Bbox::whole(&self.shape))?;
        if T::DTYPE != self.dtype {
            let (expected, found) = (T::DTYPE.to_string(), self.dtype.to_string());
            return Err(ndarray_shm::ErrorKind::DTypeMismatch { expected, found }.at("a demo volume").into());
        }
        // Reused for all elements, because there are many.
        let (mut place, mut bytes) = (Vec::new(), Vec::new());
        Ok(ArrayD::from_shape_fn(IxDyn(&bbox.shape()), |inside| {
            place.clear();
            place.extend(
                inside
                    .as_array_view()
                    .iter()
                    .zip(bbox.ranges())
                    .map(|(at, range)| range.start.unsigned_abs() + *at as u64),
            );
            bytes.clear();
            self.element(&place, &mut bytes);
            bytemuck::pod_read_unaligned(&bytes)
        }))
    }

    /// Appends the bytes of one element.
    fn element(&self, place: &[u64], bytes: &mut Vec<u8>) {
        if self.is_missing(place.iter().zip(self.file_shape()).map(|(at, length)| at / length)) {
            pattern::append_whole(u64::from(FILL), self.dtype, bytes);
        } else {
            self.pattern.append(place, &self.shape, self.dtype, bytes);
        }
    }

    /// Returns the elements along each axis of one file, a chunk or a shard.
    fn file_shape(&self) -> &[u64] {
        self.shard_shape.as_deref().unwrap_or(&self.chunk_shape)
    }

    fn is_missing(&self, chunk: impl Iterator<Item = u64>) -> bool {
        !self.complete && chunk.zip(1..).map(|(at, weight)| at * weight).sum::<u64>() % MISSING == MISSING - 1
    }

    fn check(&self, directory: &Path) -> Result<()> {
        let axes = self.shape.len();
        let wrong = |what: &str| Err(Error::new_volume(directory.display(), what));
        let divides = |(shard, chunk): (&u64, &u64)| *shard > 0 && shard % chunk == 0;
        if self.chunk_shape.len() != axes || self.chunk_shape.contains(&0) {
            return wrong("the chunks of a demo volume need a length of at least 1 along each of its axes");
        }
        if let Some(shard) = &self.shard_shape {
            if shard.len() != axes || !shard.iter().zip(&self.chunk_shape).all(divides) {
                return wrong("the shards of a demo volume must be multiples of its chunks along each axis");
            }
            if self.format == Format::ZarrV2 {
                return wrong("Zarr version 2 has no shards");
            }
        }
        if self.format == Format::ZarrV2 && self.dtype == DType::Bf16 {
            return wrong("Zarr version 2 has no bfloat16");
        }
        Ok(())
    }

    fn metadata(&self) -> Value {
        match self.format {
            Format::ZarrV2 => self.metadata_v2(),
            Format::ZarrV3 => self.metadata_v3(),
        }
    }

    fn metadata_v2(&self) -> Value {
        let kind = self.dtype.as_str().trim_start_matches(['<', '|']);
        let byte_order = match (self.dtype.size(), self.big_endian) {
            (1, _) => '|',
            (_, false) => '<',
            (_, true) => '>',
        };
        json!({
            "zarr_format": 2,
            "shape": self.shape,
            "chunks": self.chunk_shape,
            "dtype": format!("{byte_order}{kind}"),
            "order": if self.f_order { "F" } else { "C" },
            "fill_value": self.fill_value(),
            "filters": null,
            "compressor": match self.codec {
                Codec::Uncompressed => Value::Null,
                Codec::Zstd => json!({"id": "zstd", "level": 3}),
                Codec::Blosc => json!({"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}),
                Codec::Gzip => json!({"id": "gzip", "level": 5}),
            },
        })
    }

    fn metadata_v3(&self) -> Value {
        let mut codecs = Vec::new();
        if self.f_order {
            let order: Vec<usize> = (0..self.shape.len()).rev().collect();
            codecs.push(json!({"name": "transpose", "configuration": {"order": order}}));
        }
        let endian = if self.big_endian { "big" } else { "little" };
        codecs.push(match self.dtype.size() {
            1 => json!({"name": "bytes"}),
            _ => json!({"name": "bytes", "configuration": {"endian": endian}}),
        });
        codecs.extend(match self.codec {
            Codec::Uncompressed => None,
            Codec::Zstd => Some(json!({"name": "zstd", "configuration": {"level": 3, "checksum": true}})),
            Codec::Blosc => Some(json!({"name": "blosc", "configuration": {
                "cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": self.dtype.size(), "blocksize": 0,
            }})),
            Codec::Gzip => Some(json!({"name": "gzip", "configuration": {"level": 5}})),
        });
        if self.shard_shape.is_some() {
            codecs = vec![sharding_codec(&self.chunk_shape, &codecs)];
        }
        json!({
            "zarr_format": 3,
            "node_type": "array",
            "shape": self.shape,
            "data_type": dtype_name(self.dtype).unwrap_or(self.dtype.as_str()),
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": self.file_shape()}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": self.fill_value(),
            "codecs": codecs,
        })
    }

    fn fill_value(&self) -> Value {
        match self.dtype {
            DType::Complex64 | DType::Complex128 => json!([f64::from(FILL), 0.0]),
            DType::F16 | DType::Bf16 | DType::F32 | DType::F64 => json!(f64::from(FILL)),
            _ => json!(FILL),
        }
    }
}

/// Creates a directory, and writes a volume into it.
///
/// # Errors
///
/// [`Io`](Error::Io): the directory exists already, or cannot be written. [`NewVolume`](Error::NewVolume): the shapes
/// are inconsistent, or the format does not support what is asked for.
pub fn write_volume(directory: &Path, spec: &DemoSpec) -> Result<()> {
    spec.check(directory)?;
    let json = spec.metadata();
    let refused = |error: Box<dyn std::error::Error + Send + Sync>| {
        Error::new_volume(directory.display(), "a volume like this cannot be written").because(error)
    };
    let metadata = match spec.format {
        Format::ZarrV2 => serde_json::from_value(json.clone()).map(ArrayMetadata::V2),
        Format::ZarrV3 => serde_json::from_value(json.clone()).map(ArrayMetadata::V3),
    }
    .map_err(|error| refused(Box::new(error)))?;
    let store = FilesystemStore::new(directory).map_err(|error| refused(Box::new(error)))?;
    let array = || Array::new_with_metadata(store.into(), "/", metadata);
    let array = without_pool(array)?.map_err(|error| refused(Box::new(error)))?;

    if let Some(parent) = directory.parent() {
        fs::create_dir_all(parent).map_err(|error| Error::io("making", parent, error))?;
    }
    fs::create_dir(directory).map_err(|error| Error::io("making", directory, error))?;
    let counts: Vec<u64> = spec.shape.iter().zip(spec.file_shape()).map(|(all, one)| all.div_ceil(*one)).collect();
    for chunk in ndarray::indices(IxDyn(&counts.iter().map(|count| to_usize(*count)).collect::<Vec<_>>())) {
        let chunk: Vec<u64> = chunk.as_array_view().iter().map(|at| *at as u64).collect();
        if spec.is_missing(chunk.iter().copied()) {
            continue;
        }
        let packed = pack(spec, &array, &chunk).map_err(refused)?;
        // Not written by the zarrs store, which waits for the disk after every chunk.
        let file = directory.join(array.chunk_key(&chunk).as_str());
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent).map_err(|error| Error::io("making", parent, error))?;
        }
        fs::write(&file, packed).map_err(|error| Error::io("writing", &file, error))?;
    }
    // The metadata comes last, so that an interrupted write leaves no valid volume.
    let file = directory.join(if spec.format == Format::ZarrV2 { ".zarray" } else { "zarr.json" });
    fs::write(&file, format!("{json:#}\n")).map_err(|error| Error::io("writing", &file, error))
}

/// Computes and packs the elements of one file. Elements beyond the volume, which readers must never return, get the
/// fill value.
fn pack(
    spec: &DemoSpec,
    array: &Array<FilesystemStore>,
    chunk: &[u64],
) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
    use zarrs::array::ArrayToBytesCodecTraits as _;

    let shape: Vec<usize> = spec.file_shape().iter().map(|length| to_usize(*length)).collect();
    let (mut place, mut bytes) = (Vec::new(), Vec::new());
    for inside in ndarray::indices(IxDyn(&shape)) {
        let corner = chunk.iter().zip(spec.file_shape()).map(|(at, length)| at * length);
        place.clear();
        place.extend(corner.zip(inside.as_array_view()).map(|(corner, at)| corner + *at as u64));
        if place.iter().zip(&spec.shape).all(|(at, length)| at < length) {
            spec.element(&place, &mut bytes);
        } else {
            pattern::append_whole(u64::from(FILL), spec.dtype, &mut bytes);
        }
    }
    let shape = array.chunk_shape(chunk)?;
    let packed =
        array.codecs().encode(bytes.into(), &shape, array.data_type(), array.fill_value(), &codec_options())?;
    Ok(packed.into_owned())
}
