//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use nix::sys::ptrace;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork};

use crate::machine::schedule::{Schedule, letter};
use crate::machine::search::{Bounds, Search};
use crate::pair::{self, Room};
use crate::workers::{Job, REPLAY, WORKER, distribute, replay, stay_on, work};

const USAGE: &str = "scripts/explore [--all] [--deep] [--random] [--seconds N] [--seed N] [--share K/N] [--unreduced] [--list] [PART | PAIR SCHEDULE]";

/// Schedules of each pair that `--random` tries.
const RANDOM_WALKS: usize = 40;

/// Schedules that were found once, and must not be wrong again.
const FOUND: &str = include_str!("found.txt");

/// Returns the directory of a worker.
pub fn directory(which: usize) -> PathBuf {
    PathBuf::from(format!("/dev/shm/ndshm-explore-{}-{which}", std::process::id()))
}

pub fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Ok(worker) = std::env::var(WORKER) {
        if worker == REPLAY {
            stay_on(0);
            let [pair, schedule, prints] = arguments.as_slice() else { return ExitCode::from(2) };
            return replay_here(pair, &schedule.parse().expect("a schedule"), prints == "true");
        }
        let job = Job::of(&arguments).expect("the explorer's own arguments");
        let (which, of) = worker.split_once('/').expect("which of how many");
        work(&job, which.parse().expect("a number"), of.parse().expect("a number"));
        return ExitCode::SUCCESS;
    }
    if !may_trace() {
        println!("NOT RUN: this process may not trace its children (ptrace), so no interleaving was tried");
        return if std::env::var("CI").is_ok_and(|ci| ci == "true") { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    let Some(command) = Command::of(&arguments) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match command {
        Command::List(part) => {
            let room = Room::new(directory(0));
            pair::all(&room)
                .iter()
                .map(pair::Pair::name)
                .filter(|name| name.contains(&part))
                .for_each(|it| println!("{it}"));
            ExitCode::SUCCESS
        }
        Command::Replay(pair, schedule) => exit(replay(&pair, &schedule, true)),
        Command::Explore(job) => explore(&job),
    }
}

enum Command {
    List(String),
    Replay(String, Schedule),
    Explore(Job),
}

impl Command {
    fn of(arguments: &[String]) -> Option<Self> {
        let mut job = Job {
            part: String::new(),
            preemptions: 1,
            harm: false,
            walks: 0,
            reduces: true,
            seconds: None,
            seed: 0,
            first_only: false,
            share: (0, 1),
        };
        let mut list = false;
        let mut plain = Vec::new();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "--all" => (job.preemptions, job.harm) = (2, true),
                "--deep" => job.preemptions = 2,
                "--random" => (job.walks, job.harm) = (RANDOM_WALKS, true),
                "--harm" => job.harm = true,
                "--unreduced" => job.reduces = false,
                "--first" => job.first_only = true,
                "--list" => list = true,
                "--share" => job.share = share(rest.next()?)?,
                "--seconds" => job.seconds = Some(rest.next()?.parse().ok()?),
                "--seed" => job.seed = rest.next()?.parse().ok()?,
                option if option.starts_with('-') => return None,
                other => plain.push(other.to_string()),
            }
        }
        match plain.as_slice() {
            [] => {}
            [part] => job.part.clone_from(part),
            [pair, schedule] => return Some(Self::Replay(pair.clone(), schedule.parse().ok()?)),
            _ => return None,
        }
        Some(if list { Self::List(job.part) } else { Self::Explore(job) })
    }
}

/// Reads which of how many parts, from 1.
fn share(text: &str) -> Option<(usize, usize)> {
    let (share, shares) = text.split_once('/')?;
    let (share, shares): (usize, usize) = (share.parse().ok()?, shares.parse().ok()?);
    (1..=shares).contains(&share).then(|| (share - 1, shares))
}

/// Whether this process may trace its children.
#[allow(unsafe_code)]
fn may_trace() -> bool {
    // SAFETY: this process has one thread, and the child makes two system calls.
    match unsafe { fork() } {
        Ok(ForkResult::Parent { child }) => {
            waitpid(child, None).is_ok_and(|status| matches!(status, nix::sys::wait::WaitStatus::Exited(_, 0)))
        }
        Ok(ForkResult::Child) => {
            let status = i32::from(ptrace::traceme().is_err());
            // SAFETY: ends the process.
            unsafe { libc::_exit(status) }
        }
        Err(_) => false,
    }
}

fn exit(is_well: bool) -> ExitCode {
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// In a worker: runs one schedule, and prints its steps.
fn replay_here(name: &str, schedule: &Schedule, prints: bool) -> ExitCode {
    let room = Room::new(directory(0));
    let Some(mut pair) = pair::all(&room).into_iter().find(|pair| pair.name() == name) else {
        println!("no pair is called {name:?} (--list prints all)");
        return ExitCode::from(2);
    };
    let bounds =
        Bounds { preemptions: 0, harm: schedule.harm.is_some(), walks: 0, seed: 0, reduces: true, until: None };
    let (summary, outcome) = Search::new(&mut pair, bounds).replay(schedule);
    if prints {
        for (at, step) in outcome.steps.iter().enumerate() {
            println!("{at:4} {}  {}", letter(step.actor), step.point);
        }
        println!("{}", outcome.text());
    }
    for finding in &summary.found {
        println!("WRONG  {name}  {}\n  {}", finding.schedule, finding.why);
    }
    exit(summary.found.is_empty())
}

/// Tries everything that a job says, after what was found before.
fn explore(job: &Job) -> ExitCode {
    let mut is_wrong = false;
    if job.part.is_empty() {
        for line in FOUND.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (pair, schedule) = line.rsplit_once(' ').expect("a pair and a schedule");
            let schedule = schedule.parse().expect("a schedule");
            is_wrong |= !replay(pair.trim_end(), &schedule, false);
        }
    }
    let (begun, mut counts, mut outcomes) = (Instant::now(), [0; 5], 0);
    let (mut pairs, mut incomplete) = (0, 0);
    distribute(job, |answer| {
        for (schedule, before, why) in &answer.found {
            is_wrong = true;
            println!("WRONG  {}  {schedule}  (after {before} schedules)\n  {why}", answer.pair);
        }
        pairs += 1;
        incomplete += usize::from(!answer.is_complete && answer.found.is_empty());
        outcomes += answer.outcomes.len();
        let more = [answer.schedules, answer.kills, answer.stops, answer.failures, answer.found.len()];
        counts.iter_mut().zip(more).for_each(|(count, more)| *count += more);
        if std::env::var_os("NDSHM_EXPLORE_SLOW").is_some() {
            println!("{:6} ms  {:5}  {}", answer.time.as_millis(), answer.schedules, answer.pair);
        }
    });
    let room = Room::new(directory(0));
    let all = pair::with(&room, &job.part).len();
    let [schedules, kills, stops, failures, found] = counts;
    println!(
        "{pairs} of {all} pairs ({incomplete} in part), {schedules} schedules, {kills} kills, {stops} stops, {failures} \
         failing calls, {outcomes} outcomes, {:.0} s: {found} wrong",
        begun.elapsed().as_secs_f64()
    );
    exit(!is_wrong)
}
