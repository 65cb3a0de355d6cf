//! A volume that refuses to store two objects, the second one only after the first.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use ndarray_shm_volume::{ChunkSink, ChunkSource, Error, Fetched, Gather, Result, Scratch, StopFlag, VolumeMeta};

use crate::raw::{Raw, until};

/// The object that is refused first. By then all objects before it are stored, and the next two are being stored.
pub(crate) const FIRST: i64 = 10;

/// The object that is refused second, after the thread of the first one has ended.
const SECOND: i64 = FIRST + 1;

/// The last object that may be encoded before the thread of the first one has ended. It is stored after that.
pub(crate) const LAST: i64 = FIRST + 2;

/// Objects of 4 elements in a row; two of them are refused.
#[derive(Debug)]
pub(crate) struct Broken<'a> {
    raw: &'a Raw,
    /// Number of objects after the first refused one that are being stored.
    behind: AtomicUsize,
    /// Raised when the thread of the first refused object ends. Before that it has told the other threads to stop.
    ended: StopFlag,
}

impl<'a> Broken<'a> {
    pub(crate) fn new(raw: &'a Raw) -> Self {
        Self { raw, behind: AtomicUsize::new(0), ended: StopFlag::new() }
    }
}

/// Returns the number of an object.
fn number(region: &[Range<i64>]) -> i64 {
    region[0].start / 4
}

fn refuse(region: &[Range<i64>]) -> Result<()> {
    Err(Error::Store { op: "writing", object: Raw::name(region), cause: "the disk is on fire".into() })
}

/// Raises a flag when dropped.
struct Raise(StopFlag);

impl Drop for Raise {
    fn drop(&mut self) {
        self.0.stop();
    }
}

thread_local! {
    /// Dropped when its thread ends.
    static AT_END: RefCell<Option<Raise>> = const { RefCell::new(None) };
}

impl ChunkSource for Broken<'_> {
    fn meta(&self) -> &VolumeMeta {
        self.raw.meta()
    }

    fn identity(&self) -> String {
        self.raw.identity()
    }

    fn is_remote(&self) -> bool {
        self.raw.is_remote()
    }

    fn decode(&self, region: &[Range<i64>], fetched: Fetched, scratch: &mut Scratch) -> Result<()> {
        self.raw.decode(region, fetched, scratch)
    }
}

impl ChunkSink for Broken<'_> {
    fn encode(&self, region: &[Range<i64>], from: &dyn Gather) -> Result<Vec<u8>> {
        if number(region) > LAST {
            until("the thread that was refused has ended", || self.ended.is_stopped());
        }
        self.raw.encode(region, from)
    }

    fn store(&self, region: &[Range<i64>], packed: Vec<u8>) -> Result<()> {
        let number = number(region);
        if (FIRST + 1..=LAST).contains(&number) {
            self.behind.fetch_add(1, Ordering::SeqCst);
            until("the thread that was refused has ended", || self.ended.is_stopped());
        }
        match number {
            FIRST => {
                until("all before it are stored, and the next two are being stored", || {
                    let stored = self.raw.stored.load(Ordering::SeqCst);
                    stored as u64 == FIRST.cast_unsigned() && self.behind.load(Ordering::SeqCst) == 2
                });
                AT_END.set(Some(Raise(self.ended.clone())));
                refuse(region)
            }
            SECOND => refuse(region),
            _ => self.raw.store(region, packed),
        }
    }

    fn erase(&self, region: &[Range<i64>]) -> Result<()> {
        self.raw.erase(region)
    }
}
