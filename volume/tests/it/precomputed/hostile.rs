//! Damaged and malicious indexes and chunks: an error must name the file, nothing may panic, and memory stays bounded.

use std::fs;
use std::path::{Path, PathBuf};

use ndarray_shm::{DType, Order};
use ndarray_shm_volume::{
    ChunkSource, Elements, Encoding, Error, Gather, NewVolume, Result, Scratch, VolumeFormat, VolumeKind,
    VolumeOptions, VolumeUrl, create_volume, open_volume,
};
use serde_json::json;

use crate::place::Place;
use crate::refused::{chain, with_slashes};

/// Small numbers in runs.
pub(super) struct Runs(pub(super) usize);

impl Gather for Runs {
    fn gather(&self, region: &[std::ops::Range<i64>], _order: Order, bytes: &mut Vec<u8>) -> Result<()> {
        let count: i64 = region.iter().map(|range| range.end - range.start).product();
        bytes.clear();
        for at in 0..usize::try_from(count).expect("small") {
            bytes.extend((0..self.0).map(|byte| if byte == 0 { u8::try_from(at / 5 % 50).expect("small") } else { 0 }));
        }
        Ok(())
    }
}

pub(super) fn new(dtype: DType, encoding: Encoding) -> NewVolume {
    let mut new = NewVolume::new(VolumeFormat::Precomputed, &[16, 16, 16, 1], &[16, 16, 16, 1], dtype);
    new.encoding = encoding;
    if matches!(dtype, DType::U32 | DType::U64) {
        new.kind = Some(VolumeKind::Segmentation);
    }
    new
}

/// Creates a volume of one chunk, and returns the chunk's file.
fn one_chunk(path: &Path, dtype: DType, encoding: Encoding) -> PathBuf {
    let sink = create_volume(VolumeUrl::local(path), &new(dtype, encoding)).expect("a volume");
    let region = sink.meta().domain();
    sink.store(region.ranges(), sink.encode(region.ranges(), &Runs(dtype.size())).expect("encoded")).expect("stored");
    let mut files = fs::read_dir(path.join("1_1_1")).expect("a scale");
    files.next().expect("a chunk").expect("its name").path()
}

pub(super) fn open(path: &Path) -> Result<Box<dyn ChunkSource>> {
    open_volume(VolumeUrl::local(path))
}

/// Reads the first chunk.
fn read_first(source: &dyn ChunkSource) -> Result<()> {
    let region = source.meta().chunks(&source.meta().domain()).next().expect("a chunk");
    source.read(&region, &mut Scratch::new())
}

#[test]
fn oversized_chunk_file_is_refused_before_it_is_read() {
    for (dtype, encoding) in [
        (DType::U8, Encoding::Raw),
        (DType::U8, Encoding::Gzip),
        (DType::U8, Encoding::Jpeg),
        (DType::U32, Encoding::CompressedSegmentation),
    ] {
        let place = Place::new();
        let path = place.path("volume");
        let file = one_chunk(&path, dtype, encoding);
        let source = open(&path).expect("the volume");
        let chunk = fs::File::options().write(true).open(&file).expect("the chunk");
        chunk.set_len(256 << 20).expect("a hole");
        let text = chain(&read_first(&*source).expect_err("too long"));
        assert!(text.contains(&with_slashes(&file.display().to_string())), "{encoding:?}: {text}");
        assert!(text.contains("268435456 bytes are more than there can be in it"), "{encoding:?}: {text}");
    }
}

#[test]
fn chunk_with_unsupported_compression_is_not_missing() {
    let place = Place::new();
    for (number, suffix) in [".br", ".zstd"].into_iter().enumerate() {
        let path = place.path(&format!("volume-{number}"));
        let chunk = one_chunk(&path, DType::U8, Encoding::Raw);
        let mut other = chunk.clone().into_os_string();
        other.push(suffix);
        fs::rename(&chunk, other).expect("the chunk");
        let error = read_first(&*open(&path).expect("a volume")).expect_err("unsupported compression");
        let text = chain(&error);
        assert!(matches!(error, Error::Chunk { .. }) && text.contains(suffix) && text.contains("gzip can"), "{text}");
    }
}

#[test]
fn error_for_a_truncated_chunk_names_its_file() {
    let place = Place::new();
    let path = place.path("volume");
    let file = one_chunk(&path, DType::U32, Encoding::Gzip);
    let name = with_slashes(&file.display().to_string());
    assert_eq!(file.extension().and_then(|suffix| suffix.to_str()), Some("gz"));
    let source = open(&path).expect("a volume");
    let whole = fs::read(&file).expect("the chunk");
    for end in [1, 10, 19, 20, 30, whole.len() / 2, whole.len() - 9, whole.len() - 1] {
        fs::write(&file, &whole[..end]).expect("the chunk");
        let error = read_first(&*source).expect_err("cut");
        let text = chain(&error);
        assert!(matches!(error, Error::Chunk { .. }) && text.contains("cut "), "cut at {end}: {text}");
        assert!(text.contains(&format!("chunk `{name}`")), "{name}: {text}");
    }
}

