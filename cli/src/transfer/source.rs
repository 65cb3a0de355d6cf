//! The source of an upload: an array or a file, its description, and whether it fits the region.

use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::time::SystemTime;

use ndarray_shm::array::Description;
use ndarray_shm::backend::EntryKind;
use ndarray_shm::{DType, Directory, ErrorKind, Location, Order, with_element};
use ndarray_shm_volume::{
    Bbox, ChunkSink, Error, Found, UploadOptions, Uploaded, VolumeNotes, upload_from_array, upload_from_file,
    upload_from_shared_memory,
};

use crate::args::{LayoutArgs, UploadArgs};
use crate::arrays::places::Search;
use crate::arrays::typed::{Described, plain_order, refuse_other};
use crate::exit::{Exit, Failure};
use crate::show::units;

/// The source of the elements.
#[derive(Debug)]
pub(crate) enum UploadSource<'a> {
    /// A counted array.
    Described(Box<Described>),
    /// A plain array and its description.
    Plain(Location, Directory, Option<Description>),
    /// A file that holds only elements, and its description.
    File(&'a Path, Option<Description>),
}

impl<'a> UploadSource<'a> {
    pub(crate) fn find(args: &'a UploadArgs) -> Result<Self, Failure> {
        if args.file {
            let path = Path::new(&args.source);
            check_readable(path)?;
            return Ok(Self::File(path, description_of(path).filter(|_| !args.ignore_description)));
        }
        let location = location(&args.source)?;
        let found = Search::new(args.backend)?.find(&location, &[EntryKind::Array])?;
        match found.array.as_ref().map_or(Found::Other, |entry| Found::at(&found.backend, entry)) {
            Found::Plain(said) => {
                return Ok(Self::Plain(location, found.backend, said.filter(|_| !args.ignore_description)));
            }
            Found::Other => return Ok(Self::Plain(location, found.backend, None)),
            _ => {}
        }
        let layout =
            LayoutArgs { dtype: None, shape: None, order: None, ignore_description: false, backend: args.backend };
        let array = Described::find(&location, &layout, &[EntryKind::Array])?;
        match args.order {
            Some(order) if order != array.order => {
                let message = format!(
                    "`{location}` is a counted array, and its order is {}, not {order}: omit --order",
                    array.order
                );
                Err(Failure::new(Exit::Usage, message))
            }
            _ => Ok(Self::Described(Box::new(array))),
        }
    }

    /// Returns the memory order: that of a counted array, else `--order`, else that of the description.
    pub(crate) fn order(&self, args: &UploadArgs, shape: impl IntoIterator<Item = u64>) -> Result<Order, Failure> {
        match self {
            Self::Described(array) => Ok(array.order),
            Self::Plain(..) | Self::File(..) => {
                plain_order(args.source.display(), args.order.or(self.said().map(Description::order)), shape)
            }
        }
    }

    /// Returns the description of a plain array or a file.
    pub(crate) fn said(&self) -> Option<&Description> {
        match self {
            Self::Plain(_, _, said) | Self::File(_, said) => said.as_ref(),
            Self::Described(_) => None,
        }
    }

    /// Returns where the elements are from, as the description of a plain array or a file says.
    pub(crate) fn notes(&self) -> Option<VolumeNotes> {
        self.said().map(|said| VolumeNotes::read(said, said.shape()))
    }

    /// Fails if the array has the volume's axes in another order.
    pub(crate) fn check_axes(&self, sink: &dyn ChunkSink) -> Result<(), Failure> {
        self.notes().unwrap_or_default().check_axes(sink).map_err(|error| {
            Failure::from(error)
                .advice("in Python, numpy.transpose does; a new Zarr volume keeps the order of the array's axes")
        })
    }

