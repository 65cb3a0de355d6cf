//! Forged arenas: any bytes yield an error or sane results, and no process dies of them.

use std::path::PathBuf;

use libtest_mimic::Trial;
use ndarray::{Array, ArrayView, Dimension, Ix1, Ix2};
use ndarray_shm::arena::{ArenaHandle, ArenaOptions, loans::Counters};
use ndarray_shm::counted::Reclaim;
use ndarray_shm::{Arena, Directory, Error, ErrorKind, Location};

use super::hostile::{PAGE, run, seal};
use crate::support::child::{Role, say};
use crate::support::random::Random;
use crate::support::{Place, backend_of_child};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "hostile_arena",
        tests![forged_geometry_is_refused, any_bytes_in_the_tables_are_survived, arena_of_wrong_length_is_refused,],
    )
}

pub const ROLES: &[(&str, Role)] =
    &[("forge-geometry", forge_geometry), ("spoil-tables", spoil_tables), ("cut-arena", cut_arena)];

const RECORD: usize = 3728;
const SPANS: u64 = 4;
// Offsets as in src/arena/tables/geometry.rs, for one queue of 24 cells.
const MEMBERS_AT: usize = PAGE;
const QUEUES_AT: usize = 2 * PAGE;
const SPANS_AT: usize = 3 * PAGE;
const ENTRIES_AT: usize = 4 * PAGE;
const DATA_AT: usize = 1 << 16;

struct Target {
    backend: Directory,
    location: Location,
    path: PathBuf,
    handles: Vec<ArenaHandle>,
    bytes: Vec<u8>,
}

impl Target {
    /// The bytes of an arena whose member holds three arrays. In a copy of the file this member is dead.
    fn new(arguments: &[String]) -> Self {
        let backend = backend_of_child();
        let location: Location = arguments[0].parse().unwrap();
        let path = backend.path().join(location.as_str());
        let arena = Self::options(&backend).keep(true).create(&location, SPANS << 16).unwrap();
        let small = arena.from_array(&Array::from_elem((3, 5), 7u64)).unwrap();
        let line = arena.from_array(&Array::from_elem(100, 9u64)).unwrap();
        let run = arena.from_array(&Array::from_elem((100, 100), 1u64)).unwrap();
        let handles = vec![small.handle(), line.handle(), run.handle()];
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), DATA_AT + (SPANS << 16) as usize + PAGE);
        assert_eq!(bytes[DATA_AT..DATA_AT + 3], *b"<u8");
        assert!(arena.unlink().unwrap());
        Self { backend, location, path, handles, bytes }
    }

    fn options(backend: &Directory) -> ArenaOptions {
        ArenaOptions::new().directory(backend.clone()).queues(1).queue_capacity(24)
    }

    /// Runs every operation on an arena of these bytes. Returns the outcome of opening.
    fn attempt(&self, bytes: &[u8]) -> Result<(), Error> {
        let _ = self.backend.unlink(&self.location); // an earlier attempt may have left the file
        std::fs::write(&self.path, bytes).unwrap();
        Reclaim::new().dry_run(true).run(&self.backend).unwrap();
        assert!(Counters::open_in(&self.backend, &self.location).is_err());
        let arena = Arena::open_in(&self.backend, &self.location)?;
        self.use_all(&arena);
        arena.close().map(drop).or(Ok(()))
    }

    fn use_all(&self, arena: &Arena) {
        let held: Vec<_> = self
            .handles
            .iter()
            .flat_map(|handle| {
                let line = arena.get::<u64, Ix1>(handle).map(|array| read_all(&array.view()));
                let grid = arena.get::<u64, Ix2>(handle);
                let _ = (line, grid.as_ref().map(|array| read_all(&array.view())));
                grid
            })
            .collect();
        let _ = arena.stats();
        for bytes in [0, 100, 1000, 30_000, 60_000, 100_000, 250_000] {
            if let Ok(mut draft) = arena.draft::<u8, _>(bytes) {
                draft.view_mut().as_slice_mut().unwrap().fill(0xff);
                let array = draft.share().unwrap();
                assert_eq!(array.view().len(), bytes);
                let _same = arena.get::<u8, Ix1>(&array.handle()); // held meanwhile
                let _ = array.try_into_draft();
            }
        }
        let _ = arena.reclaim();
        drop(held);
        let _ = (arena.reclaim(), arena.stats());
    }
}

/// Reads every element.
fn read_all<D: Dimension>(view: &ArrayView<'_, u64, D>) -> Vec<u64> {
    view.to_slice_memory_order().unwrap().to_vec()
}

