//! Lent memory where something is refused: forged parcels, memory that cannot be lent, calls that a system refuses or
//! that fail once, and forked children.

use std::fmt::Debug;
use std::sync::Arc;

use libtest_mimic::Trial;
use ndarray::{ArrayD, Ix1, Ix2, IxDyn};
use ndarray_shm::counted::{Channel, Foreign};
use ndarray_shm::{DType, Order};
use ndarray_shm_cuda::{Borrower, Device, DeviceArray, Error, LENT_KIND, Lender, Result};
use serde_json::{Value, json};

use crate::failures::{fail_every_call, fail_every_call_but};
use crate::lender::{Scene, Task, attach, count_up};
use crate::named;
use crate::support::{Actor, LIMIT, Role, double, is_real, trials as tests};
use crate::tensors::{PIECE, Pool, SOURCES, Source, Tensor, use_gpu};

pub const ROLES: &[(&str, Role)] = named![
    forge,
    refused_lender,
    lend_parcels,
    fail_every_call_of_a_lender,
    fail_every_call_of_a_borrower,
    forked_lender_and_borrower,
];

pub fn trials() -> Vec<Trial> {
    let everywhere = tests(
        "lender",
        named![
            forged_parcels_are_refused,
            memory_that_cannot_be_lent_is_refused,
            forked_child_is_refused_and_frees_nothing,
        ],
    );
    if is_real() {
        return everywhere;
    }
    let with_the_double = tests(
        "lender",
        named![
            calls_that_a_system_refuses_are_unsupported,
            each_call_of_a_lender_fails_once_without_a_leak,
            each_call_of_a_borrower_fails_once_without_a_leak,
        ],
    );
    everywhere.into_iter().chain(with_the_double).collect()
}

/// Makes a parcel that says something else.
fn forged(parcel: &Foreign, change: impl FnOnce(&mut Value)) -> Foreign {
    let mut note: Value = serde_json::from_str(parcel.note()).expect("a note");
    change(&mut note);
    let descriptor = parcel.descriptor().try_clone().expect("a descriptor");
    Foreign::new(LENT_KIND, parcel.dtype(), parcel.shape(), parcel.order(), note.to_string(), descriptor)
        .expect("a parcel")
}

/// Makes a parcel of another shape or type.
fn reshaped(parcel: &Foreign, dtype: DType, shape: &[usize]) -> Foreign {
    let descriptor = parcel.descriptor().try_clone().expect("a descriptor");
    Foreign::new(LENT_KIND, dtype, shape, Order::C, parcel.note(), descriptor).expect("a parcel")
}

