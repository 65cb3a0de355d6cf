//! `ndshm completions` and `ndshm man`: what shells and `man` are told about the command line, from its one description.

use std::io::Write;

use clap::CommandFactory as _;

use crate::cli::{Cli, CompletionsArgs, ManArgs};
use crate::exit::{Exit, Failure};

/// Runs `ndshm completions`.
pub(crate) fn completions(args: &CompletionsArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    // Made whole first: the generator takes an output that fails for a fault of its own.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "ndshm", &mut script);
    out.write_all(&script)?;
    Ok(Exit::Done)
}

/// Runs `ndshm man`.
pub(crate) fn man(args: &ManArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let mut program = Cli::command();
    program.build(); // gives commands their full names
    let page = match &args.command {
        None => clap_mangen::Man::new(program),
        Some(name) => {
            let command = program.find_subcommand(name).filter(|command| !command.is_hide_set()).cloned();
            let command = command.ok_or_else(|| {
                Failure::new(Exit::Usage, format!("there is no command `{name}`")).advice("`ndshm --help` lists them")
            })?;
            clap_mangen::Man::new(command).title(format!("ndshm-{name}"))
        }
    };
    page.source(concat!("ndshm ", env!("CARGO_PKG_VERSION"))).render(out)?;
    Ok(Exit::Done)
}
