//! Zarr arrays, versions 2 and 3, in a directory of the local file system.
//!
//! The only room, with `demo`, that knows the crate zarrs. None of its types leaves; its messages do, as causes.
//! Nothing here writes.

mod document;

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use ndarray_shm::{DType, Order};
use zarrs::array::{
    Array, ArrayBytes, ArrayError, ArrayShardedExt as _, ArrayShardedReadableExt as _, ArrayShardedReadableExtCache,
    ArraySubset, CodecOptions,
};
use zarrs::filesystem::FilesystemStore;

use self::document::Document;
use crate::bbox::{ranges_text, to_usize};
use crate::error::{Error, Result};
use crate::scratch::Scratch;
use crate::volume::{ChunkSource, Fetched, VolumeMeta};

/// A chunk is read in part where less than one element in this many is wanted: fewer bytes, but a seek for each row.
const PARTIAL_READ: u64 = 8;

/// Memory for indexes of shards, which are kept so that each is read once.
const SHARD_INDEX_BYTES: u64 = 64 << 20;

/// Bytes of one entry in a shard's index: offset and length.
const SHARD_INDEX_ENTRY: u64 = 16;

/// Opens the volume in a local directory: a Zarr array, version 2 or 3.
///
/// # Errors
///
/// - [`Source`](Error::Source): nothing is there, it is a Zarr group (the message lists its arrays), another format, or
///   a Zarr array with damaged metadata, a codec or a chunk grid that is not supported;
/// - [`UnsupportedDType`](Error::UnsupportedDType): its elements cannot be in shared memory.
pub(crate) fn open(path: &Path) -> Result<Box<dyn ChunkSource>> {
    let document = Document::read(path)?;
    let dtype = document.dtype()?;
    let source = ZarrSource::open(&document, dtype)?;
    Ok(Box::new(source))
}

/// An array whose chunks are files.
struct ZarrSource {
    meta: VolumeMeta,
    identity: String,
    root: PathBuf,
    array: Array<FilesystemStore>,
    fill: Vec<u8>,
    options: CodecOptions,
    shards: Option<Shards>,
}

/// A sharded array is painted by its inner chunks. A shard is a file, often of gigabytes, and decoding one whole would
/// take that much memory in each worker; an inner chunk is found through the shard's index, which is kept, and read and
/// decoded alone. That holds if the shard itself is not packed once more: then it is one chunk.
struct Shards {
    cache: ArrayShardedReadableExtCache,
    capacity: usize,
}

