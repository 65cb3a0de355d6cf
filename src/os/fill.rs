//! Room by writing: the slow way, for file systems that cannot allocate ahead.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

/// Bytes that are read and written at a time.
const STEP: usize = 1 << 20;

/// Writes every byte of the first `length`, so that room is taken for each: what is there already stays, what is
/// missing becomes zero.
///
/// Nobody else may write to the file meanwhile: what they wrote between the read and the write would be undone.
pub(crate) fn fill(mut file: &File, length: u64) -> io::Result<()> {
    let mut buffer = vec![0; STEP];
    let mut at = 0;
    while at < length {
        let wanted = usize::try_from(length - at).map_or(STEP, |left| left.min(STEP));
        let bytes = &mut buffer[..wanted];
        file.seek(SeekFrom::Start(at))?;
        let found = read_up_to(file, bytes)?;
        bytes[found..].fill(0);
        file.seek(SeekFrom::Start(at))?;
        file.write_all(bytes)?;
        at += wanted as u64;
    }
    Ok(())
}

/// Reads until the buffer is full or the file ends; returns how many bytes there were.
fn read_up_to(mut file: &File, bytes: &mut [u8]) -> io::Result<usize> {
    let mut found = 0;
    while found < bytes.len() {
        match file.read(&mut bytes[found..]) {
            Ok(0) => break,
            Ok(count) => found += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_stays_and_what_is_missing_becomes_zero() {
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(b"kept").expect("a write");
        let length = STEP as u64 + 10;
        fill(&file, length).expect("room");
        let mut bytes = Vec::new();
        file.rewind().expect("the beginning");
        file.read_to_end(&mut bytes).expect("the bytes");
        assert_eq!(bytes.len() as u64, length);
        assert_eq!(&bytes[..4], b"kept");
        assert!(bytes[4..].iter().all(|byte| *byte == 0));
        fill(&file, 4).expect("room that is there");
        assert_eq!(file.metadata().expect("facts").len(), length);
    }
}
