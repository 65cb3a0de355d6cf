//! Which array has the memory at an address: for libraries that keep an address and forget the array, as torch does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use pyo3::prelude::*;

use crate::attachment::Attachment;
use crate::forks::forks;
use crate::memory::{Memory, Shape};

/// Memory with an address that was given to other libraries.
struct Noted {
    memory: Weak<dyn Memory>,
    shape: Shape,
    /// How often the process was a forked child when the address was given.
    forks: u32,
}

/// By the address of the first element.
struct Addresses {
    noted: BTreeMap<usize, Noted>,
    /// The number at which freed memory is looked for.
    most: usize,
}

/// The least number at which freed memory is looked for.
const MANY: usize = 1024;

/// Locked for moments, by threads that hold the interpreter's lock and keep it meanwhile. So no thread has it when a
/// process forks.
static ADDRESSES: Mutex<Addresses> = Mutex::new(Addresses { noted: BTreeMap::new(), most: MANY });

fn addresses() -> MutexGuard<'static, Addresses> {
    ADDRESSES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes that other libraries know the address of an array's memory. A private copy is not noted.
pub(crate) fn note(memory: &Arc<dyn Memory>, shape: &Shape) {
    if memory.is_readonly() || shape.bytes() == 0 {
        return;
    }
    let mut addresses = addresses();
    let address = memory.pointer() as usize;
    if addresses
        .noted
        .get(&address)
        .is_some_and(|noted| noted.memory.as_ptr().cast::<u8>() == Arc::as_ptr(memory).cast())
    {
        return;
    }
    // What was noted there before is gone, since this memory is mapped there now.
    let last = address.saturating_add(shape.bytes() - 1);
    let gone: Vec<usize> = addresses.noted.range(address..=last).map(|(start, _)| *start).collect();
    for start in gone {
        addresses.noted.remove(&start);
    }
    if addresses.noted.len() >= addresses.most {
        addresses.noted.retain(|_, noted| noted.memory.strong_count() > 0);
        // The limit grows with what is left, so that the cost for each address is constant.
        addresses.most = MANY.max(2 * addresses.noted.len());
    }
    addresses.noted.insert(address, Noted { memory: Arc::downgrade(memory), shape: shape.clone(), forks: forks() });
}

/// Forgets the address of memory that is to be that of another array. For callers without the interpreter's lock.
pub(crate) fn forget(memory: &Arc<dyn Memory>) {
    Python::attach(|_| {
        let forgotten = addresses().noted.remove(&(memory.pointer() as usize));
        drop(forgotten); // it owns nothing
    });
}

/// Returns the array that has these bytes, and where they begin in it. `None` if no array has them all, or if it is
/// read-only.
#[pyfunction]
pub(crate) fn array_at(address: usize, length: usize) -> Option<(Attachment, usize)> {
    // Memory that is gone may stand between the address and the beginning of the memory that has it.
    let is_there = |noted: &Noted| noted.memory.strong_count() > 0;
    let addresses = addresses();
    let found =
        addresses.noted.range(..=address).rev().find(|(_, noted)| is_there(noted)).and_then(|(start, noted)| {
            let memory = noted.memory.upgrade()?;
            let offset = address - start;
            let is_inside = offset.checked_add(length).is_some_and(|end| end <= noted.shape.bytes());
            is_inside.then(|| (memory, noted.shape.clone(), noted.forks, offset))
        });
    drop(addresses); // before the memory is: dropping the last reference frees the array
    let (memory, shape, forks, offset) = found?;
    let is_frozen = memory.counted().is_some_and(crate::memory::Counted::is_frozen);
    (!is_frozen).then(|| (Attachment::again(memory, shape, forks), offset))
}