    /// Returns the region of an existing volume to write to, without `--bbox`: where the array is from, if that is this
    /// volume and scale, else all of the volume.
    pub(crate) fn region_in(&self, sink: &dyn ChunkSink) -> Result<Bbox, Failure> {
        let domain = sink.meta().domain();
        match self.notes().map(|notes| notes.region_in(sink)).transpose() {
            Ok(region) => Ok(region.flatten().unwrap_or(domain)),
            Err(error) => Err(Failure::from(error).advice(
                "choose the scale that the array is from with --mip; or give its region in this scale with --bbox",
            )),
        }
    }

    /// Returns advice about the region of an array that is from another volume.
    ///
    /// `axes` is the number of axes of the destination: a region of another number fits nowhere in it.
    fn region_advice(&self, axes: usize) -> String {
        let notes = self.notes().unwrap_or_default();
        match (notes.bbox, notes.source) {
            (Some(bbox), Some(source)) if bbox.ranges().len() == axes => format!(
                ". The array is from {} of {}: if it belongs to the same region here, give --bbox {bbox}",
                bbox,
                units::printable(&source)
            ),
            _ => String::new(),
        }
    }

    /// Returns advice for a `.npy` file, which holds more than its elements.
    fn npy_advice(&self) -> &'static str {
        match self {
            Self::File(path, _) if path.extension().is_some_and(|extension| extension == "npy") => {
                ". A .npy file also has a header: `ndshm import` creates an array from it"
            }
            _ => "",
        }
    }

    /// Identifies this version of the source: its length, and the time of its last change.
    pub(crate) fn version(&self) -> Result<String, Failure> {
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
        found.map_err(|error| unreadable(&path, &error))
    }

    /// Fails if the array does not have this type and shape.
    pub(crate) fn check_fits(&self, dtype: DType, shape: &[u64], args: &UploadArgs) -> Result<(), Failure> {
        let location = args.source.to_string_lossy().into_owned();
        let error = match self {
            Self::Described(array) if array.dtype != dtype => {
                ErrorKind::DTypeMismatch { expected: dtype.to_string(), found: array.dtype.to_string() }.at(location)
            }
            Self::Described(array) if !array.shape.iter().map(|length| *length as u64).eq(shape.iter().copied()) => {
                let (expected, found) = (format!("{shape:?}"), format!("{:?}", array.shape));
                ErrorKind::ShapeMismatch { expected, found }.at(location)
            }
            Self::Described(_) => return Ok(()),
            Self::Plain(_, _, Some(said)) | Self::File(_, Some(said)) if said.dtype() != dtype => {
                ErrorKind::DTypeMismatch { expected: dtype.to_string(), found: said.dtype().to_string() }.at(location)
            }
            Self::Plain(_, _, Some(said)) | Self::File(_, Some(said)) => {
                let lengths: Vec<usize> =
                    shape.iter().map(|length| usize::try_from(*length).unwrap_or(usize::MAX)).collect();
                let order = self.order(args, shape.iter().copied())?;
                let long =
                    |lengths: &[usize]| lengths.iter().copied().filter(|length| *length != 1).collect::<Vec<_>>();
                // With --create the caller has said the shape, and may mean it in spite of the description.
                if args.create || said.agrees_with(dtype, &lengths, order) || long(said.shape()) == long(&lengths) {
                    return refuse_other(args.source.display(), Some(said), dtype, &lengths, order);
                }
                ErrorKind::ShapeMismatch { expected: format!("{shape:?}"), found: format!("{:?}", said.shape()) }
                    .at(location)
            }
            Self::Plain(..) | Self::File(..) => {
                let (found, _) = self.length_and_time()?;
                let expected = shape.iter().try_fold(dtype.size() as u64, |bytes, length| bytes.checked_mul(*length));
                match expected {
                    Some(expected) if expected != found => {
                        ErrorKind::SizeMismatch { expected, found, description: None }.at(location)
                    }
                    // If the length overflows, the library refuses it with a better error.
                    _ => return Ok(()),
                }
            }
        };
        let advice = self.mismatch_advice(&error, dtype, shape, args.create);
        Err(Failure::from(error).usage().advice(advice))
    }

    /// Returns advice about an array that does not fit the region. If it would fit with another type, the advice names
    /// that type.
    fn mismatch_advice(&self, error: &ndarray_shm::Error, dtype: DType, shape: &[u64], is_new: bool) -> String {
        let elements = shape.iter().try_fold(1u64, |elements, length| elements.checked_mul(*length));
        let found = match &error.kind {
            ErrorKind::DTypeMismatch { found, .. } => Some(format!("of type {found}")),
            ErrorKind::SizeMismatch { found, .. } => {
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
                "for the region of shape {shape:?} the elements would be {found}, but --dtype is {dtype}: give --dtype the type of the \
                 array's elements, or omit it if the array has a description; or give --bbox another region{}",
                self.npy_advice()
            ),
            (Some(found), false) => format!(
                "for the region of shape {shape:?} the elements would be {found}, but the volume's are of type {dtype}: convert the array \
                 to that type, or create a volume of the array's type with --create; or give --bbox another region{}",
                self.npy_advice()
            ),
            (None, _) => format!(
                "the array must have the shape {shape:?} and elements of type {dtype}: --bbox selects the region of the array, and \
                 --cutout the part of it that is written{}{}",
                self.npy_advice(),
                self.region_advice(shape.len())
            ),
        }
    }

    pub(crate) fn upload(
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
                _ => return Failure::from(error),
            };
            Failure::from(error).usage().advice(advice)
        };
        Ok(match self {
            Self::File(path, _) => upload_from_file(sink, bbox, path, &options).map_err(explain)?,
            Self::Plain(location, backend, _) => {
                upload_from_shared_memory(sink, bbox, location, &options.directory(backend.clone())).map_err(explain)?
            }
            Self::Described(array) => with_element!(
                array.dtype,
                T => array.read::<T, _>(|view| upload_from_array(sink, bbox, &view, &options).map_err(explain))?,
                else => return Err(Failure::no_elements(array.dtype))
            ),
        })
    }
}

