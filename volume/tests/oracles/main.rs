//! Compares this crate with CloudVolume, tensorstore and zarr-python, element by element.
//!
//! Each test is one volume: an oracle writes it and this crate reads it, or this crate writes it and oracles read it.
//! The table in `docs/formats.md` lists what was found equal; a run of all tests fails if the page differs from the
//! run. The tests need a Python that has the oracles, `NDSHM_TEST_PYTHON`; without it nothing is tested, and a message
//! says so.

mod damage;
mod matrix;
mod python;
mod reading;
mod refused;
#[path = "../servers/mod.rs"]
mod servers;
mod table;
mod writing;

use std::process::{Command, ExitCode};
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};

use self::matrix::{Kept, rows, written};
use self::python::{PYTHON, World};
use self::servers::S3Server;

/// Marks the process that runs the tests: its environment leads to the S3 server.
const INNER: &str = "VOLUME_TEST_ORACLES";

/// One comparison; its error says what differs.
type Test = Box<dyn Fn(&World) -> Result<(), String> + Send>;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let has_python = std::env::var_os(PYTHON).is_some();
    if !has_python {
        eprintln!(
            "NOT RUN: {PYTHON} is not set, so nothing was compared with other programs. scripts/test makes a Python \
             environment with them (tests/it/python/requirements.txt) and sets it."
        );
    }
    if has_python && !arguments.list && std::env::var_os(INNER).is_none() {
        return beside_a_server();
    }
    let world = Arc::new(World::new());
    let trials: Vec<Trial> = trials(&world).into_iter().map(|trial| trial.with_ignored_flag(!has_python)).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    let is_whole = !arguments.list && conclusion.num_filtered_out == 0 && conclusion.num_ignored == 0;
    if is_whole
        && !conclusion.has_failed()
        && let Err(stale) = table::check(&world.outcomes())
    {
        eprintln!("{stale}");
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}

/// Runs this program again with an environment that leads to an S3 server of the tests. Stores read the environment,
/// and a running process must not change its own.
fn beside_a_server() -> ExitCode {
    let server = S3Server::start();
    let program = std::env::current_exe().expect("this program's path");
    let status = Command::new(program)
        .args(std::env::args_os().skip(1))
        .envs(S3Server::environment(&server.endpoint()))
        .env(INNER, "1")
        .status()
        .expect("this program starts");
    match status.code() {
        Some(0) => ExitCode::SUCCESS,
        Some(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        None => {
            eprintln!("the tests ended by {status}");
            ExitCode::FAILURE
        }
    }
}

fn trials(world: &Arc<World>) -> Vec<Trial> {
    let mut trials = Vec::new();
    let mut add = |name: String, test: Test| {
        let world = Arc::clone(world);
        trials.push(Trial::test(name.replace(' ', "_"), move || test(&world).map_err(Failed::from)));
    };
    for (turn, row) in rows().into_iter().enumerate() {
        let (oracle, format) = (row.oracle.name(), row.format.name());
        for (kept, number) in cells(row.dtypes.len(), turn) {
            let name = format!("read::{oracle}::{format}::{}::{kept}::{}::{number}", row.encoding, row.dtypes[number]);
            add(name, Box::new(move |world| reading::check(world, &row, number, kept)));
        }
        if row.is_rewritten() {
            let (number, kept) = (turn % row.dtypes.len(), [Kept::Files, Kept::S3][turn % 2]);
            let dtype = row.dtypes[number];
            let name = format!("rewrite::{oracle}::{format}::{}::{kept}::{dtype}::{number}", row.encoding);
            add(name, Box::new(move |world| writing::check_theirs(world, &row, number, kept)));
        }
    }
    for (turn, written) in written().into_iter().enumerate() {
        for (kept, number) in cells(written.dtypes.len(), turn).into_iter().filter(|(kept, _)| *kept != Kept::Http) {
            let (format, dtype, readers) = (written.format.name(), written.dtypes[number], written.readers.len());
            let name = format!("write::{format}::{}::{kept}::{dtype}::{number}::{readers}", written.encoding);
            add(name, Box::new(move |world| writing::check(world, &written, number, kept)));
        }
    }
    for damaged in damage::all() {
        let (format, dtype, channels) = (damaged.format.name(), damaged.dtype, damaged.channels);
        let name = format!("damage::{format}::{}::{dtype}::{channels}", damaged.encoding);
        add(name, Box::new(move |world| damage::check(world, damaged)));
    }
    for refused in refused::all() {
        let name = format!("refuse::{}::{}::{}", refused.format.name(), refused.what, refused.name);
        add(name, Box::new(move |world| refused::check(world, refused)));
    }
    trials
}

/// Returns a row's volumes and their stores: every element type in files, and one type in each other store. The one
/// type differs from row to row.
fn cells(dtypes: usize, turn: usize) -> Vec<(Kept, usize)> {
    let mut cells: Vec<_> = (0..dtypes).map(|number| (Kept::Files, number)).collect();
    cells.push((Kept::S3, turn % dtypes));
    cells.push((Kept::Http, (turn + dtypes / 2) % dtypes));
    cells
}
