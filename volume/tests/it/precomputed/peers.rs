//! Exchange of volumes with CloudVolume and tensorstore, in both directions.

use std::fs;
use std::path::Path;

use ndarray_shm::{DType, Order};
use ndarray_shm_volume::{
    Bbox, Encoding, NewVolume, VolumeFormat, VolumeKind, VolumeOptions, VolumeUrl, create_volume, open_volume,
};
use serde_json::{Value, json};

use super::python;
use crate::place::Place;
use crate::zarr::{Whole, cut, read};

/// Largest difference between two decoders of one JPEG, which round differently. With libjpeg-turbo it is 1.
const DECODERS_APART: u8 = 2;

/// Largest difference between a smooth picture and its JPEG of quality 85.
const LOSS: u8 = 30;

fn apart(one: &[u8], other: &[u8]) -> u8 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).map(|(one, other)| one.abs_diff(*other)).max().unwrap_or(0)
}

fn moved(bbox: &Bbox, origin: &[i64]) -> Vec<std::ops::Range<i64>> {
    bbox.ranges().iter().zip(origin).map(|(range, origin)| range.start - origin..range.end - origin).collect()
}

#[test]
fn volumes_of_cloudvolume_and_tensorstore_are_read() {
    let place = Place::new();
    let directory = place.path("cases");
    fs::create_dir(&directory).expect("a directory");
    let volumes: Vec<Value> =
        serde_json::from_str(&python(&["write".as_ref(), &directory], "")).expect("what was written");
    assert!(volumes.len() > 150, "{}", volumes.len());
    let mut furthest = 0;
    for volume in &volumes {
        let text = |key: &str| volume[key].as_str().expect("a text");
        let name = text("name");
        let expected = fs::read(text("elements")).expect("elements");
        let source = open_volume(VolumeUrl::local(text("path"))).unwrap_or_else(|error| panic!("{name}: {error:?}"));
        let meta = source.meta();
        assert_eq!(json!(meta.shape), volume["shape"], "{name}");
        assert_eq!(json!(&meta.origin[..3]), volume["origin"], "{name}");
        assert_eq!(meta.axes, ["x", "y", "z", "channel"]);
        // The whole volume, its inside, its last element, and the element in its middle.
        let domain = meta.domain();
        let part = |of: fn(i64) -> std::ops::Range<i64>| {
            let inside = meta.shape.iter().map(|length| of(length.cast_signed()));
            let ranges = inside.zip(&meta.origin).map(|(part, origin)| origin + part.start..origin + part.end);
            Bbox::new(ranges.collect()).expect("a region")
        };
        for bbox in [
            domain.clone(),
            part(|length| length / 5..length - length / 4),
            part(|length| length - 1..length),
            part(|length| length / 2..length / 2 + 1),
        ] {
            let found = read(&*source, &bbox).unwrap_or_else(|error| panic!("{name}, {bbox}: {error:?}"));
            let wanted = cut(&expected, &meta.shape, meta.dtype.size(), &moved(&bbox, &meta.origin), Order::C);
            if volume["lossy"] == json!(true) {
                furthest = furthest.max(apart(&found, &wanted));
                assert!(furthest <= DECODERS_APART, "{name}, {bbox}: {furthest}");
            } else {
                assert!(found == wanted, "{name}, {bbox}: other elements");
            }
        }
        // Painters read it too: they look at windows of blocks in either order.
        for order in [Order::C, Order::F] {
            let done = place.download(&*source, &domain, &place.options().order(order)).expect("a download");
            assert_eq!(done.bytes, expected.len() as u64);
            assert!(place.backend.unlink(&place.location).expect("unlink"));
        }
    }
    println!("{} volumes, JPEG decoders at most {furthest} apart", volumes.len());
}

