//! The socket of a manager. The process that listens at it is the manager. When it dies, the kernel refuses connections
//! to the socket, so there is no pid file that could be wrong.

use std::io;
use std::path::Path;

use crate::error::{Error, Result};
use crate::manager_client::address::{connect, denied, failed, own_directory};
use crate::os::{self, Listener};

/// Becomes the manager at `path`, in place of a dead one; `None` if there is a living one.
pub(super) fn listen(path: &Path) -> Result<Option<Listener>> {
    if os::temporary_directory().is_ok_and(|temporary| path.parent() == Some(&own_directory(&temporary))) {
        make_own_directory(path)?;
    }
    let error = match os::listen(path) {
        Ok(listener) => return Ok(Some(listener)),
        Err(error) => error,
    };
    match error.kind() {
        io::ErrorKind::AlreadyExists => connect(path).map(|_other| None),
        io::ErrorKind::InvalidInput | io::ErrorKind::TimedOut => Err(failed(path, error.to_string())),
        io::ErrorKind::PermissionDenied => match os::facts_at(path) {
            Ok(facts) if !os::is_user(facts.owner) => {
                let reason =
                    "the socket belongs to another user; set NDSHM_MANAGER_SOCKET to a path in a directory of yours";
                Err(denied(path, facts.owner, facts.mode, reason))
            }
            _ => Err(cannot(path, error)),
        },
        _ => Err(cannot(path, error)),
    }
}

fn cannot(path: &Path, error: std::io::Error) -> Error {
    let op = "creating the manager's socket (its directory must exist; NDSHM_MANAGER_SOCKET can name another)";
    Error::os_elsewhere(op, path.display(), error)
}

fn make_own_directory(socket: &Path) -> Result<()> {
    let directory = socket.parent().unwrap_or(socket);
    os::private_directory(directory).map_err(|error| match error {
        os::PrivateDirectoryError::Unsafe { owner, mode, .. } => {
            let reason = "other users could put a socket of their own there; remove this directory, or set \
                          XDG_RUNTIME_DIR or NDSHM_MANAGER_SOCKET";
            denied(directory, owner, mode, reason)
        }
        os::PrivateDirectoryError::Os(error) => {
            Error::os("creating a directory for the manager", directory.display(), error)
        }
    })
}
