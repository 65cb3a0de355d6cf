//! The hidden command `ndshm worker`, which `download --processes` runs in its worker processes.
//!
//! A worker gets the volume, name and directory from its parent. The parent holds the write end of the worker's
//! standard input. When that is closed, because the parent stops or is dead, the worker gives up its chunk and ends.

use ndarray_shm::Directory;
use ndarray_shm_volume::{VolumeOptions, paint_as_worker};

use crate::args::WorkerArgs;
use crate::exit::{Exit, Failure};
use crate::interrupt;

/// Runs `ndshm worker`: paints until no chunk is left, the parent is gone or a signal arrives.
pub(crate) fn run(args: &WorkerArgs) -> Result<Exit, Failure> {
    let stop = interrupt::flag()?;
    stop.stop_when_stdin_ends();
    let source = VolumeOptions::new().mip(args.mip).open(&args.source)?;
    let backend = Directory::new(args.backend.as_str(), &args.directory);
    match paint_as_worker(&*source, backend, &args.location, &stop) {
        Ok(_painted) => Ok(Exit::Done),
        // The process that stopped this one reports why.
        Err(_) if stop.is_stopped() => Ok(Exit::Interrupted),
        Err(error) => Err(Failure::from(error).while_doing("a worker process failed")),
    }
}
