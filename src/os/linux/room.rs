//! How much room there is: the file system's, every control group's, and the machine's.
//!
//! A memory file system promises its mount's size even where a control group or the machine has less. Past those limits
//! allocation does not fail: the kernel kills the process. So they are read before anything is allocated.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::os::{Bound, PerProcess, Room};

const TMPFS_MAGIC: u64 = 0x0102_1994;
const PROC_SUPER_MAGIC: u64 = 0x9fa0;
const RAMFS_MAGIC: u64 = 0x8584_58f6;
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// Returns how many bytes a new file in `directory` could take now.
pub(crate) fn available(directory: &Path) -> io::Result<Room> {
    let statistics = rustix::fs::statvfs(directory)?;
    let kind = kind(rustix::fs::statfs(directory)?);
    let in_memory = [TMPFS_MAGIC, RAMFS_MAGIC].contains(&kind);
    // A ramfs, and a tmpfs mounted without a limit, report 0 blocks in total: only the memory bounds them.
    let file_system = if in_memory && statistics.f_blocks == 0 {
        u64::MAX
    } else {
        statistics.f_bavail.saturating_mul(statistics.f_frsize)
    };
    let bound = if in_memory || kind == HUGETLBFS_MAGIC { Bound::MemoryFileSystem } else { Bound::FileSystem };
    if statistics.f_files > 0 && statistics.f_favail == 0 {
        return Ok(Room { bytes: 0, bound: Bound::Inodes });
    }
    let room = Room { bytes: file_system, bound };
    match available_memory() {
        Some(memory) if in_memory && memory.bytes < room.bytes => Ok(memory),
        _ => Ok(room),
    }
}

/// Whether reading a hole of this file allocates memory, and kills the reader if there is none.
pub(crate) fn holes_take_memory(file: &File) -> bool {
    is_on(file, &[TMPFS_MAGIC, RAMFS_MAGIC, HUGETLBFS_MAGIC])
}

/// Whether the pages of a file are memory and nothing else, and are all that its allocated bytes count.
pub(super) fn is_in_memory(file: &File) -> bool {
    is_on(file, &[TMPFS_MAGIC, RAMFS_MAGIC])
}

/// Whether a file is in memory, and so of this boot.
pub(crate) fn is_lost_at_boot(file: &File) -> bool {
    is_on(file, &[TMPFS_MAGIC, RAMFS_MAGIC, HUGETLBFS_MAGIC])
}

/// Whether a file is one of the kernel's in /proc, and not mounted over it.
pub(super) fn is_of_the_kernel(file: &File) -> bool {
    is_on(file, &[PROC_SUPER_MAGIC])
}

/// Whether a file is on a tmpfs. So is memory without a name.
pub(super) fn is_on_tmpfs(file: &File) -> bool {
    is_on(file, &[TMPFS_MAGIC])
}

fn is_on(file: &File, kinds: &[u64]) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|statistics| kinds.contains(&kind(statistics)))
}

#[allow(clippy::cast_sign_loss, clippy::cast_lossless, clippy::unnecessary_cast, clippy::needless_pass_by_value)]
fn kind(statistics: rustix::fs::StatFs) -> u64 {
    statistics.f_type as u64 & 0xffff_ffff // signed or unsigned, 32 or 64 bits, by architecture
}

/// Returns how many bytes of memory this process could allocate now, as far as the system reports it.
pub(crate) fn available_memory() -> Option<Room> {
    let group = control_groups().map(|bytes| Room { bytes, bound: Bound::ControlGroup });
    let machine = machine().map(|bytes| Room { bytes, bound: Bound::Machine });
    group.into_iter().chain(machine).min_by_key(|room| room.bytes)
}

/// Reads how much memory the machine has left: free and reclaimable memory and swap.
fn machine() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().ok()
    };
    Some((field("MemAvailable")? + field("SwapFree").unwrap_or(0)) * 1024)
}

