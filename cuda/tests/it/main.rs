//! The tests of the crate, with real processes, in one program. They run against the test double of the driver
//! (`cuda/fake`), or, with `NDSHM_CUDA_DRIVER=real`, against the driver of this machine.
//!
//! With `NDSHM_CUDA_ROLE` set, the program runs no tests: it is a child that plays that role, and its standard input is
//! a channel to the test. What a driver or a sandboxed kernel refuses is printed as REFUSED; with the double, that is a
//! failure.

#![allow(unreachable_pub)] // a program has no public interface
#![allow(unsafe_code)]
// Tests convert small known numbers to elements of every type.
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::float_cmp)]
#![allow(clippy::needless_pass_by_value)] // a role owns its channel: it closes with the role

mod bench;
mod chunk;
mod chunk_kills;
mod endings;
mod export;
mod failures;
mod faults;
mod gpus;
mod kills;
mod lender;
mod lender_refusals;
mod order;
mod page_locked;
mod support;
mod tensors;
mod torch;
mod transfers;
mod whole;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use support::Role;

fn roles() -> Vec<(&'static str, Role)> {
    let suites = [
        bench::ROLES,
        chunk::ROLES,
        chunk_kills::ROLES,
        endings::ROLES,
        export::ROLES,
        failures::ROLES,
        faults::ROLES,
        gpus::ROLES,
        kills::ROLES,
        lender::ROLES,
        lender_refusals::ROLES,
        order::ROLES,
        torch::ROLES,
        whole::ROLES,
    ];
    [suites.concat(), page_locked::roles(), transfers::roles()].concat()
}

fn main() -> ExitCode {
    support::find_driver();
    if let Some(code) = support::play(&roles()) {
        return code;
    }
    if bench::is_wanted() {
        bench::run();
        return ExitCode::SUCCESS;
    }
    let arguments = Arguments::from_args();
    let trials = [
        chunk::trials(),
        chunk_kills::trials(),
        endings::trials(),
        export::trials(),
        failures::trials(),
        faults::trials(),
        gpus::trials(),
        kills::trials(),
        lender::trials(),
        lender_refusals::trials(),
        order::trials(),
        page_locked::trials(),
        torch::trials(),
        transfers::trials(),
        whole::trials(),
    ];
    let trials: Vec<Trial> = trials.into_iter().flatten().collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
