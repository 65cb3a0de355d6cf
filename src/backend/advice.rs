//! What to do when there is no room: it depends on the limit that was reached, and on where the array was to live.

use std::borrow::Cow;
use std::path::Path;

use crate::backend::filling::EMULATED;
use crate::os::Bound;

/// The name of the backend for real shared memory.
const SHM: &str = "shm";

/// Where memory was to be reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Real shared memory.
    SharedMemory,
    /// The directory for emulated shared memory.
    Emulated,
    /// Another directory, which the program has chosen.
    Directory,
    /// Memory without a name.
    Nameless,
}

impl Place {
    /// Returns the place of a backend.
    pub(super) fn of(backend: &str) -> Self {
        match backend {
            SHM => Self::SharedMemory,
            EMULATED => Self::Emulated,
            _ => Self::Directory,
        }
    }
}

/// Returns how to raise a limit, or how to live with it. Names the directory, if it is not that of real shared memory.
pub(crate) fn advice(bound: Bound, place: Place, directory: &Path) -> Cow<'static, str> {
    let directory = directory.display();
    let elsewhere = match place {
        Place::SharedMemory => "use files: EMULATE_SHM=1",
        Place::Emulated => "choose a directory on a disk with NDSHM_EMULATED_DIR",
        Place::Directory => "choose a directory on a disk",
        Place::Nameless => "use a named array in a directory on a disk",
    };
    match (bound, place) {
        (Bound::FileSystem, Place::Emulated) => format!(
            "the disk that has `{directory}` is full: free some of it, or choose another directory with NDSHM_EMULATED_DIR"
        ),
        (Bound::FileSystem, _) => {
            format!("the disk that has `{directory}` is full: free some of it, or choose a directory on another disk")
        }
        (Bound::MemoryFileSystem, Place::SharedMemory | Place::Nameless) => format!(
            "unlink arrays that are no longer needed (`ndshm ls`), remove what killed processes left (`ndshm gc`), enlarge the mount (`mount -o remount,size=..`, \
             `docker run --shm-size=..`, in Kubernetes an `emptyDir: {{medium: Memory}}` at /dev/shm), or {elsewhere}"
        ),
        (Bound::MemoryFileSystem, Place::Emulated | Place::Directory) => format!(
            "`{directory}` is in a memory file system: remove what is no longer needed, enlarge its mount \
             (`mount -o remount,size=..`), or {elsewhere}"
        ),
        (Bound::ControlGroup, _) => format!(
            "this is the memory limit of the container or control group, which {} against: raise it (`docker run --memory=..`, \
             `resources.limits.memory` in Kubernetes), or {elsewhere}",
            match place {
                Place::SharedMemory | Place::Nameless => "shared memory counts".to_owned(),
                Place::Emulated | Place::Directory => format!("the memory file system of `{directory}` counts"),
            }
        ),
        (Bound::Machine, Place::SharedMemory | Place::Nameless) => {
            format!("the machine has no more free memory: stop something, add swap, or {elsewhere}")
        }
        (Bound::Machine, Place::Emulated | Place::Directory) => format!(
            "the machine has no more free memory, and `{directory}` is in a memory file system: stop something, add swap, or \
             {elsewhere}"
        ),
        (Bound::Inodes, _) => {
            return "the file system can hold no more files (inodes), however small: unlink arrays that are no longer needed, \
                    or remount with a larger nr_inodes"
                .into();
        }
        (Bound::FileSize, _) => return "the process may not make files so large: raise `ulimit -f`".into(),
        (Bound::Limit, _) => {
            return "NDSHM_EMULATED_LIMIT limits what all files of the emulated directory take: unlink arrays that are no \
                    longer needed (`ndshm ls`), or raise it"
                .into();
        }
        (Bound::Quota, _) => {
            return "the user's disk quota is used up: free some of it, or choose another directory".into();
        }
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_fits_the_place() {
        let bounds = [Bound::FileSystem, Bound::MemoryFileSystem, Bound::ControlGroup, Bound::Machine];
        for bound in bounds {
            for place in [Place::Emulated, Place::Directory] {
                let advice = advice(bound, place, Path::new("/the/place"));
                assert!(
                    !advice.contains("EMULATE_SHM") && !advice.contains("shm-size"),
                    "{bound:?} {place:?}: {advice}"
                );
                assert_eq!(advice.contains("NDSHM_EMULATED_DIR"), place == Place::Emulated, "{bound:?}: {advice}");
                assert!(advice.contains("disk") && advice.contains("`/the/place`"), "{bound:?} {place:?}: {advice}");
            }
        }
        assert!(advice(Bound::MemoryFileSystem, Place::of("shm"), Path::new("/dev/shm")).contains("--shm-size"));
        assert_eq!((Place::of("emulated"), Place::of("files")), (Place::Emulated, Place::Directory));
    }
}
