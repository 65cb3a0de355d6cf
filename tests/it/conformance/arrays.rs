//! Arrays: create, draft, publish, open, sizes, orders, names, unlink, leases.

use libtest_mimic::Trial;
use ndarray::{Array3, Ix1, IxDyn, ShapeBuilder};
use ndarray_shm::backend::{Backend, DirectoryEntry, Publish};
use ndarray_shm::{Access, CreationMode, Draft, Element, Error, ErrorKind, Location, Order, Pages, SharedArray};

use crate::support::child::{Child, Role, say};
use crate::support::counted::create;
use crate::support::{Place, eventually};
use crate::{for_every_element_type, tests};

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "arrays",
        tests![
            new_array_is_zeroed_with_exact_file_length,
            other_process_sees_every_written_element,
            memory_order_survives_create_and_open,
            every_element_type_makes_the_round_trip,
            empty_and_zero_dimensional_arrays_work,
            draft_has_no_name_until_published,
            failed_publish_returns_the_draft,
            creating_twice_is_an_error_and_changes_nothing,
            name_case_follows_the_file_system,
            open_or_create_opens_existing_and_creates_missing,
            old_attachment_keeps_its_bytes_after_replace,
            panicking_fill_creates_nothing,
            failing_fill_creates_and_replaces_nothing,
            unlink_reports_whether_the_name_existed,
            unlink_by_handle_spares_newer_array_of_same_name,
            attached_reports_live_processes_only,
            a_read_only_attachment_cannot_write,
            copy_on_write_stays_in_its_process,
            counted_copy_on_write_attachment_is_counted,
            bytes_attach_without_their_type,
            sparse_array_is_filled_when_opened_for_writing,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[("draft", draft), ("read-array", read_array)];

fn new_array_is_zeroed_with_exact_file_length(place: &Place) {
    let name = place.location("zeros");
    let array = place.options().create::<u32, _>(name.location(), (3, 5, 7)).unwrap();
    assert!(array.read().unwrap().iter().all(|value| *value == 0));
    assert_eq!((array.len(), array.shape(), array.order()), (105, [3, 5, 7].as_slice(), Order::C));
    assert_eq!(array.location(), name.location());
    assert_eq!(array.directory().name(), place.name);
    let file = std::fs::metadata(place.path(&name)).unwrap();
    assert_eq!(file.len(), 105 * 4);
}

/// A child that opens a (4, 5) array of u16 and says its sum.
fn read_array(arguments: &[String]) {
    let array = SharedArray::<u16, _>::open(arguments[0].as_str(), (4, 5)).unwrap();
    let sum: u64 = array.read().unwrap().iter().map(|value| u64::from(*value)).sum();
    say(sum);
    array.write().unwrap()[[3, 4]] = 999;
}

fn other_process_sees_every_written_element(place: &Place) {
    let name = place.location("other-process");
    let array = place
        .options()
        .create_with::<u16, _>(name.location(), (4, 5), |mut view| {
            view.indexed_iter_mut().for_each(|((i, j), value)| *value = (i * 10 + j) as u16);
        })
        .unwrap();
    let expected: u64 = array.read().unwrap().iter().map(|value| u64::from(*value)).sum();
    let mut child = Child::start(place, "read-array", &[name.as_str()]);
    child.expect(&expected.to_string());
    child.finish();
    assert_eq!(array.read().unwrap()[[3, 4]], 999);
}

fn memory_order_survives_create_and_open(place: &Place) {
    let name = place.location("order");
    let fill = |mut view: ndarray::ArrayViewMut3<'_, u8>| {
        for (at, value) in view.indexed_iter_mut() {
            *value = (at.0 * 100 + at.1 * 10 + at.2) as u8;
        }
    };
    let array = place.options().create_with::<u8, _>(name.location(), (2, 3, 4).f(), fill).unwrap();
    assert_eq!(array.order(), Order::F);
    let bytes = std::fs::read(place.path(&name)).unwrap();
    let guard = array.read().unwrap();
    assert_eq!(guard.strides(), [1, 2, 6]);
    assert_eq!(bytes, guard.t().iter().copied().collect::<Vec<_>>());
    drop(guard);

    let copy = place.location("order-copy");
    let source = Array3::from_shape_fn((2, 3, 4).f(), |(i, j, k)| (i * 100 + j * 10 + k) as u8);
    let copied = place
        .options()
        .create_with::<u8, _>(copy.location(), source.raw_dim().set_f(true), |mut view| view.assign(&source))
        .unwrap();
    assert_eq!(*copied.read().unwrap(), *array.read().unwrap());

    let dynamic = place.open_options().open::<u8, _>(name.location(), IxDyn(&[2, 3, 4]).f()).unwrap();
    assert_eq!(dynamic.order(), Order::F);
    assert_eq!(dynamic.read().unwrap()[[1, 2, 3]], 123);
}

