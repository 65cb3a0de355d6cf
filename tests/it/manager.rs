//! The manager with real processes: clients that are killed, managers that are killed, strangers, long paths.
//!
//! Each test has a socket of its own in a directory of its own. Whatever manager serves there is ended with the test.

mod deaths;
mod ending;
mod roles;
mod socket;
mod stage;
mod starting;
mod strangers;

use libtest_mimic::Trial;

use crate::support::child::Role;

pub fn trials() -> Vec<Trial> {
    let parts = [deaths::trials, starting::trials, ending::trials, socket::trials, strangers::trials];
    parts.into_iter().flat_map(|trials| trials()).collect()
}

pub const ROLES: &[(&str, Role)] = &[
    ("manager", roles::be_manager),
    ("manager-client", roles::be_client),
    ("manager-ask", roles::ask),
    ("sleep", roles::sleep),
];
