//! `StreamWriter`: the one process that adds frames.
//!
//! A frame is written in this order: lock the slot, clear its number, write the elements, unlock, then store the
//! number, the ring's word and the head (see protocol.rs), then wake. A reader that sees a number gets its lock at the
//! first attempt. A writer that is killed between any two steps leaves a slot without a number, or a head that the next
//! writer repairs from the slots.
//!
//! If frames are copied, nothing is locked: a frame is written to private memory, and copied to its slot by words while
//! the slot has no number. A reader copies it by words, and looks at the number again: a frame that was overwritten
//! meanwhile is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, SystemTime};

use ndarray::{ArrayViewMut, Dimension, ShapeBuilder};

use super::begin::{Begun, remove_own};
use super::cursors;
use super::files::FramesFile;
use super::geometry::StreamGeometry;
use super::memory::{StreamState, StreamWords};
use super::meta::{self, MetaField};
use super::options::StreamOptions;
use super::protocol::SlotOrder;
use super::slots::holders;
use crate::array::{Description, Element, Layout};
use crate::backend::lock_space::{WRITER, slot as slot_lock};
use crate::backend::{Directory, IntoLocation, Location};
use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::interrupt;
use crate::os::{self, LockKind};
use crate::segment::LockFile;

/// How long the end of a stream waits for another process that changes its names: when it is dropped, and when it is
/// ended.
const DROP_WAIT: Duration = Duration::from_millis(100);
const END_WAIT: Duration = Duration::from_secs(10);

/// The words of a slot's entry, after its number.
const EPOCH: u64 = 8;
const SINCE_BOOT: u64 = 16;
const WALL: u64 = 24;

/// The writer of a stream: adds frames that any number of readers see.
///
/// There is one writer at a time. It never waits for readers, except where a [cursor](super::StreamCursor) asks for
/// that: a slot that a reader holds is skipped, and the oldest frame that no reader holds is overwritten.
///
/// When it is dropped, the stream [ends](Self::end). When its process is killed, the name stays for a successor
/// ([`StreamOptions::resume`]), and readers are told ([`NoWriter`](ErrorKind::NoWriter)).
///
/// A forked child cannot use its parent's writer.
///
/// # Examples
///
/// ```
/// use ndarray_shm::{StreamReader, StreamWriter};
///
/// let mut writer = StreamWriter::<u16, _>::create("writer-example", (4, 6), 8)?;
/// let mut frame = writer.frame()?;
/// frame.view_mut().fill(7);
/// assert_eq!(frame.commit()?, 1); // numbers begin with 1
///
/// let mut reader = StreamReader::<u16, ndarray::Ix2>::open("writer-example")?;
/// assert_eq!(reader.latest()?.expect("it was written").view()[(3, 5)], 7);
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
pub struct StreamWriter<T: Element, D: Dimension> {
    begun: Begun,
    layout: Layout<T, D>,
    order: SlotOrder,
    epoch: u64,
    keep: bool,
    has_ended: bool,
    /// If frames are copied, the elements of the last one that was written, or of the next.
    own: Vec<u64>,
}

impl<T: Element, D: Dimension> StreamWriter<T, D> {
    /// Creates a stream with frames of this shape, of which the last `slots` at most are kept, at least 3.
    ///
    /// Each slot has the memory of one frame. A frame is overwritten when all later ones have been written, unless a
    /// reader holds it. So `slots` is the number of frames that a reader may be late, and those that readers hold are
    /// to be added.
    ///
    /// [`StreamOptions`] has more options.
    ///
    /// # Errors
    ///
    /// - [`AlreadyExists`](ErrorKind::AlreadyExists): there is a stream of this name, with a writer or of one that was
    ///   killed.
    /// - [`NoSpace`](ErrorKind::NoSpace), [`TooLarge`](ErrorKind::TooLarge),
    ///   [`InvalidSetting`](ErrorKind::InvalidSetting) for the number of slots, and those of the location.
    pub fn create(location: impl IntoLocation, shape: impl ShapeBuilder<Dim = D>, slots: usize) -> Result<Self> {
        StreamOptions::new().create(location, shape, slots)
    }

