//! Primary contexts, with the number of times each is retained, and each thread's stack of current contexts.
//!
//! The last release of a context ends its streams, events, `cuMemAlloc` memory and page-locked memory, as in the
//! driver. Its number is never used again: retaining the GPU's context again gives another one.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_uint};
use std::sync::Mutex;

use cudarc::driver::sys::CUresult::{
    CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE,
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
};

use crate::calls::{Answer, Out, exported, locked, new_handle};
use crate::machine::machine;
use crate::{events, host, legacy, streams, watch};

exported! {
    cuDevicePrimaryCtxRetain(context: Out<usize>, device: c_int) Ready => retain;
    cuDevicePrimaryCtxRelease_v2(device: c_int) Ready => release;
    cuCtxPushCurrent_v2(context: usize) Ready => push;
    cuCtxPopCurrent_v2(context: Out<usize>) Ready => pop;
    cuCtxGetCurrent(context: Out<usize>) Ready => get_current;
    cuCtxSetCurrent(context: usize) Ready => set_current;
    cuCtxGetDevice(device: Out<c_int>) Ready => get_device;
    cuCtxSynchronize() Ready => synchronize;
    cuCtxEnablePeerAccess(peer: usize, flags: c_uint) Ready => enable_peer_access;
}

/// An active context.
struct Context {
    gpu: u32,
    retained: u64,
    /// Contexts that this one has got access to the memory of.
    peers: BTreeSet<usize>,
}

static CONTEXTS: Mutex<BTreeMap<usize, Context>> = Mutex::new(BTreeMap::new());

thread_local! {
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The current context of the calling thread.
#[derive(Clone, Copy)]
pub(crate) struct Current {
    pub(crate) context: usize,
    pub(crate) gpu: u32,
}

/// The current context, which most calls need.
pub(crate) fn current() -> Answer<Current> {
    let context = top().ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
    let contexts = locked(&CONTEXTS);
    let gpu = contexts.get(&context).ok_or(CUDA_ERROR_CONTEXT_IS_DESTROYED)?.gpu;
    Ok(Current { context, gpu })
}

/// The GPU of a context.
pub(crate) fn gpu_of(context: usize) -> Answer<u32> {
    locked(&CONTEXTS).get(&context).map(|context| context.gpu).ok_or(CUDA_ERROR_CONTEXT_IS_DESTROYED)
}

/// Number of active contexts.
pub(crate) fn live() -> usize {
    locked(&CONTEXTS).len()
}

/// Works on the thread's stack, unless the thread is ending and has lost it.
fn with_stack<T>(work: impl FnOnce(&mut Vec<usize>) -> T) -> Option<T> {
    STACK.try_with(|stack| work(&mut stack.borrow_mut())).ok()
}

fn top() -> Option<usize> {
    with_stack(|stack| stack.last().copied()).flatten()
}

/// Checks that a context is active.
fn known(context: usize) -> Answer {
    if locked(&CONTEXTS).contains_key(&context) {
        return Ok(());
    }
    if context != 0 {
        watch::violation(format!("use of the unknown or destroyed context {context:#x}"));
    }
    Err(CUDA_ERROR_INVALID_CONTEXT)
}

fn retain(out: Out<usize>, device: c_int) -> Answer {
    let gpu = machine()?.gpu(device)?;
    if out.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let mut contexts = locked(&CONTEXTS);
    let handle = contexts.iter().find(|(_, context)| context.gpu == gpu).map_or_else(new_handle, |(&handle, _)| handle);
    let context = contexts.entry(handle).or_insert(Context { gpu, retained: 0, peers: BTreeSet::new() });
    context.retained += 1;
    out.give(handle)
}

fn release(device: c_int) -> Answer {
    let gpu = machine()?.gpu(device)?;
    let mut contexts = locked(&CONTEXTS);
    let Some((&handle, context)) = contexts.iter_mut().find(|(_, context)| context.gpu == gpu) else {
        drop(contexts);
        watch::violation(format!("release of a primary context that is not retained, of GPU {gpu}"));
        return Err(CUDA_ERROR_INVALID_CONTEXT);
    };
    context.retained -= 1;
    if context.retained == 0 {
        contexts.remove(&handle);
        drop(contexts);
        streams::end_context(handle);
        events::end_context(handle);
        legacy::end_context(handle);
        host::end_context(handle);
    }
    Ok(())
}

fn push(context: usize) -> Answer {
    known(context)?;
    with_stack(|stack| stack.push(context));
    Ok(())
}

fn pop(out: Out<usize>) -> Answer {
    let context = with_stack(Vec::pop).flatten().ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
    // The result is optional.
    if out.is_null() { Ok(()) } else { out.give(context) }
}

fn get_current(out: Out<usize>) -> Answer {
    out.give(top().unwrap_or(0))
}

fn set_current(context: usize) -> Answer {
    if context != 0 {
        known(context)?;
    }
    with_stack(|stack| {
        stack.pop();
        if context != 0 {
            stack.push(context);
        }
    });
    Ok(())
}

fn get_device(device: Out<c_int>) -> Answer {
    device.give(machine()?.ordinal(current()?.gpu)?)
}

fn synchronize() -> Answer {
    streams::synchronize_context(current()?.context)
}

fn enable_peer_access(peer: usize, flags: c_uint) -> Answer {
    let current = current()?;
    known(peer)?;
    let peer_gpu = gpu_of(peer)?;
    if flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if peer_gpu == current.gpu {
        return Err(CUDA_ERROR_INVALID_DEVICE);
    }
    if !machine()?.peers(current.gpu, peer_gpu) {
        return Err(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    }
    let mut contexts = locked(&CONTEXTS);
    let context = contexts.get_mut(&current.context).ok_or(CUDA_ERROR_CONTEXT_IS_DESTROYED)?;
    if context.peers.insert(peer) { Ok(()) } else { Err(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) }
}
