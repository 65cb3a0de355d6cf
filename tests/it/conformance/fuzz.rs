//! Random bytes as counted arrays, for `NDSHM_FUZZ_SECONDS` (default 1); `scripts/fuzz` runs it for longer.

use std::time::{Duration, Instant, SystemTime};

use libtest_mimic::Trial;

use super::holder::variant;
use super::hostile::{NAME, PAGE, Target, run, seal};
use crate::support::Place;
use crate::support::child::{Role, say};
use crate::support::random::Random;
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials("conformance", "fuzz", tests![random_bytes_yield_error_or_sane_array])
}

pub const ROLES: &[(&str, Role)] = &[("fuzz", fuzz)];

/// Changes a few bytes, or the length.
fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..=random.below(6) {
        let length = bytes.len().max(1);
        // Mostly in the trailer, and there mostly from the name to the footer.
        let at = match random.below(8) {
            0 => random.below(length),
            1 | 2 => length.saturating_sub(PAGE) + random.below(PAGE),
            _ => length.saturating_sub(PAGE - NAME) + random.below(PAGE - NAME),
        };
        let special = [0, 1, 2, 30, 60, 4096, 1 << 31, 1 << 32, 1 << 60, 1 << 61, 1 << 62, 1 << 63, u64::MAX];
        match random.below(7) {
            0 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << (random.number() % 8)),
            1 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.number() as u8),
            2..=4 => {
                let value = special[random.below(special.len())].to_le_bytes();
                bytes.iter_mut().skip(at & !7).zip(value).for_each(|(byte, value)| *byte = value);
            }
            5 => {
                let (from, count) = (random.below(length), random.below(64));
                let copied: Vec<u8> = bytes.iter().skip(from).take(count).copied().collect();
                bytes.iter_mut().skip(at).zip(copied).for_each(|(byte, value)| *byte = value);
            }
            _ if random.below(4) == 0 => bytes.resize(random.below(4 * PAGE), random.number() as u8),
            _ => {}
        }
    }
}

/// A child that tries random bytes for `NDSHM_FUZZ_SECONDS`, beginning with `NDSHM_FUZZ_SEED`.
fn fuzz(arguments: &[String]) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
    let limit = Duration::from_secs(number("NDSHM_FUZZ_SECONDS").unwrap_or(1));
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = number("NDSHM_FUZZ_SEED").unwrap_or_else(now);
    say(format!("NDSHM_FUZZ_SEED={seed}"));
    let target = Target::new(arguments);
    let honest = target.honest();
    let (start, mut spoken) = (Instant::now(), Instant::now());
    let (mut opened, mut tried) = (0, 0u64);
    while start.elapsed() < limit {
        // Each attempt has a seed of its own, so that a failing one can be repeated alone.
        let own = seed.wrapping_add(tried);
        let mut random = Random::new(own);
        let mut bytes = honest.clone();
        mutate(&mut random, &mut bytes);
        if random.below(4) != 0 {
            seal(&mut bytes);
        }
        tried += 1;
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| target.attempt(&bytes)));
        assert!(outcome.is_ok(), "NDSHM_FUZZ_SEED={own} fails at its first attempt");
        match outcome.into_iter().next() {
            Some(Err(error)) => assert_ne!(variant(&error), "Os", "NDSHM_FUZZ_SEED={own}: {error:?}"),
            _ => opened += 1,
        }
        if spoken.elapsed() > Duration::from_secs(1) {
            say("alive");
            spoken = Instant::now();
        }
    }
    let _ = target.backend.unlink(&target.location);
    assert!(opened > 0 && opened < tried, "the bytes are too wild or too tame: {opened} of {tried} opened");
    say(format!("{tried} attempts, of which {opened} opened"));
    say("done");
}

fn random_bytes_yield_error_or_sane_array(place: &Place) {
    run(place, "fuzz");
}
