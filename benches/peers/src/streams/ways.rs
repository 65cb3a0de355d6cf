//! The ways to pass frames from one writer to readers: this crate's stream, and iceoryx2's publish-subscribe. `ring.rs`
//! is the yardstick.
//!
//! A frame begins with the time at which its writer began it, and with its number.

use std::hint::black_box;
use std::time::{Duration, Instant};

use ndarray::Ix1;
use ndarray_shm::stream::StreamOptions;
use ndarray_shm::{ErrorKind, StreamReader, StreamWriter};

use super::board::now;
use super::ring::{Ring, RingReader};
use crate::Failable;

/// How many frames each way keeps.
pub const SLOTS: usize = 8;

/// Frames of at most so many bytes are copied by this crate's readers, as its guide advises.
const COPIED: usize = 4096;

/// The writing side of a way.
pub trait Writing {
    /// Copies a frame to all readers. `head` replaces the first bytes of `source`.
    fn send(&mut self, source: &[u8], head: [u64; 2]) -> Failable<()>;
}

/// The reading side of a way.
pub trait Reading {
    /// Looks at the next frame, if it is there.
    fn poll(&mut self, look: Look) -> Failable<Option<Seen>>;

    /// Sleeps until there is a frame, for at most `limit`, and looks at it.
    fn wait(&mut self, limit: Duration, look: Look) -> Failable<Option<Seen>>;
}

/// What a reader looks at.
#[derive(Clone, Copy, PartialEq)]
pub enum Look {
    /// Every element.
    Whole,
    /// A word in each page.
    Pages,
}

/// A frame that a reader has looked at.
pub struct Seen {
    /// Nanoseconds from the beginning of the frame's writer until the reader has read the elements.
    pub latency: u64,
    pub number: u64,
}

impl Look {
    /// Reads a frame, and then the clock.
    pub fn at(self, frame: &[u8]) -> Seen {
        let words = frame.chunks_exact(8);
        let words = words.map(|word| u64::from_ne_bytes(word.try_into().expect("it has 8 bytes")));
        let sum = match self {
            Self::Whole => words.clone().fold(0, u64::wrapping_add),
            Self::Pages => words.clone().step_by(512).fold(0, u64::wrapping_add),
        };
        black_box(sum);
        let end = now();
        let mut head = words.take(2);
        let (begun, number) = (head.next().expect("16 bytes"), head.next().expect("16 bytes"));
        Seen { latency: end - begun, number }
    }
}

/// Copies a frame, and replaces its head.
pub fn fill(frame: &mut [u8], source: &[u8], head: [u64; 2]) {
    frame.copy_from_slice(source);
    frame[..8].copy_from_slice(&head[0].to_ne_bytes());
    frame[8..16].copy_from_slice(&head[1].to_ne_bytes());
}

pub fn writer(case: &str, address: &str, bytes: usize, readers: usize, waits: bool) -> Failable<Box<dyn Writing>> {
    Ok(match case {
        "ours" => Box::new(StreamOptions::new().copied(bytes <= COPIED).create::<u8, Ix1>(address, bytes, SLOTS)?),
        "ring" => Box::new(Ring::create(address, bytes, waits)?),
        #[cfg(feature = "iceoryx2")]
        "iceoryx2" => Box::new(iceoryx::Writer::new(address, bytes, readers, waits)?),
        _ => return Err(format!("missing: {case} was not built for {readers} readers").into()),
    })
}

pub fn reader(case: &str, address: &str, bytes: usize, readers: usize, waits: bool) -> Failable<Box<dyn Reading>> {
    Ok(match case {
        "ours" => Box::new(StreamReader::<u8, Ix1>::open(address)?),
        "ring" => Box::new(RingReader::open(address, bytes)?),
        #[cfg(feature = "iceoryx2")]
        "iceoryx2" => Box::new(iceoryx::Reader::new(address, readers, waits)?),
        _ => return Err(format!("missing: {case} was not built for {readers} readers, waits: {waits}").into()),
    })
}

