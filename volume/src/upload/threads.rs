//! The threads of an upload: the work of each, and the result when all have ended.
//!
//! Objects that are written whole come first. For a local volume each thread encodes and stores. For a remote volume,
//! where storing waits for a network, some threads encode and many store. Objects that are changed in part come last;
//! one thread does all of the work on each. Both kinds are stored under the object's lock: otherwise a thread that
//! changes a part could overwrite a whole object that another upload stored after that thread's read.

use std::any::Any;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;

use ndarray::ArrayViewD;
use ndarray_shm::Element;

use crate::bbox::Bbox;
use crate::error::{Error, Result, panic_message};
use crate::grid::Cells;
use crate::progress::{DownloadProgress, PROGRESS_INTERVAL, StopFlag, StopOnDrop};
use crate::retries::Retries;
use crate::store::wanted::in_job;
use crate::upload::gather::FromArray;
use crate::upload::locks::Locks;
use crate::upload::options::UploadOptions;
use crate::upload::queue::{Packed, PackedQueue};
use crate::upload::units::Units;
use crate::volume::ChunkSink;

/// Default number of concurrent requests to a remote store.
const REQUESTS: usize = 16;

/// Limit for encoded bytes that wait to be stored or are being stored.
const QUEUE_BYTES: usize = 64 << 20;

/// A finished upload.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Uploaded {
    /// The part of the volume that was written.
    pub bbox: Bbox,
    /// Objects that were stored.
    pub stored: usize,
    /// Objects that hold only background, and therefore were not stored, or were removed.
    pub background: usize,
    /// Bytes of the array that were written.
    pub bytes: u64,
    /// Bytes that were stored.
    pub stored_bytes: u64,
    /// Problems that did not stop the work.
    pub warnings: Vec<String>,
}

/// One upload.
pub(crate) struct UploadRun<'a, T> {
    sink: &'a dyn ChunkSink,
    array: ArrayViewD<'a, T>,
    bbox: &'a Bbox,
    units: &'a Units,
    options: &'a UploadOptions<'a>,
    locks: Locks,
    /// Raised by a thread that failed, to stop the other threads.
    abort: StopFlag,
    failure: Mutex<Option<Error>>,
    tally: UploadTally,
    retries: Retries,
    begun: Instant,
}

/// The work done so far.
#[derive(Debug, Default)]
struct UploadTally {
    stored: AtomicUsize,
    background: AtomicUsize,
    bytes: AtomicU64,
    stored_bytes: AtomicU64,
}

impl UploadTally {
    fn done(&self) -> usize {
        self.stored.load(Ordering::Relaxed) + self.background.load(Ordering::Relaxed)
    }
}

impl<'a, T: Element> UploadRun<'a, T> {
    pub(crate) fn new(
        sink: &'a dyn ChunkSink,
        array: ArrayViewD<'a, T>,
        bbox: &'a Bbox,
        units: &'a Units,
        options: &'a UploadOptions<'a>,
    ) -> Self {
        Self {
            sink,
            array,
            bbox,
            units,
            options,
            locks: Locks::new(sink.place()),
            abort: StopFlag::new(),
            failure: Mutex::new(None),
            tally: UploadTally::default(),
            retries: Retries::of_thread(),
            begun: Instant::now(),
        }
    }

