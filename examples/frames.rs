//! A camera publishes one frame after the other in memory of a pool; a viewer in another process reads each by its name.
//!
//! ```sh
//! cargo run --example frames
//! ```

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::{env, io};

use ndarray_shm::{Pool, SharedArray};

const SHAPE: (usize, usize) = (480, 640);
const FRAMES: u8 = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if env::args().nth(1).is_some() {
        return view();
    }

    let mut viewer =
        Command::new(env::current_exe()?).arg("view").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut to_viewer = viewer.stdin.take().ok_or("no pipe to the viewer")?;
    let mut answers = BufReader::new(viewer.stdout.take().ok_or("no pipe from the viewer")?).lines();
    let pool = Pool::new()?;
    for frame in 0..FRAMES {
        let mut draft = pool.take::<u8, _>(SHAPE)?; // the memory of an earlier frame, if the viewer has left it
        draft.view_mut().fill(frame);
        let array = draft.publish(format!("frames-{}-{frame}", std::process::id()))?;
        writeln!(to_viewer, "{}", array.location())?;
        println!("frame {frame}: its brightest pixel is {}", answers.next().ok_or("the viewer has ended")??);
    } // the frame loses its name, its memory comes back
    drop(to_viewer);
    assert!(viewer.wait()?.success(), "the viewer failed");

    let stats = pool.stats();
    println!("{} frames in new memory, {} in memory of earlier ones", stats.misses, stats.hits);
    assert_eq!(stats.misses + stats.hits, u64::from(FRAMES));
    Ok(())
}

fn view() -> Result<(), Box<dyn std::error::Error>> {
    for name in io::stdin().lines() {
        let frame = SharedArray::<u8, _>::open(name?, SHAPE)?;
        let brightest = frame.read()?.iter().copied().max().unwrap_or(0);
        drop(frame); // before the answer: the camera may use the memory again
        println!("{brightest}");
    }
    Ok(())
}
