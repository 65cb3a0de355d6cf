//! What a volume is to downloads and uploads: a grid of chunks, each of which is fetched, decoded, encoded and stored alone.
//!
//! Formats implement [`ChunkSource`] and [`ChunkSink`]; nothing above this file knows which one it talks to. A source never sees
//! the array: it decodes into a [`Scratch`], whose elements are then copied to where they belong. Waiting (fetch, store) and
//! computing (decode, encode) are apart, so that many requests can be under way while few processors are busy.

use std::fmt;
use std::ops::Range;

use ndarray_shm::{DType, Order};

use crate::bbox::{Bbox, BboxSpec};
use crate::error::{Error, ErrorKind, Result};
use crate::grid::Cells;
use crate::scratch::Scratch;

/// What the elements of a volume mean. Precomputed volumes say it as their `type`, and programs that downsample go by it.
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
}

impl fmt::Display for VolumeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a volume is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeMeta {
    /// Coordinates of the first element. Zarr volumes begin at 0; Precomputed ones at their `voxel_offset`.
    pub origin: Vec<i64>,
    /// Elements along each axis.
    pub shape: Vec<u64>,
    /// Elements along each axis of what is decoded in one piece; none of them 0. The grid of chunks begins at the origin
    /// and the last chunk of an axis may reach beyond the volume.
    pub chunk_shape: Vec<u64>,
    /// Elements along each axis of what is stored as one object and so can only be written whole: a chunk, or a shard of many.
    /// A multiple of the chunk along each axis.
    pub stored_shape: Vec<u64>,
    /// Type of the elements.
    pub dtype: DType,
    /// What the elements mean; `None` where the volume does not say it, as Zarr volumes do not.
    pub kind: Option<VolumeKind>,
    /// The value of elements that were never written, as native bytes; `None` where the format does not say, so that a missing
    /// chunk may as well be a lost one.
    pub fill: Option<Vec<u8>>,
    /// Names of the axes, slowest or fastest first as in `shape`; empty where the volume does not name them.
    pub axes: Vec<String>,
    /// The format in a few words, for people: "Zarr v3, zstd".
    pub description: String,
}

impl VolumeMeta {
    /// Describes a volume that begins at 0, whose chunks are stored one by one, and of which nothing else is known.
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

    /// Reads a region whose ranges may be open, as [`Bbox::parse`] does. A region that lacks the last axis means all of it if
    /// that axis is called `c` or `channel`; given, it chooses channels.
    ///
    /// # Errors
    ///
    /// [`Bbox`](Error::Bbox) if the text is not one range for each axis, or if a range is empty or leaves the volume.
    pub fn parse_bbox(&self, text: &str) -> Result<Bbox> {
        let spec: BboxSpec = text.parse()?;
        let channels = self.axes.last().is_some_and(|name| matches!(name.as_str(), "c" | "channel" | "channels"));
        let spec = if channels && spec.axes() + 1 == self.shape.len() { spec.with_whole_axis() } else { spec };
        spec.resolve(&self.domain())
    }

    /// Walks the chunks that a region touches, each cut off where the region ends.
    pub fn chunks(&self, bbox: &Bbox) -> Cells {
        Cells::new(bbox, &self.origin, &self.chunk_shape)
    }

    /// Walks the stored objects that a region touches, each cut off where the region ends.
    pub fn stored(&self, bbox: &Bbox) -> Cells {
        Cells::new(bbox, &self.origin, &self.stored_shape)
    }

    /// Checks that the chunks tile the volume, which every source promises.
    pub(crate) fn check(&self, identity: &str) -> Result<()> {
        let axes = self.shape.len();
        let tiles = |lengths: &[u64]| lengths.len() == axes && !lengths.contains(&0);
        let whole =
            self.stored_shape.iter().zip(&self.chunk_shape).all(|(stored, chunk)| *chunk > 0 && stored % chunk == 0);
        if !tiles(&self.chunk_shape) || !tiles(&self.stored_shape) || !whole || self.origin.len() != axes {
            let reason = format!(
                "chunks of shape {:?}, stored by {:?}, cannot tile a volume of shape {:?} that begins at {:?}",
                self.chunk_shape, self.stored_shape, self.shape, self.origin
            );
            return Err(Error::volume(ErrorKind::Damaged, identity, reason));
        }
        Ok(())
    }
}

