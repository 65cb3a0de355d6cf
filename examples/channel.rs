//! Sends arrays in messages over a socket: a request with an array, and an answer with another.
//!
//! ```sh
//! cargo run --features channel --example channel
//! ```

use std::error::Error;
use std::time::Duration;

use ndarray_shm::ErrorKind;
use ndarray_shm::counted::{Channel, ChannelListener, to_shared};
use ndarray_shm::ndarray::{Array1, Ix1};
use ndarray_shm::process::{self, Context};

fn main() -> Result<(), Box<dyn Error>> {
    process::init(&[("serve", serve)]);

    let path = std::env::temp_dir().join(format!("channel-example-{}.sock", std::process::id()));
    let listener = match ChannelListener::bind(&path) {
        Err(error) if matches!(error.kind, ErrorKind::Unsupported { .. }) => {
            println!("not on this platform: {error}");
            return Ok(());
        }
        listener => listener?,
    };
    let children = process::spawn(1, "serve", &[path.to_str().ok_or("the path of the socket is not UTF-8")?])?;
    let channel = listener.accept_timeout(Duration::from_secs(10))?;

    let array = to_shared(&Array1::from_iter(0..1000_u64))?; // the only time that this program copies the elements
    channel.send("square", &[&array])?;

    let answer = channel.receive::<String>()?;
    let [squares] = answer.arrays.try_into().map_err(|_| "the answer must contain one array")?;
    let squares = squares.attach::<u64, Ix1>()?;
    children.join()?;

    assert_eq!(squares.read()?[999], 999 * 999);
    println!("the answer \"{}\" contained {} elements", answer.message, squares.len());
    Ok(()) // nothing to unlink: the arrays are freed with their last process, the socket is removed with the listener
}

/// Runs in the child process: receives one request and answers it.
fn serve(context: &Context) -> Result<(), Box<dyn Error>> {
    let channel = Channel::connect(&context.arguments()[0])?;
    let request = channel.receive::<String>()?;
    for received in request.arrays {
        println!("the request \"{}\" contained {} elements", request.message, received.shape()[0]);
        let array = received.attach::<u64, Ix1>()?;
        array.write()?.mapv_inplace(|element| element * element);
        channel.send("squared", &[&array])?; // the receiver of an array can send it on
    }
    Ok(())
}
