//! Downloads of an uncompressed volume, alternately with and without a pool.
//!
//! The volume is in /dev/shm, so that no disk is measured.
//! `cargo bench -p ndarray-shm-volume --bench pool [ROUNDS] [THREADS]`

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use ndarray::Ix3;
use ndarray_shm::pool::PoolOptions;
use ndarray_shm::{DType, Pool, unlink};
use ndarray_shm_volume::demo::{self, Codec, DemoSpec};
use ndarray_shm_volume::{
    Bbox, ChunkSource, DownloadOptions, VolumeUrl, Workers, download_to_shared_memory, open_volume,
};

fn main() -> Result<(), Box<dyn Error>> {
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse::<usize>().ok());
    let (rounds, threads) = (numbers.next().unwrap_or(100), numbers.next().unwrap_or(0));
    let directory = tempfile::tempdir_in("/dev/shm")?;
    for edge in [64, 128] {
        let path = directory.path().join(format!("volume-{edge}"));
        let spec = DemoSpec::new(&[256, 512, 512], &[edge; 3], DType::U8).codec(Codec::Uncompressed).complete(true);
        demo::write_volume(&path, &spec)?;
        let source = open_volume(VolumeUrl::local(&path))?;
        let pool = PoolOptions::new().create()?;
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            with.push(download(&*source, threads, Some(&pool))?);
            without.push(download(&*source, threads, None)?);
        }
        let (with_median, without_median) = (median(&mut with), median(&mut without));
        println!(
            "64 MiB in chunks of {edge}^3, {rounds} downloads each: {with_median:?} with a pool, {without_median:?} without: \
             {:.2} times; all of them: {:?}, {:?}",
            without_median.as_secs_f64() / with_median.as_secs_f64(),
            with.iter().sum::<Duration>(),
            without.iter().sum::<Duration>(),
        );
    }
    Ok(())
}

/// Returns the time to download an array, open it, read an element and free it.
fn download(source: &dyn ChunkSource, threads: usize, pool: Option<&Pool>) -> Result<Duration, Box<dyn Error>> {
    let location = "bench-pool-download".parse()?;
    let options = DownloadOptions::new().workers(Workers::Threads(threads));
    let options = match pool {
        Some(pool) => options.pool(pool),
        None => options,
    };
    let start = Instant::now();
    let done = download_to_shared_memory(source, &Bbox::whole(&source.meta().shape), &location, &options)?;
    let array = done.open::<u8, Ix3>()?;
    black_box(array.read()?[[100, 200, 300]]);
    drop((array, done));
    if pool.is_none() {
        unlink(&location)?;
    }
    Ok(start.elapsed())
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}
