//! The command line: every command, argument and help text, and nothing that acts on them.
//!
//! The doc comments of the arguments are the text of `ndshm --help`. Values are checked here as far as that needs no
//! file; what depends on the volume or on the machine is checked by the command itself.

#![expect(clippy::doc_markdown, reason = "these comments are help texts, which show backticks as they are")]

pub(crate) mod help;
mod volumes;
pub(crate) mod words;

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use glob::Pattern;
use ndarray_shm::foreign::Family;
use ndarray_shm::render::SharedWith;
use ndarray_shm::{DType, Location, Order};
use ndarray_shm_volume::VolumeUrl;

pub(crate) use self::volumes::{
    DownloadArgs, EncodingChoice, FormatChoice, MissingChoice, PartArgs, PlanArgs, TypeChoice, UploadArgs,
};
use self::words::{AxisCut, BackendChoice, PerAxis, SumBy, ValueRange};
use crate::show::units;

/// Arrays in shared memory: fill them from volumes, list, inspect and remove them.
#[derive(Debug, Parser)]
#[command(
    name = "ndshm", version, after_help = help::CODES, after_long_help = help::ENVIRONMENT, arg_required_else_help = true
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Copy a region of a volume into an array in shared memory, or into a file
    Download(DownloadArgs),
    /// Write an array into a region of a volume
    Upload(UploadArgs),
    /// Divide a region of a volume into parts, for several machines
    Plan(PlanArgs),
    /// List arrays, streams, and renderbuffers that are not finished
    Ls(ListArgs),
    /// Show all known facts about a name, or list the scales of a volume
    Info(InfoArgs),
    /// Show, write or remove the description of a plain array
    Describe(DescribeArgs),
    /// Show a plane of an array as a picture, in a PNG file or in the terminal; with --live the frames of a stream
    View(ViewArgs),
    /// Write an array into a .npy file
    Export(ExportArgs),
    /// Create an array from a .npy file
    Import(ImportArgs),
    /// Store the frames of a stream in a Zarr group, as they come
    Record(RecordArgs),
    /// Write the frames of a recording to a stream, as fast as they came
    Replay(ReplayArgs),
    /// Remove names; the memory is freed when the last process detaches
    Unlink(UnlinkArgs),
    /// Remove counted arrays, arenas and drafts that killed processes left behind; with --foreign, files of other
    /// programs
    Gc(GcArgs),
    /// Check this machine's shared memory for problems, and suggest what to do
    Doctor(DoctorArgs),
    /// Create small volumes, download them with worker processes, verify the arrays, and show how to open one
    Demo(DemoArgs),
    /// Run the manager, which removes what killed processes leave behind; counted arrays start it by themselves
    Manager(ManagerArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Print the manual page of the program or of a command
    Man(ManArgs),
    /// Exit codes and environment variables of all commands
    #[command(hide = true, after_help = help::ENVIRONMENT)]
    Environment,
    /// Paint chunks for the `download` that started this process
    #[command(hide = true)]
    Worker(WorkerArgs),
}

impl Command {
    /// Whether the command prints JSON; its failures are then JSON too.
    pub(crate) fn prints_json(&self) -> bool {
        match self {
            Self::Download(args) => args.report.json,
            Self::Upload(args) => args.report.json,
            Self::Plan(args) => args.output.json,
            Self::Ls(args) => args.output.json,
            Self::Info(args) => args.output.json,
            Self::Describe(args) => args.output.json,
            Self::View(args) => args.json,
            Self::Export(args) => args.report.json,
            Self::Import(args) => args.report.json,
            Self::Record(args) => args.report.json,
            Self::Replay(args) => args.report.json,
            Self::Unlink(args) => args.output.json,
            Self::Gc(args) => args.output.json,
            Self::Doctor(args) => args.output.json,
            Self::Demo(args) => args.output.json,
            Self::Manager(args) => {
                matches!(&args.command, Some(ManagerCommand::Status { output: OutputArgs { json: true }, .. }))
            }
            Self::Completions(_) | Self::Man(_) | Self::Environment | Self::Worker(_) => false,
        }
    }
}

