//! The tables that lie in an arena's file, as words that are each changed by one atomic step.
//!
//! Nothing here maps anything or knows a process: `header.rs` lays these types over the mapped bytes. A process may be killed
//! between any two steps, and no step depends on another one that has to follow.

pub(super) mod event;
pub(super) mod geometry;
pub(super) mod ring;
pub(super) mod senders;
pub(super) mod sizes;
pub(super) mod slots;
pub(super) mod span;
