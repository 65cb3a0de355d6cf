//! Metadata documents of Zarr arrays and groups: reading them, describing groups in errors, and the volume's identity.

use std::sync::Arc;

use ndarray_shm::DType;
use serde_json::{Value, json};
use zarrs::array::ArrayMetadata;
use zarrs::convert::array_metadata_v2_to_v3;
use zarrs::metadata::v3::MetadataV3;

use crate::description::{Encoding, dtype_named};
use crate::error::{Error, Result, SourceFailure};
use crate::gzip;
use crate::store::Store;
use crate::zarr::spelling::{self, CodecContext, CodecsV2, Refused};

/// Document of a version 3 array or group.
pub(super) const V3: &str = "zarr.json";
/// Document of a version 2 array.
pub(super) const V2: &str = ".zarray";
/// Document of a version 2 group.
pub(super) const V2_GROUP: &str = ".zgroup";
/// Document of the attributes of a version 2 array or group.
pub(super) const V2_ATTRIBUTES: &str = ".zattrs";

/// The boolean element type of version 3.
pub(super) const BOOL: &str = "bool";

/// Number of arrays of a group that a message lists.
const LISTED: usize = 12;

/// Number of names in a group that are checked for that list; each costs a request.
const LOOKED_AT: usize = 64;

/// The message for metadata that do not describe a readable array.
pub(super) const UNREADABLE: &str = "this Zarr array cannot be read";

/// Maximum length of an unpacked document.
const MOST_BYTES: usize = 64 << 20;

/// A parsed metadata document.
#[derive(Debug)]
pub(super) struct Document {
    /// The path or URL of the array or group.
    volume: String,
    /// The path or URL of the document.
    name: String,
    /// The key of the array or group; `""` for the root of the store.
    prefix: String,
    kind: DocumentKind,
    json: Value,
    /// Tells this document from a later one under the same key.
    mark: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DocumentKind {
    ArrayV2,
    ArrayV3,
    GroupV2,
    GroupV3,
}

impl Document {
    /// Finds the document under a prefix, if there is one.
    pub(super) fn read(store: &Arc<dyn Store>, prefix: &str) -> Result<Option<Self>> {
        for (file, kind) in
            [(V3, DocumentKind::ArrayV3), (V2, DocumentKind::ArrayV2), (V2_GROUP, DocumentKind::GroupV2)]
        {
            let key = join(prefix, file);
            let Some(object) = store.get(&key)? else { continue };
            let name = store.locate(&key);
            let volume = name.strip_suffix(file).unwrap_or(&name).trim_end_matches(['/', '\\']).to_owned();
            let bytes = unpacked(object.bytes, object.gzip, &name)?;
            let json = parse(&bytes, &name)?;
            let kind = match (kind, json["node_type"].as_str()) {
                (DocumentKind::ArrayV3, Some("array")) => DocumentKind::ArrayV3,
                (DocumentKind::ArrayV3, Some("group")) => DocumentKind::GroupV3,
                (DocumentKind::ArrayV3, _) => {
                    let reason = "this describes neither an array nor a group";
                    return Err(Error::volume(SourceFailure::Damaged, name, reason));
                }
                (kind, _) => kind,
            };
            let (length, checksum) = (bytes.len(), crc32fast::hash(&bytes));
            let mark = format!("metadata {length} bytes, crc32 {checksum:08x}, version {}", object.mark);
            return Ok(Some(Self { volume, name, prefix: prefix.to_owned(), kind, json, mark }));
        }
        Ok(None)
    }

    /// Returns the document of an array that does not exist yet.
    pub(super) fn planned(store: &Arc<dyn Store>, kind: DocumentKind, json: Value) -> Self {
        let name = store.locate(if kind == DocumentKind::ArrayV2 { V2 } else { V3 });
        Self { volume: name.clone(), name, prefix: String::new(), kind, json, mark: String::new() }
    }

    /// Whether the document describes an array instead of a group.
    pub(super) fn is_array(&self) -> bool {
        matches!(self.kind, DocumentKind::ArrayV2 | DocumentKind::ArrayV3)
    }

    /// Returns the path or URL of the array or group.
    pub(super) fn volume(&self) -> &str {
        &self.volume
    }

    /// Returns the path or URL of the document.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the key of the array or group.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the attributes if they are in the document itself, so that no request is needed.
    pub(super) fn own_attributes(&self) -> Option<&Value> {
        matches!(self.kind, DocumentKind::ArrayV3 | DocumentKind::GroupV3).then(|| &self.json["attributes"])
    }

    /// Returns the attributes, which belong to users and conventions such as OME-Zarr.
    pub(super) fn attributes(&self, store: &Arc<dyn Store>) -> Result<Value> {
        if let Some(attributes) = self.own_attributes() {
            return Ok(attributes.clone());
        }
        let key = join(&self.prefix, V2_ATTRIBUTES);
        let Some(object) = store.get(&key)? else { return Ok(Value::Null) };
        let name = store.locate(&key);
        parse(&unpacked(object.bytes, object.gzip, &name)?, &name)
    }

