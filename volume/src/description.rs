//! Descriptions of scales and of new volumes, in terms that all formats share.

use ndarray_shm::DType;

use crate::store::url::VolumeFormat;
use crate::volume::{VolumeKind, VolumeMeta, is_channels};

/// The names of element types in NumPy and in the formats of volumes.
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

/// Returns the name of an element type.
pub(crate) fn dtype_name(dtype: DType) -> Option<&'static str> {
    DTYPE_NAMES.iter().find(|(_, known)| *known == dtype).map(|(name, _)| *name)
}

/// Returns the element type of a name.
pub(crate) fn dtype_named(name: &str) -> Option<DType> {
    DTYPE_NAMES.iter().find(|(known, _)| *known == name).map(|(_, dtype)| *dtype)
}

/// Returns the quality of JPEG chunks as words that follow the name of the encoding.
pub(crate) fn quality_in_words(quality: u8) -> String {
    format!(" of quality {quality}")
}

/// The lengths that a volume gives, in one unit.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Lengths {
    /// Size of one element along each axis; empty if it is not given.
    pub(crate) resolution: Vec<f64>,
    /// Where the first element lies, along each axis; empty if it is not given, or 0.
    pub(crate) translation: Vec<f64>,
    pub(crate) unit: String,
}

impl Lengths {
    /// Returns the lengths that are one for each of so many axes.
    pub(crate) fn of_axes(mut self, axes: usize) -> Self {
        if self.resolution.len() != axes {
            return Self::default();
        }
        if self.translation.len() != axes {
            self.translation.clear();
        }
        self
    }

    /// Leaves a translation by 0 out.
    pub(crate) fn without_zero(mut self) -> Self {
        if self.translation.iter().all(|length| *length == 0.0) {
            self.translation.clear();
        }
        self
    }

    /// Returns the notes that a download writes.
    pub(crate) fn notes(&self) -> impl Iterator<Item = (&'static str, String)> {
        let joined = |lengths: &[f64]| lengths.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let unit = if self.resolution.is_empty() { String::new() } else { self.unit.clone() };
        let notes =
            [("resolution", joined(&self.resolution)), ("unit", unit), ("translation", joined(&self.translation))];
        notes.into_iter().filter(|(_, text)| !text.is_empty())
    }
}

/// One scale of a volume, also called mip or level: the same image at one resolution.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ScaleInfo {
    /// The volume's name of the scale.
    pub key: String,
    /// Shape, chunks and element type.
    pub meta: VolumeMeta,
    /// Size of one element along each axis, in `unit`; empty if the volume does not say.
    pub resolution: Vec<f64>,
    /// Unit of the resolution: "nm".
    pub unit: String,
}

impl ScaleInfo {
    pub(crate) fn new(key: String, meta: VolumeMeta, lengths: Lengths) -> Self {
        Self { key, meta, resolution: lengths.resolution, unit: lengths.unit }
    }
}

/// The encoding of a new volume's chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Encoding {
    /// Not encoded; "raw" in Precomputed.
    Raw,
    /// gzip.
    Gzip,
    /// zstd; Zarr only.
    Zstd,
    /// blosc with lz4; Zarr only.
    Blosc,
    /// Lossy pictures; Precomputed with 8 bit elements only.
    Jpeg,
    /// Lossless pictures; Precomputed with 8 or 16 bit elements only.
    Png,
    /// Blocks of labels; Precomputed with 32 or 64 bit labels only. On servers the chunks are wrapped in gzip, which
    /// the server announces to every reader. In a directory they are not wrapped, because files cannot announce it.
    CompressedSegmentation,
    /// Blocks of labels, wrapped in gzip in directories too: smaller files named `.gz`, which CloudVolume and this
    /// crate find. Other programs, such as tensorstore, take such chunks for missing ones, with elements of 0.
    CompressedSegmentationGzip,
}

impl Encoding {
    const ALL: [Self; 8] = [
        Self::Raw,
        Self::Gzip,
        Self::Zstd,
        Self::Blosc,
        Self::Jpeg,
        Self::Png,
        Self::CompressedSegmentation,
        Self::CompressedSegmentationGzip,
    ];

    /// Returns the encoding of a name, as [`name`](Self::name) returns it.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|encoding| encoding.name() == name)
    }

    /// Returns the name of the encoding, as commands and Python write it: "zstd".
    pub fn name(self) -> &'static str {
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
    /// Returns the kind of a new Precomputed volume without [`NewVolume::kind`]: blocks of labels are a segmentation,
    /// other elements an image. `None` for `uint32` and `uint64` in any other encoding, which are as often one as the
    /// other.
    pub fn implied(encoding: Encoding, dtype: DType) -> Option<Self> {
        match (encoding, dtype) {
            (Encoding::CompressedSegmentation | Encoding::CompressedSegmentationGzip, _) => Some(Self::Segmentation),
            (_, DType::U32 | DType::U64) => None,
            _ => Some(Self::Image),
        }
    }
}

