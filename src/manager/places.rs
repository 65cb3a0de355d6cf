//! The directories that a manager knows, and when it looks through each of them.
//!
//! A directory is due when it is first heard of, and at once when somebody dies who used it. What is found after a death decides
//! whether to look again: soon if a lease seems held, perhaps by somebody who is about to go; later if an array in flight is
//! protected until then.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use crate::backend::Directory;
use crate::counted::Reclaimed;
use crate::error::{Error, Result};
use crate::manager_client::wire::Use;
use crate::os::FileId;

/// Directories that one manager knows at most.
const MOST: usize = 256;

/// Directories that one client may name.
const MOST_OF_CLIENT: usize = 64;

/// Milliseconds to wait before each further look at what seemed held: a process that is being spawned by the dead one has its
/// mappings for a moment.
const PAUSES: [u64; 9] = [2, 5, 10, 20, 50, 100, 200, 500, 1000];

/// What seems held is looked at again after so many times what the last look took: a directory full of arrays that really are
/// held is looked at less often.
const SHARE: u32 = 4;

/// A directory, by a number that is never used again.
type Number = u64;

/// A client, by its number.
type Client = u64;

/// All of them, and which client uses which.
#[derive(Debug, Default)]
pub(super) struct Places {
    known: BTreeMap<Number, WatchedDirectory>,
    next: Number,
    /// What each client uses; clients that use nothing are not here.
    pub(super) uses: BTreeMap<Client, BTreeSet<Number>>,
    /// Looks in all.
    pub(super) sweeps: u64,
    /// Arrays removed in all.
    pub(super) reclaimed: u64,
}

struct WatchedDirectory {
    used: Use,
    backend: Directory,
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

impl fmt::Debug for WatchedDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchedDirectory")
            .field("path", &self.used.path)
            .field("due", &self.due)
            .finish_non_exhaustive()
    }
}

impl Places {
    /// Adds a directory that a client uses.
    ///
    /// # Errors
    ///
    /// There are too many, to be told to the client.
    pub(super) fn note(&mut self, client: Client, used: Use) -> Result<(), &'static str> {
        let number = self.add(used)?;
        let places = self.uses.entry(client).or_default();
        if places.len() >= MOST_OF_CLIENT && !places.contains(&number) {
            return Err("a client names at most 64 directories");
        }
        places.insert(number);
        Ok(())
    }

    /// Adds a directory, or finds it.
    pub(super) fn add(&mut self, used: Use) -> Result<Number, &'static str> {
        if let Some((&number, _)) = self.known.iter().find(|(_, place)| place.used == used) {
            return Ok(number);
        }
        if self.known.len() >= MOST {
            let idle = self.known.iter().find(|(number, place)| place.next().is_none() && !self.is_used(**number));
            let idle = *idle.ok_or("this manager knows too many directories already")?.0;
            self.known.remove(&idle);
        }
        let number = self.next;
        self.next += 1;
        let backend = Directory::new(&*used.backend, &*used.path);
        let took = Duration::ZERO;
        // Who died before, while no manager knew of it, is found now.
        let (due, looks) = (Some(Instant::now()), PAUSES.len());
        self.known.insert(number, WatchedDirectory { used, backend, due, looks, expiry: None, took, seen: None });
        Ok(number)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    fn is_used(&self, number: Number) -> bool {
        self.uses.values().any(|places| places.contains(&number))
    }

    /// The directories that a client uses.
    fn of(&mut self, client: Client) -> impl Iterator<Item = &mut WatchedDirectory> {
        let uses = self.uses.get(&client);
        self.known.iter_mut().filter(move |(number, _)| uses.is_some_and(|uses| uses.contains(number))).map(|(_, p)| p)
    }

    /// Makes the directories of a client due.
    pub(super) fn mark_of(&mut self, client: Client, now: Instant) {
        self.of(client).for_each(|place| place.mark(now));
    }

    /// Makes the directories of a client due, which has died.
    pub(super) fn leave(&mut self, client: Client, now: Instant) {
        self.mark_of(client, now);
        self.uses.remove(&client);
    }

    /// Lets another client use what a client uses.
    pub(super) fn hand_over(&mut self, client: Client, other: Client) {
        if let Some(places) = self.uses.remove(&client) {
            self.uses.entry(other).or_default().extend(places);
        }
    }

    /// Makes all of them due, though nobody died: what is held then is held.
    pub(super) fn go_round(&mut self, now: Instant) {
        for place in self.known.values_mut() {
            let at = place.not_before(now);
            place.due = Some(place.due.map_or(at, |due| due.min(at)));
        }
    }

    /// Notes when a directory is to be looked at, in which a client has left what is protected until then.
    ///
    /// # Errors
    ///
    /// The client does not use it.
    pub(super) fn remind(&mut self, client: Client, id: FileId, at: Instant) -> Result<(), &'static str> {
        let mut known = Err("this client did not say that it uses that directory");
        for place in self.of(client).filter(|place| place.used.id == id) {
            let at = place.not_before(at);
            place.expiry = Some(place.expiry.map_or(at, |expiry| expiry.min(at)));
            known = Ok(());
        }
        known
    }

    /// Makes all of them due.
    pub(super) fn mark_all(&mut self, now: Instant) {
        self.known.values_mut().for_each(|place| place.mark(now));
    }

    /// When the next one is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.known.values().filter_map(WatchedDirectory::next).min()
    }

    /// Whether there is something that must be looked at later, because it is protected until then.
    pub(super) fn is_waiting(&self) -> bool {
        self.known.values().any(|place| place.expiry.is_some())
    }

    /// Looks through every directory that is due. One that cannot be read is forgotten unless it is used.
    pub(super) fn reclaim_due(&mut self, now: Instant, look: impl Fn(&Directory) -> Result<Reclaimed>) {
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
                    if !self.is_used(number) {
                        self.known.remove(&number);
                    }
                }
            }
        }
    }
}

