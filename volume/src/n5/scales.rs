//! Groups of datasets that hold the same image at several resolutions, in the conventions of the tools that write N5.
//!
//! | convention | scales | size of an element |
//! |---|---|---|
//! | N5 viewer | `s0`, `s1`, .. | `pixelResolution` times `downsamplingFactors` of the scale or `scales` of the group |
//! | Paintera | `data/s0`, `data/s1`, .. of a group with `painteraData` | `resolution` times `downsamplingFactors` |
//! | BigDataViewer | `s0`, `s1`, .. of `setupN/timepointM` | the same |
//! | COSEM | the datasets in `multiscales` | `scale` of their `transform`, with axes in C order: z, y, x |

use std::sync::Arc;

use serde_json::Value;

use super::attributes::{ATTRIBUTES, N5Attributes, join};
use crate::description::Lengths;
use crate::error::{Error, Result, SourceFailure};
use crate::store::Store;

/// Maximum number of scales of a group.
const MOST_SCALES: usize = 64;

/// Number of datasets of a group that a message lists.
const LISTED: usize = 12;

/// Number of names below a group that are checked for that list, and their maximum depth; each costs a request.
const LOOKED_AT: usize = 64;
const DEEPEST: usize = 4;

/// Default names of the axes.
const AXES: [&str; 3] = ["x", "y", "z"];

/// The description of a group.
#[derive(Debug)]
pub(super) struct N5Group {
    volume: String,
    /// The attributes that hold for all scales.
    json: Value,
    /// Prefix of `s0`.
    prefix: String,
    /// Path and `transform` of each scale, if the group lists them.
    listed: Option<Vec<(String, Value)>>,
}

/// One scale.
#[derive(Debug)]
pub(super) struct GroupedScale {
    mip: usize,
    /// Its path in the group.
    pub(super) path: String,
    pub(super) attributes: N5Attributes,
}

/// The known facts about the axes of a dataset.
#[derive(Debug, Default, PartialEq)]
pub(super) struct AxesInfo {
    /// A name for each axis.
    pub(super) axes: Vec<String>,
    pub(super) lengths: Lengths,
}

impl N5Group {
    /// Reads the description of a group; `root` is its document, if it has one.
    ///
    /// # Errors
    ///
    /// [`Source`](Error::Source): the description is damaged. [`Store`](Error::Store): the description cannot be read.
    pub(super) fn read(store: &Arc<dyn Store>, root: Option<N5Attributes>) -> Result<Self> {
        let place = store.locate("");
        let volume = place.trim_end_matches(['/', '\\']).to_owned();
        let Some(root) = root else {
            return Ok(Self { volume, json: Value::Null, prefix: String::new(), listed: None });
        };
        if root.json().get("painteraData").is_some() {
            // The attributes for all scales are in `data`, beside the scales.
            let data = N5Attributes::read(store, "data")?.unwrap_or(root);
            return Ok(Self { volume, json: data.json().clone(), prefix: "data/".to_owned(), listed: None });
        }
        let datasets =
            root.json()["multiscales"].as_array().and_then(|pictures| pictures.first()?["datasets"].as_array());
        let listed = datasets.filter(|datasets| !datasets.is_empty()).map(|datasets| {
            let scale = |dataset: &Value| {
                let path = dataset["path"].as_str().unwrap_or_default().trim_end_matches('/');
                let path = path.strip_prefix("./").unwrap_or(path);
                if !is_within(path) {
                    let reason =
                        format!("its attributes name a scale by the path {path:?}, which leads to no dataset in it");
                    return Err(Error::volume(SourceFailure::Damaged, root.name(), reason));
                }
                Ok((path.to_owned(), dataset["transform"].clone()))
            };
            datasets.iter().take(MOST_SCALES).map(scale).collect::<Result<_>>()
        });
        Ok(Self { volume, json: root.json().clone(), prefix: String::new(), listed: listed.transpose()? })
    }

    /// Returns the path or URL of the group.
    pub(super) fn volume(&self) -> &str {
        &self.volume
    }

