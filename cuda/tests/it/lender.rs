//! Memory of other libraries, lent: receivers read it, and its owner lives until the last of them is done or dead.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use libtest_mimic::Trial;
use ndarray::{Array, ArrayD, Dimension, Ix1, Ix2, IxDyn, ShapeBuilder};
use ndarray_shm::counted::{Channel, Foreign};
use ndarray_shm::{DType, Order, unlink};
use ndarray_shm_cuda::{Borrowed, Borrower, Device, DeviceArray, Error, LENT_KIND, Lender, Lent, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::failures::{fail_every_call, fail_every_call_but};
use crate::named;
use crate::support::{Actor, LIMIT, Role, descriptors, double, is_real, trials as tests};
use crate::tensors::{PIECE, Pool, SOURCES, Source, Tensor, use_gpu};

pub const ROLES: &[(&str, Role)] = named![
    borrower,
    lend_and_wait,
    lend_parcels,
    lend_a_thousand_times,
    count_openings,
    count_pools,
    attach_in_threads,
    forge,
    refused_lender,
    read_while_written,
    drop_while_used,
    fail_every_call_of_a_lender,
    fail_every_call_of_a_borrower,
    forked_lender_and_borrower,
];

pub fn trials() -> Vec<Trial> {
    let everywhere = tests(
        "lender",
        named![
            another_process_reads_what_is_lent,
            owner_waits_for_a_killed_borrower,
            borrower_of_a_killed_lender_is_told,
            thousand_loans_leave_nothing,
            empty_array_is_lent,
            threads_open_and_close_one_block,
            process_cannot_borrow_what_it_lends,
            parcel_is_attached_once,
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
            views_of_one_block_open_it_once,
            pool_is_imported_once,
            calls_that_a_system_refuses_are_unsupported,
            borrower_reads_after_the_lender_has_written,
            memory_is_closed_after_the_work_that_uses_it,
            each_call_of_a_lender_fails_once_without_a_leak,
            each_call_of_a_borrower_fails_once_without_a_leak,
        ],
    );
    everywhere.into_iter().chain(with_the_double).collect()
}

/// A lender with a file of its own, and what it has freed.
struct Scene {
    lender: Lender,
    freed: Arc<AtomicUsize>,
    _name: Name,
}

/// The name of a lender's counts, which this process removes at the end. The last member removes it too, unless the kernel still has the memory
/// of an ended one, because a program looks through /proc.
struct Name(String, u32);

impl Name {
    fn of(name: &str) -> Self {
        Self(name.to_owned(), std::process::id())
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        if self.1 == std::process::id() {
            let _ = unlink(self.0.as_str()); // fails if it is gone
        }
    }
}

impl Scene {
    fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("lender-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let removed = Name::of(&name);
        let lender = Lender::create(Device::new(0).expect("a GPU"), name).expect("a lender");
        Self { lender, freed: Arc::default(), _name: removed }
    }

    fn name(&self) -> String {
        self.lender.location().to_string()
    }

    fn freed(&self) -> usize {
        self.freed.load(Ordering::SeqCst)
    }

    /// Lends the elements 0, 1, 2 and so on.
    fn lend(&self, source: Source, length: usize) -> Lent<u32, Ix1> {
        self.lend_tensor(Tensor::new(source, &count_up(length), &self.freed), 0..length).expect("a loan")
    }

    /// Lends a part of a tensor.
    fn lend_tensor(&self, tensor: Tensor, part: std::ops::Range<usize>) -> Result<Lent<u32, Ix1>> {
        let pointer = tensor.pointer + 4 * part.start as u64;
        // SAFETY: the tensor has these elements, and frees them when it is dropped. Nothing writes to them.
        unsafe { self.lender.lend(pointer, part.len(), tensor) }
    }

    fn borrower(&self) -> Actor {
        let child = Actor::start("borrower");
        child.tell(&Task::Open(self.name()));
        child
    }
}

fn count_up(length: usize) -> Vec<u32> {
    (0..length as u32).collect()
}

/// What a borrower is told.
#[derive(Debug, Serialize, Deserialize)]
enum Task {
    /// Open the counts.
    Open(String),
    /// Attach the arrays of the message.
    Attach,
    /// Read all that was attached.
    Read,
    /// Drop what was attached first.
    Drop,
    /// Count objects of the driver.
    Live(String),
    /// Count calls of a function.
    Calls(String),
    /// Drop everything, and check that nothing is left.
    End,
}

/// An array, as a message says it: its shape, and its elements in C order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Copied(Vec<usize>, Vec<u32>);

impl Copied {
    fn of<D: Dimension>(array: &Array<u32, D>) -> Self {
        Self(array.shape().to_vec(), array.iter().copied().collect())
    }

    /// A vector with consecutive elements.
    fn range(elements: std::ops::Range<u32>) -> Self {
        Self(vec![elements.len()], elements.collect())
    }
}

fn copied(borrowed: &Borrowed<u32, IxDyn>) -> Result<Copied> {
    Ok(Copied::of(&borrowed.to_host()?))
}

/// The arrays that were asked for, or the name of an error.
type Answer = Result<Vec<Copied>, String>;

/// The name of an error's variant.
fn name_of(error: &dyn Debug) -> String {
    format!("{error:?}").split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default().to_owned()
}

fn attach(borrower: &Borrower, parcel: &Foreign) -> Result<Borrowed<u32, IxDyn>> {
    borrower.attach(parcel)
}

/// A child that borrows. It answers each task, and ends with its channel.
fn borrower(channel: Channel) {
    let Ok(Task::Open(name)) = channel.receive_timeout(LIMIT).map(|received| received.message) else { return };
    let opened = Borrower::open(name).expect("counts");
    let mut held: Vec<Borrowed<u32, IxDyn>> = Vec::new();
    while let Ok(received) = channel.receive_timeout::<Task>(LIMIT) {
        let answer = match received.message {
            Task::Open(_) | Task::End => break,
            Task::Attach => {
                let parcels = received.arrays.into_iter().map(|array| array.foreign(LENT_KIND).expect("a parcel"));
                let attached = parcels.map(|parcel| attach(&opened, &parcel)).collect::<Result<Vec<_>>>();
                attached.and_then(|attached| {
                    let read = attached.iter().map(copied).collect();
                    held.extend(attached);
                    read
                })
            }
            Task::Read => held.iter().map(copied).collect(),
            Task::Drop => {
                drop(held.remove(0));
                Ok(Vec::new())
            }
            Task::Live(kind) => Ok(vec![number(double::live(&kind))]),
            Task::Calls(call) => Ok(vec![number(double::calls(&call))]),
        };
        if channel.send(&answer.map_err(|error| name_of(&error)), &[]).is_err() {
            break;
        }
    }
    drop(held);
    if !is_real() {
        double::assert_no_violation();
        for kind in ["opened", "pooled", "pool", "physical", "mapping", "reservation", "event"] {
            assert_eq!(double::live(kind), 0, "{kind}");
        }
    }
}

fn number(number: u64) -> Copied {
    Copied(Vec::new(), vec![number as u32])
}

impl Actor {
    fn attach(&self, parcels: &[&Foreign]) -> Answer {
        let parcels: Vec<_> = parcels.iter().map(|parcel| *parcel as &dyn ndarray_shm::counted::Shareable).collect();
        self.channel.send(&Task::Attach, &parcels).expect("a borrower");
        self.hear()
    }

    fn ask(&self, task: Task) -> Answer {
        self.tell(&task);
        self.hear()
    }

    fn count(&self, task: Task) -> u32 {
        self.ask(task).expect("a number")[0].1[0]
    }

    /// Lets a borrower drop everything, and waits until it has ended well.
    fn end(self) {
        self.tell(&Task::End);
        self.join();
    }
}

fn another_process_reads_what_is_lent() {
    for source in SOURCES {
        let scene = Scene::new();
        let child = scene.borrower();
        let tensor = Tensor::new(source, &count_up(1000), &scene.freed);
        let lent = scene.lend_tensor(tensor, 600..900).expect("a loan");
        let expected = Copied::range(600..900);
        assert_eq!(child.attach(&[&lent.parcel().expect("a parcel")]), Ok(vec![expected.clone()]), "{source:?}");
        assert_eq!(lent.count().expect("a count"), 1);
        drop(lent);
        assert_eq!((scene.lender.reclaim().expect("a number"), scene.freed()), (0, 0), "the borrower holds it");
        assert_eq!(child.ask(Task::Read), Ok(vec![expected]));
        child.ask(Task::Drop).expect("an end");
        assert_eq!((scene.lender.reclaim().expect("a number"), scene.freed()), (1, 1), "{source:?}");

        // In Fortran order, in a shape of two axes.
        let tensor = Tensor::new(source, &count_up(6), &scene.freed);
        // SAFETY: the tensor has these elements, and frees them when it is dropped. Nothing writes to them.
        let lent = unsafe { scene.lender.lend::<u32, Ix2>(tensor.pointer, (2, 3).f(), tensor) }.expect("a loan");
        assert_eq!((lent.shape(), lent.order(), lent.dtype()), (&[2, 3][..], Order::F, DType::U32));
        let expected = Copied::of(&Array::from_shape_vec((2, 3).f(), count_up(6)).expect("six"));
        assert_eq!(child.attach(&[&lent.parcel().expect("a parcel")]), Ok(vec![expected]));
        child.end();
        assert_eq!(lent.count().expect("a count"), 0);
        drop(lent);
        assert_eq!(scene.freed(), 2);
    }
}

fn owner_waits_for_a_killed_borrower() {
    for source in SOURCES {
        let scene = Scene::new();
        let (mut dies, lives) = (scene.borrower(), scene.borrower());
        let lent = scene.lend(source, 1000);
        for child in [&dies, &lives] {
            child.attach(&[&lent.parcel().expect("a parcel")]).expect("an array");
        }
        assert_eq!(lent.count().expect("a count"), 2);
        drop(lent);
        dies.kill();
        assert_eq!((scene.lender.reclaim().expect("a number"), scene.freed()), (0, 0), "one lives");
        assert_eq!(lives.ask(Task::Read).expect("an array")[0].1.len(), 1000);
        let mut lives = lives;
        lives.kill();
        assert_eq!((scene.lender.reclaim().expect("a number"), scene.freed()), (1, 1), "{source:?}");
        assert_eq!(scene.lender.waiting(), 0);
    }
}

/// Lends from each kind of memory, sends two parcels of each, and waits to be killed.
fn lend_and_wait(channel: Channel) {
    let scene = Scene::new();
    channel.send(&scene.name(), &[]).expect("the test");
    let lent = SOURCES.map(|source| scene.lend(source, 1000));
    for lent in &lent {
        let parcels = [lent.parcel().expect("a parcel"), lent.parcel().expect("a parcel")];
        channel.send(&(), &[&parcels[0], &parcels[1]]).expect("the test");
    }
    let _ = channel.receive::<()>();
}

fn borrower_of_a_killed_lender_is_told() {
    for (index, source) in SOURCES.into_iter().enumerate() {
        let mut lender = Actor::start("lend_and_wait");
        let child = Actor::start("borrower");
        let name: String = lender.hear();
        let _name = Name::of(&name);
        child.tell(&Task::Open(name));
        let parcels: Vec<[Foreign; 2]> = SOURCES
            .iter()
            .map(|_| {
                let received = lender.channel.receive_timeout::<()>(LIMIT).expect("parcels");
                let parcels = received.arrays.into_iter().map(|array| array.foreign(LENT_KIND).expect("a parcel"));
                parcels.collect::<Vec<_>>().try_into().expect("two parcels")
            })
            .collect();
        let [first, second] = &parcels[index];
        let right = child.attach(&[first]);
        assert_eq!(right.as_ref().map(|arrays| arrays[0].1.len()), Ok(1000));
        lender.kill();
        if source == Source::Segment {
            assert_eq!(child.attach(&[second]), right, "physical memory outlives the lender");
            assert_eq!(child.ask(Task::Read).map(|arrays| arrays.len()), Ok(2));
        } else {
            if !is_real() {
                assert_eq!(child.attach(&[second]), Err("LenderGone".into()), "{source:?}");
            }
            assert_eq!(child.ask(Task::Read), Err("LenderGone".into()), "{source:?}");
        }
        child.end();
    }
}

/// Lends to a borrower of its own a thousand times, from each kind of memory, and counts what is left in both.
fn lend_a_thousand_times(_: Channel) {
    const KINDS: &[&str] = &["allocation", "opened", "pooled", "pool", "physical", "mapping", "reservation", "event"];
    let live = || KINDS.iter().map(|kind| if is_real() { 0 } else { double::live(kind) }).collect::<Vec<_>>();
    for source in SOURCES {
        let scene = Scene::new();
        let child = scene.borrower();
        let mut before = None;
        for round in 0..1000 {
            let lent = scene.lend(source, 100 + round);
            let right = child.attach(&[&lent.parcel().expect("a parcel")]).expect("an array");
            assert_eq!(right[0].1.len(), 100 + round);
            drop(lent);
            child.ask(Task::Drop).expect("an end");
            assert_eq!(scene.lender.reclaim().expect("a number"), 1, "{source:?}, round {round}");
            let now = (live(), descriptors());
            // The first round makes what stays: the driver's own descriptors.
            assert_eq!(*before.get_or_insert_with(|| now.clone()), now, "{source:?}, round {round}");
        }
        assert_eq!(scene.freed(), 1000);
        child.end();
    }
    if !is_real() {
        double::assert_no_violation();
    }
}

fn thousand_loans_leave_nothing() {
    Actor::start("lend_a_thousand_times").join();
}

fn empty_array_is_lent() {
    let scene = Scene::new();
    let child = scene.borrower();
    // SAFETY: no element is at the address.
    let lent = unsafe { scene.lender.lend::<u32, Ix2>(0, (0, 3), ()) }.expect("a loan");
    let expected = Copied(vec![0, 3], Vec::new());
    assert_eq!(child.attach(&[&lent.parcel().expect("a parcel")]), Ok(vec![expected]));
    child.end();
    assert_eq!(lent.count().expect("a count"), 0);
}

fn process_cannot_borrow_what_it_lends() {
    let scene = Scene::new();
    let borrower = Borrower::open(scene.name()).expect("counts");
    for source in SOURCES {
        let lent = scene.lend(source, 10);
        let parcel = lent.parcel().expect("a parcel");
        let refused = attach(&borrower, &parcel).expect_err("it is this process");
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        assert_eq!(lent.count().expect("a count"), 1, "the parcel is not spent");
        assert!(lent.revoke(&parcel).expect("a parcel"));
        assert_eq!(lent.count().expect("a count"), 0);
    }
    assert_eq!(scene.freed(), 3);
}

fn parcel_is_attached_once() {
    let scene = Scene::new();
    let child = scene.borrower();
    let lent = scene.lend(Source::Malloc, 10);
    let [first, second] = [lent.parcel().expect("a parcel"), lent.parcel().expect("a parcel")];
    child.attach(&[&first]).expect("an array");
    assert_eq!(child.attach(&[&first]), Err("Host".into()), "it is spent");
    assert!(!lent.revoke(&first).expect("a parcel"), "it was received");
    assert!(lent.revoke(&second).expect("a parcel") && !lent.revoke(&second).expect("a parcel"));
    assert_eq!(child.attach(&[&second]), Err("Host".into()), "it is revoked");
    let other = Scene::new();
    let foreign = other.lend(Source::Malloc, 10).parcel().expect("a parcel");
    assert_eq!(child.attach(&[&foreign]), Err("Host".into()), "it is of another lender");
    child.end();
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
        refused("another version", &|parcel| forged(parcel, |note| note["version"] = json!(2)), malformed);
        refused("no note", &|parcel| forged(parcel, |note| *note = json!("lent")), malformed);
        refused("no GPU", &|parcel| forged(parcel, |note| note["device"] = json!("GPU-1")), malformed);
        let unknown = "GPU-00112233-4455-6677-8899-aabbccddeeff";
        let make = |parcel: &Foreign| forged(parcel, |note| note["device"] = json!(unknown));
        refused("a GPU that is not there", &make, &["DeviceNotVisible"]);
        let make = |parcel: &Foreign| forged(parcel, |note| note["way"] = json!("Nothing"));
        refused("elements in no memory", &make, malformed);
        let make = |parcel: &Foreign| forged(parcel, |note| note["events"] = json!([[1, 2, 3]]));
        refused("a short event", &make, malformed);
        let make = |parcel: &Foreign| forged(parcel, |note| note["events"] = json!([vec![7; 64]]));
        refused("an event of no process", &make, &["SenderGone", "Driver"]);
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
            refused("a descriptor of nothing", &make, &["Unsupported"]);
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

/// Lends views of one block, which its borrower opens once.
fn count_openings(_: Channel) {
    for (source, call, kind) in
        [(Source::Malloc, "cuIpcOpenMemHandle_v2", "opened"), (Source::Pool, "cuMemPoolImportPointer", "pooled")]
    {
        let scene = Scene::new();
        let child = scene.borrower();
        let tensor = Arc::new(Tensor::new(source, &count_up(100), &scene.freed));
        let view = |first: usize| {
            // SAFETY: the tensor has these elements, and frees them when it is dropped. Nothing writes to them.
            unsafe { scene.lender.lend::<u32, Ix1>(tensor.pointer + 4 * first as u64, 50, Arc::clone(&tensor)) }
        };
        let lent = [view(0).expect("a loan"), view(50).expect("a loan")];
        for (lent, first) in lent.iter().zip([0, 50]) {
            let expected = Copied::range(first..first + 50);
            assert_eq!(child.attach(&[&lent.parcel().expect("a parcel")]), Ok(vec![expected]));
        }
        assert_eq!(child.count(Task::Calls(call.into())), 1, "{source:?}");
        assert_eq!(child.count(Task::Live(kind.into())), 1);
        child.ask(Task::Drop).expect("an end");
        assert_eq!(child.ask(Task::Read).expect("the other view")[0].1[0], 50);
        child.ask(Task::Drop).expect("an end");
        assert_eq!(child.count(Task::Live(kind.into())), 0);
        // It can be opened again.
        child.attach(&[&lent[0].parcel().expect("a parcel")]).expect("an array");
        child.end();
    }
}

fn views_of_one_block_open_it_once() {
    Actor::start("count_openings").join();
}

const THREADS: usize = 2;
const VIEWS: usize = 2000;

/// Attaches and drops views of blocks in several threads.
fn attach_in_threads(channel: Channel) {
    let opened = Borrower::open(channel.receive_timeout::<String>(LIMIT).expect("a name").message).expect("counts");
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for number in 0..VIEWS {
                    let received = channel.receive_timeout::<()>(LIMIT).expect("a parcel").arrays.remove(0);
                    let view = attach(&opened, &received.foreign(LENT_KIND).expect("a parcel")).expect("a view");
                    if number % 10 == 0 {
                        assert_eq!(copied(&view).expect("a copy"), Copied::range(0..10));
                    }
                }
            });
        }
    });
    if !is_real() {
        double::assert_no_violation();
        assert_eq!(["opened", "pooled", "pool", "mapping"].map(double::live), [0; 4]);
    }
}

