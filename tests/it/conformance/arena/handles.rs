//! Arrays that several processes hold. A handle is valid as long as one of them holds its array.

use libtest_mimic::Trial;
use ndarray::{Array, Ix1};
use ndarray_shm::arena::ArenaHandle;
use ndarray_shm::{Error, ErrorKind};

use super::{MIB, create, peer_of};
use crate::support::child::{Child, hear, say};
use crate::support::{Place, arena_of_child};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "arena",
        tests![
            shared_array_reaches_a_second_process,
            handle_of_an_unheld_array_is_spent,
            sole_holder_can_refill_its_array,
            many_small_arrays_are_held_in_two_processes,
            statistics_count_arrays_per_member,
            statistics_count_the_memory_of_arrays_that_are_gone,
        ],
    )
}

fn shared_array_reaches_a_second_process(place: &Place) {
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

fn handle_of_an_unheld_array_is_spent(place: &Place) {
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
        assert!(arena.get::<u64, Ix1>(&handle).unwrap_err().kind == ErrorKind::HandleSpent);
        let other = arena.from_array(&Array::from_elem(100, 2u64)).unwrap();
        assert!(arena.get::<u64, Ix1>(&handle).unwrap_err().kind == ErrorKind::HandleSpent);
        assert_ne!(other.handle(), handle);
    }
    // The next handle of the entry can be guessed, but it does not reach a draft.
    let mut draft = arena.draft::<u64, _>(100).unwrap();
    let next = |ahead: u64| {
        let mut bytes = handle.to_bytes();
        let serial = u64::from_le_bytes(bytes[16..].try_into().unwrap()) + ahead;
        bytes[16..].copy_from_slice(&serial.to_le_bytes());
        ArenaHandle::from_bytes(bytes).unwrap()
    };
    draft.view_mut().fill(3);
    for ahead in 0..3000 {
        assert!(arena.get::<u64, Ix1>(&next(ahead)).unwrap_err().kind == ErrorKind::HandleSpent);
    }
    let other = place.arena_options().create(place.location("another").as_str(), MIB).unwrap();
    assert!(matches!(other.get::<u64, Ix1>(&handle), Err(Error { kind: ErrorKind::InvalidSetting { .. }, .. })));
}

fn sole_holder_can_refill_its_array(place: &Place) {
    let name = place.location("again");
    let arena = create(place, &name, MIB);
    let array = arena.from_array(&Array::from_elem(10, 1u64)).unwrap();
    let handle = array.handle();
    let mut child = peer_of(place, &name);
    child.tell(format!("get {handle}"));
    child.expect("10");
    let refused = array.try_into_draft().unwrap_err();
    assert!(matches!(refused.error().kind, ErrorKind::WouldBlock));
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

/// A child that reads many handles from a file, attaches to their arrays, and reports what is in them.
pub fn many(arguments: &[String]) {
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

fn statistics_count_arrays_per_member(place: &Place) {
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

fn statistics_count_the_memory_of_arrays_that_are_gone(place: &Place) {
    let name = place.location("stats-unused");
    let arena = create(place, &name, MIB);
    let all = arena.stats().unwrap().unused;
    assert_eq!(all, arena.capacity());
    let small: Vec<_> = (0..5).map(|_| arena.draft::<u8, _>(100).unwrap().share().unwrap()).collect();
    let large = arena.draft::<u8, _>(200_000).unwrap().share().unwrap();
    assert!(arena.stats().unwrap().unused < all - 200_000);
    drop((small, large));
    assert_eq!(arena.stats().unwrap().unused, all, "a new array can have what dropped ones had");

    let mut child = peer_of(place, &name);
    child.tell("make 100000");
    child.line();
    assert!(arena.stats().unwrap().unused < all);
    child.kill();
    let stats = arena.stats().unwrap();
    assert_eq!((stats.unused, stats.arrays), (all, 1), "and what a dead member holds");
    drop(arena.draft::<u8, _>(usize::try_from(all).unwrap() - 64).unwrap());
    assert_eq!(arena.stats().unwrap().arrays, 0);
}