/// Sends forged parcels to a borrower, and real ones after them.
fn forge(_: Channel) {
    let scene = Scene::new();
    let child = scene.borrower();
    let null = || std::fs::File::open("/dev/null").expect("/dev/null");
    for source in SOURCES {
        let lent = scene.lend(source, 1000);
        let refused = |what: &str, make: &dyn Fn(&Foreign) -> Foreign, names: &[&str]| {
            let parcel = lent.parcel().expect("a parcel");
            let name = child.attach(&[&make(&parcel)]).expect_err(what);
            assert!(names.contains(&&*name), "{source:?}: {what}: {name}");
            // Either the loan is over, or the parcel is as good as before.
            lent.revoke(&parcel).expect("a parcel");
            assert_eq!(lent.count().expect("a count"), 0, "{source:?}: {what}");
        };
        let whole = 2usize << 20; // more than any of the allocations is long
        let malformed = &["Malformed"][..];
        refused("another type", &|parcel| reshaped(parcel, DType::F32, &[1000]), &["DType"]);
        refused("a longer array", &|parcel| reshaped(parcel, DType::U32, &[whole]), malformed);
        let offsets = [whole, usize::MAX - 3, 2, usize::MAX];
        for offset in offsets {
            let make = |parcel: &Foreign| forged(parcel, |note| note["offset"] = json!(offset));
            refused(&format!("offset {offset}"), &make, malformed);
        }
        refused("another version", &|parcel| forged(parcel, |note| note["version"] = json!(3)), malformed);
        refused("no note", &|parcel| forged(parcel, |note| *note = json!("lent")), malformed);
        refused("no GPU", &|parcel| forged(parcel, |note| note["device"] = json!("GPU-1")), malformed);
        let unknown = "GPU-00112233-4455-6677-8899-aabbccddeeff";
        let make = |parcel: &Foreign| forged(parcel, |note| note["device"] = json!(unknown));
        refused("a GPU that is not there", &make, &["DeviceNotVisible"]);
        let make = |parcel: &Foreign| forged(parcel, |note| note["way"] = json!("Nothing"));
        refused("elements in no memory", &make, malformed);
        let make = |parcel: &Foreign| forged(parcel, |note| note["way"] = json!({ "Legacy": { "handle": [1, 2] } }));
        refused("a short handle", &make, malformed);
        let make = |parcel: &Foreign| {
            forged(parcel, |note| note["way"] = json!({ "Pooled": { "pool": 1, "pointer": [1, 2] } }))
        };
        refused("a short address", &make, malformed);
        // Not for the driver of a machine: it is known to trust bytes of its own.
        if !is_real() {
            let handle = json!({ "Legacy": { "handle": vec![9; 64] } });
            let make = |parcel: &Foreign| forged(parcel, |note| note["way"] = handle.clone());
            refused("a handle of nothing", &make, &["Unsupported"]);
        }
        let lengths = [0, 1, PIECE - 1, 1 << 40];
        for bytes in lengths {
            let make =
                |parcel: &Foreign| forged(parcel, |note| note["way"] = json!({ "Physical": { "bytes": bytes } }));
            refused(&format!("{bytes} bytes"), &make, &["Malformed", "Unsupported", "Driver"]);
        }
        if source != Source::Malloc {
            let make = |parcel: &Foreign| {
                Foreign::new(LENT_KIND, DType::U32, &[1000], Order::C, parcel.note(), null()).expect("a parcel")
            };
            refused("a descriptor of nothing", &make, &["Unsupported", "Driver"]);
        }
        // The borrower is as well as before.
        let right = child.attach(&[&lent.parcel().expect("a parcel")]).expect("an array");
        assert_eq!(right[0].1.len(), 1000);
        child.ask(Task::Drop).expect("an end");
    }
    let whole = DeviceArray::<u32, _>::zeroed(scene.lender.device(), 10).expect("an array");
    let borrower = Borrower::open(scene.name()).expect("counts");
    let refused = attach(&borrower, &whole.parcel().expect("a parcel")).expect_err("it is not lent");
    assert!(matches!(refused, Error::Malformed { .. }), "{refused}");
    let lent = scene.lend(Source::Malloc, 1);
    let refused = DeviceArray::<u32, Ix1>::attach(&lent.parcel().expect("a parcel")).expect_err("it is lent");
    assert!(matches!(refused, Error::Malformed { .. }), "{refused}");
    let parcel = lent.parcel().expect("a parcel");
    assert!(matches!(borrower.attach::<u8, IxDyn>(&parcel), Err(Error::DType { .. })));
    assert!(matches!(borrower.attach::<u32, Ix2>(&parcel), Err(Error::Shape { .. })));
    child.end();
}

fn forged_parcels_are_refused() {
    Actor::start("forge").join();
}

fn assert_unsupported<T: Debug>(what: &str, answer: Result<T>) {
    let error = answer.expect_err(what);
    assert!(matches!(error, Error::Unsupported { .. }), "{what}: {error}");
}

fn memory_that_cannot_be_lent_is_refused() {
    use_gpu();
    let scene = Scene::new();
    let freed = &scene.freed;
    let private = Tensor::pooled(&Pool::new(false), 4000, freed);
    assert_unsupported("a pool without descriptors", scene.lend_tensor(private, 0..10));
    assert_unsupported("a segment without descriptors", scene.lend_tensor(Tensor::segment(1, false, freed), 0..10));
    let pieces = || Tensor::segment(2, true, freed);
    let elements = PIECE / 4;
    assert_unsupported("an array in two pieces", scene.lend_tensor(pieces(), elements - 1..elements + 1));
    scene.lend_tensor(pieces(), elements..2 * elements).expect("an array in the second piece");
    for source in SOURCES {
        let tensor = Tensor::new(source, &count_up(10), freed);
        assert_unsupported("more than the allocation", scene.lend_tensor(tensor, 0..elements + 1));
    }
    // SAFETY: it is refused, and nothing is read or written.
    assert_unsupported("no memory", unsafe { scene.lender.lend::<u32, Ix1>(0x1000, 10, ()) });
    let host = [0u32; 10];
    // SAFETY: it is refused, and nothing is read or written.
    assert_unsupported("memory of the host", unsafe { scene.lender.lend::<u32, Ix1>(host.as_ptr() as u64, 10, ()) });
    assert_eq!(scene.freed(), 7, "refused owners are dropped");
}

