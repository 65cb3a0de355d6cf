//! Members of an arena: how many there can be, what a killed one leaves, and how long the name stays.

use libtest_mimic::Trial;
use ndarray::{Array, Ix1};
use ndarray_shm::arena::{ArenaArray, ArenaHandle};
use ndarray_shm::{Arena, Error, ErrorKind, RefcountedArray, SharedArray};

use super::{MIB, create, peer_of};
use crate::support::child::{Child, hear, say};
use crate::support::random::{Random, random};
use crate::support::{Place, arena_of_child};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "arena",
        tests![
            a_killed_process_holds_nothing,
            killed_processes_leak_no_memory,
            forty_six_members_fit_and_dead_seats_are_reused,
            last_member_removes_the_name,
            arena_of_dead_members_is_reclaimed,
            kept_arena_stays_until_unlinked,
            arena_and_array_files_are_told_apart,
        ],
    )
}

fn a_killed_process_holds_nothing(place: &Place) {
    let name = place.location("killed");
    let arena = create(place, &name, MIB);
    let ours = arena.from_array(&Array::from_elem(10, 1u64)).unwrap();
    let mut child = peer_of(place, &name);
    child.tell(format!("get {}", ours.handle()));
    child.expect("10");
    let theirs: ArenaHandle = child.ask("make 100000").parse().unwrap();
    let both: ArenaHandle = child.ask("make 100").parse().unwrap();
    let both = arena.get::<u64, Ix1>(&both).unwrap();
    child.kill();
    assert_eq!((ours.members(), both.members()), (2, 2));
    let alive: Vec<bool> = arena.stats().unwrap().members.iter().map(|member| member.is_alive).collect();
    assert_eq!(alive, [true, false]);
    let collected = arena.reclaim().unwrap();
    assert_eq!((collected.members, collected.blocks), (1, 1));
    assert_eq!((ours.members(), both.members()), (1, 1));
    assert!(arena.get::<u64, Ix1>(&theirs).unwrap_err().kind == ErrorKind::HandleSpent);
    assert_eq!((both.view().sum(), arena.stats().unwrap().members.len()), (4950, 1));
    assert_eq!(arena.reclaim().unwrap().members, 0);
}

/// A child that makes, shares, gets and drops arrays of all sizes as fast as it can, checking what it sees.
pub fn churn(arguments: &[String]) {
    let arena = arena_of_child(arguments);
    let mut held: Vec<ArenaArray<u64, Ix1>> = Vec::new();
    say("open");
    loop {
        let length = match random() % 10 {
            0 => random() % 60_000,
            1..4 => random() % 5000,
            _ => random() % 200,
        };
        match arena.draft::<u64, _>(length as usize) {
            Ok(mut draft) => {
                let tag = random();
                draft.view_mut().fill(tag);
                assert!(draft.view().iter().all(|value| *value == tag), "another member has it");
                held.push(draft.share().unwrap());
            }
            Err(error) => assert!(
                matches!(error.kind, ErrorKind::NoSpace { .. }) || matches!(error.kind, ErrorKind::TimedOut { .. }),
                "{error}"
            ),
        }
        if held.len() > 8 {
            let array = held.swap_remove(random() as usize % held.len());
            let same = arena.get::<u64, Ix1>(&array.handle()).unwrap();
            assert!(same.view().iter().all(|value| *value == same.view()[0]), "it has changed");
            array.release().unwrap();
        }
        if random() % 64 == 0 {
            held.clear();
        }
        if random() % 128 == 0 {
            arena.reclaim().unwrap();
        }
    }
}

fn killed_processes_leak_no_memory(place: &Place) {
    let name = place.location("soak");
    let arena = create(place, &name, 2 * MIB);
    let all = || (0..32).map(|_| arena.draft::<u8, _>((1 << 16) - 64)).collect::<Result<Vec<_>, _>>();
    assert_eq!(all().unwrap().len(), 32);
    let kills: usize = std::env::var("NDSHM_TEST_KILLS").map_or(30, |kills| kills.parse().unwrap());
    let start = || {
        let mut child = Child::start(place, "arena-churn", &[name.as_str()]);
        child.expect("open");
        child
    };
    let mut children: Vec<Child> = (0..3).map(|_| start()).collect();
    let mut random = Random::new(1);
    for kill in 0..kills / 3 {
        for child in &mut children {
            std::thread::sleep(std::time::Duration::from_micros(random.below(0x4000) as u64));
            child.kill_alive();
            *child = start();
        }
        if kill % 8 == 0 {
            arena.reclaim().unwrap();
        }
    }
    children.iter_mut().for_each(Child::kill_alive);
    drop(children);
    arena.reclaim().unwrap();
    let found = arena.stats().unwrap();
    assert_eq!((found.arrays, found.orphaned_messages, found.members.len()), (0, 0, 1), "{found:?}");
    // All memory can be allocated again, in any size.
    assert_eq!(all().unwrap().len(), 32);
    let small: Result<Vec<_>, _> = (0..32 * 204).map(|_| arena.draft::<u8, _>(256)).collect();
    assert_eq!(small.unwrap().len(), 32 * 204);
}

