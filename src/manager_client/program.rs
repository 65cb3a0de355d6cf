//! Which program is the manager, and how it is started: in the background, out of reach of what ends this process.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::os::{PerProcess, daemon};

/// Says which program it is, or that there is to be none.
const PROGRAM: &str = "NDSHM_MANAGER";

/// What the program is called.
const NAME: &str = "ndshm";

/// Which program is started when there is no manager.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Program {
    /// What the environment variable `NDSHM_MANAGER` names; else `ndshm` beside this program, else in `PATH`. `NDSHM_MANAGER`
    /// may also be `off`, `no`, `false` or `0`, which is [`Off`](Self::Off).
    #[default]
    Search,
    /// This one. It is called as `ndshm` would be: `PROGRAM manager --detach --socket PATH`.
    At(PathBuf),
    /// None: a manager that happens to run is not told anything either.
    Off,
}

static CHOICE: PerProcess<Program> = PerProcess::new();

/// How long a choice waits for others of the same process.
const PATIENCE: Duration = Duration::from_secs(1);

/// Chooses for this process which program is started when there is no [manager](crate::manager).
///
/// # Examples
///
/// ```standalone_crate
/// use ndarray_shm::manager::{Program, set_program};
///
/// set_program(Program::Off); // leftovers are reclaimed by other means
/// ```
pub fn set_program(program: Program) {
    if let Some(mut slot) = CHOICE.lock(PATIENCE) {
        slot.value = Some(program);
    }
}

/// What was chosen, here or in the process that this one was forked from. Off where no manager can run, and in a child that was forked
/// while another thread chose.
pub(super) fn choice() -> Program {
    if daemon::supported().is_err() {
        return Program::Off;
    }
    let chosen = CHOICE.inherited().unwrap_or(Program::Off);
    if chosen == Program::Search { from_environment(std::env::var_os(PROGRAM)) } else { chosen }
}

fn from_environment(value: Option<std::ffi::OsString>) -> Program {
    match value {
        None => Program::Search,
        Some(value) if value.is_empty() => Program::Search,
        Some(value) => match value.to_string_lossy().to_ascii_lowercase().as_str() {
            "off" | "no" | "false" | "0" => Program::Off,
            _ => Program::At(value.into()),
        },
    }
}

/// Finds the program that a choice means.
///
/// # Errors
///
/// Where it was looked for in vain, to be told to the user.
pub(super) fn find(choice: &Program) -> Result<PathBuf, String> {
    match choice {
        Program::Off => Err("it is switched off".to_owned()),
        Program::At(path) => std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display())),
        Program::Search => {
            let file = format!("{NAME}{}", std::env::consts::EXE_SUFFIX);
            let this = std::env::current_exe().ok();
            let beside = this.as_deref().map(|this| this.with_file_name(&file));
            // A program may lie where others can put theirs beside it, as in /tmp.
            let beside =
                this.zip(beside).filter(|(this, beside)| daemon::is_trusted_like(beside, this)).map(|both| both.1);
            let path = std::env::var_os("PATH").unwrap_or_default();
            // What a relative entry means depends on where the process is just now.
            let entries = std::env::split_paths(&path).filter(|entry| entry.is_absolute());
            let mut candidates = beside.into_iter().chain(entries.map(|folder| folder.join(&file)));
            candidates.find(|candidate| candidate.is_file()).ok_or_else(|| {
                format!("there is no program `{NAME}` beside this one or in PATH; install it, or set {PROGRAM}")
            })
        }
    }
}

/// Starts a manager and waits until it listens or has given up; it is the system's child then.
pub(super) fn start(program: &Path, socket: &Path) -> Result<(), String> {
    if daemon::has_borrowed_rights() {
        return Err("a program with set-user-ID starts no others".to_owned());
    }
    let mut command = Command::new(program);
    command.args(["manager", "--detach", "--socket"]).arg(socket).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    daemon::set_apart(&mut command);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Err(error) => Err(format!("{} cannot be started: {error}", program.display())),
        Ok(status) => Err(format!("{} ended with {status}", program.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_names_a_program_or_switches_it_off() {
        assert_eq!(from_environment(None), Program::Search);
        assert_eq!(from_environment(Some("".into())), Program::Search);
        for word in ["off", "OFF", "0", "no", "false"] {
            assert_eq!(from_environment(Some(word.into())), Program::Off, "{word}");
        }
        assert_eq!(from_environment(Some("/x/ndshm".into())), Program::At("/x/ndshm".into()));
    }
}
