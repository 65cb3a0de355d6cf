//! Copies that go on while the program does other things: what they own, wait for, and leave when they are dropped or
//! forgotten. With the double, every operation of a stream takes 50 ms in some of them.

use libtest_mimic::Trial;
use ndarray::{Array1, Array2, Ix1, ShapeBuilder};
use ndarray_shm::array::SealableDraft;
use ndarray_shm::counted::Channel;
use ndarray_shm::pool::PooledDraft;
use ndarray_shm::{ArrayReader, ArrayWriter, Draft, FrozenArray, Order, Pool, SharedArray};
use ndarray_shm_cuda::{DeviceArray, Error, KIND, LockedSource, LockedTarget, PageLocked, Stream, Transfer};

use crate::page_locked::{Case, Name, assert_locked, gpu, trial};
use crate::support::{Actor, LIMIT, Role, double, is_real};

const SLOW: &[(&str, &str)] = &[("FAKE_CUDA_DELAY_US", "50000")];

const CASES: &[Case] = &[
    ("every_kind_of_source_and_target_is_copied", every_kind_of_source_and_target_is_copied, &[]),
    ("fortran_order_is_kept", fortran_order_is_kept, &[]),
    ("draft_of_another_shape_or_order_is_given_back", draft_of_another_shape_or_order_is_given_back, &[]),
    ("copy_is_used_before_it_is_complete", copy_is_used_before_it_is_complete, SLOW),
    ("transfer_keeps_writers_out_until_its_end", transfer_keeps_writers_out_until_its_end, SLOW),
    ("write_waits_for_a_download", write_waits_for_a_download, SLOW),
    ("dropped_transfer_ends_before_its_memory_is_unlocked", dropped_transfer_ends_before_its_memory_is_unlocked, SLOW),
    ("forgotten_transfer_keeps_its_memory", forgotten_transfer_keeps_its_memory, SLOW),
    ("receiver_waits_for_an_upload", receiver_waits_for_an_upload, SLOW),
];

/// Cases for the double alone, with the calls that it refuses.
const WITH_THE_DOUBLE: &[Case] = &[
    ("failed_copy_gives_the_memory_back", failed_copy_gives_the_memory_back, &[]),
    ("failed_wait_can_be_repeated", failed_wait_can_be_repeated, SLOW),
    ("memory_stays_if_the_end_is_unknown", memory_stays_if_the_end_is_unknown, UNKNOWN_END),
];

const UNKNOWN_END: &[(&str, &str)] = &[("FAKE_CUDA_REFUSE", "cuEventRecord,cuCtxSynchronize")];

