//! What a new volume takes over from an array or a volume, and where an array belongs by its notes.

use std::fs;

use ndarray_shm::array::Description;
use ndarray_shm::{DType, Order};
use ndarray_shm_volume::{
    Bbox, ChunkSource, Encoding, Error, NewVolume, VolumeFormat, VolumeKind, VolumeNotes, VolumeOptions, VolumeUrl,
    create_volume, open_volume,
};
use serde_json::{Value, json};

use crate::place::Place;

const FULL: [(&str, &str); 10] = [
    ("axes", "x y z channel"),
    ("bbox", "100:150,-7:33,10:40,0:1"),
    ("source", "precomputed:///em"),
    ("scale", "4_4_40"),
    ("origin", "0 -7 0 0"),
    ("resolution", "4 4 40"),
    ("unit", "nm"),
    ("chunk", "64 32 16 1"),
    ("encoding", "png"),
    ("kind", "image"),
];

fn described(dtype: DType, shape: &[usize], notes: &[(&str, &str)]) -> Description {
    let plain = Description::new(dtype, shape, Order::F).expect("a description");
    notes.iter().fold(plain, |so_far, (key, text)| so_far.with_note(key, text).expect("a note"))
}

/// Returns the full notes with some replaced; an empty text removes a note.
fn with(changes: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    let text = |key: &str, old| changes.iter().find(|(changed, _)| *changed == key).map_or(old, |(_, text)| *text);
    FULL.iter().map(|(key, old)| (*key, text(key, old))).filter(|(_, text)| !text.is_empty()).collect()
}

#[test]
fn new_volume_is_like_the_array_describes_itself() {
    let array = described(DType::U16, &[50, 40, 30, 1], &FULL);
    let (new, left_out) = NewVolume::like(VolumeFormat::Precomputed, &array);
    assert_eq!((&new.shape[..], &new.origin[..]), (&[50, 40, 30, 1][..], &[100, -7, 10, 0][..]));
    assert_eq!((&new.resolution[..], new.unit.as_str()), (&[4.0, 4.0, 40.0][..], "nm"));
    assert_eq!((&new.chunk_shape[..], new.encoding), (&[64, 32, 16][..], Encoding::Png));
    assert_eq!((new.kind, new.dtype, left_out), (Some(VolumeKind::Image), DType::U16, Vec::<String>::new()));

    let (new, left_out) = NewVolume::like(VolumeFormat::Zarr, &array);
    assert_eq!((&new.origin[..], &new.axes[..]), (&[0; 4][..], &["x", "y", "z", "channel"].map(str::to_owned)[..]));
    assert_eq!((&new.resolution[..], new.unit.as_str(), new.kind), (&[4.0, 4.0, 40.0][..], "nm", None));
    assert_eq!(
        (&new.chunk_shape[..], new.encoding),
        (&[50, 32, 16, 1][..], Encoding::Zstd),
        "no chunk beyond the volume"
    );
    assert!(left_out.iter().any(|text| text.contains("100,-7,10,0") && text.contains("begins at 0")), "{left_out:?}");
    assert!(left_out.iter().any(|text| text.contains("zstd") && text.contains("png")), "{left_out:?}");
    assert_eq!(left_out.len(), 2, "{left_out:?}");

    // An array without notes has only type and shape.
    let (new, left_out) = NewVolume::like(VolumeFormat::Precomputed, &described(DType::U16, &[5, 4, 3], &[]));
    assert_eq!((new.origin, new.chunk_shape, new.resolution.len(), left_out.len()), (vec![0; 3], vec![], 0, 0));
}

