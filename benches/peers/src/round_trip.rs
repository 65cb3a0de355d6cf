//! An array goes to another process and back without being copied. Each side touches one element and passes the array
//! on.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use memmap2::MmapMut;
use ndarray::Ix1;
use ndarray_shm::arena::{ArenaArray, Queue};
use ndarray_shm::counted::{Channel, ChannelListener, SharingStrategy};
use ndarray_shm::{Arena, CreateOptions, RefcountedArray};
use rustix::thread::futex;
use serde_json::json;

use crate::machine::pin;
use crate::{Failable, fresh_name};

/// Tells the other side to end.
const STOP: u64 = u64::MAX;

/// One side of a case: sends the array, and waits until it comes back. The array's first bytes hold a number.
trait Side {
    fn pass(&mut self, number: u64) -> Failable<()>;
    fn wait(&mut self) -> Failable<u64>;
}

/// The asking side: times `count` round trips, and prints median, 99th percentile and minimum.
pub fn ask(case: &str, way: &str, bytes: usize, count: usize) -> Failable<()> {
    pin(&[0])?;
    let address = fresh_name();
    let prepared = prepare(case, way, bytes, &address)?;
    let words = ["round-trip-answer", case, way, &bytes.to_string(), prepared.address()].map(String::from);
    let mut other = Command::new(std::env::current_exe()?).args(words).stdout(Stdio::piped()).spawn()?;
    let mut side = prepared.finish()?;
    BufReader::new(other.stdout.take().ok_or("piped above")?).lines().next().ok_or("the other side ended")??;
    let mut times = vec![0.0; count];
    crate::serve(|_| {
        for time in &mut times {
            let begin = Instant::now();
            side.pass(1)?;
            side.wait()?;
            *time = begin.elapsed().as_secs_f64();
        }
        times.sort_by(f64::total_cmp);
        Ok(json!({"seconds": times[count / 2], "p99": times[count * 99 / 100], "least": times[0]}))
    })?;
    side.pass(STOP)?;
    other.wait()?;
    Ok(())
}

/// The answering side: sends every number back.
pub fn answer(case: &str, way: &str, bytes: usize, address: &str) -> Failable<()> {
    pin(if way == "one-cpu" { &[0] } else { &[1] })?;
    let mut side = side(case, way, bytes, address, false)?;
    println!("ready");
    loop {
        match side.wait()? {
            STOP => return Ok(()),
            number => side.pass(number)?,
        }
    }
}

/// The asking side, before the answering side starts.
struct Prepared<'a> {
    address: String,
    finish: Box<dyn FnOnce() -> Failable<Box<dyn Side>> + 'a>,
}

impl Prepared<'_> {
    fn address(&self) -> &str {
        &self.address
    }

    fn finish(self) -> Failable<Box<dyn Side>> {
        (self.finish)()
    }
}

fn prepare<'a>(case: &'a str, way: &'a str, bytes: usize, address: &str) -> Failable<Prepared<'a>> {
    let own = address.to_owned();
    Ok(match case {
        #[cfg(feature = "ipc-channel")]
        "ipc-channel" => {
            let (server, address) = ipc_channel::ipc::IpcOneShotServer::<Ends>::new()?;
            let memory = ipc_channel::ipc::IpcSharedMemory::from_byte(0, bytes);
            let finish = move || -> Failable<Box<dyn Side>> {
                let (_, (sender, receiver)) = server.accept()?;
                Ok(Box::new(IpcChannel { sender, receiver, memory: Some(memory) }))
            };
            Prepared { address, finish: Box::new(finish) }
        }
        "ours-name" | "ours-descriptor" => {
            let path = std::env::temp_dir().join(&own);
            let listener = ChannelListener::bind(&path)?;
            let name = case == "ours-name";
            let strategy = if name { SharingStrategy::FileSystem } else { SharingStrategy::FileDescriptor };
            let finish = move || -> Failable<Box<dyn Side>> {
                let array = CreateOptions::new().share(strategy, bytes)?;
                Ok(Box::new(OurChannel { channel: listener.accept()?, array: Some(array) }))
            };
            Prepared { address: path.display().to_string(), finish: Box::new(finish) }
        }
        _ => {
            // The two sides find each other by name. The asking side creates what the answering side opens.
            let side = side(case, way, bytes, address, true)?;
            Prepared { address: own, finish: Box::new(move || Ok(side)) }
        }
    })
}