/// Lends with a call refused. Its answer is the step that was unsupported.
fn refused_lender(channel: Channel) {
    let source: Source = channel.receive_timeout(LIMIT).expect("a task").message;
    let scene = Scene::new();
    let tensor = Tensor::new(source, &count_up(10), &scene.freed);
    let lent = scene.lend_tensor(tensor, 0..10);
    let parcel = lent.and_then(|lent| lent.parcel());
    assert_unsupported("a refused call", parcel);
    assert_eq!((scene.lender.waiting(), scene.freed()), (0, 1));
    double::assert_no_violation();
}

fn calls_that_a_system_refuses_are_unsupported() {
    let of_lenders = [
        (Source::Segment, "cuMemRetainAllocationHandle"),
        (Source::Segment, "cuMemExportToShareableHandle"),
        (Source::Pool, "cuMemPoolExportToShareableHandle"),
        (Source::Pool, "cuMemPoolExportPointer"),
        (Source::Malloc, "cuIpcGetMemHandle"),
    ];
    for (source, call) in of_lenders {
        let child = Actor::start_with("refused_lender", &[("FAKE_CUDA_REFUSE", call)]);
        child.tell(&source);
        child.join();
    }
    let of_borrowers = [
        (Source::Segment, "cuMemImportFromShareableHandle"),
        (Source::Pool, "cuMemPoolImportFromShareableHandle"),
        (Source::Pool, "cuMemPoolImportPointer"),
        (Source::Malloc, "cuIpcOpenMemHandle_v2"),
    ];
    for (source, call) in of_borrowers {
        let scene = Scene::new();
        let child = Actor::start_with("borrower", &[("FAKE_CUDA_REFUSE", call)]);
        child.tell(&Task::Open(scene.name()));
        let lent = scene.lend(source, 10);
        let answer = child.attach(&[&lent.parcel().expect("a parcel")]);
        assert_eq!(answer, Err("Unsupported".into()), "{call}");
        assert_eq!(lent.count().expect("a count"), 0, "{call}");
        child.end();
    }
}

fn fail_every_call_of_a_lender(_: Channel) {
    for source in SOURCES {
        let scene = Scene::new();
        let tensor = Arc::new(Tensor::new(source, &count_up(10), &scene.freed));
        let stream = scene.lender.device().new_stream().expect("a stream");
        let seen = fail_every_call(|| {
            // SAFETY: the tensor has these elements, and frees them when it is dropped. Nothing writes to them.
            let lent = unsafe { scene.lender.lend::<u32, Ix1>(tensor.pointer, 10, Arc::clone(&tensor)) }?;
            lent.written_on(&stream)?;
            let parcel = lent.parcel()?;
            assert!(lent.revoke(&parcel)?);
            lent.synchronize()
        });
        assert_eq!((scene.lender.waiting(), Arc::strong_count(&tensor)), (0, 1));
        println!("{source:?}: {seen} failures of the driver were reported");
        assert!(seen > 8, "only {seen} failures were reported");
    }
}

fn each_call_of_a_lender_fails_once_without_a_leak() {
    Actor::start("fail_every_call_of_a_lender").join();
}

/// Sends a parcel of a new loan for each message, of the kind of memory that it names. Without one it ends.
fn lend_parcels(channel: Channel) {
    let scene = Scene::new();
    channel.send(&scene.name(), &[]).expect("a borrower");
    let stream = scene.lender.device().new_stream().expect("a stream");
    while let Some(source) = channel.receive_timeout::<Option<Source>>(LIMIT).expect("a borrower").message {
        let lent = scene.lend(source, 10);
        Tensor::fill_on(lent.device_pointer(), 40, 7, &stream);
        lent.written_on(&stream).expect("an event");
        channel.send(&(), &[&lent.parcel().expect("a parcel")]).expect("a borrower");
    }
}