#[test]
fn what_a_format_cannot_keep_is_said() {
    use VolumeFormat::{Precomputed, Zarr};

    let says = |format, version, dtype, changes: &[(&'static str, &'static str)], text: &str| {
        let notes = with(changes);
        let array = described(DType::U16, &[50, 40, 30, 1], &notes);
        let mut new = NewVolume::new(format, &[50, 40, 30, 1], &[], dtype);
        new.version = version;
        let left_out = new.take_over(&VolumeNotes::read(&array, array.shape()), DType::U16);
        assert!(left_out.iter().any(|found| found.contains(text)), "{text}: {left_out:?}");
        new
    };
    says(Zarr, 2, DType::U16, &[], "version 2 does not record the names");
    says(Zarr, 3, DType::U16, &[("kind", "segmentation")], "labels");
    let new =
        says(Precomputed, 1, DType::U16, &[("axes", "plane row column c"), ("kind", "")], "plane, row, column, c");
    assert_eq!(new.axes, [""; 0]);
    let new = says(Precomputed, 1, DType::U16, &[("unit", "parsec")], "parsec cannot be recorded");
    assert!(new.resolution.is_empty());
    let new = says(Precomputed, 1, DType::U16, &[("unit", "")], "nm is assumed");
    assert_eq!(new.resolution, [4.0, 4.0, 40.0]);
    let new = says(Precomputed, 1, DType::U16, &[("resolution", "4 -4 40")], "cannot be recorded");
    assert!(new.resolution.is_empty());
    // JPEG would change the elements once more, and other types have no pictures.
    let new = says(Precomputed, 1, DType::U8, &[("encoding", "jpeg")], "raw, without loss");
    assert_eq!(new.encoding, Encoding::Raw);
    let new = says(Precomputed, 1, DType::F32, &[], "cannot have the png");
    assert_eq!(new.encoding, Encoding::Raw);
    let new = says(Precomputed, 1, DType::U16, &[("encoding", "blosc")], "cannot have the blosc");
    assert_eq!(new.encoding, Encoding::Raw);
}

#[test]
fn axes_in_another_order_are_refused() {
    let place = Place::new();
    let axes = |words| VolumeNotes::read(&described(DType::U8, &[8, 8, 8], &[("axes", words)]), &[8, 8, 8]);
    let new = NewVolume::new(VolumeFormat::Precomputed, &[8, 8, 8, 1], &[8, 8, 8], DType::U8);
    let sink = create_volume(VolumeUrl::local(place.path("xyz")), &new).expect("a volume");
    let error = axes("z y x").check_axes(&*sink).expect_err("x would become z");
    let Error::OtherAxes { array, axes: names, .. } = &error else { panic!("{error}") };
    assert_eq!((array.join(" "), names.join(" ")), ("z y x".to_owned(), "x y z channel".to_owned()));
    assert!(error.to_string().contains("z, y, x") && error.to_string().contains("transpose"), "{error}");
    for fits in ["x y z", "X Y Z", "row column plane", "0 1 2"] {
        axes(fits).check_axes(&*sink).expect(fits);
    }

    // A Zarr volume keeps the order of an array; a Precomputed one has an order of its own.
    for words in ["z y x", "x z y", "c y x", "t z y"] {
        let array = described(DType::U8, &[8, 8, 8], &[("axes", words), ("chunk", "8 8 8")]);
        let (new, _) = NewVolume::like(VolumeFormat::Precomputed, &array);
        let error = create_volume(VolumeUrl::local(place.path("refused")), &new).expect_err(words);
        assert!(matches!(&error, Error::NewVolume { .. }) && error.to_string().contains("transpose"), "{error}");
        assert!(!place.path("refused").exists(), "{words}");
        let (new, _) = NewVolume::like(VolumeFormat::Zarr, &array);
        let sink = create_volume(VolumeUrl::local(place.path(words)), &new).expect("a volume");
        axes(words).check_axes(&*sink).expect("the same order");
    }
}