#[test]
fn cloudvolume_and_tensorstore_read_written_volumes() {
    let place = Place::new();
    let mut volumes = Vec::new();
    let add = |volumes: &mut Vec<Value>, dtype, encoding, channels| {
        let number = volumes.len();
        volumes.push(written(&place.path(&format!("volume-{number}")), number, dtype, encoding, channels));
    };
    let types =
        [DType::U8, DType::U16, DType::U32, DType::U64, DType::I8, DType::I16, DType::I32, DType::I64, DType::F32];
    for (at, dtype) in types.into_iter().enumerate() {
        for encoding in [Encoding::Raw, Encoding::Gzip] {
            add(&mut volumes, dtype, encoding, 1);
            add(&mut volumes, dtype, encoding, 2 + at as u64 % 3);
        }
    }
    for channels in 1..=4 {
        for dtype in [DType::U8, DType::U16] {
            add(&mut volumes, dtype, Encoding::Png, channels);
        }
        for dtype in [DType::U32, DType::U64] {
            add(&mut volumes, dtype, Encoding::CompressedSegmentation, channels);
            add(&mut volumes, dtype, Encoding::CompressedSegmentationGzip, channels);
        }
    }
    for channels in [1, 3, 1, 3] {
        add(&mut volumes, DType::U8, Encoding::Jpeg, channels);
    }
    let wrong: Vec<String> =
        serde_json::from_str(&python(&["check".as_ref()], &json!(volumes).to_string())).expect("what is wrong");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Writes a volume that ends within chunks, reads it back, and returns its description.
fn written(path: &Path, number: usize, dtype: DType, encoding: Encoding, channels: u64) -> Value {
    let shape = [19, 23, 11, channels];
    let mut new = NewVolume::new(VolumeFormat::Precomputed, &shape, &[8, 16, 5, channels], dtype);
    new.encoding = encoding;
    new.kind = VolumeKind::implied(encoding, dtype).or(Some(VolumeKind::Image));
    new.origin = [[0, 0, 0, 0], [-13, 5, -100, 0], [64, -1, 7, 0]][number % 3].to_vec();
    new.resolution = vec![8.0, 4.5, 40.0, 1.0];
    let url = VolumeUrl::local(path);
    let sink = create_volume(&url, &new).unwrap_or_else(|error| panic!("{}: {error:?}", path.display()));
    let elements = elements(&shape, dtype, encoding);
    let whole = Moved { whole: Whole { bytes: &elements, shape: &shape, dtype }, origin: &new.origin };
    write_moved(&*sink, &whole);
    let source = open_volume(&url).expect("what was written");
    assert_eq!(source.identity(), sink.identity());
    assert_eq!(source.meta(), sink.meta());
    let found = read(&*source, &source.meta().domain()).expect("its elements");
    if encoding == Encoding::Jpeg {
        assert!(apart(&found, &elements) <= LOSS, "{}", path.display());
    } else {
        assert!(found == elements, "{}: {dtype} {encoding:?} {channels}", path.display());
    }
    let scales = VolumeOptions::new().scales(&url).expect("its scales");
    assert_eq!(
        (scales.len(), scales[0].resolution.as_slice(), scales[0].unit.as_str(), scales[0].key.as_str()),
        (1, &[8.0, 4.5, 40.0][..], "nm", "8_4.5_40")
    );
    // The volume is reopened and written again, and a chunk is erased.
    let again = VolumeOptions::new().open_writable(&url).expect("the volume");
    write_moved(&*again, &whole);
    let found = read(&*source, &source.meta().domain()).expect("its elements");
    assert!(encoding == Encoding::Jpeg || found == elements, "{}", path.display());
    let first = again.meta().stored(&again.meta().domain()).next().expect("a chunk");
    again.erase(&first).expect("erased");
    again.erase(&first).expect("it is gone already");
    assert!(matches!(source.fetch(&first), Ok(ndarray_shm_volume::Fetched::Missing)));
    write_moved(&*sink, &whole);

    let expected = path.with_extension("elements");
    fs::write(&expected, &elements).expect("elements");
    json!({
        "path": path,
        "elements": expected,
        "dtype": dtype.to_string(),
        "shape": shape,
        "loss": LOSS,
        "encoding": match encoding {
            Encoding::Jpeg => "jpeg",
            Encoding::Png => "png",
            Encoding::CompressedSegmentation | Encoding::CompressedSegmentationGzip => "compressed_segmentation",
            _ => "raw",
        },
    })
}

/// The elements of a volume that does not begin at 0.
struct Moved<'a> {
    whole: Whole<'a>,
    origin: &'a [i64],
}

impl ndarray_shm_volume::Gather for Moved<'_> {
    fn gather(
        &self,
        region: &[std::ops::Range<i64>],
        order: Order,
        bytes: &mut Vec<u8>,
    ) -> ndarray_shm_volume::Result<()> {
        let bbox = Bbox::new(region.to_vec())?;
        self.whole.gather(&moved(&bbox, self.origin), order, bytes)
    }
}

fn write_moved(sink: &dyn ndarray_shm_volume::ChunkSink, from: &Moved<'_>) {
    for region in sink.meta().stored(&sink.meta().domain()) {
        let packed = sink.encode(&region, from).expect("encoded");
        sink.store(&region, packed).expect("stored");
    }
}

fn elements(shape: &[u64], dtype: DType, encoding: Encoding) -> Vec<u8> {
    let count = usize::try_from(shape.iter().product::<u64>()).expect("small") * dtype.size();
    if encoding == Encoding::Jpeg {
        // Hills along x, y and z, with another height in each channel.
        let at = |index: usize, axis: usize| {
            let behind: u64 = shape[axis + 1..].iter().product();
            index as u64 / behind % shape[axis]
        };
        let hill = |at: u64, length: u64| at.min(length - 1 - at) * 100 / length;
        return (0..count)
            .map(|index| {
                let height: u64 = (0..3).map(|axis| hill(at(index, axis), shape[axis])).sum();
                u8::try_from(40 + height + 15 * at(index, 3)).expect("no higher than 235")
            })
            .collect();
    }
    let mut state = 12345u64;
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let run = state >> 33 & 7;
        // Labels are runs of one number; other encodings get noise.
        let is_labels = matches!(encoding, Encoding::CompressedSegmentation | Encoding::CompressedSegmentationGzip);
        let value = if is_labels { state >> 60 << 40 | 5 } else { state >> 11 };
        // Floats are finite: the peers may change the bits of a NaN.
        let number = |value: u64| u64::from(f32::from(u16::try_from(value % 1000).expect("small")).to_bits());
        for step in 0..=run {
            let value = if dtype == DType::F32 { number(value + step) } else { value };
            bytes.extend_from_slice(&value.to_le_bytes()[..dtype.size()]);
        }
    }
    bytes.truncate(count);
    bytes
}
