//! A plane of an array: two axes, with every other axis cut at one index. Elements of any type are copied as bytes.
//!
//! Only the elements that the picture shows are copied.

use std::ops::Range;

use bytemuck::bytes_of;
use half::{bf16, f16};
use ndarray::{ArrayViewD, Axis, IxDyn, Slice};
use ndarray_shm::render::{RenderOptions, SharedWith};
use ndarray_shm::{DType, Element, Order, with_element};

use crate::args::words::AxisCut;
use crate::arrays::typed::{ArrayKind, Described};
use crate::exit::{Exit, Failure};
use crate::show::units;

/// Names of an axis of channels, in lower case.
const CHANNELS: [&str; 3] = ["c", "channel", "channels"];

/// Without names, the number of axes from the contiguous one on that come before the channels: x, y and z.
const AXES_OF_SPACE: usize = 3;

/// Most elements of a picture.
const MOST_ELEMENTS: usize = 1 << 28;

/// A plane of an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Section {
    /// The axis that goes to the right, and the one that goes down; `None` if only one axis is shown.
    pub(crate) right: usize,
    pub(crate) down: Option<usize>,
    /// The index on each axis; unused for the two axes of the picture.
    pub(crate) at: Vec<usize>,
    /// A word for each axis: its name, or its number.
    pub(crate) words: Vec<String>,
}

impl Section {
    /// Chooses the plane. `words` has a word for each axis, its name or its number; `letters` replaces them.
    ///
    /// Axes that are neither cut nor needed for the picture are cut in the middle. An axis of length 1 fills a side
    /// only where no other is left, and one of channels only where no two others are.
    pub(crate) fn choose(
        shape: &[usize],
        order: Order,
        words: Vec<String>,
        letters: Option<&str>,
        cuts: &[AxisCut],
    ) -> Result<Self, Failure> {
        let usage = |message: String| Failure::new(Exit::Usage, message);
        let axes = shape.len();
        let words: Vec<String> = letters.map_or(words, |letters| letters.chars().map(String::from).collect());
        if words.len() != axes || (1..axes).any(|at| words[..at].contains(&words[at])) {
            let message = format!("--axes names {} axes, but the array has {axes}", words.len());
            let example: String = "uvwtczyx".chars().skip(8usize.saturating_sub(axes)).collect();
            return Err(usage(message)
                .advice(format!("give one letter for each axis, all different, such as --axes {example}")));
        }
        let mut at: Vec<Option<usize>> = vec![None; axes];
        for cut in cuts {
            let AxisCut { axis, index } = cut;
            let number = axis_of(axis, &words).ok_or_else(|| unknown_axis(cut, shape, &words))?;
            if *index >= shape[number] {
                let message = format!("axis {axis} has {} elements: {axis}={index} is out of range", shape[number]);
                return Err(
                    usage(message).advice("an index counts from 0 within the array, wherever its region begins")
                );
            }
            if at[number].replace(*index).is_some() {
                return Err(usage(format!("axis {axis} is cut twice")));
            }
        }
        if shape.contains(&0) {
            return Err(Failure::new(Exit::Failed, "the array has no elements, so there is nothing to show"));
        }
        let place = |axis: usize| if order == Order::C { axes - 1 - axis } else { axis }; // 0 is contiguous
        let has_names = (0..axes).any(|axis| is_named(axis, &words));
        let is_channel = |axis: usize| is_channel(&words[axis]);
        // x goes to the right and y down. Without these names, the rows of the picture are rows of memory.
        let rank = |axis: usize| match words[axis].to_lowercase().as_str() {
            "x" => (0, 0),
            "y" => (1, 0),
            "z" => (3, 0),
            "t" | "time" => (4, 0),
            _ if is_channel(axis) => (5, 0),
            _ => (2, place(axis)),
        };
        let mut free: Vec<usize> = (0..axes).filter(|axis| at[*axis].is_none()).collect();
        free.sort_by_key(|axis| (shape[*axis] == 1, is_channel(*axis), rank(*axis)));
        free.truncate(2);
        free.sort_by_key(|axis| rank(*axis));
        let Some(&right) = free.first() else {
            return Err(usage("every axis is cut: leave one or two uncut for the picture".to_owned()));
        };
        let down = free.get(1).copied();
        // The middle channel has no meaning, so the first one is shown.
        let is_first = |axis: usize| if has_names { is_channel(axis) } else { place(axis) == AXES_OF_SPACE };
        let middle = |axis: usize| if is_first(axis) { 0 } else { shape[axis] / 2 };
        let at = at.iter().enumerate().map(|(axis, index)| index.unwrap_or_else(|| middle(axis))).collect();
        Ok(Self { right, down, at, words })
    }

