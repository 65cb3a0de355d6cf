//! The child's side: detects that this process is a child, runs the entry, and reports how it ended.

use std::error::Error as StdError;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::mem::ManuallyDrop;
use std::panic::{self, AssertUnwindSafe};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::thread;

use super::report::{self, ERROR, PANIC, Report};
use crate::error::{Error, Result, with_causes};
use crate::os;

/// The first argument of a process that is to run an entry. An environment variable would be inherited by processes
/// that the entry starts; an argument is not.
const MARK: &str = "--ndarray-shm-process";

/// A function that runs as a process of its own.
///
/// `Ok` ends the process with exit code 0, an error with 1, a panic with 101. The parent gets the message of the error
/// or panic.
pub type EntryPoint = fn(&Context) -> Result<(), Box<dyn StdError>>;

/// A child's index, the number of children, and the arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    index: usize,
    count: usize,
    arguments: Vec<String>,
}

impl Context {
    /// Returns the index of this child, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the number of children.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the arguments that the parent gave to [`spawn`](super::spawn), which are the same for all children.
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }
}

/// The names of the entries. Set by `init`, before the program has a second thread; reading it never waits.
static ENTRIES: OnceLock<Vec<String>> = OnceLock::new();

/// Registers the functions of this program that can be spawned, its *entries*. In a child, runs the requested entry.
///
/// Call it once, first thing in `main`, before anything is opened, printed or read from the command line. In a child it
/// does not return: the process ends with the entry.
///
/// # Examples
///
/// ```standalone_crate
/// use ndarray_shm::process::{self, Context};
///
/// fn worker(context: &Context) -> Result<(), Box<dyn std::error::Error>> {
///     assert_eq!((context.index(), context.count()), (0, 1));
///     Ok(())
/// }
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     process::init(&[("worker", worker)]);
///     process::spawn(1, "worker", &[])?.join()?;
///     Ok(())
/// }
/// ```
pub fn init(entries: &[(&str, EntryPoint)]) {
    // Set before an entry runs, because the entry may spawn processes itself.
    // Of several calls, the first counts.
    let _ = ENTRIES.set(entries.iter().map(|(name, _)| (*name).to_owned()).collect());
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == MARK) {
        std::process::exit(play(entries, arguments));
    }
}

/// Returns the command that runs an entry of this program as child `index` of `count`.
pub(super) fn command(entry: &str, index: usize, count: usize, arguments: &[&str], report: &Report) -> Result<Command> {
    if !ENTRIES.get().is_some_and(|known| known.iter().any(|known| known == entry)) {
        // Without this check the child would run `main` past `init`, and `main` might spawn again, without end.
        let expected = "the name of an entry that this program gave to process::init, first thing in main";
        return Err(Error::setting("the entry of a child process", entry, expected));
    }
    let program = os::own_program().map_err(|error| Error::os("finding this program", entry, error))?;
    let mut command = Command::new(program);
    command.arg(MARK).arg(entry).arg(index.to_string()).arg(count.to_string()).arg(&report.name).args(arguments);
    Ok(command)
}

/// Runs an entry and returns the exit code.
fn play(entries: &[(&str, EntryPoint)], mut arguments: impl Iterator<Item = OsString>) -> i32 {
    let mut next = || arguments.next().unwrap_or_default();
    let (entry, index, count, report) = (next(), next(), next(), next());
    let number = |text: &OsStr| text.to_str().and_then(|text| text.parse::<usize>().ok());
    let (Some(index), Some(count)) = (number(&index), number(&count)) else {
        eprintln!("{MARK} is for ndarray-shm's own use");
        return ERROR;
    };
    let report = match os::inherited_report(&report) {
        Ok(report) => Arc::new(report),
        Err(error) => {
            eprintln!("process {index}: the parent's report cannot be found: {error}");
            return ERROR;
        }
    };
    let fail = |message: &str| {
        report::say(&report, index, ERROR, message);
        ERROR
    };
    let Some((_, entry)) = entries.iter().find(|(name, _)| entry == **name) else {
        return fail("the program has no such entry: it was replaced by another version");
    };
    let arguments = match arguments.map(OsString::into_string).collect() {
        Ok(arguments) => arguments,
        Err(argument) => return fail(&format!("the argument {argument:?} is not UTF-8")),
    };
    let context = Context { index, count, arguments };
    hear_panics(Arc::clone(&report), index);
    match panic::catch_unwind(AssertUnwindSafe(|| entry(&context))) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => fail(&with_causes(&*error)),
        Err(_) => PANIC,
    }
}

/// Reports the panics of this thread to the parent, and prints them as usual. With `panic = "abort"` a panic of any
/// thread ends the process, so panics of all threads are reported.
fn hear_panics(report: Arc<ManuallyDrop<File>>, index: usize) {
    let (own, print) = (thread::current().id(), panic::take_hook());
    panic::set_hook(Box::new(move |panic| {
        if cfg!(panic = "abort") || thread::current().id() == own {
            // "panicked at PLACE: MESSAGE"
            report::say(&report, index, PANIC, &panic.to_string().replacen(":\n", ": ", 1));
        }
        print(panic);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn message_of_error_includes_its_causes() {
        let source = std::io::Error::other("the disk is gone");
        let error = ErrorKind::Os { op: "reading" }.at("em").because(source);
        assert_eq!(with_causes(&error), "`em`: reading failed: the disk is gone");
    }

    #[test]
    fn spawn_refuses_entry_unknown_to_init() {
        let error = super::super::spawn(1, "unheard-of", &[]).unwrap_err();
        assert!(error.to_string().contains("process::init"), "{error}");
    }
}
