//! Arrays of which another library of the process has the address.

use libtest_mimic::Trial;
use ndarray::{Array1, IxDyn, ShapeBuilder, array};
use ndarray_shm::counted::Channel;
use ndarray_shm_cuda::{Device, DeviceArray, Error, ExportedArray};

use crate::named;
use crate::order::{LENGTH, SLOW, enqueue_write};
use crate::support::{Actor, Role, double, is_real, make_current, trials as tests};

pub const ROLES: &[(&str, Role)] = named![export_and_drop, write_and_export, find_and_fork];

pub fn trials() -> Vec<Trial> {
    let mut trials = tests(
        "export",
        named![
            exported_array_counts_as_shared,
            strides_are_those_of_the_order,
            array_without_axes_has_no_parts,
            ready_stream_comes_after_writes,
        ],
    );
    if !is_real() {
        trials.extend(tests(
            "export",
            named![exported_memory_outlives_its_array, looking_for_the_driver_leaves_fork_alone],
        ));
    }
    trials
}

fn gpu() -> Device {
    Device::new(0).expect("a GPU")
}

fn exported_array_counts_as_shared() {
    let mut array = DeviceArray::from_host(gpu(), &array![1u16, 2, 3]).expect("an array");
    array.write(&array![4, 5, 6]).expect("a copy");
    let exported = array.export();
    assert_eq!((exported.device_pointer(), exported.device()), (array.device_pointer(), array.device()));
    drop(exported);
    assert!(matches!(array.write(&array![7, 8, 9]), Err(Error::Shared)));
}

fn strides_are_those_of_the_order() {
    let strides = |shape: &[usize], fortran: bool| {
        let array = DeviceArray::<f32, IxDyn>::zeroed(gpu(), IxDyn(shape).set_f(fortran)).expect("an array");
        array.export().strides().to_vec()
    };
    assert_eq!(strides(&[2, 3, 4], false), [12, 4, 1]);
    assert_eq!(strides(&[2, 3, 4], true), [1, 2, 6]);
    assert_eq!(strides(&[2, 0, 4], false), [4, 4, 1]);
    assert_eq!(strides(&[], false), [] as [usize; 0]);
}

fn array_without_axes_has_no_parts() {
    for fortran in [false, true] {
        let array = DeviceArray::<f32, IxDyn>::zeroed(gpu(), IxDyn(&[]).set_f(fortran)).expect("an array");
        assert!(matches!(array.part(0..0), Err(Error::Shape { .. })));
    }
}

fn write_and_export(channel: Channel) {
    let gpu = gpu();
    make_current();
    let array = DeviceArray::<u8, _>::zeroed(gpu, LENGTH).expect("an array");
    assert!(array.ready_stream().expect("no work").is_none());
    let stream = gpu.new_stream().expect("a stream");
    enqueue_write(&array, &stream, 7);
    let ready = array.ready_stream().expect("a stream").expect("work");
    ready.synchronize().expect("the work ends");
    assert!(array.ready_stream().expect("no work").is_none());
    channel.send(&(array.to_host().expect("a copy") == Array1::from_elem(LENGTH, 7)), &[]).expect("the test");
}

fn ready_stream_comes_after_writes() {
    let child = Actor::start_with("write_and_export", SLOW);
    assert!(child.hear::<bool>());
    child.join();
}

/// Drops an array before its export, and tells how much memory is mapped each time.
fn export_and_drop(channel: Channel) {
    fn is_send<T: Send + Sync + 'static>(value: T) -> T {
        value
    }
    let array = DeviceArray::from_host(gpu(), &array![1u8, 2, 3]).expect("an array");
    let exported: ExportedArray = is_send(array.export());
    drop(array);
    let before = double::live("mapping");
    drop(exported);
    channel.send(&(before, double::live("mapping")), &[]).expect("the test");
    double::assert_no_violation();
}

fn exported_memory_outlives_its_array() {
    let child = Actor::start("export_and_drop");
    assert_eq!(child.hear::<(u64, u64)>(), (1, 0));
    child.join();
}

/// Looks for the driver, and uses it in a forked child.
fn find_and_fork(channel: Channel) {
    ndarray_shm_cuda::find_driver().expect("a driver");
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        0 => {
            let answer = Device::new(0).and_then(|gpu| DeviceArray::from_host(gpu, &array![1u8, 2])?.to_host());
            // SAFETY: it has no requirements.
            unsafe { libc::_exit(i32::from(!matches!(answer, Ok(copy) if copy == array![1, 2]))) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` is valid for writes.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            channel.send(&status, &[]).expect("the test");
        }
    }
}

fn looking_for_the_driver_leaves_fork_alone() {
    let child = Actor::start("find_and_fork");
    assert_eq!(child.hear::<i32>(), 0);
    child.join();
}