fn every_element_type_makes_the_round_trip(place: &Place) {
    fn round_trip<T: Element + PartialEq>(place: &Place, values: [T; 3]) {
        let name = place.location("dtype");
        drop(place.options().create_with::<T, _>(name.location(), 3, |mut view| {
            view.iter_mut().zip(values).for_each(|(to, from)| *to = from);
        }));
        let array = place.open_options().access(Access::Read).open::<T, _>(name.location(), 3).unwrap();
        assert_eq!(array.read().unwrap().to_vec(), values, "{}", T::DTYPE);
        assert_eq!(array.dtype(), T::DTYPE);
    }
    for_every_element_type!(round_trip(place));
}

fn empty_and_zero_dimensional_arrays_work(place: &Place) {
    let (empty, point) = (place.location("empty"), place.location("point"));
    let array = place.options().create::<f64, _>(empty.location(), (4, 0, 3)).unwrap();
    assert!(array.is_empty());
    assert_eq!(array.read().unwrap().shape(), [4, 0, 3]);
    assert_eq!(array.write().unwrap().len(), 0);
    assert!(place.backend.attached(empty.location()).unwrap());
    drop(array);
    eventually("no process is attached", || !place.backend.attached(empty.location()).unwrap());

    let array = place.options().create::<f64, _>(point.location(), ()).unwrap();
    array.write().unwrap()[()] = 2.5;
    let again = place.open_options().open::<f64, _>(point.location(), IxDyn(&[])).unwrap();
    assert_eq!(again.read().unwrap()[IxDyn(&[])], 2.5);
}

fn draft_has_no_name_until_published(place: &Place) {
    let name = place.location("draft");
    let create = place.options().create_with::<u8, _>(name.location(), 10, |view| {
        assert_eq!(view.len(), 10);
        assert_eq!(place.files_of(&name), [] as [&str; 0], "visible before it is filled");
    });
    assert_eq!(place.files_of(&name), [name.as_str()]);
    drop(create.unwrap());
    assert_eq!(place.files_of(&name), [name.as_str()], "dropping a handle keeps the name");
}

/// A child that creates a draft in its default backend and publishes it after two refusals.
fn draft(arguments: &[String]) {
    let name = arguments[0].as_str();
    let mut draft = Draft::<u8, _>::new((2, 2).f()).unwrap();
    assert_eq!((draft.shape(), draft.order(), draft.view().sum()), ([2, 2].as_slice(), Order::F, 0));
    draft.view_mut().fill(7);
    let draft = draft.publish("a/b").unwrap_err().into_inner();
    let taken = SharedArray::<u8, _>::create(name, 1).unwrap();
    let (error, draft) = draft.publish(name).unwrap_err().into_parts();
    assert_eq!(error.kind, ErrorKind::AlreadyExists, "{error}");
    assert!(taken.unlink().unwrap());
    let array = draft.publish(name).unwrap();
    assert_eq!((array.read().unwrap().sum(), array.order()), (28, Order::F));
    say("published");
}

fn failed_publish_returns_the_draft(place: &Place) {
    let name = place.location("given-back");
    let mut child = Child::start(place, "draft", &[name.as_str()]);
    child.expect("published");
    child.finish();
    assert_eq!(place.open_options().open::<u8, _>(name.location(), (2, 2).f()).unwrap().read().unwrap().sum(), 28);
}

