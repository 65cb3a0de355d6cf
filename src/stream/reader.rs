//! `StreamReader`, `StreamCursor` and `Frame`: reading without delaying the writer, or without missing a frame.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use ndarray::{ArrayView, Dimension};

use super::cursors::{self, Backpressure};
use super::files::{FramesFile, KeeperFile};
use super::geometry::StreamGeometry;
use super::memory::{StreamState, StreamWords};
use super::meta::{self, MetaField};
use super::options::StreamOptions;
use super::protocol::{Locked, WhichFrame};
use super::slots::ReadSlots;
use super::writer::Stamp;
use crate::array::{Description, Element, Layout};
use crate::backend::{Access, Directory, IntoLocation, Location};
use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::os;
use crate::segment::Home;

/// How long a frame can be locked by a writer that has not taken its number away yet.
const LOOKING: Duration = Duration::from_millis(1);

/// How long a reader or a cursor searches for the stream of a name that is just being replaced.
const OPENING: Duration = Duration::from_secs(10);

/// A reader of a stream: sees frames without copying them, unless the stream was created with
/// [`copied`](StreamOptions::copied), and never delays the writer.
///
/// The file is mapped read-only. A frame is held as long as its [`Frame`] lives, and is not overwritten meanwhile, even
/// if the writer dies or the name goes. A reader that is too slow misses frames, and is told how many
/// ([`lost`](Self::lost)). [`StreamCursor`] misses none.
///
/// In a forked child the reader goes on by itself. It opens the stream once more at its first call, which fails with
/// [`Unlinked`](ErrorKind::Unlinked) if the name has gone by then.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use ndarray_shm::{StreamReader, StreamWriter};
///
/// let mut writer = StreamWriter::<u8, _>::create("reader-example", 100, 4)?;
/// for number in 1..=6 {
///     let mut frame = writer.frame()?;
///     frame.view_mut().fill(number);
///     frame.commit()?;
/// }
/// let mut reader = StreamReader::<u8, ndarray::Ix1>::open("reader-example")?;
/// let oldest = reader.next_wait(Duration::MAX)?; // of the last 4 frames
/// assert_eq!((oldest.number(), oldest.view()[0]), (3, 3));
/// assert_eq!(reader.latest()?.expect("it is new").number(), 6);
/// assert!(reader.latest()?.is_none(), "it was seen");
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
pub struct StreamReader<T: Element, D: Dimension> {
    slots: Arc<ReadSlots>,
    layout: Layout<T, D>,
    /// The number of the last frame that was returned; 0 before the first.
    last: u64,
    lost: u64,
    /// Whether a frame that is locked is waited for instead of missed.
    is_cursor: bool,
}

impl<T: Element, D: Dimension> StreamReader<T, D> {
    /// Opens a stream for reading.
    ///
    /// [`StreamOptions::open`] searches another directory.
    ///
    /// # Errors
    ///
    /// - [`NotFound`](ErrorKind::NotFound): there is no stream of this name. An array is none.
    /// - [`DTypeMismatch`](ErrorKind::DTypeMismatch), [`ShapeMismatch`](ErrorKind::ShapeMismatch): its frames have
    ///   another element type or number of axes.
    /// - [`Trailer`](ErrorKind::Trailer): its bookkeeping is damaged.
    pub fn open(location: impl IntoLocation) -> Result<Self> {
        StreamOptions::new().open(location)
    }

    pub(super) fn open_at(home: &Home) -> Result<Self> {
        let Some((frames, locks)) = FramesFile::open(home, Access::Read)? else {
            return Err(ErrorKind::NotFound.at(&home.location));
        };
        let geometry = &frames.geometry;
        let (found, name) = (&geometry.description, home.location.as_str());
        let layout = Layout::described(found.dtype(), found.shape(), found.order(), name)?;
        Ok(Self { slots: Arc::new(ReadSlots::new(frames, locks)), layout, last: 0, lost: 0, is_cursor: false })
    }