fn side(case: &str, way: &str, bytes: usize, address: &str, asks: bool) -> Failable<Box<dyn Side>> {
    let wait = if way == "polling" { Pause::Spin } else { Pause::Futex };
    Ok(match case {
        "calls" => Box::new(Words::new(address, bytes, asks, wait)?),
        "ours-queue" => Box::new(OurQueue::new(address, bytes, asks, way == "polling", false)?),
        "ours-queue-new" => Box::new(OurQueue::new(address, bytes, asks, way == "polling", true)?),
        "ours-name" | "ours-descriptor" => Box::new(OurChannel { channel: Channel::connect(address)?, array: None }),
        #[cfg(feature = "ipc-channel")]
        "ipc-channel" => {
            let (there, receiver) = ipc_channel::ipc::channel()?;
            let (sender, back) = ipc_channel::ipc::channel()?;
            ipc_channel::ipc::IpcSender::connect(address.to_owned())?.send((there, back))?;
            Box::new(IpcChannel { sender, receiver, memory: None })
        }
        #[cfg(feature = "iceoryx2")]
        "iceoryx2" => Box::new(Iceoryx::new(address, bytes, asks, way == "polling")?),
        _ => return Err(format!("missing: {case} was not built").into()),
    })
}

enum Pause {
    Spin,
    Futex,
}

/// No library: two words in a shared mapping, and a futex on each.
struct Words {
    memory: MmapMut,
    sent: u64,
    seen: u32,
    asks: bool,
    pause: Pause,
}

impl Words {
    fn new(name: &str, bytes: usize, asks: bool, pause: Pause) -> Failable<Self> {
        let path = format!("/dev/shm/{name}");
        let file = File::options().read(true).write(true).create(asks).truncate(false).open(&path)?;
        if asks {
            file.set_len(bytes as u64)?;
        } else {
            std::fs::remove_file(path)?;
        }
        // SAFETY: both sides access the memory as atomics only.
        let memory = unsafe { MmapMut::map_mut(&file)? };
        Ok(Self { memory, sent: 0, seen: 0, asks, pause })
    }

    /// Returns the number, and the two words that count how often it was sent there and back.
    fn words(&self) -> (&AtomicU64, [&AtomicU32; 2]) {
        let at = self.memory.as_ptr();
        // SAFETY: the mapping is aligned, long enough, and as long-lived as the borrow.
        unsafe { (&*at.cast(), [&*at.add(64).cast(), &*at.add(128).cast()]) }
    }
}

impl Side for Words {
    fn pass(&mut self, number: u64) -> Failable<()> {
        self.sent += 1;
        let (value, words) = self.words();
        value.store(number, Ordering::Relaxed);
        let word = words[usize::from(self.asks)];
        word.store(self.sent as u32, Ordering::Release);
        if let Pause::Futex = self.pause {
            futex::wake(word, futex::Flags::empty(), 1)?;
        }
        Ok(())
    }

    fn wait(&mut self) -> Failable<u64> {
        let (value, words) = self.words();
        let word = words[usize::from(!self.asks)];
        let seen = self.seen;
        while word.load(Ordering::Acquire) == seen {
            match self.pause {
                Pause::Spin => std::hint::spin_loop(),
                Pause::Futex => {
                    let _ = futex::wait(word, futex::Flags::empty(), seen, None); // the loop checks again
                }
            }
        }
        let number = value.load(Ordering::Relaxed);
        self.seen = seen.wrapping_add(1);
        Ok(number)
    }
}

/// This crate's channel, by name or by descriptor.
struct OurChannel {
    channel: Channel,
    /// The array, until it is sent on.
    array: Option<RefcountedArray<u8, Ix1>>,
}

impl Side for OurChannel {
    fn pass(&mut self, number: u64) -> Failable<()> {
        let array = self.array.take().ok_or("the other side has the array")?;
        let first = array.raw_view_mut().ok_or("writable")?.as_mut_ptr();
        // SAFETY: the other side accesses the memory only after it is sent on.
        unsafe { first.cast::<u64>().write_volatile(number) };
        Ok(self.channel.send(&(), &[&array])?)
    }

    fn wait(&mut self) -> Failable<u64> {
        let mut received = self.channel.receive::<()>()?;
        let array = received.arrays.pop().ok_or("an array")?.attach::<u8, Ix1>()?;
        // SAFETY: as in `pass`.
        let number = unsafe { array.raw_view().as_ptr().cast::<u64>().read_volatile() };
        self.array = Some(array);
        Ok(number)
    }
}

/// This crate's queues. The received array is sent on, or a new one is created each time, as other libraries do with
/// loans.
struct OurQueue {
    arena: Arena,
    send: Queue,
    receive: Queue,
    array: Option<ArenaArray<u64, Ix1>>,
    elements: usize,
    polls: bool,
    always_new: bool,
}

impl OurQueue {
    fn new(name: &str, bytes: usize, asks: bool, polls: bool, always_new: bool) -> Failable<Self> {
        let arena = if asks { Arena::create(name, 16 * bytes as u64)? } else { Arena::open(name)? };
        let (send, receive) = if asks { (0, 1) } else { (1, 0) };
        let (send, receive) = (arena.queue(send)?, arena.queue(receive)?);
        Ok(Self { arena, send, receive, array: None, elements: bytes / 8, polls, always_new })
    }
}

