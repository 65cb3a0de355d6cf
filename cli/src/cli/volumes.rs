//! Commands about volumes: their arguments and help texts.

#![expect(clippy::doc_markdown, reason = "these comments are help texts, which show backticks as they are")]

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ndarray_shm::render::SharedWith;
use ndarray_shm::{DType, Location, Order};
use ndarray_shm_volume::VolumeUrl;

use crate::help;
use crate::words::{self, BackendChoice, PerAxis, Which};

/// Arguments of `ndshm download`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "a command line is made of switches")]
#[command(after_help = help::CODES, after_long_help = help::DOWNLOAD)]
pub(crate) struct DownloadArgs {
    /// Path or URL of a volume: Zarr, Precomputed or N5, local or behind http, https or s3
    pub(crate) source: VolumeUrl,
    /// Name of the array to make
    #[arg(value_name = "NAME", required_unless_present_any = ["file", "location"])]
    name: Option<Location>,
    /// Another way to give the name
    #[arg(long, short, value_name = "NAME", conflicts_with = "name", hide_short_help = true)]
    location: Option<Location>,
    /// Make a file of the elements instead, in any directory
    #[arg(long, value_name = "PATH", conflicts_with_all = ["name", "location", "emulate"])]
    pub(crate) file: Option<PathBuf>,
    /// Region to read, START:STOP for each axis of the volume, e.g. 0:64,10:,: (an empty side is the bound) [default: everything]
    #[arg(long, value_name = "RANGES", allow_hyphen_values = true)]
    pub(crate) bbox: Option<String>,
    /// Which channels, where the last axis of the volume are its channels [default: all]
    #[arg(long, value_name = "START:STOP")]
    pub(crate) channels: Option<String>,
    /// Which scale, from 0, the finest; `ndshm info SOURCE` lists them
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) mip: usize,
    /// What chunks are that are not stored [default: what the volume says; where it says nothing, an error]
    #[arg(long, value_name = "error|fill")]
    pub(crate) missing: Option<MissingChoice>,
    /// Value of chunks that are not stored [default: the volume's, else 0]
    #[arg(long, value_name = "VALUE", allow_hyphen_values = true)]
    pub(crate) fill: Option<String>,
    /// Memory order of the array: c (last axis contiguous) or f (first axis contiguous)
    #[arg(long, value_name = "c|f", default_value = "c")]
    pub(crate) order: Order,
    /// How many chunks are decoded at a time [default: the number of processors]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) workers: Option<u16>,
    /// How many requests a remote volume gets at a time [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) requests: Option<u16>,
    /// Paint with worker processes instead of threads
    #[arg(long)]
    pub(crate) processes: bool,
    /// Users that paint together: me, users:UID,UID,.. or group:GID; they can read and break what is painted
    #[arg(long, value_name = "WITH", default_value_t)]
    pub(crate) share: SharedWith,
    #[command(flatten)]
    pub(crate) part: PartArgs,
    /// Use a file in the emulated directory, whatever EMULATE_SHM says
    #[arg(long)]
    pub(crate) emulate: bool,
    /// Replace an array that has the name already; attached processes keep the old one
    #[arg(long)]
    pub(crate) replace: bool,
    /// When interrupted, or when a chunk cannot be read, keep what is painted: the same command continues with the rest
    #[arg(long)]
    pub(crate) keep_partial: bool,
    /// No progress
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl DownloadArgs {
    /// Returns the name of the array, however it was given.
    pub(crate) fn location(&self) -> Option<&Location> {
        self.name.as_ref().or(self.location.as_ref())
    }
}

/// What chunks are that are not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum MissingChoice {
    /// An error
    Error,
    /// The volume's fill value, or 0, or what --fill says
    Fill,
}

