//! The destination of a new array: its backend and its name.

use ndarray_shm::{Directory, Location, default_directory, set_emulate_shm};
use ndarray_shm_volume::file_location;

use crate::args::DownloadArgs;
use crate::exit::{Exit, Failure};

/// Returns the directory and the name of the array of a download.
pub(crate) fn of_download(args: &DownloadArgs) -> Result<(Directory, Location), Failure> {
    match (args.location(), &args.file) {
        (Some(location), _) => Ok((backend(args.emulate)?, location.clone())),
        (None, Some(path)) => Ok(file_location(path)?),
        (None, None) => Err(Failure::new(Exit::Usage, "give the NAME of an array, or --file PATH")),
    }
}

/// Returns the backend for the array, and makes it the default of this process.
pub(crate) fn backend(emulate: bool) -> Result<Directory, Failure> {
    if emulate {
        set_emulate_shm(Some(true));
        return Ok(Directory::emulated()?);
    }
    Ok(default_directory()?)
}