impl Side for OurQueue {
    fn pass(&mut self, number: u64) -> Failable<()> {
        let array = match self.array.take() {
            // A shared array never changes again, so another number needs another array.
            Some(array) if !self.always_new && array.view()[0] == number => array,
            _ => {
                let mut draft = self.arena.draft::<u64, _>(self.elements)?;
                draft.view_mut()[0] = number;
                draft.share()?
            }
        };
        Ok(self.send.send(array)?)
    }

    fn wait(&mut self) -> Failable<u64> {
        let array = if self.polls {
            loop {
                match self.receive.try_recv::<u64, Ix1>()? {
                    Some(array) => break array,
                    None => std::hint::spin_loop(),
                }
            }
        } else {
            self.receive.recv::<u64, Ix1>()?
        };
        let number = array.view()[0];
        self.array = Some(array);
        Ok(number)
    }
}

#[cfg(feature = "ipc-channel")]
type Ends = (
    ipc_channel::ipc::IpcSender<ipc_channel::ipc::IpcSharedMemory>,
    ipc_channel::ipc::IpcReceiver<ipc_channel::ipc::IpcSharedMemory>,
);

#[cfg(feature = "ipc-channel")]
struct IpcChannel {
    sender: ipc_channel::ipc::IpcSender<ipc_channel::ipc::IpcSharedMemory>,
    receiver: ipc_channel::ipc::IpcReceiver<ipc_channel::ipc::IpcSharedMemory>,
    memory: Option<ipc_channel::ipc::IpcSharedMemory>,
}

#[cfg(feature = "ipc-channel")]
impl Side for IpcChannel {
    fn pass(&mut self, number: u64) -> Failable<()> {
        let mut memory = self.memory.take().ok_or("the other side has the memory")?;
        // SAFETY: the other side accesses the memory only after it is sent on.
        let bytes = unsafe { memory.deref_mut() };
        bytes[..8].copy_from_slice(&number.to_ne_bytes());
        Ok(self.sender.send(memory)?)
    }

    fn wait(&mut self) -> Failable<u64> {
        let memory = self.receiver.recv().map_err(|error| format!("{error:?}"))?;
        let number = u64::from_ne_bytes(memory[..8].try_into()?);
        self.memory = Some(memory);
        Ok(number)
    }
}

/// iceoryx2: a loan of the array's size each way, as in its examples. It waits by its events.
#[cfg(feature = "iceoryx2")]
struct Iceoryx {
    publisher: iceoryx2::port::publisher::Publisher<iceoryx2::prelude::ipc::Service, [u8], ()>,
    subscriber: iceoryx2::port::subscriber::Subscriber<iceoryx2::prelude::ipc::Service, [u8], ()>,
    events: Option<(
        iceoryx2::port::notifier::Notifier<iceoryx2::prelude::ipc::Service>,
        iceoryx2::port::listener::Listener<iceoryx2::prelude::ipc::Service>,
    )>,
    bytes: usize,
    _library: crate::messages::Iceoryx,
}

#[cfg(feature = "iceoryx2")]
impl Iceoryx {
    fn new(address: &str, bytes: usize, asks: bool, polls: bool) -> Failable<Self> {
        let library = crate::messages::Iceoryx::new()?;
        let (there, back) = (format!("{address}/there"), format!("{address}/back"));
        let (out, into) = if asks { (there, back) } else { (back, there) };
        Ok(Self {
            publisher: library.publisher(&out, bytes)?,
            subscriber: library.subscriber(&into)?,
            events: if polls { None } else { Some((library.notifier(&out)?, library.listener(&into)?)) },
            bytes,
            _library: library,
        })
    }
}

#[cfg(feature = "iceoryx2")]
impl Side for Iceoryx {
    fn pass(&mut self, number: u64) -> Failable<()> {
        let mut sample = self.publisher.loan_slice_uninit(self.bytes)?;
        // SAFETY: a loan has at least these bytes. They are only written, and so need no initial value.
        unsafe { sample.payload_mut().as_mut_ptr().cast::<u64>().write_unaligned(number) };
        // SAFETY: the memory holds the kernel's zeros or an earlier sample, so it is initialised.
        unsafe { sample.assume_init() }.send()?;
        if let Some((notifier, _)) = &self.events {
            notifier.notify()?;
        }
        Ok(())
    }

    fn wait(&mut self) -> Failable<u64> {
        loop {
            if let Some(sample) = self.subscriber.receive()? {
                return Ok(u64::from_ne_bytes(sample[..8].try_into()?));
            }
            match &mut self.events {
                Some((_, listener)) => listener.blocking_wait(|_| {}).map(drop)?,
                None => std::hint::spin_loop(),
            }
        }
    }
}
