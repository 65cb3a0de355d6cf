//! The `info` document of a Precomputed volume. Members that the elements depend on are checked strictly, others are
//! ignored.
//!
//! The document is untrusted input. An accepted one has lengths with products that do not overflow, keys that stay in
//! the volume, and chunks that fit in memory.

use ndarray_shm::DType;
use serde_json::Value;

use super::key;
use super::sharding::Sharding;
use crate::description::{dtype_name, dtype_named, quality_in_words};
use crate::error::{Error, Result, SourceFailure};
use crate::gzip;
use crate::store::{Object, Store};
use crate::volume::{VolumeKind, VolumeMeta};

/// Key of the document.
pub(super) const INFO: &str = "info";

/// Maximum length of the unpacked document.
const LONGEST_INFO: usize = 64 << 20;

/// Maximum bytes of a decoded chunk: chunks are decoded whole.
const LARGEST_CHUNK: u64 = 2 << 30;

/// Quality of pictures if the scale does not give one; also CloudVolume's default.
const JPEG_QUALITY: u8 = 85;

/// A parsed document.
#[derive(Debug)]
pub(super) struct Info {
    pub(super) scales: Vec<Scale>,
    /// Path or URL of the document, for messages.
    pub(super) file: String,
    /// Tells this document from a later one under the same key.
    pub(super) mark: String,
}

/// One scale of a document.
#[derive(Debug, Clone)]
pub(super) struct Scale {
    /// As written in the document.
    pub(super) key: String,
    /// Prefix of the chunks' keys, from the volume's root: `8_8_40/`, or empty.
    pub(super) prefix: String,
    pub(super) meta: VolumeMeta,
    pub(super) resolution: Vec<f64>,
    /// Whether the elements are stored again in chunks of another size.
    pub(super) has_other_chunks: bool,
    /// As written in the document: not every encoding can be read.
    pub(super) encoding: String,
    pub(super) sharding: Option<Sharding>,
    /// Elements along x, y, z of a `compressed_segmentation` block.
    pub(super) block_size: Option<[usize; 3]>,
    pub(super) jpeg_quality: u8,
}

impl Info {
    /// Reads the document of a store.
    pub(super) fn read(store: &dyn Store) -> Result<Self> {
        let file = store.locate(INFO);
        let Some(object) = store.get(INFO)? else {
            let reason = "there is no such file: a Precomputed volume has its description there";
            return Err(Error::volume(SourceFailure::Absent, file, reason));
        };
        let Object { bytes, gzip, mark, .. } = object;
        let bytes = if gzip || gzip::is_gzip(&bytes) {
            let mut text = Vec::new();
            gzip::unpack(&bytes, LONGEST_INFO, &mut text).map_err(|cause| {
                Error::volume(SourceFailure::Damaged, &file, "it cannot be unpacked").because(cause)
            })?;
            text
        } else {
            bytes
        };
        Self::parse(&bytes, file, &mark)
    }

    /// Parses a document. Messages name it `file`.
    pub(super) fn parse(text: &[u8], file: String, version: &str) -> Result<Self> {
        let json: Value = serde_json::from_slice(text)
            .map_err(|error| Error::volume(SourceFailure::Damaged, &file, "this is no JSON document").because(error))?;
        let checksum = crc32fast::hash(text);
        let mark = format!("info {} bytes, crc32 {checksum:08x}, version {version}", text.len());
        let document = InfoParser { json: &json, file: &file };
        Ok(Self { scales: document.scales()?, file, mark })
    }

    /// Returns one scale.
    pub(super) fn scale(&self, mip: usize) -> Result<&Scale> {
        self.scales.get(mip).ok_or_else(|| {
            let keys: Vec<&str> = self.scales.iter().take(16).map(|scale| scale.key.as_str()).collect();
            let scales = format!("{} ({})", self.scales.len(), keys.join(", "));
            Error::Scale { volume: self.file.clone(), mip, scales }
        })
    }
}

/// A document being parsed.
struct InfoParser<'a> {
    json: &'a Value,
    file: &'a str,
}

