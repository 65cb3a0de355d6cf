//! Arrays per second that one process creates, sends to another and drops, for each sharing strategy.
//!
//! ```text
//! cargo bench --features channel --bench share            # 4,000 arrays of 1,024 floats
//! scripts/bench share                                     # compared with torch, if Python has it
//! ```

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use ndarray::Ix1;
use ndarray_shm::counted::{Channel, ChannelListener, SharingStrategy};
use ndarray_shm::{CreateOptions, ErrorKind, Result};

const ARRAYS: usize = 4000;
const ELEMENTS: usize = 1024;
const ROUNDS: usize = 5;

/// The environment variable with the socket's path, for the child process.
const PATH: &str = "NDSHM_BENCH_PATH";

/// Runs in the other process. Adds up the first elements of all arrays that arrive, and answers a message without
/// arrays with the sum.
fn receive() -> Result<()> {
    let path = std::env::var_os(PATH).unwrap_or_default();
    let channel = Channel::connect(path)?;
    loop {
        let mut sum = 0.0;
        loop {
            let mut received = channel.receive::<u32>()?;
            let Some(array) = received.arrays.pop() else { break };
            sum += f64::from(array.reader::<f32, Ix1>()?.view()[0]);
        }
        if channel.send(&sum, &[]).is_err() {
            return Ok(());
        }
    }
}

/// Creates, sends and drops the arrays. Returns the time until the other process has dropped the last one.
fn send(channel: &Channel, strategy: SharingStrategy) -> Result<Duration> {
    let begin = Instant::now();
    for index in 0..ARRAYS {
        #[allow(clippy::cast_precision_loss)] // small
        let fill = |mut view: ndarray::ArrayViewMut1<'_, f32>| view.fill(index as f32);
        let array = CreateOptions::new().share_with::<f32, _>(strategy, ELEMENTS, fill)?;
        channel.send(&0, &[&array])?;
    }
    channel.send(&0, &[])?;
    let sum = channel.receive::<f64>()?.message;
    let time = begin.elapsed();
    #[allow(clippy::cast_precision_loss)] // as above
    let expected = (ARRAYS * (ARRAYS - 1) / 2) as f64;
    assert!((sum - expected).abs() < 0.5, "{sum} is not {expected}");
    Ok(time)
}

fn main() -> ExitCode {
    if std::env::var_os(PATH).is_some() {
        return match receive() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) if matches!(error.kind, ErrorKind::Closed { .. }) => ExitCode::SUCCESS,
            Err(error) => panic!("{error}"),
        };
    }
    let directory = tempfile::tempdir().expect("a directory for the socket");
    let path = directory.path().join("socket");
    let listener = ChannelListener::bind(&path).expect("a socket");
    let program = std::env::current_exe().expect("this program's path");
    let mut child = Command::new(program).env(PATH, &path).spawn().expect("a second process");
    let channel = listener.accept().expect("the second process connects");
    for strategy in SharingStrategy::ALL {
        let times = (0..ROUNDS).map(|_| send(&channel, strategy).expect("they are shared"));
        let best = times.min().unwrap_or_default();
        #[allow(clippy::cast_precision_loss)] // small
        let rate = ARRAYS as f64 / best.as_secs_f64();
        println!("ndarray-shm {strategy:<15} {rate:>8.0} arrays/s ({ARRAYS} in {best:.1?}, best of {ROUNDS})");
    }
    drop(channel);
    let status = child.wait().expect("it ends");
    assert!(status.success(), "{status}");
    ExitCode::SUCCESS
}
