//! Workers: one process for each processor, which stays on it with all processes that it forks. They share the pairs.
//!
//! A worker has no vDSO, so that every question of the time is a system call.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::prctl;
use nix::sys::ptrace;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::machine::schedule::Schedule;
use crate::machine::search::{Bounds, Search, Summary};
use crate::machine::tracee::Tracee;
use crate::pair::{self, Room};

/// Tells a worker which of how many it is.
pub const WORKER: &str = "NDSHM_EXPLORE_WORKER";

/// As the value of that: the worker runs one schedule.
pub const REPLAY: &str = "replay";

/// What is to be tried.
#[derive(Debug, Clone)]
pub struct Job {
    /// A part of the pairs' names.
    pub part: String,
    pub preemptions: usize,
    pub harm: bool,
    /// Schedules of each pair that are tried at random, instead of all: 0 for all.
    pub walks: usize,
    pub reduces: bool,
    pub seconds: Option<u64>,
    /// Decides the order.
    pub seed: u64,
    /// Whether a pair is the last one tried once it has a finding.
    pub first_only: bool,
    /// Which of how many parts of the pairs it tries, from 0.
    pub share: (usize, usize),
}

/// What a worker found in a pair.
#[derive(Debug, Default)]
pub struct Answer {
    pub pair: String,
    pub schedules: usize,
    pub kills: usize,
    pub stops: usize,
    pub failures: usize,
    pub found: Vec<(String, usize, String)>,
    pub outcomes: Vec<String>,
    pub time: Duration,
    pub is_complete: bool,
}

impl Job {
    fn bounds(&self, pair: &str, until: Option<Instant>) -> Bounds {
        let seed = order(pair, self.seed);
        let Self { preemptions, harm, walks, reduces, .. } = *self;
        Bounds { preemptions, harm, walks, seed, reduces, until }
    }

    fn arguments(&self) -> Vec<String> {
        vec![
            self.part.clone(),
            self.preemptions.to_string(),
            self.harm.to_string(),
            self.walks.to_string(),
            self.reduces.to_string(),
            self.seconds.map_or_else(String::new, |seconds| seconds.to_string()),
            self.seed.to_string(),
            self.first_only.to_string(),
        ]
    }

    pub fn of(arguments: &[String]) -> Option<Self> {
        let [part, preemptions, harm, walks, reduces, seconds, seed, first_only] = arguments else { return None };
        Some(Self {
            part: part.clone(),
            preemptions: preemptions.parse().ok()?,
            harm: harm.parse().ok()?,
            walks: walks.parse().ok()?,
            reduces: reduces.parse().ok()?,
            seconds: seconds.parse().ok(),
            seed: seed.parse().ok()?,
            first_only: first_only.parse().ok()?,
            share: (0, 1), // a worker is told its place among all of them
        })
    }
}

/// Returns the place of a name in an order that the seed decides.
fn order(name: &str, seed: u64) -> u64 {
    name.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The work of one worker: prints a line for each pair.
pub fn work(job: &Job, which: usize, of: usize) {
    stay_on(which);
    yield_to_others();
    // Of two processes, the forked one may end last. No other process may be there to wait for it.
    prctl::set_child_subreaper(true).expect("a process may adopt");
    let room = Room::new(crate::explorer::directory(which));
    let mut pairs = pair::with(&room, &job.part);
    pairs.sort_by_key(|pair| order(&pair.name(), job.seed));
    let until = job.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    for mut pair in pairs.into_iter().skip(which).step_by(of) {
        let name = pair.name();
        if until.is_some_and(|until| Instant::now() >= until) {
            break;
        }
        let begun = Instant::now();
        let summary = Search::new(&mut pair, job.bounds(&name, until)).run();
        print(&name, &summary, begun.elapsed());
        if job.first_only && !summary.found.is_empty() {
            break;
        }
    }
}

fn print(name: &str, summary: &Summary, time: Duration) {
    for finding in &summary.found {
        println!("found\t{}\t{}\t{}", finding.schedule, finding.before, finding.why.replace('\n', "\\n"));
    }
    for outcome in &summary.outcomes {
        println!("outcome\t{outcome}");
    }
    let Summary { schedules, kills, stops, failures, is_complete, .. } = summary;
    println!("pair\t{name}\t{schedules}\t{kills}\t{stops}\t{failures}\t{}\t{is_complete}", time.as_micros());
}

/// Keeps this process, and those that it forks, on one processor: a stop and its answer are then a change of process
/// without a wake-up of another processor, which takes three times as long.
pub fn stay_on(which: usize) {
    let this = Pid::from_raw(0);
    let Ok(all) = sched_getaffinity(this) else { return };
    let allowed: Vec<_> = (0..CpuSet::count()).filter(|cpu| all.is_set(*cpu).unwrap_or(false)).collect();
    let mut one = CpuSet::new();
    if one.set(allowed[which % allowed.len()]).is_ok() {
        let _ = sched_setaffinity(this, &one); // slower, but not wrong
    }
}

/// Lets other programs that compute go first. Those that often sleep still wait long for a processor.
#[allow(unsafe_code)]
fn yield_to_others() {
    // SAFETY: only the priority of this process changes.
    unsafe { libc::nice(19) };
}

/// Starts this program without a vDSO, and with points before words of shared memory.
#[allow(unsafe_code)]
fn start(role: &str, arguments: &[String], output: Stdio) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(arguments).env(WORKER, role).env("NDSHM_POINTS", "1").stdout(output);
    let trace = || ptrace::traceme().map_err(std::io::Error::from);
    // SAFETY: between fork and exec the child makes one system call.
    let child = unsafe { command.pre_exec(trace) }.spawn().expect("this program runs again");
    without_vdso(Pid::from_raw(i32::try_from(child.id()).expect("a process number")));
    child
}

