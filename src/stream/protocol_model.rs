//! The words of a stream under loom: a writer, its successor, readers and a cursor, in every order. In some tests the
//! writer is killed after each possible step.
//!
//! The kernel's locks are words too. Taking one acquires what the process that released it had written, and nothing
//! else is assumed of system calls. The lock of a killed process is released by the kernel. A successor sees all that
//! the process before has stored, because it takes its lock on WRITER first.
//!
//! loom tries no order in which a load returns a value that is stored later, and it takes `SeqCst` for `AcqRel`, but
//! for fences.

use std::cell::Cell as Plain;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use loom::cell::Cell;
use loom::model::Builder;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;

use super::*;
use crate::array::{DType, Description, Order};
use crate::stream::cursors::{self, Backpressure};
use crate::stream::memory::SharedWord;

impl SharedWord for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    fn fence(order: Ordering) {
        fence(order);
    }
}

/// The steps that a process has before it is killed. Each access of a word is one.
struct Steps(Plain<u32>);

impl Steps {
    fn step(&self) {
        match self.0.get().checked_sub(1) {
            Some(left) => self.0.set(left),
            None => resume_unwind(Box::new(Killed)),
        }
    }
}

/// What unwinds a process that is killed.
struct Killed;

/// A word of a process that is killed when it has no steps left.
struct Mortal<'a>(&'a AtomicU64, &'a Steps);

impl SharedWord for Mortal<'_> {
    fn load(&self, order: Ordering) -> u64 {
        self.1.step();
        self.0.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.1.step();
        self.0.store(value, order);
    }

    fn fence(order: Ordering) {
        fence(order);
    }
}

/// The words of a file: where each row of them begins, and the words.
struct Memory<W>(Vec<(u64, Vec<W>)>);

impl Memory<AtomicU64> {
    fn new(rows: &[(u64, usize)]) -> Self {
        Self(rows.iter().map(|(at, count)| (*at, (0..*count).map(|_| AtomicU64::new(0)).collect())).collect())
    }

    fn mortal<'a>(&'a self, steps: &'a Steps) -> Memory<Mortal<'a>> {
        let row = |(at, words): &'a (u64, Vec<_>)| (*at, words.iter().map(|word| Mortal(word, steps)).collect());
        Memory(self.0.iter().map(row).collect())
    }
}

impl<W: SharedWord> StreamWords for Memory<W> {
    type Word = W;

    fn word(&self, at: u64) -> &W {
        &self.words(at, 1)[0]
    }

    fn words(&self, at: u64, count: usize) -> &[W] {
        let index = |from: u64| usize::try_from((at - from) / 8).expect("few");
        let row = self.0.iter().find(|(from, words)| *from <= at && index(*from) < words.len());
        let (from, words) = row.expect("the model has this word");
        &words[index(*from)..][..count]
    }
}

/// What the word of a slot's lock says, or 0.
const READER: u64 = 1;
const WRITER: u64 = 2;
/// The files and the slots' locks.
struct Stream {
    geometry: StreamGeometry,
    frames: Memory<AtomicU64>,
    keeper: Memory<AtomicU64>,
    locks: Vec<AtomicU64>,
    /// The elements of frames that are held, which are no words: loom reports accesses that nothing orders.
    elements: Vec<Cell<u64>>,
}

type Done<R> = Result<R, Infallible>;

impl Stream {
    fn new(slots: usize, is_copied: bool) -> Arc<Self> {
        let description = Description::new(DType::U64, &[1], Order::C).expect("small");
        let geometry = StreamGeometry { description, slots, fields: Vec::new(), is_copied, keeper: 0 };
        let mut rows = vec![(StreamGeometry::HEAD, 1), (geometry.place(0), slots)];
        for slot in 0..slots {
            rows.extend([(StreamGeometry::entry(slot), 1), (StreamGeometry::meta(slot), 1)]);
            rows.extend(is_copied.then(|| (geometry.elements(slot), 1)));
        }
        #[allow(clippy::arc_with_non_send_sync)] // loom runs its threads on one
        Arc::new(Self {
            geometry,
            frames: Memory::new(&rows),
            keeper: Memory::new(&[(16, 1), (128, 2)]), // of one cursor, without its name
            locks: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            elements: (0..slots).map(|_| Cell::new(0)).collect(),
        })
    }

