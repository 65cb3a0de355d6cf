//! Downloads a volume into shared memory with three worker processes, and uploads a part of it that was changed.
//!
//! ```sh
//! cargo run -p ndarray-shm-volume --example volume
//! ```

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;

use ndarray_shm::backend::default_directory;
use ndarray_shm::ndarray::{Ix3, s};
use ndarray_shm::{DType, Location};
use ndarray_shm_volume::demo::{self, DemoSpec};
use ndarray_shm_volume::{
    DownloadOptions, ProcessWorkers, StopFlag, UploadOptions, Workers, download, download_to_shared_memory,
    open_volume, open_writable_volume, paint_as_worker, upload_from_shared_memory,
};

fn main() -> Result<(), Box<dyn Error>> {
    if let (Some(directory), Some(name)) = (env::args().nth(1), env::args().nth(2)) {
        return work(Path::new(&directory), &name.parse()?);
    }

    // A demo volume: Zarr version 3 in chunks of 32 x 32 x 32 elements. A real one may be behind a URL.
    let name = format!("volume-example-{}", std::process::id());
    let directory = env::temp_dir().join(&name);
    let spec = DemoSpec::new(&[64, 128, 128], &[32, 32, 32], DType::U16);
    demo::write_volume(&directory, &spec)?;
    let result = change(&directory, &name.parse()?, &spec);
    fs::remove_dir_all(&directory)?;
    result
}

fn change(directory: &Path, location: &Location, spec: &DemoSpec) -> Result<(), Box<dyn Error>> {
    let volume = open_writable_volume(directory)?;
    let everything = volume.meta().domain();

    let program = env::current_exe()?;
    let (volume_directory, name) = (directory.to_owned(), location.to_string());
    let workers = ProcessWorkers::new(3, move || {
        let mut command = Command::new(&program);
        command.arg(&volume_directory).arg(&name);
        command
    });
    let options = DownloadOptions::new().workers(Workers::Processes(workers));
    let done = download_to_shared_memory(&*volume, &everything, location, &options)?;
    println!("{} chunks were painted into {location}", done.painted);

    // Now it is an array like any other. Change it in place, and upload the chunk around the change.
    let array = done.open::<u16, Ix3>()?;
    assert_eq!(array.read()?.view().into_dyn(), spec.expected::<u16>(&everything)?);
    array.write()?.slice_mut(s![0..32, 0..32, 0..32]).fill(42);
    let changed = volume.meta().parse_bbox(":32,:32,:32")?; // an empty side is the volume's bound
    let uploaded =
        upload_from_shared_memory(&*volume, &everything, location, &UploadOptions::new().cutout(changed.clone()));
    array.unlink()?;
    println!("{} chunk was stored again", uploaded?.stored);

    let stored = download::<u16, Ix3>(&*volume, &changed, &DownloadOptions::new())?;
    assert!(stored.read()?.iter().all(|element| *element == 42));
    Ok(())
}

/// The body of each worker process.
fn work(directory: &Path, location: &Location) -> Result<(), Box<dyn Error>> {
    let stop = StopFlag::new();
    stop.stop_when_stdin_ends(); // the parent closes that pipe to dismiss its workers
    let volume = open_volume(directory)?;
    paint_as_worker(&*volume, default_directory()?, location, &stop)?;
    Ok(())
}
