//! Passes an array from process to process as text. The last process that is attached removes its name.
//!
//! ```sh
//! cargo run --example counted
//! ```

use std::error::Error;
use std::io::Read;
use std::process::Stdio;

use ndarray_shm::counted::{Handle, SharingStrategy};
use ndarray_shm::ndarray::Ix1;
use ndarray_shm::process::{self, Context, SpawnOptions};
use ndarray_shm::{CreateOptions, RefcountedArray};

fn main() -> Result<(), Box<dyn Error>> {
    process::init(&[("double", double)]);

    let options = CreateOptions::new();
    let array = options.share_with::<u32, Ix1>(SharingStrategy::FileSystem, 1000, |mut view| view.fill(21))?;
    let name = array.location().expect("this strategy gives a name").clone();

    // A handle is one line of text. It keeps the array alive for 30 seconds, even if no process is attached.
    let handle = array.handle()?.to_string();
    drop(array);

    // The child attaches, and prints a handle of its own.
    let options = SpawnOptions::new().configure(|_, command| {
        command.stdout(Stdio::piped());
    });
    let mut children = options.spawn(1, "double", &[&handle])?;
    let mut answer = String::new();
    children.take_stdout(0).expect("a pipe").read_to_string(&mut answer)?;
    children.join()?;

    let array = answer.trim().parse::<Handle>()?.attach::<u32, Ix1>()?;
    assert!(array.read()?.iter().all(|element| *element == 42));
    println!("{} elements came back, {} process has them attached", array.len(), array.refcount());

    drop(array); // the last handle
    let error = RefcountedArray::<u32, Ix1>::open(&name).expect_err("the last handle has removed the name");
    assert!(error.is_not_found());
    println!("after the last handle: {error}");
    Ok(())
}

/// Runs in the child process, which gets only the handle. Attaching checks the type and the number of axes.
fn double(context: &Context) -> Result<(), Box<dyn Error>> {
    let handle: Handle = context.arguments()[0].parse()?;
    let array = handle.attach::<u32, Ix1>()?;
    array.write()?.mapv_inplace(|element| element * 2);
    println!("{}", array.handle()?);
    Ok(())
}
