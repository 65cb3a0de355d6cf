//! One interface to all libraries and the bare system calls.

use std::any::Any;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;

use memmap2::{Mmap, MmapMut};
use ndarray_shm::{Draft, SharedArray};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, fallocate, linkat, open};

use crate::Failable;
use crate::machine::Source;

/// How one library creates segments and attaches to them.
pub trait Segments {
    /// Creates a segment that other processes can find, and copies the source into it.
    fn create(&self, name: &str, source: &Source) -> Failable<Box<dyn Any>>;

    /// Attaches, calls `look` with the bytes, and detaches.
    fn read(&self, name: &str, bytes: usize, look: &mut dyn FnMut(&[u8])) -> Failable<()>;

    /// Removes the name, if dropping the segment does not.
    fn remove(&self, _name: &str) -> Failable<()> {
        Ok(())
    }
}

pub fn of(case: &str) -> Failable<Box<dyn Segments>> {
    Ok(match case {
        "ours" => Box::new(Ours),
        "ours-draft" => Box::new(OurDraft),
        "memmap2" => Box::new(Files),
        "calls" => Box::new(Calls { lease: false }),
        "calls-lease" => Box::new(Calls { lease: true }),
        #[cfg(feature = "shared_memory")]
        "shared_memory" => Box::new(SharedMemory),
        #[cfg(feature = "ipc-channel")]
        "ipc-channel" => Box::new(crate::messages::IpcChannel),
        #[cfg(feature = "iceoryx2")]
        "iceoryx2" => Box::new(crate::messages::Iceoryx::new()?),
        _ => return Err(format!("missing: {case} was not built").into()),
    })
}

fn path(name: &str) -> PathBuf {
    PathBuf::from("/dev/shm").join(name)
}

/// This crate: a named array.
struct Ours;

impl Segments for Ours {
    fn create(&self, name: &str, source: &Source) -> Failable<Box<dyn Any>> {
        Ok(Box::new(SharedArray::<u8, _>::create_with(name, source.bytes().len(), |mut view| {
            source.copy_to(view.as_slice_mut().expect("in order"));
        })?))
    }

    fn read(&self, name: &str, bytes: usize, look: &mut dyn FnMut(&[u8])) -> Failable<()> {
        let array = SharedArray::<u8, _>::open(name, bytes)?;
        look(array.read()?.as_slice().ok_or("in order")?);
        Ok(())
    }

    fn remove(&self, name: &str) -> Failable<()> {
        ndarray_shm::unlink(name)?;
        Ok(())
    }
}

/// This crate: an array that never gets a name.
struct OurDraft;

impl Segments for OurDraft {
    fn create(&self, _name: &str, source: &Source) -> Failable<Box<dyn Any>> {
        let mut draft = Draft::<u8, _>::new(source.bytes().len())?;
        source.copy_to(draft.view_mut().as_slice_mut().ok_or("in order")?);
        Ok(Box::new(draft))
    }

    fn read(&self, _: &str, _: usize, _: &mut dyn FnMut(&[u8])) -> Failable<()> {
        Err("it has no name".into())
    }
}

/// memmap2 over a file in /dev/shm, as most programs use it.
struct Files;

impl Segments for Files {
    fn create(&self, name: &str, source: &Source) -> Failable<Box<dyn Any>> {
        let file = File::options().read(true).write(true).create_new(true).open(path(name))?;
        file.set_len(source.bytes().len() as u64)?;
        // SAFETY: no other process knows the name yet.
        let mut map = unsafe { MmapMut::map_mut(&file)? };
        source.copy_to(&mut map);
        Ok(Box::new(map))
    }

    fn read(&self, name: &str, _bytes: usize, look: &mut dyn FnMut(&[u8])) -> Failable<()> {
        // SAFETY: nothing writes while it is read.
        look(&unsafe { Mmap::map(&File::open(path(name))?)? });
        Ok(())
    }

    fn remove(&self, name: &str) -> Failable<()> {
        Ok(std::fs::remove_file(path(name))?)
    }
}

/// The fewest system calls for an array that is complete when its name appears, and whose room is reserved: open a
/// nameless file, allocate, map, link, close; later unmap and unlink. `lease` adds the lock that shows other processes
/// whether any process is attached.
struct Calls {
    lease: bool,
}

fn lock(file: BorrowedFd<'_>) -> Failable<()> {
    let range = libc::flock {
        l_type: libc::F_RDLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 1 << 62,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open and the struct lives through the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &range) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}

impl Segments for Calls {
    fn create(&self, name: &str, source: &Source) -> Failable<Box<dyn Any>> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let file = open("/dev/shm", flags, Mode::RUSR | Mode::WUSR)?;
        fallocate(&file, FallocateFlags::empty(), 0, source.bytes().len() as u64)?;
        // SAFETY: the file has no name yet, so no other process can open it.
        let mut map = unsafe { memmap2::MmapOptions::new().len(source.bytes().len()).map_mut(&file)? };
        source.copy_to(&mut map);
        if self.lease {
            lock(file.as_fd())?;
        }
        linkat(CWD, format!("/proc/self/fd/{}", file.as_raw_fd()), CWD, path(name), AtFlags::SYMLINK_FOLLOW)?;
        Ok(Box::new(map))
    }

    fn read(&self, name: &str, bytes: usize, look: &mut dyn FnMut(&[u8])) -> Failable<()> {
        Files.read(name, bytes, look)
    }

    fn remove(&self, name: &str) -> Failable<()> {
        Files.remove(name)
    }
}

/// The crate `shared_memory`.
#[cfg(feature = "shared_memory")]
struct SharedMemory;

#[cfg(feature = "shared_memory")]
impl Segments for SharedMemory {
    fn create(&self, name: &str, source: &Source) -> Failable<Box<dyn Any>> {
        let mut segment = shared_memory::ShmemConf::new().os_id(name).size(source.bytes().len()).create()?;
        // SAFETY: no other process knows the name yet.
        source.copy_to(unsafe { segment.as_slice_mut() });
        Ok(Box::new(segment))
    }

    fn read(&self, name: &str, bytes: usize, look: &mut dyn FnMut(&[u8])) -> Failable<()> {
        let segment = shared_memory::ShmemConf::new().os_id(name).open()?;
        // SAFETY: nothing writes while it is read.
        look(&unsafe { segment.as_slice() }[..bytes]);
        Ok(())
    }
}

/// A library that sends messages: a receiver finds the segment by the message.
#[cfg(feature = "ipc-channel")]
impl Segments for crate::messages::IpcChannel {
    fn create(&self, _name: &str, source: &Source) -> Failable<Box<dyn Any>> {
        Ok(Box::new(ipc_channel::ipc::IpcSharedMemory::from_bytes(source.bytes())))
    }

    fn read(&self, _: &str, _: usize, _: &mut dyn FnMut(&[u8])) -> Failable<()> {
        Err("it has no name".into())
    }
}

#[cfg(feature = "iceoryx2")]
impl Segments for crate::messages::Iceoryx {
    fn create(&self, name: &str, source: &Source) -> Failable<Box<dyn Any>> {
        let publisher = self.publisher(name, source.bytes().len())?;
        let mut sample = publisher.loan_slice_uninit(source.bytes().len())?;
        // SAFETY: the bytes are only written, and so need no initial value.
        source.copy_to(unsafe { &mut *(std::ptr::from_mut(sample.payload_mut()) as *mut [u8]) });
        Ok(Box::new((publisher, sample)))
    }

    fn read(&self, _: &str, _: usize, _: &mut dyn FnMut(&[u8])) -> Failable<()> {
        Err("it has no name".into())
    }
}
