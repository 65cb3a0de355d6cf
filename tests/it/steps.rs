//! The behaviour of other processes while one process is stopped between two system calls.
//!
//! The process stops itself with SIGSTOP at a step that has a name in the source (`os::step`). The test then resumes or
//! kills it. The library has steps in debug builds with `--cfg ndshm_steps` (`.cargo/config.toml`).

mod attach;
mod caches;
#[cfg(feature = "channel")]
mod drops;
mod foreign;
mod give_up;
mod locks;
mod names;
mod recycle;
mod render;
mod streams;
#[cfg(feature = "channel")]
mod stress;
mod tickets;

use libtest_mimic::Trial;

use crate::support::Place;
use crate::support::child::Role;

pub fn trials(place: &Place) -> Vec<Trial> {
    let parts = [
        attach::trials,
        caches::trials,
        #[cfg(feature = "channel")]
        drops::trials,
        foreign::trials,
        give_up::trials,
        locks::trials,
        names::trials,
        recycle::trials,
        render::trials,
        #[cfg(feature = "channel")]
        stress::trials,
        streams::trials,
        tickets::trials,
    ];
    parts.into_iter().flat_map(|part| part(place)).collect()
}

pub const ROLES: &[&[(&str, Role)]] = &[
    attach::ROLES,
    caches::ROLES,
    #[cfg(feature = "channel")]
    drops::ROLES,
    foreign::ROLES,
    give_up::ROLES,
    locks::ROLES,
    names::ROLES,
    recycle::ROLES,
    render::ROLES,
    #[cfg(feature = "channel")]
    stress::ROLES,
    streams::ROLES,
    tickets::ROLES,
];
