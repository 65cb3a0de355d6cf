//! The socket of a manager, and the lock that says which process is the manager.
//!
//! The lock is on a file beside the socket, is taken before the socket is touched, and ends with the process that holds
//! it. So a socket that is found by its holder is a dead manager's, and may be replaced.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::manager_client::address::{connect, denied, failed, own_directory};
use crate::os::{self, Listener, LockKind, LockRange, daemon};

/// How long another manager may be about to begin or to end.
const PATIENCE: Duration = Duration::from_secs(5);

/// The whole of a lock file.
const EVERYTHING: LockRange = LockRange { start: 0, length: 1 };

/// The right to be the manager at a path, and the socket. Dropped, both are gone, the socket first.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) listener: Listener,
    path: PathBuf,
    lock: Lock,
}

impl Endpoint {
    /// Becomes the manager at `path`; `None` if there is one.
    pub(super) fn take(path: &Path) -> Result<Option<Self>> {
        if os::temporary_directory().is_ok_and(|temporary| path.parent() == Some(&own_directory(&temporary))) {
            make_own_directory(path)?;
        }
        let Some(lock) = Lock::take(path)? else { return Ok(None) };
        remove_dead(path)?;
        Ok(Some(Self { listener: listen(path)?, path: path.to_owned(), lock }))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether clients still find this manager, and nobody else became one: files can be removed under it.
    pub(super) fn is_intact(&self) -> bool {
        self.listener.has_name() && self.lock.has_name()
    }

    /// Takes the socket's name away, so that nobody connects any more.
    pub(super) fn close(&self) {
        self.listener.remove_name();
    }

    /// Listens again after [`close`](Self::close).
    pub(super) fn open_again(&mut self) -> Result<()> {
        self.listener = listen(&self.path)?;
        Ok(())
    }
}

fn listen(path: &Path) -> Result<Listener> {
    let op = "making the manager's socket (its directory must exist; NDSHM_MANAGER_SOCKET names another)";
    os::listen(path).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => failed(path, error.to_string()),
        _ => Error::os_elsewhere(op, path.display(), error),
    })
}

fn make_own_directory(socket: &Path) -> Result<()> {
    let directory = socket.parent().unwrap_or(socket);
    os::private_directory(directory).map_err(|error| match error {
        os::PrivateDirectoryError::Unsafe { owner, mode, .. } => {
            let reason = "others could put their own socket there; remove it, or set XDG_RUNTIME_DIR or \
                          NDSHM_MANAGER_SOCKET";
            denied(directory, owner, mode, reason)
        }
        os::PrivateDirectoryError::Os(error) => {
            Error::os("making a directory for the manager", directory.display(), error)
        }
    })
}

/// Removes what a killed manager left. The caller holds the lock.
fn remove_dead(path: &Path) -> Result<()> {
    let facts = match os::facts_at(path) {
        Ok(facts) => facts,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::os("looking for the manager's socket", path.display(), error)),
    };
    refuse_foreign(path, &facts)?;
    if facts.other != Some("a device, pipe or socket") {
        return Err(failed(path, "something else has the name of the socket; remove it, or set NDSHM_MANAGER_SOCKET"));
    }
    os::unlink(path).map_err(|error| Error::os("removing a dead manager's socket", path.display(), error))
}

fn refuse_foreign(path: &Path, facts: &os::Facts) -> Result<()> {
    if daemon::is_this_user(facts.owner) {
        return Ok(());
    }
    let reason = "it belongs to another user; set NDSHM_MANAGER_SOCKET to a path in a directory of yours";
    Err(denied(path, facts.owner, facts.mode, reason))
}

/// The lock of a manager. Its file goes with it, as far as that is possible.
#[derive(Debug)]
struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// Takes the lock beside a socket; `None` if its holder listens there.
    fn take(socket: &Path) -> Result<Option<Self>> {
        let mut name = socket.as_os_str().to_owned();
        name.push(".lock");
        let path = PathBuf::from(name);
        let os_failed = |error| {
            let op = "taking the manager's lock (the directory must exist; NDSHM_MANAGER_SOCKET names another)";
            Error::os_elsewhere(op, path.display(), error)
        };
        let mut backoff = Backoff::new(PATIENCE);
        loop {
            let file = open_or_create(&path).map_err(os_failed)?;
            refuse_foreign(&path, &os::facts(&file).map_err(os_failed)?)?;
            if os::try_lock(&file, LockKind::Exclusive, EVERYTHING).map_err(os_failed)? {
                let lock = Self { file, path: path.clone() };
                // Its last holder may have removed it between our opening and our locking.
                if lock.has_name() {
                    return Ok(Some(lock));
                }
            } else if connect(socket)?.is_some() {
                return Ok(None);
            }
            // Somebody begins or ends just now.
            if !backoff.pause() {
                let reason = "another process is the manager, but does not listen; end it (`fuser` on the lock beside \
                              the socket finds it)";
                return Err(failed(socket, reason));
            }
        }
    }

    fn has_name(&self) -> bool {
        match (os::facts(&self.file), os::facts_at(&self.path)) {
            (Ok(own), Ok(named)) => own.id == named.id,
            _ => false,
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Before the lock goes with the descriptor; whoever opened it meanwhile will see that it has no name.
        if self.has_name() && os::is_locked(&self.file, LockKind::Exclusive, EVERYTHING).is_ok_and(|others| !others) {
            let _already_gone = os::unlink(&self.path);
        }
    }
}

fn open_or_create(path: &Path) -> io::Result<File> {
    loop {
        match os::open(path, true) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => match os::create_hidden(path, 0o600) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                other => return other,
            },
            other => return other,
        }
    }
}
