//! The messages of failed children: one nameless file, with a slot for each child.
//!
//! The parent keeps one descriptor for all children. The file is freed when the last process closes it, so no death
//! leaves it behind. A slot is a header (the exit code that it explains, and the length of the text) and the text. The
//! header is written last, so a child that is killed while it writes leaves no message. The file is untrusted input:
//! exit code and length are checked, and the text is only shown.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::process::ExitStatus;
use std::sync::Arc;

use crate::os;

/// Size of a slot in bytes.
const SLOT: usize = 1 << 16;

/// Size of its header in bytes: two 32-bit numbers.
const HEADER: usize = 8;

const LONGEST_TEXT: usize = SLOT - HEADER;

/// Exit codes of an entry that failed or panicked, the same as for any Rust program.
pub(super) const ERROR: i32 = 1;
pub(super) const PANIC: i32 = 101;

/// The parent's side of the file.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) file: Arc<File>,
    /// The argument by which a child finds the inherited file.
    pub(super) name: OsString,
}

impl Report {
    pub(super) fn create() -> io::Result<Self> {
        let (file, name) = os::create_report()?;
        Ok(Self { file: Arc::new(file), name })
    }

    /// Returns a child's message, if it explains this exit status. The message of a panic that the child survived does
    /// not.
    pub(super) fn last_words(&self, index: usize, status: ExitStatus) -> Option<String> {
        let (code, text) = read(&self.file, index)?;
        let is_so = status.code() == Some(code) || (code == PANIC && os::is_abort(status));
        is_so.then_some(text)
    }
}

/// The child's side: writes a message and the exit code that it explains. A text that does not fit is cut off.
pub(super) fn say(file: &File, index: usize, code: i32, text: &str) {
    let _ = write(file, index, code, text); // the child has failed already, and fails without a message then
}

fn start_of(index: usize) -> Option<u64> {
    let end = (index as u64).checked_add(1)?.checked_mul(SLOT as u64)?;
    Some(end - SLOT as u64)
}

fn write(file: &File, index: usize, code: i32, text: &str) -> io::Result<()> {
    let text = &text.as_bytes()[..text.len().min(LONGEST_TEXT)];
    let start = start_of(index).ok_or(io::ErrorKind::InvalidInput)?;
    if start + (HEADER + text.len()) as u64 > os::largest_file() {
        return Err(io::ErrorKind::FileTooLarge.into()); // writing beyond RLIMIT_FSIZE would raise SIGXFSZ
    }
    let length = u32::try_from(text.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&code.to_ne_bytes());
    header[4..].copy_from_slice(&length.to_ne_bytes());
    // Clear the header, write the text, write the header. A child that is killed at any point leaves either no valid
    // header or a complete message; without the first step, an earlier message's header could cover a mixture of both
    // texts.
    os::write_all_at(file, &[0; HEADER], start)?;
    os::write_all_at(file, text, start + HEADER as u64)?;
    os::write_all_at(file, &header, start)
}

fn read(file: &File, index: usize) -> Option<(i32, String)> {
    let start = start_of(index)?;
    let mut number = [0; 4];
    os::read_exact_at(file, &mut number, start).ok()?;
    let code = [ERROR, PANIC].into_iter().find(|code| code.to_ne_bytes() == number)?;
    os::read_exact_at(file, &mut number, start + 4).ok()?;
    let length = usize::try_from(u32::from_ne_bytes(number)).ok().filter(|length| *length <= LONGEST_TEXT)?;
    let mut text = vec![0; length];
    os::read_exact_at(file, &mut text, start + HEADER as u64).ok()?;
    Some((code, String::from_utf8_lossy(&text).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_message_of_each_child_is_kept() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(read(&file, 0), None);
        write(&file, 3, PANIC, "a long message").unwrap();
        write(&file, 3, ERROR, "").unwrap();
        write(&file, 0, ERROR, "größer").unwrap();
        assert_eq!(read(&file, 0), Some((ERROR, "größer".to_owned())));
        assert_eq!(read(&file, 1), None);
        assert_eq!(read(&file, 3), Some((ERROR, String::new())));
    }

    #[test]
    fn too_long_text_is_truncated() {
        let file = tempfile::tempfile().unwrap();
        write(&file, 1, ERROR, "next").unwrap();
        write(&file, 0, ERROR, &"é".repeat(LONGEST_TEXT)).unwrap();
        let (_, text) = read(&file, 0).unwrap();
        assert!(text.starts_with("éé") && text.len() <= LONGEST_TEXT + 2, "{}", text.len());
        assert_eq!(read(&file, 1), Some((ERROR, "next".to_owned())));
    }

    #[test]
    fn malformed_slot_has_no_message() {
        let file = tempfile::tempfile().unwrap();
        os::write_all_at(&file, &[7; 64], 0).unwrap();
        assert_eq!(read(&file, 0), None);
        let mut header = [1u32.to_ne_bytes(), u32::MAX.to_ne_bytes()].concat();
        os::write_all_at(&file, &header, 0).unwrap();
        assert_eq!(read(&file, 0), None, "longer than a slot");
        header[4..].copy_from_slice(&100u32.to_ne_bytes());
        os::write_all_at(&file, &header, 0).unwrap();
        assert_eq!(read(&file, 0), None, "longer than the file");
    }

    #[test]
    fn index_beyond_largest_file_leaves_no_message() {
        let file = tempfile::tempfile().unwrap();
        assert!(start_of(usize::MAX).is_none() || usize::BITS < 64);
        assert!(write(&file, usize::MAX, ERROR, "text").is_err() || usize::BITS < 64);
    }
}
