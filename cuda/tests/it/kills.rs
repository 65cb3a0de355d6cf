//! Chains of three processes that pass an array on, of which random ones are killed at random moments: A makes it, B
//! passes it on, C reads it.
//!
//! The number of rounds is that of `NDSHM_CUDA_KILLS` for each director (250 for each of four, with the driver of a
//! machine 100 for one); `NDSHM_CUDA_SEED` repeats a run.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, SystemTime};

use libtest_mimic::Trial;
use ndarray::{Array1, Ix1};
use ndarray_shm::counted::{Channel, Foreign, Socket};
use ndarray_shm::{DType, Order};
use ndarray_shm_cuda::{Device, DeviceArray, KIND};
use serde::{Deserialize, Serialize};

use crate::named;
use crate::support::{Actor, LIMIT, Role, double, is_real, trials as tests, until};

pub const ROLES: &[(&str, Role)] = named![director, link];

pub fn trials() -> Vec<Trial> {
    tests("kills", named![killed_links_leave_no_memory_and_live_ones_read_right_data])
}

/// How many processes kill at once.
const DIRECTORS: u32 = 4;

/// Elements of an array: more than the driver's smallest allocation.
const LENGTH: usize = 700_000;

/// What a link has, when asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    /// The array, with the right elements.
    Right,
    /// The array, with wrong elements.
    Wrong,
    /// No array: the link before it was killed.
    Nothing,
}

fn killed_links_leave_no_memory_and_live_ones_read_right_data() {
    // In processes with tags of their own, which see the memory of their own children only. Several at once: each waits
    // most of the time.
    let director = |number: u32| {
        let tag = format!("kills-{}-{number}", std::process::id());
        Actor::start_with("director", &[("FAKE_CUDA_TAG", &tag)])
    };
    let directors: Vec<Actor> = (0..if is_real() { 1 } else { DIRECTORS }).map(director).collect();
    for director in directors {
        let summary: String = director.channel.receive_timeout(Duration::from_secs(450)).expect("a summary").message;
        println!("{summary}");
        director.join();
    }
}

/// Returns the number in a variable.
pub fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// Returns the seed of `NDSHM_CUDA_SEED`, or one that no other process has.
pub fn seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock").as_secs();
    number("NDSHM_CUDA_SEED", (now << 20 | u64::from(std::process::id())) * 2 + 1)
}

/// xorshift64*: random enough to choose victims and moments.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % end
    }
}

