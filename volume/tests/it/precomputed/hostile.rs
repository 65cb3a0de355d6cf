//! Descriptions, indexes and chunks that are damaged, or made to harm: an error that names the file, no panic, bounded memory.

use std::fs;
use std::path::{Path, PathBuf};

use ndarray_shm::{DType, Order};
use ndarray_shm_volume::{
    ChunkSource, Elements, Encoding, Error, ErrorKind, Gather, NewVolume, Result, Scratch, VolumeFormat, VolumeOptions,
    VolumeUrl, create_volume, open_volume,
};
use serde_json::{Value, json};

use crate::place::Place;
use crate::refused::{chain, with_slashes};

/// Small numbers in runs.
struct Runs(usize);

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

fn new(dtype: DType, encoding: Encoding) -> NewVolume {
    let mut new = NewVolume::new(VolumeFormat::Precomputed, &[16, 16, 16, 1], &[16, 16, 16, 1], dtype);
    new.encoding = encoding;
    new
}

/// A volume of one chunk; returns the chunk's file too.
fn one_chunk(path: &Path, dtype: DType, encoding: Encoding) -> PathBuf {
    let sink = create_volume(&VolumeUrl::local(path), &new(dtype, encoding)).expect("a volume");
    let region = sink.meta().domain();
    sink.store(region.ranges(), sink.encode(region.ranges(), &Runs(dtype.size())).expect("encoded")).expect("stored");
    let mut files = fs::read_dir(path.join("1_1_1")).expect("a scale");
    files.next().expect("a chunk").expect("its name").path()
}

fn open(path: &Path) -> Result<Box<dyn ChunkSource>> {
    open_volume(&VolumeUrl::local(path))
}

/// Reads the first chunk.
fn read_first(source: &dyn ChunkSource) -> Result<()> {
    let region = source.meta().chunks(&source.meta().domain()).next().expect("a chunk");
    source.read(&region, &mut Scratch::new())
}

