//! A Zarr array in a store: the object that contains a chunk, and the bytes to fetch.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use ndarray_shm::{DType, Order};
use zarrs::array::{Array, ArrayCreateError, ArrayMetadata, CodecError};
use zarrs::plugin::PluginCreateError;
use zarrs::storage::store::MemoryStore;

use crate::bbox::{ranges_text, to_usize};
use crate::description::{Encoding, Lengths};
use crate::error::{Cause, Error, Result, SourceFailure, StoreFailure};
use crate::gzip;
use crate::region_memory::RegionMemory;
use crate::scratch::Scratch;
use crate::store::indexed::{IndexTrust, IndexedRead, VersionedBytes, read_through_index};
use crate::store::{self, ObjectVersion, Store};
use crate::unpack::Expected;
use crate::volume::{ChunkSource, Fetched, Placed, VolumeMeta};
use crate::zarr::codec_settings::without_pool;
use crate::zarr::codecs::{Chain, ElementType, ShardCodec};
use crate::zarr::document::{BOOL, Document, UNREADABLE, join, unwrapped};
use crate::zarr::extensions;
use crate::zarr::indexes::{CachedIndex, Indexes};
use crate::zarr::shard_index;

/// An array with chunks that are objects, or parts of objects (shards).
pub(super) struct ZarrArray {
    pub(super) meta: VolumeMeta,
    identity: String,
    /// The members of its document that decoded chunks depend on.
    chunk_metadata: String,
    pub(super) lengths: Lengths,
    /// Its name in the group of scales; empty if it was opened by itself.
    pub(super) scale: String,
    /// Encoding of the chunks, if a new volume can have it.
    encoding: Option<Encoding>,
    pub(super) store: Arc<dyn Store>,
    prefix: String,
    /// Computes keys; its store is empty.
    array: Array<MemoryStore>,
    /// The codecs of one stored object.
    pub(super) chain: Chain,
    pub(super) fill: Vec<u8>,
    /// Present if each object is a shard and no other codec wraps it: then its chunks are read one by one, because a
    /// whole shard, often gigabytes, would take that much memory in each worker. A shard inside another codec is read
    /// as one chunk.
    pub(super) indexes: Option<Indexes>,
}

/// A region with non-negative coordinates.
type Region = Vec<Range<u64>>;

/// Where the bytes of a chunk are.
struct ChunkLocation {
    key: String,
    /// The shard that contains it, and its number in the shard.
    in_shard: Option<(Vec<u64>, u64)>,
    /// Its numbers along each axis.
    chunk: Vec<u64>,
    /// The part of the chunk's bytes that contains the wanted window, if it is at most half of the chunk.
    slab: Option<Slab>,
}

impl ChunkLocation {
    /// Adds the chunk's numbers along each axis to an error of its shard.
    fn named(&self, error: Error) -> Error {
        if self.in_shard.is_none() {
            return error;
        }
        error.in_shard(self.chunk.iter().map(u64::to_string).collect::<Vec<String>>().join("/"))
    }
}

/// Which bytes of its object a chunk has.
enum ChunkPlace {
    /// All: the chunk is an object of its own.
    Object,
    /// These: the object is a shard.
    Part(Range<u64>),
    /// None: the shard, or the chunk in it, is not stored.
    Missing,
}

/// A contiguous part of a stored chunk.
struct Slab {
    bytes: Range<u64>,
    shape: Vec<usize>,
    window: Vec<Range<usize>>,
}

impl ZarrArray {
    /// Opens the array that a document describes.
    pub(super) fn open(store: &Arc<dyn Store>, document: &Document) -> Result<Self> {
        extensions::register();
        let dtype = document.dtype()?;
        let unreadable = |kind| move |cause: Cause| Error::volume(kind, document.name(), UNREADABLE).because(cause);
        // Constructed from the document that was checked, not read again: the stored one may have changed.
        let metadata = document.metadata()?;
        let array = || Array::new_with_metadata(Arc::new(MemoryStore::new()), "/", metadata);
        let array = without_pool(array)?.map_err(|error| unreadable(kind_of(&error))(Box::new(error)))?;
        check_extensions(&array).map_err(unreadable(SourceFailure::Unsupported))?;
        Self::with(store, document, array, dtype).map_err(|cause| {
            let is_unknown = matches!(cause.downcast_ref(), Some(PluginCreateError::Unsupported(_)))
                || matches!(
                    cause.downcast_ref(),
                    Some(CodecError::UnsupportedDataType(..) | CodecError::UnsupportedDataTypeCodec(_))
                );
            unreadable(if is_unknown { SourceFailure::Unsupported } else { SourceFailure::Damaged })(cause)
        })
    }

