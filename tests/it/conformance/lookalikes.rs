//! Files that look like counted arrays but are not: plain arrays with such bytes, and copies. Also a reader that is
//! counted while it waits.

use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::counted::HandleOptions;
use ndarray_shm::{Arena, Error, ErrorKind, OpenOptions};

use crate::support::{Place, eventually};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "lookalikes",
        tests![
            plain_array_in_use_is_never_opened_as_counted,
            renamed_copy_is_refused_and_not_removed,
            copy_in_another_directory_opens_and_stays,
            copy_marked_dead_is_never_removed,
            waiting_reader_is_counted_and_keeps_the_array,
        ],
    )
}

fn plain_array_in_use_is_never_opened_as_counted(place: &Place) {
    let place = &place.private();
    let name = place.location("bytes");
    let counted = place.options().create_counted::<u8, Ix1>(name.location(), 100).unwrap();
    let bytes = std::fs::read(place.path(&name)).unwrap();
    counted.close().unwrap();

    let plain = place.options().create::<u8, Ix1>(name.location(), bytes.len()).unwrap();
    plain.write().unwrap().iter_mut().zip(&bytes).for_each(|(element, byte)| *element = *byte);
    let open = || place.open_options().open_counted::<u8, Ix1>(name.location());
    assert!(matches!(open(), Err(Error { kind: ErrorKind::NotCounted, .. })));
    let before = plain.read().unwrap();
    assert!(matches!(open(), Err(Error { kind: ErrorKind::NotCounted, .. })));
    assert_eq!(*before, *ndarray::Array::from(bytes), "no handle was counted in");
    drop(before);
    assert_eq!(place.reclaim().removed.len(), 0);
    assert!(place.has(&name));
    drop(plain);
}

fn renamed_copy_is_refused_and_not_removed(place: &Place) {
    let place = &place.private();
    let (name, copy) = (place.location("original"), place.location("copy"));
    let array = place.options().create_counted::<u8, Ix1>(name.location(), 100).unwrap();
    std::fs::copy(place.path(&name), place.path(&copy)).unwrap();
    assert_eq!(place.reclaim().removed.len(), 0);
    let error = place.open_options().open_counted::<u8, Ix1>(copy.location()).unwrap_err();
    assert!(
        matches!(&error, Error { kind: ErrorKind::Trailer { reason, .. }, .. } if reason.contains(name.as_str())),
        "{error}"
    );
    array.close().unwrap();
    assert_eq!(place.reclaim().removed.len(), 0);
    assert!(place.has(&copy) && !place.has(&name));
}

fn copy_in_another_directory_opens_and_stays(place: &Place) {
    let (here, there) = (&place.private(), &place.private());
    let name = here.location("precious");
    let (path, copy) = (here.path(&name), there.path(&name));
    let array = here.options().create_counted_with::<u8, Ix1>(name.location(), 100, |mut view| view.fill(7)).unwrap();
    std::fs::copy(&path, &copy).unwrap();
    let arena_name = here.location("arena");
    let (arena_path, arena_copy) = (here.path(&arena_name), there.path(&arena_name));
    let arena = here.arena_options().create(arena_name.location(), 1 << 16).unwrap();
    std::fs::copy(&arena_path, &arena_copy).unwrap();

    let reclaimed = there.reclaim();
    assert_eq!((reclaimed.copies, reclaimed.removed.len(), reclaimed.failed.len()), (2, 0, 0));
    let opened = there.open_options().open_counted::<u8, Ix1>(name.location()).unwrap();
    assert!(opened.read().unwrap().iter().all(|element| *element == 7));
    assert_eq!((opened.is_kept(), array.is_kept()), (true, false));
    opened.close().unwrap();
    drop(Arena::open_in(&there.backend, arena_name.location()).unwrap());
    // A child that another test starts now may have their descriptors for a moment.
    eventually("no child has the copies open", || there.reclaim().copies == 2);
    assert!(copy.exists() && arena_copy.exists());
    drop((array, arena));
    assert!(!path.exists() && !arena_path.exists(), "the originals are removed as usual");
    for copy in [copy, arena_copy] {
        std::fs::remove_file(copy).unwrap();
    }
}

fn copy_marked_dead_is_never_removed(place: &Place) {
    const LAST_PAGE: usize = 4096;
    let (here, there) = (&place.private(), &place.private());
    let name = here.location("dying");
    let (path, copy) = (here.path(&name), there.path(&name));
    let array = here.options().create_counted::<u8, Ix1>(name.location(), 100).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let word = bytes.len() - LAST_PAGE;
    bytes[word + 7] |= 0x80; // the last handle has gone, the name has not yet
    std::fs::write(&copy, bytes).unwrap();
    assert!(there.open_options().open_counted::<u8, Ix1>(name.location()).unwrap_err().is_not_found());
    let reclaimed = there.reclaim();
    assert_eq!((reclaimed.copies, reclaimed.removed.len(), reclaimed.failed.len()), (1, 0, 0));
    assert!(copy.exists());
    std::fs::remove_file(copy).unwrap();
    drop(array);
}

fn waiting_reader_is_counted_and_keeps_the_array(place: &Place) {
    let place = &place.private();
    let name = place.location("waiting");
    let array = place.options().create_counted::<u8, Ix1>(name.location(), 100).unwrap();
    let handle = array.handle_with(HandleOptions::new().grace(Duration::from_millis(100))).unwrap();
    let mut guard = array.write().unwrap();
    guard.fill(7);
    let options = place.open_options();
    let reader = std::thread::spawn(move || options.attach_reader::<u8, Ix1>(&handle));
    eventually("the reader is counted", || array.refcount() == 2);
    eventually("the handle has expired", || array.in_flight() == 0);
    drop(guard);
    array.close().unwrap();
    let reader = reader.join().unwrap().unwrap();
    assert_eq!(reader.view().iter().filter(|element| **element == 7).count(), 100);
    drop(reader);
    assert!(OpenOptions::new().directory(place.backend.clone()).open_counted::<u8, Ix1>(name.location()).is_err());
}
