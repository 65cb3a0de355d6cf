//! `ndshm._core`: the arrays of `ndarray-shm` for the Python package in `python/ndshm`.
//!
//! Memory of a type known at run time (`memory`), counted arrays (`shared`), the class that Python's `Array` derives from (`array`),
//! renderbuffers (`render`), views that live as long as a lock (`guard`), the buffer protocol for both (`export`), DLPack (`dlpack`), and
//! exceptions (`errors`), and calls that are made later (`soon`). What can be written in Python is written there.

mod array;
mod dlpack;
mod errors;
mod export;
mod guard;
mod memory;
mod render;
mod shared;
mod soon;

use pyo3::prelude::*;

#[pymodule]
mod _core {
    #[pymodule_export]
    use super::array::{Attachment, RawArray, attached, create, forked, listing, open, reclaim, unlink};
    #[pymodule_export]
    use super::guard::{Lock, View};
    #[pymodule_export]
    #[pymodule_export]
    use super::render::{RawBuffer, RawClaim, join_render, render};
    #[pymodule_export]
    use super::shared::{Loan, expire, open_counted, receive, revoke, set_manager, share, strategies};
    #[pymodule_export]
    use super::soon::Soon;
}
