//! Arrays that a pool takes over, and memory that leaves a pool for good.

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::counted::SharingStrategy;
use ndarray_shm::{Access, ErrorKind, OpenOptions, SharedArray};

use super::{LENGTH, counts, expected, one, pool, publish, unlink_in};
use crate::support::child::{Child, say};
use crate::support::{Place, backend_of_child, eventually};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "pool",
        tests![
            any_array_can_be_put,
            refused_put_returns_the_array,
            memory_leaving_the_pool_is_ordinary,
            longer_memory_becomes_an_ordinary_counted_array,
        ],
    )
}

fn any_array_can_be_put(place: &Place) {
    let name = place.location("put");
    let pool = pool(place);
    let create = || place.options().create_with::<u32, _>(name.location(), LENGTH, |mut view| view.fill(7)).unwrap();
    let open = |keep| place.open_options().keep_fd(keep).open::<u32, Ix1>(name.location(), LENGTH).unwrap();
    let kept = || place.options().keep_fd(true).create_with::<u32, _>(name.location(), LENGTH, |mut view| view.fill(7));
    let arrays: [&dyn Fn() -> SharedArray<u32, Ix1>; 5] = [
        &create,
        &|| kept().unwrap(),
        &|| {
            drop(create());
            open(false)
        },
        &|| {
            drop(create());
            open(true)
        },
        &|| {
            drop(create());
            place.open_options().access(Access::Read).open::<u32, Ix1>(name.location(), LENGTH).unwrap()
        },
    ];
    for (number, array) in arrays.into_iter().enumerate() {
        pool.put(array()).unwrap();
        assert!(!place.has(&name));
        // A process that another test is spawning may briefly hold a copy of the old open file description.
        eventually("no other process is attached", || counts(&pool) == (one(), 0, 0));
        let draft = pool.take::<u32, _>(LENGTH).unwrap();
        assert_eq!((draft.is_recycled(), draft.view()[17]), (Place::RECYCLES, expected(7)), "array {number}");
        drop(draft);
        pool.trim();
    }
    // An adopted array that another handle has too, and an array that has lost its name.
    let (array, other) = (create(), open(false));
    drop(pool.adopt(array).unwrap());
    assert_eq!((place.has(&name), counts(&pool)), (false, (0, one(), 0)));
    drop(other);
    eventually("the other handle is gone", || counts(&pool) == (one(), 0, 0));
    pool.trim();
    let array = create();
    assert!(place.backend.unlink(name.location()).unwrap());
    let dropped = pool.stats().dropped;
    pool.put(array).unwrap();
    assert_eq!((counts(&pool), pool.stats().dropped), ((0, 0, 0), dropped + 1));
}

fn refused_put_returns_the_array(place: &Place) {
    let (private, name) = (place.private(), place.location("elsewhere"));
    let array = place.options().create::<u32, _>(name.location(), LENGTH).unwrap();
    let refused = pool(&private).put(array).unwrap_err();
    if private.directory() != place.directory() {
        assert!(matches!(refused.error().kind, ErrorKind::InvalidSetting { .. }), "{refused}");
    }
    let array = refused.into_inner();
    array.write().unwrap()[0] = 3;
    if cfg!(unix) && Place::RECYCLES {
        let refused = place.pool_options().permissions(0o640).create().unwrap().put(array).unwrap_err();
        assert!(matches!(refused.error().kind, ErrorKind::PermissionDenied { .. }), "{refused}");
        let array = refused.into_inner();
        assert_eq!(array.read().unwrap()[0], 3);
        // As an adopted array it cannot be kept either, and its name is removed all the same.
        let pool = place.pool_options().permissions(0o640).create().unwrap();
        drop(pool.adopt(array).unwrap());
        assert!(!place.has(&name));
        assert_eq!((counts(&pool), pool.stats().dropped), ((0, 0, 0), 1));
    }
}

fn memory_leaving_the_pool_is_ordinary(place: &Place) {
    let place = &place.private();
    let name = place.location("left");
    let pool = pool(place);
    drop(publish(&pool, &name, 7));
    let draft = pool.take::<u32, _>(LENGTH).unwrap().into_draft();
    assert_eq!(counts(&pool), (0, 0, 0));
    let array = draft.publish(name.location()).unwrap();
    let mut child = Child::start(place, "pool-attacher", &[name.as_str()]);
    child.expect("attached");
    drop(array);
    assert_eq!(child.ask("read"), expected(7).to_string());
    drop(child);
    assert_eq!(counts(&pool), (0, 0, 0));
    unlink_in(place, &name);
    drop(publish(&pool, &name, 8));
    let array = publish(&pool, &name, 9).into_array();
    drop(array);
    assert!(place.has(&name) && counts(&pool) == (0, 0, 0));
    unlink_in(place, &name);
    // The memory can become a counted array too.
    drop(publish(&pool, &name, 5));
    let counted = pool.take::<u32, _>(LENGTH).unwrap().into_draft().share(SharingStrategy::FileSystem).unwrap();
    let other = place.open_options().open_counted::<u32, Ix1>(counted.location().unwrap()).unwrap();
    assert_eq!((counted.refcount(), other.read().unwrap()[9]), (2, expected(5)));
    drop((counted, other));
    drop(pool);
    assert_eq!(place.everything(), [] as [&str; 0]);
}

/// An attachment looks for the trailer at the end of the file, wherever the memory ended before.
fn longer_memory_becomes_an_ordinary_counted_array(place: &Place) {
    let place = &place.private();
    let pool = pool(place);
    for (before, now) in [(1_000_001, 900_000), (1_024_000, 900_000), (904_096, 900_000), (900_001, 900_000)] {
        let name = place.location("longer");
        drop(pool.take::<u8, _>(before).unwrap().publish(name.location()).unwrap());
        let mut draft = pool.take::<u8, _>(now).unwrap();
        assert_eq!(draft.is_recycled(), Place::RECYCLES);
        draft.view_mut().fill(5);
        let counted = draft.into_draft().share(SharingStrategy::FileSystem).unwrap();
        let location = counted.location().unwrap().clone();
        let mut child = Child::start(place, "pool-counted", &[location.as_str()]);
        child.expect(&format!("{now} elements, 5 at both ends, 2 handles"));
        child.end();
        assert_eq!(counted.refcount(), 1);
        drop(counted);
        assert!(!place.everything().contains(&location.to_string()), "{before}");
    }
    drop(pool);
    assert_eq!(place.everything(), [] as [&str; 0]);
}

pub fn counted(arguments: &[String]) {
    let options = OpenOptions::new().directory(backend_of_child());
    let array = options.open_counted::<u8, Ix1>(arguments[0].as_str()).unwrap();
    let view = array.read().unwrap();
    assert_eq!((view[0], view[view.len() - 1]), (5, 5));
    say(format!("{} elements, 5 at both ends, {} handles", view.len(), array.refcount()));
}
