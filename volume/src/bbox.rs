//! Regions of a volume: boxes, and their text form.
//!
//! Pure arithmetic on coordinates: nothing here knows files or arrays.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::error::{Error, Result};

/// The syntax of regions, for errors.
const FORM: &str =
    "write START:STOP for each axis, with commas between, as in 0:64,5:,: (an empty side is the volume's bound)";

/// A box in the coordinates of a volume: one half-open range of elements for each axis.
///
/// Written `0:64,-16:128,5:9`, axes in the volume's order. Coordinates may be negative if the volume has such. A box
/// holds at least one element. It may have no axes, as a volume of a single element has none.
///
/// ```
/// use ndarray_shm_volume::Bbox;
///
/// let bbox = Bbox::parse("5:9,:,100:", &Bbox::whole(&[64, 32, 128]))?;
/// assert_eq!(bbox.to_string(), "5:9,0:32,100:128");
/// assert_eq!(bbox.shape(), [4, 32, 28]);
/// # Ok::<(), ndarray_shm_volume::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Bbox(Vec<Range<i64>>);

impl Bbox {
    /// Creates a box of one range for each axis.
    ///
    /// # Errors
    ///
    /// [`Bbox`](Error::Bbox) if a range is empty or runs backwards.
    pub fn new(ranges: Vec<Range<i64>>) -> Result<Self> {
        let bbox = Self(ranges);
        bbox.check_not_empty()?;
        Ok(bbox)
    }

    /// Returns the box of a whole volume of this shape that begins at 0.
    ///
    /// If an axis has length 0 the box is empty, and downloading it is an error.
    pub fn whole(shape: &[u64]) -> Self {
        Self(shape.iter().map(|length| 0..to_i64(*length)).collect())
    }

    /// Returns the box of this shape that begins at `origin`.
    pub fn at(origin: &[i64], shape: &[u64]) -> Self {
        Self(origin.iter().zip(shape).map(|(start, length)| *start..start.saturating_add_unsigned(*length)).collect())
    }

    /// Parses a box with ranges that may be open: `:` is all of an axis of `domain`, `5:` begins at 5, and `:9`
    /// ends before 9.
    ///
    /// Same as [`BboxSpec`] with [`resolve`](BboxSpec::resolve).
    ///
    /// # Errors
    ///
    /// [`Bbox`](Error::Bbox) if the text is not one range for each axis of `domain`, or if a range is empty or leaves
    /// it.
    pub fn parse(text: &str, domain: &Self) -> Result<Self> {
        text.parse::<BboxSpec>()?.resolve(domain)
    }

    /// Returns the range of each axis.
    pub fn ranges(&self) -> &[Range<i64>] {
        &self.0
    }

    /// Returns the number of elements along each axis.
    ///
    /// A length beyond the address space becomes `usize::MAX`, which no array has.
    pub fn shape(&self) -> Vec<usize> {
        self.0.iter().map(length).collect()
    }

    /// Checks that the box has elements and that all of them lie in `domain`.
    ///
    /// # Errors
    ///
    /// [`Bbox`](Error::Bbox) naming the axis.
    pub fn check_within(&self, domain: &Self) -> Result<()> {
        if self.0.len() != domain.0.len() {
            return Err(wrong_axes(self, self.0.len(), domain));
        }
        self.check_not_empty()?;
        for (axis, (range, whole)) in self.0.iter().zip(&domain.0).enumerate() {
            if range.end > whole.end {
                let reason = format!("axis {axis} ends at {}: stop there or before", whole.end);
                return Err(Error::bbox(self, reason));
            }
            if range.start < whole.start {
                let reason = format!("axis {axis} begins at {}: start there or later", whole.start);
                return Err(Error::bbox(self, reason));
            }
        }
        Ok(())
    }

    /// Returns the intersection of two boxes; `None` if they do not overlap or differ in their number of axes.
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        if self.0.len() != other.0.len() {
            return None;
        }
        let ranges = self.0.iter().zip(&other.0).map(|(a, b)| a.start.max(b.start)..a.end.min(b.end)).collect();
        Self::new(ranges).ok()
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

/// Parses a box with both ends of each range; [`Bbox::parse`] and [`BboxSpec`] also accept open ranges.
impl FromStr for Bbox {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        text.parse::<BboxSpec>()?.closed()
    }
}

