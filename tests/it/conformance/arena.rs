//! Arenas: arrays that are made, shared, got and given up, by one process and by several.

use std::collections::BTreeSet;

use libtest_mimic::Trial;
use ndarray::{Array, ArrayD, Ix1, Ix2, IxDyn, ShapeBuilder};
use ndarray_shm::{
    Arena, DType, Error, Order, RefcountedArray, SharedArray,
    arena::{ArenaArray, ArenaHandle},
};

use crate::support::child::{Child, Role, hear, say};
use crate::support::random::{Random, random};
use crate::support::{Name, Place, arena_of_child, rounds};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "arena",
        tests![
            a_second_process_gets_what_the_first_shared,
            a_handle_leads_nowhere_when_nobody_holds_the_array,
            every_size_from_nothing_to_megabytes_is_kept_as_it_was_written,
            elements_and_axes_are_what_was_asked_for_or_an_error,
            memory_is_used_again_for_other_sizes,
            a_full_arena_says_so_and_recovers,
            room_is_found_while_others_look_for_it_too,
            who_is_the_only_holder_can_fill_it_again,
            a_killed_process_holds_nothing,
            processes_are_killed_at_it_and_nothing_is_lost,
            many_small_arrays_are_held_in_two_processes,
            forty_six_can_have_it_open_and_a_dead_ones_seat_is_free,
            the_last_one_out_removes_the_name,
            an_arena_of_the_dead_is_reclaimed,
            what_is_kept_stays,
            other_kinds_of_files_are_told_apart,
            threads_share_one_arena,
            statistics_say_who_holds_how_many,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[
    ("arena-peer", peer),
    ("arena-churn", churn),
    ("arena-many", many),
    ("arena-member", member),
    ("arena-seeker", seeker),
];

const MIB: u64 = 1 << 20;

fn create(place: &Place, name: &Name, capacity: u64) -> Arena {
    place.arena_options().create(name.as_str(), capacity).unwrap()
}

/// A child that has one draft at a time, of ever another size, and counts how often there was no room.
fn seeker(arguments: &[String]) {
    let arena = arena_of_child(arguments);
    let sizes = [100, 900, 3000, 9000, 14_000, 20_000, 30_000, 60_000];
    let mut random = Random::new(arguments[1].parse().unwrap());
    say("open");
    hear();
    let mut refused = 0;
    for _ in 0..rounds(10_000) {
        match arena.draft::<u8, _>(sizes[random.below(sizes.len())]) {
            Ok(_dropped_at_once) => {}
            Err(error) if error.is_no_space() => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    say(refused);
}

/// Four spans, of which three processes have one at most each.
fn room_is_found_while_others_look_for_it_too(place: &Place) {
    let name = place.location("arena-seekers");
    let arena = create(place, &name, MIB / 4);
    let mut seekers = [1, 2, 3].map(|seed| Child::start(place, "arena-seeker", &[name.as_str(), &seed.to_string()]));
    seekers.iter_mut().for_each(|seeker| seeker.expect("open"));
    seekers.iter_mut().for_each(|seeker| seeker.tell("go"));
    seekers.iter_mut().for_each(|seeker| seeker.expect("0"));
    drop(seekers);
    assert_eq!(arena.stats().unwrap().arrays, 0);
}

/// A child that gets what it is told to and holds it until it is told to let go.
fn peer(arguments: &[String]) {
    let arena = arena_of_child(arguments);
    let mut held: Vec<ArenaArray<u64, Ix1>> = Vec::new();
    say("open");
    loop {
        let line = hear();
        match line.split_once(' ') {
            Some(("get", handle)) => match arena.get(&handle.parse::<ArenaHandle>().unwrap()) {
                Ok(array) => {
                    say(array.view().sum());
                    held.push(array);
                }
                Err(error) => say(error.is_handle_spent()),
            },
            Some(("make", length)) => {
                let length: u64 = length.parse().unwrap();
                let array = arena.from_array(&Array::from_iter(0..length)).unwrap();
                say(array.handle());
                held.push(array);
            }
            None if line == "release" => {
                held.clear();
                say("released");
            }
            _ => break,
        }
    }
}

fn peer_of(place: &Place, name: &Name) -> Child {
    let mut child = Child::start(place, "arena-peer", &[name.as_str()]);
    child.expect("open");
    child
}

fn a_second_process_gets_what_the_first_shared(place: &Place) {
    let name = place.location("arena");
    let arena = create(place, &name, MIB);
    let mut child = peer_of(place, &name);
    let array = arena.from_array(&Array::from_iter(0..1000u64)).unwrap();
    assert_eq!(array.members(), 1);
    child.tell(format!("get {}", array.handle()));
    child.expect("499500");
    assert_eq!(array.members(), 2);
    let handle: ArenaHandle = child.ask("make 10").parse().unwrap();
    let theirs = arena.get::<u64, Ix1>(&handle).unwrap();
    child.tell("release");
    child.expect("released");
    assert_eq!((theirs.members(), theirs.view().sum(), array.members()), (1, 45, 1));
    child.tell("end");
    child.finish();
}

fn a_handle_leads_nowhere_when_nobody_holds_the_array(place: &Place) {
    let name = place.location("spent");
    let arena = create(place, &name, MIB);
    let array = arena.from_array(&Array::from_elem(100, 1u64)).unwrap();
    let handle = array.handle();
    let bytes = ArenaHandle::from_bytes(handle.to_bytes()).unwrap();
    let again = arena.get::<u64, Ix1>(&bytes).unwrap();
    drop(array);
    assert_eq!(again.clone().view().sum(), 100);
    again.release().unwrap();
    for _ in 0..1000 {
        assert!(arena.get::<u64, Ix1>(&handle).unwrap_err().is_handle_spent());
        let other = arena.from_array(&Array::from_elem(100, 2u64)).unwrap();
        assert!(arena.get::<u64, Ix1>(&handle).unwrap_err().is_handle_spent());
        assert_ne!(other.handle(), handle);
    }
    // What its next handle will be is no secret; a draft cannot be had by it.
    let mut draft = arena.draft::<u64, _>(100).unwrap();
    let next = |ahead: u64| {
        let mut bytes = handle.to_bytes();
        let serial = u64::from_le_bytes(bytes[16..].try_into().unwrap()) + ahead;
        bytes[16..].copy_from_slice(&serial.to_le_bytes());
        ArenaHandle::from_bytes(bytes).unwrap()
    };
    draft.view_mut().fill(3);
    for ahead in 0..3000 {
        assert!(arena.get::<u64, Ix1>(&next(ahead)).unwrap_err().is_handle_spent());
    }
    let other = place.arena_options().create(place.location("another").as_str(), MIB).unwrap();
    assert!(matches!(other.get::<u64, Ix1>(&handle), Err(Error::InvalidSetting { .. })));
}

fn every_size_from_nothing_to_megabytes_is_kept_as_it_was_written(place: &Place) {
    let name = place.location("sizes");
    let arena = create(place, &name, 32 * MIB);
    let sizes =
        [0, 1, 63, 64, 65, 191, 192, 193, 1000, 1024, 4096, 20_000, 32_704, 32_705, 65_472, 65_473, 1 << 20, 5_000_000];
    let arrays: Vec<_> = sizes
        .into_iter()
        .map(|size| arena.from_array(&Array::from_shape_fn(size, |at| (at * 7 + size) as u8)).unwrap())
        .collect();
    for (size, array) in sizes.into_iter().zip(&arrays) {
        assert_eq!(array.shape(), [size]);
        assert!(array.view().iter().enumerate().all(|(at, value)| *value == (at * 7 + size) as u8), "{size}");
        let same = arena.get::<u8, Ix1>(&array.handle()).unwrap();
        assert_eq!(same.view(), array.view());
    }
    let axes = IxDyn(&[1; 32]);
    let deep = arena.from_array(&ArrayD::from_elem(axes, 1.5f64)).unwrap();
    assert_eq!(arena.get::<f64, IxDyn>(&deep.handle()).unwrap().view().sum(), 1.5);
    assert!(matches!(arena.draft::<u8, _>(IxDyn(&[1; 33])), Err(Error::InvalidSetting { .. })));
    let fortran = arena.from_array(&Array::from_shape_fn((3, 5).f(), |(i, j)| (i * 10 + j) as i16)).unwrap();
    let same = arena.get::<i16, Ix2>(&fortran.handle()).unwrap();
    assert_eq!((same.order(), same.view()[[2, 4]]), (Order::F, 24));
    assert!(arena.zeroed::<u32, _>(1000).unwrap().view().iter().all(|value| *value == 0));
}

fn elements_and_axes_are_what_was_asked_for_or_an_error(place: &Place) {
    let name = place.location("types");
    let arena = create(place, &name, MIB);
    let array = arena.from_array(&Array::from_elem((2, 3), 1.0f32)).unwrap();
    let handle = array.handle();
    assert!(matches!(arena.get::<u32, Ix2>(&handle), Err(Error::DTypeMismatch { .. })));
    assert!(matches!(arena.get::<f32, Ix1>(&handle), Err(Error::ShapeMismatch { .. })));
    assert_eq!(array.members(), 1);
    assert_eq!(arena.get::<f32, IxDyn>(&handle).unwrap().shape(), [2, 3]);
    drop(array);
    assert_eq!(arena.stats().unwrap().arrays, 0, "what could not be had is not held");
    assert_eq!(DType::F32.size(), 4);
}

fn memory_is_used_again_for_other_sizes(place: &Place) {
    let name = place.location("classes");
    let arena = create(place, &name, 4 * MIB);
    for _ in 0..3 {
        let fill = |bytes: usize| {
            let mut held = Vec::new();
            loop {
                match arena.draft::<u8, _>(bytes) {
                    Ok(draft) => held.push(draft.share().unwrap()),
                    Err(Error::NoSpace { needed, .. }) => {
                        assert!(needed > bytes as u64);
                        break held;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        };
        assert_eq!(fill(1024).len(), 64 * 60);
        assert_eq!(fill((1 << 20) - 64).len(), 4);
        assert_eq!(fill(300).len(), 64 * 170);
        assert_eq!(fill(100_000).len(), 32);
        let mixed: Vec<_> = (0..40).map(|at| arena.draft::<u8, _>(1000 + at * 1500).unwrap()).collect();
        let seen: BTreeSet<*const u8> = mixed.iter().map(|draft| draft.view().as_ptr()).collect();
        assert_eq!(seen.len(), mixed.len());
    }
    assert_eq!(arena.stats().unwrap().arrays, 0);
}

fn a_full_arena_says_so_and_recovers(place: &Place) {
    let name = place.location("full");
    let arena = create(place, &name, 1);
    assert_eq!(arena.capacity(), 1 << 16);
    let all = arena.draft::<u8, _>((1 << 16) - 64).unwrap();
    match arena.draft::<u8, _>(0) {
        Err(Error::NoSpace { needed: 64, available: 0, advice, .. }) => assert!(advice.contains("full"), "{advice}"),
        other => panic!("{other:?}"),
    }
    drop(all);
    drop(arena.draft::<u8, _>(0).unwrap());
    assert!(arena.draft::<u8, _>((1 << 16) - 63).unwrap_err().is_no_space());
    assert!(arena.draft::<u8, _>((1 << 16) - 64).is_ok());
    assert!(matches!(arena.draft::<u64, _>((usize::MAX, 2)), Err(Error::TooLarge { .. })));
    assert!(matches!(place.arena_options().create("ndshm-it-never", u64::MAX), Err(Error::TooLarge { .. })));
    assert!(matches!(
        place.arena_options().queue_capacity(0).create("ndshm-it-never", 1),
        Err(Error::InvalidSetting { .. })
    ));
}

fn who_is_the_only_holder_can_fill_it_again(place: &Place) {
    let name = place.location("again");
    let arena = create(place, &name, MIB);
    let array = arena.from_array(&Array::from_elem(10, 1u64)).unwrap();
    let handle = array.handle();
    let mut child = peer_of(place, &name);
    child.tell(format!("get {handle}"));
    child.expect("10");
    let refused = array.try_into_draft().unwrap_err();
    assert!(matches!(refused.error(), Error::WouldBlock { .. }));
    let array = refused.into_inner();
    child.tell("release");
    child.expect("released");
    let clone = array.clone();
    let array = array.try_into_draft().unwrap_err().into_inner();
    drop(clone);
    let second = arena.get::<u64, Ix1>(&handle).unwrap();
    let array = array.try_into_draft().unwrap_err().into_inner();
    drop(second);
    let mut draft = array.try_into_draft().unwrap();
    child.tell(format!("get {handle}"));
    child.expect("true");
    draft.view_mut().fill(2);
    let array = draft.share().unwrap();
    child.tell(format!("get {handle}"));
    child.expect("true");
    child.tell(format!("get {}", array.handle()));
    child.expect("20");
    child.tell("end");
    child.finish();
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
    assert!(arena.get::<u64, Ix1>(&theirs).unwrap_err().is_handle_spent());
    assert_eq!((both.view().sum(), arena.stats().unwrap().members.len()), (4950, 1));
    assert_eq!(arena.reclaim().unwrap().members, 0);
}

/// A child that makes, shares, gets and drops arrays of all sizes as fast as it can, checking what it sees.
fn churn(arguments: &[String]) {
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
                assert!(draft.view().iter().all(|value| *value == tag), "somebody else has it");
                held.push(draft.share().unwrap());
            }
            Err(error) => assert!(error.is_no_space() || matches!(error, Error::TimedOut { .. }), "{error}"),
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

fn processes_are_killed_at_it_and_nothing_is_lost(place: &Place) {
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
    // Every byte can be had again, in whatever size.
    assert_eq!(all().unwrap().len(), 32);
    let small: Result<Vec<_>, _> = (0..32 * 204).map(|_| arena.draft::<u8, _>(256)).collect();
    assert_eq!(small.unwrap().len(), 32 * 204);
}

/// A child that gets many arrays, whose handles it is told in a file, and says what is in them.
fn many(arguments: &[String]) {
    let arena = arena_of_child(arguments);
    let bytes = std::fs::read(&arguments[1]).unwrap();
    let handles = bytes.chunks_exact(24).map(|bytes| ArenaHandle::from_bytes(bytes.try_into().unwrap()).unwrap());
    let arrays: Vec<_> = handles.map(|handle| arena.get::<u64, Ix1>(&handle).unwrap()).collect();
    let sum: u64 = arrays.iter().map(|array| array.view()[0]).sum();
    say(format!("{} {sum}", arrays.len()));
    hear();
}

fn many_small_arrays_are_held_in_two_processes(place: &Place) {
    const MANY: u64 = 20_000;
    let place = &place.private();
    let name = place.location("many");
    let arena = create(place, &name, (MANY / 60 + 1) << 16);
    let arrays: Vec<_> = (0..MANY)
        .map(|number| {
            let mut draft = arena.draft::<u64, _>(128).unwrap();
            draft.view_mut().fill(number);
            draft.share().unwrap()
        })
        .collect();
    let handles: Vec<u8> = arrays.iter().flat_map(|array| array.handle().to_bytes()).collect();
    let file = place.location("handles");
    std::fs::write(place.path(&file), handles).unwrap();
    let path = place.path(&file).display().to_string();
    let mut child = Child::start(place, "arena-many", &[name.as_str(), &path]);
    child.expect(&format!("{MANY} {}", MANY * (MANY - 1) / 2));
    assert!(arrays.iter().all(|array| array.members() == 2));
    drop(arrays);
    assert_eq!(arena.stats().unwrap().arrays, MANY as usize);
    child.tell("end");
    child.finish();
    assert_eq!(arena.stats().unwrap().arrays, 0);
}

/// A child that has the arena open until it is told to end.
fn member(arguments: &[String]) {
    let _arena = arena_of_child(arguments);
    say("open");
    hear();
}

fn forty_six_can_have_it_open_and_a_dead_ones_seat_is_free(place: &Place) {
    let name = place.location("seats");
    let first = create(place, &name, 1);
    let mut child = Child::start(place, "arena-member", &[name.as_str()]);
    child.expect("open");
    let mut others: Vec<Arena> = (2..46).map(|_| Arena::open_in(&place.backend, name.as_str()).unwrap()).collect();
    match Arena::open_in(&place.backend, name.as_str()) {
        Err(Error::TooManyHandles { limit: 46, doing: "attached", .. }) => {}
        other => panic!("{other:?}"),
    }
    let array = others[43].from_array(&Array::from_elem(3, 7u64)).unwrap();
    assert_eq!(first.get::<u64, Ix1>(&array.handle()).unwrap().view()[0], 7);
    child.kill();
    let late = Arena::open_in(&place.backend, name.as_str()).unwrap();
    assert!(Arena::open_in(&place.backend, name.as_str()).is_err());
    others.pop(); // it stays: its array is held
    assert!(Arena::open_in(&place.backend, name.as_str()).is_err());
    drop(array);
    let later = Arena::open_in(&place.backend, name.as_str()).unwrap();
    assert_eq!(late.stats().unwrap().members.len(), 46);
    for arena in others.into_iter().chain([first, late, later]) {
        arena.close().unwrap();
    }
    assert!(!place.has(&name));
}

fn the_last_one_out_removes_the_name(place: &Place) {
    let name = place.location("last");
    let arena = create(place, &name, 1);
    assert!(matches!(place.arena_options().create(name.as_str(), 1), Err(Error::AlreadyExists { .. })));
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

fn an_arena_of_the_dead_is_reclaimed(place: &Place) {
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
    // A dead one's name is free for the next, without anybody having reclaimed it.
    let arena = create(place, &name, MIB);
    let mut child = peer_of(place, &name);
    drop(arena);
    child.kill();
    create(place, &name, MIB).close().unwrap();
    assert!(!place.has(&name));
}

fn what_is_kept_stays(place: &Place) {
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

fn other_kinds_of_files_are_told_apart(place: &Place) {
    let name = place.location("kinds");
    let arena = create(place, &name, 1);
    let length = std::fs::metadata(place.path(&name)).unwrap().len() as usize;
    assert!(place.attach::<u8, Ix1>().open(name.as_str(), length).unwrap_err().is_reserved());
    assert!(place.attach_counted::<u8, Ix1>().open(name.as_str()).unwrap_err().is_reserved());
    assert!(place.inspect(&name).unwrap_err().is_reserved());
    arena.close().unwrap();
    let plain = place.options::<u8, Ix1>().create(name.as_str(), 10_000).unwrap();
    assert!(Arena::open_in(&place.backend, name.as_str()).unwrap_err().is_not_counted());
    place.backend.unlink(name.location()).unwrap();
    let _: SharedArray<u8, Ix1> = plain;
    let counted: RefcountedArray<u8, Ix1> = place.counted().create(name.as_str(), 10_000).unwrap();
    assert!(Arena::open_in(&place.backend, name.as_str()).unwrap_err().is_reserved());
    drop(counted);
}

fn threads_share_one_arena(place: &Place) {
    let name = place.location("threads");
    let arena = create(place, &name, 8 * MIB);
    let shared = arena.from_array(&Array::from_elem(100, 1u64)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (arena, handle) = (arena.clone(), shared.handle());
            scope.spawn(move || {
                for round in 0..3000 {
                    let tag = thread << 32 | round;
                    let mut draft = arena.draft::<u64, _>((round % 300) as usize + 1).unwrap();
                    draft.view_mut().fill(tag);
                    let array = draft.share().unwrap();
                    assert_eq!(arena.get::<u64, Ix1>(&handle).unwrap().view().sum(), 100);
                    assert!(array.view().iter().all(|value| *value == tag));
                }
            });
        }
    });
    assert_eq!((shared.members(), arena.stats().unwrap().arrays), (1, 1));
    drop(shared);
    assert_eq!(arena.stats().unwrap().arrays, 0);
}

fn statistics_say_who_holds_how_many(place: &Place) {
    let name = place.location("stats");
    let arena = create(place, &name, MIB);
    let mut child = peer_of(place, &name);
    let ours: Vec<_> = (0..5).map(|_| arena.draft::<u8, _>(100).unwrap().share().unwrap()).collect();
    for _ in 0..2 {
        child.tell("make 10000");
        child.line();
    }
    let stats = arena.stats().unwrap();
    assert_eq!((stats.capacity, stats.arrays, stats.orphaned_messages), (MIB, 7, 0));
    assert_eq!(stats.unused, MIB - (1 << 16) * (1 + 2 * 2));
    let members: Vec<_> = stats.members.iter().map(|member| (member.process, member.arrays)).collect();
    assert_eq!(members, [(std::process::id(), 5), (child.id(), 2)]);
    drop(ours);
    child.tell("end");
    child.finish();
}