    /// Returns a scale, `None` if there are fewer.
    pub(super) fn scale(&self, store: &Arc<dyn Store>, mip: usize) -> Result<Option<GroupedScale>> {
        let path = match &self.listed {
            Some(listed) => listed.get(mip).map(|(path, _)| path.clone()),
            None => (mip < MOST_SCALES).then(|| format!("{}s{mip}", self.prefix)),
        };
        let Some(path) = path else { return Ok(None) };
        match N5Attributes::read(store, &path)? {
            Some(attributes) if attributes.is_dataset() => Ok(Some(GroupedScale { mip, path, attributes })),
            _ if self.listed.is_some() => {
                let reason = format!("its attributes name the scale `{path}`, but there is no such dataset");
                Err(Error::volume(SourceFailure::Damaged, &self.volume, reason))
            }
            _ => Ok(None),
        }
    }

    /// Returns the number of scales.
    pub(super) fn count(&self, store: &Arc<dyn Store>) -> Result<usize> {
        if let Some(listed) = &self.listed {
            return Ok(listed.len());
        }
        let mut count = 0;
        while self.scale(store, count)?.is_some() {
            count += 1;
        }
        Ok(count)
    }

    /// Returns the facts about the axes of a scale, from its attributes and the group's.
    pub(super) fn geometry(&self, scale: &GroupedScale, axes: usize) -> AxesInfo {
        geometry(scale.attributes.json(), Some((self, scale.mip)), axes)
    }
}

/// Returns the facts about the axes of a dataset, from its attributes and those of its group.
pub(super) fn geometry(dataset: &Value, group: Option<(&N5Group, usize)>, axes: usize) -> AxesInfo {
    let of_group = group.map_or(&Value::Null, |(group, _)| &group.json);
    let listed = group.and_then(|(group, mip)| group.listed.as_ref()?.get(mip));
    let transforms = [listed.map(|(_, transform)| transform), Some(&dataset["transform"])];
    if let Some(found) = transforms.into_iter().flatten().find_map(|transform| transformed(transform, axes)) {
        return found;
    }
    let both = [dataset, of_group];
    let names = both.iter().find_map(|json| texts(&json["axes"], axes)).unwrap_or_else(|| default_names(axes));
    let unit = both.iter().find_map(|json| {
        json["pixelResolution"]["unit"].as_str().map(abbreviated).or_else(|| common(&texts(&json["units"], axes)?))
    });
    let factors = numbers(&dataset["downsamplingFactors"], axes).or_else(|| {
        let mip = group?.1;
        let all = [&of_group["scales"], &of_group["downsamplingFactors"]];
        all.into_iter().find_map(|all| numbers(all.get(mip)?, axes))
    });
    let own = element_size(dataset, axes);
    let is_finest = group.is_none_or(|(_, mip)| mip == 0);
    let resolution = match (own, factors) {
        (Some(size), Some(factors)) => multiplied(size, &factors),
        (Some(size), None) => size,
        (None, factors) => match (element_size(of_group, axes), factors) {
            (Some(size), Some(factors)) => multiplied(size, &factors),
            (Some(size), None) if is_finest => size,
            _ => Vec::new(),
        },
    };
    let unit = if resolution.is_empty() { String::new() } else { unit.unwrap_or_default() };
    AxesInfo { axes: names, lengths: Lengths { resolution, translation: Vec::new(), unit } }
}

/// Parses a `transform`, and converts it from C order to the order of the dataset.
fn transformed(transform: &Value, axes: usize) -> Option<AxesInfo> {
    let mut resolution = numbers(&transform["scale"], axes)?;
    let mut translation = numbers(&transform["translate"], axes).unwrap_or_default();
    let mut names = texts(&transform["axes"], axes);
    let units = texts(&transform["units"], axes);
    if transform["ordering"].as_str() != Some("F") {
        resolution.reverse();
        translation.reverse();
        if let Some(names) = &mut names {
            names.reverse();
        }
    }
    let unit = units.and_then(|units| common(&units)).unwrap_or_default();
    let lengths = Lengths { resolution, translation, unit }.without_zero();
    Some(AxesInfo { axes: names.unwrap_or_else(|| default_names(axes)), lengths })
}

