//! The description of a plain array, in JSON and in words. It is escaped before it is printed, since any program may
//! have written it.

use std::collections::BTreeMap;

use ndarray_shm::array::Description;
use ndarray_shm_volume::VolumeNotes;
use serde::Serialize;

use super::typed::named_axes;
use crate::show::units;

/// The description of a plain array, as `ls --json`, `info --json` and `describe --json` print it.
#[derive(Debug, Serialize)]
pub(crate) struct DescriptionReport {
    /// The element type as `NumPy` writes it: "<u2".
    pub(crate) dtype: String,
    pub(crate) shape: Vec<usize>,
    /// "C" or "F".
    pub(crate) order: String,
    /// Texts by their keys.
    pub(crate) notes: BTreeMap<String, String>,
    /// A word for each axis, its name or its number; empty if no axis has a name.
    #[serde(skip)]
    axes: Vec<String>,
}

impl From<&Description> for DescriptionReport {
    fn from(found: &Description) -> Self {
        Self {
            dtype: found.dtype().to_string(),
            shape: found.shape().to_vec(),
            order: found.order().to_string(),
            notes: found.notes().map(|(key, text)| (key.to_owned(), text.to_owned())).collect(),
            axes: named_axes(&VolumeNotes::read(found, found.shape())),
        }
    }
}

impl DescriptionReport {
    /// Returns its type and shape, for a table: "array <f4 30x40".
    pub(crate) fn summary(&self) -> String {
        units::array("array", &self.dtype, &self.shape)
    }

    /// Returns all facts, for `info` and `describe`.
    pub(crate) fn facts(&self) -> Vec<(String, String)> {
        let mut facts = vec![
            ("dtype".to_owned(), self.dtype.clone()),
            ("shape".to_owned(), units::named_shape_in_order(&self.shape, &self.axes, &self.order)),
        ];
        facts.extend(self.notes.iter().map(|(key, text)| (key.clone(), units::printable(text))));
        facts
    }
}
