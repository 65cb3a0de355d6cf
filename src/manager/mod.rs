//! The manager: a process that reclaims the orphans of killed processes as soon as they are dead.
//!
//! It is optional. Orphaned counted arrays are found by the kernel's locks, at any time and by any process; the manager
//! only does it promptly. Clients tell it which *directories* they use, one line for each, and it waits for the
//! clients' deaths by pidfds.
//!
//! The manager is the program `ndshm manager`. The first process that needs it starts it, and it ends after a minute
//! without clients, but not while a process is attached to an array in a directory of a client that has died, and not
//! before it has removed arrays in flight when their handles expire, and unused [caches](crate::cache) that stay for
//! less than a day. A program that is installed without `ndshm` can run the manager itself:
//!
//! ```no_run
//! use ndarray_shm::manager::{self, ManagerOptions};
//!
//! let was_first = manager::run(&ManagerOptions::new())?; // in a process of its own
//! println!("{}", if was_first { "ended" } else { "there is one already" });
//! # Ok::<(), ndarray_shm::Error>(())
//! ```
//!
//! Not for plain arrays, which stay until they are unlinked. Programs that are never killed do not need it: their last
//! handle removes the name. [`set_program`] with [`Program::Off`] switches it off.
//!
//! There is one manager for each user and socket.
//!
//! | | |
//! |---|---|
//! | socket | `NDSHM_MANAGER_SOCKET`; else `ndshm-manager.sock` in `$XDG_RUNTIME_DIR`, if that is this user's own, else in `ndshm-manager-UID` in the temporary directory |
//! | program | [`set_program`]; else `NDSHM_MANAGER`, a path or `off`; else `ndshm` beside this program, else in `PATH` |
//!
//! Linux only. On other platforms no manager can run: starting or asking one fails with
//! [`Unsupported`](crate::ErrorKind::Unsupported), and arrays work without it.

mod daemon;
mod endpoint;
mod places;
mod query;
mod requests;

use std::process::{Child, Command, Stdio};

pub use self::daemon::{Manager, ManagerOptions, Stopper};
pub use self::query::{status, stop};
pub use self::requests::Status;
use crate::error::{Error, ErrorKind, Result};
pub use crate::manager_client::{Program, announce, set_program, socket_path};
use crate::os;

/// Runs this user's manager in the calling thread. Returns `Ok(false)` if there is one already.
///
/// It ends when any process of the user calls [`stop`], or after the [idle time](ManagerOptions::idle_exit) without
/// clients. [`Manager::start`] gives more control. The [module's page](self) has an example.
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

/// Starts a command in the background, such as a [manager](self). The calling process should end soon after.
///
/// The command runs in the root directory, without standard streams, and inherits no descriptor of this process: this
/// function marks all descriptors of the process close-on-exec, so later children inherit none either. The command is
/// in a session of its own once it calls [`leave_session`].
///
/// # Errors
///
/// [`Os`](ErrorKind::Os): the command could not be started.
pub fn spawn_detached(command: &mut Command) -> Result<Child> {
    os::daemon::keep_descriptors();
    let name = command.get_program().to_string_lossy().into_owned();
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().map_err(|source| ErrorKind::Os { op: "starting the program" }.at(name).because(source))
}

/// Leaves the session and terminal in which this process was started, so that it goes on when they end. A
/// [manager](self) in the background does this.
///
/// # Errors
///
/// - [`Os`](ErrorKind::Os): this process leads a process group.
/// - [`Unsupported`](ErrorKind::Unsupported) off Linux.
pub fn leave_session() -> Result<()> {
    os::daemon::leave_session().map_err(|error| Error::os("leaving the session", "this process", error))
}
