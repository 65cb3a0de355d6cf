//! Exchange of volumes with zarr-python and tensorstore, in both directions.

use std::fs;
use std::path::Path;

use ndarray_shm::DType;
use ndarray_shm_volume::{
    Bbox, ChunkSource, Encoding, NewVolume, VolumeFormat, VolumeOptions, VolumeUrl, create_volume, open_volume,
};
use serde_json::{Value, json};

use super::written::written_with_foreign_metadata;
use super::{Whole, cut, python, read, write};
use crate::place::Place;

/// Lets Python write its volumes into a new directory, and returns their descriptions.
fn cases(directory: &Path) -> Vec<Value> {
    fs::create_dir(directory).expect("a directory");
    let volumes: Vec<Value> =
        serde_json::from_str(&python(&["write".as_ref(), directory], "")).expect("what was written");
    assert!(volumes.len() > 50, "{}", volumes.len());
    volumes
}

#[test]
fn volumes_of_zarr_python_and_tensorstore_are_read() {
    let place = Place::new();
    let directory = place.path("cases");
    for volume in &cases(&directory) {
        let source = check(volume, &|path| VolumeUrl::local(directory.join(path)));
        // Painters read it too: they look at windows of blocks.
        let meta = source.meta();
        let done = place.download(&*source, &meta.domain(), &place.options()).expect("a download");
        let expected = fs::metadata(volume["expected"].as_str().expect("elements")).expect("elements").len();
        assert_eq!(done.bytes, expected);
        assert!(place.backend.unlink(&place.location).expect("unlink"));
    }
    for name in ["ome-2", "ome-3"] {
        let scales = VolumeOptions::new().scales(VolumeUrl::local(directory.join(name))).expect("scales");
        let keys: Vec<&str> = scales.iter().map(|scale| scale.key.as_str()).collect();
        assert_eq!(keys, ["levels/0", "levels/1", "levels/2"]);
        assert_eq!(scales[1].resolution, [1.0, 40.0, 8.0, 8.0]);
        assert!(scales.iter().all(|scale| scale.unit == "nm" && scale.meta.axes == ["c", "z", "y", "x"]));
        assert_eq!(scales[2].meta.shape, [2, 4, 5, 6]);
        let error = VolumeOptions::new().mip(3).open(VolumeUrl::local(directory.join(name))).expect_err("too coarse");
        assert!(error.to_string().contains("no scale 3: it has 3"), "{error}");
    }
}

#[cfg(feature = "http")]
#[test]
fn volumes_of_peers_are_read_over_http() {
    let Some(_python) = crate::servers::python("volumes_of_peers_are_read_over_http") else {
        panic!("NDSHM_TEST_PYTHON is not set: run scripts/test")
    };
    let place = Place::new();
    let directory = place.path("cases");
    let volumes = cases(&directory);
    let server = crate::servers::HttpServer::start(&directory);
    for volume in &volumes {
        let source = check(volume, &|path| format!("{}/{path}", server.url()).parse().expect("a URL"));
        assert!(source.is_remote());
        assert_eq!(source.identity(), check_identity(volume, &server.url()));
    }
    let url: VolumeUrl = format!("{}/ome-3/levels", server.url()).parse().expect("a URL");
    let error = open_volume(&url).expect_err("a group without scales, which a web server cannot list");
    assert!(error.to_string().contains("is a Zarr group"), "{error}");
}

/// Opens a volume again, as another process would, and returns its identity.
#[cfg(feature = "http")]
fn check_identity(volume: &Value, server: &str) -> String {
    let name = volume["path"].as_str().or(volume["name"].as_str()).expect("a name");
    let mip = usize::try_from(volume["mip"].as_u64().unwrap_or(0)).expect("small");
    let url = format!("zarr://{server}/{name}/");
    VolumeOptions::new().mip(mip).open(&url).expect("the volume").identity()
}

/// Opens a volume and compares what is read with the elements that Python wrote.
fn check(volume: &Value, url: &dyn Fn(&str) -> VolumeUrl) -> Box<dyn ChunkSource> {
    let text = |key: &str| volume[key].as_str();
    let name = text("name").expect("a name");
    let expected = fs::read(text("expected").expect("elements")).expect("elements");
    let mip = volume["mip"].as_u64().unwrap_or(0);
    let options = VolumeOptions::new().mip(usize::try_from(mip).expect("small"));
    let source = options.open(url(text("path").unwrap_or(name))).unwrap_or_else(|error| panic!("{name}: {error:?}"));
    let meta = source.meta();
    assert_eq!(json!(meta.shape), volume["shape"], "{name}");
    assert!(text("dtype") == Some(dtype_name(meta.dtype)), "{name}: {}", meta.dtype);
    if let Some(axes) = volume.get("axes") {
        assert_eq!(json!(meta.axes), *axes, "{name}");
    }
    // The whole volume, its inside, its last element and a row: of unpacked chunks only the needed part is fetched.
    let each = |part: fn(i64) -> std::ops::Range<i64>| {
        meta.shape.iter().map(|length| part(length.cast_signed())).collect::<Vec<_>>()
    };
    let mut row = each(|length| length / 2..length / 2 + 1);
    if let Some(last) = row.last_mut() {
        last.start = 0;
    }
    for region in [each(|length| 0..length), each(|length| length / 5..length - length / 4), each(|n| n - 1..n), row] {
        let bbox = Bbox::new(region).expect("a region");
        let found = read(&*source, &bbox).unwrap_or_else(|error| panic!("{name}, {bbox}: {error:?}"));
        let wanted = cut(&expected, &meta.shape, meta.dtype.size(), bbox.ranges(), ndarray_shm::Order::C);
        assert!(found == wanted, "{name}, {bbox}: other elements");
    }
    source
}

