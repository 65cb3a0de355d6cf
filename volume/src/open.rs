//! Opens and creates volumes: detects the format of an address, and chooses a scale.

#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;
use std::sync::Arc;

use ndarray_shm::cache::ChunkCache;

use crate::cached::{self, CachedVolume, Recheck};
use crate::description::{Encoding, NewVolume, ScaleInfo};
use crate::error::{Error, Result, SourceFailure};
use crate::store::url::{IntoVolumeUrl, StorePlace, VolumeFormat, VolumeUrl, resolved};
use crate::store::{self, Store};
use crate::volume::{ChunkSink, ChunkSource};
use crate::{n5, precomputed, zarr};

/// Options for opening a volume.
#[derive(Debug, Clone, Default)]
pub struct VolumeOptions {
    mip: usize,
    encoding: Option<Encoding>,
    cache: Option<ChunkCache>,
    recheck: Recheck,
}

impl VolumeOptions {
    /// Returns the defaults: the first, finest scale.
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses a scale by its number in the volume's list. 0 is the finest.
    pub fn mip(mut self, mip: usize) -> Self {
        self.mip = mip;
        self
    }

    /// Gives the encoding with which the volume was created.
    ///
    /// Only [`open_writable`](Self::open_writable) of Precomputed volumes uses it. Their description does not say
    /// whether chunks are wrapped in gzip. Existing chunks in a directory show it, and override this choice.
    pub fn encoding(mut self, encoding: Encoding) -> Self {
        self.encoding = Some(encoding);
        self
    }

    /// Reads through a cache: see [`CachedVolume`]. Without this, the environment variable `NDSHM_CHUNK_CACHE` is the
    /// size of this user's own cache, as in `16G`; if it is not set, nothing is cached.
    ///
    /// Only [`open`](Self::open) uses it.
    pub fn cache(mut self, cache: &ChunkCache) -> Self {
        self.cache = Some(cache.clone());
        self
    }

    /// Chooses when a cached chunk is compared with the stored object again.
    pub fn recheck(mut self, recheck: Recheck) -> Self {
        self.recheck = recheck;
        self
    }

    /// Opens a volume for reading.
    ///
    /// # Errors
    ///
    /// - [`Source`](Error::Source): there is no volume, or it cannot be read ([`Error::source_failure`] tells which,
    ///   the message tells why and what is there instead), or support for such URLs is not built in;
    /// - [`Scale`](Error::Scale): the volume has fewer scales;
    /// - [`UnsupportedDType`](Error::UnsupportedDType): shared memory does not support the volume's element type;
    /// - [`Store`](Error::Store), [`Url`](Error::Url): the store cannot be reached;
    /// - [`Array`](Error::Array): `NDSHM_CHUNK_CACHE` is no size, or such a cache cannot be opened.
    ///
    /// # Examples
    ///
    /// ```
    /// use ndarray_shm::DType;
    /// use ndarray_shm_volume::VolumeOptions;
    /// # use ndarray_shm_volume::demo::{self, DemoSpec};
    /// # let path = std::env::temp_dir().join(format!("open-example-{}", std::process::id()));
    /// # demo::write_volume(&path, &DemoSpec::new(&[64, 64, 64], &[32, 32, 32], DType::U16))?;
    ///
    /// let volume = VolumeOptions::new().mip(0).open(&path)?; // or a URL: "precomputed://https://host/em"
    /// assert_eq!((volume.meta().shape.as_slice(), volume.meta().dtype), ([64, 64, 64].as_slice(), DType::U16));
    /// # std::fs::remove_dir_all(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(&self, url: impl IntoVolumeUrl) -> Result<Box<dyn ChunkSource>> {
        let source = match found(&url.into_volume_url()?)? {
            (VolumeFormat::Zarr, store) => zarr::open(&store, self.mip),
            (VolumeFormat::Precomputed, store) => precomputed::open(store, self.mip),
            (VolumeFormat::N5, store) => n5::open(&store, self.mip),
        }?;
        let cache = match &self.cache {
            Some(cache) => Some(cache.clone()),
            None => cached::of_environment()?,
        };
        Ok(match cache {
            Some(cache) => Box::new(CachedVolume::new(source, &cache).recheck(self.recheck)),
            None => source,
        })
    }

    /// Opens a volume for reading and writing.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open), and [`Source`](Error::Source) if the volume can be read but not written.
    ///
    /// # Examples
    ///
    /// ```
    /// use ndarray_shm::DType;
    /// use ndarray_shm_volume::VolumeOptions;
    /// # use ndarray_shm_volume::demo::{self, DemoSpec};
    /// # let path = std::env::temp_dir().join(format!("open-writable-example-{}", std::process::id()));
    /// # demo::write_volume(&path, &DemoSpec::new(&[64, 64, 64], &[32, 32, 32], DType::U16))?;
    ///
    /// let volume = VolumeOptions::new().open_writable(&path)?;
    /// let chunk = volume.meta().parse_bbox("32:,:32,:32")?; // an empty side is the volume's bound
    /// volume.erase(chunk.ranges())?;
    /// # std::fs::remove_dir_all(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_writable(&self, url: impl IntoVolumeUrl) -> Result<Box<dyn ChunkSink>> {
        let url = url.into_volume_url()?;
        match found(&url)? {
            (VolumeFormat::Zarr, store) => zarr::open_writable(&store, self.mip),
            (VolumeFormat::Precomputed, store) => precomputed::open_writable(store, self.mip, self.encoding),
            (VolumeFormat::N5, _) => Err(Error::volume(SourceFailure::Unsupported, &url, n5::READ_ONLY)),
        }
    }

    /// Lists the scales of a volume, the finest first.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open).
    pub fn scales(&self, url: impl IntoVolumeUrl) -> Result<Vec<ScaleInfo>> {
        match found(&url.into_volume_url()?)? {
            (VolumeFormat::Zarr, store) => zarr::scales(&store),
            (VolumeFormat::Precomputed, store) => precomputed::scales(&store),
            (VolumeFormat::N5, store) => n5::scales(&store),
        }
    }
}

