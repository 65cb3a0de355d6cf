//! The directories that a manager knows, and when it searches each of them.
//!
//! A directory is due when it is first announced, and when one of its clients dies. The search after a death decides
//! when to search again: soon, if a lease seems held, perhaps by a process that is about to end; later, if an array is
//! in flight, when its ticket expires.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use crate::backend::Directory;
use crate::counted::Reclaimed;
use crate::error::{ErrorKind, Result};
use crate::manager_client::wire::Use;
use crate::os::FileId;
use crate::search_time::SearchTime;

/// Maximum number of directories that one manager knows.
const MOST: usize = 256;

/// Maximum number of directories of one client.
const MOST_OF_CLIENT: usize = 64;

/// Milliseconds before each further search after a death, while an array seems held. If the dead process was spawning a
/// child, that child keeps a copy of the mappings, and with it the leases, until it calls exec.
const PAUSES: [u64; 9] = [2, 5, 10, 20, 50, 100, 200, 500, 1000];

/// After these pauses, a pause is this part of the time since the death, between one second and ten. A forked child of
/// the dead process keeps the mappings as long as it lives, and is no client if it uses nothing of this library itself.
const PART: u32 = 16;

/// The shortest and the longest of the later pauses.
const LATER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// The number of a directory, never used again.
type Number = u64;

/// The number of a client.
type Client = u64;

/// All directories, and which client uses which.
#[derive(Debug, Default)]
pub(super) struct Places {
    known: BTreeMap<Number, WatchedDirectory>,
    next: Number,
    /// The directories of each client. Clients without a directory are not here.
    pub(super) uses: BTreeMap<Client, BTreeSet<Number>>,
    /// Total number of searches.
    pub(super) sweeps: u64,
    /// Total number of arrays removed.
    pub(super) reclaimed: u64,
}

