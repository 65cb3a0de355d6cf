//! The metadata document of a Zarr array: finding it, saying what is there instead, and the volume's identity.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use ndarray_shm::DType;
use serde_json::Value;
use zarrs::array::ArrayMetadata;

use crate::error::{Error, Result};

/// File that describes a version 3 array or group.
const V3: &str = "zarr.json";
/// File that describes a version 2 array.
const V2: &str = ".zarray";
/// File that describes a version 2 group.
const V2_GROUP: &str = ".zgroup";

/// How many arrays of a group a message lists.
const LISTED: usize = 12;

/// A metadata document, read once.
#[derive(Debug)]
pub(super) struct Document {
    root: PathBuf,
    version: Version,
    json: Value,
    /// Tells this document from any other that may stand in its place later.
    mark: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V2,
    V3,
}

impl Document {
    /// Finds the document of the array in a directory.
    pub(super) fn read(path: &Path) -> Result<Self> {
        // Without links, and without the `\\?\` that Windows would put in front: people read it in messages.
        let root = match dunce::canonicalize(path) {
            Ok(root) if root.is_dir() => root,
            Ok(_) => return Err(Error::no_volume(path.display(), not_a_directory(path))),
            // On Windows a URL is no name that a file could have.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidFilename) => {
                return Err(Error::no_volume(
                    path.display(),
                    "there is no such directory (volumes are read from local directories only)",
                ));
            }
            Err(error) => return Err(Error::io("opening", path, error)),
        };
        for (name, version) in [(V3, Version::V3), (V2, Version::V2)] {
            let file = root.join(name);
            let bytes = match fs::read(&file) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(Error::io("reading", file, error)),
            };
            let json: Value = serde_json::from_slice(&bytes).map_err(|error| Error::Source {
                volume: file.display().to_string(),
                reason: "this is no JSON document: the metadata is damaged".to_owned(),
                cause: Some(Box::new(error)),
            })?;
            let mark = mark(&file, &bytes)?;
            let document = Self { root, version, json, mark };
            document.check_is_array()?;
            return Ok(document);
        }
        Err(Error::no_volume(path.display(), what_it_is_instead(&root)))
    }

    /// Returns the directory of the array, without links.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the type of the elements.
    pub(super) fn dtype(&self) -> Result<DType> {
        let written = match self.version {
            Version::V2 => &self.json["dtype"],
            Version::V3 => &self.json["data_type"],
        };
        let found = match (self.version, written) {
            (Version::V2, Value::String(text)) => dtype_v2(text),
            (Version::V3, Value::String(text)) => dtype_v3(text),
            (Version::V3, Value::Object(object)) => object.get("name").and_then(Value::as_str).and_then(dtype_v3),
            (_, Value::Null) => {
                return Err(Error::no_volume(self.root.display(), "the metadata names no element type: it is damaged"));
            }
            _ => None,
        };
        found.ok_or_else(|| Error::UnsupportedDType {
            volume: self.root.display().to_string(),
            dtype: written.as_str().map_or_else(|| written.to_string(), str::to_owned),
        })
    }

    /// Returns the document as zarrs takes it.
    pub(super) fn metadata(&self) -> Result<ArrayMetadata> {
        let json = self.json.clone();
        let metadata = match self.version {
            Version::V2 => serde_json::from_value(json).map(ArrayMetadata::V2),
            Version::V3 => serde_json::from_value(json).map(ArrayMetadata::V3),
        };
        metadata.map_err(|error| Error::Source {
            volume: self.root.display().to_string(),
            reason: "the metadata of this Zarr array is damaged".to_owned(),
            cause: Some(Box::new(error)),
        })
    }

    /// Returns where the volume is and which metadata it had, in one line.
    ///
    /// The time of the last change belongs to it: a volume that was written anew is another one, even if it has the same
    /// shape.
    #[allow(clippy::unnecessary_debug_formatting)] // It quotes what would break the line.
    pub(super) fn identity(&self) -> String {
        format!("zarr {:?} {}", self.root, self.mark)
    }

    /// Says in a few words what it is.
    pub(super) fn describe(&self, sharded: bool) -> String {
        let (version, packing) = match self.version {
            Version::V2 => ("Zarr v2", self.json["compressor"]["id"].as_str().map(str::to_owned)),
            Version::V3 => ("Zarr v3", packing_v3(&self.json["codecs"])),
        };
        let packing = packing.unwrap_or_else(|| "uncompressed".to_owned());
        format!("{version}, {packing}{}", if sharded { ", sharded" } else { "" })
    }

    fn check_is_array(&self) -> Result<()> {
        if self.version == Version::V2 {
            return Ok(());
        }
        match self.json["node_type"].as_str() {
            Some("array") => Ok(()),
            Some("group") => Err(Error::no_volume(self.root.display(), group(&self.root))),
            _ => Err(Error::no_volume(
                self.root.display(),
                "its zarr.json describes neither an array nor a group: it is damaged",
            )),
        }
    }
}

