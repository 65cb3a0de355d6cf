//! Descriptors that a forked child gives up before it runs: those of locks.
//!
//! A lock lasts as long as any process has its open file description. A child has copies of all descriptors, so it
//! would keep the locks of a parent that is killed. It must not unlock them either, because the parent shares them. So
//! it only gives up its copies.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Descriptors in a block of the table.
const BLOCK: usize = 1024;

/// Blocks of the table. A descriptor beyond them is not listed: a child keeps its copy.
const BLOCKS: usize = 1024;

type Block = [AtomicU64; BLOCK / 64];

/// A bit for each listed descriptor. Neither a mutex nor memory that may be freed, because a forked child reads it
/// while locks of other threads may be held for ever.
static TABLE: [AtomicPtr<Block>; BLOCKS] = [const { AtomicPtr::new(ptr::null_mut()) }; BLOCKS];

/// Returns the word and the bit of a descriptor.
fn place(descriptor: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let number = usize::try_from(descriptor).ok()?;
    let block = TABLE.get(number / BLOCK)?;
    if block.load(Ordering::Acquire).is_null() {
        let new = Box::into_raw(Box::<Block>::default());
        if block.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: the pointer is of a box, and no other thread has seen it.
            drop(unsafe { Box::from_raw(new) });
        }
    }
    // SAFETY: a pointer in the table is of a box that is never freed, and was stored with Release.
    let words = unsafe { block.load(Ordering::Acquire).as_ref() }?;
    Some((&words[number % BLOCK / 64], 1 << (number % 64)))
}

/// Lets children that are forked from now on give up their copy of a descriptor. Called before a lock is taken.
pub(crate) fn keep_from_children(file: &File) {
    if let Some((word, bit)) = place(file.as_raw_fd()) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Ends that. Called before the descriptor is closed, because another file may get its number.
pub(crate) fn no_longer_keep_from_children(file: &File) {
    if let Some((word, bit)) = place(file.as_raw_fd()) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// In a forked child: puts an idle socket in the place of every listed descriptor. A copy of the parent's value still
/// owns its number here.
///
/// Only loads and stores atomics and makes system calls that are async-signal-safe: other threads of the parent may
/// hold any lock.
pub(super) fn give_up() {
    let mut idle = None;
    for (number, block) in TABLE.iter().enumerate() {
        // SAFETY: as in `place`.
        let Some(words) = (unsafe { block.load(Ordering::Acquire).as_ref() }) else { continue };
        for (word, start) in words.iter().zip((number * BLOCK..).step_by(64)) {
            let mut bits = word.swap(0, Ordering::Relaxed);
            while bits != 0 {
                let descriptor = start + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                // A socket needs no file system. `Turn` locks nothing through it.
                // SAFETY: it takes no pointers.
                let idle = *idle.get_or_insert_with(|| unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0) });
                replace(idle, descriptor);
            }
        }
    }
    if let Some(idle) = idle.filter(|idle| *idle >= 0) {
        // SAFETY: the descriptor was made above, and no other code has its number.
        unsafe { libc::close(idle) };
    }
}

/// Closes a descriptor and gives its number to a duplicate of `idle`. Where no descriptor is left for `idle`, a
/// standard stream takes its place; if there is none either, the lock stays.
fn replace(idle: RawFd, descriptor: usize) {
    let Ok(descriptor) = RawFd::try_from(descriptor) else { return };
    let mut sources = [idle, libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO].into_iter();
    // SAFETY: the value that owns the number still owns an open descriptor afterwards.
    if sources.any(|source| source != descriptor && unsafe { libc::dup2(source, descriptor) } >= 0) {
        // SAFETY: the descriptor is open.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}
