//! Parsers for values on the command line: element types, shapes, slices, ranges, backends, parts.

use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use glob::Pattern;
use ndarray_shm::foreign::{Family, families};
use ndarray_shm::{DType, Location};
use ndarray_shm_volume::{DTYPE_NAMES, Shard};

/// Parses an element type as NumPy writes it: `uint16`, `<u2` or `u2`.
pub(crate) fn dtype(text: &str) -> Result<DType, String> {
    let long = DTYPE_NAMES.iter().find(|(name, _)| *name == text).map(|(_, dtype)| *dtype);
    let short = || DType::ALL.iter().copied().find(|dtype| dtype.as_str().trim_start_matches(['<', '|']) == text);
    long.or_else(|| text.parse().ok()).or_else(short).ok_or_else(|| {
        let names: Vec<&str> = DTYPE_NAMES.iter().map(|(name, _)| *name).collect();
        format!("give one of {}, or a NumPy code such as <u2", names.join(", "))
    })
}

/// Parses the name of an array. A path or URL gets advice: it may be meant as a volume.
pub(crate) fn name_of_array(text: &str) -> Result<Location, String> {
    Location::new(text).map_err(|error| {
        let is_place = text.contains(['/', '\\']);
        let advice = "; of a volume, `ndshm download` makes an array first: `ndshm download SOURCE NAME`";
        format!("{error}{}", if is_place { advice } else { "" })
    })
}

/// Comma-separated numbers, one for each axis: a shape, a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PerAxis<T>(pub(crate) Vec<T>);

/// Parses the length of each axis: `64,64,32`; empty for no axes.
pub(crate) fn lengths(text: &str) -> Result<PerAxis<u64>, String> {
    numbers(text, "give a number of elements for each axis, separated by commas: 64,64,32")
}

/// Parses a pattern of names: `em-*`.
pub(crate) fn pattern(text: &str) -> Result<Pattern, String> {
    Pattern::new(text)
        .map_err(|error| format!("{error}: * matches any text, ? one character, [a-c] one of these characters"))
}

/// Parses the name of a family of other programs' files: `torch`.
pub(crate) fn family(text: &str) -> Result<&'static Family, String> {
    let found = families().iter().find(|family| family.name == text);
    let family = found.ok_or_else(|| {
        let names: Vec<&str> = families().iter().map(|family| family.name).collect();
        format!("give one of {}", names.join(", "))
    })?;
    if family.lives_unheld {
        return Err(format!(
            "these live on purpose while no process has them open, so they are removed by a pattern only: '{}'",
            family.patterns[0]
        ));
    }
    Ok(family)
}

/// Parses a pause in seconds: `2`, `0.5`.
pub(crate) fn pause(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "give a number of seconds from 0.1 to 86400".to_owned())
}

/// Parses a note: `unit=nm`.
pub(crate) fn note(text: &str) -> Result<(String, String), String> {
    let (key, note) = text.split_once('=').ok_or("give a key and a text: unit=nm")?;
    Ok((key.to_owned(), note.to_owned()))
}

/// Parses coordinates: `0,-16,128`.
pub(crate) fn coordinates(text: &str) -> Result<PerAxis<i64>, String> {
    numbers(text, "give a coordinate for each axis, separated by commas: 0,-16,128")
}

/// Parses the size of an element along each axis: `4,4,40.5`.
pub(crate) fn sizes(text: &str) -> Result<PerAxis<f64>, String> {
    let sizes: PerAxis<f64> = numbers(text, "give a size for each axis, separated by commas: 4,4,40")?;
    let are_sizes = sizes.0.iter().all(|size| size.is_finite() && *size > 0.0);
    if are_sizes { Ok(sizes) } else { Err("sizes must be greater than 0".to_owned()) }
}

fn numbers<T: std::str::FromStr>(text: &str, advice: &str) -> Result<PerAxis<T>, String> {
    if text.trim().is_empty() {
        return Ok(PerAxis(Vec::new()));
    }
    let numbers: Option<Vec<T>> = text.split(',').map(|part| part.trim().parse().ok()).collect();
    numbers.map(PerAxis).ok_or_else(|| advice.to_owned())
}

