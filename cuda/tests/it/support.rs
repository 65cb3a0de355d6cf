//! Children, the driver that the tests use, and what the test double tells about this process.

use std::ffi::{CStr, CString, c_char, c_int};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{env, io, thread};

use cudarc::driver::sys;
use libtest_mimic::{Failed, Trial};
use ndarray_shm::counted::{Channel, Socket};

/// What a child does, with its channel to the test.
pub type Role = fn(Channel);

/// As long as a test waits for anything.
pub const LIMIT: Duration = Duration::from_mins(1);

/// Starts this program again with the double in the loader's path, unless it is there or the real driver is to be used.
pub fn find_driver() {
    if is_real() || env::var_os("NDSHM_CUDA_FAKE").is_some() {
        return;
    }
    let program = env::current_exe().expect("this program");
    let here = program.parent().expect("a directory");
    assert!(here.join("libcuda.so").exists(), "no test double in {}: cargo build -p ndshm-fake-cuda", here.display());
    let error = Command::new(&program)
        .args(env::args_os().skip(1))
        .env("LD_LIBRARY_PATH", here)
        .env("NDSHM_CUDA_FAKE", "1")
        // The double has threads that come and go; their heaps would count as this process's memory.
        .env("MALLOC_ARENA_MAX", "1")
        // Arrays of other tests are on other machines, so to speak.
        .env("FAKE_CUDA_TAG", format!("it-{}", std::process::id()))
        .exec();
    panic!("cannot start {}: {error}", program.display());
}

/// Returns whether the tests run on the driver of this machine.
pub fn is_real() -> bool {
    env::var("NDSHM_CUDA_DRIVER").is_ok_and(|driver| driver == "real")
}

/// Plays the role that the parent wants, if it wants one.
pub fn play(roles: &[(&'static str, Role)]) -> Option<ExitCode> {
    let wanted = env::var("NDSHM_CUDA_ROLE").ok()?;
    let role = roles.iter().find(|(name, _)| *name == wanted).unwrap_or_else(|| panic!("no role {wanted}"));
    let socket = own(0);
    role.1(Channel::from_socket(Socket::from(socket)).expect("a channel"));
    Some(ExitCode::SUCCESS)
}

fn own(number: c_int) -> OwnedFd {
    use std::os::fd::BorrowedFd;
    // SAFETY: the standard input of a child is its channel, and is never closed.
    let stdin = unsafe { BorrowedFd::borrow_raw(number) };
    stdin.try_clone_to_owned().expect("a descriptor")
}

/// Makes tests of functions.
pub fn trials(suite: &str, tests: &[(&str, fn())]) -> Vec<Trial> {
    let trial = |(name, test): &(&str, fn())| {
        let test = *test;
        Trial::test(format!("{suite}::{name}"), move || {
            test();
            Ok::<(), Failed>(())
        })
    };
    tests.iter().map(trial).collect()
}

/// Names functions, for [`trials`] or for roles.
#[macro_export]
macro_rules! named {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name)),*] };
}

/// A child in a role. Dropping it kills it.
pub struct Actor {
    pub channel: Channel,
    child: Child,
}

impl Actor {
    pub fn start(role: &str) -> Self {
        Self::start_with(role, &[])
    }

    /// Starts a child with more environment variables.
    pub fn start_with(role: &str, variables: &[(&str, &str)]) -> Self {
        let (here, there) = UnixStream::pair().expect("a pair of sockets");
        let child = Command::new(env::current_exe().expect("this program"))
            .env("NDSHM_CUDA_ROLE", role)
            .envs(variables.iter().copied())
            .stdin(Stdio::from(OwnedFd::from(there)))
            .spawn()
            .expect("a child");
        Self { channel: Channel::from_socket(Socket::from(here)).expect("a channel"), child }
    }

