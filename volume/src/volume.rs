//! The interface of a volume: a grid of chunks, each fetched, decoded, encoded and stored separately.
//!
//! Formats implement [`ChunkSource`] and [`ChunkSink`]; nothing above this file knows the format. A source never sees
//! the array: it decodes into a [`Scratch`], and the caller copies the elements into the array. Waiting (fetch, store)
//! and computing (decode, encode) are separate steps, so that many requests can be in flight while few processors
//! compute.

use std::fmt;
use std::ops::Range;

use ndarray_shm::{DType, Order};

use crate::bbox::{Bbox, BboxSpec};
use crate::error::{Error, Result, SourceFailure};
use crate::grid::Cells;
use crate::region_memory::RegionMemory;
use crate::scratch::Scratch;
use crate::store::ObjectVersion;

/// What the elements of a volume mean. In Precomputed volumes it is the `type`; programs that downsample depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum VolumeKind {
    /// Intensities. Their mean is an intensity, too.
    Image,
    /// Labels, such as the numbers of segments. The mean of two labels is a label that does not exist.
    Segmentation,
}

impl VolumeKind {
    /// Returns the word of the Precomputed format: "image" or "segmentation".
    pub fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Segmentation => "segmentation",
        }
    }

    /// Returns the kind of a word, as [`name`](Self::name) returns it.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Image, Self::Segmentation].into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for VolumeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether an axis of this name has channels. A region may leave out such an axis if it is the last one.
pub(crate) fn is_channels(name: &str) -> bool {
    matches!(name, "c" | "channel" | "channels")
}

/// Whether an axis of this name is time, which has no length.
pub(crate) fn is_time(name: &str) -> bool {
    matches!(name, "t" | "time")
}

/// Shape, chunks and element type of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeMeta {
    /// Coordinates of the first element. Zarr volumes begin at 0; Precomputed ones at their `voxel_offset`.
    pub origin: Vec<i64>,
    /// Elements along each axis.
    pub shape: Vec<u64>,
    /// Elements along each axis of a chunk, the unit of decoding; none is 0. The grid of chunks begins at the origin,
    /// and the last chunk of an axis may reach beyond the volume.
    pub chunk_shape: Vec<u64>,
    /// Elements along each axis of a stored object, which can only be written whole: a chunk, or a shard of many
    /// chunks. Each is a multiple of the chunk's.
    pub stored_shape: Vec<u64>,
    /// Type of the elements.
    pub dtype: DType,
    /// What the elements mean; `None` if the volume does not say, as in Zarr.
    pub kind: Option<VolumeKind>,
    /// The value of elements that were never written, as native bytes; `None` if the format has none, so that a missing
    /// chunk cannot be told from a lost one.
    pub fill: Option<Vec<u8>>,
    /// Names of the axes, in the order of `shape`, as the volume has them: an axis without a name has an empty one. No
    /// names if the volume has none. [`axis_words`](Self::axis_words) tells the axes apart.
    pub axes: Vec<String>,
    /// The format in a few words, for messages: "Zarr v3, zstd".
    pub description: String,
}

impl VolumeMeta {
    /// Describes a volume that begins at 0 and stores each chunk as one object. Everything else is unknown.
    pub fn new(shape: &[u64], chunk_shape: &[u64], dtype: DType) -> Self {
        Self {
            origin: vec![0; shape.len()],
            shape: shape.to_vec(),
            chunk_shape: chunk_shape.to_vec(),
            stored_shape: chunk_shape.to_vec(),
            dtype,
            kind: None,
            fill: None,
            axes: Vec::new(),
            description: String::new(),
        }
    }

    /// Returns the box of all elements.
    pub fn domain(&self) -> Bbox {
        Bbox::at(&self.origin, &self.shape)
    }

