//! Notes on where an array came from: written into its description by downloads, read by everything that shows or
//! uploads it.
//!
//! A note is untrusted text: any program that may write to the array's file can have written it. Each one is checked by
//! itself, and a malformed one counts as absent. docs/layout/description.md has the format.

use ndarray_shm::array::Description;

use crate::bbox::Bbox;
use crate::description::Encoding;
use crate::volume::{ChunkSource, VolumeKind, VolumeMeta, is_axis_name};

/// Keys in the order in which they are written. What does not fit into a description is left out from the end.
///
/// `elements` is first because the bytes mean something else without it; few arrays have it.
const WRITTEN_ORDER: [&str; 14] = [
    "elements",
    "axes",
    "bbox",
    "source",
    "scale",
    "origin",
    "resolution",
    "unit",
    "translation",
    "chunk",
    "shard",
    "encoding",
    "kind",
    "fill",
];

/// Where an array came from, as the notes of its [`Description`] say.
///
/// Downloads write these notes. Any program that may write to the array's file can change them: escape their texts
/// before printing, and check what depends on them.
///
/// # Examples
///
/// ```
/// use ndarray_shm::array::Description;
/// use ndarray_shm::{DType, Order};
/// use ndarray_shm_volume::VolumeNotes;
///
/// let description = Description::new(DType::U8, &[30, 40], Order::C)?.with_note("axes", "y x")?.with_note("bbox", "0:30,5:45")?;
/// let notes = VolumeNotes::read(&description, &[30, 40]);
/// assert_eq!(notes.axis_words(2), ["y", "x"]);
/// assert_eq!(notes.bbox.expect("a region").to_string(), "0:30,5:45");
///
/// // An array that is opened with merged axes has none of these names.
/// assert_eq!(VolumeNotes::read(&description, &[1200]).axis_words(1), ["0"]);
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct VolumeNotes {
    /// Name of each axis, in the order of the array's shape; `None` for an axis without a name. Empty if no axis has
    /// one.
    pub axes: Vec<Option<String>>,
    /// The region of the volume that the array holds; it has the array's shape.
    pub bbox: Option<Bbox>,
    /// Path or URL of the volume, with its format in front: `precomputed://https://host/em`.
    pub source: Option<String>,
    /// The volume's name of the scale.
    pub scale: Option<String>,
    /// Coordinates of the volume's first element; empty if they are unknown.
    pub origin: Vec<i64>,
    /// Size of one element along each axis, in `unit`; empty if it is unknown. A Precomputed volume has no size for its
    /// channels.
    pub resolution: Vec<f64>,
    /// Unit of the resolution: "nm". An axis of time has another, which no note gives.
    pub unit: Option<String>,
    /// Where the volume's first element lies along each axis, in `unit`; empty if that is not given, or 0.
    pub translation: Vec<f64>,
    /// Elements along each axis of the volume's chunks; empty if they are unknown.
    pub chunk_shape: Vec<u64>,
    /// Elements along each axis of a stored object with many chunks; empty if each chunk is an object of its own.
    pub shard_shape: Vec<u64>,
    /// Encoding of the volume's chunks, if a new volume can have it.
    pub encoding: Option<Encoding>,
    /// What the elements mean, if the volume says.
    pub kind: Option<VolumeKind>,
    /// Whether the elements are booleans, each in one byte that is 0 or 1.
    pub is_bool: bool,
    /// The bytes of each element of chunks that the volume lacks, if they are not all 0.
    pub fill: Option<Vec<u8>>,
}

impl VolumeNotes {
    /// Reads the notes of a description, for an array that is used with the shape `shape`.
    ///
    /// If that is not the shape in the description, as with merged or split axes, there is nothing for each axis:
    /// `axes`, `bbox`, `origin`, `resolution`, `translation`, `chunk_shape` and `shard_shape` are empty. The same holds
    /// for a note that is malformed or of another number of axes.
    pub fn read(description: &Description, shape: &[usize]) -> Self {
        let text = |key: &str| description.note(key).filter(|text| !text.is_empty());
        let words = |key: &str| {
            let words: Vec<&str> = text(key).unwrap_or_default().split(' ').collect();
            if description.shape() == shape && words != [""] { words } else { Vec::new() }
        };
        let length_of_bbox = |bbox: &Bbox| description.shape() == shape && bbox.shape() == shape;
        Self {
            axes: names(&words("axes"), shape.len()),
            bbox: text("bbox").and_then(|text| text.parse().ok()).filter(length_of_bbox),
            source: text("source").map(str::to_owned),
            scale: text("scale").map(str::to_owned),
            origin: numbers(&words("origin"), |axes| axes == shape.len(), |_| true),
            resolution: numbers(&words("resolution"), |axes| axes <= shape.len(), |size: &f64| size.is_finite()),
            unit: text("unit").map(str::to_owned),
            translation: numbers(&words("translation"), |axes| axes == shape.len(), |length: &f64| length.is_finite()),
            chunk_shape: numbers(&words("chunk"), |axes| axes == shape.len(), |length: &u64| *length > 0),
            shard_shape: numbers(&words("shard"), |axes| axes == shape.len(), |length: &u64| *length > 0),
            encoding: text("encoding").and_then(Encoding::named),
            kind: text("kind").and_then(VolumeKind::named),
            is_bool: text("elements") == Some("bool"),
            fill: text("fill").and_then(bytes_of).filter(|element| element.len() == description.dtype().size()),
        }
    }

