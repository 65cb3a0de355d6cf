//! One run: processes that stand before their next point of choice, and a schedule that says which one goes on.
//!
//! Nothing waits in the kernel. A call that waits is made without waiting; if it would wait, the process stands before
//! it again, and tries once more after another process has made a step. Sleeps take no time, and move the clock that
//! all processes see. Time passes only where no process has anything else to do.

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::call::{Call, Place, Point, Reader, Wait, Word, mapping_at};
use super::schedule::{Harm, Schedule, letter};
use super::tracee::{Stop, Tracee};
use crate::world::Mark;

/// More steps than any pair needs, time limits included.
const MOST_STEPS: usize = 20_000;

/// The longest virtual time that a run may take: no documented limit is longer, and no two are waited for in a row.
pub const LONGEST: u64 = 30_000_000_000;

/// The time that a question of the time takes, so that a process that only asks comes to its limit.
const QUESTION: u64 = 100;

/// How often a process may find nothing changed before its sleeps become longer.
const IDLE: u32 = 16;

/// What a process stands before.
#[derive(Debug)]
enum Next {
    Point(Point),
    /// A call that wakes at most so many processes that sleep on a word.
    Wake {
        point: Point,
        word: Word,
        most: u64,
    },
    /// A call that waits, and until when.
    Wait {
        point: Point,
        wait: Wait,
        until: Option<u64>,
        number: i64,
        arguments: [u64; 6],
    },
    Sleep {
        until: u64,
    },
    /// It has ended, or was killed.
    End,
}

/// Whether a process sleeps on a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sleep {
    Awake,
    Asleep(Word),
    Woken,
}

/// A process of the run.
#[derive(Debug)]
struct Actor {
    tracee: Tracee,
    next: Next,
    is_stopped: bool,
    /// Steps of the run when it last went on. `None`: it has not tried the call that waits.
    tried: Option<usize>,
    sleep: Sleep,
    /// Its steps since it last slept, and its sleeps in a row with few steps between them.
    awake: u32,
    idle: u32,
    /// What it holds: the file and the page in it, and whether to change it.
    holds: Option<((u64, u64), bool)>,
    reports: Vec<String>,
    was_harmed: bool,
}

impl Actor {
    /// Whether nothing keeps it from going on, as far as is known.
    fn is_ready(&self) -> bool {
        let is_next = match self.next {
            Next::Point(_) | Next::Wake { .. } => true,
            Next::Wait { .. } => self.tried.is_none() || self.sleep == Sleep::Woken,
            Next::Sleep { .. } | Next::End => false,
        };
        is_next && !self.is_stopped
    }
}

/// A step that was made.
#[derive(Debug, Clone)]
pub struct Step {
    pub actor: usize,
    pub point: Point,
    /// The processes that could have gone on instead.
    pub others: Vec<usize>,
    /// Whether it costs nothing to let another one go on here.
    pub is_free: bool,
    /// Whether it was a call that would have waited, and changed nothing.
    pub is_vain: bool,
}

/// What a run showed.
#[derive(Debug, Default)]
pub struct Run {
    pub steps: Vec<Step>,
    /// What each process reported.
    pub reports: Vec<String>,
    /// What must never happen.
    pub wrong: Vec<String>,
    /// Virtual time that has passed, in nanoseconds.
    pub clock: u64,
    pub is_harmed: bool,
}

/// The processes of one run.
#[derive(Debug)]
pub struct Stage<'a> {
    place: &'a Place,
    actors: Vec<Actor>,
    /// What each clock showed when it was first asked.
    began: Vec<(u64, u64)>,
    run: Run,
}

impl<'a> Stage<'a> {
    pub fn new(place: &'a Place) -> Self {
        Self { place, actors: Vec::new(), began: Vec::new(), run: Run::default() }
    }

    /// Lets a child prepare itself, until it stops itself once more. A child that it forks meanwhile is the next
    /// process if it stops itself too, and has gone if it ends.
    pub fn enter(&mut self, child: Pid) -> Result<(), String> {
        let mut tracee = Tracee::of_child(child);
        let mut forked = None;
        loop {
            match tracee.run() {
                Stop::Fork(child) => {
                    let mut child = Tracee::of_fork(child);
                    match child.run() {
                        Stop::Signal(Signal::SIGSTOP) => forked = Some(child),
                        Stop::Exit(0) => {}
                        other => return Err(format!("{} while it prepared itself", ended(other))),
                    }
                }
                Stop::Signal(Signal::SIGSTOP) => break,
                Stop::Signal(Signal::SIGCHLD) => {}
                other => return Err(format!("{} while it prepared itself", ended(other))),
            }
        }
        self.add(tracee);
        forked.into_iter().for_each(|forked| self.add(forked));
        Ok(())
    }

