//! Files that other programs left in shared memory: which program's they are, whether a process uses them, and how to
//! remove those that none does.
//!
//! ```no_run
//! use ndarray_shm::Directory;
//! use ndarray_shm::foreign::Sweep;
//!
//! // What dead processes left of Python's SharedMemory, older than ten minutes.
//! let swept = Sweep::new().run(&Directory::shm()?, |_name, family| family.name == "python")?;
//! println!("{} removed, {} in use or too young", swept.removed.len(), swept.kept.len());
//! # Ok::<(), ndarray_shm::Error>(())
//! ```
//!
//! # What is proven
//!
//! The kernel grants a *write lease* (`F_SETLEASE` in fcntl(2)) only while no other open file description of the file
//! exists. A mapping counts, also after its descriptor was closed; so do descriptors in the queue of a socket, stopped
//! processes, and those of other users and of other pid and mount namespaces. A file is removed only while this process
//! holds the lease, and only if the name still leads to the file. No process number in a name and no list of processes
//! is trusted.
//!
//! The lease proves that no process has the file *open*. It does not prove that none will open it by its name:
//!
//! - A process may be between creating a file and opening it again. Even within the call that creates it, the name
//!   appears shortly before the kernel counts the description. So files must be older than [`Sweep::older_than`]: ten
//!   minutes if nothing else is said.
//! - Some names live without a holder on purpose: [`Family::lives_unheld`].
//! - Descriptors of `O_PATH` do not count.
//! - The name may be replaced meanwhile. So the file is renamed to a hidden name, compared again, and unlinked there. A
//!   file that was not meant gets its name back after microseconds; if yet another file has taken the name by then, it
//!   keeps the hidden one, `.swept-by-ndshm-NUMBER-NAME`, and is in [`Swept::failed`]. A killed process leaves such a
//!   name too. The next sweep treats it as the name that it was.
//!
//! # What other processes notice
//!
//! The lease is held while the file is compared with its name, renamed to a hidden one and unlinked. A process that
//! calls open(2) meanwhile blocks for these microseconds, or fails with `EAGAIN` if it gave `O_NONBLOCK`. (If this
//! process is stopped there, the kernel takes the lease away after `/proc/sys/fs/lease-break-time`: 45 s.) If it began
//! before the unlink(2), the file stays. If it began after the check, it gets `ENOENT`, or, if it had found the name
//! already, a file without a name. A signal tells this process that it is waited for: SIGURG, which is ignored by
//! default.
//!
//! Looking at a file takes the lease too, and releases it at once.
//!
//! # What is never touched
//!
//! Symbolic links, devices, sockets and folders other than joblib's; files with a second name; files of other users,
//! except root's [`Sweep::user`]; this crate's own files, except with [`Sweep::ours`]. An array of this crate is
//! recognised by its name, its footer or its description. Before Linux 6.6, plain arrays in `/dev/shm` have no
//! description: [`can_tell_ours`].
//!
//! # When not to use it
//!
//! Not for arrays of this crate: [`counted::reclaim()`](crate::counted::reclaim()) removes what dead processes left,
//! and [`unlink`](crate::unlink()) any name. Linux only, on tmpfs only: elsewhere everything is
//! [`Unsupported`](crate::ErrorKind::Unsupported).

mod family;
mod sweep;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

pub use self::family::{Family, families};
pub use self::sweep::{Sweep, Swept};
use crate::backend::{Directory, RESERVED_PREFIX};
use crate::error::{Error, ErrorKind, Result};
use crate::os::{self, Facts, FileId, LeaseAnswer, Leased};
use crate::segment::footer::{FOOTER, RawFooter};

/// A file of another program, as [`list`] and [`Sweep::run`] return it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ForeignFile {
    /// Its name in the directory; in a joblib folder `folder/name`. Bytes that are not UTF-8 are replaced.
    pub name: String,
    /// Its exact path.
    pub path: PathBuf,
    /// The programs that make such names.
    pub family: &'static Family,
    /// Whether it is a joblib folder.
    pub is_folder: bool,
    /// Length in bytes; 0 for a folder.
    pub len: u64,
    /// Allocated bytes; 0 for a folder.
    pub allocated: u64,
    /// Identity.
    pub id: FileId,
    /// The owner's number.
    pub owner: u32,
    /// Permission bits.
    pub mode: u32,
    /// When the file or its properties last changed. Writing through a mapping does not count.
    pub changed: SystemTime,
    /// Whether a process uses it.
    pub finding: Finding,
}

