//! Counted arrays: their descriptions, attachments and clones, and the name, which goes with the last handle.

use std::time::{Duration, Instant, SystemTime};

use libtest_mimic::Trial;
use ndarray::{Array2, Ix1, Ix2, IxDyn, ShapeBuilder};
use ndarray_shm::counted::{SharingStrategy, inspect_in};
use ndarray_shm::{Access, CreationMode, Element, Error, ErrorKind, Order};

use super::holder::Holder;
use crate::support::counted::{create, open};
use crate::support::{Place, eventually};
use crate::{for_every_element_type, tests};

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "counted",
        tests![
            counted_array_describes_itself,
            other_process_opens_by_name_alone,
            wrong_type_or_axes_are_refused_and_not_counted,
            every_element_type_describes_itself,
            empty_and_zero_dimensional_arrays_are_counted,
            plain_and_counted_arrays_are_told_apart,
            last_handle_removes_the_name_in_any_order,
            last_process_removes_the_name_in_any_order,
            kept_array_stays_until_unlinked,
            close_reports_errors_that_drop_ignores,
            clone_counts_and_keeps_its_access,
            a_read_only_attachment_counts_and_cannot_write,
            a_reader_counts_and_keeps_writers_out,
            waiting_reader_gets_the_replacement_array,
            an_array_becomes_a_reader_and_stays_counted,
            inspection_reports_everything_and_changes_nothing,
            unrepresentable_shapes_are_refused,
        ],
    )
}

fn counted_array_describes_itself(place: &Place) {
    let name = place.location("self");
    let source = Array2::from_shape_fn((3, 5), |(i, j)| (i * 10 + j) as u16);
    let fill = |mut view: ndarray::ArrayViewMut2<'_, u16>| view.assign(&source);
    let array = place.options().create_counted_with::<u16, _>(name.location(), (3, 5).f(), fill).unwrap();
    assert_eq!((array.location(), array.strategy()), (Some(name.location()), SharingStrategy::FileSystem));
    let again = place.open_options().open_counted::<u16, Ix2>(name.location()).unwrap();
    assert_eq!((again.shape(), again.order()), ([3, 5].as_slice(), Order::F));
    assert_eq!(*again.read().unwrap(), source);
    let dynamic = place.open_options().open_counted::<u16, IxDyn>(name.location()).unwrap();
    assert_eq!(dynamic.read().unwrap()[[2, 4]], 24);
    assert_eq!(dynamic.read().unwrap().strides(), [1, 3]);
    assert_eq!([array.refcount(), again.refcount(), dynamic.refcount()], [3; 3]);
    // The elements are where a plain array has them. The trailer, one page, follows.
    let bytes = std::fs::read(place.path(&name)).unwrap();
    let elements: Vec<u8> = source.t().iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!((&bytes[..30], bytes.len()), (elements.as_slice(), 8192));
    let text = format!("{array:?}");
    assert!(text.contains(name.as_str()) && text.contains("[3, 5]"), "{text}");
}

fn other_process_opens_by_name_alone(place: &Place) {
    let name = place.location("other-process");
    let array = create(place, &name);
    let mut child = Holder::with(place, &name, "open");
    assert_eq!((child.ask("sum"), child.ask("count"), array.refcount()), ("4".into(), "2".into(), 2));
    assert_eq!(child.ask("fill 5"), "ok");
    assert_eq!(array.read().unwrap().sum(), 20);
    let guard = array.write().unwrap();
    assert_eq!((child.ask("try-read"), child.ask("try-write")), ("WouldBlock".into(), "WouldBlock".into()));
    drop(guard);
    assert_eq!(child.ask("close"), "ok");
    assert_eq!(array.refcount(), 1);
}

