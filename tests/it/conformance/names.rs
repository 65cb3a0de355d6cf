//! Names of counted arrays: open or create, replace, recreate, and no leftovers where an operation fails.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::{Ix1, Ix2, ShapeBuilder};
use ndarray_shm::counted::SharingStrategy;
use ndarray_shm::{CreationMode, Error, ErrorKind};

use super::holder::Holder;
use crate::support::counted::{create, open};
use crate::support::{Place, eventually};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "names",
        tests![
            open_or_create_attaches_only_a_matching_array,
            replacement_keeps_the_name_when_old_owners_leave,
            old_owner_never_removes_a_recreated_name,
            unlinked_array_stays_with_its_holders,
            failing_operation_leaves_nothing_behind,
            array_shared_by_name_removes_its_name,
        ],
    )
}

fn open_or_create_attaches_only_a_matching_array(place: &Place) {
    let name = place.location("open-or-create");
    let options = || place.options().mode(CreationMode::OpenOrCreate);
    let refused = options().share::<u32, _>(SharingStrategy::FileSystem, 4).unwrap_err();
    assert!(matches!(refused.kind, ErrorKind::InvalidSetting { .. }), "it gets a name of its own: {refused}");
    let fill = |value| move |mut view: ndarray::ArrayViewMut1<'_, u32>| view.fill(value);
    let array = options().create_counted_with::<u32, _>(name.location(), 4, fill(1)).unwrap();
    let same = options().create_counted_with::<u32, _>(name.location(), 4, fill(2)).unwrap();
    assert_eq!((same.read().unwrap().sum(), array.refcount()), (4, 2));
    for shape in [3, 5] {
        let error = options().create_counted::<u32, _>(name.location(), shape).unwrap_err();
        assert!(matches!(error.kind, ErrorKind::ShapeMismatch { .. }), "{error}");
    }
    let axes = place.options().mode(CreationMode::OpenOrCreate).create_counted::<u32, _>(name.location(), (2, 2));
    assert!(matches!(axes.unwrap_err().kind, ErrorKind::ShapeMismatch { .. }));
    let elements = place.options().mode(CreationMode::OpenOrCreate).create_counted::<f32, _>(name.location(), 4);
    assert!(matches!(elements.unwrap_err().kind, ErrorKind::DTypeMismatch { .. }));
    assert_eq!(array.refcount(), 2);
    let square = place.location("square");
    let options = || place.options().mode(CreationMode::OpenOrCreate);
    let _array = options().create_counted::<u32, _>(square.location(), (2, 2)).unwrap();
    let error = options().create_counted::<u32, _>(square.location(), (2, 2).f()).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::ShapeMismatch { .. }), "{error}");
    assert!(place.options().create_counted::<u32, _>(name.location(), 4).unwrap_err().kind == ErrorKind::AlreadyExists);
}

fn replacement_keeps_the_name_when_old_owners_leave(place: &Place) {
    let name = place.location("replace");
    for old_leaves_last in [false, true] {
        let old = create(place, &name);
        let mut other = Holder::with(place, &name, "open");
        let mut child = Holder::with(place, &name, "replace 8");
        assert_eq!((old.refcount(), child.ask("count")), (2, "1".into()));
        assert_eq!(old.read().unwrap_err().kind, ErrorKind::Unlinked);
        assert_eq!(other.ask("sum"), "Unlinked");
        assert_eq!(other.ask("close"), "ok");
        if old_leaves_last {
            assert_eq!(child.ask("close"), "ok");
            assert!(!place.has(&name));
            old.close().unwrap();
        } else {
            old.close().unwrap();
            assert_eq!(place.inspect(&name).unwrap().shape, [8]);
            assert_eq!((child.ask("sum"), child.ask("close")), ("0".into(), "ok".into()));
        }
        assert!(!place.has(&name));
    }
    // A plain array can be replaced by a counted one, and the other way round.
    let counted = create(place, &name);
    let replace = CreationMode::Replace;
    drop(place.options().mode(replace).create::<u8, _>(name.location(), 3).unwrap());
    drop(counted);
    assert_eq!(place.open_options().open::<u8, _>(name.location(), 3).unwrap().len(), 3);
    assert!(place.options().mode(replace).create_counted::<u32, _>(name.location(), 4).is_ok());
    assert!(!place.has(&name));
}

