//! What a process does: each a short program on one object.

mod arenas;
mod buffers;
pub mod caches;
mod channels;
mod counted;
mod names;
mod plain;
mod pools;
pub mod streams;

use std::fmt::{Debug, Display};
use std::fs::File;

use ndarray_shm::ndarray::Ix1;
use ndarray_shm::{Result, SharedArray};

use crate::states::Has;
use crate::world::{self, World, alter, hold, kind, let_go, report, see};

/// The name that all processes use.
pub const NAME: &str = "x";

/// Bytes of an array.
pub const LENGTH: usize = 100;

/// What a process must have for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Nothing,
    Plain,
    Reader,
    Counted,
    Handle,
    Pool,
    Pooled,
    Draft,
    Buffer,
    /// A buffer with memory of a pool.
    PooledBuffer,
    Arena,
    Channel,
    /// A stream that it writes to.
    Writer,
    /// A stream that it reads.
    Stream,
    /// A frame that it holds.
    Frame,
    /// A stream that it reads with a cursor.
    Cursor,
    /// A cache of chunks.
    Cache,
}

/// An operation of one process.
#[derive(Debug)]
pub struct Operation {
    pub name: &'static str,
    pub needs: Kind,
    pub perform: fn(&World, &mut Has),
    /// Results that it may report although no order of whole calls gives them: another process was in the middle of a
    /// change, and the documentation of the call says so.
    pub allows: &'static [&'static str],
    /// Whether the name of a counted array may stay until it is reclaimed, as after a kill.
    pub leaves_names: bool,
}

const fn operation(name: &'static str, needs: Kind, perform: fn(&World, &mut Has)) -> Operation {
    Operation { name, needs, perform, allows: &[], leaves_names: false }
}

impl Operation {
    const fn allows(mut self, results: &'static [&'static str]) -> Self {
        self.allows = results;
        self
    }

    const fn leaves_names(mut self) -> Self {
        self.leaves_names = true;
        self
    }
}

/// Returns all operations.
pub fn all() -> Vec<&'static Operation> {
    [
        names::ALL,
        plain::ALL,
        counted::ALL,
        pools::ALL,
        buffers::ALL,
        arenas::ALL,
        channels::ALL,
        streams::ALL,
        caches::ALL,
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// What an operation or a state is about. Each has names apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    Arrays,
    Streams,
    Caches,
}

impl Operation {
    /// Returns what it is about.
    pub fn subject(&self) -> Subject {
        let is_in = |all: &[Self]| all.iter().any(|known| known.name == self.name);
        match () {
            () if is_in(streams::ALL) => Subject::Streams,
            () if is_in(caches::ALL) => Subject::Caches,
            () => Subject::Arrays,
        }
    }
}

/// The operation that may remove files of both.
pub const ON_BOTH: &str = "gc";

/// Reports the result of a call, and returns its value.
fn tell<T>(what: &str, result: Result<T>) -> Option<T> {
    match result {
        Ok(value) => {
            report(format!("{what}: ok"));
            Some(value)
        }
        Err(error) => {
            report(format!("{what}: {}", kind(&error)));
            None
        }
    }
}

/// Reports the value that a call returned.
fn tell_value<T: Debug>(what: &str, result: Result<T>) {
    match result {
        Ok(value) => report(format!("{what}: {value:?}")),
        Err(error) => report(format!("{what}: {}", kind(&error))),
    }
}

/// Says what elements are: all the same, or torn.
fn contents<'a>(elements: impl IntoIterator<Item = &'a u8>) -> impl Display {
    let mut elements = elements.into_iter();
    let first = *elements.next().expect("an element");
    if elements.any(|element| *element != first) {
        return "torn".to_string();
    }
    if first == 0 { "0".into() } else { char::from(first).to_string() }
}

/// Reads under a guard.
fn read(array: &SharedArray<u8, Ix1>) {
    match array.read() {
        Ok(guard) => {
            hold(guard.as_ptr(), false);
            see();
            let found = contents(&*guard).to_string();
            see();
            let again = contents(&*guard).to_string();
            report(format!("read: {found}{}", if again == found { "" } else { " and another value" }));
            let_go();
            drop(guard);
        }
        Err(error) => report(format!("read: {}", kind(&error))),
    }
}

/// Writes this process's letter under a guard.
fn write(array: &SharedArray<u8, Ix1>, world: &World) {
    match array.write() {
        Ok(mut guard) => {
            hold(guard.as_ptr(), true);
            alter();
            guard.iter_mut().take(LENGTH / 2).for_each(|element| *element = world.letter);
            alter();
            guard.fill(world.letter);
            report("write: ok");
            let_go();
            drop(guard);
        }
        Err(error) => report(format!("write: {}", kind(&error))),
    }
}

/// Lends a descriptor.
#[allow(unsafe_code)]
fn lend(array: &SharedArray<u8, Ix1>) -> Option<File> {
    // SAFETY: nothing is mapped by it.
    tell("lend", unsafe { array.leased_descriptor() })
}

/// Between two calls of one operation.
fn then() {
    world::between();
}