fn wrong_type_or_axes_are_refused_and_not_counted(place: &Place) {
    let name = place.location("mismatch");
    let array = create(place, &name);
    let error = place.open_options().open_counted::<f32, Ix1>(name.location()).unwrap_err();
    assert!(
        matches!(&error, Error { kind: ErrorKind::DTypeMismatch { expected, found, .. }, .. } if expected == "<f4" && found == "<u4")
    );
    let error = place.open_options().open_counted::<u32, Ix2>(name.location()).unwrap_err();
    assert!(matches!(&error, Error { kind: ErrorKind::ShapeMismatch { found, .. }, .. } if found == "[4]"), "{error}");
    assert!(matches!(
        place.open_options().open_counted_reader::<u32, Ix2>(name.location()),
        Err(Error { kind: ErrorKind::ShapeMismatch { .. }, .. })
    ));
    assert!(matches!(
        place.open_options().access(Access::Read).open_counted::<i8, Ix1>(name.location()),
        Err(Error { kind: ErrorKind::DTypeMismatch { .. }, .. })
    ));
    assert_eq!(array.refcount(), 1);
    drop(array);
    assert!(open(place, &name).unwrap_err().is_not_found());
}

fn every_element_type_describes_itself(place: &Place) {
    fn round_trip<T: Element + PartialEq>(place: &Place, values: [T; 3]) {
        let name = place.location("dtype");
        let fill = |mut view: ndarray::ArrayViewMut1<'_, T>| {
            view.iter_mut().zip(values).for_each(|(to, from)| *to = from);
        };
        let _array = place.options().create_counted_with::<T, _>(name.location(), 3, fill).unwrap();
        assert_eq!(inspect_in(&place.backend, name.location()).unwrap().dtype, T::DTYPE);
        let array = place.open_options().access(Access::Read).open_counted::<T, Ix1>(name.location()).unwrap();
        assert_eq!(array.read().unwrap().to_vec(), values, "{}", T::DTYPE);
    }
    for_every_element_type!(round_trip(place));
}

fn empty_and_zero_dimensional_arrays_are_counted(place: &Place) {
    let (empty, point) = (place.location("empty"), place.location("point"));
    let array = place.options().create_counted::<f64, _>(empty.location(), (4, 0, 3)).unwrap();
    let readonly = place.open_options().access(Access::Read).open_counted::<f64, IxDyn>(empty.location()).unwrap();
    let reader = place.open_options().open_counted_reader::<f64, IxDyn>(empty.location()).unwrap();
    assert_eq!((array.refcount(), readonly.shape(), reader.view().len()), (3, [4, 0, 3].as_slice(), 0));
    assert_eq!(place.inspect(&empty).unwrap().shape, [4, 0, 3]);
    drop((array, readonly));
    assert!(place.has(&empty));
    drop(reader);
    assert!(!place.has(&empty));

    let array = place.options().create_counted::<f64, _>(point.location(), ()).unwrap();
    array.write().unwrap()[()] = 2.5;
    let again = place.open_options().open_counted::<f64, IxDyn>(point.location()).unwrap();
    assert_eq!(again.read().unwrap()[IxDyn(&[])], 2.5);
    assert_eq!(place.inspect(&point).unwrap().bytes, 8);
    drop((array, again));
    assert!(!place.has(&point));
}

fn plain_and_counted_arrays_are_told_apart(place: &Place) {
    let name = place.location("kinds");
    let array = create(place, &name);
    let errors = [
        place.open_options().open::<u32, _>(name.location(), 4).unwrap_err(),
        place.open_options().access(Access::Read).open::<u32, _>(name.location(), 4).unwrap_err(),
        place.open_options().open_reader::<u32, _>(name.location(), 4).unwrap_err(),
        place.open_options().open_writer::<u32, _>(name.location(), 4).unwrap_err(),
        place.open_options().open::<u32, _>(name.location(), 2048).unwrap_err(), // the length of the file
        place.options().mode(CreationMode::OpenOrCreate).create::<u32, _>(name.location(), 4).unwrap_err(),
    ];
    for error in errors {
        assert!(
            matches!(error.kind, ErrorKind::Reserved { .. }) && error.to_string().contains("RefcountedArray"),
            "{error}"
        );
    }
    assert_eq!(array.refcount(), 1);
    drop(array);

    for length in [0, 1, 63, 64, 1023, 1024, 2048] {
        let name = place.location("plain");
        place.options().create::<u32, _>(name.location(), length).unwrap();
        let outcomes = [
            open(place, &name).map(drop),
            place.open_options().access(Access::Read).open_counted::<u32, Ix1>(name.location()).map(drop),
            place.open_options().open_counted_reader::<u32, Ix1>(name.location()).map(drop),
            place
                .options()
                .mode(CreationMode::OpenOrCreate)
                .create_counted::<u32, Ix1>(name.location(), length)
                .map(drop),
            place.inspect(&name).map(drop),
        ];
        for error in outcomes.map(Result::unwrap_err) {
            assert!(error.kind == ErrorKind::NotCounted && error.to_string().contains("shape"), "{length}: {error}");
        }
        assert!(
            place.options().create_counted::<u32, _>(name.location(), 4).unwrap_err().kind == ErrorKind::AlreadyExists
        );
    }
}

