//! Memory of other libraries, lent: receivers read it, and its owner lives until the last of them is done or dead.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use libtest_mimic::Trial;
use ndarray::{Array, Dimension, Ix1, Ix2, IxDyn, ShapeBuilder};
use ndarray_shm::counted::{Channel, Foreign};
use ndarray_shm::{DType, Order, unlink};
use ndarray_shm_cuda::{Borrowed, Borrower, Device, Error, LENT_KIND, Lender, Lent, Result};
use serde::{Deserialize, Serialize};

use crate::named;
use crate::support::{Actor, LIMIT, Role, descriptors, double, is_real, trials as tests};
use crate::tensors::{Pool, SOURCES, Source, Tensor, use_gpu};

pub const ROLES: &[(&str, Role)] = named![
    borrower,
    lend_and_wait,
    lend_a_thousand_times,
    count_openings,
    count_pools,
    attach_in_threads,
    read_while_written,
    drop_while_used,
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
            borrower_reads_after_the_lender_has_written,
            memory_is_closed_after_the_work_that_uses_it,
        ],
    );
    everywhere.into_iter().chain(with_the_double).collect()
}

/// A lender with a file of its own, and what it has freed.
pub struct Scene {
    pub lender: Lender,
    pub freed: Arc<AtomicUsize>,
    _name: Name,
}

/// The name of a lender's counts, which this process removes at the end. The last member removes it too, unless the
/// kernel still has the memory of an ended one, because a program looks through /proc.
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
    pub fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("lender-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let removed = Name::of(&name);
        let lender = Lender::create(Device::new(0).expect("a GPU"), name).expect("a lender");
        Self { lender, freed: Arc::default(), _name: removed }
    }

    pub fn name(&self) -> String {
        self.lender.location().to_string()
    }

    pub fn freed(&self) -> usize {
        self.freed.load(Ordering::SeqCst)
    }

    /// Lends the elements 0, 1, 2 and so on.
    pub fn lend(&self, source: Source, length: usize) -> Lent<u32, Ix1> {
        self.lend_tensor(Tensor::new(source, &count_up(length), &self.freed), 0..length).expect("a loan")
    }

    /// Lends a part of a tensor.
    pub fn lend_tensor(&self, tensor: Tensor, part: std::ops::Range<usize>) -> Result<Lent<u32, Ix1>> {
        let pointer = tensor.pointer + 4 * part.start as u64;
        // SAFETY: the tensor has these elements, and frees them when it is dropped. Nothing writes to them.
        unsafe { self.lender.lend(pointer, part.len(), tensor) }
    }

    pub fn borrower(&self) -> Actor {
        let child = Actor::start("borrower");
        child.tell(&Task::Open(self.name()));
        child
    }
}

pub fn count_up(length: usize) -> Vec<u32> {
    (0..length as u32).collect()
}

/// What a borrower is told.
#[derive(Debug, Serialize, Deserialize)]
pub enum Task {
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
pub struct Copied(pub Vec<usize>, pub Vec<u32>);

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
pub type Answer = Result<Vec<Copied>, String>;

/// The name of an error's variant.
fn name_of(error: &dyn Debug) -> String {
    format!("{error:?}").split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default().to_owned()
}

pub fn attach(borrower: &Borrower, parcel: &Foreign) -> Result<Borrowed<u32, IxDyn>> {
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
    pub fn attach(&self, parcels: &[&Foreign]) -> Answer {
        let parcels: Vec<_> = parcels.iter().map(|parcel| *parcel as &dyn ndarray_shm::counted::Shareable).collect();
        self.channel.send(&Task::Attach, &parcels).expect("a borrower");
        self.hear()
    }

    pub fn ask(&self, task: Task) -> Answer {
        self.tell(&task);
        self.hear()
    }

    fn count(&self, task: Task) -> u32 {
        self.ask(task).expect("a number")[0].1[0]
    }

    /// Lets a borrower drop everything, and waits until it has ended well.
    pub fn end(self) {
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
        drop(lent);
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
