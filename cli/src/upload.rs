//! `ndshm upload`: an array, or a file of its elements, becomes a region of a volume; the volume may be made first.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use ndarray_shm::backend::EntryKind;
use ndarray_shm::{DType, Directory, Location, Order, with_element};
use ndarray_shm_volume::{
    Alignment, Bbox, ChunkSink, Encoding, Error, ErrorKind, NewVolume, UploadOptions, Uploaded, VolumeFormat,
    VolumeOptions, create_volume, upload_from_array, upload_from_file, upload_from_shared_memory,
};
use serde::Serialize;

use crate::cli::{EncodingChoice, FormatChoice, LayoutArgs, UploadArgs};
use crate::counted::Look;
use crate::described::{Described, plain_order};
use crate::exit::{Exit, Failure};
use crate::part::{IdlePart, Part};
use crate::places::Search;
use crate::progress::Display;
use crate::words::PerAxis;
use crate::{interrupt, region, report, units};

/// Where the elements come from.
#[derive(Debug)]
enum UploadSource<'a> {
    /// An array that says itself what it is.
    Described(Described),
    /// An array that is nothing but its elements.
    Plain(Location, Directory),
    /// A file that is nothing but elements.
    File(&'a Path),
}

/// Runs `ndshm upload`.
pub(crate) fn run(args: &UploadArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let stop = interrupt::flag()?;
    let source = UploadSource::find(args)?;
    let sink = if args.create {
        interrupt::opening(&stop, &args.destination, || create(args, &source))?
    } else {
        let open = || VolumeOptions::new().mip(args.mip).open_writable(&args.destination);
        interrupt::opening(&stop, &args.destination, open).map_err(|error| match error.kind() {
            Some(ErrorKind::Absent) => {
                Failure::from(error).advice("--create makes the volume; `ndshm upload --help` says what that needs")
            }
            _ => error.into(),
        })?
    };
    let meta = sink.meta();
    let bbox = region::parse(meta, args.bbox.as_deref(), None)?;
    let whole = match &args.cutout {
        Some(text) => meta.parse_bbox(text)?,
        None => bbox.clone(),
    };
    let name = args.source.to_string_lossy();
    // Where the array lies belongs to it, and which version of it: another one has to be stored anew.
    let order = source.order(args, bbox.shape().into_iter().map(|length| length as u64))?;
    let work = format!("upload of {name} ({}) at {bbox} to {} order={order}", source.version()?, sink.identity());
    let part = Part::choose(&args.part, meta, &whole, work)?;
    let cutout = match &part {
        None => whole.clone(),
        Some(part) => {
            let Some(region) = part.region.clone() else {
                part.mark(None, 0, 0)?;
                return IdlePart::write(part, None, "nothing", args.json, out);
            };
            if part.is_marked(None)? {
                return IdlePart::write(part, None, "already done", args.json, out);
            }
            region
        }
    };
    let display = Display::new(&name, "object", args.quiet);
    let options = UploadOptions::new()
        .order(order)
        .cutout(cutout)
        .alignment(if args.read_modify_write { Alignment::ReadModifyWrite } else { Alignment::Require })
        .skip_background(args.skip_background)
        .workers(usize::from(args.workers.unwrap_or(0)))
        .requests(usize::from(args.requests.unwrap_or(0)))
        .progress(&display)
        .stop(&stop);
    let start = Instant::now();
    let uploaded = source.upload(&*sink, &bbox, options);
    display.clear();
    let uploaded = uploaded.map_err(|failure| match failure.exit() {
        Exit::Interrupted => {
            failure.advice("what is stored is whole objects: the same command stores all of them again")
        }
        _ => failure,
    })?;
    let seconds = start.elapsed();
    if let Some(part) = &part {
        part.mark(None, (uploaded.stored + uploaded.background) as u64, uploaded.bytes)?;
    }
    let report = UploadReport {
        source: name.into_owned(),
        destination: args.destination.to_string(),
        bbox: uploaded.bbox.to_string(),
        shard: part.as_ref().map(|part| part.shard.to_string()),
        dtype: meta.dtype.to_string(),
        order: order.to_string(),
        stored: uploaded.stored,
        background: uploaded.background,
        bytes: uploaded.bytes,
        stored_bytes: uploaded.stored_bytes,
        seconds: seconds.as_secs_f64(),
        bytes_per_second: units::rate(uploaded.bytes, seconds),
        warnings: uploaded.warnings,
    };
    if args.json {
        report::json(out, &report)?;
    } else {
        report.write(out)?;
    }
    Ok(Exit::Done)
}

