//! Downloads to other destinations: an unnamed array of this process, and a file at any path.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use ndarray::{Dimension, IxDyn, ShapeBuilder as _};
use ndarray_shm::{Directory, Element, Location, OpenOptions, Order, SharedArray, default_directory, render};

use super::{DownloadOptions, Downloaded, download_as};
use crate::bbox::Bbox;
use crate::error::{Error, Result};
use crate::volume::ChunkSource;

/// Paints a region of a volume into an array that no other process can find. Its name is removed before this returns,
/// and its memory is freed with the value, however the process ends.
///
/// Returns an ordinary [`SharedArray`] that keeps a descriptor, through which its guards work without a name. During
/// painting, worker processes find it by the name that
/// [`ProcessWorkers::with_location`](crate::ProcessWorkers::with_location) passes them. Unfinished work is never kept
/// for another run, because its name would be unknown. (If the process is killed meanwhile, `ndshm gc` removes what it
/// had painted, as [`remove_nameless_download`] does.)
///
/// # Errors
///
/// Those of [`download_to_shared_memory`](crate::download_to_shared_memory). [`Array`](Error::Array) also if the
/// volume's elements are not `T`, or the region does not have the number of axes of `D`.
///
/// # Examples
///
/// ```
/// use ndarray::Ix2;
/// use ndarray_shm::DType;
/// use ndarray_shm_volume::demo::{self, DemoSpec};
/// use ndarray_shm_volume::{DownloadOptions, VolumeUrl, download, open_volume};
///
/// let directory = std::env::temp_dir().join(format!("private-example-{}", std::process::id()));
/// demo::write_volume(&directory, &DemoSpec::new(&[40, 40], &[16, 16], DType::U16))?;
///
/// let volume = open_volume(VolumeUrl::local(&directory))?;
/// let bbox = volume.meta().parse_bbox("10:30,:")?;
/// let array = download::<u16, Ix2>(&*volume, &bbox, &DownloadOptions::new())?;
/// assert_eq!(array.read()?.shape(), [20, 40]);
///
/// std::fs::remove_dir_all(&directory)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn download<T: Element, D: Dimension>(
    source: &dyn ChunkSource,
    bbox: &Bbox,
    options: &DownloadOptions<'_>,
) -> Result<SharedArray<T, D>> {
    download_with_report(source, bbox, options).map(|(array, _)| array)
}

/// Like [`download`], and also reports what was done. The report's [`open`](Downloaded::open) finds no array, because
/// the name is gone.
///
/// # Errors
///
/// Those of [`download`].
pub fn download_with_report<T: Element, D: Dimension>(
    source: &dyn ChunkSource,
    bbox: &Bbox,
    options: &DownloadOptions<'_>,
) -> Result<(SharedArray<T, D>, Downloaded)> {
    let location = unique()?;
    let meta = source.meta();
    // Checked before anything is painted.
    if T::DTYPE != meta.dtype {
        let (expected, found) = (T::DTYPE.to_string(), meta.dtype.to_string());
        return Err(ndarray_shm::ErrorKind::DTypeMismatch { expected, found }.at(source.identity()).into());
    }
    let shape = bbox.shape();
    let Some(dim) = D::from_dimension(&IxDyn(&shape)) else {
        let (expected, found) = (format!("{:?} axes", D::NDIM), format!("{shape:?}"));
        return Err(ndarray_shm::ErrorKind::ShapeMismatch { expected, found }.at(source.identity()).into());
    };
    let backend = match &options.backend {
        Some(backend) => backend.clone(),
        None => default_directory()?,
    };
    let unnamed = Unnamed { backend: &backend, location: &location };
    let done = download_as(source, bbox, &location, options, &backend, false)?;
    let arrays = OpenOptions::new().directory(backend.clone()).keep_fd(true);
    let array = arrays.open::<T, D>(&location, dim.set_f(options.order == Order::F))?;
    drop(unnamed);
    Ok((array, done))
}

/// Removes the array's name, or the unfinished buffer, when dropped: also on an error or a panic.
struct Unnamed<'a> {
    backend: &'a Directory,
    location: &'a Location,
}

impl Drop for Unnamed<'_> {
    fn drop(&mut self) {
        // Errors are ignored: where nothing can be removed, nothing could be created either.
        let _ = self.backend.unlink(self.location);
        let _ = render::discard(self.backend, self.location);
    }
}

/// The beginning of the names under which nameless downloads are painted.
const PREFIX: &str = "ndshm-download-";

/// Whether a name is one under which [`download`] paints.
pub fn is_nameless_download(name: &str) -> bool {
    let parts = name.strip_prefix(PREFIX).map(|rest| rest.split('-').collect::<Vec<_>>());
    let is_number = |part: &str, digits: fn(&u8) -> bool| !part.is_empty() && part.bytes().all(|byte| digits(&byte));
    matches!(parts.as_deref(), Some([process, time, count]) if is_number(process, u8::is_ascii_digit)
        && is_number(time, u8::is_ascii_hexdigit) && is_number(count, u8::is_ascii_digit))
}

