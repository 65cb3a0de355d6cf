//! Shares an array in a file instead of shared memory. This is the fallback, and works in the same way on every
//! platform.
//!
//! ```sh
//! cargo run --example emulated
//! ```
//!
//! Programs do not need this code to run without shared memory: `EMULATE_SHM=1` chooses the same directory for the
//! whole program, and off Linux it is the default. The other examples run with it unchanged.

use std::error::Error;

use ndarray_shm::process::{self, Context};
use ndarray_shm::{CreateOptions, Directory, OpenOptions};

const SHAPE: (usize, usize) = (100, 100);

fn main() -> Result<(), Box<dyn Error>> {
    process::init(&[("fill", fill)]);

    let name = format!("emulated-example-{}", std::process::id());
    let directory = Directory::emulated()?;
    let options = CreateOptions::new().directory(directory.clone());
    let array = options.create::<u8, _>(name.as_str(), SHAPE)?;
    let file = directory.path().join(&name);
    assert_eq!(file.metadata()?.len(), 100 * 100); // the elements and nothing else

    let child = process::spawn(1, "fill", &[&name])?.join();
    let painted = array.read()?.iter().all(|element| *element == 7);
    directory.unlink(name)?;

    child?;
    assert!(painted && !file.exists());
    println!("a child process filled {}, which is removed now", file.display());
    Ok(())
}

/// Runs in the child process, which uses the same directory.
fn fill(context: &Context) -> Result<(), Box<dyn Error>> {
    let options = OpenOptions::new().directory(Directory::emulated()?);
    options.open::<u8, _>(context.arguments()[0].as_str(), SHAPE)?.write()?.fill(7);
    Ok(())
}