fn last_handle_removes_the_name_in_any_order(place: &Place) {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let name = place.location("order");
        let (first, second) = (create(place, &name), open(place, &name).unwrap());
        let third = place.open_options().open_counted_reader::<u32, Ix1>(name.location()).unwrap();
        let mut handles: [Option<Box<dyn std::any::Any>>; 3] =
            [Some(Box::new(first)), Some(Box::new(second)), Some(Box::new(third))];
        for (left, at) in order.into_iter().enumerate() {
            assert_eq!(place.inspect(&name).unwrap().refcount, 3 - left as u32);
            drop(handles[at].take());
        }
        assert!(!place.has(&name), "{order:?}");
        assert!(open(place, &name).unwrap_err().is_not_found());
    }
}

fn last_process_removes_the_name_in_any_order(place: &Place) {
    let leave = |holder: &mut Holder, way: &str| match way {
        "exit" => holder.0.tell("exit"), // runs no destructors, as when most programs end
        way => assert_eq!(holder.ask(way), "ok"),
    };
    for (order, way) in [([0, 1, 2], "drop"), ([2, 1, 0], "close"), ([1, 2, 0], "close")] {
        let name = place.location("processes");
        let mut holders = ["create 4", "open", "readonly"].map(|first| Holder::with(place, &name, first));
        for at in order {
            assert!(place.has(&name));
            leave(&mut holders[at], way);
        }
        assert!(!place.has(&name), "{order:?}");
    }
    // The next process that leaves notices one that simply exited.
    let name = place.location("exits");
    let mut holders = ["create 4", "open"].map(|first| Holder::with(place, &name, first));
    leave(&mut holders[0], "exit");
    holders[0].0.end();
    assert_eq!((holders[1].ask("count"), holders[1].ask("close")), ("2".into(), "ok".into()));
    assert!(!place.has(&name));
}

fn kept_array_stays_until_unlinked(place: &Place) {
    let place = &place.private();
    let name = place.location("kept");
    let mut child = Holder::with(place, &name, "create 4");
    assert_eq!([child.ask("keep"), child.ask("fill 7"), child.ask("close")], ["ok"; 3]);
    drop(child);
    let inspection = place.inspect(&name).unwrap();
    assert!(inspection.is_kept && !inspection.is_attached && !inspection.is_orphaned());
    assert_eq!(inspection.refcount, 0);
    place.reclaim();
    let array = open(place, &name).unwrap();
    assert_eq!((array.refcount(), array.is_kept(), array.read().unwrap().sum()), (1, true, 28));
    array.close().unwrap();
    drop(Holder::with(place, &name, "open")); // drop kills the child
    assert!(place.has(&name));
    assert!(place.reclaim().removed.is_empty());
    assert!(place.has(&name));
    let array = open(place, &name).unwrap();
    assert!(place.backend.unlink(name.location()).unwrap());
    assert!(open(place, &name).unwrap_err().is_not_found());
    assert_eq!(array.read().unwrap_err().kind, ErrorKind::Unlinked);
    array.close().unwrap();
}

