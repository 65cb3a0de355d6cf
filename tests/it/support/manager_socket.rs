//! A socket for the manager of one test.

use std::path::PathBuf;

use ndarray_shm::manager;

use super::machine::send_signal;

/// A socket in a directory of its own. Drop ends the manager that serves there.
#[derive(Debug)]
pub struct ManagerSocket {
    pub path: PathBuf,
    pub directory: tempfile::TempDir,
}

impl ManagerSocket {
    pub fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("ndshm-it-manager-").tempdir().expect("a directory");
        Self { path: directory.path().join("s"), directory }
    }
}

impl Drop for ManagerSocket {
    fn drop(&mut self) {
        if let Ok(Some(status)) = manager::status(Some(&self.path)) {
            if !matches!(manager::stop(Some(&self.path)), Ok(true)) {
                send_signal("KILL", status.pid);
            }
        }
    }
}
