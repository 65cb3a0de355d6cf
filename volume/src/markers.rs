//! What says that a part is done: a small object that is written after the part's data, in a directory or a store.
//!
//! A key that exists proves nothing of a volume: all-background objects may be left out, and a machine may die between two. A
//! marker exists only when everything before it was stored. It says which work it belongs to, so that one of another work in the
//! same place does not count.

use serde_json::{Value, json};

use crate::bbox::Bbox;
use crate::error::{Error, ErrorKind, Result};
use crate::shard::Shard;
use crate::store::url::VolumeUrl;
use crate::store::{self, Store};

/// The part that is done, and what was done for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    /// Which part of how many.
    pub shard: Shard,
    /// One line that says which work it is a part of, such as what is copied from where to where. Two works in one place
    /// must not have the same; what a volume's [`identity`](crate::ChunkSource::identity) says should be in it, so that a volume that was
    /// replaced is done anew.
    pub work: String,
    /// The region that was divided.
    pub bbox: Bbox,
    /// The part's own region; `None` where there were fewer objects than parts.
    pub part: Option<Bbox>,
    /// Chunks or objects that were done.
    pub chunks: u64,
    /// Bytes of the array that were done.
    pub bytes: u64,
}

/// Returns the key of a part's marker: `part-00003-of-00016.json`.
pub fn key(shard: Shard) -> String {
    format!("part-{:05}-of-{:05}.json", shard.index(), shard.count())
}

/// Writes the marker of a part whose data is stored, in place of the one that is there.
///
/// # Errors
///
/// [`Store`](Error::Store), [`Url`](Error::Url).
pub fn write(place: &VolumeUrl, marker: &Marker) -> Result<()> {
    let text = format!("{:#}\n", marker.to_json());
    store::open(place)?.put(&key(marker.shard), text.into_bytes(), false)
}

/// Reads the marker of a part, if there is one, whatever work it belongs to.
///
/// # Errors
///
/// [`Store`](Error::Store), [`Url`](Error::Url); [`Source`](Error::Source): what has its name is no marker.
pub fn read(place: &VolumeUrl, shard: Shard) -> Result<Option<Marker>> {
    read_from(&*store::open(place)?, shard)
}

/// Whether a part of this work, dividing this region, is done.
///
/// # Errors
///
/// Those of [`read`].
pub fn is_done(place: &VolumeUrl, shard: Shard, work: &str, bbox: &Bbox) -> Result<bool> {
    Ok(read(place, shard)?.is_some_and(|marker| marker.is_of(work, bbox)))
}

/// Lists the parts of this work that are not done, of `count`.
///
/// # Errors
///
/// Those of [`read`], and [`Shard`](Error::Shard) if `count` is 0.
pub fn missing(place: &VolumeUrl, count: usize, work: &str, bbox: &Bbox) -> Result<Vec<Shard>> {
    Shard::new(0, count)?;
    let store = store::open(place)?;
    let mut missing = Vec::new();
    for index in 0..count {
        let shard = Shard::new(index, count)?;
        if !read_from(&*store, shard)?.is_some_and(|marker| marker.is_of(work, bbox)) {
            missing.push(shard);
        }
    }
    Ok(missing)
}

fn read_from(store: &dyn Store, shard: Shard) -> Result<Option<Marker>> {
    let key = key(shard);
    let Some(object) = store.get(&key)? else { return Ok(None) };
    let marker = serde_json::from_slice(&object.bytes).ok().as_ref().and_then(Marker::from_json);
    match marker.filter(|marker| marker.shard == shard) {
        Some(marker) => Ok(Some(marker)),
        None => Err(Error::volume(
            ErrorKind::NotAVolume,
            store.locate(&key),
            format!("it is no marker of part {shard}: remove it, or keep markers in another place"),
        )),
    }
}

impl Marker {
    fn is_of(&self, work: &str, bbox: &Bbox) -> bool {
        self.work == work && self.bbox == *bbox
    }

    fn to_json(&self) -> Value {
        json!({
            "part": self.shard.index(),
            "parts": self.shard.count(),
            "work": self.work,
            "bbox": self.bbox.to_string(),
            "part_bbox": self.part.as_ref().map(ToString::to_string),
            "chunks": self.chunks,
            "bytes": self.bytes,
        })
    }

    fn from_json(value: &Value) -> Option<Self> {
        let number = |name: &str| value.get(name)?.as_u64();
        let text = |name: &str| value.get(name)?.as_str();
        let index = |name: &str| usize::try_from(number(name)?).ok();
        Some(Self {
            shard: Shard::new(index("part")?, index("parts")?).ok()?,
            work: text("work")?.to_owned(),
            bbox: text("bbox")?.parse().ok()?,
            part: match value.get("part_bbox")? {
                Value::Null => None,
                text => Some(text.as_str()?.parse().ok()?),
            },
            chunks: number("chunks")?,
            bytes: number("bytes")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marker(index: usize) -> Marker {
        Marker {
            shard: Shard::new(index, 3).expect("a part"),
            work: "upload of \"a\" to b".to_owned(),
            bbox: "-4:8,0:2".parse().expect("a box"),
            part: (index < 2).then(|| "0:4,0:2".parse().expect("a box")),
            chunks: 7,
            bytes: 1 << 40,
        }
    }

    #[test]
    fn a_marker_is_found_for_its_own_work_only() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = VolumeUrl::local(directory.path().join("markers"));
        let (work, bbox) = (marker(0).work, marker(0).bbox);
        let texts = |shards: Vec<Shard>| shards.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(texts(missing(&place, 3, &work, &bbox).expect("none yet")), ["0/3", "1/3", "2/3"]);
        write(&place, &marker(2)).expect("written");
        write(&place, &marker(0)).expect("written");
        write(&place, &marker(0)).expect("written again");
        assert_eq!(read(&place, marker(2).shard).expect("read"), Some(marker(2)));
        assert_eq!(texts(missing(&place, 3, &work, &bbox).expect("two are there")), ["1/3"]);
        assert!(is_done(&place, marker(0).shard, &work, &bbox).expect("read"));
        assert!(!is_done(&place, marker(0).shard, "another", &bbox).expect("read"));
        assert!(!is_done(&place, marker(0).shard, &work, &"0:8,0:2".parse().expect("a box")).expect("read"));
        assert_eq!(missing(&place, 4, &work, &bbox).expect("another division").len(), 4);
        assert!(missing(&place, 0, &work, &bbox).is_err());
        assert!(directory.path().join("markers/part-00002-of-00003.json").is_file());
    }

    #[test]
    fn what_is_no_marker_is_an_error_that_names_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = VolumeUrl::local(directory.path());
        let file = directory.path().join(key(marker(1).shard));
        let whole = marker(1).to_json().to_string();
        for text in
            ["", "{}", "[1]", &whole[..whole.len() / 2], &whole.replace("-4:8", "8:-4"), &whole.replace('3', "-3")]
        {
            std::fs::write(&file, text).expect("a file");
            let error = read(&place, marker(1).shard).expect_err(text).to_string();
            assert!(error.contains("part-00001-of-00003.json"), "{error}");
        }
        // A marker under the name of another part.
        std::fs::write(&file, marker(0).to_json().to_string()).expect("a file");
        assert!(read(&place, marker(1).shard).is_err());
    }
}
