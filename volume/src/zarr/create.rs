//! Creates arrays. A new array is a single document, so it exists completely or not at all.

use std::fmt::Display;
use std::sync::Arc;

use half::{bf16, f16};
use ndarray_shm::DType;
use serde_json::{Value, json};

use crate::description::{Encoding, Lengths, NewVolume, dtype_name};
use crate::error::{Error, Result, SourceFailure};
use crate::store::{self, Store};
use crate::volume::{is_channels, is_time};
use crate::zarr::array::ZarrArray;
use crate::zarr::document::{Document, DocumentKind, V2, V2_ATTRIBUTES, V2_GROUP, V3};

/// Maximum bytes that blosc can pack at once, minus its overhead.
const MOST_BLOSC: u64 = (1 << 31) - 17;

const TAKEN: &str = "there is something already: choose another place, or remove it first";

/// Creates an array without chunks.
pub(super) fn create(store: &Arc<dyn Store>, new: &NewVolume) -> Result<ZarrArray> {
    let name = store.locate("").trim_end_matches(['/', '\\']).to_owned();
    check(new).map_err(|reason| Error::new_volume(&name, reason))?;
    let (kind, file) = if new.version == 2 { (DocumentKind::ArrayV2, V2) } else { (DocumentKind::ArrayV3, V3) };
    let json = if new.version == 2 { metadata_v2(new) } else { metadata_v3(new) };
    // A document that cannot be opened is never written.
    ZarrArray::open(store, &Document::planned(store, kind, json.clone())).map_err(Error::of_new_volume)?;
    refuse_to_replace(store, &name)?;
    // Version 2 keeps attributes in their own document. It is written before the document that makes the place a
    // volume, even if it is empty: so no process adds attributes to an existing volume.
    let attributes = (kind == DocumentKind::ArrayV2).then(|| text(&attributes(new).unwrap_or_else(|| json!({}))));
    if let Some(attributes) = &attributes {
        store.put_new(V2_ATTRIBUTES, attributes.clone())?;
    }
    let is_maker = store::make(&**store, file, &text(&json))?;
    if let Some(attributes) = attributes {
        let found = store.get(V2_ATTRIBUTES)?;
        match (is_maker, found.is_some_and(|found| found.bytes == attributes)) {
            (_, true) => {}
            // The attributes are from a process that was killed, or that lost the race for the array's document.
            (true, false) => store.put(V2_ATTRIBUTES, attributes, false)?,
            (false, false) => return Err(taken(store.locate(V2_ATTRIBUTES), TAKEN)),
        }
    }
    match Document::read(store, "")? {
        Some(document) => ZarrArray::open(store, &document),
        None => Err(Error::volume(SourceFailure::Absent, name, "it was made, but is already gone")),
    }
}

fn refuse_to_replace(store: &Arc<dyn Store>, name: &str) -> Result<()> {
    for file in [V3, V2, V2_GROUP, "info"] {
        if store.get(file)?.is_some() {
            return Err(taken(store.locate(file), TAKEN));
        }
    }
    // Attributes without an array are from a creator that was killed before it wrote the array's document: ignore them.
    match store.list("")?.iter().find(|name| *name != V2_ATTRIBUTES) {
        Some(other) => Err(taken(name, format!("{TAKEN} (`{other}`)"))),
        None => Ok(()),
    }
}

fn taken(place: impl Display, reason: impl Into<String>) -> Error {
    Error::volume(SourceFailure::AlreadyExists, place, reason)
}

