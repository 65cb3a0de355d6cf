//! What every function of the driver goes through: its call is counted, may fail on a test's request, and is refused
//! before `cuInit` and in a forked child.
//!
//! - `FAKE_CUDA_REFUSE=call,call`: these calls answer `CUDA_ERROR_NOT_SUPPORTED`, as in a sandbox.
//! - `FAKE_CUDA_FAIL=call:n:code`: the n-th call (from 1) of that function in this process answers `code` and has no
//!   effect. Several are separated by commas.
//!
//! Arguments that are addresses of the caller's memory are [`Out`], [`In`] and [`Text`].
#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use cudarc::driver::sys::CUresult;
use cudarc::driver::sys::CUresult::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_SUPPORTED,
    CUDA_ERROR_UNKNOWN,
};

use crate::{captures, machine, streams, watch};

/// What the body of a function answers.
pub(crate) type Answer<T = ()> = Result<T, CUresult>;

/// A function of the driver, as tests know it.
pub(crate) struct Call {
    pub(crate) name: &'static str,
    count: AtomicU64,
    refused: AtomicBool,
    /// The call that fails, counted from 1, and its answer.
    failure: Mutex<Option<(u64, c_uint)>>,
}

impl Call {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, count: AtomicU64::new(0), refused: AtomicBool::new(false), failure: Mutex::new(None) }
    }

    /// Number of calls in this process.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Lets the `n`-th call from now fail; 0 lets none fail.
    pub(crate) fn fail(&self, n: u64, code: c_uint) {
        *locked(&self.failure) = (n != 0).then(|| (self.count() + n, code));
    }

    /// The answer that a test wants for the call of this number.
    fn injected(&self, number: u64) -> Option<c_uint> {
        let mut failure = locked(&self.failure);
        if let Some((_, code)) = failure.take_if(|(at, _)| *at == number) {
            return Some(code);
        }
        self.refused.load(Ordering::SeqCst).then_some(CUDA_ERROR_NOT_SUPPORTED as c_uint)
    }
}

/// When a function may be called.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Always, as the names of errors.
    Always,
    /// Before `cuInit` too, but not in a forked child.
    Unforked,
    /// After `cuInit`.
    Ready,
}

/// Counts a call and answers it.
pub(crate) fn answer(call: &Call, stage: Stage, body: impl FnOnce() -> Answer) -> c_uint {
    machine::must_not_have_ended(call.name);
    let number = call.count.fetch_add(1, Ordering::SeqCst) + 1;
    // Before any lock, because another thread of the parent may have held it.
    let forked = machine::forked();
    if forked && stage != Stage::Always {
        return CUDA_ERROR_NOT_INITIALIZED as c_uint;
    }
    let answered = catch_unwind(AssertUnwindSafe(|| {
        read_environment();
        if streams::in_host_function() && stage != Stage::Always {
            watch::violation(format!("{} was called in a host function of a stream", call.name));
            return CUDA_ERROR_NOT_PERMITTED as c_uint;
        }
        if !forked && let Some(code) = call.injected(number) {
            return code;
        }
        if stage == Stage::Ready && machine::machine().is_err() {
            return CUDA_ERROR_NOT_INITIALIZED as c_uint;
        }
        let allowed = if stage == Stage::Ready { captures::allow(call.name) } else { Ok(()) };
        match allowed.and_then(|()| body()) {
            Ok(()) => CUresult::CUDA_SUCCESS as c_uint,
            Err(code) => code as c_uint,
        }
    }));
    answered.unwrap_or_else(|panic| {
        watch::violation(format!("{} panicked: {}", call.name, panic_text(&*panic)));
        CUDA_ERROR_UNKNOWN as c_uint
    })
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// Finds a function by its name.
pub(crate) fn find(name: &str) -> Option<&'static Call> {
    crate::all_calls().find(|call| call.name == name)
}

/// Plans what the environment asks for, at the first call.
fn read_environment() {
    static READ: Once = Once::new();
    READ.call_once(|| {
        let list = |name: &str| std::env::var(name).unwrap_or_default();
        for name in list("FAKE_CUDA_REFUSE").split(',').filter(|name| !name.is_empty()) {
            match find(name.trim()) {
                Some(call) => call.refused.store(true, Ordering::SeqCst),
                None => watch::violation(format!("FAKE_CUDA_REFUSE names no function: {name}")),
            }
        }
        for text in list("FAKE_CUDA_FAIL").split(',').filter(|text| !text.is_empty()) {
            let mut parts = text.trim().split(':');
            let call = parts.next().and_then(find);
            let (n, code) = (parts.next().map(str::parse), parts.next().map(str::parse));
            match (call, n, code) {
                // The first call has been counted already.
                (Some(call), Some(Ok(n)), Some(Ok(code))) => *locked(&call.failure) = Some((n, code)),
                _ => watch::violation(format!("FAKE_CUDA_FAIL is not call:n:code: {text}")),
            }
        }
    });
}

