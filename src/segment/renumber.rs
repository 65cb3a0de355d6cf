//! Memory of a counted array that becomes that of the next one: the same file under the same name, with another random
//! number.
//!
//! Every attachment holds a read lock on COUNTED, through a description of its own. The owner *converts* its own read
//! lock to a write lock, which the kernel grants only if no other description holds one. Until it is converted back no
//! process can attach. One that has opened the file, and waits for its lease, then finds another random number than its
//! handle has.
//!
//! A forked child shares its parent's description, so that the kernel would grant the lock while the child reads.
//! Therefore memory is not used again by a process that has forked since it was mapped. It is enough to ask once
//! nothing in this process uses the memory any more: a child that is forked later inherits no user.

use super::CountedSegment;
use super::open_file::look;
use super::recycle::is_possible;
use super::trailer::{FOOTER_BYTES, Trailer};
use crate::backend::Access;
use crate::backend::lock_space::{ALL_CELLS, COUNTED};
use crate::error::{Error, ErrorKind, Result};
use crate::os::{self, LockKind};

impl CountedSegment {
    /// Gives the memory to the next array, which has this random number and the same record. Returns `false`, and
    /// changes nothing, if another process or handle is attached or may attach, or if this process cannot know.
    ///
    /// If the process is killed meanwhile, the file has one number or the other, and is an orphan.
    pub(crate) fn renumber(&mut self, id: u128) -> Result<bool> {
        let segment = self.segment();
        let Some(file) = segment.kept.file().filter(|_| is_possible()) else { return Ok(false) };
        if !segment.is_unforked()
            || !self.is_counted()
            || segment.access != Access::ReadWrite
            || !self.is_unclaimed()?
        {
            return Ok(false);
        }
        let name = segment.location();
        let failed = |error| Error::os("lock", name, error);
        os::step("renumber: to be alone");
        if !os::try_lock(file, LockKind::Exclusive, COUNTED).map_err(failed)? {
            return Ok(false);
        }
        let renumbered = os::try_lock(file, LockKind::Exclusive, ALL_CELLS).map_err(failed).and_then(|granted| {
            // Looked at again: a process may have attached, issued a handle and left before the lock was granted.
            let is_free = granted && self.is_unclaimed()?;
            os::step("renumber: alone");
            if is_free {
                self.write_number(id)?;
            }
            Ok(is_free)
        });
        let _ = os::unlock(file, ALL_CELLS); // if this fails, guards of this array have to wait
        let shared = os::try_lock(file, LockKind::Shared, COUNTED).map_err(failed)?;
        debug_assert!(shared, "nothing refuses a weaker lock");
        renumbered
    }

    /// Returns whether nothing leads other processes to the array: no handle is in flight, and it is neither frozen nor
    /// kept, nor has another name or none.
    fn is_unclaimed(&self) -> Result<bool> {
        let (state, home) = (self.counts().state(), self.home());
        let is_ordinary = state.is_named() && !state.is_dead() && !state.is_frozen() && !state.is_kept();
        if !is_ordinary || self.counts().in_flight(os::since_boot()).0 > 0 {
            return Ok(false);
        }
        Ok(self.segment().facts().is_ok_and(|facts| facts.links == 1) && home.leads_to(self.segment().id())?)
    }

    /// Writes the footer, and begins the counts again. The caller holds COUNTED alone.
    fn write_number(&self, id: u128) -> Result<()> {
        let (segment, name) = (self.segment(), self.home().location.as_str());
        let Some(file) = segment.kept.file() else { return Ok(()) };
        let facts = look(file, name)?;
        let trailer = Trailer::read(file, &facts, name)?;
        let footer = trailer.next_footer(id).map_err(|reason| ErrorKind::Trailer { reason }.at(name))?;
        // One call within one page: a kill comes before it or after it.
        os::write_all_at(file, &footer, facts.length - FOOTER_BYTES)
            .map_err(|error| Error::os("write the end of", name, error))?;
        os::step("renumber: renumbered");
        self.counts().begin_again();
        Ok(())
    }
}
