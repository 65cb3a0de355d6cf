//! Checks that a JPEG is complete, because decoders fill missing parts silently. Walks over the Huffman codes without
//! decoding a picture.
//!
//! An accepted picture has every block of every component to its last bit, in the order of the standard (ITU T.81), and
//! nothing between its parts. Coefficients outside the range of 8 bit pictures, which no encoder produces, are refused
//! too.

mod codes;
mod scan;
#[cfg(test)]
mod tests;

use codes::Codes;

use super::MOST_SCANS;

/// Why a JPEG is refused.
type Reason = &'static str;

const TOO_SHORT: Reason = "it ends too early: it was cut off or is damaged";
const BAD_CODE: Reason = "it has bits that mean nothing: it is damaged";
const BAD_PART: Reason = "one of its headers is damaged";

/// Marks a coefficient that no scan has contained yet.
const UNSEEN: u8 = u8::MAX;

/// One colour component.
#[derive(Debug)]
struct Component {
    id: u8,
    /// Blocks across and down in one unit (MCU) of an interleaved scan.
    sampling: [usize; 2],
    /// Blocks across and down, without padding blocks of units.
    blocks: [usize; 2],
    /// Blocks in one row of `nonzero`.
    stride: usize,
    /// For each coefficient, the number of low bits that no scan has contained yet.
    missing_bits: [u8; 64],
    /// Progressive only: for each block, one bit for each coefficient, set if the coefficient is not 0 so far.
    nonzero: Vec<u64>,
}

/// The state of the walk.
#[derive(Debug, Default)]
struct JpegWalk<'a> {
    rest: &'a [u8],
    /// Huffman tables of first (DC) and of other (AC) coefficients.
    tables: [[Option<Box<Codes>>; 4]; 2],
    components: Vec<Component>,
    is_progressive: bool,
    /// Units (MCUs) across and down in an interleaved scan.
    units: [usize; 2],
    /// Units between restart markers; 0 without restart markers.
    restart: usize,
    /// The bytes between two markers, without stuffing.
    plain: Vec<u8>,
}

/// Checks that a JPEG has every block and its end marker. Memory is proportional to the width and height in its header:
/// compare them first.
///
/// # Errors
///
/// A part is missing, or violates the standard.
pub(super) fn check(bytes: &[u8]) -> Result<(), Reason> {
    let mut walk = JpegWalk { rest: bytes, ..JpegWalk::default() };
    if walk.marker()? != 0xD8 {
        return Err("it does not begin like a JPEG");
    }
    let mut scans = 0;
    loop {
        match walk.marker()? {
            0xD9 if walk.is_complete() => return Ok(()),
            0xD9 => return Err(TOO_SHORT),
            marker @ 0xC0..=0xC2 => walk.frame(marker == 0xC2)?,
            0xC4 => walk.huffman_tables()?,
            0xDD => walk.restart = usize::from(walk.part()?.number()?),
            0xDA if scans == MOST_SCANS => return Err("it has too many scans"),
            0xDA => {
                scans += 1;
                walk.scan()?;
            }
            // libjpeg reports JFIF versions other than 1 as damage.
            0xE0 if matches!(walk.part()?.0, [b'J', b'F', b'I', b'F', 0, version, ..] if *version != 1) => {
                return Err(BAD_PART);
            }
            0xE0 => {}
            // Quantization tables, application data and comments: none affects the number of blocks.
            0xDB | 0xE1..=0xEF | 0xFE => {
                walk.part()?;
            }
            _ => return Err(BAD_PART),
        }
    }
}

impl<'a> JpegWalk<'a> {
    /// Takes the next marker, which must follow immediately.
    fn marker(&mut self) -> Result<u8, Reason> {
        let (first, mut rest) = self.rest.split_first().ok_or(TOO_SHORT)?;
        if *first != 0xFF {
            return Err(BAD_PART);
        }
        loop {
            let (marker, after) = rest.split_first().ok_or(TOO_SHORT)?;
            rest = after;
            if *marker != 0xFF {
                self.rest = rest;
                return Ok(*marker);
            }
        }
    }

    /// Takes the segment of a marker.
    fn part(&mut self) -> Result<MarkerPart<'a>, Reason> {
        let mut all = MarkerPart(self.rest);
        let length = usize::from(all.number()?).checked_sub(2).ok_or(BAD_PART)?;
        let (part, rest) = all.0.split_at_checked(length).ok_or(TOO_SHORT)?;
        self.rest = rest;
        Ok(MarkerPart(part))
    }

    fn frame(&mut self, is_progressive: bool) -> Result<(), Reason> {
        let mut part = self.part()?;
        let (depth, height, width) = (part.byte()?, part.number()?, part.number()?);
        let count = part.byte()?;
        if depth != 8 || width == 0 || height == 0 || !(1..=4).contains(&count) || !self.components.is_empty() {
            return Err(BAD_PART);
        }
        let mut described = Vec::new();
        for _ in 0..count {
            let (id, sampling, _) = (part.byte()?, part.byte()?, part.byte()?);
            let sampling = [usize::from(sampling >> 4), usize::from(sampling & 15)];
            if sampling.iter().any(|blocks| !(1..=4).contains(blocks)) {
                return Err(BAD_PART);
            }
            described.push((id, sampling));
        }
        part.end()?;
        let sides = [usize::from(width), usize::from(height)];
        let most = [0, 1].map(|side| described.iter().map(|(_, sampling)| sampling[side]).max().unwrap_or(1));
        self.is_progressive = is_progressive;
        self.units = [0, 1].map(|side| sides[side].div_ceil(8 * most[side]));
        for (id, sampling) in described {
            let blocks = [0, 1].map(|side| (sides[side] * sampling[side]).div_ceil(8 * most[side]));
            let stride = self.units[0] * sampling[0];
            let all = if is_progressive { stride * self.units[1] * sampling[1] } else { 0 };
            let nonzero = vec![0; all];
            self.components.push(Component { id, sampling, blocks, stride, missing_bits: [UNSEEN; 64], nonzero });
        }
        Ok(())
    }

    fn huffman_tables(&mut self) -> Result<(), Reason> {
        let mut part = self.part()?;
        while !part.0.is_empty() {
            let place = part.byte()?;
            let table =
                self.tables.get_mut(usize::from(place >> 4)).and_then(|tables| tables.get_mut(usize::from(place & 15)));
            let (lengths, rest) = part.0.split_first_chunk().ok_or(BAD_PART)?;
            let count = lengths.iter().map(|count| usize::from(*count)).sum();
            let (symbols, rest) = rest.split_at_checked(count).ok_or(BAD_PART)?;
            *table.ok_or(BAD_PART)? = Some(Box::new(Codes::new(lengths, symbols).ok_or(BAD_PART)?));
            part = MarkerPart(rest);
        }
        Ok(())
    }

    fn is_complete(&self) -> bool {
        !self.components.is_empty() && self.components.iter().all(|component| component.missing_bits == [0; 64])
    }
}

/// The bytes of one header.
#[derive(Debug)]
struct MarkerPart<'a>(&'a [u8]);

impl MarkerPart<'_> {
    fn byte(&mut self) -> Result<u8, Reason> {
        let (byte, rest) = self.0.split_first().ok_or(BAD_PART)?;
        self.0 = rest;
        Ok(*byte)
    }

    fn number(&mut self) -> Result<u16, Reason> {
        Ok(u16::from_be_bytes([self.byte()?, self.byte()?]))
    }

    fn end(self) -> Result<(), Reason> {
        if self.0.is_empty() { Ok(()) } else { Err(BAD_PART) }
    }
}
