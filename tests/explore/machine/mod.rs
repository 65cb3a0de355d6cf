//! The scheduler: real processes, one system call at a time. It knows nothing of arrays.

pub mod call;
pub mod run;
pub mod schedule;
pub mod search;
pub mod tracee;
