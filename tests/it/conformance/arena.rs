//! Arenas: arrays that one process or several create, share, attach to and release.

mod handles;
mod members;
mod memory;

use libtest_mimic::Trial;
use ndarray::{Array, Ix1};
use ndarray_shm::arena::{ArenaArray, ArenaHandle};
use ndarray_shm::{Arena, ErrorKind};

use crate::support::child::{Child, Role, hear, say};
use crate::support::{Name, Place, arena_of_child};

pub fn trials(place: &Place) -> Vec<Trial> {
    let parts = [handles::trials, memory::trials, members::trials];
    parts.into_iter().flat_map(|trials| trials(place)).collect()
}

pub const ROLES: &[(&str, Role)] = &[
    ("arena-peer", peer),
    ("arena-churn", members::churn),
    ("arena-many", handles::many),
    ("arena-member", members::member),
    ("arena-seeker", memory::seeker),
];

const MIB: u64 = 1 << 20;

fn create(place: &Place, name: &Name, capacity: u64) -> Arena {
    place.arena_options().create(name.as_str(), capacity).unwrap()
}

/// A child that attaches to arrays or creates them on request, and holds them until it is told to release them.
fn peer(arguments: &[String]) {
    let arena = arena_of_child(arguments);
    let mut held: Vec<ArenaArray<u64, Ix1>> = Vec::new();
    say("open");
    loop {
        let line = hear();
        match line.split_once(' ') {
            Some(("get", handle)) => match arena.get(&handle.parse::<ArenaHandle>().unwrap()) {
                Ok(array) => {
                    say(array.view().sum());
                    held.push(array);
                }
                Err(error) => say(error.kind == ErrorKind::HandleSpent),
            },
            Some(("make", length)) => {
                let length: u64 = length.parse().unwrap();
                let array = arena.from_array(&Array::from_iter(0..length)).unwrap();
                say(array.handle());
                held.push(array);
            }
            None if line == "release" => {
                held.clear();
                say("released");
            }
            _ => break,
        }
    }
}

fn peer_of(place: &Place, name: &Name) -> Child {
    let mut child = Child::start(place, "arena-peer", &[name.as_str()]);
    child.expect("open");
    child
}