    /// Returns one word for each axis, all different: its name, or its number from 0 on if it has no name, if another
    /// axis has the same, or if the name is made of digits or contains white space or control characters.
    pub fn axis_words(&self) -> Vec<String> {
        let name = |axis: usize| self.axes.get(axis).filter(|name| is_axis_name(name));
        let is_doubled =
            |axis: usize| (0..self.axes.len()).any(|other| other != axis && self.axes[other] == self.axes[axis]);
        let word = |axis: usize| name(axis).filter(|_| !is_doubled(axis)).cloned();
        (0..self.shape.len()).map(|axis| word(axis).unwrap_or_else(|| axis.to_string())).collect()
    }

    /// Parses a region with ranges that may be open, as [`Bbox::parse`] does. The last axis may be left out if it is
    /// called `c`, `channel` or `channels`: the region then has all channels.
    ///
    /// # Errors
    ///
    /// [`Bbox`](Error::Bbox) if the text is not one range for each axis, or if a range is empty or leaves the volume.
    pub fn parse_bbox(&self, text: &str) -> Result<Bbox> {
        let spec: BboxSpec = text.parse()?;
        let channels = self.axes.last().is_some_and(|name| is_channels(name));
        let spec = if channels && spec.axes() + 1 == self.shape.len() { spec.with_whole_axis() } else { spec };
        spec.resolve(&self.domain())
    }

    /// Returns the chunks that a region touches, each clipped to the region.
    pub fn chunks(&self, bbox: &Bbox) -> Cells {
        Cells::new(bbox, &self.origin, &self.chunk_shape)
    }

    /// Returns the stored objects that a region touches, each clipped to the region.
    pub fn stored(&self, bbox: &Bbox) -> Cells {
        Cells::new(bbox, &self.origin, &self.stored_shape)
    }

    /// Returns the smallest region around `bbox` that cuts through no stored object. It ends where the volume ends.
    pub fn aligned(&self, bbox: &Bbox) -> Bbox {
        let cells = self.stored(bbox);
        let domain = self.domain();
        let axes = cells.numbers().iter().zip(&self.stored_shape).zip(&self.origin).zip(domain.ranges());
        let ranges = axes.map(|(((numbers, stored), origin), whole)| {
            let at = |number: u64| origin.saturating_add_unsigned(number.saturating_mul(*stored)).min(whole.end);
            at(numbers.start)..at(numbers.end)
        });
        let ranges: Vec<_> = ranges.collect();
        // Cannot fail: a box around a box with elements has elements.
        Bbox::new(ranges).unwrap_or_else(|_| bbox.clone())
    }

    /// Checks that a region cuts through no stored object.
    ///
    /// # Errors
    ///
    /// [`Alignment`](Error::Alignment) names the smallest region around it that does not.
    pub fn check_aligned(&self, bbox: &Bbox) -> Result<()> {
        let aligned = self.aligned(bbox);
        if aligned == *bbox {
            return Ok(());
        }
        Err(Error::Alignment {
            region: bbox.to_string(),
            stored: self.stored_shape.clone(),
            origin: self.origin.clone(),
            aligned: aligned.to_string(),
        })
    }

    /// Checks that the chunks tile the volume, as every source must.
    pub(crate) fn check(&self, identity: &str) -> Result<()> {
        if !self.is_tiled() {
            let reason = format!(
                "chunks of shape {:?}, stored by {:?}, cannot tile a volume of shape {:?} that begins at {:?}",
                self.chunk_shape, self.stored_shape, self.shape, self.origin
            );
            return Err(Error::volume(SourceFailure::Damaged, identity, reason));
        }
        Ok(())
    }

    pub(crate) fn is_tiled(&self) -> bool {
        let axes = self.shape.len();
        let tiles = |lengths: &[u64]| lengths.len() == axes && !lengths.contains(&0);
        let whole =
            self.stored_shape.iter().zip(&self.chunk_shape).all(|(stored, chunk)| *chunk > 0 && stored % chunk == 0);
        tiles(&self.chunk_shape) && tiles(&self.stored_shape) && whole && self.origin.len() == axes
    }
}

/// Whether a text can stand for an axis. A number cannot: it would be taken for the axis of that number.
pub(crate) fn is_axis_name(text: &str) -> bool {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit()); // true for an empty text
    !is_number && !text.contains(|letter: char| letter.is_whitespace() || letter.is_control())
}