    /// Returns one word for each of the array's axes: its name, or else its number.
    pub fn axis_words(&self, axes: usize) -> Vec<String> {
        (0..axes).map(|axis| self.axes.get(axis).cloned().flatten().unwrap_or_else(|| axis.to_string())).collect()
    }
}

/// A digest as long as the one that the renderbuffer notes before all others.
const DIGEST: &str = "00000000000000000000000000000000";

/// Returns the notes that a download writes, and the keys of those that it leaves out because they are malformed or do
/// not fit.
///
/// `plain` is the array's description without notes.
pub(crate) fn written(source: &dyn ChunkSource, bbox: &Bbox, plain: Description) -> (Description, Vec<&'static str>) {
    let mut notes = source.notes();
    let own = of_meta(source.meta()).into_iter().chain([("bbox", bbox.to_string())]);
    for (key, text) in own {
        notes.retain(|(found, _)| *found != key);
        notes.push((key, text));
    }
    let rank = |key: &str| WRITTEN_ORDER.iter().position(|known| *known == key).unwrap_or(WRITTEN_ORDER.len());
    notes.sort_by_key(|(key, _)| rank(key)); // a stable sort: other keys keep their order
    let (mut description, mut left_out, mut is_full) = (plain, Vec::new(), false);
    for (key, text) in notes {
        // A malformed note leaves room for those after it.
        let is_malformed = text.contains(char::is_control);
        let has_room = |longer: &Description| longer.clone().with_note("work", DIGEST).is_ok();
        match description.clone().with_note(key, &text) {
            Ok(longer) if !is_full && has_room(&longer) => description = longer,
            _ => {
                left_out.push(key);
                is_full |= !is_malformed;
            }
        }
    }
    (description, left_out)
}

/// Returns the notes on a volume's shape and kind.
fn of_meta(meta: &VolumeMeta) -> Vec<(&'static str, String)> {
    let words = meta.axis_words();
    let is_named = words.iter().enumerate().any(|(axis, word)| *word != axis.to_string());
    let mut notes = Vec::new();
    notes.extend(is_named.then(|| ("axes", words.join(" "))));
    notes.push(("origin", joined(&meta.origin)));
    notes.push(("chunk", joined(&meta.chunk_shape)));
    notes.extend((meta.stored_shape != meta.chunk_shape).then(|| ("shard", joined(&meta.stored_shape))));
    notes.extend(meta.kind.map(|kind| ("kind", kind.name().to_owned())));
    let fill = meta.fill.as_ref().filter(|element| element.iter().any(|byte| *byte != 0));
    notes.extend(fill.map(|element| ("fill", hexadecimal(element))));
    notes.retain(|(_, text)| !text.is_empty()); // a volume may have no axes
    notes
}

/// Returns the names in an `axes` note; nothing if the note does not name each axis once.
fn names(words: &[&str], axes: usize) -> Vec<Option<String>> {
    let is_doubled = (1..words.len()).any(|axis| words[..axis].contains(&words[axis]));
    let name = |(axis, word): (usize, &&str)| {
        let is_number = || (*word == axis.to_string()).then_some(None);
        if is_axis_name(word) { Some(Some((*word).to_owned())) } else { is_number() }
    };
    let names: Option<Vec<Option<String>>> = words.iter().enumerate().map(name).collect();
    let is_valid =
        |names: &Vec<Option<String>>| !is_doubled && names.len() == axes && names.iter().any(Option::is_some);
    names.filter(is_valid).unwrap_or_default()
}

/// Returns the numbers in a note; nothing if a word is not such a number, or if their count is wrong.
fn numbers<T: std::str::FromStr>(
    words: &[&str],
    count: impl Fn(usize) -> bool,
    is_valid: impl Fn(&T) -> bool,
) -> Vec<T> {
    let read = |word: &&str| word.parse().ok().filter(&is_valid);
    let numbers: Option<Vec<T>> = words.iter().map(read).collect();
    numbers.filter(|numbers| count(numbers.len())).unwrap_or_default()
}

