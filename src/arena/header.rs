//! The arena header: the mapped file as tables of atomics, and this process's seat among the members.
//!
//! This is the only file of the arena that turns addresses into references. All references to tables are to atomics.
//! The bytes of blocks are returned as pointers; `array.rs` says when they may be dereferenced.

use std::fmt;
use std::fs::File;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::arena::hints::BlockHints;
use crate::arena::sent::SentList;
use crate::arena::tables::entries::{BlockEntry, EntryTable, Released, SEATS};
use crate::arena::tables::event::Event;
use crate::arena::tables::geometry::{ENTRIES_OF_SPAN, ENTRY, Geometry, MEMBER, MEMBERS_AT, QUEUE_HEAD, SPAN};
use crate::arena::tables::ring::{Message, Ring, RingRefusal};
use crate::arena::tables::senders::SenderWord;
use crate::backend::{DraftOptions, Turn};
use crate::backoff::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::manager_client;
use crate::os::{self, LockRange};
use crate::random;
use crate::segment::counts::State;
use crate::segment::footer::Kind;
use crate::segment::trailer::Trailer;
use crate::segment::{Aftermath, DraftSegment, Home, Mark, Segment, Verdict, reclaim_if_orphaned};

/// Time limit for locks that members hold only for moments (RECOVER, SPANS), where the caller has set none. It passes
/// only if the lock's holder is stopped.
pub(super) const TURN_WAIT: Duration = Duration::from_secs(10);
/// The same limit in a `Drop`, which must not wait long. Another process can reclaim what is left.
pub(super) const DROP_WAIT: Duration = Duration::from_millis(100);

/// One member's entry in the table.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Member {
    /// 0: free, and nothing is left of an earlier member. Otherwise the number that this member got when it joined.
    pub(super) state: AtomicU64,
    /// Number of the process, only for display.
    pub(super) process: AtomicU64,
    _rest_of_the_cache_line: [u64; 6],
}

const _: () = assert!(size_of::<Member>() as u64 == MEMBER);
const _: () = assert!(size_of::<BlockEntry<AtomicU64>>() as u64 == ENTRY);

/// The head of a queue. Its parts have cache lines of their own, so that writing to one does not slow down access to
/// another.
#[repr(C)]
#[derive(Debug)]
struct QueueHead {
    head: Line<AtomicU64>,
    tail: Line<AtomicU64>,
    filled: Line<Filled>,
    emptied: Line<AtomicU32>,
}

/// The words that a receiver loads when it finds no message.
#[repr(C)]
#[derive(Debug)]
struct Filled {
    event: AtomicU32,
    _unused: u32,
    senders: AtomicU64,
}

/// A word with a cache line of its own.
#[repr(C, align(64))]
#[derive(Debug)]
struct Line<W>(W);

const _: () = assert!(size_of::<QueueHead>() as u64 == QUEUE_HEAD);

/// A queue in shared memory: its messages, its registered senders, and the events that receivers and senders sleep on.
#[derive(Debug)]
pub(crate) struct QueueWords<'a> {
    pub(crate) ring: Ring<'a, AtomicU64>,
    /// A message was sent, the last registered sender has left, or the queue was closed.
    pub(crate) filled: Event<'a>,
    /// The members that have registered as senders.
    pub(crate) senders: SenderWord<'a>,
    /// A message was received, or the queue was closed.
    pub(crate) emptied: Event<'a>,
}

/// The entry table in shared memory, for this member.
pub(crate) type SharedEntries<'a> = EntryTable<'a, AtomicU64, AtomicU32>;

/// How many descriptors are open at once while the name of a file is removed that no process uses. A creator has so
/// many in reserve, so that it can do so if it fails for lack of them.
const DESCRIPTORS_TO_REMOVE: usize = 3;

/// A mapped arena and this process's membership.
#[derive(Debug)]
pub(crate) struct ArenaHeader {
    pub(super) home: Home,
    pub(super) geometry: Geometry,
    /// Random number of the arena.
    id: u128,
    /// Fork generation of the process that joined. A forked child is not a member.
    generation: u64,
    pub(super) membership: Membership,
    /// How many holds this process has on each block.
    held: Box<[AtomicU32]>,
    /// Where this process found free blocks.
    pub(super) hints: BlockHints,
    /// For each queue, the messages of this process that have not been received yet.
    pub(super) sent: Box<[SentList]>,
    /// For each queue, how many registered senders this process has.
    senders: Box<[Mutex<usize>]>,
    segment: Segment,
    /// Runs when everything above has been dropped.
    aftermath: Option<Aftermath>,
}

