//! Forks at chosen moments: while a thread waits at a step, or with the parent held while the child already exists.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// State of a held fork: 0 no fork is held, 1 the next fork will be held, 2 its child exists and the parent is held, 3
/// the parent may go on. [`act_beside_step`] uses 2 and 3 for a thread that is held at a step.
static HELD: AtomicU32 = AtomicU32::new(0);

fn wait_for(state: u32) {
    while HELD.load(Ordering::SeqCst) != state {
        std::thread::sleep(Duration::from_millis(1));
    }
}

extern "C" fn hold_parent() {
    // The exchange lets one fork be held. Other threads may fork between 1 and 3, and their forks go on.
    if HELD.compare_exchange(1, 2, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
        wait_for(3);
    }
}

/// Lets forks be held in the parent: after the child has got its copy of everything, and before the parent's handlers
/// (`pthread_atfork`) that are registered later than this one.
pub fn prepare_held_fork() {
    // SAFETY: the handler uses an atomic and sleeps.
    assert_eq!(unsafe { libc::pthread_atfork(None, Some(hold_parent), None) }, 0);
}

/// Forks in another thread, at whatever points the other threads are. Returns when the child exists and the forking
/// thread is held. The child ends when no process can write to its standard input any more.
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

/// Keeps the main thread, which calls this, at the step where the process stops itself. When the process is continued,
/// another thread acts first, and then the main thread goes on.
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
    mask(libc::SIG_BLOCK); // the new thread inherits this, so that the main thread gets the signal
    std::thread::spawn(|| {
        wait_for(2);
        act();
        HELD.store(3, Ordering::SeqCst);
    });
    mask(libc::SIG_UNBLOCK);
}
