//! LZMA as numcodecs gets it from Python's `lzma`: xz streams, legacy LZMA streams, and raw filter output without a
//! header.

use std::io::{Read as _, Write as _};

use liblzma::bufread::XzDecoder;
use liblzma::stream::{Check, Filters, LzmaOptions, MatchFinder, Mode, Stream};
use liblzma::write::XzEncoder;
use serde_json::Value;
use zarrs::plugin::{PluginCreateError, PluginUnsupportedError};

use crate::error::Cause;
use crate::unpack::{Expected, Packing};
use crate::zarr::configuration::brief;

/// Largest accepted dictionary, as for xz: the strongest preset needs 64 MiB.
const LARGEST_DICTIONARY: u64 = 128 << 20;

/// Strongest preset used for encoding: stronger ones take up to 700 MiB of memory in each thread, and every reader
/// reads all presets.
const STRONGEST_PRESET: u64 = 6;

/// The flag `PRESET_EXTREME` of a preset: slower, smaller output.
const EXTREME: u64 = 1 << 31;

/// The configuration of the codec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lzma {
    format: LzmaFormat,
    check: CheckKind,
    preset: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum LzmaFormat {
    Xz,
    Alone,
    Raw(Vec<Filter>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CheckKind {
    None,
    Crc32,
    Crc64,
    Sha256,
}

/// A filter of a raw stream, which does not record its filters.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Filter {
    Delta { distance: u8 },
    Lzma1(Options),
    Lzma2(Options),
}

/// Options of an LZMA filter; a preset gives the others.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Options {
    preset: u32,
    dictionary: Option<u32>,
    literal_context: Option<u32>,
    literal_position: Option<u32>,
    position: Option<u32>,
    is_fast: Option<bool>,
    nice_length: Option<u32>,
    match_finder: Option<u64>,
    depth: Option<u32>,
}

impl Lzma {
    /// Parses `format`, `check`, `preset` and `filters`, with the constants of Python's `lzma`.
    ///
    /// # Errors
    ///
    /// A value is unknown, or a filter is not supported.
    pub(super) fn new(configuration: &Value) -> Result<Self, PluginCreateError> {
        let wrong =
            |what: &str, value: &Value| PluginCreateError::Other(format!("lzma has no {what} {}", brief(value)));
        let value = |key: &str| configuration.get(key).unwrap_or(&Value::Null);
        let format = match value("format") {
            Value::Null => LzmaFormat::Xz,
            format => match format.as_u64() {
                // 0 lets the decoder detect the format; encoding needs a choice.
                Some(0 | 1) => LzmaFormat::Xz,
                Some(2) => LzmaFormat::Alone,
                Some(3) => LzmaFormat::Raw(filters(value("filters"))?),
                _ => return Err(wrong("format", format)),
            },
        };
        let check = match value("check") {
            Value::Null => CheckKind::Crc64,
            check => match check.as_i64() {
                Some(-1 | 4) => CheckKind::Crc64,
                Some(0) => CheckKind::None,
                Some(1) => CheckKind::Crc32,
                Some(10) => CheckKind::Sha256,
                _ => return Err(wrong("check", check)),
            },
        };
        Ok(Self { format, check, preset: preset(value("preset")).ok_or_else(|| wrong("preset", value("preset")))? })
    }

    /// Unpacks into `into`, replacing its content.
    ///
    /// # Errors
    ///
    /// The stream is damaged, needs too much memory, or does not hold the expected number of bytes.
    pub(super) fn unpack(&self, packed: &[u8], expected: Expected, into: &mut Vec<u8>) -> Result<(), Cause> {
        let LzmaFormat::Raw(filters) = &self.format else { return Packing::Xz.unpack(packed, expected, into) };
        let limit = expected.limit();
        let decoder = XzDecoder::new_stream(packed, Stream::new_raw_decoder(&chain(filters, None)?)?);
        into.clear();
        decoder.take((limit as u64).saturating_add(1)).read_to_end(into)?;
        expected.check(into.len())
    }

    /// Packs bytes.
    ///
    /// # Errors
    ///
    /// The combination of filters is invalid.
    pub(super) fn pack(&self, bytes: &[u8]) -> Result<Vec<u8>, Cause> {
        let check = match self.check {
            CheckKind::None => Check::None,
            CheckKind::Crc32 => Check::Crc32,
            CheckKind::Crc64 => Check::Crc64,
            CheckKind::Sha256 => Check::Sha256,
        };
        let stream = match &self.format {
            LzmaFormat::Xz => Stream::new_easy_encoder(self.preset, check)?,
            LzmaFormat::Alone => Stream::new_lzma_encoder(&LzmaOptions::new_preset(self.preset)?)?,
            LzmaFormat::Raw(filters) => Stream::new_raw_encoder(&chain(filters, Some(bytes.len()))?)?,
        };
        let mut encoder = XzEncoder::new_stream(Vec::new(), stream);
        encoder.write_all(bytes)?;
        Ok(encoder.finish()?)
    }
}

