//! `ndshm upload`: an array, or a file of its elements, becomes a region of a volume; the volume may be made first.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::time::{Instant, SystemTime};

use ndarray_shm::array::Description;
use ndarray_shm::backend::EntryKind;
use ndarray_shm::{DType, Directory, Location, Order, with_element};
use ndarray_shm_volume::{
    Alignment, Bbox, BboxSpec, ChunkSink, Encoding, Error, ErrorKind, NewVolume, UploadOptions, Uploaded, VolumeFormat,
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
    /// A counted array.
    Described(Described),
    /// A plain array, with what it says about itself.
    Plain(Location, Directory, Option<Description>),
    /// A file that is nothing but elements, with what it says about itself.
    File(&'a Path, Option<Description>),
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
        .reinterpret(args.ignore_description)
        .cutout(cutout)
        .alignment(if args.read_modify_write { Alignment::ReadModifyWrite } else { Alignment::Require })
        .skip_background(args.skip_background)
        .workers(usize::from(args.workers.unwrap_or(0)))
        .requests(usize::from(args.requests.unwrap_or(0)))
        .progress(&display)
        .stop(&stop);
    let start = Instant::now();
    let uploaded = source.upload(&*sink, &bbox, options, args);
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
            let path = Path::new(&args.source);
            return Ok(Self::File(path, description_of(path).filter(|_| !args.ignore_description)));
        }
        let location = location(&args.source)?;
        let found = Search::new(args.backend)?.find(&location, &[EntryKind::Array])?;
        let look = found.array.as_ref().map_or(Look::Other, |entry| Look::at(&found.backend, entry));
        match look {
            Look::Plain(said) => {
                return Ok(Self::Plain(location, found.backend, said.filter(|_| !args.ignore_description)));
            }
            Look::Other => return Ok(Self::Plain(location, found.backend, None)),
            _ => {}
        }
        let layout =
            LayoutArgs { dtype: None, shape: None, order: None, ignore_description: false, backend: args.backend };
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
            Self::Plain(..) | Self::File(..) => {
                plain_order(args.source.display(), args.order.or(self.said().map(Description::order)), shape)
            }
        }
    }

    /// Returns what a plain array or a file says about itself.
    fn said(&self) -> Option<&Description> {
        match self {
            Self::Plain(_, _, said) | Self::File(_, said) => said.as_ref(),
            Self::Described(_) => None,
        }
    }

    /// A `.npy` file holds more than its elements.
    fn npy_advice(&self) -> &'static str {
        match self {
            Self::File(path, _) if path.extension().is_some_and(|extension| extension == "npy") => {
                ". A .npy file also has a header: `ndshm import` makes an array of it"
            }
            _ => "",
        }
    }

    /// Tells it from another of the same name: its length, and when it was made or last written.
    fn version(&self) -> Result<String, Failure> {
        let (length, time) = self.length_and_time()?;
        let time = time.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Ok(format!("{length} bytes, {}.{:09}", time.as_secs(), time.subsec_nanos()))
    }

    fn length_and_time(&self) -> Result<(u64, SystemTime), Failure> {
        let path = match self {
            Self::File(path, _) => path.to_path_buf(),
            Self::Plain(location, backend, _) => backend.path().join(location.as_str()),
            Self::Described(array) => array.backend.path().join(array.location.as_str()),
        };
        let found = path.metadata().and_then(|facts| Ok((facts.len(), facts.modified()?)));
        found.map_err(|error| {
            let exit = if error.kind() == std::io::ErrorKind::NotFound { Exit::NotFound } else { Exit::Failed };
            Failure::new(exit, error).while_doing(format!("cannot read `{}`", path.display()))
        })
    }

    /// Refuses an array that is not a region of this type and shape.
    fn check_fits(&self, dtype: DType, shape: &[u64], args: &UploadArgs) -> Result<(), Failure> {
        use ndarray_shm::Error;
        let location = args.source.to_string_lossy().into_owned();
        let error = match self {
            Self::Described(array) if array.dtype != dtype => {
                Error::DTypeMismatch { location, expected: dtype.to_string(), found: array.dtype.to_string() }
            }
            Self::Described(array) if !array.shape.iter().map(|length| *length as u64).eq(shape.iter().copied()) => {
                let (expected, found) = (format!("{shape:?}"), format!("{:?}", array.shape));
                Error::ShapeMismatch { location, expected, found }
            }
            Self::Described(_) => return Ok(()),
            Self::Plain(_, _, Some(said)) | Self::File(_, Some(said)) if said.dtype() != dtype => {
                Error::DTypeMismatch { location, expected: dtype.to_string(), found: said.dtype().to_string() }
            }
            Self::Plain(..) | Self::File(..) => {
                let (found, _) = self.length_and_time()?;
                let expected = shape.iter().try_fold(dtype.size() as u64, |bytes, length| bytes.checked_mul(*length));
                match expected {
                    Some(expected) if expected != found => {
                        Error::SizeMismatch { location, expected, found, description: None }
                    }
                    // What is longer than can be counted is refused in the library's own words.
                    _ => return Ok(()),
                }
            }
        };
        let advice = self.mismatch_advice(&error, dtype, shape, args.create);
        Err(Failure::from(error).usage().advice(advice))
    }

    /// Says what to do about an array that is not the region: where its elements would fit in another type, that is what is wrong.
    fn mismatch_advice(&self, error: &ndarray_shm::Error, dtype: DType, shape: &[u64], is_new: bool) -> String {
        let elements = shape.iter().try_fold(1u64, |elements, length| elements.checked_mul(*length));
        let found = match error {
            ndarray_shm::Error::DTypeMismatch { found, .. } => Some(format!("of type {found}")),
            ndarray_shm::Error::SizeMismatch { found, .. } => {
                let is_item = |bytes: &u64| [1, 2, 4, 8, 16].contains(bytes) && *bytes != dtype.size() as u64;
                let item =
                    elements.filter(|elements| *elements > 0 && found % elements == 0).map(|count| found / count);
                item.filter(is_item)
                    .map(|bytes| format!("of {} each", units::count(usize::try_from(bytes).unwrap_or(0), "byte")))
            }
            _ => None,
        };
        match (found, is_new) {
            (Some(found), true) => format!(
                "as the region of shape {shape:?} its elements are {found}, but --dtype says {dtype}: give --dtype the type of the \
                 array's elements, or leave it out where the array says itself what it is; or give --bbox another region{}",
                self.npy_advice()
            ),
            (Some(found), false) => format!(
                "as the region of shape {shape:?} its elements are {found}, but the volume's are of type {dtype}: convert the array to \
                 that type, or make a volume of its own type with --create; or give --bbox another region{}",
                self.npy_advice()
            ),
            (None, _) => format!(
                "the array is to be the region of shape {shape:?} in elements of type {dtype}: --bbox says which region it is, and \
                 --cutout which part of it is written{}",
                self.npy_advice()
            ),
        }
    }

    fn upload(
        &self,
        sink: &dyn ChunkSink,
        bbox: &Bbox,
        options: UploadOptions<'_>,
        args: &UploadArgs,
    ) -> Result<Uploaded, Failure> {
        let explain = |error: Error| {
            let advice = match &error {
                Error::Array(error) if is_mismatch(error) => {
                    self.mismatch_advice(error, sink.meta().dtype, &lengths(bbox), args.create)
                }
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
            Self::File(path, _) => upload_from_file(sink, bbox, path, &options).map_err(explain)?,
            Self::Plain(location, backend, _) => {
                upload_from_shared_memory(sink, bbox, location, &options.backend(backend.clone())).map_err(explain)?
            }
            Self::Described(array) => with_element!(
                array.dtype,
                T => array.read::<T, _>(|view| upload_from_array(sink, bbox, &view, &options).map_err(explain))?,
                else => return Err(Failure::no_elements(array.dtype))
            ),
        })
    }
}

