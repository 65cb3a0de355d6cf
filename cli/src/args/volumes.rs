//! Commands about volumes: their arguments and help texts.

#![expect(clippy::doc_markdown, reason = "these comments are help texts, which show backticks as they are")]

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ndarray_shm::render::SharedWith;
use ndarray_shm::{DType, Location, Order};
use ndarray_shm_volume::VolumeUrl;

use super::words::{self, BackendChoice, PerAxis, Which};
use super::{OutputArgs, ReportArgs, help};

/// Arguments of `ndshm download`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "a command line is made of switches")]
#[command(after_help = help::CODES, after_long_help = help::DOWNLOAD)]
pub(crate) struct DownloadArgs {
    /// Path or URL of a volume: Zarr, Precomputed or N5, local or behind http, https or s3
    pub(crate) source: VolumeUrl,
    /// Name of the new array
    #[arg(value_name = "NAME", required_unless_present_any = ["file", "location"])]
    name: Option<Location>,
    /// The same as NAME
    #[arg(long, short, value_name = "NAME", conflicts_with = "name", hide_short_help = true)]
    location: Option<Location>,
    /// Write the elements into a file instead, in any directory
    #[arg(long, value_name = "PATH", conflicts_with_all = ["name", "location", "emulate"])]
    pub(crate) file: Option<PathBuf>,
    /// Region to read: START:STOP for each axis, e.g. 0:64,10:,: (an empty side is the volume's bound) [default: the
    /// whole volume]
    #[arg(long, value_name = "RANGES", allow_hyphen_values = true)]
    pub(crate) bbox: Option<String>,
    /// Channels to read, if the last axis of the volume is its channels [default: all]
    #[arg(long, value_name = "START:STOP")]
    pub(crate) channels: Option<String>,
    /// Scale to read: 0 is the finest; `ndshm info SOURCE` lists all
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) mip: usize,
    /// How to treat chunks that are not stored [default: fill if the volume has a fill value, else error]
    #[arg(long, value_name = "error|fill")]
    pub(crate) missing: Option<MissingChoice>,
    /// Fill chunks that are not stored with this value, unless --missing error is given
    #[arg(long, value_name = "VALUE", allow_hyphen_values = true)]
    pub(crate) fill: Option<String>,
    /// Memory order of the array: c (last axis contiguous) or f (first axis contiguous)
    #[arg(long, value_name = "c|f", default_value = "c")]
    pub(crate) order: Order,
    /// Number of chunks to decode at a time [default: the number of processors]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) workers: Option<u16>,
    /// Number of requests to a remote volume at a time [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) requests: Option<u16>,
    /// Use worker processes instead of threads
    #[arg(long)]
    pub(crate) processes: bool,
    /// Users that paint the array together: me, users:UID,UID,.. or group:GID; they can read and corrupt it
    #[arg(long, value_name = "WITH", default_value_t)]
    pub(crate) share: SharedWith,
    #[command(flatten)]
    pub(crate) part: PartArgs,
    /// Use a file in the emulated directory, regardless of EMULATE_SHM
    #[arg(long)]
    pub(crate) emulate: bool,
    /// Replace an existing array (attached processes keep the old one), and what a killed download of another region
    /// left under the name
    #[arg(long)]
    pub(crate) replace: bool,
    /// When interrupted, or when a chunk cannot be read, keep the painted chunks: the same command resumes with the
    /// rest
    #[arg(long)]
    pub(crate) keep_partial: bool,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

impl DownloadArgs {
    /// Returns the name of the array, from either argument.
    pub(crate) fn location(&self) -> Option<&Location> {
        self.name.as_ref().or(self.location.as_ref())
    }
}

/// How to treat chunks that are not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum MissingChoice {
    /// Fail
    Error,
    /// Fill them with --fill, else with the volume's fill value, else with 0
    Fill,
}

/// The part of a transfer that several machines divide among them.
#[derive(Debug, Args)]
pub(crate) struct PartArgs {
    /// Process only this part of the region: 0/N to N-1/N, or auto (taken from SLURM or Kubernetes)
    #[arg(long, value_name = "i/N|auto")]
    pub(crate) shard: Option<Which>,
    /// Number of parts, if --shard auto cannot find it (Kubernetes)
    #[arg(long, value_name = "N", requires = "shard")]
    pub(crate) shards: Option<usize>,
    /// Directory or URL for markers of finished parts; a part with a marker is skipped
    #[arg(long, value_name = "PLACE", requires = "shard")]
    pub(crate) markers: Option<VolumeUrl>,
}