impl InfoParser<'_> {
    fn wrong(&self, reason: impl Into<String>) -> Error {
        Error::volume(SourceFailure::Damaged, self.file, reason)
    }

    fn dtype(&self) -> Result<DType> {
        if !self.json.is_object() {
            return Err(self.wrong("this is no JSON object"));
        }
        if let Some(what) = what_it_is_instead(self.json) {
            return Err(Error::volume(SourceFailure::NotAVolume, self.file, what));
        }
        match &self.json["data_type"] {
            Value::String(name) => {
                dtype(name).ok_or_else(|| Error::UnsupportedDType { volume: self.file.to_owned(), dtype: name.clone() })
            }
            _ => Err(self.wrong("`data_type` is not the name of an element type")),
        }
    }

    /// Returns the kind of the elements. Decoding does not depend on it, so other values are not an error.
    fn kind(&self) -> Option<VolumeKind> {
        let text = self.json["type"].as_str()?;
        [VolumeKind::Image, VolumeKind::Segmentation].into_iter().find(|kind| text.eq_ignore_ascii_case(kind.name()))
    }

    fn scales(&self) -> Result<Vec<Scale>> {
        let dtype = self.dtype()?;
        let channels = match &self.json["num_channels"] {
            // Often missing in documents written by hand.
            Value::Null => 1,
            value => positive(value).ok_or_else(|| {
                self.wrong(format!("`num_channels` is {}, but must be a whole number from 1 on", brief(value)))
            })?,
        };
        match self.json["scales"].as_array() {
            Some(scales) if !scales.is_empty() => {
                scales.iter().enumerate().map(|(mip, scale)| self.scale(mip, scale, channels, dtype)).collect()
            }
            _ => Err(self.wrong("`scales` is not a list of scales: there is nothing to read")),
        }
    }

    fn scale(&self, mip: usize, json: &Value, channels: u64, dtype: DType) -> Result<Scale> {
        let wrong = |member: &str, value: &Value, wanted: &str| {
            self.wrong(format!("scale {mip}: `{member}` is {}, but must be {wanted}", brief(value)))
        };
        let member = |name: &'static str, wanted: &str| {
            json.get(name)
                .ok_or_else(|| self.wrong(format!("scale {mip}: there is no `{name}`, which must be {wanted}")))
        };
        let text = |name: &'static str| {
            let value = member(name, "a text")?;
            value.as_str().map(str::to_owned).ok_or_else(|| wrong(name, value, "a text"))
        };
        let key = text("key")?;
        let prefix = key::prefix(&key).map_err(|reason| self.wrong(format!("scale {mip}: `key` {reason}")))?;

        let lengths = "three whole numbers from 1 on";
        let size = member("size", lengths)?;
        let size = three(size, length).ok_or_else(|| wrong("size", size, "three whole numbers from 0 on"))?;
        let chunk_sizes = member("chunk_sizes", "a list of chunk sizes")?;
        // With several chunk sizes, all elements are stored once for each size, under different names: the first is as
        // good as any.
        let chunk = chunk_sizes.as_array().and_then(|sizes| sizes.first()).unwrap_or(&Value::Null);
        let chunk = three(chunk, positive)
            .ok_or_else(|| wrong("chunk_sizes", chunk_sizes, &format!("a list that begins with {lengths}")))?;
        let origin = match json.get("voxel_offset") {
            None | Some(Value::Null) => [0; 3],
            Some(value) => three(value, whole).ok_or_else(|| wrong("voxel_offset", value, "three whole numbers"))?,
        };
        let resolution = member("resolution", "three numbers")?;
        let resolution =
            three(resolution, Value::as_f64).ok_or_else(|| wrong("resolution", resolution, "three numbers"))?;
        if origin.iter().zip(size).any(|(origin, length)| origin.checked_add_unsigned(length).is_none()) {
            return Err(self.wrong(format!("scale {mip}: it ends beyond any coordinate ({origin:?} and {size:?})")));
        }

        let encoding = text("encoding")?;
        let block_size = match json.get("compressed_segmentation_block_size") {
            None | Some(Value::Null) => None,
            Some(value) => Some(
                three(value, |length| positive(length).and_then(|length| usize::try_from(length).ok()))
                    .ok_or_else(|| wrong("compressed_segmentation_block_size", value, lengths))?,
            ),
        };
        let jpeg_quality = json.get("jpeg_quality").and_then(Value::as_u64).filter(|quality| *quality <= 100);
        let jpeg_quality = jpeg_quality.and_then(|quality| u8::try_from(quality).ok());
        let grid: Vec<u64> = size.iter().zip(chunk).map(|(size, chunk)| size.div_ceil(chunk)).collect();
        let sharding = match json.get("sharding") {
            None | Some(Value::Null) => None,
            Some(value) => Some(
                Sharding::read(value, &grid)
                    .map_err(|reason| self.wrong(format!("scale {mip}: `sharding` {reason}")))?,
            ),
        };

        // Edge chunks are cut off, so a chunk is never larger than the volume.
        let mut chunk_shape: Vec<u64> =
            chunk.iter().zip(size).map(|(chunk, length)| (*chunk).min(length.max(1))).collect();
        chunk_shape.push(channels);
        let bytes = chunk_shape.iter().try_fold(dtype.size() as u64, |so_far, length| so_far.checked_mul(*length));
        if bytes.is_none_or(|bytes| bytes > LARGEST_CHUNK || isize::try_from(bytes).is_err()) {
            let reason = format!(
                "scale {mip}: `chunk_sizes` {chunk:?} with {channels} channels of {dtype} makes chunks of more than \
                 {LARGEST_CHUNK} bytes, which cannot be decoded whole"
            );
            return Err(Error::volume(SourceFailure::Unsupported, self.file, reason));
        }
        let packing = if sharding.is_some() { ", sharded" } else { "" };
        let quality = jpeg_quality.filter(|_| encoding == "jpeg").map(quality_in_words).unwrap_or_default();
        let meta = VolumeMeta {
            origin: origin.into_iter().chain([0]).collect(),
            shape: size.into_iter().chain([channels]).collect(),
            stored_shape: chunk_shape.clone(),
            chunk_shape,
            dtype,
            kind: self.kind(),
            fill: None,
            axes: ["x", "y", "z", "channel"].map(str::to_owned).to_vec(),
            description: format!("Precomputed, {encoding}{quality}{packing}"),
        };
        Ok(Scale {
            key,
            prefix,
            meta,
            resolution: resolution.to_vec(),
            has_other_chunks: chunk_sizes.as_array().is_some_and(|sizes| sizes.len() > 1),
            encoding,
            sharding,
            block_size,
            jpeg_quality: jpeg_quality.unwrap_or(JPEG_QUALITY),
        })
    }
}

