//! JPEG by libjpeg-turbo. Its warnings about damaged pictures are treated as errors.

use turbojpeg::{Colorspace, Compressor, Decompressor, Image, PixelFormat, Subsamp};

use super::{MOST_SCANS, whole};
use crate::error::Cause;

/// Decodes a picture; `compare` checks its width, height and number of colours.
///
/// # Errors
///
/// The picture is damaged or incomplete, or `compare` refuses it.
pub(in super::super) fn decode(
    bytes: &[u8],
    is_coloured: bool,
    compare: impl FnOnce(usize, usize, usize) -> Result<(), Cause>,
    picture: &mut [u8],
) -> Result<(), Cause> {
    let mut decoder = Decompressor::new()?;
    decoder.set_scan_limit(u32::try_from(MOST_SCANS)?)?;
    let header = decoder.read_header(bytes)?;
    let colours = match header.colorspace {
        Colorspace::Gray => 1,
        Colorspace::RGB | Colorspace::YCbCr => 3,
        Colorspace::CMYK | Colorspace::YCCK => 4,
    };
    compare(header.width, header.height, colours)?;
    // libjpeg-turbo makes up the coefficients of missing scans without a warning.
    if header.is_progressive {
        whole::check(bytes)?;
    }
    Ok(decoder.decompress(bytes, image(picture, header.width, header.height, is_coloured))?)
}

/// Encodes a picture of this width and height.
///
/// # Errors
///
/// The picture has no elements.
pub(in super::super) fn encode(
    picture: &[u8],
    [width, height]: [u16; 2],
    is_coloured: bool,
    quality: u8,
) -> Result<Vec<u8>, Cause> {
    let mut encoder = Compressor::new()?;
    encoder.set_quality(i32::from(quality))?;
    // No chroma subsampling: channels need not be colours, so all keep their resolution.
    encoder.set_subsamp(if is_coloured { Subsamp::None } else { Subsamp::Gray })?;
    Ok(encoder.compress_to_vec(image(picture, usize::from(width), usize::from(height), is_coloured))?)
}

fn image<T>(pixels: T, width: usize, height: usize, is_coloured: bool) -> Image<T> {
    let (colours, format) = if is_coloured { (3, PixelFormat::RGB) } else { (1, PixelFormat::GRAY) };
    Image { pixels, width, pitch: width * colours, height, format }
}
