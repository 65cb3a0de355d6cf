//! The version of a file: what changes when its bytes change.

use std::fs::Metadata;
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::store::StoredVersion;

/// Age from which a file's times tell it from a later one, in nanoseconds. File systems round times to a tick of the
/// kernel's clock, FAT to two seconds: a younger file may change once more without new times.
const SETTLED: i128 = 2_000_000_000;

/// Returns the version of a file with these facts; `now` is a time before they were asked for.
pub(super) fn of(facts: &Metadata, now: SystemTime) -> io::Result<StoredVersion> {
    let (tag, times) = tag(facts)?;
    let now = nanoseconds(now);
    Ok(StoredVersion::Tagged { tag, is_settled: times.into_iter().all(|time| now - time >= SETTLED) })
}

/// Returns the text that changes with the file, and its times: those of the last change of its bytes, and of its inode,
/// which no program can set back.
#[cfg(unix)]
#[expect(clippy::unnecessary_wraps, reason = "elsewhere a file may have no times")]
fn tag(facts: &Metadata) -> io::Result<(String, [i128; 2])> {
    use std::os::unix::fs::MetadataExt as _;
    let time = |seconds: i64, part: i64| i128::from(seconds) * 1_000_000_000 + i128::from(part);
    let times = [time(facts.mtime(), facts.mtime_nsec()), time(facts.ctime(), facts.ctime_nsec())];
    let tag = format!("{:x}-{:x}-{}-{}-{}", facts.dev(), facts.ino(), facts.size(), times[0], times[1]);
    Ok((tag, times))
}

/// Files have a number on Windows too, but the standard library does not give it.
#[cfg(not(unix))]
fn tag(facts: &Metadata) -> io::Result<(String, [i128; 2])> {
    let times = [nanoseconds(facts.modified()?), nanoseconds(facts.created()?)];
    Ok((format!("{}-{}-{}", facts.len(), times[0], times[1]), times))
}

/// Returns a text that tells a directory from another one at the same path, where the system numbers them.
#[cfg(unix)]
pub(super) fn directory(path: &Path) -> String {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(path).map_or_else(|_| String::new(), |facts| format!(" {:x}-{:x}", facts.dev(), facts.ino()))
}

/// There are no other mounts, and the standard library gives no number.
#[cfg(not(unix))]
pub(super) fn directory(_: &Path) -> String {
    String::new()
}

/// Returns the nanoseconds since 1970.
fn nanoseconds(time: SystemTime) -> i128 {
    let whole = |nanoseconds: u128| i128::try_from(nanoseconds).unwrap_or(i128::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => whole(since.as_nanos()),
        Err(before) => -whole(before.duration().as_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::time::Duration;

    use super::*;

    /// Returns the tag of a file, and whether it is settled at a time.
    fn version(path: &Path, now: SystemTime) -> (String, bool) {
        match of(&fs::metadata(path).expect("the file"), now).expect("its version") {
            StoredVersion::Tagged { tag, is_settled } => (tag, is_settled),
            other => panic!("{other:?}"),
        }
    }

    fn set_modified(path: &Path, time: SystemTime) {
        File::options().write(true).open(path).expect("the file").set_modified(time).expect("its new time");
    }

    #[test]
    fn file_is_settled_two_seconds_after_its_last_change() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        fs::write(&path, "bytes").expect("a file");
        let [second, later] = [1, 1_000_000].map(Duration::from_secs);
        let written = fs::metadata(&path).expect("the file").modified().expect("its time");
        // The file is not older than its time.
        for (age, is_settled) in [(Duration::ZERO, false), (second, false), (3 * second, true), (later, true)] {
            assert_eq!(version(&path, written + age).1, is_settled, "{age:?}");
        }
        assert!(!version(&path, written - later).1, "its time is in the future");
        set_modified(&path, written + later);
        assert!(!version(&path, written + later / 2).1);
        set_modified(&path, SystemTime::UNIX_EPOCH - second);
        assert!(cfg!(windows) || !version(&path, written).1, "a program set its time back, and the kernel knows when");
        assert!(version(&path, written + later).1);
    }

    #[test]
    fn file_of_equal_length_and_time_has_another_version() {
        let directory = tempfile::tempdir().expect("a directory");
        let [path, other] = ["file", "other"].map(|name| directory.path().join(name));
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let write = |path: &Path, text: &str| {
            fs::write(path, text).expect("a file");
            set_modified(path, time);
        };
        let now = SystemTime::now();
        write(&path, "first");
        let (first, _) = version(&path, now);
        assert_eq!(version(&path, now + Duration::from_secs(9)).0, first, "it is the same file");
        write(&other, "other");
        assert!(cfg!(windows) || version(&other, now).0 != first, "it has another inode");
        // Longer than a tick of the clock.
        std::thread::sleep(Duration::from_millis(50));
        write(&path, "later");
        let (second, _) = version(&path, now);
        assert!(cfg!(windows) || second != first, "it was written in place, and its time was set back");
        fs::rename(&other, &path).expect("renamed");
        let (third, _) = version(&path, now);
        assert!(cfg!(windows) || (third != first && third != second), "it was replaced by a file of the same time");
        write(&path, "longer than before");
        assert_ne!(version(&path, now).0, third);
    }
}
