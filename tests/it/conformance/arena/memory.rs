//! The memory of an arena: arrays of every size and type, room that is found and used again, and a full arena.

use std::collections::BTreeSet;

use libtest_mimic::Trial;
use ndarray::{Array, ArrayD, Ix1, Ix2, IxDyn, ShapeBuilder};
use ndarray_shm::{Arena, DType, Error, ErrorKind, Order, Pages};

use super::{MIB, create};
use crate::support::child::{Child, hear, say};
use crate::support::random::Random;
use crate::support::{Place, arena_of_child, rounds};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "arena",
        tests![
            concurrent_allocations_all_find_room,
            arrays_of_every_size_keep_their_elements,
            wrong_type_or_axes_are_refused,
            memory_is_used_again_for_other_sizes,
            full_arena_reports_no_space_and_recovers,
            sparse_arena_is_joined_only_by_choice,
            threads_share_one_arena,
        ],
    )
}

/// A child that makes one draft at a time, of random sizes, and counts how often there was no room.
pub fn seeker(arguments: &[String]) {
    let arena = arena_of_child(arguments);
    let sizes = [100, 900, 3000, 9000, 14_000, 20_000, 30_000, 60_000];
    let mut random = Random::new(arguments[1].parse().unwrap());
    say("open");
    hear();
    let mut refused = 0;
    for _ in 0..rounds(10_000) {
        match arena.draft::<u8, _>(sizes[random.below(sizes.len())]) {
            Ok(_) => {} // dropped at once
            Err(error) if matches!(error.kind, ErrorKind::NoSpace { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    say(refused);
}

/// There are four spans, and each of three processes needs at most one.
fn concurrent_allocations_all_find_room(place: &Place) {
    let name = place.location("arena-seekers");
    let arena = create(place, &name, MIB / 4);
    let mut seekers = [1, 2, 3].map(|seed| Child::start(place, "arena-seeker", &[name.as_str(), &seed.to_string()]));
    seekers.iter_mut().for_each(|seeker| seeker.expect("open"));
    seekers.iter_mut().for_each(|seeker| seeker.tell("go"));
    seekers.iter_mut().for_each(|seeker| seeker.expect("0"));
    drop(seekers);
    assert_eq!(arena.stats().unwrap().arrays, 0);
}

fn arrays_of_every_size_keep_their_elements(place: &Place) {
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
    assert!(matches!(arena.draft::<u8, _>(IxDyn(&[1; 33])), Err(Error { kind: ErrorKind::InvalidSetting { .. }, .. })));
    let fortran = arena.from_array(&Array::from_shape_fn((3, 5).f(), |(i, j)| (i * 10 + j) as i16)).unwrap();
    let same = arena.get::<i16, Ix2>(&fortran.handle()).unwrap();
    assert_eq!((same.order(), same.view()[[2, 4]]), (Order::F, 24));
    assert!(arena.zeroed::<u32, _>(1000).unwrap().view().iter().all(|value| *value == 0));
}

fn wrong_type_or_axes_are_refused(place: &Place) {
    let name = place.location("types");
    let arena = create(place, &name, MIB);
    let array = arena.from_array(&Array::from_elem((2, 3), 1.0f32)).unwrap();
    let handle = array.handle();
    assert!(matches!(arena.get::<u32, Ix2>(&handle), Err(Error { kind: ErrorKind::DTypeMismatch { .. }, .. })));
    assert!(matches!(arena.get::<f32, Ix1>(&handle), Err(Error { kind: ErrorKind::ShapeMismatch { .. }, .. })));
    assert_eq!(array.members(), 1);
    assert_eq!(arena.get::<f32, IxDyn>(&handle).unwrap().shape(), [2, 3]);
    drop(array);
    assert_eq!(arena.stats().unwrap().arrays, 0, "a refused attachment holds nothing");
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
                    Err(Error { kind: ErrorKind::NoSpace { needed, .. }, .. }) => {
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

fn full_arena_reports_no_space_and_recovers(place: &Place) {
    let name = place.location("full");
    let arena = create(place, &name, 1);
    assert_eq!(arena.capacity(), 1 << 16);
    let all = arena.draft::<u8, _>((1 << 16) - 64).unwrap();
    match arena.draft::<u8, _>(0) {
        Err(Error { kind: ErrorKind::NoSpace { needed: 64, available: 0, advice, .. }, .. }) => {
            assert!(advice.contains("full"), "{advice}");
        }
        other => panic!("{other:?}"),
    }
    drop(all);
    drop(arena.draft::<u8, _>(0).unwrap());
    assert!(matches!(arena.draft::<u8, _>((1 << 16) - 63).unwrap_err().kind, ErrorKind::NoSpace { .. }));
    assert!(arena.draft::<u8, _>((1 << 16) - 64).is_ok());
    assert!(matches!(arena.draft::<u64, _>((usize::MAX, 2)), Err(Error { kind: ErrorKind::TooLarge { .. }, .. })));
    assert!(matches!(
        place.arena_options().create("ndshm-it-never", u64::MAX),
        Err(Error { kind: ErrorKind::TooLarge { .. }, .. })
    ));
    assert!(matches!(
        place.arena_options().queue_capacity(0).create("ndshm-it-never", 1),
        Err(Error { kind: ErrorKind::InvalidSetting { .. }, .. })
    ));
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

fn sparse_arena_is_joined_only_by_choice(place: &Place) {
    let name = place.location("arena-sparse");
    let options = || place.arena_options().pages(Pages::Sparse);
    let arena = options().create(name.location(), MIB).unwrap();
    assert_eq!(place.allocated(name.as_str()) < MIB / 4, place.has_holes());
    for open in
        [&|| Arena::open_in(&place.backend, name.location()) as _, &|| place.arena_options().open(name.location()) as _]
            as [&dyn Fn() -> ndarray_shm::Result<Arena>; 2]
    {
        let refused = open().unwrap_err();
        assert!(matches!(refused.kind, ErrorKind::Unsupported { .. }), "{refused}");
        assert!(refused.to_string().contains("ArenaOptions::pages(Pages::Sparse)"), "{refused}");
    }
    let handle = arena.from_array(&Array::from_elem(10, 1u8)).unwrap();
    let joined = options().open(name.location()).unwrap();
    assert_eq!(joined.get::<u8, Ix1>(&handle.handle()).unwrap().view().sum(), 10);
    assert_eq!(place.allocated(name.as_str()) < MIB / 4, place.has_holes());
    // The choice permits holes, and asks for none.
    let name = place.location("arena-full");
    let _full = create(place, &name, MIB);
    options().open(name.location()).unwrap();
    assert!(place.allocated(name.as_str()) >= MIB);
}
