//! Converts codecs as other programs write them to the spelling that zarrs accepts.
//!
//! zarr-python, numcodecs and tensorstore leave out options with defaults, and give codecs of Zarr v2 the prefix
//! `numcodecs.` in v3. The result is a list of v3 codecs with full configurations. Codecs that this crate implements
//! get private names (`extensions`). Unknown codecs are passed on unchanged: zarrs refuses them with their name.

use serde_json::{Map, Value, json};

use crate::error::SourceFailure;
use crate::zarr::configuration;

/// Prefix of the names of v2 codecs in v3.
const NUMCODECS: &str = "numcodecs.";

/// Default level of codecs if the format leaves the level to the writer.
const DEFAULT_LEVEL: i64 = 5;

/// Facts about an array on which the configurations of its codecs depend.
#[derive(Debug, Clone, Copy)]
pub(super) struct CodecContext {
    /// Number of axes.
    pub(super) axes: usize,
    /// Bytes of one element.
    pub(super) size: usize,
    /// Whether elements are stored big-endian; set only for Zarr v2.
    pub(super) big_endian: bool,
}

/// Filters and compressor of a Zarr v2 array, in their order.
#[derive(Debug)]
pub(super) struct CodecsV2 {
    /// Array-to-array codecs.
    pub(super) arrays: Vec<Value>,
    /// The array-to-bytes codec, if it is not the default one.
    pub(super) serializer: Option<Value>,
    /// Bytes-to-bytes codecs.
    pub(super) bytes: Vec<Value>,
}

/// The reason why a codec cannot be used.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) kind: SourceFailure,
    pub(super) reason: String,
}

/// The stage of a codec in a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Array,
    Serializer,
    Bytes,
}

type Configuration = Map<String, Value>;

/// Converts the codecs of a Zarr v3 array, or of its shards.
///
/// # Errors
///
/// A codec is known but not supported, not compiled in, or has an invalid configuration.
pub(super) fn codecs_v3(codecs: &Value, context: CodecContext) -> Result<Value, Refused> {
    let Some(codecs) = codecs.as_array() else { return Ok(codecs.clone()) };
    codecs.iter().map(|codec| codec_v3(codec, context)).collect()
}

/// Converts the filters and the compressor of a Zarr v2 array.
///
/// # Errors
///
/// A codec is unknown, not supported, not compiled in, or has an invalid configuration.
pub(super) fn codecs_v2(filters: &Value, compressor: &Value, context: CodecContext) -> Result<CodecsV2, Refused> {
    let (mut arrays, mut serializer, mut bytes) = (Vec::new(), None, Vec::new());
    let filters = match filters {
        Value::Null => &[][..],
        Value::Array(filters) => filters,
        other => return Err(damaged(format!("`{}` is no list of filters", configuration::brief(other)))),
    };
    for codec in filters.iter().chain((!compressor.is_null()).then_some(compressor)) {
        let (id, configuration) =
            parts_v2(codec).ok_or_else(|| damaged(format!("`{}` names no codec", configuration::brief(codec))))?;
        let refuse = || unsupported(format!("codec {} is not supported", configuration::brief(&codec["id"])));
        let (stage, name, configuration) = numcodecs(id, configuration, context, 2)?.ok_or_else(refuse)?;
        let codec = json!({"name": name, "configuration": configuration});
        match stage {
            Stage::Array if bytes.is_empty() && serializer.is_none() => arrays.push(codec),
            Stage::Serializer if bytes.is_empty() && serializer.is_none() => serializer = Some(codec),
            Stage::Bytes => bytes.push(codec),
            Stage::Array | Stage::Serializer => {
                return Err(unsupported(format!("codec {id} behind one that works on bytes is not supported")));
            }
        }
    }
    Ok(CodecsV2 { arrays, serializer, bytes })
}

/// Returns the name of a codec for the description of a volume; `None` for a codec that only rearranges or checks
/// bytes.
pub(super) fn packing_name(codec: &str) -> Option<&str> {
    let name = codec.strip_prefix(NUMCODECS).unwrap_or(codec);
    let rearranges = matches!(
        name,
        "bytes"
            | "endian"
            | "transpose"
            | "crc32c"
            | "crc32"
            | "adler32"
            | "fletcher32"
            | "delta"
            | "bitround"
            | "shuffle"
    );
    (!rearranges).then_some(name)
}