/// Whether this process is a member.
#[derive(Debug)]
pub(super) enum Membership {
    /// It has no seat yet.
    Joining,
    /// It has this seat. The mark holds the seat's lock.
    Seated { seat: u32, _mark: Mark },
    /// It has given its seat up, or could not get one.
    Left,
}

impl ArenaHeader {
    /// Creates an arena and joins it. The name must be free, or that of an orphan, which is replaced.
    pub(crate) fn create(
        home: Home,
        kind: Kind,
        geometry: Geometry,
        options: DraftOptions,
        keep: bool,
    ) -> Result<Self> {
        manager_client::announce(&home.backend);
        home.refuse_taken_by_the_living()?;
        let id = random::number();
        let make = || -> Result<(Segment, [File; DESCRIPTORS_TO_REMOVE])> {
            let backend = home.backend.clone();
            let mut draft = DraftSegment::new_counted(backend, geometry.payload(), options)?;
            let state = State::unattended(keep);
            draft.write_page(kind, id, state, &geometry.to_record(), home.location.as_str())?;
            let spare = || draft.file().file().try_clone().map_err(|error| Error::os("create", &home.location, error));
            let spares = [spare()?, spare()?, spare()?];
            Ok((draft.publish_joint(&home)?, spares))
        };
        let (segment, spares) = make().map_err(|error| error.about(&home.location))?;
        let (file, at) = (segment.id(), home.clone());
        let joined = Self::join(home, geometry, id, segment);
        drop(spares);
        if joined.is_err() && matches!(reclaim_if_orphaned(&at, Some(file), true), Ok(Verdict::Kept)) {
            let _ = at.unlink(file); // the first error is returned
        }
        joined
    }

    /// Opens an existing arena and joins it. `sparse`: the caller accepts holes.
    ///
    /// The record says whether the arena was created with holes, which can be as large as the machine's memory. That is
    /// only a reason to refuse a caller that does not accept them. The record may be wrong, so holes of any other arena
    /// are looked for and filled.
    pub(crate) fn open(home: Home, kind: Kind, sparse: bool) -> Result<Self> {
        manager_client::announce(&home.backend);
        let name = home.location.as_str();
        let read = |trailer: &Trailer| {
            let geometry = Geometry::of_record(kind, &trailer.record, trailer.payload)
                .map_err(|reason| ErrorKind::Trailer { reason }.at(name))?;
            if geometry.sparse && !sparse && kind == Kind::Arena {
                let what = "it was created with Pages::Sparse, so that an access may find no memory and end this process (SIGBUS); \
                            to join it all the same, use ArenaOptions::pages(Pages::Sparse) and open";
                return Err(ErrorKind::Unsupported { what: what.into() }.at(name));
            }
            Ok((geometry, trailer.id))
        };
        let (segment, (geometry, id)) = Segment::attach_joint(&home, kind, sparse, read)?;
        Self::join(home, geometry, id, segment)
    }

    fn join(home: Home, geometry: Geometry, id: u128, segment: Segment) -> Result<Self> {
        let held = bytemuck::allocation::try_zeroed_slice_box(geometry.entries() as usize).map_err(|()| {
            ErrorKind::TooLarge { shape: vec![geometry.entries() as usize], item: 4 }.at(&home.location)
        })?;
        let mut header = Self {
            home,
            geometry,
            id,
            generation: os::fork_generation(),
            membership: Membership::Joining,
            held,
            hints: BlockHints::default(),
            sent: (0..geometry.queues).map(|_| SentList::default()).collect(),
            senders: (0..geometry.queues).map(|_| Mutex::default()).collect(),
            segment,
            aftermath: None,
        };
        header.take_seat()?;
        Ok(header)
    }

    pub(crate) fn name(&self) -> &str {
        self.home.location.as_str()
    }