    /// Returns where the other axes are cut: "z=10, c=0". `begin` has the coordinate of the first element of each axis.
    pub(crate) fn describe(&self, begin: &[i64]) -> String {
        let cut = (0..self.at.len()).filter(|axis| *axis != self.right && Some(*axis) != self.down);
        let coordinate = |axis: usize| {
            let index = i64::try_from(self.at[axis]).unwrap_or(i64::MAX);
            begin.get(axis).map_or(index, |begin| begin.saturating_add(index))
        };
        cut.map(|axis| format!("{}={}", self.words[axis], coordinate(axis))).collect::<Vec<_>>().join(", ")
    }

    /// Returns an axis in words: "x (axis 2)".
    pub(crate) fn axis(&self, axis: usize) -> String {
        if is_named(axis, &self.words) {
            format!("{} (axis {axis})", units::printable(&self.words[axis]))
        } else {
            format!("axis {axis}")
        }
    }

    /// Returns the width and the height of the plane in elements.
    pub(crate) fn lengths(&self, shape: &[usize]) -> (usize, usize) {
        (shape[self.right], self.down.map_or(1, |down| shape[down]))
    }
}

/// Whether the word of an axis is a name.
fn is_named(axis: usize, words: &[String]) -> bool {
    words[axis] != axis.to_string()
}

fn is_channel(word: &str) -> bool {
    CHANNELS.contains(&word.to_lowercase().as_str())
}

/// Returns the axis of a name or number. Every name of channels leads to the axis of channels, if there is one.
fn axis_of(text: &str, words: &[String]) -> Option<usize> {
    let by_word = words.iter().position(|word| word == text);
    let by_number = || text.parse().ok().filter(|number| *number < words.len());
    let mut channels = (0..words.len()).filter(|axis| is_channel(text) && is_channel(&words[*axis]));
    by_word.or_else(by_number).or_else(|| channels.next().filter(|_| channels.next().is_none()))
}

/// The error for a cut of an axis that the array does not have.
fn unknown_axis(cut: &AxisCut, shape: &[usize], words: &[String]) -> Failure {
    let AxisCut { axis, index } = cut;
    let axis = units::printable(axis);
    if (0..words.len()).any(|axis| is_named(axis, words)) {
        let (words, last) = (units::printable(&words.join(", ")), shape.len() - 1);
        return Failure::new(Exit::Usage, format!("the array has no axis `{axis}`"))
            .advice(format!("its axes are {words}, or 0 to {last}"));
    }
    let message = format!("the array has no axis `{axis}`: its axes have no names");
    let Some(last) = shape.len().checked_sub(1) else { return Failure::new(Exit::Usage, message) };
    Failure::new(Exit::Usage, message).advice(format!(
        "give the number of the axis, 0 to {last} in the order of the shape {}, as in --slice 0={index}; --axes names the axes, with a \
         letter for each: --axes zyx",
        units::shape(shape)
    ))
}

/// The elements of a plane, row by row.
#[derive(Debug)]
pub(crate) struct Plane {
    pub(crate) dtype: DType,
    pub(crate) width: usize,
    pub(crate) height: usize,
    bytes: Vec<u8>,
}

