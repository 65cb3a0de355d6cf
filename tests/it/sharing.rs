//! Counted arrays sent between processes over channels, by descriptor and by name, and what remains after kills.
//!
//! Every test has its own directory ([`Place::private`]) and checks the whole of it at the end. The promises of torch
//! and Paddle for their tensors are tested in `torch`, under the names of their tests.

mod foreign;
mod forks;
mod kills;
mod limits;
mod managed;
mod meeting;
mod messages;
mod onward;
mod torch;
mod troubles;

use libtest_mimic::Trial;

use crate::support::Place;
use crate::support::child::Role;

pub fn trials(place: &Place) -> Vec<Trial> {
    let parts = [
        torch::trials,
        onward::trials,
        messages::trials,
        troubles::trials,
        foreign::trials,
        forks::trials,
        limits::trials,
        kills::trials,
        managed::trials,
    ];
    parts.into_iter().flat_map(|trials| trials(place)).collect()
}

pub const ROLES: &[&[(&str, Role)]] = &[
    torch::ROLES,
    onward::ROLES,
    messages::ROLES,
    troubles::ROLES,
    foreign::ROLES,
    forks::ROLES,
    limits::ROLES,
    kills::ROLES,
    managed::ROLES,
];
