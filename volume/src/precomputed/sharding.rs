//! The shard, minishard and number of a chunk: the arithmetic of `neuroglancer_uint64_sharded_v1`.

use serde_json::Value;

/// The sharding of a scale: how its chunks are grouped in files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sharding {
    preshift_bits: u32,
    hash: Hash,
    pub(super) minishard_bits: u32,
    shard_bits: u32,
    /// Whether indexes of minishards are gzip streams.
    pub(super) packed_indexes: bool,
    /// Whether chunks are gzip streams.
    pub(super) packed_chunks: bool,
    /// Chunks along each axis.
    grid: [u64; 3],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hash {
    Identity,
    Murmur,
}

/// The place of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) shard: u64,
    pub(super) minishard: u64,
    /// The chunk's number in the minishard's index.
    pub(super) id: u64,
}

impl Sharding {
    /// Parses the `sharding` member of a scale.
    ///
    /// # Errors
    ///
    /// The member does not follow the specification; the text continues a sentence that begins with the member's name.
    pub(super) fn read(json: &Value, grid: &[u64]) -> Result<Self, String> {
        let kind = json["@type"].as_str().unwrap_or_default();
        if kind != "neuroglancer_uint64_sharded_v1" {
            return Err(format!("is of the type `{kind}`: only `neuroglancer_uint64_sharded_v1` can be read"));
        }
        let bits = |name: &str| {
            json[name]
                .as_u64()
                .and_then(|bits| u32::try_from(bits).ok())
                .filter(|bits| *bits <= u64::BITS)
                .ok_or_else(|| format!("has a `{name}` of {}, but it must be a whole number up to 64", json[name]))
        };
        let packed = |name: &str| match json.get(name).map(|value| value.as_str()) {
            None | Some(Some("raw")) => Ok(false),
            Some(Some("gzip")) => Ok(true),
            Some(_) => Err(format!("has a `{name}` of {}, but only raw and gzip can be read", json[name])),
        };
        let hash = match json["hash"].as_str() {
            Some("identity") => Hash::Identity,
            Some("murmurhash3_x86_128") => Hash::Murmur,
            _ => return Err(format!("has a `hash` of {}: identity and murmurhash3_x86_128 are known", json["hash"])),
        };
        let (minishard_bits, shard_bits) = (bits("minishard_bits")?, bits("shard_bits")?);
        // The index at the beginning of a shard has 16 bytes for each minishard.
        if minishard_bits + shard_bits > u64::BITS || minishard_bits > u64::BITS - 5 {
            return Err(format!("divides by {minishard_bits} and {shard_bits} bits, but there are 64"));
        }
        let grid: [u64; 3] = grid.try_into().map_err(|_| "is for three axes".to_owned())?;
        if grid.iter().map(|length| bits_of(*length)).sum::<u32>() > u64::BITS {
            return Err(format!("cannot number a grid of {grid:?} chunks with 64 bits"));
        }
        Ok(Self {
            preshift_bits: bits("preshift_bits")?,
            hash,
            minishard_bits,
            shard_bits,
            packed_indexes: packed("minishard_index_encoding")?,
            packed_chunks: packed("data_encoding")?,
            grid,
        })
    }

    /// Returns the place of a chunk from its numbers along x, y and z.
    pub(super) fn address(&self, numbers: [u64; 3]) -> Address {
        let id = morton(numbers, self.grid);
        let shifted = id.checked_shr(self.preshift_bits).unwrap_or(0);
        let hash = match self.hash {
            Hash::Identity => shifted,
            Hash::Murmur => murmur(shifted),
        };
        let minishard = hash & ones(self.minishard_bits);
        let shard = hash.checked_shr(self.minishard_bits).unwrap_or(0) & ones(self.shard_bits);
        Address { shard, minishard, id }
    }