/// Opens the first scale of a volume for reading: [`VolumeOptions::open`] with the defaults.
///
/// # Errors
///
/// Those of [`VolumeOptions::open`].
///
/// # Examples
///
/// ```
/// use ndarray_shm::DType;
/// use ndarray_shm_volume::open_volume;
/// # use ndarray_shm_volume::demo::{self, DemoSpec};
/// # let path = std::env::temp_dir().join(format!("open-volume-example-{}", std::process::id()));
/// # demo::write_volume(&path, &DemoSpec::new(&[64, 64, 64], &[32, 32, 32], DType::U16))?;
///
/// let volume = open_volume(&path)?;
/// assert_eq!(volume.meta().parse_bbox("0:64,10:,:20")?.to_string(), "0:64,10:64,0:20");
/// # std::fs::remove_dir_all(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn open_volume(url: impl IntoVolumeUrl) -> Result<Box<dyn ChunkSource>> {
    VolumeOptions::new().open(url)
}

/// Opens the first scale of a volume for reading and writing: [`VolumeOptions::open_writable`] with the defaults.
///
/// # Errors
///
/// Those of [`VolumeOptions::open_writable`].
pub fn open_writable_volume(url: impl IntoVolumeUrl) -> Result<Box<dyn ChunkSink>> {
    VolumeOptions::new().open_writable(url)
}

/// Creates a volume without chunks, and opens it for writing.
///
/// If several processes create different volumes in one place at the same time, one succeeds and the others get an
/// error. Processes that create the same volume all succeed. (On servers without conditional requests the last
/// description is kept.)
///
/// # Errors
///
/// - [`Source`](Error::Source): the place is [not empty](SourceFailure::AlreadyExists);
/// - [`NewVolume`](Error::NewVolume): the format does not support what is asked for, or [`NewVolume::kind`] is needed
///   to tell whether the elements are labels;
/// - [`Store`](Error::Store), [`Url`](Error::Url): the store cannot be reached or written.
pub fn create_volume(url: impl IntoVolumeUrl, new: &NewVolume) -> Result<Box<dyn ChunkSink>> {
    let url = &url.into_volume_url()?;
    if let Some(expected) = url.expected_format().filter(|expected| *expected != new.format) {
        let reason = format!("its URL says {expected:?}, but {:?} is to be made", new.format);
        return Err(Error::new_volume(url, reason));
    }
    let store = store::open(&absolute(url)?)?;
    let new = new.completed();
    match new.format {
        VolumeFormat::Zarr => zarr::create(&store, &new),
        VolumeFormat::Precomputed => precomputed::create(store, &new),
        VolumeFormat::N5 => Err(Error::new_volume(url, n5::READ_ONLY)),
    }
}

/// Opens the store of an existing volume, and detects its format.
fn found(url: &VolumeUrl) -> Result<(VolumeFormat, Arc<dyn Store>)> {
    let store = store::open(&existing(url)?)?;
    if let Some(format) = url.expected_format() {
        return Ok((format, store));
    }
    if zarr::found(&store)? {
        return Ok((VolumeFormat::Zarr, store));
    }
    if precomputed::found(&store)? {
        return Ok((VolumeFormat::Precomputed, store));
    }
    if n5::found(&store)? {
        return Ok((VolumeFormat::N5, store));
    }
    let reason = "this is no volume: it has neither zarr.json nor .zarray nor info nor attributes.json";
    Err(Error::volume(SourceFailure::Absent, url, reason))
}

/// Returns the URL of an existing volume with symbolic links resolved: all processes must use the same name.
fn existing(url: &VolumeUrl) -> Result<VolumeUrl> {
    let StorePlace::Local(path) = url.place() else { return Ok(url.clone()) };
    // `dunce` leaves out the `\\?\` prefix of Windows, which would appear in messages.
    match dunce::canonicalize(path) {
        Ok(root) if root.is_dir() => Ok(VolumeUrl::local(root)),
        Ok(_) => Err(Error::volume(SourceFailure::NotAVolume, path.display(), not_a_directory(path))),
        // On Windows a URL is not a valid file name.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename
            ) =>
        {
            Err(Error::volume(SourceFailure::Absent, path.display(), "there is no such directory"))
        }
        Err(error) => Err(Error::io("opening", path, error)),
    }
}

/// Returns the URL of a volume that may not exist yet.
fn absolute(url: &VolumeUrl) -> Result<VolumeUrl> {
    let StorePlace::Local(path) = url.place() else { return Ok(url.clone()) };
    if path.is_dir() {
        return existing(url);
    }
    // Links are resolved, so that the name stays the same when the volume is opened later.
    let found = resolved(path).map_err(|error| Error::io("looking for", path, error))?;
    Ok(VolumeUrl::local(found))
}

fn not_a_directory(path: &Path) -> &'static str {
    match path.file_name().and_then(|name| name.to_str()) {
        Some("zarr.json" | ".zarray" | ".zgroup" | "info" | "attributes.json") => {
            "this is a metadata file: give the directory it is in"
        }
        _ => "this is a file, but a Zarr array is a directory (unpack it if it is an archive), as all volumes are",
    }
}