impl Plane {
    /// Copies every `step`-th element of both axes. Opens an unfinished renderbuffer only if it belongs to the users of
    /// `share`.
    pub(crate) fn read(array: &Described, section: &Section, step: usize, share: &SharedWith) -> Result<Self, Failure> {
        let dtype = array.dtype;
        with_element!(dtype, T => Self::copy::<T>(array, section, step, share), else => {
            Err(Failure::no_elements(dtype))
        })
    }

    fn copy<T: Element>(
        array: &Described,
        section: &Section,
        step: usize,
        share: &SharedWith,
    ) -> Result<Self, Failure> {
        let mut plane = Self::black::<T>(&array.shape, section, step)?;
        if array.kind == ArrayKind::Partial {
            let options = RenderOptions::new().directory(array.backend.clone()).shared_with(share.clone());
            let buffer = options.open::<T, IxDyn>(&array.location)?;
            for index in 0..buffer.grid().len() {
                let region = buffer.grid().region(index);
                let is_cut = |(axis, range): (usize, &Range<usize>)| {
                    axis == section.right || Some(axis) == section.down || range.contains(&section.at[axis])
                };
                if region.iter().enumerate().all(is_cut)
                    && let Some(chunk) = buffer.chunk(index)?
                {
                    plane.put(chunk.view(), &region, section, step);
                }
            }
        } else {
            plane = array.read::<T, _>(|view| Self::of(view, section, step))?;
        }
        Ok(plane)
    }

    /// Copies every `step`-th element of both axes of a whole array or frame.
    pub(crate) fn of<T: Element>(view: ArrayViewD<'_, T>, section: &Section, step: usize) -> Result<Self, Failure> {
        let mut plane = Self::black::<T>(view.shape(), section, step)?;
        let whole: Vec<Range<usize>> = view.shape().iter().map(|length| 0..*length).collect();
        plane.put(view, &whole, section, step);
        Ok(plane)
    }

    /// Returns a plane of zeros.
    fn black<T: Element>(shape: &[usize], section: &Section, step: usize) -> Result<Self, Failure> {
        let (right, down) = section.lengths(shape);
        let (width, height) = (right.div_ceil(step), down.div_ceil(step));
        let elements = width.checked_mul(height).filter(|elements| *elements <= MOST_ELEMENTS);
        let Some(elements) = elements else {
            let message = format!("a picture of {width} x {height} is too large");
            return Err(
                Failure::new(Exit::Usage, message).advice("give --every 8 to show only every 8th element of both axes")
            );
        };
        Ok(Self { dtype: T::DTYPE, width, height, bytes: vec![0; elements * size_of::<T>()] })
    }

    /// Copies the elements of the plane that lie in a region of the array.
    fn put<T: Element>(
        &mut self,
        mut part: ArrayViewD<'_, T>,
        region: &[Range<usize>],
        section: &Section,
        step: usize,
    ) {
        // Index in the region of the first element to copy, and its index in the picture.
        let start = |axis: usize| {
            let first = region[axis].start.div_ceil(step);
            (first * step - region[axis].start, first)
        };
        let picture = [Some(section.right), section.down];
        for (axis, range) in region.iter().enumerate() {
            if picture.contains(&Some(axis)) {
                let from = start(axis).0.min(range.len());
                let slice = Slice::new(from.cast_signed(), None, step.cast_signed());
                part.slice_axis_inplace(Axis(axis), slice);
            } else {
                let at = (section.at[axis] - range.start).cast_signed();
                part.slice_axis_inplace(Axis(axis), Slice::from(at..at + 1));
            }
        }
        let (left, top) = (start(section.right).1, section.down.map_or(0, |down| start(down).1));
        let rows = section.down.map_or(1, |down| part.len_of(Axis(down)));
        let columns = part.len_of(Axis(section.right));
        let mut index = IxDyn(&vec![0; region.len()]);
        for row in 0..rows {
            if let Some(down) = section.down {
                index[down] = row;
            }
            for column in 0..columns {
                index[section.right] = column;
                let at = ((top + row) * self.width + left + column) * size_of::<T>();
                self.bytes[at..at + size_of::<T>()].copy_from_slice(bytes_of(&part[&index]));
            }
        }
    }

