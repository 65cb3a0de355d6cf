//! One lock for each stored object, among all threads and processes of this machine. A thread that changes a part of an object and
//! one that stores the whole object take turns: otherwise the first would store again what it had read around its part, over
//! what the second stored in between.
//!
//! The locks of a volume are cells of one array of one byte in shared memory; the kernel releases them when their holder dies. The last
//! upload that ends removes the array's name. If that upload is killed the name stays; no upload waits for it, and the next one or
//! `ndshm gc` removes it. Other machines are not excluded.

use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use ndarray::Ix1;
use ndarray_shm::backend::{Backend, DraftOptions};
use ndarray_shm::{AttachOptions, CreateOptions, CreationMode, Directory, Location, Pages, SharedArray};

use crate::bbox::ranges_text;
use crate::error::{Error, Result};

/// How long a lock is waited for before it is asked whether to go on.
const PATIENCE: Duration = Duration::from_millis(50);

/// What the names of locks begin with.
const PREFIX: &str = "ndshm-write-";

/// Every user that may write to the volume may take its locks: the file holds nothing to read or to damage.
const PERMISSIONS: u32 = 0o666;

type File = SharedArray<u8, Ix1>;

/// The locks of one volume, as one upload takes them.
#[derive(Debug)]
pub(crate) struct Locks {
    volume: String,
    file: Mutex<Option<Arc<File>>>,
}

impl Locks {
    /// Makes nothing yet.
    pub(crate) fn new(volume: String) -> Self {
        Self { volume, file: Mutex::new(None) }
    }

