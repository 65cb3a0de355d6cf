//! The tests of the crate, with real processes, in one program. They run against the test double of the driver (`cuda/fake`), or, with
//! `NDSHM_CUDA_DRIVER=real`, against the driver of this machine.
//!
//! With `NDSHM_CUDA_ROLE` set, the program runs no tests: it is a child that plays that role, and its standard input is a channel to the
//! test. What a driver or a sandboxed kernel refuses is printed as REFUSED; with the double, that is a failure.

#![allow(unreachable_pub)] // a program has no public interface
#![allow(unsafe_code)]

mod support;
mod whole;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use support::Role;

fn roles() -> Vec<(&'static str, Role)> {
    [whole::ROLES].concat()
}

fn main() -> ExitCode {
    support::find_driver();
    if let Some(code) = support::play(&roles()) {
        return code;
    }
    let arguments = Arguments::from_args();
    let trials: Vec<Trial> = [whole::trials()].into_iter().flatten().collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
