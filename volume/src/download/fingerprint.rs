//! What is being painted, in one line: the region, the order and the volume, so that nobody paints two of them under one
//! name, and a worker process learns from the buffer which region is its job.

use ndarray_shm::{Location, Order};

use crate::bbox::Bbox;
use crate::error::Result;
use crate::volume::ChunkSource;

/// Longest identity that is written out; paths may be longer than a fingerprint.
const LONGEST_IDENTITY: usize = 2048;

const BBOX: &str = "bbox=";
const ORDER: &str = " order=";

/// Writes the line.
pub(crate) fn write(source: &dyn ChunkSource, bbox: &Bbox, order: Order) -> String {
    format!("{BBOX}{bbox}{ORDER}{order} {}", volume(source))
}

/// Reads the region from a line, if the rest of it says that the volume is this one.
pub(crate) fn region(line: &str, source: &dyn ChunkSource, location: &Location) -> Result<Bbox> {
    let expected = volume(source);
    let bbox = line
        .strip_prefix(BBOX)
        .and_then(|rest| rest.split_once(ORDER))
        .and_then(|(bbox, rest)| Some((bbox, rest.split_once(' ')?.1)))
        .filter(|(_, found)| *found == expected)
        .map(|(bbox, _)| bbox);
    let Some(bbox) = bbox else {
        let (location, found) = (location.to_string(), line.to_owned());
        return Err(ndarray_shm::Error::Mismatch { location, what: "volume", expected, found }.into());
    };
    let bbox = if bbox.is_empty() { Bbox::whole(&[]) } else { bbox.parse()? };
    bbox.check_within(&source.meta().domain())?;
    Ok(bbox)
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
    fn the_region_is_read_from_the_line_of_the_same_volume_only() {
        let location = Location::new("a-name").expect("a location");
        let volume = named(&[8, 8], "somewhere\nelse order=F");
        let bbox: Bbox = "1:5,0:8".parse().expect("a box");
        let line = write(&volume, &bbox, Order::F);
        assert_eq!(line.lines().count(), 1);
        assert_eq!(region(&line, &volume, &location).expect("the same volume"), bbox);
        for other in [named(&[8, 9], "somewhere\nelse order=F"), named(&[8, 8], "elsewhere")] {
            let error = region(&line, &other, &location).expect_err("another volume");
            assert!(matches!(error, Error::Array(ndarray_shm::Error::Mismatch { .. })), "{error}");
        }
        for line in ["", "bbox=0:8,0:8", "painted by hand"] {
            assert!(region(line, &volume, &location).is_err(), "{line}");
        }
        let point = named(&[], "a point");
        let line = write(&point, &Bbox::whole(&[]), Order::C);
        assert_eq!(region(&line, &point, &location).expect("no axes").ranges(), []);
    }

    #[test]
    fn a_long_identity_is_shortened_but_still_tells_volumes_apart() {
        let long = "ü".repeat(3000);
        let (a, b) = (one_line(&format!("{long}a")), one_line(&format!("{long}b")));
        assert!(a.len() < LONGEST_IDENTITY + 64);
        assert_ne!(a, b);
    }
}