/// Parses the size of an element, before the downsampling factors are applied.
fn element_size(json: &Value, axes: usize) -> Option<Vec<f64>> {
    let said = &json["pixelResolution"];
    [&said["dimensions"], said, &json["resolution"]].into_iter().find_map(|size| numbers(size, axes))
}

fn multiplied(mut size: Vec<f64>, factors: &[f64]) -> Vec<f64> {
    size.iter_mut().zip(factors).for_each(|(size, factor)| *size *= factor);
    size
}

/// Parses a list with a number for each axis.
fn numbers(value: &Value, axes: usize) -> Option<Vec<f64>> {
    let values = value.as_array().filter(|values| values.len() == axes)?;
    values.iter().map(|value| value.as_f64().filter(|number| number.is_finite())).collect()
}

/// Parses a list with a text for each axis, none of them empty.
fn texts(value: &Value, axes: usize) -> Option<Vec<String>> {
    let values = value.as_array().filter(|values| values.len() == axes)?;
    values.iter().map(|value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)).collect()
}

/// Returns the default names of axes: by convention the first is x.
fn default_names(axes: usize) -> Vec<String> {
    (0..axes).map(|axis| AXES.get(axis).map_or_else(|| format!("d{axis}"), ToString::to_string)).collect()
}

fn common(units: &[String]) -> Option<String> {
    let mut units: Vec<String> = units.iter().map(|unit| abbreviated(unit)).collect();
    units.dedup();
    Some(units.join(", ")).filter(|units| !units.is_empty())
}

fn abbreviated(unit: &str) -> String {
    let short = match unit {
        "angstrom" => "Å",
        "nanometer" | "nanometers" => "nm",
        "micrometer" | "micrometers" | "micron" | "microns" | "um" => "µm",
        "millimeter" | "millimeters" => "mm",
        other => other,
    };
    short.to_owned()
}

/// Whether the path of a scale stays in its group, on every platform.
fn is_within(path: &str) -> bool {
    path.split('/')
        .all(|part| !matches!(part, "" | "." | "..") && !part.contains(['\\', ':']) && !part.contains(char::is_control))
}