fn old_owner_never_removes_a_recreated_name(place: &Place) {
    let name = place.location("anew");
    for (plain, holder_is_killed) in [(false, false), (true, false), (false, true), (true, true)] {
        let (old, another_old) = (create(place, &name), open(place, &name).unwrap());
        let mut killed = holder_is_killed.then(|| Holder::with(place, &name, "open"));
        assert!(place.backend.unlink(name.location()).unwrap());
        let new: Box<dyn std::any::Any> = if plain {
            Box::new(place.options().create::<u32, _>(name.location(), 2048).unwrap())
        } else {
            Box::new(create(place, &name))
        };
        killed.iter_mut().for_each(|holder| holder.0.kill());
        drop(old); // a handle that is not the last checks whether other holders are alive
        assert!(place.has(&name));
        another_old.close().unwrap();
        assert!(place.has(&name));
        assert!(plain || place.inspect(&name).unwrap().refcount == 1);
        drop(new);
        assert_eq!(place.has(&name), plain);
        assert_eq!(place.backend.unlink(name.location()).unwrap(), plain);
    }
}

fn unlinked_array_stays_with_its_holders(place: &Place) {
    let name = place.location("unlinked");
    let array = create(place, &name);
    let keeping = place.open_options().keep_fd(true).open_counted::<u32, Ix1>(name.location()).unwrap();
    let reader = place.open_options().open_counted_reader::<u32, Ix1>(name.location()).unwrap();
    assert!(array.unlink().unwrap() && !array.unlink().unwrap());
    assert_eq!(array.read().unwrap_err().kind, ErrorKind::Unlinked);
    if !cfg!(target_os = "macos") {
        assert_eq!(keeping.read().unwrap().sum(), 4);
    }
    assert_eq!((reader.view().sum(), reader.location()), (4, name.location()));
    array.close().unwrap();
    keeping.close().unwrap();
}

fn failing_operation_leaves_nothing_behind(place: &Place) {
    let place = &place.private(); // so that everything that is left is this test's
    let name = place.location("failing");
    for step in 0.. {
        let calls = AtomicUsize::new(0);
        let failing = place.meddling(move |_, _| {
            let now = calls.fetch_add(1, Ordering::Relaxed);
            let fails = ErrorKind::TimedOut { waited: Duration::ZERO }.at("test");
            if now == step { Err(fails) } else { Ok(()) }
        });
        let options = place.options().directory(failing.clone());
        let outcome = options.create_counted::<u32, Ix1>(name.location(), 4).and_then(|array| {
            let again = place.open_options().directory(failing.clone()).open_counted::<u32, Ix1>(name.location())?;
            array.write()?.fill(1);
            let clone = again.try_clone()?;
            clone.freeze()?;
            place.open_options().directory(failing.clone()).open_counted_reader::<u32, Ix1>(name.location())?;
            again.close()?;
            clone.close()?;
            array.close()
        });
        // The failing step may have been the unlink by the last handle. (A process that another test is spawning
        // briefly holds a copy of the lease.)
        eventually("it is reclaimed", || place.reclaim().attached == 0);
        assert!(!place.has(&name) && place.files_of(&name).is_empty(), "step {step}: {outcome:?}");
        assert_eq!(place.hidden_drafts(), 0, "step {step}: {outcome:?}");
        if outcome.is_ok() {
            assert!(step > 10, "{step}");
            break;
        }
    }
    // With 32 bits no shape is longer than the memory of a large machine.
    if let Ok(length) = usize::try_from(1_u64 << 46) {
        let error = place.options().create_counted::<u8, _>(name.location(), length).unwrap_err();
        assert!(
            matches!(&error, Error { kind: ErrorKind::NoSpace { needed, .. }, location, .. }
            if location == name.as_str() && *needed == (1 << 46) + 4096),
            "{error}"
        );
    }
    assert!(place.files_of(&name).is_empty());
    assert_eq!(place.hidden_drafts(), 0);
}

fn array_shared_by_name_removes_its_name(place: &Place) {
    let options = place.options();
    let array = options.share_with::<u16, _>(SharingStrategy::FileSystem, (2, 3), |mut view| view.fill(3)).unwrap();
    let another = place.options().share::<u16, _>(SharingStrategy::FileSystem, (2, 3)).unwrap();
    let location = array.location().unwrap().clone();
    assert_ne!(Some(&location), another.location());
    let same = place.open_options().open_counted::<u16, Ix2>(&location).unwrap();
    assert_eq!((same.read().unwrap().sum(), same.refcount()), (18, 2));
    array.publish().unwrap(); // does nothing: the array has its name already
    drop((array, same));
    assert!(place.open_options().open_counted::<u16, Ix2>(&location).unwrap_err().is_not_found());
    let taken = another.location().unwrap().clone();
    let replaces = place.options().mode(CreationMode::Replace).create::<u16, _>(&taken, (2, 3)).unwrap();
    assert_eq!(another.publish().unwrap_err().kind, ErrorKind::Unlinked);
    replaces.unlink().unwrap();
    another.close().unwrap();
}