/// Which part of a work that several machines share.
#[derive(Debug, Args)]
pub(crate) struct PartArgs {
    /// Do only this part of the region: 0/N to N-1/N, or auto (what SLURM or Kubernetes says)
    #[arg(long, value_name = "i/N|auto")]
    pub(crate) shard: Option<Which>,
    /// How many parts there are, where --shard auto cannot know it (Kubernetes)
    #[arg(long, value_name = "N", requires = "shard")]
    pub(crate) shards: Option<usize>,
    /// Directory or URL where parts are marked as done; a part that is marked is not done again
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
    /// SOURCE is a file that holds the elements and nothing else
    #[arg(long, conflicts_with = "backend")]
    pub(crate) file: bool,
    /// Region of the volume that the array is, START:STOP for each axis; an empty side is the bound [default: everything]
    #[arg(long, value_name = "RANGES", allow_hyphen_values = true)]
    pub(crate) bbox: Option<String>,
    /// Write only this part of it, in the volume's coordinates
    #[arg(long, value_name = "RANGES", allow_hyphen_values = true)]
    pub(crate) cutout: Option<String>,
    /// Memory order of the array: c (last axis contiguous) or f (first axis contiguous) [default: what it says itself]
    #[arg(long, value_name = "c|f")]
    pub(crate) order: Option<Order>,
    /// Take the bytes for what the region and --order say, whatever a plain array says about itself
    #[arg(long)]
    pub(crate) ignore_description: bool,
    /// Which scale, from 0, the finest
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) mip: usize,
    /// Where the region cuts through stored objects: read, change and write them, each under a lock of this machine
    #[arg(long)]
    pub(crate) read_modify_write: bool,
    /// Do not store objects that hold nothing but background; remove what is stored there
    #[arg(long)]
    pub(crate) skip_background: bool,
    /// How many objects are encoded at a time [default: the number of processors]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) workers: Option<u16>,
    /// How many requests a remote volume gets at a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) requests: Option<u16>,
    #[command(flatten)]
    pub(crate) part: PartArgs,
    /// Look for the array only here [default: what EMULATE_SHM says, else everywhere]
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<BackendChoice>,
    /// Make the volume first, unless one like it is there
    #[arg(long, conflicts_with = "mip", help_heading = "New volumes")]
    pub(crate) create: bool,
    /// Format of the new volume [default: what the URL says]
    #[arg(long, value_name = "FORMAT", requires = "create", help_heading = "New volumes")]
    pub(crate) format: Option<FormatChoice>,
    /// Elements along each axis of a chunk: 64,64,64
    #[arg(long, value_name = "N,N,..", value_parser = words::lengths, requires = "create", help_heading = "New volumes")]
    pub(crate) chunk: Option<PerAxis<u64>>,
    /// Elements along each axis of a shard of many chunks (zarr3)
    #[arg(long, value_name = "N,N,..", value_parser = words::lengths, requires = "create", help_heading = "New volumes")]
    pub(crate) shard_shape: Option<PerAxis<u64>>,
    /// How chunks are encoded; which of them a format has, it says
    #[arg(long, value_name = "ENCODING", default_value = "raw", help_heading = "New volumes")]
    pub(crate) encoding: EncodingChoice,
    /// Quality of jpeg chunks, 1 to 100: the lower, the smaller and the less like the array [default: 85]
    #[arg(
        long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=100), requires = "create",
        help_heading = "New volumes"
    )]
    pub(crate) jpeg_quality: Option<u8>,
    /// Type of the elements, such as uint16 or <u2 [default: the array's, if it says so]
    #[arg(long, value_name = "DTYPE", value_parser = words::dtype, requires = "create", help_heading = "New volumes")]
    pub(crate) dtype: Option<DType>,
    /// What the elements of a Precomputed volume mean [default: segmentation for compressed_segmentation; else image, but uint32 and
    /// uint64 need it]
    #[arg(long = "type", value_name = "TYPE", requires = "create", help_heading = "New volumes")]
    pub(crate) kind: Option<TypeChoice>,
    /// Elements along each axis of the volume [default: the array's, else those of --bbox]
    #[arg(long, value_name = "N,N,..", value_parser = words::lengths, requires = "create", help_heading = "New volumes")]
    pub(crate) shape: Option<PerAxis<u64>>,
    /// Coordinates of its first element [default: where --bbox begins if there is no --shape, else 0]
    #[arg(
        long, value_name = "N,N,..", value_parser = words::coordinates, allow_hyphen_values = true, requires = "create",
        help_heading = "New volumes"
    )]
    pub(crate) origin: Option<PerAxis<i64>>,
    /// Size of an element along each axis, in nanometres [default: 1]
    #[arg(long, value_name = "N,N,..", value_parser = words::sizes, requires = "create", help_heading = "New volumes")]
    pub(crate) resolution: Option<PerAxis<f64>>,
    /// No progress
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Formats that new volumes may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FormatChoice {
    /// Zarr version 2
    Zarr2,
    /// Zarr version 3
    Zarr3,
    /// Neuroglancer Precomputed
    Precomputed,
}

/// How chunks of new volumes may be encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum EncodingChoice {
    /// Not at all
    Raw,
    /// By gzip
    Gzip,
    /// By zstd (Zarr)
    Zstd,
    /// By blosc with lz4 (Zarr)
    Blosc,
    /// As pictures that lose detail (Precomputed)
    Jpeg,
    /// As pictures (Precomputed)
    Png,
    /// As blocks of labels (Precomputed); packed by gzip on servers only
    CompressedSegmentation,
    /// The same, packed by gzip everywhere; of files only CloudVolume and this program find them
    CompressedSegmentationGzip,
}

/// What the elements of new Precomputed volumes mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TypeChoice {
    /// Intensities, which programs that downsample average
    Image,
    /// Labels, of which they keep one
    Segmentation,
}

/// Arguments of `ndshm plan`.
#[derive(Debug, Args)]
#[command(after_help = help::CODES, after_long_help = help::PLAN)]
pub(crate) struct PlanArgs {
    /// Path or URL of the volume
    pub(crate) source: VolumeUrl,
    /// How many parts
    #[arg(long, value_name = "N")]
    pub(crate) shards: usize,
    /// Region to divide, START:STOP for each axis; an empty side is the bound [default: everything]
    #[arg(long, value_name = "RANGES", allow_hyphen_values = true)]
    pub(crate) bbox: Option<String>,
    /// Which scale, from 0, the finest
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) mip: usize,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
