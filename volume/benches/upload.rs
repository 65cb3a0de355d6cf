//! Uploads of one array into a new local volume, beside the lower bound: writing files of the same sizes one after the
//! other.
//!
//! The volume is in /dev/shm, so that no disk is measured.
//! `cargo bench -p ndarray-shm-volume --bench upload [ROUNDS] [THREADS]`

#![allow(clippy::cast_precision_loss)] // rates are printed with few digits

use std::error::Error;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use ndarray::{Ix3, ShapeBuilder as _};
use ndarray_shm::{DType, Location, Order, SharedArray, unlink};
use ndarray_shm_volume::{
    Alignment, Bbox, Encoding, NewVolume, UploadOptions, VolumeFormat, VolumeUrl, create_volume,
    upload_from_shared_memory,
};

const SHAPE: [usize; 3] = [256, 512, 512];
const BYTES: usize = SHAPE[0] * SHAPE[1] * SHAPE[2];

fn main() -> Result<(), Box<dyn Error>> {
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse::<usize>().ok());
    let (rounds, threads) = (numbers.next().unwrap_or(20), numbers.next().unwrap_or(0));
    let directory = tempfile::tempdir_in("/dev/shm")?;
    for order in [Order::C, Order::F] {
        let location: Location = format!("bench-upload-{}", std::process::id()).parse()?;
        let shape = Ix3(SHAPE[0], SHAPE[1], SHAPE[2]).set_f(order == Order::F);
        let array = SharedArray::<u8, Ix3>::create_with(location.clone(), shape, |mut to| {
            // Blocks of labels with a little noise: compresses well, but not trivially.
            let element = |(x, y, z): (usize, usize, usize)| (x / 16 * 7 + y / 16 * 5 + z / 16) ^ (x * y * z % 61 / 59);
            to.indexed_iter_mut().for_each(|(at, to)| *to = element(at).to_le_bytes()[0]);
        })?;
        for (name, encoding) in [("raw", Encoding::Raw), ("gzip", Encoding::Gzip)] {
            let (mut files, mut whole, mut changed) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..rounds {
                files.push(write_files(&directory.path().join("files"))?);
                let path = directory.path().join("volume");
                whole.push(upload(&path, &location, order, encoding, threads, false)?);
                changed.push(upload(&path, &location, order, encoding, threads, true)?);
            }
            let rate = |times: &mut Vec<Duration>| BYTES as f64 / 1e6 / median(times).as_secs_f64();
            println!(
                "64 MiB, chunks of 64^3, array in {order} order, {name}: {:.0} MB/s; all but its border, changed: {:.0} MB/s; files \
                 of these sizes alone, one thread: {:.0} MB/s (medians of {rounds})",
                rate(&mut whole),
                rate(&mut changed),
                rate(&mut files),
            );
        }
        drop(array);
        unlink(&location)?;
    }
    Ok(())
}

fn write_files(directory: &Path) -> Result<Duration, Box<dyn Error>> {
    fs::create_dir(directory)?;
    let chunk = vec![7_u8; 64 * 64 * 64];
    let start = Instant::now();
    for number in 0..BYTES / chunk.len() {
        fs::write(directory.join(number.to_string()), &chunk)?;
    }
    let took = start.elapsed();
    fs::remove_dir_all(directory)?;
    Ok(took)
}

/// Uploads into a new volume. With `change`, uploads a region that cuts through all objects at the border, so that
/// those are changed.
fn upload(
    path: &Path,
    location: &Location,
    order: Order,
    encoding: Encoding,
    threads: usize,
    change: bool,
) -> Result<Duration, Box<dyn Error>> {
    let mut new = NewVolume::new(VolumeFormat::Zarr, &SHAPE.map(|length| length as u64), &[64; 3], DType::U8);
    new.encoding = encoding;
    let volume = create_volume(VolumeUrl::local(path), &new)?;
    let all = volume.meta().domain();
    let mut options = UploadOptions::new().order(order).workers(threads);
    if change {
        let inner = all.ranges().iter().map(|range| range.start + 1..range.end - 1).collect();
        options = options.alignment(Alignment::ReadModifyWrite).cutout(Bbox::new(inner)?);
    }
    let start = Instant::now();
    upload_from_shared_memory(&*volume, &all, location, &options)?;
    let took = start.elapsed();
    fs::remove_dir_all(path)?;
    Ok(took)
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}