    fn with(
        store: &Arc<dyn Store>,
        document: &Document,
        array: Array<MemoryStore>,
        dtype: DType,
    ) -> Result<Self, Cause> {
        let shape = array.shape().to_vec();
        if shape.iter().any(|length| i64::try_from(*length).is_err()) {
            return Err(format!("its shape {shape:?} is beyond any coordinate").into());
        }
        // An array without elements has no first chunk to ask for its shape.
        let outer = match array.chunk_shape(&vec![0; shape.len()]) {
            Ok(lengths) => lengths,
            Err(_) => vec![std::num::NonZeroU64::MIN; shape.len()],
        };
        let fill = array.fill_value().as_ne_bytes().to_vec();
        if fill.len() != dtype.size() {
            return Err(format!("a fill value of {} bytes for elements of {dtype}", fill.len()).into());
        }
        let elements = ElementType {
            dtype,
            is_bool: document.is_bool(),
            data_type: array.data_type().clone(),
            fill: array.fill_value().clone(),
        };
        let chain = Chain::new(array.codecs(), &elements, &outer)?;
        let stored_shape: Vec<u64> = outer.iter().map(|length| length.get()).collect();
        let shards = chain.only_shards();
        let chunk_shape = match shards {
            Some(shards) => shards.chunk().shape().iter().map(|length| *length as u64).collect(),
            None => stored_shape.clone(),
        };
        let indexes = shards.map(|shards| Indexes::new(shards.index().bytes()));
        let meta = VolumeMeta {
            origin: vec![0; shape.len()],
            shape,
            chunk_shape,
            stored_shape,
            dtype,
            kind: None,
            fill: Some(fill.clone()),
            axes: document.axes(),
            description: document.describe(shards.is_some()),
        };
        Ok(Self {
            meta,
            identity: document.identity(),
            chunk_metadata: document.chunk_metadata(),
            lengths: Lengths::default(),
            scale: String::new(),
            encoding: document.encoding(),
            store: Arc::clone(store),
            prefix: document.prefix().to_owned(),
            array,
            chain,
            fill,
            indexes,
        })
    }

    /// Returns the key of the object with these numbers along each axis.
    pub(super) fn key(&self, stored: &[u64]) -> String {
        join(&self.prefix, self.array.chunk_key(stored).as_str())
    }

    /// Returns a region with non-negative coordinates, and the numbers of the grid cell that contains it.
    pub(super) fn cell(&self, named: &[Range<i64>], cell: &[u64]) -> Result<(Region, Vec<u64>)> {
        let wrong = |reason: String| Err(Error::bbox(ranges_text(named), reason));
        if named.len() != self.meta.shape.len() {
            return wrong(format!("the volume has {} axes", self.meta.shape.len()));
        }
        let lies_within = |((range, length), cell): ((&Range<i64>, &u64), &u64)| {
            let region = u64::try_from(range.start).ok()?..u64::try_from(range.end).ok()?;
            let number = region.start / cell;
            let fits = region.start < region.end && region.end <= *length && (region.end - 1) / cell == number;
            fits.then_some((region, number))
        };
        match named.iter().zip(&self.meta.shape).zip(cell).map(lies_within).collect::<Option<Vec<_>>>() {
            Some(axes) => Ok(axes.into_iter().unzip()),
            None => wrong("it does not lie in one chunk of the volume".to_owned()),
        }
    }

