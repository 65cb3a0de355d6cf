//! The command line: every command, argument and help text, and nothing that acts on them.
//!
//! What is written here is what `ndshm --help` says. Values are checked as far as they can be without touching a file;
//! what depends on the volume or on the machine is checked by the command itself.

#![expect(clippy::doc_markdown, reason = "these comments are help texts, which show backticks as they are")]

mod volumes;

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use glob::Pattern;
use ndarray_shm::render::SharedWith;
use ndarray_shm::{DType, Location, Order};
use ndarray_shm_volume::VolumeUrl;

pub(crate) use self::volumes::{
    DownloadArgs, EncodingChoice, FormatChoice, MissingChoice, PartArgs, PlanArgs, TypeChoice, UploadArgs,
};
use crate::words::{self, AxisCut, BackendChoice, PerAxis, ValueRange};
use crate::{help, units};

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
    /// Paint a region of a volume into an array in shared memory, or into a file
    Download(DownloadArgs),
    /// Write an array into a region of a volume
    Upload(UploadArgs),
    /// Divide a region of a volume into parts, for several machines
    Plan(PlanArgs),
    /// List arrays, and renderbuffers that are not finished
    Ls(ListArgs),
    /// Show everything that is known about a name, or the scales of a volume
    Info(InfoArgs),
    /// Show, write down or remove what a plain array says about itself
    Describe(DescribeArgs),
    /// Show a plane of an array as a picture: a PNG file, or in the terminal
    View(ViewArgs),
    /// Write an array into a .npy file
    Export(ExportArgs),
    /// Make an array of a .npy file
    Import(ImportArgs),
    /// Remove names; the memory is free once the last process lets go of it
    Unlink(UnlinkArgs),
    /// Remove counted arrays, arenas and drafts that only killed processes have left
    Gc(GcArgs),
    /// Look for what is wrong with this machine's shared memory, and say what to do
    Doctor(DoctorArgs),
    /// Make a small volume, download it with worker processes, check it, and say how to open it
    Demo(DemoArgs),
    /// Remove what killed processes leave as soon as they are dead; arrays that are counted start it by themselves
    Manager(ManagerArgs),
    /// Print what completes this program's commands and options in a shell
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
    /// Whether it was asked for JSON, which its failure is then too.
    pub(crate) fn prints_json(&self) -> bool {
        match self {
            Self::Download(args) => args.json,
            Self::Upload(args) => args.json,
            Self::Plan(args) => args.json,
            Self::Ls(args) => args.json,
            Self::Info(args) => args.json,
            Self::Describe(args) => args.json,
            Self::View(args) => args.json,
            Self::Export(args) => args.json,
            Self::Import(args) => args.json,
            Self::Unlink(args) => args.json,
            Self::Gc(args) => args.json,
            Self::Doctor(args) => args.json,
            Self::Demo(args) => args.json,
            Self::Manager(args) => matches!(&args.command, Some(ManagerCommand::Status { json: true, .. })),
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
    /// A command [default: the program]
    #[arg(value_name = "COMMAND")]
    pub(crate) command: Option<String>,
}

/// Arguments of `ndshm ls`.
#[derive(Debug, Args)]
#[command(after_help = help::CODES, after_long_help = help::LS)]
pub(crate) struct ListArgs {
    /// Only names that match: * stands for any text, ? for one character, [a-c] for one of these
    #[arg(value_name = "PATTERN", value_parser = words::pattern)]
    pub(crate) patterns: Vec<Pattern>,
    /// Also list ledgers and drafts, the library's own bookkeeping
    #[arg(long, short)]
    pub(crate) all: bool,
    /// Look only here [default: everywhere]
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<BackendChoice>,
    /// List again every 2 seconds, or as many as are said, until Ctrl-C
    #[arg(
        long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "2",
        value_parser = words::pause, conflicts_with = "json"
    )]
    pub(crate) watch: Option<Duration>,
    /// Print a JSON list
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `ndshm info`.
#[derive(Debug, Args)]
#[command(after_help = help::CODES, after_long_help = help::INFO)]
pub(crate) struct InfoArgs {
    /// Name of an array, or of a renderbuffer that is not finished; with a / or ://, the path or URL of a volume
    #[arg(value_name = "NAME|SOURCE")]
    pub(crate) subject: InfoSubject,
    /// Look only here [default: what EMULATE_SHM says, else everywhere]
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<BackendChoice>,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// What `ndshm info` is asked about.
#[derive(Debug, Clone)]
pub(crate) enum InfoSubject {
    /// A name in shared memory.
    Name(Location),
    /// A volume.
    Volume(VolumeUrl),
}

impl FromStr for InfoSubject {
    type Err = String;

    /// The text alone decides, not what is there at the moment: names have no separators, so what has one is a path.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains(std::path::is_separator) || matches!(text, "." | "..") {
            return text.parse().map(Self::Volume).map_err(|error: ndarray_shm_volume::Error| error.to_string());
        }
        text.parse().map(Self::Name).map_err(|error: ndarray_shm::Error| error.to_string())
    }
}