#[test]
fn gzip_is_unpacked_with_and_without_its_suffix() {
    let place = Place::new();
    for (number, encoding) in [Encoding::Gzip, Encoding::CompressedSegmentationGzip].into_iter().enumerate() {
        let path = place.path(&format!("volume-{number}"));
        let chunk = one_chunk(&path, DType::U32, encoding);
        assert_eq!(chunk.extension().and_then(|suffix| suffix.to_str()), Some("gz"));
        read_first(&*open(&path).expect("a volume")).expect("with the suffix");
        fs::rename(&chunk, chunk.with_extension("")).expect("the chunk");
        read_first(&*open(&path).expect("a volume")).expect("without the suffix");
    }
}

#[test]
fn damaged_chunks_never_panic() {
    let place = Place::new();
    let kinds = [
        (DType::U16, Encoding::Raw),
        (DType::U16, Encoding::Gzip),
        (DType::U8, Encoding::Jpeg),
        (DType::U16, Encoding::Png),
        (DType::U64, Encoding::CompressedSegmentation),
    ];
    for (number, (dtype, encoding)) in kinds.into_iter().enumerate() {
        let path = place.path(&format!("volume-{number}"));
        let file = one_chunk(&path, dtype, encoding);
        let source = open(&path).expect("a volume");
        let whole = fs::read(&file).expect("a chunk");
        let region = source.meta().domain();
        let mut scratch = Scratch::new();
        let mut errors = 0;
        let mut check = |bytes: &[u8], what: String| {
            fs::write(&file, bytes).expect("the chunk");
            match source.read(region.ranges(), &mut scratch) {
                Ok(()) => {
                    let shape = |elements: Result<Vec<usize>>| assert_eq!(elements.expect(&what), [16, 16, 16, 1]);
                    match dtype {
                        DType::U8 => shape(scratch.elements::<u8>(region.ranges()).map(shape_of)),
                        DType::U16 => shape(scratch.elements::<u16>(region.ranges()).map(shape_of)),
                        _ => shape(scratch.elements::<u64>(region.ranges()).map(shape_of)),
                    }
                }
                Err(error) => {
                    errors += 1;
                    assert!(chain(&error).contains("1_1_1"), "{what}: {}", chain(&error));
                }
            }
        };
        for end in (0..whole.len()).step_by(whole.len() / 50 + 1) {
            check(&whole[..end], format!("{encoding:?} cut at {end}"));
        }
        let mut state = 7u64;
        let mut next = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).expect("small") % below
        };
        for round in 0..crate::rounds(400) {
            let mut bytes = whole.clone();
            for _ in 0..=next(4) {
                let at = if next(2) == 0 { next(bytes.len().min(64)) } else { next(bytes.len()) };
                bytes[at] = [0, 255, u8::try_from(next(256)).expect("a byte"), bytes[at] ^ (1 << next(8))][next(4)];
            }
            check(&bytes, format!("{encoding:?} round {round}"));
        }
        check(&whole, "whole".to_owned());
        assert!(errors >= 40, "{encoding:?}: {errors}");
    }
}

fn shape_of<T>(elements: Elements<'_, T>) -> Vec<usize> {
    match elements {
        Elements::Block(block) => block.shape().to_vec(),
        Elements::Missing | Elements::Fill(_) => Vec::new(),
    }
}