/// What a [`fetch`](ChunkSource::fetch) brought.
#[derive(Debug, Default)]
#[non_exhaustive]
pub enum Fetched {
    /// Nothing yet: the source fetches while it decodes.
    #[default]
    Later,
    /// The chunk is not stored.
    Missing,
    /// The bytes of one chunk, as they are stored.
    Packed(Vec<u8>),
}

impl Fetched {
    /// Returns how many bytes it holds.
    pub fn len(&self) -> usize {
        match self {
            Self::Later | Self::Missing => 0,
            Self::Packed(bytes) => bytes.len(),
        }
    }

    /// Whether it holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A volume that can be read chunk by chunk, by many threads at once.
///
/// Every `region` is in the volume's coordinates, one range for each axis, not empty, and lies in one chunk and in the volume.
pub trait ChunkSource: fmt::Debug + Send + Sync {
    /// Returns shape, chunks and element type.
    fn meta(&self) -> &VolumeMeta;

    /// Returns one line that says which volume this is, the same in every process that opens it, and another one when
    /// the volume has been replaced by another. Unfinished work is resumed only under an equal identity.
    fn identity(&self) -> String;

    /// Returns what a downloaded array says about where it comes from, keys and texts, as far as it is known: `source` (a path or URL
    /// without user, password, query or signature), `scale`, `resolution` (a number for each axis), `unit`, `elements` (`bool` where bytes
    /// are truth values, 0 or 1).
    fn notes(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Whether fetching waits for a network, so that many fetches at a time are worth their threads.
    fn is_remote(&self) -> bool {
        false
    }

    /// Fetches what decoding a region takes: waits much and computes little.
    ///
    /// # Errors
    ///
    /// [`Chunk`](Error::Chunk), [`ChunkDenied`](Error::ChunkDenied), [`ChunkUnserved`](Error::ChunkUnserved) or [`Store`](Error::Store),
    /// naming the chunk. A download keeps what it has painted after a [`Store`](Error::Store) that may pass.
    fn fetch(&self, _region: &[Range<i64>]) -> Result<Fetched> {
        Ok(Fetched::Later)
    }

    /// Decodes a part of one chunk from what was fetched for the same region.
    ///
    /// On return `scratch` holds the region's elements, native endian, or the news that they were never stored.
    ///
    /// # Errors
    ///
    /// [`Chunk`](Error::Chunk), naming the chunk.
    fn decode(&self, region: &[Range<i64>], fetched: Fetched, scratch: &mut Scratch) -> Result<()>;

    /// Fetches and decodes.
    ///
    /// # Errors
    ///
    /// Those of both.
    fn read(&self, region: &[Range<i64>], scratch: &mut Scratch) -> Result<()> {
        self.decode(region, self.fetch(region)?, scratch)
    }
}

/// Where the elements of a chunk come from that is to be stored.
pub trait Gather {
    /// Puts the elements of a region into `bytes`, native and dense, in the given order of axes, in place of what is there.
    ///
    /// # Errors
    ///
    /// What reading elements that are to be kept comes to.
    fn gather(&self, region: &[Range<i64>], order: Order, bytes: &mut Vec<u8>) -> Result<()>;
}

/// A volume that can be written, one stored object at a time, by many threads at once.
///
/// Every `region` is one cell of the grid of [`stored_shape`](VolumeMeta::stored_shape), cut off where the volume ends.
#[diagnostic::on_unimplemented(
    message = "this volume was opened for reading only",
    label = "this cannot be written to",
    note = "open it for writing: `open_writable_volume(url)?`, or `VolumeOptions::new().open_writable(url)?`; `create_volume` makes a new one"
)]
pub trait ChunkSink: ChunkSource {
    /// Returns one line that says where the volume is, the same in every process and whatever becomes of its description: under this name
    /// objects are locked while they are changed. If not said otherwise, the identity.
    fn place(&self) -> String {
        self.identity()
    }

