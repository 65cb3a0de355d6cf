//! `ndshm upload --create`: creates the volume that the command line describes, after the checks of the source.

use ndarray_shm::DType;
use ndarray_shm::array::Description;
use ndarray_shm_volume::{
    Bbox, BboxSpec, ChunkSink, Encoding, NewVolume, SourceFailure, VolumeFormat, VolumeKind, VolumeOptions,
    create_volume,
};

use super::region;
use super::source::{UploadSource, lengths};
use crate::args::words::PerAxis;
use crate::args::{EncodingChoice, FormatChoice, TypeChoice, UploadArgs};
use crate::exit::{Exit, Failure};

/// A new volume, and what the user should know about it.
#[derive(Debug)]
pub(crate) struct PlannedVolume {
    pub(crate) new: NewVolume,
    /// What the new volume does not keep of the array's description.
    pub(crate) left_out: Vec<String>,
}

/// Creates the volume, or opens an existing one with the same description, so that the same command can be repeated.
pub(crate) fn create(
    args: &UploadArgs,
    source: &UploadSource<'_>,
) -> Result<(Box<dyn ChunkSink>, PlannedVolume), Failure> {
    let plan = describe(args, source)?;
    let new = &plan.new;
    // Check region and source before the volume exists: a later failure would leave an empty volume.
    if let Some(meta) = new.meta() {
        let bbox = region::parse(&meta, args.bbox.as_deref(), None)?;
        let cutout = args.cutout.as_ref().map(|text| meta.parse_bbox(text)).transpose()?;
        source.check_fits(new.dtype, &lengths(&bbox), args)?;
        if !args.read_modify_write {
            meta.check_aligned(cutout.as_ref().unwrap_or(&bbox))?;
        }
    }
    let error = match create_volume(&args.destination, new) {
        Err(error) if error.source_failure() == Some(SourceFailure::AlreadyExists) => error,
        made => return Ok((made?, plan)),
    };
    match VolumeOptions::new().encoding(new.encoding).open_writable(&args.destination) {
        Ok(there) if new.is_like(there.meta()) => Ok((there, plan)),
        Ok(there) => Err(Failure::from(error).advice(match there.meta().kind {
            Some(kind) if new.made_kind().is_some_and(|new| new != kind) => format!(
                "the existing volume is of type {kind}: say --type {kind}, or omit --create, to write into it; or choose another \
                 destination"
            ),
            _ => "omit --create to write into the existing volume; or choose another destination".to_owned(),
        })),
        Err(damage) if damage.source_failure() == Some(SourceFailure::Damaged) => Err(damage.into()),
        Err(_) => Err(error.into()),
    }
}

/// Returns the description of the volume to create. Fails with a list of the options that are missing.
fn describe(args: &UploadArgs, source: &UploadSource<'_>) -> Result<PlannedVolume, Failure> {
    let format = match (args.format, args.destination.expected_format()) {
        (_, Some(VolumeFormat::N5)) => {
            let reason = format!("`{}`: N5 volumes can be read, but not written", args.destination);
            return Err(Failure::new(Exit::Usage, reason).advice("write to a Zarr or Precomputed volume instead"));
        }
        (Some(FormatChoice::Zarr2), _) => (VolumeFormat::Zarr, 2),
        (Some(FormatChoice::Precomputed), _) | (None, Some(VolumeFormat::Precomputed)) => {
            (VolumeFormat::Precomputed, 1)
        }
        (Some(FormatChoice::Zarr3) | None, _) => (VolumeFormat::Zarr, 3),
    };
    let described = match source {
        UploadSource::Described(array) => Some(&**array),
        _ => None,
    };
    let said = source.said();
    let lengths_of = |shape: &[usize]| shape.iter().map(|length| *length as u64).collect::<Vec<_>>();
    let of_array = described.map(|array| &array.shape[..]).or(said.map(Description::shape)).map(lengths_of);
    let dtype: Option<DType> = args.dtype.or(described.map(|array| array.dtype)).or(said.map(Description::dtype));
    let spec: Option<BboxSpec> = args.bbox.as_ref().map(|text| text.parse()).transpose()?;
    let shape: Option<Vec<u64>> = match (&args.shape, of_array, &spec) {
        (Some(PerAxis(shape)), ..) => Some(shape.clone()),
        (None, Some(shape), _) => Some(shape),
        (None, None, Some(spec)) => Some(lengths(&spec.closed().map_err(|error| {
            Failure::from(error).advice(
                "give --shape, the size of the whole volume: an open bound of --bbox then is the volume's bound",
            )
        })?)),
        (None, None, None) => None,
    };
    let mut plan = dtype.zip(shape.as_deref()).map(|(dtype, shape)| like(args, source, format, dtype, shape));
    let origin: Option<Vec<i64>> = match (&args.origin, &args.shape, &spec) {
        (Some(PerAxis(origin)), ..) => Some(origin.clone()),
        // Without --shape, the volume is exactly the region.
        (None, None, Some(spec)) => Some(spec.starts().into_iter().map(|start| start.unwrap_or(0)).collect()),
        (_, _, Some(_)) => shape.as_ref().map(|shape| vec![0; shape.len()]),
        // Without --bbox, the array is the volume, and begins where it began in the volume that it is from.
        (_, _, None) => plan.as_ref().map(|plan| plan.new.origin.clone()),
    };
    let array: Option<Vec<u64>> = match (&spec, &shape, &origin) {
        // The region may omit the channel axis. `create` refuses a region outside the volume, once all of the volume is
        // known.
        (Some(spec), Some(shape), Some(origin)) => {
            spec.resolve(&Bbox::at(origin, shape)).ok().map(|region| lengths(&region))
        }
        _ => shape.clone(),
    };
    let order = match array.as_ref().or(shape.as_ref()) {
        Some(shape) => source.order(args, shape.iter().copied()).map(drop),
        None if described.is_some() || said.is_some() || args.order.is_some() => Ok(()),
        None => Err(Failure::silent(Exit::Usage)), // listed below with the other missing options
    };
    if let (Some(plan), Some(origin)) = (&mut plan, origin) {
        plan.new.origin = origin;
    }
    let has_chunk = args.chunk.is_some() || plan.as_ref().is_some_and(|plan| !plan.new.chunk_shape.is_empty());
    let is_untyped = match &plan {
        Some(plan) => plan.new.format == VolumeFormat::Precomputed && plan.new.made_kind().is_none(),
        None => is_untyped(args, format.0, dtype),
    };
    let Some(plan) = plan.filter(|_| has_chunk && !is_untyped) else {
        let which_type = if dtype.is_some() {
            "--type image or segmentation (programs that downsample average images, and must not average labels)"
        } else {
            "--type image or segmentation, if the elements are uint32 or uint64"
        };
        let axes = shape.as_ref().map_or(3, |shape| shape.len().clamp(1, 3));
        let chunk = format!("--chunk {}, such as {}", vec!["N"; axes].join(","), vec!["64"; axes].join(","));
        let options = [
            (dtype.is_none(), "--dtype TYPE, such as uint16"),
            (shape.is_none(), "--shape N,N,N (or --bbox)"),
            (order.is_err(), "--order c (last axis contiguous) or f (first axis contiguous)"),
            (!has_chunk, &chunk),
            (is_untyped, which_type),
        ];
        let missing: Vec<&str> =
            options.into_iter().filter_map(|(is_missing, option)| is_missing.then_some(option)).collect();
        let lacks_description = dtype.is_none() || shape.is_none() || order.is_err();
        let is_plain = described.is_none() && said.is_none();
        let reason = if is_plain && lacks_description {
            "; a plain array without description has no type, shape or order"
        } else {
            ""
        };
        return Err(Failure::new(Exit::Usage, format!("--create needs {}{reason}", missing.join("; "))));
    };
    order?;
    Ok(plan)
}

