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
use crate::operations::{Kind, ON_BOTH, Operation};
use crate::states::{Has, Other, State};
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
    "the payload has become an array and gone back to its pool: it looks like one that another process has discarded",
)];

/// What a process reports that may not name its array, and what it leaves.
const REFUSED: &str = "finish: AlreadyExists";
const UNFINISHED: &str = "[.ndshm-ledger-x, .ndshm-part-x]";

/// A pair in a room.
#[derive(Debug)]
pub struct Pair<'a> {
    pub room: &'a Room,
    pub state: &'static State,
    /// One for each process.
    pub operations: Vec<&'static Operation>,
}

/// Operations of three processes, and the state that they begin with. The third process prepares itself as the second
/// one does, or has nothing.
const TRIPLES: &[(&str, [&str; 3])] = &[
    ("free name", ["begin, paint and finish", "begin, paint and finish", "discard by name"]),
    ("free name", ["create filled", "open or create", "unlink by name"]),
    ("free name", ["create counted", "open counted and read", "gc"]),
    ("unused array", ["replace", "describe", "note"]),
    ("unused array", ["replace", "unlink by name", "open and read"]),
    ("two plain", ["write", "read", "unlink by name"]),
    ("plain, inherited", ["detach", "write", "gc"]),
    ("counted", ["close", "open counted and read", "gc"]),
    ("two counted", ["close", "close", "clone"]),
    ("two counted", ["recycle and write", "close", "issue a handle"]),
    ("counted, inherited", ["close", "issue, attach and read", "gc"]),
    ("counted, sent", ["close", "attach and read", "gc"]),
    ("counted, sent", ["recycle and write", "attach and read", "revoke"]),
    ("pooled, by name", ["give back and publish again", "open and read", "replace"]),
    ("pooled", ["give back and publish again", "read", "open a reader"]),
    ("pooled, inherited", ["give back, take and fill", "read pooled", "open and read"]),
    ("recycled, inherited", ["give back and publish again", "write pooled", "unlink by name"]),
    ("draft, inherited", ["publish", "share", "create"]),
    ("two painters", ["paint and finish", "paint and finish", "discard by name"]),
    ("begun, inherited", ["discard", "paint", "begin"]),
    ("orphan", ["create", "open counted and read", "gc"]),
    ("abandoned buffer", ["begin", "discard by name", "gc"]),
    ("two members", ["send a block", "receive a block", "leave the arena"]),
];

/// Returns the pairs with a part in their names.
pub fn with<'a>(room: &'a Room, part: &str) -> Vec<Pair<'a>> {
    all(room).into_iter().filter(|pair| pair.name().contains(part)).collect()
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
                // Without it, as from another state.
                let is_known = state.first.contains(&Kind::Channel)
                    && first.needs != Kind::Channel
                    && second.needs != Kind::Channel;
                let is_elsewhere = [first, second].iter().any(|it| it.name != ON_BOTH && it.subject() != state.subject);
                if fits && !is_elsewhere && !is_twin && !is_idle && !is_known && !is_left_out {
                    pairs.push(Pair { room, state, operations: vec![first, second] });
                }
            }
        }
    }
    pairs.extend(TRIPLES.iter().map(|(begun, names)| {
        let state = crate::states::all().iter().find(|state| state.name == *begun).expect("a state of the table");
        let all = crate::operations::all();
        let operation = |name: &&str| *all.iter().find(|known| known.name == *name).expect("an operation of the table");
        Pair { room, state, operations: names.iter().map(operation).collect() }
    }));
    pairs
}

fn has(kinds: &[Kind], needed: Kind) -> bool {
    needed == Kind::Nothing || kinds.contains(&needed)
}

impl Pair<'_> {
    pub fn name(&self) -> String {
        let operations: Vec<_> = self.operations.iter().map(|operation| operation.name).collect();
        format!("{}: {}", self.state.name, operations.join(" + "))
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

    /// Prepares the processes, and lets them stand before their first calls.
    fn enter(&self, stage: &mut Stage<'_>) -> Result<(), String> {
        let [first, second, third] = [b'a', b'b', b'c'].map(|letter| self.room.world(letter));
        let (begun, operations) = (self.state, &self.operations);
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
        if let Some(operation) = operations.get(2) {
            stage.enter(Self::actor(|| {
                let mut has = match begun.other {
                    Other::Prepares(kinds, prepare) if kinds.contains(&operation.needs) => prepare(&third),
                    _ => Has::default(),
                };
                ready();
                perform(&third, operation, &mut has);
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
    fn actors(&self) -> usize {
        self.operations.len()
    }

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
            let operation = self.operations[index.min(self.operations.len() - 1)];
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
        // A process that may not name its array keeps the buffer.
        let keeps_buffer = outcome.left == UNFINISHED && outcome.reports.iter().any(|it| it.ends_with(REFUSED));
        has_excuse && (keeps_buffer || expected.left.contains(&outcome.left))
    }
}
