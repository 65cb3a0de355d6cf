//! Processes that hold arrays for tests to inspect, stop and kill. They run this test program in another role.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ndarray_shm::arena::ArenaOptions;
use ndarray_shm::arena::loans::Counters;
use ndarray_shm::counted::{Handle, HandleOptions};
use ndarray_shm::stream::{Backpressure, StreamOptions};
use ndarray_shm::{CreateOptions, DType, Directory, OpenOptions, SharedArray, StreamWriter};
use sysinfo::Pid;

/// The environment variable that makes `the_role_of_a_holder` a holder. Its value says what to hold.
const ROLE: &str = "NDSHM_TEST_HOLDER";
/// Marks the line with a holder's answer in the output of the test harness.
const MARK: &str = "holder: ";

/// A process that holds an array until it is killed or let go. Dropping this kills it.
pub(crate) struct Holder {
    child: Child,
    /// Handles that it has issued.
    pub(crate) handles: Vec<Handle>,
}

impl Holder {
    /// Starts a holder that creates a counted array of 30 x 40 `f32` in a directory, and then does each of `and`:
    /// `keep`, `freeze`, `handle=MILLISECONDS`.
    pub(crate) fn create(directory: &Path, name: &str, and: &[&str]) -> Self {
        Self::start(directory, name, "create", and)
    }

    /// Starts a holder that attaches to a counted array.
    pub(crate) fn open(directory: &Path, name: &str) -> Self {
        Self::start(directory, name, "open", &[])
    }

    /// Starts a holder that creates a plain array of one page.
    pub(crate) fn create_plain(directory: &Path, name: &str) -> Self {
        Self::start(directory, name, "plain", &[])
    }

    /// Starts a holder that creates an arena of 1 MiB, or counters.
    pub(crate) fn create_arena(directory: &Path, name: &str, how: &'static str) -> Self {
        Self::start(directory, name, how, &[])
    }

    /// Starts the writer of a stream with frames of 4 x 6 `u16` in 8 slots, which commits so many frames. The elements
    /// of a frame are its number. Each frame has three values `stage` beside its elements.
    pub(crate) fn create_stream(directory: &Path, name: &str, frames: usize) -> Self {
        Self::start(directory, name, "stream", &[&frames.to_string()])
    }

    /// Starts the same writer, which resumes the stream if there is one, and commits a frame each millisecond, as long
    /// as there are slots.
    pub(crate) fn start_camera(directory: &Path, name: &str) -> Self {
        Self::start(directory, name, "camera", &[])
    }

    /// Starts a process that reads a stream with the cursor `disk`. It acknowledges the first of the frames that come,
    /// and holds the next two.
    pub(crate) fn read_stream(directory: &Path, name: &str) -> Self {
        Self::start(directory, name, "cursor", &[])
    }

    fn start(directory: &Path, name: &str, how: &str, and: &[&str]) -> Self {
        let mut role = vec![directory.to_str().expect("text"), name, how];
        role.extend(and);
        let child = Command::new(std::env::current_exe().expect("a path"))
            .args(["--exact", "holder::the_role_of_a_holder", "--nocapture", "--test-threads=1"])
            .env(ROLE, role.join("\n"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts");
        let mut holder = Self { child, handles: Vec::new() };
        let lines = BufReader::new(holder.child.stdout.as_mut().expect("piped")).lines();
        let answer = lines.map(|line| line.expect("text")).find_map(|line| Some(line.split_once(MARK)?.1.to_owned()));
        let answer = answer.expect("the holder has attached");
        holder.handles = answer.split_whitespace().map(|text| text.parse().expect("a handle")).collect();
        holder
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_u32(self.child.id())
    }

    /// Kills it and waits for its end. It has no time to clean up.
    pub(crate) fn kill(mut self) -> Vec<Handle> {
        self.end();
        std::mem::take(&mut self.handles)
    }

    /// Makes it drop what it holds, and waits for its end.
    pub(crate) fn let_go(mut self) {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.child.stdout.take().expect("piped").read_to_string(&mut rest).expect("text");
        assert!(self.child.wait().expect("a child").success(), "{rest}");
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.end();
    }
}

/// Not a test: the process of a [`Holder`]. It ends when its standard input ends, and so at the latest with its parent.
#[test]
fn the_role_of_a_holder() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split('\n').collect();
    let [directory, name, how, and @ ..] = words.as_slice() else { panic!("{role:?}") };
    let backend = || Directory::new("emulated", directory);
    let wait = |handles: &[String]| {
        println!("\n{MARK}{}", handles.join(" "));
        std::io::stdin().read_to_end(&mut Vec::new()).expect("a pipe");
    };
    if *how == "plain" {
        let _held: SharedArray<u8, _> = CreateOptions::new().directory(backend()).create(*name, 4096).expect("created");
        return wait(&[]);
    }
    if *how == "arena" {
        let _held = ArenaOptions::new().directory(backend()).create(*name, 1 << 20).expect("created");
        return wait(&[]);
    }
    if *how == "counters" {
        let _held = Counters::create_in(&backend(), *name, 100).expect("created");
        return wait(&[]);
    }
    if let "stream" | "camera" | "cursor" = *how {
        return take_part_in_stream(backend(), name, how, and, || wait(&[]));
    }
    let array = if *how == "create" {
        CreateOptions::new().directory(backend()).create_counted::<f32, ndarray::Ix2>(*name, (30, 40))
    } else {
        OpenOptions::new().directory(backend()).open_counted(*name)
    };
    let array = array.expect("created or attached");
    let mut handles = Vec::new();
    for step in and {
        match step.split_once('=') {
            None if *step == "keep" => array.keep().expect("kept"),
            None if *step == "freeze" => array.freeze().expect("frozen"),
            Some(("handle", grace)) => {
                let grace = Duration::from_millis(grace.parse().expect("a number"));
                let handle = array.handle_with(HandleOptions::new().grace(grace)).expect("issued");
                handles.push(handle.to_string());
            }
            _ => panic!("{step:?}"),
        }
    }
    wait(&handles);
}

/// Writes or reads a stream until `wait` returns.
fn take_part_in_stream(directory: Directory, name: &str, how: &str, and: &[&str], wait: impl FnOnce()) {
    let options = StreamOptions::new().directory(directory).meta("stage", DType::F64, 3).resume(how == "camera");
    let options = options.note("axes", "y x").note("resolution", "0.65 0.65").note("unit", "um");
    if how == "cursor" {
        let cursor = options.open_cursor::<u16, ndarray::Ix2>(name, "disk", Backpressure::Wait);
        let mut cursor = cursor.expect("opened");
        println!("\n{MARK}"); // the frames may begin
        let mut next = || cursor.next_wait(Duration::MAX).expect("a frame");
        let (first, _held) = (next().number(), [next(), next()]);
        cursor.acknowledge(first).expect("it was returned");
        return wait();
    }
    let mut writer = options.create::<u16, _>(name, (4, 6), 8).expect("created");
    let commit = |writer: &mut StreamWriter<u16, ndarray::Ix2>| {
        let Ok(mut frame) = writer.frame() else { return };
        let number = frame.number();
        frame.view_mut().fill(u16::try_from(number % 65_536).expect("small"));
        frame.commit().expect("committed");
    };
    if how == "stream" {
        for _ in 0..and[0].parse().expect("a number") {
            commit(&mut writer);
        }
        return wait();
    }
    let is_let_go = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_let_go.load(Ordering::Relaxed) {
                commit(&mut writer);
                thread::sleep(Duration::from_millis(1));
            }
        });
        wait();
        is_let_go.store(true, Ordering::Relaxed);
    });
}
