//! Several GPUs, which processes see under different numbers, and forked children. With the driver of a machine, these
//! need two GPUs.

use libtest_mimic::Trial;
use ndarray::{Ix1, array};
use ndarray_shm::counted::Channel;
use ndarray_shm_cuda::{Device, DeviceArray, Error, KIND};

use crate::named;
use crate::support::{Actor, LIMIT, Role, is_real, trials as tests};

pub const ROLES: &[(&str, Role)] = named![attach_and_tell_the_gpu, make_on_both_gpus, refused_peer, forked];

pub fn trials() -> Vec<Trial> {
    if is_real() {
        return tests("gpus", named![forked_child_gets_an_error_and_frees_nothing]);
    }
    tests(
        "gpus",
        named![
            gpu_is_found_by_its_uuid_when_numbers_differ,
            hidden_gpu_is_an_error_that_names_it,
            gpu_without_peer_access_is_an_error,
            forked_child_gets_an_error_and_frees_nothing,
        ],
    )
}

/// Two GPUs, in an order.
fn machine(visible: &str) -> [(&str, &str); 2] {
    [("FAKE_CUDA_DEVICES", "2"), ("CUDA_VISIBLE_DEVICES", visible)]
}

/// Sends an array from each GPU that it sees, with its number there.
fn make_on_both_gpus(channel: Channel) {
    for ordinal in 0..2 {
        let gpu = Device::new(ordinal).expect("a GPU");
        let array = DeviceArray::from_host(gpu, &array![ordinal as u64, 7]).expect("an array");
        channel.send(&gpu.uuid().to_string(), &[&array.parcel().expect("a parcel")]).expect("the test");
    }
    let _ = channel.receive::<String>();
}

/// Attaches arrays, and answers with number and UUID of their GPU and the first element.
fn attach_and_tell_the_gpu(channel: Channel) {
    while let Ok(mut received) = channel.receive::<String>() {
        let parcel = received.arrays.remove(0).foreign(KIND).expect("a parcel");
        let answer = match DeviceArray::<u64, Ix1>::attach(&parcel) {
            Ok(array) => {
                let (gpu, first) = (array.device(), array.to_host().expect("a copy")[0]);
                Ok((gpu.ordinal(), gpu.uuid().to_string(), first))
            }
            Err(Error::DeviceNotVisible { device }) => Err(device.to_string()),
            Err(error) => panic!("{error}"),
        };
        channel.send(&answer, &[]).expect("the test");
    }
}

type Answer = Result<(usize, String, u64), String>;

fn gpu_is_found_by_its_uuid_when_numbers_differ() {
    let maker = Actor::start_with("make_on_both_gpus", &machine("0,1"));
    let reader = Actor::start_with("attach_and_tell_the_gpu", &machine("1,0"));
    for ordinal in 0..2 {
        let mut received = maker.channel.receive_timeout::<String>(LIMIT).expect("an array");
        let parcel = received.arrays.remove(0).foreign(KIND).expect("a parcel");
        reader.channel.send(&"attach", &[&parcel]).expect("a reader");
        let answer: Answer = reader.hear();
        assert_eq!(answer, Ok((1 - ordinal, received.message, ordinal as u64)));
    }
}

fn hidden_gpu_is_an_error_that_names_it() {
    let maker = Actor::start_with("make_on_both_gpus", &machine("0,1"));
    let reader = Actor::start_with("attach_and_tell_the_gpu", &machine("0"));
    let _first = maker.channel.receive_timeout::<String>(LIMIT).expect("an array");
    let mut second = maker.channel.receive_timeout::<String>(LIMIT).expect("an array");
    let parcel = second.arrays.remove(0).foreign(KIND).expect("a parcel");
    reader.channel.send(&"attach", &[&parcel]).expect("a reader");
    assert_eq!(reader.hear::<Answer>(), Err(second.message));
}

fn refused_peer(_: Channel) {
    let (first, second) = (Device::new(0).expect("a GPU"), Device::new(1).expect("a GPU"));
    let array = DeviceArray::<u8, _>::zeroed(first, 10).expect("an array");
    let refused = array.allow_access(second).expect_err("the GPUs are apart");
    assert!(matches!(refused, Error::NoPeerAccess { .. }), "{refused}");
    array.allow_access(first).expect("its own");
    assert!(matches!(Device::new(2), Err(Error::NoDevice { ordinal: 2, count: 2 })));
}

fn gpu_without_peer_access_is_an_error() {
    let [devices, visible] = machine("0,1");
    Actor::start_with("refused_peer", &[devices, visible, ("FAKE_CUDA_PEER", "0")]).join();
}

fn forked(channel: Channel) {
    let array = DeviceArray::from_host(Device::new(0).expect("a GPU"), &array![1u8, 2, 3]).expect("an array");
    // SAFETY: the child uses no lock that another thread may hold: it calls this crate, which refuses at once, and
    // ends.
    match unsafe { libc::fork() } {
        0 => {
            let refused = [
                Device::new(0).map(drop),
                array.to_host().map(drop),
                array.parcel().map(drop),
                DeviceArray::<u8, _>::zeroed(array.device(), 3).map(drop),
            ];
            let all = refused.iter().all(|answer| matches!(answer, Err(Error::ForkedChild)));
            drop(array);
            // SAFETY: it has no requirements.
            unsafe { libc::_exit(i32::from(!all)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` is valid for writes.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "the child was not refused everything");
        }
    }
    channel.send(&array.to_host().expect("a copy").to_vec(), &[]).expect("the test");
}

fn forked_child_gets_an_error_and_frees_nothing() {
    let child = Actor::start("forked");
    assert_eq!(child.hear::<Vec<u8>>(), [1, 2, 3]);
    child.join();
}
