//! Bytes as text, percent-encoded.

use std::fmt::Write as _;

/// Writes letters, digits and `-._/` as they are, and other bytes as `%xx`.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._/".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _never_fails = write!(text, "%{byte:02x}");
        }
    }
    text
}

/// Undoes [`encode`]; `None` if a percent sign has not two digits after it.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || char::from(rest.next()?).to_digit(16);
            bytes.push(u8::try_from(digit()? << 4 | digit()?).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_as_text() {
        let all: Vec<u8> = (0..=255).collect();
        let text = encode(&all);
        assert!(text.is_ascii() && !text.contains([' ', ':', '\n']), "{text}");
        assert_eq!(decode(&text), Some(all));
        assert_eq!((encode(b"a/b %"), decode("%2F%2f")), ("a/b%20%25".to_owned(), Some(b"//".to_vec())));
        for broken in ["%", "%0", "%zz", "%+1", "%\u{e9}"] {
            assert_eq!(decode(broken), None, "{broken}");
        }
    }
}
