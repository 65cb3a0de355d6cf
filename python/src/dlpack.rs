//! DLPack: how torch, jax, numpy and other libraries reach the elements without a copy, with their type, strides and
//! device.
//!
//! The structures are those of `dlpack.h` of version 1. A tensor keeps its memory until its consumer calls the deleter.
//! If no consumer takes it, the memory stays until the capsule is collected.

#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::{CStr, c_void};

use ndarray_shm::DType;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::memory::{ElementType, signed};
use crate::part::Window;

/// The device of arrays of the host.
pub(crate) const CPU: (i32, i32) = (1, 0);

/// The type of devices that are GPUs of CUDA.
#[cfg(target_os = "linux")]
pub(crate) const CUDA: i32 = 2;

const READ_ONLY: u64 = 1;

#[repr(C)]
struct Device {
    kind: i32,
    number: i32,
}

#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Unversioned {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: Tensor,
}

/// A structure that a capsule can carry.
trait Managed: Sized {
    /// The name of a capsule that has not been taken.
    const NAME: &'static CStr;

    fn new(tensor: Tensor, context: *mut c_void, readonly: bool) -> Self;
    fn context(&self) -> *mut c_void;
}

impl Managed for Unversioned {
    const NAME: &'static CStr = c"dltensor";

    fn new(tensor: Tensor, context: *mut c_void, _readonly: bool) -> Self {
        Self { tensor, context, deleter: Some(delete::<Self>) }
    }

    fn context(&self) -> *mut c_void {
        self.context
    }
}

impl Managed for Versioned {
    const NAME: &'static CStr = c"dltensor_versioned";

    fn new(tensor: Tensor, context: *mut c_void, readonly: bool) -> Self {
        let flags = if readonly { READ_ONLY } else { 0 };
        Self { major: 1, minor: 0, context, deleter: Some(delete::<Self>), flags, tensor }
    }

    fn context(&self) -> *mut c_void {
        self.context
    }
}

/// The elements of a tensor, and the owner that keeps them.
pub(crate) struct Export<'a> {
    pub(crate) address: *mut c_void,
    /// Type and number.
    pub(crate) device: (i32, i32),
    pub(crate) element: ElementType,
    /// The lengths, and the strides in bytes. The offset is in the address.
    pub(crate) window: &'a Window,
    pub(crate) readonly: bool,
    pub(crate) owner: Box<dyn Any + Send + Sync>,
}

/// The data that a tensor points to.
struct Context {
    lengths: Vec<i64>,
    strides: Vec<i64>,
    _owner: Box<dyn Any + Send + Sync>,
}

/// Refuses what an export of the host's memory cannot do.
pub(crate) fn refuse_other_than_cpu(
    stream: Option<&Bound<'_, PyAny>>,
    device: Option<(i32, i32)>,
    copy: Option<bool>,
) -> PyResult<()> {
    if stream.is_some() {
        return Err(PyBufferError::new_err("the array is on the CPU, which has no streams: give stream=None"));
    }
    if device.is_some_and(|device| device != CPU) {
        return Err(PyBufferError::new_err("the array is on the CPU: copy it to the other device"));
    }
    if copy == Some(true) {
        return Err(PyBufferError::new_err("the export shares the memory: copy it afterwards"));
    }
    Ok(())
}

/// Returns a capsule with a tensor of the elements: versioned if the consumer knows version 1, else only of a writable
/// array.
pub(crate) fn capsule<'py>(py: Python<'py>, export: Export<'_>, knows_versions: bool) -> PyResult<Bound<'py, PyAny>> {
    if knows_versions {
        return export.into_capsule::<Versioned>(py);
    }
    if export.readonly {
        return Err(PyBufferError::new_err(
            "the array is read-only, and the consumer's version of DLPack cannot tell: give it numpy.asarray(array), or a copy",
        ));
    }
    export.into_capsule::<Unversioned>(py)
}

impl Export<'_> {
    fn into_capsule<M: Managed>(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        let number = |length: isize| i64::try_from(length).unwrap_or(i64::MAX); // never larger
        let Self { address, device, element, window, readonly, owner } = self;
        let item = signed(element.dtype.size());
        let mut context = Box::new(Context {
            lengths: window.lengths.iter().map(|length| number(signed(*length))).collect(),
            strides: window.strides.iter().map(|stride| number(*stride / item)).collect(),
            _owner: owner,
        });
        let (code, bits) = type_of(element);
        let tensor = Tensor {
            data: address,
            device: Device { kind: device.0, number: device.1 },
            ndim: i32::try_from(window.lengths.len()).unwrap_or(0), // `Array` refuses more than 64 axes
            dtype: DataType { code, bits, lanes: 1 },
            shape: context.lengths.as_mut_ptr(),
            strides: context.strides.as_mut_ptr(),
            byte_offset: 0,
        };
        let managed = M::new(tensor, Box::into_raw(context).cast(), readonly);
        let managed = Box::into_raw(Box::new(managed));
        // SAFETY: the pointer is not null, the name lives for ever, and `collect::<M>` takes a capsule of an `M`.
        let capsule = unsafe { ffi::PyCapsule_New(managed.cast(), M::NAME.as_ptr(), Some(collect::<M>)) };
        // SAFETY: `PyCapsule_New` returns a new reference, or null with an exception set.
        let capsule = unsafe { Bound::from_owned_ptr_or_err(py, capsule) };
        if capsule.is_err() {
            // SAFETY: no capsule has the pointer, so it is deleted once.
            unsafe { delete(managed) };
        }
        capsule
    }
}

/// Deletes a tensor. Consumers call it, on any thread, with or without the interpreter.
unsafe extern "C" fn delete<M: Managed>(managed: *mut M) {
    // SAFETY: `into_capsule` made the pointer from a box, and the protocol deletes a tensor once.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: `into_capsule` made this pointer from a box, for this tensor alone.
    drop(unsafe { Box::from_raw(managed.context().cast::<Context>()) });
}

/// Deletes the tensor of a capsule that no consumer has taken. A consumer renames the capsule when it takes the tensor.
unsafe extern "C" fn collect<M: Managed>(capsule: *mut ffi::PyObject) {
    // SAFETY: the interpreter calls this with the capsule that it collects.
    if unsafe { ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr()) } == 0 {
        return;
    }
    // SAFETY: the capsule is valid and has this name.
    let managed = unsafe { ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr()) };
    if !managed.is_null() {
        // SAFETY: a capsule of this name has a tensor of `into_capsule` that no consumer has taken.
        unsafe { delete::<M>(managed.cast()) };
    }
}

/// Returns code and bits of an element type, as `dlpack.h` numbers them.
fn type_of(element: ElementType) -> (u8, u8) {
    const INT: u8 = 0;
    const UINT: u8 = 1;
    const FLOAT: u8 = 2;
    const BFLOAT: u8 = 4;
    const COMPLEX: u8 = 5;
    const BOOL: u8 = 6;
    let bits = u8::try_from(8 * element.dtype.size()).unwrap_or(0); // 128 at most
    let code = match element.dtype {
        _ if element.is_bool => BOOL,
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => INT,
        DType::F16 | DType::F32 | DType::F64 => FLOAT,
        DType::Bf16 => BFLOAT,
        DType::Complex64 | DType::Complex128 => COMPLEX,
        _ => UINT,
    };
    (code, bits)
}