    fn add(&mut self, tracee: Tracee) {
        self.actors.push(Actor {
            tracee,
            next: Next::End,
            is_stopped: false,
            tried: None,
            sleep: Sleep::Awake,
            awake: 0,
            idle: 0,
            holds: None,
            reports: Vec::new(),
            was_harmed: false,
        });
    }

    /// Runs all processes to their ends, as the schedule says, and then in turn. `promised` are the points that the
    /// schedule was made for.
    pub fn play(mut self, schedule: &Schedule, promised: &[Step]) -> Run {
        for actor in 0..self.actors.len() {
            self.advance(actor);
        }
        let mut current = schedule.turns.first().copied().unwrap_or(0);
        while self.run.wrong.is_empty() {
            let at = self.run.steps.len();
            if at == schedule.turns.len() {
                if let Some((actor, harm)) = schedule.harm.filter(|_| !self.run.is_harmed) {
                    self.run.is_harmed = true;
                    self.harm(actor, harm);
                    continue;
                }
            }
            let chosen = match schedule.turns.get(at) {
                Some(actor) if self.can_go_on(*actor) => Some(*actor),
                Some(actor) => {
                    self.wrong(format!("of the machine: {} cannot make step {at}", letter(*actor)));
                    break;
                }
                None => self.choose(current),
            };
            let Some(actor) = chosen else { break };
            if let Some(promised) = promised.get(at).filter(|step| step.point.text != self.text(actor)) {
                let (found, promised) = (self.text(actor), &promised.point.text);
                self.wrong(format!("of the machine: step {at} is {found:?}, and was {promised:?}"));
                break;
            }
            current = actor;
            self.step(actor);
            if self.run.steps.len() > MOST_STEPS {
                self.wrong("it does not end".into());
            }
            if self.run.clock > LONGEST {
                self.wrong(format!("{} s pass", self.run.clock / 1_000_000_000));
            }
        }
        self.run.reports = self.actors.iter().map(|actor| actor.reports.join(", ")).collect();
        self.run
    }

    fn wrong(&mut self, what: String) {
        self.run.wrong.push(what);
    }

    /// Chooses the process that goes on where the schedule says nothing.
    fn choose(&mut self, current: usize) -> Option<usize> {
        if self.actors[current].is_ready() {
            return Some(current);
        }
        if let Some(ready) = self.actors.iter().position(Actor::is_ready) {
            return Some(ready);
        }
        let is_waiting = |index: &usize| matches!(self.actors[*index].next, Next::Wait { .. });
        let can_try = |index: &usize| !self.actors[*index].is_stopped && self.has_news(*index);
        if let Some(again) = (0..self.actors.len()).find(|index| is_waiting(index) && can_try(index)) {
            return Some(again);
        }
        // No process can go on now: time passes until the first one can.
        let first = self.actors.iter().enumerate().filter(|(_, actor)| !actor.is_stopped);
        let first = first.filter_map(|(index, actor)| match actor.next {
            Next::Sleep { until } | Next::Wait { until: Some(until), .. } => Some((until, index)),
            _ => None,
        });
        if let Some((_, index)) = first.min() {
            return Some(index);
        }
        if let Some(stopped) = self.actors.iter().position(|actor| actor.is_stopped) {
            self.actors[stopped].is_stopped = false;
            return self.choose(stopped);
        }
        if let Some(waiting) = self.actors.iter().position(|actor| matches!(actor.next, Next::Wait { .. })) {
            self.wrong(format!("{} waits for ever: {}", letter(waiting), self.text(waiting)));
        }
        None
    }

    /// Whether a process can make a step that differs from what it did before.
    fn can_go_on(&self, index: usize) -> bool {
        let Some(actor) = self.actors.get(index) else { return false };
        match actor.next {
            Next::End => false,
            _ if actor.is_stopped => false,
            Next::Point(_) | Next::Wake { .. } => true,
            Next::Wait { until: None, .. } => self.has_news(index),
            Next::Wait { .. } | Next::Sleep { .. } => self.has_news(index) || !self.any_is_ready(),
        }
    }

