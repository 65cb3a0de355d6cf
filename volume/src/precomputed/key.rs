//! Names of objects: the prefix of a scale, and the names of its chunks.
//!
//! Keys of scales are untrusted input and become paths: none may lead out of the volume.

use std::fmt::Write as _;
use std::ops::Range;

/// Converts the key of a scale, which may contain `.` and `..`, to the prefix of its objects' keys.
///
/// # Errors
///
/// The key leads out of the volume, or is not a valid path.
pub(super) fn prefix(key: &str) -> Result<String, String> {
    let mut parts: Vec<&str> = Vec::new();
    if key.starts_with('/') || key.contains("://") {
        return Err(format!("`{key}` is absolute: it must lead from the volume's own directory to one below it"));
    }
    // A backslash is a separator on some systems, and a newline in a name would break messages.
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

/// The naming scheme of a scale's chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NameLayout {
    /// `0-64_-10-54_128-130`, as in the specification.
    Flat,
    /// `0-64/-10-54/128-130`, with a directory for each range of x and of y, as neuroglancer-scripts writes them.
    Nested,
}

impl NameLayout {
    fn separator(self) -> char {
        match self {
            Self::Flat => '_',
            Self::Nested => '/',
        }
    }
}

/// Returns the key of a chunk: the prefix of its scale, and its name.
pub(super) fn chunk(prefix: &str, ranges: &[Range<i64>], layout: NameLayout) -> String {
    let mut name = prefix.to_owned();
    for (axis, range) in ranges.iter().take(3).enumerate() {
        if axis > 0 {
            name.push(layout.separator());
        }
        let _ = write!(name, "{}-{}", range.start, range.end); // writing to a string cannot fail
    }
    name
}

/// Returns the layout of a chunk's name; `None` if it is not the name of a chunk.
pub(super) fn layout_of(name: &str) -> Option<NameLayout> {
    [NameLayout::Flat, NameLayout::Nested].into_iter().find(|layout| {
        let mut ranges = name.split(layout.separator());
        ranges.clone().count() == 3 && ranges.all(is_range)
    })
}

/// Whether a name is the range of a chunk along one axis: `0-64`, `-10--4`.
pub(super) fn is_range(name: &str) -> bool {
    let number = |text: &str| {
        let digits = text.strip_prefix('-').unwrap_or(text);
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    let between = name.char_indices().skip(1).find(|(_, character)| *character == '-');
    between.is_some_and(|(at, _)| number(&name[..at]) && number(&name[at + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_told_from_other_files() {
        assert_eq!(layout_of("0-64_-10-54_128-130"), Some(NameLayout::Flat));
        assert_eq!(layout_of("0-64/-10--4/128-130"), Some(NameLayout::Nested));
        for name in [
            "READ_ME_first.pdf",
            "0-64_0-64",
            "0-64_0-64_0-64.partial",
            "0-64/0-64",
            "0-64/0-64_0-64",
            "0-64/0-64/",
            "0-64/0-64/0-64/0-64",
            "-_-_-",
            "0_0_0",
            "é-64_0-64_0-64",
            "",
        ] {
            assert_eq!(layout_of(name), None, "{name}");
        }
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
    fn chunk_is_named_by_its_coordinates() {
        let named = |layout| chunk("8_8_40/", &[0..64, -10..54, 128..130, 0..1], layout);
        assert_eq!(named(NameLayout::Flat), "8_8_40/0-64_-10-54_128-130");
        assert_eq!(named(NameLayout::Nested), "8_8_40/0-64/-10-54/128-130");
    }
}
