//! Our reading and writing compared with CloudVolume's, tensorstore's and zarr-python's, element by element.
//!
//! Each test is one volume: an oracle writes it and we read it, or we write it and oracles read it. What was found equal becomes
//! the table in `docs/formats.md`; a run of all tests fails if the page says something else. Needs Python with the oracles,
//! `NDSHM_TEST_PYTHON`; without it nothing is tested, and that is said.

mod matrix;
mod python;
mod reading;
mod table;
mod writing;

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};

use self::matrix::{Kept, rows, written};
use self::python::{PYTHON, World};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let has_python = std::env::var_os(PYTHON).is_some();
    if !has_python {
        eprintln!(
            "NOT RUN: {PYTHON} is not set, so nothing was compared with other programs. scripts/test makes a Python \
             environment with them (tests/it/python/requirements.txt) and sets it."
        );
    }
    let world = Arc::new(World::new());
    let trials: Vec<Trial> = trials(&world).into_iter().map(|trial| trial.with_ignored_flag(!has_python)).collect();
    let is_whole = !arguments.list && has_python;
    let conclusion = libtest_mimic::run(&arguments, trials);
    let is_whole = is_whole && conclusion.num_filtered_out == 0 && conclusion.num_ignored == 0;
    if is_whole && !conclusion.has_failed() {
        if let Err(stale) = table::check(&world.outcomes()) {
            eprintln!("{stale}");
            return ExitCode::FAILURE;
        }
    }
    conclusion.exit_code()
}

fn trials(world: &Arc<World>) -> Vec<Trial> {
    let mut trials = Vec::new();
    let mut add = |name: String, test: Box<dyn Fn(&World) -> Result<(), String> + Send>| {
        let world = Arc::clone(world);
        trials.push(Trial::test(name.replace(' ', "_"), move || test(&world).map_err(Failed::from)));
    };
    for row in rows() {
        for (kept, number) in cells(row.dtypes.len()) {
            let (oracle, format) = (row.oracle.name(), row.format.name());
            let name = format!("read::{oracle}::{format}::{}::{}::{kept}", row.encoding, row.dtypes[number]);
            add(format!("{name}::{number}"), Box::new(move |world| reading::check(world, &row, number, kept)));
        }
    }
    for written in written() {
        for number in 0..written.dtypes.len() {
            let name = format!(
                "write::{}::{}::{}::{}",
                written.format.name(),
                written.encoding,
                written.dtypes[number],
                Kept::Files
            );
            let test = move |world: &World| writing::check(world, &written, number, Kept::Files);
            add(format!("{name}::{number}::{}", written.readers.len()), Box::new(test));
        }
    }
    trials
}

/// Which volumes of a row there are, and where.
fn cells(dtypes: usize) -> Vec<(Kept, usize)> {
    (0..dtypes).map(|number| (Kept::Files, number)).collect()
}