#[test]
fn zarr_python_and_tensorstore_read_written_volumes() {
    let place = Place::new();
    let mut volumes = Vec::new();
    let encodings = [Encoding::Raw, Encoding::Gzip, Encoding::Zstd, Encoding::Blosc];
    for dtype in DType::ALL {
        for (version, sharded) in [(2, false), (3, false), (3, true)] {
            if dtype_name(*dtype).is_empty() || (version == 2 && *dtype == DType::Bf16) {
                continue;
            }
            // Two encodings per type, alternating: over all types, every encoding is used with and without shards.
            for (at, encoding) in encodings.iter().enumerate().skip(volumes.len() % 2).step_by(2) {
                let name = format!("{dtype}-{version}-{sharded}-{at}").replace(['<', '|'], "");
                volumes.push(written(&place.path(&name), *dtype, version, sharded, *encoding));
            }
        }
    }
    assert!(volumes.len() > 70, "{}", volumes.len());
    let wrong: Vec<String> =
        serde_json::from_str(&python(&["check".as_ref()], &json!(volumes).to_string())).expect("what is wrong");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn peers_read_volumes_with_foreign_metadata() {
    let place = Place::new();
    let mut volumes: Vec<Value> = Vec::new();
    for (path, spec, elements) in written_with_foreign_metadata(&place) {
        let expected = path.with_extension("elements");
        fs::write(&expected, elements).expect("elements");
        volumes.push(json!({
            "path": path, "version": if path.ends_with("v2-f") { 2 } else { 3 }, "dtype": "uint16", "shape": spec.shape(),
            "expected": expected, "readers": ["tensorstore", "zarr-python"],
        }));
    }
    let answer = |volumes: &[Value]| -> Vec<String> {
        serde_json::from_str(&python(&["check".as_ref()], &json!(volumes).to_string())).expect("what is wrong")
    };
    assert_eq!(answer(&volumes)[..], [] as [String; 0]);
    // Checks that the comparison can fail.
    let expected = place.path("v2-f").with_extension("elements");
    let mut elements = fs::read(&expected).expect("elements");
    elements[77] ^= 1;
    fs::write(&expected, elements).expect("other elements");
    assert_eq!(answer(&volumes).len(), 2);
}

/// Writes a volume that ends within chunks, reads it back, and returns its description.
fn written(path: &Path, dtype: DType, version: u8, sharded: bool, encoding: Encoding) -> Value {
    let shape = [11, 9, 14];
    let mut new = NewVolume::new(VolumeFormat::Zarr, &shape, &[4, 3, 5], dtype);
    new.version = version;
    new.encoding = encoding;
    new.resolution = vec![40.0, 4.5, 4.5];
    new.shard_shape = sharded.then(|| vec![8, 6, 10]);
    let url = VolumeUrl::local(path);
    let sink = create_volume(&url, &new).unwrap_or_else(|error| panic!("{}: {error:?}", path.display()));
    let count: u64 = shape.iter().product();
    // The first third is small numbers, the rest 0: some chunks of shards are left out.
    let elements: Vec<u8> = (0..count).flat_map(|at| number(if at < count / 3 { at % 97 } else { 0 }, dtype)).collect();
    let whole = Whole { bytes: &elements, shape: &shape, dtype };
    write(&*sink, &whole).unwrap_or_else(|error| panic!("{}: {error:?}", path.display()));

    let source = open_volume(&url).expect("what was written");
    assert_eq!(source.identity(), sink.identity());
    assert!(read(&*source, &source.meta().domain()).expect("its elements") == elements, "{}", path.display());
    let scales = VolumeOptions::new().scales(&url).expect("its scales");
    assert_eq!(
        (scales.len(), scales[0].resolution.as_slice(), scales[0].unit.as_str()),
        (1, &[40.0, 4.5, 4.5][..], "nm")
    );
    let expected = path.with_extension("elements");
    fs::write(&expected, &elements).expect("elements");
    let zarr_python = !matches!(dtype, DType::Bf16);
    json!({
        "path": path,
        "version": version,
        "dtype": dtype_name(dtype),
        "shape": shape,
        "expected": expected,
        "readers": if zarr_python { vec!["tensorstore", "zarr-python"] } else { vec!["tensorstore"] },
    })
}

/// Returns the bytes of a small whole number in this type.
fn number(value: u64, dtype: DType) -> Vec<u8> {
    #[allow(clippy::cast_precision_loss)] // Numbers below 100.
    let float = value as f32;
    match dtype {
        DType::F16 => half::f16::from_f32(float).to_ne_bytes().to_vec(),
        DType::Bf16 => half::bf16::from_f32(float).to_ne_bytes().to_vec(),
        DType::F32 => float.to_ne_bytes().to_vec(),
        DType::F64 => f64::from(float).to_ne_bytes().to_vec(),
        DType::Complex64 => [float, -1.0].into_iter().flat_map(f32::to_ne_bytes).collect(),
        DType::Complex128 => [f64::from(float), -1.0].into_iter().flat_map(f64::to_ne_bytes).collect(),
        _ => value.to_le_bytes()[..dtype.size()].to_vec(),
    }
}

fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::U8 => "uint8",
        DType::U16 => "uint16",
        DType::U32 => "uint32",
        DType::U64 => "uint64",
        DType::I8 => "int8",
        DType::I16 => "int16",
        DType::I32 => "int32",
        DType::I64 => "int64",
        DType::F16 => "float16",
        DType::Bf16 => "bfloat16",
        DType::F32 => "float32",
        DType::F64 => "float64",
        DType::Complex64 => "complex64",
        DType::Complex128 => "complex128",
        _ => "",
    }
}