fn creating_twice_is_an_error_and_changes_nothing(place: &Place) {
    let name = place.location("twice");
    let array = place.options().create_with::<u8, _>(name.location(), 4, |mut view| view.fill(3)).unwrap();
    let mut filled = false;
    let error = place.options().create_with::<u8, _>(name.location(), 4, |_| filled = true).unwrap_err();
    assert_eq!(error.kind, ErrorKind::AlreadyExists, "{error}");
    assert!(!filled, "the name is checked before the fill runs");
    assert_eq!(array.read().unwrap().sum(), 12);
}

fn name_case_follows_the_file_system(place: &Place) {
    let name = place.location("case");
    let upper: Location = name.as_str().to_uppercase().parse().unwrap();
    let array = place.options().create_with::<u8, _>(name.location(), 4, |mut view| view.fill(1)).unwrap();
    match place.options().create_with::<u8, _>(&upper, 4, |mut view| view.fill(2)) {
        Ok(second) => {
            assert_eq!((array.read().unwrap().sum(), second.read().unwrap().sum()), (4, 8));
            assert!(second.unlink().unwrap());
        }
        Err(error) => {
            assert_eq!(error.kind, ErrorKind::AlreadyExists, "{error}");
            let same = place.open_options().open::<u8, _>(&upper, 4).unwrap();
            array.write().unwrap().fill(3);
            assert_eq!(same.read().unwrap().sum(), 12);
            let is_it = |entry: &DirectoryEntry| entry.name.eq_ignore_ascii_case(name.as_str());
            let id = place.backend.list().unwrap().into_iter().find(is_it).unwrap().id;
            place.backend.rename(name.location(), &upper, id, Publish::Replace).unwrap();
            assert_eq!(place.backend.list().unwrap().into_iter().filter(is_it).count(), 1);
        }
    }
}

fn open_or_create_opens_existing_and_creates_missing(place: &Place) {
    let name = place.location("open-or-create");
    let open = || place.options().mode(CreationMode::OpenOrCreate);
    let first = open().create_with::<u8, _>(name.location(), 4, |mut view| view.fill(1)).unwrap();
    let second = open().create_with::<u8, _>(name.location(), 4, |_| panic!("it is there already")).unwrap();
    second.write().unwrap()[0] = 9;
    assert_eq!(first.read().unwrap().sum(), 12);
    let error = open().create::<u8, _>(name.location(), 5).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::SizeMismatch { expected: 5, found: 4, .. }), "{error}");
}

fn old_attachment_keeps_its_bytes_after_replace(place: &Place) {
    let name = place.location("replace");
    let replace = || place.options().mode(CreationMode::Replace);
    let old = replace().create_with::<u8, _>(name.location(), 4, |mut view| view.fill(1)).unwrap();
    let new = replace().create_with::<u8, _>(name.location(), 6, |mut view| view.fill(2)).unwrap();
    assert_eq!(new.read().unwrap().sum(), 12);
    assert_eq!(place.open_options().open::<u8, _>(name.location(), 6).unwrap().read().unwrap().sum(), 12);
    // SAFETY: no process writes to the old array, which has no name any more.
    #[allow(unsafe_code)]
    let bytes = unsafe { old.view() };
    assert_eq!(bytes.sum(), 4);
    assert_eq!(old.read().unwrap_err().kind, ErrorKind::Unlinked);
    assert_eq!(place.files_of(&name), [name.as_str()]);
}

fn failing_fill_creates_and_replaces_nothing(place: &Place) {
    #[derive(Debug, PartialEq)]
    struct Torn;
    impl From<Error> for Torn {
        fn from(error: Error) -> Self {
            panic!("{error}")
        }
    }
    let name = place.location("fails");
    let fill = |mode, value: u8, outcome: Result<(), Torn>| {
        place.options().mode(mode).try_create_with::<u8, _, _>(name.location(), 4, |mut view| {
            view.fill(value);
            outcome
        })
    };
    assert_eq!(fill(CreationMode::CreateNew, 1, Err(Torn)).unwrap_err(), Torn);
    assert!(place.open_options().open::<u8, _>(name.location(), 4).unwrap_err().is_not_found());
    fill(CreationMode::CreateNew, 2, Ok(())).unwrap();
    assert_eq!(fill(CreationMode::Replace, 3, Err(Torn)).unwrap_err(), Torn);
    assert_eq!(place.open_options().open::<u8, _>(name.location(), 4).unwrap().read().unwrap().to_vec(), [2; 4]);
    fill(CreationMode::Replace, 4, Ok(())).unwrap();
    assert_eq!(place.open_options().open::<u8, _>(name.location(), 4).unwrap().read().unwrap().to_vec(), [4; 4]);
}

