//! One process makes an array, another opens it by name and changes it.
//!
//! ```sh
//! cargo run --example share
//! ```

#![allow(clippy::cast_precision_loss)] // small numbers become elements

use std::env;
use std::process::Command;

use ndarray_shm::{SharedArray, unlink};

const SHAPE: (usize, usize) = (4, 5);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(location) = env::args().nth(1) {
        // The other process: knows name, shape and type, nothing else.
        let array = SharedArray::<f32, _>::open(location, SHAPE)?;
        array.write()?.mapv_inplace(|value| value * 2.0);
        return Ok(());
    }

    let location = format!("share-example-{}", std::process::id());
    let array = SharedArray::<f32, _>::create_with(location.as_str(), SHAPE, |mut view| {
        view.indexed_iter_mut().for_each(|((i, j), value)| *value = (10 * i + j) as f32);
    })?;
    let status = Command::new(env::current_exe()?).arg(&location).status();
    println!("{}", array.read()?.view());
    unlink(location)?; // the memory goes with the last attachment
    assert!(status?.success());
    Ok(())
}
