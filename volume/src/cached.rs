//! A volume with decoded chunks that all processes of a machine share.
//!
//! A chunk is looked for in a [`ChunkCache`] of the core. If it is not there, the process that gets its claim fetches
//! and decodes it into the cache, while others wait. A chunk that cannot be kept, because its version is not known or
//! there is no room, is decoded as without a cache.
//!
//! This is a source like any other: reads, downloads and uploads go through it by the same engine.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ndarray::{ArrayViewMut, IxDyn, ShapeBuilder as _};
use ndarray_shm::cache::{ChunkCache, Lookup};
use ndarray_shm::{DType, ErrorKind, Order, with_element};
use twox_hash::XxHash3_128;

use crate::bbox::{length, ranges_text, to_usize};
use crate::copy::Copier;
use crate::error::{Error, Result};
use crate::region_memory::{BytesPlace, RegionMemory};
use crate::scratch::{BlockWindow, Elements, Scratch};
use crate::store::ObjectVersion;
use crate::volume::{ChunkSource, Fetched, Placed, VolumeMeta};

/// How long a chunk is waited for that another process decodes.
const PATIENCE: Duration = Duration::from_secs(5);

/// Tells the key of a missing chunk from that of the same chunk with elements.
const MISSING: u128 = 0x6d69_7373_696e_6720_6368_756e_6b00_0000;

/// When a cached chunk is compared with the stored object again: see [`CachedVolume::recheck`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Recheck {
    /// Once after the volume was opened, by whichever process needs the chunk first.
    #[default]
    Open,
    /// At each access.
    Always,
    /// Never: the volume does not change.
    Never,
}

/// The environment variable with the size of this user's cache.
const VARIABLE: &str = "NDSHM_CHUNK_CACHE";

/// This user's cache and the size that was asked for. All volumes of a process share it; it works in a forked child,
/// too.
static OPEN: Mutex<Option<(u64, ChunkCache)>> = Mutex::new(None);

/// Returns this user's cache, if the environment asks for it.
pub(crate) fn of_environment() -> Result<Option<ChunkCache>> {
    let Some(text) = std::env::var_os(VARIABLE).filter(|text| !text.is_empty()) else { return Ok(None) };
    let bytes = text.to_str().and_then(bytes_from).ok_or_else(|| {
        let expected = "bytes, as a number with K, M, G or T behind it, such as 16G or 16GiB";
        ndarray_shm::Error::setting(VARIABLE, text.display(), expected)
    })?;
    if bytes == 0 {
        return Ok(None);
    }
    let known = OPEN.try_lock().ok().and_then(|open| open.clone());
    if let Some((_, cache)) = known.filter(|(size, _)| *size == bytes) {
        return Ok(Some(cache));
    }
    let cache = ChunkCache::of_user(bytes)?;
    if let Ok(mut open) = OPEN.try_lock() {
        *open = Some((bytes, cache.clone()));
    }
    Ok(Some(cache))
}

/// Reads a number of bytes.
fn bytes_from(text: &str) -> Option<u64> {
    let short = text.strip_suffix("iB").unwrap_or(text);
    let units = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];
    let in_unit = |(unit, shift): (char, u32)| short.strip_suffix(unit).map(|number| (number, shift));
    let (number, shift) = units.into_iter().find_map(in_unit).unwrap_or((text, 0));
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = number.parse().ok().filter(|_| is_number)?;
    number.checked_mul(1 << shift)
}

