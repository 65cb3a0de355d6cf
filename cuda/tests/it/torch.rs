//! The cases by which torch tests CUDA tensors that processes share (`test/test_multiprocessing.py`), with arrays of
//! this crate. The comment of each test names the case.

use libtest_mimic::Trial;
use ndarray::{Array1, ArrayD, Ix1, IxDyn, array};
use ndarray_shm::counted::{Channel, Shareable};
use ndarray_shm::{DType, Element};
use ndarray_shm_cuda::{Device, DeviceArray, Error, KIND};

use crate::named;
use crate::support::{Actor, LIMIT, Role, trials as tests};

pub const ROLES: &[(&str, Role)] = named![keep_and_sum, echo, sum_views, sums_of_types];

pub fn trials() -> Vec<Trial> {
    tests(
        "torch",
        named![
            sent_arrays_survive_their_sender_dropping_them,
            arrays_go_to_and_fro_a_hundred_times,
            small_arrays_keep_their_values,
            two_views_of_one_block_see_the_same_elements,
            types_can_be_mixed_in_one_message,
            forked_child_is_refused_what_its_parent_made,
            received_array_can_be_sent_on,
        ],
    )
}

fn gpu() -> Device {
    Device::new(0).expect("a GPU")
}

/// Keeps all arrays that it gets until the channel says "sum".
fn keep_and_sum(channel: Channel) {
    let mut kept: Vec<DeviceArray<f64, Ix1>> = Vec::new();
    loop {
        let received = channel.receive_timeout::<String>(LIMIT).expect("a task");
        for array in received.arrays {
            kept.push(DeviceArray::attach(&array.foreign(KIND).expect("a parcel")).expect("an array"));
        }
        if received.message == "sum" {
            break;
        }
    }
    let sums: Vec<f64> = kept.iter().map(|array| array.to_host().expect("a copy").sum()).collect();
    channel.send(&sums, &[]).expect("the test");
}

/// `test_cuda_memory_allocation`: five arrays are sent, and dropped at once.
fn sent_arrays_survive_their_sender_dropping_them() {
    let child = Actor::start("keep_and_sum");
    for value in 0..5 {
        let array = DeviceArray::from_host(gpu(), &Array1::from_elem(1000, f64::from(value))).expect("an array");
        child.channel.send("keep", &[&array.parcel().expect("a parcel")]).expect("a child");
    }
    child.tell("sum");
    assert_eq!(child.hear::<Vec<f64>>(), [0.0, 1000.0, 2000.0, 3000.0, 4000.0]);
}

/// Sends an array of its own for each that it gets, with elements one larger.
fn echo(channel: Channel) {
    while let Ok(mut received) = channel.receive::<u32>() {
        let parcel = received.arrays.remove(0).foreign(KIND).expect("a parcel");
        let array = DeviceArray::<i64, Ix1>::attach(&parcel).expect("an array");
        let larger = DeviceArray::from_host(gpu(), &(array.to_host().expect("a copy") + 1)).expect("an array");
        channel.send(&received.message, &[&larger.parcel().expect("a parcel")]).expect("the test");
    }
}

/// `test_cuda_ipc_deadlock`: producer and consumer take turns.
fn arrays_go_to_and_fro_a_hundred_times() {
    let child = Actor::start("echo");
    let mut array = DeviceArray::from_host(gpu(), &array![0i64, 10]).expect("an array");
    for turn in 0..100u32 {
        child.channel.send(&turn, &[&array.parcel().expect("a parcel")]).expect("a child");
        let mut received = child.channel.receive_timeout::<u32>(LIMIT).expect("an array");
        assert_eq!(received.message, turn);
        array = DeviceArray::attach(&received.arrays.remove(0).foreign(KIND).expect("a parcel")).expect("an array");
    }
    assert_eq!(array.to_host().expect("a copy"), array![100, 110]);
}

/// `test_cuda_small_tensors`: many arrays of a few elements, of which each has the memory of one allocation.
fn small_arrays_keep_their_values() {
    let child = Actor::start("keep_and_sum");
    for value in 0..20 {
        let array = DeviceArray::from_host(gpu(), &array![f64::from(value)]).expect("an array");
        child.channel.send("keep", &[&array.parcel().expect("a parcel")]).expect("a child");
    }
    child.tell("sum");
    assert_eq!(child.hear::<Vec<f64>>(), (0..20).map(f64::from).collect::<Vec<_>>());
}