/// Where an array is cut: an axis, by name or number, and an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AxisCut {
    pub(crate) axis: String,
    pub(crate) index: usize,
}

/// Parses `z=10` or `2=10`.
pub(crate) fn cut(text: &str) -> Result<AxisCut, String> {
    let parts = text.split_once('=').and_then(|(axis, index)| Some((axis.trim(), index.trim().parse().ok()?)));
    match parts {
        Some((axis, index)) if !axis.is_empty() => Ok(AxisCut { axis: axis.to_owned(), index }),
        _ => Err("give AXIS=INDEX: z=10, or by number 2=10".to_owned()),
    }
}

/// The values shown as black and as white.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ValueRange {
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// Parses `0:4095` or `-1.5:2e3`.
pub(crate) fn value_range(text: &str) -> Result<ValueRange, String> {
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| number.is_finite());
    let parts = text.split_once(':').and_then(|(low, high)| Some((number(low)?, number(high)?)));
    match parts {
        Some((low, high)) if low < high => Ok(ValueRange { low, high }),
        _ => Err("give LOW:HIGH, the lower value first: 0:4095".to_owned()),
    }
}

/// Parses a number of frames per second.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "this is no number".to_owned())?;
    if rate.is_finite() && rate > 0.0 { Ok(rate) } else { Err("frames per second are more than 0".to_owned()) }
}

/// A backend that has arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendChoice {
    /// The system's shared memory, /dev/shm
    Shm,
    /// The emulated directory
    Emulated,
}

/// What `ls --by` sums up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SumBy {
    /// The owners of the files
    User,
    /// Counted arrays, plain arrays, caches, ..
    Kind,
}

/// Which part is meant, before the environment is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// What the scheduler says that started this process.
    Auto,
    /// This one.
    This(Shard),
}

impl FromStr for Which {
    type Err = ndarray_shm_volume::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "auto" { Ok(Self::Auto) } else { text.parse().map(Self::This) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_a_long_and_a_short_name() {
        for dtype_ in DType::ALL {
            assert_eq!(dtype(dtype_.as_str()), Ok(*dtype_));
        }
        assert_eq!(dtype("u8"), Ok(DType::U64), "as in NumPy");
        assert_eq!(dtype("uint8"), Ok(DType::U8));
        assert_eq!(dtype("bfloat16"), Ok(DType::Bf16));
        for text in ["", "u3", ">u2", "object", "UINT8"] {
            assert!(dtype(text).is_err(), "{text}");
        }
    }

    #[test]
    fn families_that_live_unheld_need_a_pattern() {
        assert_eq!(family("torch").map(|family| family.name), Ok("torch"));
        assert!(family("cloudvolume").is_err_and(|error| error.ends_with("'cloudvolume-*'")));
        assert!(family("x").is_err_and(|error| error.starts_with("give one of torch, ")));
    }

    #[test]
    fn malformed_values_are_refused() {
        assert_eq!(lengths("3, 4"), Ok(PerAxis(vec![3, 4])));
        assert_eq!(lengths(""), Ok(PerAxis(vec![])));
        assert!(lengths("3,,4").is_err() && lengths("-3").is_err() && lengths("3x4").is_err());
        assert_eq!(coordinates("-3,4"), Ok(PerAxis(vec![-3, 4])));
        assert!(sizes("4,0").is_err() && sizes("nan").is_err());
        assert_eq!(cut("z=10"), Ok(AxisCut { axis: "z".to_owned(), index: 10 }));
        assert!(cut("z").is_err() && cut("=1").is_err() && cut("z=-1").is_err());
        assert_eq!(value_range("-1.5:2e3"), Ok(ValueRange { low: -1.5, high: 2000.0 }));
        assert!(value_range("1:1").is_err() && value_range("nan:1").is_err() && value_range("5").is_err());
    }
}