fn fail_every_call_of_a_borrower(_: Channel) {
    let lender = Actor::start_with("lend_parcels", &[("FAKE_CUDA_DELAY_US", "3000")]);
    let opened = Borrower::open(lender.hear::<String>()).expect("counts");
    let gpu = Device::new(0).expect("a GPU");
    let stream = gpu.new_stream().expect("a stream");
    for source in SOURCES {
        // Memory cannot be closed without a context.
        let seen = fail_every_call_but(&["cuCtxPushCurrent_v2", "cuThreadExchangeStreamCaptureMode"], || {
            lender.tell(&Some(source));
            let received = lender.channel.receive_timeout::<()>(LIMIT).expect("a parcel").arrays.remove(0);
            let answer = attach(&opened, &received.foreign(LENT_KIND).expect("a parcel")).and_then(|borrowed| {
                borrowed.used_on(&stream)?;
                borrowed.to_host()
            });
            // The double's streams forget an event a moment after it is complete.
            while gpu.synchronize().is_err() {}
            assert_eq!(answer?, ArrayD::from_elem(IxDyn(&[10]), 0x0707_0707));
            Ok(())
        });
        println!("{source:?}: {seen} failures of the driver were reported");
        assert!(seen > 8, "only {seen} failures were reported");
    }
    lender.tell(&None::<Source>);
    lender.join();
}

fn each_call_of_a_borrower_fails_once_without_a_leak() {
    Actor::start("fail_every_call_of_a_borrower").join();
}

/// Forks with loans out and in.
fn forked_lender_and_borrower(_: Channel) {
    let scene = Scene::new();
    let lent = SOURCES.map(|source| scene.lend(source, 10));
    let child = scene.borrower();
    let other = Actor::start("lend_parcels");
    let opened = Borrower::open(other.hear::<String>()).expect("counts");
    let parcels = SOURCES.map(|source| {
        other.tell(&Some(source));
        let received = other.channel.receive_timeout::<()>(LIMIT).expect("a parcel").arrays.remove(0);
        received.foreign(LENT_KIND).expect("a parcel")
    });
    let borrowed = parcels.each_ref().map(|parcel| attach(&opened, parcel).expect("an array"));
    let sent = lent.each_ref().map(|lent| lent.parcel().expect("a parcel"));
    // SAFETY: the child uses no lock that another thread may hold: it calls this crate, which refuses at once, and
    // ends.
    match unsafe { libc::fork() } {
        0 => {
            let mut refused = vec![
                Lender::create(scene.lender.device(), "forked-lender").map(drop),
                Borrower::open(scene.name()).map(drop),
                scene.lender.reclaim().map(drop),
                // SAFETY: it is refused.
                unsafe { scene.lender.lend::<u32, Ix1>(lent[0].device_pointer(), 10, ()) }.map(drop),
                attach(&opened, &parcels[0]).map(drop),
            ];
            for lent in &lent {
                refused.push(lent.parcel().map(drop));
                refused.push(lent.count().map(drop));
                refused.push(lent.synchronize());
            }
            for borrowed in &borrowed {
                refused.push(borrowed.to_host().map(drop));
                refused.push(borrowed.is_backed().map(drop));
            }
            let all = refused.iter().all(|answer| matches!(answer, Err(Error::ForkedChild)));
            drop((borrowed, lent, opened));
            let freed = scene.freed();
            drop(scene);
            // SAFETY: it has no requirements.
            unsafe { libc::_exit(i32::from(!all || freed != 0)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` is valid for writes.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "the child was not refused everything, or it has freed something");
        }
    }
    for borrowed in &borrowed {
        assert_eq!(borrowed.to_host().expect("a copy"), ArrayD::from_elem(IxDyn(&[10]), 0x0707_0707));
    }
    let [first, second, third] = &sent;
    assert_eq!(child.attach(&[first, second, third]).expect("arrays").len(), 3);
    child.end();
    drop(lent);
    assert_eq!(scene.freed(), 3);
    drop(borrowed);
    other.tell(&None::<Source>);
    other.join();
}

fn forked_child_is_refused_and_frees_nothing() {
    Actor::start("forked_lender_and_borrower").join();
}
