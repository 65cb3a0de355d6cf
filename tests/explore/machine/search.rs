//! Which schedules are tried.
//!
//! *Expected* outcomes are those of all runs in which a process is only interrupted between two calls of the library.
//! Then every call is interrupted once at every step, or twice: a depth-first search over the points at which another
//! process goes on instead (Musuvathi and Qadeer, 2007: few preemptions find most errors). Letting another process go
//! on before a step is the same as after it if the step and everything that the other process does then commute.
//!
//! Harm comes at every step of every schedule with at most one preemption: a kill, a stop, or a failing call.

use std::collections::BTreeSet;
use std::time::Instant;

use super::run::Step;
use super::schedule::{Harm, Schedule};

/// How one run ended.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    pub steps: Vec<Step>,
    /// What each process reported.
    pub reports: Vec<String>,
    /// What the directory contained in the end.
    pub left: String,
    /// What must never happen.
    pub wrong: Vec<String>,
}

impl Outcome {
    /// What two runs have in common that lead to the same.
    pub fn text(&self) -> String {
        format!("{} | {}", self.reports.join(" | "), self.left)
    }
}

/// A pair of operations from one starting state, which can be run again and again.
pub trait Subject {
    /// Runs it as the schedule says. `promised` are the steps that it was made for.
    fn play(&mut self, schedule: &Schedule, promised: &[Step]) -> Outcome;

    /// How many processes there are at the beginning.
    fn actors(&self) -> usize;

    /// Whether nothing is wrong although the outcome differs from all expected ones.
    fn allows(&self, outcome: &Outcome, expected: &Expected) -> bool;
}

/// What runs without preemption lead to.
#[derive(Debug, Default)]
pub struct Expected {
    pub outcomes: BTreeSet<String>,
    pub reports: BTreeSet<String>,
    pub left: BTreeSet<String>,
}

/// How far the search goes.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub preemptions: usize,
    pub harm: bool,
    /// How many schedules with up to [`MOST_RANDOM`] turns are tried at random, from this seed. 0: everything is tried.
    pub walks: usize,
    pub seed: u64,
    /// Whether steps that commute are not tried in both orders.
    pub reduces: bool,
    /// When it ends although not everything was tried.
    pub until: Option<Instant>,
}

/// What was tried, and what was found.
#[derive(Debug, Default)]
pub struct Summary {
    pub schedules: usize,
    pub kills: usize,
    pub stops: usize,
    pub failures: usize,
    pub found: Vec<Finding>,
    /// Distinct outcomes.
    pub outcomes: BTreeSet<String>,
    pub is_complete: bool,
}

/// A schedule that leads to what must not be.
#[derive(Debug, Clone)]
pub struct Finding {
    pub schedule: String,
    pub why: String,
    /// How many schedules were tried before.
    pub before: usize,
}

/// Turns between calls that one schedule with preemptions takes at most. Those without have no such bound.
const FREE_TURNS: usize = 2;

/// Findings after which a pair is left.
const ENOUGH: usize = 3;

/// Runs without preemption that are tried at most. Every pair of the table has fewer.
const MOST_SERIAL: usize = 2_000;

/// Turns of a schedule at random.
const MOST_RANDOM: usize = 5;

/// What of a directory's contents a kill or a failing call may not change: the names in the end, with lengths and
/// elements. Descriptions are optional, and hidden drafts stay for a minute.
fn essence(left: &str) -> Vec<&str> {
    let in_the_end = left.rsplit(" -> ").next().unwrap_or_default();
    let files = in_the_end.trim_matches(['[', ']']).split(", ").filter(|file| !file.starts_with(".ndshm-draft-"));
    files.map(|file| file.split('+').next().unwrap_or_default()).filter(|file| !file.is_empty()).collect()
}

/// The search of one pair.
pub struct Search<'a, S> {
    subject: &'a mut S,
    bounds: Bounds,
    expected: Expected,
    pub summary: Summary,
}

/// Numbers that a seed decides: splitmix64 (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    /// Returns a number below a bound, which is not zero.
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % bound as u64).expect("it is below the bound")
    }
}

/// A schedule with the cost of its turns.
#[derive(Clone)]
struct Branch {
    turns: Vec<usize>,
    promised: Vec<Step>,
    preemptions: usize,
    free: usize,
}

impl<'a, S: Subject> Search<'a, S> {
    pub fn new(subject: &'a mut S, bounds: Bounds) -> Self {
        Self { subject, bounds, expected: Expected::default(), summary: Summary::default() }
    }