    fn table(&self) -> FrameTable<'_, Memory<AtomicU64>> {
        FrameTable::new(&self.frames, &self.geometry)
    }

    fn try_lock(&self, slot: usize, process: u64) -> bool {
        self.locks[slot].compare_exchange(0, process, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn unlock(&self, slot: usize) {
        self.locks[slot].store(0, Ordering::Release);
    }

    /// Locks a frame for reading, or finds one that can be copied.
    fn lock(&self, number: u64) -> Locked {
        let Some(slot) = self.table().slot_of(number) else { return Locked::Gone };
        if self.geometry.is_copied {
            return Locked::Slot(slot);
        }
        let lock = || Done::Ok(self.try_lock(slot, READER));
        let unlock = || {
            self.unlock(slot);
            Done::Ok(())
        };
        let Ok(locked) = self.table().hold(slot, number, lock, unlock);
        locked
    }

    /// Returns the frame in a slot that was locked. `None`: it was to be copied, and was overwritten.
    fn frame(&self, slot: usize, number: u64) -> Option<Seen> {
        let contents = if self.geometry.is_copied {
            let mut meta = [0; 8];
            let rest = || self.frames.copy_out(StreamGeometry::meta(slot), &mut meta);
            let (elements, ()) = self.table().copy(slot, number, rest)?;
            assert_eq!(elements, [u64::from_le_bytes(meta)], "frame {number} is torn");
            elements[0]
        } else {
            let contents = self.elements[slot].get();
            self.unlock(slot);
            contents
        };
        assert_eq!(contents / 10, number, "the elements of another frame");
        Some(Seen { number, contents })
    }

    fn get(&self, number: u64) -> Option<Seen> {
        match self.lock(number) {
            Locked::Slot(slot) => self.frame(slot, number),
            Locked::Gone | Locked::Busy => None,
        }
    }

    /// Returns the next frame of a cursor.
    fn next(&self, which: WhichFrame, last: u64, is_cursor: bool) -> Option<Seen> {
        let take = |number| {
            Done::Ok(match self.lock(number) {
                Locked::Slot(slot) => self.frame(slot, number).map(Some),
                Locked::Busy if is_cursor => Some(None),
                Locked::Gone | Locked::Busy => None,
            })
        };
        let Ok(found) = self.table().find(which, last, take);
        found
    }
}

/// A frame as a reader saw it. Its contents are a word, which it has twice if it is copied: number and epoch. So a
/// successor writes another one under the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    number: u64,
    contents: u64,
}

/// A reader that asks for one frame after another.
#[derive(Default)]
struct Reader {
    seen: Vec<Seen>,
}

impl Reader {
    fn last(&self) -> u64 {
        self.seen.last().map_or(0, |seen| seen.number)
    }

    fn look(&mut self, stream: &Stream, which: WhichFrame) {
        let found = stream.next(which, self.last(), false);
        assert!(found.is_none_or(|seen| seen.number > self.last()), "{found:?} after {:?}", self.seen);
        self.seen.extend(found);
    }
}

/// A writer as it begins: it has repaired what the one before has left.
fn start(stream: &Stream) -> SlotOrder {
    SlotOrder::repaired(&stream.table())
}

/// Writes a frame, unless all slots are held.
fn write_one(stream: &Stream, order: &mut SlotOrder, epoch: u64, steps: &Steps) {
    let (frames, keeper) = (stream.frames.mortal(steps), stream.keeper.mortal(steps));
    let table = FrameTable::new(&frames, &stream.geometry);
    let is_kept = |number| cursors::hold(&keeper, number, |_| Done::Ok(true));
    let try_lock = |slot: usize| {
        steps.step();
        Done::Ok(stream.try_lock(slot, WRITER))
    };
    let Ok(slot) = order.take(&table, is_kept, try_lock);
    let Some(slot) = slot else { return };
    let contents = (order.head() + 1) * 10 + epoch;
    if stream.geometry.is_copied {
        frames.copy_in(StreamGeometry::meta(slot), &contents.to_le_bytes());
        frames.copy_words_in(stream.geometry.elements(slot), &[contents]);
    } else {
        steps.step();
        stream.elements[slot].set(contents);
        steps.step();
        stream.unlock(slot);
    }
    order.publish(&table, slot);
}

/// Calls `act`, and kills it after this many steps. Returns `None` if it was killed.
fn killed_after<R>(steps: u32, act: impl FnOnce(&Steps) -> R) -> Option<R> {
    let steps = Steps(Plain::new(steps));
    match catch_unwind(AssertUnwindSafe(|| act(&steps))) {
        Ok(done) => Some(done),
        Err(killed) if killed.is::<Killed>() => None,
        Err(failure) => resume_unwind(failure),
    }
}

/// Writes frames, as many of these as find a slot.
fn write(stream: &Stream, order: &mut SlotOrder, epoch: u64, frames: usize) {
    let for_ever = Steps(Plain::new(u32::MAX));
    (0..frames).for_each(|_| write_one(stream, order, epoch, &for_ever));
}

/// Writes a frame, and is killed after this many steps. Returns whether it was killed.
fn write_killed(stream: &Stream, order: &mut SlotOrder, epoch: u64, steps: u32) -> bool {
    let is_killed = killed_after(steps, |steps| write_one(stream, order, epoch, steps)).is_none();
    for (slot, lock) in stream.locks.iter().enumerate() {
        if lock.load(Ordering::Relaxed) == WRITER {
            stream.unlock(slot); // as the kernel does
        }
    }
    is_killed
}

/// Writes frames while no other thread is there.
fn prepared(slots: usize, is_copied: bool, frames: usize) -> (Arc<Stream>, SlotOrder) {
    let stream = Stream::new(slots, is_copied);
    let mut order = start(&stream);
    write(&stream, &mut order, 1, frames);
    (stream, order)
}

