//! later
use crate::support::Place;
use crate::support::child::Role;
use libtest_mimic::Trial;
pub fn trials(_: &Place) -> Vec<Trial> {
    Vec::new()
}
pub const ROLES: &[(&str, Role)] = &[];
