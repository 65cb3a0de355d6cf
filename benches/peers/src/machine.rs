//! The yardsticks, which use no library, and the tools that all cases share.

use std::hint::black_box;
use std::time::Instant;

use memmap2::MmapMut;
use rustix::mm::{Advice, madvise};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::json;

use crate::Failable;

/// The source of all copies: numbers in warm private memory on huge pages, as in numpy's large arrays.
pub struct Source {
    map: MmapMut,
    bytes: usize,
    threads: usize,
}

impl Source {
    pub fn new(bytes: usize, threads: usize) -> Failable<Self> {
        let mut map = private(bytes.max(size_of::<f32>()), true)?;
        // SAFETY: every bit pattern is a float.
        let numbers = unsafe { map.align_to_mut::<f32>().1 };
        numbers.iter_mut().zip((0..1000_u16).cycle()).for_each(|(to, number)| *to = number.into());
        Ok(Self { map, bytes, threads })
    }

    pub fn bytes(&self) -> &[u8] {
        &self.map[..self.bytes]
    }

    /// Copies the source to `target`, with the requested number of threads.
    pub fn copy_to(&self, target: &mut [u8]) {
        copy(self.bytes(), target, self.threads);
    }
}

fn copy(source: &[u8], target: &mut [u8], threads: usize) {
    if threads < 2 {
        return target.copy_from_slice(source);
    }
    let part = source.len().div_ceil(threads);
    std::thread::scope(|scope| {
        for (from, to) in source.chunks(part).zip(target.chunks_mut(part)) {
            scope.spawn(|| to.copy_from_slice(from));
        }
    });
}

/// Adds up floats at the speed of the memory. Like torch, it needs the processor's wide registers for that.
pub fn sum(values: &[f32]) -> f32 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor supports the instructions of the function, as was just checked.
        return unsafe { sum_wide(values) };
    }
    sum_in_lanes(values)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_wide(values: &[f32]) -> f32 {
    sum_in_lanes(values)
}

#[inline(always)]
fn sum_in_lanes(values: &[f32]) -> f32 {
    const LANES: usize = 64;
    let mut sums = [0.0_f32; LANES];
    let (whole, rest) = values.split_at(values.len() / LANES * LANES);
    for part in whole.chunks_exact(LANES) {
        for (sum, value) in sums.iter_mut().zip(part) {
            *sum += value;
        }
    }
    black_box(sums.iter().sum::<f32>() + rest.iter().sum::<f32>())
}

pub fn floats(bytes: &[u8]) -> &[f32] {
    // SAFETY: every bit pattern is a float.
    unsafe { bytes.align_to::<f32>().1 }
}

/// Pins this process to the given CPUs.
pub fn pin(cpus: &[usize]) -> Failable<()> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    Ok(sched_setaffinity(None, &set)?)
}

fn private(bytes: usize, huge: bool) -> Failable<MmapMut> {
    let mut map = MmapMut::map_anon(bytes)?;
    let advice = if huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
    // SAFETY: this function owns the mapping, and the advice changes no byte.
    unsafe { madvise(map.as_mut_ptr().cast(), bytes, advice)? };
    map.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    Ok(map)
}

/// Answers `touch` (makes the host of a virtual machine return memory that it took back; its time is not used), `copy`
/// (between warm private buffers) and `read` (of a warm private buffer).
pub fn serve() -> Failable<()> {
    // The buffers stay warm from one line to the next.
    let mut target: Option<(Source, MmapMut)> = None;
    crate::serve(|words| {
        let mut begin = Instant::now();
        match words {
            ["touch", kind, bytes] => drop(private(bytes.parse()?, *kind == "huge")?),
            ["copy", bytes, threads] => {
                let (bytes, threads) = (bytes.parse()?, threads.parse()?);
                if target.as_ref().is_none_or(|(source, _)| source.bytes != bytes) {
                    target = Some((Source::new(bytes, threads)?, private(bytes, true)?));
                }
                let (source, target) = target.as_mut().ok_or("made above")?;
                source.threads = threads;
                begin = Instant::now();
                source.copy_to(target);
            }
            ["read", _] => {
                let (_, target) = target.as_ref().ok_or("copy comes first")?;
                begin = Instant::now();
                sum(floats(target));
            }
            ["forget"] => target = None,
            _ => return Err("touch KIND BYTES, copy BYTES THREADS, read BYTES or forget".into()),
        }
        Ok(json!({"seconds": begin.elapsed().as_secs_f64()}))
    })
}