    /// Returns where a region is stored, and its window in the chunk.
    fn stored(&self, named: &[Range<i64>]) -> Result<(ChunkLocation, Vec<Range<usize>>)> {
        let (region, chunk) = self.cell(named, &self.meta.chunk_shape)?;
        let window: Vec<Range<usize>> = region
            .iter()
            .zip(&self.meta.chunk_shape)
            .map(|(range, length)| {
                let start = range.start % length;
                to_usize(start)..to_usize(start + (range.end - range.start))
            })
            .collect();
        let shards = self.chain.only_shards();
        let (stored, in_shard) = match shards {
            None => (chunk.clone(), None),
            Some(shards) => {
                let counts = shards.index().counts();
                let shard: Vec<u64> = chunk.iter().zip(counts).map(|(at, count)| at / count).collect();
                let inside: Vec<u64> = chunk.iter().zip(counts).map(|(at, count)| at % count).collect();
                let number = shard_index::number(&inside, counts);
                (shard.clone(), Some((shard, number)))
            }
        };
        let codecs = self.chunk_codecs();
        let slab = codecs.stored_plainly().and_then(|order| slab(&codecs.shape(), order, &window, self.meta.dtype));
        Ok((ChunkLocation { key: self.key(&stored), in_shard, chunk, slab }, window))
    }

    /// Returns the path or URL of the array.
    pub(super) fn place(&self) -> String {
        self.store.locate(&self.prefix)
    }

    /// Returns a function that makes errors about an object. They name the object: on a disk, the file to repair.
    /// Failures of a server are errors of the store instead.
    pub(super) fn failed(&self, key: &str, region: &[Range<i64>]) -> impl Fn(Cause) -> Error {
        let (chunk, region) = (self.store.locate(key), ranges_text(region));
        move |cause| Error::chunk(chunk.clone(), region.clone(), cause)
    }

    /// Like [`failed`](Self::failed), for the bytes of a chunk, which may be part of a shard.
    fn chunk_failed(&self, stored: &ChunkLocation, region: &[Range<i64>]) -> impl Fn(Cause) -> Error {
        let failed = self.failed(&stored.key, region);
        move |cause| stored.named(failed(cause))
    }

    /// Converts a store's error to an error of the chunk, unless a retry may help.
    fn store_failed(&self, error: Error, stored: &ChunkLocation, region: &[Range<i64>]) -> Error {
        let region = ranges_text(region);
        stored.named(if self.store.is_remote() { error.of_answer(region) } else { error.of_file(region) })
    }

    fn fetch_index(
        &self,
        shards: &ShardCodec,
        stored: &ChunkLocation,
        region: &[Range<i64>],
    ) -> Result<Option<CachedIndex>> {
        let key = &stored.key;
        let bytes = shards.index().bytes();
        let part = if shards.index().is_first() {
            self.store.get_range(key, 0..bytes)
        } else {
            self.store.get_suffix(key, bytes)
        };
        let Some(part) = part.map_err(|error| self.store_failed(error, stored, region))? else { return Ok(None) };
        // A server itself refuses ranges beyond the end.
        let length = (!self.store.is_remote()).then_some(part.length);
        let index = shards.index().read(part.bytes, length).map_err(self.chunk_failed(stored, region))?;
        Ok(Some(CachedIndex { index, version: part.version }))
    }

    /// Reads the stored bytes of a chunk, or of its slab. Returns the version of the object that all of them are from.
    fn fetch_stored(&self, stored: &ChunkLocation, region: &[Range<i64>], trust: IndexTrust) -> Result<VersionedBytes> {
        let (Some((shard, _)), Some(indexes)) = (&stored.in_shard, &self.indexes) else {
            return self.fetch_object(stored, region);
        };
        let read = || self.fetch_from_shard(stored, region);
        let current = || self.store.version(&stored.key).map_err(|error| self.store_failed(error, stored, region));
        read_through_index(trust, read, current, || indexes.forget(shard))
    }