/// A volume with chunks that are decoded once per machine.
///
/// It reads as the volume does, from a cache that all processes of this user share. Each chunk is fetched and decoded
/// by one process; the others wait for it, or copy it. If that process is killed, another one goes on; if it is stopped
/// or its server is slow, each read of the others waits for 5 s and then fetches for itself.
///
/// What changes in the store is noticed: a chunk is used only if the stored object still has the version (device,
/// inode, size and times of a file, or the entity tag of a server) that it had when it was decoded. By default this is
/// checked once after each opening of the volume. Not cached is what has no certain version: files that changed less
/// than 2 s before they were read, objects of servers without entity tags, and chunks that do not fit.
///
/// # Examples
///
/// ```
/// use ndarray::Ix3;
/// use ndarray_shm::DType;
/// use ndarray_shm::cache::{self, ChunkCache};
/// use ndarray_shm_volume::demo::{self, DemoSpec};
/// use ndarray_shm_volume::{CachedVolume, ReadOptions, open_volume, read};
///
/// let directory = std::env::temp_dir().join(format!("cached-example-{}", std::process::id()));
/// demo::write_volume(&directory, &DemoSpec::new(&[40, 40, 40], &[16, 16, 16], DType::U16))?;
///
/// let cache = ChunkCache::open_or_create(format!("cached-example-{}", std::process::id()), 64 << 20)?;
/// let volume = CachedVolume::new(open_volume(&directory)?, &cache);
/// let bbox = volume.meta().parse_bbox("10:14,:,5:")?;
/// let elements = read::<u16, Ix3>(&volume, &bbox, &ReadOptions::new())?;
/// assert_eq!(elements.shape(), [4, 40, 35]);
/// # use ndarray_shm_volume::ChunkSource;
/// # cache::unlink(cache.directory(), cache.location())?;
/// # std::fs::remove_dir_all(&directory)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CachedVolume<S> {
    source: S,
    cache: ChunkCache,
    /// A hash of what its chunks are; `None` if they must not be cached.
    identity: Option<u128>,
    /// The time of the cache at which it was opened.
    opened: u64,
    recheck: Recheck,
    patience: Duration,
    /// Whether the store does not say which version of an object it sends. A hint, so Relaxed suffices.
    is_unversioned: AtomicBool,
}

/// What a chunk turned out to be.
enum Outcome {
    /// It was passed on. So many bytes were fetched for it.
    Used { fetched: usize },
    /// It is not stored.
    Missing,
    /// The cache cannot help, and nothing was fetched.
    Bypassed,
}

/// A whole chunk in memory.
struct WholeChunk<'a> {
    region: &'a [Range<i64>],
    shape: &'a [usize],
    order: Order,
    bytes: &'a [u8],
}

impl<S: ChunkSource> CachedVolume<S> {
    /// Reads a volume through a cache. Chunks of several volumes can be in one cache.
    pub fn new(source: S, cache: &ChunkCache) -> Self {
        let identity = source.cache_identity().map(|text| XxHash3_128::oneshot(text.as_bytes()));
        let opened = cache.now();
        let (recheck, is_unversioned) = (Recheck::default(), AtomicBool::new(false));
        Self { source, cache: cache.clone(), identity, opened, recheck, patience: PATIENCE, is_unversioned }
    }

    /// Chooses when a cached chunk is compared with the stored object again.
    pub fn recheck(mut self, recheck: Recheck) -> Self {
        self.recheck = recheck;
        self
    }

    /// Chooses how long a chunk is waited for that another process decodes. The default is 5 s.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Returns the cache.
    pub fn cache(&self) -> &ChunkCache {
        &self.cache
    }

    /// Returns the volume itself.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Returns the chunk in which a region is, clipped to the volume.
    fn chunk_of(&self, region: &[Range<i64>]) -> Vec<Range<i64>> {
        let meta = self.source.meta();
        let axes = region.iter().zip(&meta.origin).zip(meta.chunk_shape.iter().zip(&meta.shape));
        axes.map(|((range, origin), (chunk, shape))| {
            let number = range.start.abs_diff(*origin) / (*chunk).max(1);
            let at = |offset: u64| origin.saturating_add_unsigned(offset.min(*shape));
            at(number.saturating_mul(*chunk))..at(number.saturating_add(1).saturating_mul(*chunk))
        })
        .collect()
    }

    /// Returns the key of a chunk.
    fn key(identity: u128, chunk: &[Range<i64>]) -> u128 {
        let mut bytes = identity.to_le_bytes().to_vec();
        for range in chunk {
            bytes.extend(range.start.to_le_bytes());
            bytes.extend(range.end.to_le_bytes());
        }
        XxHash3_128::oneshot(&bytes)
    }