/// Arguments of `ndshm completions`.
#[derive(Debug, Args)]
#[command(after_help = help::CODES, after_long_help = help::COMPLETIONS)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub(crate) shell: clap_complete::Shell,
}

/// Arguments of `ndshm man`.
#[derive(Debug, Args)]
#[command(after_help = help::CODES, after_long_help = help::MAN)]
pub(crate) struct ManArgs {
    /// Command to describe [default: the whole program]
    #[arg(value_name = "COMMAND")]
    pub(crate) command: Option<String>,
}

/// Arguments of `ndshm ls`.
#[derive(Debug, Args)]
#[command(after_help = help::CODES, after_long_help = help::LS)]
pub(crate) struct ListArgs {
    /// List only names that match: * is any text, ? any character, [a-c] one of a, b and c
    #[arg(value_name = "PATTERN", value_parser = words::pattern)]
    pub(crate) patterns: Vec<Pattern>,
    /// Also list ledgers, keepers of streams, and drafts, the library's own bookkeeping
    #[arg(long, short)]
    pub(crate) all: bool,
    /// List the files of other programs instead, with the processes that use them (Linux)
    #[arg(long, conflicts_with_all = ["all", "watch"])]
    pub(crate) foreign: bool,
    /// Search only this backend [default: all; with --foreign: shm]
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<BackendChoice>,
    /// Repeat the list every SECONDS (2 if no number is given) until Ctrl-C
    #[arg(
        long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "2",
        value_parser = words::pause, conflicts_with = "json"
    )]
    pub(crate) watch: Option<Duration>,
    /// Sum up by user or by kind instead of listing each name; bookkeeping counts, too
    #[arg(long, value_name = "WHAT", conflicts_with_all = ["foreign", "watch"])]
    pub(crate) by: Option<SumBy>,
    /// Write the sums as OpenMetrics text instead, to FILE in one step: for a collector that reads text files
    #[arg(
        long, value_name = "FILE", num_args = 0..=1, require_equals = true,
        conflicts_with_all = ["foreign", "watch", "by", "json"]
    )]
    #[expect(clippy::option_option, reason = "without, with and without a file, and with one")]
    pub(crate) metrics: Option<Option<PathBuf>>,
    /// With --metrics: also each name, which a collector keeps for ever
    #[arg(long, requires = "metrics")]
    pub(crate) names: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Arguments of `ndshm info`.
#[derive(Debug, Args)]
#[command(after_help = help::CODES, after_long_help = help::INFO)]
pub(crate) struct InfoArgs {
    /// Name of an array, an unfinished renderbuffer or a stream, or the path or URL of a volume
    #[arg(value_name = "NAME|SOURCE")]
    pub(crate) subject: InfoSubject,
    /// Show the stream of this name, even if an array has the name too
    #[arg(long)]
    pub(crate) stream: bool,
    /// Search only this backend [default: the one that EMULATE_SHM selects, else all]
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<BackendChoice>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// The subject of `ndshm info`.
#[derive(Debug, Clone)]
pub(crate) enum InfoSubject {
    /// A name in shared memory.
    Name(Location),
    /// A volume.
    Volume(VolumeUrl),
}

impl FromStr for InfoSubject {
    type Err = String;

    /// Names have no separators, so a text with one is a path. A text that cannot be a name is a path if there is such
    /// a directory.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains(std::path::is_separator) || matches!(text, "." | "..") {
            return text.parse().map(Self::Volume).map_err(|error: ndarray_shm_volume::Error| error.to_string());
        }
        text.parse().map(Self::Name).or_else(|error: ndarray_shm::Error| {
            let path = std::path::Path::new(text);
            if path.is_dir() { Ok(Self::Volume(VolumeUrl::local(path))) } else { Err(error.to_string()) }
        })
    }
}

