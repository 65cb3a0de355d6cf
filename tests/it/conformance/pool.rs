//! Pools: memory is used again, but not while another process can reach it, and nothing is left behind.

mod draining;
mod latecomers;
mod limits;
mod ownership;
mod painting;
mod recycling;

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::pool::PooledArray;
use ndarray_shm::{OpenOptions, Pool};

use super::holder::variant;
use crate::support::child::{Role, hear, say};
use crate::support::files::age;
use crate::support::{Name, Place, backend_of_child};

pub fn trials(place: &Place) -> Vec<Trial> {
    let parts =
        [recycling::trials, draining::trials, latecomers::trials, limits::trials, ownership::trials, painting::trials];
    parts.into_iter().flat_map(|trials| trials(place)).collect()
}

pub const ROLES: &[(&str, Role)] = &[
    ("pool-attacher", attacher),
    ("pool-writer", draining::writer),
    ("pool-rounds", recycling::rounds),
    ("pool-owner", draining::owner),
    ("pool-painter", painting::painter),
    ("pool-counted", ownership::counted),
];

const LENGTH: usize = 5000;

/// Makes every file of the directory look as if it was last written so long ago.
fn age_all(place: &Place, seconds: u64) {
    place.everything().iter().for_each(|file| age(&place.directory().join(file), seconds));
}

fn pool(place: &Place) -> Pool {
    place.pool_options().create().unwrap()
}

/// An array of the pool with this value everywhere.
fn publish(pool: &Pool, name: &Name, value: u32) -> PooledArray<u32, Ix1> {
    let mut draft = pool.take::<u32, _>(LENGTH).unwrap();
    draft.view_mut().fill(value);
    draft.publish(name.location()).unwrap()
}

/// How many arrays are idle, draining and lent.
fn counts(pool: &Pool) -> (usize, usize, usize) {
    let stats = pool.stats();
    (stats.idle.arrays, stats.draining.arrays, stats.lent.arrays)
}

/// 1 where memory is used again, else 0.
fn one() -> usize {
    usize::from(Place::RECYCLES)
}

/// The first element of a draft in memory that holds `used`, or of a new one.
fn expected(used: u32) -> u32 {
    if Place::RECYCLES { used } else { 0 }
}

/// A child that attaches and then obeys requests.
fn attacher(arguments: &[String]) {
    let options = OpenOptions::new().directory(backend_of_child());
    let array = options.keep_fd(arguments.len() > 1).open::<u32, Ix1>(arguments[0].as_str(), LENGTH).unwrap();
    say("attached");
    loop {
        match hear().as_str() {
            "read" => match array.read() {
                Ok(guard) => say(guard.iter().fold(0, |so_far: u32, value| so_far.max(*value))),
                Err(error) => say(variant(&error)),
            },
            // Without a guard, which would need the name: the array has been dropped by its pool.
            "look" => {
                #[allow(unsafe_code)]
                // SAFETY: the parent promises that nothing writes.
                let seen = unsafe { array.view() };
                assert!(seen.iter().all(|value| *value == seen[0]));
                say(seen[0]);
            }
            "drop" => break,
            other => panic!("unknown request {other}"),
        }
    }
    drop(array);
    say("dropped");
    hear();
}

fn unlink_in(place: &Place, name: &Name) {
    assert!(place.backend.unlink(name.location()).unwrap());
}