/// Length, checksum and time of a document: any of them changes when the volume is written anew.
fn mark(file: &Path, bytes: &[u8]) -> Result<String> {
    let modified =
        fs::metadata(file).and_then(|facts| facts.modified()).map_err(|error| Error::io("reading", file, error))?;
    let checksum = crc32fast::hash(bytes);
    Ok(format!("metadata {} bytes, crc32 {checksum:08x}, modified {}", bytes.len(), seconds(modified)))
}

fn seconds(time: SystemTime) -> String {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => format!("{}.{:09}", after.as_secs(), after.subsec_nanos()),
        Err(before) => format!("-{}.{:09}", before.duration().as_secs(), before.duration().subsec_nanos()),
    }
}

fn dtype_v2(text: &str) -> Option<DType> {
    // Big-endian elements become native when they are decoded, so only the kind matters.
    let kind = text.strip_prefix(['<', '>', '|'])?;
    Some(match kind {
        "u1" => DType::U8,
        "u2" => DType::U16,
        "u4" => DType::U32,
        "u8" => DType::U64,
        "i1" => DType::I8,
        "i2" => DType::I16,
        "i4" => DType::I32,
        "i8" => DType::I64,
        "f2" => DType::F16,
        "f4" => DType::F32,
        "f8" => DType::F64,
        "c8" => DType::Complex64,
        "c16" => DType::Complex128,
        _ => return None,
    })
}

fn dtype_v3(text: &str) -> Option<DType> {
    Some(match text {
        "uint8" => DType::U8,
        "uint16" => DType::U16,
        "uint32" => DType::U32,
        "uint64" => DType::U64,
        "int8" => DType::I8,
        "int16" => DType::I16,
        "int32" => DType::I32,
        "int64" => DType::I64,
        "float16" => DType::F16,
        "bfloat16" => DType::Bf16,
        "float32" => DType::F32,
        "float64" => DType::F64,
        "complex64" | "complex_float32" => DType::Complex64,
        "complex128" | "complex_float64" => DType::Complex128,
        _ => return None,
    })
}

/// Names the codecs that pack bytes, the inner ones for shards.
fn packing_v3(codecs: &Value) -> Option<String> {
    let mut names = Vec::new();
    for codec in codecs.as_array()? {
        match codec["name"].as_str().or(codec.as_str())? {
            "sharding_indexed" => names.extend(packing_v3(&codec["configuration"]["codecs"])),
            "bytes" | "transpose" | "crc32c" => {}
            name => names.push(name.to_owned()),
        }
    }
    (!names.is_empty()).then(|| names.join(" and "))
}

fn not_a_directory(path: &Path) -> String {
    match path.file_name().and_then(|name| name.to_str()) {
        Some(V3 | V2 | V2_GROUP) => "this is a metadata file: give the directory it is in".to_owned(),
        _ => "this is a file, but a Zarr array is a directory (unpack it if it is an archive)".to_owned(),
    }
}

fn what_it_is_instead(root: &Path) -> String {
    let has = |name: &str| root.join(name).exists();
    if has(V2_GROUP) {
        return group(root);
    }
    let look_alike = if has("info") {
        " (it looks like Neuroglancer Precomputed, which is not supported yet)"
    } else if has("attributes.json") {
        " (it looks like N5, which is not supported yet)"
    } else {
        ""
    };
    format!("this directory is no Zarr array: it has neither zarr.json nor .zarray{look_alike}")
}

fn group(root: &Path) -> String {
    let mut arrays: Vec<String> = fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| is_array(&entry.path()))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    arrays.sort_unstable();
    let more = arrays.len().saturating_sub(LISTED);
    arrays.truncate(LISTED);
    let list = match (arrays.is_empty(), more) {
        (true, _) => return "this is a Zarr group, not an array: give the path of one of the arrays in it".to_owned(),
        (false, 0) => arrays.join(", "),
        (false, more) => format!("{} and {more} more", arrays.join(", ")),
    };
    format!("this is a Zarr group, not an array: add the name of one of its arrays ({list})")
}

fn is_array(directory: &Path) -> bool {
    let is_v3 = || {
        let text = fs::read(directory.join(V3)).ok()?;
        let json: Value = serde_json::from_slice(&text).ok()?;
        Some(json["node_type"] == "array")
    };
    directory.join(V2).is_file() || is_v3().unwrap_or(false)
}
