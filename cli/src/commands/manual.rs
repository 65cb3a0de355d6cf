//! `ndshm completions` and `ndshm man`: shell scripts and manual pages, generated from the definition of the command
//! line.

use std::io::Write;

use clap::CommandFactory as _;

use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::exit::{Exit, Failure};

/// Runs `ndshm completions`.
pub(crate) fn completions(args: &CompletionsArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    // Generated in memory first: the generator panics if writing fails.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "ndshm", &mut script);
    out.write_all(&script)?;
    Ok(Exit::Done)
}

/// Runs `ndshm man`.
pub(crate) fn man(args: &ManArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let mut program = Cli::command();
    program.build(); // sets the full names of commands
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
