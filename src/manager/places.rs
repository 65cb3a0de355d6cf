//! The directories that a manager knows, and when it looks through each of them.
//!
//! A death makes a directory due at once. What was found there decides whether to look again: soon if a lease seemed held
//! by somebody who is about to go, later if an array in flight is protected until then.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::wire::Use;
use crate::backend::{Backend, Directory};
use crate::error::{Error, Result};
use crate::share::reclaim::Swept;

/// Directories that one manager knows at most.
const MOST: usize = 256;

/// Milliseconds to wait before each further look at what seemed held: a process that is being spawned by the dead one has its
/// mappings for a moment.
const PAUSES: [u64; 9] = [2, 5, 10, 20, 50, 100, 200, 500, 1000];

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
    /// How many of the pauses have passed.
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
        self.known.insert(number, Place { used, backend, due: None, looks: 0, expiry: None, took, seen: None });
        Ok(number)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Makes a directory due: somebody who used it has died.
    pub(super) fn mark(&mut self, number: Number, now: Instant) {
        if let Some(place) = self.known.get_mut(&number) {
            place.looks = 0;
            place.due = Some(place.seen.map_or(now, |seen| now.max(seen + place.took)));
        }
    }

    /// Makes all of them due.
    pub(super) fn mark_all(&mut self, now: Instant) {
        for number in self.known.keys().copied().collect::<Vec<_>>() {
            self.mark(number, now);
        }
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
        look: impl Fn(&Arc<dyn Backend>) -> Result<Swept>,
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
                Ok(Swept { removed, next, busy }) => {
                    self.reclaimed += removed as u64;
                    let now = now + place.took;
                    place.expiry = next.and_then(|next| now.checked_add(next));
                    if let Some(pause) = busy.then(|| PAUSES.get(place.looks)).flatten() {
                        place.looks += 1;
                        place.due = Some(now + Duration::from_millis(*pause));
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
    fn next(&self) -> Option<Instant> {
        [self.due, self.expiry].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::FileId;

    fn used(number: u64) -> Use {
        let path = std::env::temp_dir().join(number.to_string());
        Use { id: FileId { device: 0, number }, backend: "test".to_owned(), path }
    }

    fn removed(removed: usize) -> Swept {
        Swept { removed, next: None, busy: false }
    }

    #[test]
    fn a_directory_is_looked_through_when_it_is_due_and_only_then() {
        let (mut places, now) = (Places::default(), Instant::now());
        let first = places.add(used(1), |_| true).expect("room");
        assert_eq!(places.add(used(1), |_| true), Ok(first), "known already");
        places.add(used(2), |_| true).expect("room");
        assert_eq!((places.len(), places.next()), (2, None));
        places.mark(first, now);
        places.sweep(now, |_| true, |_| Ok(removed(3)));
        assert_eq!((places.sweeps, places.reclaimed, places.next()), (1, 3, None));
        places.mark_all(now + Duration::from_secs(1));
        places.sweep(now + Duration::from_secs(1), |_| true, |_| Ok(removed(1)));
        assert_eq!((places.sweeps, places.reclaimed), (3, 5));
    }

    #[test]
    fn what_seems_held_is_looked_at_again_some_times() {
        let (mut places, mut now) = (Places::default(), Instant::now());
        let number = places.add(used(1), |_| true).expect("room");
        places.mark(number, now);
        let begin = now;
        while let Some(next) = places.next() {
            now = next;
            places.sweep(now, |_| true, |_| Ok(Swept { removed: 0, next: None, busy: true }));
        }
        assert_eq!(places.sweeps, 1 + PAUSES.len() as u64);
        assert!(now - begin >= Duration::from_millis(PAUSES.iter().sum()));
        places.mark(number, now);
        assert!(places.next().is_some(), "another death begins anew");
    }

    #[test]
    fn what_is_in_flight_is_looked_at_when_its_time_has_come() {
        let (mut places, now) = (Places::default(), Instant::now());
        let number = places.add(used(1), |_| true).expect("room");
        places.mark(number, now);
        let flight = Duration::from_secs(30);
        places.sweep(now, |_| true, |_| Ok(Swept { removed: 0, next: Some(flight), busy: false }));
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
        assert!(places.add(used(9999), |_| true).is_err());
        assert!(places.add(used(9999), |number| number != 5).is_ok());
        assert_eq!(places.len(), MOST);
        places.mark_all(now);
        let gone = || Error::NotFound { location: String::new() };
        places.sweep(now, |number| number == 7, |_| Err(gone()));
        assert_eq!(places.len(), 1, "nobody needs a directory that is gone");
    }
}