    /// Kills the child (SIGKILL), and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill(); // fails if it has ended
        self.child.wait().expect("a child");
    }

    /// Waits until the child has ended by itself, well.
    pub fn join(mut self) {
        assert!(self.wait().success(), "the child failed");
    }

    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("a child")
    }

    /// Receives a message from the child, in the time that tests have.
    pub fn hear<M: serde::de::DeserializeOwned>(&self) -> M {
        self.channel.receive_timeout::<M>(LIMIT).expect("a message").message
    }

    /// Sends a message without arrays to the child.
    pub fn tell<M: serde::Serialize + ?Sized>(&self, message: &M) {
        self.channel.send(message, &[]).expect("a listening child");
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Makes the primary context of the first GPU the current one of this thread, for calls of the driver itself.
pub fn make_current() {
    ndarray_shm_cuda::Device::new(0).expect("a GPU"); // initialises the driver
    let mut context = std::ptr::null_mut();
    // SAFETY: `context` is valid for the write of a handle. It is never released.
    assert_eq!(unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut context, 0) }, sys::CUresult::CUDA_SUCCESS);
    // SAFETY: the context was just retained.
    assert_eq!(unsafe { sys::cuCtxSetCurrent(context) }, sys::CUresult::CUDA_SUCCESS);
}

/// Waits until something is true.
pub fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_true() {
        assert!(begin.elapsed() < LIMIT, "waited for {what} in vain");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Returns how many descriptors this process has open.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").and_then(Iterator::collect::<io::Result<Vec<_>>>).expect("/proc").len()
}

/// The functions of the test double that the driver does not have.
pub mod double {
    use super::{CStr, CString, c_char, c_int};

    fn function<F: Copy>(name: &CStr) -> F {
        // SAFETY: the double is loaded; its initialisers have no requirements.
        let library = unsafe { cudarc::driver::sys::culib() };
        // SAFETY: each caller names the type that cuda/fake declares.
        *unsafe { library.get::<F>(name.to_bytes_with_nul()) }.expect("a function of the double")
    }

    fn text(text: &str) -> CString {
        CString::new(text).expect("no zero byte")
    }

    /// Returns how often a function of the driver was called in this process.
    pub fn calls(call: &str) -> u64 {
        let call = text(call);
        let function = function::<unsafe extern "C" fn(*const c_char) -> u64>(c"fakeCudaCalls");
        // SAFETY: the argument is a C string.
        unsafe { function(call.as_ptr()) }
    }

    /// Returns the names of all functions of the double.
    pub fn call_names() -> Vec<String> {
        let function = function::<unsafe extern "C" fn() -> *const c_char>(c"fakeCudaCallNames");
        // SAFETY: it has no requirements.
        let names = unsafe { function() };
        // SAFETY: it returns a constant C string.
        let names = unsafe { CStr::from_ptr(names) };
        names.to_str().expect("letters").split(',').map(str::to_owned).collect()
    }

    /// Lets the `n`-th next call of a function fail with an error of the driver. Zero takes that back.
    pub fn fail(call: &str, n: u64, code: u32) {
        let call = text(call);
        let function = function::<unsafe extern "C" fn(*const c_char, u64, c_int)>(c"fakeCudaFail");
        // SAFETY: the argument is a C string.
        unsafe { function(call.as_ptr(), n, c_int::try_from(code).expect("a small number")) };
    }

    /// Returns how many objects of a kind live in this process.
    pub fn live(kind: &str) -> u64 {
        let kind = text(kind);
        let function = function::<unsafe extern "C" fn(*const c_char) -> u64>(c"fakeCudaLive");
        // SAFETY: the argument is a C string.
        unsafe { function(kind.as_ptr()) }
    }

    /// Fails if this process has misused the driver.
    pub fn assert_no_violation() {
        let count = function::<unsafe extern "C" fn() -> u64>(c"fakeCudaViolations");
        // SAFETY: it has no requirements.
        if unsafe { count() } == 0 {
            return;
        }
        let last = function::<unsafe extern "C" fn() -> *const c_char>(c"fakeCudaLastViolation");
        // SAFETY: it has no requirements.
        let last = unsafe { last() };
        // SAFETY: it returns a C string that lives until the next violation.
        panic!("the driver was misused: {}", unsafe { CStr::from_ptr(last) }.to_string_lossy());
    }

    /// Returns how many bytes of all GPUs the processes of this test use.
    pub fn memory_in_use() -> u64 {
        let function = function::<unsafe extern "C" fn() -> u64>(c"fakeCudaMemoryInUse");
        // SAFETY: it has no requirements.
        unsafe { function() }
    }
}