struct WatchedDirectory {
    used: Use,
    backend: Directory,
    /// When to search; `None`: not before the next death.
    due: Option<Instant>,
    /// When the last client died, unless no array was attached since then.
    death: Option<Instant>,
    /// How many of the pauses have passed since the last death; all of them if it is long ago.
    looks: usize,
    /// When the next ticket of an array in flight expires.
    expiry: Option<Instant>,
    /// Processor time of the last search. The next one begins at least as much later, so that searching takes at most
    /// half of a processor.
    took: Duration,
    /// When the last search ended.
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
    /// The reason for the client: there are too many directories.
    pub(super) fn note(&mut self, client: Client, used: Use) -> Result<(), &'static str> {
        let number = self.add(used)?;
        let places = self.uses.entry(client).or_default();
        if places.len() >= MOST_OF_CLIENT && !places.contains(&number) {
            return Err("a client names at most 64 directories");
        }
        places.insert(number);
        Ok(())
    }

    /// Adds a directory, or finds it if it is known. A full table drops a directory without clients: one that is not
    /// due, or else, of those where the short pauses have passed, the one with the longest wait since its client's
    /// death.
    pub(super) fn add(&mut self, used: Use) -> Result<Number, &'static str> {
        if let Some((&number, _)) = self.known.iter().find(|(_, place)| place.used == used) {
            return Ok(number);
        }
        if self.known.len() >= MOST {
            let unused = || self.known.iter().filter(|(number, _)| !self.is_used(**number));
            let waits = |place: &WatchedDirectory| place.death.is_some() && place.looks >= PAUSES.len();
            let waiting = || unused().filter(|(_, place)| waits(place)).min_by_key(|(_, place)| place.death);
            let idle = unused().find(|(_, place)| place.next().is_none()).or_else(waiting);
            let idle = *idle.ok_or("this manager knows too many directories already")?.0;
            self.known.remove(&idle);
        }
        let number = self.next;
        self.next += 1;
        let backend = Directory::new(&*used.backend, &*used.path);
        let took = Duration::ZERO;
        // Due at once, for the orphans of processes that died before this manager knew the directory.
        let (due, looks) = (Some(Instant::now()), PAUSES.len());
        self.known.insert(
            number,
            WatchedDirectory { used, backend, due, death: None, looks, expiry: None, took, seen: None },
        );
        Ok(number)
    }

    /// Returns the number of directories.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    fn is_used(&self, number: Number) -> bool {
        self.uses.values().any(|places| places.contains(&number))
    }

    /// Returns the directories that a client uses.
    fn of(&mut self, client: Client) -> impl Iterator<Item = &mut WatchedDirectory> {
        let uses = self.uses.get(&client);
        self.known.iter_mut().filter(move |(number, _)| uses.is_some_and(|uses| uses.contains(number))).map(|(_, p)| p)
    }

    /// Makes the directories of a client due.
    pub(super) fn mark_of(&mut self, client: Client, now: Instant) {
        self.of(client).for_each(|place| place.mark(now));
    }

    /// Forgets a client that has died, and makes its directories due, again and again as long as a process is attached
    /// to an array there.
    pub(super) fn leave(&mut self, client: Client, now: Instant) {
        self.mark_of(client, now);
        self.of(client).for_each(|place| place.death = Some(now));
        self.uses.remove(&client);
    }

    /// Moves the directories of one client to another.
    pub(super) fn hand_over(&mut self, client: Client, other: Client) {
        if let Some(places) = self.uses.remove(&client) {
            self.uses.entry(other).or_default().extend(places);
        }
    }

    /// Makes all directories due once, without a death. This starts no series of further searches for arrays that seem
    /// held: without a death, nothing suggests that they are released soon.
    pub(super) fn go_round(&mut self, now: Instant) {
        for place in self.known.values_mut() {
            let at = place.not_before(now);
            place.due = Some(place.due.map_or(at, |due| due.min(at)));
        }
    }

    /// Schedules a search: a client left an array in flight in this directory, and its ticket expires at `at`.
    ///
    /// # Errors
    ///
    /// The reason for the client: it does not use the directory.
    pub(super) fn remind(&mut self, client: Client, id: FileId, at: Instant) -> Result<(), &'static str> {
        let mut known = Err("this client has not announced that directory");
        for place in self.of(client).filter(|place| place.used.id == id) {
            let at = place.not_before(at);
            place.expiry = Some(place.expiry.map_or(at, |expiry| expiry.min(at)));
            known = Ok(());
        }
        known
    }

    /// Makes all directories due, as after a death.
    pub(super) fn mark_all(&mut self, now: Instant) {
        self.known.values_mut().for_each(|place| place.mark(now));
    }

    /// Returns when the next directory is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.known.values().filter_map(WatchedDirectory::next).min()
    }

    /// Returns whether a ticket of an array in flight is still to expire.
    pub(super) fn is_waiting(&self) -> bool {
        self.known.values().any(|place| place.expiry.is_some())
    }

    /// Searches every directory that is due. A directory that cannot be read is forgotten, unless a client uses it.
    pub(super) fn reclaim_due(&mut self, now: Instant, look: impl Fn(&Directory) -> Result<Reclaimed>) {
        let due: Vec<Number> =
            self.known.iter().filter(|(_, place)| place.next().is_some_and(|at| at <= now)).map(|(n, _)| *n).collect();
        for number in due {
            let Some(place) = self.known.get_mut(&number) else { continue };
            let (begin, search) = (Instant::now(), SearchTime::begin());
            let outcome = look(&place.backend);
            place.took = search.spent();
            let now = now + begin.elapsed();
            place.seen = Some(now);
            (place.due, place.expiry) = (None, None);
            self.sweeps += 1;
            match outcome {
                Ok(found) => {
                    let removed = found.removed.len();
                    self.reclaimed += removed as u64;
                    // Tickets may expire in quick succession. A search costs `took`, so waiting at least as long lets
                    // one search find several.
                    place.expiry = found.next.and_then(|next| now.checked_add(next.max(place.took)));
                    // An attached process may be about to end, or be a child that is being spawned. So search again, if
                    // there was a death.
                    if found.attached > 0 {
                        place.due = place.next_pause(now).map(|pause| now + pause);
                    } else {
                        place.death = None;
                    }
                    if removed > 0 {
                        log::info!("removed {removed} arrays of dead processes from {}", place.used.path.display());
                    }
                }
                Err(error) => {
                    if !matches!(error.kind, ErrorKind::NotFound) {
                        log::warn!("cannot search {}: {error}", place.used.path.display());
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

    /// Returns `at`, or later if necessary: searching must not take more than half of a processor.
    fn not_before(&self, at: Instant) -> Instant {
        self.seen.map_or(at, |seen| at.max(seen + self.took))
    }

    /// Returns the pause before the next search for arrays that seemed held; `None` after the last pause, if no client
    /// has died.
    ///
    /// Pauses are longer after long searches. So a directory full of arrays that really are held is searched less
    /// often.
    fn next_pause(&mut self, now: Instant) -> Option<Duration> {
        let shortest = SearchTime::rest_after(self.took).max(self.took);
        while let Some(pause) = PAUSES.get(self.looks).map(|pause| Duration::from_millis(*pause)) {
            self.looks += 1;
            // Pauses that are too short are skipped, but never the last one, so there is at least one later search.
            if pause >= shortest || self.looks == PAUSES.len() {
                return Some(pause.max(shortest));
            }
        }
        let since = now.saturating_duration_since(self.death?);
        Some((since / PART).clamp(LATER.0, LATER.1).max(shortest))
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
    fn directory_is_searched_only_when_due() {
        let (mut places, now) = (Places::default(), Instant::now());
        places.note(1, used(1)).expect("room");
        places.note(1, used(1)).expect("known already");
        places.note(2, used(2)).expect("room");
        assert!(places.next().is_some_and(|next| next >= now), "a new directory is due");
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
    fn directory_with_held_array_is_searched_after_each_pause() {
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
        assert_eq!(places.next(), None, "no client has died");
        places.mark_of(1, now + Duration::from_secs(2));
        assert!(places.next().is_some(), "another death begins anew");
    }

    #[test]
    fn array_of_a_dead_client_is_searched_until_it_is_free() {
        let (mut places, mut now) = (Places::default(), Instant::now());
        places.note(1, used(1)).expect("room");
        places.leave(1, now);
        let begin = now;
        let mut pauses = Vec::new();
        while now - begin < Duration::from_secs(3600) {
            let next = places.next().expect("an array is held");
            pauses.push(next - now);
            now = next;
            places.reclaim_due(now, |_| Ok(held()));
        }
        assert!(
            pauses[PAUSES.len() + 1..].iter().all(|pause| (LATER.0..=LATER.1 + LATER.0).contains(pause)),
            "{pauses:?}"
        );
        assert!(pauses.len() < 500, "{}", pauses.len());
        now = places.next().expect("an array is held");
        places.reclaim_due(now, |_| Ok(removed(1)));
        assert_eq!(places.next(), None);
    }

    #[test]
    fn slow_search_is_repeated_less_often() {
        let mut places = Places::default();
        let number = places.add(used(1)).expect("room");
        let place = places.known.get_mut(&number).expect("added");
        for (took, pauses) in [(0, PAUSES.len()), (1, 8), (5, 6), (20, 4), (60, 4), (180, 3), (900, 1), (3000, 1)] {
            (place.took, place.looks) = (Duration::from_millis(took), 0);
            let all: Vec<Duration> = std::iter::from_fn(|| place.next_pause(Instant::now())).collect();
            assert!(all.iter().all(|pause| *pause >= SearchTime::rest_after(place.took).max(place.took)), "{all:?}");
            assert_eq!(all.len(), pauses, "{took} ms: {all:?}");
        }
    }

    #[test]
    fn search_that_only_waited_makes_no_pause_longer() {
        let (mut places, now) = (Places::default(), Instant::now());
        places.note(1, used(1)).expect("room");
        places.mark_of(1, now);
        places.reclaim_due(now, |_| {
            std::thread::sleep(Duration::from_secs(2)); // as if the manager was stopped
            Ok(held())
        });
        let next = places.next().expect("an array is held");
        assert!(next - now < Duration::from_secs(3), "{:?}", next - now);
    }

    #[test]
    fn earliest_reminder_is_kept_until_the_search() {
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
    fn array_in_flight_is_searched_for_at_its_expiry() {
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
    fn full_table_drops_only_unused_directories() {
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
        places.reclaim_due(now, |_| Err(ErrorKind::NotFound.at("")));
        assert_eq!(places.len(), 2, "no client needs the directories that are gone");
    }

    #[test]
    fn client_names_at_most_64_directories() {
        let mut places = Places::default();
        (0..MOST_OF_CLIENT as u64).for_each(|number| places.note(1, used(number)).expect("room"));
        assert!(places.note(1, used(0)).is_ok() && places.note(1, used(9999)).is_err());
    }
}
