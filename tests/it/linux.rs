//! What only Linux shows: descriptors, permission bits, limits of memory and mounts, forks.

mod descriptors;
mod limits;
mod rights;
pub mod sandbox;

use libtest_mimic::Trial;

use crate::support::Place;
use crate::support::child::Role;

pub fn trials(place: &Place) -> Vec<Trial> {
    [descriptors::trials, limits::trials, rights::trials].into_iter().flat_map(|trials| trials(place)).collect()
}

pub const ROLES: &[&[(&str, Role)]] = &[descriptors::ROLES, limits::ROLES, rights::ROLES];
