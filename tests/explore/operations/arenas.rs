//! Operations on an arena with one queue.

use std::time::Duration;

use ndarray_shm::arena::ArenaOptions;
use ndarray_shm::ndarray::Ix1;

use super::{Kind, NAME, Operation, operation, tell, tell_value, then};
use crate::world::{alter, kind, report, see};

pub const ALL: &[Operation] = &[
    operation("create an arena", Kind::Nothing, |world, has| {
        let options = ArenaOptions::new().directory(world.directory.clone());
        has.new_arena = tell("create", options.create(NAME, 1 << 14));
    }),
    operation("join an arena", Kind::Nothing, |world, has| {
        has.new_arena = tell("join", ArenaOptions::new().directory(world.directory.clone()).open(NAME));
    }),
    operation("share a block", Kind::Arena, |world, has| {
        let Some(arena) = &has.arena else { return };
        let Some(mut draft) = tell("draft", arena.draft::<u8, _>(64)) else { return };
        alter();
        draft.view_mut().fill(world.letter);
        match draft.share() {
            Ok(array) => {
                then();
                see();
                report(format!("block: {}", super::contents(&array.view())));
            }
            Err(error) => report(format!("share: {}", kind(error.error()))),
        }
    }),
    operation("send a block", Kind::Arena, |world, has| {
        let Some(arena) = &has.arena else { return };
        let Some(mut draft) = tell("draft", arena.draft::<u8, _>(64)) else { return };
        alter();
        draft.view_mut().fill(world.letter);
        let block = match draft.share() {
            Ok(block) => block,
            Err(error) => return report(format!("share: {}", kind(error.error()))),
        };
        then();
        let Some(queue) = tell("queue", arena.queue(0)) else { return };
        match queue.try_send(block) {
            Ok(()) => report("send: ok"),
            Err(error) => report(format!("send: {}", kind(error.error()))),
        }
    }),
    operation("receive a block", Kind::Arena, |_, has| {
        let Some(queue) = has.arena.as_ref().and_then(|arena| tell("queue", arena.queue(0))) else { return };
        then();
        match queue.recv_timeout::<u8, Ix1>(Duration::from_secs(3)) {
            Ok(block) => {
                see();
                report(format!("received: {}", super::contents(&block.view())));
            }
            Err(_) => report("received: nothing"),
        }
    })
    .allows(&["received: nothing"]),
    operation("reclaim blocks", Kind::Arena, |_, has| {
        has.arena.as_ref().map(|arena| tell("reclaim", arena.reclaim()));
    }),
    operation("leave the arena", Kind::Arena, |_, has| {
        has.arena.take().map(|arena| tell("close", arena.close()));
    }),
    operation("unlink the arena", Kind::Arena, |_, has| {
        has.arena.iter().for_each(|arena| tell_value("unlink", arena.unlink()));
    }),
];
