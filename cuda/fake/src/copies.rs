//! Copies and memsets, in the order of streams. Synchronous ones are work of the NULL stream.
//!
//! Addresses are checked at the call. The memory itself is kept until the work is done.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr;

use cudarc::driver::sys::CUresult::CUDA_ERROR_INVALID_VALUE;

use crate::addresses::Access;
use crate::calls::{Answer, exported};
use crate::regions::{self, Piece};
use crate::streams::{self, Action, Work};
use crate::{contexts, host};

exported! {
    cuMemcpy(target: usize, source: usize, size: usize) Ready => any_to_any;
    cuMemcpyHtoD_v2(target: usize, source: usize, size: usize) Ready => host_to_device;
    cuMemcpyDtoH_v2(target: usize, source: usize, size: usize) Ready => device_to_host;
    cuMemcpyDtoD_v2(target: usize, source: usize, size: usize) Ready => device_to_device;
    cuMemcpyHtoDAsync_v2(target: usize, source: usize, size: usize, stream: usize) Ready => host_to_device_async;
    cuMemcpyDtoHAsync_v2(target: usize, source: usize, size: usize, stream: usize) Ready => device_to_host_async;
    cuMemcpyDtoDAsync_v2(target: usize, source: usize, size: usize, stream: usize) Ready => device_to_device_async;
    cuMemsetD8_v2(target: usize, value: u8, size: usize) Ready => set;
    cuMemsetD8Async(target: usize, value: u8, size: usize, stream: usize) Ready => set_async;
}

/// Where bytes are.
enum Place {
    Device(Vec<Piece>),
    /// Memory of this process; the caller of the C function promised that it is there until the work is done.
    Host(usize),
}

/// What an address of a call may be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    /// Device memory, or page-locked host memory.
    Device,
    /// Host memory of any kind, or device memory.
    Any,
}

/// A checked copy or memset.
pub(crate) struct Copy {
    target: Place,
    source: Source,
    size: usize,
}

enum Source {
    Place(Place),
    Value(u8),
}

/// What a call asks for.
struct Request {
    target: (Side, usize),
    source: RequestedSource,
    size: usize,
    /// The stream of an asynchronous call.
    stream: Option<usize>,
}

enum RequestedSource {
    Address(Side, usize),
    Value(u8),
}

impl Request {
    fn submit(self) -> Answer {
        let current = contexts::current()?;
        let stream = streams::find(self.stream.unwrap_or(0))?;
        // The GPU that does the work.
        let gpu = if self.stream.is_some() { contexts::gpu_of(streams::context_of(stream)?)? } else { current.gpu };
        if self.size == 0 {
            return Ok(());
        }
        let range = |address: usize| -> Answer<Range<usize>> {
            Ok(address..address.checked_add(self.size).ok_or(CUDA_ERROR_INVALID_VALUE)?)
        };
        let (side, target) = self.target;
        let mut touches = vec![range(target)?];
        let target = find(side, target, self.size, gpu, Access::READ_WRITE)?;
        let source = match self.source {
            RequestedSource::Value(value) => Source::Value(value),
            RequestedSource::Address(side, address) => {
                touches.push(range(address)?);
                Source::Place(find(side, address, self.size, gpu, Access::READ)?)
            }
        };
        let copy = Copy { target, source, size: self.size };
        let work = Work { touches, ..Action::Copy(copy).into() };
        if self.stream.is_some() {
            streams::submit(stream, work).map(|_| ())
        } else {
            streams::submit_and_wait(stream, work).or(Err(CUDA_ERROR_INVALID_VALUE))
        }
    }
}

/// Finds what is at an address, and checks the GPU's access.
fn find(allowed: Side, address: usize, size: usize, gpu: u32, access: Access) -> Answer<Place> {
    if let Some(pieces) = regions::pieces(address, size, gpu, access)? {
        return Ok(Place::Device(pieces));
    }
    if address == 0 || allowed == Side::Device && !host::is_locked(address, size) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(Place::Host(address))
}

