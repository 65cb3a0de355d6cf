//! An array is handed to another process as one line of text; its name goes with the last handle.
//!
//! ```sh
//! cargo run --example counted
//! ```

use std::env;
use std::process::Command;

use ndarray::Ix2;
use ndarray_shm::RefcountedArray;
use ndarray_shm::counted::Handle;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(text) = env::args().nth(1) {
        // The array says itself what it is: a wrong type or number of axes would be an error.
        let array = text.parse::<Handle>()?.attach::<u32, Ix2>()?;
        println!("received {:?} elements, {} handles", array.shape(), array.refcount());
        array.write()?[[2, 3]] = 42;
        return Ok(());
    }

    let name = format!("counted-{}", std::process::id());
    let array = RefcountedArray::<u32, _>::create(name.as_str(), (3, 4))?;
    let handle = array.handle()?; // while it is in flight, the array stays
    let status = Command::new(env::current_exe()?).arg(handle.to_string()).status()?;
    assert!(status.success(), "the receiver failed");
    assert_eq!(array.read()?[[2, 3]], 42);

    drop(array);
    assert!(RefcountedArray::<u32, Ix2>::open(name.as_str()).is_err(), "the last handle removed the name");
    println!("nothing is left");
    Ok(())
}
