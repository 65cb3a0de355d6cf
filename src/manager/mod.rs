//! Floor 4: the manager, a process that removes what killed processes leave, as soon as they are dead.
//!
//! Nothing needs it. Counted arrays whose holders are all dead are found by the kernel's locks, by anybody and at any
//! time; the manager only makes that prompt. Clients tell it which *directories* they use, one line for each, and it waits for
//! their deaths: a pidfd, which becomes readable when the process has let go of everything, however it ended.
//!
//! It is `ndshm manager`, started when it is first missed and gone when nobody has needed it for a minute; or [`run`]
//! inside any program. There is one for each user and socket. [`Program`] says which program is started.
//!
//! | | |
//! |---|---|
//! | socket | `NDSHM_MANAGER_SOCKET`; else `ndshm-manager.sock` in `$XDG_RUNTIME_DIR`, if that is this user's own, else in `ndshm-manager-UID` in the temporary directory |
//! | program | [`set_program`]; else `NDSHM_MANAGER`, a path or `off`; else `ndshm` beside this program, else in `PATH` |
//!
//! Linux only. Elsewhere everything here is [`Unsupported`](crate::Error::Unsupported), and arrays do without.

mod client;
mod daemon;
mod endpoint;
mod places;
mod program;
mod query;
mod wire;

use std::time::Duration;

pub use self::daemon::{Manager, ManagerOptions, Stopper};
pub use self::endpoint::socket_path;
pub use self::program::{Program, leave_session, set_program, spawn_detached};
pub use self::query::{status, stop};
pub use self::wire::Status;
use crate::backend::Backend;
use crate::error::Result;
use crate::segment::Home;

/// Runs this user's manager in the calling thread; `Ok(false)` if there is one already.
///
/// It ends when [`stop`] is called by any process of the user, or when it has had no client for the time given in the
/// options. [`Manager::start`] gives more control.
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

/// Tells the manager that this process uses counted arrays of a backend, and starts one if there is none.
///
/// Counted arrays do this by themselves. It never fails and never waits: what it cannot do at once is left to a thread that
/// ends within seconds.
pub fn announce(backend: &dyn Backend) {
    client::announce(backend.directory(), backend.name());
}

/// Tells the manager, if there is one, that a name stays only because of handles on their way, and when the last of them
/// expires: nobody's death would make it look then.
///
/// Called while an array is dropped. It fails in silence: the manager looks from time to time anyway.
pub(crate) fn remind(home: &Home, after: Duration) {
    client::remind(home.backend.directory(), home.backend.name(), after);
}
