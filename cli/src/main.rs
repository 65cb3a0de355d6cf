//! `ndshm`: arrays in shared memory from the command line.
//!
//! This file parses the command line, runs one command, prints its error, and chooses the exit code. The commands
//! are in `commands`, their arguments and help texts in `args`.

mod args;
mod arrays;
mod commands;
mod exit;
mod files;
mod interrupt;
mod machine;
mod show;
mod transfer;

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write};
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _};

use crate::args::{Cli, Command};
use crate::commands::{
    demo, describe, doctor, download, export, gc, import, info, list, manager, manual, plan, record, replay, unlink,
    upload, view,
};
use crate::exit::{Exit, Failure};

fn main() -> ExitCode {
    let command = match parse() {
        Ok(cli) => cli.command,
        Err(usage) => {
            // Help and version are printed here too. A closed output is ignored.
            let _ = usage.print();
            return if usage.use_stderr() { Exit::Usage } else { Exit::Done }.into();
        }
    };
    if command.prints_json() {
        show::report::owe_json();
    }
    // Not locked: threads of a worker process write there too.
    let mut out = io::stdout();
    let result = run(&command, &mut out).and_then(|exit| {
        out.flush()?;
        Ok(exit)
    });
    match result {
        Ok(exit) => exit.into(),
        Err(failure) => {
            failure.print(&mut io::stderr().lock());
            // With --json, a failure is a JSON document too. If writing it fails, the exit code remains.
            let _ = failure.print_json(&mut out);
            failure.exit().into()
        }
    }
}

/// Parses the command line. Help texts are wrapped to the width of the terminal, or of COLUMNS; other outputs are not
/// wrapped.
fn parse() -> Result<Cli, clap::Error> {
    let mut command = Cli::command();
    if !io::stdout().is_terminal() && std::env::var_os("COLUMNS").is_none() {
        command = command.term_width(0);
    }
    let mut words: Vec<OsString> = std::env::args_os().collect();
    if words.get(1).is_some_and(|word| word == "help") {
        words.retain(|word| word != "--help" && word != "-h"); // `help --help` is `help`
    }
    let matches = command.try_get_matches_from_mut(words)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

fn run(command: &Command, out: &mut dyn Write) -> Result<Exit, Failure> {
    match command {
        Command::Download(args) => download::run(args, out),
        Command::Upload(args) => upload::run(args, out),
        Command::Plan(args) => plan::run(args, out),
        Command::Ls(args) => list::run(args, out),
        Command::Info(args) => info::run(args, out),
        Command::Describe(args) => describe::run(args, out),
        Command::View(args) => view::run(args, out),
        Command::Export(args) => export::run(args, out),
        Command::Import(args) => import::run(args, out),
        Command::Record(args) => record::run(args, out),
        Command::Replay(args) => replay::run(args, out),
        Command::Unlink(args) => unlink::run(args, out),
        Command::Gc(args) => gc::run(args, out),
        Command::Doctor(args) => doctor::run(args, out),
        Command::Demo(args) => demo::run(args, out),
        Command::Manager(args) => manager::run(args, out),
        Command::Completions(args) => manual::completions(args, out),
        Command::Man(args) => manual::man(args, out),
        Command::Environment => {
            out.write_all(args::help::ENVIRONMENT.as_bytes())?;
            Ok(Exit::Done)
        }
        Command::Worker(args) => transfer::worker::run(args),
    }
}