/// Returns what Zarr cannot store of a new array.
pub(crate) fn check(new: &NewVolume) -> Result<(), String> {
    let axes = new.shape.len();
    let tiles = |lengths: &[u64]| lengths.len() == axes && !lengths.contains(&0);
    if !tiles(&new.chunk_shape) {
        return Err(format!("chunks of shape {:?} cannot tile a volume of shape {:?}", new.chunk_shape, new.shape));
    }
    if !matches!(new.version, 2 | 3) {
        return Err(format!("there is no Zarr version {}: choose 2 or 3", new.version));
    }
    new.check_quality()?;
    if let Some(shard) = &new.shard_shape {
        if new.version == 2 {
            return Err("Zarr version 2 has no shards: choose version 3".to_owned());
        }
        if !tiles(shard) || shard.iter().zip(&new.chunk_shape).any(|(shard, chunk)| shard % chunk != 0) {
            return Err(format!("shards of shape {shard:?} are no multiples of chunks of shape {:?}", new.chunk_shape));
        }
    }
    if new.origin.iter().any(|origin| *origin != 0) {
        return Err(format!("Zarr volumes begin at 0, not at {:?}", new.origin));
    }
    if !new.axes.is_empty() && new.axes.len() != axes {
        return Err(format!("the names of axes {:?} are not one for each of {axes} axes", new.axes));
    }
    let is_complete = new.resolution.len() == axes || (has_channels(new) && new.resolution.len() + 1 == axes);
    if !new.resolution.is_empty() && !is_complete {
        return Err(format!("the resolution {:?} is not one number for each of {axes} axes", new.resolution));
    }
    if new.resolution.iter().any(|length| !length.is_finite()) {
        return Err(format!("the resolution {:?} is not made of numbers", new.resolution));
    }
    if new.fill.as_ref().is_some_and(|element| element.len() != new.dtype.size()) {
        return Err(format!("the fill value is no element of type {}", new.dtype));
    }
    if new.version == 2 && new.dtype == DType::Bf16 {
        return Err("Zarr version 2 has no bfloat16: choose version 3".to_owned());
    }
    if let Some(kind) = new.kind {
        return Err(format!("Zarr has no member that says that a volume is of type {kind}: leave the type out"));
    }
    if dtype_name(new.dtype).is_none() {
        return Err(format!("Zarr has no elements of type {}", new.dtype));
    }
    let chunk = new.chunk_shape.iter().fold(new.dtype.size() as u64, |size, length| size.saturating_mul(*length));
    match new.encoding {
        Encoding::Blosc if chunk > MOST_BLOSC => Err(format!("blosc cannot pack chunks of {chunk} bytes")),
        Encoding::Raw | Encoding::Gzip | Encoding::Zstd | Encoding::Blosc => Ok(()),
        other => Err(format!("Zarr has no encoding {}: choose raw, gzip, zstd or blosc", other.name())),
    }
}