#[test]
fn lengths_of_an_ome_zarr_have_one_unit() {
    let place = Place::new();
    let new = NewVolume::new(VolumeFormat::Zarr, &[4, 20, 30, 40], &[1, 16, 16, 16], DType::U8);
    create_volume(VolumeUrl::local(place.path("em").join("0")), &new).expect("an array");
    let read = |units: [&str; 3]| {
        let length = |(name, unit)| json!({"name": name, "type": "space", "unit": unit});
        let mut axes = vec![json!({"name": "t", "type": "time", "unit": "second"})];
        axes.extend(["z", "y", "x"].into_iter().zip(units).map(length));
        let scale = json!({"path": "0", "coordinateTransformations": [
            {"type": "scale", "scale": [0.25, 0.02, 4.1, 4.0]}, {"type": "translation", "translation": [0, 0.03, 0, 10]}]});
        let whole = json!([{"type": "scale", "scale": [2, 2, 1, 1]}, {"type": "translation", "translation": [0, 0.01, 0, 2.5]}]);
        let group = json!({"zarr_format": 3, "node_type": "group", "attributes": {"ome": {"version": "0.5", "multiscales": [
            {"axes": axes, "datasets": [scale], "coordinateTransformations": whole}]}}});
        fs::write(place.path("em/zarr.json"), group.to_string()).expect("written");
        let scale = VolumeOptions::new().scales(VolumeUrl::local(place.path("em"))).expect("scales").remove(0);
        (scale.resolution[1..].to_vec(), scale.unit)
    };
    assert_eq!(read(["micrometer", "nanometer", "nanometer"]), (vec![40.0, 4.1, 4.0], "nm".to_owned()));
    assert_eq!(read(["micrometer"; 3]), (vec![0.04, 4.1, 4.0], "µm".to_owned()));
    assert_eq!(read(["parsec", "nanometer", "nanometer"]), (vec![0.04, 4.1, 4.0], "parsec, nm".to_owned()));

    read(["micrometer", "nanometer", "nanometer"]);
    let notes = VolumeNotes::of(&*open_volume(VolumeUrl::local(place.path("em"))).expect("a scale")).expect("notes");
    assert_eq!(notes.translation, [0.0, 70.0, 0.0, 12.5], "moved by the dataset, scaled and moved by the image");

    // The time step is no length, and a new volume has nothing to record it in; nor the translation.
    read(["nanometer"; 3]);
    let source = VolumeOptions::new().open(VolumeUrl::local(place.path("em"))).expect("a scale");
    let (new, left_out) = NewVolume::like_volume(VolumeFormat::Zarr, &*source).expect("it can be counted");
    assert!(
        left_out[0].contains("lies at 0, 0.07, 0, 12.5 nm") && left_out[1].contains("step 0.5 of the axis t"),
        "{left_out:?}"
    );
    assert_eq!(left_out.len(), 2, "{left_out:?}");
    create_volume(VolumeUrl::local(place.path("copy")), &new).expect("a volume");
    let written: Value = serde_json::from_slice(&fs::read(place.path("copy/zarr.json")).expect("it")).expect("JSON");
    assert_eq!(written["attributes"]["dimension_units"], json!([null, "0.04 nm", "4.1 nm", "4 nm"]));
}

#[test]
fn shards_and_gzip_are_taken_over_where_every_program_can_use_them() {
    let place = Place::new();
    let mut sharded = NewVolume::new(VolumeFormat::Zarr, &[50, 40, 30], &[16, 16, 16], DType::U16);
    (sharded.shard_shape, sharded.encoding) = (Some(vec![32, 32, 32]), Encoding::Gzip);
    let sink = create_volume(VolumeUrl::local(place.path("sharded")), &sharded).expect("a volume");
    let notes = VolumeNotes::of(&*sink).expect("notes");
    assert_eq!((&notes.chunk_shape[..], &notes.shard_shape[..]), (&[16, 16, 16][..], &[32, 32, 32][..]));
    let copy = |format| NewVolume::like_volume(format, &*sink).expect("it can be counted");
    let (new, left_out) = copy(VolumeFormat::Zarr);
    assert_eq!((new.shard_shape, new.encoding), (None, Encoding::Gzip));
    assert!(left_out[0].contains("shards of 32 x 32 x 32 (give a shard shape"), "{left_out:?}");

    let (new, left_out) = copy(VolumeFormat::Precomputed);
    assert_eq!(new.encoding, Encoding::Raw, "files named .gz are not found by all programs");
    let told = ["does not name its axes", "shards of 32 x 32 x 32", "stored raw"];
    assert!(
        told.iter().zip(&left_out).all(|(words, text)| text.contains(words)) && left_out.len() == 3,
        "{left_out:?}"
    );
}