    /// Whether another process has done anything since this one tried, or it has not tried.
    fn has_news(&self, index: usize) -> bool {
        let Actor { tried, sleep, .. } = self.actors[index];
        match sleep {
            Sleep::Asleep(_) => return false,
            Sleep::Woken => return true,
            Sleep::Awake => {}
        }
        tried.is_none_or(|tried| self.run.steps[tried..].iter().any(|step| step.actor != index && !step.is_vain))
    }

    fn any_is_ready(&self) -> bool {
        self.actors.iter().any(Actor::is_ready)
    }

    fn text(&self, index: usize) -> &str {
        match &self.actors[index].next {
            Next::Point(point) | Next::Wake { point, .. } | Next::Wait { point, .. } => &point.text,
            Next::Sleep { .. } => "sleep",
            Next::End => "nothing",
        }
    }

    fn harm(&mut self, index: usize, harm: Harm) {
        let Some(actor) = self.actors.get_mut(index) else { return };
        actor.was_harmed = true;
        match harm {
            Harm::Kill => {
                actor.tracee.kill();
                actor.next = Next::End;
                actor.holds = None;
                // Its locks have gone.
                self.actors.iter_mut().filter(|other| other.sleep == Sleep::Awake).for_each(|other| other.tried = None);
            }
            Harm::Stop => actor.is_stopped = true,
            Harm::Fail(error) => {
                if matches!(actor.next, Next::Point(_)) {
                    let stop = actor.tracee.skip_call(i64::from(-error));
                    self.after(index, stop);
                }
            }
        }
    }

    /// Makes the step that a process stands before.
    fn step(&mut self, index: usize) {
        let others = (0..self.actors.len()).filter(|other| *other != index && self.can_go_on(*other)).collect();
        let next = std::mem::replace(&mut self.actors[index].next, Next::End);
        let is_free = match &next {
            Next::Point(point) | Next::Wake { point, .. } => point.is_between,
            Next::Wait { .. } => self.actors[index].tried.is_some(),
            Next::Sleep { .. } | Next::End => true,
        };
        let nothing = |text: &str| Point { text: text.into(), touches: vec![], is_between: false, errors: &[] };
        let point = match &next {
            Next::Point(point) | Next::Wake { point, .. } | Next::Wait { point, .. } => point.clone(),
            Next::Sleep { .. } => nothing("sleep"),
            Next::End => nothing("nothing"),
        };
        let has_news = self.has_news(index);
        self.run.steps.push(Step { actor: index, point, others, is_free, is_vain: false });
        self.actors[index].tried = Some(self.run.steps.len());
        match next {
            Next::End => {}
            Next::Point(point) => {
                let actor = &mut self.actors[index];
                actor.awake += 1;
                let stop = if point.is_between { actor.tracee.skip_call(0) } else { actor.tracee.next(None) };
                self.after(index, stop);
            }
            Next::Wake { word, most, .. } => {
                let woken = self.wake(word, most);
                let actor = &mut self.actors[index];
                actor.awake += 1;
                let stop = actor.tracee.skip_call(woken);
                self.after(index, stop);
            }
            Next::Wait { .. } if self.actors[index].sleep == Sleep::Woken => {
                self.actors[index].sleep = Sleep::Awake;
                let stop = self.actors[index].tracee.skip_call(0);
                self.after(index, stop);
            }
            Next::Sleep { until } => {
                self.run.clock = self.run.clock.max(until);
                let stop = self.actors[index].tracee.skip_call(0);
                self.after(index, stop);
            }
            Next::Wait { until, wait, number, .. } if !has_news => {
                self.run.clock = self.run.clock.max(until.unwrap_or(0));
                let result = match wait {
                    Wait::Word(_) => -libc::ETIMEDOUT,
                    Wait::Stream => -libc::EAGAIN,
                    Wait::Lock | Wait::Poll | Wait::Child => 0,
                };
                debug_assert!(until.is_some(), "call {number} has no limit");
                self.actors[index].sleep = Sleep::Awake;
                let stop = self.actors[index].tracee.skip_call(i64::from(result));
                self.after(index, stop);
            }
            Next::Wait { point, until, wait, number, arguments } => {
                let tracee = &mut self.actors[index].tracee;
                make_without_waiting(tracee, wait);
                match tracee.next(None) {
                    Stop::Return(value) if would_wait(wait, value) => {
                        tracee.repeat_call(number, &arguments);
                        let mut stop = tracee.next(None);
                        while let Stop::Signal(signal) = stop {
                            stop = tracee.next(Some(signal));
                        }
                        assert!(matches!(stop, Stop::Call { .. }), "the same call: {stop:?}");
                        self.actors[index].next = Next::Wait { point, until, wait, number, arguments };
                        self.run.steps.last_mut().expect("this step").is_vain = true;
                        if let Wait::Word(word) = wait {
                            self.actors[index].sleep = Sleep::Asleep(word);
                        }
                    }
                    stop => self.after(index, stop),
                }
            }
        }
    }

