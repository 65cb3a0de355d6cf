//! Behaviour that only Linux can show: descriptors, permission bits, limits of memory and mounts, forks.

mod arena;
mod borrowers;
mod counted;
mod descriptors;
pub mod foreign;
mod holes;
mod inherited;
mod limits;
mod namespaces;
mod pages;
mod pool;
pub mod rights;
pub mod sandbox;
mod shared;
mod time_limits;
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
        foreign::trials,
        holes::trials,
        inherited::trials,
        limits::trials,
        namespaces::trials,
        pages::trials,
        pool::trials,
        rights::trials,
        shared::trials,
        time_limits::trials,
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
    foreign::ROLES,
    holes::ROLES,
    inherited::ROLES,
    limits::ROLES,
    namespaces::ROLES,
    pages::ROLES,
    pool::ROLES,
    rights::ROLES,
    shared::ROLES,
    time_limits::ROLES,
    users::ROLES,
];
