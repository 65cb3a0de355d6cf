//! The type of a volume, image or segmentation: given, implied or refused.

use std::fs;

use ndarray_shm::DType;
use ndarray_shm_volume::{
    Encoding, Error, NewVolume, VolumeFormat, VolumeKind, VolumeOptions, VolumeUrl, create_volume,
};
use serde_json::{Value, json};

use super::hostile::open;
use crate::place::Place;

fn new(dtype: DType, encoding: Encoding, kind: Option<VolumeKind>) -> NewVolume {
    let mut new = NewVolume::new(VolumeFormat::Precomputed, &[8, 8, 8], &[8, 8, 8], dtype);
    (new.encoding, new.kind) = (encoding, kind);
    new
}

#[test]
fn new_volume_has_the_given_or_implied_type() {
    use Encoding::{CompressedSegmentation, CompressedSegmentationGzip, Gzip, Jpeg, Png, Raw};
    use VolumeKind::{Image, Segmentation};
    let place = Place::new();
    let cases = [
        (DType::U8, Raw, None, Image),
        (DType::U8, Gzip, None, Image),
        (DType::U8, Jpeg, None, Image),
        (DType::U8, Raw, Some(Segmentation), Segmentation),
        (DType::U8, Gzip, Some(Segmentation), Segmentation),
        (DType::U16, Png, None, Image),
        (DType::U16, Png, Some(Segmentation), Segmentation),
        (DType::I32, Raw, None, Image),
        (DType::F32, Raw, None, Image),
        (DType::U32, Raw, Some(Image), Image),
        (DType::U32, Gzip, Some(Segmentation), Segmentation),
        (DType::U64, Raw, Some(Segmentation), Segmentation),
        (DType::U32, CompressedSegmentation, None, Segmentation),
        (DType::U64, CompressedSegmentation, Some(Segmentation), Segmentation),
        (DType::U64, CompressedSegmentationGzip, None, Segmentation),
    ];
    for (number, (dtype, encoding, said, expected)) in cases.into_iter().enumerate() {
        let path = place.path(&format!("volume-{number}"));
        let url = VolumeUrl::local(&path);
        let new = new(dtype, encoding, said);
        let sink = create_volume(&url, &new).unwrap_or_else(|error| panic!("{new:?}: {error}"));
        let info: Value = serde_json::from_slice(&fs::read(path.join("info")).expect("info")).expect("JSON");
        assert_eq!(info["type"], expected.name(), "{new:?}");
        assert_eq!(sink.meta().kind, Some(expected), "{new:?}");
        assert_eq!(open(&path).expect("a volume").meta().kind, Some(expected));
        assert_eq!(VolumeOptions::new().scales(&url).expect("its scales")[0].meta.kind, Some(expected));
        // `is_like` tells volumes of different types apart.
        assert!(new.is_like(sink.meta()), "{new:?}");
        let mut other = new.clone();
        other.kind = Some(if expected == Image { Segmentation } else { Image });
        assert!(!other.is_like(sink.meta()), "{new:?}");
    }
}

#[test]
fn missing_or_contradicting_type_is_an_error() {
    let place = Place::new();
    let image = Some(VolumeKind::Image);
    let segmentation = Some(VolumeKind::Segmentation);
    let mut of_zarr = NewVolume::new(VolumeFormat::Zarr, &[8], &[8], DType::U8);
    of_zarr.kind = image;
    for (new, reason) in [
        (new(DType::U32, Encoding::Raw, None), "type image or segmentation"),
        (new(DType::U64, Encoding::Gzip, None), "type image or segmentation"),
        (new(DType::U32, Encoding::CompressedSegmentation, image), "compressed_segmentation hold labels"),
        (new(DType::U64, Encoding::CompressedSegmentationGzip, image), "compressed_segmentation_gzip hold labels"),
        (new(DType::U8, Encoding::Jpeg, segmentation), "jpeg changes elements"),
        (new(DType::F32, Encoding::Raw, segmentation), "labels are whole numbers"),
        (of_zarr, "Zarr has no member"),
    ] {
        let path = place.path("volume");
        let error = create_volume(VolumeUrl::local(&path), &new).expect_err(reason);
        assert!(matches!(error, Error::NewVolume { .. }) && error.to_string().contains(reason), "{new:?}: {error}");
        assert!(!path.exists(), "{new:?}");
    }
    // Zarr volumes of labels need no type.
    let zarr = NewVolume::new(VolumeFormat::Zarr, &[8], &[8], DType::U64);
    let sink = create_volume(VolumeUrl::local(place.path("zarr")), &zarr).expect("a volume");
    assert_eq!(sink.meta().kind, None);
    assert!(zarr.is_like(sink.meta()));
}

#[test]
fn unknown_types_of_other_writers_are_ignored() {
    let place = Place::new();
    let path = place.path("volume");
    create_volume(VolumeUrl::local(&path), &new(DType::U8, Encoding::Raw, None)).expect("a volume");
    let text = fs::read(path.join("info")).expect("info");
    for (written, kind) in [
        (json!("segmentation"), Some(VolumeKind::Segmentation)),
        (json!("Image"), Some(VolumeKind::Image)),
        (json!("probabilities"), None),
        (json!(7), None),
        (Value::Null, None),
    ] {
        let mut info: Value = serde_json::from_slice(&text).expect("JSON");
        info["type"] = written.clone();
        fs::write(path.join("info"), info.to_string()).expect("written");
        let volume = open(&path).expect("no element depends on it");
        assert_eq!(volume.meta().kind, kind, "{written}");
        let same = new(DType::U8, Encoding::Raw, None).is_like(volume.meta());
        assert_eq!(same, kind != Some(VolumeKind::Segmentation), "{written}");
    }
}

#[test]
fn label_chunks_keep_the_file_name_of_their_encoding() {
    let place = Place::new();
    for (encoding, suffix) in [(Encoding::CompressedSegmentation, ""), (Encoding::CompressedSegmentationGzip, ".gz")] {
        let path = place.path(&format!("volume{suffix}"));
        let url = VolumeUrl::local(&path);
        let mut new = new(DType::U32, encoding, None);
        (new.shape, new.chunk_shape) = (vec![16, 16, 16], vec![16, 16, 16]);
        let store = |sink: &dyn ndarray_shm_volume::ChunkSink| {
            let region = sink.meta().domain();
            let packed = sink.encode(region.ranges(), &super::hostile::Runs(4)).expect("encoded");
            sink.store(region.ranges(), packed).expect("stored");
            let names = fs::read_dir(path.join("1_1_1")).expect("a scale");
            let names: Vec<_> = names.map(|entry| entry.expect("an entry").file_name()).collect();
            assert_eq!(names, [format!("0-16_0-16_0-16{suffix}").as_str()], "{encoding:?}");
        };
        store(&*create_volume(&url, &new).expect("a volume"));
        // Existing chunks decide how chunks are packed, whatever encoding the options give.
        store(&*VolumeOptions::new().open_writable(&url).expect("a volume"));
        for other in [Encoding::CompressedSegmentation, Encoding::CompressedSegmentationGzip] {
            store(&*VolumeOptions::new().encoding(other).open_writable(&url).expect("a volume"));
        }
    }
}