    /// Runs `work` while no other thread of this machine works on the same object of the same volume. `Ok(None)`: `give_up` returned
    /// true before the lock was granted.
    pub(crate) fn locked<R>(
        &self,
        region: &[Range<i64>],
        give_up: &dyn Fn() -> bool,
        work: impl FnOnce() -> Result<R>,
    ) -> Result<Option<R>> {
        let failed = |error: ndarray_shm::Error| {
            let object = format!("{}, region {}", self.volume, ranges_text(region));
            Error::Store { op: "locking", object, cause: Box::new(error) }
        };
        while !give_up() {
            let Some(file) = self.file().map_err(failed)? else { continue };
            match file.lock_cell(cell(region), PATIENCE) {
                Ok(_locked) => return work().map(Some),
                Err(ndarray_shm::Error::TimedOut { .. }) => {}
                Err(ndarray_shm::Error::Unlinked { .. }) => self.forget(&file),
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(None)
    }

    /// Returns the array of the locks; `None` if another process was just making or removing it.
    fn file(&self) -> ndarray_shm::Result<Option<Arc<File>>> {
        let mut known = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &*known {
            return Ok(Some(Arc::clone(file)));
        }
        let options = CreateOptions::<File>::new().backend(place()?).permissions(PERMISSIONS);
        match options.mode(CreationMode::OpenOrCreate).pages(Pages::Sparse).create(name(&self.volume)?, 1) {
            Ok(file) => Ok(Some(Arc::clone(known.insert(Arc::new(file))))),
            // Others make and remove it all the time, or look whether it is an orphan.
            Err(ndarray_shm::Error::WouldBlock { .. } | ndarray_shm::Error::Unlinked { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Another upload has ended and taken the name away: what it leads to next is another array.
    fn forget(&self, file: &Arc<File>) {
        let mut known = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref().is_some_and(|known| Arc::ptr_eq(known, file)) {
            *known = None;
        }
    }
}

impl Drop for Locks {
    /// An upload that still works keeps the name, and removes it later.
    fn drop(&mut self) {
        if let Some(file) = self.file.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            // What another user made, that one removes.
            let _stays = remove(&file, PATIENCE, false);
        }
    }
}

/// Whether a name in shared memory is that of the locks that uploads into a volume take.
pub fn is_upload_lock(name: &str) -> bool {
    name.strip_prefix(PREFIX)
        .is_some_and(|volume| volume.len() == 8 && volume.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Removes the name of locks that no upload holds, as killed uploads leave it; only looks if it is a `dry_run`. Returns whether it
/// was, or would be, removed. An upload that continues at this moment makes it again.
///
/// # Errors
///
/// Those of opening and unlinking an array; `NotFound` if it is gone.
pub fn remove_upload_lock(backend: &Directory, location: &Location, dry_run: bool) -> ndarray_shm::Result<bool> {
    match AttachOptions::<File>::new().backend(backend.clone()).leave_holes(true).open(location.clone(), 1) {
        Ok(file) => remove(&file, Duration::ZERO, dry_run),
        Err(error) if is_busy(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether another process is just using the name, making it or removing it.
fn is_busy(error: &ndarray_shm::Error) -> bool {
    use ndarray_shm::Error::{TimedOut, Unlinked, WouldBlock};
    matches!(error, TimedOut { .. } | WouldBlock { .. } | Unlinked { .. })
}

/// Removes the name while this process holds all cells: no upload holds a lock then, and one that waits finds the name gone and
/// begins again.
fn remove(file: &File, patience: Duration, dry_run: bool) -> ndarray_shm::Result<bool> {
    let removed = file.write_timeout(patience).and_then(|_alone| Ok(dry_run || file.unlink()?));
    match removed {
        Err(error) if is_busy(&error) => Ok(false),
        other => other,
    }
}

/// Two volumes with the same checksum share their locks, which does no harm: no thread holds two.
fn name(volume: &str) -> ndarray_shm::Result<Location> {
    Location::new(&format!("{PREFIX}{:08x}", crc32fast::hash(volume.as_bytes())))
}

/// Two objects with the same cell wait for each other, which does no harm either.
fn cell(region: &[Range<i64>]) -> u32 {
    crc32fast::hash(ranges_text(region).as_bytes())
}

/// The same for every process that sees this `/dev/shm`, whatever its environment says about arrays. Only where no files can be made there,
/// the emulated directory, which is this user's.
fn place() -> ndarray_shm::Result<Directory> {
    static PLACE: OnceLock<Directory> = OnceLock::new();
    if let Some(place) = PLACE.get() {
        return Ok(place.clone());
    }
    let options = DraftOptions { pages: Pages::Sparse, ..DraftOptions::default() };
    let place = match Directory::shm() {
        Ok(shm) if shm.draft(1, options).is_ok() => shm,
        _ => Directory::emulated()?,
    };
    Ok(PLACE.get_or_init(|| place).clone())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    fn left(volume: &str) -> usize {
        let name = name(volume).expect("a name");
        let entries = place().expect("a place").list().expect("its files");
        entries.iter().filter(|entry| entry.name == name.as_str()).count()
    }

    #[test]
    fn object_locks_are_exclusive_and_leave_no_name() {
        let volume = format!("a test of locks {}", std::process::id());
        let (inside, rounds) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut locks = Locks::new(volume.clone());
                    for round in 0..200 {
                        if round % 10 == 0 {
                            // The others are in the middle of theirs.
                            locks = Locks::new(volume.clone());
                        }
                        let region = 0..1 + round % 2;
                        let done = locks.locked(&[0..1, region], &|| false, || {
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
    fn abandoned_wait_takes_no_lock_and_failure_releases_it() {
        let volume = format!("another test of locks {}", std::process::id());
        let region = [0..1_i64, 0..1];
        let (locks, others) = (Locks::new(volume.clone()), Locks::new(volume.clone()));
        let outer = locks.locked(&region, &|| false, || {
            let asked = AtomicUsize::new(0);
            let give_up = || asked.fetch_add(1, Ordering::SeqCst) > 2;
            let inner = others.locked(&region, &give_up, || Ok(()));
            assert!(inner.expect("no error").is_none(), "it has been taken");
            assert!(others.locked(&[0..1, 1..2], &|| false, || Ok(())).expect("another is free").is_some());
            Err::<(), _>(Error::bbox("0:1", "it failed"))
        });
        assert!(matches!(outer, Err(Error::Bbox { .. })));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            locks.locked(&region, &|| false, || -> Result<()> { panic!("as a codec might") })
        }));
        assert!(panicked.is_err());
        assert!(others.locked(&region, &|| false, || Ok(())).expect("it is free").is_some());
        drop(locks);
        drop(others);
        assert_eq!(left(&volume), 0);
    }

    #[test]
    fn lock_name_is_removed_with_the_last_lock() {
        let volume = format!("a third test of locks {}", std::process::id());
        let (place, name) = (place().expect("a place"), name(&volume).expect("a name"));
        assert!(
            is_upload_lock(name.as_str())
                && !is_upload_lock("ndshm-write-me")
                && !is_upload_lock("ndshm-write-0123456g")
        );
        let locks = Locks::new(volume.clone());
        let region = [0..1_i64, 0..1];
        let remove = |dry_run| remove_upload_lock(&place, &name, dry_run).expect("an answer");
        let held = locks.locked(&region, &|| false, || {
            assert!(!remove(true) && !remove(false), "one lock is held");
            drop(Locks { volume: volume.clone(), file: Mutex::new(locks.file().expect("it is there")) });
            Ok(left(&volume))
        });
        assert_eq!(held.expect("no error"), Some(1));
        assert!(remove(true) && left(&volume) == 1, "a dry run removes nothing");
        assert!(remove(false) && left(&volume) == 0);
        assert!(locks.locked(&region, &|| false, || Ok(left(&volume))).expect("made anew") == Some(1));
        drop(locks);
        assert_eq!(left(&volume), 0);
    }
}
