//! Paints one image with four worker processes. One is killed on the way; the others paint its chunk, too.
//!
//! ```sh
//! cargo run --release --example paint
//! ```

#![allow(clippy::cast_precision_loss)] // small numbers become elements

use std::env;
use std::error::Error;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ndarray_shm::ndarray::Ix2;
use ndarray_shm::{NextClaim, RenderBuffer};

const SIDE: usize = 1024;

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(name) = env::args().nth(1) {
        return work(&name);
    }

    let name = format!("paint-example-{}", std::process::id());
    let buffer = RenderBuffer::<u8, Ix2>::create(name.as_str(), (SIDE, SIDE), (64, 64), "a Mandelbrot set")?;
    let program = env::current_exe()?;
    let mut workers = (0..4).map(|_| Command::new(&program).arg(&name).spawn()).collect::<Result<Vec<_>, _>>()?;

    let started = Instant::now();
    while buffer.progress().done < buffer.progress().total / 4 {
        assert!(started.elapsed() < Duration::from_secs(30), "the workers paint nothing");
        sleep(Duration::from_millis(1));
    }
    workers[0].kill()?;
    for worker in &mut workers {
        worker.wait()?;
    }

    // The array gets its name here: no process ever sees it half-painted.
    let array = buffer.finish()?;
    let image = array.read()?;
    let inside = image.iter().filter(|steps| **steps == u8::MAX).count();
    let right = image.indexed_iter().step_by(101).all(|((row, column), steps)| *steps == escape(row, column));
    drop(image);
    array.unlink()?;

    assert!(right);
    println!("{inside} of {} points belong to the set", array.len());
    Ok(())
}

/// What each worker process does; it learns shape and chunks from the buffer.
fn work(name: &str) -> Result<(), Box<dyn Error>> {
    let buffer = RenderBuffer::<u8, Ix2>::open(name)?;
    while let NextClaim::Chunk(mut chunk) = buffer.claim_next_wait(Duration::from_secs(10))? {
        let (top, left) = (chunk.region()[0].start, chunk.region()[1].start);
        for ((i, j), steps) in chunk.view_mut().indexed_iter_mut() {
            *steps = escape(top + i, left + j);
        }
        chunk.commit()?;
    }
    Ok(())
}

/// Steps until a point leaves the circle of radius 2, at most 255.
fn escape(row: usize, column: usize) -> u8 {
    let scale = |at: usize| at as f64 / SIDE as f64 * 3.0;
    let (re, im) = (scale(column) - 2.2, scale(row) - 1.5);
    let (mut x, mut y) = (0.0, 0.0);
    for steps in 0..u8::MAX {
        (x, y) = (x * x - y * y + re, 2.0 * x * y + im);
        if x * x + y * y > 4.0 {
            return steps;
        }
    }
    u8::MAX
}
