//! Two operations from one starting state, as something that can be run again and again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use ndarray_shm::Directory;
use ndarray_shm::counted::Reclaim;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use crate::machine::call::{Place, masked};
use crate::machine::run::{Stage, Step};
use crate::machine::schedule::Schedule;
use crate::machine::search::{Expected, Outcome, Subject};
use crate::operations::{Kind, Operation};
use crate::states::{Has, JUDGED, Other, State};
use crate::world::{World, between, report};

/// The directories of one worker: the one in which processes meet, and one for what they tell each other beforehand.
#[derive(Debug)]
pub struct Room {
    path: PathBuf,
    place: Place,
    directory: Directory,
}

impl Room {
    pub fn new(path: PathBuf) -> Self {
        std::fs::create_dir_all(path.join("arrays")).expect("a directory in shared memory");
        let arrays = path.join("arrays");
        let directory = Directory::new("shm", &arrays);
        // Known before any process is forked, which would otherwise find it out in every run.
        directory.lock_survives_close().expect("a directory of files");
        Self { place: Place::new(&arrays), path, directory }
    }

    fn arrays(&self) -> PathBuf {
        self.path.join("arrays")
    }

    fn world(&self, letter: u8) -> World {
        World { directory: self.directory.clone(), letter, mail: self.path.join("mail") }
    }

    fn clear(&self) {
        for file in names(&self.arrays()) {
            let _ = std::fs::remove_file(self.arrays().join(file));
        }
        let _ = std::fs::remove_file(self.path.join("mail"));
    }

    /// Says what the directory contains, before and after everything is removed that no process needs.
    fn left(&self) -> String {
        let before = self.listed();
        let reclaimed = Reclaim::new().in_flight(true).run(&self.directory);
        let failed = reclaimed.err().map(|error| format!(" ({error})")).unwrap_or_default();
        let after = self.listed();
        if before == after { format!("{after}{failed}") } else { format!("{before} -> {after}{failed}") }
    }

    fn listed(&self) -> String {
        let files = names(&self.arrays());
        let texts = files.iter().map(|file| {
            let bytes = std::fs::read(self.arrays().join(file)).unwrap_or_default();
            if file.starts_with('.') {
                return masked(file); // elements without a public name may be those of before, or zero
            }
            let first = bytes.first().map_or('-', |byte| if *byte == 0 { '0' } else { char::from(*byte) });
            let described = self.directory.description(file.as_str()).ok().flatten();
            let note = described.map(|found| found.note("unit").map_or("+".into(), |unit| format!("+{unit}")));
            format!("{} {} {first}{}", masked(file), bytes.len(), note.unwrap_or_default())
        });
        format!("[{}]", texts.collect::<Vec<_>>().join(", "))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn names(directory: &Path) -> Vec<String> {
    let files = std::fs::read_dir(directory).expect("the room");
    let mut names: Vec<_> =
        files.filter_map(|file| Some(file.ok()?.file_name().to_string_lossy().into_owned())).collect();
    names.sort();
    names
}

/// Pairs that are left out, and why.
const LEFT_OUT: &[(&str, &str, &str)] = &[(
    "turn over",
    "discard by name",
    "the payload has become the array, and the ledger is removed and counted, as one that a killed process left",
)];

/// A pair in a room.
#[derive(Debug)]
pub struct Pair<'a> {
    pub room: &'a Room,
    pub state: &'static State,
    pub operations: [&'static Operation; 2],
}

/// Returns the pairs with a part in their names; without one, those of the judged states.
pub fn with<'a>(room: &'a Room, part: &str) -> Vec<Pair<'a>> {
    let is_asked = |pair: &Pair<'_>| match part {
        "" => JUDGED.contains(&pair.state.name),
        part => pair.name().contains(part),
    };
    all(room).into_iter().filter(is_asked).collect()
}

/// Returns all pairs.
pub fn all(room: &Room) -> Vec<Pair<'_>> {
    let mut pairs = Vec::new();
    for state in crate::states::all() {
        let operations = crate::operations::all();
        for (one, first) in operations.iter().enumerate() {
            for (two, second) in operations.iter().enumerate() {
                let fits = has(state.first, first.needs) && has(state.second(), second.needs);
                let is_twin = state.is_symmetric() && two < one;
                let is_idle = first.needs == Kind::Nothing && second.needs == Kind::Nothing && !state.is_plainest;
                let is_left_out = LEFT_OUT.iter().any(|(one, two, _why)| (*one, *two) == (first.name, second.name));
                if fits && !is_twin && !is_idle && !is_left_out {
                    pairs.push(Pair { room, state, operations: [first, second] });
                }
            }
        }
    }
    pairs
}

fn has(kinds: &[Kind], needed: Kind) -> bool {
    needed == Kind::Nothing || kinds.contains(&needed)
}

