//! Shows frame after frame to another process, in the same memory, which a pool keeps from one frame to the next.
//!
//! ```sh
//! cargo run --example frames
//! ```

use std::error::Error;
use std::io::{self, BufRead, BufReader, Write};
use std::process::Stdio;

use ndarray_shm::process::{self, Context, SpawnOptions};
use ndarray_shm::{Pool, SharedArray};

const FRAMES: u8 = 20;
const SHAPE: (usize, usize) = (720, 1280);

fn main() -> Result<(), Box<dyn Error>> {
    process::init(&[("view", view)]);

    let options = SpawnOptions::new().configure(|_, command| {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
    });
    let mut viewer = options.spawn(1, "view", &[])?;
    let mut to_viewer = viewer.take_stdin(0).expect("a pipe");
    let mut from_viewer = BufReader::new(viewer.take_stdout(0).expect("a pipe")).lines();

    let pool = Pool::new()?;
    for number in 0..FRAMES {
        let mut frame = pool.take::<u8, _>(SHAPE)?; // from the second frame on, it holds an earlier frame
        frame.view_mut().fill(number);
        let frame = frame.publish(format!("frame-{}-{number}", std::process::id()))?;

        writeln!(to_viewer, "{}", frame.location())?;
        let seen = from_viewer.next().ok_or("the viewer has ended")??;
        assert_eq!(seen, number.to_string());
    } // `frame` loses its name here, and the pool can take its memory again once the viewer has detached
    drop(to_viewer);
    viewer.join()?;

    // Off Linux a process cannot find out whether other processes are attached, so each frame takes new memory.
    let stats = pool.stats();
    assert!(stats.hits > 0 || cfg!(not(target_os = "linux")));
    println!("{FRAMES} frames: {} in new memory, {} in memory of an earlier frame", stats.misses, stats.hits);
    Ok(())
}

/// Runs in the child process: reads names, one per line, and prints the value of each frame.
fn view(_: &Context) -> Result<(), Box<dyn Error>> {
    for name in io::stdin().lines() {
        let frame = SharedArray::<u8, _>::open(name?, SHAPE)?;
        let value = frame.read()?[[0, 0]];
        assert!(frame.read()?.iter().all(|pixel| *pixel == value));
        drop(frame); // detached before the answer, so that the pool can use the memory at once
        println!("{value}");
    }
    Ok(())
}
