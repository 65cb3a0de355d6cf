//! A schedule as a short text: which process makes how many steps, and what happens to one of them.
//!
//! `a7b3` lets a make seven steps, then b three; afterwards the last one goes on until it ends or waits, then the
//! others. `a7!` kills a before its eighth step, `a7=` stops it there until the others have ended, and `a7~ENOSPC` has
//! the call at that step fail.

use std::fmt;
use std::str::FromStr;

/// What happens to a process instead of its next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Harm {
    Kill,
    Stop,
    Fail(i32),
}

/// Which process makes each of the first steps, and the harm to the one that would go on after them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Schedule {
    pub turns: Vec<usize>,
    pub harm: Option<(usize, Harm)>,
}

const ERRORS: &[(&str, i32)] = &[
    ("EMFILE", libc::EMFILE),
    ("ENOSPC", libc::ENOSPC),
    ("EINTR", libc::EINTR),
    ("ENOLCK", libc::ENOLCK),
    ("ENOMEM", libc::ENOMEM),
];

/// Returns the letter of a process.
pub fn letter(actor: usize) -> char {
    char::from(b'a' + u8::try_from(actor).expect("few processes"))
}

impl Schedule {
    pub fn of(turns: Vec<usize>) -> Self {
        Self { turns, harm: None }
    }

    pub fn with(mut self, actor: usize, harm: Harm) -> Self {
        self.harm = Some((actor, harm));
        self
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = None;
        for run in self.turns.chunk_by(|one, other| one == other) {
            write!(f, "{}{}", letter(run[0]), run.len())?;
            last = Some(run[0]);
        }
        let Some((actor, harm)) = self.harm else {
            return if self.turns.is_empty() { f.write_str("a0") } else { Ok(()) };
        };
        if last != Some(actor) {
            write!(f, "{}0", letter(actor))?;
        }
        match harm {
            Harm::Kill => f.write_str("!"),
            Harm::Stop => f.write_str("="),
            Harm::Fail(number) => {
                let name = ERRORS.iter().find(|(_, known)| *known == number).map_or("?", |(name, _)| name);
                write!(f, "~{name}")
            }
        }
    }
}

impl FromStr for Schedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no schedule: a7b3, a7!, a7= or a7~ENOSPC");
        let at = text.find(['!', '=', '~']).unwrap_or(text.len());
        let (turns, harm) = text.split_at(at);
        let mut schedule = Self::default();
        let mut last = None;
        let mut rest = turns;
        while let Some(letter) = rest.chars().next() {
            let actor = usize::from(u8::try_from(letter).ok().and_then(|it| it.checked_sub(b'a')).ok_or_else(wrong)?);
            let digits = rest[1..].find(|it: char| !it.is_ascii_digit()).map_or(rest.len(), |length| length + 1);
            let count: usize = rest[1..digits].parse().map_err(|_| wrong())?;
            schedule.turns.extend(std::iter::repeat_n(actor, count));
            last = Some(actor);
            rest = &rest[digits..];
        }
        let harm = match harm.split_at_checked(1) {
            None => return Ok(schedule),
            Some(("!", "")) => Harm::Kill,
            Some(("=", "")) => Harm::Stop,
            Some(("~", name)) => Harm::Fail(ERRORS.iter().find(|(known, _)| *known == name).ok_or_else(wrong)?.1),
            Some(_) => return Err(wrong()),
        };
        schedule.harm = Some((last.ok_or_else(wrong)?, harm));
        Ok(schedule)
    }
}
