//! Functions for tests: what the program called, what it has, and what it did wrong.
//!
//! They work in every process, also before `cuInit`; in a forked child only [`fakeCudaMemoryInUse`] and
//! [`fakeCudaCalls`] are reliable.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::{Mutex, OnceLock};

use crate::calls::{Text, find, locked};
use crate::regions::Kind;
use crate::{contexts, events, host, memory, physical, pools, regions, streams};

/// What was done that a driver answers with undefined behaviour. Texts stay where they are, for the caller of C
/// functions.
static VIOLATIONS: Mutex<Vec<CString>> = Mutex::new(Vec::new());

/// Counts a violation.
pub(crate) fn violation(text: String) {
    let text = CString::new(text).unwrap_or_default();
    locked(&VIOLATIONS).push(text);
}

/// How often a function of the driver was called in this process. The largest number if there is no such function.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn fakeCudaCalls(call: Text) -> u64 {
    find(call.get()).map_or(u64::MAX, crate::calls::Call::count)
}

/// The names of all functions of the driver that this library has, separated by commas.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn fakeCudaCallNames() -> *const c_char {
    static NAMES: OnceLock<CString> = OnceLock::new();
    let names = || crate::all_calls().map(|call| call.name).collect::<Vec<_>>().join(",");
    NAMES.get_or_init(|| CString::new(names()).unwrap_or_default()).as_ptr()
}

/// Lets the `n`-th call of a function from now answer `code` and have no effect; `n` = 0 lets none fail.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn fakeCudaFail(call: Text, n: u64, code: c_int) {
    match find(call.get()) {
        Some(call) => call.fail(n, code.unsigned_abs()),
        None => violation(format!("fakeCudaFail of the unknown function {}", call.get())),
    }
}

/// Number of live objects of a kind in this process: "physical", "reservation", "mapping", "event", "stream",
/// "context", "registered", "allocation", "opened", "pool", "pooled" (memory of pools) or "host". The largest number if
/// there is no such kind.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn fakeCudaLive(kind: Text) -> u64 {
    let count = match kind.get() {
        "physical" => memory::live_handles(),
        "reservation" => memory::live_reservations(),
        "mapping" => regions::count(|kind| kind == Kind::Mapping),
        "event" => events::live(),
        "stream" => streams::live(),
        "context" => contexts::live(),
        "registered" => host::live(true),
        "host" => host::live(false),
        "allocation" => regions::count(|kind| matches!(kind, Kind::Allocation(_))),
        "opened" => regions::count(|kind| matches!(kind, Kind::Opened(_))),
        "pooled" => regions::count(|kind| matches!(kind, Kind::Pooled(_) | Kind::Imported(_))),
        "pool" => pools::live(),
        _ => return u64::MAX,
    };
    count as u64
}

/// Number of violations in this process so far, among them registered host memory that is no longer what it was.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn fakeCudaViolations() -> u64 {
    host::check_registered();
    locked(&VIOLATIONS).len() as u64
}

/// What the latest violation was; empty if there was none.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn fakeCudaLastViolation() -> *const c_char {
    const NONE: &CStr = c"";
    locked(&VIOLATIONS).last().map_or(NONE.as_ptr(), |text| text.as_ptr())
}

/// Bytes of all GPUs of the tag that any process has open or mapped.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn fakeCudaMemoryInUse() -> u64 {
    physical::in_use(None)
}