fn director(channel: Channel) {
    let seed = seed();
    let rounds = number("NDSHM_CUDA_KILLS", if is_real() { 100 } else { 1000 / u64::from(DIRECTORS) });
    let mut random = Random(seed);
    println!("kills: NDSHM_CUDA_SEED={seed}");
    let free_before = is_real().then(|| Device::new(0).and_then(Device::memory).expect("a GPU").free);
    let (mut kills, mut held) = (0, [0; 4]);
    let mut most_microseconds = if is_real() { 1_500_000 } else { 80_000 };
    for round in 0..rounds {
        let (first, second) = (UnixStream::pair().expect("sockets"), UnixStream::pair().expect("sockets"));
        let mut links: Vec<Option<Actor>> = (0..3).map(|_| Some(Actor::start("link"))).collect();
        let ends = [(None, Some(first.0)), (Some(first.1), Some(second.0)), (Some(second.1), None)];
        for (link, (before, after)) in links.iter().flatten().zip(ends) {
            let (has_before, sockets) = (before.is_some(), [before, after]);
            let sockets: Vec<Foreign> = sockets.into_iter().flatten().map(packed).collect();
            let sockets: Vec<&dyn ndarray_shm::counted::Shareable> =
                sockets.iter().map(|socket| socket as &dyn ndarray_shm::counted::Shareable).collect();
            link.channel.send(&(round, has_before), &sockets).expect("a link");
        }
        // One to three victims, each at a moment of its own.
        let victims = 1 + random.below(7);
        for (position, link) in links.iter_mut().enumerate() {
            if victims >> position & 1 == 1 {
                thread::sleep(Duration::from_micros(random.below(most_microseconds)));
                link.take().expect("a link").kill();
                kills += 1;
            }
        }
        let living: Vec<Actor> = links.into_iter().flatten().collect();
        let mut holding = 0;
        for link in &living {
            let state: State = link.hear();
            assert_ne!(state, State::Wrong, "round {round}");
            holding += usize::from(state == State::Right);
        }
        held[holding] += 1;
        for link in &living {
            link.tell("end");
            let state: State = link.hear();
            assert_ne!(state, State::Wrong, "round {round}, after the kills");
        }
        living.into_iter().for_each(Actor::join);
        if let Some(before) = free_before {
            let free = || Device::new(0).and_then(Device::memory).expect("a GPU").free;
            until("the memory of killed processes", || free() + (16 << 20) >= before);
        } else {
            assert_eq!(double::memory_in_use(), 0, "round {round}: memory is left");
        }
        // About as long as the chains need, so that the moments are spread over their whole life.
        if held[2] * 8 < round && round > 20 && !is_real() {
            most_microseconds = (most_microseconds + 2000).min(400_000);
        }
    }
    let [none, one, two, _] = held;
    assert!(none > 0 && one > 0 && (two > 0 || rounds < 50), "the moments are not spread: {held:?}");
    let summary = format!(
        "{rounds} rounds, {kills} kills: afterwards 0 links had the array in {none} rounds, 1 in {one}, 2 in {two}; \
         no memory left, no wrong element"
    );
    channel.send(&summary, &[]).expect("the test");
}

/// Packs the end of a channel for a message.
pub fn packed(socket: UnixStream) -> Foreign {
    Foreign::new("test-socket", DType::U8, &[], Order::C, "", OwnedFd::from(socket)).expect("a parcel")
}

fn link(channel: Channel) {
    let received = channel.receive_timeout::<(u64, bool)>(LIMIT).expect("a task");
    let (round, has_before) = received.message;
    let mut sockets = received.arrays.into_iter().map(|socket| {
        let socket = OwnedFd::from(socket.foreign("test-socket").expect("a socket").into_descriptor());
        Channel::from_socket(Socket::from(socket)).expect("a channel")
    });
    let before = if has_before { sockets.next() } else { None };
    let after = sockets.next();
    let expected = Array1::from_shape_fn(LENGTH, |at| at as u64 ^ round);
    let array = match &before {
        None => Some(DeviceArray::from_host(Device::new(0).expect("a GPU"), &expected).expect("an array")),
        // Closed, if the link before was killed.
        Some(before) => before.receive::<u64>().ok().map(|mut received| {
            let parcel = received.arrays.remove(0).foreign(KIND).expect("a parcel of this crate");
            DeviceArray::<u64, Ix1>::attach(&parcel).expect("memory outlives its sender")
        }),
    };
    let state = |array: &Option<DeviceArray<u64, Ix1>>| match array {
        None => State::Nothing,
        Some(array) if array.to_host().expect("a copy") == expected => State::Right,
        Some(_) => State::Wrong,
    };
    let first = state(&array);
    if let (Some(after), Some(array)) = (&after, &array) {
        // Closed, if the link after was killed.
        let _ = after.send(&round, &[&array.parcel().expect("a parcel")]);
    }
    drop((before, after));
    channel.send(&first, &[]).expect("the director");
    let _end: String = channel.receive_timeout(LIMIT).expect("an end").message;
    let last = state(&array);
    drop(array);
    if !is_real() {
        double::assert_no_violation();
        for kind in ["physical", "reservation", "mapping"] {
            assert_eq!(double::live(kind), 0, "{kind}");
        }
    }
    channel.send(&last, &[]).expect("the director");
}
