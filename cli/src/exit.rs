//! Exit codes, and errors with their advice. Only `main` prints them.

use std::error::Error as StdError;
use std::fmt::{self, Display};
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ndarray_shm::DType;
use ndarray_shm_volume::{self as volume, SourceFailure, StoreFailure};
use serde::Serialize;

use crate::machine::host;
use crate::show::colour::{Colours, Tone};
use crate::show::report;

/// The exit codes that `--help` documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Everything was done.
    Done,
    /// Something failed, or `doctor` found a problem.
    Failed,
    /// The command line, the bounding box or a setting is invalid.
    Usage,
    /// Nothing has this name.
    NotFound,
    /// A signal ended the program.
    Interrupted,
}

impl Exit {
    fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Interrupted => 130,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// An error with its exit code and advice.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    /// The error and its causes, outermost first; empty if nothing is to be printed.
    messages: Vec<String>,
    advice: Option<String>,
}

impl Failure {
    /// Creates a failure with this message.
    pub(crate) fn new(exit: Exit, message: impl Display) -> Self {
        Self { exit, messages: vec![message.to_string()], advice: None }
    }

    /// Returns the failure that this program cannot handle elements of this type.
    pub(crate) fn no_elements(dtype: DType) -> Self {
        Self::new(Exit::Failed, format!("elements of type {dtype} are not supported"))
    }

    /// Returns the failure that an array has gaps between its elements, which cannot happen.
    pub(crate) fn not_contiguous() -> Self {
        Self::new(Exit::Failed, "the array is not contiguous").advice("this is a bug in ndshm: please report it")
    }

    /// Ends the program with this code and prints nothing.
    pub(crate) fn silent(exit: Exit) -> Self {
        Self { exit, messages: Vec::new(), advice: None }
    }

    fn from_chain(exit: Exit, error: &dyn StdError) -> Self {
        let mut messages: Vec<String> = Vec::new();
        let mut next = Some(error);
        while let Some(error) = next {
            let text = error.to_string();
            // Some libraries repeat the cause in their own text. It is printed once.
            if !messages.last().is_some_and(|last| last.contains(&text)) {
                messages.push(text);
            }
            next = error.source();
        }
        Self { exit, messages, advice: None }
    }

    /// Puts a message in front of the error: what failed because of it.
    pub(crate) fn while_doing(mut self, what: impl Display) -> Self {
        self.messages.insert(0, what.to_string());
        self
    }

    /// Changes the exit code to that of an invalid command line.
    pub(crate) fn usage(mut self) -> Self {
        self.exit = Exit::Usage;
        self
    }

    /// Sets the advice: what to do about the error.
    pub(crate) fn advice(mut self, advice: impl Display) -> Self {
        self.advice = Some(advice.to_string());
        self
    }

    /// Adds to the advice.
    pub(crate) fn advice_too(mut self, advice: impl Display) -> Self {
        self.advice = Some(match self.advice {
            Some(first) => format!("{first}; {advice}"),
            None => advice.to_string(),
        });
        self
    }

    /// Sets the advice, and removes it from the ends of the messages: some errors of the libraries say there what to
    /// do.
    fn advised(mut self, advice: &str) -> Self {
        for message in &mut self.messages {
            if let Some(short) = message.strip_suffix(advice).and_then(|text| text.strip_suffix(": ")) {
                *message = short.to_owned();
            }
        }
        self.advice(advice)
    }

    /// Returns the exit code of the program.
    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    /// Prints the error, its causes and the advice. If the output is closed, that is ignored.
    pub(crate) fn print(&self, out: &mut dyn Write) {
        let colours = Colours::of_stderr();
        let mut lead = colours.paint(Tone::Problem, "error:");
        for message in &self.messages {
            let _ = writeln!(out, "{lead} {message}");
            "  because:".clone_into(&mut lead);
        }
        if let Some(advice) = &self.advice {
            let _ = writeln!(out, "  {} {advice}", colours.paint(Tone::Advice, "what to do:"));
        }
    }
}

impl Failure {
    /// Prints the failure and ends the program without cleaning up. An output that blocks delays that by at most one
    /// second.
    pub(crate) fn end(self) -> ! {
        const PATIENCE: Duration = Duration::from_secs(1);

        let code = self.exit.code().into();
        let (told, is_told) = mpsc::channel::<()>();
        let telling = thread::Builder::new().spawn(move || {
            let mut out = io::stdout();
            if let Some(document) = self.told() {
                let _ = report::last_json(&mut out, &document).and_then(|()| out.flush());
            }
            self.print(&mut io::stderr());
            drop(told);
        });
        if telling.is_ok() {
            let _ = is_told.recv_timeout(PATIENCE); // ends in any case
        }
        std::process::exit(code)
    }

    /// Prints the failure as JSON, if `--json` was given and there is a message.
    pub(crate) fn print_json(&self, out: &mut dyn Write) -> io::Result<()> {
        let Some(document) = self.told() else { return Ok(()) };
        report::json(out, &document)?;
        out.flush()
    }

    fn told(&self) -> Option<Told<'_>> {
        let (error, because) = self.messages.split_first()?;
        Some(Told { error, because, advice: self.advice.as_deref() })
    }
}

