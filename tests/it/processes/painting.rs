//! Workers that paint one array while one of them is killed.

use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::{Ix3, ShapeBuilder};
use ndarray_shm::process::{self, Context};
use ndarray_shm::render::RenderOptions;
use ndarray_shm::{Directory, NextClaim, RenderBuffer, SharedArray};

use super::entries::{Outcome, wait};
use super::{Scene, failure, next};
use crate::support;
use crate::support::machine::send_signal;
use crate::tests;

pub fn trials() -> Vec<Trial> {
    support::trials("processes", tests![image_is_complete_despite_a_killed_painter])
}

/// Returns the element at a place of the image.
pub fn element([x, y, z]: [usize; 3]) -> u16 {
    (x + 3 * y + 5 * z) as u16
}

/// An entry: paints the buffer that the third argument names, in the directory that the second one names. Worker 0
/// claims a chunk and holds it until the test says go. The other workers begin at the same signal.
pub fn paint(context: &Context) -> Outcome {
    let [_, path, name] = context.arguments() else { return Err("three arguments".into()) };
    let buffer: RenderBuffer<u16, Ix3> =
        RenderOptions::new().directory(Directory::new("files", path)).open(name.as_str())?;
    if context.index() > 0 {
        wait(context)?;
    }
    while let NextClaim::Chunk(mut chunk) = buffer.claim_next_wait(Duration::MAX)? {
        if context.index() == 0 {
            wait(context)?;
        }
        let [x, y, z] = [0, 1, 2].map(|axis| chunk.region()[axis].start);
        for ((i, j, k), value) in chunk.view_mut().indexed_iter_mut() {
            *value = element([x + i, y + j, z + k]);
        }
        chunk.commit()?;
    }
    Ok(())
}

/// Paints an array in Fortran order with four workers, one of which is killed in the middle of a chunk.
pub fn paint_with_a_kill(
    directory: &Directory,
    name: &str,
    shape: [usize; 3],
    chunk: [usize; 3],
) -> SharedArray<u16, Ix3> {
    let scene = Scene::new();
    let options = RenderOptions::new().directory(directory.clone());
    let buffer = options.create::<u16, Ix3>(name, shape.f(), chunk, "painted by four").unwrap();
    let path = directory.path().to_str().unwrap();
    let workers = process::spawn_workers(4, "paint", &[scene.path(), path, name]).unwrap();
    scene.wait_for(&["here-0", "here-1", "here-2", "here-3"]);
    send_signal("KILL", workers.pids()[0]);
    let (index, how) = next(&workers);
    let killed = how.unwrap_err();
    assert_eq!((index, killed.ending().signal_name().as_deref()), (0, Some("SIGKILL")), "{killed}");
    assert_eq!(workers.join_timeout(Duration::from_millis(300)), Ok(false), "the other workers go on");
    scene.go();
    assert_eq!(failure(&workers), killed);
    buffer.finish().unwrap()
}

fn image_is_complete_despite_a_killed_painter() {
    let directory = tempfile::tempdir().unwrap();
    let array = paint_with_a_kill(&Directory::new("files", directory.path()), "image", [40, 30, 20], [16, 16, 16]);
    let image = array.read().unwrap();
    assert!(image.indexed_iter().all(|((x, y, z), value)| *value == element([x, y, z])));
}