#[test]
fn a_bomb_is_an_error() {
    let place = Place::new();
    let zeros = |count: usize| {
        use std::io::Write as _;
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        packed.write_all(&vec![0; count]).expect("packed");
        packed.finish().expect("packed")
    };
    for (number, dtype, encoding) in
        [(0, DType::U8, Encoding::Gzip), (1, DType::U32, Encoding::CompressedSegmentationGzip)]
    {
        let path = place.path(&format!("volume-{number}"));
        let file = one_chunk(&path, dtype, encoding);
        fs::write(&file, zeros(64 << 20)).expect("a bomb");
        let text = chain(&read_first(&*open(&path).expect("a volume")).expect_err("a bomb"));
        assert!(text.contains("longer than") && text.contains("1_1_1"), "{text}");
    }
    // The header claims a picture of 30,000 times 30,000 pixels; the data is that of a small one.
    let path = place.path("png");
    let file = one_chunk(&path, DType::U8, Encoding::Png);
    let mut bytes = fs::read(&file).expect("a picture");
    bytes[16..24].copy_from_slice(&[0, 0, 0x75, 0x30, 0, 0, 0x75, 0x30]);
    let checksum = crc32(&bytes[12..29]);
    bytes[29..33].copy_from_slice(&checksum.to_be_bytes());
    fs::write(&file, bytes).expect("a bomb");
    let text = chain(&read_first(&*open(&path).expect("a volume")).expect_err("a bomb"));
    assert!(text.contains("30000 times 30000"), "{text}");
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

/// Writes a volume of 4 chunks of 8 elements in one shard. The shard is the first two words, the chunks and the other
/// words.
fn sharded(place: &Place, shard: &[u64], chunks: &[u8]) -> PathBuf {
    let path = place.path("sharded");
    fs::create_dir_all(path.join("s")).expect("a directory");
    let info = json!({
        "data_type": "uint8", "num_channels": 1, "type": "image",
        "scales": [{
            "key": "s", "size": [8, 2, 2], "chunk_sizes": [[2, 2, 2]], "resolution": [1, 1, 1], "encoding": "raw",
            "sharding": {
                "@type": "neuroglancer_uint64_sharded_v1", "preshift_bits": 0, "hash": "identity",
                "minishard_bits": 0, "shard_bits": 0,
            },
        }],
    });
    fs::write(path.join("info"), info.to_string()).expect("a description");
    let mut bytes: Vec<u8> = shard[..2].iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend(chunks);
    bytes.extend(shard[2..].iter().flat_map(|word| word.to_le_bytes()));
    fs::write(path.join("s/0.shard"), bytes).expect("a shard");
    path
}

#[test]
fn damaged_shards_are_errors_naming_the_shard() {
    let place = Place::new();
    let chunks: Vec<u8> = (0..16).collect();
    // After the shard's index come two chunks of 8 bytes, then the minishard's index: chunks 0 and 2.
    let good = [16, 64, 0, 2, 0, 0, 8, 8];
    let source = open(&sharded(&place, &good, &chunks)).expect("a volume");
    let mut scratch = Scratch::new();
    source.read(&[4..6, 0..2, 0..2, 0..1], &mut scratch).expect("a chunk");
    match scratch.elements::<u8>(&[4..6, 0..2, 0..2, 0..1]).expect("elements") {
        Elements::Block(block) => {
            assert_eq!((block[[0, 0, 0, 0]], block[[1, 0, 0, 0]], block[[0, 0, 1, 0]]), (8, 9, 12));
        }
        other => panic!("{other:?}"),
    }
    source.read(&[2..4, 0..2, 0..2, 0..1], &mut scratch).expect("no chunk");
    assert!(matches!(scratch.elements::<u8>(&[2..4, 0..2, 0..2, 0..1]), Ok(Elements::Missing)));
    assert!(VolumeOptions::new().open_writable(VolumeUrl::local(place.path("sharded"))).is_err());

    let far = u64::MAX - 3;
    for (at, value) in [
        // The range of the minishard's index: past the end, backwards, beyond any file, longer than any file, cut in an
        // entry.
        (0, 1 << 40),
        (1, 1 << 40),
        (1, 3),
        (0, far),
        (1, far),
        (1, 60),
        // Its entries: a chunk twice; an offset past the end and beyond any file; a length beyond any file and past the
        // end.
        (3, 0),
        (4, 1000),
        (4, far),
        (6, 1 << 40),
        (6, far),
        (6, 100),
    ] {
        let mut wrong = good;
        wrong[at] = value;
        let source = open(&sharded(&place, &wrong, &chunks)).expect("a volume");
        let error = read_first(&*source).expect_err(&format!("{at}: {value}"));
        assert!(chain(&error).contains("0.shard"), "{at}: {value}: {}", chain(&error));
    }
    // Truncates the shard and changes a byte at every position.
    let path = sharded(&place, &good, &chunks);
    let whole = fs::read(path.join("s/0.shard")).expect("a shard");
    for at in 0..whole.len() {
        fs::write(path.join("s/0.shard"), &whole[..at]).expect("a shard");
        assert!(read_first(&*open(&path).expect("a volume")).is_err(), "cut at {at}");
        for byte in [0, 1, 255] {
            let mut wrong = whole.clone();
            wrong[at] = byte;
            fs::write(path.join("s/0.shard"), wrong).expect("a shard");
            let source = open(&path).expect("a volume");
            for region in source.meta().chunks(&source.meta().domain()) {
                let _ = source.read(&region, &mut scratch);
            }
        }
    }
}
