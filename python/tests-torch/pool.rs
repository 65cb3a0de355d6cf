//! The pool of `test_pool.py`: `pool NAME`. It publishes an array of its memory and then obeys its standard input.

use std::io::{BufRead, stdin};
use std::time::Duration;

use ndarray_shm::pool::PoolOptions;

/// Elements of the arrays.
const LENGTH: usize = 5000;

fn main() -> Result<(), ndarray_shm::Error> {
    let name = std::env::args().nth(1).expect("usage: pool NAME");
    // On a slow machine a test takes longer than pools keep memory by default.
    let pool = PoolOptions::new().max_age(Duration::from_mins(10)).create()?;
    let mut draft = pool.take::<i32, _>(LENGTH)?;
    draft.view_mut().fill(7);
    let mut array = Some(draft.publish(name)?);
    println!("published");
    for line in stdin().lock().lines().map_while(Result::ok) {
        match line.as_str() {
            // The array loses its name, and the memory returns to the pool.
            "drop" => {
                drop(array.take());
                println!("{}", pool.stats().draining.arrays);
            }
            // Memory that is not in use is taken and overwritten.
            "take" => {
                let mut draft = pool.take::<i32, _>(LENGTH)?;
                draft.view_mut().fill(8);
                let answer = if draft.is_recycled() { "recycled" } else { "new" };
                drop(draft);
                // Before the answer: afterwards the test may free its tensor, and this would free the memory that is
                // idle then.
                pool.trim();
                println!("{answer}");
            }
            other => panic!("unknown request {other}"),
        }
    }
    Ok(())
}
