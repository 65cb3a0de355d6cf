//! Children on Linux: they die with their parent, and their end is an event that can be waited for.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{self, Signal};

use super::bell::Bell;
use crate::os::Stop;
use crate::os::daemon::{Process, Source, wait};
use crate::os::posix::children::{before_exec, for_children, number, signal_group};

/// How often children without a pidfd are polled: there are none before Linux 5.3, and in some sandboxes.
const LOOK: Duration = Duration::from_millis(10);

/// Returns the path by which this very program can be started again, even after the file of its name was replaced.
pub(crate) fn own_program() -> io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    // proc(5): a program without a name is shown with " (deleted)". The link itself still leads to it.
    Ok(if path.exists() { path } else { "/proc/self/exe".into() })
}

/// Creates the file for the children's reports, and returns the argument by which they find it.
pub(crate) fn create_report() -> io::Result<(File, OsString)> {
    for_children(&super::create_sealable()?)
}

/// Lets a child inherit the report, and has it killed when the thread that starts it ends.
///
/// By SIGKILL, because the child could ignore other signals, and no process is left to repeat them. The child's own
/// children, if they were started like this, are killed then too.
pub(crate) fn prepare_child(command: &mut Command, report: Option<Arc<File>>) {
    let parent = process::getpid();
    before_exec(command, report, move || {
        process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // If the parent died before that call, no signal comes, but the child has another parent by now. A parent in
        // another pid namespace has no number here.
        if process::getppid().is_some_and(|now| now != parent) {
            process::kill_process(process::getpid(), Signal::KILL)?;
        }
        Ok(())
    });
}

/// A child that has not been waited for, and the pidfd that shows its end.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) child: Child,
    /// `None` where there are no pidfds.
    end: Option<Process>,
}

impl Watched {
    pub(crate) fn new(child: Child) -> Self {
        let end = Process::of_child(&child);
        Self { child, end }
    }

    /// Sends it the signal, and its group if it leads one.
    pub(crate) fn stop(&mut self, how: Stop) {
        let Some(pid) = number(self.child.id()) else { return };
        // A pidfd never means another process, even where other code has waited for the child.
        let sent = match &self.end {
            Some(Process(end)) => process::pidfd_send_signal(end, how.signal()),
            None => process::kill_process(pid, how.signal()),
        };
        if sent.is_ok() {
            signal_group(pid, how.signal());
        }
    }
}

/// Returns when one of the children has ended, the bell rang or the time is over, or sooner.
pub(crate) fn wait_for_end<'a>(
    children: impl Iterator<Item = &'a Watched> + Clone,
    bell: &'a Bell,
    limit: Option<Duration>,
) {
    let is_seen = children.clone().all(|child| child.end.is_some());
    let limit = if is_seen { limit } else { Some(limit.map_or(LOOK, |limit| limit.min(LOOK))) };
    let ends = children.filter_map(|child| child.end.as_ref()).map(Source::Process);
    if wait(&ends.chain([Source::Bell(bell)]).collect::<Vec<_>>(), limit).is_err() {
        // Out of memory: the pause keeps the caller from repeating the wait at full speed.
        std::thread::sleep(Duration::from_millis(1));
    }
    bell.silence();
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn wait_ends_with_a_child_or_the_bell() {
        let bell = Bell::new().unwrap();
        let begin = Instant::now();
        bell.ring();
        wait_for_end([].iter(), &bell, Some(LONG));
        let mut watched = Watched::new(Command::new("true").spawn().unwrap());
        assert!(watched.end.is_some(), "this kernel has pidfds");
        wait_for_end([&watched].into_iter(), &bell, None);
        watched.child.wait().unwrap();
        assert!(begin.elapsed() < LONG);
        let begin = Instant::now();
        wait_for_end([].iter(), &bell, Some(Duration::from_millis(20)));
        assert!(begin.elapsed() >= Duration::from_millis(20), "nothing happened");
    }

    #[test]
    fn children_without_pidfd_are_polled() {
        let bell = Bell::new().unwrap();
        let mut unseen = Watched { child: Command::new("true").spawn().unwrap(), end: None };
        let begin = Instant::now();
        wait_for_end([&unseen].into_iter(), &bell, None);
        wait_for_end([&unseen].into_iter(), &bell, Some(LONG));
        unseen.child.wait().unwrap();
        assert!(begin.elapsed() < LONG);
    }
}
