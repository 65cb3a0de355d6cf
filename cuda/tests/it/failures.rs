//! Every call of the driver fails once: an error names the call, nothing leaks, and the next attempt works.

use libtest_mimic::Trial;
use ndarray::{Ix1, array};
use ndarray_shm::counted::Channel;
use ndarray_shm_cuda::{Device, DeviceArray, Error, Result};

use crate::named;
use crate::support::{Actor, Role, descriptors, double, is_real, trials as tests, until};

pub const ROLES: &[(&str, Role)] = named![fail_every_call_of_whole_arrays];

pub fn trials() -> Vec<Trial> {
    if is_real() {
        return Vec::new(); // only the double fails when it is told to
    }
    tests("failures", named![each_call_of_whole_arrays_fails_once_without_a_leak])
}

fn each_call_of_whole_arrays_fails_once_without_a_leak() {
    Actor::start("fail_every_call_of_whole_arrays").join();
}

fn whole_arrays() -> Result<()> {
    let gpu = Device::new(0)?;
    let mut array = DeviceArray::from_host(gpu, &array![1u32, 2, 3])?;
    array.write(&array![4, 5, 6])?;
    let stream = gpu.new_stream()?;
    array.written_on(&stream)?;
    array.wait_on(&stream)?;
    let parcel = array.parcel()?;
    let attached = DeviceArray::<u32, Ix1>::attach(&parcel)?;
    let same = attached.part(1..3)?;
    array.synchronize()?;
    let zeros = DeviceArray::<u32, _>::zeroed(gpu, 3)?;
    assert_eq!(zeros.to_host()?, array![0, 0, 0]);
    assert_eq!(same.to_host()?, array![5, 6]);
    gpu.memory()?;
    gpu.name()?;
    gpu.synchronize()
}

/// Calls that end the life of something. If they fail, it lives on, and the driver is to blame.
const ENDS: &[&str] = &[
    "cuMemUnmap",
    "cuMemRelease",
    "cuMemAddressFree",
    "cuMemFree_v2",
    "cuMemPoolDestroy",
    "cuIpcCloseMemHandle",
    "cuEventDestroy_v2",
    "cuStreamDestroy_v2",
    "cuDevicePrimaryCtxRelease_v2",
];

const KINDS: &[&str] =
    &["physical", "reservation", "mapping", "stream", "registered", "allocation", "opened", "pool", "pooled", "host"];

/// Runs a scenario with each call of the driver failing, at each of its occurrences. Returns how many failures were
/// seen.
pub fn fail_every_call(scenario: impl Fn() -> Result<()>) -> u64 {
    fail_every_call_but(&[], scenario)
}

/// Does that, but allows that something lives on after a failure of some more calls.
pub fn fail_every_call_but(ends: &[&str], scenario: impl Fn() -> Result<()>) -> u64 {
    const CODE: u32 = 999; // CUDA_ERROR_UNKNOWN
    scenario().expect("without failures");
    let live = || KINDS.iter().map(|kind| (*kind, double::live(kind))).collect::<Vec<_>>();
    let mut seen = 0;
    for call in double::call_names() {
        let before = double::calls(&call);
        scenario().expect("without failures");
        for n in 1..=double::calls(&call) - before {
            let (objects, files) = (live(), descriptors());
            double::fail(&call, n, CODE);
            let answer = scenario();
            double::fail(&call, 0, 0);
            match answer {
                Err(Error::Driver { call: named, code: CODE, .. }) => {
                    assert_eq!(named, call);
                    seen += 1;
                }
                Err(error) => panic!("{call} failed at its call {n}, and the error is: {error}"),
                // A failure in `Drop`, or one after which there is another way.
                Ok(()) => {}
            }
            if ![ENDS, ends].concat().contains(&&*call) {
                // Work that a stream still has keeps what it uses.
                until(&format!("{objects:?}, after {call} failed at its call {n}"), || live() == objects);
                until(&format!("the descriptors, after {call} failed at its call {n}"), || descriptors() == files);
            }
            double::assert_no_violation();
            scenario().unwrap_or_else(|error| panic!("after {call} failed at its call {n}: {error}"));
        }
    }
    assert!(double::live("event") < 64, "{} events", double::live("event"));
    seen
}

fn fail_every_call_of_whole_arrays(_: Channel) {
    let seen = fail_every_call(whole_arrays);
    println!("{seen} failures of the driver were reported");
    assert!(seen > 50, "only {seen} failures were reported");
}
