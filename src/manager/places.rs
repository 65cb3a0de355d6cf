//! The directories that a manager knows, and when it looks through each of them.
//!
//! A directory is due when it is first heard of, and at once when somebody dies who used it. What is found after a death decides
//! whether to look again: soon if a lease seems held, perhaps by somebody who is about to go; later if an array in flight is
//! protected until then.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backend::{Backend, Directory};
use crate::error::{Error, Result};
use crate::manager_client::wire::Use;
use crate::os::FileId;
use crate::share::Reclaimed;

/// Directories that one manager knows at most.
const MOST: usize = 256;

/// Milliseconds to wait before each further look at what seemed held: a process that is being spawned by the dead one has its
/// mappings for a moment.
const PAUSES: [u64; 9] = [2, 5, 10, 20, 50, 100, 200, 500, 1000];

/// What seems held is looked at again after so many times what the last look took: a directory full of arrays that really are
/// held is looked at less often.
const SHARE: u32 = 4;

/// A directory, by a number that is never used again.
pub(super) type Number = u64;

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Places {
    known: BTreeMap<Number, Place>,
    next: Number,
    /// Looks in all.
    pub(super) sweeps: u64,
    /// Arrays removed in all.
    pub(super) reclaimed: u64,
}

struct Place {
    used: Use,
    backend: Arc<dyn Backend>,
    /// When to look; `None`: not before somebody dies.
    due: Option<Instant>,
    /// How many of the pauses have passed since somebody died; all of them if that is long ago.
    looks: usize,
    /// When an array in flight is no longer protected.
    expiry: Option<Instant>,
    /// How long the last look took; the next one leaves as much time to everything else.
    took: Duration,
    seen: Option<Instant>,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").field("path", &self.used.path).field("due", &self.due).finish_non_exhaustive()
    }
}

impl Places {
    /// Adds a directory, or finds it. `in_use` says which numbers some client still needs.
    ///
    /// # Errors
    ///
    /// There are too many, to be told to the client.
    pub(super) fn add(&mut self, used: Use, in_use: impl Fn(Number) -> bool) -> Result<Number, &'static str> {
        if let Some((&number, _)) = self.known.iter().find(|(_, place)| place.used == used) {
            return Ok(number);
        }
        if self.known.len() >= MOST {
            let idle = self.known.iter().find(|(number, place)| place.next().is_none() && !in_use(**number));
            let idle = *idle.ok_or("this manager knows too many directories already")?.0;
            self.known.remove(&idle);
        }
        let number = self.next;
        self.next += 1;
        let backend: Arc<dyn Backend> = Arc::new(Directory::new(&*used.backend, &*used.path));
        let took = Duration::ZERO;
        // Who died before, while no manager knew of it, is found now.
        let (due, looks) = (Some(Instant::now()), PAUSES.len());
        self.known.insert(number, Place { used, backend, due, looks, expiry: None, took, seen: None });
        Ok(number)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Makes a directory due: somebody who used it has died.
    pub(super) fn mark(&mut self, number: Number, now: Instant) {
        self.known.get_mut(&number).into_iter().for_each(|place| place.mark(now));
    }

    /// Makes all of them due, though nobody died: what is held then is held.
    pub(super) fn go_round(&mut self, now: Instant) {
        for place in self.known.values_mut() {
            let at = place.not_before(now);
            place.due = Some(place.due.map_or(at, |due| due.min(at)));
        }
    }

    /// Notes when a directory is to be looked at; `false` if it is another one.
    pub(super) fn remind(&mut self, number: Number, id: FileId, at: Instant) -> bool {
        let Some(place) = self.known.get_mut(&number).filter(|place| place.used.id == id) else { return false };
        let at = place.not_before(at);
        place.expiry = Some(place.expiry.map_or(at, |expiry| expiry.min(at)));
        true
    }

    /// Makes all of them due.
    pub(super) fn mark_all(&mut self, now: Instant) {
        self.known.values_mut().for_each(|place| place.mark(now));
    }

