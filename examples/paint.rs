//! Four worker processes paint one image; one of them is killed on the way, and nobody notices.
//!
//! ```sh
//! cargo run --release --example paint
//! ```

#![allow(clippy::cast_precision_loss)] // small numbers become elements

use std::env;
use std::process::Command;
use std::time::Duration;

use ndarray::Ix2;
use ndarray_shm::{NextClaim, RenderBuffer, unlink};

const SIDE: usize = 1024;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(location) = env::args().nth(1) {
        return work(&location);
    }

    let location = format!("paint-example-{}", std::process::id());
    let buffer = RenderBuffer::<u8, Ix2>::create(location.as_str(), (SIDE, SIDE), (64, 64), "a Mandelbrot set")?;
    let program = env::current_exe()?;
    let mut workers = (0..4).map(|_| Command::new(&program).arg(&location).spawn()).collect::<Result<Vec<_>, _>>()?;

    while buffer.progress().done < buffer.progress().total / 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
    workers[0].kill()?;
    for worker in &mut workers {
        worker.wait()?;
    }

    let array = buffer.finish()?;
    let inside = array.read()?.iter().filter(|steps| **steps == u8::MAX).count();
    println!("{inside} of {} points belong to the set", array.len());
    unlink(location)?;
    Ok(())
}

fn work(location: &str) -> Result<(), Box<dyn std::error::Error>> {
    let buffer = RenderBuffer::<u8, Ix2>::open(location)?;
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