#[test]
fn a_file_much_longer_than_a_chunk_is_an_error_before_it_is_read() {
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

/// Writes a description with a change, and returns what opening it answers.
fn changed(place: &Place, change: impl FnOnce(&mut Value)) -> String {
    let path = place.path("described");
    let mut info = json!({
        "@type": "neuroglancer_multiscale_volume",
        "type": "image",
        "data_type": "uint8",
        "num_channels": 1,
        "scales": [{
            "key": "1_1_1", "size": [64, 64, 64], "chunk_sizes": [[16, 16, 16]], "resolution": [1, 1, 1],
            "voxel_offset": [0, 0, 0], "encoding": "raw",
        }],
    });
    change(&mut info);
    fs::create_dir_all(&path).expect("a directory");
    fs::write(path.join("info"), info.to_string()).expect("a description");
    match open(&path) {
        Ok(source) => format!("{:?}", source.meta()),
        Err(error) => {
            let text = chain(&error);
            assert!(
                text.contains(&with_slashes(&path.join("info").display().to_string())),
                "it names the file: {text}"
            );
            assert!(text.len() < 1000, "{text}");
            text
        }
    }
}

#[test]
fn a_description_that_is_wrong_says_what_is_wrong() {
    let place = Place::new();
    assert!(changed(&place, |_| {}).contains("Precomputed, raw"));
    for (member, value, says) in [
        ("key", json!("../other"), "leads out of the volume"),
        ("key", json!("a/../../b"), "leads out of the volume"),
        ("key", json!("/etc"), "absolute"),
        ("key", json!("s3://elsewhere/x"), "absolute"),
        ("key", json!("a\\..\\b"), "characters"),
        ("key", json!(7), "`key` is 7"),
        ("size", json!([64, 64]), "`size`"),
        ("size", json!([64, -64, 64]), "`size`"),
        ("size", json!([64, 1e30, 64]), "`size`"),
        ("size", json!("x".repeat(1_000_000)), "`size`"),
        ("chunk_sizes", json!([16, 16, 16]), "`chunk_sizes`"),
        ("chunk_sizes", json!([]), "`chunk_sizes`"),
        ("chunk_sizes", json!([[16, 0, 16]]), "`chunk_sizes`"),
        ("chunk_sizes", json!([[16, -1, 16]]), "`chunk_sizes`"),
        ("chunk_sizes", json!([[16.5, 16, 16]]), "`chunk_sizes`"),
        ("chunk_sizes", json!([[16, 16, "16"]]), "`chunk_sizes`"),
        ("voxel_offset", json!([0, 0.5, 0]), "`voxel_offset`"),
        ("voxel_offset", json!([0, i64::MAX, 0]), "beyond any coordinate"),
        ("resolution", json!([1, 1]), "`resolution`"),
        ("encoding", json!(null), "`encoding`"),
        ("encoding", json!("compresso"), "encoded as `compresso`: raw, jpeg"),
        ("encoding", json!("crackle"), "encoded as `crackle`"),
        ("encoding", json!("kempressed"), "encoded as `kempressed`"),
        ("encoding", json!("fpzip"), "encoded as `fpzip`"),
        ("encoding", json!("zfpc"), "encoded as `zfpc`"),
        ("encoding", json!("jxl"), "encoded as `jxl`"),
        ("encoding", json!("tiff"), "`tiff`, which is not known"),
        ("encoding", json!("compressed_segmentation"), "needs uint32 or uint64"),
        ("sharding", json!([]), "`sharding`"),
        ("sharding", json!({"@type": "neuroglancer_uint64_sharded_v1", "hash": "md5"}), "`hash`"),
    ] {
        let text = changed(&place, |info| info["scales"][0][member] = value.clone());
        assert!(text.contains(says), "{member}: {text}");
    }
    let huge = changed(&place, |info| {
        info["scales"][0]["size"] = json!([1u64 << 40, 1u64 << 40, 1u64 << 40]);
        info["scales"][0]["chunk_sizes"] = json!([[1u64 << 40, 1u64 << 40, 1u64 << 40]]);
    });
    assert!(huge.contains("cannot be decoded whole"), "{huge}");
    for (member, value, says) in [
        ("data_type", json!("string"), "elements of type string"),
        ("data_type", json!(8), "`data_type`"),
        ("num_channels", json!(0), "`num_channels`"),
        ("num_channels", json!(u64::MAX), "cannot be decoded whole"),
        ("num_channels", json!(1.5), "`num_channels`"),
        ("scales", json!([]), "`scales`"),
        ("scales", json!({"key": 1}), "`scales`"),
        ("scales", json!([7]), "`key`"),
        ("@type", json!("neuroglancer_annotations_v1"), "annotations"),
        ("@type", json!("neuroglancer_multilod_draco"), "meshes"),
        ("@type", json!("neuroglancer_skeletons"), "skeletons"),
        ("@type", json!("neuroglancer_segment_properties"), "properties of segments"),
        ("graph", json!({"chunk_size": [1, 1, 1]}), "graphene"),
    ] {
        let text = changed(&place, |info| info[member] = value.clone());
        assert!(text.contains(says), "{member}: {text}");
    }
    assert!(
        changed(&place, |info| *info = json!({"mesh": "mesh", "data_type": "uint8"})).contains("meshes or skeletons")
    );
    assert!(changed(&place, |info| *info = json!([1])).contains("no JSON object"));
    let path = place.path("described");
    for text in [&b""[..], b"{", b"\xff\xfe", b"null", &[0x1f, 0x8b, 8, 0, 0]] {
        fs::write(path.join("info"), text).expect("a description");
        let error = open(&path).expect_err("damaged");
        assert_eq!(error.kind(), Some(ErrorKind::Damaged), "{error}");
        assert!(error.to_string().contains("info` is damaged: "), "{error}");
    }
    for (kind, document) in [
        (ErrorKind::NotAVolume, json!({"@type": "neuroglancer_skeletons"})),
        (ErrorKind::Unsupported, json!({"data_type": "string", "scales": []})),
        (ErrorKind::Damaged, json!({"data_type": "uint8", "scales": []})),
    ] {
        fs::write(path.join("info"), document.to_string()).expect("a description");
        assert_eq!(open(&path).expect_err("no volume").kind(), Some(kind), "{document}");
    }
    fs::remove_file(path.join("info")).expect("ours");
    let url: VolumeUrl = format!("precomputed://{}", path.display()).parse().expect("a URL");
    assert_eq!(VolumeOptions::new().open(&url).expect_err("nothing").kind(), Some(ErrorKind::Absent));
    changed(&place, |_| {});
    let error = VolumeOptions::new().mip(3).open(&VolumeUrl::local(&path)).expect_err("no such scale");
    assert!(chain(&error).contains("no scale 3: it has 1 (1_1_1)"), "{error}");
}

#[test]
fn what_is_no_member_of_the_format_does_no_harm() {
    let place = Place::new();
    let text = changed(&place, |info| {
        info["mesh"] = json!("mesh");
        info["skeletons"] = json!("skeletons");
        info["anything"] = json!({"scales": 7});
        info["scales"][0]["hidden"] = json!(true);
        info["scales"][0]["chunk_sizes"] = json!([[16, 16, 16], [64, 64, 1]]);
        info["scales"][0]["key"] = json!("./a/../1_1_1");
        info["scales"][0].as_object_mut().expect("a scale").remove("voxel_offset");
    });
    assert!(text.contains("Precomputed, raw") && text.contains("[16, 16, 16, 1]"), "{text}");
}

#[test]
fn a_chunk_that_is_packed_otherwise_is_not_taken_for_a_missing_one() {
    let place = Place::new();
    for (number, suffix) in [".br", ".zstd"].into_iter().enumerate() {
        let path = place.path(&format!("volume-{number}"));
        let chunk = one_chunk(&path, DType::U8, Encoding::Raw);
        let mut other = chunk.clone().into_os_string();
        other.push(suffix);
        fs::rename(&chunk, other).expect("the chunk");
        let error = read_first(&*open(&path).expect("a volume")).expect_err("packed otherwise");
        let text = chain(&error);
        assert!(matches!(error, Error::Chunk { .. }) && text.contains(suffix) && text.contains("gzip can"), "{text}");
    }
}

#[test]
fn gzip_is_unpacked_whoever_says_so() {
    let place = Place::new();
    for (number, encoding) in [Encoding::Gzip, Encoding::CompressedSegmentation].into_iter().enumerate() {
        let path = place.path(&format!("volume-{number}"));
        let chunk = one_chunk(&path, DType::U32, encoding);
        assert_eq!(chunk.extension().and_then(|suffix| suffix.to_str()), Some("gz"));
        read_first(&*open(&path).expect("a volume")).expect("with the suffix");
        fs::rename(&chunk, chunk.with_extension("")).expect("the chunk");
        read_first(&*open(&path).expect("a volume")).expect("without the suffix");
    }
}

#[test]
fn damaged_chunks_are_errors_or_elements_but_no_panic() {
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
        // Labels without the wrapping, or its checksum would catch everything.
        let whole = match encoding {
            Encoding::CompressedSegmentation => {
                use std::io::Read as _;
                let mut bytes = Vec::new();
                flate2::read::GzDecoder::new(&whole[..]).read_to_end(&mut bytes).expect("unpacked");
                fs::remove_file(&file).expect("the chunk");
                bytes
            }
            _ => whole,
        };
        let file = if encoding == Encoding::CompressedSegmentation { file.with_extension("") } else { file };
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
        for round in 0..400 {
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
    for (number, dtype, encoding) in [(0, DType::U8, Encoding::Gzip), (1, DType::U32, Encoding::CompressedSegmentation)]
    {
        let path = place.path(&format!("volume-{number}"));
        let file = one_chunk(&path, dtype, encoding);
        fs::write(&file, zeros(64 << 20)).expect("a bomb");
        let text = chain(&read_first(&*open(&path).expect("a volume")).expect_err("a bomb"));
        assert!(text.contains("longer than") && text.contains("1_1_1"), "{text}");
    }
    // A picture of 30,000 times 30,000 pixels, of which nothing is there.
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

/// A volume of 4 chunks of 8 elements in one shard, and what is in the shard.
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
fn a_shard_is_read_and_one_that_lies_is_an_error_that_names_it() {
    let place = Place::new();
    let chunks: Vec<u8> = (0..16).collect();
    // Behind the index are two chunks of 8 bytes, then the index of the minishard: chunks 0 and 2.
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
    assert!(VolumeOptions::new().open_writable(&VolumeUrl::local(place.path("sharded"))).is_err());

    let far = u64::MAX - 3;
    for (at, value) in [
        // The index of the minishard: past the end, backwards, beyond any file, longer than any, cut in the middle of an entry.
        (0, 1 << 40),
        (1, 1 << 40),
        (1, 3),
        (0, far),
        (1, far),
        (1, 60),
        // In it: a chunk twice, an offset past the end and beyond any file, a length longer than any and past the end.
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
    // Cut anywhere, or changed anywhere.
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
                let _any = source.read(&region, &mut scratch);
            }
        }
    }
}

#[test]
fn a_volume_that_is_reopened_before_its_first_chunk_is_packed_as_it_was_made() {
    let place = Place::new();
    for (number, (made, said, packed)) in [
        (Encoding::Gzip, Some(Encoding::Gzip), true),
        (Encoding::Gzip, None, false),
        (Encoding::Raw, Some(Encoding::Raw), false),
    ]
    .into_iter()
    .enumerate()
    {
        let path = place.path(&format!("volume-{number}"));
        let url = VolumeUrl::local(&path);
        create_volume(&url, &new(DType::U8, made)).expect("a volume");
        let mut options = VolumeOptions::new();
        for said in [said, None, Some(Encoding::Raw), Some(Encoding::Gzip)] {
            // After the first time there is a chunk, and that counts for more.
            if let Some(said) = said {
                options = options.encoding(said);
            }
            let sink = options.open_writable(&url).expect("a volume");
            let region = sink.meta().domain();
            let encoded = sink.encode(region.ranges(), &Runs(1)).expect("encoded");
            sink.store(region.ranges(), encoded).expect("stored");
            let file = path.join("1_1_1/0-16_0-16_0-16");
            assert_eq!((file.is_file(), file.with_extension("gz").is_file()), (!packed, packed), "{made:?} {said:?}");
        }
    }
}

type Change = fn(&mut NewVolume);

#[test]
fn volumes_that_precomputed_does_not_have_are_refused_and_leave_nothing() {
    let place = Place::new();
    let changes: [(&str, Change); 11] = [
        ("not 2 axes", |new| (new.shape, new.chunk_shape) = (vec![4, 4], vec![4, 4])),
        ("do not divide", |new| new.chunk_shape = vec![4, 0, 4]),
        ("all 3 channels", |new| (new.shape, new.chunk_shape) = (vec![4, 4, 4, 3], vec![4, 4, 4, 1])),
        ("has no elements", |new| (new.shape, new.chunk_shape) = (vec![0, 4, 4], vec![4, 4, 4])),
        ("without shards only", |new| new.shard_shape = Some(vec![8, 8, 8])),
        ("begin at 0", |new| new.origin = vec![0, 0, 0, 5]),
        ("three lengths", |new| new.resolution = vec![1.0, f64::NAN, 1.0]),
        ("no elements of type", |new| new.dtype = DType::F64),
        ("raw, gzip, jpeg", |new| new.encoding = Encoding::Zstd),
        ("needs uint8", |new| (new.dtype, new.encoding) = (DType::U16, Encoding::Jpeg)),
        ("cannot be decoded whole", |new| {
            (new.shape, new.chunk_shape) = (vec![1 << 14; 3], vec![1 << 14; 3]);
        }),
    ];
    for (number, (reason, change)) in changes.into_iter().enumerate() {
        let path = place.path(&format!("volume-{number}"));
        let mut new = new(DType::U8, Encoding::Raw);
        change(&mut new);
        let error = create_volume(&VolumeUrl::local(&path), &new).expect_err(reason);
        assert!(matches!(error, Error::NewVolume { .. }), "{number}: {error:?}");
        assert!(chain(&error).contains(reason), "{number}: {}", chain(&error));
        assert!(!path.exists(), "{number}");
    }
    let path = place.path("volume");
    create_volume(&VolumeUrl::local(&path), &new(DType::U8, Encoding::Raw)).expect("a volume");
    let error = create_volume(&VolumeUrl::local(&path), &new(DType::U8, Encoding::Raw)).expect_err("it is there");
    assert!(chain(&error).contains("already"), "{}", chain(&error));
}