    /// When the next one is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.known.values().filter_map(Place::next).min()
    }

    /// Whether there is something that must be looked at later, because it is protected until then.
    pub(super) fn is_waiting(&self) -> bool {
        self.known.values().any(|place| place.expiry.is_some())
    }

    /// Looks through every directory that is due. One that cannot be read is forgotten unless `in_use`.
    pub(super) fn sweep(
        &mut self,
        now: Instant,
        in_use: impl Fn(Number) -> bool,
        look: impl Fn(&Arc<dyn Backend>) -> Result<Reclaimed>,
    ) {
        let due: Vec<Number> =
            self.known.iter().filter(|(_, place)| place.next().is_some_and(|at| at <= now)).map(|(n, _)| *n).collect();
        for number in due {
            let Some(place) = self.known.get_mut(&number) else { continue };
            let begin = Instant::now();
            let outcome = look(&place.backend);
            place.took = begin.elapsed();
            place.seen = Some(now + place.took);
            (place.due, place.expiry) = (None, None);
            self.sweeps += 1;
            match outcome {
                Ok(found) => {
                    let removed = found.removed.len();
                    self.reclaimed += removed as u64;
                    let now = now + place.took;
                    // Many expire one soon after the other: one look finds several.
                    place.expiry = found.next.and_then(|next| now.checked_add(next.max(place.took)));
                    // What is attached may be a process that is just ending, or that was just being spawned.
                    if found.attached > 0 {
                        place.due = place.next_pause().map(|pause| now + pause);
                    }
                    if removed > 0 {
                        log::info!("removed {removed} arrays of dead processes from {}", place.used.path.display());
                    }
                }
                Err(error) => {
                    if !matches!(error, Error::NotFound { .. }) {
                        log::warn!("cannot look through {}: {error}", place.used.path.display());
                    }
                    if !in_use(number) {
                        self.known.remove(&number);
                    }
                }
            }
        }
    }
}

impl Place {
    fn mark(&mut self, now: Instant) {
        self.looks = 0;
        self.due = Some(self.not_before(now));
    }

    /// When to look, at the earliest: looking is not to take more than half of the time.
    fn not_before(&self, at: Instant) -> Instant {
        self.seen.map_or(at, |seen| at.max(seen + self.took))
    }

    /// How long to wait for those who are about to go; `None` if they have had enough time.
    fn next_pause(&mut self) -> Option<Duration> {
        let shortest = self.took.saturating_mul(SHARE);
        while let Some(pause) = PAUSES.get(self.looks).map(|pause| Duration::from_millis(*pause)) {
            self.looks += 1;
            // The last one is waited for in any case, so that one later look there is.
            if pause >= shortest || self.looks == PAUSES.len() {
                return Some(pause.max(shortest));
            }
        }
        None
    }

