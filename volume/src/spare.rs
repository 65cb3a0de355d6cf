//! Memory that a thread reuses from chunk to chunk.
//!
//! Allocators get memory of a chunk's size from the system and return it each time, so the kernel would zero every page
//! of every chunk again: as much work as reading it. The old content does not matter, because the memory is
//! overwritten.

use std::cell::RefCell;

/// Pieces kept for each thread: one for fetched bytes, one for decoded elements.
const PIECES: usize = 2;

/// Larger pieces are freed at once; they are needed more rarely.
const LARGEST: usize = 64 << 20;

thread_local! {
    static PIECES_LEFT: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Keeps memory for this thread's next [`take`].
pub(crate) fn give(memory: Vec<u8>) {
    if memory.capacity() == 0 || memory.capacity() > LARGEST {
        return;
    }
    // Fails in a thread that is ending, which has no next chunk.
    let _ = PIECES_LEFT.try_with(|pieces| {
        let mut pieces = pieces.borrow_mut();
        if pieces.len() == PIECES {
            // Replace the smallest piece: a large one fits every request.
            let smallest = (0..PIECES).min_by_key(|at| pieces[*at].capacity()).unwrap_or(0);
            if pieces[smallest].capacity() < memory.capacity() {
                pieces[smallest] = memory;
            }
            return;
        }
        pieces.push(memory);
    });
}

/// Returns the smallest kept piece with a capacity of at least `length` bytes, or an empty vector. Its length and
/// content are arbitrary.
pub(crate) fn take(length: usize) -> Vec<u8> {
    let take = |pieces: &RefCell<Vec<Vec<u8>>>| {
        let mut pieces = pieces.borrow_mut();
        let fits = (0..pieces.len()).filter(|at| pieces[*at].capacity() >= length);
        let best = fits.min_by_key(|at| pieces[*at].capacity())?;
        Some(pieces.swap_remove(best))
    };
    PIECES_LEFT.try_with(take).ok().flatten().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_reused_by_the_same_thread() {
        assert_eq!(take(1).capacity(), 0);
        let piece = vec![7; 1000];
        let address = piece.as_ptr();
        give(piece);
        give(Vec::with_capacity(10));
        assert_eq!(take(1001).capacity(), 0, "none is large enough");
        let again = take(11);
        assert_eq!((again.as_ptr(), again.len()), (address, 1000));
        give(again);
        give(vec![0; 500]);
        assert_eq!(std::thread::spawn(|| take(1).capacity()).join().expect("no panic"), 0, "another thread");
        assert_eq!((take(1).capacity(), take(1).capacity(), take(1).capacity()), (500, 1000, 0));
        give(vec![0; LARGEST + 1]);
        assert_eq!(take(1).capacity(), 0);
    }
}
