//! What the machine shows of a process: descriptors and mappings.

use std::os::unix::fs::MetadataExt;

/// How many descriptors of this process lead to the file with this inode number, whatever its name.
pub fn descriptors_of(inode: u64) -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").expect("/proc");
    let leads_there = |entry: &std::fs::DirEntry| std::fs::metadata(entry.path()).is_ok_and(|file| file.ino() == inode);
    entries.filter_map(Result::ok).filter(leads_there).count()
}

/// How many descriptors this process has open.
pub fn descriptor_count() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc").count() - 1 // the directory itself
}

/// How many mappings of this process are of the file with this inode number.
pub fn mappings_of(inode: u64) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
    maps.lines().filter(|line| line.split_whitespace().nth(4) == Some(&inode.to_string())).count()
}
