//! Child processes that fail together, are ended together, and leave nothing behind.
//!
//! Like `torch.multiprocessing.spawn` in Python, [`spawn`] runs one function of this program in several processes, and
//! [`join`](Processes::join) waits for all of them. If one fails, the others are ended, and `join` returns its error or
//! panic message with the index and process id. [`SpawnOptions::spawn_commands`] does the same with arbitrary programs.
//!
//! ```standalone_crate
//! use ndarray_shm::process;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     process::init(&[("greet", |context| {
//!         println!("process {} of {}", context.index(), context.count());
//!         Ok(())
//!     })]);
//!     process::spawn(3, "greet", &[])?.join()?;
//!     Ok(())
//! }
//! ```
//!
//! Not for threads, which share memory anyway, nor for processes on other machines. Workers that are started by other
//! means (MPI, a batch system, `multiprocessing`) do not need this module: any process can open arrays by name.
//!
//! # How a program starts itself
//!
//! A child is the same program started anew. Unlike with `fork`, no memory of the parent is copied and no lock is
//! inherited locked. `main` first calls [`init`] with the functions that children may run, its *entries*. In a child,
//! `init` runs the requested entry and ends the process; otherwise it returns at once. Arguments are passed to the
//! entry as text; arrays are opened by name.
//!
//! # How processes end
//!
//! - *A child fails*: it returns an error, panics, has an exit code other than 0, or is killed by a signal. The other
//!   children get SIGTERM at once, whether `join` was called or not, and SIGKILL after the grace period. Workers that
//!   can do each other's work go on instead: [`spawn_workers`], [`SpawnOptions::keep_going`].
//! - *The parent dies*, in whatever way: on Linux its children are killed (`PR_SET_PDEATHSIG`), and so are their
//!   children. A child that runs as another user, or with capabilities of its own, is not killed. Other platforms have
//!   no such signal: there, children should detect the death themselves, for example by the end of a pipe.
//! - *Ctrl-C*: children are in the parent's process group, so the terminal sends them the same signals as the parent,
//!   those of Ctrl-C and Ctrl-Z included. A program that handles Ctrl-C itself finds its children interrupted.
//! - *[`Processes`] is dropped*: children that still run are killed at once and waited for.
//! - *The thread that called `spawn` ends*: nothing happens.
//!
//! Signals go to the children only, not to the processes that a child started. One exception: if a child leads a
//! process group of its own (`CommandExt::process_group(0)` in [`configure`](SpawnOptions::configure)), the whole group
//! gets them, and Ctrl-C does not reach it.
//!
//! Windows has no signals: there, SIGTERM and SIGKILL both terminate the process.
//!
//! # Examples
//!
//! ```standalone_crate
//! use std::error::Error;
//!
//! use ndarray_shm::process::{self, Context};
//! use ndarray_shm::{unlink, SharedArray};
//!
//! /// Runs in each child: writes the child's index into its own row.
//! fn paint(context: &Context) -> Result<(), Box<dyn Error>> {
//!     let array = SharedArray::<u64, _>::open(context.arguments()[0].as_str(), (context.count(), 3))?;
//!     array.write()?.row_mut(context.index()).fill(context.index() as u64);
//!     Ok(())
//! }
//!
//! fn main() -> Result<(), Box<dyn Error>> {
//!     process::init(&[("paint", paint)]);
//!
//!     let array = SharedArray::<u64, _>::create("process-example", (4, 3))?;
//!     let painted = process::spawn(4, "paint", &["process-example"])?.join();
//!     let first = array.read()?.column(0).to_vec();
//!     unlink("process-example")?;
//!     painted?;
//!     assert_eq!(first, [0, 1, 2, 3]);
//!     Ok(())
//! }
//! ```

mod entry;
mod failure;
mod options;
mod processes;
mod report;
mod supervisor;

pub use self::entry::{Context, EntryPoint, init};
pub use self::failure::{ChildError, Ending};
pub use self::options::SpawnOptions;
pub use self::processes::Processes;
use crate::error::Result;
use crate::os;

