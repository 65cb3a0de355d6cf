//! One process creates an array, another opens it by name and changes it.
//!
//! ```sh
//! cargo run --example first_array
//! ```

#![allow(clippy::float_cmp)] // small whole numbers

use std::env;
use std::process::Command;

use ndarray_shm::{SharedArray, unlink};

const SHAPE: (usize, usize) = (4, 5);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(name) = env::args().nth(1) {
        // The other process knows name, element type and shape, and nothing else.
        let array = SharedArray::<f32, _>::open(name, SHAPE)?;
        array.write()?.mapv_inplace(|element| element * 2.0);
        return Ok(());
    }

    let name = format!("first-array-{}", std::process::id());
    let array = SharedArray::<f32, _>::create_with(name.as_str(), SHAPE, |mut view| view.fill(21.0))?;
    let status = Command::new(env::current_exe()?).arg(&name).status();
    let doubled = array.read()?.to_owned();
    unlink(&name)?; // no guard can be had after this; the memory goes with the last attachment

    assert!(status?.success(), "the other process failed");
    println!("{doubled}");
    assert!(doubled.iter().all(|element| *element == 42.0));
    Ok(())
}
