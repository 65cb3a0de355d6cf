//! Tests of the double of the CUDA driver's library, through the bindings that programs use.
//!
//! Each test is a process of its own, because the library reads the environment once: this program starts itself again,
//! with `FAKE_CUDA_TEST_ROLE` as the name of a test or of another process in one.

#![allow(unreachable_pub)] // a program has no public interface
#![allow(unsafe_code)]

mod driver;
mod processes;
mod work;

mod errors;

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use libtest_mimic::{Arguments, Failed, Trial};

/// The variable that says which part of the program a process runs.
const ROLE: &str = "FAKE_CUDA_TEST_ROLE";

/// Seconds after which a process ends that waits for what never happens.
const LIMIT_S: u32 = 120;

/// A part of the program: a test, or another process of one.
struct Role {
    name: &'static str,
    run: fn(),
    /// Variables of a test; `None` if this is not a test.
    environment: Option<&'static [(&'static str, &'static str)]>,
}

fn main() -> ExitCode {
    let roles = [processes::ROLES, work::ROLES, errors::ROLES];
    let mut roles = roles.into_iter().flatten();
    if let Ok(name) = env::var(ROLE) {
        // SAFETY: the call takes a number; the signal, which nothing handles, ends the process.
        unsafe { libc::alarm(LIMIT_S) };
        let role = roles.find(|role| role.name == name).expect("no such role");
        (role.run)();
        return ExitCode::SUCCESS;
    }
    let arguments = Arguments::from_args();
    if !arguments.list {
        build_library();
    }
    let tests = roles.filter_map(|role| {
        let environment = role.environment?;
        Some(Trial::test(role.name, move || run_test(role.name, environment)))
    });
    libtest_mimic::run(&arguments, tests.collect()).exit_code()
}

/// The folder of this build, where its `libcuda.so` is.
fn build_folder() -> PathBuf {
    let program = env::current_exe().expect("the program has a path");
    program.ancestors().nth(2).expect("the program is in target/PROFILE/deps").to_owned()
}

/// Builds the library: Cargo does not do it for tests, which cannot be linked with it.
fn build_library() {
    let folder = build_folder();
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(profile) => profile,
    };
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", env!("CARGO_PKG_NAME"), "--profile", profile, "--target-dir"])
        .arg(folder.parent().unwrap_or(Path::new("target")))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    assert!(status.expect("cargo starts").success(), "the library cannot be built");
}

/// A process that runs a part of the program on the library.
fn role(name: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("the program has a path"));
    command.env(ROLE, name).env("LD_LIBRARY_PATH", build_folder());
    command
}

/// Runs a test in its process, with GPUs of its own.
fn run_test(name: &str, environment: &[(&str, &str)]) -> Result<(), Failed> {
    let tag = format!("{name}-{}", std::process::id());
    let mut command = role(name);
    command.env_remove("CUDA_VISIBLE_DEVICES").env("FAKE_CUDA_TAG", tag).envs(environment.iter().copied());
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{}\n{}", output.status, String::from_utf8_lossy(&output.stderr)).into())
}