    /// Returns the names of the axes, empty for an axis without one; nothing if no axis has one.
    pub(super) fn axes(&self) -> Vec<String> {
        let names = self.json["dimension_names"].as_array().map(Vec::as_slice).unwrap_or_default();
        let names: Vec<String> = names.iter().map(|name| name.as_str().unwrap_or_default().to_owned()).collect();
        if names.iter().all(String::is_empty) { Vec::new() } else { names }
    }

    /// Returns the type of the elements.
    pub(super) fn dtype(&self) -> Result<DType> {
        let written = self.dtype_written();
        let found = match (self.kind, written) {
            (_, Value::Null) => {
                return Err(Error::volume(SourceFailure::Damaged, &self.name, "it names no element type"));
            }
            (DocumentKind::ArrayV2, Value::String(text)) => dtype_v2(text),
            (_, Value::String(text)) => dtype_v3(text),
            (DocumentKind::ArrayV3, Value::Object(object)) => {
                object.get("name").and_then(Value::as_str).and_then(dtype_v3)
            }
            _ => None,
        };
        found.ok_or_else(|| Error::UnsupportedDType {
            volume: self.volume.clone(),
            dtype: written.as_str().map_or_else(|| written.to_string(), str::to_owned),
        })
    }

    /// Whether elements are booleans, which are read as bytes.
    pub(super) fn is_bool(&self) -> bool {
        match (self.kind, self.dtype_written()) {
            (DocumentKind::ArrayV2, Value::String(text)) => is_bool_v2(text),
            (DocumentKind::ArrayV3, Value::String(text)) => text == BOOL,
            (DocumentKind::ArrayV3, Value::Object(object)) => object.get("name").is_some_and(|name| name == BOOL),
            _ => false,
        }
    }

    /// Returns the document in the form that zarrs accepts: version 3, with the codecs in its spelling.
    pub(super) fn metadata(&self) -> Result<ArrayMetadata> {
        let damaged = |error| Error::volume(SourceFailure::Damaged, &self.name, UNREADABLE).because(error);
        let mut json = self.json.clone();
        let context = self.context()?;
        if let Some(fill) = json.get_mut("fill_value").filter(|_| self.is_bool()) {
            match fill.as_u64() {
                Some(0) => *fill = json!(false),
                Some(1) => *fill = json!(true),
                Some(_) | None => {}
            }
        }
        if self.kind != DocumentKind::ArrayV2 {
            json["codecs"] = spelling::codecs_v3(&json["codecs"], context).map_err(|refused| self.refused(refused))?;
            return serde_json::from_value(json).map(ArrayMetadata::V3).map_err(damaged);
        }
        if let Some(fill @ Value::Null) = json.get_mut("fill_value") {
            // The format does not define the fill value then. All peers read 0, and tensorstore relies on it: it leaves
            // out chunks of zeros.
            *fill = match self.dtype()? {
                _ if self.is_bool() => json!(false),
                DType::Complex64 | DType::Complex128 => json!([0.0, 0.0]),
                DType::F16 | DType::F32 | DType::F64 => json!(0.0),
                _ => json!(0),
            };
        }
        if context.axes == 0 && json["order"] == "F" {
            // A single element has no order, and zarrs would create an empty transposition.
            json["order"] = json!("C");
        }
        // Codecs of numcodecs that zarrs knows only in version 3, or not at all, are added after the conversion.
        let (filters, compressor) = (json["filters"].take(), json["compressor"].take());
        let CodecsV2 { arrays, serializer, bytes } =
            spelling::codecs_v2(&filters, &compressor, context).map_err(|refused| self.refused(refused))?;
        let document = serde_json::from_value(json).map_err(damaged)?;
        let mut document = array_metadata_v2_to_v3(&document)
            .map_err(|error| Error::volume(SourceFailure::Unsupported, &self.name, UNREADABLE).because(error))?;
        let spelled = |codecs: Vec<Value>| {
            let codecs: serde_json::Result<Vec<MetadataV3>> = codecs.into_iter().map(serde_json::from_value).collect();
            codecs.map_err(damaged)
        };
        // The conversion yields an optional transposition and the codec to bytes, in this order.
        let usual = document.codecs.pop();
        document.codecs.extend(spelled(arrays)?);
        document.codecs.extend(spelled(serializer.into_iter().collect())?.pop().or(usual));
        document.codecs.extend(spelled(bytes)?);
        Ok(ArrayMetadata::V3(document))
    }

    fn context(&self) -> Result<CodecContext> {
        let is_big = match self.dtype_written().as_str().unwrap_or_default().chars().next() {
            Some('>') => true,
            Some('<') => false,
            _ => cfg!(target_endian = "big"),
        };
        let axes = self.json["shape"].as_array().map_or(0, Vec::len);
        Ok(CodecContext { axes, size: self.dtype()?.size(), big_endian: self.kind == DocumentKind::ArrayV2 && is_big })
    }

    fn refused(&self, Refused { kind, reason }: Refused) -> Error {
        Error::volume(kind, &self.name, format!("{UNREADABLE}: {reason}"))
    }