/// Parses a preset, and limits it to [`STRONGEST_PRESET`].
fn preset(value: &Value) -> Option<u32> {
    let preset = if value.is_null() { STRONGEST_PRESET } else { value.as_u64()? };
    let (level, extreme) = (preset & !EXTREME, preset & EXTREME);
    if level > 9 {
        return None;
    }
    u32::try_from(level.min(STRONGEST_PRESET) | extreme).ok()
}

fn filters(listed: &Value) -> Result<Vec<Filter>, PluginCreateError> {
    let listed = listed.as_array().filter(|listed| !listed.is_empty());
    let listed =
        listed.ok_or_else(|| PluginCreateError::Other("lzma without a header and without filters".to_owned()))?;
    listed.iter().map(filter).collect()
}

fn filter(filter: &Value) -> Result<Filter, PluginCreateError> {
    const DELTA: u64 = 3;
    const LZMA2: u64 = 0x21;
    const LZMA1: u64 = 0x4000_0000_0000_0001;
    let wrong =
        |key: &str| PluginCreateError::Other(format!("a filter of lzma has the `{key}` {}", brief(&filter[key])));
    let number = |key: &str| match &filter[key] {
        Value::Null => Ok(None),
        value => value.as_u64().and_then(|value| u32::try_from(value).ok()).map(Some).ok_or_else(|| wrong(key)),
    };
    let bits = |key: &str| match number(key)? {
        Some(5..) => Err(wrong(key)),
        bits => Ok(bits),
    };
    let options = || {
        let written = preset(&filter["preset"]).ok_or_else(|| wrong("preset"))?;
        // Decoding needs the dictionary size of the original preset, even if encoding uses a weaker one.
        let level = filter["preset"].as_u64().map_or(STRONGEST_PRESET, |preset| preset & !EXTREME);
        let of_preset =
            (level > STRONGEST_PRESET).then(|| 1 << (level + 17)).and_then(|size: u64| u32::try_from(size).ok());
        let dictionary = number("dict_size")?.or(of_preset);
        if dictionary.is_some_and(|size| u64::from(size) > LARGEST_DICTIONARY) {
            return Err(wrong("dict_size"));
        }
        Ok(Options {
            preset: written,
            dictionary,
            literal_context: bits("lc")?,
            literal_position: bits("lp")?,
            position: bits("pb")?,
            is_fast: number("mode")?.map(|mode| mode == 1),
            nice_length: number("nice_len")?,
            match_finder: number("mf")?.map(u64::from),
            depth: number("depth")?,
        })
    };
    match filter["id"].as_u64() {
        Some(DELTA) => {
            let distance = number("dist")?.unwrap_or(1);
            let properties = distance.checked_sub(1).and_then(|distance| u8::try_from(distance).ok());
            Ok(Filter::Delta { distance: properties.ok_or_else(|| wrong("dist"))? })
        }
        Some(LZMA1) => options().map(Filter::Lzma1),
        Some(LZMA2) => options().map(Filter::Lzma2),
        _ => {
            let error = PluginUnsupportedError::new(
                format!("lzma with the filter {}", brief(&filter["id"])),
                "codec".to_owned(),
            );
            Err(PluginCreateError::Unsupported(error))
        }
    }
}

/// Converts filters to those of liblzma. For an encoder of `packing` bytes, limits the dictionary to about that size.
fn chain(filters: &[Filter], packing: Option<usize>) -> Result<Filters, Cause> {
    let mut chain = Filters::new();
    for filter in filters {
        match filter {
            Filter::Delta { distance } => _ = chain.delta_properties(&[*distance])?,
            Filter::Lzma1(options) => _ = chain.lzma1(&options.native(packing)?),
            Filter::Lzma2(options) => _ = chain.lzma2(&options.native(packing)?),
        }
    }
    Ok(chain)
}

