//! Regions of a volume: which part is wanted, and how people write it.
//!
//! Pure arithmetic on coordinates: nothing here knows files or arrays.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::error::{Error, Result};

/// A box in the coordinates of a volume: one half-open range of elements for each axis.
///
/// Written `0:64,0:128,5:9`, axes in the volume's order. A box holds at least one element; it may have no axes, like a
/// volume that is a single element.
///
/// ```
/// use ndarray_shm_volume::Bbox;
///
/// let bbox = Bbox::parse("5:9,:,100:", &[64, 32, 128])?;
/// assert_eq!(bbox.to_string(), "5:9,0:32,100:128");
/// assert_eq!(bbox.shape(), [4, 32, 28]);
/// # Ok::<(), ndarray_shm_volume::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Bbox(Vec<Range<u64>>);

impl Bbox {
    /// Makes a box of one range for each axis.
    ///
    /// # Errors
    ///
    /// [`Bbox`](Error::Bbox) if a range is empty or runs backwards.
    pub fn new(ranges: Vec<Range<u64>>) -> Result<Self> {
        let bbox = Self(ranges);
        bbox.check_not_empty()?;
        Ok(bbox)
    }

    /// Returns the box that is all of a volume of this shape.
    ///
    /// Where an axis has no elements the box has none either, and downloading it is an error.
    pub fn whole(shape: &[u64]) -> Self {
        Self(shape.iter().map(|length| 0..*length).collect())
    }

    /// Reads a box whose ranges may be open: `:` is all of an axis, `5:` begins at 5, `:9` ends before 9.
    ///
    /// # Errors
    ///
    /// [`Bbox`](Error::Bbox) if the text is not one range for each axis of `shape`, or if a range is empty or leaves
    /// the volume.
    pub fn parse(text: &str, shape: &[u64]) -> Result<Self> {
        let axes = axes(text);
        if axes.len() != shape.len() {
            return Err(wrong_axes(text, axes.len(), shape));
        }
        let ranges: Result<Vec<_>> =
            axes.iter().zip(shape).map(|(axis, length)| range(text, axis, Some(*length))).collect();
        let bbox = Self::new(ranges?)?;
        bbox.check_within(shape)?;
        Ok(bbox)
    }

    /// Returns the range of each axis.
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.0
    }

    /// Returns the number of elements along each axis.
    ///
    /// Lengths beyond the address space are given as `usize::MAX`: no array has them.
    pub fn shape(&self) -> Vec<usize> {
        self.0.iter().map(|range| to_usize(range.end.saturating_sub(range.start))).collect()
    }

    /// Checks that the box has elements and that all of them lie in a volume of this shape.
    ///
    /// # Errors
    ///
    /// [`Bbox`](Error::Bbox) naming the axis.
    pub fn check_within(&self, shape: &[u64]) -> Result<()> {
        if self.0.len() != shape.len() {
            return Err(wrong_axes(&self.to_string(), self.0.len(), shape));
        }
        self.check_not_empty()?;
        for (axis, (range, length)) in self.0.iter().zip(shape).enumerate() {
            if range.end > *length {
                let reason = format!("axis {axis} ends at {length}: stop there or before");
                return Err(Error::bbox(self, reason));
            }
        }
        Ok(())
    }

    fn check_not_empty(&self) -> Result<()> {
        match self.0.iter().position(|range| range.start >= range.end) {
            Some(axis) => Err(Error::bbox(self, format!("axis {axis} is empty: stop must be greater than start"))),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Bbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&ranges_text(&self.0))
    }
}

/// Reads a box whose ranges all have both ends; [`Bbox::parse`] also reads open ones.
impl FromStr for Bbox {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let ranges: Result<Vec<_>> = axes(text).iter().map(|axis| range(text, axis, None)).collect();
        Self::new(ranges?)
    }
}