/// A region in text form, before the volume is known. Open ends of ranges stand for the volume's bounds.
///
/// Written as a [`Bbox`], one range for each axis: `0:64,:,5:` is a part of the first axis, all of the second, and the
/// third from 5 on.
///
/// ```
/// use ndarray_shm_volume::{Bbox, BboxSpec};
///
/// let spec: BboxSpec = "0:64,10:,:".parse()?;
/// assert_eq!(spec.resolve(&Bbox::whole(&[100, 100, 100]))?.to_string(), "0:64,10:100,0:100");
/// assert_eq!(spec.to_string(), "0:64,10:,:");
/// # Ok::<(), ndarray_shm_volume::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BboxSpec(Vec<OpenRange>);

/// A range with ends that may be open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct OpenRange {
    start: Option<i64>,
    stop: Option<i64>,
}

impl BboxSpec {
    /// Returns the number of axes.
    pub fn axes(&self) -> usize {
        self.0.len()
    }

    /// Returns the start of each range; `None` where it is open.
    pub fn starts(&self) -> Vec<Option<i64>> {
        self.0.iter().map(|range| range.start).collect()
    }

    /// Returns the box in a volume of these bounds, such as [`VolumeMeta::domain`](crate::VolumeMeta::domain).
    ///
    /// # Errors
    ///
    /// [`Bbox`](Error::Bbox) if the number of axes differs from that of `domain`, or if a range is empty or leaves it.
    pub fn resolve(&self, domain: &Bbox) -> Result<Bbox> {
        if self.0.len() != domain.0.len() {
            return Err(wrong_axes(self, self.0.len(), domain));
        }
        let ends = |(range, whole): (&OpenRange, &Range<i64>)| {
            range.start.unwrap_or(whole.start)..range.stop.unwrap_or(whole.end)
        };
        let bbox = Bbox::new(self.0.iter().zip(&domain.0).map(ends).collect())?;
        bbox.check_within(domain)?;
        Ok(bbox)
    }

    /// Returns the box, if no end is open.
    ///
    /// # Errors
    ///
    /// [`Bbox`](Error::Bbox) if an end is open or a range is empty.
    pub fn closed(&self) -> Result<Bbox> {
        let ends = |range: &OpenRange| Some(range.start?..range.stop?);
        let Some(ranges) = self.0.iter().map(ends).collect() else {
            let reason = "a range has an open end, which means nothing without the bounds of a volume: write both ends of each \
                          range, as in 0:64,5:9";
            return Err(Error::bbox(self, reason));
        };
        Bbox::new(ranges)
    }

    /// Appends the whole of another axis.
    pub(crate) fn with_whole_axis(mut self) -> Self {
        self.0.push(OpenRange { start: None, stop: None });
        self
    }
}

impl fmt::Display for BboxSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = |end: Option<i64>| end.map_or_else(String::new, |end| end.to_string());
        let texts: Vec<String> =
            self.0.iter().map(|range| format!("{}:{}", end(range.start), end(range.stop))).collect();
        f.write_str(&texts.join(","))
    }
}

impl FromStr for BboxSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text.trim().is_empty() {
            return Ok(Self(Vec::new()));
        }
        text.split(',').map(|axis| range(text, axis.trim())).collect::<Result<_>>().map(Self)
    }
}

/// Formats ranges as [`Bbox`] does.
pub(crate) fn ranges_text(ranges: &[Range<i64>]) -> String {
    let texts: Vec<String> = ranges.iter().map(|range| format!("{}:{}", range.start, range.end)).collect();
    texts.join(",")
}

/// Saturates: creating an array with such a length fails because it is too large.
pub(crate) fn to_usize(coordinate: u64) -> usize {
    usize::try_from(coordinate).unwrap_or(usize::MAX)
}

/// Saturates: no volume has such coordinates.
pub(crate) fn to_i64(coordinate: u64) -> i64 {
    i64::try_from(coordinate).unwrap_or(i64::MAX)
}

/// Returns the length of a range, at most `usize::MAX`.
pub(crate) fn length(range: &Range<i64>) -> usize {
    if range.start >= range.end { 0 } else { to_usize(range.end.abs_diff(range.start)) }
}

