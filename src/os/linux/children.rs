//! Children on Linux: they die with their parent, and their end is an event that can be waited for.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{self, PidfdFlags, Signal};

use super::bell::Bell;
use crate::os::Stop;
use crate::os::posix::children::{before_exec, for_children, number, signal_group};

/// How often children are looked at that cannot be waited for: no pidfds before Linux 5.3, and in some sandboxes.
const LOOK: Duration = Duration::from_millis(10);

/// Returns the path by which this very program can be started again, also after the file at its name was replaced.
pub(crate) fn own_program() -> io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    // proc(5): a program without a name is shown with " (deleted)". The link itself still leads to it.
    Ok(if path.exists() { path } else { "/proc/self/exe".into() })
}

/// Creates the file for the children's last words, and says how they find it.
pub(crate) fn create_report() -> io::Result<(File, OsString)> {
    for_children(&super::create_sealable()?)
}

/// Arranges that a child inherits the report, and that it is killed when the thread that starts it ends.
///
/// SIGKILL, and not a signal that could be ignored: nobody is left who could insist. Its own children, if they were
/// started like this, follow.
pub(crate) fn prepare_child(command: &mut Command, report: Option<Arc<File>>) {
    let parent = process::getpid();
    before_exec(command, report, move || {
        process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // Whoever died before that call sends nothing. A parent in another pid namespace has no number here.
        if process::getppid().is_some_and(|now| now != parent) {
            process::kill_process(process::getpid(), Signal::KILL)?;
        }
        Ok(())
    });
}

/// Waits until one of several children has ended: `pidfd_open(2)` and `poll(2)`.
#[derive(Debug)]
pub(crate) struct EndWatch {
    children: HashMap<u32, OwnedFd>,
    bell: Bell,
    /// How many children have no pidfd.
    unseen: usize,
}

impl EndWatch {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { children: HashMap::new(), bell: Bell::new()?, unseen: 0 })
    }

    pub(crate) fn bell(&self) -> Bell {
        self.bell.clone()
    }

    /// Begins to watch a child that has not been waited for.
    pub(crate) fn add(&mut self, child: &Child) {
        let opened = number(child.id()).map(|pid| process::pidfd_open(pid, PidfdFlags::empty()));
        match opened {
            Some(Ok(end)) => drop(self.children.insert(child.id(), end)),
            _ => self.unseen += 1,
        }
    }

    /// Stops watching a child that has been waited for.
    pub(crate) fn remove(&mut self, child: &Child) {
        if self.children.remove(&child.id()).is_none() {
            self.unseen = self.unseen.saturating_sub(1);
        }
    }

    /// Returns when a child has ended, the bell rang or the time is over, or sooner.
    pub(crate) fn wait(&self, limit: Option<Duration>) {
        let limit = if self.unseen == 0 { limit } else { Some(limit.map_or(LOOK, |limit| limit.min(LOOK))) };
        // What does not fit is for ever.
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let watched = std::iter::once(self.bell.as_fd()).chain(self.children.values().map(AsFd::as_fd));
        let mut events: Vec<PollFd<'_>> = watched.map(|end| PollFd::from_borrowed_fd(end, PollFlags::IN)).collect();
        if poll(&mut events, limit.as_ref()).is_err() {
            // Interrupted by a signal handler, or out of memory: not to be repeated at full speed.
            std::thread::sleep(Duration::from_millis(1));
        }
        self.bell.silence();
    }

    /// Sends a child that has not been waited for the signal, and its group if it leads one.
    pub(crate) fn stop(&self, child: &mut Child, how: Stop) {
        let Some(pid) = number(child.id()) else { return };
        // A pidfd never means a stranger, even where somebody else has waited for the child.
        let sent = match self.children.get(&child.id()) {
            Some(end) => process::pidfd_send_signal(end, how.signal()),
            None => process::kill_process(pid, how.signal()),
        };
        if sent.is_ok() {
            signal_group(pid, how.signal());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_wait_ends_when_a_child_does_or_the_bell_rings() {
        let mut watch = EndWatch::new().unwrap();
        let begin = Instant::now();
        watch.bell().ring();
        watch.wait(Some(LONG));
        let mut child = Command::new("true").spawn().unwrap();
        watch.add(&child);
        assert_eq!(watch.unseen, 0, "this kernel has pidfds");
        watch.wait(None);
        child.wait().unwrap();
        watch.remove(&child);
        assert!(watch.children.is_empty() && begin.elapsed() < LONG);
        let begin = Instant::now();
        watch.wait(Some(Duration::from_millis(20)));
        assert!(begin.elapsed() >= Duration::from_millis(20), "nothing happened");
    }

    #[test]
    fn children_that_cannot_be_waited_for_are_looked_at() {
        let mut watch = EndWatch::new().unwrap();
        watch.unseen = 1;
        let begin = Instant::now();
        watch.wait(None);
        watch.wait(Some(LONG));
        assert!(begin.elapsed() < LONG);
    }
}