impl Copy {
    /// Does the work.
    pub(crate) fn perform(self) -> Answer {
        match (&self.target, &self.source) {
            (Place::Device(pieces), Source::Value(value)) => {
                pieces.iter().try_for_each(|piece| piece.physical.fill(piece.offset, *value, piece.size))
            }
            (Place::Host(address), Source::Value(value)) => {
                let target = ptr::with_exposed_provenance_mut::<u8>(*address);
                // SAFETY: the caller of the C function promised memory of this size, which is page-locked, and left it
                // to the work.
                unsafe { target.write_bytes(*value, self.size) };
                Ok(())
            }
            (Place::Device(pieces), Source::Place(Place::Host(source))) => {
                each(pieces, *source, |piece, source| piece.physical.write(piece.offset, source, piece.size))
            }
            (Place::Host(target), Source::Place(Place::Device(pieces))) => {
                each(pieces, *target, |piece, target| piece.physical.read(piece.offset, target, piece.size))
            }
            (Place::Device(targets), Source::Place(Place::Device(sources))) => device_copy(targets, sources),
            (Place::Host(target), Source::Place(Place::Host(source))) => {
                let source = ptr::with_exposed_provenance::<u8>(*source);
                let target = ptr::with_exposed_provenance_mut::<u8>(*target);
                // SAFETY: the caller of the C function promised memory of this size on both sides, and left it to the
                // work.
                unsafe { target.copy_from(source, self.size) };
                Ok(())
            }
        }
    }
}

/// Works on pieces and the addresses of host memory beside them.
fn each(pieces: &[Piece], mut address: usize, work: impl Fn(&Piece, usize) -> Answer) -> Answer {
    pieces.iter().try_for_each(|piece| {
        let here = address;
        address += piece.size;
        work(piece, here)
    })
}

/// Copies between pieces that have other borders on the two sides.
fn device_copy(targets: &[Piece], sources: &[Piece]) -> Answer {
    let (mut targets, mut sources) = (targets.iter(), sources.iter());
    let (mut target, mut source) = (targets.next(), sources.next());
    let (mut target_done, mut source_done) = (0, 0);
    while let (Some(to), Some(from)) = (target, source) {
        let step = (to.size - target_done).min(from.size - source_done);
        to.physical.copy_from(to.offset + target_done, &from.physical, from.offset + source_done, step)?;
        target_done += step;
        source_done += step;
        if target_done == to.size {
            (target, target_done) = (targets.next(), 0);
        }
        if source_done == from.size {
            (source, source_done) = (sources.next(), 0);
        }
    }
    Ok(())
}

/// Asks for a copy.
fn copy(target: (Side, usize), source: (Side, usize), size: usize, stream: Option<usize>) -> Answer {
    Request { target, source: RequestedSource::Address(source.0, source.1), size, stream }.submit()
}

fn any_to_any(target: usize, source: usize, size: usize) -> Answer {
    copy((Side::Any, target), (Side::Any, source), size, None)
}

fn host_to_device(target: usize, source: usize, size: usize) -> Answer {
    copy((Side::Device, target), (Side::Any, source), size, None)
}

fn device_to_host(target: usize, source: usize, size: usize) -> Answer {
    copy((Side::Any, target), (Side::Device, source), size, None)
}

fn device_to_device(target: usize, source: usize, size: usize) -> Answer {
    copy((Side::Device, target), (Side::Device, source), size, None)
}

fn host_to_device_async(target: usize, source: usize, size: usize, stream: usize) -> Answer {
    copy((Side::Device, target), (Side::Any, source), size, Some(stream))
}

fn device_to_host_async(target: usize, source: usize, size: usize, stream: usize) -> Answer {
    copy((Side::Any, target), (Side::Device, source), size, Some(stream))
}

fn device_to_device_async(target: usize, source: usize, size: usize, stream: usize) -> Answer {
    copy((Side::Device, target), (Side::Device, source), size, Some(stream))
}

fn set(target: usize, value: u8, size: usize) -> Answer {
    Request { target: (Side::Device, target), source: RequestedSource::Value(value), size, stream: None }.submit()
}

fn set_async(target: usize, value: u8, size: usize, stream: usize) -> Answer {
    Request { target: (Side::Device, target), source: RequestedSource::Value(value), size, stream: Some(stream) }
        .submit()
}