fn threads_open_and_close_one_block() {
    for source in SOURCES {
        let scene = Scene::new();
        let child = Actor::start("attach_in_threads");
        child.tell(&scene.name());
        let lent = scene.lend(source, 10);
        for _ in 0..THREADS * VIEWS {
            child.channel.send(&(), &[&lent.parcel().expect("a parcel")]).expect("a borrower");
        }
        child.join();
        assert_eq!(lent.count().expect("a count"), 0, "{source:?}");
    }
}

/// Lends two allocations of one pool, and one of another.
fn count_pools(_: Channel) {
    let scene = Scene::new();
    let child = scene.borrower();
    let pools = [Pool::new(true), Pool::new(true)];
    let lent = [&pools[0], &pools[0], &pools[1]].map(|pool| {
        let tensor = Tensor::pooled(pool, 40, &scene.freed).with(&count_up(10));
        scene.lend_tensor(tensor, 0..10).expect("a loan")
    });
    let (before, exports) = (descriptors(), double::calls("cuMemPoolExportToShareableHandle"));
    assert_eq!(exports, 2, "each pool is exported once");
    for lent in &lent {
        child.attach(&[&lent.parcel().expect("a parcel")]).expect("an array");
    }
    assert_eq!(child.count(Task::Calls("cuMemPoolImportFromShareableHandle".into())), 2);
    assert_eq!(child.count(Task::Live("pool".into())), 2);
    for left in [2, 1, 0] {
        child.ask(Task::Drop).expect("an end");
        assert_eq!(child.count(Task::Live("pool".into())), left.min(2));
    }
    drop(lent);
    assert_eq!((scene.freed(), descriptors()), (3, before - 5), "those of two pools and three allocations are closed");
    child.end();
}

