//! Noticing the end of children where nothing announces it: the one who waits looks again and again.

use std::io;
use std::process::Child;
use std::thread::{self, Thread};
use std::time::Duration;

/// How long an end may go unnoticed.
const LOOK: Duration = Duration::from_millis(10);

/// A child that has not been waited for.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) child: Child,
}

/// Ends a wait of the thread that made it.
#[derive(Debug, Clone)]
pub(crate) struct Bell(Thread);

impl Bell {
    #[allow(clippy::unnecessary_wraps)] // as its counterpart
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(thread::current()))
    }

    pub(crate) fn ring(&self) {
        self.0.unpark();
    }
}

impl Watched {
    pub(crate) fn new(child: Child) -> Self {
        Self { child }
    }
}

/// Returns when the bell rang or the time is over, or sooner: a child may have ended. The bell is the calling thread's.
pub(crate) fn wait_for_end<'a>(_: impl Iterator<Item = &'a Watched>, _bell: &Bell, limit: Option<Duration>) {
    thread::park_timeout(limit.map_or(LOOK, |limit| limit.min(LOOK)));
}