/// Removes what a killed [`download`] had painted, which cannot be resumed. A `dry_run` removes nothing. Returns
/// whether it was, or would be, removed: not while its process or one of its workers lives.
///
/// # Errors
///
/// Those of [`render::attached`] and [`render::discard`]; `NotFound` if it no longer exists.
pub fn remove_nameless_download(backend: &Directory, location: &Location, dry_run: bool) -> ndarray_shm::Result<bool> {
    if !is_nameless_download(location.as_str()) || render::attached(backend, location)? {
        return Ok(false);
    }
    Ok(dry_run || render::discard(backend, location)?)
}

/// Returns a name that no other download uses.
fn unique() -> Result<Location> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let nanoseconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    Ok(Location::new(&format!("{PREFIX}{}-{nanoseconds:x}-{count}", std::process::id()))?)
}

/// Paints a region of a volume into a file that holds only the elements, in the chosen order.
///
/// The file gets its name when it is complete. Until then two files beside it, with names that begin with `.ndshm-`,
/// hold the painted elements and the list of finished chunks, and the same call resumes there, as in shared memory.
/// After a restart of the machine the download begins again, because data that had not reached the disk may be lost.
/// The file has the permissions 0600, or 0660 if a group [shares](DownloadOptions::shared_with) it. Worker processes
/// need the directory and the location that [`file_location`] returns.
///
/// # Errors
///
/// Those of [`download_to_shared_memory`](crate::download_to_shared_memory): `AlreadyExists` unless
/// [`replace`](DownloadOptions::replace), `NoSpace` before anything is painted. Those of [`file_location`].
/// `InvalidSetting` if a [`directory`](DownloadOptions::directory) is set, because that is the file's directory.
///
/// # Examples
///
/// ```
/// use ndarray_shm::DType;
/// use ndarray_shm_volume::demo::{self, DemoSpec};
/// use ndarray_shm_volume::{DownloadOptions, VolumeUrl, download_to_file, open_volume};
///
/// let directory = std::env::temp_dir().join(format!("file-example-{}", std::process::id()));
/// demo::write_volume(&directory, &DemoSpec::new(&[40, 40], &[16, 16], DType::U16))?;
///
/// let volume = open_volume(VolumeUrl::local(&directory))?;
/// let file = directory.join("region.raw");
/// download_to_file(&*volume, &volume.meta().parse_bbox("10:30,:")?, &file, &DownloadOptions::new())?;
/// assert_eq!(std::fs::metadata(&file)?.len(), 20 * 40 * 2);
///
/// std::fs::remove_dir_all(&directory)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn download_to_file(
    source: &dyn ChunkSource,
    bbox: &Bbox,
    path: &Path,
    options: &DownloadOptions<'_>,
) -> Result<Downloaded> {
    if let Some(backend) = &options.backend {
        let (setting, value) = ("the directory of a download to a file", backend.path().display().to_string());
        let expected = "unset: a file is created in its own directory";
        return Err(ndarray_shm::Error::setting(setting, value, expected).into());
    }
    let (backend, location) = file_location(path)?;
    download_as(source, bbox, &location, options, &backend, options.keep_partial)
}

/// Returns the directory of a path, and its last part as a location in it.
///
/// # Errors
///
/// [`Io`](Error::Io): the directory does not exist. [`Array`](Error::Array) (`InvalidLocation`, `Reserved`): the path
/// has no last part, or the last part is not UTF-8, is longer than 241 bytes, or begins with `.ndshm-`.
pub fn file_location(path: &Path) -> Result<(Directory, Location)> {
    let invalid = |reason| ndarray_shm::ErrorKind::InvalidLocation { reason }.at(path.display());
    let name = path.file_name().ok_or_else(|| invalid("the path of a file ends with its name"))?;
    let name = name.to_str().ok_or_else(|| invalid("the name of the file is not UTF-8"))?;
    let location = Location::new(name)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Absolute: the working directory of a worker process, or of this one later, may differ.
    let directory = dunce::canonicalize(parent).map_err(|error| Error::io("opening the directory", parent, error))?;
    if !directory.is_dir() {
        let error = std::io::Error::from(std::io::ErrorKind::NotADirectory);
        return Err(Error::io("opening the directory", parent, error));
    }
    Ok((Directory::new("file", directory), location))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_nameless_downloads_are_recognised() {
        assert!(is_nameless_download(unique().expect("a name").as_str()));
        for other in
            ["ndshm-download-1-2", "ndshm-download-1-2-3-4", "ndshm-download-x-2-3", "em", "ndshm-download--2-3"]
        {
            assert!(!is_nameless_download(other), "{other}");
        }
    }
}
