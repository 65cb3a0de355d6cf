//! The tables in an arena's file. Each change is one atomic step on one word.
//!
//! A process may be killed between any two steps, so no step relies on another one that has to follow. Nothing here
//! maps memory or knows of processes: `header.rs` lays these types over the mapped bytes.

pub(super) mod entries;
pub(super) mod event;
pub(super) mod geometry;
pub(super) mod ring;
pub(super) mod senders;
pub(super) mod sizes;
pub(super) mod span;
