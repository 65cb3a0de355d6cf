//! OME-Zarr: a group of arrays that hold the same image at several resolutions.
//!
//! Version 0.4 keeps its description in `.zattrs`, version 0.5 in the attributes of `zarr.json` under `ome`.

use std::sync::Arc;

use serde_json::Value;

use crate::description::Lengths;
use crate::error::{Error, Result, SourceFailure};
use crate::store::Store;
use crate::take_over::{nanometres, rounded};
use crate::zarr::document::{Document, group, join};

/// Attribute of a group that contains images, each of which is a group of scales.
const LAYOUT: &str = "bioformats2raw.layout";

/// The scales of a group.
#[derive(Debug)]
pub(super) struct Multiscales {
    /// Names of the axes; empty if they are not given.
    pub(super) axes: Vec<String>,
    /// Whether the elements are labels.
    pub(super) has_labels: bool,
    /// The finest first.
    pub(super) datasets: Vec<Dataset>,
}

/// One scale.
#[derive(Debug)]
pub(super) struct Dataset {
    /// The path of its array in the group.
    pub(super) path: String,
    /// The unit is several, separated by commas, if one of them is not known.
    pub(super) lengths: Lengths,
}

impl Multiscales {
    /// Reads the scales from a group's attributes.
    ///
    /// # Errors
    ///
    /// [`Source`](Error::Source): the group does not describe scales (the message lists its arrays), or its description
    /// is damaged.
    pub(super) fn read(store: &Arc<dyn Store>, document: &Document) -> Result<Self> {
        let attributes = document.attributes(store)?;
        let described = [&attributes["ome"]["multiscales"], &attributes["multiscales"]];
        let Some(pictures) = described.iter().find_map(|pictures| pictures.as_array()) else {
            let reason = match first_image(store, document, &attributes) {
                Some(image) => format!(
                    "this is a container of images, as bioformats2raw makes them (`{LAYOUT}`): give the path of one of them, \
                     such as `{}`",
                    place_in(document.volume(), &image)
                ),
                None => group(store, document.prefix()),
            };
            return Err(Error::volume(SourceFailure::NotAVolume, document.volume(), reason));
        };
        // Several images in one group are rare; viewers show the first.
        let picture = pictures.first().unwrap_or(&Value::Null);
        let damaged = |what: &str| {
            let reason = format!("its attributes describe scales, but {what}");
            Error::volume(SourceFailure::Damaged, document.name(), reason)
        };
        let datasets = picture["datasets"].as_array().filter(|datasets| !datasets.is_empty());
        let datasets = datasets.ok_or_else(|| damaged("name no datasets"))?;
        let axes = picture["axes"].as_array().map(Vec::as_slice).unwrap_or_default();
        let names: Option<Vec<String>> =
            axes.iter().map(|axis| axis["name"].as_str().or(axis.as_str()).map(str::to_owned)).collect();
        let (unit, factors) = common_unit(axes);
        let [whole_scale, whole_translation] = transformations(picture);
        let mut scales = Vec::new();
        for dataset in datasets {
            let path = dataset["path"].as_str().ok_or_else(|| damaged("one of them has no path"))?;
            if !is_within(path) {
                return Err(damaged(&format!("the path `{path}` of one leads out of the group")));
            }
            // A point is first moved and scaled as the dataset says, and then as the image says.
            let [resolution, translation] = transformations(dataset);
            let resolution = with(resolution, &whole_scale, |own, whole| own * whole);
            let translation = if translation.len() == whole_scale.len() {
                with(translation, &whole_scale, |own, whole| own * whole)
            } else {
                translation
            };
            let translation = with(translation, &whole_translation, |own, whole| own + whole);
            let in_unit = |lengths: Vec<f64>| {
                if lengths.len() == factors.len() {
                    with(lengths, &factors, |own, factor| rounded(own * factor))
                } else {
                    lengths
                }
            };
            let (resolution, translation) = (in_unit(resolution), in_unit(translation));
            let lengths = Lengths { resolution, translation, unit: unit.clone() }.without_zero();
            scales.push(Dataset { path: path.to_owned(), lengths });
        }
        let has_labels = [&attributes["ome"], &attributes].iter().any(|described| described["image-label"].is_object());
        Ok(Self { axes: names.unwrap_or_default(), has_labels, datasets: scales })
    }