impl Options {
    fn native(&self, packing: Option<usize>) -> Result<LzmaOptions, Cause> {
        /// The smallest dictionary of liblzma.
        const SMALLEST: usize = 4096;
        let mut options = LzmaOptions::new_preset(self.preset)?;
        let most = packing.and_then(|bytes| u32::try_from(bytes.max(SMALLEST).next_power_of_two()).ok());
        if let Some(dictionary) = self.dictionary {
            options.dict_size(most.map_or(dictionary, |most| dictionary.min(most)));
        }
        if let Some(bits) = self.literal_context {
            options.literal_context_bits(bits);
        }
        if let Some(bits) = self.literal_position {
            options.literal_position_bits(bits);
        }
        if let Some(bits) = self.position {
            options.position_bits(bits);
        }
        if let Some(is_fast) = self.is_fast {
            options.mode(if is_fast { Mode::Fast } else { Mode::Normal });
        }
        if let Some(length) = self.nice_length {
            options.nice_len(length);
        }
        match self.match_finder {
            Some(0x03) => _ = options.match_finder(MatchFinder::HashChain3),
            Some(0x04) => _ = options.match_finder(MatchFinder::HashChain4),
            Some(0x12) => _ = options.match_finder(MatchFinder::BinaryTree2),
            Some(0x13) => _ = options.match_finder(MatchFinder::BinaryTree3),
            Some(0x14) => _ = options.match_finder(MatchFinder::BinaryTree4),
            Some(_) | None => {}
        }
        if let Some(depth) = self.depth {
            options.depth(depth);
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn all() -> Vec<Lzma> {
        let raw = [
            json!([{"id": 0x21}]),
            json!([{"id": 0x21, "preset": 9 | EXTREME}]),
            json!([{"id": 3, "dist": 4}, {"id": 0x21, "preset": 1, "dict_size": 4096}]),
            json!([{"id": 0x4000_0000_0000_0001u64, "preset": 2, "lc": 2, "lp": 1, "pb": 0, "mode": 2, "nice_len": 64, "mf": 0x14, "depth": 9}]),
        ];
        let raw = raw.map(|filters| json!({"format": 3, "filters": filters}));
        let framed = [
            json!({}),
            json!({"format": 1, "check": 0, "preset": 9}),
            json!({"format": 2, "check": -1, "preset": null}),
        ];
        framed.iter().chain(&raw).map(|configuration| Lzma::new(configuration).expect("a codec")).collect()
    }

    #[test]
    fn bytes_come_back_from_every_format() {
        let bytes: Vec<u8> = (0..70_000u32).flat_map(|at| (at.wrapping_mul(at) / 7).to_le_bytes()).collect();
        for lzma in all() {
            let packed = lzma.pack(&bytes).expect("packed");
            let mut into = vec![9; 5];
            for expected in [Expected::Exactly(bytes.len()), Expected::AtMost(bytes.len() + 5)] {
                lzma.unpack(&packed, expected, &mut into).expect("it fits");
                assert!(into == bytes, "{lzma:?}");
            }
        }
    }

    #[test]
    fn bomb_is_an_error_without_allocation() {
        let zeros = vec![0; 2 << 20];
        for lzma in all() {
            let bomb = lzma.pack(&zeros).expect("packed");
            assert!(bomb.len() < 1 << 17, "{lzma:?}");
            for expected in [Expected::Exactly(1000), Expected::AtMost(1000), Expected::Exactly(zeros.len() + 1)] {
                let mut into = Vec::new();
                lzma.unpack(&bomb, expected, &mut into).expect_err("a bomb");
                assert!(into.capacity() <= 4 * expected.limit(), "{lzma:?}: {}", into.capacity());
            }
            for end in [0, 1, 5, bomb.len() / 2, bomb.len() - 1] {
                let mut into = Vec::new();
                let cut = lzma.unpack(&bomb[..end], Expected::Exactly(zeros.len()), &mut into);
                assert!(cut.is_err(), "{lzma:?} cut at {end}");
            }
        }
    }

    #[test]
    fn unsupported_and_oversized_filters_are_refused() {
        let of = |filters: Value| Lzma::new(&json!({"format": 3, "filters": filters}));
        let error = of(json!([{"id": 4}, {"id": 0x21}])).expect_err("a filter for programs");
        assert!(
            matches!(error, PluginCreateError::Unsupported(_)) && error.to_string().contains("filter 4"),
            "{error}"
        );
        for wrong in [
            json!([]),
            Value::Null,
            json!([{"id": 0x21, "dict_size": 1u64 << 30}]),
            json!([{"id": 0x21, "dict_size": -1}]),
            json!([{"id": 0x21, "preset": 10}]),
            json!([{"id": 0x21, "lc": 5}]),
            json!([{"id": 3, "dist": 0}]),
            json!([{"id": 3, "dist": 257}]),
            json!([7]),
        ] {
            assert!(of(wrong.clone()).is_err(), "{wrong}");
        }
        for wrong in [json!({"format": 4}), json!({"format": "xz"}), json!({"check": 7}), json!({"preset": 11})] {
            assert!(Lzma::new(&wrong).is_err(), "{wrong}");
        }
    }
}
