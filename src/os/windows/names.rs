//! Names that Windows does not allow for a file, or that may mean another file.

/// Device names, which mean the device in every directory, also with an extension.
const DEVICES: [&str; 6] = ["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"];

/// Device names that end with a digit.
const NUMBERED_DEVICES: [&str; 2] = ["COM", "LPT"];

/// Longest part before the dot of a short (8.3) name.
const SHORT_NAME: usize = 8;

/// Most units of UTF-16 in a name.
const LONGEST: usize = 255;

/// Returns why a file cannot have this name, which has no `/` and no NUL.
pub(crate) fn forbidden_name(name: &str) -> Option<&'static str> {
    if name.chars().any(|character| character.is_control() || r#"<>:"|?*\"#.contains(character)) {
        return Some("Windows allows no control characters and none of < > : \" | ? * \\ in a name");
    }
    if name.ends_with(['.', ' ']) {
        return Some("Windows drops a dot or space at the end of a name");
    }
    if is_device(name) {
        return Some(
            "Windows keeps this name for a device (CON, PRN, AUX, NUL, COM1, LPT1, .., also with an extension)",
        );
    }
    if is_short_alias(name) {
        return Some("it looks like a short name (`..~1`), which Windows may have given to another file");
    }
    if name.encode_utf16().count() > LONGEST {
        return Some("it is longer than 255 UTF-16 units");
    }
    None
}

fn is_device(name: &str) -> bool {
    // "NUL .txt" is the device too.
    let stem = name.split('.').next().unwrap_or_default().trim_end_matches(' ');
    if DEVICES.iter().any(|device| device.eq_ignore_ascii_case(stem)) {
        return true;
    }
    NUMBERED_DEVICES.iter().any(|device| {
        let Some((head, tail)) = stem.split_at_checked(device.len()) else { return false };
        // The superscript digits count, because they are digits in the code pages from which these names come.
        let is_digit = |character: char| character.is_ascii_digit() || "¹²³".contains(character);
        head.eq_ignore_ascii_case(device) && tail.chars().count() == 1 && tail.chars().all(is_digit)
    })
}

/// Whether the name has the form of the second, short name that file systems give to files with long ones.
fn is_short_alias(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or_default();
    let Some((head, digits)) = stem.rsplit_once('~') else { return false };
    stem.len() <= SHORT_NAME
        && !head.is_empty()
        && !digits.is_empty()
        && digits.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_another_meaning_are_refused() {
        let refused = [
            "a:b",
            "a\\b",
            "a<b",
            "a>b",
            "a\"b",
            "a|b",
            "a?b",
            "a*b",
            "a\tb",
            "a\u{7f}",
            "dot.",
            "space ",
            "..",
            "con",
            "CON",
            "Con.txt",
            "nul",
            "NUL .txt",
            "aux.tar.gz",
            "PRN",
            "com1",
            "COM9.x",
            "lpt0",
            "COM¹",
            "CONIN$",
            "NDSHM-~1",
            "progr~12.txt",
        ];
        for name in refused {
            assert!(forbidden_name(name).is_some(), "{name:?}");
        }
    }

    #[test]
    fn ordinary_names_are_allowed() {
        let allowed = [
            "array",
            "a b",
            ".hidden",
            "console",
            "CONX",
            "com",
            "com10",
            "COMA",
            "nulls",
            "x.con",
            "~1",
            "a~b",
            "verylongname~1",
            "ümlaut",
            "数列",
            "a.b.c",
            "com¹²",
        ];
        for name in allowed {
            assert_eq!(forbidden_name(name), None, "{name:?}");
        }
    }

    #[test]
    fn length_is_counted_in_utf16_units() {
        assert!(forbidden_name(&"x".repeat(255)).is_none());
        assert!(forbidden_name(&"x".repeat(256)).is_some());
        assert!(forbidden_name(&"数".repeat(85)).is_none());
    }
}