/// Returns the format's name of an element type, if it has one.
pub(super) fn name_of(dtype: DType) -> Option<&'static str> {
    let is_known = !matches!(dtype, DType::F16 | DType::Bf16 | DType::F64 | DType::Complex64 | DType::Complex128);
    is_known.then(|| dtype_name(dtype)).flatten()
}

/// Returns the element type of a name. Accepts some names that are not in the specification but are unambiguous.
fn dtype(name: &str) -> Option<DType> {
    dtype_named(name).filter(|dtype| !matches!(dtype, DType::Complex64 | DType::Complex128))
}

/// Returns a whole number, which may be written as a float, `64.0`: NumPy numbers are often written so.
fn whole(value: &Value) -> Option<i64> {
    /// 2^53: from here on, floats cannot represent every whole number.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    #[expect(clippy::cast_possible_truncation, reason = "it is whole and has 53 bits")]
    let of_float = |float: f64| (float.fract() == 0.0 && float.abs() < EXACT).then_some(float as i64);
    value.as_i64().or_else(|| value.as_f64().filter(|_| value.is_f64()).and_then(of_float))
}

fn length(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| whole(value).and_then(|length| u64::try_from(length).ok()))
}

fn positive(value: &Value) -> Option<u64> {
    length(value).filter(|length| *length > 0)
}

fn three<T: Copy>(value: &Value, read: impl Fn(&Value) -> Option<T>) -> Option<[T; 3]> {
    let values: Option<Vec<T>> = value.as_array()?.iter().map(read).collect();
    values?.try_into().ok()
}

/// Returns the beginning of a value, for messages: values of a damaged document may have any length.
fn brief(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 80 { text } else { format!("{}..", text.chars().take(80).collect::<String>()) }
}

/// Returns what a document describes if it is not a volume of elements: `info` documents describe many things.
fn what_it_is_instead(json: &Value) -> Option<String> {
    if json.get("graph").is_some_and(Value::is_object) || json["app"].get("supported_api_versions").is_some() {
        let watershed = json["data_dir"].as_str().map_or(String::new(), |url| format!(": open `{url}` instead"));
        return Some(format!(
            "this is a graphene volume: a chunked graph server joins its labels. Only the supervoxels below it can be \
             read{watershed}"
        ));
    }
    let kind = json["@type"].as_str().unwrap_or_default();
    let what = match kind {
        "" | "neuroglancer_multiscale_volume" => {
            let parts = |member: &str| json.get(member).is_some_and(Value::is_string);
            return (json.get("scales").is_none() && (parts("mesh") || parts("skeletons"))).then(|| {
                "this describes meshes or skeletons without a volume (there is no `scales`): it has no elements to read"
                    .to_owned()
            });
        }
        "neuroglancer_annotations_v1" => "annotations",
        "neuroglancer_legacy_mesh" | "neuroglancer_multilod_draco" => "meshes",
        "neuroglancer_skeletons" => "skeletons",
        "neuroglancer_segment_properties" => "properties of segments",
        _ => "something that is not known here",
    };
    Some(format!("this describes {what} (`@type` is `{kind}`), not a volume of elements"))
}
