//! Sharing strategies: arrays without names, their descriptors, and how they get a name.

use std::process::Command;
use std::str::FromStr;

use libtest_mimic::Trial;
use ndarray::{Ix1, array};
use ndarray_shm::counted::{SharingStrategy, inspect_in, to_shared};
use ndarray_shm::{Draft, Error, ErrorKind, Location, RefcountedArray, SharedArray, default_directory};

use super::descriptors::{descriptors_of, mappings_of};
use super::sandbox;
use crate::support::Place;
use crate::support::child::{self, Child, ROLE, Role, say};
use crate::support::machine::mappings;
use crate::tests;

use SharingStrategy::{FileDescriptor, FileSystem};

pub fn trials(place: &Place) -> Vec<Trial> {
    let mut trials = place.trials(
        "linux",
        "shared",
        tests![
            nameless_array_keeps_one_descriptor,
            handle_error_of_a_nameless_array_names_the_remedies,
            nameless_array_gets_a_name_once,
            failed_publish_leaves_the_array_nameless,
            any_handle_publishes_and_the_last_removes_the_name,
            into_reader_closes_the_descriptor,
            strategy_comes_from_environment_or_program,
            frozen_elements_are_mapped_read_only_and_the_trailer_is_not,
        ],
    );
    let mounted = place.trials("linux", "shared", tests![draft_without_room_for_its_trailer_is_given_back]);
    trials.extend(sandbox::with_private_mounts(mounted));
    trials
}

pub const ROLES: &[(&str, Role)] = &[("strategy", strategy), ("no-room-for-trailer", no_room_for_trailer)];

fn nameless(place: &Place) -> RefcountedArray<u32, Ix1> {
    place.options().share_with(FileDescriptor, 4, |mut view| view.fill(1)).unwrap()
}

fn inode<T, D>(array: &RefcountedArray<T, D>) -> u64
where
    T: ndarray_shm::Element,
    D: ndarray::Dimension,
{
    // Finds the mapping that contains the array's first element.
    let address = array.raw_view().as_ptr() as usize;
    let line = mappings("").into_iter().find(|line| {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        (number(start)..number(end)).contains(&address)
    });
    line.unwrap().split_whitespace().nth(4).unwrap().parse().unwrap()
}

fn handle_error_of_a_nameless_array_names_the_remedies(place: &Place) {
    let error = nameless(place).handle().unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Unsupported { .. }), "{error}");
    let text = error.to_string();
    for words in ["file_descriptor", "NDSHM_SHARING_STRATEGY=file_system", "publish()", "Channel"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

fn nameless_array_keeps_one_descriptor(place: &Place) {
    let place = &place.private();
    let array = nameless(place);
    assert_eq!((array.strategy(), array.location()), (FileDescriptor, None));
    assert!(place.backend.list().unwrap().is_empty(), "not even a hidden one");
    let inode = inode(&array);
    assert_eq!((descriptors_of(place, inode), mappings_of(place, inode)), (1, 1));
    array.write().unwrap()[2] = 7;
    assert_eq!((array.read().unwrap().sum(), array.refcount()), (10, 1));
    let reading = array.read().unwrap();
    assert_eq!(array.try_write().unwrap_err().kind, ErrorKind::WouldBlock);
    assert_eq!(descriptors_of(place, inode), 2);
    drop(reading);

    let clone = array.try_clone().unwrap();
    assert_eq!((clone.strategy(), clone.refcount(), descriptors_of(place, inode)), (FileDescriptor, 2, 2));
    let writing = clone.write().unwrap();
    assert_eq!(array.try_read().unwrap_err().kind, ErrorKind::WouldBlock);
    drop(writing);
    assert!(matches!(array.keep().unwrap_err().kind, ErrorKind::Unsupported { .. }) && !array.is_kept());
    let error = array.handle().unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Unsupported { .. }) && error.to_string().contains("publish()"), "{error}");
    assert_eq!(array.in_flight(), 0);
    array.freeze().unwrap();
    assert_eq!(clone.view().unwrap().sum(), 10);
    assert!(matches!(clone.write().unwrap_err().kind, ErrorKind::PermissionDenied { .. }));
    drop((array, clone));
    assert_eq!((descriptors_of(place, inode), mappings_of(place, inode)), (0, 0));
    assert!(place.backend.list().unwrap().is_empty());

    let empty = place.options().share::<f64, _>(FileDescriptor, (0, 3)).unwrap();
    assert_eq!(empty.try_clone().unwrap().read().unwrap().shape(), [0, 3]);
}

/// Returns the rights of the mapping at an address, as in `r--s`.
fn rights_at(address: *const u8) -> String {
    let address = address as usize;
    let hexadecimal = |text| usize::from_str_radix(text, 16).expect("an address");
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let found = maps.lines().find_map(|line| {
        let mut words = line.split(' ');
        let (begin, end) = words.next()?.split_once('-')?;
        (hexadecimal(begin)..hexadecimal(end)).contains(&address).then(|| words.next().expect("rights").to_owned())
    });
    found.expect("a mapping")
}

