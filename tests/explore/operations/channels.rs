//! Operations on the ends of a channel, which both processes have inherited: one is this process's.

use std::time::Duration;

use ndarray_shm::counted::Channel;
use ndarray_shm::ndarray::Ix1;

use super::{Kind, Operation, operation, read, tell, then};
use crate::states::Has;
use crate::world::{World, kind, report};

/// Longer than another process sends.
const LONG: Duration = Duration::from_secs(3);

/// Takes the end of this process, and closes its copy of the other one.
fn end(world: &World, has: &mut Has) -> Option<Channel> {
    let (first, second) = has.ends.take()?;
    Some(if world.letter == b'a' { first } else { second.adopt() })
}

// An array that is sent by its handle keeps its name until it is reclaimed, one without a name needs none.
pub const ALL: &[Operation] = &[
    operation("send the array", Kind::Channel, |world, has| {
        let (Some(end), Some(array)) = (end(world, has), &has.counted) else { return };
        then();
        tell("send", end.send("array", &[array]));
        then();
    })
    .allows(&["Unlinked", "Closed"])
    .leaves_names(),
    operation("send the array and close it", Kind::Channel, |world, has| {
        let (Some(end), Some(array)) = (end(world, has), has.counted.take()) else { return };
        then();
        tell("send", end.send("array", &[&array]));
        then();
        tell("close", array.close());
    })
    .allows(&["Unlinked", "Closed"])
    .leaves_names(),
    operation("receive and read", Kind::Channel, |world, has| {
        let Some(end) = end(world, has) else { return };
        then();
        let Some(received) = tell("receive", end.receive_timeout::<String>(LONG)) else { return };
        for array in received.arrays {
            then();
            match array.attach::<u8, Ix1>() {
                Ok(array) => {
                    then();
                    read(&array);
                    has.clone = Some(array);
                }
                Err(error) => report(format!("attach: {}", kind(error.error()))),
            }
        }
    })
    .allows(&["Unlinked"]),
    operation("receive nothing and close", Kind::Channel, |world, has| drop(end(world, has))),
];
