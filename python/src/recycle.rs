//! Memory of counted arrays of bytes that this process sent, used again for the next ones: filling memory that was
//! written before is several times as fast.

use std::sync::Arc;

use ndarray_shm::Result;

use crate::addresses;
use crate::memory::Memory;

/// Most arrays that are kept. Each costs a descriptor.
const MOST: usize = 16;

/// The arrays that have memory which can be used again, the oldest first: those that this process uses, those that it
/// has sent, and those that no process has any more. An array is used here as long as there is another reference to it.
#[derive(Default)]
pub(crate) struct Shelf(Vec<Spare>);

struct Spare {
    memory: Arc<dyn Memory>,
    bytes: usize,
}

impl Spare {
    fn is_used_here(&self) -> bool {
        Arc::strong_count(&self.memory) > 1
    }
}

impl Shelf {
    /// Makes a new array of the memory of one with so many bytes, if one has no user. Also returns the random number of
    /// the old one.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<Option<(Arc<dyn Memory>, u128)>> {
        for at in 0..self.0.len() {
            let kept = &mut self.0[at];
            if kept.bytes != bytes || kept.is_used_here() {
                continue;
            }
            addresses::forget(&kept.memory);
            let Some(counted) = Arc::get_mut(&mut kept.memory).and_then(|memory| memory.counted_mut()) else {
                continue;
            };
            let before = counted.id();
            if counted.recycle()? {
                let kept = self.0.remove(at);
                let memory = Arc::clone(&kept.memory);
                self.0.push(kept); // the youngest
                return Ok(Some((memory, before)));
            }
        }
        Ok(None)
    }

    /// Lets go of arrays that this process does not use, until another one of so many bytes has room beside at most
    /// `most` bytes. Returns whether it has.
    pub(crate) fn has_room(&mut self, bytes: usize, most: usize) -> bool {
        while self.0.len() >= MOST || self.0.iter().map(|kept| kept.bytes).sum::<usize>() + bytes > most {
            let Some(oldest) = self.0.iter().position(|kept| !kept.is_used_here()) else { return false };
            self.0.remove(oldest);
        }
        true
    }

    pub(crate) fn keep(&mut self, memory: Arc<dyn Memory>, bytes: usize) {
        self.0.push(Spare { memory, bytes });
    }

    /// Lets go of all arrays that this process does not use. Returns whether there were any.
    pub(crate) fn clear(&mut self) -> bool {
        let before = self.0.len();
        self.0.retain(Spare::is_used_here);
        self.0.len() < before
    }
}