fn close_reports_errors_that_drop_ignores(place: &Place) {
    let place = &place.private(); // where no other process reclaims
    let name = place.location("close");
    create(place, &name).close().unwrap();
    assert!(!place.has(&name));
    let failing = place.meddling(|operation, at| match operation {
        "unlink" => Err(ErrorKind::TimedOut { waited: Duration::ZERO }.at(at.unwrap())),
        _ => Ok(()),
    });
    let make = || place.options().directory(failing.clone()).create_counted::<u32, _>(name.location(), 4).unwrap();
    assert!(matches!(make().close().unwrap_err().kind, ErrorKind::TimedOut { .. }));
    // The name exists, but the array is dead: the next attachment removes the name and fails.
    assert!(place.has(&name));
    // A process that another test is spawning briefly holds a copy of the lease.
    eventually("it is an orphan", || place.inspect(&name).unwrap().is_orphaned());
    assert!(open(place, &name).unwrap_err().is_not_found());
    assert!(!place.has(&name));
    drop(make());
    assert!(place.options().mode(CreationMode::OpenOrCreate).create_counted::<u32, _>(name.location(), 4).is_ok());
    assert!(!place.has(&name));
}

fn clone_counts_and_keeps_its_access(place: &Place) {
    let name = place.location("clone");
    let array = create(place, &name);
    let clone = array.try_clone().unwrap();
    let readonly = place.open_options().access(Access::Read).open_counted::<u32, Ix1>(name.location()).unwrap();
    let readonly_clone = readonly.try_clone().unwrap();
    assert_eq!([clone.is_readonly(), readonly_clone.is_readonly()], [false, true]);
    assert_eq!(array.refcount(), 4);
    drop(array);
    clone.write().unwrap().fill(3);
    assert_eq!(readonly_clone.read().unwrap().sum(), 12);
    drop((clone, readonly));
    assert!(place.has(&name));
    drop(readonly_clone);
    assert!(!place.has(&name));

    let array = create(place, &name);
    assert!(array.unlink().unwrap());
    let error = array.try_clone().unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unlinked, "{error}");
    let other = create(place, &name);
    assert_eq!(array.try_clone().unwrap_err().kind, ErrorKind::Unlinked, "another array has the name");
    assert_eq!((array.refcount(), other.refcount()), (1, 1));
}

fn a_read_only_attachment_counts_and_cannot_write(place: &Place) {
    let name = place.location("readonly");
    let array = create(place, &name);
    let readonly = place.open_options().access(Access::Read).open_counted::<u32, Ix1>(name.location()).unwrap();
    assert!(readonly.is_readonly() && readonly.raw_view_mut().is_none());
    assert!(matches!(readonly.write().unwrap_err().kind, ErrorKind::PermissionDenied { .. }));
    assert!(matches!(readonly.freeze().unwrap_err().kind, ErrorKind::PermissionDenied { .. }));
    array.write().unwrap().fill(2);
    assert_eq!((readonly.read().unwrap().sum(), readonly.refcount()), (8, 2));
    readonly.keep().unwrap();
    assert!(array.is_kept(), "the trailer is writable, though the elements are not");
}

fn a_reader_counts_and_keeps_writers_out(place: &Place) {
    let name = place.location("reader");
    let array = create(place, &name);
    let mut child = Holder::with(place, &name, "reader");
    assert_eq!((array.refcount(), child.ask("sum")), (2, "4".into()));
    assert_eq!(array.try_write().unwrap_err().kind, ErrorKind::WouldBlock);
    assert!(array.try_read().is_ok());
    child.0.kill();
    eventually("the killed reader's lock is released", || array.try_write().is_ok());
    let guard = array.write().unwrap();
    let reader = |limit| place.open_options().timeout(limit).open_counted_reader::<u32, Ix1>(name.location());
    assert_eq!(reader(Duration::ZERO).unwrap_err().kind, ErrorKind::WouldBlock);
    assert!(matches!(reader(Duration::from_millis(20)).unwrap_err().kind, ErrorKind::TimedOut { .. }));
    assert!(
        place.open_options().open_counted_reader::<u32, Ix1>(name.location()).unwrap_err().kind
            == ErrorKind::WouldDeadlock
    );
    drop(guard);
    assert_eq!(array.refcount(), 2, "refused readers are not counted; the killed one still is");
    let mut reader = Holder::with(place, &name, "reader");
    drop(array);
    assert!(place.has(&name));
    assert_eq!((reader.ask("sum"), reader.ask("drop")), ("4".into(), "ok".into()));
    assert!(!place.has(&name), "the last holder finds that the other one is dead");
}

