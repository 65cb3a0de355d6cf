//! The address of this user's manager, and connecting to it.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::wire::Talk;
use crate::error::{Error, ErrorKind, Result};
use crate::os::{self, daemon};

/// The environment variable with the socket's path, which takes precedence over the defaults.
const SOCKET: &str = "NDSHM_MANAGER_SOCKET";

/// The socket's name in the default directories.
const NAME: &str = "ndshm-manager.sock";

/// Returns the path of the socket at which this user's [manager](crate::manager) listens, whether one runs or not.
///
/// It is `explicit`, if given; otherwise the module's page says how it is chosen.
///
/// # Errors
///
/// [`InvalidSetting`](ErrorKind::InvalidSetting): `NDSHM_MANAGER_SOCKET` is empty.
/// [`Unsupported`](ErrorKind::Unsupported) on platforms without files.
pub fn socket_path(explicit: Option<&Path>) -> Result<PathBuf> {
    let from_environment = std::env::var_os(SOCKET);
    let temporary = os::temporary_directory();
    let temporary = temporary.map_err(|error| Error::os("looking for a temporary directory", "manager", error))?;
    choose(explicit, from_environment, std::env::var_os("XDG_RUNTIME_DIR"), &temporary)
}

/// Returns the first of: the program's choice, the environment variable, a socket in the user's runtime directory if
/// that is private, a socket in this user's directory in the temporary directory.
fn choose(
    explicit: Option<&Path>,
    from_environment: Option<OsString>,
    runtime: Option<OsString>,
    temporary: &Path,
) -> Result<PathBuf> {
    let path = match (explicit, from_environment) {
        (Some(path), _) => path.to_owned(),
        (None, Some(path)) if path.is_empty() => {
            return Err(Error::setting(SOCKET, "", "the path of a socket in a directory of yours, or unset"));
        }
        (None, Some(path)) => path.into(),
        (None, None) => {
            let runtime = runtime.map(PathBuf::from).filter(|path| path.is_absolute() && path.is_dir());
            match runtime.filter(|path| os::private_directory(path).is_ok()) {
                Some(runtime) => runtime.join(NAME),
                None => own_directory(temporary).join(NAME),
            }
        }
    };
    std::path::absolute(&path).map_err(|error| Error::os("resolve", path.display(), error))
}

/// Returns the directory, in the temporary directory, that contains this user's socket if there is no runtime
/// directory.
pub(crate) fn own_directory(temporary: &Path) -> PathBuf {
    temporary.join(format!("ndshm-manager-{}", os::user_tag()))
}

/// Connects to this user's manager at `path`. Returns `None` if there is none.
pub(crate) fn connect(path: &Path) -> Result<Option<Talk>> {
    let connected = daemon::supported().and_then(|()| os::connect(path, Some(Instant::now())));
    let socket = match connected {
        Ok(socket) => socket,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let (owner, mode) = os::facts_at(path).map_or((0, 0), |facts| (facts.owner, facts.mode));
            let reason = "this user may not connect to the manager's socket; set NDSHM_MANAGER_SOCKET to one of yours";
            return Err(denied(path, owner, mode, reason));
        }
        Err(error) => return Err(Error::os("connecting to the manager", path.display(), error)),
    };
    let peer = socket.peer().map_err(|error| Error::os("asking for the manager's user", path.display(), error))?;
    if !os::is_user(peer.user) {
        let mode = os::facts_at(path).map_or(0, |facts| facts.mode);
        let reason = "another user's program listens at the manager's socket; set NDSHM_MANAGER_SOCKET to one of yours";
        return Err(denied(path, peer.user, mode, reason));
    }
    Ok(Some(Talk::new(socket)))
}

/// Returns the error for a socket or directory that another user owns or could replace.
pub(crate) fn denied(path: &Path, owner: u32, mode: u32, reason: &'static str) -> Error {
    ErrorKind::PermissionDenied { owner, mode, reason }.at(path.display())
}

/// Returns the error for a manager that does not answer as it should.
pub(crate) fn failed(path: &Path, reason: impl Into<String>) -> Error {
    ErrorKind::Manager { reason: reason.into() }.at(path.display())
}

/// Returns whether the error means that no process listens.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_configured_socket_path_wins() {
        let base = tempfile::tempdir().expect("a directory");
        let base = base.path();
        let runtime = base.join("runtime");
        assert!(os::private_directory(&runtime).is_ok());
        let of = |explicit: Option<&str>, environment: Option<&str>, runtime: Option<&Path>| {
            let runtime = runtime.map(|path| path.as_os_str().to_owned());
            choose(explicit.map(|path| base.join(path)).as_deref(), environment.map(Into::into), runtime, base)
        };
        let own = base.join(format!("ndshm-manager-{}", os::user_tag())).join(NAME);
        assert_eq!(of(Some("a"), Some("b"), Some(&runtime)).expect("chosen"), base.join("a"));
        let relative = of(None, Some("b"), Some(&runtime)).expect("chosen");
        assert!(relative.is_absolute() && relative.ends_with("b"));
        assert_eq!(of(None, None, Some(&runtime)).expect("chosen"), runtime.join(NAME));
        assert_eq!(of(None, None, None).expect("chosen"), own);
        assert_eq!(of(None, None, Some(Path::new("runtime"))).expect("chosen"), own, "a relative one is none");
        assert_eq!(of(None, None, Some(&base.join("missing"))).expect("chosen"), own);
        assert!(matches!(
            of(None, Some(""), None),
            Err(Error { kind: ErrorKind::InvalidSetting { setting: SOCKET, .. }, .. })
        ));
        assert!(!base.join("missing").exists() && !own.exists(), "choosing makes nothing");
    }
}
