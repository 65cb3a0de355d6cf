//! Versions of stored objects: bytes and their version belong together, also where several reads make a chunk.
//!
//! An object is a symbolic link to one of several files. Pointing it to another file replaces the object at once by one
//! that is old enough to have a known version.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use ndarray_shm_volume::{
    Bbox, ChunkSource, Elements, Fetched, ObjectVersion, Result, Scratch, VolumeUrl, open_volume,
};
use serde_json::{Value, json};

use crate::place::Place;

/// A volume of one format: its description, the stored object of its first chunk, and the bytes of objects.
struct Format {
    name: &'static str,
    document: (&'static str, Value),
    object: &'static str,
    /// Returns an object with a first chunk of this value.
    bytes: fn(u8) -> Vec<u8>,
    /// The first chunk.
    first: &'static str,
    /// A chunk of the same shard; only objects of an even value have it.
    second: Option<&'static str>,
}

fn formats() -> Vec<Format> {
    let precomputed = |sharding: Value| {
        json!({
            "data_type": "uint8", "num_channels": 1, "type": "image",
            "scales": [{
                "key": "s", "size": [8, 2, 2], "chunk_sizes": [[2, 2, 2]], "resolution": [1, 1, 1], "encoding": "raw",
                "sharding": sharding,
            }],
        })
    };
    let sharding = json!({
        "@type": "neuroglancer_uint64_sharded_v1", "preshift_bits": 0, "hash": "identity", "minishard_bits": 0,
        "shard_bits": 0,
    });
    let zarr = |chunk: u64, codecs: Value| {
        json!({
            "zarr_format": 3, "node_type": "array", "shape": [8], "data_type": "uint8", "fill_value": 0,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [chunk]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "codecs": codecs,
        })
    };
    let shards = |location: &str| {
        json!([{"name": "sharding_indexed", "configuration": {
            "chunk_shape": [4], "codecs": [{"name": "bytes"}], "index_location": location,
            "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        }}])
    };
    let of_precomputed = |name, object, bytes, sharding| Format {
        name,
        document: ("info", precomputed(sharding)),
        object,
        bytes,
        first: "0:2,0:2,0:2,0:1",
        second: None,
    };
    let of_zarr = |name, codecs, bytes| Format {
        name,
        document: ("zarr.json", zarr(8, codecs)),
        object: "c/0",
        bytes,
        first: "0:4",
        second: Some("4:8"),
    };
    let attributes = json!({"dimensions": [8], "blockSize": [4], "dataType": "uint8", "compression": {"type": "raw"}});
    vec![
        of_precomputed("precomputed", "s/0-2_0-2_0-2", |value| vec![value; 8], Value::Null),
        of_precomputed("packed", "s/0-2_0-2_0-2.gz", packed, Value::Null),
        of_precomputed("nested", "s/0-2/0-2/0-2", |value| vec![value; 8], Value::Null),
        Format {
            second: Some("2:4,0:2,0:2,0:1"),
            ..of_precomputed("shards", "s/0.shard", precomputed_shard, sharding)
        },
        Format {
            document: ("zarr.json", zarr(4, json!([{"name": "bytes"}]))),
            second: None,
            ..of_zarr("zarr", Value::Null, |value| vec![value; 4])
        },
        of_zarr("zarr shards", shards("end"), |value| zarr_shard(value, false)),
        of_zarr("zarr shards with the index first", shards("start"), |value| zarr_shard(value, true)),
        Format {
            name: "n5",
            document: ("attributes.json", attributes),
            object: "0",
            bytes: |value| [&[0, 0, 0, 1, 0, 0, 0, 4][..], &[value; 4]].concat(),
            first: "0:4",
            second: None,
        },
    ]
}

fn packed(value: u8) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&[value; 8]).expect("packed");
    encoder.finish().expect("packed")
}

/// Bytes in front of the chunks of a shard: each object has its chunks in another place, and another length.
fn gap(value: u8) -> usize {
    100 - 10 * usize::from(value)
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn zarr_shard(value: u8, is_index_first: bool) -> Vec<u8> {
    let start = (gap(value) + if is_index_first { 32 } else { 0 }) as u64;
    let second = if value.is_multiple_of(2) { [start + 4, 4] } else { [u64::MAX; 2] };
    let (index, chunks) = (words(&[start, 4, second[0], second[1]]), vec![value; gap(value) + 8]);
    if is_index_first { [index, chunks].concat() } else { [chunks, index].concat() }
}

fn precomputed_shard(value: u8) -> Vec<u8> {
    let (chunks, gap) = (vec![value; gap(value) + 16], gap(value) as u64);
    let index = if value.is_multiple_of(2) { words(&[0, 1, gap, 0, 8, 8]) } else { words(&[0, gap, 8]) };
    let end = chunks.len() as u64;
    [words(&[end, end + index.len() as u64]), chunks, index].concat()
}

/// A volume with an object that is one of several files.
struct Volume {
    format: Format,
    root: PathBuf,
    source: Box<dyn ChunkSource>,
}

impl Volume {
    /// Makes the files of some values; there is no object yet.
    fn new(place: &Place, format: Format, values: &[u8]) -> Self {
        let root = place.path(format.name);
        let object = root.join(format.object);
        fs::create_dir_all(object.parent().expect("a directory")).expect("a directory");
        fs::write(root.join(format.document.0), format.document.1.to_string()).expect("a description");
        let source = open_volume(VolumeUrl::local(&root)).expect(format.name);
        let volume = Self { format, root, source };
        volume.make(values);
        volume
    }

    fn make(&self, values: &[u8]) {
        for value in values {
            fs::write(self.file(*value), (self.format.bytes)(*value)).expect("a file");
        }
    }

    fn file(&self, value: u8) -> PathBuf {
        self.root.join(format!("file-{value}"))
    }

    /// Makes the file of a value the object.
    fn point_to(&self, value: u8) {
        let link = self.root.join("link");
        symlink(self.file(value), &link).expect("a link");
        fs::rename(&link, self.root.join(self.format.object)).expect("the object");
    }

    fn remove(&self) {
        fs::remove_file(self.root.join(self.format.object)).expect("removed");
    }

    fn version(&self) -> ObjectVersion {
        self.source.version(region(self.format.first).ranges()).expect(self.format.name)
    }

    /// Fetches the first chunk. Returns its value, `None` if it is missing, and the version.
    fn fetch(&self) -> (Option<u8>, ObjectVersion) {
        self.fetch_chunk(self.format.first)
    }

    fn fetch_chunk(&self, chunk: &str) -> (Option<u8>, ObjectVersion) {
        fetch(&*self.source, chunk).expect(self.format.name)
    }

    /// Returns the value of the first chunk, read without its version.
    fn plain(&self) -> Option<u8> {
        let region = region(self.format.first);
        decoded(&*self.source, &region, self.source.fetch(region.ranges()).expect(self.format.name))
    }

    /// Checks that the object is that of a value, with a known version, which this returns.
    fn known(&self, value: u8) -> String {
        let name = self.format.name;
        let (found, version) = self.fetch();
        assert_eq!((found, &version), (Some(value), &self.version()), "{name}");
        let ObjectVersion::Known(text) = version else { panic!("{name}: {version:?}") };
        text
    }
}

fn region(text: &str) -> Bbox {
    text.parse().expect("a region")
}

fn fetch(source: &dyn ChunkSource, chunk: &str) -> Result<(Option<u8>, ObjectVersion)> {
    let region = region(chunk);
    let (fetched, version) = source.fetch_with_version(region.ranges())?;
    assert!(!matches!(fetched, Fetched::Later), "{source:?}");
    Ok((decoded(source, &region, fetched), version))
}

/// Decodes a chunk, all elements of which have one value.
fn decoded(source: &dyn ChunkSource, region: &Bbox, fetched: Fetched) -> Option<u8> {
    let mut scratch = Scratch::new();
    source.decode(region.ranges(), fetched, &mut scratch).expect("a chunk");
    match scratch.elements::<u8>(region.ranges()).expect("elements") {
        Elements::Missing => None,
        Elements::Fill(value) => Some(value),
        Elements::Block(block) => {
            let first = *block.first().expect("it is not empty");
            assert!(block.iter().all(|element| *element == first), "{block:?}");
            Some(first)
        }
    }
}

fn set_modified(path: &Path, time: SystemTime) {
    File::options().write(true).open(path).expect("the file").set_modified(time).expect("its new time");
}

/// One test of all formats, since files must be two seconds old.
#[test]
fn fetched_bytes_are_of_the_version_that_is_told() {
    let place = Place::new();
    let volumes: Vec<_> = formats().into_iter().map(|format| Volume::new(&place, format, &[1, 2, 3, 4, 5])).collect();
    let hour = Duration::from_hours(1);
    for volume in &volumes {
        let name = volume.format.name;
        assert_eq!(
            (volume.version(), volume.fetch()),
            (ObjectVersion::Missing, (None, ObjectVersion::Missing)),
            "{name}"
        );
        // Indexes that are cached from here on are of young shards.
        for value in [1, 2, 1] {
            volume.point_to(value);
            assert_eq!(volume.version(), ObjectVersion::Unsettled, "{name}");
            assert_eq!(volume.fetch(), (Some(value), ObjectVersion::Unsettled), "{name}");
        }
        set_modified(&volume.file(3), SystemTime::now() - hour);
        volume.point_to(3);
        assert_eq!(volume.version(), ObjectVersion::Unsettled, "{name}: its time was set back");
        volume.point_to(1);
        assert_eq!(volume.plain(), Some(1), "{name}");
        set_modified(&volume.file(5), SystemTime::now() + hour);
    }
    thread::sleep(Duration::from_millis(2100));

    for volume in &volumes {
        let name = volume.format.name;
        let first = volume.known(1);
        assert_eq!(volume.known(1), first, "{name}");
        volume.point_to(2);
        let second = volume.known(2);
        assert_ne!(first, second, "{name}: it was replaced");
        volume.point_to(3);
        assert!(![first.clone(), second].contains(&volume.known(3)), "{name}");
        volume.point_to(1);
        assert_eq!(volume.plain(), Some(1), "{name}: without a version");
        assert_eq!(volume.known(1), first, "{name}: the same file again");

        volume.point_to(5);
        assert_eq!(volume.version(), ObjectVersion::Unsettled, "{name}: its time is in the future");
        assert_eq!(volume.fetch(), (Some(5), ObjectVersion::Unsettled), "{name}");

        volume.remove();
        assert_eq!(
            (volume.version(), volume.fetch()),
            (ObjectVersion::Missing, (None, ObjectVersion::Missing)),
            "{name}"
        );
        volume.point_to(2);
        volume.known(2);
        chunks_of_shards_have_the_version_of_the_shard(volume);

        // Written in place: the length is the same, and the time is set back.
        let time = fs::metadata(volume.file(4)).expect("the file").modified().expect("its time");
        volume.point_to(4);
        let fourth = volume.known(4);
        fs::write(volume.file(4), fs::read(volume.file(4)).expect("the file")).expect("the same bytes");
        set_modified(&volume.file(4), time);
        assert_eq!((volume.version(), volume.fetch()), (ObjectVersion::Unsettled, (Some(4), ObjectVersion::Unsettled)));
        assert!(!fourth.is_empty());
    }
}

/// The object has the value 2 at first.
fn chunks_of_shards_have_the_version_of_the_shard(volume: &Volume) {
    let (Some(chunk), name) = (volume.format.second, volume.format.name) else { return };
    assert_eq!(volume.fetch_chunk(chunk), (Some(2), volume.version()), "{name}");
    // The cached index has the chunk, and the new shard has not.
    volume.point_to(1);
    let (found, version) = volume.fetch_chunk(chunk);
    assert_eq!((found, &version), (None, &volume.version()), "{name}");
    assert!(matches!(version, ObjectVersion::Known(_)), "{name}: {version:?}");
    assert_eq!(volume.fetch_chunk(chunk), (None, version), "{name}: the index is cached");
    // The other way round.
    volume.point_to(4);
    assert_eq!(volume.fetch_chunk(chunk), (Some(4), volume.version()), "{name}");
    volume.remove();
    assert_eq!(volume.fetch_chunk(chunk), (None, ObjectVersion::Missing), "{name}");
    volume.point_to(4);
    assert_eq!(volume.fetch_chunk(chunk), (Some(4), volume.version()), "{name}");
}

#[test]
fn chunk_packed_in_another_way_is_refused_and_not_missing() {
    let place = Place::new();
    let format = formats().swap_remove(0);
    let volume = Volume::new(&place, format, &[1]);
    fs::write(volume.root.join("s/0-2_0-2_0-2.br"), "brotli").expect("a file");
    let region = region(volume.format.first);
    for error in [
        volume.source.version(region.ranges()).expect_err("it cannot be read"),
        volume.source.fetch_with_version(region.ranges()).map(drop).expect_err("it cannot be read"),
    ] {
        assert!(format!("{error:?}").contains("brotli"), "{error:?}");
    }
}

#[cfg(feature = "http")]
mod remote {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::servers::{self, FaultyProxy, HttpServer};

    /// Makes the files of some values, with different times: the server's tags have the time and the length.
    fn volumes(place: &Place, values: &[u8]) -> Vec<Volume> {
        let volumes: Vec<_> = formats().into_iter().map(|format| Volume::new(place, format, values)).collect();
        for (volume, value) in volumes.iter().flat_map(|volume| values.iter().map(move |value| (volume, *value))) {
            set_modified(&volume.file(value), SystemTime::UNIX_EPOCH + Duration::from_secs(value.into()));
        }
        volumes
    }

    /// Opens a volume behind a server of all volumes.
    fn open(server: &str, volume: &Volume) -> Box<dyn ChunkSource> {
        let name = volume.format.name.replace(' ', "%20");
        open_volume(format!("{server}/{name}").as_str()).expect("a volume")
    }

    #[test]
    fn version_of_a_served_chunk_is_its_entity_tag() {
        if servers::python("version_of_a_served_chunk_is_its_entity_tag").is_none() {
            return;
        }
        let place = Place::new();
        let volumes = volumes(&place, &[1, 2, 3]);
        let (tagged, plain) = (HttpServer::start(&place.path("")), HttpServer::without_tags(&place.path("")));
        for volume in &volumes {
            let name = volume.format.name;
            let (first, chunks) = (region(volume.format.first), [Some(volume.format.first), volume.format.second]);
            let (tagged, plain) = (open(&tagged.url(), volume), open(&plain.url(), volume));
            let both = [&tagged, &plain];
            for source in both {
                assert_eq!(
                    fetch(&**source, volume.format.first).expect(name),
                    (None, ObjectVersion::Missing),
                    "{name}"
                );
                assert_eq!(source.version(first.ranges()).expect(name), ObjectVersion::Missing, "{name}");
            }
            let mut before = ObjectVersion::Missing;
            for value in [1, 2, 3, 2] {
                volume.point_to(value);
                for chunk in chunks.into_iter().flatten() {
                    let (found, version) = fetch(&*tagged, chunk).expect(name);
                    let is_there = chunk == volume.format.first || value.is_multiple_of(2);
                    assert_eq!(found, is_there.then_some(value), "{name}: {chunk}");
                    assert_eq!(version, tagged.version(first.ranges()).expect(name), "{name}: {chunk}");
                    assert!(matches!(version, ObjectVersion::Known(_)) && version != before, "{name}: {version:?}");
                }
                before = tagged.version(first.ranges()).expect(name);
            }
            assert_eq!(fetch(&*plain, volume.format.first).expect(name), (Some(2), ObjectVersion::Unknown), "{name}");
            assert_eq!(plain.version(first.ranges()).expect(name), ObjectVersion::Unknown, "{name}");
            volume.remove();
            assert_eq!(fetch(&*tagged, volume.format.first).expect(name), (None, ObjectVersion::Missing), "{name}");
        }
    }

    #[test]
    fn shard_replaced_between_index_and_chunk_is_read_anew() {
        if servers::python("shard_replaced_between_index_and_chunk_is_read_anew").is_none() {
            return;
        }
        let place = Place::new();
        let server = HttpServer::start(&place.path(""));
        for volume in volumes(&place, &[1, 2, 3]).into_iter().filter(|volume| volume.format.second.is_some()) {
            let volume = Arc::new(volume);
            let name = volume.format.name;
            // The shard is replaced in front of the last read of a chunk, this many times.
            for (times, is_settled) in [(1, true), (2, false)] {
                volume.point_to(1);
                let proxy = FaultyProxy::counting(&server.url());
                let source = open(&proxy.url(), &volume);
                assert_eq!(fetch(&*source, volume.format.first).expect(name).0, Some(1), "{name}");
                let last = proxy.requests().last().expect("a request").range.clone();
                let source = open(&proxy.url(), &volume);
                let (shared, done) = (Arc::clone(&volume), AtomicUsize::new(0));
                let ranges = [1, 2].map(|value| chunk_range(&last, value));
                proxy.decide(move |request| {
                    let count = done.load(Ordering::SeqCst);
                    if ranges.contains(&request.range) && count < times {
                        done.store(count + 1, Ordering::SeqCst);
                        shared.point_to(u8::try_from(count).expect("few") + 2);
                    }
                    None
                });
                let chunk = region(volume.format.first);
                match source.fetch_with_version(chunk.ranges()) {
                    Ok((fetched, version)) if is_settled => {
                        assert!(matches!(version, ObjectVersion::Known(_)), "{name}: {version:?}");
                        assert_eq!(decoded(&*source, &chunk, fetched), Some(2), "{name}");
                    }
                    Ok((_, version)) => assert_eq!(version, ObjectVersion::Unsettled, "{name}"),
                    // The place of the chunk may be beyond the end of the third shard.
                    Err(error) => assert!(!is_settled, "{name}: {error:?}"),
                }
            }
        }
    }

    /// Returns the range of the first chunk in the shard of a value, from that in the shard of 1.
    fn chunk_range(last: &str, value: u8) -> String {
        let (start, end) = last.strip_prefix("bytes=").and_then(|range| range.split_once('-')).expect("a range");
        let moved = |at: &str| at.parse::<usize>().expect("a number") - gap(1) + gap(value);
        format!("bytes={}-{}", moved(start), moved(end))
    }
}