fn panicking_fill_creates_nothing(place: &Place) {
    let name = place.location("panic");
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        place.options().create_with::<u8, _>(name.location(), 4, |_| std::panic::resume_unwind(Box::new("on purpose")))
    }));
    assert!(outcome.is_err());
    assert_eq!(place.files_of(&name), [] as [&str; 0]);
}

fn unlink_reports_whether_the_name_existed(place: &Place) {
    let name = place.location("unlink");
    assert!(!place.backend.unlink(name.location()).unwrap());
    let array = place.options().create::<u8, _>(name.location(), 4).unwrap();
    assert!(place.backend.unlink(name.location()).unwrap());
    assert!(!place.backend.unlink(name.location()).unwrap());
    assert!(place.open_options().open::<u8, _>(name.location(), 4).unwrap_err().is_not_found());
    assert_eq!(array.read().unwrap_err().kind, ErrorKind::Unlinked);
}

fn unlink_by_handle_spares_newer_array_of_same_name(place: &Place) {
    let name = place.location("unlink-own");
    let old = place.options().create::<u8, _>(name.location(), 4).unwrap();
    place.backend.unlink(name.location()).unwrap();
    let new = place.options().create::<u8, _>(name.location(), 4).unwrap();
    assert!(!old.unlink().unwrap());
    assert!(new.read().is_ok());
    assert!(new.unlink().unwrap());
}

fn attached_reports_live_processes_only(place: &Place) {
    let name = place.location("attached");
    let attached = || place.backend.attached(name.location());
    assert!(attached().unwrap_err().is_not_found());
    let array = place.options().create::<u8, _>(name.location(), 4).unwrap();
    assert!(attached().unwrap());
    drop(array);
    // A process that another test is spawning may briefly hold a copy of the open file description.
    eventually("no process is attached", || !attached().unwrap());
    let mut child = Child::start(place, "hold-read", &[name.as_str()]);
    child.expect("reading");
    assert!(attached().unwrap());
    child.kill();
    eventually("no process is attached", || !attached().unwrap());
}

fn a_read_only_attachment_cannot_write(place: &Place) {
    let name = place.location("readonly");
    let array = place.options().create::<u8, _>(name.location(), 4).unwrap();
    let reader = place.open_options().access(Access::Read).open::<u8, _>(name.location(), 4).unwrap();
    assert!(reader.is_readonly() && !array.is_readonly());
    assert!(matches!(reader.write().unwrap_err().kind, ErrorKind::PermissionDenied { .. }));
    assert!(reader.raw_view_mut().is_none() && array.raw_view_mut().is_some());
    // SAFETY: nothing else accesses the array; the view is refused anyway.
    #[allow(unsafe_code)]
    let refused = unsafe { reader.view_mut() };
    assert!(matches!(refused.unwrap_err().kind, ErrorKind::PermissionDenied { .. }));
    array.write().unwrap().fill(4);
    assert_eq!(reader.read().unwrap().sum(), 16);
}

fn copy_on_write_stays_in_its_process(place: &Place) {
    let name = place.location("copied");
    // At least two pages, so that one can change while another does not.
    let length = 1 << 17;
    let array = place.options().create::<u8, _>(name.location(), length).unwrap();
    let private = place.open_options().copy_on_write().open::<u8, _>(name.location(), length).unwrap();
    assert!(private.is_readonly() && private.raw_view_mut().is_none());
    assert!(matches!(private.write().unwrap_err().kind, ErrorKind::PermissionDenied { .. }));
    array.write().unwrap().fill(1);
    assert!(private.read().unwrap().iter().all(|value| *value == 1), "writes of other attachments are visible");
    let pointer = private.raw_view().as_ptr().cast_mut();
    // SAFETY: the pointer is to the first element; nothing borrows the private copy meanwhile.
    #[allow(unsafe_code)]
    unsafe {
        pointer.write(9);
    }
    array.write().unwrap()[length - 1] = 7;
    assert_eq!((array.read().unwrap()[0], private.read().unwrap()[0]), (1, 9));
    assert_eq!(private.read().unwrap()[length - 1], 7, "pages that were not written are still shared");
    assert!(place.backend.attached(name.location()).unwrap());
    array.unlink().unwrap();
    drop(array);
    assert_eq!(private.read().unwrap_err().kind, ErrorKind::Unlinked);
}