/// Hides the vDSO from a program that has stopped before its first instruction: its loader finds no address of it.
fn without_vdso(pid: Pid) {
    const SYSINFO: u64 = 33;
    const IGNORED: u64 = 1;
    let status = waitpid(pid, None).expect("a child of this process");
    assert!(matches!(status, WaitStatus::Stopped(..)), "it stops at exec: {status:?}");
    let tracee = Tracee::of_stopped(pid);
    let word = |at: u64| tracee.read(at, 8).try_into().map_or(0, u64::from_le_bytes);
    // The number of arguments, the arguments, zero, the environment, zero, pairs of a type and a value.
    let mut at = ptrace::getregs(pid).expect("a stopped process").rsp;
    at += 8 * (word(at) + 2);
    while word(at) != 0 {
        at += 8;
    }
    at += 8;
    while word(at) != 0 {
        if word(at) == SYSINFO {
            tracee.write(at, &IGNORED.to_le_bytes());
        }
        at += 16;
    }
    std::mem::forget(tracee); // it is not killed
    ptrace::detach(pid, None).expect("a stopped process");
}

/// Has workers try everything, and hands each answer on.
pub fn distribute(job: &Job, mut hear: impl FnMut(Answer)) {
    let here = std::thread::available_parallelism().map_or(1, usize::from);
    let (share, shares) = job.share;
    let start = |which| start(&format!("{which}/{}", here * shares), &job.arguments(), Stdio::piped());
    let mut workers: Vec<_> = (here * share..here * (share + 1)).map(start).collect();
    let (sender, receiver) = std::sync::mpsc::channel();
    for worker in &mut workers {
        let (lines, sender) = (BufReader::new(worker.stdout.take().expect("a pipe")), sender.clone());
        std::thread::spawn(move || {
            let mut answer = Answer::default();
            for line in lines.lines().map_while(Result::ok) {
                if answer.read(&line) {
                    let _ = sender.send(std::mem::take(&mut answer));
                }
            }
        });
    }
    drop(sender);
    receiver.into_iter().for_each(&mut hear);
    for (which, mut worker) in workers.into_iter().enumerate() {
        let status = worker.wait().expect("a child of this process");
        if !status.success() {
            let why = format!("worker {which}: {status}");
            hear(Answer { found: vec![(String::new(), 0, why)], ..Answer::default() });
        }
    }
}

/// Has a worker run one schedule, and print its steps if `prints`. Returns whether nothing was wrong.
pub fn replay(pair: &str, schedule: &Schedule, prints: bool) -> bool {
    let arguments = [pair.into(), schedule.to_string(), prints.to_string()];
    start(REPLAY, &arguments, Stdio::inherit()).wait().expect("a child of this process").success()
}

impl Answer {
    /// Reads a line. Returns whether the answer is complete.
    fn read(&mut self, line: &str) -> bool {
        let parts: Vec<_> = line.split('\t').collect();
        let number = |text: &str| text.parse().unwrap_or(0);
        match *parts {
            ["found", schedule, before, why] => {
                self.found.push((schedule.into(), number(before), why.replace("\\n", "\n")));
                false
            }
            ["outcome", text] => {
                self.outcomes.push(text.into());
                false
            }
            ["pair", name, schedules, kills, stops, failures, time, is_complete] => {
                self.pair = name.into();
                (self.schedules, self.kills) = (number(schedules), number(kills));
                (self.stops, self.failures) = (number(stops), number(failures));
                self.time = Duration::from_micros(time.parse().unwrap_or(0));
                self.is_complete = is_complete == "true";
                true
            }
            _ => {
                println!("{line}");
                false
            }
        }
    }
}
