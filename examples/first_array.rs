//! Shares one array: this process creates it, a child process opens it by name and changes it.
//!
//! ```sh
//! cargo run --example first_array
//! ```

use std::error::Error;

use ndarray_shm::process::{self, Context};
use ndarray_shm::{SharedArray, unlink};

/// Both processes must use the same type and shape. Here they share this constant.
const SHAPE: (usize, usize) = (4, 5);

fn main() -> Result<(), Box<dyn Error>> {
    process::init(&[("double", double)]);

    let name = format!("first-array-{}", std::process::id());
    let array = SharedArray::<u32, _>::create(name.as_str(), SHAPE)?;
    array.write()?[[1, 2]] = 21; // the guard is released at the semicolon

    let child = process::spawn(1, "double", &[&name])?.join();
    let answer = array.read()?[[1, 2]];
    unlink(name)?; // the memory is freed when the last process detaches

    child?;
    assert_eq!(answer, 42);
    println!("the child process doubled element [1, 2]: it is {answer} now");
    Ok(())
}

/// Runs in the child process, which is this program started again.
fn double(context: &Context) -> Result<(), Box<dyn Error>> {
    let array = SharedArray::<u32, _>::open(context.arguments()[0].as_str(), SHAPE)?;
    array.write()?.mapv_inplace(|element| element * 2);
    Ok(())
}