    /// Returns the number of the arena in handles.
    #[allow(clippy::cast_possible_truncation)] // half of the random number is enough
    pub(crate) fn tag(&self) -> u64 {
        self.id as u64
    }

    /// Refuses handles of other files, and every handle in a forked child.
    pub(super) fn check_handle(&self, owner: u64, handle: &impl fmt::Display, expected: &'static str) -> Result<()> {
        self.check_process()?;
        if owner == self.tag() {
            return Ok(());
        }
        Err(Error::setting("the handle", handle, expected))
    }

    /// Refuses forked children, which are not members.
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.is_own_process() {
            return Ok(());
        }
        let what = "a forked child is no member of its parent's arena: open the arena again in the child".into();
        Err(ErrorKind::Unsupported { what }.at(self.name()))
    }

    /// Returns whether this is the process that joined, not a forked child.
    pub(crate) fn is_own_process(&self) -> bool {
        self.generation == os::fork_generation()
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Returns the number of this member's seat; [`SEATS`], which is no seat, while it has none.
    pub(super) fn own_seat(&self) -> u32 {
        if let Membership::Seated { seat, .. } = self.membership { seat } else { SEATS }
    }

    /// Waits until the deadline for a lock that members hold only for moments.
    pub(super) fn turn(&self, range: LockRange, until: Deadline) -> Result<Turn> {
        self.segment.turn(range, until)
    }

    /// Returns `count` values of a type that consists of atomics, `at` bytes from the beginning; empty if they are not
    /// all mapped.
    #[allow(unsafe_code)]
    fn table<T>(&self, at: u64, count: u64) -> &[T] {
        let segment = &self.segment;
        let bytes = count.checked_mul(size_of::<T>() as u64).and_then(|bytes| bytes.checked_add(at));
        let fits = bytes.is_some_and(|end| end <= segment.length() as u64) && at % align_of::<T>() as u64 == 0;
        let (true, Ok(offset), Ok(count)) = (fits, usize::try_from(at), usize::try_from(count)) else { return &[] };
        // SAFETY: the table ends within the mapped bytes.
        let first = unsafe { segment.pointer().add(offset) };
        // SAFETY: the mapping begins on a page and the offset is aligned. The mapping is writable and lives as long as
        // `segment`, which is borrowed. Callers name types that consist of atomics and unused words, for which every
        // bit pattern is a value. Every process changes these bytes as atomics only: no array can be opened over a file
        // with this footer, and opening this file failed while it was attached as an array.
        unsafe { std::slice::from_raw_parts(first.cast::<T>(), count) }
    }

    /// Returns the word that counts how many spans, from the first, were ever used.
    fn touched_word(&self) -> Option<&AtomicU64> {
        self.table(0, 1).first()
    }

    /// Returns how many spans, from the first, may hold blocks. All later spans and entries are zero.
    #[allow(clippy::cast_possible_truncation)] // at most `spans`, which has 32 bits
    pub(crate) fn touched(&self) -> u32 {
        let touched = self.touched_word().map_or(0, |word| word.load(Ordering::Acquire));
        touched.min(self.geometry.spans.into()) as u32
    }

    /// Notes that the spans before `end` may be used.
    ///
    /// This comes before the change of the span's word. If the member is killed in between, the next process that
    /// reclaims only visits a free span in vain. In the other order, that process would miss the dead member's holds.
    pub(crate) fn touch(&self, end: u32) {
        if self.touched() < end {
            let _ = self.touched_word().map(|word| word.fetch_max(end.into(), Ordering::AcqRel));
        }
    }

    /// Returns a number for a member that joins, which no other member gets.
    pub(super) fn next_member(&self) -> u64 {
        let word = self.table::<AtomicU64>(8, 1).first();
        word.map_or(1, |word| word.fetch_add(1, Ordering::AcqRel).wrapping_add(1).max(1))
    }

    pub(super) fn members(&self) -> &[Member] {
        self.table(MEMBERS_AT, SEATS.into())
    }

    /// Returns queue `index`, if there is one.
    pub(crate) fn queue_words(&self, index: u32) -> Option<QueueWords<'_>> {
        if index >= self.geometry.queues {
            return None;
        }
        let at = self.geometry.queue_at(index);
        let QueueHead { head, tail, filled, emptied } = self.table::<QueueHead>(at, 1).first()?;
        let cells = self.table(at + QUEUE_HEAD, self.geometry.cells.into());
        let ring = Ring::new(&head.0, &tail.0, cells)?;
        let (filled, senders) = (Event::new(&filled.0.event), SenderWord::new(&filled.0.senders));
        Some(QueueWords { ring, filled, senders, emptied: Event::new(&emptied.0) })
    }

    /// Iterates over all queues.
    pub(crate) fn queues(&self) -> impl Iterator<Item = QueueWords<'_>> {
        (0..self.geometry.queues).filter_map(|index| self.queue_words(index))
    }

    /// Iterates over the rings of all queues.
    pub(crate) fn rings(&self) -> impl Iterator<Item = Ring<'_, AtomicU64>> {
        self.queues().map(|queue| queue.ring)
    }

    /// Returns the words of the spans.
    pub(crate) fn spans(&self) -> &[AtomicU64] {
        self.table(self.geometry.spans_at(), self.geometry.spans.into())
    }

    /// Returns all entries, for queries and for changes on behalf of other members.
    pub(crate) fn entry_table(&self) -> &[BlockEntry<AtomicU64>] {
        self.table(self.geometry.entries_at(), self.geometry.entries().into())
    }

    /// Returns the entries that may have holders.
    pub(crate) fn touched_entries(&self) -> &[BlockEntry<AtomicU64>] {
        let entries = self.entry_table();
        &entries[..entries.len().min((self.touched() * ENTRIES_OF_SPAN) as usize)]
    }

    /// Returns the entry table for this member.
    pub(crate) fn entries(&self) -> SharedEntries<'_> {
        EntryTable::new(self.entry_table(), &self.held, self.own_seat())
    }

    /// Returns the address of `length` bytes that begin `offset` bytes into span `span`. `None` if they are not all in
    /// the data.
    #[allow(unsafe_code)]
    pub(crate) fn bytes_at(&self, span: u32, offset: u64, length: u64) -> Option<*mut u8> {
        let segment = &self.segment;
        let start = u64::from(span).checked_mul(SPAN)?.checked_add(offset)?;
        let end = start.checked_add(length).filter(|end| *end <= self.geometry.capacity())?;
        debug_assert!(self.geometry.data_at() + end <= segment.length() as u64);
        let at = usize::try_from(self.geometry.data_at() + start).ok()?;
        // SAFETY: the bytes end within the data, which is part of the payload, and the whole payload is mapped.
        Some(unsafe { segment.pointer().add(at) })
    }

    /// Returns words of a block that this process holds, `at` bytes from the first span.
    pub(crate) fn words_at(&self, at: u64, count: u64) -> &[AtomicU64] {
        let end = at.saturating_add(count.saturating_mul(8));
        if end > self.geometry.capacity() { &[] } else { self.table(self.geometry.data_at() + at, count) }
    }

    /// Gives up one hold of a block.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::HandleSpent`]: this process does not hold the block.
    pub(crate) fn release(&self, entry: u32) -> Result<()> {
        self.check_process()?;
        if self.entries().release(entry) == Released::NotHeld { Err(self.spent()) } else { Ok(()) }
    }

    pub(super) fn spent(&self) -> Error {
        ErrorKind::HandleSpent.at(self.name())
    }

    /// Sends a block that this process holds, and adds a hold that keeps the block until it is received.
    pub(super) fn send(&self, queue: u32, entry: u32) -> Result<(), RingRefusal> {
        let (Some(words), Some(list)) = (self.queue_words(queue), self.sent.get(queue as usize)) else {
            return Err(RingRefusal::Damaged);
        };
        if !self.entries().hold_invited(entry) {
            return Err(RingRefusal::Damaged);
        }
        // Locked before the message gets its position. Otherwise two threads could add their messages to the list in
        // another order than they sent them, and `end_received`, which stops at the first unconsumed message, would
        // keep received ones.
        let mut messages = list.lock();
        let sent = words.ring.push(Message { sender: self.own_seat(), entry });
        match sent {
            Ok(position) => messages.push_back((position, entry)),
            Err(_) => drop(self.release(entry)),
        }
        list.end_received(&words.ring, &mut messages, |entry| drop(self.release(entry)));
        drop(messages);
        if sent.is_ok() {
            words.filled.notify();
        }
        sent.map(drop)
    }

    /// Receives a block, which this process then holds, and returns its entry.
    pub(super) fn receive(&self, queue: u32) -> Result<u32, RingRefusal> {
        let words = self.queue_words(queue).ok_or(RingRefusal::Damaged)?;
        let entries = self.entries();
        let message = words.ring.pop(|entry| entries.hold_invited(entry), |entry| drop(self.release(entry)))?;
        words.emptied.notify();
        Ok(message.entry)
    }

    /// As [`receive`](Self::receive), but fails with [`RingRefusal::Deserted`] if the queue is empty and has lost its
    /// last registered sender.
    pub(super) fn receive_until_deserted(&self, queue: u32) -> Result<u32, RingRefusal> {
        let words = self.queue_words(queue).ok_or(RingRefusal::Damaged)?;
        words.senders.receive(|| self.receive(queue))
    }

    /// Locks the number of registered senders that this process has for a queue.
    ///
    /// The lock is held while the member's bit is set or cleared. Without it, a thread that drops the last sender could
    /// clear the bit after another thread has registered a new one.
    fn own_senders(&self, queue: u32) -> Option<MutexGuard<'_, usize>> {
        Some(self.senders.get(queue as usize)?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Registers a sender of this process.
    pub(super) fn register_sender(&self, queue: u32) -> Result<(), RingRefusal> {
        let (Some(words), Some(mut count)) = (self.queue_words(queue), self.own_senders(queue)) else {
            return Err(RingRefusal::Damaged);
        };
        if *count == 0 {
            words.senders.register(self.own_seat());
        }
        *count += 1;
        Ok(())
    }

    /// Ends the registration of a sender of this process.
    pub(super) fn unregister_sender(&self, queue: u32) {
        let (Some(words), Some(mut count)) = (self.queue_words(queue), self.own_senders(queue)) else { return };
        *count -= 1;
        if *count == 0 && words.senders.leave(self.own_seat()) {
            words.filled.notify_all();
        }
    }

    /// Ends the registrations of a queue's senders if all of their processes are dead.
    pub(super) fn forget_dead_senders(&self, queue: u32) {
        let Some(words) = self.queue_words(queue) else { return };
        let seen = words.senders.load();
        // A living member holds the lock of its seat from before it registers until after it has left. So each of these
        // has died or left if its lock is free now; `forget` fails if one has registered since.
        let any_lives = seen.seats().any(|seat| self.is_alive(seat).unwrap_or(true));
        if seen.seats().next().is_some() && !any_lives && words.senders.forget(seen) {
            words.filled.notify_all();
        }
    }

    /// Gives up the holds on messages that have been received. Never waits, and is cheap if nothing was sent.
    pub(crate) fn end_sent(&self) {
        for (queue, list) in (0u32..).zip(&self.sent) {
            let Some(mut messages) = list.try_lock().filter(|_| self.is_own_process()) else { continue };
            if let Some(words) = self.queue_words(queue) {
                list.end_received(&words.ring, &mut messages, |entry| drop(self.release(entry)));
            }
        }
    }

    /// Gives up the seat, unmaps, and removes the name if no other process is attached.
    pub(crate) fn close(mut self) -> Result<()> {
        let left = self.leave(TURN_WAIT);
        let aftermath = self.aftermath.take();
        drop(self);
        aftermath.map_or(Ok(()), |aftermath| aftermath.reclaim().map(drop)).and(left)
    }

    /// Gives up the seat and the lease. What remains is done when the header is dropped.
    fn leave(&mut self, limit: Duration) -> Result<()> {
        if matches!(self.membership, Membership::Left) || !self.is_own_process() {
            return Ok(());
        }
        // If this fails, the seat's state stays. Its lock is released below, so the next process that reclaims finds
        // the seat dead.
        let settled = self.give_up_seat(Deadline::after(limit));
        self.membership = Membership::Left;
        self.segment.end_lease();
        self.aftermath = Some(Aftermath::new(self.home.clone(), self.segment.id(), None));
        settled
    }
}

impl Drop for ArenaHeader {
    fn drop(&mut self) {
        let _ = self.leave(DROP_WAIT); // `close` reports the error
    }
}
