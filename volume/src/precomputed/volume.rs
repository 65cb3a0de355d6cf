//! One scale of a Precomputed volume. Its chunks are objects, or parts of shards.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use ndarray_shm::Order;

use super::UNIT;
use super::encoding::{ChunkEncoding, ChunkLayout, swap_bytes};
use super::existing::Existing;
use super::info::{INFO, Info, Scale};
use super::key::{self, NameLayout};
use super::names::{Names, OTHER_SUFFIXES};
use super::shards::{ShardReader, numbers};
use crate::bbox::{length, ranges_text, to_usize};
use crate::description::{Encoding, Lengths};
use crate::error::{Cause, Error, Result, SourceFailure};
use crate::gzip;
use crate::region_memory::RegionMemory;
use crate::scratch::Scratch;
use crate::store::indexed::IndexTrust;
use crate::store::{self, ObjectVersion, Store};
use crate::volume::{ChunkSink, ChunkSource, Fetched, Gather, Placed, VolumeMeta};

/// An open scale.
pub(super) struct PrecomputedVolume {
    store: Arc<dyn Store>,
    scale: Scale,
    encoding: ChunkEncoding,
    shards: Option<ShardReader>,
    identity: String,
    names: Names,
    /// Layout of the names of written chunks.
    written: NameLayout,
    /// Whether written chunks are gzip streams.
    packs: bool,
}

impl PrecomputedVolume {
    /// Opens a scale.
    pub(super) fn open(store: Arc<dyn Store>, mip: usize) -> Result<Self> {
        let info = Info::read(&*store)?;
        let scale = info.scale(mip)?.clone();
        let encoding = ChunkEncoding::of(&scale)
            .map_err(|reason| Error::volume(SourceFailure::Unsupported, &info.file, reason))?;
        let shards =
            scale.sharding.clone().map(|sharding| ShardReader::new(Arc::clone(&store), &scale.prefix, sharding));
        let identity = identity(&info, &scale);
        let (names, packs) = (Names::default(), encoding.is_worth_packing());
        Ok(Self { store, scale, encoding, shards, identity, names, written: NameLayout::Flat, packs })
    }

    /// Sets whether written chunks are wrapped in gzip, which the description of a volume does not record.
    pub(super) fn packing(mut self, packs: bool) -> Self {
        self.packs = packs;
        self
    }

    /// Checks that the scale can be written, and decides whether its chunks are wrapped in gzip; `made` is the choice
    /// made when the volume was created.
    pub(super) fn writable(mut self, made: Option<bool>) -> Result<Self> {
        if self.shards.is_some() {
            let reason = format!("scale `{}` is sharded: such scales can be read, but not written", self.scale.key);
            return Err(Error::volume(SourceFailure::Unsupported, self.store.locate(INFO), reason));
        }
        if self.scale.has_other_chunks {
            let reason = format!(
                "scale `{}` has several chunk sizes: such scales can be read, but not written, since only the chunks of one \
                 size would be new",
                self.scale.key
            );
            return Err(Error::volume(SourceFailure::Unsupported, self.store.locate(INFO), reason));
        }
        let existing = Existing::look(&*self.store, &self.scale.prefix)?;
        self.written = self.layout_beside(&existing)?;
        self.packs = self.encoding.is_worth_packing() && self.is_packed(existing, made)?;
        Ok(self)
    }

    /// Returns the layout for new chunks: all chunks of one scale must have the same layout.
    fn layout_beside(&self, existing: &Existing) -> Result<NameLayout> {
        let nested = match existing {
            Existing { nested: None, .. } => return Ok(NameLayout::Flat),
            Existing { flat: None, nested: Some(_) } if !self.store.is_remote() => return Ok(NameLayout::Nested),
            Existing { nested: Some(nested), .. } => nested,
        };
        let key = &self.scale.key;
        let reason = match &existing.flat {
            Some(flat) => format!(
                "scale `{key}` has chunks named in two layouts (`{flat}`, and in nested directories `{nested}`): which of them a reader \
                 takes is not certain, so nothing is written; remove one of the two, or write to a new volume"
            ),
            None => format!(
                "the chunks of scale `{key}` are in nested directories (`{nested}`), as neuroglancer-scripts writes them: such scales are \
                 read here, and written in directories only, since chunks named in another way would be mixed with them; write to a \
                 new volume"
            ),
        };
        Err(Error::volume(SourceFailure::Unsupported, self.store.locate(INFO), reason))
    }