/// Result of a [`fetch`](ChunkSource::fetch).
#[derive(Debug, Default)]
#[non_exhaustive]
pub enum Fetched {
    /// Nothing yet: [`decode`](ChunkSource::decode) will fetch.
    #[default]
    Later,
    /// The chunk is not stored.
    Missing,
    /// The stored bytes of one chunk.
    Packed(Vec<u8>),
}

impl Fetched {
    /// Returns the number of fetched bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Later | Self::Missing => 0,
            Self::Packed(bytes) => bytes.len(),
        }
    }

    /// Returns whether no bytes were fetched.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Result of [`ChunkSource::decode_into`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Placed {
    /// The elements are in their place; as many stored bytes were fetched for them in this call.
    Filled {
        /// The number of bytes.
        fetched: usize,
    },
    /// Nothing was written: use [`decode`](ChunkSource::decode) with these bytes.
    Declined(Fetched),
}

/// A volume that many threads can read at once, chunk by chunk.
///
/// Every `region` is in the volume's coordinates and has one range for each axis. It is not empty, and lies in one
/// chunk and in the volume.
pub trait ChunkSource: fmt::Debug + Send + Sync {
    /// Returns shape, chunks and element type.
    fn meta(&self) -> &VolumeMeta;

    /// Returns one line that identifies the volume. It is the same in every process that opens the volume, and changes
    /// when the volume is replaced. A download is resumed only if its identity is equal.
    fn identity(&self) -> String;

    /// Returns a text that stands for everything that decoded elements depend on besides the stored bytes: the place of
    /// the volume, the scale and the encoding of its chunks. It is the same in every process of a machine.
    ///
    /// If two sources have equal texts, and the stored object of a region has the same
    /// [known version](ObjectVersion::Known) in both, or is [missing](ObjectVersion::Missing) in both, then they decode
    /// the region to equal elements. Unlike the [`identity`](Self::identity), the text stays when the description of
    /// the volume is written again, or gets another scale. It has no user, password or query.
    ///
    /// `None`, the default, means that chunks of this source must not be cached between sources.
    fn cache_identity(&self) -> Option<String> {
        None
    }

