//! The cost of fetching and decoding a chunk of a Zarr volume with each codec, beside zarrs.
//!
//! The volume is in /dev/shm, so that no disk is measured; one thread.
//! `cargo bench -p ndarray-shm-volume --bench zarr [ROUNDS]`

use std::error::Error;
use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ndarray_shm::DType;
use ndarray_shm_volume::demo::{self, Codec, DemoSpec, Pattern};
use ndarray_shm_volume::{ChunkSource, Fetched, Scratch, VolumeUrl, open_volume};
use zarrs::array::{Array, ArraySubset, CodecOptions};
use zarrs::filesystem::FilesystemStore;

#[allow(clippy::cast_precision_loss)] // rates are printed with few digits
fn main() -> Result<(), Box<dyn Error>> {
    let rounds = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(7);
    let directory = tempfile::tempdir_in("/dev/shm")?;
    println!("GB/s of elements, one thread, median of {rounds}:");
    println!("{:<28} {:>8} {:>8} {:>8} {:>8}", "", "fetch", "decode", "both", "zarrs");
    for (pattern, dtype) in [(Pattern::Smooth, DType::U8), (Pattern::Labels, DType::U32)] {
        for codec in [Codec::Uncompressed, Codec::Gzip, Codec::Zstd, Codec::Blosc] {
            for sharded in [false, true] {
                let shape = [192, 256, 256];
                let spec = DemoSpec::new(&shape, &[64, 64, 64], dtype).pattern(pattern).codec(codec).complete(true);
                let spec = if sharded { spec.shards(&[192, 256, 256]) } else { spec };
                let path = directory.path().join("volume");
                demo::write_volume(&path, &spec)?;
                let source = open_volume(VolumeUrl::local(&path))?;
                let array = Array::open(Arc::new(FilesystemStore::new(&path)?), "/")?;
                let bytes = source.meta().domain().shape().iter().product::<usize>() * dtype.size();
                let mut times: [Vec<Duration>; 4] = Default::default();
                for _ in 0..rounds {
                    // Alternately, so that a disturbance affects all of them.
                    let [fetch, decode] = apart(&*source)?;
                    let both = together(&*source)?;
                    let zarrs = with_zarrs(&array, &*source)?;
                    times.iter_mut().zip([fetch, decode, both, zarrs]).for_each(|(times, time)| times.push(time));
                }
                let name = format!("{pattern:?} {dtype} {codec:?}{}", if sharded { " sharded" } else { "" });
                print!("{name:<28}");
                for times in &mut times {
                    times.sort_unstable();
                    print!(" {:>8.2}", bytes as f64 / times[times.len() / 2].as_secs_f64() / 1e9);
                }
                println!();
                std::fs::remove_dir_all(&path)?;
            }
        }
    }
    Ok(())
}

fn apart(source: &dyn ChunkSource) -> Result<[Duration; 2], Box<dyn Error>> {
    let mut times = [Duration::ZERO; 2];
    let mut scratch = Scratch::new();
    for region in source.meta().chunks(&source.meta().domain()) {
        let start = Instant::now();
        let fetched: Fetched = source.fetch(&region)?;
        let between = Instant::now();
        source.decode(&region, fetched, &mut scratch)?;
        times[0] += between - start;
        times[1] += between.elapsed();
    }
    Ok(times)
}

fn together(source: &dyn ChunkSource) -> Result<Duration, Box<dyn Error>> {
    let mut scratch = Scratch::new();
    let start = Instant::now();
    for region in source.meta().chunks(&source.meta().domain()) {
        source.read(&region, &mut scratch)?;
    }
    Ok(start.elapsed())
}

fn with_zarrs(array: &Array<FilesystemStore>, source: &dyn ChunkSource) -> Result<Duration, Box<dyn Error>> {
    use zarrs::array::{ArrayShardedReadableExt as _, ArrayShardedReadableExtCache};

    let options = CodecOptions::default().with_concurrent_target(1);
    let cache = ArrayShardedReadableExtCache::new(array);
    let start = Instant::now();
    for region in source.meta().chunks(&source.meta().domain()) {
        let region: Vec<Range<u64>> =
            region.iter().map(|range| range.start.unsigned_abs()..range.end.unsigned_abs()).collect();
        let region = ArraySubset::new_with_ranges(&region);
        let bytes: zarrs::array::ArrayBytes<'static> =
            array.retrieve_array_subset_sharded_opt(&cache, &region, &options)?;
        black_box(bytes);
    }
    Ok(start.elapsed())
}
