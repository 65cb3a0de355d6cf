//! Volumes that cannot be read: the error must name the property that is not supported.

use std::fs;

use ndarray_shm_volume::{SourceFailure, VolumeUrl, open_volume};
use serde_json::{Value, json};

use crate::matrix::Format;
use crate::python::World;
use crate::reading::in_full;

/// A property of a volume that is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) format: Format,
    pub(crate) what: &'static str,
    /// The name in the volume's metadata, which the error must contain.
    pub(crate) name: &'static str,
}

const ENCODINGS: &[&str] = &["compresso", "crackle", "fpzip", "jxl", "kempressed", "zfpc"];
const COMPRESSORS_V2: &[&str] = &["zfpy", "jenkins_lookup3"];
const FILTERS_V2: &[&str] = &["categorize", "packbits", "quantize", "astype"];
const CODECS_V3: &[&str] = &[
    "zfp",
    "numcodecs.zfpy",
    "numcodecs.packbits",
    "numcodecs.quantize",
    "numcodecs.astype",
    "numcodecs.jenkins_lookup3",
];
const DTYPES_V2: &[&str] = &["<U8", "|S8", "<M8[ns]", "|O"];
const DTYPES_V3: &[&str] = &["string", "float8_e4m3", "int4"];

const COMPRESSIONS_N5: &[&str] = &["jpeg"];
const DTYPES_N5: &[&str] = &["string", "object", "float16"];

/// Returns every refused property.
pub(crate) fn all() -> Vec<Refused> {
    let of =
        |format, what, names: &'static [&'static str]| names.iter().map(move |name| Refused { format, what, name });
    of(Format::Precomputed, "encoding", ENCODINGS)
        .chain(of(Format::Zarr2, "compressor", COMPRESSORS_V2))
        .chain(of(Format::Zarr2, "filter", FILTERS_V2))
        .chain(of(Format::Zarr2, "element type", DTYPES_V2))
        .chain(of(Format::Zarr3, "codec", CODECS_V3))
        .chain(of(Format::Zarr3, "element type", DTYPES_V3))
        .chain(of(Format::N5, "compression", COMPRESSIONS_N5))
        .chain(of(Format::N5, "element type", DTYPES_N5))
        .collect()
}

/// Opens a volume that has the property, and checks the error.
pub(crate) fn check(world: &World, refused: Refused) -> Result<(), String> {
    let path = world.path("refused");
    let (file, document) = document(refused);
    fs::create_dir(&path).and_then(|()| fs::write(path.join(file), document.to_string())).map_err(|e| e.to_string())?;
    match open_volume(VolumeUrl::local(&path)) {
        Ok(volume) => Err(format!("it was opened: {:?}", volume.meta())),
        Err(error) => {
            let text = in_full(&error);
            let place = path.file_name().and_then(|name| name.to_str()).expect("a name");
            let is_clear = text.contains(refused.name) && text.contains(place);
            if error.source_failure() != Some(SourceFailure::Unsupported) {
                return Err(format!("{:?}: {text}", error.source_failure()));
            }
            if is_clear { Ok(()) } else { Err(format!("`{}` or the volume is not named: {text}", refused.name)) }
        }
    }
}

fn document(refused: Refused) -> (&'static str, Value) {
    let name = refused.name;
    match (refused.format, refused.what) {
        (Format::Precomputed, _) => {
            let kind = if name == "fpzip" || name == "zfpc" { "float32" } else { "uint8" };
            let scale = json!({
                "key": "1_1_1", "size": [64, 64, 64], "resolution": [1, 1, 1], "voxel_offset": [0, 0, 0],
                "chunk_sizes": [[32, 32, 32]], "encoding": name,
            });
            ("info", json!({"type": "image", "data_type": kind, "num_channels": 1, "scales": [scale]}))
        }
        (Format::N5, what) => {
            let (compression, dtype) = if what == "compression" { (name, "uint16") } else { ("raw", name) };
            let dataset = json!({
                "dimensions": [8, 8], "blockSize": [4, 4], "dataType": dtype, "compression": {"type": compression},
            });
            ("attributes.json", dataset)
        }
        (Format::Zarr2, what) => {
            let compressor = if what == "compressor" { json!({"id": name}) } else { Value::Null };
            let filter = json!([{"id": name, "dtype": "<u2", "astype": "<u2", "offset": 0, "scale": 1}]);
            let filters = if what == "filter" { filter } else { Value::Null };
            let dtype = if what == "element type" { name } else { "<u2" };
            let array = json!({
                "zarr_format": 2, "shape": [8, 8], "chunks": [4, 4], "dtype": dtype, "order": "C", "fill_value": 0,
                "compressor": compressor, "filters": filters,
            });
            (".zarray", array)
        }
        (Format::Zarr3, what) => {
            let mut codecs = vec![json!({"name": "bytes", "configuration": {"endian": "little"}})];
            if what == "codec" {
                codecs.push(json!({"name": name, "configuration": {"acceleration": 1}}));
            }
            let dtype = if what == "element type" { name } else { "uint16" };
            let fill = if name == "string" { json!("") } else { json!(0) };
            let array = json!({
                "zarr_format": 3, "node_type": "array", "shape": [8, 8], "data_type": dtype,
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 4]}},
                "chunk_key_encoding": {"name": "default"}, "fill_value": fill, "codecs": codecs,
            });
            ("zarr.json", array)
        }
    }
}