/// Runs an entry of this program in `count` processes, with the default options.
///
/// Each process gets the same `arguments`, and its own index from 0. Standard input, output and error are the parent's.
/// [`SpawnOptions`] changes the defaults.
///
/// # Errors
///
/// Those of [`SpawnOptions::spawn`].
///
/// # Examples
///
/// ```standalone_crate
/// use ndarray_shm::process;
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     process::init(&[("odd", |context| {
///         if context.index() % 2 == 0 { Err("it is even".into()) } else { Ok(()) }
///     })]);
///
///     let error = process::spawn(1, "odd", &[])?.join().unwrap_err();
///     assert_eq!(error.index(), 0);
///     assert_eq!(error.to_string(), format!("process 0 (pid {}) failed: it is even", error.pid()));
///     Ok(())
/// }
/// ```
pub fn spawn(count: usize, entry: &str, arguments: &[&str]) -> Result<Processes> {
    SpawnOptions::new().spawn(count, entry, arguments)
}

/// Runs an entry of this program in `count` worker processes. If one fails, the others go on.
///
/// For work that any worker can take over, such as the chunks of a [`RenderBuffer`](crate::RenderBuffer). It is
/// [`spawn`] with [`keep_going`](SpawnOptions::keep_going): [`join`](Processes::join) waits until all have ended, and
/// then returns the first failure. A failure does not tell whether the work is complete; check the work itself, for
/// example with [`RenderBuffer::finish`](crate::RenderBuffer::finish).
///
/// # Errors
///
/// Those of [`SpawnOptions::spawn`].
///
/// # Examples
///
/// ```standalone_crate
/// use std::error::Error;
/// use std::time::Duration;
///
/// use ndarray_shm::ndarray::Ix2;
/// use ndarray_shm::process::{self, Context};
/// use ndarray_shm::{NextClaim, RenderBuffer, unlink};
///
/// fn paint(context: &Context) -> Result<(), Box<dyn Error>> {
///     let buffer = RenderBuffer::<u8, Ix2>::open("workers-example")?;
///     while let NextClaim::Chunk(mut chunk) = buffer.claim_next_wait(Duration::MAX)? {
///         if context.index() == 0 {
///             std::process::abort(); // in the middle of a chunk
///         }
///         chunk.view_mut().fill(7);
///         chunk.commit()?;
///     }
///     Ok(())
/// }
///
/// fn main() -> Result<(), Box<dyn Error>> {
///     process::init(&[("paint", paint)]);
///
///     let buffer = RenderBuffer::<u8, _>::create("workers-example", (6, 8), (4, 4), "an image, version 1")?;
///     if let Err(failure) = process::spawn_workers(3, "paint", &[])?.join() {
///         assert_eq!(failure.index(), 0); // the other workers have painted its chunk
///     }
///     let array = buffer.finish()?;
///     let sevens = array.read()?.iter().filter(|element| **element == 7).count();
///     unlink("workers-example")?;
///     assert_eq!(sevens, 48);
///     Ok(())
/// }
/// ```
pub fn spawn_workers(count: usize, entry: &str, arguments: &[&str]) -> Result<Processes> {
    SpawnOptions::new().keep_going(true).spawn(count, entry, arguments)
}

/// Returns a number that tells a forked child from its ancestors.
///
/// For values that must not be used, or freed, in a forked child: such a value keeps the number of the process that
/// created it, and compares it with the current one. The number never changes in the life of a process. It differs
/// between a process and every child that the process forks after its first call; children of one parent may have the
/// same number. The call costs two loads of memory.
///
/// Forks are noticed by handlers of `pthread_atfork`, which fork(3) calls and a bare clone(2) does not. Where there are
/// no forks, the number is 0. Processes of [`spawn`] are started anew, and inherit no values.
///
/// # Examples
///
/// ```
/// use ndarray_shm::process;
///
/// struct Session {
///     generation: u64,
/// }
///
/// impl Drop for Session {
///     fn drop(&mut self) {
///         if self.generation == process::fork_generation() {
///             // ends the session, which a forked child leaves to its parent
///         }
///     }
/// }
///
/// drop(Session { generation: process::fork_generation() });
/// ```
pub fn fork_generation() -> u64 {
    os::fork_generation()
}