impl<'a> UploadSource<'a> {
    fn find(args: &'a UploadArgs) -> Result<Self, Failure> {
        if args.file {
            return Ok(Self::File(Path::new(&args.source)));
        }
        let location = location(&args.source)?;
        let found = Search::new(args.backend)?.find(&location, &[EntryKind::Array])?;
        let is_plain = found.array.as_ref().is_none_or(|entry| matches!(Look::at(&found.backend, entry), Look::Other));
        if is_plain {
            return Ok(Self::Plain(location, found.backend));
        }
        let layout = LayoutArgs { dtype: None, shape: None, order: None, backend: args.backend };
        let array = Described::find(&location, &layout, &[EntryKind::Array])?;
        match args.order {
            Some(order) if order != array.order => {
                let message = format!(
                    "`{location}` says itself that its order is {}, not {order}: leave --order out",
                    array.order
                );
                Err(Failure::new(Exit::Usage, message))
            }
            _ => Ok(Self::Described(array)),
        }
    }

    /// Returns the order in memory: what the array says of itself, else what the command line says.
    fn order(&self, args: &UploadArgs, shape: impl IntoIterator<Item = u64>) -> Result<Order, Failure> {
        match self {
            Self::Described(array) => Ok(array.order),
            Self::Plain(..) | Self::File(_) => plain_order(args.source.display(), args.order, shape),
        }
    }

    /// A `.npy` file holds more than its elements.
    fn npy_advice(&self) -> &'static str {
        match self {
            Self::File(path) if path.extension().is_some_and(|extension| extension == "npy") => {
                ". A .npy file also has a header: `ndshm import` makes an array of it"
            }
            _ => "",
        }
    }

    /// Tells it from another of the same name: its length, and when it was made or last written.
    fn version(&self) -> Result<String, Failure> {
        let path = match self {
            Self::File(path) => path.to_path_buf(),
            Self::Plain(location, backend) => backend.path().join(location.as_str()),
            Self::Described(array) => array.backend.path().join(array.location.as_str()),
        };
        let found = path.metadata().and_then(|facts| Ok((facts.len(), facts.modified()?)));
        let (length, time) = found.map_err(|error| {
            let exit = if error.kind() == std::io::ErrorKind::NotFound { Exit::NotFound } else { Exit::Failed };
            Failure::new(exit, error).while_doing(format!("cannot read `{}`", path.display()))
        })?;
        let time = time.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Ok(format!("{length} bytes, {}.{:09}", time.as_secs(), time.subsec_nanos()))
    }

    fn upload(&self, sink: &dyn ChunkSink, bbox: &Bbox, options: UploadOptions<'_>) -> Result<Uploaded, Failure> {
        let explain = |error: Error| {
            let advice = match &error {
                Error::Array(
                    ndarray_shm::Error::SizeMismatch { .. }
                    | ndarray_shm::Error::ShapeMismatch { .. }
                    | ndarray_shm::Error::DTypeMismatch { .. },
                ) => format!(
                    "the array is to be the region {bbox} in elements of type {}: --bbox says which region it is, and --cutout \
                     which part of it is written{}",
                    sink.meta().dtype,
                    self.npy_advice()
                ),
                Error::Alignment { .. } => {
                    "--read-modify-write reads such objects, changes and stores them; or choose another \
                                            --cutout, or --bbox, where the array is larger"
                        .to_owned()
                }
                _ => return Failure::from(error),
            };
            Failure::from(error).usage().advice(advice)
        };
        Ok(match self {
            Self::File(path) => upload_from_file(sink, bbox, path, &options).map_err(explain)?,
            Self::Plain(location, backend) => {
                upload_from_shared_memory(sink, bbox, location, &options.backend(backend.clone())).map_err(explain)?
            }
            Self::Described(array) => with_element!(
                array.dtype,
                T => array.read::<T, _>(|view| Ok(upload_from_array(sink, bbox, &view, &options)?))?,
                else => return Err(Failure::no_elements(array.dtype))
            ),
        })
    }
}

fn location(name: &OsStr) -> Result<Location, Failure> {
    match name.to_str() {
        Some(name) => Ok(name.parse()?),
        None => Err(Failure::new(Exit::Usage, format!("`{}` is no name", name.to_string_lossy()))),
    }
}

/// Makes the volume, or opens one that is there and just like it: the same command may be given again.
fn create(args: &UploadArgs, source: &UploadSource<'_>) -> Result<Box<dyn ChunkSink>, Failure> {
    let new = new_volume(args, source)?;
    let error = match create_volume(&args.destination, &new) {
        Err(error) if error.kind() == Some(ErrorKind::AlreadyExists) => error,
        made => return Ok(made?),
    };
    match VolumeOptions::new().encoding(new.encoding).open_writable(&args.destination) {
        Ok(there) if new.is_like(there.meta()) => Ok(there),
        Ok(_) => {
            Err(Failure::from(error).advice("leave --create away to write into what is there; or choose another place"))
        }
        Err(damage) if damage.kind() == Some(ErrorKind::Damaged) => Err(damage.into()),
        Err(_) => Err(error.into()),
    }
}

