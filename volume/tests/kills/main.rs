//! Downloads that are killed midway. Linux only: the tests signal a process group and use `/dev/shm`.

#[cfg(target_os = "linux")]
mod downloads;
#[cfg(target_os = "linux")]
#[path = "../place/mod.rs"]
mod place;

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    downloads::main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    use libtest_mimic::{Arguments, Trial};

    let absent = Trial::test("killed_downloads_are_resumed", || Ok(())).with_ignored_flag(true);
    libtest_mimic::run(&Arguments::from_args(), vec![absent]).exit_code()
}