/// What was found out about a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// Proven: no process has it open or mapped. Of a joblib folder: nor any file in it, and its process is dead.
    Unused,
    /// A process has it open or mapped, or has a lease on it. Of a joblib folder: there are files in it.
    InUse,
    /// The process in the name of the joblib folder is alive. A file there may have no holder yet.
    CreatorAlive,
    /// Not proven. The lease needs the owner of the file, or `CAP_LEASE` in the first user namespace. Root of a
    /// container or of a user namespace lacks that.
    NotPermitted,
    /// Not proven. Files of this kind may live without a holder while the process in the name does, and the number may
    /// be that of another pid namespace.
    UnknownCreator,
    /// Not proven. The file is not on tmpfs, or the kernel has no leases.
    Unsupported,
    /// It is this crate's own.
    Ours,
    /// It belongs to another user. Only a [`Sweep`] finds this, and does not look further.
    OtherUser,
    /// It is too young. Only a [`Sweep`] finds this, and does not look further.
    Young,
    /// It changed, was opened, or has a second name. Only a [`Sweep`] finds this.
    Changed,
}

/// Lists the files of a directory, joblib folders and the files in them, with what each is, sorted by name.
///
/// This crate's own files are listed too, as [`Finding::Ours`]. Each answer holds for the moment at which it was found.
///
/// # Errors
///
/// - [`Unsupported`](ErrorKind::Unsupported): off Linux.
/// - [`NoDirectory`](ErrorKind::NoDirectory), and those of reading the directory and of asking for a lease.
///
/// # Examples
///
/// ```no_run
/// use ndarray_shm::Directory;
/// use ndarray_shm::foreign::{self, Finding};
///
/// for file in foreign::list(&Directory::shm()?)? {
///     if file.finding == Finding::Unused {
///         println!("{} ({}): {} bytes", file.name, file.family.name, file.len);
///     }
/// }
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
pub fn list(directory: &Directory) -> Result<Vec<ForeignFile>> {
    let mut files = Vec::new();
    walk(directory, &mut |place, mut file| {
        if file.is_folder {
            file.finding = find_folder(place.creator, &file, &files);
        } else {
            match look(place, &file, Meant::Foreign) {
                Ok(Looked::Leased(_)) => {}
                Ok(Looked::Kept(finding)) => file.finding = finding,
                Ok(Looked::Gone) => return Ok(()),
                Err(error) => return Err(about_file(&file, error)),
            }
        }
        files.push(file);
        Ok(())
    })?;
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

/// Returns whether this crate's plain arrays can be recognised in a directory: tmpfs keeps their descriptions since
/// Linux 6.6.
///
/// Where it is `false`, a plain array of this crate looks like a file of family `other`.
///
/// # Errors
///
/// Those of opening the directory, as [`list`].
pub fn can_tell_ours(directory: &Directory) -> Result<bool> {
    Ok(os::has_attributes(&open(directory)?))
}

/// Returns when process 1 of this pid namespace was started, or a few milliseconds earlier: in a container, when it
/// started.
///
/// What is older was left by an earlier run of the container, or belongs to a process outside: [`Sweep::before`].
///
/// # Errors
///
/// [`Unsupported`](ErrorKind::Unsupported): off Linux, or /proc does not show this pid namespace.
pub fn start_of_container() -> Result<SystemTime> {
    os::start_of_first_process()
        .map_err(|error| Error::os_elsewhere("asking when process 1 was started", "/proc", error))
}

/// Returns why a directory may be one that processes outside this container use, in words that follow "because"; `None`
/// if it seems to be the container's.
///
/// It is the container's if neither the pid nor the ipc namespace is the machine's, and the directory is a tmpfs of its
/// own, as a container runtime mounts it: limited in size, shared with no other mount namespace, and not made at boot.
/// A volume that containers of one pod share, or that was mounted later, and the ipc namespace of another container
/// (`--ipc=container:`) look like that too.
///
/// # Errors
///
/// [`Unsupported`](ErrorKind::Unsupported): off Linux. And those of reading /proc.
///
/// # Examples
///
/// ```no_run
/// use std::time::Duration;
/// use ndarray_shm::Directory;
/// use ndarray_shm::foreign::{self, Sweep};
///
/// // When a container starts again: removes what its earlier runs left.
/// let shm = Directory::shm()?;
/// if foreign::not_the_containers(&shm)?.is_none() {
///     let sweep = Sweep::new().older_than(Duration::ZERO).before(foreign::start_of_container()?);
///     sweep.run(&shm, |_name, family| !family.lives_unheld && family.name != "other")?;
/// }
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
pub fn not_the_containers(directory: &Directory) -> Result<Option<&'static str>> {
    os::not_the_containers(directory.path()).map_err(|error| explain(directory, error))
}

/// An open directory, and the process that made the files in it.
#[derive(Debug)]
struct Folder {
    handle: File,
    creator: Creator,
}