/// What a new volume has not is said: booleans, elements of missing chunks, steps of time.
#[test]
fn other_meanings_of_elements_and_axes_are_told() {
    let place = Place::new();
    let notes = [
        ("elements", "bool"),
        ("axes", "x y t"),
        ("source", "zarr:///movie"),
        ("resolution", "0.004 0.004 2"),
        ("unit", "µm"),
        ("chunk", "8 8 1"),
        ("fill", "01"),
    ];
    let (new, left_out) = NewVolume::like(VolumeFormat::Precomputed, &described(DType::U8, &[50, 40, 30], &notes));
    assert_eq!(new.resolution, [4.0, 4.0, 1.0], "two seconds are not 2 µm");
    for words in ["booleans", "other elements than 0", "step 2 of the axis t", "are stored as x, y, z"] {
        assert!(left_out.iter().any(|text| text.contains(words)), "{words}: {left_out:?}");
    }

    // Zarr keeps the elements of missing chunks.
    let nan = f32::NAN.to_le_bytes().map(|byte| format!("{byte:02x}")).concat();
    for (dtype, element, written) in [
        (DType::U8, "07", json!(7)),
        (DType::U8, "00", json!(0)),
        (DType::I16, "feff", json!(-2)),
        (DType::F32, &nan, json!("NaN")),
        (DType::F16, "003c", json!(1.0)),
        (DType::Complex64, "0000803f000000c0", json!([1.0, -2.0])),
    ] {
        let array = described(dtype, &[8, 8], &[("chunk", "4 4"), ("fill", element)]);
        for version in [2, 3] {
            let mut new = NewVolume::new(VolumeFormat::Zarr, &[8, 8], &[], dtype);
            new.version = version;
            let left_out = new.take_over(&VolumeNotes::read(&array, array.shape()), dtype);
            assert!(left_out.is_empty(), "{left_out:?}");
            let path = place.path(&format!("{element}-{version}"));
            let sink = create_volume(VolumeUrl::local(&path), &new).expect("a volume");
            assert_eq!(sink.meta().fill, new.fill, "{dtype} {version}");
            let file = path.join(if version == 2 { ".zarray" } else { "zarr.json" });
            let json: Value = serde_json::from_slice(&fs::read(file).expect("it")).expect("JSON");
            assert_eq!(json["fill_value"], written, "{dtype} {version}");
        }
    }

    // The metadata of labels says that they are.
    let new = NewVolume::new(VolumeFormat::Zarr, &[20, 30, 40], &[16, 16, 16], DType::U16);
    create_volume(VolumeUrl::local(place.path("cells").join("0")), &new).expect("an array");
    let axes = ["z", "y", "x"].map(|name| json!({"name": name, "type": "space"}));
    let group = json!({"zarr_format": 3, "node_type": "group", "attributes": {"ome": {"version": "0.5", "image-label": {}, "multiscales": [
        {"axes": axes, "datasets": [{"path": "0"}]}]}}});
    fs::write(place.path("cells/zarr.json"), group.to_string()).expect("written");
    let labels = open_volume(VolumeUrl::local(place.path("cells"))).expect("a scale");
    assert_eq!(labels.meta().kind, Some(VolumeKind::Segmentation));
}

#[test]
fn units_are_converted_for_precomputed_only() {
    let resolution = |format, unit, sizes| {
        let notes = with(&[("unit", unit), ("resolution", sizes)]);
        let (new, _) = NewVolume::like(format, &described(DType::U16, &[50, 40, 30, 1], &notes));
        (new.resolution, new.unit)
    };
    for (unit, sizes) in
        [("µm", "0.004 0.0041 0.04"), ("um", "0.004 0.0041 0.04 1"), ("Å", "40 41 400"), ("nm", "4 4.1 40")]
    {
        assert_eq!(
            resolution(VolumeFormat::Precomputed, unit, sizes),
            (vec![4.0, 4.1, 40.0], "nm".to_owned()),
            "{unit}"
        );
    }
    let kept = resolution(VolumeFormat::Zarr, "µm", "0.004 0.0041 0.04");
    assert_eq!(kept, (vec![0.004, 0.0041, 0.04], "µm".to_owned()));
}

