//! Memory of a GPU as other libraries allocate it: by `cudaMalloc`, from pools, and in segments of virtual memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::sys::{
    self, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType, CUmemLocation, CUmemLocationType, CUmemPoolProps,
    CUmemoryPool,
};
use serde::{Deserialize, Serialize};

/// How memory was allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    Segment,
    Pool,
    Malloc,
}

pub const SOURCES: [Source; 3] = [Source::Segment, Source::Pool, Source::Malloc];

/// The smallest piece of a segment.
pub const PIECE: usize = 2 << 20;

const DESCRIPTOR: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
const NO_HANDLES: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;

/// Fails unless a call of the driver succeeds.
macro_rules! must {
    ($call:expr) => {{
        // SAFETY: the arguments are valid for what the driver reads and writes; it knows the handles and addresses.
        let answer = unsafe { $call } as u32;
        assert_eq!(answer, 0, stringify!($call));
    }};
}

/// Makes the first GPU's primary context the one of this thread, as the CUDA runtime does.
pub fn use_gpu() {
    let mut context = std::ptr::null_mut();
    must!(sys::cuInit(0));
    must!(sys::cuCtxGetCurrent(&raw mut context));
    if context.is_null() {
        must!(sys::cuDevicePrimaryCtxRetain(&raw mut context, 0));
        must!(sys::cuCtxSetCurrent(context));
    }
}

fn location() -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 }
}

/// A pool of the first GPU.
#[derive(Debug)]
pub struct Pool(CUmemoryPool);

// SAFETY: the driver's functions on a pool may be called from any thread.
unsafe impl Send for Pool {}
// SAFETY: and by several at once.
unsafe impl Sync for Pool {}

impl Pool {
    /// Creates a pool, of which memory can go to other processes or not.
    pub fn new(is_shareable: bool) -> Arc<Self> {
        use_gpu();
        let properties = CUmemPoolProps {
            allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: if is_shareable { DESCRIPTOR } else { NO_HANDLES },
            location: location(),
            win32SecurityAttributes: std::ptr::null_mut(),
            maxSize: 0,
            usage: 0,
            reserved: [0; 54],
        };
        let mut pool = std::ptr::null_mut();
        must!(sys::cuMemPoolCreate(&raw mut pool, &raw const properties));
        Arc::new(Self(pool))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        must!(sys::cuMemPoolDestroy(self.0));
    }
}

/// An allocation with `u32` elements. Dropping it frees it.
#[derive(Debug)]
pub struct Tensor {
    pub pointer: u64,
    memory: Memory,
    /// Counts the tensors that were freed.
    freed: Arc<AtomicUsize>,
}

#[derive(Debug)]
enum Memory {
    Malloc,
    Pooled { _pool: Arc<Pool> },
    Segment { pieces: usize },
}

impl Tensor {
    /// Allocates memory with these elements.
    pub fn new(source: Source, elements: &[u32], freed: &Arc<AtomicUsize>) -> Self {
        match source {
            Source::Segment => Self::segment(size_of_val(elements).div_ceil(PIECE), true, freed),
            Source::Pool => Self::pooled(&Pool::new(true), size_of_val(elements), freed),
            Source::Malloc => {
                use_gpu();
                let mut pointer = 0;
                must!(sys::cuMemAlloc_v2(&raw mut pointer, size_of_val(elements)));
                Self { pointer, memory: Memory::Malloc, freed: Arc::clone(freed) }
            }
        }
        .with(elements)
    }

    pub fn pooled(pool: &Arc<Pool>, bytes: usize, freed: &Arc<AtomicUsize>) -> Self {
        use_gpu();
        let mut pointer = 0;
        must!(sys::cuMemAllocFromPoolAsync(&raw mut pointer, bytes, pool.0, std::ptr::null_mut()));
        must!(sys::cuStreamSynchronize(std::ptr::null_mut()));
        Self { pointer, memory: Memory::Pooled { _pool: Arc::clone(pool) }, freed: Arc::clone(freed) }
    }

    /// Maps pieces of physical memory one after the other, as torch's expandable segments do.
    pub fn segment(pieces: usize, is_shareable: bool, freed: &Arc<AtomicUsize>) -> Self {
        use_gpu();
        let mut pointer = 0;
        must!(sys::cuMemAddressReserve(&raw mut pointer, pieces * PIECE, 0, 0, 0));
        let properties = CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: if is_shareable { DESCRIPTOR } else { NO_HANDLES },
            location: location(),
            win32HandleMetaData: std::ptr::null_mut(),
            allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
                compressionType: 0,
                gpuDirectRDMACapable: 0,
                usage: 0,
                reserved: [0; 4],
            },
        };
        for piece in 0..pieces {
            let mut handle = 0;
            must!(sys::cuMemCreate(&raw mut handle, PIECE, &raw const properties, 0));
            must!(sys::cuMemMap(pointer + (piece * PIECE) as u64, PIECE, 0, handle, 0));
            must!(sys::cuMemRelease(handle));
        }
        let access =
            CUmemAccessDesc { location: location(), flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
        must!(sys::cuMemSetAccess(pointer, pieces * PIECE, &raw const access, 1));
        Self { pointer, memory: Memory::Segment { pieces }, freed: Arc::clone(freed) }
    }

    /// Writes elements to the start.
    pub fn with(self, elements: &[u32]) -> Self {
        must!(sys::cuMemcpyHtoD_v2(self.pointer, elements.as_ptr().cast(), size_of_val(elements)));
        // A driver returns as soon as it has read the elements: its GPU may write them later.
        must!(sys::cuStreamSynchronize(std::ptr::null_mut()));
        self
    }

    /// Enqueues a write of all bytes on a stream, as a kernel would.
    pub fn fill_on(pointer: u64, bytes: usize, value: u8, stream: &ndarray_shm_cuda::Stream) {
        must!(sys::cuMemsetD8Async(pointer, value, bytes, stream.as_raw().cast()));
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        use_gpu();
        if let Memory::Segment { pieces } = self.memory {
            for piece in 0..pieces {
                must!(sys::cuMemUnmap(self.pointer + (piece * PIECE) as u64, PIECE));
            }
            must!(sys::cuMemAddressFree(self.pointer, pieces * PIECE));
        } else {
            must!(sys::cuMemFree_v2(self.pointer));
        }
        self.freed.fetch_add(1, Ordering::SeqCst);
    }
}
