//! Random numbers: enough to spoil bytes and to choose moments, and the same on every platform.

use std::sync::{LazyLock, Mutex};
use std::time::SystemTime;

/// xorshift64*: the same seed gives the same numbers.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below a limit, which is at most 2³¹.
    pub fn below(&mut self, limit: usize) -> usize {
        ((self.number() >> 33) as usize) % limit
    }
}

/// A number that differs in every process and from call to call.
pub fn random() -> u64 {
    static RANDOM: LazyLock<Mutex<Random>> = LazyLock::new(|| {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        Mutex::new(Random::new(u64::from(std::process::id()) << 32 ^ since.as_nanos() as u64))
    });
    RANDOM.lock().expect("no panic inside").number()
}