impl ZarrSource {
    fn open(document: &Document, dtype: DType) -> Result<Self> {
        let root = document.root().to_owned();
        let unreadable = |cause: Box<dyn std::error::Error + Send + Sync>| Error::Source {
            volume: root.display().to_string(),
            reason: "this Zarr array cannot be read".to_owned(),
            cause: Some(cause),
        };
        let store = FilesystemStore::new(&root).map_err(|error| unreadable(Box::new(error)))?;
        // Constructed from the very document that was looked at, not from what may be there by now.
        let array = Array::new_with_metadata(store.into(), "/", document.metadata()?)
            .map_err(|error| unreadable(Box::new(error)))?;
        let grid = array.chunk_grid().metadata();
        if !matches!(grid.name(), "regular" | "regular_bounded") {
            return Err(unreadable(format!("chunk grid `{}`: only regular ones are supported", grid.name()).into()));
        }
        let shape = array.shape().to_vec();
        let outer: Vec<u64> = match array.chunk_shape(&vec![0; shape.len()]) {
            Ok(lengths) => lengths.iter().map(|length| length.get()).collect(),
            // Only an array without elements has no first chunk.
            Err(_) => vec![1; shape.len()],
        };
        // Beyond that even zarrs' own arithmetic fails.
        let bytes = outer.iter().try_fold(dtype.size() as u64, |so_far, length| so_far.checked_mul(*length));
        if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            return Err(unreadable(format!("chunks of shape {outer:?} are larger than the address space").into()));
        }
        let inner: Option<Vec<u64>> = array
            .is_exclusively_sharded()
            .then(|| array.effective_subchunk_shape())
            .flatten()
            .map(|lengths| lengths.iter().map(|length| length.get()).collect());
        let shards = inner.as_ref().map(|inner| Shards::new(&array, &outer, inner));
        let fill = array.fill_value().as_ne_bytes().to_vec();
        if fill.len() != dtype.size() {
            return Err(unreadable(format!("a fill value of {} bytes for elements of {dtype}", fill.len()).into()));
        }
        let description = document.describe(shards.is_some());
        let meta = VolumeMeta {
            origin: vec![0; shape.len()],
            shape,
            chunk_shape: inner.unwrap_or_else(|| outer.clone()),
            stored_shape: outer,
            dtype,
            fill: Some(fill.clone()),
            axes: Vec::new(),
            description,
        };
        // The workers are the parallelism: were each chunk decoded by several threads too, they would outnumber the
        // processors.
        let options = CodecOptions::default().with_concurrent_target(1);
        Ok(Self { meta, identity: document.identity(), root, array, fill, options, shards })
    }

    fn decode_chunk(&self, indices: &[u64], region: &[Range<u64>], scratch: &mut Scratch) -> Result<(), ArrayError> {
        let origin = indices.iter().zip(&self.meta.chunk_shape).map(|(index, length)| index * length);
        let window: Vec<Range<u64>> =
            region.iter().zip(origin).map(|(range, origin)| range.start - origin..range.end - origin).collect();
        let wanted: u64 = window.iter().map(|range| range.end - range.start).product();
        let whole = self.meta.chunk_shape.iter().fold(1u64, |so_far, length| so_far.saturating_mul(*length));
        let chunk: Option<ArrayBytes<'static>> = match &self.shards {
            Some(shards) => {
                shards.make_room();
                Some(self.array.retrieve_subchunk_opt(&shards.cache, indices, &self.options)?)
            }
            None if wanted < whole / PARTIAL_READ => {
                let part = ArraySubset::new_with_ranges(&window);
                let bytes: ArrayBytes<'static> = self.array.retrieve_chunk_subset_opt(indices, &part, &self.options)?;
                let shape: Vec<usize> = window.iter().map(|range| to_usize(range.end - range.start)).collect();
                let all = shape.iter().map(|length| 0..*length).collect();
                scratch.block(bytes.into_fixed()?.into_owned(), shape, Order::C, all);
                return Ok(());
            }
            None => self.array.retrieve_chunk_if_exists_opt(indices, &self.options)?,
        };
        match chunk {
            None => scratch.missing(),
            Some(bytes) => scratch.block(
                bytes.into_fixed()?.into_owned(),
                self.meta.chunk_shape.iter().map(|length| to_usize(*length)).collect(),
                Order::C,
                window.iter().map(|range| to_usize(range.start)..to_usize(range.end)).collect(),
            ),
        }
        Ok(())
    }

    /// Returns the file that a chunk is stored in.
    fn file_of(&self, region: &[Range<i64>]) -> PathBuf {
        let stored: Vec<u64> = match self.array.chunk_shape(&vec![0; region.len()]) {
            Ok(lengths) => region
                .iter()
                .zip(lengths.iter())
                .map(|(range, length)| range.start.unsigned_abs() / length.get())
                .collect(),
            Err(_) => vec![0; region.len()],
        };
        // Part by part, so that all separators are those of the platform.
        let mut file = self.root.clone();
        file.extend(self.array.chunk_key(&stored).as_str().split('/'));
        file
    }
}

impl ChunkSource for ZarrSource {
    fn meta(&self) -> &VolumeMeta {
        &self.meta
    }

    fn identity(&self) -> String {
        self.identity.clone()
    }

    fn decode(&self, region: &[Range<i64>], _fetched: Fetched, scratch: &mut Scratch) -> Result<()> {
        let failed = |cause: Box<dyn std::error::Error + Send + Sync>| Error::Chunk {
            chunk: self.file_of(region).display().to_string(),
            region: ranges_text(region),
            cause,
        };
        let meta = &self.meta;
        let named = region;
        let region: Vec<Range<u64>> =
            region.iter().map(|range| range.start.unsigned_abs()..range.end.unsigned_abs()).collect();
        if region.len() != meta.shape.len() {
            return Err(Error::bbox(ranges_text(named), format!("the volume has {} axes", meta.shape.len())));
        }
        let indices: Vec<u64> =
            region.iter().zip(&meta.chunk_shape).map(|(range, length)| range.start / length).collect();
        let in_one_chunk = region.iter().enumerate().all(|(axis, range)| {
            range.start < range.end
                && range.end <= meta.shape[axis]
                && (range.end - 1) / meta.chunk_shape[axis] == indices[axis]
        });
        if !in_one_chunk {
            return Err(Error::bbox(ranges_text(named), "it does not lie in one chunk of the volume"));
        }
        self.decode_chunk(&indices, &region, scratch).map_err(|error| failed(Box::new(error)))
    }
}

impl fmt::Debug for ZarrSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZarrSource").field("root", &self.root).field("meta", &self.meta).finish_non_exhaustive()
    }
}

impl Shards {
    fn new(array: &Array<FilesystemStore>, outer: &[u64], inner: &[u64]) -> Self {
        let entries: u64 = outer.iter().zip(inner).map(|(outer, inner)| outer.div_ceil(*inner)).product();
        let capacity = SHARD_INDEX_BYTES / entries.saturating_mul(SHARD_INDEX_ENTRY).max(1);
        Self { cache: ArrayShardedReadableExtCache::new(array), capacity: to_usize(capacity).max(16) }
    }

    /// Forgets all indexes when there are too many; those still needed are read again.
    fn make_room(&self) {
        if self.cache.len() > self.capacity {
            self.cache.clear();
        }
    }
}
