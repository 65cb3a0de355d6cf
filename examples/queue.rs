//! Passes many small arrays through a queue in an arena: two processes produce them, two consume them.
//!
//! ```sh
//! cargo run --release --example queue
//! ```

use std::error::Error;

use ndarray_shm::ndarray::{Ix1, arr1};
use ndarray_shm::process::{self, Context};
use ndarray_shm::{Arena, ErrorKind};

/// The queues of the arena, by number.
const JOBS: u32 = 0;
const TOTALS: u32 = 1;

const EACH: u64 = 10_000;

fn main() -> Result<(), Box<dyn Error>> {
    process::init(&[("produce", produce), ("consume", consume)]);

    // 16 MiB, much less than all arrays together: the blocks of consumed arrays are used again.
    let name = format!("queue-example-{}", std::process::id());
    let arena = Arena::create(name.as_str(), 1 << 24)?;
    let consumers = process::spawn(2, "consume", &[&name])?;
    let producers = process::spawn(2, "produce", &[&name])?;
    producers.join()?;
    arena.queue(JOBS)?.close()?; // the consumers receive the messages that were sent before, and end
    consumers.join()?;

    // The messages of the ended consumers still arrive.
    let (mut arrays, mut total) = (0, 0);
    for _ in 0..2 {
        let part = arena.queue(TOTALS)?.recv::<u64, Ix1>()?;
        println!("a consumer received {} arrays", part.view()[0]);
        arrays += part.view()[0];
        total += part.view()[1];
    }
    assert_eq!((arrays, total), (2 * EACH, 256 * EACH * (EACH - 1)));
    Ok(()) // the last process that closes the arena removes its name
}

/// Runs in two child processes.
fn produce(context: &Context) -> Result<(), Box<dyn Error>> {
    let arena = Arena::open(context.arguments()[0].as_str())?;
    let queue = arena.queue(JOBS)?;
    for number in 0..EACH {
        let mut draft = arena.draft::<u64, _>(256)?; // holds the old contents of the memory
        draft.view_mut().fill(number);
        queue.send(draft.share()?)?; // waits while the queue is full
    }
    Ok(())
}

/// Runs in two child processes; each array is received by one of them.
fn consume(context: &Context) -> Result<(), Box<dyn Error>> {
    let arena = Arena::open(context.arguments()[0].as_str())?;
    let queue = arena.queue(JOBS)?;
    let (mut arrays, mut total) = (0, 0);
    loop {
        match queue.recv::<u64, Ix1>() {
            Ok(array) => (arrays, total) = (arrays + 1, total + array.view().sum()),
            Err(error) if matches!(error.error().kind, ErrorKind::Closed { .. }) => break,
            Err(error) => return Err(error.into()),
        }
    }
    arena.queue(TOTALS)?.send(arena.from_array(&arr1(&[arrays, total]))?)?;
    Ok(())
}