/// A memory control group: its directory, and whether it is of the second version, where one hierarchy is for all
/// controllers.
#[derive(Debug)]
struct Group {
    directory: PathBuf,
    unified: bool,
}

/// Returns the least that the process's memory control group or one of its ancestors has left.
fn control_groups() -> Option<u64> {
    // The group of a process hardly ever changes, and finding it takes longer than everything else here.
    static GROUPS: PerProcess<Arc<[Group]>> = PerProcess::new();
    GROUPS.get_or_try(|| find_groups().map(Into::into))?.iter().filter_map(Group::left).min()
}

impl Group {
    fn left(&self) -> Option<u64> {
        let [limit, usage, inactive, active] = if self.unified {
            ["memory.max", "memory.current", "inactive_file", "active_file"]
        } else {
            ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"]
        };
        let read = |name| fs::read_to_string(self.directory.join(name)).ok();
        let number = |name| read(name)?.trim().parse::<u64>().ok();
        let (limit, usage) = (number(limit)?, number(usage)?); // "max" is no number: no limit
        let statistics = read("memory.stat").unwrap_or_default();
        // Pages of files that were only read count as usage, but the kernel frees them before it kills a process.
        let reclaimable: u64 = statistics
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter(|(name, _)| [inactive, active].contains(name))
            .filter_map(|(_, value)| value.trim().parse::<u64>().ok())
            .sum();
        Some(limit.saturating_sub(usage.saturating_sub(reclaimable)))
    }
}

/// Finds the process's groups; `None` if /proc cannot be read.
fn find_groups() -> Option<Vec<Group>> {
    let memberships = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mut groups = Vec::new();
    for line in memberships.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let unified = controllers.is_empty();
        if !unified && !controllers.split(',').any(|name| name == "memory") {
            continue;
        }
        let Some((mount, root)) = mounts.lines().find_map(|line| group_mount(line, unified)) else { continue };
        // In a container the mount shows only a part of the hierarchy, `root` and below.
        let below = Path::new(path).strip_prefix(root).or_else(|_| Path::new(path).strip_prefix("/"));
        let Ok(below) = below else { continue };
        let ancestors = below.ancestors().map(|below| Path::new(mount).join(below));
        groups.extend(ancestors.map(|directory| Group { directory, unified }));
    }
    Some(groups)
}

/// Reads one line of mountinfo: the mount point and root of the hierarchy that accounts for memory.
fn group_mount(line: &str, unified: bool) -> Option<(&str, &str)> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(3);
    let (root, point) = (mount.next()?, mount.next()?);
    let mut file_system = file_system.split(' ');
    let kind = file_system.next()?;
    let options = file_system.nth(1)?;
    let wanted =
        if unified { kind == "cgroup2" } else { kind == "cgroup" && options.split(',').any(|o| o == "memory") };
    wanted.then_some((point, root))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_line_gives_mount_point_and_root() {
        let v1 = "32 24 0:29 /docker/x /sys/fs/cgroup/memory rw,relatime shared:1 - cgroup cgroup rw,memory";
        let v2 = "33 24 0:30 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(group_mount(v1, false), Some(("/sys/fs/cgroup/memory", "/docker/x")));
        assert_eq!(group_mount(v1, true), None);
        assert_eq!(group_mount(v2, true), Some(("/sys/fs/cgroup", "/")));
        assert_eq!(group_mount(v2, false), None);
        assert_eq!(group_mount("garbage", true), None);
    }

    #[test]
    fn cached_file_pages_count_as_room() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).expect("a file");
        write("memory.max", "1000000\n");
        write("memory.current", "900000\n");
        write("memory.stat", "anon 500000\ninactive_file 300000\nactive_file 50000\n");
        let group = Group { directory: directory.path().into(), unified: true };
        assert_eq!(group.left(), Some(1_000_000 - (900_000 - 350_000)));
        write("memory.max", "max\n");
        assert_eq!(group.left(), None);
    }
}
