//! The pages of an array: what a program requests, and what the array got.

/// The memory of a new array, where there is a choice: in shared memory on Linux.
///
/// On huge pages (2 MiB on most machines) an array is filled several times as fast as on base pages (4 KiB), read at
/// full speed by every process that attaches, and dropped in almost no time. This needs Linux 6.1, but no privilege,
/// setting or mount option. [`SharedArray::pages`](crate::SharedArray::pages) returns what an array got.
///
/// All but [`Sparse`](Self::Sparse) allocate the memory when the array is made, and differ only in speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Pages {
    /// Huge pages for arrays of 4 MiB and more, if allocating them takes no longer than base pages.
    #[default]
    Auto,
    /// Huge pages for every array that is at least as large as one, however long the system needs to make them. The
    /// rest is on base pages.
    Huge,
    /// The pages that the file system chooses, usually base pages.
    Base,
    /// Allocates nothing in advance. If an access finds no free memory, the process is killed (SIGBUS).
    ///
    /// Each process decides for itself: one that attaches to the same array or renderbuffer fills its holes, and one
    /// that opens the same arena is refused, unless it chooses this too, or
    /// [`leave_holes`](crate::OpenOptions::leave_holes).
    Sparse,
}

impl Pages {
    /// Returns whether memory is allocated in advance.
    pub(crate) fn are_reserved(self) -> bool {
        self != Self::Sparse
    }
}

/// How many bytes of an array are on huge and on base pages in this process's mapping. Their sum is the array's length.
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