fn sum_views(channel: Channel) {
    let mut received = channel.receive_timeout::<String>(LIMIT).expect("arrays");
    let mut next = || received.arrays.remove(0).foreign(KIND).expect("a parcel");
    let first = DeviceArray::<u32, Ix1>::attach(&next()).expect("an array");
    let second = DeviceArray::<u32, Ix1>::attach(&next()).expect("an array");
    // SAFETY: the test waits while this process writes.
    unsafe { first.overwrite(&array![7, 7, 7, 7]) }.expect("a copy");
    channel.send(&second.to_host().expect("a copy").to_vec(), &[]).expect("the test");
}

/// `test_rebuild_cuda_tensor`: two tensors of one storage are the same memory at the receiver too.
fn two_views_of_one_block_see_the_same_elements() {
    let array = DeviceArray::from_host(gpu(), &array![0u32, 1, 2, 3, 4, 5]).expect("an array");
    let (first, second) = (array.part(0..4).expect("a part"), array.part(2..6).expect("a part"));
    let parcels = [first.parcel().expect("a parcel"), second.parcel().expect("a parcel")];
    let child = Actor::start("sum_views");
    child.channel.send("views", &[&parcels[0], &parcels[1]]).expect("a child");
    assert_eq!(child.hear::<Vec<u32>>(), [7, 7, 4, 5]);
    assert_eq!(array.to_host().expect("a copy"), array![7, 7, 7, 7, 4, 5]);
    assert!(matches!(array.part(3..7), Err(Error::Shape { .. })));
}

fn sums_of_types(channel: Channel) {
    let received = channel.receive_timeout::<String>(LIMIT).expect("arrays");
    let mut sums = Vec::new();
    for array in received.arrays {
        if array.kind().is_none() {
            sums.push(
                array
                    .attach::<u16, Ix1>()
                    .expect("an array of the host")
                    .read()
                    .expect("a guard")
                    .iter()
                    .map(|one| f64::from(*one))
                    .sum(),
            );
            continue;
        }
        let parcel = array.foreign(KIND).expect("a parcel");
        sums.push(match parcel.dtype() {
            DType::F32 => sum::<f32>(&parcel),
            DType::U8 => sum::<u8>(&parcel),
            other => panic!("{other}"),
        });
    }
    channel.send(&sums, &[]).expect("the test");
}

fn sum<T: Element + Into<f64>>(parcel: &ndarray_shm::counted::Foreign) -> f64 {
    let array: ArrayD<T> = DeviceArray::<T, IxDyn>::attach(parcel).expect("an array").to_host().expect("a copy");
    array.iter().map(|one| (*one).into()).sum()
}

/// `test_mixed_types_cuda_sharing`: tensors of several types, on the GPU and on the host, in one message.
fn types_can_be_mixed_in_one_message() {
    let floats = DeviceArray::from_host(gpu(), &array![[1.5f32, 2.0], [3.0, 4.0]])
        .expect("an array")
        .parcel()
        .expect("a parcel");
    let bytes = DeviceArray::from_host(gpu(), &array![1u8, 2, 3]).expect("an array").parcel().expect("a parcel");
    let host = ndarray_shm::counted::to_shared(&array![100u16, 200]).expect("an array of the host");
    let child = Actor::start("sums_of_types");
    let all: [&dyn Shareable; 3] = [&floats, &host, &bytes];
    child.channel.send("mixed", &all).expect("a child");
    assert_eq!(child.hear::<Vec<f64>>(), [10.5, 300.0, 6.0]);
}

/// `test_wrong_cuda_fork` and `test_cuda_bad_call`: an error, and no hang or crash.
fn forked_child_is_refused_what_its_parent_made() {
    let child = Actor::start("forked");
    assert_eq!(child.hear::<Vec<u8>>(), [1, 2, 3]);
    child.join();
}

/// torch refuses to send a received tensor on. Here every process is as good as the first.
fn received_array_can_be_sent_on() {
    let (first, second) = (Actor::start("echo"), Actor::start("keep_and_sum"));
    let array = DeviceArray::from_host(gpu(), &array![1i64, 2]).expect("an array");
    first.channel.send(&0u32, &[&array.parcel().expect("a parcel")]).expect("a child");
    let mut received = first.channel.receive_timeout::<u32>(LIMIT).expect("an array");
    let received = DeviceArray::<i64, Ix1>::attach(&received.arrays.remove(0).foreign(KIND).expect("a parcel"));
    drop(first);
    let received = received.expect("an array of a killed sender");
    let floats =
        DeviceArray::from_host(gpu(), &received.to_host().expect("a copy").mapv(|one| one as f64)).expect("an array");
    let again = DeviceArray::<f64, Ix1>::attach(&floats.parcel().expect("a parcel")).expect("an array");
    drop(floats);
    second.channel.send("sum", &[&again.parcel().expect("a parcel")]).expect("a child");
    assert_eq!(second.hear::<Vec<f64>>(), [5.0]);
}
