//! What others can do while a process stands between two of its steps: it stops itself at a step that has a name in the source
//! (`os::step`), by real SIGSTOP, and is continued or killed.
//!
//! The library has such steps with `--cfg ndshm_steps` only; `scripts/test` builds it so once more, for this suite.

mod attach;
mod locks;
mod names;
mod render;
mod stress;

use libtest_mimic::Trial;

use crate::support::Place;
use crate::support::child::Role;

pub fn trials(place: &Place) -> Vec<Trial> {
    let parts = [attach::trials, locks::trials, names::trials, render::trials, stress::trials];
    parts.into_iter().flat_map(|part| part(place)).collect()
}

pub const ROLES: &[&[(&str, Role)]] = &[attach::ROLES, locks::ROLES, names::ROLES, render::ROLES, stress::ROLES];