impl Writing for StreamWriter<u8, Ix1> {
    fn send(&mut self, source: &[u8], head: [u64; 2]) -> Failable<()> {
        let mut frame = self.frame()?;
        fill(frame.view_mut().as_slice_mut().ok_or("in order")?, source, head);
        frame.commit()?;
        Ok(())
    }
}

impl Reading for StreamReader<u8, Ix1> {
    fn poll(&mut self, look: Look) -> Failable<Option<Seen>> {
        let Some(frame) = self.next()? else { return Ok(None) };
        Ok(Some(look.at(frame.view().as_slice().ok_or("in order")?)))
    }

    fn wait(&mut self, limit: Duration, look: Look) -> Failable<Option<Seen>> {
        match self.next_wait(limit) {
            Ok(frame) => Ok(Some(look.at(frame.view().as_slice().ok_or("in order")?))),
            Err(error) if matches!(error.kind, ErrorKind::TimedOut { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// iceoryx2's publish-subscribe: a loan for each frame, which is written in place. Readers wait by its events.
#[cfg(feature = "iceoryx2")]
mod iceoryx {
    use iceoryx2::port::listener::Listener;
    use iceoryx2::port::notifier::Notifier;
    use iceoryx2::port::publisher::Publisher;
    use iceoryx2::port::subscriber::Subscriber;
    use iceoryx2::prelude::ipc;

    use super::{Duration, Failable, Instant, Look, Reading, SLOTS, Seen, Writing, fill};
    use crate::messages::Iceoryx;

    pub struct Writer {
        publisher: Publisher<ipc::Service, [u8], ()>,
        notifier: Option<Notifier<ipc::Service>>,
        _library: Iceoryx,
    }

    impl Writer {
        pub fn new(address: &str, bytes: usize, readers: usize, waits: bool) -> Failable<Self> {
            let library = Iceoryx::new()?;
            let publisher = library.publisher_to(address, bytes, readers, SLOTS)?;
            let notifier = if waits { Some(library.notifier(address)?) } else { None };
            Ok(Self { publisher, notifier, _library: library })
        }
    }

    impl Writing for Writer {
        fn send(&mut self, source: &[u8], head: [u64; 2]) -> Failable<()> {
            let mut sample = self.publisher.loan_slice_uninit(source.len())?;
            // SAFETY: the bytes are only written, and so need no initial value.
            fill(unsafe { &mut *(std::ptr::from_mut(sample.payload_mut()) as *mut [u8]) }, source, head);
            // SAFETY: all bytes were written.
            unsafe { sample.assume_init() }.send()?;
            if let Some(notifier) = &self.notifier {
                notifier.notify()?;
            }
            Ok(())
        }
    }

    pub struct Reader {
        subscriber: Subscriber<ipc::Service, [u8], ()>,
        listener: Option<Listener<ipc::Service>>,
        _library: Iceoryx,
    }

    impl Reader {
        pub fn new(address: &str, readers: usize, waits: bool) -> Failable<Self> {
            let library = Iceoryx::new()?;
            let subscriber = library.subscriber_among(address, readers, SLOTS)?;
            let listener = if waits { Some(library.listener(address)?) } else { None };
            Ok(Self { subscriber, listener, _library: library })
        }
    }

    impl Reading for Reader {
        fn poll(&mut self, look: Look) -> Failable<Option<Seen>> {
            Ok(self.subscriber.receive()?.map(|sample| look.at(&sample)))
        }

        fn wait(&mut self, limit: Duration, look: Look) -> Failable<Option<Seen>> {
            let begin = Instant::now();
            loop {
                if let Some(seen) = self.poll(look)? {
                    return Ok(Some(seen));
                }
                let left = limit.saturating_sub(begin.elapsed());
                if left.is_zero() {
                    return Ok(None);
                }
                self.listener.as_ref().ok_or("made for polling")?.timed_wait(|_| {}, left)?;
            }
        }
    }
}