    fn frames(&self) -> &FramesFile {
        &self.slots.frames
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

    /// Returns element type, shape and order of the frames, with the [notes](StreamOptions::note) of the stream. Escape
    /// their texts before printing: the writer may be another user's.
    pub fn description(&self) -> &Description {
        &self.frames().geometry.description
    }

    /// Returns the values that each frame has beside its elements.
    pub fn meta_fields(&self) -> &[MetaField] {
        &self.frames().geometry.fields
    }

    /// Returns a random number that tells this stream from all others, also from one that had its name before. A
    /// successor of its writer ([`resume`](StreamOptions::resume)) does not change it.
    pub fn id(&self) -> u128 {
        self.frames().id
    }

    /// Returns the number of the newest frame; 0 before the first.
    pub fn head(&self) -> u64 {
        self.frames().head()
    }

    /// Returns the number of the last frame that was returned; 0 before the first. [`next`](Self::next) returns a later
    /// one, and a cursor begins with the number that it has acknowledged.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Returns how many writers the stream has had, the one that writes included.
    pub fn epoch(&self) -> u64 {
        self.frames().memory.load(StreamGeometry::EPOCH)
    }

    /// Returns how many frames were committed between those that [`next`](Self::next) returned, and missed. Frames that
    /// [`latest`](Self::latest) skips do not count.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns how many slots the frames of this reader and its clones hold in this process.
    ///
    /// # Errors
    ///
    /// In a forked child, those of opening the file once more.
    pub fn held(&self) -> Result<usize> {
        self.slots.held()
    }

    /// Returns whether the stream has a writer that lives. `None`: the kernel does not tell, because a process that may
    /// read the file has locked what a writer locks there.
    ///
    /// # Errors
    ///
    /// Those of querying the lock.
    pub fn has_writer(&self) -> Result<Option<bool>> {
        self.slots.has_writer()
    }

    /// Returns the newest frame, or `None` if it has been returned already, or there is none yet.
    ///
    /// # Errors
    ///
    /// When nothing new is there: [`Closed`](ErrorKind::Closed), the writer has ended the stream;
    /// [`Unlinked`](ErrorKind::Unlinked), another stream has its name. Otherwise those of locking.
    pub fn latest(&mut self) -> Result<Option<Frame<T, D>>> {
        let frame = self.look(WhichFrame::Latest, Duration::ZERO)?;
        if frame.is_none() {
            self.slots.refuse_ended()?;
        }
        Ok(frame)
    }

    /// Returns the oldest frame that is newer than the last one that was returned, or `None` if there is none yet.
    ///
    /// The first call returns the oldest frame that is there.
    ///
    /// # Errors
    ///
    /// As [`latest`](Self::latest).
    #[allow(clippy::should_implement_trait)] // an iterator would end where this returns `None`
    pub fn next(&mut self) -> Result<Option<Frame<T, D>>> {
        let frame = self.look(WhichFrame::Next, Duration::ZERO)?;
        if frame.is_none() {
            self.slots.refuse_ended()?;
        }
        Ok(frame)
    }

    /// As [`latest`](Self::latest), but waits at most `limit` for a new frame. `Duration::MAX` means without limit.
    ///
    /// # Errors
    ///
    /// As [`latest`](Self::latest), and [`TimedOut`](ErrorKind::TimedOut), [`Interrupted`](ErrorKind::Interrupted), and
    /// [`NoWriter`](ErrorKind::NoWriter) within 200 ms after the writer was killed. Call again to wait for a successor.
    pub fn latest_wait(&mut self, limit: Duration) -> Result<Frame<T, D>> {
        self.wait(WhichFrame::Latest, limit)
    }

    /// As [`next`](Self::next), but waits at most `limit` for a frame. `Duration::MAX` means without limit.
    ///
    /// # Errors
    ///
    /// As [`latest_wait`](Self::latest_wait).
    pub fn next_wait(&mut self, limit: Duration) -> Result<Frame<T, D>> {
        self.wait(WhichFrame::Next, limit)
    }

    /// Goes on behind frame `number`, as if it had been the last one that was returned: [`next`](Self::next) returns
    /// the oldest one behind it that is there, and [`lost`](Self::lost) counts those that are not. 0 begins anew.
    ///
    /// Numbers are those of one stream: compare [`id`](Self::id) too if the number is from an earlier run.
    ///
    /// # Errors
    ///
    /// [`InvalidSetting`](ErrorKind::InvalidSetting): the stream has no frame of this number yet.
    pub fn since(&mut self, number: u64) -> Result<()> {
        if number > self.head() {
            let expected = "at most the number of the newest frame";
            let mut error = Error::setting("the number of a frame", number, expected);
            error.location = self.location().to_string();
            return Err(error);
        }
        self.last = number;
        Ok(())
    }

    /// Waits at most `limit` for a frame with a number greater than `number`, and returns the number of the newest one.
    /// `Duration::MAX` means without limit.
    ///
    /// It takes no frame and holds none. A thread waits with it for an event loop, which then takes the frames itself:
    /// `number` is that of the [`last`](Self::last) one that the loop took.
    ///
    /// # Errors
    ///
    /// As [`latest_wait`](Self::latest_wait).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    ///
    /// use ndarray_shm::ndarray::Ix1;
    /// use ndarray_shm::{StreamReader, StreamWriter};
    ///
    /// let mut writer = StreamWriter::<u8, _>::create("head-wait-example", 100, 4)?;
    /// let mut reader = StreamReader::<u8, Ix1>::open("head-wait-example")?;
    /// let (watch, (news, events)) = (reader.clone(), mpsc::channel());
    /// std::thread::spawn(move || {
    ///     let mut number = watch.last();
    ///     while let Ok(head) = watch.head_wait(number, Duration::MAX) {
    ///         number = head;
    ///         if news.send(head).is_err() {
    ///             break;
    ///         }
    ///     }
    /// });
    ///
    /// writer.frame()?.commit()?;
    /// assert_eq!(events.recv().ok(), Some(1)); // one event of many that the loop waits for
    /// assert_eq!(reader.next()?.map(|frame| frame.number()), Some(1));
    /// # Ok::<(), ndarray_shm::Error>(())
    /// ```
    pub fn head_wait(&self, number: u64, limit: Duration) -> Result<u64> {
        self.slots.wait(limit, || Ok(Some(self.head()).filter(|head| *head > number)))
    }

    /// Returns a frame by its number, if it is one of the last that fit the slots and is still there. The next call of
    /// [`next`](Self::next) is not affected.
    ///
    /// # Errors
    ///
    /// Those of locking.
    pub fn get(&self, number: u64) -> Result<Option<Frame<T, D>>> {
        if number == 0 {
            return Ok(None);
        }
        Ok(match self.lock(number, LOOKING)? {
            Locked::Slot(slot) => self.frame(number, slot),
            Locked::Gone | Locked::Busy => None,
        })
    }

    /// Locks a frame. Waits at most `patience` for a writer that is about to overwrite it, or was killed.
    fn lock(&self, number: u64, patience: Duration) -> Result<Locked> {
        let mut backoff = None;
        loop {
            match self.slots.lock(number)? {
                Locked::Busy if backoff.get_or_insert_with(|| Backoff::new(patience)).pause() => {}
                other => return Ok(other),
            }
        }
    }

    /// Returns the frame of a slot that was locked. `None`: it was to be copied, and was overwritten meanwhile.
    fn frame(&self, number: u64, slot: usize) -> Option<Frame<T, D>> {
        let frames = self.frames();
        let copy = if frames.geometry.is_copied { Some(FrameCopy::of(frames, slot, number)?) } else { None };
        let generation = AtomicU64::new(os::fork_generation());
        Some(Frame { slots: Arc::clone(&self.slots), layout: self.layout.copied(), slot, number, generation, copy })
    }

    /// Looks for a frame once. Waits at most `patience` for one that is locked.
    fn look(&mut self, which: WhichFrame, patience: Duration) -> Result<Option<Frame<T, D>>> {
        let take = |number| -> Result<_> {
            Ok(match self.lock(number, patience.max(LOOKING))? {
                Locked::Slot(slot) => self.frame(number, slot).map(Some),
                Locked::Busy if self.is_cursor => Some(None),
                Locked::Gone | Locked::Busy => None,
            })
        };
        let Some(frame) = self.frames().table().find(which, self.last, take)? else { return Ok(None) };
        // A cursor has missed the first frames, too: it was there before them.
        if which == WhichFrame::Next && (self.last > 0 || self.is_cursor) {
            self.lost += frame.number - self.last - 1;
        }
        self.last = frame.number;
        Ok(Some(frame))
    }

    fn wait(&mut self, which: WhichFrame, limit: Duration) -> Result<Frame<T, D>> {
        let slots = Arc::clone(&self.slots);
        slots.wait(limit, || self.look(which, LOOKING))
    }
}

impl<T: Element, D: Dimension> Clone for StreamReader<T, D> {
    /// Returns a reader with the same position. Both count their frames together.
    fn clone(&self) -> Self {
        Self { slots: Arc::clone(&self.slots), layout: self.layout.copied(), ..*self }
    }
}

impl<T: Element, D: Dimension> fmt::Debug for StreamReader<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamReader")
            .field("location", self.location())
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

/// A frame of a stream, which is not overwritten as long as this lives.
///
/// A process may hold as many as the stream has slots, but the writer needs some: see
/// [`SlotsHeld`](ErrorKind::SlotsHeld). The frame outlives its reader, its writer and the name.
///
/// A forked child that inherits a frame [holds](Self::hold) it from the first time that it looks at it.
#[must_use = "a frame that is dropped may be overwritten"]
pub struct Frame<T: Element, D: Dimension> {
    slots: Arc<ReadSlots>,
    layout: Layout<T, D>,
    slot: usize,
    number: u64,
    /// The fork generation of the process that holds it. It guards no other data, so Relaxed suffices.
    generation: AtomicU64,
    /// The frame itself, if it was copied. Then it holds no slot.
    copy: Option<FrameCopy>,
}

/// What a slot had when it was copied.
struct FrameCopy {
    elements: Vec<u64>,
    stamp: Stamp,
    /// The values beside the elements, without the zeros behind them.
    meta: Vec<u8>,
}

impl FrameCopy {
    /// Copies the frame of a slot. `None`: the slot was given another frame meanwhile.
    fn of(frames: &FramesFile, slot: usize, number: u64) -> Option<Self> {
        let mut meta = vec![0; frames.geometry.meta_bytes()];
        let rest = || {
            frames.memory.copy_out(StreamGeometry::meta(slot), &mut meta);
            Stamp::of(frames, slot)
        };
        let (elements, stamp) = frames.table().copy(slot, number, rest)?;
        Some(Self { elements, stamp, meta })
    }
}

impl<T: Element, D: Dimension> Frame<T, D> {
    /// Returns its number. The first frame of a stream has number 1, and each one has the number after the one before.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Makes sure that this process holds the frame, if it inherited it by a fork: the parent's lock is not its own.
    /// Does nothing in the process that took the frame.
    ///
    /// # Errors
    ///
    /// [`Unlinked`](ErrorKind::Unlinked): the parent has given the frame up, and it was overwritten, or the stream has
    /// lost its name before this child had opened it and before its writer had ended it. Otherwise those of opening it.
    pub fn hold(&self) -> Result<()> {
        if self.copy.is_some() {
            return Ok(());
        }
        let (here, holder) = (os::fork_generation(), self.generation.load(Ordering::Relaxed));
        if holder == here {
            return Ok(());
        }
        let locked = match self.slots.lock_slot(self.slot, self.number) {
            Err(error) if error.kind == ErrorKind::Unlinked && self.is_final() => Locked::Slot(self.slot),
            other => other?,
        };
        match locked {
            Locked::Slot(_) => {
                let taken = self.generation.compare_exchange(holder, here, Ordering::Relaxed, Ordering::Relaxed);
                if taken.is_err() {
                    self.slots.release(self.slot); // another thread was first
                }
                Ok(())
            }
            Locked::Gone | Locked::Busy => Err(ErrorKind::Unlinked.at(&self.slots.frames.home.location)),
        }
    }

