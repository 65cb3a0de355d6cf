//! Operations on memory that a pool uses again, and on drafts.

use ndarray_shm::counted::SharingStrategy;

use super::{Kind, LENGTH, NAME, Operation, operation, read, tell, then, write};
use crate::states::Has;
use crate::world::{World, alter, hold, kind, let_go, report};

/// Takes memory of the pool, fills it, and gives it another name.
fn publish_again(world: &World, has: &mut Has) {
    let Some(pool) = &has.pool else { return };
    let Some(mut draft) = tell("take", pool.take::<u8, _>(LENGTH)) else { return };
    hold(draft.view_mut().as_ptr(), true);
    alter();
    draft.view_mut().fill(world.letter);
    let_go();
    then();
    match draft.publish("y") {
        Ok(array) => {
            report("publish: ok");
            has.new_plain = Some(array.into_array()); // its name stays
        }
        Err(error) => report(format!("publish: {}", kind(error.error()))),
    }
}

fn share(has: &mut Has, strategy: SharingStrategy) {
    let Some(draft) = has.draft.take() else { return };
    match draft.share(strategy) {
        Ok(array) => {
            report("share: ok");
            has.counted = Some(array);
        }
        Err(error) => report(format!("share: {}", kind(error.error()))),
    }
}

pub const ALL: &[Operation] = &[
    operation("take, fill and publish", Kind::Pool, publish_again),
    operation("give back", Kind::Pooled, |_, has| has.pooled = None),
    operation("give back, take and fill", Kind::Pooled, |world, has| {
        has.pooled = None;
        then();
        let Some(pool) = &has.pool else { return };
        let Some(mut draft) = tell("take", pool.take::<u8, _>(LENGTH)) else { return };
        hold(draft.view_mut().as_ptr(), true);
        alter();
        draft.view_mut().fill(world.letter);
        alter();
        draft.view_mut().fill(world.letter);
        let_go();
    }),
    operation("give back and publish again", Kind::Pooled, |world, has| {
        has.pooled = None;
        then();
        publish_again(world, has);
    }),
    operation("read pooled", Kind::Pooled, |_, has| has.pooled.as_deref().into_iter().for_each(read))
        .allows(&["Unlinked"]),
    operation("write pooled", Kind::Pooled, |world, has| {
        has.pooled.as_deref().into_iter().for_each(|array| write(array, world));
    })
    .allows(&["Unlinked"]),
    operation("lend a pooled descriptor", Kind::Pooled, |_, has| {
        let lent = has.pooled.as_deref().and_then(super::lend);
        then();
        drop(lent);
    })
    .allows(&["Unlinked"])
    .leaves_names(),
    operation("publish", Kind::Draft, |_, has| {
        let Some(draft) = has.draft.take() else { return };
        match draft.publish(NAME) {
            Ok(array) => {
                report("publish: ok");
                has.plain = Some(array);
            }
            Err(error) => report(format!("publish: {}", kind(error.error()))),
        }
    }),
    operation("share", Kind::Draft, |_, has| share(has, SharingStrategy::FileSystem)),
    operation("share without a name", Kind::Draft, |_, has| share(has, SharingStrategy::FileDescriptor)),
];