    /// Returns the file name of a shard.
    pub(super) fn file(&self, shard: u64) -> String {
        format!("{shard:0width$x}.shard", width = self.shard_bits.div_ceil(4).max(1) as usize)
    }
}

fn ones(bits: u32) -> u64 {
    1u64.checked_shl(bits).unwrap_or(0).wrapping_sub(1)
}

/// Returns the number of bits that can number `length` chunks.
fn bits_of(length: u64) -> u32 {
    u64::BITS - length.saturating_sub(1).leading_zeros()
}

/// Returns the compressed Morton code: bits of x, y and z in turn, of each axis only as many as its grid needs.
fn morton(numbers: [u64; 3], grid: [u64; 3]) -> u64 {
    let mut code = 0u64;
    let mut place = 0;
    for bit in 0..u64::BITS {
        for (number, length) in numbers.iter().zip(grid) {
            if bit < bits_of(length) {
                code |= (number >> bit & 1).checked_shl(place).unwrap_or(0);
                place += 1;
            }
        }
    }
    code
}

/// Returns the low half of `MurmurHash3_x86_128` of a number, with seed 0.
fn murmur(number: u64) -> u64 {
    const C: [u32; 3] = [0x239b_961b, 0xab0e_9789, 0x38b3_4ae5];
    let finish = |mut hash: u32| {
        hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
        hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
        hash ^ (hash >> 16)
    };
    let [a0, a1, a2, a3, b0, b1, b2, b3] = number.to_le_bytes();
    let first = u32::from_le_bytes([a0, a1, a2, a3]).wrapping_mul(C[0]).rotate_left(15).wrapping_mul(C[1]);
    let second = u32::from_le_bytes([b0, b1, b2, b3]).wrapping_mul(C[1]).rotate_left(16).wrapping_mul(C[2]);
    // Eight bytes are less than a block of 16: only the steps for the tail and the finalization apply.
    let mix = |mut hashes: [u32; 4]| {
        hashes[0] = hashes.iter().fold(0, |sum: u32, hash| sum.wrapping_add(*hash));
        for at in 1..4 {
            hashes[at] = hashes[at].wrapping_add(hashes[0]);
        }
        hashes
    };
    let [low, high, ..] = mix(mix([first ^ 8, second ^ 8, 8, 8]).map(finish));
    u64::from(high) << 32 | u64::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_agrees_with_mmh3() {
        // From the Python package mmh3: hash64(number.to_bytes(8, "little"), x64arch=False).
        for (number, hash) in [
            (0, 5_148_371_408_780_832_321),
            (1, 16_770_674_756_601_302_682),
            (2, 15_433_726_874_232_110_938),
            (12345, 2_103_515_819_662_501_136),
            (1 << 32, 13_524_640_716_595_723_620),
            ((1 << 63) + 5, 14_567_004_068_401_809_725),
            (u64::MAX, 6_291_360_166_951_214_362),
        ] {
            assert_eq!(murmur(number), hash, "{number}");
        }
    }

    #[test]
    fn morton_code_has_only_the_bits_of_each_axis() {
        assert_eq!(morton([1, 0, 0], [4, 4, 4]), 0b1);
        assert_eq!(morton([0, 1, 0], [4, 4, 4]), 0b10);
        assert_eq!(morton([2, 3, 1], [4, 4, 4]), 0b1_1110);
        assert_eq!(morton([4, 2, 8], [5, 3, 9]), 336);
        assert_eq!(morton([5, 0, 1], [8, 1, 2]), 0b1011);
        assert_eq!(morton([0, 0, 0], [1, 1, 1]), 0);
        let codes: std::collections::BTreeSet<u64> =
            (0..5 * 3 * 9).map(|n| morton([n % 5, n / 5 % 3, n / 15], [5, 3, 9])).collect();
        assert_eq!(codes.len(), 5 * 3 * 9);
        let all = u64::MAX;
        assert_eq!(morton([all, 0, 0], [all, 1, 1]), all);
    }
}
