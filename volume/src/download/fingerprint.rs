//! The fingerprint of a download, in one line: the region, the order, the value of missing chunks, and the volume. It
//! keeps two different downloads from painting under one name, and tells a worker process its job.

use ndarray_shm::render::OtherWork;
use ndarray_shm::{Location, Order};

use crate::bbox::Bbox;
use crate::error::Result;
use crate::notes::hexadecimal;
use crate::volume::ChunkSource;

/// Longest identity that is written in full, in bytes; paths may be longer than a fingerprint.
const LONGEST_IDENTITY: usize = 2048;

const BBOX: &str = "bbox=";
const ORDER: &str = " order=";
const MISSING: &str = " missing=";

/// Written instead of the elements of missing chunks if a missing chunk is an error.
const ERROR: &str = "error";

/// The job that a worker process reads from the line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) bbox: Bbox,
    /// The bytes of each element of a missing chunk; `None` if a missing chunk is an error.
    pub(crate) missing: Option<Vec<u8>>,
}

/// Writes the line.
pub(crate) fn write(source: &dyn ChunkSource, bbox: &Bbox, order: Order, missing: Option<&[u8]>) -> String {
    let missing = missing.map_or_else(|| ERROR.to_owned(), hexadecimal);
    format!("{BBOX}{bbox}{ORDER}{order}{MISSING}{missing} {}", volume(source))
}

/// Reads the job from a line. Fails if the line describes another volume.
pub(crate) fn wanted(line: &str, source: &dyn ChunkSource, location: &Location) -> Result<Wanted> {
    let expected = volume(source);
    let parts = line
        .strip_prefix(BBOX)
        .and_then(|rest| rest.split_once(ORDER))
        .and_then(|(bbox, rest)| Some((bbox, rest.split_once(MISSING)?.1.split_once(' ')?)))
        .filter(|(_, (_, found))| *found == expected)
        .and_then(|(bbox, (missing, _))| Some((bbox, element(missing, source.meta().dtype.size())?)));
    let Some((bbox, missing)) = parts else {
        let (location, found) = (location.to_string(), line.to_owned());
        let state = OtherWork::Attached; // the process that has started this worker is
        return Err(ndarray_shm::ErrorKind::Mismatch { what: "volume", expected, found, state }.at(location).into());
    };
    let bbox = if bbox.is_empty() { Bbox::whole(&[]) } else { bbox.parse()? };
    bbox.check_within(&source.meta().domain())?;
    Ok(Wanted { bbox, missing })
}

/// Parses the bytes of one element. Returns `Some(None)` if the text says that a missing chunk is an error.
#[allow(clippy::option_option)] // "no such text", "an error" and "these bytes" are three things
fn element(text: &str, size: usize) -> Option<Option<Vec<u8>>> {
    if text == ERROR {
        return Some(None);
    }
    if text.len() != 2 * size {
        return None;
    }
    let byte = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..size).map(|index| byte(2 * index)).collect::<Option<Vec<u8>>>().map(Some)
}

fn volume(source: &dyn ChunkSource) -> String {
    let meta = source.meta();
    let identity = one_line(&source.identity());
    format!("dtype={} domain={} chunks={:?} {identity}", meta.dtype, meta.domain(), meta.chunk_shape)
}

fn one_line(identity: &str) -> String {
    let line = identity.replace(char::is_control, " ");
    if line.len() <= LONGEST_IDENTITY {
        return line;
    }
    let checksum = crc32fast::hash(line.as_bytes());
    let mut end = LONGEST_IDENTITY;
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}.. ({} bytes, crc32 {checksum:08x})", &line[..end], line.len())
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use ndarray_shm::DType;

    use super::*;
    use crate::error::Error;
    use crate::scratch::Scratch;
    use crate::volume::{Fetched, VolumeMeta};

    #[derive(Debug)]
    struct Named(VolumeMeta, String);

    impl ChunkSource for Named {
        fn meta(&self) -> &VolumeMeta {
            &self.0
        }
        fn identity(&self) -> String {
            self.1.clone()
        }
        fn decode(&self, _region: &[Range<i64>], _fetched: Fetched, scratch: &mut Scratch) -> Result<()> {
            scratch.fill(&[0]);
            Ok(())
        }
    }

    fn named(shape: &[u64], identity: &str) -> Named {
        let chunk_shape = vec![4; shape.len()];
        Named(VolumeMeta::new(shape, &chunk_shape, DType::U8), identity.to_owned())
    }

    #[test]
    fn line_is_read_only_for_its_own_volume() {
        let location = Location::new("a-name").expect("a location");
        let volume = named(&[8, 8], "somewhere\nelse order=F");
        let bbox: Bbox = "1:5,0:8".parse().expect("a box");
        for missing in [None, Some(vec![0xa7])] {
            let line = write(&volume, &bbox, Order::F, missing.as_deref());
            let expected = Wanted { bbox: bbox.clone(), missing };
            assert_eq!(wanted(&line, &volume, &location).expect("the same volume"), expected);
        }
        let line = write(&volume, &bbox, Order::F, None);
        assert_eq!(line.lines().count(), 1);
        for other in [named(&[8, 9], "somewhere\nelse order=F"), named(&[8, 8], "elsewhere")] {
            let error = wanted(&line, &other, &location).expect_err("another volume");
            assert!(
                matches!(error, Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::Mismatch { .. }, .. })),
                "{error}"
            );
        }
        let longer = line.replace("=error", "=0011");
        let (odd, none) = (line.replace("=error", "=é"), line.replace(" missing=error", ""));
        for line in ["", "bbox=0:8,0:8", "painted by hand", &longer, &odd, &none] {
            assert!(wanted(line, &volume, &location).is_err(), "{line}");
        }
        let point = named(&[], "a point");
        let line = write(&point, &Bbox::whole(&[]), Order::C, None);
        assert_eq!(wanted(&line, &point, &location).expect("no axes").bbox.ranges(), []);
    }

    #[test]
    fn shortened_identities_stay_distinct() {
        let long = "ü".repeat(3000);
        let (a, b) = (one_line(&format!("{long}a")), one_line(&format!("{long}b")));
        assert!(a.len() < LONGEST_IDENTITY + 64);
        assert_ne!(a, b);
    }
}
