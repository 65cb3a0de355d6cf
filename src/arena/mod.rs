//! Arenas: many arrays in one segment and one mapping, counted by those who hold them.
//!
//! Floor 5, beside renderbuffers. Whatever several processes change is one word at a time, or a bit that may be set or cleared
//! again: nobody's death leaves a state between two, and there is no journal.

mod estate;
mod event;
mod geometry;
mod ground;
mod members;
mod ring;
mod slots;
mod spans;

#[allow(unused_imports)]
pub use self::estate::Collected;