    /// Wakes the processes that sleep on a word, and returns how many.
    fn wake(&mut self, word: Word, most: u64) -> i64 {
        let asleep = self.actors.iter_mut().filter(|actor| actor.sleep == Sleep::Asleep(word));
        let asleep = asleep.filter(|actor| matches!(actor.next, Next::Wait { .. }));
        let woken = asleep.take(usize::try_from(most).unwrap_or(usize::MAX)).map(|actor| actor.sleep = Sleep::Woken);
        i64::try_from(woken.count()).expect("few processes")
    }

    /// Goes on after a call has begun to return.
    fn after(&mut self, index: usize, stop: Stop) {
        match stop {
            Stop::Return(_) => self.advance(index),
            Stop::Fork(child) => {
                self.add(Tracee::of_fork(child));
                let child = self.actors.len() - 1;
                self.advance(child);
                let stop = self.actors[index].tracee.next(None);
                self.after(index, stop);
            }
            Stop::Exit(_) | Stop::Killed(_) => self.end(index, stop),
            Stop::Signal(signal) => {
                let stop = self.actors[index].tracee.next(Some(signal));
                self.after(index, stop);
            }
            Stop::Call { .. } => self.wrong(format!("of the machine: {stop:?}")),
        }
    }

    fn end(&mut self, index: usize, stop: Stop) {
        self.actors[index].next = Next::End;
        self.actors[index].holds = None;
        if stop != Stop::Exit(0) {
            self.wrong(format!("{} {}", letter(index), ended(stop)));
        }
    }

    /// Lets a process run to its next point of choice.
    fn advance(&mut self, index: usize) {
        loop {
            let stop = self.actors[index].tracee.next(None);
            let (number, arguments) = match stop {
                Stop::Call { number, arguments } => (number, arguments),
                Stop::Return(_) | Stop::Signal(Signal::SIGCHLD | Signal::SIGSTOP) => continue,
                Stop::Signal(signal) => {
                    let stop = self.actors[index].tracee.next(Some(signal));
                    if matches!(stop, Stop::Exit(_) | Stop::Killed(_)) {
                        return self.end(index, stop);
                    }
                    continue;
                }
                Stop::Fork(_) => {
                    return self.wrong(format!("of the machine: {} has begun a thread", letter(index)));
                }
                Stop::Exit(_) | Stop::Killed(_) => return self.end(index, stop),
            };
            let actor = &mut self.actors[index];
            let call = Reader { tracee: &actor.tracee, place: self.place }.read(number, &arguments);
            match call {
                Call::Private => {}
                Call::Time { clock, answer } => self.tell_time(index, clock, answer),
                Call::Mark(mark) => {
                    actor.tracee.skip_call(0);
                    self.hear(index, mark);
                }
                Call::Point(point) => {
                    actor.next = Next::Point(point);
                    return;
                }
                Call::Wake { point, word, most } => {
                    actor.next = Next::Wake { point, word, most };
                    return;
                }
                Call::Sleep(time) => {
                    actor.idle = if actor.awake > 12 { 0 } else { actor.idle + 1 };
                    actor.awake = 0;
                    // Many sleeps without anything new: the limit of the wait comes nearer.
                    let longer = actor.idle.saturating_sub(IDLE).min(8);
                    actor.next = Next::Sleep { until: self.run.clock + (time << longer) };
                    return;
                }
                Call::Wait { point, wait, limit } => {
                    let until = limit.map(|limit| self.run.clock.saturating_add(limit));
                    actor.next = Next::Wait { point, wait, until, number, arguments };
                    actor.tried = None;
                    return;
                }
            }
        }
    }