/// A child that has the arena open until it is told to end.
pub fn member(arguments: &[String]) {
    let _arena = arena_of_child(arguments);
    say("open");
    hear();
}

fn forty_six_members_fit_and_dead_seats_are_reused(place: &Place) {
    let name = place.location("seats");
    let first = create(place, &name, 1);
    let mut child = Child::start(place, "arena-member", &[name.as_str()]);
    child.expect("open");
    let mut others: Vec<Arena> = (2..46).map(|_| Arena::open_in(&place.backend, name.as_str()).unwrap()).collect();
    match Arena::open_in(&place.backend, name.as_str()) {
        Err(error @ Error { kind: ErrorKind::TooManyProcesses { limit: 46, .. }, .. }) => {
            assert!(error.to_string().contains("46 processes have it open already"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    let array = others[43].from_array(&Array::from_elem(3, 7u64)).unwrap();
    assert_eq!(first.get::<u64, Ix1>(&array.handle()).unwrap().view()[0], 7);
    child.kill();
    let late = Arena::open_in(&place.backend, name.as_str()).unwrap();
    assert!(Arena::open_in(&place.backend, name.as_str()).is_err());
    others.pop(); // it stays a member while its array is held
    assert!(Arena::open_in(&place.backend, name.as_str()).is_err());
    drop(array);
    let later = Arena::open_in(&place.backend, name.as_str()).unwrap();
    assert_eq!(late.stats().unwrap().members.len(), 46);
    for arena in others.into_iter().chain([first, late, later]) {
        arena.close().unwrap();
    }
    assert!(!place.has(&name));
}

fn last_member_removes_the_name(place: &Place) {
    let name = place.location("last");
    let arena = create(place, &name, 1);
    assert!(matches!(
        place.arena_options().create(name.as_str(), 1),
        Err(Error { kind: ErrorKind::AlreadyExists, .. })
    ));
    let mut child = peer_of(place, &name);
    let draft = arena.draft::<u8, _>(10).unwrap();
    arena.close().unwrap();
    child.tell("end");
    child.finish();
    assert!(place.has(&name), "the draft keeps it");
    drop(draft);
    assert!(!place.has(&name));
    assert!(Arena::open_in(&place.backend, name.as_str()).unwrap_err().is_not_found());
}

fn arena_of_dead_members_is_reclaimed(place: &Place) {
    let place = &place.private();
    let name = place.location("dead");
    let arena = create(place, &name, MIB);
    let mut child = peer_of(place, &name);
    arena.close().unwrap();
    assert_eq!(place.reclaim().attached, 1);
    child.kill();
    let reclaimed = place.reclaim();
    assert!(reclaimed.failed.is_empty(), "{reclaimed:?}");
    let names: Vec<&str> = reclaimed.removed.iter().map(|removed| removed.name.as_str()).collect();
    assert_eq!(names, [name.as_str()]);
    // The name of an arena of dead members is free without a reclaim.
    let arena = create(place, &name, MIB);
    let mut child = peer_of(place, &name);
    drop(arena);
    child.kill();
    create(place, &name, MIB).close().unwrap();
    assert!(!place.has(&name));
}

fn kept_arena_stays_until_unlinked(place: &Place) {
    let place = &place.private();
    let name = place.location("kept");
    place.arena_options().keep(true).create(name.as_str(), 1).unwrap().close().unwrap();
    assert_eq!(place.reclaim().kept, 1);
    let arena = Arena::open_in(&place.backend, name.as_str()).unwrap();
    drop(arena.draft::<u8, _>(1).unwrap());
    assert!(arena.unlink().unwrap());
    assert!(!arena.unlink().unwrap());
    drop(arena.draft::<u8, _>(1).unwrap());
}

fn arena_and_array_files_are_told_apart(place: &Place) {
    let name = place.location("kinds");
    let arena = create(place, &name, 1);
    let length = std::fs::metadata(place.path(&name)).unwrap().len() as usize;
    assert!(matches!(
        place.open_options().open::<u8, Ix1>(name.as_str(), length).unwrap_err().kind,
        ErrorKind::Reserved { .. }
    ));
    assert!(matches!(
        place.open_options().open_counted::<u8, Ix1>(name.as_str()).unwrap_err().kind,
        ErrorKind::Reserved { .. }
    ));
    assert!(matches!(place.inspect(&name).unwrap_err().kind, ErrorKind::Reserved { .. }));
    arena.close().unwrap();
    let plain = place.options().create::<u8, Ix1>(name.as_str(), 10_000).unwrap();
    assert_eq!(Arena::open_in(&place.backend, name.as_str()).unwrap_err().kind, ErrorKind::NotCounted);
    place.backend.unlink(name.location()).unwrap();
    let _: SharedArray<u8, Ix1> = plain;
    let counted: RefcountedArray<u8, Ix1> = place.options().create_counted(name.as_str(), 10_000).unwrap();
    assert!(matches!(Arena::open_in(&place.backend, name.as_str()).unwrap_err().kind, ErrorKind::Reserved { .. }));
    drop(counted);
}