fn codec_v3(codec: &Value, context: CodecContext) -> Result<Value, Refused> {
    let Some((name, configuration)) = parts_v3(codec) else { return Ok(codec.clone()) };
    if configuration::is_name(name) {
        return Err(unsupported(format!("codec {name} is not supported")));
    }
    let spelled = if let Some(id) = name.strip_prefix(NUMCODECS) {
        numcodecs(id, configuration, context, 3)?.map(|(_, name, configuration)| (name, configuration))
    } else {
        registered(name, configuration, context)?.map(|configuration| (name, configuration))
    };
    let Some((name, configuration)) = spelled else { return Ok(codec.clone()) };
    let mut spelled = json!({"name": name, "configuration": configuration});
    if let Some(must_understand) = codec.get("must_understand") {
        spelled["must_understand"] = must_understand.clone();
    }
    Ok(spelled)
}

/// Completes the configuration of a registered Zarr v3 codec. Returns `None` if the codec needs no completion.
fn registered(
    name: &str,
    mut configuration: Configuration,
    context: CodecContext,
) -> Result<Option<Configuration>, Refused> {
    match name {
        "gzip" => level(&mut configuration, DEFAULT_LEVEL),
        "zstd" => {
            default(&mut configuration, "level", json!(0));
            default(&mut configuration, "checksum", json!(false));
        }
        "blosc" => blosc(&mut configuration, context, json!("noshuffle")),
        "transpose" => match configuration.get("order").and_then(Value::as_str) {
            Some("C") => _ = configuration.insert("order".to_owned(), (0..context.axes).collect()),
            Some("F") => _ = configuration.insert("order".to_owned(), (0..context.axes).rev().collect()),
            Some(_) | None => return Ok(None),
        },
        "sharding_indexed" => {
            // The index has one axis more: offset and length.
            let of_index = CodecContext { axes: context.axes.saturating_add(1), size: size_of::<u64>(), ..context };
            for (key, context) in [("codecs", context), ("index_codecs", of_index)] {
                if let Some(codecs) = configuration.get_mut(key) {
                    *codecs = codecs_v3(codecs, context)?;
                }
            }
        }
        _ if name.ends_with("zfp") || name.ends_with("zfpy") => return Err(zfp(name)),
        _ => return Ok(None),
    }
    Ok(Some(configuration))
}

/// Converts a codec of numcodecs. Its name has a prefix in Zarr v3.
fn numcodecs(
    id: &str,
    mut configuration: Configuration,
    context: CodecContext,
    version: u8,
) -> Result<Option<(Stage, &'static str, Configuration)>, Refused> {
    let written = || format!("{}{id}", if version == 2 { "" } else { NUMCODECS });
    let (stage, name) = match id {
        "zlib" | "gzip" | "bz2" => {
            level(&mut configuration, 1);
            let names = [("zlib", "numcodecs.zlib"), ("gzip", "gzip"), ("bz2", "numcodecs.bz2")];
            let name = names.iter().find(|(known, _)| *known == id).map_or("gzip", |(_, name)| name);
            (Stage::Bytes, name)
        }
        "zstd" => {
            default(&mut configuration, "level", json!(1));
            default(&mut configuration, "checksum", json!(false));
            (Stage::Bytes, "zstd")
        }
        "blosc" => {
            blosc(&mut configuration, context, json!(1));
            (Stage::Bytes, "blosc")
        }
        "shuffle" => {
            default(&mut configuration, "elementsize", json!(if version == 2 { 4 } else { context.size }));
            if configuration["elementsize"].as_u64().is_none_or(|size| size == 0) {
                let size = configuration::brief(&configuration["elementsize"]);
                return Err(damaged(format!("`{size}` is no `elementsize` of shuffle")));
            }
            (Stage::Bytes, "numcodecs.shuffle")
        }
        "crc32" | "crc32c" | "adler32" | "fletcher32" => {
            configuration.insert("sum".to_owned(), json!(id));
            (Stage::Bytes, configuration::CHECKSUM)
        }
        "lz4" => {
            built_in("codecs", cfg!(feature = "codecs"), &written())?;
            (Stage::Bytes, configuration::LZ4)
        }
        "lzma" => {
            built_in("codecs", cfg!(feature = "codecs"), &written())?;
            (Stage::Bytes, configuration::LZMA)
        }
        "delta" => {
            configuration.insert("big_endian".to_owned(), json!(context.big_endian));
            configuration.insert("version".to_owned(), json!(version));
            (Stage::Array, configuration::DELTA)
        }
        "bitround" => (Stage::Array, "bitround"),
        "fixedscaleoffset" => (Stage::Array, "numcodecs.fixedscaleoffset"),
        "pcodec" => {
            built_in("codecs", cfg!(feature = "codecs"), &written())?;
            let defaults = [
                ("level", json!(8)),
                ("mode_spec", json!("auto")),
                ("delta_spec", json!("auto")),
                ("paging_spec", json!("equal_pages_up_to")),
                ("delta_encoding_order", Value::Null),
                ("equal_pages_up_to", json!(1 << 18)),
            ];
            for (key, value) in defaults {
                default(&mut configuration, key, value);
            }
            (Stage::Serializer, "numcodecs.pcodec")
        }
        "zfpy" => return Err(zfp(&written())),
        _ => return Ok(None),
    };
    Ok(Some((stage, name, configuration)))
}