    /// Reads a chunk that is an object of its own.
    fn fetch_object(&self, stored: &ChunkLocation, region: &[Range<i64>]) -> Result<VersionedBytes> {
        let Some(Slab { bytes: range, .. }) = &stored.slab else { return self.fetch_whole(stored, region) };
        match self.store.get_range(&stored.key, range.clone()) {
            // A plain web server may send whole objects only, and a chunk is small enough for that.
            Err(error) if self.sends_no_parts(&error) => {
                let (bytes, version) = self.fetch_whole(stored, region)?;
                Ok((bytes.map(|bytes| part(bytes, range)), version))
            }
            other => {
                let found = other.map_err(|error| self.store_failed(error, stored, region))?;
                let (bytes, version) = found.map(|part| (part.bytes, part.version)).unzip();
                Ok((bytes, version.into()))
            }
        }
    }

    /// Reads a chunk of a shard, with the index that is cached, if there is one.
    fn fetch_from_shard(&self, stored: &ChunkLocation, region: &[Range<i64>]) -> IndexedRead {
        let (index, is_cached) = match self.index_of(stored, region) {
            Ok(found) => found,
            Err(error) => return IndexedRead::failed(error),
        };
        let mut part = None;
        let bytes = self.place_in(index.as_deref(), stored, region).and_then(|place| {
            let ChunkPlace::Part(place) = place else { return Ok(None) };
            let range = match &stored.slab {
                Some(Slab { bytes, .. }) => {
                    place.start.saturating_add(bytes.start)..place.start.saturating_add(bytes.end)
                }
                None => place,
            };
            let found = self.store.get_range(&stored.key, range);
            match found.map_err(|error| self.store_failed(error, stored, region))? {
                Some(found) => {
                    part = Some(found.version);
                    Ok(Some(found.bytes))
                }
                None => Err(self.chunk_failed(stored, region)("the shard is gone, though its index was here".into())),
            }
        });
        IndexedRead { bytes, index: index.map(|index| index.version.clone()), is_cached, part }
    }

    /// Whether this is the error of a server that cannot send a part of an object.
    fn sends_no_parts(&self, error: &Error) -> bool {
        self.store.is_remote() && error.store_failure() == Some(StoreFailure::Unserved)
    }

    /// Reads plainly stored elements into their place: those of a whole chunk, or those of its slab. Returns whether
    /// they are there.
    fn fill_plainly(
        &self,
        codecs: &Chain,
        stored: &ChunkLocation,
        region: &[Range<i64>],
        memory: &mut RegionMemory<'_>,
    ) -> Result<bool> {
        let Some(memory) = memory.in_order(codecs.decoded_order()) else { return Ok(false) };
        let mut start = stored.slab.as_ref().map(|slab| slab.bytes.start);
        match self.place_of(stored, region)? {
            ChunkPlace::Object => {}
            ChunkPlace::Missing => return Ok(false),
            ChunkPlace::Part(place) => start = Some(place.start.saturating_add(start.unwrap_or(0))),
        }
        let filled = self.store.fill(&stored.key, start, memory);
        if !filled.map_err(|error| self.store_failed(error, stored, region))? {
            return Ok(false);
        }
        codecs.make_native(memory);
        codecs.check_bools(memory).map_err(self.chunk_failed(stored, region)).map(|()| true)
    }

    /// Returns the codecs of one chunk.
    fn chunk_codecs(&self) -> &Chain {
        self.chain.only_shards().map_or(&self.chain, ShardCodec::chunk)
    }

    /// Returns which bytes of its object a chunk has.
    fn place_of(&self, stored: &ChunkLocation, region: &[Range<i64>]) -> Result<ChunkPlace> {
        let (index, _) = self.index_of(stored, region)?;
        self.place_in(index.as_deref(), stored, region)
    }

    /// Returns the index of the shard that contains a chunk, `None` without a shard, and whether it was cached.
    fn index_of(&self, stored: &ChunkLocation, region: &[Range<i64>]) -> Result<(Option<Arc<CachedIndex>>, bool)> {
        let (Some((shard, _)), Some(shards), Some(indexes)) =
            (&stored.in_shard, self.chain.only_shards(), &self.indexes)
        else {
            return Ok((None, false));
        };
        let mut is_cached = true;
        let index = indexes.get(shard, || {
            is_cached = false;
            self.fetch_index(shards, stored, region)
        })?;
        Ok((index, is_cached))
    }