    /// Tries everything within the bounds.
    pub fn run(mut self) -> Summary {
        self.expect();
        if self.summary.found.is_empty() {
            self.wander();
            let firsts = if self.bounds.walks == 0 { self.subject.actors() } else { 0 };
            for first in 0..firsts {
                let turns = vec![first];
                self.walk(&Branch { turns, promised: Vec::new(), preemptions: 0, free: 0 });
            }
        }
        self.summary.is_complete = !self.is_over();
        self.summary
    }

    /// Tries one schedule only.
    pub fn replay(mut self, schedule: &Schedule) -> (Summary, Outcome) {
        self.expect();
        let outcome = self.subject.play(schedule, &[]);
        self.judge(schedule, &outcome);
        (self.summary, outcome)
    }

    fn is_over(&self) -> bool {
        self.summary.found.len() >= ENOUGH || self.bounds.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Finds the expected outcomes.
    fn expect(&mut self) {
        let mut open: Vec<_> = (0..self.subject.actors()).rev().map(|first| vec![first]).collect();
        let mut tried = 0;
        while let Some(turns) = open.pop() {
            let schedule = Schedule::of(turns.clone());
            let outcome = self.subject.play(&schedule, &[]);
            tried += 1;
            if !outcome.wrong.is_empty() || tried > MOST_SERIAL {
                let why = if tried > MOST_SERIAL { "too many calls".into() } else { outcome.wrong.join("; ") };
                self.found(&schedule, why);
                return;
            }
            self.remember(&outcome);
            let all: Vec<_> = outcome.steps.iter().map(|step| step.actor).collect();
            for (at, step) in outcome.steps.iter().enumerate().skip(turns.len()) {
                let is_turn = at > 0 && outcome.steps[at - 1].actor != step.actor;
                if step.point.is_between && !is_turn {
                    open.extend(step.others.iter().map(|other| [&all[..at], &[*other]].concat()));
                }
            }
            // A process that another one kills between two of its calls.
            if self.bounds.harm {
                self.expect_kills(&outcome, &all, if turns.len() == 1 { 0 } else { turns.len() });
            }
        }
        self.summary.schedules += tried;
    }

    fn expect_kills(&mut self, outcome: &Outcome, all: &[usize], from: usize) {
        for (at, step) in outcome.steps.iter().enumerate().skip(from) {
            let is_turn = at == 0 || outcome.steps[at - 1].actor != step.actor;
            if step.point.is_between || is_turn {
                let schedule = Schedule::of(all[..at].to_vec()).with(step.actor, Harm::Kill);
                let killed = self.subject.play(&schedule, &[]);
                self.expected.left.insert(killed.left);
            }
        }
    }

    fn remember(&mut self, outcome: &Outcome) {
        self.expected.outcomes.insert(outcome.text());
        self.expected.reports.extend(outcome.reports.iter().cloned());
        self.expected.left.insert(outcome.left.clone());
    }

    /// Tries a schedule, and those that differ from it by a later turn. Returns the steps of the process that goes on
    /// in the last turn of the schedule, until another one does.
    fn walk(&mut self, branch: &Branch) -> Vec<Step> {
        let schedule = Schedule::of(branch.turns.clone());
        let outcome = self.subject.play(&schedule, &branch.promised);
        self.summary.schedules += 1;
        self.judge(&schedule, &outcome);
        let begun = branch.turns.len();
        let steps = &outcome.steps;
        let last = branch.turns[begun - 1];
        let turn =
            || steps[begun.min(steps.len()) - 1..].iter().take_while(|step| step.actor == last).cloned().collect();
        if !outcome.wrong.is_empty() || self.is_over() {
            return turn();
        }
        if self.bounds.harm && branch.preemptions <= 1 {
            self.harm(&outcome, begun - 1);
        }
        // From the last step to the first: what another process does when it goes on after a step is known when it is
        // asked what it does before it.
        let mut later: Vec<(usize, bool, Vec<Step>)> = Vec::new();
        for at in (begun..steps.len()).rev() {
            let step = &steps[at];
            let mut here = Vec::new();
            for other in &step.others {
                // The process itself went on by choice: otherwise the turn is not one of the search.
                if at > 0 && steps[at - 1].actor != step.actor {
                    continue;
                }
                let (preemptions, free) = if step.is_free {
                    (branch.preemptions, branch.free + 1)
                } else {
                    (branch.preemptions + 1, branch.free)
                };
                if preemptions > self.bounds.preemptions || free > FREE_TURNS {
                    continue;
                }
                // Only a turn of the same cost leaves as many turns for what follows.
                let after = later.iter().find(|(actor, was_free, _)| actor == other && *was_free == step.is_free);
                if let Some((_, _, does)) = after.filter(|_| self.bounds.reduces) {
                    if does.iter().all(|one| one.point.commutes(&step.point)) {
                        here.push((*other, step.is_free, does.clone()));
                        continue;
                    }
                }
                let turns = steps[..at].iter().map(|step| step.actor).chain([*other]).collect();
                let promised = steps[..at].to_vec();
                here.push((*other, step.is_free, self.walk(&Branch { turns, promised, preemptions, free })));
                if self.is_over() {
                    return turn();
                }
            }
            later = here;
        }
        turn()
    }

    /// Tries schedules at random: each lets another process go on at a random later step, again and again, and harms
    /// one in the end.
    fn wander(&mut self) {
        let mut random = Random(self.bounds.seed);
        for _ in 0..self.bounds.walks {
            let mut schedule = Schedule::of(vec![random.below(self.subject.actors())]);
            for _ in 0..MOST_RANDOM {
                let outcome = self.subject.play(&schedule, &[]);
                self.summary.schedules += 1;
                self.judge(&schedule, &outcome);
                let begun = schedule.turns.len();
                if !outcome.wrong.is_empty() || self.is_over() {
                    break;
                }
                let later = &outcome.steps[begun.min(outcome.steps.len())..];
                if !later.is_empty() && random.below(MOST_RANDOM) == 0 {
                    let at = begun + random.below(later.len());
                    self.harm_at(&outcome, at);
                }
                let turns: Vec<_> = (0..later.len()).filter(|at| !later[*at].others.is_empty()).collect();
                if turns.is_empty() {
                    break;
                }
                let at = begun + turns[random.below(turns.len())];
                let others = &outcome.steps[at].others;
                let before = outcome.steps[..at].iter().map(|step| step.actor);
                schedule = Schedule::of(before.chain([others[random.below(others.len())]]).collect());
            }
            if self.is_over() {
                return;
            }
        }
    }

    /// Harms the process that goes on at each later step.
    fn harm(&mut self, outcome: &Outcome, from: usize) {
        for at in from..outcome.steps.len() {
            self.harm_at(outcome, at);
            if self.is_over() {
                return;
            }
        }
    }

    fn harm_at(&mut self, outcome: &Outcome, at: usize) {
        let step = &outcome.steps[at];
        let turns: Vec<_> = outcome.steps[..at].iter().map(|step| step.actor).collect();
        let failures = step.point.errors.iter().map(|error| Harm::Fail(*error));
        for harm in [Harm::Kill, Harm::Stop].into_iter().chain(failures) {
            let schedule = Schedule::of(turns.clone()).with(step.actor, harm);
            let harmed = self.subject.play(&schedule, &outcome.steps[..at]);
            match harm {
                Harm::Kill => self.summary.kills += 1,
                Harm::Stop => self.summary.stops += 1,
                Harm::Fail(_) => self.summary.failures += 1,
            }
            self.judge_harmed(&schedule, &harmed);
            if self.is_over() {
                return;
            }
        }
    }

    fn judge(&mut self, schedule: &Schedule, outcome: &Outcome) {
        if !outcome.wrong.is_empty() {
            return self.found(schedule, outcome.wrong.join("; "));
        }
        self.summary.outcomes.insert(outcome.text());
        if !self.expected.outcomes.contains(&outcome.text()) && !self.subject.allows(outcome, &self.expected) {
            self.found(schedule, format!("{}\n  is not one of\n  {}", outcome.text(), self.known()));
        }
    }

    /// A killed process leaves what one leaves that was killed between two calls; a stopped one only makes others wait;
    /// and a failing call is an error of the one that made it.
    fn judge_harmed(&mut self, schedule: &Schedule, outcome: &Outcome) {
        if !outcome.wrong.is_empty() {
            return self.found(schedule, outcome.wrong.join("; "));
        }
        let is_torn = outcome.reports.iter().any(|report| report.contains("torn"));
        let left = essence(&outcome.left);
        if is_torn || !self.expected.left.iter().any(|known| essence(known) == left) {
            self.found(schedule, format!("{}\n  leaves none of\n  {}", outcome.text(), self.lefts()));
        }
    }

    fn known(&self) -> String {
        self.expected.outcomes.iter().map(String::as_str).collect::<Vec<_>>().join("\n  ")
    }

    fn lefts(&self) -> String {
        self.expected.left.iter().map(String::as_str).collect::<Vec<_>>().join("\n  ")
    }

    fn found(&mut self, schedule: &Schedule, why: String) {
        let before = self.summary.schedules;
        self.summary.found.push(Finding { schedule: schedule.to_string(), why, before });
    }
}