    fn dtype_written(&self) -> &Value {
        if self.kind == DocumentKind::ArrayV2 { &self.json["dtype"] } else { &self.json["data_type"] }
    }

    /// Returns a line that identifies the volume and its metadata.
    ///
    /// It includes the modification time, or the server's entity tag: a volume that was created anew is a different
    /// one, even if it has the same shape.
    pub(super) fn identity(&self) -> String {
        format!("zarr {:?} {}", self.volume, self.mark)
    }

    /// Returns the members that decoded chunks depend on, as JSON. The shape is not among them: an array that grows
    /// keeps its chunks.
    pub(super) fn chunk_metadata(&self) -> String {
        let mut json = self.json.clone();
        if let Value::Object(members) = &mut json {
            members.retain(|name, _| !matches!(name.as_str(), "attributes" | "consolidated_metadata" | "shape"));
        }
        json.sort_all_objects();
        json.to_string()
    }

    /// Returns a short description: version, compression, sharding.
    pub(super) fn describe(&self, sharded: bool) -> String {
        let version = if self.kind == DocumentKind::ArrayV2 { "Zarr v2" } else { "Zarr v3" };
        let packing = self.packing().unwrap_or_else(|| "uncompressed".to_owned());
        let elements = if self.is_bool() { ", elements of bool" } else { "" };
        format!("{version}, {packing}{}{elements}", if sharded { ", sharded" } else { "" })
    }

    /// Returns the encoding of the chunks, if a new volume can have it.
    pub(super) fn encoding(&self) -> Option<Encoding> {
        self.packing().map_or(Some(Encoding::Raw), |packing| Encoding::named(&packing))
    }

    /// Returns the name of the compression; `None` without one.
    fn packing(&self) -> Option<String> {
        match self.kind {
            DocumentKind::ArrayV2 => {
                self.json["compressor"]["id"].as_str().and_then(spelling::packing_name).map(str::to_owned)
            }
            _ => packing_v3(&self.json["codecs"]),
        }
    }
}

/// Puts a prefix in front of a key.
pub(super) fn join(prefix: &str, key: &str) -> String {
    if prefix.is_empty() { key.to_owned() } else { format!("{prefix}/{key}") }
}

/// Returns the message for a group that was opened as an array, with the arrays in it.
pub(super) fn group(store: &Arc<dyn Store>, prefix: &str) -> String {
    // Some stores cannot list, such as web servers; then the list is left out.
    let names = store.list(prefix).unwrap_or_default();
    let folders = names.iter().filter_map(|name| name.strip_suffix('/'));
    let is_array = |name: &str| {
        let found = Document::read(store, &join(prefix, name));
        matches!(found, Ok(Some(document)) if document.is_array())
    };
    let mut arrays: Vec<&str> = folders.take(LOOKED_AT).filter(|name| is_array(name)).collect();
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

/// Returns the bytes of an object, unpacked if the store wrapped them in gzip.
pub(super) fn unwrapped(bytes: Vec<u8>, gzip: bool, limit: usize) -> Result<Vec<u8>, crate::error::Cause> {
    if !gzip {
        return Ok(bytes);
    }
    let mut unpacked = Vec::new();
    gzip::unpack(&bytes, limit, &mut unpacked)?;
    Ok(unpacked)
}

fn unpacked(bytes: Vec<u8>, gzip: bool, name: &str) -> Result<Vec<u8>> {
    unwrapped(bytes, gzip, MOST_BYTES)
        .map_err(|cause| Error::volume(SourceFailure::Damaged, name, "it cannot be unpacked").because(cause))
}

fn parse(bytes: &[u8], name: &str) -> Result<Value> {
    serde_json::from_slice(bytes)
        .map_err(|error| Error::volume(SourceFailure::Damaged, name, "this is no JSON document").because(error))
}

fn dtype_v2(text: &str) -> Option<DType> {
    // Decoding converts big-endian elements to native byte order, so only the kind matters here.
    let kind = text.strip_prefix(['<', '>', '|'])?;
    Some(match kind {
        // Booleans are bytes of 0 and 1.
        "u1" | "b1" => DType::U8,
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

fn is_bool_v2(text: &str) -> bool {
    matches!(text, "|b1" | "<b1" | ">b1")
}

fn dtype_v3(text: &str) -> Option<DType> {
    let name = match text {
        "complex_float32" => "complex64",
        "complex_float64" => "complex128",
        BOOL => "uint8",
        name => name,
    };
    dtype_named(name)
}

/// Returns the names of the codecs that pack bytes; for shards, those of the inner chunks.
fn packing_v3(codecs: &Value) -> Option<String> {
    let mut names = Vec::new();
    for codec in codecs.as_array()? {
        match codec["name"].as_str().or(codec.as_str())? {
            "sharding_indexed" => names.extend(packing_v3(&codec["configuration"]["codecs"])),
            name => names.extend(spelling::packing_name(name).map(str::to_owned)),
        }
    }
    (!names.is_empty()).then(|| names.join(" and "))
}