    /// Returns whether the frame is there for good. The name has gone, and with it the way for another writer, before
    /// this asks whether the last one has ended.
    fn is_final(&self) -> bool {
        let frames = &self.slots.frames;
        frames.memory.state() != StreamState::Open && frames.number(self.slot) == self.number
    }

    /// Returns the elements.
    ///
    /// # Panics
    ///
    /// In a forked child that inherited the frame, where [`hold`](Self::hold) fails.
    #[allow(unsafe_code)]
    pub fn view(&self) -> ArrayView<'_, T, D> {
        if let Some(copy) = &self.copy {
            return self.layout.view_of(bytemuck::cast_slice(&copy.elements));
        }
        if let Err(error) = self.hold() {
            panic!("the frame was inherited by a fork, and is not there any more: {error}");
        }
        let frames = &self.slots.frames;
        let raw = frames.memory.elements(&frames.geometry, self.slot, &self.layout);
        // SAFETY: the elements lie in the mapping of the reader, which lives as long as `self`. The byte of this
        // process in the slot's range is read-locked by this process, as `hold` has checked, until `self` is dropped,
        // so no writer has the slot; or no writer can come any more. The number was that of this frame under the
        // lock: all elements had been written before it was stored.
        unsafe { raw.deref_into_view() }
    }

