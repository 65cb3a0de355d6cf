//! Which processes have a file mapped or open, as far as the platform reports it and this user may see it.
//!
//! Processes may exit during the search: these are left out. Processes that this user may not inspect are only counted.

use std::path::Path;

use ndarray_shm::backend::FileId;
use serde::Serialize;

use crate::show::units;

/// Maximum number of holders named in a line of text.
const MOST_NAMED: usize = 12;

/// A process that has a file mapped or open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Holder {
    pub(crate) pid: u32,
    /// Name of its program; empty if the process exited before the name was read.
    pub(crate) program: String,
    /// Whether it has the file mapped.
    pub(crate) mapped: bool,
    /// Whether it has an open descriptor of the file.
    pub(crate) open: bool,
}

/// All processes that hold a file, as `info --json` prints them.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Holders {
    /// `null` where the platform does not report it.
    holders: Option<Vec<Holder>>,
    /// Number of processes that this user may not inspect; `null` where the platform does not report it.
    holders_hidden: Option<usize>,
}

impl Holders {
    /// Finds the processes that hold the file at `path` with this identity.
    pub(crate) fn of(path: &Path, id: FileId) -> Self {
        Self::of_each(&[(path, id)]).pop().unwrap_or_default()
    }

    /// Finds the processes that hold each of these files, in one search of all processes.
    pub(crate) fn of_each(files: &[(&Path, FileId)]) -> Vec<Self> {
        match imp::holders(files) {
            Some((found, hidden)) => {
                found.into_iter().map(|holders| Self { holders: Some(holders), holders_hidden: Some(hidden) }).collect()
            }
            None => files.iter().map(|_| Self::default()).collect(),
        }
    }

    /// Returns the holders as one line of text, for a file that is known to have some. Processes that may not be
    /// inspected are told only if no other is known.
    pub(crate) fn describe_known(&self) -> String {
        let known = self.holders.as_ref().is_some_and(|holders| !holders.is_empty());
        if known { Self { holders: self.holders.clone(), holders_hidden: Some(0) }.describe() } else { self.describe() }
    }

    /// Returns the holders as one line of text.
    pub(crate) fn describe(&self) -> String {
        let (Some(holders), Some(hidden)) = (&self.holders, self.holders_hidden) else {
            return "this platform does not say".to_owned();
        };
        let mut names: Vec<String> = holders
            .iter()
            .take(MOST_NAMED)
            .map(|holder| {
                let program = if holder.program.is_empty() { "exited" } else { &holder.program };
                let how = if holder.mapped { "" } else { ", open but not mapped" };
                format!("{} ({}{how})", holder.pid, units::printable(program))
            })
            .collect();
        if holders.len() > MOST_NAMED {
            names.push(format!("and {} more", holders.len() - MOST_NAMED));
        }
        let known = match (names.is_empty(), hidden) {
            (true, 0) => "none".to_owned(),
            (true, _) => "none that this user may see".to_owned(),
            (false, _) => names.join(", "),
        };
        match hidden {
            0 => known,
            _ => format!("{known}; {} may not be inspected", units::count_of(hidden, "process", "processes")),
        }
    }
}

#[cfg(target_os = "linux")]
mod imp {
    use std::collections::{BTreeSet, HashMap};
    use std::fs;
    use std::io;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::MetadataExt as _;
    use std::path::{Path, PathBuf};

    use ndarray_shm::backend::FileId;

    use super::Holder;