    /// Returns which bytes of its object a chunk has, by the index of its shard.
    fn place_in(
        &self,
        index: Option<&CachedIndex>,
        stored: &ChunkLocation,
        region: &[Range<i64>],
    ) -> Result<ChunkPlace> {
        let (Some((_, number)), Some(shards)) = (&stored.in_shard, self.chain.only_shards()) else {
            return Ok(ChunkPlace::Object);
        };
        let Some(CachedIndex { index, .. }) = index else { return Ok(ChunkPlace::Missing) };
        let place = shards.locate(index, *number).map_err(self.chunk_failed(stored, region))?;
        Ok(place.map_or(ChunkPlace::Missing, ChunkPlace::Part))
    }

    fn fetch_whole(&self, stored: &ChunkLocation, region: &[Range<i64>]) -> Result<VersionedBytes> {
        let (Expected::Exactly(limit) | Expected::AtMost(limit)) = self.chain.packed();
        let object = self.store.get_at_most(&stored.key, gzip::most_stored(limit));
        let Some(object) = object.map_err(|error| self.store_failed(error, stored, region))? else {
            return Ok((None, ObjectVersion::Missing));
        };
        let bytes = unwrapped(object.bytes, object.gzip, limit).map_err(self.chunk_failed(stored, region))?;
        Ok((Some(bytes), object.version.into()))
    }
}

/// Returns these bytes of an object. They are fewer if the object is too short.
fn part(mut bytes: Vec<u8>, range: &Range<u64>) -> Vec<u8> {
    let at = |position: u64| usize::try_from(position).unwrap_or(usize::MAX).min(bytes.len());
    let (start, end) = (at(range.start), at(range.end));
    bytes.truncate(end);
    bytes.drain(..start);
    bytes
}

impl ChunkSource for ZarrArray {
    fn meta(&self) -> &VolumeMeta {
        &self.meta
    }

    fn identity(&self) -> String {
        self.identity.clone()
    }

    fn cache_identity(&self) -> Option<String> {
        let place = self.store.cache_place(&self.prefix)?;
        Some(format!("zarr {place} {}", self.chunk_metadata))
    }

    fn notes(&self) -> Vec<(&'static str, String)> {
        let mut notes = vec![("source", store::source(&*self.store, "zarr", &self.prefix))];
        notes.extend((!self.scale.is_empty()).then(|| ("scale", self.scale.clone())));
        notes.extend(self.lengths.notes());
        notes.extend(self.encoding.map(|encoding| ("encoding", encoding.name().to_owned())));
        notes.extend(self.chain.has_bools().then(|| ("elements", BOOL.to_owned())));
        notes
    }

    fn is_remote(&self) -> bool {
        self.store.is_remote()
    }

    fn fetch(&self, region: &[Range<i64>]) -> Result<Fetched> {
        let (stored, _) = self.stored(region)?;
        let (bytes, _) = self.fetch_stored(&stored, region, IndexTrust::Cached)?;
        Ok(bytes.map_or(Fetched::Missing, Fetched::Packed))
    }

    fn version(&self, region: &[Range<i64>]) -> Result<ObjectVersion> {
        let (stored, _) = self.stored(region)?;
        let version = self.store.version(&stored.key);
        version.map(ObjectVersion::from).map_err(|error| self.store_failed(error, &stored, region))
    }

    fn fetch_with_version(&self, region: &[Range<i64>]) -> Result<(Fetched, ObjectVersion)> {
        let (stored, _) = self.stored(region)?;
        let (bytes, version) = self.fetch_stored(&stored, region, IndexTrust::Checked)?;
        Ok((bytes.map_or(Fetched::Missing, Fetched::Packed), version))
    }

