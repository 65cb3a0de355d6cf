//! Arrays travel in messages between two processes, without a copy: a worker doubles what it is sent.
//!
//! ```sh
//! cargo run --example channel --features channel        # on Linux
//! ```

#![allow(clippy::float_cmp)] // small whole numbers

use std::env;
use std::process::Command;

use ndarray::{Ix1, array};
use ndarray_shm::Error;
use ndarray_shm::counted::{Channel, ChannelListener, to_shared};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(path) = env::args().nth(1) {
        return work(&path);
    }

    let path = env::temp_dir().join(format!("ndshm-channel-example-{}", std::process::id()));
    let listener = match ChannelListener::bind(&path) {
        Err(Error::Unsupported { what, .. }) => {
            println!("no channels on this platform: {what}");
            return Ok(());
        }
        listener => listener?,
    };
    let mut worker = Command::new(env::current_exe()?).arg(&path).spawn()?;
    let channel = listener.accept()?;

    channel.send(&("double", 7), &[&to_shared(&array![1.0, 2.0, 3.0])?])?;
    let answer = channel.receive::<String>()?;
    let [doubled] = answer.arrays.try_into().map_err(|_| "one array was expected")?;
    let doubled = doubled.attach::<f64, Ix1>()?;
    println!("{}: {}", answer.message, doubled.read()?.view());
    assert_eq!(doubled.read()?.sum(), 12.0);

    drop(channel);
    assert!(worker.wait()?.success(), "the worker failed");
    Ok(())
}

fn work(path: &str) -> Result<(), Box<dyn std::error::Error>> {
    let channel = Channel::connect(path)?;
    let task = channel.receive::<(String, u32)>()?;
    let [array] = task.arrays.try_into().map_err(|_| "one array was expected")?;
    let array = array.attach::<f64, Ix1>()?;
    array.write()?.mapv_inplace(|element| element * 2.0);
    channel.send(&format!("task {} is done", task.message.1), &[&array])?;
    Ok(())
}