fn forge_geometry(arguments: &[String]) {
    let target = Target::new(arguments);
    assert!(target.attempt(&target.bytes).is_ok(), "the builder can tell the truth");
    let page = target.bytes.len() - PAGE;
    let try_all = |at: usize, values: &[&[u8]]| {
        for value in values {
            let mut bytes = target.bytes.clone();
            bytes[page + at..page + at + value.len()].copy_from_slice(value);
            seal(&mut bytes);
            match target.attempt(&bytes) {
                Err(Error { kind: ErrorKind::Trailer { .. } | ErrorKind::Reserved { .. }, .. }) => {}
                // The flag of a sparse arena, which a member must accept.
                Err(Error { kind: ErrorKind::Unsupported { .. }, .. })
                    if at == RECORD + 4 && value.starts_with(&[1, 0, 0, 0]) => {}
                // Rounding hides a few cells. The creator's process is only informative.
                Ok(()) if bytes == target.bytes || (16..24).contains(&(at - RECORD)) || at == RECORD + 24 => {}
                other => panic!("{value:?} at {at}: {other:?}"),
            }
        }
        say("alive");
    };
    let fields: [(usize, usize); 6] = [(0, 4), (4, 4), (8, 8), (16, 4), (20, 4), (24, 4)];
    for (at, size) in fields {
        for number in [0, 1, 2, 3, 5, 6, 24, 25, 1 << 10, 1 << 24, 1 << 31, u64::from(u32::MAX), 1 << 48, u64::MAX] {
            try_all(RECORD + at, &[&number.to_le_bytes()[..size]]);
        }
    }
    for at in 28..304 {
        let mut bytes = target.bytes.clone();
        bytes[page + RECORD + at] = 1;
        seal(&mut bytes);
        assert!(matches!(target.attempt(&bytes), Err(Error { kind: ErrorKind::Trailer { .. }, .. })), "{at}");
    }
    say("done");
}

fn forged_geometry_is_refused(place: &Place) {
    run(place, "forge-geometry");
}

fn spoil_tables(arguments: &[String]) {
    let target = Target::new(arguments);
    let words: Vec<usize> = [
        0..16,
        MEMBERS_AT..MEMBERS_AT + 64 * 3,
        QUEUES_AT..QUEUES_AT + 8,
        SPANS_AT..SPANS_AT + 8 * SPANS as usize,
        ENTRIES_AT..ENTRIES_AT + 64,
        ENTRIES_AT + (256 * 16)..ENTRIES_AT + (256 * 16) + 32,
        ENTRIES_AT + 2 * (256 * 16)..ENTRIES_AT + 2 * (256 * 16) + 32,
        DATA_AT..DATA_AT + 64,
        DATA_AT + (1 << 16)..DATA_AT + (1 << 16) + 64,
        DATA_AT + (2 << 16)..DATA_AT + (2 << 16) + 64,
    ]
    .into_iter()
    .flat_map(|part| part.step_by(8))
    .collect();
    let mut random = Random::new(1);
    let mut turn = 0;
    // The stride does not divide the number of attempts per word, so each word leaves out other bits than the last.
    let is_soak = std::env::var_os("NDSHM_TEST_ROUNDS").is_some();
    let stride = if cfg!(windows) {
        11
    } else if is_soak {
        1
    } else {
        3
    };
    let mut attempt = |changes: &[(usize, u64)]| {
        turn += 1;
        if turn % stride != 0 {
            return;
        }
        let mut bytes = target.bytes.clone();
        for (at, value) in changes {
            bytes[*at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        let _ = target.attempt(&bytes); // any outcome but a crash
    };
    for at in &words {
        let honest = u64::from_le_bytes(target.bytes[*at..at + 8].try_into().unwrap());
        for bit in (0..64).step_by(if *at < DATA_AT { 1 } else { 5 }) {
            attempt(&[(*at, honest ^ 1 << bit)]);
        }
        for value in [0, u64::MAX, 1 << 63, (1 << 46) - 1, 3 << 28, 2 << 28 | 4, 2 << 28 | 0x0fff_ffff] {
            attempt(&[(*at, value)]);
        }
        say("alive");
    }
    for _ in 0..300 {
        let changes: Vec<_> = (0..5).map(|_| (words[random.below(words.len())], random.number())).collect();
        attempt(&changes);
    }
    say("done");
}

fn any_bytes_in_the_tables_are_survived(place: &Place) {
    run(place, "spoil-tables");
}

fn cut_arena(arguments: &[String]) {
    let target = Target::new(arguments);
    let honest = &target.bytes;
    let refused = |bytes: &[u8]| match target.attempt(bytes) {
        Err(Error { kind: ErrorKind::NotCounted | ErrorKind::Trailer { .. }, .. }) => {}
        other => panic!("{} bytes: {other:?}", bytes.len()),
    };
    for cut in [1, 8, 63, 64, PAGE - 1, PAGE, PAGE + 1, 1 << 16, honest.len() - 64, honest.len() - 1, honest.len()] {
        refused(&honest[..honest.len() - cut]);
        refused(&honest[cut..]);
    }
    refused(&[&honest[..], &[0; PAGE]].concat());
    refused(&[&honest[..], &honest[honest.len() - PAGE..]].concat());
    say("done");
}

fn arena_of_wrong_length_is_refused(place: &Place) {
    run(place, "cut-arena");
}