    /// Returns the notes on its origin that a downloaded array gets, as keys and texts. Known ones are `source` (a path
    /// or URL without user, password, query or signature), `scale`, `resolution` (a number for each axis), `unit`,
    /// `encoding` (the [name](crate::Encoding::name) of the chunks' encoding), and `elements` (`bool` if the bytes are
    /// booleans, 0 or 1). A download adds the region, and from [`meta`](Self::meta) the axes, the origin, the chunks
    /// and the kind. [`VolumeNotes`](crate::VolumeNotes) reads them.
    fn notes(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Returns whether fetching waits for a network. If so, many threads fetch at once.
    fn is_remote(&self) -> bool {
        false
    }

    /// Fetches the stored bytes of a region. This step waits much and computes little.
    ///
    /// # Errors
    ///
    /// [`Chunk`](Error::Chunk), [`ChunkDenied`](Error::ChunkDenied), [`ChunkUnserved`](Error::ChunkUnserved) or
    /// [`Store`](Error::Store), naming the chunk. After a [`Store`](Error::Store) that [may
    /// pass](crate::StoreFailure::may_pass), a download keeps its finished chunks.
    fn fetch(&self, _region: &[Range<i64>]) -> Result<Fetched> {
        Ok(Fetched::Later)
    }

    /// Asks the store for the version of the stored object that a region's chunk is in: a file or a shard. Reads no
    /// byte of the object.
    ///
    /// The default does not know it.
    ///
    /// # Errors
    ///
    /// Those of [`fetch`](Self::fetch).
    fn version(&self, _region: &[Range<i64>]) -> Result<ObjectVersion> {
        Ok(ObjectVersion::Unknown)
    }

    /// Fetches the stored bytes of a region, with the version of the object that exactly these bytes are from.
    ///
    /// If several parts of the object were read, also by an earlier call, the version is [known](ObjectVersion::Known)
    /// only if all of them are of that version. A chunk that its shard does not have has the version of the shard. The
    /// bytes of a known version are never [`Later`](Fetched::Later): a later read could be of another version.
    ///
    /// The default does not know the version.
    ///
    /// # Errors
    ///
    /// Those of [`fetch`](Self::fetch).
    fn fetch_with_version(&self, region: &[Range<i64>]) -> Result<(Fetched, ObjectVersion)> {
        Ok((self.fetch(region)?, ObjectVersion::Unknown))
    }

    /// Decodes a part of one chunk from the bytes fetched for the same region.
    ///
    /// On return `scratch` holds the region's elements, native endian, or is marked as missing if they were never
    /// stored.
    ///
    /// # Errors
    ///
    /// [`Chunk`](Error::Chunk), naming the chunk.
    fn decode(&self, region: &[Range<i64>], fetched: Fetched, scratch: &mut Scratch) -> Result<()>;

    /// Decodes a region straight into its place, if this source can do that for this region and memory.
    ///
    /// `fetched` is what [`fetch`](Self::fetch) returned, or [`Later`](Fetched::Later): then a source that can read the
    /// stored bytes into their place does so. The default declines.
    ///
    /// # Errors
    ///
    /// Those of [`fetch`](Self::fetch) and [`decode`](Self::decode).
    fn decode_into(&self, _region: &[Range<i64>], fetched: Fetched, _memory: &mut RegionMemory<'_>) -> Result<Placed> {
        Ok(Placed::Declined(fetched))
    }

    /// Returns the order of the elements of a decoded chunk. Memory of this order is filled fastest. The default is C.
    fn order(&self) -> Order {
        Order::C
    }

    /// Fetches and decodes a region.
    ///
    /// # Errors
    ///
    /// Those of [`fetch`](Self::fetch) and [`decode`](Self::decode).
    fn read(&self, region: &[Range<i64>], scratch: &mut Scratch) -> Result<()> {
        self.decode(region, self.fetch(region)?, scratch)
    }
}

/// The source of the elements that [`ChunkSink::encode`] stores.
pub trait Gather {
    /// Replaces `bytes` by the elements of a region, native endian and contiguous, in the given order of axes.
    ///
    /// # Errors
    ///
    /// Those of reading the old object, if some of its elements are kept.
    fn gather(&self, region: &[Range<i64>], order: Order, bytes: &mut Vec<u8>) -> Result<()>;
}

/// A volume that many threads can write at once, one stored object at a time.
///
/// Every `region` is one cell of the grid of [`stored_shape`](VolumeMeta::stored_shape), clipped to the volume.
#[diagnostic::on_unimplemented(
    message = "this volume was opened for reading only",
    label = "this cannot be written to",
    note = "open it for writing: `open_writable_volume(url)?`, or `VolumeOptions::new().open_writable(url)?`; `create_volume` makes a new one"
)]
pub trait ChunkSink: ChunkSource {
    /// Returns one line that says where the volume is. It is the same in every process, also after the volume's
    /// description changes, and names the locks that uploads take on objects. The default is the identity.
    fn place(&self) -> String {
        self.identity()
    }

    /// Drops cached facts about a stored object, because another process may have replaced it.
    fn refresh(&self, _region: &[Range<i64>]) {}

    /// Encodes the stored object of a region. It may get the elements from `from` chunk by chunk.
    ///
    /// # Errors
    ///
    /// [`Chunk`](Error::Chunk) if the encoding cannot represent the elements. Those of [`Gather::gather`].
    fn encode(&self, region: &[Range<i64>], from: &dyn Gather) -> Result<Vec<u8>>;

    /// Stores an encoded object, replacing the old one. Readers see the old object or the new one, never a part.
    ///
    /// # Errors
    ///
    /// [`Store`](Error::Store), naming the object.
    fn store(&self, region: &[Range<i64>], packed: Vec<u8>) -> Result<()>;

