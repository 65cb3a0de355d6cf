//! What a frame of 64 bytes costs the writer of very many readers, each in a process of its own, and its parts: the
//! lock of a slot, the refused attempt to lock the slot that the readers hold, and the wake.
//!
//! The bare calls are measured with as many processes that hold locks on a file, or sleep on a word.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ndarray::Ix1;
use ndarray_shm::{ErrorKind, StreamReader, StreamWriter};
use rustix::thread::futex;
use serde_json::json;

use super::Readers;
use super::board::{Board, wait_for};
use super::ways::SLOTS;
use crate::machine::pin;
use crate::{Failable, fresh_name};

const BYTES: usize = 64;

/// As many bytes as the lock of a slot has.
const RANGE: i64 = 1 << 22;

/// Times what a case does for each frame. KIND: each reader is `holding` a frame, or `waiting` for the next one.
pub fn cost(case: &str, kind: &str, readers: &str, count: &str) -> Failable<()> {
    let (crowd, count): (u32, u32) = (readers.parse()?, count.parse()?);
    pin(&[0])?;
    let address = fresh_name();
    let board = Board::create(&address, 0)?;
    let mut once = maker(case, &address, &board)?;
    once()?; // readers find a frame to hold
    let words = ["stream-crowd", case, kind, &address].map(String::from).to_vec();
    let readers = Readers::start((0..crowd).map(|_| words.clone()))?;
    // All readers look at each frame, and sleep again, before the next one.
    let wakes = kind == "waiting" && matches!(case, "ours" | "calls-wake");
    let pause =
        if kind == "waiting" { Duration::from_millis(1) + Duration::from_micros(10) * crowd } else { Duration::ZERO };
    let mut frames = 0;
    let served = crate::serve(|_| {
        let (mut times, mut parts) = (Vec::new(), Vec::new());
        for _ in 0..count {
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
            let begin = Instant::now();
            let locked = once()?;
            times.push(begin.elapsed().as_secs_f64());
            parts.push((locked - begin).as_secs_f64());
            frames += u64::from(crowd);
            if wakes {
                wait_for(board.all(), frames, || std::thread::sleep(Duration::from_micros(50)))?;
            }
        }
        times.sort_by(f64::total_cmp);
        parts.sort_by(f64::total_cmp);
        let middle = times.len() / 2;
        Ok(json!({"seconds": times[middle], "p99": times[times.len() * 99 / 100], "frame": parts[middle]}))
    });
    board.stop().store(1, Ordering::Release);
    if case == "calls-wake" {
        ring(&board)?;
    }
    drop(once); // ends the stream, and so its readers
    drop(readers);
    if case != "ours" {
        std::fs::remove_file(path(&address))?;
    }
    served
}

/// Does it once. Returns when the slot was locked.
type Once<'a> = Box<dyn FnMut() -> Failable<Instant> + 'a>;

fn maker<'a>(case: &str, address: &str, board: &'a Board) -> Failable<Once<'a>> {
    Ok(match case {
        "ours" => {
            let mut writer = StreamWriter::<u8, Ix1>::create(address, BYTES, SLOTS)?;
            let source = [7; BYTES];
            Box::new(move || {
                let mut frame = writer.frame()?;
                let locked = Instant::now();
                frame.view_mut().as_slice_mut().ok_or("in order")?.copy_from_slice(&source);
                frame.commit()?;
                Ok(locked)
            })
        }
        "calls-lock" => {
            let file = File::options().read(true).write(true).create_new(true).open(path(address))?;
            // As a stream's writer, which has a lock all the time: the kernel searches for its others from there.
            lock(&file, libc::F_WRLCK, 2 * RANGE, 1)?;
            Box::new(move || {
                lock(&file, libc::F_WRLCK, RANGE, RANGE)?;
                let locked = Instant::now();
                lock(&file, libc::F_UNLCK, RANGE, RANGE)?;
                Ok(locked)
            })
        }
        "calls-refused" => {
            let file = File::options().read(true).write(true).create_new(true).open(path(address))?;
            lock(&file, libc::F_WRLCK, 2 * RANGE, 1)?;
            Box::new(move || {
                if lock(&file, libc::F_WRLCK, 0, RANGE).is_ok() {
                    lock(&file, libc::F_UNLCK, 0, RANGE)?; // before the readers are there
                }
                Ok(Instant::now())
            })
        }
        "calls-wake" => {
            File::create_new(path(address))?;
            Box::new(move || {
                let begin = Instant::now();
                ring(board)?;
                Ok(begin)
            })
        }
        _ => return Err(format!("no such case: {case}").into()),
    })
}

/// One of the readers, until the input ends or the stream.
pub fn stay(case: &str, kind: &str, address: &str) -> Failable<()> {
    pin(&[1])?;
    let board = Board::open(address)?;
    let ready = || println!("{}", json!({"ready": true}));
    match (case, kind) {
        ("ours", "holding") => {
            let _frame = StreamReader::<u8, Ix1>::open(address)?.latest()?.ok_or("there is one")?;
            ready();
            until_the_end()
        }
        ("ours", _) => {
            let mut reader = StreamReader::<u8, Ix1>::open(address)?;
            drop(reader.latest()?);
            ready();
            loop {
                match reader.next_wait(Duration::MAX) {
                    Ok(frame) => assert_eq!(frame.view()[BYTES - 1], 7),
                    Err(error) if matches!(error.kind, ErrorKind::Closed { .. }) => return Ok(()),
                    Err(error) => return Err(error.into()),
                }
                board.all().fetch_add(1, Ordering::Release);
            }
        }
        ("calls-wake", "waiting") => {
            let (bell, file) = (board.bell(), File::open(path(address))?);
            let byte = i64::from(std::process::id()) % RANGE;
            let mut seen = bell.load(Ordering::Acquire);
            ready();
            loop {
                let _ = futex::wait(bell, futex::Flags::empty(), seen, None); // the loop looks again
                let now = bell.load(Ordering::Acquire);
                if board.stop().load(Ordering::Acquire) != 0 {
                    return Ok(());
                }
                if now != seen {
                    seen = now;
                    // What each reader does before it sleeps again, because it delays the writer that wakes others.
                    lock(&file, libc::F_RDLCK, byte, 1)?;
                    lock(&file, libc::F_UNLCK, byte, 1)?;
                    board.all().fetch_add(1, Ordering::Release);
                }
            }
        }
        ("calls-lock" | "calls-refused", "holding") => {
            let file = File::open(path(address))?;
            lock(&file, libc::F_RDLCK, i64::from(std::process::id()) % RANGE, 1)?;
            ready();
            until_the_end()
        }
        _ => {
            ready();
            until_the_end()
        }
    }
}

fn until_the_end() -> Failable<()> {
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn path(address: &str) -> PathBuf {
    PathBuf::from(format!("/dev/shm/{address}-locks"))
}

fn ring(board: &Board) -> Failable<()> {
    let bell = board.bell();
    bell.fetch_add(1, Ordering::Release);
    futex::wake(bell, futex::Flags::empty(), i32::MAX as u32)?;
    Ok(())
}

/// Locks or unlocks a range without waiting, for the open file description.
fn lock(file: &File, kind: i32, start: i64, length: i64) -> Failable<()> {
    let range =
        libc::flock { l_type: kind as i16, l_whence: libc::SEEK_SET as i16, l_start: start, l_len: length, l_pid: 0 };
    // SAFETY: the descriptor is open, and the command reads a value of this type.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}