    /// Returns the document of one scale.
    ///
    /// # Errors
    ///
    /// [`Source`](Error::Source): it does not exist, or does not describe an array.
    pub(super) fn document(store: &Arc<dyn Store>, group: &Document, dataset: &Dataset) -> Result<Document> {
        match Document::read(store, &join(group.prefix(), &dataset.path))? {
            Some(document) if document.is_array() => Ok(document),
            _ => {
                let reason = format!("its attributes name the scale `{}`, but there is no such array", dataset.path);
                Err(Error::volume(SourceFailure::Damaged, group.name(), reason))
            }
        }
    }
}

/// Returns the path of the first image in a container made by bioformats2raw: a group with a group for each image. The
/// images are listed in `OME`; without that list they are named 0, 1, ..
fn first_image(store: &Arc<dyn Store>, document: &Document, attributes: &Value) -> Option<String> {
    if attributes[LAYOUT].is_null() && attributes["ome"][LAYOUT].is_null() {
        return None;
    }
    let attributes = match Document::read(store, &join(document.prefix(), "OME")) {
        Ok(Some(listing)) => listing.attributes(store).unwrap_or_default(),
        // The list only improves a message, so errors are ignored.
        _ => Value::Null,
    };
    let listed = [&attributes["ome"]["series"], &attributes["series"]];
    let listed = listed.iter().find_map(|series| series[0].as_str()).filter(|path| is_within(path));
    let image = listed.unwrap_or("0");
    // Do not suggest a path that does not exist. Other problems there are reported when that path is opened.
    let is_missing = matches!(Document::read(store, &join(document.prefix(), image)), Ok(None));
    (!is_missing).then(|| image.to_owned())
}

/// Returns the path or URL of a group in another one.
fn place_in(volume: &str, path: &str) -> String {
    format!("{}/{path}", volume.trim_end_matches(['/', '\\']))
}

/// Returns the scale and the translation in the coordinate transformations of an image or dataset; empty if there is
/// none.
fn transformations(described: &Value) -> [Vec<f64>; 2] {
    let all = described["coordinateTransformations"].as_array().map(Vec::as_slice).unwrap_or_default();
    ["scale", "translation"].map(|kind| {
        let lengths = all.iter().find_map(|transformation| transformation[kind].as_array());
        lengths.and_then(|lengths| lengths.iter().map(Value::as_f64).collect()).unwrap_or_default()
    })
}

/// Combines the lengths of a dataset with those of the image, axis by axis. Only one of both may be given.
fn with(mut own: Vec<f64>, whole: &[f64], combined: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    if own.is_empty() {
        return whole.to_vec();
    }
    if own.len() == whole.len() {
        own.iter_mut().zip(whole).for_each(|(own, whole)| *own = combined(*own, *whole));
    }
    own
}

/// Whether the path of a dataset stays in its group, on every platform.
fn is_within(path: &str) -> bool {
    path.split('/').all(|part| !matches!(part, "" | "." | "..") && !part.contains(['\\', ':', '\0']))
}

/// Returns one unit for all lengths, and for each axis the factor from its own unit: the unit of most axes, or the
/// first of these. If one of several units is not known, returns all of them.
fn common_unit(axes: &[Value]) -> (String, Vec<f64>) {
    let unit = |axis: &Value| {
        let is_length = !matches!(axis["type"].as_str(), Some("time" | "channel"));
        axis["unit"].as_str().filter(|_| is_length).map(|unit| abbreviated(unit).to_owned())
    };
    let units: Vec<Option<String>> = axes.iter().map(unit).collect();
    let named: Vec<&String> = units.iter().flatten().collect();
    let count = |unit: &String| named.iter().filter(|other| **other == unit).count();
    let most = named.iter().map(|unit| count(unit)).max().unwrap_or(0);
    let Some(common) = named.iter().find(|unit| count(unit) == most) else { return (String::new(), Vec::new()) };
    let factor = |unit: &Option<String>| match unit {
        Some(unit) if unit != *common => Some(nanometres(unit)? / nanometres(common)?),
        _ => Some(1.0),
    };
    if let Some(factors) = units.iter().map(factor).collect() {
        ((*common).clone(), factors)
    } else {
        let mut all: Vec<&str> = named.iter().map(|unit| unit.as_str()).collect();
        all.dedup();
        (all.join(", "), Vec::new())
    }
}

fn abbreviated(unit: &str) -> &str {
    match unit {
        "angstrom" => "Å",
        "nanometer" => "nm",
        "micrometer" => "µm",
        "millimeter" => "mm",
        "meter" => "m",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_out_of_the_group_are_recognized() {
        assert!(is_within("0") && is_within("scale0/image"));
        for path in ["", "/", "/etc", "..", "a/../b", "a//b", "a/", ".", r"a\b", "C:", "a\0"] {
            assert!(!is_within(path), "{path:?}");
        }
    }
}
