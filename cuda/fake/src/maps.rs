//! The mappings of this process, as `/proc/self/maps` tells them.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;

/// A mapping.
#[derive(Clone)]
pub(crate) struct Area {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) shared: bool,
    pub(crate) offset: u64,
    /// Major and minor number of the file's device.
    pub(crate) device: (u32, u32),
    /// 0 where there is no file.
    pub(crate) inode: u64,
    pub(crate) path: String,
}

/// Which bytes of which file are at a range of addresses; anonymous memory has the inode 0.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Backing {
    range: Range<usize>,
    device: (u32, u32),
    inode: u64,
    offset: u64,
}

/// Parses a line of `/proc/PID/maps`: `start-end rwxs offset major:minor inode path`.
pub(crate) fn parse_line(line: &str) -> Option<Area> {
    let mut rest = line;
    let mut field = || {
        let (field, after) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = after;
        field
    };
    let (start, end) = field().split_once('-')?;
    let flags = field();
    let offset = u64::from_str_radix(field(), 16).ok()?;
    let (major, minor) = field().split_once(':')?;
    let inode = field().parse().ok()?;
    Some(Area {
        start: usize::from_str_radix(start, 16).ok()?,
        end: usize::from_str_radix(end, 16).ok()?,
        read: flags.starts_with('r'),
        write: flags.get(1..2)? == "w",
        shared: flags.ends_with('s'),
        offset,
        device: (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?),
        inode,
        path: rest.trim_start().to_owned(),
    })
}

/// The mappings that cover a range, cut to it. `None` if a part of the range is not mapped.
pub(crate) fn covering(range: &Range<usize>) -> Option<Vec<Area>> {
    let text = fs::read("/proc/self/maps").ok()?;
    let mut next = range.start;
    let mut areas = Vec::new();
    for mut area in String::from_utf8_lossy(&text).lines().filter_map(parse_line) {
        if area.end <= next || next >= range.end {
            continue;
        }
        if area.start > next {
            return None;
        }
        area.offset += (next - area.start) as u64;
        area.start = next;
        area.end = area.end.min(range.end);
        next = area.end;
        areas.push(area);
    }
    (next >= range.end).then_some(areas)
}

/// What is at the addresses of these mappings, with neighbours of one file joined: their permissions may change.
pub(crate) fn backing(areas: &[Area]) -> Vec<Backing> {
    let mut joined: Vec<Backing> = Vec::new();
    for area in areas {
        let offset = if area.inode == 0 { 0 } else { area.offset };
        if let Some(last) = joined.last_mut()
            && (last.device, last.inode) == (area.device, area.inode)
            && (area.inode == 0 || last.offset + last.range.len() as u64 == offset)
        {
            last.range.end = area.end;
        } else {
            joined.push(Backing { range: area.start..area.end, device: area.device, inode: area.inode, offset });
        }
    }
    joined
}

/// Whether the kernel can keep the pages of a mapping in memory for a device: shared pages of files on disks have to be
/// written back.
pub(crate) fn can_stay(area: &Area) -> bool {
    const IN_MEMORY: [&str; 3] = ["/memfd:", "/dev/zero", "/SYSV"];
    if area.inode == 0 || !area.shared || IN_MEMORY.iter().any(|start| area.path.starts_with(start)) {
        return true;
    }
    match fs::metadata(&area.path) {
        Ok(status) if status.ino() == area.inode => {
            const TMPFS: u64 = 0x0102_1994;
            const HUGETLBFS: u64 = 0x9584_58f6;
            let kind = rustix::fs::statfs(&area.path).map_or(0, |system| system.f_type.cast_unsigned());
            [TMPFS, HUGETLBFS].contains(&kind)
        }
        // The file has lost its name; its file system may still be mounted.
        _ => mounted_in_memory(area.device),
    }
}

/// Whether the file system of a device is mounted and keeps its files in memory.
fn mounted_in_memory((major, minor): (u32, u32)) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let device = format!("{major}:{minor}");
    mounts.lines().any(|line| {
        let kind = line.split_once(" - ").and_then(|(_, rest)| rest.split(' ').next());
        line.split(' ').nth(2) == Some(&device) && matches!(kind, Some("tmpfs" | "hugetlbfs" | "devtmpfs"))
    })
}