/// Returns what a file of elements says about itself: what was downloaded into a file says it as an array does.
fn description_of(path: &Path) -> Option<Description> {
    let absolute = std::path::absolute(path).ok()?;
    let directory = Directory::new("files", absolute.parent()?);
    directory.description(absolute.file_name()?.to_str()?).ok().flatten()
}

fn is_mismatch(error: &ndarray_shm::Error) -> bool {
    use ndarray_shm::Error;
    matches!(error, Error::SizeMismatch { .. } | Error::ShapeMismatch { .. } | Error::DTypeMismatch { .. })
}

fn lengths(bbox: &Bbox) -> Vec<u64> {
    bbox.shape().into_iter().map(|length| length as u64).collect()
}

fn location(name: &OsStr) -> Result<Location, Failure> {
    match name.to_str() {
        Some(name) => Ok(name.parse()?),
        None => Err(Failure::new(Exit::Usage, format!("`{}` is no name", name.to_string_lossy()))),
    }
}

/// Makes the volume, or opens one that is there and just like it: the same command may be given again.
fn create(args: &UploadArgs, source: &UploadSource<'_>) -> Result<Box<dyn ChunkSink>, Failure> {
    let (new, shape) = new_volume(args, source)?;
    // Before the volume is there: what does not fit it would leave an empty one.
    if let Some(shape) = shape {
        source.check_fits(new.dtype, &shape, args)?;
    }
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

/// Describes the volume that is to be made, and returns with it the shape of the array, if that is known before the volume is there.
fn new_volume(args: &UploadArgs, source: &UploadSource<'_>) -> Result<(NewVolume, Option<Vec<u64>>), Failure> {
    let format = match (args.format, args.destination.expected_format()) {
        (Some(FormatChoice::Zarr2), _) => Some((VolumeFormat::Zarr, 2)),
        (Some(FormatChoice::Zarr3), _) | (None, Some(VolumeFormat::Zarr)) => Some((VolumeFormat::Zarr, 3)),
        (Some(FormatChoice::Precomputed), _) | (None, Some(VolumeFormat::Precomputed)) => {
            Some((VolumeFormat::Precomputed, 1))
        }
        (None, _) => None,
    };
    let described = match source {
        UploadSource::Described(array) => Some(array),
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
            Failure::from(error).advice("--shape says how large the volume is; an empty side is its bound then")
        })?)),
        (None, None, None) => None,
    };
    let origin: Option<Vec<i64>> = match (&args.origin, &args.shape, &spec) {
        (Some(PerAxis(origin)), ..) => Some(origin.clone()),
        // Without a shape of its own the volume is the region.
        (None, None, Some(spec)) => Some(spec.starts().into_iter().map(|start| start.unwrap_or(0)).collect()),
        _ => shape.as_ref().map(|shape| vec![0; shape.len()]),
    };
    let array: Option<Vec<u64>> = match (&spec, &shape, &origin) {
        // It may leave out the channels. What does not lie in the volume is refused once that is open.
        (Some(spec), Some(shape), Some(origin)) => {
            spec.resolve(&Bbox::at(origin, shape)).ok().map(|region| lengths(&region))
        }
        _ => shape.clone(),
    };
    let order = match array.as_ref().or(shape.as_ref()) {
        Some(shape) => source.order(args, shape.iter().copied()).map(drop),
        None if described.is_some() || said.is_some() || args.order.is_some() => Ok(()),
        None => Err(Failure::silent(Exit::Usage)), // named below with what else is missing
    };
    let (Some((format, version)), Some(dtype), Some(shape), Some(origin), Some(PerAxis(chunk))) =
        (format, dtype, &shape, origin, &args.chunk)
    else {
        let options = [
            (format.is_none(), "--format zarr2, zarr3 or precomputed (or precomputed:// in front of the URL)"),
            (dtype.is_none(), "--dtype TYPE, such as uint16"),
            (shape.is_none(), "--shape N,N,N (or --bbox)"),
            (order.is_err(), "--order c (last axis contiguous) or f (first axis contiguous)"),
            (args.chunk.is_none(), "--chunk N,N,N, such as 64,64,64"),
        ];
        let missing: Vec<&str> =
            options.into_iter().filter_map(|(is_missing, option)| is_missing.then_some(option)).collect();
        let reason = if described.is_some() || said.is_some() { "" } else { "; a plain array does not say what it is" };
        return Err(Failure::new(Exit::Usage, format!("--create needs {}{reason}", missing.join("; "))));
    };
    order?;
    let mut new = NewVolume::new(format, shape, chunk, dtype);
    new.version = version;
    new.origin = origin;
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
    new.jpeg_quality = args.jpeg_quality;
    new.resolution = args.resolution.as_ref().map(|sizes| sizes.0.clone()).unwrap_or_default();
    Ok((new, array))
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