    /// Passes a whole chunk to `pass_on`, from the cache, into which it is decoded if it is not there and can be kept.
    fn with_chunk(
        &self,
        region: &[Range<i64>],
        pass_on: &mut dyn FnMut(&WholeChunk<'_>) -> Result<()>,
    ) -> Result<Outcome> {
        let Some(identity) = self.identity.filter(|_| !self.is_unversioned.load(Ordering::Relaxed)) else {
            return Ok(Outcome::Bypassed);
        };
        let chunk = self.chunk_of(region);
        let shape: Vec<usize> = chunk.iter().map(length).collect();
        let length = self.bytes_of(&shape);
        let (key, order) = (Self::key(identity, &chunk), self.source.order());
        let since = match self.recheck {
            Recheck::Open => self.opened,
            Recheck::Always => self.cache.now(),
            Recheck::Never => 0,
        };
        let mut pass_on = |bytes: &[u8]| pass_on(&WholeChunk { region: &chunk, shape: &shape, order, bytes });
        // Without a claim, so that readers of missing chunks do not wait for each other.
        if let Some(found) = if_it_works(self.cache.find(key, length, since))?.flatten() {
            pass_on(found.bytes()?)?;
            return Ok(Outcome::Used { fetched: 0 });
        }
        if if_it_works(self.cache.find(key ^ MISSING, 0, since))?.flatten().is_some() {
            return Ok(Outcome::Missing);
        }
        let mut claim = match if_it_works(self.cache.look(key, length, since, self.patience))? {
            Some(Lookup::Found(found)) => {
                pass_on(found.bytes()?)?;
                return Ok(Outcome::Used { fetched: 0 });
            }
            Some(Lookup::Claimed(claim)) => claim,
            _ => return Ok(Outcome::Bypassed),
        };
        let checked = self.cache.now();
        let mut is_asked = self.is_remote();
        if let Some(old) = claim.old() {
            is_asked = true;
            let now = self.source.version(&chunk)?;
            if hash_of(&now).is_some_and(|version| version == old.version()) {
                // Fails in a child that was forked while the store was asked.
                let Some(bytes) = if_it_works(old.bytes())? else { return Ok(Outcome::Bypassed) };
                old.confirm(checked);
                pass_on(bytes)?;
                return Ok(Outcome::Used { fetched: 0 });
            }
            claim.forget();
        }
        if self.is_known_to_be_missing(key, &chunk, since, checked)? {
            return Ok(Outcome::Missing);
        }
        if !is_asked && matches!(self.source.version(&chunk)?, ObjectVersion::Unsettled) {
            claim.unversioned();
            return Ok(Outcome::Bypassed); // others need not wait until it is read
        }
        let (fetched, version) = self.source.fetch_with_version(&chunk)?;
        if matches!(version, ObjectVersion::Unknown) {
            self.is_unversioned.store(true, Ordering::Relaxed); // this store never says it
        }
        let bytes = fetched.len();
        if matches!(fetched, Fetched::Missing) {
            self.note_missing(key, &version, checked)?;
            return Ok(Outcome::Missing);
        }
        let version = hash_of(&version);
        if version.is_none() {
            claim.unversioned();
        }
        let room = if version.is_some() { if_it_works(claim.room())?.flatten() } else { None };
        if let (Some(mut room), Some(version)) = (room, version) {
            let bytes_of_slots = room.bytes_mut()?;
            self.decode_whole(&chunk, &shape, fetched, bytes_of_slots)?;
            pass_on(bytes_of_slots)?;
            room.publish(version, checked)?;
        } else {
            drop(claim);
            let memory = self.decode_privately(&chunk, &shape, fetched)?;
            pass_on(&bytemuck::cast_slice(&memory)[..length])?;
        }
        Ok(Outcome::Used { fetched: bytes })
    }

    /// Decodes a chunk that was fetched, in the order of the source.
    fn decode_whole(&self, chunk: &[Range<i64>], shape: &[usize], fetched: Fetched, bytes: &mut [u8]) -> Result<()> {
        let order = self.source.order();
        let mut place = BytesPlace(&mut *bytes);
        let placed = self.source.decode_into(chunk, fetched, &mut RegionMemory::of_bytes(&mut place, order))?;
        if let Placed::Declined(fetched) = placed {
            let mut scratch = Scratch::new();
            self.source.decode(chunk, fetched, &mut scratch)?;
            copy_elements(&mut scratch, self.source.meta().dtype, chunk, shape, order, bytes)?;
        }
        Ok(())
    }

    /// As [`decode_whole`](Self::decode_whole), into memory of this process. Returns its bytes, aligned for every type.
    fn decode_privately(&self, chunk: &[Range<i64>], shape: &[usize], fetched: Fetched) -> Result<Vec<u64>> {
        let length = self.bytes_of(shape);
        let mut memory = vec![0_u64; length.div_ceil(size_of::<u64>())];
        self.decode_whole(chunk, shape, fetched, &mut bytemuck::cast_slice_mut(&mut memory)[..length])?;
        Ok(memory)
    }

    /// Returns the bytes of a chunk of this shape.
    fn bytes_of(&self, shape: &[usize]) -> usize {
        shape.iter().product::<usize>() * self.source.meta().dtype.size()
    }

    /// Decodes a region into its place without the cache.
    fn place_around(&self, region: &[Range<i64>], memory: &mut RegionMemory<'_>) -> Result<Placed> {
        let rest = match self.source.decode_into(region, Fetched::Later, memory)? {
            Placed::Declined(Fetched::Later) => self.source.fetch(region)?,
            Placed::Declined(rest) => rest,
            filled => return Ok(filled),
        };
        if matches!(rest, Fetched::Missing) {
            return Ok(Placed::Declined(rest));
        }
        let (fetched, mut scratch) = (rest.len(), Scratch::new());
        self.source.decode(region, rest, &mut scratch)?;
        if scratch.is_missing() {
            return Ok(Placed::Declined(Fetched::Missing));
        }
        Ok(if memory.take(&scratch) { Placed::Filled { fetched } } else { Placed::Declined(Fetched::Later) })
    }

    /// Returns whether a chunk is known not to be stored. The caller has its claim.
    fn is_known_to_be_missing(&self, key: u128, chunk: &[Range<i64>], since: u64, checked: u64) -> Result<bool> {
        match if_it_works(self.cache.look(key ^ MISSING, 0, since, Duration::ZERO))? {
            Some(Lookup::Found(_)) => Ok(true),
            Some(Lookup::Claimed(mut claim)) => {
                let Some(old) = claim.old() else { return Ok(false) };
                let now = self.source.version(chunk)?;
                let is_missing = hash_of(&now).is_some_and(|version| version == old.version());
                if is_missing {
                    old.confirm(checked);
                } else {
                    claim.forget();
                }
                Ok(is_missing)
            }
            _ => Ok(false),
        }
    }

    /// Notes that a chunk is not stored.
    fn note_missing(&self, key: u128, version: &ObjectVersion, checked: u64) -> Result<()> {
        let Some(version) = hash_of(version) else { return Ok(()) };
        let looked = if_it_works(self.cache.look(key ^ MISSING, 0, checked, Duration::ZERO))?;
        if let Some(Lookup::Claimed(mut claim)) = looked
            && let Some(room) = if_it_works(claim.room())?.flatten()
        {
            room.publish(version, checked)?;
        }
        Ok(())
    }
}

/// Returns `None` for an error of the cache, such as one that was removed before this process was forked: it reads
/// without. An interrupted call is an error.
fn if_it_works<T>(answer: ndarray_shm::Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(ndarray_shm::Error { kind: ErrorKind::Interrupted, .. }) => Err(Error::Interrupted { done: 0, total: 0 }),
        Err(_) => Ok(None),
    }
}

