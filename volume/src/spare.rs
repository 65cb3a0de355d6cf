//! Memory that a thread used for one chunk and uses again for the next.
//!
//! Chunks are of the size that allocators take from the system and give back each time, so that every page of every chunk would be
//! made anew: as much work as reading it. Which bytes are in it does not matter: what is taken is overwritten.

use std::cell::RefCell;

/// Pieces kept for each thread: one for what is fetched, one for what is decoded.
const PIECES: usize = 2;

/// Larger pieces are given back at once; so much the less often are they needed.
const LARGEST: usize = 64 << 20;

thread_local! {
    static PIECES_LEFT: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Keeps memory for this thread's next [`take`].
pub(crate) fn give(memory: Vec<u8>) {
    if memory.capacity() == 0 || memory.capacity() > LARGEST {
        return;
    }
    // A thread that is ending has no next chunk.
    let _kept = PIECES_LEFT.try_with(|pieces| {
        let mut pieces = pieces.borrow_mut();
        if pieces.len() == PIECES {
            // The smallest goes: a large one serves for everything.
            let smallest = (0..PIECES).min_by_key(|at| pieces[*at].capacity()).unwrap_or(0);
            if pieces[smallest].capacity() < memory.capacity() {
                pieces[smallest] = memory;
            }
            return;
        }
        pieces.push(memory);
    });
}

/// Returns memory of any length and content, none if there is none: the smallest piece that has room for `length` bytes.
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