fn sparse_array_is_filled_when_opened_for_writing(place: &Place) {
    let name = place.location("sparse");
    let length = 1 << 20;
    let holes = place.has_holes();
    let allocated = || place.allocated(name.as_str());
    let sparse = place.options().pages(Pages::Sparse).create::<u8, _>(name.location(), length).unwrap();
    assert_eq!(sparse.is_sparse().unwrap(), holes);
    assert_eq!(allocated() < 1 << 18, holes, "{}", allocated());
    let readonly =
        place.open_options().leave_holes(true).access(Access::Read).open::<u8, _>(name.location(), length).unwrap();
    assert_eq!(readonly.is_sparse().unwrap(), holes);
    let writable = place.open_options().leave_holes(true).open::<u8, _>(name.location(), length).unwrap();
    assert_eq!(writable.is_sparse().unwrap(), holes);
    sparse.write().unwrap()[17] = 5;
    let full = match place.open_options().open::<u8, _>(name.location(), length) {
        Err(error) if holes && !Place::FILLS_HOLES => {
            assert!(matches!(error.kind, ErrorKind::Unsupported { .. }), "{error}");
            return;
        }
        opened => opened.unwrap(),
    };
    assert!(!full.is_sparse().unwrap());
    assert!(allocated() >= length as u64);
    assert_eq!(full.read().unwrap()[17], 5, "filling holes keeps what was written");
}

fn counted_copy_on_write_attachment_is_counted(place: &Place) {
    let name = place.location("private-counted");
    let array = create(place, &name);
    array.write().unwrap().fill(3);
    array.freeze().unwrap();
    let private = place.open_options().copy_on_write().open_counted::<u32, Ix1>(name.location()).unwrap();
    assert!(private.is_readonly() && array.refcount() == 2);
    // SAFETY: the mapping is private, and nothing borrows its elements meanwhile.
    #[allow(unsafe_code)]
    unsafe {
        private.raw_view().as_ptr().cast_mut().write(9);
    }
    assert_eq!((private.view().unwrap()[0], private.view().unwrap()[1], array.view().unwrap()[0]), (9, 3, 3));
    drop(array);
    assert_eq!(private.refcount(), 1, "the trailer of a private mapping is shared");
    drop(private);
    assert!(!place.has(&name));
}

fn bytes_attach_without_their_type(place: &Place) {
    let name = place.location("bytes");
    let array = place.options().create::<u16, _>(name.location(), (2, 3).f()).unwrap();
    array.write().unwrap().fill(0x0201);
    let (bytes, description) = place.open_options().open_bytes(name.location()).unwrap();
    assert_eq!(bytes.read().unwrap().to_vec(), [1, 2].repeat(6));
    assert_eq!(description.is_some(), place.backend.can_describe().unwrap());
    if let Some(description) = description {
        assert_eq!((description.shape(), description.order()), (&[2, 3][..], Order::F));
        place.backend.clear_description(name.location()).unwrap();
    }
    assert!(place.open_options().open_bytes(name.location()).unwrap().1.is_none());
    array.unlink().unwrap();
    place.options().create::<u16, _>(name.location(), 0).unwrap();
    assert!(place.open_options().open_bytes(name.location()).unwrap().0.is_empty());
    // A counted array is not a plain one, and its trailer no elements.
    let name = place.location("counted-bytes");
    let _counted = create(place, &name);
    let refused = place.open_options().open_bytes(name.location()).unwrap_err();
    assert!(matches!(refused.kind, ErrorKind::Reserved { .. }), "{refused}");
}
