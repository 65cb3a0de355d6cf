//! Volumes of every element type, codec, byte order and layout: each must be read as the same elements.

use ndarray_shm::{DType, with_element};
use ndarray_shm_volume::Bbox;
use ndarray_shm_volume::demo::{Codec, DemoSpec, Format, Pattern};

use crate::place::Place;

/// Downloads a whole volume, and a region that is not aligned to chunks.
fn check(spec: &DemoSpec) {
    let place = Place::new();
    let source = place.volume(spec);
    assert_eq!((source.meta().dtype, source.meta().shape.as_slice()), (spec.dtype(), spec.shape()));
    let inner =
        spec.shape().iter().map(|length| length.cast_signed()).map(|length| length / 5..length - length / 4).collect();
    with_element!(
        spec.dtype(),
        T => {
            place.check::<T>(&*source, spec, &Bbox::whole(spec.shape()));
            place.check::<T>(&*source, spec, &Bbox::new(inner).expect("a region"));
        },
        else => panic!("{} has no element type", spec.dtype())
    );
}

#[test]
fn every_type_arrives_in_both_versions_and_byte_orders() {
    for dtype in DType::ALL {
        for pattern in [Pattern::Smooth, Pattern::Noise, Pattern::Labels] {
            check(&DemoSpec::new(&[9, 10, 11], &[4, 5, 6], *dtype).pattern(pattern));
        }
        check(&DemoSpec::new(&[9, 10, 11], &[4, 5, 6], *dtype).big_endian(true));
        if *dtype != DType::Bf16 {
            let v2 = DemoSpec::new(&[9, 10, 11], &[4, 5, 6], *dtype).format(Format::ZarrV2).pattern(Pattern::Noise);
            check(&v2);
            check(&v2.big_endian(true));
        }
    }
}

#[test]
fn every_codec_arrives_in_both_versions_and_layouts() {
    for codec in [Codec::Uncompressed, Codec::Zstd, Codec::Blosc, Codec::Gzip] {
        for format in [Format::ZarrV2, Format::ZarrV3] {
            for f_order in [false, true] {
                check(
                    &DemoSpec::new(&[30, 21, 34], &[16, 7, 12], DType::I32)
                        .codec(codec)
                        .format(format)
                        .f_order(f_order),
                );
            }
        }
    }
}

#[test]
fn shards_are_painted_by_their_inner_chunks() {
    for codec in [Codec::Uncompressed, Codec::Blosc] {
        let spec = DemoSpec::new(&[50, 30, 40], &[8, 4, 16], DType::U16).shards(&[16, 16, 32]).codec(codec);
        let place = Place::new();
        let source = place.volume(&spec);
        assert_eq!(source.meta().chunk_shape, [8, 4, 16]);
        assert!(source.meta().description.contains("sharded"), "{}", source.meta().description);
        for text in [":,:,:", "3:47,5:29,1:40", "17:18,:,38:", "8:16,4:8,16:32"] {
            place.check::<u16>(&*source, &spec, &Bbox::parse(text, &Bbox::whole(spec.shape())).expect(text));
        }
    }
}

#[test]
fn shards_with_an_outer_codec_are_painted_whole() {
    let place = Place::new();
    let spec = DemoSpec::new(&[20, 20], &[4, 5], DType::U8).shards(&[8, 10]).codec(Codec::Uncompressed).complete(true);
    place.volume(&spec);
    // Every shard gets a checksum at its end, and the metadata gets the codec for it.
    let path = place.path("volume");
    let text = std::fs::read_to_string(path.join("zarr.json")).expect("the metadata");
    let mut json: serde_json::Value = serde_json::from_str(&text).expect("a document");
    json["codecs"].as_array_mut().expect("codecs").push(serde_json::json!({"name": "crc32c"}));
    std::fs::write(path.join("zarr.json"), json.to_string()).expect("the metadata");
    for (x, y) in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)] {
        let file = path.join(format!("c/{x}/{y}"));
        let mut bytes = std::fs::read(&file).expect("a shard");
        bytes.extend(crc32c(&bytes).to_le_bytes());
        std::fs::write(&file, bytes).expect("a shard");
    }
    let source = ndarray_shm_volume::open_volume(ndarray_shm_volume::VolumeUrl::local(&path)).expect("the volume");
    assert_eq!(source.meta().chunk_shape, [8, 10]);
    place.check::<u8>(&*source, &spec, &Bbox::whole(&[20, 20]));
    place.check::<u8>(&*source, &spec, &"3:19,7:12".parse().expect("a region"));
}

/// CRC-32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let bit = |sum: u32, _| if sum & 1 == 1 { (sum >> 1) ^ 0x82f6_3b78 } else { sum >> 1 };
    !bytes.iter().fold(!0, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), bit))
}

#[test]
fn any_number_of_axes_arrives() {
    for (shape, chunk) in [
        (vec![], vec![]),
        (vec![1], vec![1]),
        (vec![100], vec![7]),
        (vec![33, 65], vec![32, 64]),
        (vec![70, 70], vec![70, 1]),
        (vec![5, 6, 7, 8], vec![2, 3, 4, 5]),
        (vec![2, 3, 2, 3, 2, 3], vec![1, 2, 2, 2, 1, 3]),
    ] {
        check(&DemoSpec::new(&shape, &chunk, DType::F64));
        check(&DemoSpec::new(&shape, &chunk, DType::U8).format(Format::ZarrV2).codec(Codec::Gzip));
    }
}

#[test]
fn a_chunk_may_be_larger_than_its_volume() {
    for codec in [Codec::Uncompressed, Codec::Zstd] {
        check(&DemoSpec::new(&[9, 10], &[64, 128], DType::U32).codec(codec));
    }
}

#[test]
fn the_description_names_version_and_codec() {
    let described = |spec: &DemoSpec| Place::new().volume(spec).meta().description.clone();
    let spec = DemoSpec::new(&[8, 8], &[4, 4], DType::U8);
    assert_eq!(described(&spec), "Zarr v3, zstd");
    assert_eq!(described(&spec.clone().codec(Codec::Uncompressed)), "Zarr v3, uncompressed");
    assert_eq!(described(&spec.clone().shards(&[8, 8]).codec(Codec::Gzip)), "Zarr v3, gzip, sharded");
    assert_eq!(described(&spec.clone().format(Format::ZarrV2).codec(Codec::Blosc)), "Zarr v2, blosc");
    assert_eq!(described(&spec.format(Format::ZarrV2).codec(Codec::Uncompressed)), "Zarr v2, uncompressed");
}