/// What is known about the process that a name has the number of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Creator {
    /// The name has no number that matters.
    None,
    Dead,
    Alive,
    Unknown,
}

impl Creator {
    /// Looks for the process of a joblib folder.
    fn of(folder: &str) -> Self {
        match family::creator(folder).and_then(os::is_dead) {
            Some(true) => Self::Dead,
            Some(false) => Self::Alive,
            None => Self::Unknown,
        }
    }
}

/// The answer to a look at one file.
#[derive(Debug)]
enum Looked {
    /// No process has it open, and none can open it before this is dropped.
    Leased(Leased),
    Kept(Finding),
    Gone,
}

/// Which files a look is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meant {
    Foreign,
    /// Only this crate's own.
    Ours,
    Any,
}

/// The beginning of the names that files have shortly before they are removed: then a random number in 32 digits, `-`
/// and the name that the file had. Not a reserved one: this crate's own bookkeeping is reclaimed without the lease.
const HIDDEN: &str = ".swept-by-ndshm-";

/// Longest name of a file in bytes.
const LONGEST_NAME: usize = 255;

/// Returns a name for a file that is about to be removed.
fn hidden_name(name: &str) -> OsString {
    let name = name.rsplit('/').next().unwrap_or_default();
    let mut hidden = format!("{HIDDEN}{:032x}-{name}", crate::random::number());
    while hidden.len() > LONGEST_NAME {
        hidden.pop();
    }
    hidden.into()
}

/// Returns the name that a file had which a killed process was about to remove.
fn name_before(name: &str) -> Option<&str> {
    let (number, name) = name.strip_prefix(HIDDEN)?.split_at_checked(33)?;
    number.ends_with('-').then_some(name)
}

