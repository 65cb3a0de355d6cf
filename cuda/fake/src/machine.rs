//! The machine that the environment describes, from `cuInit` on.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cudarc::driver::sys::CUresult::{
    CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NO_DEVICE, CUDA_ERROR_NOT_INITIALIZED,
};

use crate::calls::{Answer, Out, exported};

exported! {
    cuInit(flags: c_uint) Unforked => init;
    cuDriverGetVersion(version: Out<c_int>) Always => driver_version;
}

/// Size of a GPU's memory unless `FAKE_CUDA_MEMORY` says otherwise.
const MEMORY: u64 = 64 << 30;

/// What the environment says at `cuInit`.
pub(crate) struct Machine {
    /// The process that called `cuInit`.
    pid: u32,
    /// `FAKE_CUDA_TAG`: processes with one tag share GPUs.
    pub(crate) tag: String,
    /// The number of each visible GPU, by ordinal: `FAKE_CUDA_DEVICES` of them, selected and permuted by
    /// `CUDA_VISIBLE_DEVICES`.
    pub(crate) gpus: Vec<u32>,
    /// `FAKE_CUDA_MEMORY`: bytes of each GPU.
    pub(crate) memory: u64,
    /// Whether `FAKE_CUDA_MEMORY` is set, so that allocations are compared with it.
    pub(crate) limited: bool,
    /// `FAKE_CUDA_DELAY_US`: how long work on a stream waits when its turn has come.
    pub(crate) delay: Duration,
    /// `FAKE_CUDA_PEER`: whether GPUs have access to each other; 0 is no.
    peer: bool,
    /// `FAKE_CUDA_LACKS`: numbers of device attributes, separated by commas, that are 0.
    lacks: Vec<c_uint>,
    /// `FAKE_CUDA_CAPTURE`: whether another thread of the program captures a stream all the time; 1 is yes.
    pub(crate) captures: bool,
}

static MACHINE: OnceLock<Machine> = OnceLock::new();

/// The machine, after `cuInit`.
pub(crate) fn machine() -> Answer<&'static Machine> {
    MACHINE.get().ok_or(CUDA_ERROR_NOT_INITIALIZED)
}

/// Whether this process is a forked child of the one that called `cuInit`.
pub(crate) fn forked() -> bool {
    MACHINE.get().is_some_and(|machine| machine.pid != std::process::id())
}

/// The tag, before `cuInit` too.
pub(crate) fn tag() -> String {
    MACHINE.get().map_or_else(|| variable("FAKE_CUDA_TAG").unwrap_or_else(|| "default".into()), |m| m.tag.clone())
}

impl Machine {
    /// The GPU of an ordinal.
    pub(crate) fn gpu(&self, ordinal: c_int) -> Answer<u32> {
        let index = usize::try_from(ordinal).ok();
        index.and_then(|index| self.gpus.get(index)).copied().ok_or(CUDA_ERROR_INVALID_DEVICE)
    }

    /// The ordinal of a GPU, if it is visible in this process.
    pub(crate) fn ordinal(&self, gpu: u32) -> Answer<c_int> {
        let index = self.gpus.iter().position(|&visible| visible == gpu);
        index.and_then(|index| c_int::try_from(index).ok()).ok_or(CUDA_ERROR_INVALID_DEVICE)
    }

    /// Whether a GPU has access to memory of another one, or of its own.
    pub(crate) fn peers(&self, one: u32, other: u32) -> bool {
        one == other || self.peer
    }

    /// Whether GPUs have what the device attribute of this number says.
    pub(crate) fn has(&self, attribute: c_uint) -> bool {
        !self.lacks.contains(&attribute)
    }
}

/// The name of a GPU that all processes agree on.
pub(crate) fn uuid(gpu: u32) -> [u8; 16] {
    let mut uuid = *b"fake CUDA \x40\x80\0\0\0\0";
    uuid[12..].copy_from_slice(&gpu.to_be_bytes());
    uuid
}

fn init(flags: c_uint) -> Answer {
    if flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if MACHINE.get().is_some() {
        return Ok(());
    }
    let memory = number("FAKE_CUDA_MEMORY")?;
    let machine = Machine {
        pid: std::process::id(),
        tag: tag(),
        gpus: visible(u32::try_from(number("FAKE_CUDA_DEVICES")?.unwrap_or(1)).or(Err(CUDA_ERROR_INVALID_VALUE))?),
        memory: memory.unwrap_or(MEMORY),
        limited: memory.is_some(),
        delay: Duration::from_micros(number("FAKE_CUDA_DELAY_US")?.unwrap_or(0)),
        peer: number("FAKE_CUDA_PEER")? != Some(0),
        lacks: lacks()?,
        captures: number("FAKE_CUDA_CAPTURE")? == Some(1),
    };
    if machine.gpus.is_empty() {
        return Err(CUDA_ERROR_NO_DEVICE);
    }
    MACHINE.get_or_init(|| machine);
    if number("FAKE_CUDA_STRICT_EXIT")? == Some(1) {
        // SAFETY: the function has no requirements. A failure means that calls at the exit are not seen.
        let _ = unsafe { libc::atexit(end) };
    }
    Ok(())
}

/// Whether the process exits, and the driver's own exit function has begun.
static ENDED: AtomicBool = AtomicBool::new(false);

/// Ends the driver of an exiting process, slowly enough to see calls of other threads.
extern "C" fn end() {
    if !forked() {
        ENDED.store(true, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(30));
    }
}

/// Aborts the process if its driver has ended: with `FAKE_CUDA_STRICT_EXIT=1`, calls from then on are not allowed.
pub(crate) fn must_not_have_ended(call: &str) {
    if ENDED.load(Ordering::SeqCst) {
        eprintln!("{call} was called while the process exited");
        std::process::abort();
    }
}

fn driver_version(version: Out<c_int>) -> Answer {
    version.give(12080)
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn number(name: &str) -> Answer<Option<u64>> {
    variable(name).map(|text| text.trim().parse()).transpose().or(Err(CUDA_ERROR_INVALID_VALUE))
}

fn lacks() -> Answer<Vec<c_uint>> {
    let list = variable("FAKE_CUDA_LACKS").unwrap_or_default();
    let numbers = list.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    numbers.map(str::parse).collect::<Result<_, _>>().or(Err(CUDA_ERROR_INVALID_VALUE))
}

/// The visible GPUs. As in the driver, the first invalid entry of `CUDA_VISIBLE_DEVICES` ends the list, and a repeated
/// one empties it.
fn visible(count: u32) -> Vec<u32> {
    let Some(list) = variable("CUDA_VISIBLE_DEVICES") else { return (0..count).collect() };
    let mut gpus = Vec::new();
    for entry in list.split(',').map(str::trim) {
        let gpu = match entry.strip_prefix("GPU-") {
            Some(start) if !start.is_empty() => (0..count).find(|&gpu| uuid_text(gpu).starts_with(start)),
            Some(_) => None,
            None => entry.parse().ok().filter(|&gpu| gpu < count),
        };
        match gpu {
            Some(gpu) if gpus.contains(&gpu) => return Vec::new(),
            Some(gpu) => gpus.push(gpu),
            None => break,
        }
    }
    gpus
}

/// A UUID as text, in groups.
fn uuid_text(gpu: u32) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    for (index, byte) in uuid(gpu).into_iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}"); // a string takes everything
    }
    text
}