/// Reads what [`hexadecimal`] writes.
fn bytes_of(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
    let (pairs, rest) = digits.as_ref()?.as_chunks::<2>();
    rest.is_empty().then(|| pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

/// Writes two digits for each byte.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
    digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
}

fn joined<T: ToString>(numbers: &[T]) -> String {
    numbers.iter().map(T::to_string).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use ndarray_shm::{DType, Order};

    use super::*;
    use crate::error::Result;
    use crate::scratch::Scratch;
    use crate::volume::Fetched;

    fn described(shape: &[usize], notes: &[(&str, &str)]) -> Description {
        let plain = Description::new(DType::U8, shape, Order::C).expect("a description");
        notes.iter().fold(plain, |so_far, (key, text)| so_far.with_note(key, text).expect("a note"))
    }

    #[test]
    fn axis_without_a_usable_name_is_its_number() {
        let words = |names: &[&str], axes: u64| {
            let mut meta = VolumeMeta::new(&vec![4; usize::try_from(axes).expect("few")], &[], DType::U8);
            meta.axes = names.iter().map(|name| (*name).to_owned()).collect();
            of_meta(&meta).into_iter().find(|(key, _)| *key == "axes").map(|(_, text)| text)
        };
        assert_eq!(words(&["z", "y", "x"], 3).as_deref(), Some("z y x"));
        assert_eq!(words(&["z", "", "x"], 3).as_deref(), Some("z 1 x"), "missing");
        assert_eq!(words(&["z", "x", "x"], 3).as_deref(), Some("z 1 2"), "doubled");
        assert_eq!(words(&["z", "my y", "x\u{a0}1"], 3).as_deref(), Some("z 1 2"), "white space");
        assert_eq!(words(&["z", "a\u{1b}b", "0"], 3).as_deref(), Some("z 1 2"), "control characters, another number");
        assert_eq!(words(&["z"], 3).as_deref(), Some("z 1 2"), "too few");
        assert_eq!(words(&["x", "y", "z", "c"], 2).as_deref(), Some("x y"), "too many");
        assert_eq!(words(&["", "x", "x"], 3), None, "no axis has a name");
        assert_eq!(words(&[], 3), None);
    }

    #[test]
    fn malformed_notes_count_as_absent() {
        let full = [
            ("axes", "z y x"),
            ("bbox", "-2:0,5:8,0:4"),
            ("source", "zarr:///em"),
            ("scale", "s1"),
            ("origin", "-9 0 0"),
            ("resolution", "40 4 4.5"),
            ("unit", "nm"),
            ("translation", "-20 0 2.5"),
            ("chunk", "64 64 16"),
            ("shard", "64 128 16"),
            ("encoding", "zstd"),
            ("kind", "segmentation"),
            ("elements", "bool"),
            ("fill", "01"),
        ];
        let shape = [2, 3, 4];
        let good = VolumeNotes::read(&described(&shape, &full), &shape);
        let expected = VolumeNotes {
            axes: ["z", "y", "x"].map(|name| Some(name.to_owned())).to_vec(),
            bbox: Some("-2:0,5:8,0:4".parse().expect("a region")),
            source: Some("zarr:///em".to_owned()),
            scale: Some("s1".to_owned()),
            origin: vec![-9, 0, 0],
            resolution: vec![40.0, 4.0, 4.5],
            unit: Some("nm".to_owned()),
            translation: vec![-20.0, 0.0, 2.5],
            chunk_shape: vec![64, 64, 16],
            shard_shape: vec![64, 128, 16],
            encoding: Some(Encoding::Zstd),
            kind: Some(VolumeKind::Segmentation),
            is_bool: true,
            fill: Some(vec![1]),
        };
        assert_eq!(good, expected);
        let without = |key: &str, text: &str| {
            let changed = full.map(|(found, old)| (found, if found == key { text } else { old }));
            VolumeNotes::read(&described(&shape, &changed), &shape)
        };
        for text in ["z y", "z y x c", "z y y", "z  x", "z y 1", "0 1 2", "z\u{a0}y x q", ""] {
            assert_eq!(without("axes", text), VolumeNotes { axes: Vec::new(), ..expected.clone() }, "{text:?}");
        }
        assert_eq!(without("axes", "z 1 x").axis_words(3), ["z", "1", "x"]);
        for text in ["0:2,0:3", "0:2,0:3,0:5", "0:2,0:3,:", "2:0,0:3,0:4", "", "x"] {
            assert_eq!(without("bbox", text), VolumeNotes { bbox: None, ..expected.clone() }, "{text:?}");
        }
        for text in ["0 0", "0 0 0 0", "0 0 x", "0 0 1.5", "0 0 9223372036854775808", " "] {
            assert_eq!(without("origin", text), VolumeNotes { origin: Vec::new(), ..expected.clone() }, "{text:?}");
        }
        for text in ["1 1 1 1", "1 1 nan", "1 inf 1", "1 1 x"] {
            assert_eq!(
                without("resolution", text),
                VolumeNotes { resolution: Vec::new(), ..expected.clone() },
                "{text:?}"
            );
        }
        for text in ["64 64", "64 64 0", "64 64 -1", "64,64,16"] {
            assert_eq!(without("chunk", text), VolumeNotes { chunk_shape: Vec::new(), ..expected.clone() }, "{text:?}");
        }
        for text in ["0 0", "0 0 nan", "0 0 x"] {
            let expected = VolumeNotes { translation: Vec::new(), ..expected.clone() };
            assert_eq!(without("translation", text), expected, "{text:?}");
        }
        assert_eq!(without("shard", "64 64"), VolumeNotes { shard_shape: Vec::new(), ..expected.clone() });
        for text in ["0", "0101", "g0", "+1"] {
            assert_eq!(without("fill", text), VolumeNotes { fill: None, ..expected.clone() }, "{text:?}");
        }
        assert_eq!(without("encoding", "rot13"), VolumeNotes { encoding: None, ..expected.clone() });
        assert_eq!(without("kind", "Image"), VolumeNotes { kind: None, ..expected.clone() });
    }

    #[derive(Debug)]
    struct Noting(VolumeMeta, Vec<(&'static str, String)>);

    impl ChunkSource for Noting {
        fn meta(&self) -> &VolumeMeta {
            &self.0
        }
        fn identity(&self) -> String {
            "noting".to_owned()
        }
        fn notes(&self) -> Vec<(&'static str, String)> {
            self.1.clone()
        }
        fn decode(&self, _: &[Range<i64>], _: Fetched, scratch: &mut Scratch) -> Result<()> {
            scratch.missing();
            Ok(())
        }
    }

    #[test]
    fn notes_that_do_not_fit_are_left_out_from_the_end() {
        let mut meta = VolumeMeta::new(&[8, 8], &[4, 4], DType::U8);
        (meta.axes, meta.kind) = (["y", "x"].map(str::to_owned).to_vec(), Some(VolumeKind::Image));
        let noted = |long: usize, unit: &str| {
            let notes = [
                ("mine", "any".to_owned()),
                ("unit", unit.to_owned()),
                ("resolution", "4 4".to_owned()),
                ("encoding", "raw".to_owned()),
                ("source", "s".repeat(long)),
                ("elements", "bool".to_owned()),
            ];
            let bbox = "0:8,0:4".parse().expect("a region");
            let (written, left_out) = written(&Noting(meta.clone(), notes.to_vec()), &bbox, described(&[8, 4], &[]));
            (written.notes().map(|(key, _)| key.to_owned()).collect::<Vec<_>>().join(" "), left_out.join(" "))
        };
        let all = "elements axes bbox source origin resolution unit chunk encoding kind mine";
        assert_eq!(noted(9, "nm"), (all.to_owned(), String::new()));
        assert_eq!(noted(9, "n\nm"), (all.replace(" unit", ""), "unit".to_owned()), "malformed");
        // The other lines have 190 bytes or so, with the digest.
        assert_eq!(noted(3_500, "nm"), ("elements axes bbox".to_owned(), all[19..].to_owned()));
        let (kept, lacks) = noted(3_350, "nm");
        assert!(kept.starts_with("elements axes bbox source"), "{kept}");
        assert!(lacks.ends_with("encoding kind mine") && format!("{kept} {lacks}") == all, "{kept}, without {lacks}");
    }

    #[test]
    fn merged_or_split_axes_have_no_names() {
        let notes = [("axes", "y x"), ("bbox", "0:6,0:4"), ("origin", "0 0"), ("chunk", "2 2"), ("unit", "nm")];
        let found = described(&[6, 4], &notes);
        for shape in [&[24][..], &[2, 3, 4], &[4, 6], &[6, 4, 1]] {
            let expected = VolumeNotes { unit: Some("nm".to_owned()), ..VolumeNotes::default() };
            assert_eq!(VolumeNotes::read(&found, shape), expected, "{shape:?}");
        }
        assert_eq!(VolumeNotes::read(&found, &[6, 4]).axis_words(2), ["y", "x"]);
    }
}