    fn stamp(&self) -> Stamp {
        self.copy.as_ref().map_or_else(|| Stamp::of(&self.slots.frames, self.slot), |copy| copy.stamp)
    }

    /// Returns which writer of the stream has written it: 1 is the first, and each [takeover](StreamOptions::resume)
    /// counts one more.
    pub fn epoch(&self) -> u64 {
        self.stamp().epoch
    }

    /// Returns when it was committed: the time since the machine was started, by a clock that all processes share and
    /// that never goes back. `None`: the writer could not read that clock.
    pub fn time(&self) -> Option<Duration> {
        Some(self.stamp().since_boot).filter(|time| !time.is_zero())
    }

    /// Returns when it was committed, by the calendar. That clock may be set.
    pub fn wall_time(&self) -> SystemTime {
        self.stamp().wall
    }

    /// Returns values beside the elements, as many as the field has.
    ///
    /// # Errors
    ///
    /// [`InvalidSetting`](ErrorKind::InvalidSetting): the stream has no such field, or its values are of another type.
    pub fn meta<V: Element>(&self, name: &str) -> Result<Vec<V>> {
        let field = meta::find::<V>(&self.slots.frames.geometry.fields, name)?;
        Ok(meta::read(field, &self.meta_bytes()))
    }

    /// Returns the bytes of the values beside the elements, as [`meta_fields`](StreamReader::meta_fields) divide them.
    pub fn meta_bytes(&self) -> [u8; meta::MOST_BYTES] {
        let (geometry, mut bytes) = (&self.slots.frames.geometry, [0; meta::MOST_BYTES]);
        let used = &mut bytes[..geometry.meta_bytes()];
        match &self.copy {
            Some(copy) => used.copy_from_slice(&copy.meta),
            None => self.slots.frames.memory.copy_out(StreamGeometry::meta(self.slot), used),
        }
        bytes
    }
}

