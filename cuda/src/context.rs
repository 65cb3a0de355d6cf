//! Contexts: what the driver keeps of a GPU for this process. Most calls are for the context that is current in their thread.

#![allow(unsafe_code)]

use std::marker::PhantomData;

use cudarc::driver::sys::CUcontext;

use crate::driver::{Functions, call, functions};
use crate::error::Result;

/// A context that is current in this thread. Dropping it restores the one before.
pub(crate) struct Current {
    pub(crate) functions: &'static Functions,
    /// The current context belongs to the thread.
    of_thread: PhantomData<*mut ()>,
}

impl Current {
    pub(crate) fn of(context: CUcontext) -> Result<Self> {
        let functions = functions()?;
        // SAFETY: the context is a primary one, which is never released.
        unsafe { call!(functions, cuCtxPushCurrent_v2(context)) }?;
        Ok(Self { functions, of_thread: PhantomData })
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let mut context = std::ptr::null_mut();
        // SAFETY: the stack of contexts is not empty: `of` has pushed one. A failure leaves the context current, which harms no later call.
        let _ = unsafe { call!(self.functions, cuCtxPopCurrent_v2(&raw mut context)) };
    }
}