pub fn roles() -> Vec<(&'static str, Role)> {
    let receiver: (&'static str, Role) = ("receive_upload", receive_upload);
    CASES.iter().chain(WITH_THE_DOUBLE).map(|(name, role, _)| (*name, *role)).chain([receiver]).collect()
}

pub fn trials() -> Vec<Trial> {
    let cases = CASES.iter().chain(WITH_THE_DOUBLE.iter().filter(|_| !is_real()));
    cases.map(|(name, _, variables)| trial("transfers", name, variables)).collect()
}

const LENGTH: usize = 100_000;

fn stream() -> Stream {
    gpu().new_stream().expect("a stream")
}

fn draft(value: u8) -> PageLocked<Draft<u8, Ix1>> {
    let mut draft = PageLocked::new(gpu(), Draft::new(LENGTH).expect("a draft")).expect("a lock");
    draft.view_mut().fill(value);
    draft
}

fn pooled(pool: &Pool) -> PageLocked<PooledDraft<u8, Ix1>> {
    PageLocked::new(gpu(), pool.take(LENGTH).expect("a draft")).expect("a lock")
}

/// Copies all elements of a source, which have this value, to the GPU.
fn upload<A: LockedSource<Element = u8, Dim = Ix1>>(source: A, value: u8) -> DeviceArray<u8, Ix1> {
    let source = PageLocked::new(gpu(), source).unwrap_or_else(|refused| panic!("{refused}"));
    let transfer = DeviceArray::upload(source, &stream()).unwrap_or_else(|refused| panic!("{refused}"));
    let (copy, source) = transfer.wait().unwrap_or_else(|refused| panic!("{refused}"));
    drop(source);
    assert_locked(0);
    assert_eq!(copy.to_host().expect("a copy"), Array1::from_elem(LENGTH, value));
    copy
}

/// Copies an array to a draft.
fn download<A: LockedTarget<Element = u8, Dim = Ix1>>(array: &DeviceArray<u8, Ix1>, target: A) -> A {
    let target = PageLocked::new(gpu(), target).unwrap_or_else(|refused| panic!("{refused}"));
    let transfer = array.download(target, &stream()).unwrap_or_else(|refused| panic!("{refused}"));
    let target = transfer.wait().unwrap_or_else(|refused| panic!("{refused}"));
    let target = target.into_inner().unwrap_or_else(|refused| panic!("{refused}"));
    assert_locked(0);
    target
}

fn every_kind_of_source_and_target_is_copied(_: Channel) {
    let (name, pool) = (Name::new("sources"), Pool::new().expect("a pool"));
    let name = name.0.as_str();
    let array = SharedArray::<u8, _>::create_with(name, LENGTH, |mut view| view.fill(1)).expect("an array");
    upload(ArrayReader::open(name, LENGTH).expect("a reader"), 1);
    upload(ArrayWriter::open(name, LENGTH).expect("a writer"), 1);
    let _ = array.try_write().expect("the transfers have ended");
    upload(FrozenArray::from_array(&Array1::from_elem(LENGTH, 2)).expect("an array"), 2);
    let mut draft = Draft::new(LENGTH).expect("a draft");
    draft.view_mut().fill(3);
    upload(draft, 3);
    let mut draft = pool.take(LENGTH).expect("a draft");
    draft.view_mut().fill(4);
    let copy = upload(draft, 4);

    assert_eq!(download(&copy, Draft::new(LENGTH).expect("a draft")).view()[LENGTH - 1], 4);
    let sealed = download(&copy, SealableDraft::new(LENGTH).expect("a draft")).freeze().expect("a frozen array");
    assert_eq!(sealed[LENGTH - 1], 4);
    let published = download(&copy, pool.take(LENGTH).expect("a draft")).publish(format!("{name}-result").as_str());
    assert_eq!(published.expect("a name").read().expect("a guard")[LENGTH - 1], 4);
    assert_eq!(pool.stats().lent.arrays, 0);
}

fn fortran_order_is_kept(_: Channel) {
    let mut draft = Draft::<u16, _>::new((3, 5).f()).expect("a draft");
    draft.view_mut().indexed_iter_mut().for_each(|((row, column), element)| *element = (10 * row + column) as u16);
    let source = PageLocked::new(gpu(), draft).expect("a lock");
    let (copy, source) = DeviceArray::upload(source, &stream()).expect("a transfer").wait().expect("its end");
    assert_eq!(copy.order(), Order::F);
    assert_eq!(copy.to_host().expect("a copy"), source.view());
    let target = PageLocked::new(gpu(), Draft::<u16, _>::new((3, 5).f()).expect("a draft")).expect("a lock");
    let target = copy.download(target, &stream()).expect("a transfer").wait().expect("its end");
    assert_eq!(target.view(), source.view());
}

fn draft_of_another_shape_or_order_is_given_back(_: Channel) {
    let array = DeviceArray::from_host(gpu(), &Array2::<u8>::ones((3, 5))).expect("an array");
    for shape in [(3, 5).f(), (5, 3).set_f(false)] {
        let target = PageLocked::new(gpu(), Draft::<u8, _>::new(shape).expect("a draft")).expect("a lock");
        let refused = array.download(target, &stream()).expect_err("it differs");
        assert!(matches!(refused.error(), Error::Shape { .. }), "{refused}");
        assert!(refused.into_inner().view().iter().all(|element| *element == 0));
    }
    assert_locked(0);
}

fn copy_is_used_before_it_is_complete(_: Channel) {
    let transfer = DeviceArray::upload(draft(7), &stream()).expect("a transfer");
    if !is_real() {
        assert!(!transfer.is_done().expect("an answer"), "the double takes its time");
    }
    let back = transfer.array().to_host().expect("a copy");
    assert_eq!(back, Array1::from_elem(LENGTH, 7), "the copy to the host did not wait");
    let there = transfer.array().download(draft(0), &stream()).expect("a transfer").wait().expect("its end");
    assert_eq!(there.view(), back);
    assert!(transfer.is_done().expect("an answer"));
    transfer.wait().expect("the end");
}

fn transfer_keeps_writers_out_until_its_end(_: Channel) {
    let name = Name::new("writers");
    let array = SharedArray::<u8, _>::create(name.0.as_str(), LENGTH).expect("an array");
    let reader = ArrayReader::<u8, _>::open(name.0.as_str(), LENGTH).expect("a reader");
    let transfer = DeviceArray::upload(PageLocked::new(gpu(), reader).expect("a lock"), &stream()).expect("a transfer");
    assert!(array.try_write().is_err(), "the GPU reads the array");
    let (_copy, reader) = transfer.wait().expect("the end");
    drop(reader);
    array.try_write().expect("the reader is gone").fill(1);
}

fn write_waits_for_a_download(_: Channel) {
    let mut array = DeviceArray::from_host(gpu(), &Array1::from_elem(LENGTH, 1u8)).expect("an array");
    let stream = stream();
    // One after the other, so that the second would take place after a write that waits for neither.
    let transfers = [array.download(draft(0), &stream), array.download(draft(0), &stream)];
    array.write(&Array1::from_elem(LENGTH, 2)).expect("the array is not shared");
    for transfer in transfers {
        assert_eq!(transfer.expect("a transfer").wait().expect("its end").view(), Array1::from_elem(LENGTH, 1));
    }
    let transfer = array.download(draft(0), &stream).expect("a transfer");
    drop(array);
    assert_eq!(transfer.wait().expect("its end").view()[LENGTH - 1], 2, "the array ended before it was copied");
    assert_locked(0);
}

fn dropped_transfer_ends_before_its_memory_is_unlocked(_: Channel) {
    let pool = Pool::new().expect("a pool");
    let array = DeviceArray::from_host(gpu(), &Array1::from_elem(LENGTH, 1u8)).expect("an array");
    // The double counts it if pages are unlocked, or a GPU's memory is unmapped, while a copy uses them.
    drop(DeviceArray::upload(pooled(&pool), &stream()).expect("a transfer"));
    drop(array.download(pooled(&pool), &stream()).expect("a transfer"));
    drop(array);
    assert_locked(0);
    let draft = pool.take::<u8, _>(LENGTH).expect("a draft");
    assert!(draft.is_recycled());
    assert_eq!(draft.view(), Array1::from_elem(LENGTH, 1));
}

fn forgotten_transfer_keeps_its_memory(_: Channel) {
    let (name, pool) = (Name::new("forgotten"), Pool::new().expect("a pool"));
    let shared = SharedArray::<u8, _>::create_with(name.0.as_str(), LENGTH, |mut view| view.fill(5)).expect("an array");
    let array = DeviceArray::from_host(gpu(), &Array1::from_elem(LENGTH, 1u8)).expect("an array");
    let reader = ArrayReader::<u8, _>::open(name.0.as_str(), LENGTH).expect("a reader");
    let stream = stream();
    std::mem::forget(
        DeviceArray::upload(PageLocked::new(gpu(), reader).expect("a lock"), &stream).expect("a transfer"),
    );
    std::mem::forget(array.download(pooled(&pool), &stream).expect("a transfer"));
    drop((array, stream)); // the array waits for the copy from it
    gpu().synchronize().expect("the end of all work");
    assert_locked(2);
    assert!(!pool.take::<u8, _>(LENGTH).expect("a draft").is_recycled(), "the GPU may still write to the draft");
    assert!(shared.try_write().is_err(), "the GPU may still read the array");
}

/// Attaches an array that its sender has sent during an upload.
fn receive_upload(channel: Channel) {
    let received = channel.receive_timeout::<()>(LIMIT).expect("an array").arrays.remove(0);
    let array = DeviceArray::<u8, Ix1>::attach(&received.foreign(KIND).expect("a parcel")).expect("an array");
    let right = array.to_host().expect("a copy") == Array1::from_elem(LENGTH, 9);
    channel.send(&right, &[]).expect("the test");
}

fn receiver_waits_for_an_upload(_: Channel) {
    let receiver = Actor::start("receive_upload");
    let transfer = DeviceArray::upload(draft(9), &stream()).expect("a transfer");
    receiver.channel.send(&(), &[&transfer.array().parcel().expect("a parcel")]).expect("a receiver");
    assert!(receiver.hear::<bool>(), "the receiver did not wait");
    receiver.join();
    drop(transfer);
    assert_locked(0);
}

fn failed_copy_gives_the_memory_back(_: Channel) {
    let array = DeviceArray::from_host(gpu(), &Array1::from_elem(LENGTH, 1u8)).expect("an array");
    let stream = stream();
    let is_injected =
        |error: &Error, call: &str| matches!(error, Error::Driver { call: named, code: 999, .. } if *named == call);
    for call in ["cuMemCreate", "cuMemcpyHtoDAsync_v2", "cuEventCreate", "cuEventRecord"] {
        double::fail(call, 1, 999);
        let refused = DeviceArray::upload(draft(3), &stream).expect_err("the call fails");
        assert!(is_injected(refused.error(), call), "{refused}");
        assert_eq!(refused.into_inner().view()[LENGTH - 1], 3);
        assert_locked(0);
    }
    for call in ["cuMemcpyDtoHAsync_v2", "cuEventRecord"] {
        double::fail(call, 1, 999);
        let refused = array.download(draft(3), &stream).expect_err("the call fails");
        assert!(is_injected(refused.error(), call), "{refused}");
        drop(refused.into_inner().into_inner().expect("the draft"));
        assert_locked(0);
    }
}

fn failed_wait_can_be_repeated(_: Channel) {
    let repeat = |transfer: Transfer<_>| {
        double::fail("cuEventSynchronize", 1, 999);
        let refused = transfer.wait().expect_err("the call fails");
        assert!(matches!(refused.error(), Error::Driver { call: "cuEventSynchronize", .. }), "{refused}");
        refused.into_inner()
    };
    let transfer = repeat(DeviceArray::upload(draft(3), &stream()).expect("a transfer"));
    let (copy, source) = transfer.wait().expect("the end");
    assert_eq!(copy.to_host().expect("a copy"), source.view());
    // Dropping finds another way.
    double::fail("cuEventSynchronize", 1, 999);
    drop(DeviceArray::upload(source, &stream()).expect("a transfer"));
    assert_locked(0);
}

fn memory_stays_if_the_end_is_unknown(_: Channel) {
    let transfer =
        DeviceArray::upload(draft(3), &stream()).expect("the copy was enqueued, and only waiting tells more");
    assert!(!transfer.is_done().expect("an answer"));
    let refused = transfer.wait().expect_err("the driver does not tell");
    assert!(matches!(refused.error(), Error::Driver { call: "cuCtxSynchronize", .. }), "{refused}");
    drop(refused);
    assert_locked(1);
}
