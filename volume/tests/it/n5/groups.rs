//! Containers, groups and scales in the layouts of N5 viewer, COSEM, Paintera and `BigDataViewer`.

use std::path::Path;

use ndarray_shm::DType;
use ndarray_shm_volume::{
    ChunkSource as _, Error, NewVolume, Result, ScaleInfo, SourceFailure, VolumeFormat, VolumeOptions, VolumeUrl,
    create_volume,
};
use serde_json::{Value, json};

use super::{attributes, dataset, open};
use crate::place::Place;
use crate::refused::chain;

/// Writes a scale with more attributes. Its first two axes are 1, 1/2, 1/4, .. of those of scale 0.
fn scale(group: &Path, name: &str, mip: u32, more: &Value) {
    let mut json = dataset(&[64 >> mip, 32 >> mip, 16], &[16, 16, 16], &json!({"type": "gzip"}));
    for (name, value) in more.as_object().expect("attributes") {
        json[name] = value.clone();
    }
    attributes(&group.join(name), &json);
}

fn scales(path: &Path) -> Result<Vec<ScaleInfo>> {
    VolumeOptions::new().scales(VolumeUrl::local(path))
}

/// Asserts that there are three scales with these keys, and with their resolutions.
fn check(path: &Path, keys: [&str; 3], unit: &str) {
    let found = scales(path).expect("scales");
    assert_eq!(found.iter().map(|scale| scale.key.as_str()).collect::<Vec<_>>(), keys);
    for (mip, scale) in found.iter().enumerate() {
        let factor = f64::from(1_u32 << mip);
        assert_eq!((scale.resolution.as_slice(), scale.unit.as_str()), (&[4.0 * factor, 4.5 * factor, 40.0][..], unit));
        assert_eq!(scale.meta.axes, ["x", "y", "z"]);
        let volume = VolumeOptions::new().mip(mip).open(VolumeUrl::local(path)).expect("a scale");
        assert_eq!(*volume.meta(), scale.meta);
        assert_eq!(volume.meta().shape, [64 >> mip, 32 >> mip, 16]);
        let notes = volume.notes();
        let note = |name| notes.iter().find(|(found, _)| *found == name).map(|(_, text)| text.as_str());
        assert_eq!(note("scale"), Some(keys[mip]));
        assert_eq!(note("resolution"), Some(format!("{} {} 40", 4.0 * factor, 4.5 * factor).as_str()));
        assert!(note("source").is_some_and(|source| source.starts_with("n5://")), "{notes:?}");
    }
    let error = VolumeOptions::new().mip(3).open(VolumeUrl::local(path)).expect_err("there is none");
    assert!(matches!(&error, Error::Scale { mip: 3, scales, .. } if scales.starts_with('3')), "{error}");
}

fn factors(mip: u32) -> Value {
    json!([1 << mip, 1 << mip, 1])
}

#[test]
fn scales_of_each_convention_are_listed_with_their_resolutions() {
    let place = Place::new();
    let path = |name: &str| place.path(name);
    let resolution = json!({"dimensions": [4, 4.5, 40], "unit": "nm"});

    attributes(
        &path("viewer"),
        &json!({"n5": "2.5.1", "pixelResolution": resolution, "scales": [factors(0), factors(1), factors(2)]}),
    );
    attributes(&path("modern"), &json!({"n5": "4.0.0", "pixelResolution": resolution}));
    attributes(&path("paintera"), &json!({"painteraData": {"type": "raw"}, "resolution": [9, 9, 9]}));
    attributes(&path("paintera/data"), &json!({"multiScale": true, "resolution": [4, 4.5, 40], "offset": [0, 0, 0]}));
    attributes(&path("setup0/timepoint0"), &json!({"multiScale": true, "resolution": [4, 4.5, 40]}));
    let transform = |mip: u32| {
        let factor = f64::from(1_u32 << mip);
        json!({"axes": ["z", "y", "x"], "units": ["nm", "nm", "nm"], "scale": [40.0, 4.5 * factor, 4.0 * factor], "translate": [0, 1, 2]})
    };
    let listed: Vec<Value> =
        (0..3).map(|mip| json!({"path": format!("level{mip}"), "transform": transform(mip)})).collect();
    attributes(&path("cosem"), &json!({"axes": ["x", "y", "z"], "multiscales": [{"name": "em", "datasets": listed}]}));
    for mip in 0..3 {
        let own = json!({"downsamplingFactors": factors(mip)});
        scale(&path("viewer"), &format!("s{mip}"), mip, &json!({}));
        scale(&path("modern"), &format!("s{mip}"), mip, &own);
        scale(&path("paintera/data"), &format!("s{mip}"), mip, &own);
        scale(&path("setup0/timepoint0"), &format!("s{mip}"), mip, &own);
        scale(
            &path("cosem"),
            &format!("level{mip}"),
            mip,
            &json!({"pixelResolution": {"dimensions": [1, 1, 1], "unit": "m"}}),
        );
        scale(&path("bare"), &format!("s{mip}"), mip, &json!({"transform": transform(mip)}));
    }
    check(&path("viewer"), ["s0", "s1", "s2"], "nm");
    check(&path("modern"), ["s0", "s1", "s2"], "nm");
    check(&path("paintera"), ["data/s0", "data/s1", "data/s2"], "");
    check(&path("setup0/timepoint0"), ["s0", "s1", "s2"], "");
    check(&path("cosem"), ["level0", "level1", "level2"], "nm");
    // A group without a document is recognised by its first scale.
    check(&path("bare"), ["s0", "s1", "s2"], "nm");
}

