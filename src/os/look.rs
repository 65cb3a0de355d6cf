//! Noticing the end of children where nothing announces it: the one who waits looks again and again.

use std::io;
use std::process::Child;
use std::thread::{self, Thread};
use std::time::Duration;

/// How long an end may go unnoticed.
const LOOK: Duration = Duration::from_millis(10);

/// Waits a little, for whoever made it.
#[derive(Debug)]
pub(crate) struct EndWatch {
    bell: Bell,
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

impl EndWatch {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { bell: Bell::new()? })
    }

    pub(crate) fn bell(&self) -> Bell {
        self.bell.clone()
    }

    /// Begins to watch a child that has not been waited for.
    #[allow(clippy::unused_self)] // as its counterpart
    pub(crate) fn add(&mut self, _child: &Child) {}

    /// Stops watching a child that has been waited for.
    #[allow(clippy::unused_self)] // as its counterpart
    pub(crate) fn remove(&mut self, _child: &Child) {}

    /// Returns when the bell rang or the time is over, or sooner: a child may have ended.
    #[allow(clippy::unused_self)] // as its counterpart
    pub(crate) fn wait(&self, limit: Option<Duration>) {
        thread::park_timeout(limit.map_or(LOOK, |limit| limit.min(LOOK)));
    }
}
