//! Arrays of which another library of the process has the address.

use libtest_mimic::Trial;
use ndarray::{Array1, Ix1, IxDyn, ShapeBuilder, array};
use ndarray_shm::counted::Channel;
use ndarray_shm_cuda::{Device, DeviceArray, Error, ExportedArray};

use crate::endings::fill_unsaid;
use crate::named;
use crate::order::{LENGTH, SLOW, enqueue_write};
use crate::support::{Actor, Role, double, is_real, make_current, trials as tests, until};

pub const ROLES: &[(&str, Role)] = named![
    export_and_drop,
    write_and_export,
    find_and_fork,
    copy_after_unsaid_work,
    work_beside_a_capture,
    use_what_is_captured,
];

pub fn trials() -> Vec<Trial> {
    let mut trials = tests(
        "export",
        named![
            exported_array_counts_as_shared,
            strides_are_those_of_the_order,
            array_without_axes_has_no_parts,
            copies_and_parcels_come_after_unsaid_work,
        ],
    );
    if !is_real() {
        trials.extend(tests(
            "export",
            named![
                ready_stream_comes_after_writes,
                exported_memory_outlives_its_array,
                arrays_leave_a_graph_capture_alone,
                captured_work_is_refused,
                looking_for_the_driver_leaves_fork_alone,
            ],
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

fn copy_after_unsaid_work(_: Channel) {
    make_current();
    let legacy = std::ptr::without_provenance_mut(1);
    let array = DeviceArray::<u8, _>::zeroed(gpu(), LENGTH).expect("an array");
    let _first = fill_unsaid(&array, legacy, 7);
    assert_eq!(array.to_host().expect("a copy"), Array1::from_elem(LENGTH, 7));
    let _second = fill_unsaid(&array, legacy, 8);
    let parcel = array.parcel().expect("a parcel");
    let received = DeviceArray::<u8, Ix1>::attach(&parcel).expect("an array");
    assert_eq!(received.to_host().expect("a copy"), Array1::from_elem(LENGTH, 8));
}

fn copies_and_parcels_come_after_unsaid_work() {
    Actor::start_with("copy_after_unsaid_work", SLOW).join();
}

const CAPTURE: &[(&str, &str)] = &[("FAKE_CUDA_CAPTURE", "1"), ("FAKE_CUDA_DELAY_US", "2000")];

fn work_beside_a_capture(_: Channel) {
    make_current();
    let stream = gpu().new_stream().expect("a stream");
    let array = DeviceArray::<u8, _>::zeroed(gpu(), LENGTH).expect("an array");
    enqueue_write(&array, &stream, 7);
    assert_eq!(array.to_host().expect("a copy"), Array1::from_elem(LENGTH, 7));
    enqueue_write(&array, &stream, 8);
    array.used_on(&stream).expect("an event");
    let received = DeviceArray::<u8, Ix1>::attach(&array.parcel().expect("a parcel")).expect("an array");
    drop(array);
    received.synchronize().expect("the work ends");
    drop(received);
    stream.synchronize().expect("the work ends");
    until("the end of the memory", || double::live("mapping") == 0);
    double::assert_no_violation();
}

fn arrays_leave_a_graph_capture_alone() {
    Actor::start_with("work_beside_a_capture", CAPTURE).join();
}

fn use_what_is_captured(_: Channel) {
    const CAPTURE_IMPLICIT: u32 = 906;
    let array = DeviceArray::from_host(gpu(), &array![1u8, 2, 3]).expect("an array");
    let stream = gpu().new_stream().expect("a stream");
    let _exported = array.export();
    let is_refused = |answer: Result<(), Error>| {
        assert!(matches!(&answer, Err(Error::Unsupported { .. })), "{answer:?}");
    };
    for use_it in [
        &|| array.to_host().map(drop) as Result<(), Error>,
        &|| array.parcel().map(drop),
        &|| array.written_on(&stream),
        &|| array.used_on(&stream),
        &|| array.wait_on(&stream),
    ] as [&dyn Fn() -> Result<(), Error>; 5]
    {
        double::fail("cuStreamIsCapturing", 1, CAPTURE_IMPLICIT);
        is_refused(use_it());
        use_it().expect("nothing is captured any more");
    }
}

fn captured_work_is_refused() {
    Actor::start("use_what_is_captured").join();
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