/// Type, shape and order of an array without a description.
#[derive(Debug, Args)]
pub(crate) struct LayoutArgs {
    /// Type of the elements, such as uint16 or <u2 [default: from the array's description]
    #[arg(long, value_name = "DTYPE", value_parser = words::dtype)]
    pub(crate) dtype: Option<DType>,
    /// Elements along each axis, such as 64,128,128 [default: from the array's description]
    #[arg(long, value_name = "N,N,..", value_parser = words::lengths)]
    pub(crate) shape: Option<PerAxis<u64>>,
    /// Memory order: c (last axis contiguous) or f (first axis contiguous) [default: from the array's description]
    #[arg(long, value_name = "c|f")]
    pub(crate) order: Option<Order>,
    /// Interpret the bytes as --dtype, --shape and --order say, and ignore the array's description
    #[arg(long)]
    pub(crate) ignore_description: bool,
    /// Search only this backend [default: the one that EMULATE_SHM selects, else all]
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<BackendChoice>,
}

/// Arguments of `ndshm describe`.
#[derive(Debug, Args)]
#[command(after_help = help::CODES, after_long_help = help::DESCRIBE)]
pub(crate) struct DescribeArgs {
    /// Name of a plain array
    #[arg(value_name = "NAME")]
    pub(crate) location: Location,
    /// Type of the elements, such as uint16 or <u2 [default: unchanged]
    #[arg(long, value_name = "DTYPE", value_parser = words::dtype)]
    pub(crate) dtype: Option<DType>,
    /// Elements along each axis, such as 64,128,128 [default: unchanged]
    #[arg(long, value_name = "N,N,..", value_parser = words::lengths)]
    pub(crate) shape: Option<PerAxis<u64>>,
    /// Memory order: c (last axis contiguous) or f (first axis contiguous) [default: unchanged]
    #[arg(long, value_name = "c|f")]
    pub(crate) order: Option<Order>,
    /// Add a note, or replace the one with this key
    #[arg(long = "note", value_name = "KEY=TEXT", value_parser = words::note)]
    pub(crate) notes: Vec<(String, String)>,
    /// Remove the description
    #[arg(long, conflicts_with_all = ["dtype", "shape", "order", "notes"])]
    pub(crate) clear: bool,
    /// Search only this backend [default: the one that EMULATE_SHM selects, else all]
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<BackendChoice>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Arguments of `ndshm view`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "a command line is made of switches")]
#[command(after_help = help::CODES, after_long_help = help::VIEW)]
pub(crate) struct ViewArgs {
    /// Name of an array or of an unfinished renderbuffer; with --live of a stream
    #[arg(value_name = "NAME", value_parser = words::name_of_array)]
    pub(crate) location: Location,
    /// Index at which to cut an axis, by name or number: z=10 or 2=10 [default: the middle]
    #[arg(long, short, value_name = "AXIS=INDEX", value_parser = words::cut)]
    pub(crate) slice: Vec<AxisCut>,
    /// Letters of the axes, first to last, as in zyx [default: the names in the array's description]
    #[arg(long, value_name = "LETTERS")]
    pub(crate) axes: Option<String>,
    /// The same as --slice c=INDEX
    #[arg(long, value_name = "INDEX")]
    pub(crate) channel: Option<usize>,
    #[command(flatten)]
    pub(crate) layout: LayoutArgs,
    /// Users of the unfinished renderbuffer: me, users:UID,UID,.. or group:GID; they can crash this program
    #[arg(long, value_name = "WITH", default_value_t)]
    pub(crate) share: SharedWith,
    /// Values shown as black and as white [default: the smallest and the largest of the plane]
    #[arg(long, value_name = "LOW:HIGH", value_parser = words::value_range, allow_hyphen_values = true)]
    pub(crate) range: Option<ValueRange>,
    /// Values are labels, not quantities: each gets its own colour, 0 is black
    #[arg(long, conflicts_with = "range")]
    pub(crate) labels: bool,
    /// Show only every Nth element of both axes [default: 1; in the terminal, the smallest N that fits]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) every: Option<u16>,
    /// Draw the newest frame of the stream with this name, at most 10 times a second, until it ends or Ctrl-C
    #[arg(long, conflicts_with_all = ["out", "dtype", "shape", "order", "share"])]
    pub(crate) live: bool,
    /// Write a PNG file; - is standard output
    #[arg(long, short, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Replace an existing file
    #[arg(long, requires = "out")]
    pub(crate) replace: bool,
    /// Draw lines of N characters, even if standard output is not a terminal
    #[arg(long, value_name = "N", conflicts_with = "out", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) columns: Option<u16>,
    /// Print facts about the picture as JSON
    #[arg(long, requires = "out")]
    pub(crate) json: bool,
}