/// The description of a volume to create.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct NewVolume {
    /// The format.
    pub format: VolumeFormat,
    /// Version of the format, if it has several: Zarr 2 or 3.
    pub version: u8,
    /// Coordinates of the first element; Zarr volumes begin at 0.
    pub origin: Vec<i64>,
    /// Elements along each axis; a Precomputed volume has x, y, z and then channels.
    pub shape: Vec<u64>,
    /// Elements along each axis of a chunk. A last axis of channels may be left out, as in a region: chunks then have
    /// all channels.
    pub chunk_shape: Vec<u64>,
    /// Elements along each axis of a shard, which may leave out channels in the same way; `None` for a volume without
    /// shards. Zarr version 3 only.
    pub shard_shape: Option<Vec<u64>>,
    /// Type of the elements.
    pub dtype: DType,
    /// The bytes of each element of missing chunks, in little-endian order; `None` for 0. Zarr only.
    pub fill: Option<Vec<u8>>,
    /// Whether the elements are intensities or labels; Precomputed volumes only. If it is `None`,
    /// [`VolumeKind::implied`] decides; if that is `None` too, creating the volume fails.
    pub kind: Option<VolumeKind>,
    /// Encoding of the chunks.
    pub encoding: Encoding,
    /// Quality of JPEG chunks, 1 to 100; default 85.
    pub jpeg_quality: Option<u8>,
    /// Size of one element along each axis, in `unit`. If it is empty, 1 in Precomputed, and not recorded in Zarr. The
    /// size along a last axis of channels may be left out.
    pub resolution: Vec<f64>,
    /// Unit of the resolution; Precomputed volumes have nanometres, "nm".
    pub unit: String,
    /// Names of the axes, in the order of `shape`; empty if they have none, and an empty text for an axis without a
    /// name. Zarr records them from version 3 on; the axes of Precomputed volumes are always x, y, z and channel, and
    /// creating one with these names in another order fails. If the last one is called `c`,
    /// `channel` or `channels`, it may be left out where the fields above say so.
    pub axes: Vec<String>,
}

impl NewVolume {
    /// Describes a volume that begins at 0, with raw chunks, without shards or resolution; Zarr in version 3. Change
    /// the fields as needed.
    pub fn new(format: VolumeFormat, shape: &[u64], chunk_shape: &[u64], dtype: DType) -> Self {
        Self {
            format,
            version: if format == VolumeFormat::Zarr { 3 } else { 1 },
            origin: vec![0; shape.len()],
            shape: shape.to_vec(),
            chunk_shape: chunk_shape.to_vec(),
            shard_shape: None,
            dtype,
            fill: None,
            kind: None,
            encoding: Encoding::Raw,
            jpeg_quality: None,
            resolution: Vec::new(),
            unit: "nm".to_owned(),
            axes: Vec::new(),
        }
    }

    /// Returns the description with the shapes of chunks and shards completed: their missing last axis, of channels,
    /// gets its whole length.
    pub(crate) fn completed(&self) -> Self {
        let mut new = self.clone();
        if new.axes.last().is_some_and(|name| is_channels(name)) {
            let axes = new.shape.len();
            let shapes = std::iter::once(&mut new.chunk_shape).chain(&mut new.shard_shape);
            for shape in shapes.filter(|shape| shape.len() + 1 == axes) {
                shape.extend(self.shape.last());
            }
        }
        new
    }

    /// Returns what the created volume says of itself, as far as this description decides it. `None` if chunks or
    /// shards of these shapes cannot tile the volume: creating it then fails.
    pub fn meta(&self) -> Option<VolumeMeta> {
        let Self { mut shape, chunk_shape: mut chunk, mut origin, mut axes, shard_shape, .. } = self.completed();
        if self.format == VolumeFormat::Precomputed {
            // A single channel may be left out, every chunk has all channels, and no chunk is larger than the volume.
            shape.resize(shape.len().max(4), 1);
            chunk.resize(chunk.len().max(3), 1);
            chunk.truncate(3);
            chunk.extend(shape.get(3));
            chunk.iter_mut().zip(&shape).for_each(|(chunk, length)| *chunk = (*chunk).min(*length));
            axes = ["x", "y", "z", "channel"].map(str::to_owned).to_vec();
        }
        origin.resize(origin.len().max(shape.len()), 0);
        let mut meta = VolumeMeta::new(&shape, &chunk, self.dtype);
        (meta.origin, meta.axes, meta.kind) = (origin, axes, self.made_kind());
        meta.stored_shape = shard_shape.unwrap_or(chunk);
        meta.is_tiled().then_some(meta)
    }

    /// Returns the kind that the volume gets: `kind`, or else the kind that encoding and element type imply. `None` for
    /// formats without kinds, and if the kind is needed but not given.
    pub fn made_kind(&self) -> Option<VolumeKind> {
        let implied =
            (self.format == VolumeFormat::Precomputed).then(|| VolumeKind::implied(self.encoding, self.dtype));
        self.kind.or(implied.flatten())
    }

    /// Checks the quality. The error says what is wrong.
    pub(crate) fn check_quality(&self) -> Result<(), String> {
        match self.jpeg_quality {
            Some(_) if self.encoding != Encoding::Jpeg => Err("a quality is for jpeg chunks only".to_owned()),
            Some(quality) if !(1..=100).contains(&quality) => Err(format!("a quality is 1 to 100, not {quality}")),
            _ => Ok(()),
        }
    }

    /// Whether an existing volume is as described: its shape, its chunks, their encoding, and its
    /// [kind](Self::made_kind) if it has one. Ignores whether chunks of a Precomputed volume are wrapped in gzip.
    pub fn is_like(&self, there: &VolumeMeta) -> bool {
        let Some(meta) = self.meta() else { return false };
        let (format, version) = match self.format {
            VolumeFormat::Precomputed => ("Precomputed", String::new()),
            VolumeFormat::Zarr => ("Zarr", format!(" v{}", self.version)),
            // N5 volumes cannot be created.
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
        there.shape == meta.shape
            && there.origin == meta.origin
            && there.stored_shape == meta.stored_shape
            && there.chunk_shape == meta.chunk_shape
            && there.dtype == self.dtype
            && (there.kind.is_none() || there.kind == meta.kind)
            && there.description == format!("{format}{version}, {encoding}{quality}{sharded}")
    }
}
