//! How much of its disk emulated shared memory may take: an optional limit, and a warning.
//!
//! Real shared memory needs neither: its mount has a size, and running out of memory is noticed.

use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};
use crate::os::{self, Bound, Room};

/// The name of the backend for emulated shared memory.
pub(super) const EMULATED: &str = "emulated";

const LIMIT: &str = "NDSHM_EMULATED_LIMIT";

/// A warning is logged if less than this is left on the disk.
const LITTLE: u64 = 1 << 30;

/// Returns how many bytes all files of the emulated directory may take together.
pub(super) fn limit() -> Result<Option<u64>> {
    limit_from(std::env::var_os(LIMIT))
}

fn limit_from(value: Option<OsString>) -> Result<Option<u64>> {
    let Some(value) = value else { return Ok(None) };
    let value = value.to_string_lossy();
    let digits = value.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match &value[digits.len()..] {
        "" => Some(0),
        "K" => Some(10),
        "M" => Some(20),
        "G" => Some(30),
        "T" => Some(40),
        _ => None,
    };
    // `parse` alone would accept a sign.
    let number: Option<u64> = digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let bytes = number.zip(shift).and_then(|(number, shift)| number.checked_mul(1 << shift));
    bytes.map(Some).ok_or_else(|| {
        Error::setting(
            LIMIT,
            value,
            "a whole number of bytes, or one with K, M, G or T behind it, such as 10G, or unset",
        )
    })
}

/// Returns how much room the limit leaves, if one is set. Existing files count with their allocated bytes.
pub(super) fn room_to_limit(directory: &Path) -> Result<Option<Room>> {
    let Some(limit) = limit()? else { return Ok(None) };
    let explain = |error| Error::os("count the bytes of the arrays in", directory.display(), error);
    let mut taken = 0_u64;
    for file in std::fs::read_dir(directory).map_err(explain)? {
        // A file that disappears meanwhile takes nothing.
        if let Ok(facts) = os::facts_at(&file.map_err(explain)?.path()) {
            taken = taken.saturating_add(if facts.other.is_none() { facts.allocated } else { 0 });
        }
    }
    Ok(Some(Room { bytes: limit.saturating_sub(taken), bound: Bound::Limit }))
}

/// Logs a warning if the next array leaves little room on the disk. Warns again only after there was room.
pub(super) fn warn_of_full_disk(directory: &Path, room: u64, needed: u64, warned: &AtomicBool) {
    let left = room.saturating_sub(needed);
    if left >= LITTLE {
        warned.store(false, Ordering::Relaxed);
    } else if !warned.swap(true, Ordering::Relaxed) {
        log::warn!(
            "arrays in {} leave less than 1 GiB of its disk ({left} bytes): unlink some, or set NDSHM_EMULATED_DIR to a \
             directory with more room; {LIMIT} sets a limit",
            directory.display()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn limit_is_a_number_with_an_optional_unit() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("1K", 1 << 10), ("3M", 3 << 20), ("10G", 10 << 30), ("2T", 2 << 40)]
        {
            assert_eq!(limit_from(Some(text.into())).expect(text), Some(bytes));
        }
        assert_eq!(limit_from(None).expect("unset"), None);
        for text in ["", "G", "-1", "+1", "1.5G", "10 G", "10g", "10GiB", "10GG", "\u{664}", "99999999T"] {
            match limit_from(Some(text.into())) {
                Err(Error { kind: ErrorKind::InvalidSetting { setting, .. }, .. }) => assert_eq!(setting, LIMIT),
                other => panic!("{text:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn warning_comes_once_until_there_is_room_again() {
        let warned = AtomicBool::new(false);
        let path = Path::new("somewhere");
        for (room, needed, is_warned) in [
            (4 << 30, 1 << 30, false),
            (2 << 30, (1 << 30) + 1, true),
            (1 << 20, 2 << 20, true),
            (3 << 30, 1 << 30, false),
        ] {
            warn_of_full_disk(path, room, needed, &warned);
            assert_eq!(warned.load(Ordering::Relaxed), is_warned, "{room} {needed}");
        }
    }
}