impl WatchedDirectory {
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
    use crate::counted::{Removed, RemovedKind};

    fn used(number: u64) -> Use {
        let path = std::env::temp_dir().join(number.to_string());
        Use { id: FileId { device: 0, number }, backend: "test".to_owned(), path }
    }

    fn removed(removed: usize) -> Reclaimed {
        let array = Removed { name: "array".to_owned(), bytes: 1, kind: RemovedKind::CountedArray };
        Reclaimed { removed: vec![array; removed], ..Reclaimed::default() }
    }

    fn held() -> Reclaimed {
        Reclaimed { attached: 1, ..Reclaimed::default() }
    }

    #[test]
    fn a_directory_is_looked_through_when_it_is_due_and_only_then() {
        let (mut places, now) = (Places::default(), Instant::now());
        places.note(1, used(1)).expect("room");
        places.note(1, used(1)).expect("known already");
        places.note(2, used(2)).expect("room");
        assert!(places.next().is_some_and(|next| next >= now), "one that is new is due");
        let now = now + Duration::from_secs(1);
        places.reclaim_due(now, |_| Ok(removed(0)));
        assert_eq!((places.len(), places.sweeps, places.next()), (2, 2, None));
        places.mark_of(1, now);
        places.reclaim_due(now + Duration::from_secs(1), |_| Ok(removed(3)));
        assert_eq!((places.sweeps, places.reclaimed, places.next()), (3, 3, None));
        places.mark_all(now + Duration::from_secs(2));
        places.reclaim_due(now + Duration::from_secs(2), |_| Ok(removed(1)));
        assert_eq!((places.sweeps, places.reclaimed), (5, 5));
    }

    #[test]
    fn what_seems_held_is_looked_at_again_some_times() {
        let (mut places, mut now) = (Places::default(), Instant::now());
        places.note(1, used(1)).expect("room");
        places.mark_of(1, now);
        let begin = now;
        while let Some(next) = places.next() {
            now = next;
            places.reclaim_due(now, |_| Ok(held()));
        }
        assert_eq!(places.sweeps, 1 + PAUSES.len() as u64);
        assert!(now - begin >= Duration::from_millis(PAUSES.iter().sum()));
        places.go_round(now);
        places.reclaim_due(now + Duration::from_secs(1), |_| Ok(held()));
        assert_eq!(places.next(), None, "nobody has died");
        places.mark_of(1, now + Duration::from_secs(2));
        assert!(places.next().is_some(), "another death begins anew");
    }

    #[test]
    fn what_takes_long_to_look_at_is_looked_at_less_often() {
        let mut places = Places::default();
        let number = places.add(used(1)).expect("room");
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
        places.note(1, used(1)).expect("room");
        let id = used(1).id;
        places.reclaim_due(now, |_| Ok(removed(0)));
        let [early, late] = [5, 9].map(|seconds| now + Duration::from_secs(seconds));
        [late, early, late].into_iter().for_each(|at| places.remind(1, id, at).expect("used"));
        for (client, id) in [(1, used(2).id), (2, id)] {
            assert!(places.remind(client, id, now).is_err(), "another directory, another client");
        }
        assert_eq!((places.next(), places.is_waiting()), (Some(early), true));
        places.reclaim_due(early, |_| Ok(removed(1)));
        assert_eq!((places.next(), places.is_waiting()), (None, false));
    }

    #[test]
    fn what_is_in_flight_is_looked_at_when_its_time_has_come() {
        let (mut places, now) = (Places::default(), Instant::now());
        places.note(1, used(1)).expect("room");
        places.leave(1, now);
        assert!(places.uses.is_empty());
        let flight = Duration::from_secs(30);
        places.reclaim_due(now, |_| Ok(Reclaimed { next: Some(flight), ..Reclaimed::default() }));
        let next = places.next().expect("not forgotten");
        assert!(next >= now + flight && next < now + flight * 2);
        assert!(places.is_waiting());
        places.reclaim_due(next, |_| Ok(removed(1)));
        assert_eq!((places.reclaimed, places.next(), places.is_waiting()), (1, None, false));
    }

    #[test]
    fn the_table_makes_room_for_those_in_use_only() {
        let (mut places, now) = (Places::default(), Instant::now());
        for number in 0..MOST as u64 {
            places.note(number, used(number)).expect("room");
        }
        places.reclaim_due(now + Duration::from_secs(1), |_| Ok(removed(0)));
        assert!(places.add(used(9999)).is_err());
        places.leave(5, now);
        places.hand_over(6, 7);
        assert_eq!((places.uses.len(), places.uses[&7].len()), (MOST - 2, 2));
        assert!(places.add(used(9999)).is_err(), "it is due");
        places.reclaim_due(now + Duration::from_secs(2), |_| Ok(removed(0)));
        assert!(places.add(used(9999)).is_ok());
        assert_eq!(places.len(), MOST);
        (0..MOST as u64).filter(|client| *client != 7).for_each(|client| places.leave(client, now));
        let now = now + Duration::from_secs(3);
        places.mark_all(now);
        places.reclaim_due(now, |_| Err(Error::NotFound { location: String::new() }));
        assert_eq!(places.len(), 2, "no client needs the directories that are gone");
    }

    #[test]
    fn a_client_names_a_limited_number_of_directories() {
        let mut places = Places::default();
        (0..MOST_OF_CLIENT as u64).for_each(|number| places.note(1, used(number)).expect("room"));
        assert!(places.note(1, used(0)).is_ok() && places.note(1, used(9999)).is_err());
    }
}