    /// Whether the existing chunks are wrapped in gzip; if there are none, whether new ones should be. A server
    /// announces the wrapping to every reader. Files named `.gz` are found by few readers; others find the chunks
    /// missing, and fill them with 0.
    fn is_packed(&self, existing: Existing, made: Option<bool>) -> Result<bool> {
        if self.store.is_remote() {
            return Ok(made.unwrap_or(true));
        }
        let Some(chunk) = existing.flat.or(existing.nested) else { return Ok(made.unwrap_or(false)) };
        let shape = [0, 1, 2, 3].map(|axis| to_usize(self.scale.meta.chunk_shape[axis]));
        let layout = ChunkLayout { shape, dtype: self.scale.meta.dtype };
        let most = self.encoding.most_packed_bytes(layout) as u64;
        Ok(self.store.get_at_most(&chunk, most)?.is_some_and(|object| object.gzip))
    }

    /// Returns the chunk that contains a region, cut off where the volume ends.
    fn chunk_of(&self, region: &[Range<i64>]) -> Result<Vec<Range<i64>>> {
        let meta = &self.scale.meta;
        let wrong = |what: &str| Error::bbox(ranges_text(region), what);
        if region.len() != meta.shape.len() {
            return Err(wrong("a Precomputed volume has the axes x, y, z and channel"));
        }
        let axes = region.iter().enumerate();
        axes.map(|(axis, range)| {
            let (origin, length) = (meta.origin[axis], meta.chunk_shape[axis]);
            let end = origin.saturating_add_unsigned(meta.shape[axis]);
            if range.start >= range.end || range.start < origin || range.end > end {
                return Err(wrong("it does not lie in the volume"));
            }
            let number = range.start.abs_diff(origin) / length;
            let start = origin.saturating_add_unsigned(number.saturating_mul(length));
            let chunk = start..start.saturating_add_unsigned(length).min(end);
            if range.end > chunk.end { Err(wrong("it does not lie in one chunk of the volume")) } else { Ok(chunk) }
        })
        .collect()
    }

    fn layout(&self, chunk: &[Range<i64>]) -> ChunkLayout {
        ChunkLayout { shape: [0, 1, 2, 3].map(|axis| length(&chunk[axis])), dtype: self.scale.meta.dtype }
    }

    fn numbers(&self, chunk: &[Range<i64>]) -> [u64; 3] {
        numbers(chunk, &self.scale.meta.origin, &self.scale.meta.chunk_shape)
    }

    fn key(&self, chunk: &[Range<i64>], layout: NameLayout) -> String {
        key::chunk(&self.scale.prefix, chunk, layout)
    }

    /// Returns the error for a chunk that was found, or is to be stored.
    fn failed(&self, chunk: &[Range<i64>], region: &[Range<i64>], cause: Cause) -> Error {
        let failed = |key: &str| Error::chunk(self.store.locate_stored(key), ranges_text(region), cause);
        match &self.shards {
            Some(shards) => failed(&shards.key(self.numbers(chunk))).in_shard(key::chunk("", chunk, NameLayout::Flat)),
            None => failed(&self.key(chunk, self.stored_layout(chunk))),
        }
    }

    /// Returns the layout of the name under which a chunk was found.
    fn stored_layout(&self, chunk: &[Range<i64>]) -> NameLayout {
        if self.store.is_remote() {
            return self.names.layout();
        }
        let is_there = |layout| self.store.size(&self.key(chunk, layout)).is_ok_and(|size| size.is_some());
        let is_nested = !is_there(NameLayout::Flat) && is_there(NameLayout::Nested);
        if is_nested { NameLayout::Nested } else { NameLayout::Flat }
    }

    /// Converts a store's error to an error of the chunk, unless a retry may help.
    fn refused(&self, error: Error, chunk: &[Range<i64>], region: &[Range<i64>]) -> Error {
        let region = ranges_text(region);
        let error = if self.store.is_remote() { error.of_answer(region) } else { error.of_file(region) };
        match &self.shards {
            Some(_) => error.in_shard(key::chunk("", chunk, NameLayout::Flat)),
            None => error,
        }
    }

    /// Refuses to treat a chunk as missing if it is stored under a suffix that cannot be read here.
    fn check_missing(&self, chunk: &[Range<i64>], region: &[Range<i64>]) -> Result<()> {
        let key = self.key(chunk, NameLayout::Flat);
        let Some((suffix, packing)) =
            self.names.other(&*self.store, &key).map_err(|error| self.refused(error, chunk, region))?
        else {
            return Ok(());
        };
        let cause = format!(
            "it is stored as `{key}{suffix}`, packed by {packing}, which cannot be read: gzip can (CloudVolume can \
             convert it)"
        );
        Err(self.failed(chunk, region, cause.into()))
    }
}