    /// Searches all processes except this one. See `proc_pid_maps(5)` and `proc_pid_fd(5)`.
    pub(super) fn holders(files: &[(&Path, FileId)]) -> Option<(Vec<Vec<Holder>>, usize)> {
        let files = Files::new(files);
        let mut found = vec![Vec::new(); files.0.len()];
        let mut hidden = 0;
        if found.is_empty() {
            return Some((found, hidden));
        }
        for entry in fs::read_dir("/proc").ok()?.flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let Some(pid) = pid.filter(|pid| *pid != std::process::id()) else { continue };
            let process = entry.path();
            let mapped = fs::read(process.join("maps")).map(|maps| files.mapped_in(&maps));
            let open = files.open_in(&process);
            let refused = is_refused(&mapped) || is_refused(&open);
            let (mapped, open) = (mapped.unwrap_or_default(), open.unwrap_or_default());
            let held: BTreeSet<usize> = mapped.union(&open).copied().collect();
            if !held.is_empty() {
                let program = fs::read(process.join("comm")).unwrap_or_default();
                let program = String::from_utf8_lossy(&program).trim_end().to_owned();
                for file in held {
                    let (mapped, open) = (mapped.contains(&file), open.contains(&file));
                    found[file].push(Holder { pid, program: program.clone(), mapped, open });
                }
            } else if refused {
                // Kernel threads and zombies have an empty command line and no memory: they hold nothing, so they do
                // not count.
                let has_memory = fs::read(process.join("cmdline")).is_ok_and(|line| !line.is_empty());
                hidden += usize::from(has_memory);
            }
        }
        for holders in &mut found {
            holders.sort_by_key(|holder| holder.pid);
        }
        Some((found, hidden))
    }

    fn is_refused<T>(answer: &io::Result<T>) -> bool {
        answer.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    }

    /// The files that are searched for, with the positions in the list that was given.
    pub(super) struct Files(Vec<(PathBuf, FileId)>, HashMap<u64, Vec<usize>>);

    impl Files {
        pub(super) fn new(files: &[(&Path, FileId)]) -> Self {
            let mut by_number: HashMap<u64, Vec<usize>> = HashMap::new();
            for (at, (_, id)) in files.iter().enumerate() {
                by_number.entry(id.number).or_default().push(at);
            }
            let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
            Self(files.iter().map(|(path, id)| (real(path), *id)).collect(), by_number)
        }

        fn open_in(&self, process: &Path) -> io::Result<BTreeSet<usize>> {
            let mut found = BTreeSet::new();
            for descriptor in fs::read_dir(process.join("fd"))?.flatten() {
                let link = descriptor.path();
                // The links of pipes and sockets are not paths. `stat` on them is not needed.
                if !fs::read_link(&link).is_ok_and(|target| target.is_absolute()) {
                    continue;
                }
                let Ok(facts) = fs::metadata(&link) else { continue };
                let same = self.1.get(&facts.ino()).into_iter().flatten();
                found.extend(same.filter(|at| self.0[**at].1.device == facts.dev()));
            }
            Ok(found)
        }

        /// Searches the text of a `maps` file, with lines `start-end rwxp offset major:minor inode   path`.
        pub(super) fn mapped_in(&self, maps: &[u8]) -> BTreeSet<usize> {
            let mut found = BTreeSet::new();
            for line in maps.split(|byte| *byte == b'\n') {
                let mut fields = line.splitn(6, |byte| *byte == b' ').skip(3);
                let (Some(on), Some(inode)) = (fields.next(), fields.next()) else { continue };
                let Some(number) = std::str::from_utf8(inode).ok().and_then(|inode| inode.parse().ok()) else {
                    continue;
                };
                let named = fields.next().unwrap_or_default().trim_ascii_start();
                // On btrfs and layered file systems `stat` reports another device than `maps`. There the path is
                // compared instead.
                let same = self.1.get(&number).into_iter().flatten();
                found.extend(same.filter(|at| {
                    let (path, id) = &self.0[**at];
                    let device = format!("{:02x}:{:02x}", rustix::fs::major(id.device), rustix::fs::minor(id.device));
                    on == device.as_bytes() || named == path.as_os_str().as_bytes()
                }));
            }
            found
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    use std::path::Path;

    use ndarray_shm::backend::FileId;

    use super::Holder;

    pub(super) fn holders(_files: &[(&Path, FileId)]) -> Option<(Vec<Vec<Holder>>, usize)> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_named_in_one_line() {
        let holder = |pid, mapped| Holder { pid, program: "p\u{1b}".to_owned(), mapped, open: !mapped };
        let describe = |count, hidden| {
            let holders = (1..=count).map(|pid| holder(pid, pid != 2)).collect();
            Holders { holders: Some(holders), holders_hidden: Some(hidden) }.describe()
        };
        assert_eq!(describe(2, 0), "1 (p\\u{1b}), 2 (p\\u{1b}, open but not mapped)");
        assert_eq!(describe(0, 0), "none");
        assert_eq!(describe(0, 1), "none that this user may see; 1 process may not be inspected");
        assert!(describe(20, 3).ends_with("and 8 more; 3 processes may not be inspected"));
        assert_eq!(Holders::default().describe(), "this platform does not say");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_mapping_is_known_by_device_and_inode() {
        let maps = b"7f00-7f01 rw-s 00000000 00:1a 77                         /dev/shm/a b\n\
                     7f02-7f03 rw-p 00000000 00:00 0 \n\nnonsense\n7f04-7f05 r--p 00000000 fd:100 9 /x (deleted)";
        let is_mapped = |path: &str, major, minor, number| {
            let id = FileId { device: rustix::fs::makedev(major, minor), number };
            !imp::Files::new(&[(Path::new(path), id)]).mapped_in(maps).is_empty()
        };
        assert!(is_mapped("/other/path", 0, 0x1a, 77));
        assert!(!is_mapped("/other/path", 0, 0x1b, 77) && !is_mapped("/dev/shm/a b", 0, 0x1a, 7));
        assert!(is_mapped("/dev/shm/a b", 0, 0x1b, 77), "another device, but the same inode and path");
        assert!(is_mapped("/x", 0xfd, 0x100, 9));
    }
}
