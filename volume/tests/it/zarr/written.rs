//! The contract of sinks: they replace no existing volume, store only the requested objects, and read back what was
//! stored.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;

use ndarray_shm::{DType, Order};
use ndarray_shm_volume::demo::{self, Codec, DemoSpec, Format};
use ndarray_shm_volume::{
    ChunkSink, Encoding, Error, Gather, NewVolume, Result, VolumeFormat, VolumeOptions, VolumeUrl, create_volume,
    open_volume,
};
use serde_json::{Value, json};

use super::{Whole, read, write};
use crate::place::Place;
use crate::refused::chain;

fn new(shape: &[u64], chunk: &[u64]) -> NewVolume {
    NewVolume::new(VolumeFormat::Zarr, shape, chunk, DType::U16)
}

#[test]
fn new_volume_needs_an_empty_directory() {
    let place = Place::new();
    let path = place.path("deep/down/volume");
    let url = VolumeUrl::local(&path);
    for version in [2, 3] {
        let mut new = new(&[9, 9], &[4, 4]);
        (new.version, new.resolution) = (version, vec![4.0, 4.0]);
        let sink = create_volume(&url, &new).expect("a volume");
        assert_eq!(sink.identity(), open_volume(&url).expect("it").identity());
        assert_eq!(read(&*sink, &sink.meta().domain()).expect("zeros"), [0; 162]);
        for version in [2, 3] {
            new.version = version;
            let error = create_volume(&url, &new).expect_err("it is there already");
            assert!(chain(&error).contains("something already"), "{}", chain(&error));
        }
        fs::remove_dir_all(&path).expect("the volume");
    }
    // A file that a killed creator leaves is no obstacle; any other file is.
    fs::create_dir(&path).expect("a directory");
    fs::write(path.join(".zattrs"), "{}").expect("attributes");
    fs::write(path.join("notes.txt"), "mine").expect("notes");
    let error = create_volume(&url, &new(&[9, 9], &[4, 4])).expect_err("a foreign file");
    assert!(chain(&error).contains("notes.txt"), "{}", chain(&error));
    fs::remove_file(path.join("notes.txt")).expect("notes");
    create_volume(&url, &new(&[9, 9], &[4, 4])).expect("a volume");
}

type Change = fn(&mut NewVolume);

#[test]
fn unsupported_new_volumes_are_refused_and_leave_nothing() {
    let place = Place::new();
    let changes: [(&str, Change); 12] = [
        ("cannot tile", |new| new.chunk_shape = vec![4]),
        ("cannot tile", |new| new.chunk_shape = vec![4, 0]),
        ("no Zarr version 4", |new| new.version = 4),
        ("no shards", |new| (new.version, new.shard_shape) = (2, Some(vec![8, 8]))),
        ("no multiples", |new| new.shard_shape = Some(vec![8, 6])),
        ("begin at 0", |new| new.origin = vec![0, -4]),
        ("resolution", |new| new.resolution = vec![1.0]),
        ("resolution", |new| new.resolution = vec![1.0, f64::NAN]),
        ("bfloat16", |new| (new.version, new.dtype) = (2, DType::Bf16)),
        ("jpeg", |new| new.encoding = Encoding::Jpeg),
        ("blosc cannot", |new| (new.encoding, new.chunk_shape) = (Encoding::Blosc, vec![1 << 16, 1 << 16])),
        ("index of more", |new| {
            (new.chunk_shape, new.shard_shape) = (vec![1, 1], Some(vec![1 << 13, 1 << 13]));
        }),
    ];
    for (number, (reason, change)) in changes.into_iter().enumerate() {
        let path = place.path(&format!("volume-{number}"));
        let mut new = new(&[9, 9], &[4, 4]);
        change(&mut new);
        let error = create_volume(VolumeUrl::local(&path), &new).expect_err(reason);
        assert!(matches!(error, Error::NewVolume { .. }), "{number}: {error:?}");
        assert!(chain(&error).contains(reason), "{number}: {}", chain(&error));
        assert!(!path.exists(), "{number}");
    }
    let url = VolumeUrl::local(place.path("volume")).format(VolumeFormat::Precomputed);
    assert!(create_volume(&url, &new(&[9, 9], &[4, 4])).is_err());
}

#[test]
fn fill_value_chunks_are_left_out_of_shards() {
    let place = Place::new();
    let path = place.path("volume");
    let mut new = new(&[10, 10], &[4, 4]);
    new.shard_shape = Some(vec![8, 8]);
    let sink = create_volume(VolumeUrl::local(&path), &new).expect("a volume");
    // One element is not 0, in the last chunk, which the volume cuts off.
    let mut elements = vec![0; 200];
    elements[198] = 9;
    write(&*sink, &Whole { bytes: &elements, shape: &[10, 10], dtype: DType::U16 }).expect("written");
    assert_eq!(read(&*sink, &sink.meta().domain()).expect("it"), elements);
    let length = |name: &str| fs::metadata(path.join(name)).expect("a shard").len();
    assert_eq!((length("c/0/0"), length("c/1/1")), (4 * 16 + 4, 4 * 16 + 4 + 32));
}

