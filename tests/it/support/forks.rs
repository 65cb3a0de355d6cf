//! Forked children, which inherit memory and descriptors. For processes with one thread.
#![allow(unsafe_code)]

/// Forks. The child calls `act`, and exits with success if that returned true. Returns the child's process id.
pub fn fork(act: impl FnOnce() -> bool) -> i32 {
    // SAFETY: this process has one thread; the child ends without running anything of the parent's.
    let child = unsafe { libc::fork() };
    assert_ne!(child, -1, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).unwrap_or(false);
        // SAFETY: ends the process without running anything else.
        unsafe { libc::_exit(i32::from(!done)) };
    }
    child
}

/// Waits for a forked child's end and insists on success.
pub fn wait(child: i32) {
    let mut status = -1;
    // SAFETY: waits for a child of this process; the status is a valid place to write to.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0), "the forked child");
}

/// Forks and waits.
pub fn in_forked_child(act: impl FnOnce() -> bool) {
    wait(fork(act));
}

/// Forks a child that inherits everything and does nothing. It ends when no process can write to its standard input any
/// more.
pub fn fork_until_input_ends() {
    fork(|| {
        let mut byte = 0_u8;
        // SAFETY: there is room for the one byte.
        while unsafe { libc::read(0, (&raw mut byte).cast(), 1) } > 0 {}
        true
    });
}

/// Ends this process, a forked child, after so many seconds.
pub fn end_within(seconds: u32) {
    // SAFETY: sets a timer.
    unsafe { libc::alarm(seconds) };
}