/// Writes ranges as [`Bbox`] does.
pub(crate) fn ranges_text(ranges: &[Range<u64>]) -> String {
    let texts: Vec<String> = ranges.iter().map(|range| format!("{}:{}", range.start, range.end)).collect();
    texts.join(",")
}

/// Coordinates beyond the address space become its end; the array made with them is refused as too large.
pub(crate) fn to_usize(coordinate: u64) -> usize {
    usize::try_from(coordinate).unwrap_or(usize::MAX)
}

fn axes(text: &str) -> Vec<&str> {
    if text.trim().is_empty() { Vec::new() } else { text.split(',').map(str::trim).collect() }
}

fn range(text: &str, axis: &str, length: Option<u64>) -> Result<Range<u64>> {
    let wrong = |what: &str| {
        Error::bbox(
            text,
            format!("`{axis}` {what}: write START:STOP for each axis, with commas between, as in 0:64,5:9"),
        )
    };
    let Some((start, stop)) = axis.split_once(':') else {
        return Err(wrong("is not a range"));
    };
    let end = |part: &str, open: Option<u64>| -> Result<u64> {
        match (part.trim(), open) {
            ("", Some(open)) => Ok(open),
            ("", None) => Err(wrong("has an open end, which means nothing without a volume")),
            // `parse` alone would take "+5".
            (digits, _) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().map_err(|_| wrong("is beyond any volume"))
            }
            _ => Err(wrong("is not made of whole numbers from 0 on")),
        }
    };
    Ok(end(start, length.map(|_| 0))?..end(stop, length)?)
}

fn wrong_axes(text: &str, found: usize, shape: &[u64]) -> Error {
    let reason = format!("it has {found} axes, but the volume has {} (shape {shape:?})", shape.len());
    Error::bbox(text, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_box_is_read_as_it_is_written() {
        for text in ["0:1", "0:64,0:128,5:9", "7:8,18446744073709551614:18446744073709551615"] {
            assert_eq!(text.parse::<Bbox>().expect(text).to_string(), text);
        }
        let spaced: Bbox = " 0 : 2 , 3:4 ".parse().expect("blanks do no harm");
        assert_eq!(spaced.to_string(), "0:2,3:4");
    }

    #[test]
    fn open_ends_are_those_of_the_volume() {
        let bbox = Bbox::parse(":,5:,:9", &[3, 8, 10]).expect("it lies in the volume");
        assert_eq!(bbox.to_string(), "0:3,5:8,0:9");
        assert_eq!(bbox.shape(), [3, 3, 9]);
        assert_eq!(Bbox::parse("", &[]).expect("a volume without axes"), Bbox::whole(&[]));
    }

    #[test]
    fn what_is_no_box_says_why() {
        let message = |text: &str| text.parse::<Bbox>().expect_err(text).to_string();
        assert!(message("5").contains("`5` is not a range"));
        assert!(message("0:4,").contains("`` is not a range"));
        assert!(message("-1:4").contains("whole numbers"));
        assert!(message("+1:4").contains("whole numbers"));
        assert!(message("0:4:2").contains("whole numbers"));
        assert!(message("0:x").contains("whole numbers"));
        assert!(message("0:99999999999999999999").contains("beyond any volume"));
        assert!(message("0:").contains("open end"));
        assert!(message("0:4,3:3").contains("axis 1 is empty"));
        assert!(message("4:0").contains("axis 0 is empty"));
    }

    #[test]
    fn a_box_must_lie_in_its_volume() {
        let message = |text: &str| Bbox::parse(text, &[4, 8]).expect_err(text).to_string();
        assert!(message("0:4").contains("1 axes, but the volume has 2"));
        assert!(message("0:4,0:9").contains("axis 1 ends at 8"));
        assert!(message("4:,0:8").contains("axis 0 is empty"));
        assert!(Bbox::whole(&[4, 0]).check_within(&[4, 0]).expect_err("empty").to_string().contains("axis 1"));
    }
}