impl ChunkSource for PrecomputedVolume {
    fn meta(&self) -> &VolumeMeta {
        &self.scale.meta
    }

    fn identity(&self) -> String {
        self.identity.clone()
    }

    fn cache_identity(&self) -> Option<String> {
        let Scale { meta, encoding, block_size, sharding, .. } = &self.scale;
        let decoder = self.encoding.decoder().map_or(String::new(), |decoder| format!(" by {decoder}"));
        // Chunks are cut off where the volume ends, so that its shape is the shape of some of them.
        Some(format!(
            "precomputed {} {}, {:?} from {:?}, chunks of {:?}, {encoding:?}{decoder}, blocks of {block_size:?}, {sharding:?}",
            self.store.cache_place(self.scale.prefix.trim_end_matches('/'))?,
            meta.dtype,
            meta.shape,
            meta.origin,
            meta.chunk_shape,
        ))
    }

    fn notes(&self) -> Vec<(&'static str, String)> {
        let lengths =
            Lengths { resolution: self.scale.resolution.clone(), unit: UNIT.to_owned(), ..Lengths::default() };
        let mut notes =
            vec![("source", store::source(&*self.store, "precomputed", "")), ("scale", self.scale.key.clone())];
        notes.extend(lengths.notes());
        notes.extend(Encoding::named(&self.scale.encoding).map(|encoding| ("encoding", encoding.name().to_owned())));
        notes
    }

    fn is_remote(&self) -> bool {
        self.store.is_remote()
    }

    fn fetch(&self, region: &[Range<i64>]) -> Result<Fetched> {
        self.fetch_stored(region, IndexTrust::Cached).map(|(fetched, _)| fetched)
    }

    fn version(&self, region: &[Range<i64>]) -> Result<ObjectVersion> {
        let chunk = self.chunk_of(region)?;
        let refused = |error| self.refused(error, &chunk, region);
        if let Some(shards) = &self.shards {
            return shards.version(self.numbers(&chunk)).map_err(refused);
        }
        let version = self.names.version(&*self.store, &|layout| self.key(&chunk, layout)).map_err(refused)?;
        if version.is_none() {
            self.check_missing(&chunk, region)?;
        }
        Ok(version.into())
    }

    fn fetch_with_version(&self, region: &[Range<i64>]) -> Result<(Fetched, ObjectVersion)> {
        self.fetch_stored(region, IndexTrust::Checked)
    }

    fn decode(&self, region: &[Range<i64>], fetched: Fetched, scratch: &mut Scratch) -> Result<()> {
        let packed = match fetched {
            Fetched::Packed(bytes) => bytes,
            Fetched::Missing => {
                scratch.missing();
                return Ok(());
            }
            // `fetch` of this source never returns this.
            Fetched::Later => return self.decode(region, self.fetch(region)?, scratch),
        };
        let chunk = self.chunk_of(region)?;
        let layout = self.layout(&chunk);
        let bytes = self
            .encoding
            .decode(packed, layout, scratch.take_memory())
            .map_err(|cause| self.failed(&chunk, region, cause))?;
        let window = region.iter().zip(&chunk).map(|(range, chunk)| {
            to_usize(range.start.abs_diff(chunk.start))..to_usize(range.end.abs_diff(chunk.start))
        });
        scratch.block(bytes, layout.shape.to_vec(), Order::F, window.collect());
        Ok(())
    }

    fn decode_into(&self, region: &[Range<i64>], fetched: Fetched, memory: &mut RegionMemory<'_>) -> Result<Placed> {
        let chunk = self.chunk_of(region)?;
        let Some(memory) = memory.in_order(Order::F).filter(|_| chunk == region) else {
            return Ok(Placed::Declined(fetched));
        };
        let layout = self.layout(&chunk);
        let (packed, fetched) = match fetched {
            Fetched::Later => {
                if self.encoding == ChunkEncoding::Raw && self.shards.is_none() {
                    let filled = self.store.fill(&self.key(&chunk, NameLayout::Flat), None, memory);
                    if filled.map_err(|error| self.refused(error, &chunk, region))? {
                        swap_bytes(memory, layout.dtype);
                        return Ok(Placed::Filled { fetched: memory.len() });
                    }
                }
                match self.fetch(region)? {
                    Fetched::Packed(packed) => {
                        let length = packed.len();
                        (packed, length)
                    }
                    other => return Ok(Placed::Declined(other)),
                }
            }
            Fetched::Packed(packed) => (packed, 0), // fetched in an earlier call
            Fetched::Missing => return Ok(Placed::Declined(Fetched::Missing)),
        };
        if !self.encoding.decode_into(&packed, layout, memory) {
            return Ok(Placed::Declined(Fetched::Packed(packed)));
        }
        crate::spare::give(packed);
        Ok(Placed::Filled { fetched })
    }

