//! The last words of children: one file without a name, with a slot for each of them.
//!
//! The parent keeps one descriptor, whatever the number of children; whoever dies, however, the file goes with the last
//! process that has it. A slot is a header (the exit code that it explains, and the length of the text) and the text. The header is written last:
//! a child that is killed while it writes has said nothing. What is read is input: nothing in it is believed but its
//! length, which is bounded.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::process::ExitStatus;
use std::sync::Arc;

use crate::os;

/// Bytes of a slot.
const SLOT: usize = 1 << 16;

/// Bytes of its header: two numbers of 32 bits.
const HEADER: usize = 8;

const LONGEST_TEXT: usize = SLOT - HEADER;

/// The exit codes of an entry that failed or panicked: those of any Rust program.
pub(super) const ERROR: i32 = 1;
pub(super) const PANIC: i32 = 101;

/// The parent's end.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) file: Arc<File>,
    /// The words by which a child finds the file.
    pub(super) name: OsString,
}

impl Report {
    pub(super) fn create() -> io::Result<Self> {
        let (file, name) = os::create_report()?;
        Ok(Self { file: Arc::new(file), name })
    }

    /// Returns what a child said, if that is how it ended: what it said of a panic that it survived is no reason.
    pub(super) fn last_words(&self, index: usize, status: ExitStatus) -> Option<String> {
        let (code, text) = read(&self.file, index)?;
        let is_so = status.code() == Some(code) || (code == PANIC && os::is_abort(status));
        is_so.then_some(text)
    }
}

/// A child's end: leaves a message and the exit code that it explains; what does not fit is cut off. That it could not be
/// left is no reason to fail in another way.
pub(super) fn say(file: &File, index: usize, code: i32, text: &str) {
    let _untold = write(file, index, code, text);
}

fn start_of(index: usize) -> Option<u64> {
    let end = (index as u64).checked_add(1)?.checked_mul(SLOT as u64)?;
    Some(end - SLOT as u64)
}

fn write(file: &File, index: usize, code: i32, text: &str) -> io::Result<()> {
    let text = &text.as_bytes()[..text.len().min(LONGEST_TEXT)];
    let start = start_of(index).ok_or(io::ErrorKind::InvalidInput)?;
    if start + (HEADER + text.len()) as u64 > os::largest_file() {
        return Err(io::ErrorKind::FileTooLarge.into()); // the kernel's answer would be a signal
    }
    let length = u32::try_from(text.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&code.to_ne_bytes());
    header[4..].copy_from_slice(&length.to_ne_bytes());
    // A message that was there before is not to be mixed with this one.
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
    fn every_child_has_a_slot_of_its_own_and_the_last_message_counts() {
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
    fn a_text_that_is_too_long_is_cut_and_stays_in_its_slot() {
        let file = tempfile::tempfile().unwrap();
        write(&file, 1, ERROR, "next").unwrap();
        write(&file, 0, ERROR, &"é".repeat(LONGEST_TEXT)).unwrap();
        let (_, text) = read(&file, 0).unwrap();
        assert!(text.starts_with("éé") && text.len() <= LONGEST_TEXT + 2, "{}", text.len());
        assert_eq!(read(&file, 1), Some((ERROR, "next".to_owned())));
    }

    #[test]
    fn nonsense_in_a_slot_is_no_message() {
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
    fn an_index_beyond_every_file_says_nothing() {
        let file = tempfile::tempfile().unwrap();
        assert!(start_of(usize::MAX).is_none() || usize::BITS < 64);
        assert!(write(&file, usize::MAX, ERROR, "text").is_err() || usize::BITS < 64);
    }
}