    fn decode(&self, region: &[Range<i64>], fetched: Fetched, scratch: &mut Scratch) -> Result<()> {
        let (stored, window) = self.stored(region)?;
        let packed = match fetched {
            Fetched::Later => self.fetch_stored(&stored, region, IndexTrust::Cached)?.0,
            Fetched::Missing => None,
            Fetched::Packed(bytes) => Some(bytes),
        };
        let Some(mut packed) = packed else {
            scratch.missing();
            return Ok(());
        };
        let codecs = self.chunk_codecs();
        if let (Some(slab), Some(order)) = (&stored.slab, codecs.stored_plainly()) {
            let wanted = slab.bytes.end - slab.bytes.start;
            if packed.len() as u64 != wanted {
                let what = format!("{} bytes came, where {wanted} were asked for", packed.len());
                return Err(self.chunk_failed(&stored, region)(what.into()));
            }
            codecs.make_native(&mut packed);
            codecs.check_bools(&packed).map_err(self.chunk_failed(&stored, region))?;
            scratch.block(packed, slab.shape.clone(), order, slab.window.clone());
            return Ok(());
        }
        let memory = scratch.take_memory();
        let (bytes, order) = codecs.decode(packed, memory).map_err(self.chunk_failed(&stored, region))?;
        scratch.block(bytes, codecs.shape(), order, window);
        Ok(())
    }

    fn decode_into(&self, region: &[Range<i64>], fetched: Fetched, memory: &mut RegionMemory<'_>) -> Result<Placed> {
        let codecs = self.chunk_codecs();
        let (stored, window) = self.stored(region)?;
        let is_whole = |window: &[Range<usize>], shape: &[usize]| {
            window.iter().zip(shape).all(|(range, length)| range.start == 0 && range.end == *length)
        };
        let is_chunk = is_whole(&window, &codecs.shape());
        match fetched {
            Fetched::Later if codecs.stored_plainly().is_some() => {
                let is_slab = stored.slab.as_ref().is_some_and(|slab| is_whole(&slab.window, &slab.shape));
                let filled = (is_chunk || is_slab) && self.fill_plainly(codecs, &stored, region, memory)?;
                Ok(match memory.in_order(codecs.decoded_order()) {
                    Some(memory) if filled => Placed::Filled { fetched: memory.len() },
                    _ => Placed::Declined(Fetched::Later),
                })
            }
            // Not fetched: what is not whole, or has another order, is decoded into scratch.
            Fetched::Later if is_chunk && memory.in_order(codecs.decoded_order()).is_some() => {
                let (Some(packed), _) = self.fetch_stored(&stored, region, IndexTrust::Cached)? else {
                    return Ok(Placed::Declined(Fetched::Missing));
                };
                Ok(place(codecs, packed, memory))
            }
            Fetched::Packed(packed) if is_chunk => Ok(match place(codecs, packed, memory) {
                Placed::Filled { .. } => Placed::Filled { fetched: 0 }, // in an earlier call
                declined => declined,
            }),
            fetched => Ok(Placed::Declined(fetched)),
        }
    }

    fn order(&self) -> Order {
        self.chunk_codecs().decoded_order()
    }
}

/// Decodes a whole chunk into its place, if that can be done.
fn place(codecs: &Chain, packed: Vec<u8>, memory: &mut RegionMemory<'_>) -> Placed {
    if !codecs.decode_into(&packed, memory) {
        return Placed::Declined(Fetched::Packed(packed));
    }
    let fetched = packed.len();
    crate::spare::give(packed);
    Placed::Filled { fetched }
}

impl fmt::Debug for ZarrArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZarrArray")
            .field("volume", &self.store.locate(&self.prefix))
            .field("meta", &self.meta)
            .finish_non_exhaustive()
    }
}

/// Returns `Unsupported` for a valid document with unknown features, otherwise `Damaged`.
fn kind_of(error: &ArrayCreateError) -> SourceFailure {
    match error {
        ArrayCreateError::AdditionalFieldUnsupportedError(_)
        | ArrayCreateError::UnsupportedZarrV2Array(_)
        | ArrayCreateError::DataTypeCreateError(PluginCreateError::Unsupported(_))
        | ArrayCreateError::CodecsCreateError(PluginCreateError::Unsupported(_))
        | ArrayCreateError::StorageTransformersCreateError(PluginCreateError::Unsupported(_))
        | ArrayCreateError::ChunkGridCreateError(PluginCreateError::Unsupported(_))
        | ArrayCreateError::ChunkKeyEncodingCreateError(PluginCreateError::Unsupported(_)) => {
            SourceFailure::Unsupported
        }
        _ => SourceFailure::Damaged,
    }
}

