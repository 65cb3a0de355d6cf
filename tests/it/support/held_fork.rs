//! Forks at chosen moments: while a thread stands at a step, and held in the parent while the child is already there.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// What a held fork has come to: 0 no fork is held, 1 the next one will be, 2 its child has been made, 3 it may go on.
static HELD: AtomicU32 = AtomicU32::new(0);

fn wait_for(state: u32) {
    while HELD.load(Ordering::SeqCst) != state {
        std::thread::sleep(Duration::from_millis(1));
    }
}

extern "C" fn hold_parent() {
    if HELD.compare_exchange(1, 2, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
        wait_for(3);
    }
}

/// Lets forks be held in the parent, between the moment at which the child gets its copy of everything and whatever handlers
/// (`pthread_atfork`) are registered later than this.
pub fn prepare_held_fork() {
    // SAFETY: the handler looks at an atomic and sleeps.
    assert_eq!(unsafe { libc::pthread_atfork(None, Some(hold_parent), None) }, 0);
}

/// Forks in another thread, whatever the threads are at, and returns when the child is there and that thread is held. The child
/// ends when nothing can write to its standard input any more.
pub fn fork_beside() {
    HELD.store(1, Ordering::SeqCst);
    std::thread::spawn(|| {
        // SAFETY: the child calls nothing but read(2) and _exit(2).
        if unsafe { libc::fork() } == 0 {
            let mut byte = 0_u8;
            // SAFETY: there is room for the one byte.
            while unsafe { libc::read(0, (&raw mut byte).cast(), 1) } > 0 {}
            // SAFETY: ends the process without running anything else.
            unsafe { libc::_exit(0) };
        }
    });
    wait_for(2);
}

/// Lets the held fork return in the parent.
pub fn release_fork() {
    HELD.store(3, Ordering::SeqCst);
}

extern "C" fn hold_thread(_: libc::c_int) {
    HELD.store(2, Ordering::SeqCst);
    wait_for(3);
}

/// Has the main thread, which calls this, stand at the step where the process stops itself, also when the process is continued:
/// then another thread acts, and after that the main thread goes on.
pub fn act_beside_step(act: impl FnOnce() + Send + 'static) {
    let mask = |how: libc::c_int| {
        // SAFETY: a set of signals is integers, and the call fills it.
        let mut set = unsafe { std::mem::zeroed::<libc::sigset_t>() };
        // SAFETY: the set is valid, and the signal has that number.
        unsafe { libc::sigaddset(&raw mut set, libc::SIGCONT) };
        // SAFETY: the set is valid; the old one is not asked for.
        assert_eq!(unsafe { libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut()) }, 0);
    };
    let handler = hold_thread as extern "C" fn(libc::c_int);
    // SAFETY: the handler uses atomics and nanosleep(2) only.
    unsafe { libc::signal(libc::SIGCONT, handler as libc::sighandler_t) };
    mask(libc::SIG_BLOCK); // inherited by the thread: the signal is for the main thread
    std::thread::spawn(|| {
        wait_for(2);
        act();
        HELD.store(3, Ordering::SeqCst);
    });
    mask(libc::SIG_UNBLOCK);
}

/// Ends this process, a forked child, if it takes so many seconds.
pub fn end_within(seconds: u32) {
    // SAFETY: sets a timer.
    unsafe { libc::alarm(seconds) };
}