/// Refuses a codec if its feature is not compiled in; the message names the feature.
fn built_in(feature: &str, is_built_in: bool, codec: &str) -> Result<(), Refused> {
    if is_built_in {
        return Ok(());
    }
    let reason = format!("codec {codec} is not built in: build this program with the feature `{feature}`");
    Err(Refused { kind: SourceFailure::NotBuiltIn, reason })
}

/// Refuses zfp, even if another crate compiles it into zarrs. Its decoder trusts the stream: it writes as many elements
/// as the stream claims, beyond the end of the chunk, and reads beyond the end of the stream.
fn zfp(codec: &str) -> Refused {
    unsupported(format!("codec {} is not supported", configuration::brief(&json!(codec))))
}

/// Completes a configuration of blosc. Converts numcodecs' numbers for the shuffle to the names of Zarr v3.
fn blosc(configuration: &mut Configuration, context: CodecContext, shuffle: Value) {
    default(configuration, "cname", json!("lz4"));
    default(configuration, "clevel", json!(DEFAULT_LEVEL));
    default(configuration, "blocksize", json!(0));
    default(configuration, "shuffle", shuffle);
    let name = match configuration["shuffle"].as_i64() {
        Some(0) => "noshuffle",
        Some(1) => "shuffle",
        Some(2) => "bitshuffle",
        Some(-1) if context.size == 1 => "bitshuffle",
        Some(-1) => "shuffle",
        _ => "",
    };
    if !name.is_empty() {
        configuration.insert("shuffle".to_owned(), json!(name));
    }
    default(configuration, "typesize", json!(context.size));
}

/// Completes a level from 0 to 9. In zlib and gzip, -1 means the default.
fn level(configuration: &mut Configuration, otherwise: i64) {
    default(configuration, "level", json!(otherwise));
    if configuration["level"] == -1 {
        configuration.insert("level".to_owned(), json!(DEFAULT_LEVEL));
    }
}

/// Sets a default for a missing entry, which Python may write as null.
fn default(configuration: &mut Configuration, key: &str, value: Value) {
    let entry = configuration.entry(key).or_insert(Value::Null);
    if entry.is_null() {
        *entry = value;
    }
}

/// Returns the name and the configuration of a codec; the configuration may be left out. Returns `None` if it is not a
/// codec.
fn parts_v3(codec: &Value) -> Option<(&str, Configuration)> {
    if let Some(name) = codec.as_str() {
        return Some((name, Configuration::new()));
    }
    let configuration = match codec.get("configuration") {
        None | Some(Value::Null) => Configuration::new(),
        Some(configuration) => configuration.as_object()?.clone(),
    };
    Some((codec["name"].as_str()?, configuration))
}

fn parts_v2(codec: &Value) -> Option<(&str, Configuration)> {
    let mut configuration = codec.as_object()?.clone();
    configuration.remove("id");
    Some((codec["id"].as_str()?, configuration))
}

fn unsupported(reason: String) -> Refused {
    Refused { kind: SourceFailure::Unsupported, reason }
}