/// Returns where a region is in its chunk.
fn window(region: &[Range<i64>], chunk: &[Range<i64>]) -> Vec<Range<usize>> {
    let axes = region.iter().zip(chunk);
    axes.map(|(range, chunk)| to_usize(range.start.abs_diff(chunk.start))..to_usize(range.end.abs_diff(chunk.start)))
        .collect()
}

/// Returns a number for a version that is known.
fn hash_of(version: &ObjectVersion) -> Option<u128> {
    match version {
        ObjectVersion::Known(text) => Some(XxHash3_128::oneshot(text.as_bytes())),
        ObjectVersion::Missing => Some(MISSING),
        _ => None,
    }
}

/// Copies decoded elements to bytes in this order.
fn copy_elements(
    scratch: &mut Scratch,
    dtype: DType,
    chunk: &[Range<i64>],
    shape: &[usize],
    order: Order,
    bytes: &mut [u8],
) -> Result<()> {
    let broken = || {
        let region = ranges_text(chunk);
        let cause = "the source broke its promise: a chunk that was fetched has no elements".into();
        Error::Chunk { chunk: region.clone(), region, cause }
    };
    with_element!(dtype, T => {
        let elements = bytemuck::try_cast_slice_mut::<u8, T>(bytes).map_err(|_| broken())?;
        let place = ArrayViewMut::from_shape(IxDyn(shape).set_f(order == Order::F), elements);
        let mut place = place.map_err(|_| broken())?;
        match scratch.elements::<T>(chunk)? {
            Elements::Missing => return Err(broken()),
            Elements::Fill(value) => place.fill(value),
            Elements::Block(block) => Copier::new().copy(&block, place),
        }
        Ok(())
    }, else => Err(Error::UnsupportedDType { dtype: dtype.to_string(), volume: String::new() }))
}

