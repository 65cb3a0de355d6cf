//! Which bytes of a chunk are free: ranges by place and by length.

use std::collections::{BTreeMap, BTreeSet};

/// Every range begins and ends at a multiple of this, as memory from `cudaMalloc` does.
pub(super) const ALIGNMENT: usize = 256;

/// Free ranges. No two of them touch.
#[derive(Debug)]
pub(super) struct FreeRanges {
    by_start: BTreeMap<usize, usize>,
    /// Length and start.
    by_length: BTreeSet<(usize, usize)>,
    free: usize,
}

impl FreeRanges {
    pub(super) fn new(bytes: usize) -> Self {
        let mut room = Self { by_start: BTreeMap::new(), by_length: BTreeSet::new(), free: 0 };
        room.insert(0, bytes);
        room
    }

    /// Takes a range of this length, a multiple of the alignment, from the shortest free range that is long enough.
    /// Returns its start.
    pub(super) fn take(&mut self, length: usize) -> Option<usize> {
        if length == 0 {
            return Some(0);
        }
        let (found, start) = *self.by_length.range((length, 0)..).next()?;
        self.remove(start, found);
        self.insert(start + length, found - length);
        Some(start)
    }

    /// Returns a range that was taken.
    pub(super) fn give_back(&mut self, start: usize, length: usize) {
        if length == 0 {
            return;
        }
        let (mut first, mut end) = (start, start + length);
        if let Some((&before, &bytes)) =
            self.by_start.range(..start).next_back().filter(|(at, bytes)| *at + *bytes == start)
        {
            self.remove(before, bytes);
            first = before;
        }
        if let Some(&bytes) = self.by_start.get(&end) {
            self.remove(end, bytes);
            end += bytes;
        }
        self.insert(first, end - first);
    }

    /// Returns how many bytes are free.
    pub(super) fn free(&self) -> usize {
        self.free
    }

    /// Returns the length of the longest free range.
    pub(super) fn longest(&self) -> usize {
        self.by_length.last().map_or(0, |(length, _)| *length)
    }

    fn insert(&mut self, start: usize, length: usize) {
        if length > 0 {
            self.by_start.insert(start, length);
            self.by_length.insert((length, start));
            self.free += length;
        }
    }

    fn remove(&mut self, start: usize, length: usize) {
        self.by_start.remove(&start);
        self.by_length.remove(&(length, start));
        self.free -= length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_ranges_never_overlap_and_all_room_comes_back() {
        let whole = 1 << 20;
        let (mut room, mut taken) = (FreeRanges::new(whole), Vec::<(usize, usize)>::new());
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut below = |end: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            usize::try_from(random % end as u64).expect("it is small")
        };
        let mut refused = 0;
        for _ in 0..20_000 {
            if below(100) < 55 {
                let length = ALIGNMENT * (1 + below(64));
                if let Some(start) = room.take(length) {
                    assert!(start + length <= whole);
                    assert!(taken.iter().all(|(at, bytes)| start + length <= *at || at + bytes <= start));
                    taken.push((start, length));
                } else {
                    assert!(room.longest() < length);
                    refused += 1;
                }
            } else if !taken.is_empty() {
                let (start, length) = taken.swap_remove(below(taken.len()));
                room.give_back(start, length);
            }
            assert_eq!(room.free() + taken.iter().map(|(_, length)| length).sum::<usize>(), whole);
        }
        assert!(refused > 0, "the room was never full");
        taken.into_iter().for_each(|(start, length)| room.give_back(start, length));
        assert_eq!((room.free(), room.longest()), (whole, whole));
        assert_eq!(room.take(whole), Some(0));
        assert_eq!(room.take(ALIGNMENT), None);
    }
}
