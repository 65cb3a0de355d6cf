//! Markers of finished parts: small objects in a directory or a store, each written after the part's data.
//!
//! The keys of a volume do not show which parts are finished: objects of only background may be left out, and a machine
//! may die between two objects. A marker is written only after all data of its part was stored. It names its work, so
//! that a marker of another work in the same place does not count.

use serde_json::{Value, json};

use crate::bbox::Bbox;
use crate::error::{Error, Result, SourceFailure};
use crate::shard::Shard;
use crate::store::url::VolumeUrl;
use crate::store::{self, Store};

/// The marker of a finished part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    /// The part.
    pub shard: Shard,
    /// One line that identifies the work, such as the source and the destination of a copy. It must be unique among the
    /// works with markers in one place. Include the volume's [`identity`](crate::ChunkSource::identity), so that the
    /// work is done again after the volume was replaced.
    pub work: String,
    /// The region that was divided.
    pub bbox: Bbox,
    /// The part's own region; `None` if the part is empty because there are fewer objects than parts.
    pub part: Option<Bbox>,
    /// Number of chunks or objects in the part.
    pub chunks: u64,
    /// Bytes of the array in the part.
    pub bytes: u64,
}

/// Returns the key of a part's marker: `part-00003-of-00016.json`.
pub fn key(shard: Shard) -> String {
    format!("part-{:05}-of-{:05}.json", shard.index(), shard.count())
}

/// Writes the marker of a part, replacing an existing one. Call it after the part's data was stored.
///
/// # Errors
///
/// [`Store`](Error::Store), [`Url`](Error::Url).
pub fn write(place: &VolumeUrl, marker: &Marker) -> Result<()> {
    let text = format!("{:#}\n", marker.to_json());
    store::open(place)?.put(&key(marker.shard), text.into_bytes(), false)
}

/// Reads the marker of a part, of any work, if there is one.
///
/// # Errors
///
/// [`Store`](Error::Store), [`Url`](Error::Url); [`Source`](Error::Source) if the object of that name is not a marker.
pub fn read(place: &VolumeUrl, shard: Shard) -> Result<Option<Marker>> {
    read_from(&*store::open(place)?, shard)
}

/// Returns whether a part of this work on this region is finished.
///
/// # Errors
///
/// Those of [`read`].
pub fn is_done(place: &VolumeUrl, shard: Shard, work: &str, bbox: &Bbox) -> Result<bool> {
    Ok(read(place, shard)?.is_some_and(|marker| marker.is_of(work, bbox)))
}

/// Lists the unfinished parts of this work on this region, divided into `count` parts.
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
            SourceFailure::NotAVolume,
            store.locate(&key),
            format!("this is not a marker of part {shard}: remove it, or keep markers in another place"),
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
    fn marker_counts_only_for_its_own_work() {
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
    fn wrong_object_is_named_in_the_error() {
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
