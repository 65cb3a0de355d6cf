//! A producer passes a thousand small arrays of an arena to a consumer in another process.
//!
//! ```sh
//! cargo run --release --example queue
//! ```

use std::env;
use std::process::Command;
use std::time::Duration;

use ndarray::{Array1, Ix1};
use ndarray_shm::Arena;

const ARRAYS: usize = 1000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(name) = env::args().nth(1) {
        return consume(&name);
    }

    let name = format!("queue-{}", std::process::id());
    let arena = Arena::create(name.as_str(), 1 << 20)?;
    let mut consumer = Command::new(env::current_exe()?).arg(&name).spawn()?;
    let queue = arena.queue(0)?;
    for number in 0..ARRAYS {
        let array = Array1::from_elem(number % 10, number as u64);
        queue.send_timeout(arena.from_array(&array)?, Duration::from_secs(10))?; // one word, whatever the array's size
    }
    queue.close()?;
    assert!(consumer.wait()?.success(), "the consumer failed");
    Ok(())
}

fn consume(name: &str) -> Result<(), Box<dyn std::error::Error>> {
    let queue = Arena::open(name)?.queue(0)?;
    let (mut count, mut elements) = (0, 0);
    loop {
        match queue.recv::<u64, Ix1>() {
            Ok(array) => {
                assert!(array.view().iter().all(|element| *element == count));
                count += 1;
                elements += array.view().len();
            } // its block is free again
            Err(error) if error.error().is_closed() => break,
            Err(error) => return Err(error.into()),
        }
    }
    println!("{count} arrays with {elements} elements arrived, in their order");
    assert_eq!(count, ARRAYS as u64);
    Ok(())
}
