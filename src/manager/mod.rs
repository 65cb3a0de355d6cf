//! The manager: a process that removes what killed processes leave, as soon as they are dead.
//!
//! Nothing needs it. Counted arrays whose holders are all dead are found by the kernel's locks, at any time and by any process;
//! the manager only makes that prompt. Clients tell it which *directories* they use, one line for each, and it waits for
//! their deaths by pidfds.
//!
//! It is the program `ndshm manager`, started when a process first misses it and gone when no process has needed it for a minute. A
//! program that cannot have `ndshm` beside it runs it itself:
//!
//! ```no_run
//! use ndarray_shm::manager::{self, ManagerOptions};
//!
//! let was_first = manager::run(&ManagerOptions::new())?; // in a process of its own
//! println!("{}", if was_first { "ended" } else { "there is one already" });
//! # Ok::<(), ndarray_shm::Error>(())
//! ```
//!
//! Not for plain arrays, which stay until they are unlinked, nor needed by programs that end in good order: their last handle
//! removes the name. [`set_program`] with [`Program::Off`] does without.
//!
//! There is one manager for each user and socket.
//!
//! | | |
//! |---|---|
//! | socket | `NDSHM_MANAGER_SOCKET`; else `ndshm-manager.sock` in `$XDG_RUNTIME_DIR`, if that is this user's own, else in `ndshm-manager-UID` in the temporary directory |
//! | program | [`set_program`]; else `NDSHM_MANAGER`, a path or `off`; else `ndshm` beside this program, else in `PATH` |
//!
//! Linux only. Elsewhere everything here is [`Unsupported`](crate::Error::Unsupported), and arrays do without.

mod daemon;
mod endpoint;
mod places;

use std::process::{Child, Command, Stdio};

pub use self::daemon::{Manager, ManagerOptions, Stopper};
use crate::error::{Error, Result};
pub use crate::manager_client::{Program, Status, announce, set_program, socket_path, status, stop};
use crate::os;

/// Runs this user's manager in the calling thread; `Ok(false)` if there is one already.
///
/// It ends when [`stop`] is called by any process of the user, or when it has had no client for the time given in the
/// options. [`Manager::start`] gives more control. The [room's page](self) has an example.
///
/// # Errors
///
/// As [`Manager::start`] and [`Manager::run`].
pub fn run(options: &ManagerOptions) -> Result<bool> {
    match Manager::start(options)? {
        Some(manager) => manager.run().map(|()| true),
        None => Ok(false),
    }
}

/// Starts a command in the background, such as a [manager](self), for a process that is about to end: in a session of its own once it calls
/// [`leave_session`], in the root directory, with no descriptor of this process, which can give none to any child any more.
///
/// # Errors
///
/// What starting it answers.
pub fn spawn_detached(command: &mut Command) -> Result<Child> {
    os::daemon::keep_descriptors();
    let name = command.get_program().to_string_lossy().into_owned();
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().map_err(|source| Error::Os { op: "starting it", location: name, source })
}

/// Leaves the session and terminal that this process was started in, so that their end is not its own: a
/// [manager](self) in the background does so.
///
/// # Errors
///
/// This process leads a process group; [`Unsupported`](Error::Unsupported) off Linux.
pub fn leave_session() -> Result<()> {
    os::daemon::leave_session().map_err(|error| Error::os("leaving the session", "this process", error))
}