/// Refuses extensions that would change the keys or the shapes of chunks.
fn check_extensions(array: &Array<MemoryStore>) -> Result<(), Cause> {
    if let ArrayMetadata::V3(document) = array.metadata() {
        let unknown = document.additional_fields.iter().find(|(_, field)| field.must_understand());
        if let Some((name, _)) = unknown {
            return Err(format!("it says that `{name}` must be understood, which is not supported").into());
        }
    }
    let grid = array.chunk_grid().metadata();
    if grid.name() != "regular" {
        return Err(format!("chunk grid `{}`: only regular ones are supported", grid.name()).into());
    }
    let keys = array.chunk_key_encoding().metadata();
    if !matches!(keys.name(), "default" | "v2") {
        return Err(format!("chunk key encoding `{}`: only default and v2 are supported", keys.name()).into());
    }
    if !array.storage_transformers().create_metadatas().is_empty() {
        return Err("it has storage transformers, which are not supported".into());
    }
    Ok(())
}

/// Returns the contiguous part of a plainly stored chunk that contains a window, if it is at most half of the chunk.
fn slab(shape: &[usize], order: Order, window: &[Range<usize>], dtype: DType) -> Option<Slab> {
    // From the slowest axis to the fastest.
    let axes: Vec<usize> =
        if order == Order::C { (0..shape.len()).collect() } else { (0..shape.len()).rev().collect() };
    // Along the axes before this one the window is one element thick.
    let cut = axes.iter().position(|axis| window[*axis].len() > 1).unwrap_or(axes.len());
    let (mut start, mut stride) = (0u64, dtype.size() as u64);
    let mut slab = Slab { bytes: 0..0, shape: shape.to_vec(), window: window.to_vec() };
    for (place, axis) in axes.iter().enumerate().rev() {
        if place <= cut {
            start = start.checked_add((window[*axis].start as u64).checked_mul(stride)?)?;
            slab.shape[*axis] = window[*axis].len();
            slab.window[*axis] = 0..window[*axis].len();
        }
        stride = stride.checked_mul(shape[*axis] as u64)?;
    }
    let length = slab.shape.iter().try_fold(dtype.size() as u64, |size, length| size.checked_mul(*length as u64))?;
    slab.bytes = start..start.checked_add(length)?;
    (length <= stride / 2).then_some(slab)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slab_is_the_contiguous_part_around_a_window() {
        let slab_of = |window: [Range<usize>; 3], order| {
            let slab = slab(&[4, 5, 6], order, &window, DType::U16)?;
            Some((slab.bytes, slab.shape, slab.window))
        };
        assert_eq!(slab_of([0..4, 0..5, 0..6], Order::C), None);
        assert_eq!(slab_of([0..3, 0..1, 0..1], Order::C), None, "more than half");
        assert_eq!(slab_of([1..3, 1..2, 2..6], Order::C), Some((60..180, vec![2, 5, 6], vec![0..2, 1..2, 2..6])));
        assert_eq!(slab_of([3..4, 1..3, 2..6], Order::C), Some((192..216, vec![1, 2, 6], vec![0..1, 0..2, 2..6])));
        assert_eq!(slab_of([3..4, 1..2, 2..5], Order::C), Some((196..202, vec![1, 1, 3], vec![0..1, 0..1, 0..3])));
        assert_eq!(slab_of([3..4, 1..2, 2..3], Order::C), Some((196..198, vec![1, 1, 1], vec![0..1, 0..1, 0..1])));
        assert_eq!(slab_of([0..4, 1..3, 5..6], Order::F), Some((208..224, vec![4, 2, 1], vec![0..4, 0..2, 0..1])));
        assert!(slab(&[], Order::C, &[], DType::U16).is_none());
    }
}