fn frozen_elements_are_mapped_read_only_and_the_trailer_is_not(place: &Place) {
    let place = &place.private();
    for length in [1, 1024, 1025, 70_000] {
        let array = place.options().share::<u32, _>(FileDescriptor, length).unwrap();
        let clone = array.try_clone().unwrap();
        let first = array.raw_view().as_ptr().cast::<u8>();
        let last = first.wrapping_add(4 * length - 1);
        let trailer = first.wrapping_add((4 * length).next_multiple_of(4096));
        assert_eq!([first, last, trailer].map(rights_at), ["rw-s"; 3]);
        array.freeze().unwrap();
        assert_eq!([first, last].map(rights_at), ["r--s"; 2]);
        assert_eq!(rights_at(trailer), "rw-s");
        assert_eq!(rights_at(clone.raw_view().as_ptr().cast()), "rw-s", "each handle has a mapping of its own");
        // Counts are still changed.
        drop(array.try_clone().unwrap());
        drop(array);
        assert_eq!(clone.refcount(), 1);
    }
    let empty = place.options().share::<u32, _>(FileDescriptor, 0).unwrap();
    empty.freeze().unwrap();
}

fn nameless_array_gets_a_name_once(place: &Place) {
    let place = &place.private();
    let array = nameless(place);
    if place.has_hidden_drafts() {
        // A draft with a hidden name cannot be linked to another name.
        let error = array.publish().unwrap_err();
        assert!(
            matches!(error.kind, ErrorKind::Unsupported { .. }) && error.to_string().contains("file_system"),
            "{error}"
        );
        assert_eq!((array.strategy(), array.location()), (FileDescriptor, None));
        assert_eq!(array.try_clone().unwrap().read().unwrap().sum(), 4);
        return;
    }
    array.publish().unwrap();
    array.publish().unwrap();
    let location = array.location().expect("a name").clone();
    assert_eq!((array.strategy(), place.backend.list().unwrap().len()), (FileSystem, 1));
    let opened = place.open_options().open_counted::<u32, Ix1>(&location).unwrap();
    opened.write().unwrap().fill(2);
    assert_eq!((array.read().unwrap().sum(), array.refcount()), (8, 2));
    assert_eq!(descriptors_of(place, inode(&array)), 1 + usize::from(!place.backend.lock_survives_close().unwrap()));
    let handle = array.handle().unwrap();
    assert_eq!(place.open_options().attach::<u32, Ix1>(&handle).unwrap().refcount(), 3);
    let clone = array.try_clone().unwrap();
    assert!(array.unlink().unwrap());
    for array in [&array, &clone] {
        assert_eq!(
            array.publish().unwrap_err().kind,
            ErrorKind::Unlinked,
            "the kernel links no second name after an unlink"
        );
    }
    assert_eq!(array.read().unwrap().sum(), 8, "the descriptor reaches the file without a name");
    drop((array, opened, clone));
    assert!(place.backend.list().unwrap().is_empty());
}

fn failed_publish_leaves_the_array_nameless(place: &Place) {
    let place = &place.private();
    if place.has_hidden_drafts() {
        return;
    }
    let array = nameless(place);
    let Err(Error { kind: ErrorKind::Unsupported { .. }, location, .. }) = array.handle() else {
        panic!("it has no name")
    };
    let name = Location::new(&location).unwrap();
    let path = place.directory().join(name.as_str());
    std::fs::write(&path, "foreign").unwrap();
    assert_eq!(array.publish().unwrap_err().kind, ErrorKind::AlreadyExists);
    assert_eq!((array.strategy(), array.location()), (FileDescriptor, None));
    assert!(matches!(array.handle().unwrap_err().kind, ErrorKind::Unsupported { .. }));
    drop(array.try_clone().unwrap());
    std::fs::remove_file(&path).unwrap();
    array.publish().unwrap();
    assert_eq!(array.location(), Some(&name));
    drop(array);
    assert!(!path.exists());
}

fn any_handle_publishes_and_the_last_removes_the_name(place: &Place) {
    let place = &place.private();
    if place.has_hidden_drafts() {
        return;
    }
    for publisher_leaves_first in [false, true] {
        let (array, other) = {
            let array = nameless(place);
            let clone = array.try_clone().unwrap();
            (array, clone)
        };
        other.publish().unwrap();
        let location = other.location().unwrap().clone();
        assert_eq!((array.location(), array.strategy()), (Some(&location), FileSystem));
        array.publish().unwrap();
        let mut holders = [array, other];
        if publisher_leaves_first {
            holders.reverse();
        }
        let [first, second] = holders;
        drop(first);
        assert_eq!(inspect_in(&place.backend, &location).unwrap().refcount, 1);
        second.close().unwrap();
        assert!(place.backend.list().unwrap().is_empty());
    }
    // Races a publish and its handle's drop against the drop of the other handle. Whichever drop is last must see the
    // name and remove it.
    for _ in 0..300 {
        let array = nameless(place);
        let clone = array.try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| clone.publish().map(|()| drop(clone)).unwrap());
            drop(array);
        });
        assert!(place.backend.list().unwrap().is_empty());
    }
}

