//! Behaviour that only Linux can show: descriptors, permission bits, limits of memory and mounts, forks.

mod arena;
mod borrowers;
mod counted;
mod descriptors;
mod limits;
mod pages;
mod pool;
pub mod rights;
pub mod sandbox;
mod shared;
mod users;

use libtest_mimic::Trial;

use crate::support::Place;
use crate::support::child::Role;

pub fn trials(place: &Place) -> Vec<Trial> {
    [
        arena::trials,
        borrowers::trials,
        counted::trials,
        descriptors::trials,
        limits::trials,
        pages::trials,
        pool::trials,
        rights::trials,
        shared::trials,
        users::trials,
    ]
    .into_iter()
    .flat_map(|trials| trials(place))
    .collect()
}

pub const ROLES: &[&[(&str, Role)]] = &[
    arena::ROLES,
    borrowers::ROLES,
    counted::ROLES,
    descriptors::ROLES,
    limits::ROLES,
    pages::ROLES,
    pool::ROLES,
    rights::ROLES,
    shared::ROLES,
    users::ROLES,
];
