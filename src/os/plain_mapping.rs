//! Files in memory, wherever the system puts them.

use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;

use memmap2::{MmapOptions, MmapRaw};

/// Bytes of a file, mapped shared. They are unmapped when it is dropped.
#[derive(Debug)]
pub(crate) struct Mapping(MmapRaw);

impl Mapping {
    /// Maps `length` bytes, at least one, from `offset` on, for writing too if `write`.
    pub(crate) fn new(file: &File, offset: u64, length: usize, write: bool) -> io::Result<Self> {
        let mut options = MmapOptions::new();
        options.offset(offset).len(length);
        Ok(Self(if write { options.map_raw(file)? } else { options.map_raw_read_only(file)? }))
    }

    /// Stands for an empty file, which cannot be mapped: one byte of other memory, which nobody touches.
    pub(crate) fn of_empty(_file: &File, _write: bool) -> io::Result<Self> {
        Ok(Self(MmapOptions::new().len(1).map_anon()?.into()))
    }

    /// Returns where the bytes begin.
    pub(crate) fn as_mut_ptr(&self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    /// Returns how many of the mapped bytes are mapped by huge pages; here nobody says.
    #[allow(clippy::unnecessary_wraps)] // as its counterpart
    pub(crate) fn huge_bytes(&self) -> io::Result<u64> {
        let _unknown = self;
        Ok(0)
    }
}

/// The windows of a file that could each be a huge page: here there are none.
#[derive(Debug)]
pub(crate) struct HugeWindows<'a>(Infallible, PhantomData<&'a File>);

impl<'a> HugeWindows<'a> {
    /// Finds none.
    #[allow(clippy::unnecessary_wraps)] // as its counterpart
    pub(crate) fn of(_file: &'a File, _length: u64) -> io::Result<Option<Self>> {
        Ok(None)
    }

    pub(crate) fn size(&self) -> u64 {
        match self.0 {}
    }

    pub(crate) fn count(&self) -> usize {
        match self.0 {}
    }

    pub(crate) fn prepare(&self, _windows: Range<usize>) -> io::Result<()> {
        match self.0 {}
    }

    pub(crate) fn collapse(&self, _windows: Range<usize>) -> io::Result<()> {
        match self.0 {}
    }
}