/// Arguments of `ndshm export`.
#[derive(Debug, Args)]
#[command(after_help = help::CODES, after_long_help = help::EXPORT)]
pub(crate) struct ExportArgs {
    /// Name of an array
    #[arg(value_name = "NAME", value_parser = words::name_of_array)]
    pub(crate) location: Location,
    /// The .npy file to write
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) layout: LayoutArgs,
    /// Replace an existing file
    #[arg(long)]
    pub(crate) replace: bool,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

/// Arguments of `ndshm import`.
#[derive(Debug, Args)]
#[command(after_help = help::CODES, after_long_help = help::IMPORT)]
pub(crate) struct ImportArgs {
    /// The .npy file to read
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Name of the new array
    #[arg(value_name = "NAME")]
    pub(crate) location: Location,
    /// Interpret the elements as this type of the same size: uint8 for bool, bfloat16 for a type that NumPy cannot name
    #[arg(long, value_name = "DTYPE", value_parser = words::dtype)]
    pub(crate) dtype: Option<DType>,
    /// Use a file in the emulated directory, regardless of EMULATE_SHM
    #[arg(long)]
    pub(crate) emulate: bool,
    /// Replace an existing array; attached processes keep the old one
    #[arg(long)]
    pub(crate) replace: bool,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

/// Arguments of `ndshm record`.
#[derive(Debug, Args)]
#[command(after_help = help::CODES, after_long_help = help::RECORD)]
pub(crate) struct RecordArgs {
    /// Name of the stream
    #[arg(value_name = "NAME")]
    pub(crate) location: Location,
    /// The directory: a new one, or one in which the same stream was recorded before
    #[arg(value_name = "PLACE")]
    pub(crate) place: PathBuf,
    /// End when the recording has so many frames, those of earlier runs included [default: end with the stream]
    #[arg(long, value_name = "N")]
    pub(crate) frames: Option<u64>,
    /// Frames in a chunk, at most half of the stream's slots [default: as many as 16 MiB have, or half of the slots]
    #[arg(long, value_name = "N")]
    pub(crate) per_chunk: Option<usize>,
    /// Encoding of the frames: raw, gzip, zstd or blosc [default: raw]
    #[arg(long, value_name = "ENCODING")]
    pub(crate) encoding: Option<EncodingChoice>,
    /// Name of the cursor, which remembers what is stored; another recorder needs another one
    #[arg(long, value_name = "CURSOR", default_value = "record")]
    pub(crate) cursor: String,
    /// What the writer does when only frames are left that are not stored
    #[arg(long, value_name = "POLICY", default_value = "wait-while-alive")]
    pub(crate) policy: PolicyChoice,
    /// Search only this backend [default: the one that EMULATE_SHM selects, else all]
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<BackendChoice>,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

/// What the writer of a stream does when only frames are left that a cursor has not acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyChoice {
    /// Its frames are refused while the recorder runs; without one, the oldest frames are overwritten
    WaitWhileAlive,
    /// Its frames are refused, also after the recorder was killed, until it runs again
    Wait,
    /// The oldest frames are overwritten, and are missing in the recording
    Overwrite,
}

/// Arguments of `ndshm replay`.
#[derive(Debug, Args)]
#[command(after_help = help::CODES, after_long_help = help::REPLAY)]
pub(crate) struct ReplayArgs {
    /// The directory of the recording
    #[arg(value_name = "PLACE")]
    pub(crate) place: PathBuf,
    /// Name of the new stream
    #[arg(value_name = "NAME")]
    pub(crate) location: Location,
    /// Frames per second [default: as they were recorded]
    #[arg(long, value_name = "N", value_parser = words::rate)]
    pub(crate) rate: Option<f64>,
    /// Slots of the stream, at least 3
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) slots: usize,
    /// Use a file in the emulated directory, regardless of EMULATE_SHM
    #[arg(long)]
    pub(crate) emulate: bool,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

/// Arguments of `ndshm unlink`.
#[derive(Debug, Args)]
#[command(after_help = help::CODES, after_long_help = help::UNLINK)]
pub(crate) struct UnlinkArgs {
    /// Names to remove
    #[arg(value_name = "NAME", required = true)]
    pub(crate) locations: Vec<Location>,
    /// Remove unfinished renderbuffers with these names instead of finished arrays
    #[arg(long)]
    pub(crate) partial: bool,
    /// Remove streams with these names instead of arrays
    #[arg(long, conflicts_with = "partial")]
    pub(crate) stream: bool,
    /// Remove caches of chunks with these names instead of arrays
    #[arg(long, conflicts_with_all = ["partial", "stream"])]
    pub(crate) cache: bool,
    /// Remove only this cursor of the streams, so that their writers no longer wait for it
    #[arg(long, value_name = "CURSOR", requires = "stream")]
    pub(crate) cursor: Option<String>,
    /// Search only this backend [default: the one that EMULATE_SHM selects, else all]
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<BackendChoice>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Arguments of `ndshm gc`.
#[derive(Debug, Args)]
#[command(after_help = help::CODES, after_long_help = help::GC)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of the command line")]
pub(crate) struct GcArgs {
    /// With --foreign: remove only names that match: * is any text, ? any character, [a-c] one of a, b and c
    #[arg(value_name = "PATTERN", value_parser = words::pattern, requires = "foreign")]
    pub(crate) patterns: Vec<Pattern>,
    /// Only show what would be removed
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Also remove counted arrays that only handles in flight keep; their receivers then fail to attach
    #[arg(long, conflicts_with_all = ["foreign", "entrypoint"])]
    pub(crate) in_flight: bool,
    /// Also remove the caches of chunks that no process has open, although they would stay
    #[arg(long, conflicts_with_all = ["foreign", "entrypoint"])]
    pub(crate) caches: bool,
    /// Keep what was created or changed within this time: 90, 90s, 5m, 2h, 1d [default with --foreign: 10m]
    #[arg(long, value_name = "DURATION", value_parser = units::duration)]
    pub(crate) older_than: Option<Duration>,
    /// Remove files of other programs that no process uses, if they match a PATTERN or belong to a --family; else list
    /// them (Linux)
    #[arg(long)]
    pub(crate) foreign: bool,
    /// With --foreign: remove only files of these families, separated by commas; `ndshm ls --foreign` shows them
    #[arg(long, value_name = "FAMILY", value_delimiter = ',', value_parser = words::family, requires = "foreign")]
    pub(crate) family: Vec<&'static Family>,
    /// With --foreign or --entrypoint: remove the files of the user with this number instead of one's own (needs root)
    #[arg(long, value_name = "UID")]
    pub(crate) user: Option<u32>,
    /// In a container: remove what its earlier runs left, which is files of other programs that no process uses and
    /// that are older than process 1 (Linux)
    #[arg(long, conflicts_with_all = ["foreign", "older_than"])]
    pub(crate) entrypoint: bool,
    /// With --entrypoint: also remove this library's own arrays that no process uses
    #[arg(long, requires = "entrypoint")]
    pub(crate) ours: bool,
    /// With --entrypoint: work even where processes outside the container may use the directory
    #[arg(long, requires = "entrypoint")]
    pub(crate) shared_mount: bool,
    /// Search only this backend [default: all; with --foreign and --entrypoint: shm]
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<BackendChoice>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Arguments of `ndshm doctor`.
#[derive(Debug, Args)]
#[command(after_help = help::CODES, after_long_help = help::DOCTOR)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Default name of the array that a demo creates.
pub(crate) const DEMO_LOCATION: &str = "ndshm-demo";

/// Arguments of `ndshm demo`.
#[derive(Debug, Args)]
#[command(after_help = help::CODES, after_long_help = help::DEMO)]
pub(crate) struct DemoArgs {
    /// Remove the array at the end; the volumes are removed in any case
    #[arg(long)]
    pub(crate) clean: bool,
    /// Name of the new array; an existing array with the default name is replaced
    #[arg(value_name = "NAME", default_value = DEMO_LOCATION)]
    pub(crate) name: Location,
    /// The same as NAME
    #[arg(long, short, value_name = "NAME", conflicts_with = "name", hide_short_help = true)]
    location: Option<Location>,
    /// Number of worker processes
    #[arg(long, short, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) workers: u16,
    /// Users that paint the array together: me, users:UID,UID,.. or group:GID; they can read and corrupt it
    #[arg(long, value_name = "WITH", default_value_t)]
    pub(crate) share: SharedWith,
    /// Use files in the emulated directory, regardless of EMULATE_SHM
    #[arg(long)]
    pub(crate) emulate: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

impl DemoArgs {
    /// Returns the name of the array, however it was given.
    pub(crate) fn location(&self) -> &Location {
        self.location.as_ref().unwrap_or(&self.name)
    }
}

/// Arguments of `ndshm manager`.
#[derive(Debug, Args)]
#[command(after_help = help::CODES, after_long_help = help::MANAGER, args_conflicts_with_subcommands = true)]
pub(crate) struct ManagerArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ManagerCommand>,
    /// Run in the background; return once the manager listens
    #[arg(long)]
    pub(crate) detach: bool,
    /// Exit after this many seconds without a client, or when arrays in flight and unused caches are gone [default: 60
    /// in the background, never in the foreground]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) idle: Option<u64>,
    #[command(flatten)]
    pub(crate) socket: SocketArgs,
    /// The process that --detach starts
    #[arg(long, hide = true)]
    pub(crate) background: bool,
}

/// Commands to a running manager.
#[derive(Debug, Subcommand)]
pub(crate) enum ManagerCommand {
    /// Show the state of the running manager
    #[command(after_help = help::CODES, after_long_help = help::MANAGER)]
    Status {
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        socket: SocketArgs,
    },
    /// Stop the manager, which is never necessary: it exits when idle, and is started again on demand
    #[command(after_help = help::CODES, after_long_help = help::MANAGER)]
    Stop {
        #[command(flatten)]
        socket: SocketArgs,
    },
}

/// How a command that takes long reports.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Show no progress
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// How a command prints its result.
#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where the manager listens.
#[derive(Debug, Args)]
pub(crate) struct SocketArgs {
    /// Path of the manager's socket [default: NDSHM_MANAGER_SOCKET, else a path in the user's runtime directory]
    #[arg(id = "socket", long = "socket", value_name = "PATH")]
    pub(crate) path: Option<PathBuf>,
}

/// Arguments of the hidden `ndshm worker`, which `ProcessWorkers::of_program` runs.
#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    /// The volume, as the parent opened it
    pub(crate) source: VolumeUrl,
    /// Scale of the volume
    #[arg(long)]
    pub(crate) mip: usize,
    /// Public name of the renderbuffer
    #[arg(long)]
    pub(crate) location: Location,
    /// Name of the parent's backend
    #[arg(long)]
    pub(crate) backend: String,
    /// Directory of the parent's backend: the worker must not choose one for itself
    #[arg(long)]
    pub(crate) directory: PathBuf,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn command_line_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn invalid_location_is_a_usage_error() {
        for name in ["", "a/b", "..", ".ndshm-x"] {
            let error = Cli::try_parse_from(["ndshm", "unlink", name]).expect_err(name);
            assert_eq!(error.exit_code(), 2, "{name:?}");
        }
    }

    #[test]
    fn text_with_separator_is_a_volume_otherwise_a_name() {
        for text in ["./x", "a/b", "/a", ".", "s3://bucket/key", "precomputed://file:///x"] {
            assert!(matches!(text.parse(), Ok(InfoSubject::Volume(_))), "{text}");
        }
        for text in ["x", "volume.zarr", if std::path::MAIN_SEPARATOR == '/' { "..." } else { "..x" }] {
            assert!(matches!(text.parse(), Ok(InfoSubject::Name(_))), "{text}");
        }
        assert!("ftp://x/y".parse::<InfoSubject>().is_err());
    }

    #[test]
    fn zero_workers_are_a_usage_error() {
        let line = ["ndshm", "download", "v", "--location", "x", "--workers", "0"];
        assert_eq!(Cli::try_parse_from(line).expect_err("no workers").exit_code(), 2);
    }
}