    /// Forgets what is known of a stored object, which another may have replaced since.
    fn refresh(&self, _region: &[Range<i64>]) {}

    /// Encodes what is to be stored for a region; asks `from` for its elements, chunk by chunk if it likes.
    ///
    /// # Errors
    ///
    /// [`Chunk`](Error::Chunk): the encoding cannot represent the elements. What `from` answers.
    fn encode(&self, region: &[Range<i64>], from: &dyn Gather) -> Result<Vec<u8>>;

    /// Stores it, in place of what is there: others see the old object or the new one, never a part.
    ///
    /// # Errors
    ///
    /// [`Store`](Error::Store), naming the object.
    fn store(&self, region: &[Range<i64>], packed: Vec<u8>) -> Result<()>;

    /// Takes the object away, if there is one: reading then finds it missing.
    ///
    /// # Errors
    ///
    /// [`Store`](Error::Store), naming the object.
    fn erase(&self, region: &[Range<i64>]) -> Result<()>;
}

/// A pointer to a volume is one: what `open_volume` returns can be lent as it is.
macro_rules! forwarded {
    ($pointer:ty) => {
        impl<S: ChunkSource + ?Sized> ChunkSource for $pointer {
            fn meta(&self) -> &VolumeMeta {
                (**self).meta()
            }

            fn identity(&self) -> String {
                (**self).identity()
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

            fn decode(&self, region: &[Range<i64>], fetched: Fetched, scratch: &mut Scratch) -> Result<()> {
                (**self).decode(region, fetched, scratch)
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

    /// Answers otherwise than what a source answers that says nothing.
    #[derive(Debug)]
    struct Telling(VolumeMeta);

    impl ChunkSource for Telling {
        fn meta(&self) -> &VolumeMeta {
            &self.0
        }
        fn identity(&self) -> String {
            "identity".to_owned()
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
        fn decode(&self, _: &[Range<i64>], _: Fetched, _: &mut Scratch) -> Result<()> {
            Ok(())
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
    fn pointer_to_a_volume_answers_as_the_volume_does() {
        fn answers(volume: impl ChunkSink) {
            assert_eq!(
                (volume.identity(), volume.place(), volume.is_remote()),
                ("identity".into(), "place".into(), true)
            );
            assert_eq!(volume.notes(), [("key", "note".to_owned())]);
            assert!(matches!(volume.fetch(&[]), Ok(Fetched::Missing)));
            assert!(volume.read(&[], &mut Scratch::new()).is_err());
            assert_eq!(volume.meta().shape, [8]);
        }
        let volume = Telling(VolumeMeta::new(&[8], &[4], DType::U8));
        answers(&volume);
        answers(Box::new(&volume));
        answers(Box::new(volume) as Box<dyn ChunkSink>);
    }

    #[test]
    fn a_region_without_channels_means_all_of_them() {
        let mut meta = VolumeMeta::new(&[8, 8, 8, 3], &[4, 4, 4, 3], DType::U8);
        assert!(meta.parse_bbox("0:4,:,2:").is_err(), "the last axis is not known to be channels");
        meta.axes = ["x", "y", "z", "c"].map(str::to_owned).to_vec();
        assert_eq!(meta.parse_bbox("0:4,:,2:").expect("all channels").to_string(), "0:4,0:8,2:8,0:3");
        assert_eq!(meta.parse_bbox("0:4,:,2:,1:2").expect("one channel").to_string(), "0:4,0:8,2:8,1:2");
        assert!(meta.parse_bbox("0:4,:").is_err());
        assert!(meta.parse_bbox("0:4,:,:,:,:").is_err());
        meta.axes = ["c", "z", "y", "x"].map(str::to_owned).to_vec();
        assert!(meta.parse_bbox("0:4,:,2:").is_err(), "the last axis is not the channels'");
    }
}
