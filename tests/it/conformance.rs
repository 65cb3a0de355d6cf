//! The contract: what a program may rely on, tested from one source on every backend and every platform.
//!
//! Other suites test what only one platform promises. Where a platform promises less, the test asks which platform it
//! is on (mostly the [`Place`]) and asserts only what remains; `docs/platforms.md` lists the differences.

mod arena;
mod arrays;
mod cache_kills;
pub mod chunk_caches;
mod copied_streams;
mod counted;
mod counted_races;
mod counters;
mod crashes;
mod descriptions;
mod errors;
mod frozen;
mod fuzz;
mod guards;
mod handles;
mod holder;
mod hostile;
mod hostile_arena;
mod lookalikes;
mod names;
mod options;
mod orphans;
mod pool;
mod queue_kills;
mod queue_senders;
mod queues;
mod races;
mod recycled;
mod render;
mod roles;
mod stream_kills;
mod streams;

use libtest_mimic::Trial;

use crate::support::Place;
use crate::support::child::Role;

pub fn trials(place: &Place) -> Vec<Trial> {
    let parts = [
        arrays::trials,
        arena::trials,
        guards::trials,
        render::trials,
        crashes::trials,
        descriptions::trials,
        errors::trials,
        races::trials,
        recycled::trials,
        counted::trials,
        frozen::trials,
        handles::trials,
        orphans::trials,
        counted_races::trials,
        counters::trials,
        hostile::trials,
        hostile_arena::trials,
        fuzz::trials,
        lookalikes::trials,
        names::trials,
        options::trials,
        pool::trials,
        queues::trials,
        queue_kills::trials,
        queue_senders::trials,
        roles::trials,
        cache_kills::trials,
        chunk_caches::trials,
        copied_streams::trials,
        stream_kills::trials,
        streams::trials,
    ];
    parts.into_iter().flat_map(|trials| trials(place)).collect()
}

pub const ROLES: &[&[(&str, Role)]] = &[
    arrays::ROLES,
    arena::ROLES,
    cache_kills::ROLES,
    chunk_caches::ROLES,
    crashes::ROLES,
    descriptions::ROLES,
    errors::ROLES,
    guards::ROLES,
    holder::ROLES,
    hostile::ROLES,
    hostile_arena::ROLES,
    fuzz::ROLES,
    orphans::ROLES,
    pool::ROLES,
    counted_races::ROLES,
    counters::ROLES,
    races::ROLES,
    recycled::ROLES,
    queues::ROLES,
    queue_kills::ROLES,
    queue_senders::ROLES,
    roles::ROLES,
    copied_streams::ROLES,
    stream_kills::ROLES,
    streams::ROLES,
];
