//! Pictures: shades for numbers, colours for labels, written as PNG files or as characters of a terminal.

use std::fmt::Write as _;
use std::io::Write;

use super::plane::Plane;
use crate::args::words::ValueRange;
use crate::exit::{Exit, Failure};

/// A picture, row by row.
#[derive(Debug)]
pub(crate) struct Picture {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pixels: Pixels,
}

#[derive(Debug)]
enum Pixels {
    Gray(Vec<u8>),
    Colour(Vec<[u8; 3]>),
}

impl Picture {
    /// Makes shades of numbers. Numbers outside the span, and infinities, are black or white; NaN is black.
    pub(crate) fn shades(plane: &Plane, span: ValueRange) -> Self {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within 0 to 255; NaN becomes 0")]
        let shade = |number: f64| {
            // Halved first, because the difference of two large numbers may overflow.
            let share = (number / 2.0 - span.low / 2.0) / (span.high / 2.0 - span.low / 2.0);
            (share.clamp(0.0, 1.0) * 255.0).round() as u8
        };
        let pixels = Pixels::Gray(plane.numbers().map(shade).collect());
        Self { width: plane.width, height: plane.height, pixels }
    }

    /// Makes colours of labels. A label has the same colour in every picture; 0 is black.
    pub(crate) fn colours(plane: &Plane) -> Self {
        let pixels = Pixels::Colour(plane.labels().map(colour).collect());
        Self { width: plane.width, height: plane.height, pixels }
    }

    /// Returns the bytes of a PNG file.
    pub(crate) fn png(&self) -> Result<Vec<u8>, Failure> {
        let failed =
            |error: &dyn std::fmt::Display| Failure::new(Exit::Failed, format!("cannot encode a PNG: {error}"));
        let length = |length: usize| u32::try_from(length).map_err(|error| failed(&error));
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, length(self.width)?, length(self.height)?);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.set_color(match self.pixels {
            Pixels::Gray(_) => png::ColorType::Grayscale,
            Pixels::Colour(_) => png::ColorType::Rgb,
        });
        let pixels: &[u8] = match &self.pixels {
            Pixels::Gray(shades) => shades,
            Pixels::Colour(colours) => colours.as_flattened(),
        };
        let mut writer = encoder.write_header().map_err(|error| failed(&error))?;
        writer.write_image_data(pixels).map_err(|error| failed(&error))?;
        writer.finish().map_err(|error| failed(&error))?;
        Ok(bytes)
    }

    /// Writes it with characters for a terminal, two rows of pixels per line.
    ///
    /// With `true_colour` it uses 24 bit colours, else the 256 colours that every terminal supports.
    pub(crate) fn write_blocks(&self, out: &mut dyn Write, true_colour: bool) -> std::io::Result<()> {
        let mut line = String::new();
        for top in (0..self.height).step_by(2) {
            line.clear();
            let mut last = String::new();
            for column in 0..self.width {
                let mut colours = String::new();
                let mut paint = |ground: u8, row: usize| {
                    let _ = if true_colour {
                        let [red, green, blue] = self.at(row, column);
                        write!(colours, "\x1b[{ground};2;{red};{green};{blue}m")
                    } else {
                        write!(colours, "\x1b[{ground};5;{}m", indexed(self.at(row, column)))
                    };
                };
                paint(38, top);
                if top + 1 < self.height {
                    paint(48, top + 1);
                }
                if colours != last {
                    line.push_str(&colours);
                    last = colours;
                }
                line.push('▀');
            }
            writeln!(out, "{line}\x1b[0m")?;
        }
        Ok(())
    }

    fn at(&self, row: usize, column: usize) -> [u8; 3] {
        let at = row * self.width + column;
        match &self.pixels {
            Pixels::Gray(shades) => [shades[at]; 3],
            Pixels::Colour(colours) => colours[at],
        }
    }
}

/// Returns the smallest and the largest finite number. If both are equal, that number is black.
pub(crate) fn span(plane: &Plane) -> ValueRange {
    let finite = plane.numbers().filter(|number| number.is_finite());
    let (low, high) = finite.fold((f64::MAX, f64::MIN), |(low, high), number| (low.min(number), high.max(number)));
    match (low < high, low > high) {
        (true, _) => ValueRange { low, high },
        (_, true) => ValueRange { low: 0.0, high: 1.0 },
        // A span needs a width. Adding 1 to a very large number would not change it.
        _ => ValueRange { low, high: low + low.abs().max(1.0) },
    }
}

/// Chooses the colour of a label: mixes its bits, so that near labels differ, and leaves out the darkest colours.
fn colour(label: u64) -> [u8; 3] {
    if label == 0 {
        return [0; 3];
    }
    // The finaliser of MurmurHash3: every bit of the label changes half of the others.
    let mut mixed = label;
    for factor in [0xff51_afd7_ed55_8ccd_u64, 0xc4ce_b9fe_1a85_ec53] {
        mixed = (mixed ^ (mixed >> 33)).wrapping_mul(factor);
    }
    mixed ^= mixed >> 33;
    let [red, green, blue, brightest, ..] = mixed.to_le_bytes();
    let mut colour = [red, green, blue];
    colour[usize::from(brightest % 3)] |= 0x80;
    colour
}

/// Returns the nearest of a terminal's 256 colours: a cube of 6 steps per channel, and 24 shades of gray.
fn indexed([red, green, blue]: [u8; 3]) -> u8 {
    if red == green && green == blue {
        return match red {
            0..4 => 16,
            4..247 => 232 + ((red - 3) / 10).min(23),
            _ => 231,
        };
    }
    let step = |part: u8| u8::try_from((u16::from(part) * 5 + 127) / 255).unwrap_or(5);
    16 + 36 * step(red) + 6 * step(green) + step(blue)
}