    /// Makes the writer of a stream that this process has begun, and repairs what its predecessor left.
    pub(super) fn start(begun: Begun, layout: Layout<T, D>, keep: bool) -> Self {
        let frames = &begun.frames;
        let order = SlotOrder::repaired(&frames.table());
        let epoch = frames.memory.load(StreamGeometry::EPOCH).wrapping_add(1);
        frames.memory.store(StreamGeometry::EPOCH, epoch);
        frames.memory.set_state(StreamState::Open);
        frames.memory.ring();
        let own = if frames.geometry.is_copied { vec![0; frames.geometry.frame_words()] } else { Vec::new() };
        Self { begun, layout, order, epoch, keep, has_ended: false, own }
    }

    fn frames(&self) -> &FramesFile {
        &self.begun.frames
    }

    fn locks(&self) -> &LockFile {
        &self.begun.locks
    }

    /// Returns the name.
    pub fn location(&self) -> &Location {
        &self.frames().home.location
    }

    /// Returns the directory in which the name is.
    pub fn directory(&self) -> &Directory {
        &self.frames().home.backend
    }

    /// Returns element type, shape and order of the frames.
    pub fn layout(&self) -> &Layout<T, D> {
        &self.layout
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> usize {
        self.frames().geometry.slots
    }

    /// Returns element type, shape and order of the frames, with the [notes](StreamOptions::note) of the stream.
    pub fn description(&self) -> &Description {
        &self.frames().geometry.description
    }

    /// Returns the values that each frame has beside its elements.
    pub fn meta_fields(&self) -> &[MetaField] {
        &self.frames().geometry.fields
    }

    /// Returns the number of the newest frame; 0 before the first. The next frame has the next number.
    pub fn head(&self) -> u64 {
        self.order.head()
    }

    /// Returns how many writers the stream has had, this one included.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    fn refuse_forked_child(&self) -> Result<()> {
        if self.locks().is_own_process() {
            return Ok(());
        }
        let what = "the writer of a stream in a child that was forked from its process (create another stream here)";
        Err(ErrorKind::Unsupported { what: what.into() }.at(self.location()))
    }