#[test]
fn sinks_read_chunks_of_each_other() {
    let place = Place::new();
    for sharded in [false, true] {
        let url = VolumeUrl::local(place.path(&format!("volume-{sharded}")));
        let mut new = new(&[8, 8], &[4, 4]);
        (new.shard_shape, new.encoding) = (sharded.then(|| vec![8, 8]), Encoding::Zstd);
        let one = create_volume(&url, &new).expect("a volume");
        let other = VolumeOptions::new().open_writable(&url).expect("the volume");
        let all = one.meta().domain();
        let mut elements: Vec<u8> = (0..128).collect();
        for round in 0..4u8 {
            elements.iter_mut().step_by(3).for_each(|byte| *byte = byte.wrapping_mul(7).wrapping_add(round));
            let whole = Whole { bytes: &elements, shape: &[8, 8], dtype: DType::U16 };
            let (writer, reader) = if round % 2 == 0 { (&one, &other) } else { (&other, &one) };
            write(&**writer, &whole).expect("written");
            assert_eq!(read(&**writer, &all).expect("the writer's own chunks"), elements);
            // The other sink reads while it encodes, as an upload that changes part of an object does.
            let first = reader.meta().stored(&all).next().expect("an object");
            let kept = Kept { sink: &**reader, shape: &[8, 8] };
            let again = reader.encode(&first, &kept).expect("the stored elements");
            reader.store(&first, again).expect("stored");
            assert_eq!(read(&**reader, &all).expect("the other's"), elements, "sharded {sharded}, round {round}");
        }
        for region in one.meta().stored(&all) {
            one.erase(&region).expect("erased");
            one.erase(&region).expect("nothing is there");
        }
        assert_eq!(read(&*one, &all).expect("zeros"), [0; 128]);
    }
}

/// The elements that are already stored.
struct Kept<'a> {
    sink: &'a dyn ChunkSink,
    shape: &'a [u64],
}

impl Gather for Kept<'_> {
    fn gather(&self, region: &[Range<i64>], order: Order, bytes: &mut Vec<u8>) -> Result<()> {
        let all = read(self.sink, &self.sink.meta().domain())?;
        Whole { bytes: &all, shape: self.shape, dtype: self.sink.meta().dtype }.gather(region, order, bytes)
    }
}

#[test]
fn regions_other_than_whole_objects_are_refused() {
    let place = Place::new();
    let mut new = new(&[10, 10], &[4, 4]);
    new.shard_shape = Some(vec![8, 8]);
    let sink = create_volume(VolumeUrl::local(place.path("volume")), &new).expect("a volume");
    let whole = Whole { bytes: &[0; 200], shape: &[10, 10], dtype: DType::U16 };
    for region in [
        vec![0..4, 0..4],
        vec![0..10, 0..8],
        vec![8..10, 8..12],
        vec![0..8, 0..8, 0..1],
        vec![-8..0, 0..8],
        vec![1..8, 0..8],
    ] {
        assert!(matches!(sink.encode(&region, &whole), Err(Error::Bbox { .. })), "{region:?}");
        assert!(matches!(sink.store(&region, Vec::new()), Err(Error::Bbox { .. })), "{region:?}");
        assert!(matches!(sink.erase(&region), Err(Error::Bbox { .. })), "{region:?}");
    }
    sink.encode(&[8..10, 0..8], &whole).expect("a whole object, cut off where the volume ends");
    let wrong = Whole { bytes: &[0; 200], shape: &[20, 10], dtype: DType::U8 };
    assert!(matches!(sink.encode(&[8..10, 0..8], &wrong), Err(Error::Chunk { .. })), "half of the bytes");
}

/// Writes arrays with the metadata of other programs: big-endian, in F order, with a shard's index at its start. Reads
/// each back, and returns its path, specification and elements.
pub(super) fn written_with_foreign_metadata(place: &Place) -> Vec<(PathBuf, DemoSpec, Vec<u8>)> {
    let spec = DemoSpec::new(&[9, 10, 7], &[4, 5, 6], DType::U16).complete(true);
    let specs = [
        ("v2-f", spec.clone().format(Format::ZarrV2).codec(Codec::Blosc).f_order(true).big_endian(true)),
        ("v3-f", spec.clone().f_order(true).big_endian(true).codec(Codec::Gzip)),
        ("v3-shards", spec.shards(&[8, 10, 6]).f_order(true)),
    ];
    let write_and_read = |(name, spec): (&str, DemoSpec)| {
        let path = place.path(name);
        demo::write_volume(&path, &spec).expect("a volume");
        if name == "v3-shards" {
            let file = path.join("zarr.json");
            let mut json: Value = serde_json::from_slice(&fs::read(&file).expect("metadata")).expect("JSON");
            json["codecs"][0]["configuration"]["index_location"] = json!("start");
            fs::write(file, json.to_string()).expect("metadata");
        }
        let sink = VolumeOptions::new().open_writable(VolumeUrl::local(&path)).expect("a volume");
        let elements: Vec<u8> = (0..9 * 10 * 7u16).flat_map(|at| (at * 3).to_ne_bytes()).collect();
        write(&*sink, &Whole { bytes: &elements, shape: spec.shape(), dtype: DType::U16 }).expect("written");
        assert!(read(&*sink, &sink.meta().domain()).expect("it") == elements, "{name}");
        (path, spec, elements)
    };
    specs.into_iter().map(write_and_read).collect()
}

#[test]
fn foreign_arrays_keep_their_layout_when_written() {
    assert_eq!(written_with_foreign_metadata(&Place::new()).len(), 3);
}
