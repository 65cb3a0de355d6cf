//! What a volume says about its scales, and what a new one is to be like: words that all formats share.

use ndarray_shm::DType;

use crate::store::url::VolumeFormat;
use crate::volume::{VolumeKind, VolumeMeta};

/// What NumPy and the formats of volumes call the types of elements.
pub const DTYPE_NAMES: &[(&str, DType)] = &[
    ("uint8", DType::U8),
    ("uint16", DType::U16),
    ("uint32", DType::U32),
    ("uint64", DType::U64),
    ("int8", DType::I8),
    ("int16", DType::I16),
    ("int32", DType::I32),
    ("int64", DType::I64),
    ("float16", DType::F16),
    ("float32", DType::F32),
    ("float64", DType::F64),
    ("complex64", DType::Complex64),
    ("complex128", DType::Complex128),
    ("bfloat16", DType::Bf16),
];

/// Returns what a type is called.
pub(crate) fn dtype_name(dtype: DType) -> Option<&'static str> {
    DTYPE_NAMES.iter().find(|(_, known)| *known == dtype).map(|(name, _)| *name)
}

/// Returns the type of a name.
pub(crate) fn dtype_named(name: &str) -> Option<DType> {
    DTYPE_NAMES.iter().find(|(known, _)| *known == name).map(|(_, dtype)| *dtype)
}

/// Says how much detail JPEG chunks keep, behind the name of the encoding.
pub(crate) fn quality_in_words(quality: u8) -> String {
    format!(" of quality {quality}")
}

/// One scale of a volume, also called mip or level: the same picture at one resolution.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ScaleInfo {
    /// What the volume calls it.
    pub key: String,
    /// What one would read.
    pub meta: VolumeMeta,
    /// Size of one element along each axis, in `unit`; empty where the volume does not say.
    pub resolution: Vec<f64>,
    /// Unit of the resolution: "nm".
    pub unit: String,
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
    /// As blocks of labels; Precomputed with 32 or 64 bit labels only. Servers get them wrapped in gzip, which they announce to every
    /// reader; in a directory, where they could not, nothing is wrapped.
    CompressedSegmentation,
    /// The same, wrapped in gzip in directories, too: smaller files named `.gz`, which CloudVolume and this crate find. Other programs,
    /// such as tensorstore, take such chunks for missing ones, of which every element is 0.
    CompressedSegmentationGzip,
}

impl Encoding {
    /// Returns what it is called.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::Blosc => "blosc",
            Self::Jpeg => "jpeg",
            Self::Png => "png",
            Self::CompressedSegmentation => "compressed_segmentation",
            Self::CompressedSegmentationGzip => "compressed_segmentation_gzip",
        }
    }
}

impl VolumeKind {
    /// Returns what a new Precomputed volume is where [`NewVolume::kind`] does not say it: blocks of labels are a segmentation, other
    /// elements an image. `None` for `uint32` and `uint64` in any other encoding, which are as often the one as the other.
    pub fn implied(encoding: Encoding, dtype: DType) -> Option<Self> {
        match (encoding, dtype) {
            (Encoding::CompressedSegmentation | Encoding::CompressedSegmentationGzip, _) => Some(Self::Segmentation),
            (_, DType::U32 | DType::U64) => None,
            _ => Some(Self::Image),
        }
    }
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
    /// Whether the elements are intensities or labels; of Precomputed volumes only. Where it is `None`,
    /// [`VolumeKind::implied`] says it, and what that leaves open is an error.
    pub kind: Option<VolumeKind>,
    /// How chunks are encoded.
    pub encoding: Encoding,
    /// Quality of JPEG chunks, 1 to 100; where it is not said, 85.
    pub jpeg_quality: Option<u8>,
    /// Size of one element along each axis, in nanometres; 1 where it is empty.
    pub resolution: Vec<f64>,
}

impl NewVolume {
    /// Describes a volume that begins at 0, is not packed, has no shards and elements of 1 nm; Zarr in version 3. Its fields can be changed.
    pub fn new(format: VolumeFormat, shape: &[u64], chunk_shape: &[u64], dtype: DType) -> Self {
        Self {
            format,
            version: if format == VolumeFormat::Zarr { 3 } else { 1 },
            origin: vec![0; shape.len()],
            shape: shape.to_vec(),
            chunk_shape: chunk_shape.to_vec(),
            shard_shape: None,
            dtype,
            kind: None,
            encoding: Encoding::Raw,
            jpeg_quality: None,
            resolution: Vec::new(),
        }
    }

    /// Returns the kind that the volume gets: what `kind` says, and otherwise what encoding and element type imply. `None` for formats
    /// without kinds, and where it must be said and is not.
    pub fn made_kind(&self) -> Option<VolumeKind> {
        let implied =
            (self.format == VolumeFormat::Precomputed).then(|| VolumeKind::implied(self.encoding, self.dtype));
        self.kind.or(implied.flatten())
    }

    /// Returns what is wrong with the quality.
    pub(crate) fn check_quality(&self) -> Result<(), String> {
        match self.jpeg_quality {
            Some(_) if self.encoding != Encoding::Jpeg => Err("a quality is for jpeg chunks only".to_owned()),
            Some(quality) if !(1..=100).contains(&quality) => Err(format!("a quality is 1 to 100, not {quality}")),
            _ => Ok(()),
        }
    }

    /// Whether a volume that is there is just what would be made: its shape, its chunks, how they are encoded, and its
    /// [kind](Self::made_kind) if it says one. Whether chunks of a Precomputed volume are wrapped in gzip is no difference.
    pub fn is_like(&self, there: &VolumeMeta) -> bool {
        let (mut shape, mut chunk, mut origin) = (self.shape.clone(), self.chunk_shape.clone(), self.origin.clone());
        let (format, version) = match self.format {
            VolumeFormat::Precomputed => {
                // One channel need not be said, every chunk has all channels, and none is larger than the volume.
                shape.resize(shape.len().max(4), 1);
                chunk.resize(chunk.len().max(3), 1);
                chunk.truncate(3);
                chunk.extend(shape.get(3));
                chunk.iter_mut().zip(&shape).for_each(|(chunk, length)| *chunk = (*chunk).min(*length));
                origin.resize(origin.len().max(4), 0);
                ("Precomputed", String::new())
            }
            VolumeFormat::Zarr => ("Zarr", format!(" v{}", self.version)),
            // Nothing of the format is made.
            VolumeFormat::N5 => return false,
        };
        let encoding = match self.encoding {
            Encoding::Raw | Encoding::Gzip if self.format == VolumeFormat::Precomputed => "raw",
            Encoding::Raw => "uncompressed",
            Encoding::Gzip => "gzip",
            Encoding::Zstd => "zstd",
            Encoding::Blosc => "blosc",
            Encoding::Jpeg => "jpeg",
            Encoding::Png => "png",
            Encoding::CompressedSegmentation | Encoding::CompressedSegmentationGzip => "compressed_segmentation",
        };
        let quality = self.jpeg_quality.map(quality_in_words).unwrap_or_default();
        let sharded = if self.shard_shape.is_some() { ", sharded" } else { "" };
        there.shape == shape
            && there.origin == origin
            && there.stored_shape == *self.shard_shape.as_ref().unwrap_or(&chunk)
            && there.chunk_shape == chunk
            && there.dtype == self.dtype
            && (there.kind.is_none() || there.kind == self.made_kind())
            && there.description == format!("{format}{version}, {encoding}{quality}{sharded}")
    }
}
