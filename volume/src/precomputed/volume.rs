//! One scale of a Precomputed volume, whose chunks are objects, or parts of shards.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use ndarray_shm::Order;

use super::encoding::{ChunkEncoding, ChunkLayout};
use super::info::{INFO, Info, Scale};
use super::key;
use super::names::{Names, OTHER_SUFFIXES};
use super::shards::{ShardReader, numbers};
use crate::bbox::{length, ranges_text, to_usize};
use crate::error::{Cause, Error, ErrorKind, Result};
use crate::gzip;
use crate::scratch::Scratch;
use crate::store::{self, Store};
use crate::volume::{ChunkSink, ChunkSource, Fetched, Gather, VolumeMeta};

/// A scale that is open.
pub(super) struct PrecomputedVolume {
    store: Arc<dyn Store>,
    scale: Scale,
    encoding: ChunkEncoding,
    shards: Option<ShardReader>,
    identity: String,
    names: Names,
    /// Whether chunks that are written are gzip streams.
    packs: bool,
}

impl PrecomputedVolume {
    /// Opens a scale.
    pub(super) fn open(store: Arc<dyn Store>, mip: usize) -> Result<Self> {
        let info = Info::read(&*store)?;
        let scale = info.scale(mip)?.clone();
        let encoding =
            ChunkEncoding::of(&scale).map_err(|reason| Error::volume(ErrorKind::Unsupported, &info.file, reason))?;
        let shards =
            scale.sharding.clone().map(|sharding| ShardReader::new(Arc::clone(&store), &scale.prefix, sharding));
        let identity = identity(&info, &scale);
        let (names, packs) = (Names::default(), encoding.is_worth_packing());
        Ok(Self { store, scale, encoding, shards, identity, names, packs })
    }

    /// Says whether chunks are to be wrapped in gzip, which nothing in the volume tells.
    pub(super) fn packing(mut self, packs: bool) -> Self {
        self.packs = packs;
        self
    }

    /// Checks that it can be written, and decides whether its chunks are wrapped in gzip; `made` says so of the volume when it was new.
    pub(super) fn writable(mut self, made: Option<bool>) -> Result<Self> {
        if self.shards.is_some() {
            let reason = format!("scale `{}` is sharded: such scales can be read, but not written", self.scale.key);
            return Err(Error::volume(ErrorKind::Unsupported, self.store.locate(INFO), reason));
        }
        if self.scale.has_other_chunks {
            let reason = format!(
                "scale `{}` has several chunk sizes: such scales can be read, but not written, since only the chunks of one \
                 size would be new",
                self.scale.key
            );
            return Err(Error::volume(ErrorKind::Unsupported, self.store.locate(INFO), reason));
        }
        self.packs = self.encoding.is_worth_packing() && self.is_packed(made)?;
        Ok(self)
    }

    /// Whether the chunks that are there are wrapped in gzip, or should be where there are none. A server tells everybody who reads, but of
    /// files named `.gz` only CloudVolume and we know: others find such chunks missing, and take them for 0.
    fn is_packed(&self, made: Option<bool>) -> Result<bool> {
        if self.store.is_remote() {
            return Ok(made.unwrap_or(true));
        }
        let prefix = &self.scale.prefix;
        let names = self.store.list(prefix.trim_end_matches('/'))?;
        let Some(chunk) = names.iter().find(|name| key::is_chunk(name)) else {
            return Ok(made.unwrap_or(false));
        };
        let shape = [0, 1, 2, 3].map(|axis| to_usize(self.scale.meta.chunk_shape[axis]));
        let layout = ChunkLayout { shape, dtype: self.scale.meta.dtype };
        let most = self.encoding.most_packed_bytes(layout) as u64;
        Ok(self.store.get_at_most(&format!("{prefix}{chunk}"), most)?.is_some_and(|object| object.gzip))
    }

    /// Returns the chunk that a region lies in, as far as the volume reaches.
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

    fn key(&self, chunk: &[Range<i64>]) -> String {
        key::chunk(&self.scale.prefix, chunk)
    }

    fn failed(&self, chunk: &[Range<i64>], region: &[Range<i64>], cause: Cause) -> Error {
        let file = match &self.shards {
            Some(shards) => shards.key(self.numbers(chunk)),
            None => self.key(chunk),
        };
        Error::chunk(self.store.locate_stored(&file), ranges_text(region), cause)
    }

    /// A file with a suffix that nobody looks for is no missing chunk.
    fn check_missing(&self, chunk: &[Range<i64>], region: &[Range<i64>]) -> Result<()> {
        let key = self.key(chunk);
        let Some((suffix, packing)) = self.names.other(&*self.store, &key)? else { return Ok(()) };
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

    fn notes(&self) -> Vec<(&'static str, String)> {
        vec![
            ("source", store::source(&*self.store, "precomputed", "")),
            ("scale", self.scale.key.clone()),
            ("resolution", store::resolution_note(&self.scale.resolution)),
            ("unit", "nm".to_owned()),
        ]
    }

    fn is_remote(&self) -> bool {
        self.store.is_remote()
    }

    fn fetch(&self, region: &[Range<i64>]) -> Result<Fetched> {
        self.fetch_stored(region)
            .map_err(|error| if self.is_remote() { error } else { error.of_file(ranges_text(region)) })
    }

    fn decode(&self, region: &[Range<i64>], fetched: Fetched, scratch: &mut Scratch) -> Result<()> {
        let packed = match fetched {
            Fetched::Packed(bytes) => bytes,
            Fetched::Missing => {
                scratch.missing();
                return Ok(());
            }
            // Only sources that never fetch answer so.
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
        let key = self.key(&self.whole(region)?);
        self.store.put(&key, packed, self.packs)?;
        self.remove_others(&key)
    }

    fn erase(&self, region: &[Range<i64>]) -> Result<()> {
        let key = self.key(&self.whole(region)?);
        self.store.delete(&key)?;
        self.remove_others(&key)
    }
}

impl PrecomputedVolume {
    fn fetch_stored(&self, region: &[Range<i64>]) -> Result<Fetched> {
        let chunk = self.chunk_of(region)?;
        let layout = self.layout(&chunk);
        let most = self.encoding.most_packed_bytes(layout);
        let (bytes, packed) = if let Some(shards) = &self.shards {
            let Some(bytes) = shards.read(self.numbers(&chunk), most)? else { return Ok(Fetched::Missing) };
            (bytes, shards.sharding.packed_chunks)
        } else {
            let Some(object) = self.names.get(&*self.store, &self.key(&chunk), most as u64)? else {
                self.check_missing(&chunk, region)?;
                return Ok(Fetched::Missing);
            };
            (object.bytes, object.gzip)
        };
        if packed && self.encoding.must_unpack(&bytes, layout) {
            let mut unpacked = Vec::new();
            gzip::unpack(&bytes, layout.bytes(), &mut unpacked).map_err(|cause| self.failed(&chunk, region, cause))?;
            return Ok(Fetched::Packed(unpacked));
        }
        Ok(Fetched::Packed(bytes))
    }

    /// Removes what others have packed under the same name: CloudVolume would find it first.
    fn remove_others(&self, key: &str) -> Result<()> {
        // Servers say how an object is packed, not its name.
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

/// Says which volume and scale it is, in one line.
///
/// The version of the description belongs to it: a volume that was written anew is another one, even if it has the same shape.
fn identity(info: &Info, scale: &Scale) -> String {
    format!("precomputed {:?} scale {:?}, {}", info.file, scale.key, info.mark)
}
