//! Where a command makes its array: in which backend, and under which name.

use ndarray_shm::{Directory, Location, default_backend, set_emulate_shm};
use ndarray_shm_volume::file_location;

use crate::cli::DownloadArgs;
use crate::exit::{Exit, Failure};

/// Returns where the array of a download is to be, and what it is to be called there.
pub(crate) fn of_download(args: &DownloadArgs) -> Result<(Directory, Location), Failure> {
    match (args.location(), &args.file) {
        (Some(location), _) => Ok((backend(args.emulate)?, location.clone())),
        (None, Some(path)) => Ok(file_location(path)?),
        (None, None) => Err(Failure::new(Exit::Usage, "say where to: the NAME of an array, or --file PATH")),
    }
}

/// Returns the backend to paint into, and makes everything else in this process use it too.
pub(crate) fn backend(emulate: bool) -> Result<Directory, Failure> {
    if emulate {
        set_emulate_shm(Some(true));
        return Ok(Directory::emulated()?);
    }
    Ok(default_backend()?)
}
