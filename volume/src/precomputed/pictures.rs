//! Chunks as pictures, JPEG and PNG: x along the rows, y and z down the columns, channels as colours.
//!
//! The sizes of pictures are untrusted input: they are compared with the chunk before a picture is decoded.

use std::io::Cursor;

use png::{BitDepth, ColorType};

use super::jpeg;
use crate::error::Cause;

/// Memory that decoding a PNG may use besides its elements.
const PNG_ROOM: usize = 1 << 20;

/// A chunk: its lengths along x, y, z and channels, and the bytes of an element.
#[derive(Debug, Clone, Copy)]
pub(super) struct PictureLayout {
    pub(super) shape: [usize; 4],
    pub(super) size: usize,
}

impl PictureLayout {
    fn pixels(self) -> usize {
        self.shape[..3].iter().product()
    }

    fn channels(self) -> usize {
        self.shape[3]
    }

    fn bytes(self) -> usize {
        self.pixels() * self.channels() * self.size
    }

    /// Divides the elements into rows: like other writers (x by y·z), or else so that both sides are short enough.
    fn sides(self, longest: usize) -> Result<(usize, usize), Cause> {
        let [x, y, z, _] = self.shape;
        [(x, y * z), (x * y, z), (x * z, y)]
            .into_iter()
            .find(|(width, height)| *width <= longest && *height <= longest)
            .ok_or_else(|| format!("no picture has {x} times {y} times {z} elements: use smaller chunks").into())
    }

    fn compare(self, width: usize, height: usize, channels: usize) -> Result<(), Cause> {
        if width.checked_mul(height) != Some(self.pixels()) {
            let wanted = self.pixels();
            return Err(format!("a picture of {width} times {height} elements is no chunk of {wanted}").into());
        }
        if channels != self.channels() {
            return Err(format!("a picture of {channels} colours is no chunk of {} channels", self.channels()).into());
        }
        Ok(())
    }
}

/// Decodes a JPEG into `into`, replacing its content.
///
/// # Errors
///
/// The picture is damaged, or does not fit the chunk.
pub(super) fn decode_jpeg(bytes: &[u8], layout: PictureLayout, into: &mut Vec<u8>) -> Result<(), Cause> {
    if !matches!((layout.channels(), layout.size), (1 | 3, 1)) {
        return Err("only chunks of 8 bit elements with 1 or 3 channels are JPEG pictures".into());
    }
    let mut picture = if layout.channels() == 1 { std::mem::take(into) } else { Vec::new() };
    picture.resize(layout.bytes(), 0);
    let compare = |width, height, colours| layout.compare(width, height, colours);
    jpeg::decode(bytes, layout.channels() == 3, compare, &mut picture)?;
    if layout.channels() == 1 {
        *into = picture;
    } else {
        apart(&picture, layout, into);
    }
    Ok(())
}

/// Encodes a chunk as JPEG: 8 bit elements, 1 or 3 channels. Lossy: the lower the quality, the more detail is lost.
///
/// # Errors
///
/// No JPEG holds such a chunk.
pub(super) fn encode_jpeg(bytes: &[u8], layout: PictureLayout, quality: u8) -> Result<Vec<u8>, Cause> {
    let (width, height) = layout.sides(jpeg::LONGEST_SIDE)?;
    let sides = [u16::try_from(width)?, u16::try_from(height)?];
    match (layout.channels(), layout.size) {
        (1, 1) => jpeg::encode(bytes, sides, false, quality.max(1)),
        (3, 1) => jpeg::encode(&together(bytes, layout), sides, true, quality.max(1)),
        _ => Err("only chunks of 8 bit elements with 1 or 3 channels become JPEG pictures".into()),
    }
}