/// What a program computes from an image may be labels, so that only a caller can say the type.
#[test]
fn type_of_elements_is_taken_over_where_it_still_holds() {
    use VolumeKind::{Image, Segmentation};
    let kind = |of: DType, kind: &'static str, new: DType| {
        let array = described(of, &[50, 40, 30, 1], &with(&[("kind", kind), ("encoding", "compressed_segmentation")]));
        let mut like = NewVolume::new(VolumeFormat::Precomputed, &[50, 40, 30, 1], &[], new);
        like.take_over(&VolumeNotes::read(&array, array.shape()), of);
        (like.kind, like.encoding)
    };
    let (raw, blocks) = (Encoding::Raw, Encoding::CompressedSegmentation);
    assert_eq!(kind(DType::U64, "segmentation", DType::U64), (Some(Segmentation), blocks));
    assert_eq!(kind(DType::U64, "segmentation", DType::U32), (Some(Segmentation), blocks));
    assert_eq!(kind(DType::U64, "segmentation", DType::U8), (Some(Segmentation), raw));
    assert_eq!(kind(DType::U64, "segmentation", DType::F32), (None, raw));
    assert_eq!(kind(DType::U32, "image", DType::U32), (Some(Image), raw));
    assert_eq!(kind(DType::U8, "image", DType::F32), (Some(Image), raw));
    assert_eq!(kind(DType::U8, "image", DType::U64).0, None, "they may be labels");
}

#[test]
fn channels_may_be_left_out_of_chunk_shapes_and_resolution() {
    let place = Place::new();
    let url = VolumeUrl::local(place.path("zarr"));
    let mut new = NewVolume::new(VolumeFormat::Zarr, &[50, 40, 30, 2], &[16, 16, 16], DType::U16);
    assert!(create_volume(&url, &new).is_err(), "the last axis is not known to be channels");
    new.axes = ["x", "y", "", "channel"].map(str::to_owned).to_vec();
    (new.resolution, new.shard_shape) = (vec![4.0, 4.5, 40.0], Some(vec![32, 32, 32]));
    let sink = create_volume(&url, &new).expect("a volume");
    let meta = sink.meta();
    assert_eq!((&meta.chunk_shape[..], &meta.stored_shape[..]), (&[16, 16, 16, 2][..], &[32, 32, 32, 2][..]));
    assert!(new.is_like(meta));
    let written: Value = serde_json::from_slice(&fs::read(place.path("zarr/zarr.json")).expect("it")).expect("JSON");
    assert_eq!(written["dimension_names"], json!(["x", "y", null, "channel"]));
    assert_eq!(written["attributes"]["dimension_units"], json!(["4 nm", "4.5 nm", "40 nm", null]));
    let scale = VolumeOptions::new().scales(&url).expect("scales").remove(0);
    assert_eq!((&scale.resolution[..], scale.unit.as_str()), (&[4.0, 4.5, 40.0][..], "nm"));
    let notes = VolumeNotes::of(&*open_volume(&url).expect("it")).expect("notes");
    assert_eq!((&notes.resolution[..], notes.unit.as_deref()), (&[4.0, 4.5, 40.0][..], Some("nm")));
    // A copy of the copy is like the first one.
    let (again, left_out) = NewVolume::like_volume(VolumeFormat::Zarr, &*sink).expect("it can be counted");
    assert_eq!((&again.resolution, again.unit.as_str(), left_out.len()), (&new.resolution, "nm", 1), "{left_out:?}");
    assert!(left_out[0].contains("shards"), "{left_out:?}");

    // An axis of channels in front has no unit either.
    let url = VolumeUrl::local(place.path("front"));
    let mut new = NewVolume::new(VolumeFormat::Zarr, &[2, 30, 40], &[1, 16, 16], DType::U16);
    (new.axes, new.resolution) = (["c", "y", "x"].map(str::to_owned).to_vec(), vec![1.0, 0.5, 0.25]);
    new.unit = "µm".to_owned();
    create_volume(&url, &new).expect("a volume");
    let scale = VolumeOptions::new().scales(&url).expect("scales").remove(0);
    assert_eq!((&scale.resolution[..], scale.unit.as_str()), (&[1.0, 0.5, 0.25][..], "µm"));
}

/// Notes of an array of a whole volume.
fn notes(volume: &dyn ChunkSource) -> VolumeNotes {
    VolumeNotes::of(volume).expect("notes")
}

