//! One lock for each stored object, among all threads and processes of this machine: two that each change a part of the same
//! object do so one after the other.
//!
//! A lock is a file of one byte in shared memory, locked as an array is for writing; the kernel frees it with whoever dies. Its name
//! goes with the last holder. A holder that is killed leaves it, and the next one who needs the same object takes it away.
//! Other machines, and other users of this one, are not kept out.

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ndarray::Ix1;
use ndarray_shm::{Backend, CreationMode, Directory, DraftOptions, Location, Pages, SharedArray};

use crate::bbox::ranges_text;
use crate::error::{Error, Result};

/// How long the lock is waited for before it is asked whether to go on.
const PATIENCE: Duration = Duration::from_millis(50);

/// What the names of locks begin with.
const PREFIX: &str = "ndshm-write-";

/// Does some work while nobody else on this machine does work on the same object of the same volume. `Ok(None)`: `give_up` said so
/// before the lock was had.
pub(crate) fn locked<R>(
    volume: &str,
    region: &[Range<i64>],
    give_up: &dyn Fn() -> bool,
    work: impl FnOnce() -> Result<R>,
) -> Result<Option<R>> {
    let failed = |error: ndarray_shm::Error| {
        let object = format!("{volume}, region {}", ranges_text(region));
        Error::Store { op: "locking", object, cause: Box::new(error) }
    };
    let place = place().map_err(failed)?;
    let name = name(volume, region).map_err(failed)?;
    while !give_up() {
        let options = SharedArray::<u8, Ix1>::options().backend(Arc::clone(&place));
        let file = options.mode(CreationMode::OpenOrCreate).pages(Pages::Sparse).create(name.clone(), 1);
        let file = match file {
            Ok(file) => file,
            // Others make and remove it all the time, or look whether it is an orphan.
            Err(ndarray_shm::Error::WouldBlock { .. } | ndarray_shm::Error::Unlinked { .. }) => continue,
            Err(error) => return Err(failed(error)),
        };
        while !give_up() {
            match file.write_timeout(PATIENCE) {
                Ok(guard) => {
                    let named = Named(&file);
                    let done = work();
                    let removed = file.unlink();
                    drop(named);
                    drop(guard);
                    removed.map_err(failed)?;
                    return done.map(Some);
                }
                Err(ndarray_shm::Error::TimedOut { .. }) => {}
                Err(ndarray_shm::Error::Unlinked { .. }) => break,
                Err(error) => return Err(failed(error)),
            }
        }
    }
    Ok(None)
}

/// Takes the name away while the file is locked, also when the work panics: whoever waits for it finds that it has no name, and
/// begins anew with another.
struct Named<'a>(&'a SharedArray<u8, Ix1>);

impl Drop for Named<'_> {
    fn drop(&mut self) {
        // A panic is the news then; and who needs the object next takes the name away.
        let _gone_already = self.0.unlink();
    }
}

/// Two objects whose names are the same by accident wait for each other, which does no harm: nobody holds two locks.
fn name(volume: &str, region: &[Range<i64>]) -> ndarray_shm::Result<Location> {
    let object = format!("{volume} {}", ranges_text(region));
    Location::new(&format!(
        "{PREFIX}{:08x}-{:08x}",
        crc32fast::hash(volume.as_bytes()),
        crc32fast::hash(object.as_bytes())
    ))
}

/// The same for every process of this user, whatever its environment says about arrays: real shared memory if files can be
/// made there.
fn place() -> ndarray_shm::Result<Arc<dyn Backend>> {
    static PLACE: OnceLock<Arc<dyn Backend>> = OnceLock::new();
    if let Some(place) = PLACE.get() {
        return Ok(Arc::clone(place));
    }
    let options = DraftOptions { pages: Pages::Sparse, ..DraftOptions::default() };
    let place: Arc<dyn Backend> = match Directory::shm() {
        Ok(shm) if shm.draft(1, options).is_ok() => shm,
        _ => Directory::emulated()?,
    };
    Ok(Arc::clone(PLACE.get_or_init(|| place)))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    fn left(volume: &str) -> usize {
        let prefix = format!("{PREFIX}{:08x}-", crc32fast::hash(volume.as_bytes()));
        let entries = place().expect("a place").list().expect("its files");
        entries.iter().filter(|entry| entry.name.starts_with(&prefix)).count()
    }

    #[test]
    fn one_at_a_time_has_an_object_and_no_name_is_left() {
        let volume = format!("a test of locks {}", std::process::id());
        let (inside, rounds) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..200 {
                        let region = 0..1 + round % 2;
                        let done = locked(&volume, &[0..1, region], &|| false, || {
                            if round % 2 == 0 {
                                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                                thread::yield_now();
                                inside.fetch_sub(1, Ordering::SeqCst);
                            }
                            rounds.fetch_add(1, Ordering::SeqCst);
                            Ok(())
                        });
                        assert!(done.expect("a lock").is_some());
                    }
                });
            }
        });
        assert_eq!(rounds.into_inner(), 800);
        assert_eq!(left(&volume), 0);
    }

    #[test]
    fn who_gives_up_waiting_gets_nothing_and_a_failure_frees_the_lock() {
        let volume = format!("another test of locks {}", std::process::id());
        let region = [0..1_i64, 0..1];
        let outer = locked(&volume, &region, &|| false, || {
            let asked = AtomicUsize::new(0);
            let give_up = || asked.fetch_add(1, Ordering::SeqCst) > 2;
            let inner = locked(&volume, &region, &give_up, || Ok(()));
            assert!(inner.expect("no error").is_none(), "it has been taken");
            Err::<(), _>(Error::bbox("0:1", "it failed"))
        });
        assert!(matches!(outer, Err(Error::Bbox { .. })));
        assert_eq!(left(&volume), 0);
        let panicked = std::panic::catch_unwind(|| {
            locked(&volume, &[0..1_i64, 0..1], &|| false, || -> Result<()> { panic!("as a codec might") })
        });
        assert!(panicked.is_err());
        assert_eq!(left(&volume), 0);
        assert!(locked(&volume, &region, &|| false, || Ok(())).expect("it is free").is_some());
    }
}