fn pool_is_imported_once() {
    Actor::start("count_pools").join();
}

/// As slow as a GPU is: each operation takes 20 ms.
const SLOW: &[(&str, &str)] = &[("FAKE_CUDA_DELAY_US", "20000")];

/// Lends memory that its GPU still writes to.
fn read_while_written(_: Channel) {
    for source in SOURCES {
        let scene = Scene::new();
        let child = scene.borrower();
        let lent = scene.lend(source, 1000);
        let stream = scene.lender.device().new_stream().expect("a stream");
        for value in 1..=7 {
            Tensor::fill_on(lent.device_pointer(), 4000, value, &stream);
        }
        lent.written_on(&stream).expect("an event");
        let parcel = lent.parcel().expect("a parcel");
        assert!(!parcel.note().contains("\"events\":[]"), "nothing was left to wait for: {}", parcel.note());
        drop(lent); // the owner keeps the events
        assert_eq!(child.attach(&[&parcel]), Ok(vec![Copied(vec![1000], vec![0x0707_0707; 1000])]), "{source:?}");
        child.end();
        assert_eq!(scene.lender.reclaim().expect("a number"), 1);
    }
}

fn borrower_reads_after_the_lender_has_written() {
    Actor::start_with("read_while_written", SLOW).join();
}

