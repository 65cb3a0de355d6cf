//! Workers that paint one array, of which one is killed.

use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::{Ix3, ShapeBuilder};
use ndarray_shm::process::{self, Context};
use ndarray_shm::render::RenderOptions;
use ndarray_shm::{Directory, NextClaim, RenderBuffer, SharedArray};

use super::entries::{Outcome, arrive, directory};
use super::{Scene, failure};
use crate::support;
use crate::support::machine::send_signal;
use crate::tests;

pub fn trials() -> Vec<Trial> {
    support::trials("processes", tests![image_is_complete_though_a_painter_is_killed])
}

/// What stands at a place of the image.
pub fn element([x, y, z]: [usize; 3]) -> u16 {
    (x + 3 * y + 5 * z) as u16
}

/// An entry: paints the buffer that the third argument names in the directory that the second one names. The first worker keeps
/// its first chunk until it is killed.
pub fn paint(context: &Context) -> Outcome {
    let [_, path, name] = context.arguments() else { return Err("three arguments".into()) };
    let buffer: RenderBuffer<u16, Ix3> =
        RenderOptions::new().backend(Directory::new("files", path)).open(name.as_str())?;
    while let NextClaim::Chunk(mut chunk) = buffer.claim_next_wait(Duration::MAX)? {
        if context.index() == 0 {
            arrive(context)?;
            while directory(context).exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
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
    let options = RenderOptions::new().backend(directory.clone());
    let buffer = options.create::<u16, Ix3>(name, shape.f(), chunk, "painted by four").unwrap();
    let path = directory.path().to_str().unwrap();
    let workers = process::spawn_workers(4, "paint", &[scene.path(), path, name]).unwrap();
    scene.wait_for(&["here-0"]);
    send_signal("KILL", workers.pids()[0]);
    let failure = failure(&workers);
    assert_eq!((failure.index(), failure.ending().signal_name().as_deref()), (0, Some("SIGKILL")), "{failure}");
    buffer.finish().unwrap()
}

fn image_is_complete_though_a_painter_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let array = paint_with_a_kill(&Directory::new("files", directory.path()), "image", [40, 30, 20], [16, 16, 16]);
    let image = array.read().unwrap();
    assert!(image.indexed_iter().all(|((x, y, z), value)| *value == element([x, y, z])));
}