fn waiting_reader_gets_the_replacement_array(place: &Place) {
    let name = place.location("waited");
    let old = create(place, &name);
    let writer = old.write().unwrap();
    let new = std::thread::scope(|scope| {
        let reader =
            scope.spawn(|| place.open_options().open_counted_reader::<u32, Ix1>(name.location()).unwrap().view().sum());
        std::thread::sleep(Duration::from_millis(50));
        let replace = place.options().mode(CreationMode::Replace);
        let new = replace.create_counted_with::<u32, _>(name.location(), 4, |mut view| view.fill(9)).unwrap();
        drop(writer);
        assert_eq!(reader.join().unwrap(), 36);
        new
    });
    assert_eq!((old.refcount(), new.refcount()), (1, 1));
}

fn an_array_becomes_a_reader_and_stays_counted(place: &Place) {
    let name = place.location("into-reader");
    let reader = create(place, &name).into_reader().unwrap();
    assert_eq!((place.inspect(&name).unwrap().refcount, reader.view().sum()), (1, 4));
    let array = open(place, &name).unwrap();
    assert_eq!(array.try_write().unwrap_err().kind, ErrorKind::WouldBlock);
    drop(reader);
    let guard = array.write().unwrap();
    let (error, again) = open(place, &name).unwrap().into_reader().unwrap_err().into_parts();
    assert_eq!(error.kind, ErrorKind::WouldDeadlock, "{error}");
    drop(guard);
    assert_eq!((again.read().unwrap().sum(), again.refcount()), (4, 2));
    drop((array, again));
    assert!(!place.has(&name));
}

fn inspection_reports_everything_and_changes_nothing(place: &Place) {
    let name = place.location("inspect");
    assert!(place.inspect(&name).unwrap_err().is_not_found());
    let before = SystemTime::now() - Duration::from_secs(2);
    let mut child = Holder::with(place, &name, "create 6");
    let inspection = place.inspect(&name).unwrap();
    assert_eq!((&inspection.location, inspection.dtype), (name.location(), u32::DTYPE));
    assert_eq!((inspection.order, inspection.shape.as_slice(), inspection.bytes), (Order::C, [6].as_slice(), 24));
    assert_eq!((inspection.refcount, inspection.in_flight), (1, 0));
    assert_eq!((inspection.is_attached, inspection.is_kept, inspection.is_frozen), (true, false, false));
    assert_eq!((inspection.creator, inspection.protected_for), (child.0.id(), Duration::ZERO));
    assert!(inspection.created >= before && inspection.created <= SystemTime::now() + Duration::from_secs(2));
    assert!(!inspection.is_orphaned());
    assert_eq!(place.inspect(&name).unwrap(), inspection);
    child.ask("handle 60000");
    child.ask("freeze");
    let inspection = place.inspect(&name).unwrap();
    assert_eq!((inspection.in_flight, inspection.is_frozen, inspection.is_orphaned()), (1, true, false));
    let left = inspection.protected_for;
    assert!(left > Duration::from_secs(30) && left <= Duration::from_secs(60), "{left:?}");
}

fn unrepresentable_shapes_are_refused(place: &Place) {
    let name = place.location("axes");
    let error = place.options().create_counted::<u8, _>(name.location(), IxDyn(&[1; 33])).unwrap_err();
    assert!(error.to_string().contains("32 axes"), "{error}");
    let array = place.options().create_counted::<u8, _>(name.location(), IxDyn(&[1; 32])).unwrap();
    assert_eq!(place.open_options().open_counted::<u8, IxDyn>(name.location()).unwrap().shape(), array.shape());
    let other = place.location("too-large");
    let error = place.options().create_counted::<u8, _>(other.location(), isize::MAX as usize).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::NoSpace { .. } | ErrorKind::TooLarge { .. }), "{error}");
    let start = Instant::now();
    assert!(place.open_options().open_counted::<u8, Ix1>(other.location()).unwrap_err().is_not_found());
    assert!(start.elapsed() < Duration::from_secs(5));
}
