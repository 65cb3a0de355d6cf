//! Which memory lies at which address of this process, in one table for all kinds of device memory.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::CUresult::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY};

use crate::addresses::{Access, Addresses};
use crate::calls::{Answer, locked};
use crate::physical::{GRANULARITY, Physical};

/// Access of GPUs to memory, by GPU. Memory of one pool shares it.
pub(crate) type AccessList = Arc<Mutex<BTreeMap<u32, Access>>>;

/// Where a region comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `cuMemMap`. The addresses belong to a reservation of the table of [`crate::memory`].
    Mapping,
    /// `cuMemAlloc`, in a context.
    Allocation(usize),
    /// `cuIpcOpenMemHandle`, in a context.
    Opened(usize),
    /// Memory of a pool, with the pool's handle.
    Pooled(usize),
    /// Memory of a pool of another process, with the imported pool's handle.
    Imported(usize),
}

/// Memory at a range of addresses.
#[derive(Clone)]
pub(crate) struct Region {
    pub(crate) kind: Kind,
    pub(crate) base: usize,
    /// The bytes that the program asked for.
    pub(crate) size: usize,
    pub(crate) physical: Arc<Physical>,
    /// Which GPUs have access; `None` where all have.
    pub(crate) access: Option<AccessList>,
    /// A number that no other region of this process had.
    pub(crate) id: u64,
    /// The addresses, unless they belong to a reservation.
    _addresses: Option<Arc<Addresses>>,
}

impl Region {
    pub(crate) fn range(&self) -> Range<usize> {
        self.base..self.base + self.size
    }

    /// What a GPU may do.
    pub(crate) fn access_of(&self, gpu: u32) -> Access {
        let Some(list) = &self.access else { return Access::READ_WRITE };
        locked(list).get(&gpu).copied().unwrap_or(Access::NONE)
    }
}

/// A part of a GPU's memory that work touches.
pub(crate) struct Piece {
    pub(crate) physical: Arc<Physical>,
    pub(crate) offset: usize,
    pub(crate) size: usize,
}

static REGIONS: Mutex<BTreeMap<usize, Region>> = Mutex::new(BTreeMap::new());

/// Notes a mapping in a reservation.
pub(crate) fn add_mapping(base: usize, size: usize, physical: Arc<Physical>) {
    add(Region { kind: Kind::Mapping, base, size, physical, access: Some(Arc::default()), id: 0, _addresses: None });
}

/// Maps memory that the program reaches at once, and returns its address.
pub(crate) fn place(kind: Kind, physical: Arc<Physical>, size: usize, access: Option<AccessList>) -> Answer<usize> {
    let room = physical.size.checked_next_multiple_of(GRANULARITY).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
    let addresses = Addresses::reserve(room, GRANULARITY)?;
    addresses.map(addresses.base(), physical.size, &physical, 0, Access::READ_WRITE)?;
    let base = addresses.base();
    add(Region { kind, base, size, physical, access, id: 0, _addresses: Some(Arc::new(addresses)) });
    Ok(base)
}

fn add(mut region: Region) {
    region.id = crate::calls::new_handle() as u64;
    locked(&REGIONS).insert(region.base, region);
}

/// The region that begins at an address.
pub(crate) fn at(base: usize) -> Option<Region> {
    locked(&REGIONS).get(&base).cloned()
}

/// The region around an address.
pub(crate) fn around(address: usize) -> Option<Region> {
    let regions = locked(&REGIONS);
    let (_, region) = regions.range(..=address).next_back()?;
    region.range().contains(&address).then(|| region.clone())
}

/// The regions that overlap a range, by address.
pub(crate) fn within(range: &Range<usize>) -> Vec<Region> {
    let regions = locked(&REGIONS);
    let overlapping = regions.range(..range.end).rev().map(|(_, region)| region);
    let mut found: Vec<Region> = overlapping.take_while(|region| region.range().end > range.start).cloned().collect();
    found.reverse();
    found
}

/// Forgets the region that begins at an address, and unmaps it if it has addresses of its own.
pub(crate) fn remove(base: usize) -> Option<Region> {
    locked(&REGIONS).remove(&base)
}

/// Number of regions of a kind.
pub(crate) fn count(kind: impl Fn(Kind) -> bool) -> usize {
    locked(&REGIONS).values().filter(|region| kind(region.kind)).count()
}

/// Addresses of the regions of a kind.
pub(crate) fn of(kind: impl Fn(Kind) -> bool) -> Vec<Region> {
    locked(&REGIONS).values().filter(|region| kind(region.kind)).cloned().collect()
}

/// The memory at a range of addresses, for work of a GPU. `None` if the range does not begin in device memory.
///
/// A range that leaves device memory, or to which the GPU has no such access, is an invalid value.
pub(crate) fn pieces(address: usize, size: usize, gpu: u32, access: Access) -> Answer<Option<Vec<Piece>>> {
    let end = address.checked_add(size).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let mut pieces = Vec::new();
    let mut next = address;
    while next < end {
        let Some(region) = around(next) else {
            return if pieces.is_empty() { Ok(None) } else { Err(CUDA_ERROR_INVALID_VALUE) };
        };
        if !region.access_of(gpu).includes(access) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let step = region.range().end.min(end) - next;
        pieces.push(Piece { offset: next - region.base, physical: region.physical, size: step });
        next += step;
    }
    Ok(Some(pieces))
}
