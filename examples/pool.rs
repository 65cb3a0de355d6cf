//! Hands image after image to another process, in the same memory, which a pool keeps from one to the next. Each image
//! has a name of its own, and stays until both processes have done with it. (For frames of one shape from one process
//! to several others, see the example `stream`.)
//!
//! ```sh
//! cargo run --example pool
//! ```

use std::error::Error;
use std::io::{self, BufRead, BufReader, Write};
use std::process::Stdio;

use ndarray_shm::process::{self, Context, SpawnOptions};
use ndarray_shm::{Pool, SharedArray};

const IMAGES: u8 = 20;
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
    for number in 0..IMAGES {
        let mut image = pool.take::<u8, _>(SHAPE)?; // from the second image on, it holds an earlier image
        image.view_mut().fill(number);
        let image = image.publish(format!("image-{}-{number}", std::process::id()))?;

        writeln!(to_viewer, "{}", image.location())?;
        let seen = from_viewer.next().ok_or("the viewer has ended")??;
        assert_eq!(seen, number.to_string());
    } // `image` loses its name here, and the pool can take its memory again once the viewer has detached
    drop(to_viewer);
    viewer.join()?;

    // Off Linux a process cannot find out whether other processes are attached, so each image takes new memory.
    let stats = pool.stats();
    assert!(stats.hits > 0 || cfg!(not(target_os = "linux")));
    println!("{IMAGES} images: {} in new memory, {} in memory of an earlier image", stats.misses, stats.hits);
    Ok(())
}

/// Runs in the child process: reads names, one per line, and prints the value of each image.
fn view(_: &Context) -> Result<(), Box<dyn Error>> {
    for name in io::stdin().lines() {
        let image = SharedArray::<u8, _>::open(name?, SHAPE)?;
        let value = image.read()?[[0, 0]];
        assert!(image.read()?.iter().all(|pixel| *pixel == value));
        drop(image); // detached before the answer, so that the pool can use the memory at once
        println!("{value}");
    }
    Ok(())
}