    /// Runs the upload.
    pub(crate) fn run(self) -> Result<Uploaded> {
        self.tell();
        let total = self.units.total();
        let workers = match self.options.workers {
            0 => thread::available_parallelism().map_or(1, usize::from),
            asked => asked,
        };
        let workers = workers.min(total).max(1);
        let requests = match (self.sink.is_remote(), self.options.requests) {
            (false, _) => 0,
            (true, 0) => REQUESTS,
            (true, asked) => asked,
        };
        self.write_whole(workers, requests.min(total));
        if !self.units.are_whole() {
            let cells = Mutex::new(self.units.cells());
            let crew: Vec<Task<'_>> = (0..workers.max(requests).min(total).max(1))
                .map(|_| Task { name: "change", work: Box::new(|heard| self.change(&cells, heard)) })
                .collect();
            self.crew(crew);
        }
        self.tell();
        let done = self.tally.done();
        match self.failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(Error::Writing { report, .. }) => Err(Error::Writing { report, done, total }),
            Some(error) => Err(error),
            None if done < total => Err(Error::Interrupted { done, total }),
            None => Ok(Uploaded {
                bbox: self.units.cutout.clone(),
                stored: self.tally.stored.into_inner(),
                background: self.tally.background.into_inner(),
                bytes: self.tally.bytes.into_inner(),
                stored_bytes: self.tally.stored_bytes.into_inner(),
                warnings: Vec::new(),
            }),
        }
    }

    /// Writes the objects that the array covers completely.
    fn write_whole(&self, workers: usize, requests: usize) {
        let cells = Mutex::new(self.units.cells());
        if requests == 0 {
            let crew = (0..workers).map(|_| Task {
                name: "write",
                work: Box::new(|heard| {
                    self.encode_each(&cells, |packed| {
                        let stored = self.store_locked(packed)?;
                        heard();
                        Ok(stored)
                    })
                }),
            });
            return self.crew(crew.collect());
        }
        let queue = PackedQueue::new(QUEUE_BYTES, workers);
        // Start the storing threads first: if no more threads can be started, encoders without them would wait for
        // ever.
        let storing = (0..requests).map(|_| Task {
            name: "store",
            work: Box::new(|heard| {
                let give_up = || self.is_over();
                while let Some(stored) = queue.take(&give_up, |packed| self.store_locked(packed)) {
                    stored?;
                    heard();
                }
                Ok(())
            }),
        });
        let encoding = (0..workers).map(|_| Task {
            name: "encode",
            work: Box::new(|_| {
                let _leaving = Leaving(&queue);
                self.encode_each(&cells, |packed| Ok(queue.give(packed, &|| self.is_over())))
            }),
        });
        self.crew(storing.chain(encoding).collect());
    }

    /// Encodes one object after the other until none is left, a flag is raised, or `give` returns false.
    fn encode_each(&self, cells: &Mutex<Cells>, mut give: impl FnMut(Packed) -> Result<bool>) -> Result<()> {
        let from = FromArray::new(self.sink, self.array.view(), self.bbox, self.units);
        while let Some(region) = self.next(cells, true) {
            let bytes = self.encode(&region, &from)?;
            if !give(Packed { region, bytes })? {
                break;
            }
        }
        Ok(())
    }

    /// Changes, one after the other, the objects that the array covers only in part.
    fn change(&self, cells: &Mutex<Cells>, heard: &dyn Fn()) -> Result<()> {
        let from = FromArray::new(self.sink, self.array.view(), self.bbox, self.units);
        while let Some(region) = self.next(cells, false) {
            let changed = self.locks.locked(&region, &|| self.is_over(), || {
                self.sink.refresh(&region);
                let bytes = self.encode(&region, &from)?;
                self.store(Packed { region: region.clone(), bytes })
            })?;
            if changed.is_none() {
                break;
            }
            heard();
        }
        Ok(())
    }

    /// Returns the next object that the upload covers completely (`whole`) or in part; `None` if none is left or a flag
    /// is raised.
    fn next(&self, cells: &Mutex<Cells>, whole: bool) -> Option<Vec<Range<i64>>> {
        if self.is_over() {
            return None;
        }
        cells.lock().unwrap_or_else(PoisonError::into_inner).find(|region| self.units.cover(region) == whole)
    }

    fn encode(&self, region: &[Range<i64>], from: &FromArray<'_, T>) -> Result<Option<Vec<u8>>> {
        if self.options.skip_background && from.is_background(region)? {
            return Ok(None);
        }
        self.sink.encode(region, from).map(Some)
    }

    /// Stores an object that the array covers completely, under its lock. Returns `false` if a flag was raised first.
    fn store_locked(&self, packed: Packed) -> Result<bool> {
        let region = packed.region.clone();
        let stored = self.locks.locked(&region, &|| self.is_over(), || self.store(packed))?;
        Ok(stored.is_some())
    }

    fn store(&self, packed: Packed) -> Result<()> {
        let Packed { region, bytes } = packed;
        let elements = self.units.count(&region);
        match bytes {
            None => {
                self.sink.erase(&region)?;
                self.tally.background.fetch_add(1, Ordering::Relaxed);
            }
            Some(bytes) => {
                let length = bytes.len() as u64;
                self.sink.store(&region, bytes)?;
                self.tally.stored.fetch_add(1, Ordering::Relaxed);
                self.tally.stored_bytes.fetch_add(length, Ordering::Relaxed);
            }
        }
        self.tally.bytes.fetch_add(elements * size_of::<T>() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Runs every task on a thread of its own until all have ended, and reports progress meanwhile.
    fn crew(&self, tasks: Vec<Task<'_>>) {
        let asked = tasks.len();
        let (sender, news) = mpsc::channel();
        thread::scope(|scope| {
            let mut threads: Vec<ScopedJoinHandle<'_, ()>> = Vec::with_capacity(asked);
            let mut refused = None;
            for (number, task) in tasks.into_iter().enumerate() {
                let sender: Sender<()> = sender.clone();
                let named = thread::Builder::new().name(format!("ndshm-{}-{number}", task.name));
                let started = named.spawn_scoped(scope, move || {
                    let alarm = StopOnDrop::new(&self.abort);
                    let heard = || {
                        let _ = sender.send(()); // only wakes the progress report
                    };
                    let end = in_job([&self.abort, &self.options.stop], &self.retries, || (task.work)(&heard));
                    match end {
                        Ok(()) => alarm.disarm(),
                        Err(error) => self.fail(error),
                    }
                });
                match started {
                    Ok(thread) => threads.push(thread),
                    Err(error) => {
                        refused = Some(error);
                        break;
                    }
                }
            }
            drop(sender);
            if let Some(error) = refused {
                self.fail(Error::io("starting a thread for", "an upload", error));
            }
            let mut told = Instant::now();
            loop {
                match news.recv_timeout(PROGRESS_INTERVAL) {
                    Err(RecvTimeoutError::Disconnected) => break,
                    Ok(()) if told.elapsed() < PROGRESS_INTERVAL => {}
                    Ok(()) | Err(RecvTimeoutError::Timeout) => {
                        self.tell();
                        told = Instant::now();
                    }
                }
            }
            for thread in threads {
                if let Err(panic) = thread.join() {
                    self.fail(panicked(&*panic));
                }
            }
        });
    }

    fn tell(&self) {
        let done = self.tally.done();
        self.options.progress.update(DownloadProgress {
            done,
            total: self.units.total(),
            painted_here: done,
            bytes: self.tally.bytes.load(Ordering::Relaxed),
            bytes_total: self.units.count(self.units.cutout.ranges()) * size_of::<T>() as u64,
            fetched: self.tally.stored_bytes.load(Ordering::Relaxed),
            elapsed: self.begun.elapsed(),
        });
        self.options.progress.retrying(self.retries.current().as_ref());
    }

    /// Stops all threads, and keeps the first error, which the upload returns.
    fn fail(&self, error: Error) {
        self.abort.stop();
        // An upload that is stopped while a server is silent does not report the server.
        if self.options.stop.is_stopped() && self.sink.is_remote() && matches!(error, Error::Store { .. }) {
            return;
        }
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    fn is_over(&self) -> bool {
        self.abort.is_stopped() || self.options.stop.is_stopped()
    }
}

/// The body of a task. Calls its argument after each object.
type TaskBody<'a> = Box<dyn FnOnce(&dyn Fn()) -> Result<()> + Send + 'a>;

/// The work of one thread.
struct Task<'a> {
    name: &'static str,
    work: TaskBody<'a>,
}

/// Leaves the queue when an encoder ends, also when it panics, so that the storing threads do not wait for it.
struct Leaving<'a>(&'a PackedQueue);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

fn panicked(panic: &(dyn Any + Send)) -> Error {
    Error::Writing { report: format!("a thread panicked: {}", panic_message(panic)), done: 0, total: 0 }
}
