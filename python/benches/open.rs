//! Prints the seconds of one `SharedArray::open` of an array of `f32`, for `speed.py`: `open NAME LENGTH`.

use std::time::Instant;

use ndarray_shm::SharedArray;

const TIMES: u32 = 5000;

fn main() {
    let [name, length] = &std::env::args().skip(1).filter(|word| word != "--bench").collect::<Vec<_>>()[..] else {
        return; // `cargo bench` without arguments
    };
    let length: usize = length.parse().expect("a number of elements");
    let start = Instant::now();
    for _ in 0..TIMES {
        SharedArray::<f32, _>::open(name.as_str(), length).expect("an array of f32 has this name");
    }
    println!("{}", start.elapsed().as_secs_f64() / f64::from(TIMES));
}
