//! Whole allocations: arrays that are copied, sent, attached and freed.

use libtest_mimic::Trial;
use ndarray::{Array, Ix2, ShapeBuilder, array};
use ndarray_shm::Order;
use ndarray_shm::counted::Channel;
use ndarray_shm_cuda::{Device, DeviceArray, Error, KIND};

use crate::named;
use crate::support::{Actor, LIMIT, Role, trials as tests};

pub const ROLES: &[(&str, Role)] = named![sum];

pub fn trials() -> Vec<Trial> {
    tests(
        "whole",
        named![array_comes_back_as_it_was_sent, another_process_reads_the_array, write_of_a_shared_array_is_refused],
    )
}

fn gpu() -> Device {
    Device::new(0).expect("a GPU")
}

fn array_comes_back_as_it_was_sent() {
    for order in [Order::C, Order::F] {
        let shape = (3, 5).set_f(order == Order::F);
        let host = Array::from_shape_fn(shape, |(i, j)| (10 * i + j) as f32);
        let device = DeviceArray::from_host(gpu(), &host).expect("an array");
        assert_eq!((device.shape(), device.order()), (&[3, 5][..], order));
        assert_eq!(device.to_host().expect("a copy"), host);
    }
    let zeros = DeviceArray::<u8, _>::zeroed(gpu(), (2, 3)).expect("an array");
    assert_eq!(zeros.to_host().expect("a copy"), Array::<u8, _>::zeros((2, 3)));
}

/// Adds the elements up of each array that it receives.
fn sum(channel: Channel) {
    while let Ok(received) = channel.receive::<u32>() {
        for array in received.arrays {
            let parcel = array.foreign(KIND).expect("a parcel of this crate");
            let array = DeviceArray::<f32, Ix2>::attach(&parcel).expect("an array");
            channel.send(&array.to_host().expect("a copy").sum(), &[]).expect("a listener");
        }
    }
}

fn another_process_reads_the_array() {
    let child = Actor::start("sum");
    let array = DeviceArray::from_host(gpu(), &array![[1f32, 2.0], [3.0, 4.0]]).expect("an array");
    child.channel.send(&1u32, &[&array.parcel().expect("a parcel")]).expect("a listener");
    drop(array);
    assert_eq!(child.channel.receive_timeout::<f32>(LIMIT).expect("a sum").message, 10.0);
}

fn write_of_a_shared_array_is_refused() {
    let mut array = DeviceArray::from_host(gpu(), &array![1u8, 2, 3]).expect("an array");
    array.write(&array![4, 5, 6]).expect("it is not shared yet");
    drop(array.parcel().expect("a parcel"));
    assert!(matches!(array.write(&array![7, 8, 9]), Err(Error::Shared)));
    assert_eq!(array.to_host().expect("a copy"), array![4, 5, 6]);
}