/// Returns the message for a group without scales, with the datasets in it.
pub(super) fn no_dataset(store: &Arc<dyn Store>) -> String {
    let mut datasets = Vec::new();
    let (mut looked_at, mut level) = (0, vec![String::new()]);
    for _ in 0..DEEPEST {
        let mut below = Vec::new();
        for group in level {
            if looked_at > LOOKED_AT {
                break;
            }
            // Some stores cannot list, such as web servers; then the list is left out.
            let names = store.list(&group).unwrap_or_default();
            for name in names.iter().filter_map(|name| name.strip_suffix('/')) {
                looked_at += 1;
                if looked_at > LOOKED_AT {
                    break;
                }
                let path = join(&group, name);
                let is_dataset =
                    |path: &str| matches!(N5Attributes::read(store, path), Ok(Some(found)) if found.is_dataset());
                // A group of scales is opened as a whole.
                if is_dataset(&path) || is_dataset(&join(&path, "s0")) {
                    datasets.push(path);
                } else {
                    below.push(path);
                }
            }
        }
        level = below;
    }
    datasets.sort_unstable();
    let more = datasets.len().saturating_sub(LISTED);
    datasets.truncate(LISTED);
    let list = match (datasets.is_empty(), more) {
        (true, _) => {
            return format!(
                "this is an N5 group, not a dataset: give the path of a directory with `dimensions` in its {ATTRIBUTES}"
            );
        }
        (false, 0) => datasets.join(", "),
        (false, more) => format!("{} and {more} more", datasets.join(", ")),
    };
    format!("this is an N5 group, not a dataset: add the name of one of its datasets ({list})")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn group(json: Value, listed: Option<Vec<(String, Value)>>) -> N5Group {
        N5Group { volume: String::new(), json, prefix: String::new(), listed }
    }

    #[test]
    fn resolution_follows_each_convention() {
        let of = |dataset: &Value, of_group: Value, mip: usize| {
            let found = geometry(dataset, Some((&group(of_group, None), mip)), 3);
            (found.lengths.resolution, found.lengths.unit)
        };
        let plain = json!({});
        let viewer =
            json!({"pixelResolution": {"dimensions": [4, 4.5, 40], "unit": "nm"}, "scales": [[1, 1, 1], [2, 2, 1]]});
        assert_eq!(of(&plain, viewer.clone(), 1), (vec![8.0, 9.0, 40.0], "nm".to_owned()));
        assert_eq!(of(&json!({"downsamplingFactors": [4, 4, 2]}), viewer.clone(), 1).0, [16.0, 18.0, 80.0]);
        assert!(of(&plain, json!({"resolution": [4, 4, 40]}), 1).0.is_empty(), "nothing says how much coarser it is");
        assert_eq!(of(&plain, json!({"resolution": [4, 4, 40]}), 0), (vec![4.0, 4.0, 40.0], String::new()));
        let paintera = json!({"multiScale": true, "resolution": [4, 4, 40], "offset": [0, 0, 0]});
        assert_eq!(of(&json!({"downsamplingFactors": [2, 2, 1]}), paintera, 1).0, [8.0, 8.0, 40.0]);
        let data_viewer = json!({"downsamplingFactors": [[1, 1, 1], [2, 4, 8]], "resolution": [1, 1, 2]});
        assert_eq!(of(&plain, data_viewer, 1).0, [2.0, 4.0, 16.0]);
        let own = json!({"pixelResolution": [3, 2, 1], "downsamplingFactors": [2, 2, 2]});
        assert_eq!(of(&own, viewer, 1).0, [6.0, 4.0, 2.0]);
        let wrong = json!({"pixelResolution": {"dimensions": [1, 2], "unit": "nm"}, "resolution": [1, "2", 3]});
        assert_eq!(of(&wrong, json!({"scales": 7, "units": ["nm"]}), 0), (Vec::new(), String::new()));
        let tensorstore = json!({"units": ["nm", "nm", "s"], "resolution": [4, 4, 0.5], "axes": ["a", "b", "c"]});
        let found = geometry(&tensorstore, None, 3);
        assert_eq!((found.axes.join(""), found.lengths.unit.as_str()), ("abc".to_owned(), "nm, s"));
    }

    #[test]
    fn transforms_are_converted_from_c_order() {
        let transform = json!({"axes": ["z", "y", "x"], "units": ["nm", "nm", "nm"], "scale": [40, 4.5, 4], "translate": [1, 2, 3]});
        let expected = AxesInfo {
            axes: ["x", "y", "z"].map(str::to_owned).to_vec(),
            lengths: Lengths {
                resolution: vec![4.0, 4.5, 40.0],
                translation: vec![3.0, 2.0, 1.0],
                unit: "nm".to_owned(),
            },
        };
        let dataset = json!({"transform": transform, "pixelResolution": {"dimensions": [9, 9, 9], "unit": "m"}});
        assert_eq!(geometry(&dataset, None, 3), expected);
        let listed = group(json!({}), Some(vec![("s0".to_owned(), transform)]));
        assert_eq!(geometry(&json!({}), Some((&listed, 0)), 3), expected);
        let turned = json!({"transform": {"axes": ["x", "y", "z"], "units": ["nm", "nm", "nm"], "scale": [4, 4.5, 40], "translate": [3, 2, 1], "ordering": "F"}});
        assert_eq!(geometry(&turned, None, 3), expected);
        assert_eq!(geometry(&dataset, None, 2), AxesInfo { axes: default_names(2), ..AxesInfo::default() });
    }

    #[test]
    fn unnamed_axes_get_the_conventional_names() {
        assert_eq!(default_names(5), ["x", "y", "z", "d3", "d4"]);
        assert_eq!(geometry(&json!({"axes": ["x", ""]}), None, 2).axes, ["x", "y"]);
    }

    #[test]
    fn paths_out_of_the_group_are_recognized() {
        assert!(is_within("s0") && is_within("volumes/raw/s0"));
        for path in ["", "/", "/etc", "..", "a/../b", "a//b", ".", r"a\b", "C:", "a\0"] {
            assert!(!is_within(path), "{path:?}");
        }
    }
}
