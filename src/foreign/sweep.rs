//! Removing files of other programs that no process uses.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Creator, Family, Finding, Folder, ForeignFile, Looked, Meant, about_file, hidden_name, look, walk};
use crate::backend::Directory;
use crate::error::{Error, Result};
use crate::os;

/// Age below which a file is left alone if nothing else is said.
const LEAST_AGE: Duration = Duration::from_secs(600);

/// Options for removing files of other programs that no process uses.
///
/// The [room's page](super) says what is proven, and what other processes notice.
///
/// # Examples
///
/// ```no_run
/// use std::time::Duration;
/// use ndarray_shm::Directory;
/// use ndarray_shm::foreign::Sweep;
///
/// let sweep = Sweep::new().older_than(Duration::from_secs(3600)).dry_run(true);
/// for file in sweep.run(&Directory::shm()?, |name, _family| name.starts_with("vllm_offload_"))?.removed {
///     println!("would remove {}", file.path.display());
/// }
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
#[must_use = "nothing is done until `run` is called"]
pub struct Sweep {
    older_than: Duration,
    before: Option<SystemTime>,
    user: Option<u32>,
    ours: bool,
    dry_run: bool,
}

/// Result of [`Sweep::run`]: the files that were chosen. Those that disappeared meanwhile are left out.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Swept {
    /// Files that were removed, or that a dry run would have removed.
    pub removed: Vec<ForeignFile>,
    /// Files that stay, each with the reason in [`ForeignFile::finding`].
    pub kept: Vec<ForeignFile>,
    /// Files at which this process could not look, or which it could not remove.
    pub failed: Vec<(ForeignFile, Error)>,
}

impl Default for Sweep {
    fn default() -> Self {
        Self { older_than: LEAST_AGE, before: None, user: None, ours: false, dry_run: false }
    }
}

impl Sweep {
    /// Returns the defaults: this user's files that are older than ten minutes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Leaves files alone that were created, written by write(2), or given other properties within this time.
    ///
    /// A process may be between creating a file and opening it again, or within the call that creates it. So this
    /// should be more than any process takes for that. With zero, a file may lose its name while it is created.
    pub fn older_than(mut self, age: Duration) -> Self {
        self.older_than = age;
        self
    }

    /// Leaves files alone that were created or changed later than this, too, for example than
    /// [`start_of_container`](super::start_of_container).
    pub fn before(mut self, time: SystemTime) -> Self {
        self.before = Some(time);
        self
    }

    /// Removes the files of this user instead of those of this process's effective user. That needs root, and
    /// `CAP_LEASE` in the first user namespace.
    pub fn user(mut self, user: u32) -> Self {
        self.user = Some(user);
        self
    }

    /// Chooses whether to remove this crate's own files too, of any name: arrays, renderbuffers, streams and caches
    /// that no process is attached to. They live without one on purpose, and handles in flight may lead to them. Only
    /// those that are [recognised](super#what-is-never-touched).
    pub fn ours(mut self, ours: bool) -> Self {
        self.ours = ours;
        self
    }

    /// Chooses whether to only look. The lease is taken and released all the same.
    pub fn dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }

    /// Removes the chosen files of one directory that no process uses. `choose` gets the name of a file and its family.
    ///
    /// Joblib folders and the files in them are chosen each by itself, the files as `folder/name`. A folder is removed
    /// when it is empty.
    ///
    /// # Errors
    ///
    /// Those of [`list`](super::list) that are about the directory. Errors of single files are in [`Swept::failed`].
    pub fn run(self, directory: &Directory, mut choose: impl FnMut(&str, &Family) -> bool) -> Result<Swept> {
        let newest = SystemTime::now().checked_sub(self.older_than).unwrap_or(UNIX_EPOCH);
        let newest = self.before.map_or(newest, |before| newest.min(before));
        let mut swept = Swept::default();
        walk(directory, &mut |place, mut file| {
            let meant = match (choose(&file.name, file.family), self.ours) {
                (true, false) => Meant::Foreign,
                (true, true) => Meant::Any,
                (false, true) if !file.is_folder => Meant::Ours,
                (false, _) => return Ok(()),
            };
            let found = if file.owner != self.user.unwrap_or_else(os::user_id) {
                Ok(Some(Finding::OtherUser))
            } else if file.changed > newest {
                Ok(Some(Finding::Young))
            } else if file.is_folder {
                self.folder(place, &file, &swept)
            } else {
                self.file(place, &file, meant, newest)
            };
            match found {
                Ok(Some(Finding::Unused)) => swept.removed.push(file),
                Ok(Some(finding)) => {
                    file.finding = finding;
                    swept.kept.push(file);
                }
                Ok(None) => {}
                Err(error) => {
                    let error = about_file(&file, error);
                    swept.failed.push((file, error));
                }
            }
            Ok(())
        })?;
        Ok(swept)
    }

    /// Removes a file. Returns `None` if it has gone.
    fn file(self, place: &Folder, file: &ForeignFile, meant: Meant, newest: SystemTime) -> io::Result<Option<Finding>> {
        let leased = match look(place, file, meant)? {
            Looked::Leased(leased) => leased,
            Looked::Kept(finding) => return Ok(Some(finding)),
            Looked::Gone => return Ok(None),
        };
        if self.dry_run {
            return Ok(Some(Finding::Unused));
        }
        os::step("foreign: leased");
        // The lease is held until the name has gone.
        match leased.unlink(&place.handle, file.own_name(), &hidden_name(&file.name), newest) {
            Ok(true) => Ok(Some(Finding::Unused)),
            Ok(false) => Ok(Some(Finding::Changed)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes a joblib folder, after its files.
    fn folder(self, place: &Folder, folder: &ForeignFile, swept: &Swept) -> io::Result<Option<Finding>> {
        match place.creator {
            Creator::Unknown => return Ok(Some(Finding::UnknownCreator)),
            Creator::Alive | Creator::None => return Ok(Some(Finding::CreatorAlive)),
            Creator::Dead => {}
        }
        if self.dry_run {
            let inside = format!("{}/", folder.name);
            let kept = swept.kept.iter().find(|file| file.name.starts_with(&inside));
            return Ok(Some(kept.map_or(Finding::Unused, |file| file.finding)));
        }
        match os::remove_directory_in(&place.handle, folder.own_name()) {
            Ok(()) => Ok(Some(Finding::Unused)),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound => Ok(None),
                io::ErrorKind::DirectoryNotEmpty => Ok(Some(Finding::InUse)),
                _ => Err(error),
            },
        }
    }
}