/// Returns the volume to create, as the array's description and the options say. The options win.
fn like(
    args: &UploadArgs,
    source: &UploadSource<'_>,
    (format, version): (VolumeFormat, u8),
    dtype: DType,
    shape: &[u64],
) -> PlannedVolume {
    let mut new = NewVolume::new(format, shape, &[], dtype);
    new.version = version;
    new.shard_shape = args.shard_shape.as_ref().map(|shape| shape.0.clone());
    let mut notes = source.notes().unwrap_or_default();
    // What an option says is not taken over, so that nothing is said about it either.
    if args.bbox.is_some() || args.origin.is_some() {
        notes.bbox = None;
    }
    if args.resolution.is_some() {
        notes.resolution.clear();
    }
    if args.chunk.is_some() {
        notes.chunk_shape.clear();
        notes.shard_shape.clear();
    }
    if args.encoding.is_some() {
        notes.encoding = None;
    }
    if args.kind.is_some() {
        notes.kind = None;
    }
    let left_out = new.take_over(&notes, source.said().map_or(dtype, Description::dtype));
    if let Some(PerAxis(chunk)) = &args.chunk {
        new.chunk_shape.clone_from(chunk);
    }
    if let Some(choice) = args.kind {
        new.kind = Some(match choice {
            TypeChoice::Image => VolumeKind::Image,
            TypeChoice::Segmentation => VolumeKind::Segmentation,
        });
    }
    if let Some(choice) = args.encoding {
        new.encoding = encoding(choice);
    }
    new.jpeg_quality = args.jpeg_quality;
    if let Some(PerAxis(sizes)) = &args.resolution {
        new.resolution.clone_from(sizes);
    }
    PlannedVolume { new, left_out }
}

/// Whether the volume needs a type and has none, as far as its element type is known.
fn is_untyped(args: &UploadArgs, format: VolumeFormat, dtype: Option<DType>) -> bool {
    let encoding = args.encoding.map_or(Encoding::Raw, encoding);
    let is_implied = |dtype| VolumeKind::implied(encoding, dtype).is_some();
    // U64 alone implies no type. If it does together with this encoding, the encoding implies the type for all
    // elements.
    let is_implied = is_implied(DType::U64) || dtype.is_some_and(is_implied);
    args.kind.is_none() && format == VolumeFormat::Precomputed && !is_implied
}

pub(crate) fn encoding(choice: EncodingChoice) -> Encoding {
    match choice {
        EncodingChoice::Raw => Encoding::Raw,
        EncodingChoice::Gzip => Encoding::Gzip,
        EncodingChoice::Zstd => Encoding::Zstd,
        EncodingChoice::Blosc => Encoding::Blosc,
        EncodingChoice::Jpeg => Encoding::Jpeg,
        EncodingChoice::Png => Encoding::Png,
        EncodingChoice::CompressedSegmentation => Encoding::CompressedSegmentation,
        EncodingChoice::CompressedSegmentationGzip => Encoding::CompressedSegmentationGzip,
    }
}