    fn order(&self) -> Order {
        Order::F
    }
}

impl ChunkSink for PrecomputedVolume {
    fn place(&self) -> String {
        format!("precomputed {:?}", self.store.locate(&self.scale.prefix))
    }

    fn encode(&self, region: &[Range<i64>], from: &dyn Gather) -> Result<Vec<u8>> {
        let chunk = self.whole(region)?;
        let mut bytes = Vec::new();
        from.gather(&chunk, Order::F, &mut bytes)?;
        let encoded = self.encoding.encode(bytes, self.layout(&chunk));
        let packed = if self.packs { encoded.and_then(|encoded| gzip::pack(&encoded)) } else { encoded };
        packed.map_err(|cause| self.failed(&chunk, region, cause))
    }

    fn store(&self, region: &[Range<i64>], packed: Vec<u8>) -> Result<()> {
        let key = self.key(&self.whole(region)?, self.written);
        self.store.put(&key, packed, self.packs)?;
        self.remove_others(&key)
    }

    fn erase(&self, region: &[Range<i64>]) -> Result<()> {
        let key = self.key(&self.whole(region)?, self.written);
        self.store.delete(&key)?;
        self.remove_others(&key)
    }
}

impl PrecomputedVolume {
    /// Fetches a chunk, with the version of the object that its bytes are from.
    fn fetch_stored(&self, region: &[Range<i64>], trust: IndexTrust) -> Result<(Fetched, ObjectVersion)> {
        let chunk = self.chunk_of(region)?;
        let layout = self.layout(&chunk);
        let most = self.encoding.most_packed_bytes(layout);
        let (bytes, packed, version) = if let Some(shards) = &self.shards {
            let read = shards.read(self.numbers(&chunk), most, trust);
            let (bytes, version) = read.map_err(|error| self.refused(error, &chunk, region))?;
            let Some(bytes) = bytes else { return Ok((Fetched::Missing, version)) };
            (bytes, shards.sharding.packed_chunks, version)
        } else {
            let key = |layout| self.key(&chunk, layout);
            let object = self.names.get(&*self.store, &key, most as u64);
            let Some(object) = object.map_err(|error| self.refused(error, &chunk, region))? else {
                self.check_missing(&chunk, region)?;
                return Ok((Fetched::Missing, ObjectVersion::Missing));
            };
            (object.bytes, object.gzip, object.version.into())
        };
        if packed && self.encoding.must_unpack(&bytes, layout) {
            let mut unpacked = Vec::new();
            gzip::unpack(&bytes, layout.bytes(), &mut unpacked).map_err(|cause| self.failed(&chunk, region, cause))?;
            return Ok((Fetched::Packed(unpacked), version));
        }
        Ok((Fetched::Packed(bytes), version))
    }

    /// Removes files of the same chunk with another packing, which CloudVolume would find first.
    fn remove_others(&self, key: &str) -> Result<()> {
        // On servers a header tells the packing of an object, not its name.
        if self.store.is_remote() {
            return Ok(());
        }
        OTHER_SUFFIXES.iter().try_for_each(|(suffix, _)| self.store.delete(&format!("{key}{suffix}")).map(drop))
    }

    /// Checks that a region is a whole chunk: a part of one cannot be stored.
    fn whole(&self, region: &[Range<i64>]) -> Result<Vec<Range<i64>>> {
        let chunk = self.chunk_of(region)?;
        if chunk == region {
            return Ok(chunk);
        }
        Err(Error::bbox(ranges_text(region), format!("only all of the chunk {} can be stored", ranges_text(&chunk))))
    }
}

impl fmt::Debug for PrecomputedVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrecomputedVolume")
            .field("store", &self.store)
            .field("scale", &self.scale)
            .finish_non_exhaustive()
    }
}

/// Returns a line that identifies the volume and scale.
///
/// It includes the version of the description: a volume that was created anew is a different one, even if it has the
/// same shape.
fn identity(info: &Info, scale: &Scale) -> String {
    format!("precomputed {:?} scale {:?}, {}", info.file, scale.key, info.mark)
}
