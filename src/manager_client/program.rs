//! The program that is started as the manager, and how: in the background, so that it survives this process and its
//! terminal.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::os::{PerProcess, daemon};

/// The environment variable that names the program, or switches the manager off.
const PROGRAM: &str = "NDSHM_MANAGER";

/// The name of the program to search for.
const NAME: &str = "ndshm";

/// The program that is started if no manager runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Program {
    /// The program that the environment variable `NDSHM_MANAGER` names; else `ndshm` beside this program, else in
    /// `PATH`. If `NDSHM_MANAGER` is `off`, `no`, `false` or `0`, the manager is [`Off`](Self::Off). `on`, `yes`,
    /// `true` and `1` name no program.
    #[default]
    Search,
    /// The program at this path. It is called like `ndshm`: `PROGRAM manager --detach --socket PATH`.
    At(PathBuf),
    /// No program. This process announces nothing to a running manager either.
    Off,
}

static CHOICE: PerProcess<Program> = PerProcess::new();

/// How long setting the program waits for other threads.
const PATIENCE: Duration = Duration::from_secs(1);

/// Sets, for this process, the program that is started if no [manager](crate::manager) runs.
///
/// # Examples
///
/// ```standalone_crate
/// use ndarray_shm::manager::{Program, set_program};
///
/// set_program(Program::Off); // orphans are reclaimed by other means
/// ```
pub fn set_program(program: Program) {
    if let Some(mut slot) = CHOICE.lock(PATIENCE) {
        slot.value = Some(program);
    }
}

/// Returns the choice of this process, or of the process that this one was forked from. It is `Off` on platforms
/// without a manager, and in a child that was forked while another thread called `set_program`.
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
            "on" | "yes" | "true" | "1" => Program::Search,
            _ => Program::At(value.into()),
        },
    }
}

/// Returns the path of the chosen program.
///
/// # Errors
///
/// The reason for the user: why there is no program, or where it was searched for.
pub(super) fn find(choice: &Program) -> Result<PathBuf, String> {
    match choice {
        Program::Off => Err("switched off".to_owned()),
        Program::At(path) => std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display())),
        Program::Search => {
            let file = format!("{NAME}{}", std::env::consts::EXE_SUFFIX);
            let this = std::env::current_exe().ok();
            let beside = this.as_deref().map(|this| this.with_file_name(&file));
            // In a directory where other users may create files, such as /tmp, the `ndshm` beside this program may be
            // theirs.
            let beside =
                this.zip(beside).filter(|(this, beside)| daemon::is_trusted_like(beside, this)).map(|both| both.1);
            let path = std::env::var_os("PATH").unwrap_or_default();
            // A relative entry would depend on the current directory.
            let entries = std::env::split_paths(&path).filter(|entry| entry.is_absolute());
            let mut candidates = beside.into_iter().chain(entries.map(|folder| folder.join(&file)));
            candidates.find(|candidate| candidate.is_file()).ok_or_else(|| {
                format!("there is no program `{NAME}` beside this one or in PATH; install it, or set {PROGRAM}")
            })
        }
    }
}

/// Starts a manager, and waits until it listens or has failed. It is not a child of this process afterwards.
pub(super) fn start(program: &Path, socket: &Path) -> Result<(), String> {
    if daemon::has_borrowed_rights() {
        return Err("a set-user-ID program does not start one".to_owned());
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
    fn environment_names_or_disables_the_manager() {
        assert_eq!(from_environment(None), Program::Search);
        assert_eq!(from_environment(Some("".into())), Program::Search);
        for word in ["off", "OFF", "0", "no", "false"] {
            assert_eq!(from_environment(Some(word.into())), Program::Off, "{word}");
        }
        assert_eq!(from_environment(Some("/x/ndshm".into())), Program::At("/x/ndshm".into()));
    }
}
