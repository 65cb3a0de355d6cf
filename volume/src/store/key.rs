//! Valid keys of objects: a key from metadata must never lead out of its volume.

/// Returns what is wrong with a key, or `None` if it is valid.
///
/// The rules are the same on every platform (colons excepted), so that a volume written on one can be read on another.
pub(crate) fn complaint(key: &str) -> Option<String> {
    if key.is_empty() {
        return Some("a key must not be empty".to_owned());
    }
    key.split('/').find_map(|part| {
        let why = match part {
            "" => "a part of it is empty",
            "." | ".." => "a part of it leads to another directory",
            _ if part.contains('\\') => "it has a backslash",
            _ if part.chars().any(|c| c.is_ascii_control()) => "it has a control character",
            // On Windows a colon separates a drive or a stream; elsewhere it is an ordinary character.
            _ if cfg!(windows) && part.contains(':') => "it has a colon",
            _ => return None,
        };
        Some(format!("{key:?} cannot be the key of an object: {why}"))
    })
}

#[cfg(test)]
mod tests {
    use super::complaint;

    #[test]
    fn keys_stay_in_their_volume() {
        for key in ["info", "c/0/0", "8_8_40/-64-0_0-64_0-64", "a b/ü", "..a/b..", "a:b", ".zarray"] {
            assert!(complaint(key).is_none() || (cfg!(windows) && key.contains(':')), "{key}");
        }
        for key in ["", "/", "/etc/passwd", "a//b", "a/", "..", "a/../b", "./a", "a/.", "a\\..\\b", "a\0b", "a\nb"] {
            let complaint = complaint(key).unwrap_or_else(|| panic!("{key:?} was taken"));
            assert!(key.is_empty() || complaint.contains(&format!("{key:?}")), "{complaint}");
        }
    }
}
