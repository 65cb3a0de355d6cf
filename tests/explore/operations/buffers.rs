//! Operations on renderbuffers of two chunks.

use std::time::Duration;

use ndarray_shm::ndarray::Ix1;
use ndarray_shm::render::{self, RenderOptions};
use ndarray_shm::{Location, NextClaim, RenderBuffer};

use super::{Kind, LENGTH, NAME, Operation, operation, tell, tell_value, then};
use crate::states::Has;
use crate::world::{World, alter, kind, report, see};

/// Longer than another process paints.
const LONG: Duration = Duration::from_secs(5);

fn options(world: &World) -> RenderOptions {
    RenderOptions::new().directory(world.directory.clone())
}

fn begin(world: &World) -> ndarray_shm::Result<RenderBuffer<u8, Ix1>> {
    options(world).create(NAME, LENGTH, LENGTH / 2, "")
}

/// Paints what is free, and waits at most so long for what is not.
fn paint(world: &World, buffer: &RenderBuffer<u8, Ix1>, patience: Duration) {
    for _ in 0..3 {
        match buffer.claim_next_wait(patience) {
            Ok(NextClaim::Chunk(mut chunk)) => {
                alter();
                chunk.view_mut().fill(world.letter);
                let index = chunk.index();
                if tell(&format!("commit {index}"), chunk.commit()).is_none() {
                    return;
                }
            }
            Ok(NextClaim::AllDone) => return report("claim: complete"),
            Ok(_) => return report("claim: nothing"),
            Err(error) => return report(format!("claim: {}", kind(&error))),
        }
        then();
    }
}

fn finish(has: &mut Has) {
    let Some(buffer) = has.buffer.take() else { return };
    match buffer.finish() {
        Ok(array) => {
            report("finish: ok");
            has.plain = Some(array);
        }
        Err(error) => {
            report(format!("finish: {}", kind(error.error())));
            has.buffer = Some(error.into_inner());
        }
    }
}

pub const ALL: &[Operation] = &[
    operation("begin", Kind::Nothing, |world, has| has.buffer = tell("begin", begin(world))),
    operation("begin replacing", Kind::Nothing, |world, has| {
        has.buffer = tell("begin", options(world).replace(true).create(NAME, LENGTH, LENGTH / 2, ""));
    }),
    operation("join", Kind::Nothing, |world, has| has.buffer = tell("join", options(world).open(NAME))),
    operation("begin, paint and finish", Kind::Nothing, |world, has| {
        has.buffer = tell("begin", begin(world));
        then();
        if let Some(buffer) = &has.buffer {
            paint(world, buffer, LONG);
        }
        finish(has);
    })
    .allows(&["Unlinked", "nothing", "Incomplete"]),
    operation("discard by name", Kind::Nothing, |world, _| {
        let at: Location = NAME.parse().expect("a name");
        tell_value("discard", render::discard(&world.directory, &at));
    }),
    operation("paint", Kind::Buffer, |world, has| {
        has.buffer.iter().for_each(|buffer| paint(world, buffer, Duration::ZERO));
    })
    .allows(&["Unlinked", "nothing"]),
    operation("paint and finish", Kind::Buffer, |world, has| {
        has.buffer.iter().for_each(|buffer| paint(world, buffer, LONG));
        finish(has);
    })
    .allows(&["Unlinked", "nothing", "Incomplete"]),
    operation("finish", Kind::Buffer, |_, has| finish(has)),
    operation("discard", Kind::Buffer, |_, has| {
        has.buffer.take().map(|buffer| tell("discard", buffer.discard()));
    }),
    operation("turn over", Kind::PooledBuffer, |world, has| {
        has.buffer.iter().for_each(|buffer| paint(world, buffer, LONG));
        finish(has);
        then();
        let (Some(array), Some(pool)) = (has.plain.take(), &has.pool) else { return };
        match pool.put(array) {
            Ok(()) => report("put: ok"),
            Err(error) => report(format!("put: {}", kind(error.error()))),
        }
        then();
        has.buffer = tell("begin", options(world).pool(pool).create(NAME, LENGTH, LENGTH / 2, ""));
    })
    .allows(&["Unlinked", "nothing", "Incomplete", "Unsupported"]),
    operation("let go of the buffer", Kind::Buffer, |_, has| has.buffer = None),
    operation("read a chunk", Kind::Buffer, |_, has| {
        let Some(buffer) = &has.buffer else { return };
        match buffer.chunk(0) {
            Ok(Some(chunk)) => {
                see();
                report(format!("chunk: {}", super::contents(&chunk.view())));
            }
            Ok(None) => report("chunk: none"),
            Err(error) => report(format!("chunk: {}", kind(&error))),
        }
    })
    .allows(&["Unlinked"]),
];