/// What an array is, where it does not say so itself.
#[derive(Debug, Args)]
pub(crate) struct LayoutArgs {
    /// Type of the elements, such as uint16 or <u2 [default: what the array says]
    #[arg(long, value_name = "DTYPE", value_parser = words::dtype)]
    pub(crate) dtype: Option<DType>,
    /// Elements along each axis, such as 64,128,128 [default: what the array says]
    #[arg(long, value_name = "N,N,..", value_parser = words::lengths)]
    pub(crate) shape: Option<PerAxis<u64>>,
    /// Memory order: c (last axis contiguous) or f (first axis contiguous) [default: what the array says]
    #[arg(long, value_name = "c|f")]
    pub(crate) order: Option<Order>,
    /// Take the bytes for what --dtype, --shape and --order say, whatever a plain array says about itself
    #[arg(long)]
    pub(crate) ignore_description: bool,
    /// Look only here [default: what EMULATE_SHM says, else everywhere]
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
    /// Type of the elements, such as uint16 or <u2 [default: what it says so far]
    #[arg(long, value_name = "DTYPE", value_parser = words::dtype)]
    pub(crate) dtype: Option<DType>,
    /// Elements along each axis, such as 64,128,128 [default: what it says so far]
    #[arg(long, value_name = "N,N,..", value_parser = words::lengths)]
    pub(crate) shape: Option<PerAxis<u64>>,
    /// Memory order: c (last axis contiguous) or f (first axis contiguous) [default: what it says so far]
    #[arg(long, value_name = "c|f")]
    pub(crate) order: Option<Order>,
    /// Add a note, or replace the one with this key
    #[arg(long = "note", value_name = "KEY=TEXT", value_parser = words::note)]
    pub(crate) notes: Vec<(String, String)>,
    /// Remove the description
    #[arg(long, conflicts_with_all = ["dtype", "shape", "order", "notes"])]
    pub(crate) clear: bool,
    /// Look only here [default: what EMULATE_SHM says, else everywhere]
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<BackendChoice>,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `ndshm view`.
#[derive(Debug, Args)]
#[command(after_help = help::CODES, after_long_help = help::VIEW)]
pub(crate) struct ViewArgs {
    /// Name of an array, or of a renderbuffer that is not finished
    #[arg(value_name = "NAME")]
    pub(crate) location: Location,
    /// Where to cut an axis, by letter or number: z=10 or 2=10 [default: in the middle]
    #[arg(long, short, value_name = "AXIS=INDEX", value_parser = words::cut)]
    pub(crate) slice: Vec<AxisCut>,
    /// Letters of the axes, first to last [default: x is the one that is contiguous in memory, then y, z, c]
    #[arg(long, value_name = "LETTERS")]
    pub(crate) axes: Option<String>,
    /// The same as --slice c=INDEX
    #[arg(long, value_name = "INDEX")]
    pub(crate) channel: Option<usize>,
    #[command(flatten)]
    pub(crate) layout: LayoutArgs,
    /// Users of the unfinished renderbuffer: me, users:UID,UID,.. or group:GID; they can end this program
    #[arg(long, value_name = "WITH", default_value_t)]
    pub(crate) share: SharedWith,
    /// Values that become black and white [default: the least and the greatest of the plane]
    #[arg(long, value_name = "LOW:HIGH", value_parser = words::value_range, allow_hyphen_values = true)]
    pub(crate) range: Option<ValueRange>,
    /// Values are names, not quantities: each gets a colour of its own, 0 is black
    #[arg(long, conflicts_with = "range")]
    pub(crate) labels: bool,
    /// Show only every Nth element of both axes [default: 1; in the terminal, as many as fit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) every: Option<u16>,
    /// Write a PNG file; - is the standard output
    #[arg(long, short, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Replace a file that is there already
    #[arg(long, requires = "out")]
    pub(crate) replace: bool,
    /// Draw with so many characters in a line, whatever the standard output is
    #[arg(long, value_name = "N", conflicts_with = "out", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) columns: Option<u16>,
    /// Print what the picture shows as JSON
    #[arg(long, requires = "out")]
    pub(crate) json: bool,
}

/// Arguments of `ndshm export`.
#[derive(Debug, Args)]
#[command(after_help = help::CODES, after_long_help = help::EXPORT)]
pub(crate) struct ExportArgs {
    /// Name of an array
    #[arg(value_name = "NAME")]
    pub(crate) location: Location,
    /// The .npy file to write
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) layout: LayoutArgs,
    /// Replace a file that is there already
    #[arg(long)]
    pub(crate) replace: bool,
    /// No progress
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `ndshm import`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "a command line is made of switches")]
#[command(after_help = help::CODES, after_long_help = help::IMPORT)]
pub(crate) struct ImportArgs {
    /// The .npy file to read
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Name of the array to make
    #[arg(value_name = "NAME")]
    pub(crate) location: Location,
    /// Take the elements for this type, which has as many bytes: for bool (uint8) and what NumPy has no name for (bfloat16)
    #[arg(long, value_name = "DTYPE", value_parser = words::dtype)]
    pub(crate) dtype: Option<DType>,
    /// Use a file in the emulated directory, whatever EMULATE_SHM says
    #[arg(long)]
    pub(crate) emulate: bool,
    /// Replace an array that has the name already; attached processes keep the old one
    #[arg(long)]
    pub(crate) replace: bool,
    /// No progress
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `ndshm unlink`.
#[derive(Debug, Args)]
#[command(after_help = help::CODES, after_long_help = help::UNLINK)]
pub(crate) struct UnlinkArgs {
    /// Names to remove
    #[arg(value_name = "NAME", required = true)]
    pub(crate) locations: Vec<Location>,
    /// Remove the half-painted renderbuffers of these names instead of finished arrays
    #[arg(long)]
    pub(crate) partial: bool,
    /// Look only here [default: what EMULATE_SHM says, else everywhere]
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<BackendChoice>,
    /// Print a JSON list
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `ndshm gc`.
#[derive(Debug, Args)]
#[command(after_help = help::CODES, after_long_help = help::GC)]
pub(crate) struct GcArgs {
    /// Only say what would be removed
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Leave alone what was made or changed within this time: 90, 90s, 5m, 2h, 1d
    #[arg(long, value_name = "DURATION", value_parser = units::duration)]
    pub(crate) older_than: Option<Duration>,
    /// Look only here [default: everywhere]
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<BackendChoice>,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `ndshm doctor`.
#[derive(Debug, Args)]
#[command(after_help = help::CODES, after_long_help = help::DOCTOR)]
pub(crate) struct DoctorArgs {
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Name of the array that a demo makes, unless it is told another.
pub(crate) const DEMO_LOCATION: &str = "ndshm-demo";

/// Arguments of `ndshm demo`.
#[derive(Debug, Args)]
#[command(after_help = help::CODES, after_long_help = help::DEMO)]
pub(crate) struct DemoArgs {
    /// Remove the arrays again at the end; the volume is removed in any case
    #[arg(long)]
    pub(crate) clean: bool,
    /// Name of the array to make; what has the default name already is replaced
    #[arg(value_name = "NAME", default_value = DEMO_LOCATION)]
    pub(crate) name: Location,
    /// Another way to give the name
    #[arg(long, short, value_name = "NAME", conflicts_with = "name", hide_short_help = true)]
    location: Option<Location>,
    /// How many worker processes paint
    #[arg(long, short, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) workers: u16,
    /// Users that paint together: me, users:UID,UID,.. or group:GID; they can read and break what is painted
    #[arg(long, value_name = "WITH", default_value_t)]
    pub(crate) share: SharedWith,
    /// Use files in the emulated directory, whatever EMULATE_SHM says
    #[arg(long)]
    pub(crate) emulate: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
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
    /// Run in the background; return when it listens
    #[arg(long)]
    pub(crate) detach: bool,
    /// End when there was no client for so long [default: 60 in the background, never in the foreground]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) idle: Option<u64>,
    #[command(flatten)]
    pub(crate) socket: SocketArgs,
    /// The process that --detach starts
    #[arg(long, hide = true)]
    pub(crate) background: bool,
}

/// What can be asked of a manager that runs.
#[derive(Debug, Subcommand)]
pub(crate) enum ManagerCommand {
    /// Show what it does
    #[command(after_help = help::CODES, after_long_help = help::MANAGER)]
    Status {
        /// Print a JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        socket: SocketArgs,
    },
    /// End it, which is never necessary: it ends by itself, and is started again when it is missed
    #[command(after_help = help::CODES, after_long_help = help::MANAGER)]
    Stop {
        #[command(flatten)]
        socket: SocketArgs,
    },
}

/// Where the manager listens.
#[derive(Debug, Args)]
pub(crate) struct SocketArgs {
    /// Its socket [default: what NDSHM_MANAGER_SOCKET says, else one in the user's runtime directory]
    #[arg(id = "socket", long = "socket", value_name = "PATH")]
    pub(crate) path: Option<PathBuf>,
}

/// Arguments of the hidden `ndshm worker`, which only [`crate::worker::command`] writes.
#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    /// The volume, as the parent opened it
    pub(crate) source: VolumeUrl,
    /// Which scale of it
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
    fn the_description_of_the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_name_that_cannot_be_a_location_is_a_usage_error() {
        for name in ["", "a/b", "..", ".ndshm-x"] {
            let error = Cli::try_parse_from(["ndshm", "unlink", name]).expect_err(name);
            assert_eq!(error.exit_code(), 2, "{name:?}");
        }
    }

    #[test]
    fn what_has_a_separator_is_a_volume_and_what_has_none_is_a_name() {
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