/// A failure, as every command with `--json` prints it.
#[derive(Debug, Serialize)]
struct Told<'a> {
    /// What failed.
    error: &'a str,
    /// Its causes, outermost first.
    because: &'a [String],
    /// What to do about it, or `null`.
    advice: Option<&'a str>,
}

/// The error and its causes in one line, for JSON.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.messages.join(": "))
    }
}

impl From<&ndarray_shm::Error> for Exit {
    fn from(error: &ndarray_shm::Error) -> Self {
        use ndarray_shm::ErrorKind;
        match error.kind {
            ErrorKind::NotFound | ErrorKind::Elsewhere { .. } => Self::NotFound,
            ErrorKind::InvalidLocation { .. }
            | ErrorKind::Reserved { .. }
            | ErrorKind::InvalidSetting { .. }
            | ErrorKind::DescriptionMismatch { .. } => Self::Usage,
            _ => Self::Failed,
        }
    }
}

impl From<ndarray_shm::Error> for Failure {
    fn from(error: ndarray_shm::Error) -> Self {
        let failure = Self::from_chain(Exit::from(&error), &error);
        match &error.kind {
            ndarray_shm::ErrorKind::NoSpace { advice, .. } => failure.advised(advice),
            _ => failure,
        }
    }
}

impl From<volume::Error> for Failure {
    fn from(error: volume::Error) -> Self {
        let exit = match &error {
            volume::Error::Array(inner) => Exit::from(inner),
            volume::Error::Bbox { .. }
            | volume::Error::Alignment { .. }
            | volume::Error::Scale { .. }
            | volume::Error::OtherScale { .. }
            | volume::Error::OtherAxes { .. }
            | volume::Error::NewVolume { .. }
            | volume::Error::FillValue { .. }
            | volume::Error::Shard { .. }
            | volume::Error::Url { .. } => Exit::Usage,
            _ if error.source_failure() == Some(SourceFailure::NotBuiltIn) => Exit::Usage,
            volume::Error::Interrupted { .. } => Exit::Interrupted,
            _ => Exit::Failed,
        };
        let failure = Self::from_chain(exit, &error);
        if let Some(advice) = error.store_failure().and_then(StoreFailure::advice) {
            return failure.advised(advice);
        }
        let advice = match &error {
            volume::Error::Array(ndarray_shm::Error {
                kind: ndarray_shm::ErrorKind::NoSpace { advice, .. }, ..
            }) => return failure.advised(advice),
            volume::Error::Scale { .. } => {
                "`ndshm info` with the volume lists its scales; --mip takes the number of one"
            }
            volume::Error::Alignment { .. } => {
                "give --read-modify-write to read, change and store such objects; or choose another --cutout, or --bbox if the array is \
                 larger"
            }
            volume::Error::Store { cause, .. } if is_full(&**cause) => {
                "free some of the disk that has the volume; then give the same command again: it stores all objects anew"
            }
            volume::Error::Source { failure: SourceFailure::Damaged, .. } => {
                "restore this document: without it no chunk of the volume can be read or written"
            }
            volume::Error::Source { failure: SourceFailure::NotBuiltIn, .. } => {
                "build the program with the feature that this needs: cargo build -p ndshm --features remote (http, https, s3), gcs (gs), \
                 azure (az) or codecs (LZ4, LZMA and pcodec in Zarr)"
            }
            volume::Error::Source { failure: SourceFailure::Absent, volume, .. } if volume.starts_with("s3://") => {
                if std::env::var_os("AWS_ACCESS_KEY_ID").is_none() {
                    "check the bucket and the key. AWS_ACCESS_KEY_ID is not set; without credentials a server may answer that a private \
                     object does not exist. ~/.aws is not read (docs/stores.md)"
                } else {
                    "check the bucket, the key, and that AWS_ENDPOINT_URL names the right server"
                }
            }
            _ => return failure,
        };
        failure.advice(advice)
    }
}

fn is_full(error: &(dyn StdError + 'static)) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    let is_full = |error: &io::Error| matches!(error.kind(), StorageFull | QuotaExceeded);
    std::iter::successors(Some(error), |error| (*error).source()).any(|error| error.downcast_ref().is_some_and(is_full))
}

/// Plain [`io::Error`]s only come from writing the result to standard output. If its reader has closed the pipe, that
/// is not a failure.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if host::reader_has_gone(&error) {
            return Self::silent(Exit::Done);
        }
        Self::from_chain(Exit::Failed, &error).while_doing("cannot write to standard output")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares what a user reads with `cli/src/errors.txt`; with `NDSHM_TEST_WRITE_MESSAGES=1` writes it there.
    #[test]
    fn messages_of_all_kinds_are_as_written_down() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/errors.txt");
        let mut messages = Vec::new();
        for error in ndarray_shm::one_error_of_each_kind() {
            let failure = Failure::from(error);
            failure.print(&mut messages);
            writeln!(messages, "exit code {}", failure.exit().code()).expect("memory takes it");
        }
        if std::env::var_os("NDSHM_TEST_WRITE_MESSAGES").is_some() {
            std::fs::write(file, &messages).expect("the file can be written");
        }
        assert_eq!(String::from_utf8_lossy(&messages), std::fs::read_to_string(file).expect("the file is there"));
    }
}
