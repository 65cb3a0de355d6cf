//! The tests of the library's contract, on every backend and with real processes, in one program.
//!
//! | suite | subject | where |
//! |---|---|---|
//! | `conformance` | the contract | every backend, every platform |
//! | `sharing` | counted arrays sent between processes, over channels | every backend, Linux |
//! | `linux` | behaviour that only Linux can show: descriptors, permission bits, limits | every backend |
//! | `interop` | numpy, CloudVolume, Python with our locks | every backend |
//! | `processes` | children of `process::spawn`, and how they end | every platform |
//! | `selection` | which backend a program gets | every platform |
//! | `steps` | other processes while one process is stopped between two system calls | Linux, in debug builds |
//! | `manager` | the process that waits for deaths | Linux |
//! | `tidy` | the architecture's rules, checked in the source; the tables of `scripts/test-platforms` | where the source is |
//!
//! Tests are named `suite::backend::topic::test`. A topic is a file of a suite; a large topic has its parts in a
//! folder. With `NDSHM_TEST_ROLE` set, the program runs no tests: it is a child that plays that role in a test.
//! `NDSHM_TEST_PROGRAM` names another build of the program for the children, so that tests can combine processes of 64
//! and of 32 bits.
//!
//! The emulated backend's files are in a fresh temporary directory, so that `TMPDIR` chooses the file system. With
//! `EMULATE_SHM=1`, real shared memory is not tested. Not every topic is tested in every place: `topics` has the table.

#![allow(unreachable_pub)] // a program has no public interface
// Tests convert small known numbers to elements of every type.
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_precision_loss)]
#![allow(clippy::cast_sign_loss, clippy::float_cmp)]

mod conformance;
#[cfg(target_os = "linux")]
mod interop;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
mod manager;
#[cfg(target_os = "linux")]
mod pages;
#[cfg(target_os = "linux")]
mod platform_tables;
mod processes;
mod selection;
#[cfg(all(target_os = "linux", feature = "channel"))]
mod sharing;
#[cfg(all(target_os = "linux", ndshm_steps))]
mod steps;
mod support;
#[cfg(target_os = "linux")]
mod tidy;
mod topics;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use support::Place;
use support::child::Role;
use topics::Run;

/// Returns the roles of children, by name.
fn roles() -> Vec<(&'static str, Role)> {
    let mut roles = conformance::ROLES.concat();
    roles.extend(selection::ROLES);
    roles.extend(processes::ROLES);
    #[cfg(all(target_os = "linux", feature = "channel"))]
    roles.extend(sharing::ROLES.concat());
    #[cfg(target_os = "linux")]
    {
        roles.extend(linux::ROLES.concat());
        roles.extend(interop::ROLES.concat());
        roles.extend(manager::ROLES);
        #[cfg(ndshm_steps)]
        roles.extend(steps::ROLES.concat());
    }
    roles
}

fn main() -> ExitCode {
    #[cfg(all(target_os = "linux", ndshm_steps))]
    support::held_fork::prepare_held_fork(); // before the library registers its own
    #[cfg(unix)]
    support::child::hear_the_terminal();
    ndarray_shm::process::init(processes::ENTRIES);
    // No test uses the user's manager. The tests of managers choose their own.
    ndarray_shm::manager::set_program(ndarray_shm::manager::Program::Off);
    if let Some(code) = support::child::play(&roles()) {
        return code;
    }
    let mut arguments = Arguments::from_args();
    if cfg!(unix) && arguments.test_threads.is_none() {
        // Most tests spend most of their time waiting for children.
        arguments.test_threads = std::thread::available_parallelism().ok().map(|processors| 4 * processors.get());
    }
    let run = Run::asked_for();
    let places = Place::all(&run);
    let mut trials: Vec<Trial> = places.iter().flat_map(conformance::trials).collect();
    trials.extend(selection::trials());
    trials.extend(processes::trials());
    #[cfg(all(target_os = "linux", feature = "channel"))]
    trials.extend(places.iter().flat_map(sharing::trials));
    #[cfg(target_os = "linux")]
    {
        trials.extend(places.iter().flat_map(linux::trials));
        // Peers do not notice the kind of draft, so that the place with hidden drafts adds nothing here.
        trials.extend(places.iter().filter(|place| place.name != "hidden").flat_map(interop::trials));
        trials.extend(manager::trials());
        #[cfg(ndshm_steps)]
        if cfg!(debug_assertions) {
            trials.extend(places.iter().flat_map(steps::trials));
        }
        trials.extend(tidy::trials());
        trials.extend(pages::trials());
        trials.extend(topics::trials());
        trials.extend(platform_tables::trials());
        trials.extend(tidy::differences(&trials));
    }
    trials.retain(|trial| run.has(trial.name(), places[0].name));
    let conclusion = libtest_mimic::run(&arguments, trials);
    for place in &places {
        let left = place.left();
        assert!(left.is_empty(), "left behind in {}: {left:?}", place.directory().display());
    }
    drop(places);
    conclusion.exit_code()
}
