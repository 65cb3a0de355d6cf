//! Names of objects: where a scale's chunks are, and what they are called.
//!
//! Keys of scales are input, and a path in the end: none may lead out of the volume.

use std::fmt::Write as _;
use std::ops::Range;

/// Turns the key of a scale, which may have `.` and `..` in it, to what its objects' keys begin with.
///
/// # Errors
///
/// It leads out of the volume, or is no path.
pub(super) fn prefix(key: &str) -> Result<String, String> {
    let mut parts: Vec<&str> = Vec::new();
    if key.starts_with('/') || key.contains("://") {
        return Err(format!("`{key}` is absolute: it must lead from the volume's own directory to one below it"));
    }
    // Backslashes separate on some systems, and lines in a name would break messages.
    if key.chars().any(|character| character == '\\' || character.is_control()) {
        return Err(format!("{key:?} has characters that no directory's name should have"));
    }
    for part in key.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                if parts.pop().is_none() {
                    return Err(format!("`{key}` leads out of the volume's directory, where nothing is read"));
                }
            }
            part => parts.push(part),
        }
    }
    let mut prefix = parts.join("/");
    if !prefix.is_empty() {
        prefix.push('/');
    }
    Ok(prefix)
}

/// Writes a chunk's name: `0-64_-10-54_128-130`.
pub(super) fn chunk(prefix: &str, ranges: &[Range<i64>]) -> String {
    let mut name = prefix.to_owned();
    for (axis, range) in ranges.iter().take(3).enumerate() {
        let separator = if axis == 0 { "" } else { "_" };
        // Writing to a string cannot fail.
        let _written = write!(name, "{separator}{}-{}", range.start, range.end);
    }
    name
}

/// Whether a file in a scale's directory is called as chunks are.
pub(super) fn is_chunk(name: &str) -> bool {
    name.bytes().filter(|byte| *byte == b'_').count() == 2
        && name.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'-' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_told_from_other_files() {
        assert!(is_chunk("0-64_-10-54_128-130"));
        assert!(!is_chunk("READ_ME_first.pdf") && !is_chunk("0-64_0-64") && !is_chunk("0-64_0-64_0-64.partial"));
    }

    #[test]
    fn a_key_stays_in_the_volume() {
        for (key, expected) in
            [("8_8_40", "8_8_40/"), ("a//b/./c", "a/b/c/"), ("a/../b", "b/"), ("./", ""), ("a/..", ""), ("..a", "..a/")]
        {
            assert_eq!(prefix(key).expect(key), expected);
        }
        for key in ["..", "../other", "a/../../b", "/etc", "file:///etc", "a\\..\\..\\b", "a\nb", "a\0"] {
            assert!(prefix(key).is_err(), "{key}");
        }
    }

    #[test]
    fn a_chunk_is_called_by_its_coordinates() {
        assert_eq!(chunk("8_8_40/", &[0..64, -10..54, 128..130, 0..1]), "8_8_40/0-64_-10-54_128-130");
    }
}
