//! Files that a test prepares.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Makes a file look as if it was last written so many seconds ago.
pub fn age(path: &Path, seconds: u64) {
    let file = File::options().write(true).open(path).expect("a file");
    file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).expect("a time");
}
