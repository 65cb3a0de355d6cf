//! One lock for each stored object, among all threads and processes of this machine. It keeps an object consistent when
//! one thread changes a part of it and another stores the whole of it. Without the lock: the first thread reads the
//! object, the second stores a new one, the first stores the old elements around its part, and the second thread's
//! elements are lost.
//!
//! The locks of a volume are cell locks on one array of one byte in shared memory. The kernel releases a lock when its
//! holder dies. The last upload to end removes the array's name. If that upload is killed, the name stays until the
//! next upload or `ndshm gc` removes it; no upload waits for it. Other machines are not excluded.

use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use ndarray::Ix1;
use ndarray_shm::backend::{Backend, DraftOptions};
use ndarray_shm::{CreateOptions, CreationMode, Directory, ErrorKind, Location, OpenOptions, Pages, SharedArray};

use crate::bbox::ranges_text;
use crate::error::{Error, Result};

/// Interval at which a wait for a lock asks `give_up`.
const PATIENCE: Duration = Duration::from_millis(50);

/// Prefix of the names of lock arrays.
const PREFIX: &str = "ndshm-write-";

/// Any user may take the locks, because any user may be allowed to write to the volume. The file has no content to read
/// or damage.
const PERMISSIONS: u32 = 0o666;

type File = SharedArray<u8, Ix1>;

/// The locks of one volume, for one upload.
#[derive(Debug)]
pub(crate) struct Locks {
    volume: String,
    file: Mutex<Option<Arc<File>>>,
}

impl Locks {
    /// Returns the locks without creating their array, which the first lock does.
    pub(crate) fn new(volume: String) -> Self {
        Self { volume, file: Mutex::new(None) }
    }

    /// Runs `work` while no other thread of this machine holds the lock of the same object. Returns `Ok(None)` if
    /// `give_up` returned true before the lock was granted.
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
            let error = match file.lock_cell(cell(region), PATIENCE) {
                Ok(_locked) => return work().map(Some),
                Err(error) => error,
            };
            match error.kind {
                ErrorKind::TimedOut { .. } => {}
                // Another upload ended and removed the name. A lock on this array no longer excludes later uploads,
                // which create a new array: attach that one.
                ErrorKind::Unlinked => self.forget(&file),
                _ => return Err(failed(error)),
            }
        }
        Ok(None)
    }

    /// Returns the array of the locks; `None` if another process is creating or removing it, so that the caller
    /// retries.
    fn file(&self) -> ndarray_shm::Result<Option<Arc<File>>> {
        let mut known = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &*known {
            return Ok(Some(Arc::clone(file)));
        }
        let options = CreateOptions::new().directory(place()?).permissions(PERMISSIONS);
        match options.mode(CreationMode::OpenOrCreate).pages(Pages::Sparse).create(name(&self.volume)?, 1) {
            Ok(file) => Ok(Some(Arc::clone(known.insert(Arc::new(file))))),
            // Other uploads create and remove the array at any time, and `ndshm gc` locks it to see whether it is an
            // orphan.
            Err(error) if matches!(error.kind, ErrorKind::WouldBlock | ErrorKind::Unlinked) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Forgets an array after its name was removed, so that [`file`](Self::file) opens or creates the next one.
    fn forget(&self, file: &Arc<File>) {
        let mut known = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have opened the next array already: keep that one.
        if known.as_ref().is_some_and(|known| Arc::ptr_eq(known, file)) {
            *known = None;
        }
    }
}

impl Drop for Locks {
    /// Removes the array's name, unless another upload holds a lock: that upload removes it later.
    fn drop(&mut self) {
        if let Some(file) = self.file.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            // Fails for an array of another user, which that user's upload removes.
            let _ = remove(&file, PATIENCE, false);
        }
    }
}

/// Whether a name in shared memory is that of an upload's lock array.
pub fn is_upload_lock(name: &str) -> bool {
    name.strip_prefix(PREFIX)
        .is_some_and(|volume| volume.len() == 8 && volume.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Removes the name of a lock array that no upload holds, such as a killed upload leaves behind. A `dry_run` removes
/// nothing. Returns whether the name was, or would be, removed. An upload that continues at this moment creates it
/// again.
///
/// # Errors
///
/// Those of opening and unlinking an array; `NotFound` if it no longer exists.
pub fn remove_upload_lock(backend: &Directory, location: &Location, dry_run: bool) -> ndarray_shm::Result<bool> {
    match OpenOptions::new().directory(backend.clone()).leave_holes(true).open(location.clone(), 1) {
        Ok(file) => remove(&file, Duration::ZERO, dry_run),
        Err(error) if is_busy(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether another process is using, creating or removing the array.
fn is_busy(error: &ndarray_shm::Error) -> bool {
    use ndarray_shm::ErrorKind::{TimedOut, Unlinked, WouldBlock};
    matches!(error.kind, TimedOut { .. } | WouldBlock | Unlinked)
}

/// Removes the name while this process holds the write lock, which covers all cells. So no upload holds a lock at that
/// moment; an upload that waits for one gets `Unlinked` and creates a new array.
fn remove(file: &File, patience: Duration, dry_run: bool) -> ndarray_shm::Result<bool> {
    let removed = file.write_timeout(patience).and_then(|_alone| Ok(dry_run || file.unlink()?));
    match removed {
        Err(error) if is_busy(&error) => Ok(false),
        other => other,
    }
}

/// Two volumes with the same checksum share their locks. That cannot deadlock: no thread holds two locks.
fn name(volume: &str) -> ndarray_shm::Result<Location> {
    Location::new(&format!("{PREFIX}{:08x}", crc32fast::hash(volume.as_bytes())))
}

/// Two objects with the same checksum share a lock. That cannot deadlock either.
fn cell(region: &[Range<i64>]) -> u32 {
    crc32fast::hash(ranges_text(region).as_bytes())
}

/// The directory of the lock arrays: `/dev/shm`, whatever the environment says about arrays, so that all processes that
/// see it share the locks. If no files can be created there, the emulated directory of this user.
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
    fn lock_excludes_other_threads_and_leaves_no_name() {
        let volume = format!("a test of locks {}", std::process::id());
        let (inside, rounds) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut locks = Locks::new(volume.clone());
                    for round in 0..200 {
                        if round % 10 == 0 {
                            // Meanwhile the other threads are in the middle of their rounds.
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
    fn giving_up_returns_none_and_failure_frees_the_lock() {
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
    fn lock_name_is_removed_when_no_lock_is_held() {
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