/// Locks, also after a panic in another thread: tables are changed in single steps.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A new handle. Handles are never used again, so a stale one is found.
pub(crate) fn new_handle() -> usize {
    static NEXT: AtomicU64 = AtomicU64::new(0x10_0000);
    // The step makes handles look like addresses of structures.
    usize::try_from(NEXT.fetch_add(16, Ordering::SeqCst)).unwrap_or(usize::MAX)
}

/// Where the caller wants a result: null, or an address where a `T` may be written.
///
/// Only C callers make one, as an argument; the contract of the driver's function is the promise.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Reads what the caller has there, for results that replace a value. Null is an invalid value.
    pub(crate) fn read(self) -> Answer<T>
    where
        T: Plain,
    {
        In(self.0.cast_const()).get()
    }

    /// Writes the result. Null is an invalid value.
    pub(crate) fn give(self, value: T) -> Answer {
        self.give_at(0, value)
    }

    /// Writes element `index` of a list that the caller made long enough.
    pub(crate) fn give_at(self, index: usize, value: T) -> Answer {
        if self.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let target = self.0.wrapping_add(index);
        // SAFETY: the pointer is not null, so the caller promises memory for a `T` there, or for a list with this
        // element.
        unsafe { target.write_unaligned(value) };
        Ok(())
    }
}

/// Where the caller has values for a function: null, or an address of one or several `T`, which are valid in every bit
/// pattern.
///
/// Only C callers make one, as an argument; the contract of the driver's function is the promise.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct In<T>(*const T);

/// Types that are valid in every bit pattern.
pub(crate) trait Plain: Copy {}

impl Plain for c_int {}
impl Plain for c_uint {}
impl Plain for usize {}

impl<T: Plain> In<T> {
    /// Reads the value. Null is an invalid value.
    pub(crate) fn get(self) -> Answer<T> {
        self.get_at(0)
    }

    /// Reads element `index` of a list that is at least so long.
    pub(crate) fn get_at(self, index: usize) -> Answer<T> {
        if self.0.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let source = self.0.wrapping_add(index);
        // SAFETY: the pointer is not null, so the caller promises a `T` there; every bit pattern is one.
        Ok(unsafe { source.read_unaligned() })
    }
}

impl In<usize> {
    /// Element `index` of a list of addresses of results.
    pub(crate) fn target_at<T>(self, index: usize) -> Answer<Out<T>> {
        Ok(Out(std::ptr::with_exposed_provenance_mut(self.get_at(index)?)))
    }
}

/// A name from a test: null, or an address of text that ends with a zero.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) fn get(&self) -> &str {
        if self.0.is_null() {
            return "";
        }
        // SAFETY: the pointer is not null, so the caller promises text that ends with a zero.
        unsafe { CStr::from_ptr(self.0) }.to_str().unwrap_or_default()
    }
}

/// Exports functions of the driver: `name(arguments) Stage => body;`. The room's `CALLS` has them all.
macro_rules! exported {
    ($($name:ident($($argument:ident: $kind:ty),* $(,)?) $stage:ident => $body:ident;)*) => {
        #[allow(non_camel_case_types, clippy::enum_variant_names)]
        enum Index { $($name),* }

        /// This room's functions of the driver.
        pub(crate) static CALLS: &[$crate::calls::Call] = &TABLE;
        static TABLE: [$crate::calls::Call; [$(stringify!($name)),*].len()] =
            [$($crate::calls::Call::new(stringify!($name))),*];

        $(
            // SAFETY: the names are those of the driver's library, which this library stands for.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case)]
            unsafe extern "C" fn $name($($argument: $kind),*) -> std::ffi::c_uint {
                let call = &TABLE[Index::$name as usize];
                $crate::calls::answer(call, $crate::calls::Stage::$stage, || self::$body($($argument),*))
            }
        )*
    };
}
pub(crate) use exported;
