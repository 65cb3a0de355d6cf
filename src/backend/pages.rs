//! What kind of pages an array is made of: what is asked for, and what was had.

/// What memory a new array gets, where that is a choice: in shared memory on Linux.
///
/// On huge pages (2 MiB on most machines) an array is filled several times as fast as on base pages (4 KiB), read at full
/// speed by every process that attaches, and dropped in no time. No privilege, no setting and no mount option is needed, but
/// Linux 6.1. [`SharedArray::pages`](crate::SharedArray::pages) says what an array got.
///
/// All but [`Sparse`](Self::Sparse) take the memory when the array is made, and are the same in everything but speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Pages {
    /// Huge pages for arrays of 4 MiB and more, if they can be had without taking longer than base pages.
    #[default]
    Auto,
    /// Huge pages for every array that is as large as one, however long the system needs to make them. What it cannot
    /// make is on base pages.
    Huge,
    /// What the file system gives by itself: usually base pages.
    Base,
    /// No memory in advance. A process that touches memory that is not there is killed (SIGBUS).
    Sparse,
}

impl Pages {
    /// Whether memory is taken in advance.
    pub(crate) fn are_reserved(self) -> bool {
        self != Self::Sparse
    }
}

/// How many bytes of an array are on huge pages, as this process has it mapped. Together they are the array.
///
/// [`SharedArray::pages`](crate::SharedArray::pages) returns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub struct PageUse {
    /// Bytes on huge pages.
    pub huge: u64,
    /// Bytes on base pages, and bytes without memory if the array is sparse.
    pub base: u64,
}