    /// Removes the object, if there is one. Reading then finds it missing.
    ///
    /// # Errors
    ///
    /// [`Store`](Error::Store), naming the object.
    fn erase(&self, region: &[Range<i64>]) -> Result<()>;
}

/// Implements the traits for a pointer to a volume, so that the box that `open_volume` returns is itself a volume.
macro_rules! forwarded {
    ($pointer:ty) => {
        impl<S: ChunkSource + ?Sized> ChunkSource for $pointer {
            fn meta(&self) -> &VolumeMeta {
                (**self).meta()
            }

            fn identity(&self) -> String {
                (**self).identity()
            }

            fn cache_identity(&self) -> Option<String> {
                (**self).cache_identity()
            }

            fn notes(&self) -> Vec<(&'static str, String)> {
                (**self).notes()
            }

            fn is_remote(&self) -> bool {
                (**self).is_remote()
            }

            fn fetch(&self, region: &[Range<i64>]) -> Result<Fetched> {
                (**self).fetch(region)
            }

            fn version(&self, region: &[Range<i64>]) -> Result<ObjectVersion> {
                (**self).version(region)
            }

            fn fetch_with_version(&self, region: &[Range<i64>]) -> Result<(Fetched, ObjectVersion)> {
                (**self).fetch_with_version(region)
            }

            fn decode(&self, region: &[Range<i64>], fetched: Fetched, scratch: &mut Scratch) -> Result<()> {
                (**self).decode(region, fetched, scratch)
            }

            fn decode_into(
                &self,
                region: &[Range<i64>],
                fetched: Fetched,
                memory: &mut RegionMemory<'_>,
            ) -> Result<Placed> {
                (**self).decode_into(region, fetched, memory)
            }

            fn order(&self) -> Order {
                (**self).order()
            }

            fn read(&self, region: &[Range<i64>], scratch: &mut Scratch) -> Result<()> {
                (**self).read(region, scratch)
            }
        }

        impl<S: ChunkSink + ?Sized> ChunkSink for $pointer {
            fn place(&self) -> String {
                (**self).place()
            }

            fn refresh(&self, region: &[Range<i64>]) {
                (**self).refresh(region);
            }

            fn encode(&self, region: &[Range<i64>], from: &dyn Gather) -> Result<Vec<u8>> {
                (**self).encode(region, from)
            }

            fn store(&self, region: &[Range<i64>], packed: Vec<u8>) -> Result<()> {
                (**self).store(region, packed)
            }

            fn erase(&self, region: &[Range<i64>]) -> Result<()> {
                (**self).erase(region)
            }
        }
    };
}

