//! Writes a Zarr array: gathers elements, pads chunks that reach beyond the volume, assembles shards.

use std::ops::Range;

use ndarray_shm::Order;

use crate::bbox::{length, ranges_text};
use crate::error::{Error, Result};
use crate::volume::{ChunkSink, Gather};
use crate::zarr::array::ZarrArray;
use crate::zarr::codecs::{Chain, ShardCodec};
use crate::zarr::place;
use crate::zarr::shard_index::numbers;

impl ZarrArray {
    /// Gathers the elements of a chunk; `region` is the part of the chunk inside the volume.
    fn gather(&self, region: &[Range<i64>], chain: &Chain, from: &dyn Gather, key: &str) -> Result<Vec<u8>> {
        let mut elements = Vec::new();
        from.gather(region, Order::C, &mut elements)?;
        let failed = self.failed(key, region);
        let (cut, shape): (Vec<usize>, _) = (region.iter().map(length).collect(), chain.shape());
        let needed = cut.iter().product::<usize>().checked_mul(self.meta.dtype.size());
        if needed != Some(elements.len()) {
            return Err(failed(format!("{} bytes were given for a region of shape {cut:?}", elements.len()).into()));
        }
        if chain.check_bools(&elements).is_err() {
            let reason =
                "it has an element that is neither 0 nor 1, and elements of this volume are of bool: make them 0 or 1";
            return Err(Error::bbox(ranges_text(region), reason));
        }
        if cut == shape {
            return Ok(elements);
        }
        let window: Vec<Range<usize>> = cut.iter().map(|length| 0..*length).collect();
        let whole = place::filled(&shape, &self.fill).and_then(|mut whole| {
            place::put(&elements, &cut, Order::C, &mut whole, &shape, &window)?;
            Ok(whole)
        });
        whole.map_err(failed)
    }

    /// Encodes a shard, chunk by chunk. Chunks of only the fill value are left out: readers cannot tell them from
    /// missing ones.
    fn encode_shard(
        &self,
        shards: &ShardCodec,
        region: &[Range<i64>],
        from: &dyn Gather,
        key: &str,
    ) -> Result<Vec<u8>> {
        let lengths = shards.chunk().shape();
        let chunks = numbers(shards.index().counts()).map(|at| {
            let part: Vec<Range<i64>> = at
                .iter()
                .zip(&lengths)
                .zip(region)
                .map(|((at, length), range)| {
                    let start = range.start.saturating_add_unsigned(at.saturating_mul(*length as u64));
                    start..start.saturating_add_unsigned(*length as u64).min(range.end)
                })
                .collect();
            if part.iter().any(Range::is_empty) {
                return Ok(None);
            }
            let elements = self.gather(&part, shards.chunk(), from, key)?;
            if elements.chunks_exact(self.fill.len()).all(|element| element == self.fill) {
                return Ok(None);
            }
            shards.chunk().encode(elements).map(Some).map_err(self.failed(key, &part))
        });
        shards.index().assemble(chunks, self.failed(key, region))
    }

    /// Returns the numbers of the object that has this region.
    fn object(&self, region: &[Range<i64>]) -> Result<Vec<u64>> {
        let (lengths, numbers) = self.cell(region, &self.meta.stored_shape)?;
        let is_whole = lengths.iter().zip(&numbers).zip(self.meta.stored_shape.iter().zip(&self.meta.shape)).all(
            |((range, number), (stored, length))| {
                let start = number.saturating_mul(*stored);
                range.start == start && range.end == start.saturating_add(*stored).min(*length)
            },
        );
        if is_whole {
            return Ok(numbers);
        }
        Err(Error::bbox(ranges_text(region), "it is only a part of what is stored as one object"))
    }

    /// Removes the cached index of an object that changes: its offsets are wrong for the new object.
    fn forget(&self, object: &[u64]) {
        if let Some(indexes) = &self.indexes {
            indexes.forget(object);
        }
    }
}

impl ChunkSink for ZarrArray {
    fn place(&self) -> String {
        format!("zarr {:?}", self.place())
    }

    fn refresh(&self, region: &[Range<i64>]) {
        if let Ok(object) = self.object(region) {
            self.forget(&object);
        }
    }

    fn encode(&self, region: &[Range<i64>], from: &dyn Gather) -> Result<Vec<u8>> {
        let object = self.object(region)?;
        // Another process may have replaced the object since its index was cached: gather from the current one.
        self.forget(&object);
        let key = self.key(&object);
        if let Some(shards) = self.chain.only_shards() {
            return self.encode_shard(shards, region, from, &key);
        }
        let elements = self.gather(region, &self.chain, from, &key)?;
        self.chain.encode(elements).map_err(self.failed(&key, region))
    }

    fn store(&self, region: &[Range<i64>], packed: Vec<u8>) -> Result<()> {
        let object = self.object(region)?;
        let done = self.store.put(&self.key(&object), packed, false);
        self.forget(&object);
        done
    }

    fn erase(&self, region: &[Range<i64>]) -> Result<()> {
        let object = self.object(region)?;
        let done = self.store.delete(&self.key(&object));
        self.forget(&object);
        done.map(|_was_there| ())
    }
}