    /// Iterates over the elements as numbers, row by row; complex ones as magnitudes.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = f64> + '_ {
        self.bytes.chunks_exact(self.dtype.size()).map(|element| number(self.dtype, element))
    }

    /// Iterates over the bits of the elements, row by row, for labels.
    pub(crate) fn labels(&self) -> impl Iterator<Item = u64> + '_ {
        self.bytes.chunks_exact(self.dtype.size()).map(|element| {
            let mut bits = [0; 16];
            bits[..element.len()].copy_from_slice(element);
            let [low, high] =
                [&bits[..8], &bits[8..]].map(|half| u64::from_le_bytes(half.try_into().unwrap_or_default()));
            low ^ high
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "a picture has 256 shades")]
fn number(dtype: DType, element: &[u8]) -> f64 {
    fn of<const SIZE: usize>(element: &[u8]) -> [u8; SIZE] {
        element.try_into().unwrap_or([0; SIZE])
    }
    match dtype {
        DType::U8 => f64::from(element[0]),
        DType::I8 => f64::from(element[0].cast_signed()),
        DType::U16 => f64::from(u16::from_ne_bytes(of(element))),
        DType::I16 => f64::from(i16::from_ne_bytes(of(element))),
        DType::U32 => f64::from(u32::from_ne_bytes(of(element))),
        DType::I32 => f64::from(i32::from_ne_bytes(of(element))),
        DType::U64 => u64::from_ne_bytes(of(element)) as f64,
        DType::I64 => i64::from_ne_bytes(of(element)) as f64,
        DType::F16 => f16::from_ne_bytes(of(element)).to_f64(),
        DType::Bf16 => bf16::from_ne_bytes(of(element)).to_f64(),
        DType::F32 => f64::from(f32::from_ne_bytes(of(element))),
        DType::F64 => f64::from_ne_bytes(of(element)),
        DType::Complex64 => {
            let part = |at: usize| f64::from(f32::from_ne_bytes(of(&element[at..at + 4])));
            part(0).hypot(part(4))
        }
        DType::Complex128 => {
            let part = |at: usize| f64::from_ne_bytes(of(&element[at..at + 8]));
            part(0).hypot(part(8))
        }
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cuts(texts: &[&str]) -> Vec<AxisCut> {
        texts.iter().map(|text| crate::args::words::cut(text).expect("a cut")).collect()
    }

    /// Returns the sides of the picture, and where it cuts the other axes.
    fn chosen(
        shape: &[usize],
        order: Order,
        words: &[&str],
        letters: Option<&str>,
        texts: &[&str],
    ) -> Result<(usize, Option<usize>, String), String> {
        let words = (0..shape.len()).map(|axis| words.get(axis).map_or_else(|| axis.to_string(), ToString::to_string));
        let section = Section::choose(shape, order, words.collect(), letters, &cuts(texts));
        section.map(|section| (section.right, section.down, section.describe(&[]))).map_err(|error| error.to_string())
    }

    #[test]
    fn contiguous_axis_goes_to_the_right_unless_axes_are_named() {
        let choose = |shape: &[usize], order, letters, texts: &[&str]| {
            chosen(shape, order, &[], letters, texts).expect("a plane")
        };
        assert_eq!(choose(&[9, 8, 7], Order::C, None, &["0=3"]), (2, Some(1), "0=3".to_owned()));
        assert_eq!(choose(&[9, 8, 7], Order::F, None, &["2=3"]), (0, Some(1), "2=3".to_owned()));
        assert_eq!(choose(&[9, 8, 7], Order::C, None, &["2=3"]), (1, Some(0), "2=3".to_owned()));
        assert_eq!(choose(&[9, 8, 7, 2], Order::C, Some("xyzc"), &["c=1"]), (0, Some(1), "z=3, c=1".to_owned()));
        assert_eq!(choose(&[9, 8, 7, 2], Order::F, None, &[]), (0, Some(1), "2=3, 3=0".to_owned()));
        assert_eq!(choose(&[5], Order::C, None, &[]), (0, None, String::new()));
        assert_eq!(choose(&[5, 4], Order::C, None, &["0=4"]), (1, None, "0=4".to_owned()));
    }

    #[test]
    fn names_of_axes_decide_whatever_is_contiguous() {
        for order in [Order::C, Order::F] {
            let choose = |shape: &[usize], words: &[&str], texts: &[&str]| {
                chosen(shape, order, words, None, texts).expect("a plane")
            };
            let precomputed = ["x", "y", "z", "channel"];
            assert_eq!(choose(&[9, 8, 7, 1], &precomputed, &["z=2"]), (0, Some(1), "z=2, channel=0".to_owned()));
            assert_eq!(choose(&[9, 8, 7, 3], &precomputed, &["c=2"]), (0, Some(1), "z=3, channel=2".to_owned()));
            assert_eq!(choose(&[9, 8, 7, 3], &precomputed, &["y=2"]), (0, Some(2), "y=2, channel=0".to_owned()));
            assert_eq!(choose(&[9, 8, 7], &["z", "y", "x"], &["z=2"]), (2, Some(1), "z=2".to_owned()));
            assert_eq!(
                choose(&[2, 3, 9, 8, 7], &["t", "c", "z", "y", "x"], &[]),
                (4, Some(3), "t=1, c=0, z=4".to_owned())
            );
            // Names that say nothing about a picture leave the rows of memory.
            let sides = if order == Order::C { (2, Some(1)) } else { (1, Some(2)) };
            let rows = choose(&[9, 8, 7], &["z", "row", "col"], &[]);
            assert_eq!((rows.0, rows.1), sides);
        }
    }

    #[test]
    fn axis_of_length_1_fills_a_side_only_where_no_other_is_left() {
        let choose = |shape: &[usize], words: &[&str]| {
            let (right, down, _) = chosen(shape, Order::C, words, None, &[]).expect("a plane");
            (right, down)
        };
        let precomputed = ["x", "y", "z", "channel"];
        assert_eq!(choose(&[9, 8, 7, 1], &[]), (2, Some(1)));
        assert_eq!(choose(&[1, 8, 7, 1], &precomputed), (1, Some(2)));
        assert_eq!(choose(&[9, 1, 1, 3], &precomputed), (0, Some(3)), "not y");
        assert_eq!(choose(&[9, 1, 1, 1], &precomputed), (0, Some(1)));
        assert_eq!(choose(&[4, 1], &[]), (1, Some(0)));
        assert_eq!(choose(&[1, 1], &[]), (1, Some(0)));
    }

    #[test]
    fn invalid_planes_name_their_fault() {
        let message = |shape: &[usize], words: &[&str], letters, texts: &[&str]| {
            chosen(shape, Order::C, words, letters, texts).expect_err("no plane")
        };
        for axis in ["t=1", "z=1", "c=1"] {
            assert!(message(&[4, 4], &[], None, &[axis]).contains("have no names"), "{axis}");
            assert!(message(&[4, 4], &["y", "x"], None, &[axis]).contains("no axis `"), "{axis}");
        }
        assert!(
            message(&[4, 4], &["c", "channel"], None, &["channels=1"]).contains("no axis `channels`"),
            "two of them"
        );
        assert!(message(&[4, 4], &["y", "x"], None, &["2=1"]).contains("no axis `2`"));
        assert!(message(&[4, 4], &["y", "x"], None, &["x=4"]).contains("has 4 elements"));
        assert!(message(&[4, 4], &["y", "x"], None, &["x=1", "1=1"]).contains("cut twice"));
        assert!(message(&[4, 4], &["y", "x"], None, &["x=1", "y=1"]).contains("every axis is cut"));
        assert!(message(&[], &[], None, &[]).contains("every axis is cut"));
        assert!(message(&[], &[], None, &["x=1"]).contains("have no names"));
        assert!(message(&[4, 0], &[], None, &[]).contains("nothing to show"));
        assert!(message(&[4, 4], &[], Some("xx"), &[]).contains("--axes"));
        assert!(message(&[4, 4], &[], Some("xyz"), &[]).contains("--axes"));
    }
}