/// Arguments of `ndshm upload`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "a command line is made of switches")]
#[command(after_help = help::CODES, after_long_help = help::UPLOAD)]
pub(crate) struct UploadArgs {
    /// Name of an array, or with --file the path of a file
    pub(crate) source: OsString,
    /// Path or URL of the volume to write into
    #[arg(value_name = "DEST")]
    pub(crate) destination: VolumeUrl,
    /// SOURCE is a file that holds only elements
    #[arg(long, conflicts_with = "backend")]
    pub(crate) file: bool,
    /// Region of the volume to write the array to: START:STOP for each axis; an empty side is the bound [default: where
    /// the array is from, if that is this volume and scale; else the whole volume]
    #[arg(long, value_name = "RANGES", allow_hyphen_values = true)]
    pub(crate) bbox: Option<String>,
    /// Write only this part of the region, in the volume's coordinates
    #[arg(long, value_name = "RANGES", allow_hyphen_values = true)]
    pub(crate) cutout: Option<String>,
    /// Memory order of the array: c (last axis contiguous) or f (first axis contiguous) [default: from the array's
    /// description]
    #[arg(long, value_name = "c|f")]
    pub(crate) order: Option<Order>,
    /// Interpret the bytes as the region and --order say, and ignore the array's description
    #[arg(long)]
    pub(crate) ignore_description: bool,
    /// Scale to write: 0 is the finest
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) mip: usize,
    /// If the region covers a stored object only in part, read, change and write the object under a lock on this
    /// machine
    #[arg(long)]
    pub(crate) read_modify_write: bool,
    /// Do not store objects that hold only background; remove any that are stored there
    #[arg(long)]
    pub(crate) skip_background: bool,
    /// Number of objects to encode at a time [default: the number of processors]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) workers: Option<u16>,
    /// Number of requests to a remote volume at a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) requests: Option<u16>,
    #[command(flatten)]
    pub(crate) part: PartArgs,
    /// Search for the array only in this backend [default: the one that EMULATE_SHM selects, else all]
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<BackendChoice>,
    /// Create the volume first, unless one with the same properties exists
    #[arg(long, conflicts_with = "mip", help_heading = "New volumes")]
    pub(crate) create: bool,
    /// Format of the new volume [default: that of the URL's prefix, or else zarr3]
    #[arg(long, value_name = "FORMAT", requires = "create", help_heading = "New volumes")]
    pub(crate) format: Option<FormatChoice>,
    /// Elements along each axis of a chunk: 64,64,64; channels may be left out [default: from the array's description]
    #[arg(long, value_name = "N,N,..", value_parser = words::lengths, requires = "create", help_heading = "New volumes")]
    pub(crate) chunk: Option<PerAxis<u64>>,
    /// Elements along each axis of a shard of many chunks (zarr3)
    #[arg(long, value_name = "N,N,..", value_parser = words::lengths, requires = "create", help_heading = "New volumes")]
    pub(crate) shard_shape: Option<PerAxis<u64>>,
    /// Encoding of chunks; not every format supports each of them [default: from the array's description, but never
    /// jpeg; else raw]
    #[arg(long, value_name = "ENCODING", help_heading = "New volumes")]
    pub(crate) encoding: Option<EncodingChoice>,
    /// Quality of jpeg chunks, 1 to 100: a lower quality makes chunks smaller and less exact [default: 85]
    #[arg(
        long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=100), requires = "create",
        help_heading = "New volumes"
    )]
    pub(crate) jpeg_quality: Option<u8>,
    /// Type of the elements, such as uint16 or <u2 [default: from the array's description]
    #[arg(long, value_name = "DTYPE", value_parser = words::dtype, requires = "create", help_heading = "New volumes")]
    pub(crate) dtype: Option<DType>,
    /// Meaning of the elements of a Precomputed volume [default: from the array's description; else segmentation for
    /// compressed_segmentation, and image; required for other uint32 and uint64 volumes]
    #[arg(long = "type", value_name = "TYPE", requires = "create", help_heading = "New volumes")]
    pub(crate) kind: Option<TypeChoice>,
    /// Elements along each axis of the volume [default: those of the array, else of --bbox]
    #[arg(long, value_name = "N,N,..", value_parser = words::lengths, requires = "create", help_heading = "New volumes")]
    pub(crate) shape: Option<PerAxis<u64>>,
    /// Coordinates of the first element [default: without --bbox where the array begins in the volume that it is from;
    /// the start of --bbox if --shape is not given; else 0]
    #[arg(
        long, value_name = "N,N,..", value_parser = words::coordinates, allow_hyphen_values = true, requires = "create",
        help_heading = "New volumes"
    )]
    pub(crate) origin: Option<PerAxis<i64>>,
    /// Size of an element along each axis, in nanometres; channels have none [default: from the array's description;
    /// else 1 in Precomputed, and not recorded in Zarr]
    #[arg(long, value_name = "N,N,..", value_parser = words::sizes, requires = "create", help_heading = "New volumes")]
    pub(crate) resolution: Option<PerAxis<f64>>,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

/// Formats of new volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FormatChoice {
    /// Zarr version 2
    Zarr2,
    /// Zarr version 3
    Zarr3,
    /// Neuroglancer Precomputed
    Precomputed,
}

/// Encodings of the chunks of new volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum EncodingChoice {
    /// No encoding
    Raw,
    /// By gzip
    Gzip,
    /// By zstd (Zarr)
    Zstd,
    /// By blosc with lz4 (Zarr)
    Blosc,
    /// As lossy pictures (Precomputed)
    Jpeg,
    /// As lossless pictures (Precomputed)
    Png,
    /// As blocks of labels (Precomputed); compressed by gzip on servers only
    CompressedSegmentation,
    /// The same, compressed by gzip everywhere; only CloudVolume and this program find such files
    CompressedSegmentationGzip,
}

/// Meaning of the elements of new Precomputed volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TypeChoice {
    /// Intensities: downsampling programs average them
    Image,
    /// Labels: downsampling programs keep one of them
    Segmentation,
}

/// Arguments of `ndshm plan`.
#[derive(Debug, Args)]
#[command(after_help = help::CODES, after_long_help = help::PLAN)]
pub(crate) struct PlanArgs {
    /// Path or URL of the volume
    pub(crate) source: VolumeUrl,
    /// Number of parts
    #[arg(long, value_name = "N")]
    pub(crate) shards: usize,
    /// Region to divide: START:STOP for each axis; an empty side is the volume's bound [default: the whole volume]
    #[arg(long, value_name = "RANGES", allow_hyphen_values = true)]
    pub(crate) bbox: Option<String>,
    /// Scale to divide: 0 is the finest
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) mip: usize,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