impl<S: ChunkSource> ChunkSource for CachedVolume<S> {
    fn meta(&self) -> &VolumeMeta {
        self.source.meta()
    }

    fn identity(&self) -> String {
        self.source.identity()
    }

    /// `None`: it has its cache, and another one around it would keep the same chunks once more.
    fn cache_identity(&self) -> Option<String> {
        None
    }

    fn notes(&self) -> Vec<(&'static str, String)> {
        self.source.notes()
    }

    fn is_remote(&self) -> bool {
        self.source.is_remote()
    }

    /// Returns the whole decoded chunk, as bytes: in this source, that is what a fetched chunk is.
    fn fetch(&self, region: &[Range<i64>]) -> Result<Fetched> {
        if self.identity.is_none() {
            return self.source.fetch(region);
        }
        if !self.is_remote() {
            return Ok(Fetched::Later);
        }
        let mut bytes = Vec::new();
        match self.with_chunk(region, &mut |chunk| {
            bytes.extend_from_slice(chunk.bytes);
            Ok(())
        })? {
            Outcome::Used { .. } => return Ok(Fetched::Packed(bytes)),
            Outcome::Missing => return Ok(Fetched::Missing),
            Outcome::Bypassed => {}
        }
        let chunk = self.chunk_of(region);
        let shape: Vec<usize> = chunk.iter().map(length).collect();
        match self.source.fetch(&chunk)? {
            Fetched::Missing => Ok(Fetched::Missing),
            fetched => {
                let memory = self.decode_privately(&chunk, &shape, fetched)?;
                Ok(Fetched::Packed(bytemuck::cast_slice(&memory)[..self.bytes_of(&shape)].to_vec()))
            }
        }
    }

    fn version(&self, region: &[Range<i64>]) -> Result<ObjectVersion> {
        self.source.version(region)
    }

    /// The version is not known: what this source fetches is no stored object.
    fn fetch_with_version(&self, region: &[Range<i64>]) -> Result<(Fetched, ObjectVersion)> {
        Ok((self.fetch(region)?, ObjectVersion::Unknown))
    }

