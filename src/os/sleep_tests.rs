//! Sleeping on a word, by futex or by polling.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{wait_on, wake};

const LONG: Duration = Duration::from_secs(60);

#[test]
fn changed_word_prevents_sleep() {
    let begin = Instant::now();
    wait_on(&AtomicU32::new(1), 0, LONG);
    assert!(begin.elapsed() < LONG);
}

#[test]
fn sleep_ends_at_its_limit() {
    let word = AtomicU32::new(0);
    let (begin, limit) = (Instant::now(), Duration::from_millis(20));
    while begin.elapsed() < limit {
        wait_on(&word, 0, limit);
    }
    assert!(begin.elapsed() < LONG);
}

#[test]
fn wake_without_sleepers_returns_zero() {
    assert_eq!(wake(&AtomicU32::new(0), u32::MAX), 0);
}

#[test]
fn sleepers_wake_when_the_word_changes() {
    let word = AtomicU32::new(0);
    let begin = Instant::now();
    thread::scope(|scope| {
        let sleepers = [(), ()].map(|()| {
            scope.spawn(|| {
                while word.load(Ordering::Acquire) == 0 {
                    wait_on(&word, 0, LONG);
                }
            })
        });
        thread::sleep(Duration::from_millis(5));
        word.store(1, Ordering::Release);
        wake(&word, u32::MAX);
        for sleeper in sleepers {
            sleeper.join().expect("it wakes");
        }
    });
    assert!(begin.elapsed() < LONG);
}