/// Attaches an array, lets its GPU use it, and drops it at once.
fn drop_while_used(channel: Channel) {
    let received = channel.receive_timeout::<String>(LIMIT).expect("a task");
    let borrower = Borrower::open(received.message).expect("counts");
    let stream = Device::new(0).expect("a GPU").new_stream().expect("a stream");
    for array in received.arrays {
        let parcel = array.foreign(LENT_KIND).expect("a parcel");
        let held = attach(&borrower, &parcel).expect("an array");
        held.wait_on(&stream).expect("order");
        use_gpu();
        for value in 1..=3 {
            Tensor::fill_on(held.device_pointer(), 4000, value, &stream);
        }
        held.used_on(&stream).expect("an event");
        drop(held);
        double::assert_no_violation(); // closing memory under work would be one
    }
    channel.send(&(), &[]).expect("the test");
}

fn memory_is_closed_after_the_work_that_uses_it() {
    let scene = Scene::new();
    let child = Actor::start_with("drop_while_used", SLOW);
    let lent = SOURCES.map(|source| scene.lend(source, 1000));
    let [first, second, third] = lent.each_ref().map(|lent| lent.parcel().expect("a parcel"));
    child.channel.send(&scene.name(), &[&first, &second, &third]).expect("a borrower");
    child.hear::<()>();
    child.join();
    for lent in lent {
        assert_eq!(lent.count().expect("a count"), 0);
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
        assert!(seen > 10, "only {seen} failures were reported");
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
        let seen = fail_every_call_but(&["cuCtxPushCurrent_v2"], || {
            lender.tell(&Some(source));
            let received = lender.channel.receive_timeout::<()>(LIMIT).expect("a parcel").arrays.remove(0);
            let answer = attach(&opened, &received.foreign(LENT_KIND).expect("a parcel")).and_then(|borrowed| {
                borrowed.wait_on(&stream)?;
                borrowed.used_on(&stream)?;
                borrowed.to_host()
            });
            // The double's streams forget an event a moment after it is complete.
            while gpu.synchronize().is_err() {}
            assert_eq!(answer?, ArrayD::from_elem(IxDyn(&[10]), 0x0707_0707));
            Ok(())
        });
        println!("{source:?}: {seen} failures of the driver were reported");
        assert!(seen > 10, "only {seen} failures were reported");
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
    // SAFETY: the child uses no lock that another thread may hold: it calls this crate, which refuses at once, and ends.
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