/// Fails if the source cannot be read, before a volume is created for it.
fn check_readable(path: &Path) -> Result<(), Failure> {
    let failed = |error| unreadable(path, &error);
    // Opening a named pipe would wait for a writer.
    if !path.metadata().map_err(failed)?.is_file() {
        let message = format!("`{}` is not a regular file", path.display());
        return Err(Failure::new(Exit::Usage, message).advice("--file needs a file that holds only elements"));
    }
    File::open(path).map(drop).map_err(failed)
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    let exit = if error.kind() == std::io::ErrorKind::NotFound { Exit::NotFound } else { Exit::Failed };
    Failure::new(exit, error).while_doing(format!("cannot read `{}`", path.display()))
}

/// Returns the description of a file. `download --file` writes it as for an array.
fn description_of(path: &Path) -> Option<Description> {
    let absolute = std::path::absolute(path).ok()?;
    let directory = Directory::new("files", absolute.parent()?);
    directory.description(absolute.file_name()?.to_str()?).ok().flatten()
}

fn is_mismatch(error: &ndarray_shm::Error) -> bool {
    matches!(
        error.kind,
        ErrorKind::SizeMismatch { .. } | ErrorKind::ShapeMismatch { .. } | ErrorKind::DTypeMismatch { .. }
    )
}

/// Returns the elements along each axis of a region.
pub(crate) fn lengths(bbox: &Bbox) -> Vec<u64> {
    bbox.shape().into_iter().map(|length| length as u64).collect()
}

fn location(name: &OsStr) -> Result<Location, Failure> {
    match name.to_str() {
        Some(name) => Ok(name.parse()?),
        None => Err(Failure::new(Exit::Usage, format!("`{}` is not a valid name", name.to_string_lossy()))),
    }
}
