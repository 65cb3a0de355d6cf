//! Worker processes: the hidden command `ndshm worker`, and how `download --processes` starts it.
//!
//! A worker gets the volume, name and directory from its parent. The parent holds the write end of the worker's
//! standard input. When that is closed, because the parent stops or is dead, the worker gives up its chunk and ends.

use std::path::Path;
use std::process::Command;

use ndarray_shm::{Directory, Location};
use ndarray_shm_volume::{VolumeOptions, VolumeUrl, paint_as_worker};

use crate::args::WorkerArgs;
use crate::exit::{Exit, Failure};
use crate::interrupt;

/// Returns the command that runs this program as a worker.
pub(crate) fn command(
    program: &Path,
    source: &VolumeUrl,
    mip: usize,
    backend: &Directory,
    location: &Location,
) -> Command {
    let mut command = Command::new(program);
    command
        .arg("worker")
        .arg("--mip")
        .arg(mip.to_string())
        .arg("--location")
        .arg(location.as_str())
        .arg("--backend")
        .arg(backend.name())
        .arg("--directory")
        .arg(backend.path())
        .arg("--")
        .arg(source.to_argument());
    command
}

/// Runs `ndshm worker`: paints until no chunk is left, the parent is gone or a signal arrives.
pub(crate) fn run(args: &WorkerArgs) -> Result<Exit, Failure> {
    let stop = interrupt::flag()?;
    stop.stop_when_stdin_ends();
    let source = VolumeOptions::new().mip(args.mip).open(&args.source)?;
    let backend: Directory = Directory::new(args.backend.as_str(), &args.directory);
    match paint_as_worker(&*source, backend, &args.location, &stop) {
        Ok(_painted) => Ok(Exit::Done),
        // The process that stopped this one reports why.
        Err(_) if stop.is_stopped() => Ok(Exit::Interrupted),
        Err(error) => Err(Failure::from(error).while_doing("a worker process failed")),
    }
}
