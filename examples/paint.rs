//! Paints one image with four worker processes. One of them is killed while it works, and another one paints its chunk.
//!
//! ```sh
//! cargo run --release --example paint
//! ```

#![allow(clippy::cast_precision_loss)] // small numbers become elements

use std::error::Error;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ndarray_shm::ndarray::Ix2;
use ndarray_shm::process::{self, Context};
use ndarray_shm::{NextClaim, RenderBuffer};

const SIDE: usize = 1024;

fn main() -> Result<(), Box<dyn Error>> {
    process::init(&[("paint", paint)]); // in a worker, this runs `paint` and does not return

    let name = format!("paint-example-{}", std::process::id());
    let buffer = RenderBuffer::<u8, Ix2>::create(name.as_str(), (SIDE, SIDE), (64, 64), "a Mandelbrot set")?;
    let workers = process::spawn_workers(4, "paint", &[&name])?;

    let started = Instant::now();
    while buffer.progress().done < buffer.progress().total / 4 {
        assert!(started.elapsed() < Duration::from_secs(30), "the workers paint nothing");
        sleep(Duration::from_millis(1));
    }
    kill(workers.pids()[0])?;
    if let Err(failure) = workers.join() {
        println!("{failure}; another worker has painted its chunk");
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

/// Runs in each worker process, which gets shape and chunks from the buffer.
fn paint(context: &Context) -> Result<(), Box<dyn Error>> {
    let buffer = RenderBuffer::<u8, Ix2>::open(context.arguments()[0].as_str())?;
    while let NextClaim::Chunk(mut chunk) = buffer.claim_next_wait(Duration::MAX)? {
        let (top, left) = (chunk.region()[0].start, chunk.region()[1].start);
        for ((i, j), steps) in chunk.view_mut().indexed_iter_mut() {
            *steps = escape(top + i, left + j);
        }
        chunk.commit()?;
    }
    Ok(())
}

/// Kills a process, as a user or the kernel's out-of-memory killer may.
fn kill(pid: u32) -> Result<(), Box<dyn Error>> {
    let pid = pid.to_string();
    let (program, arguments) = if cfg!(windows) { ("taskkill", ["/F", "/PID"]) } else { ("kill", ["-s", "KILL"]) };
    Command::new(program).args(arguments).arg(pid).status()?;
    Ok(())
}

/// Returns the number of steps until a point leaves the circle of radius 2, at most 255.
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