forwarded!(&S);
forwarded!(Box<S>);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::Copier;
    use crate::region_memory::ViewPlace;

    /// Overrides every default method with another answer.
    #[derive(Debug)]
    struct Telling(VolumeMeta);

    impl ChunkSource for Telling {
        fn meta(&self) -> &VolumeMeta {
            &self.0
        }
        fn identity(&self) -> String {
            "identity".to_owned()
        }
        fn cache_identity(&self) -> Option<String> {
            Some("cached".to_owned())
        }
        fn notes(&self) -> Vec<(&'static str, String)> {
            vec![("key", "note".to_owned())]
        }
        fn is_remote(&self) -> bool {
            true
        }
        fn fetch(&self, _: &[Range<i64>]) -> Result<Fetched> {
            Ok(Fetched::Missing)
        }
        fn version(&self, _: &[Range<i64>]) -> Result<ObjectVersion> {
            Ok(ObjectVersion::Missing)
        }
        fn fetch_with_version(&self, _: &[Range<i64>]) -> Result<(Fetched, ObjectVersion)> {
            Ok((Fetched::Packed(vec![1]), ObjectVersion::Known("first".to_owned())))
        }
        fn decode(&self, _: &[Range<i64>], _: Fetched, _: &mut Scratch) -> Result<()> {
            Ok(())
        }
        fn decode_into(&self, _: &[Range<i64>], _: Fetched, _: &mut RegionMemory<'_>) -> Result<Placed> {
            Ok(Placed::Filled { fetched: 7 })
        }
        fn order(&self) -> Order {
            Order::F
        }
        fn read(&self, _: &[Range<i64>], _: &mut Scratch) -> Result<()> {
            Err(Error::bbox("read", "not both one after the other"))
        }
    }

    impl ChunkSink for Telling {
        fn place(&self) -> String {
            "place".to_owned()
        }
        fn refresh(&self, _: &[Range<i64>]) {}
        fn encode(&self, _: &[Range<i64>], _: &dyn Gather) -> Result<Vec<u8>> {
            Ok(Vec::new())
        }
        fn store(&self, _: &[Range<i64>], _: Vec<u8>) -> Result<()> {
            Ok(())
        }
        fn erase(&self, _: &[Range<i64>]) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn pointers_forward_every_method_to_the_volume() {
        fn answers(volume: impl ChunkSink) {
            assert_eq!(
                (volume.identity(), volume.place(), volume.is_remote()),
                ("identity".into(), "place".into(), true)
            );
            assert_eq!(volume.notes(), [("key", "note".to_owned())]);
            assert!(matches!(volume.fetch(&[]), Ok(Fetched::Missing)));
            assert_eq!(volume.cache_identity().as_deref(), Some("cached"));
            assert!(matches!(volume.version(&[]), Ok(ObjectVersion::Missing)));
            let fetched = volume.fetch_with_version(&[]);
            assert!(matches!(fetched, Ok((Fetched::Packed(_), ObjectVersion::Known(_)))), "{fetched:?}");
            assert!(volume.read(&[], &mut Scratch::new()).is_err());
            let mut point = ndarray::ArrayD::<u8>::zeros(ndarray::IxDyn(&[]));
            let mut copier = Copier::new();
            let mut place = ViewPlace::new(point.view_mut(), &mut copier);
            let placed = volume.decode_into(&[], Fetched::Missing, &mut RegionMemory::of(&mut place));
            assert!(matches!(placed, Ok(Placed::Filled { fetched: 7 })));
            assert_eq!(volume.order(), Order::F);
            assert_eq!(volume.meta().shape, [8]);
        }
        let volume = Telling(VolumeMeta::new(&[8], &[4], DType::U8));
        answers(&volume);
        answers(Box::new(&volume));
        answers(Box::new(volume) as Box<dyn ChunkSink>);
    }

    #[test]
    fn region_without_channel_axis_has_all_channels() {
        let mut meta = VolumeMeta::new(&[8, 8, 8, 3], &[4, 4, 4, 3], DType::U8);
        assert!(meta.parse_bbox("0:4,:,2:").is_err(), "the last axis is not known to be channels");
        meta.axes = ["x", "y", "z", "c"].map(str::to_owned).to_vec();
        assert_eq!(meta.parse_bbox("0:4,:,2:").expect("all channels").to_string(), "0:4,0:8,2:8,0:3");
        assert_eq!(meta.parse_bbox("0:4,:,2:,1:2").expect("one channel").to_string(), "0:4,0:8,2:8,1:2");
        assert!(meta.parse_bbox("0:4,:").is_err());
        assert!(meta.parse_bbox("0:4,:,:,:,:").is_err());
        meta.axes = ["c", "z", "y", "x"].map(str::to_owned).to_vec();
        assert!(meta.parse_bbox("0:4,:,2:").is_err(), "the last axis is not channels");
    }

    #[test]
    fn aligned_region_ends_at_the_volume() {
        let mut meta = VolumeMeta::new(&[10, 10, 4], &[2, 3, 4], DType::U8);
        meta.stored_shape = vec![4, 3, 4];
        meta.origin = vec![-5, 100, 0];
        let grown = |text: &str| meta.aligned(&text.parse().expect("a box")).to_string();
        assert_eq!(grown("-5:-1,100:103,0:4"), "-5:-1,100:103,0:4");
        assert_eq!(grown("-2:0,104:105,1:2"), "-5:3,103:106,0:4");
        assert_eq!(grown("3:4,109:110,0:1"), "3:5,109:110,0:4");
    }
}
