//! `ndshm._core`: the arrays of `ndarray-shm` for the Python package in `python/ndshm`.
//!
//! Memory of a type known at run time (`memory`), the class that Python's `Array` derives from (`array`), renderbuffers
//! (`render`), views that live as long as a lock (`guard`), the buffer protocol for both (`export`), DLPack (`dlpack`), and
//! exceptions (`errors`). Everything that can be written in Python is in the package instead.

mod array;
mod dlpack;
mod errors;
mod export;
mod guard;
mod memory;
mod render;

use pyo3::prelude::*;

#[pymodule]
mod _core {
    #[pymodule_export]
    use super::array::{Attachment, RawArray, attached, create, listing, open, reclaim, unlink};
    #[pymodule_export]
    use super::guard::{Lock, View};
    #[pymodule_export]
    use super::render::{RawBuffer, RawClaim, join_render, render};
}
