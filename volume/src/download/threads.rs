//! Workers that are threads of this process: the default, since no lock of an interpreter holds them back.

use std::any::Any;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use ndarray::IxDyn;
use ndarray_shm::{Element, RenderBuffer};

use crate::download::paint::{self, Ended, Work, worker_count};
use crate::download::watch::{Outcome, Watch};
use crate::error::{Error, Result};
use crate::progress::StopFlag;

/// How long nothing may be heard of the painters before progress is looked at, since others may paint too.
const PATIENCE: Duration = Duration::from_millis(50);

/// Paints with `count` threads, 0 for one on each processor.
pub(crate) fn paint<T: Element>(
    buffer: &RenderBuffer<T, IxDyn>,
    work: &Work<'_>,
    count: usize,
    watch: &mut Watch<'_>,
) -> Outcome {
    let left = buffer.progress();
    let count = worker_count(count).min(left.total - left.done).max(1);
    let (sender, news) = mpsc::channel();
    let ends = thread::scope(|scope| {
        let mut painters = Vec::with_capacity(count);
        let mut refused = None;
        for number in 0..count {
            let sender = sender.clone();
            let painter = thread::Builder::new().name(format!("paint-{number}")).spawn_scoped(scope, move || {
                let alarm = Alarm(work.abort);
                let end = paint::paint(buffer, work, &mut || {
                    // Whether anybody listens is no concern of the painter.
                    let _heard = sender.send(());
                });
                if end.is_ok() {
                    std::mem::forget(alarm);
                }
                end
            });
            match painter {
                Ok(painter) => painters.push(painter),
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        drop(sender);
        if let Some(error) = refused {
            watch.warn(format!("only {} of {count} worker threads could be started: {error}", painters.len()));
            if painters.is_empty() {
                return vec![Err(Error::io("starting a thread for", "paint-0", error))];
            }
        }
        while let Ok(()) | Err(RecvTimeoutError::Timeout) = news.recv_timeout(PATIENCE) {
            watch.tell_now_and_then(buffer);
        }
        painters.into_iter().map(|painter| painter.join().unwrap_or_else(|panic| Err(panicked(&*panic)))).collect()
    });
    outcome(buffer, ends)
}

/// Stops the colleagues of a painter that fails or panics.
struct Alarm<'a>(&'a StopFlag);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

fn outcome<T: Element>(buffer: &RenderBuffer<T, IxDyn>, ends: Vec<Result<Ended>>) -> Outcome {
    let progress = buffer.progress();
    if progress.is_complete() {
        return Outcome::Complete;
    }
    for end in ends {
        match end {
            Ok(_) => {}
            Err(Error::Painting { report, .. }) => {
                let error = Error::Painting { report, done: progress.done, total: progress.total };
                return Outcome::Failed(error);
            }
            Err(error) => return Outcome::Failed(error),
        }
    }
    Outcome::Stopped
}

fn panicked(panic: &(dyn Any + Send)) -> Error {
    let message = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".to_owned());
    Error::Painting { report: format!("a worker thread panicked: {message}"), done: 0, total: 0 }
}
