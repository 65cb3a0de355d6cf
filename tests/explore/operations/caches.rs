//! Operations on a cache with room for four chunks.

use std::time::Duration;

use ndarray_shm::cache::{self, CacheOptions, CachedChunk, ChunkCache, KeyClaim, Lookup};
use ndarray_shm::counted::Reclaim;

use super::{Kind, NAME, Operation, contents, operation, tell, tell_value, then};
use crate::states::Has;
use crate::world::{World, alter, hold, kind, let_go, report, see};

/// Bytes of the cache: 16 slots.
pub const BYTES: u64 = 512 << 10;
/// Bytes of a chunk: 4 slots.
pub const CHUNK: usize = 128 << 10;
/// Bytes of a small chunk: 1 slot.
const SMALL: usize = 32 << 10;

pub fn options(world: &World) -> CacheOptions {
    CacheOptions::new().directory(world.directory.clone())
}

/// Makes a chunk of this letter.
pub fn make(mut claim: KeyClaim, cache: &ChunkCache, letter: u8) {
    let checked = cache.now();
    match claim.room() {
        Ok(Some(mut chunk)) => {
            let bytes = chunk.bytes_mut().expect("it is this process's");
            hold(bytes.as_ptr(), true);
            alter();
            let half = bytes.len() / 2;
            bytes[..half].fill(letter);
            alter();
            bytes.fill(letter);
            let_go();
            tell("made", chunk.publish(1, checked));
        }
        Ok(None) => report("no room"),
        Err(error) => report(format!("room: {}", kind(&error))),
    }
}

/// Looks at a chunk twice.
fn read(chunk: &CachedChunk) {
    let bytes = chunk.bytes().expect("it is this process's");
    hold(bytes.as_ptr(), false);
    see();
    let found = contents(bytes).to_string();
    see();
    let again = contents(bytes).to_string();
    report(format!("chunk: {found}{}", if again == found { "" } else { " and another value" }));
    let_go();
}

fn get(cache: &ChunkCache, world: &World, key: u128, length: usize, since: u64) {
    match cache.look(key, length, since, Duration::ZERO) {
        Ok(Lookup::Found(chunk)) => read(&chunk),
        Ok(Lookup::Claimed(claim)) => make(claim, cache, world.letter),
        Ok(Lookup::Bypass(why)) => report(format!("{why:?}")),
        Ok(other) => report(format!("{other:?}")),
        Err(error) => report(format!("look: {}", kind(&error))),
    }
}

fn opened(has: &Has) -> &ChunkCache {
    has.cache.as_ref().expect("a cache")
}

pub const ALL: &[Operation] = &[
    operation("get a chunk that is there", Kind::Cache, |world, has| get(opened(has), world, 1, CHUNK, 0))
        .allows(&["Late", "no room"]),
    operation("get another chunk", Kind::Cache, |world, has| get(opened(has), world, 9, CHUNK, 0))
        .allows(&["Late", "no room"]),
    operation("get a small chunk", Kind::Cache, |world, has| get(opened(has), world, 7, SMALL, 0))
        .allows(&["Late", "no room"]),
    operation("get a chunk that has changed", Kind::Cache, |world, has| {
        let cache = opened(has);
        get(cache, world, 1, CHUNK, cache.now());
    })
    // Between the two calls another process may make or confirm it.
    .allows(&["Late", "no room", "chunk: a", "chunk: b", "chunk: c"]),
    operation("confirm a chunk", Kind::Cache, |_, has| {
        let cache = opened(has);
        match cache.look(1, CHUNK, cache.now(), Duration::ZERO) {
            Ok(Lookup::Claimed(claim)) => match claim.old() {
                Some(old) => {
                    old.confirm(cache.now());
                    read(old);
                }
                None => report("not there"),
            },
            Ok(_) => report("another process confirms it"),
            Err(error) => report(format!("look: {}", kind(&error))),
        }
    })
    .allows(&["another process confirms it"]),
    operation("trim the cache", Kind::Cache, |_, has| {
        tell("trim", opened(has).trim(0).map(drop));
    }),
    operation("open the cache and get a chunk", Kind::Nothing, |world, has| {
        has.new_cache = tell("open", options(world).open_or_create(NAME, BYTES));
        then();
        if let Some(cache) = &has.new_cache {
            get(cache, world, 1, CHUNK, 0);
            then();
            // Only unlinking takes the name away from a cache that is open.
            tell_value("attached", cache::attached(&world.directory, cache.location()));
        }
    })
    .allows(&["Late", "no room"]),
    operation("unlink the cache", Kind::Nothing, |world, _| {
        tell_value("unlink", cache::unlink(&world.directory, &NAME.parse().expect("a name")));
    }),
    operation("remove unused caches", Kind::Nothing, |world, _| {
        let removed = Reclaim::new().caches(true).run(&world.directory);
        tell_value("gc", removed.map(|reclaimed| reclaimed.removed.len()));
    })
    // A draft that is being published, or one that lost its name to another.
    .allows(&["0", "1"]),
];