impl Pair<'_> {
    pub fn name(&self) -> String {
        format!("{}: {} + {}", self.state.name, self.operations[0].name, self.operations[1].name)
    }

    /// Forks a process that is traced, and stops itself when it has begun.
    #[allow(unsafe_code)]
    fn actor(act: impl FnOnce()) -> Pid {
        // SAFETY: this process has one thread, and the child runs the library as any forked child may.
        match unsafe { fork() }.expect("a process more") {
            ForkResult::Parent { child } => child,
            ForkResult::Child => {
                let end = catch_unwind(AssertUnwindSafe(|| {
                    ptrace::traceme().expect("this process may be traced");
                    raise(Signal::SIGSTOP).expect("a process may stop itself");
                    act();
                }));
                leave(end.is_ok())
            }
        }
    }

    /// Prepares two processes, and lets them stand before their first calls.
    fn enter(&self, stage: &mut Stage<'_>) -> Result<(), String> {
        let [first, second] = [b'a', b'b'].map(|letter| self.room.world(letter));
        let (begun, operations) = (self.state, self.operations);
        stage.enter(Self::actor(|| {
            let mut has = (begun.prepare)(&first);
            if matches!(begun.other, Other::Inherits) {
                fork_actor(|| perform(&second, operations[1], &mut has));
            }
            ready();
            perform(&first, operations[0], &mut has);
        }))?;
        if let Other::Prepares(_, prepare) = begun.other {
            stage.enter(Self::actor(|| {
                let mut has = prepare(&second);
                ready();
                perform(&second, operations[1], &mut has);
            }))?;
        }
        Ok(())
    }
}

/// In a process that prepares itself: forks the other one, which is traced as this one is.
#[allow(unsafe_code)]
fn fork_actor(act: impl FnOnce()) {
    // SAFETY: this process has one thread.
    if let ForkResult::Child = unsafe { fork() }.expect("a process more") {
        let end = catch_unwind(AssertUnwindSafe(|| {
            ready();
            act();
        }));
        leave(end.is_ok());
    }
}

fn ready() {
    raise(Signal::SIGSTOP).expect("a process may stop itself");
}

/// Ends this process without running anything else.
#[allow(unsafe_code)]
fn leave(well: bool) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(if well { 0 } else { 101 }) }
}

/// Performs an operation, and gives up everything.
fn perform(world: &World, operation: &Operation, has: &mut Has) {
    let done = catch_unwind(AssertUnwindSafe(|| (operation.perform)(world, has)));
    if let Err(panic) = done {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        report(format!("panicked: {}", text.or(panic.downcast_ref::<&str>().copied()).unwrap_or_default()));
        leave(false);
    }
    between();
    drop(std::mem::take(has));
}

impl Subject for Pair<'_> {
    fn play(&mut self, schedule: &Schedule, promised: &[Step]) -> Outcome {
        self.room.clear();
        // Processes without a parent: they were waited for as traced ones only.
        while waitpid(None, Some(WaitPidFlag::WNOHANG)).is_ok_and(|status| status != WaitStatus::StillAlive) {}
        let mut stage = Stage::new(&self.room.place);
        if let Err(why) = self.enter(&mut stage) {
            return Outcome { wrong: vec![format!("of the machine: {why}")], ..Outcome::default() };
        }
        let run = stage.play(schedule, promised);
        let left = self.room.left();
        Outcome { steps: run.steps, reports: run.reports, left, wrong: run.wrong }
    }

    fn allows(&self, outcome: &Outcome, expected: &Expected) -> bool {
        // A process that only looks at a file has a lease for a moment. The last user that leaves then, or a process
        // that would remove an orphan, takes it for a user: the name stays until the next process reclaims.
        let is_looked_at = outcome.reports.iter().any(|text| text.contains("Reserved") || text.contains("gc:"));
        let mut has_excuse = is_looked_at;
        for (index, text) in outcome.reports.iter().enumerate() {
            let operation = self.operations[index.min(1)];
            let in_use = ["AlreadyExists"];
            let more = if self.state.has_orphan { &in_use[..] } else { &[] };
            let is_allowed = |part: &str| operation.allows.iter().chain(more).any(|allowed| part.ends_with(allowed));
            let is_excused = text.split(", ").any(is_allowed);
            has_excuse |= is_excused;
            if !is_excused && !expected.reports.contains(text) {
                return false;
            }
        }
        if is_looked_at || self.operations.iter().any(|operation| operation.leaves_names) {
            let in_the_end = |left: &str| left.rsplit(" -> ").next().unwrap_or_default().to_string();
            return expected.left.iter().any(|left| in_the_end(left) == in_the_end(&outcome.left));
        }
        has_excuse && expected.left.contains(&outcome.left)
    }
}