fn new_volume(args: &UploadArgs, source: &UploadSource<'_>) -> Result<NewVolume, Failure> {
    let usage = |message: &str| Failure::new(Exit::Usage, message);
    let (format, version) = match (args.format, args.destination.expected_format()) {
        (Some(FormatChoice::Zarr2), _) => (VolumeFormat::Zarr, 2),
        (Some(FormatChoice::Zarr3), _) | (None, Some(VolumeFormat::Zarr)) => (VolumeFormat::Zarr, 3),
        (Some(FormatChoice::Precomputed), _) | (None, Some(VolumeFormat::Precomputed)) => {
            (VolumeFormat::Precomputed, 1)
        }
        (None, _) => {
            return Err(usage(
                "--create needs --format zarr2, zarr3 or precomputed, or precomputed:// in front of the URL",
            ));
        }
    };
    let described = match source {
        UploadSource::Described(array) => Some(array),
        _ => None,
    };
    let dtype: DType = args
        .dtype
        .or(described.map(|array| array.dtype))
        .ok_or_else(|| usage("--create needs --dtype: a plain array does not say what its elements are"))?;
    // A region without a volume has no open ends.
    let region: Option<Bbox> = args.bbox.as_ref().map(|text| text.parse()).transpose()?;
    let shape = match (&args.shape, described, &region) {
        (Some(PerAxis(shape)), ..) => shape.clone(),
        (None, Some(array), _) => array.shape.iter().map(|length| *length as u64).collect(),
        (None, None, Some(region)) => region.shape().iter().map(|length| *length as u64).collect(),
        (None, None, None) => {
            return Err(usage("--create needs --shape, or --bbox: a plain array does not say its shape"));
        }
    };
    let array = region.as_ref().map(|region| region.shape().iter().map(|length| *length as u64).collect());
    source.order(args, array.unwrap_or_else(|| shape.clone()))?;
    let Some(PerAxis(chunk)) = &args.chunk else {
        return Err(usage("--create needs --chunk, such as --chunk 64,64,64"));
    };
    let mut new = NewVolume::new(format, &shape, chunk, dtype);
    new.version = version;
    new.origin = match (&args.origin, &args.shape, region) {
        (Some(PerAxis(origin)), ..) => origin.clone(),
        // Without a shape of its own the volume is the region.
        (None, None, Some(region)) => region.ranges().iter().map(|range| range.start).collect(),
        _ => vec![0; shape.len()],
    };
    new.shard_shape = args.shard_shape.as_ref().map(|shape| shape.0.clone());
    new.encoding = match args.encoding {
        EncodingChoice::Raw => Encoding::Raw,
        EncodingChoice::Gzip => Encoding::Gzip,
        EncodingChoice::Zstd => Encoding::Zstd,
        EncodingChoice::Blosc => Encoding::Blosc,
        EncodingChoice::Jpeg => Encoding::Jpeg,
        EncodingChoice::Png => Encoding::Png,
        EncodingChoice::CompressedSegmentation => Encoding::CompressedSegmentation,
    };
    new.resolution = args.resolution.as_ref().map(|sizes| sizes.0.clone()).unwrap_or_default();
    Ok(new)
}

/// A finished upload, as `upload --json` prints it.
#[derive(Debug, Serialize)]
struct UploadReport {
    source: String,
    destination: String,
    /// The region that was written.
    bbox: String,
    /// Which part of a larger region it is; `null` if it is all of it.
    shard: Option<String>,
    /// The element type as `NumPy` writes it: "<u2".
    dtype: String,
    /// Memory order of the array: "C" or "F".
    order: String,
    /// Objects that were stored.
    stored: usize,
    /// Objects that hold nothing but background and were left out.
    background: usize,
    /// Bytes of the array that were written.
    bytes: u64,
    /// Bytes that were stored.
    stored_bytes: u64,
    seconds: f64,
    /// Bytes of the array, by its time.
    bytes_per_second: u64,
    /// What went wrong without stopping the work.
    warnings: Vec<String>,
}

impl UploadReport {
    fn write(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let objects = units::count(self.stored, "object");
        writeln!(out, "stored {objects}; {} held nothing but background and were left out", self.background)?;
        let mut facts = vec![
            ("from", units::printable(&self.source)),
            ("to", units::printable(&self.destination)),
            ("region", self.bbox.clone()),
            ("order", self.order.clone()),
            ("size", format!("{}, stored as {}", units::size(self.bytes), units::size(self.stored_bytes))),
            ("time", format!("{:.2} s, {}/s", self.seconds, units::size(self.bytes_per_second))),
        ];
        if let Some(shard) = &self.shard {
            facts.insert(2, ("part", shard.clone()));
        }
        report::facts(out, &facts)?;
        Ok(())
    }
}