#[test]
fn error_for_a_container_names_its_datasets() {
    let place = Place::new();
    let path = place.path("em.n5");
    attributes(&path, &json!({"n5": "2.5.1"}));
    let text = chain(&open(&path).expect_err("a container"));
    assert!(text.contains("this is an N5 group") && text.contains("attributes.json"), "{text}");
    scale(&path, "volumes/raw", 0, &json!({}));
    scale(&path, "setup3/timepoint7/s0", 0, &json!({}));
    attributes(&path.join("empty"), &json!({}));
    for found in [open(&path).map(drop), scales(&path).map(drop)] {
        let error = found.expect_err("a container");
        assert_eq!(error.source_failure(), Some(SourceFailure::NotAVolume));
        assert!(error.to_string().contains("(setup3/timepoint7, volumes/raw)"), "{error}");
    }
    let dataset = open(&path.join("volumes/raw")).expect("a dataset");
    assert!(dataset.identity().starts_with("n5 "), "{}", dataset.identity());
    let url = VolumeUrl::local(path.join("volumes/raw")).format(VolumeFormat::N5);
    VolumeOptions::new().open(&url).expect("by its format");
    assert!(matches!(VolumeOptions::new().mip(1).open(&url), Err(Error::Scale { mip: 1, .. })));
    let nothing = VolumeUrl::local(path.join("volumes")).format(VolumeFormat::N5);
    assert!(VolumeOptions::new().open(&nothing).expect_err("a group").to_string().contains("(raw)"));
    let file = VolumeUrl::local(path.join("attributes.json"));
    assert!(VolumeOptions::new().open(&file).expect_err("a file").to_string().contains("give the directory"));
}

#[test]
fn n5_volumes_are_never_written() {
    let place = Place::new();
    let path = place.path("volume");
    attributes(&path, &dataset(&[4], &[4], &json!({"type": "raw"})));
    let error = VolumeOptions::new().open_writable(VolumeUrl::local(&path)).expect_err("only read");
    assert_eq!(error.source_failure(), Some(SourceFailure::Unsupported));
    assert!(error.to_string().contains("read, but not written"), "{error}");
    let new = |format| NewVolume::new(format, &[4, 4, 4], &[4, 4, 4], DType::U8);
    let elsewhere = VolumeUrl::local(place.path("new"));
    let error = create_volume(&elsewhere, &new(VolumeFormat::N5)).expect_err("only read");
    assert!(matches!(error, Error::NewVolume { .. }) && error.to_string().contains("read, but not written"), "{error}");
    assert!(!place.path("new").exists());
    for format in [VolumeFormat::Zarr, VolumeFormat::Precomputed] {
        let error = create_volume(VolumeUrl::local(&path), &new(format)).expect_err("something is there");
        assert_eq!(error.source_failure(), Some(SourceFailure::AlreadyExists), "{error}");
    }
}

#[test]
fn scale_path_out_of_its_group_is_refused() {
    let place = Place::new();
    let path = place.path("inside/group");
    scale(&place.path("inside"), "s0", 0, &json!({}));
    for outside in ["../s0", "/s0", "a/../../s0", "", "..", r"..\s0"] {
        attributes(&path, &json!({"multiscales": [{"datasets": [{"path": outside}]}]}));
        let error = open(&path).expect_err(outside);
        assert_eq!(error.source_failure(), Some(SourceFailure::Damaged));
        assert!(error.to_string().contains("leads to no dataset"), "{error}");
    }
    attributes(&path, &json!({"multiscales": [{"datasets": [{"path": "s7"}]}]}));
    assert!(open(&path).expect_err("it is not there").to_string().contains("`s7`"));
}
