//! A plane of an array: two axes, with every other axis cut at one index. Elements of any type are copied as bytes.
//!
//! Only the elements that the picture shows are copied.

use std::ops::Range;

use bytemuck::bytes_of;
use half::{bf16, f16};
use ndarray::{ArrayViewD, Axis, IxDyn, Slice};
use ndarray_shm::render::{RenderOptions, SharedWith};
use ndarray_shm::{DType, Element, Order, with_element};

use crate::described::{ArrayKind, Described};
use crate::exit::{Exit, Failure};
use crate::words::AxisCut;

/// Letters of the axes without `--axes`, the contiguous axis first.
const LETTERS: &str = "xyzc";

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
    /// Name of each axis.
    pub(crate) names: Vec<String>,
}

impl Section {
    /// Chooses the plane. Axes that are neither cut nor needed for the picture are cut in the middle.
    pub(crate) fn choose(
        shape: &[usize],
        order: Order,
        names: Option<&str>,
        cuts: &[AxisCut],
    ) -> Result<Self, Failure> {
        let usage = |message: String| Failure::new(Exit::Usage, message);
        let axes = shape.len();
        let letters: Vec<String> = if let Some(names) = names {
            names.chars().map(String::from).collect()
        } else {
            let known = LETTERS.chars().map(String::from);
            let all = known.chain((LETTERS.len()..).map(|axis| axis.to_string())).take(axes);
            let mut all: Vec<String> = all.collect();
            if order == Order::C {
                all.reverse();
            }
            all
        };
        if letters.len() != axes || (1..axes).any(|at| letters[..at].contains(&letters[at])) {
            let message = format!("--axes names {} axes, but the array has {axes}", letters.len());
            return Err(usage(message).advice("give one letter for each axis, all different: --axes zyx"));
        }
        let mut at: Vec<Option<usize>> = vec![None; axes];
        for AxisCut { axis, index } in cuts {
            let number = letters.iter().position(|letter| letter == axis).or_else(|| axis.parse().ok());
            let Some(number) = number.filter(|number| *number < axes) else {
                let message = format!("the array has no axis `{axis}`");
                return Err(usage(message).advice(format!(
                    "its axes are {}, or 0 to {}",
                    letters.join(", "),
                    axes.max(1) - 1
                )));
            };
            if *index >= shape[number] {
                let message = format!("axis {axis} has {} elements: {axis}={index} is out of range", shape[number]);
                return Err(usage(message));
            }
            if at[number].replace(*index).is_some() {
                return Err(usage(format!("axis {axis} is cut twice")));
            }
        }
        if shape.contains(&0) {
            return Err(Failure::new(Exit::Failed, "the array has no elements, so there is nothing to show"));
        }
        // The axis x goes to the right, or if it is cut, the next letter that is not.
        let rank = |axis: usize| LETTERS.find(&letters[axis]).unwrap_or(LETTERS.len() + axis);
        let mut free: Vec<usize> = (0..axes).filter(|axis| at[*axis].is_none()).collect();
        free.sort_by_key(|axis| rank(*axis));
        let Some(&right) = free.first() else {
            return Err(usage("every axis is cut: leave one or two uncut for the picture".to_owned()));
        };
        let down = free.get(1).copied();
        // The middle channel has no meaning, so the first one is shown.
        let middle = |axis: usize| if letters[axis] == "c" { 0 } else { shape[axis] / 2 };
        let at = at.iter().enumerate().map(|(axis, index)| index.unwrap_or_else(|| middle(axis))).collect();
        Ok(Self { right, down, at, names: letters })
    }

    /// Returns where the other axes are cut: "z=10, c=0".
    pub(crate) fn describe(&self) -> String {
        let cut = (0..self.at.len()).filter(|axis| *axis != self.right && Some(*axis) != self.down);
        cut.map(|axis| format!("{}={}", self.names[axis], self.at[axis])).collect::<Vec<_>>().join(", ")
    }

    /// Returns the width and the height of the plane in elements.
    pub(crate) fn lengths(&self, shape: &[usize]) -> (usize, usize) {
        (shape[self.right], self.down.map_or(1, |down| shape[down]))
    }
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
    /// Copies every `step`-th element of both axes. Opens an unfinished renderbuffer only if it belongs to the users of `share`.
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
        let (right, down) = section.lengths(&array.shape);
        let (width, height) = (right.div_ceil(step), down.div_ceil(step));
        let elements = width.checked_mul(height).filter(|elements| *elements <= MOST_ELEMENTS);
        let Some(elements) = elements else {
            let message = format!("a picture of {width} x {height} is too large");
            return Err(
                Failure::new(Exit::Usage, message).advice("give --every 8 to show only every 8th element of both axes")
            );
        };
        let mut plane = Self { dtype: T::DTYPE, width, height, bytes: vec![0; elements * size_of::<T>()] };
        let whole: Vec<Range<usize>> = array.shape.iter().map(|length| 0..*length).collect();
        if array.kind == ArrayKind::Partial {
            let options = RenderOptions::new().backend(array.backend.clone()).shared_with(share.clone());
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
            array.read::<T, _>(|view| {
                plane.put(view, &whole, section, step);
                Ok(())
            })?;
        }
        Ok(plane)
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
        texts.iter().map(|text| crate::words::cut(text).expect("a cut")).collect()
    }

    #[test]
    fn the_contiguous_axis_goes_to_the_right_unless_axes_are_named() {
        let choose = |shape: &[usize], order, names, texts: &[&str]| {
            let section = Section::choose(shape, order, names, &cuts(texts)).expect("a plane");
            (section.right, section.down, section.describe())
        };
        assert_eq!(choose(&[9, 8, 7], Order::C, None, &["z=3"]), (2, Some(1), "z=3".to_owned()));
        assert_eq!(choose(&[9, 8, 7], Order::F, None, &["z=3"]), (0, Some(1), "z=3".to_owned()));
        assert_eq!(choose(&[9, 8, 7], Order::C, None, &["2=3"]), (1, Some(0), "x=3".to_owned()));
        assert_eq!(choose(&[9, 8, 7, 2], Order::C, Some("xyzc"), &["c=1"]), (0, Some(1), "z=3, c=1".to_owned()));
        assert_eq!(choose(&[9, 8, 7, 2], Order::F, None, &[]), (0, Some(1), "z=3, c=0".to_owned()));
        assert_eq!(choose(&[5], Order::C, None, &[]), (0, None, String::new()));
        assert_eq!(choose(&[5, 4], Order::C, None, &["y=4"]), (1, None, "y=4".to_owned()));
    }

    #[test]
    fn invalid_planes_name_their_fault() {
        let message = |shape: &[usize], names, texts: &[&str]| {
            let section = Section::choose(shape, Order::C, names, &cuts(texts));
            section.expect_err("no plane").to_string()
        };
        assert!(message(&[4, 4], None, &["t=1"]).contains("no axis `t`"));
        assert!(message(&[4, 4], None, &["2=1"]).contains("no axis `2`"));
        assert!(message(&[4, 4], None, &["x=4"]).contains("has 4 elements"));
        assert!(message(&[4, 4], None, &["x=1", "1=1"]).contains("cut twice"));
        assert!(message(&[4, 4], None, &["x=1", "y=1"]).contains("every axis is cut"));
        assert!(message(&[], None, &[]).contains("every axis is cut"));
        assert!(message(&[4, 0], None, &[]).contains("nothing to show"));
        assert!(message(&[4, 4], Some("xx"), &[]).contains("--axes"));
        assert!(message(&[4, 4], Some("xyz"), &[]).contains("--axes"));
    }
}
