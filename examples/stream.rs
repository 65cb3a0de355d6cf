//! Sends frames to two other processes: one looks at every frame, one at the newest. The writer is killed on the way,
//! and another one goes on.
//!
//! ```sh
//! cargo run --example stream
//! ```

use std::error::Error;
use std::time::Duration;

use ndarray_shm::ndarray::Ix2;
use ndarray_shm::process::{self, Context, SpawnOptions};
use ndarray_shm::stream::StreamOptions;
use ndarray_shm::{DType, ErrorKind, StreamReader};

const SHAPE: (usize, usize) = (480, 640);
const SLOTS: usize = 8;
/// Each writer adds this many.
const FRAMES: u64 = 30;

fn main() -> Result<(), Box<dyn Error>> {
    process::init(&[("camera", camera), ("viewer", viewer)]);
    let name = format!("stream-example-{}", std::process::id());

    // The first camera stops answering after its last frame, and is killed.
    let broken = SpawnOptions::new().spawn(1, "camera", &[&name, "hang"])?;
    let mut reader = open(&name)?;
    let viewers = process::spawn(2, "viewer", &[&name])?;
    while reader.next_wait(Duration::from_secs(60))?.number() < FRAMES {}
    drop(broken); // kills it
    assert_eq!(reader.next_wait(Duration::MAX).unwrap_err().kind, ErrorKind::NoWriter);

    // The second one takes the stream over. Numbers go on.
    process::spawn(1, "camera", &[&name, "end"])?.join()?;
    viewers.join()?;
    let frame = reader.latest_wait(Duration::MAX)?; // the name has gone, and the newest frame is still there
    println!("frame {} is of writer {}", frame.number(), frame.epoch());
    assert_eq!((frame.number(), frame.epoch()), (2 * FRAMES, 2));
    Ok(())
}

/// Opens the stream as soon as it exists.
fn open(name: &str) -> ndarray_shm::Result<StreamReader<u16, Ix2>> {
    loop {
        match StreamReader::open(name) {
            Err(error) if error.is_not_found() => std::thread::sleep(Duration::from_millis(1)),
            other => return other,
        }
    }
}

/// Writes frames in which each element is the frame's number.
fn camera(context: &Context) -> Result<(), Box<dyn Error>> {
    let [name, end] = context.arguments() else { return Err("a name and an end".into()) };
    let options = StreamOptions::new().resume(true).meta("exposure", DType::F64, 1);
    let mut writer = options.create::<u16, _>(name, SHAPE, SLOTS)?;
    for _ in 0..FRAMES {
        let mut frame = writer.frame()?;
        let number = frame.number();
        frame.view_mut().fill(u16::try_from(number)?);
        frame.set_meta("exposure", &[0.001])?;
        frame.commit()?;
        std::thread::sleep(Duration::from_millis(2));
    }
    if end == "hang" {
        loop {
            std::thread::park();
        }
    }
    Ok(()) // the writer is dropped, which ends the stream
}

/// Looks at frames until the stream ends.
fn viewer(context: &Context) -> Result<(), Box<dyn Error>> {
    let mut reader = open(&context.arguments()[0])?;
    let mut seen = 0;
    loop {
        let frame =
            if context.index() == 0 { reader.next_wait(Duration::MAX) } else { reader.latest_wait(Duration::MAX) };
        match frame {
            Ok(frame) => {
                let first = frame.view()[(0, 0)];
                assert!(u64::from(first) == frame.number() && frame.view().iter().all(|pixel| *pixel == first));
                assert_eq!(frame.meta::<f64>("exposure")?, [0.001]);
                seen += 1;
            }
            Err(error) if error.kind == ErrorKind::NoWriter => {} // waits for the next one
            Err(error) if matches!(error.kind, ErrorKind::Closed { .. }) => break,
            Err(error) => return Err(error.into()),
        }
    }
    println!("viewer {}: {seen} frames, {} missed", context.index(), reader.lost());
    Ok(())
}