fn range(text: &str, axis: &str) -> Result<OpenRange> {
    let wrong = |what: &str| Error::bbox(text, format!("`{axis}` {what}: {FORM}"));
    let Some((start, stop)) = axis.split_once(':') else {
        return Err(wrong("is not a range"));
    };
    let end = |part: &str| -> Result<Option<i64>> {
        let part = part.trim();
        let digits = part.strip_prefix('-').unwrap_or(part);
        if part.is_empty() {
            return Ok(None);
        }
        // `parse` alone would accept "+5".
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(wrong("is not made of whole numbers"));
        }
        part.parse().map(Some).map_err(|_| wrong("is beyond any volume"))
    };
    Ok(OpenRange { start: end(start)?, stop: end(stop)? })
}

fn wrong_axes(text: impl fmt::Display, found: usize, domain: &Bbox) -> Error {
    let reason = format!("it has {found} axes, but the volume has {} ({domain}): {FORM}", domain.0.len());
    Error::bbox(text, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsed_box_formats_as_its_text() {
        for text in
            ["0:1", "0:64,0:128,5:9", "7:8,9223372036854775806:9223372036854775807", "-7:8,-9223372036854775808:-9"]
        {
            assert_eq!(text.parse::<Bbox>().expect(text).to_string(), text);
        }
        let spaced: Bbox = " 0 : 2 , 3:4 ".parse().expect("blanks do no harm");
        assert_eq!(spaced.to_string(), "0:2,3:4");
    }

    #[test]
    fn open_ends_become_the_bounds_of_the_volume() {
        let bbox = Bbox::parse(":,5:,:9", &Bbox::whole(&[3, 8, 10])).expect("it lies in the volume");
        assert_eq!(bbox.to_string(), "0:3,5:8,0:9");
        assert_eq!(bbox.shape(), [3, 3, 9]);
        let negative = Bbox::parse(":,-4:", &Bbox::at(&[-10, -10], &[20, 10])).expect("it lies in the volume");
        assert_eq!(negative.to_string(), "-10:10,-4:0");
        assert_eq!(Bbox::parse("", &Bbox::whole(&[])).expect("a volume without axes"), Bbox::whole(&[]));
    }

    #[test]
    fn region_parses_before_its_volume_is_known() {
        for (text, meant) in [("0:64,0:64,:", "0:64,0:64,-5:95"), ("10:,:20,:", "10:100,0:20,-5:95")] {
            let spec: BboxSpec = text.parse().expect("a region");
            assert_eq!((spec.to_string().as_str(), spec.axes()), (text, 3));
            assert_eq!(spec.resolve(&Bbox::at(&[0, 0, -5], &[100, 100, 100])).expect("it fits").to_string(), meant);
            assert!(spec.closed().is_err());
        }
        let spec: BboxSpec = "0:4,-1:9".parse().expect("a region");
        assert_eq!(spec.closed().expect("both ends of all"), "0:4,-1:9".parse().expect("a box"));
        for text in ["5", "0:4,", "0:x", "0:4:2"] {
            let error = text.parse::<BboxSpec>().expect_err(text).to_string();
            assert!(error.contains("START:STOP") && error.contains("an empty side is the volume's bound"), "{error}");
        }
    }

    #[test]
    fn parse_errors_name_the_wrong_range() {
        let message = |text: &str| text.parse::<Bbox>().expect_err(text).to_string();
        assert!(message("5").contains("`5` is not a range"));
        assert!(message("0:4,").contains("`` is not a range"));
        assert!(message("-:4").contains("whole numbers"));
        assert!(message("--1:4").contains("whole numbers"));
        assert!(message("+1:4").contains("whole numbers"));
        assert!(message("0:4:2").contains("whole numbers"));
        assert!(message("0:x").contains("whole numbers"));
        assert!(message("0:99999999999999999999").contains("beyond any volume"));
        assert!(message("0:").contains("open end"));
        assert!(message("0:4,3:3").contains("axis 1 is empty"));
        assert!(message("4:0").contains("axis 0 is empty"));
    }

    #[test]
    fn box_outside_its_volume_is_refused() {
        let message = |text: &str| Bbox::parse(text, &Bbox::at(&[0, -2], &[4, 10])).expect_err(text).to_string();
        assert!(message("0:4").contains("1 axes, but the volume has 2"));
        assert!(message("0:4,0:9").contains("axis 1 ends at 8"));
        assert!(message("0:4,-3:8").contains("axis 1 begins at -2"));
        assert!(message("4:,0:8").contains("axis 0 is empty"));
        assert!(
            Bbox::whole(&[4, 0]).check_within(&Bbox::whole(&[4, 0])).expect_err("empty").to_string().contains("axis 1")
        );
    }
}
