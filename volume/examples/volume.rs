//! A region of a chunked volume is painted into shared memory by four threads, changed, and written back.
//!
//! ```sh
//! cargo run --release -p ndarray-shm-volume --example volume
//! ```

use ndarray::Ix3;
use ndarray_shm::{DType, SharedArray, unlink};
use ndarray_shm_volume::demo::{self, DemoSpec};
use ndarray_shm_volume::{
    DownloadOptions, UploadOptions, VolumeOptions, VolumeUrl, Workers, download, download_to_shared_memory,
    open_volume, upload_from_shared_memory,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = format!("volume-{}", std::process::id());
    let path = std::env::temp_dir().join(format!("ndshm-volume-example-{}", std::process::id()));
    let result = run(&name, &path);
    std::fs::remove_dir_all(&path)?;
    unlink(&name)?;
    result
}

fn run(name: &str, path: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    demo::write_volume(path, &DemoSpec::new(&[64, 64, 64], &[16, 32, 32], DType::U16))?;
    let url = VolumeUrl::local(path);

    // Down: every chunk that the region touches is decoded straight to its place.
    let volume = open_volume(&url)?;
    let bbox = volume.meta().parse_bbox("16:48,0:64,0:32")?;
    let options = DownloadOptions::new().workers(Workers::Threads(4));
    let done = download_to_shared_memory(&*volume, &bbox, &name.parse()?, &options)?;
    println!("{} chunks, {} bytes, shape {:?}", done.chunks, done.bytes, done.shape);

    // Any process opens it by its name, type and shape.
    let array = SharedArray::<u16, Ix3>::open(name, (32, 64, 32))?;
    array.write()?.mapv_inplace(|element| element / 2);

    // And up again: whole stored objects, each replaced in one step.
    upload_from_shared_memory(
        &*VolumeOptions::new().open_writable(&url)?,
        &bbox,
        &name.parse()?,
        &UploadOptions::new(),
    )?;
    let again = download::<u16, Ix3>(&*volume, &bbox, &DownloadOptions::new())?;
    assert_eq!(again.read()?.view(), array.read()?.view());
    println!("what was uploaded is what is downloaded again");
    Ok(())
}