impl<T: Element, D: Dimension> Drop for Frame<T, D> {
    fn drop(&mut self) {
        // Of an inherited frame that this process has not held, the parent has the lock.
        if self.copy.is_none() && *self.generation.get_mut() == os::fork_generation() {
            self.slots.release(self.slot);
        }
    }
}

impl<T: Element, D: Dimension> fmt::Debug for Frame<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame").field("number", &self.number).finish_non_exhaustive()
    }
}

/// A reader with a name that misses no frame: it says how far it has got, and the writer overwrites nothing beyond.
///
/// The name and the position stay when the process ends, and the next one goes on there. One process at a time reads
/// with a cursor. It needs permission to write to the stream's keeper: it is of the writer's user.
///
/// A frame is overwritten only after it was [acknowledged](Self::acknowledge), not when it is dropped: acknowledge it
/// when what it was for is done, for example when it is on the disk. [`Backpressure`] says what the writer does until
/// then.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use ndarray_shm::stream::{Backpressure, StreamCursor};
/// use ndarray_shm::{ErrorKind, StreamWriter};
///
/// let mut writer = StreamWriter::<u8, _>::create("cursor-example", 100, 3)?;
/// let mut cursor = StreamCursor::<u8, ndarray::Ix1>::open("cursor-example", "disk", Backpressure::Wait)?;
/// for _ in 0..3 {
///     writer.frame()?.commit()?;
/// }
/// assert!(matches!(writer.frame().unwrap_err().kind, ErrorKind::SlotsHeld { .. }));
///
/// let frame = cursor.next_wait(Duration::MAX)?;
/// let number = frame.number(); // write it to the disk ..
/// drop(frame);
/// cursor.acknowledge(number)?;
/// writer.frame()?.commit()?;
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug)]
pub struct StreamCursor<T: Element, D: Dimension> {
    reader: StreamReader<T, D>,
    keeper: KeeperFile,
    index: u64,
    name: String,
    acknowledged: u64,
}

