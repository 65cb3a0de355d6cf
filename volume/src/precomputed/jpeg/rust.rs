//! JPEG by `zune-jpeg` and `jpeg-encoder`.

use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::{LONGEST_SIDE, MOST_SCANS, whole};
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
    let options = DecoderOptions::new_safe()
        .set_max_width(LONGEST_SIDE)
        .set_max_height(LONGEST_SIDE)
        .set_strict_mode(true)
        .jpeg_set_max_scans(MOST_SCANS)
        .jpeg_set_out_colorspace(if is_coloured { ColorSpace::RGB } else { ColorSpace::Luma });
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(|error| error.to_string())?;
    let facts = decoder.info().ok_or("a JPEG without a header")?;
    compare(usize::from(facts.width), usize::from(facts.height), usize::from(facts.components))?;
    whole::check(bytes)?;
    Ok(decoder.decode_into(picture).map_err(|error| error.to_string())?)
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
    let mut packed = Vec::new();
    let mut encoder = jpeg_encoder::Encoder::new(&mut packed, quality);
    // No chroma subsampling: channels need not be colours, so all keep their resolution.
    encoder.set_sampling_factor(jpeg_encoder::SamplingFactor::R_4_4_4);
    let colours = if is_coloured { jpeg_encoder::ColorType::Rgb } else { jpeg_encoder::ColorType::Luma };
    encoder.encode(picture, width, height, colours)?;
    Ok(packed)
}