#[test]
fn array_belongs_where_it_was_downloaded_from() {
    let place = Place::new();
    let mut new = NewVolume::new(VolumeFormat::Precomputed, &[40, 30, 20, 1], &[16, 16, 16], DType::U8);
    (new.origin, new.resolution) = (vec![-3, 5, 100, 0], vec![4.0, 4.0, 40.0]);
    let path = place.path("em");
    create_volume(VolumeUrl::local(&path), &new).expect("a volume");
    create_volume(VolumeUrl::local(place.path("other")), &new).expect("a volume");
    let volume = open_volume(&path).expect("it");
    let mut array = notes(&*volume);
    array.bbox = Some("0:20,5:35,110:120,0:1".parse::<Bbox>().expect("a region"));
    assert_eq!(array.region_in(&*volume).expect("this scale"), array.bbox);
    assert_eq!(array.region_in(&open_volume(&place.path("other")).expect("it")).expect("nothing"), None);
    for source in [
        format!("precomputed://{}/", path.display()),
        format!("precomputed://{}{}", if cfg!(unix) { "file://" } else { "" }, path.display()),
        format!("precomputed://{}/../em/.", place.path("other").display()),
    ] {
        array.source = Some(source.clone());
        assert_eq!(array.region_in(&*volume).expect("this scale"), array.bbox, "{source}");
    }
    // The text of a path from another working directory, another format, and no text at all.
    for source in [Some("precomputed://em".to_owned()), Some(format!("zarr://{}", path.display())), None] {
        array.source = source;
        assert_eq!(array.region_in(&*volume).expect("nothing"), None, "{:?}", array.source);
    }
    array = notes(&*volume);
    array.scale = Some("8_8_40".to_owned());
    let error = array.region_in(&*volume).expect_err("another scale");
    assert!(matches!(&error, Error::OtherScale { array, scale, .. } if array == "8_8_40" && scale == "4_4_40"));
    assert!(error.to_string().contains("8_8_40") && error.to_string().contains("4_4_40"), "{error}");
}

#[test]
fn scales_of_a_zarr_group_are_told_apart() {
    let place = Place::new();
    for scale in ["0", "1"] {
        let new = NewVolume::new(VolumeFormat::Zarr, &[40, 30, 20], &[16, 16, 16], DType::U8);
        create_volume(VolumeUrl::local(place.path("em").join(scale)), &new).expect("an array");
    }
    let dataset = |path: &str, sizes: [f64; 3]| json!({"path": path, "coordinateTransformations": [{"type": "scale", "scale": sizes}]});
    let axes = ["z", "y", "x"].map(|name| json!({"name": name, "type": "space", "unit": "nanometer"}));
    let scales = [dataset("0", [40.0, 4.0, 4.0]), dataset("1", [40.0, 8.0, 8.0])];
    let group = json!({"zarr_format": 3, "node_type": "group", "attributes": {"ome": {"version": "0.5", "multiscales": [
        {"axes": axes, "datasets": scales}]}}});
    fs::write(place.path("em/zarr.json"), group.to_string()).expect("written");
    let mip = |mip| VolumeOptions::new().mip(mip).open(VolumeUrl::local(place.path("em"))).expect("a scale");
    let array = notes(&*mip(0));
    assert_eq!(array.scale.as_deref(), Some("0"));
    assert_eq!(array.region_in(&*mip(0)).expect("its scale"), array.bbox);
    assert!(matches!(array.region_in(&*mip(1)), Err(Error::OtherScale { .. })));
    // The source still opens the same array by itself.
    let alone = open_volume(array.source.as_deref().expect("a source")).expect("the array");
    assert_eq!(array.region_in(&*alone).expect("the same array"), array.bbox);
    assert_eq!(notes(&*alone).region_in(&*mip(0)).expect("the same array"), array.bbox);
    let (new, _) = NewVolume::like_volume(VolumeFormat::Zarr, &*mip(1)).expect("it can be counted");
    assert_eq!((&new.resolution[..], new.unit.as_str()), (&[40.0, 8.0, 8.0][..], "nm"));
    assert_eq!(new.axes, ["z", "y", "x"]);
}