    fn next(&self) -> Option<Instant> {
        [self.due, self.expiry].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::EntryKind;
    use crate::share::Removed;

    fn used(number: u64) -> Use {
        let path = std::env::temp_dir().join(number.to_string());
        Use { id: FileId { device: 0, number }, backend: "test".to_owned(), path }
    }

    fn removed(removed: usize) -> Reclaimed {
        let array = Removed { name: "array".to_owned(), bytes: 1, kind: EntryKind::Array };
        Reclaimed { removed: vec![array; removed], ..Reclaimed::default() }
    }

    fn held() -> Reclaimed {
        Reclaimed { attached: 1, ..Reclaimed::default() }
    }

    #[test]
    fn a_directory_is_looked_through_when_it_is_due_and_only_then() {
        let (mut places, now) = (Places::default(), Instant::now());
        let first = places.add(used(1), |_| true).expect("room");
        assert_eq!(places.add(used(1), |_| true), Ok(first), "known already");
        places.add(used(2), |_| true).expect("room");
        assert!(places.next().is_some_and(|next| next >= now), "one that is new is due");
        let now = now + Duration::from_secs(1);
        places.sweep(now, |_| true, |_| Ok(removed(0)));
        assert_eq!((places.len(), places.sweeps, places.next()), (2, 2, None));
        places.mark(first, now);
        places.sweep(now + Duration::from_secs(1), |_| true, |_| Ok(removed(3)));
        assert_eq!((places.sweeps, places.reclaimed, places.next()), (3, 3, None));
        places.mark_all(now + Duration::from_secs(2));
        places.sweep(now + Duration::from_secs(2), |_| true, |_| Ok(removed(1)));
        assert_eq!((places.sweeps, places.reclaimed), (5, 5));
    }

    #[test]
    fn what_seems_held_is_looked_at_again_some_times() {
        let (mut places, mut now) = (Places::default(), Instant::now());
        let number = places.add(used(1), |_| true).expect("room");
        places.mark(number, now);
        let begin = now;
        while let Some(next) = places.next() {
            now = next;
            places.sweep(now, |_| true, |_| Ok(held()));
        }
        assert_eq!(places.sweeps, 1 + PAUSES.len() as u64);
        assert!(now - begin >= Duration::from_millis(PAUSES.iter().sum()));
        places.go_round(now);
        places.sweep(now + Duration::from_secs(1), |_| true, |_| Ok(held()));
        assert_eq!(places.next(), None, "nobody has died");
        places.mark(number, now + Duration::from_secs(2));
        assert!(places.next().is_some(), "another death begins anew");
    }

    #[test]
    fn what_takes_long_to_look_at_is_looked_at_less_often() {
        let mut places = Places::default();
        let number = places.add(used(1), |_| true).expect("room");
        let place = places.known.get_mut(&number).expect("added");
        for (took, pauses) in [(0, PAUSES.len()), (1, 8), (5, 6), (60, 2), (900, 1)] {
            (place.took, place.looks) = (Duration::from_millis(took), 0);
            let all: Vec<Duration> = std::iter::from_fn(|| place.next_pause()).collect();
            assert!(all.iter().all(|pause| *pause >= place.took * SHARE), "{all:?}");
            assert_eq!(all.len(), pauses, "{took} ms: {all:?}");
        }
    }

    #[test]
    fn a_reminder_is_kept_if_no_look_comes_before() {
        let (mut places, now) = (Places::default(), Instant::now() + Duration::from_secs(1));
        let number = places.add(used(1), |_| true).expect("room");
        let id = used(1).id;
        places.sweep(now, |_| true, |_| Ok(removed(0)));
        let [early, late] = [5, 9].map(|seconds| now + Duration::from_secs(seconds));
        assert!(places.remind(number, id, late) && places.remind(number, id, early) && places.remind(number, id, late));
        assert!(!places.remind(number, used(2).id, now) && !places.remind(number + 1, id, now), "another directory");
        assert_eq!((places.next(), places.is_waiting()), (Some(early), true));
        places.sweep(early, |_| true, |_| Ok(removed(1)));
        assert_eq!((places.next(), places.is_waiting()), (None, false));
    }

    #[test]
    fn what_is_in_flight_is_looked_at_when_its_time_has_come() {
        let (mut places, now) = (Places::default(), Instant::now());
        let number = places.add(used(1), |_| true).expect("room");
        places.mark(number, now);
        let flight = Duration::from_secs(30);
        places.sweep(now, |_| true, |_| Ok(Reclaimed { next: Some(flight), ..Reclaimed::default() }));
        let next = places.next().expect("not forgotten");
        assert!(next >= now + flight && next < now + flight * 2);
        assert!(places.is_waiting());
        places.sweep(next, |_| true, |_| Ok(removed(1)));
        assert_eq!((places.reclaimed, places.next(), places.is_waiting()), (1, None, false));
    }

    #[test]
    fn the_table_makes_room_for_those_in_use_only() {
        let (mut places, now) = (Places::default(), Instant::now());
        for number in 0..MOST as u64 {
            places.add(used(number), |_| true).expect("room");
        }
        places.sweep(now + Duration::from_secs(1), |_| true, |_| Ok(removed(0)));
        assert!(places.add(used(9999), |_| true).is_err());
        assert!(places.add(used(9999), |number| number != 5).is_ok());
        assert_eq!(places.len(), MOST);
        let now = now + Duration::from_secs(2);
        places.mark_all(now);
        let gone = || Error::NotFound { location: String::new() };
        places.sweep(now, |number| number == 7, |_| Err(gone()));
        assert_eq!(places.len(), 1, "nobody needs a directory that is gone");
    }
}