/// Decodes a PNG into `into`, replacing its content.
///
/// # Errors
///
/// The picture is damaged, or does not fit the chunk.
pub(super) fn decode_png(bytes: &[u8], layout: PictureLayout, into: &mut Vec<u8>) -> Result<(), Cause> {
    let limits = png::Limits { bytes: layout.bytes().saturating_add(PNG_ROOM) };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_transformations(png::Transformations::IDENTITY);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let header = decoder.read_header_info()?;
    let (width, height) = (usize::try_from(header.width)?, usize::try_from(header.height)?);
    let (colours, depth) = (header.color_type, header.bit_depth);
    layout.compare(width, height, colours.samples())?;
    let size = match depth {
        BitDepth::Eight => 1,
        BitDepth::Sixteen => 2,
        BitDepth::One | BitDepth::Two | BitDepth::Four => 0,
    };
    if size != layout.size || colours == ColorType::Indexed {
        return Err(
            format!("a {colours:?} picture of {depth:?} bits is no chunk of {} byte elements", layout.size).into()
        );
    }
    let mut picture = if layout.channels() == 1 { std::mem::take(into) } else { Vec::new() };
    picture.resize(layout.bytes(), 0);
    let mut reader = decoder.read_info()?;
    if reader.output_buffer_size() != Some(picture.len()) {
        return Err("the picture is not as long as its header says".into());
    }
    reader.next_frame(&mut picture)?;
    if layout.size == 2 {
        picture.as_chunks_mut().0.iter_mut().for_each(|element| *element = u16::from_be_bytes(*element).to_ne_bytes());
    }
    if layout.channels() == 1 {
        *into = picture;
    } else {
        apart(&picture, layout, into);
    }
    Ok(())
}

/// Encodes a chunk as PNG: 8 or 16 bit elements, 1 to 4 channels.
///
/// # Errors
///
/// No PNG holds such a chunk.
pub(super) fn encode_png(bytes: &[u8], layout: PictureLayout) -> Result<Vec<u8>, Cause> {
    let (width, height) = layout.sides(i32::MAX as usize)?;
    let colours = match layout.channels() {
        1 => ColorType::Grayscale,
        2 => ColorType::GrayscaleAlpha,
        3 => ColorType::Rgb,
        4 => ColorType::Rgba,
        _ => return Err("only chunks of 1 to 4 channels become PNG pictures".into()),
    };
    let depth = match layout.size {
        1 => BitDepth::Eight,
        2 => BitDepth::Sixteen,
        _ => return Err("only chunks of 8 or 16 bit elements become PNG pictures".into()),
    };
    let mut picture = together(bytes, layout);
    if layout.size == 2 {
        picture.as_chunks_mut().0.iter_mut().for_each(|element| *element = u16::from_ne_bytes(*element).to_be_bytes());
    }
    let mut packed = Vec::new();
    let mut encoder = png::Encoder::new(&mut packed, u32::try_from(width)?, u32::try_from(height)?);
    encoder.set_color(colours);
    encoder.set_depth(depth);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&picture)?;
    writer.finish()?;
    Ok(packed)
}

/// Converts interleaved colours to one channel after the other.
fn apart(picture: &[u8], layout: PictureLayout, into: &mut Vec<u8>) {
    let pixel = layout.channels() * layout.size;
    into.resize(layout.bytes(), 0);
    for (channel, plane) in into.chunks_exact_mut((layout.pixels() * layout.size).max(1)).enumerate() {
        for (to, from) in plane.chunks_exact_mut(layout.size).zip(picture.chunks_exact(pixel)) {
            to.copy_from_slice(&from[channel * layout.size..][..layout.size]);
        }
    }
}

/// Converts one channel after the other to interleaved colours.
fn together(bytes: &[u8], layout: PictureLayout) -> Vec<u8> {
    let pixel = layout.channels() * layout.size;
    let mut picture = vec![0; bytes.len()];
    for (channel, plane) in bytes.chunks_exact((layout.pixels() * layout.size).max(1)).enumerate() {
        for (to, from) in picture.chunks_exact_mut(pixel).zip(plane.chunks_exact(layout.size)) {
            to[channel * layout.size..][..layout.size].copy_from_slice(from);
        }
    }
    picture
}