impl<T: Element, D: Dimension> StreamCursor<T, D> {
    /// Opens the cursor of this name, or adds it. A new one begins with the first frame that is committed afterwards.
    /// While no process read with one that was there, the writer may have overwritten frames, unless the policy was
    /// [`Wait`](Backpressure::Wait), and one more that it was just taking: [`lost`](StreamReader::lost) counts them.
    ///
    /// A stream has at most 62 cursors. [`unlink_cursor`](super::unlink_cursor) removes one.
    ///
    /// # Errors
    ///
    /// [`HasReader`](ErrorKind::HasReader): another process reads with it.
    /// [`PermissionDenied`](ErrorKind::PermissionDenied): this user may not write to the stream's keeper. Otherwise as
    /// [`StreamReader::open`].
    pub fn open(location: impl IntoLocation, name: &str, policy: Backpressure) -> Result<Self> {
        StreamOptions::new().open_cursor(location, name, policy)
    }

    pub(super) fn open_at(home: &Home, name: &str, policy: Backpressure) -> Result<Self> {
        let mut backoff = Backoff::new(OPENING);
        loop {
            let mut reader = StreamReader::open_at(home)?;
            let (frames, keeper) = (reader.frames(), KeeperFile::open(home)?);
            if let Some(mut keeper) = keeper.filter(|keeper| keeper.id == frames.geometry.keeper) {
                let claimed = cursors::claim(&mut keeper, frames.id, name, policy, home, || frames.head())?;
                if let Some((index, mut acknowledged, is_new)) = claimed {
                    os::step("stream: cursor added");
                    if is_new {
                        acknowledged = first_held(&reader, &keeper, index)?;
                    }
                    (reader.last, reader.is_cursor) = (acknowledged, true);
                    return Ok(Self { reader, keeper, index, name: name.into(), acknowledged });
                }
            }
            // The stream is being replaced or removed: the next search finds what is there then.
            if !backoff.pause() {
                return Err(ErrorKind::Unlinked.at(&home.location));
            }
        }
    }

    /// Returns the cursor's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the last number that was acknowledged, by this process or the one before.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Returns the reader, for what the stream is and for frames by number.
    pub fn reader(&self) -> &StreamReader<T, D> {
        &self.reader
    }

    /// Returns the next frame, or `None` if there is none yet.
    ///
    /// # Errors
    ///
    /// As [`StreamReader::next`].
    #[allow(clippy::should_implement_trait)] // as of the reader
    pub fn next(&mut self) -> Result<Option<Frame<T, D>>> {
        self.refuse_forked_child()?;
        self.reader.next()
    }

    /// As [`next`](Self::next), but waits at most `limit` for a frame. `Duration::MAX` means without limit.
    ///
    /// # Errors
    ///
    /// As [`StreamReader::next_wait`].
    pub fn next_wait(&mut self, limit: Duration) -> Result<Frame<T, D>> {
        self.refuse_forked_child()?;
        self.reader.next_wait(limit)
    }

    /// Lets the writer overwrite all frames up to this number. A number that is not greater than the last one changes
    /// nothing.
    ///
    /// # Errors
    ///
    /// [`InvalidSetting`](ErrorKind::InvalidSetting): the number is greater than that of the last frame that was
    /// returned. [`Unsupported`](ErrorKind::Unsupported): this process was forked from the one that reads.
    pub fn acknowledge(&mut self, number: u64) -> Result<()> {
        self.refuse_forked_child()?;
        if number > self.reader.last {
            let expected = "that of a frame that the cursor has returned";
            return Err(crate::error::Error::setting("the number to acknowledge", number, expected));
        }
        if number > self.acknowledged {
            cursors::acknowledge(&self.keeper.memory, self.index, number);
            self.acknowledged = number;
        }
        Ok(())
    }

    fn refuse_forked_child(&self) -> Result<()> {
        if self.keeper.locks.is_own_process() {
            return Ok(());
        }
        let what = "a cursor in a child that was forked from the process that reads with it (open another one here)";
        Err(ErrorKind::Unsupported { what: what.into() }.at(self.reader.location()))
    }
}

/// Returns the number from which on a new cursor holds every frame.
fn first_held<T: Element, D: Dimension>(reader: &StreamReader<T, D>, keeper: &KeeperFile, index: u64) -> Result<u64> {
    let mut backoff = Backoff::new(OPENING);
    loop {
        if let Some(acknowledged) = cursors::begin(&keeper.memory, index, || reader.head()) {
            return Ok(acknowledged);
        }
        if !backoff.pause() {
            return Err(ErrorKind::TimedOut { waited: OPENING }.at(reader.location()));
        }
    }
}