fn into_reader_closes_the_descriptor(place: &Place) {
    let place = &place.private();
    let array = nameless(place);
    let inode = inode(&array);
    let clone = array.try_clone().unwrap();
    let reader = array.into_reader().unwrap();
    let kept = usize::from(!place.backend.lock_survives_close().unwrap());
    assert_eq!((descriptors_of(place, inode), clone.refcount()), (1 + kept, 2));
    assert_eq!(clone.try_write().unwrap_err().kind, ErrorKind::WouldBlock);
    drop(clone);
    assert_eq!((descriptors_of(place, inode), reader.view().sum()), (kept, 4));
    drop(reader);
    assert_eq!((descriptors_of(place, inode), mappings_of(place, inode)), (0, 0));
}

/// A child that reports its strategy, and then sets each one.
fn strategy(_: &[String]) {
    let source = array![[1.0, 2.0], [3.0, 4.0]];
    let first = match SharingStrategy::current() {
        Ok(strategy) => {
            let array = to_shared(&source).unwrap();
            assert_eq!((array.strategy(), array.location().is_some()), (strategy, strategy == FileSystem));
            say(strategy);
            Some((strategy, array))
        }
        Err(error) => {
            assert!(
                matches!(error.kind, ErrorKind::InvalidSetting { setting: "NDSHM_SHARING_STRATEGY", .. }),
                "{error}"
            );
            assert!(to_shared(&source).is_err());
            say(error);
            None
        }
    };
    for chosen in SharingStrategy::ALL {
        chosen.set_current().unwrap();
        assert_eq!(SharingStrategy::current().unwrap(), chosen);
        let array = to_shared(&source).unwrap();
        assert_eq!((array.strategy(), array.read().unwrap()[[1, 0]]), (chosen, 3.0));
        if let Some((before, array)) = &first {
            assert_eq!(array.strategy(), *before, "existing arrays keep their strategy");
        }
    }
    drop(first);
    assert!(default_directory().unwrap().list().unwrap().is_empty());
    say("chosen");
}

fn strategy_comes_from_environment_or_program(place: &Place) {
    let place = &place.private();
    for (value, expected) in [
        (None, "file_descriptor"),
        (Some("file_descriptor"), "file_descriptor"),
        (Some("file_system"), "file_system"),
        (Some("FileSystem"), "must be file_descriptor or file_system"),
        (Some(""), "must be file_descriptor or file_system"),
    ] {
        let mut command = Command::new(child::program());
        command.env(ROLE, "strategy").envs(place.environment()).env_remove("NDSHM_SHARING_STRATEGY");
        command.envs(value.map(|value| ("NDSHM_SHARING_STRATEGY", value)));
        let mut child = Child::spawn(command);
        let line = child.line();
        assert!(line.contains(expected), "{value:?}: {line}");
        child.expect("chosen");
        child.finish();
    }
    assert!(SharingStrategy::from_str("shm").is_err() && SharingStrategy::ALL.iter().all(|known| known.is_supported()));
}

/// A child on a file system that one draft fills completely.
fn no_room_for_trailer(_: &[String]) {
    const LENGTH: usize = 4 << 20;
    let backend = default_directory().unwrap();
    let mut draft = Draft::<u8, _>::new(LENGTH).unwrap();
    draft.view_mut().fill(3);
    for strategy in SharingStrategy::ALL {
        let (error, given_back) = draft.share(strategy).unwrap_err().into_parts();
        assert!(matches!(error.kind, ErrorKind::NoSpace { .. }), "{error}");
        assert!(given_back.view().iter().all(|value| *value == 3));
        draft = given_back;
    }
    let array = draft.publish("full").unwrap();
    assert_eq!(std::fs::metadata(backend.path().join("full")).unwrap().len(), LENGTH as u64);
    array.write().unwrap()[LENGTH - 1] = 4;
    assert_eq!(SharedArray::<u8, _>::open("full", LENGTH).unwrap().read().unwrap()[LENGTH - 1], 4);
    assert!(array.unlink().unwrap());
    drop(array);
    // With room for the trailer, sharing succeeds.
    let mut draft = Draft::<u8, _>::new(LENGTH / 2).unwrap();
    draft.view_mut().fill(5);
    let array = draft.share(FileSystem).unwrap();
    let opened = RefcountedArray::<u8, Ix1>::open(array.location().unwrap()).unwrap();
    assert!(opened.read().unwrap().iter().all(|value| *value == 5));
    drop((array, opened));
    assert!(backend.list().unwrap().is_empty());
    say("given back");
}

fn draft_without_room_for_its_trailer_is_given_back(place: &Place) {
    let place = &place.private();
    let mount = format!("mount -t tmpfs -o mode=0700,size=4m none '{}'", place.directory().display());
    let mut child = Child::spawn(sandbox::with_mounts(place, &mount, "no-room-for-trailer", &[]));
    child.expect("given back");
    child.finish();
}