fn damaged(reason: String) -> Refused {
    Refused { kind: SourceFailure::Damaged, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    const U16: CodecContext = CodecContext { axes: 3, size: 2, big_endian: false };

    #[test]
    fn configurations_are_completed() {
        let spelled = |codec: Value| codec_v3(&codec, U16).expect("known");
        let of = |name: &str, configuration: Value| json!({"name": name, "configuration": configuration});
        assert_eq!(spelled(of("zstd", json!({"level": 3}))), of("zstd", json!({"level": 3, "checksum": false})));
        assert_eq!(spelled(json!("gzip")), of("gzip", json!({"level": 5})));
        assert_eq!(spelled(json!({"name": "numcodecs.zlib"})), of("numcodecs.zlib", json!({"level": 1})));
        assert_eq!(spelled(of("numcodecs.zlib", json!({"level": -1}))), of("numcodecs.zlib", json!({"level": 5})));
        assert_eq!(spelled(of("numcodecs.gzip", Value::Null)), of("gzip", json!({"level": 1})));
        let shuffle = of("numcodecs.shuffle", json!({"elementsize": null}));
        assert_eq!(spelled(shuffle), of("numcodecs.shuffle", json!({"elementsize": 2})));
        assert_eq!(spelled(of("transpose", json!({"order": "F"}))), of("transpose", json!({"order": [2, 1, 0]})));
        assert_eq!(spelled(of("transpose", json!({"order": "C"}))), of("transpose", json!({"order": [0, 1, 2]})));
        assert_eq!(spelled(of("transpose", json!({"order": [1, 0, 2]}))), of("transpose", json!({"order": [1, 0, 2]})));
        let blosc = json!({"cname": "lz4", "clevel": 5, "blocksize": 0, "shuffle": "shuffle", "typesize": 2});
        assert_eq!(spelled(of("numcodecs.blosc", json!({"shuffle": -1}))), of("blosc", blosc.clone()));
        assert_eq!(spelled(of("numcodecs.blosc", json!({}))), of("blosc", blosc));
        let shards = of(
            "sharding_indexed",
            json!({"codecs": ["gzip"], "index_codecs": [of("transpose", json!({"order": "F"}))]}),
        );
        assert_eq!(spelled(shards)["configuration"]["codecs"][0]["configuration"]["level"], 5);
        for unknown in
            [json!("bytes"), json!({"name": "squash"}), json!(7), json!({"name": "gzip", "configuration": 7})]
        {
            assert_eq!(spelled(unknown.clone()), unknown);
        }
    }

    #[test]
    fn index_of_shards_has_one_axis_more() {
        let transpose = json!({"name": "transpose", "configuration": {"order": "F"}});
        let shards = json!({"name": "sharding_indexed", "configuration": {"codecs": [&transpose], "index_codecs": [&transpose]}});
        let spelled = codec_v3(&shards, U16).expect("known");
        assert_eq!(spelled["configuration"]["codecs"][0]["configuration"]["order"], json!([2, 1, 0]));
        assert_eq!(spelled["configuration"]["index_codecs"][0]["configuration"]["order"], json!([3, 2, 1, 0]));
    }

    #[test]
    fn filters_of_v2_are_sorted_into_stages() {
        let filters = json!([{"id": "delta", "dtype": "<u2"}, {"id": "crc32"}]);
        let CodecsV2 { arrays, serializer, bytes } = codecs_v2(&filters, &json!({"id": "zlib"}), U16).expect("known");
        assert_eq!((arrays.len(), serializer, bytes.len()), (1, None, 2));
        assert_eq!(bytes[1]["name"], "numcodecs.zlib");
        let wrong = json!([{"id": "crc32"}, {"id": "delta", "dtype": "<u2"}]);
        let refused = codecs_v2(&wrong, &Value::Null, U16).expect_err("numbers of checksummed bytes");
        assert!(refused.kind == SourceFailure::Unsupported && refused.reason.contains("delta"), "{refused:?}");
        for unknown in ["categorize", "jenkins_lookup3", "quantize", "zfpy", ""] {
            let refused = codecs_v2(&Value::Null, &json!({"id": unknown}), U16).expect_err("unknown");
            assert!(refused.kind == SourceFailure::Unsupported && refused.reason.contains(unknown), "{refused:?}");
        }
        for wrong in [json!([7]), json!("delta"), json!({})] {
            assert_eq!(codecs_v2(&wrong, &Value::Null, U16).expect_err("no filters").kind, SourceFailure::Damaged);
        }
    }

    #[test]
    fn private_codec_names_are_refused_in_documents() {
        let refused = codec_v3(&json!({"name": configuration::DELTA}), U16).expect_err("a private name");
        assert!(
            refused.kind == SourceFailure::Unsupported && refused.reason.contains(configuration::DELTA),
            "{refused:?}"
        );
    }

    #[cfg(not(feature = "codecs"))]
    #[test]
    fn missing_codec_names_its_feature() {
        for id in ["lz4", "lzma", "pcodec"] {
            let refused = codec_v3(&json!({"name": format!("numcodecs.{id}")}), U16).expect_err("not built in");
            assert_eq!(refused.kind, SourceFailure::NotBuiltIn);
            assert!(refused.reason.contains(id) && refused.reason.contains("`codecs`"), "{}", refused.reason);
        }
    }
}
