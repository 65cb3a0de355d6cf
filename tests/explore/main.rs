//! Tries pairs of operations in two real processes, in every order of their system calls.
//!
//! Each process runs one system call at a time, and the scheduler decides which one goes next: `machine`. What
//! processes do is a table: `operations` and `states`. `pair` runs two operations once; `workers` share the pairs among
//! the processors. docs/decisions/exploring.md says how it works, and what it cannot see.
//!
//! `scripts/explore` runs it. The program is no test of `cargo test`, because it needs a private /dev/shm.

#![allow(unreachable_pub)] // a program has no public interface
// Registers and arguments of system calls have no signs.
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

#[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu", ndshm_steps))]
mod explorer;
#[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu", ndshm_steps))]
mod machine;
#[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu", ndshm_steps))]
mod operations;
#[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu", ndshm_steps))]
mod pair;
#[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu", ndshm_steps))]
mod states;
#[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu", ndshm_steps))]
mod workers;
#[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu", ndshm_steps))]
mod world;

use std::process::ExitCode;

#[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu", ndshm_steps))]
fn main() -> ExitCode {
    explorer::main()
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu", ndshm_steps)))]
fn main() -> ExitCode {
    println!("NOT RUN: interleavings are tried on Linux on x86-64, in debug builds");
    ExitCode::SUCCESS
}
