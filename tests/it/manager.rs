//! The manager with real processes: killed clients, killed managers, other users, long paths.
//!
//! Each test has its own socket in its own directory. The end of the test ends every manager on that socket.

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