    fn decode(&self, region: &[Range<i64>], fetched: Fetched, scratch: &mut Scratch) -> Result<()> {
        if self.identity.is_none() {
            return self.source.decode(region, fetched, scratch);
        }
        match fetched {
            Fetched::Later => {}
            Fetched::Missing => {
                scratch.missing();
                return Ok(());
            }
            Fetched::Packed(bytes) => {
                let chunk = self.chunk_of(region);
                let shape = chunk.iter().map(length).collect();
                scratch.block(bytes, shape, self.order(), window(region, &chunk));
                return Ok(());
            }
        }
        let outcome = self.with_chunk(region, &mut |chunk| {
            let mut memory = scratch.take_memory();
            memory.clear();
            memory.extend_from_slice(chunk.bytes);
            scratch.block(memory, chunk.shape.to_vec(), chunk.order, window(region, chunk.region));
            Ok(())
        })?;
        match outcome {
            Outcome::Used { .. } => Ok(()),
            Outcome::Missing => {
                scratch.missing();
                Ok(())
            }
            Outcome::Bypassed => self.source.read(region, scratch),
        }
    }

    fn decode_into(&self, region: &[Range<i64>], fetched: Fetched, memory: &mut RegionMemory<'_>) -> Result<Placed> {
        if self.identity.is_none() {
            return self.source.decode_into(region, fetched, memory);
        }
        if !matches!(fetched, Fetched::Later) {
            return Ok(Placed::Declined(fetched));
        }
        let outcome = self.with_chunk(region, &mut |chunk| {
            let in_order = if chunk.region == region { memory.in_order(chunk.order) } else { None };
            if let Some(bytes) = in_order.filter(|bytes| bytes.len() == chunk.bytes.len()) {
                bytes.copy_from_slice(chunk.bytes);
                return Ok(());
            }
            let window = window(region, chunk.region);
            let WholeChunk { bytes, shape, order, .. } = *chunk;
            if memory.copy(&BlockWindow { bytes, shape, order, window: &window }) {
                return Ok(());
            }
            let cause = "the cached chunk does not fit the volume".into();
            Err(Error::Chunk { chunk: ranges_text(chunk.region), region: ranges_text(region), cause })
        })?;
        match outcome {
            Outcome::Used { fetched } => Ok(Placed::Filled { fetched }),
            Outcome::Missing => Ok(Placed::Declined(Fetched::Missing)),
            Outcome::Bypassed => self.place_around(region, memory),
        }
    }

    fn order(&self) -> Order {
        self.source.order()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_is_a_number_with_an_optional_unit() {
        for (text, bytes) in [("0", 0), ("4096", 4096), ("1K", 1 << 10), ("3MiB", 3 << 20), ("16G", 16 << 30)] {
            assert_eq!(bytes_from(text), Some(bytes), "{text}");
        }
        for text in ["", "G", "GiB", "iB", "12iB", "-1", "+1", "1.5G", "10 G", "10g", "10GG", "10GB", "99999999T"] {
            assert_eq!(bytes_from(text), None, "{text}");
        }
    }

    #[test]
    fn chunk_around_a_region_is_clipped_to_the_volume() {
        let mut meta = VolumeMeta::new(&[10, 7], &[4, 7], DType::U8);
        meta.origin = vec![-3, 100];
        let directory = tempfile::tempdir().expect("a directory");
        let options =
            ndarray_shm::cache::CacheOptions::new().directory(ndarray_shm::Directory::new("test", directory.path()));
        let cache = options.create("clipped", 1 << 20).expect("a cache");
        let cached = CachedVolume::new(Plain(meta), &cache);
        assert_eq!(cached.chunk_of(&[-3..-2, 101..102]), [-3..1, 100..107]);
        assert_eq!(cached.chunk_of(&[5..7, 100..107]), [5..7, 100..107]);
        let keys = [[-3..1, 100..107], [1..5, 100..107], [1..5, 100..106]]
            .map(|chunk| [1, 2].map(|identity| CachedVolume::<Plain>::key(identity, &chunk)));
        let mut keys: Vec<u128> = keys.into_iter().flatten().collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 6, "all differ");
    }

    #[derive(Debug)]
    struct Plain(VolumeMeta);

    impl ChunkSource for Plain {
        fn meta(&self) -> &VolumeMeta {
            &self.0
        }
        fn identity(&self) -> String {
            String::new()
        }
        fn decode(&self, _: &[Range<i64>], _: Fetched, _: &mut Scratch) -> Result<()> {
            Ok(())
        }
    }
}
