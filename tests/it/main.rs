//! One test program: every promise, on every backend, with real processes.
//!
//! Started with `NDSHM_TEST_ROLE` set, the program is not a test run but a child that plays that role in a test.
//!
//! `NDSHM_TEST_DIR` says in which directory the emulated backend lives (a fresh directory inside it), so that the same
//! tests run on ext4, tmpfs and overlayfs.

#![allow(unreachable_pub)] // a program has no public interface
// Small known numbers become elements of every type here.
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::float_cmp)]

mod conformance;
mod crash;
mod errors;
mod guards;
mod interop;
mod limits;
mod multiprocess;
mod render;
mod support;
mod tidy;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use support::Place;
use support::child::Role;

/// What children can do, by the names they are started with.
const ROLES: &[&[(&str, Role)]] = &[
    conformance::ROLES,
    crash::ROLES,
    errors::ROLES,
    guards::ROLES,
    interop::ROLES,
    limits::ROLES,
    multiprocess::ROLES,
];

fn main() -> ExitCode {
    if let Some(code) = support::child::play(ROLES) {
        return code;
    }
    let arguments = Arguments::from_args();
    let places = [Place::shm(), Place::emulated(), Place::hidden()];
    let mut trials: Vec<Trial> = tidy::trials();
    for place in &places {
        trials.extend(conformance::trials(place));
        trials.extend(crash::trials(place));
        trials.extend(errors::trials(place));
        trials.extend(guards::trials(place));
        trials.extend(render::trials(place));
    }
    // What drafts are made of changes nothing in these.
    for place in &places[..2] {
        trials.extend(interop::trials(place));
        trials.extend(limits::trials(place));
        trials.extend(multiprocess::trials(place));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    drop(places);
    conclusion.exit_code()
}