    /// Answers a question of the time: that of the real clock when it is asked, and the virtual time.
    fn tell_time(&mut self, index: usize, clock: u64, answer: u64) {
        let tracee = &mut self.actors[index].tracee;
        if !matches!(tracee.next(None), Stop::Return(0)) {
            return;
        }
        let began =
            self.began.iter().find(|(known, _)| *known == clock).map_or_else(|| beginning(clock), |(_, at)| *at);
        if !self.began.iter().any(|(known, _)| *known == clock) {
            self.began.push((clock, began));
        }
        self.run.clock += QUESTION;
        let now = self.run.clock + began;
        let (seconds, rest) = (now / 1_000_000_000, now % 1_000_000_000);
        tracee.write(answer, &[seconds.to_le_bytes(), rest.to_le_bytes()].concat());
    }

    fn hear(&mut self, index: usize, mark: Mark) {
        match mark {
            Mark::Report(text) => self.actors[index].reports.push(text),
            Mark::Hold { at, changes } => {
                let tracee = &self.actors[index].tracee;
                let place = mapping_at(tracee.pid, at).map_or((0, 0), |mapping| (mapping.file, mapping.page_of(at)));
                if place.0 == 0 {
                    return; // a copy in memory of its own
                }
                let meets = self.actors.iter().position(|other| {
                    other.holds.is_some_and(|(its_place, its_changes)| its_place == place && (changes || its_changes))
                });
                if let Some(other) = meets.filter(|other| *other != index) {
                    self.wrong(format!("{} and {} have the same elements", letter(other), letter(index)));
                }
                self.actors[index].holds = Some((place, changes));
            }
            Mark::LetGo => self.actors[index].holds = None,
            Mark::Between | Mark::Memory { .. } => {}
        }
    }
}

/// Returns what a clock shows, in nanoseconds.
fn beginning(clock: u64) -> u64 {
    let id = nix::time::ClockId::from_raw(i32::try_from(clock).unwrap_or(libc::CLOCK_MONOTONIC));
    let now = nix::time::clock_gettime(id).expect("a clock that a process has asked");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

/// Changes the arguments of a call so that it does not wait.
fn make_without_waiting(tracee: &Tracee, wait: Wait) {
    match wait {
        Wait::Lock => tracee.change(|registers| registers.rsi = libc::F_OFD_SETLK as u64),
        Wait::Word(_) => {
            let zero = tracee.write_below_stack(&[0; 16]);
            tracee.change(|registers| registers.r10 = zero);
        }
        Wait::Poll => {
            let zero = tracee.write_below_stack(&[0; 16]);
            tracee.change(|registers| {
                let is_ppoll = registers.orig_rax == libc::SYS_ppoll as u64;
                registers.rdx = if is_ppoll { zero } else { 0 };
            });
        }
        Wait::Child => tracee.change(|registers| {
            let is_waitid = registers.orig_rax == libc::SYS_waitid as u64;
            let options = if is_waitid { &mut registers.r10 } else { &mut registers.rdx };
            *options |= libc::WNOHANG as u64;
        }),
        Wait::Stream => tracee.change(|registers| {
            let is_message = registers.orig_rax == libc::SYS_recvmsg as u64;
            let flags = if is_message { &mut registers.rdx } else { &mut registers.r10 };
            *flags |= libc::MSG_DONTWAIT as u64;
        }),
    }
}

/// Whether a call that was made without waiting would wait.
fn would_wait(wait: Wait, result: i64) -> bool {
    let error = i32::try_from(-result).unwrap_or(0);
    match wait {
        Wait::Lock | Wait::Stream => [libc::EAGAIN, libc::EACCES].contains(&error),
        Wait::Word(_) => error == libc::ETIMEDOUT,
        Wait::Poll | Wait::Child => result == 0,
    }
}

fn ended(stop: Stop) -> String {
    match stop {
        Stop::Killed(signal) => format!("is ended by {signal}"),
        Stop::Exit(status) => format!("ends with status {status}"),
        other => format!("stops: {other:?}"),
    }
}