/// Calls `visit` with every regular file, with those in joblib folders, and after these with the folder. Their finding
/// is `Unused`, until the visitor looks.
fn walk(directory: &Directory, visit: &mut dyn FnMut(&Folder, ForeignFile) -> Result<()>) -> Result<()> {
    let place = Folder { handle: open(directory)?, creator: Creator::None };
    for name in os::names_in(&place.handle).map_err(|error| explain(directory, error))? {
        // A file that disappears meanwhile is left out.
        let Ok((facts, changed)) = os::facts_in(&place.handle, &name) else { continue };
        let shown = name.to_string_lossy();
        let shown = name_before(&shown).unwrap_or(&shown).to_owned();
        let path = directory.path().join(&name);
        let family = family::of(&shown);
        let is_folder = facts.other == Some("a directory") && family.is_folder;
        let file = ForeignFile::new(shown, path, family, is_folder, &facts, changed);
        if !is_folder {
            if facts.other.is_none() {
                visit(&place, file)?;
            }
            continue;
        }
        let creator = Creator::of(&file.name);
        // A folder that this user may not open is listed by itself.
        match os::open_directory_in(&place.handle, &name) {
            Ok(handle) => {
                let inside = Folder { handle, creator };
                for name in os::names_in(&inside.handle).map_err(|error| explain(directory, error))? {
                    let Ok((facts, changed)) = os::facts_in(&inside.handle, &name) else { continue };
                    if facts.other.is_none() {
                        let shown = name.to_string_lossy();
                        let shown = format!("{}/{}", file.name, name_before(&shown).unwrap_or(&shown));
                        let path = file.path.join(&name);
                        visit(&inside, ForeignFile::new(shown, path, family, false, &facts, changed))?;
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            Err(_) => continue, // it was removed or replaced
        }
        visit(&Folder { handle: place.handle.try_clone().map_err(|error| explain(directory, error))?, creator }, file)?;
    }
    Ok(())
}

impl ForeignFile {
    fn new(
        name: String,
        path: PathBuf,
        family: &'static Family,
        is_folder: bool,
        facts: &Facts,
        changed: SystemTime,
    ) -> Self {
        let bytes = |bytes| if is_folder { 0 } else { bytes };
        Self {
            name,
            path,
            family,
            is_folder,
            len: bytes(facts.length),
            allocated: bytes(facts.allocated),
            id: facts.id,
            owner: facts.owner,
            mode: facts.mode,
            changed,
            finding: Finding::Unused,
        }
    }

    /// Returns the name in its own directory.
    fn own_name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }
}

/// Returns what is known about a joblib folder, after a look at each of its files.
fn find_folder(creator: Creator, folder: &ForeignFile, files: &[ForeignFile]) -> Finding {
    if !os::owns_files_of(folder.owner) {
        return Finding::NotPermitted;
    }
    let inside = format!("{}/", folder.name);
    match creator {
        Creator::Unknown => Finding::UnknownCreator,
        Creator::Alive | Creator::None => Finding::CreatorAlive,
        Creator::Dead => files
            .iter()
            .filter(|file| file.name.starts_with(&inside))
            .map(|file| file.finding)
            .find(|finding| *finding != Finding::Unused)
            .unwrap_or(Finding::Unused),
    }
}

/// Opens a file and asks for the lease.
fn look(place: &Folder, file: &ForeignFile, meant: Meant) -> io::Result<Looked> {
    let kept = |finding| Ok(Looked::Kept(finding));
    let has_our_name = is_our_name(&file.name);
    if meant == Meant::Foreign && has_our_name {
        return kept(Finding::Ours);
    }
    match place.creator {
        Creator::Alive => return kept(Finding::CreatorAlive),
        Creator::Unknown => return kept(Finding::UnknownCreator),
        Creator::None | Creator::Dead => {}
    }
    // The lease would be refused. Files of other users are not even opened.
    if !os::owns_files_of(file.owner) {
        return kept(Finding::NotPermitted);
    }
    os::step("foreign: found");
    let opened = match os::open_in(&place.handle, file.own_name()) {
        Ok(opened) => opened,
        Err(error) => {
            return match error.kind() {
                io::ErrorKind::NotFound => Ok(Looked::Gone),
                io::ErrorKind::WouldBlock => kept(Finding::InUse),
                io::ErrorKind::PermissionDenied => kept(Finding::NotPermitted),
                _ if os::is_not_a_file(&error) => Ok(Looked::Gone), // replaced by something else
                _ => Err(error),
            };
        }
    };
    let facts = os::facts(&opened)?;
    if facts.other.is_some() || facts.id != file.id {
        return Ok(Looked::Gone);
    }
    if meant != Meant::Any {
        match (meant, has_our_name || has_our_bytes(&opened, &facts)?) {
            (Meant::Foreign, true) => return kept(Finding::Ours),
            (Meant::Ours, false) => return Ok(Looked::Gone), // not what is looked for
            _ => {}
        }
    }
    Ok(match os::lease(opened)? {
        LeaseAnswer::Granted(leased) => Looked::Leased(leased),
        LeaseAnswer::InUse => Looked::Kept(Finding::InUse),
        LeaseAnswer::NotPermitted => Looked::Kept(Finding::NotPermitted),
        LeaseAnswer::Unsupported => Looked::Kept(Finding::Unsupported),
    })
}

/// Whether a name is reserved, or like those that this crate chooses: of arrays that are shared by name, and of locks
/// of uploads.
fn is_our_name(name: &str) -> bool {
    name.starts_with(RESERVED_PREFIX) || name.starts_with("ndshm-")
}

/// Whether a file has a footer of this crate, or a description of a plain array.
fn has_our_bytes(file: &File, facts: &Facts) -> io::Result<bool> {
    // Whatever the description says, and of however many bytes.
    if os::attribute(file, &mut [])?.is_some() {
        return Ok(true);
    }
    let mut tail = [0; FOOTER];
    let Some(at) = facts.length.checked_sub(FOOTER as u64) else { return Ok(false) };
    match os::read_exact_at(file, &mut tail, at) {
        Ok(()) => Ok(RawFooter::of(&tail).is_some_and(|footer| footer.is_ours())),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false), // truncated since
        Err(error) => Err(error),
    }
}

fn about_file(file: &ForeignFile, error: io::Error) -> Error {
    Error::os_elsewhere("looking at or removing a file of another program", file.path.display(), error)
}

fn open(directory: &Directory) -> Result<File> {
    os::open_directory(directory.path()).map_err(|error| explain(directory, error))
}

fn explain(directory: &Directory, error: io::Error) -> Error {
    let path: &Path = directory.path();
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => ErrorKind::NoDirectory.at(path.display()),
        io::ErrorKind::PermissionDenied => {
            let facts = os::facts_at(path).ok();
            let (owner, mode) = facts.map_or((0, 0), |facts| (facts.owner, facts.mode));
            let reason = "this user may not list the directory";
            ErrorKind::PermissionDenied { owner, mode, reason }.at(path.display())
        }
        _ => Error::os_elsewhere("look for files of other programs", path.display(), error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_names_say_what_they_were() {
        for name in ["psm_1", "a/psm_1", "é-", &"é".repeat(120)] {
            let hidden = hidden_name(name).into_string().expect("text");
            assert!(hidden.len() <= LONGEST_NAME && !hidden.contains('/') && !is_our_name(&hidden), "{hidden}");
            let before = name_before(&hidden).expect("a hidden name");
            assert!(name.rsplit('/').next().expect("a name").starts_with(before) && !before.is_empty(), "{before}");
        }
        for other in ["psm_1", ".swept-by-ndshm-", ".swept-by-ndshm-1-psm", "é"] {
            assert_eq!(name_before(other), None, "{other}");
        }
    }
}