const KINDS: [bool; 2] = [true, false];

/// Runs a test in every order with at most this many preemptions, or as many as `LOOM_MAX_PREEMPTIONS` says.
fn model(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.check(test);
}

fn spawn<R: 'static>(stream: &Arc<Stream>, act: impl FnOnce(&Stream) -> R + 'static) -> thread::JoinHandle<R> {
    let stream = Arc::clone(stream);
    thread::spawn(move || act(&stream))
}

/// Each frame is seen whole, at most once and in order, and the newest one is always there.
#[test]
fn reader_sees_whole_frames_in_order() {
    for is_copied in KINDS {
        for which in [WhichFrame::Next, WhichFrame::Latest] {
            model(2, move || {
                let (stream, mut order) = prepared(2, is_copied, 2);
                let writer = spawn(&stream, move |stream| write(stream, &mut order, 1, 2));
                let mut reader = Reader::default();
                (0..2).for_each(|_| reader.look(&stream, which));
                // One that is held can be locked by the writer, for which the model does not wait.
                assert!(!is_copied || !reader.seen.is_empty(), "the newest frame is always there");
                writer.join().expect("it ends");
                (0..2).for_each(|_| reader.look(&stream, which));
                assert_eq!(reader.last(), stream.table().head(), "{:?}", reader.seen);
            });
        }
    }
}

/// The writer is killed at each step of its frame. The successor writes a frame with the same number, unless the one
/// before was there.
#[test]
fn frame_that_was_seen_does_not_change_when_its_writer_is_killed() {
    for (is_copied, is_by_number) in [(true, true), (true, false), (false, true), (false, false)] {
        for steps in 0.. {
            let killed = Arc::new(AtomicBool::new(false));
            let is_killed = Arc::clone(&killed);
            model(2, move || {
                let (stream, mut order) = prepared(2, is_copied, 2);
                let is_killed = Arc::clone(&is_killed);
                let writers = spawn(&stream, move |stream| {
                    is_killed.store(write_killed(stream, &mut order, 2, steps), Ordering::Relaxed);
                    let mut order = start(stream);
                    let most = (0..2).map(|slot| stream.table().number(slot)).max();
                    assert_eq!((most, stream.table().head()), (Some(order.head()), order.head()));
                    write(stream, &mut order, 3, 1);
                });
                let mut reader = Reader::default();
                let early = if is_by_number { stream.get(3) } else { None };
                if !is_by_number {
                    reader.look(&stream, WhichFrame::Next);
                }
                writers.join().expect("it ends");
                (0..2).for_each(|_| reader.look(&stream, WhichFrame::Next));
                assert_eq!(reader.last(), stream.table().head(), "{:?}", reader.seen);
                for seen in early.iter().chain(&reader.seen) {
                    let now = stream.get(seen.number);
                    assert!(now.is_none_or(|now| now == *seen), "{seen:?}, then {now:?}");
                }
            });
            if !killed.load(Ordering::Relaxed) {
                break;
            }
        }
    }
}

/// Frame 1 was held while its place in the ring was given to frame 4. A successor finds both in the slots. It is killed
/// at each step, and the next one begins again.
#[test]
fn successor_hides_no_frame_while_it_repairs_the_ring() {
    for steps in 0..10 {
        model(2, move || {
            let (stream, mut order) = prepared(3, false, 3);
            let Locked::Slot(held) = stream.lock(1) else { panic!("it is there") };
            write(&stream, &mut order, 1, 2);
            assert_eq!(stream.table().head(), 5);
            let successors = spawn(&stream, move |stream| {
                killed_after(steps, |steps| {
                    SlotOrder::repaired(&FrameTable::new(&stream.frames.mortal(steps), &stream.geometry))
                });
                assert_eq!(start(stream).head(), 5);
            });
            let seen = stream.next(WhichFrame::Next, 3, true);
            assert_eq!(seen.map(|seen| seen.number), Some(4));
            successors.join().expect("it ends");
            stream.unlock(held);
        });
    }
}

/// A cursor comes while the writer chooses slots: it gets each frame after the one with which it begins.
#[test]
fn new_cursor_misses_no_frame() {
    for is_copied in KINDS {
        model(3, move || {
            let (stream, mut order) = prepared(2, is_copied, 1);
            let writer = spawn(&stream, move |stream| write(stream, &mut order, 2, 3));
            cursors::show(&stream.keeper, 0, stream.table().head(), Backpressure::Wait);
            let mut last = loop {
                if let Some(acknowledged) = cursors::begin(&stream.keeper, 0, || stream.table().head()) {
                    break acknowledged;
                }
                thread::yield_now();
            };
            let mut next = || {
                if let Some(seen) = stream.next(WhichFrame::Next, last, true) {
                    assert_eq!(seen.number, last + 1);
                    last = seen.number;
                }
            };
            next();
            writer.join().expect("it ends");
            (0..3).for_each(|_| next());
            assert_eq!(last, stream.table().head());
        });
    }
}