    /// Returns the next frame to write. It has the elements of an older frame, or zeros.
    ///
    /// # Errors
    ///
    /// - [`SlotsHeld`](ErrorKind::SlotsHeld): readers hold all slots but that of the newest frame, or cursors do.
    ///   Nothing is lost: call again, or drop the frame that this process wanted to write.
    /// - [`Closed`](ErrorKind::Closed): it was [ended](Self::end).
    /// - [`Unlinked`](ErrorKind::Unlinked): another process has replaced the stream.
    /// - [`Unsupported`](ErrorKind::Unsupported): this process was forked from the writer's.
    pub fn frame(&mut self) -> Result<NewFrame<'_, T, D>> {
        match self.next_slot()? {
            Some(slot) => Ok(NewFrame::new(self, slot)),
            None => Err(self.slots_held()?),
        }
    }

    /// As [`frame`](Self::frame), but waits at most `limit` for a slot. `Duration::MAX` means without limit.
    ///
    /// # Errors
    ///
    /// As [`frame`](Self::frame), with [`SlotsHeld`](ErrorKind::SlotsHeld) when the time is over, and
    /// [`Interrupted`](ErrorKind::Interrupted).
    pub fn frame_wait(&mut self, limit: Duration) -> Result<NewFrame<'_, T, D>> {
        let mut backoff = Backoff::new(limit);
        let slot = loop {
            if let Some(slot) = self.next_slot()? {
                break slot;
            }
            if !interrupt::goes_on() {
                return Err(ErrorKind::Interrupted.at(self.location()));
            }
            if !backoff.pause() {
                return Err(self.slots_held()?);
            }
        };
        Ok(NewFrame::new(self, slot))
    }

    /// Locks the slot with the oldest frame that may be overwritten, and takes its number away. If frames are copied,
    /// it locks nothing.
    fn next_slot(&mut self) -> Result<Option<usize>> {
        self.refuse_forked_child()?;
        let Begun { frames, locks, keeper, .. } = &self.begun;
        let home = &frames.home;
        if self.has_ended {
            let reason = "this writer has ended the stream (create it again)";
            return Err(ErrorKind::Closed { reason }.at(&home.location));
        }
        if frames.memory.state() == StreamState::Replaced {
            return Err(ErrorKind::Unlinked.at(&home.location));
        }
        let is_read = |index| cursors::is_read(keeper, index, home);
        let is_kept = |number| cursors::hold(&keeper.memory, number, is_read);
        let try_lock = |slot| locks.try_lock(LockKind::Exclusive, slot_lock(slot), home);
        let taken = self.order.take(&frames.table(), is_kept, try_lock)?;
        if let Some(slot) = taken {
            frames.memory.copy_in(StreamGeometry::meta(slot), &[0; meta::MOST_BYTES][..frames.geometry.meta_bytes()]);
        }
        Ok(taken)
    }

    /// Returns the error that says which processes and cursors hold the slots.
    fn slots_held(&self) -> Result<Error> {
        let home = &self.frames().home;
        let (mut by_readers, mut by_cursors) = (BTreeSet::new(), BTreeMap::new());
        for (number, slot) in self.order.older() {
            by_readers.extend(holders(self.locks(), slot, home)?);
            for entry in cursors::entries(&self.begun.keeper.memory).filter(|entry| entry.acknowledged < number) {
                by_cursors.insert(entry.name.clone(), entry);
            }
        }
        let mut names = Vec::new();
        for (name, entry) in by_cursors {
            let holds = match entry.policy {
                cursors::Backpressure::Overwrite => false,
                cursors::Backpressure::Wait => true,
                cursors::Backpressure::WaitWhileAlive => cursors::is_read(&self.begun.keeper, entry.index, home)?,
            };
            names.extend(holds.then_some(name));
        }
        let (slots, holders) = (self.slots(), by_readers.into_iter().collect());
        Ok(ErrorKind::SlotsHeld { slots, holders, cursors: names }.at(&home.location))
    }

    /// Ends the stream: readers get the frames that are left, then [`Closed`](ErrorKind::Closed). The name is removed,
    /// unless the stream is [kept](StreamOptions::keep). Frames that readers hold stay.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](ErrorKind::TimedOut): another process was changing the names for 10 seconds; they stay.
    /// [`Unsupported`](ErrorKind::Unsupported): this process was forked from the writer's.
    pub fn end(&mut self) -> Result<()> {
        self.refuse_forked_child()?;
        self.end_within(END_WAIT)
    }

    fn end_within(&mut self, limit: Duration) -> Result<()> {
        if std::mem::replace(&mut self.has_ended, true) {
            return Ok(());
        }
        let frames = self.frames();
        if frames.memory.state() != StreamState::Replaced {
            frames.memory.set_state(StreamState::Ended);
        }
        frames.memory.ring();
        os::step("stream: ended");
        let removed = if self.keep {
            Ok(())
        } else {
            interrupt::uninterrupted(|| remove_own(&self.begun, limit)).map_err(|error| error.about(self.location()))
        };
        // A successor need not wait until this value is dropped. If it fails, the locks end with the value.
        for locks in [&mut self.begun.locks, &mut self.begun.keeper.locks] {
            let _ = locks.turn().unlock(WRITER);
        }
        removed
    }
}

impl<T: Element, D: Dimension> Drop for StreamWriter<T, D> {
    fn drop(&mut self) {
        if self.locks().is_own_process() {
            let _ = self.end_within(DROP_WAIT); // `end` reports errors
        }
    }
}

impl<T: Element, D: Dimension> fmt::Debug for StreamWriter<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let frames = self.frames();
        f.debug_struct("StreamWriter")
            .field("location", &frames.home.location)
            .field("head", &self.head())
            .finish_non_exhaustive()
    }
}

/// A frame that is being written. No process sees it before it is [committed](Self::commit); if it is dropped, it never
/// was.
#[must_use = "dropping a frame publishes nothing"]
pub struct NewFrame<'a, T: Element, D: Dimension> {
    writer: &'a mut StreamWriter<T, D>,
    slot: usize,
    is_locked: bool,
}

impl<'a, T: Element, D: Dimension> NewFrame<'a, T, D> {
    fn new(writer: &'a mut StreamWriter<T, D>, slot: usize) -> Self {
        let is_locked = !writer.frames().geometry.is_copied;
        Self { writer, slot, is_locked }
    }

    /// Returns the number that the frame will have.
    pub fn number(&self) -> u64 {
        self.writer.head().saturating_add(1)
    }