fn metadata_v2(new: &NewVolume) -> Value {
    let order = if new.dtype.size() == 1 { '|' } else { '<' };
    let kind = new.dtype.as_str().trim_start_matches(['<', '|']);
    json!({
        "zarr_format": 2,
        "shape": new.shape,
        "chunks": new.chunk_shape,
        "dtype": format!("{order}{kind}"),
        "order": "C",
        "fill_value": fill_value(new),
        "filters": null,
        "compressor": match new.encoding {
            Encoding::Gzip => json!({"id": "gzip", "level": 5}),
            Encoding::Zstd => json!({"id": "zstd", "level": 3}),
            Encoding::Blosc => json!({"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}),
            _ => Value::Null,
        },
        // A directory level for each axis: millions of names in one directory would be slow.
        "dimension_separator": "/",
    })
}

pub(super) fn metadata_v3(new: &NewVolume) -> Value {
    let mut codecs = vec![match new.dtype.size() {
        1 => json!({"name": "bytes"}),
        _ => json!({"name": "bytes", "configuration": {"endian": "little"}}),
    }];
    codecs.extend(match new.encoding {
        Encoding::Gzip => Some(json!({"name": "gzip", "configuration": {"level": 5}})),
        Encoding::Zstd => Some(json!({"name": "zstd", "configuration": {"level": 3, "checksum": false}})),
        Encoding::Blosc => Some(json!({"name": "blosc", "configuration": {
            "cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": new.dtype.size(), "blocksize": 0,
        }})),
        _ => None,
    });
    if new.shard_shape.is_some() {
        codecs = vec![sharding_codec(&new.chunk_shape, &codecs)];
    }
    let mut document = json!({
        "zarr_format": 3,
        "node_type": "array",
        "shape": new.shape,
        "data_type": dtype_name(new.dtype),
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": new.shard_shape.as_ref().unwrap_or(&new.chunk_shape)},
        },
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill_value(new),
        "codecs": codecs,
        "attributes": attributes(new).unwrap_or_else(|| json!({})),
    });
    if new.axes.iter().any(|name| !name.is_empty()) {
        let names = new.axes.iter().map(|name| if name.is_empty() { Value::Null } else { json!(name) });
        document["dimension_names"] = names.collect();
    }
    document
}

fn has_channels(new: &NewVolume) -> bool {
    new.axes.last().is_some_and(|name| is_channels(name))
}

/// Returns the version 3 codec that groups chunks of this shape, encoded by these codecs, in shards.
pub(crate) fn sharding_codec(chunk_shape: &[u64], codecs: &[Value]) -> Value {
    json!({"name": "sharding_indexed", "configuration": {
        "chunk_shape": chunk_shape,
        "codecs": codecs,
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
        "index_location": "end",
    }})
}

/// Returns the attributes in which tensorstore keeps the resolution; Zarr itself has none.
fn attributes(new: &NewVolume) -> Option<Value> {
    if new.resolution.is_empty() {
        return None;
    }
    let units = dimension_units(&new.resolution, &new.unit, &new.axes, new.shape.len());
    Some(json!({"dimension_units": units.collect::<Value>()}))
}

/// Returns what tensorstore calls the unit of each axis: "8 nm". Axes of channels and of time have no unit of length.
pub(crate) fn dimension_units(
    resolution: &[f64],
    unit: &str,
    names: &[String],
    axes: usize,
) -> impl Iterator<Item = Value> {
    (0..axes).map(move |axis| {
        let is_length = !names.get(axis).is_some_and(|name| is_channels(name) || is_time(name));
        let length = resolution.get(axis).filter(|_| is_length);
        length.map_or(Value::Null, |length| json!(format!("{length} {unit}").trim_end()))
    })
}

/// Parses the attributes that [`attributes`] returns: lengths and their common unit. An axis without a unit has the
/// length 1, and is left out at the end.
pub(super) fn lengths(attributes: &Value, axes: usize) -> Option<Lengths> {
    let mut common = None;
    let mut resolution = Vec::new();
    let units = attributes["dimension_units"].as_array().filter(|units| units.len() == axes)?;
    let last = units.iter().rposition(|unit| !unit.is_null())?;
    for axis in &units[..=last] {
        if axis.is_null() {
            resolution.push(1.0);
            continue;
        }
        let text = axis.as_str()?.trim();
        let (number, unit) = text.split_once(' ').unwrap_or(("1", text));
        resolution.push(number.parse().ok()?);
        if *common.get_or_insert(unit) != unit {
            return None;
        }
    }
    Some(Lengths { resolution, unit: common?.to_owned(), ..Lengths::default() })
}

/// Returns the element of missing chunks as Zarr writes it. The bytes are as many as an element has.
fn fill_value(new: &NewVolume) -> Value {
    let zero = vec![0; new.dtype.size()];
    let bytes = new.fill.as_ref().unwrap_or(&zero);
    macro_rules! number {
        ($type:ty) => {
            bytemuck::pod_read_unaligned::<$type>(bytes)
        };
    }
    match new.dtype {
        DType::U16 => json!(number!(u16)),
        DType::U32 => json!(number!(u32)),
        DType::U64 => json!(number!(u64)),
        DType::I8 => json!(number!(i8)),
        DType::I16 => json!(number!(i16)),
        DType::I32 => json!(number!(i32)),
        DType::I64 => json!(number!(i64)),
        DType::F16 => real(f16::from_bits(number!(u16)).into()),
        DType::Bf16 => real(bf16::from_bits(number!(u16)).into()),
        DType::F32 => real(number!(f32).into()),
        DType::F64 => real(number!(f64)),
        DType::Complex64 => number!([f32; 2]).map(|part| real(part.into())).into_iter().collect(),
        DType::Complex128 => number!([f64; 2]).map(real).into_iter().collect(),
        _ => json!(number!([u8; 1])[0]),
    }
}

fn real(number: f64) -> Value {
    if number.is_finite() {
        json!(number)
    } else {
        json!(if number.is_nan() {
            "NaN"
        } else if number > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        })
    }
}

fn text(json: &Value) -> Vec<u8> {
    format!("{json:#}\n").into_bytes()
}