    /// Returns the elements.
    #[allow(unsafe_code)]
    pub fn view_mut(&mut self) -> ArrayViewMut<'_, T, D> {
        if self.writer.frames().geometry.is_copied {
            return self.writer.layout.view_of_mut(bytemuck::cast_slice_mut(&mut self.writer.own));
        }
        let frames = self.writer.frames();
        let raw = frames.memory.elements_mut(&frames.geometry, self.slot, &self.writer.layout);
        // SAFETY: the elements lie in the writer's mapping, which is for writing and lives as long as this borrow. The
        // slot's range is write-locked as long as `self` lives, so no frame of any process has a view of it; no other
        // `NewFrame` exists, because this one borrows the writer; other slots share no element with it.
        unsafe { raw.deref_into_view_mut() }
    }

    /// Sets values beside the elements, as many as the field has. They are zeros otherwise.
    ///
    /// # Errors
    ///
    /// [`InvalidSetting`](ErrorKind::InvalidSetting): the stream has no such field, or its values are of another type
    /// or number.
    pub fn set_meta<V: Element>(&mut self, name: &str, values: &[V]) -> Result<()> {
        let field = meta::find::<V>(self.writer.meta_fields(), name)?;
        if values.len() != field.count {
            let expected = "the number that the stream was created with (`StreamOptions::meta`)";
            return Err(Error::setting("the number of values", values.len(), expected));
        }
        let range = field.offset..field.end();
        let mut bytes = self.meta_bytes();
        bytes[range].copy_from_slice(bytemuck::cast_slice(values));
        self.set_meta_bytes(&bytes);
        Ok(())
    }

    /// Returns the bytes of the values beside the elements, as [`meta_fields`](StreamWriter::meta_fields) divide them.
    pub fn meta_bytes(&self) -> [u8; meta::MOST_BYTES] {
        let (frames, mut bytes) = (self.writer.frames(), [0; meta::MOST_BYTES]);
        frames.memory.copy_out(StreamGeometry::meta(self.slot), &mut bytes[..frames.geometry.meta_bytes()]);
        bytes
    }

    /// Sets the bytes of the values beside the elements. Those that belong to no field are left out.
    pub fn set_meta_bytes(&mut self, bytes: &[u8; meta::MOST_BYTES]) {
        let frames = self.writer.frames();
        frames.memory.copy_in(StreamGeometry::meta(self.slot), &bytes[..frames.geometry.meta_bytes()]);
    }

    /// Lets readers see the frame. Returns its number.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported): this process was forked from the writer's, which may still be writing
    /// the frame.
    pub fn commit(mut self) -> Result<u64> {
        self.writer.refuse_forked_child()?;
        let slot = self.slot;
        let frames = self.writer.frames();
        let (memory, entry) = (&frames.memory, StreamGeometry::entry(slot));
        memory.store(entry + EPOCH, self.writer.epoch);
        memory.store(entry + SINCE_BOOT, os::since_boot().map_or(0, nanoseconds));
        memory.store(entry + WALL, SystemTime::UNIX_EPOCH.elapsed().map_or(0, nanoseconds));
        if self.is_locked {
            self.writer.locks().unlock(slot_lock(slot), &frames.home)?;
            self.is_locked = false;
        } else {
            memory.copy_words_in(frames.geometry.elements(slot), &self.writer.own);
        }
        os::step("stream: slot unlocked");
        let StreamWriter { begun, order, .. } = &mut *self.writer;
        let number = order.publish(&begun.frames.table(), slot);
        begun.frames.memory.ring();
        Ok(number)
    }
}

/// Returns a duration as a word; the largest word if it does not fit.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// When a frame was committed, and by which writer, as its entry says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) epoch: u64,
    /// The time since the boot, or 0 where the writer could not tell it.
    pub(super) since_boot: Duration,
    pub(super) wall: SystemTime,
}

impl Stamp {
    /// Reads the entry of a slot, which is locked or only looked at.
    pub(super) fn of(frames: &FramesFile, slot: usize) -> Self {
        let word = |offset| frames.memory.load(StreamGeometry::entry(slot) + offset);
        Self {
            epoch: word(EPOCH),
            since_boot: Duration::from_nanos(word(SINCE_BOOT)),
            wall: SystemTime::UNIX_EPOCH + Duration::from_nanos(word(WALL)),
        }
    }
}

impl<T: Element, D: Dimension> Drop for NewFrame<'_, T, D> {
    fn drop(&mut self) {
        if self.is_locked && self.writer.locks().is_own_process() {
            // If it fails, the lock ends with the writer.
            let _ = self.writer.locks().unlock(slot_lock(self.slot), &self.writer.frames().home);
        }
    }
}

impl<T: Element, D: Dimension> fmt::Debug for NewFrame<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewFrame").field("number", &self.number()).finish_non_exhaustive()
    }
}
