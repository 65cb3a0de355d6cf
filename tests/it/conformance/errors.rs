//! Wrong input and failing operations: every mistake has its own error, which says what to do, and nothing is left
//! behind.

use std::cell::Cell;
use std::fs::File;
use std::rc::Rc;

use libtest_mimic::Trial;
use ndarray::{Ix1, ShapeBuilder};
use ndarray_shm::backend::interruptible;
use ndarray_shm::counted::SharingStrategy;
use ndarray_shm::{
    Access, CreateOptions, CreationMode, Directory, Error, ErrorKind, Pages, RenderBuffer, Result, SharedArray, render,
};

use crate::support::child::{Child, ROLE, Role, program, say};
use crate::support::{Name, Place};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "errors",
        tests![
            names_breaking_a_rule_are_refused,
            platform_forbidden_names_are_refused_with_the_reason,
            size_mismatch_is_reported_in_bytes,
            a_directory_is_not_an_array,
            missing_directory_has_its_own_error,
            shapes_beyond_the_address_space_are_refused,
            emulated_limit_counts_existing_arrays,
            file_lengths_beyond_32_bits_are_kept,
            a_ledger_cannot_be_opened_as_an_array,
            corrupt_ledger_is_reported_and_can_be_discarded,
            different_work_under_the_same_name_is_refused,
            buffer_of_other_type_or_axes_is_refused,
            renderbuffer_settings_are_checked,
            failing_operation_leaves_nothing_behind,
            interrupted_creation_leaves_nothing_behind,
            interrupted_freeze_takes_no_lock,
            errors_become_io_errors_of_the_same_kind,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[("fill-to-the-limit", fill_to_the_limit)];

fn create(place: &Place, name: &str) -> Result<SharedArray<u8, ndarray::Ix1>> {
    place.options().create(name, 4)
}

fn open(place: &Place, name: &Name) -> Result<SharedArray<u8, ndarray::Ix1>> {
    place.open_options().open(name.location(), 4)
}

fn names_breaking_a_rule_are_refused(place: &Place) {
    let long = "x".repeat(300);
    for name in ["", "/", "a/b", "..", ".", "nul\0byte", long.as_str()] {
        let error = create(place, name).unwrap_err();
        assert!(matches!(error.kind, ErrorKind::InvalidLocation { .. }), "{name:?}: {error}");
        assert!(error.to_string().len() < 200, "a long name is shortened: {error}");
    }
    assert!(matches!(create(place, ".ndshm-mine").unwrap_err().kind, ErrorKind::Reserved { .. }));
    let name = place.location("slash");
    create(place, &format!("/{}", name.as_str())).unwrap();
    assert_eq!(open(place, &name).unwrap().location().as_str(), name.as_str());
}

fn platform_forbidden_names_are_refused_with_the_reason(place: &Place) {
    let device = ["CON", "nul", "com1.txt", "LPT9"];
    let other = ["a:b", "a\\b", "what?", "end.", "end ", "PROGRA~1"];
    for name in device.into_iter().chain(other) {
        let name = format!("{name}{}", if cfg!(windows) { String::new() } else { format!("-{}", std::process::id()) });
        let created = create(place, &name);
        if cfg!(windows) {
            let error = created.unwrap_err();
            assert!(matches!(error.kind, ErrorKind::InvalidLocation { .. }), "{name:?}: {error}");
            assert!(error.to_string().contains("Windows") || name.contains('~'), "{name:?}: {error}");
        } else {
            let unlinked = created.map(|array| array.unlink());
            assert!(matches!(unlinked, Ok(Ok(true))), "{name:?}: {unlinked:?}");
        }
    }
}

fn size_mismatch_is_reported_in_bytes(place: &Place) {
    let name = place.location("size");
    create(place, name.as_str()).unwrap();
    let other = place.open_options().open::<u32, _>(name.location(), (2, 3));
    let error = other.unwrap_err();
    assert!(matches!(error.kind, ErrorKind::SizeMismatch { expected: 24, found: 4, .. }), "{error}");
    assert!(error.to_string().contains(name.as_str()), "{error}");
    let empty = place.location("size-empty");
    File::create(place.path(&empty)).unwrap();
    assert!(matches!(open(place, &empty).unwrap_err().kind, ErrorKind::SizeMismatch { expected: 4, found: 0, .. }));
}

fn a_directory_is_not_an_array(place: &Place) {
    let name = place.location("directory");
    std::fs::create_dir(place.path(&name)).unwrap();
    let replace = place.options().mode(CreationMode::Replace).create::<u8, _>(name.location(), 4);
    let outcomes = [
        place.open_options().access(Access::Read).open::<u8, _>(name.location(), 4),
        open(place, &name),
        create(place, name.as_str()),
        replace,
    ];
    for error in outcomes.map(Result::unwrap_err) {
        assert!(matches!(error.kind, ErrorKind::NotAnArray { found: "a directory", .. }), "{error}");
    }
    assert!(matches!(place.backend.unlink(name.location()), Err(Error { kind: ErrorKind::NotAnArray { .. }, .. })));
    std::fs::remove_dir(place.path(&name)).unwrap();
}

fn missing_directory_has_its_own_error(place: &Place) {
    let missing = place.directory().join("missing");
    let directory = Directory::new("missing", &missing);
    let outcomes = [
        place.options().directory(directory.clone()).create::<u8, _>("x", 4).map(drop),
        place.options().directory(directory.clone()).create::<u8, _>("x", 4 << 20).map(drop),
        directory.list().map(drop),
        directory.available().map(drop),
    ];
    for error in outcomes.map(Result::unwrap_err) {
        assert!(
            matches!(&error, Error { kind: ErrorKind::NoDirectory, location: directory, .. } if *directory == missing.display().to_string())
        );
        assert!(error.to_string().contains("does not exist (create it first"), "{error}");
    }
    assert!(!missing.exists());
}

fn shapes_beyond_the_address_space_are_refused(place: &Place) {
    let name = place.location("overflow");
    let most = isize::MAX as usize; // the most bytes of one mapping, slice or array
    let error = place.options().create::<u64, _>(name.location(), (usize::MAX, 2).f()).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::TooLarge { item: 8, .. }), "{error}");
    for shape in [(most / 8 + 1, 1), (1 << (usize::BITS / 2), 1 << (usize::BITS / 2))] {
        for outcome in [
            place.options().create::<u64, _>(name.location(), shape),
            place.open_options().open::<u64, _>(name.location(), shape),
        ] {
            assert!(matches!(outcome.unwrap_err().kind, ErrorKind::TooLarge { .. }), "{shape:?}");
        }
    }
    // An axis of length 0 does not hide that the other axes are too long.
    let error = place.options().create::<u64, _>(name.location(), (usize::MAX, 2, 0)).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::TooLarge { .. }), "{error}");
    // With 64 bits, what can be addressed is more than any machine has room for.
    #[cfg(target_pointer_width = "64")]
    assert!(matches!(
        place.options().create::<u64, _>(name.location(), most / 8).unwrap_err().kind,
        ErrorKind::NoSpace { .. }
    ));
    assert!(place.files_of(&name).is_empty());
}

fn file_lengths_beyond_32_bits_are_kept(place: &Place) {
    let name = place.location("long");
    let length = (1 << 32) + 4; // truncated to 32 bits it would be the expected length
    File::create(place.path(&name)).unwrap().set_len(length).unwrap();
    for outcome in [
        place.open_options().open::<u8, _>(name.location(), 4),
        place.open_options().access(Access::Read).open::<u8, _>(name.location(), 4),
    ] {
        let error = outcome.unwrap_err();
        assert!(
            matches!(error, Error { kind: ErrorKind::SizeMismatch { expected: 4, found, .. }, .. } if found == length),
            "{error}"
        );
    }
}

/// A child whose limit of emulated memory is below the size of two arrays.
fn fill_to_the_limit(_: &[String]) {
    let directory = Directory::emulated().unwrap();
    let create = |name: &str, bytes: usize| {
        CreateOptions::new().directory(directory.clone()).create_with::<u8, _>(name, bytes, |mut view| view.fill(1))
    };
    match Directory::emulated_limit() {
        Err(error) => {
            assert!(matches!(error.kind, ErrorKind::InvalidSetting { setting: "NDSHM_EMULATED_LIMIT", .. }), "{error}");
            assert!(matches!(create("x", 1), Err(Error { kind: ErrorKind::InvalidSetting { .. }, .. })));
            return say(error);
        }
        Ok(limit) => assert_eq!(limit, Some(1 << 20)),
    }
    let half = create("half", 600 << 10).unwrap();
    let error = create("other", 600 << 10).unwrap_err();
    assert!(
        matches!(&error, Error { kind: ErrorKind::NoSpace { needed: 614_400, available, .. }, .. } if *available <= 448 << 10),
        "{error}"
    );
    assert!(error.to_string().contains("NDSHM_EMULATED_LIMIT") && error.to_string().contains("raise it"), "{error}");
    assert!(directory.available().unwrap() <= 448 << 10);
    // Only the emulated backend has the limit, not another backend in the same directory.
    let elsewhere = Directory::new("files", directory.path());
    CreateOptions::new().directory(elsewhere).create::<u8, _>("free", 600 << 10).unwrap().unlink().unwrap();
    half.unlink().unwrap();
    drop(half); // off Linux an unlinked file counts until its last mapping is gone
    create("other", 600 << 10).unwrap().unlink().unwrap();
    say("limited");
}

fn emulated_limit_counts_existing_arrays(place: &Place) {
    let directory = tempfile::tempdir().unwrap();
    for (limit, said) in [("1M", "limited"), ("1MiB", "NDSHM_EMULATED_LIMIT is \"1MiB\", but must be")] {
        let mut command = std::process::Command::new(program());
        command.env(ROLE, "fill-to-the-limit").envs(place.environment());
        command.env("NDSHM_EMULATED_DIR", directory.path()).env("NDSHM_EMULATED_LIMIT", limit);
        let mut child = Child::spawn(command);
        let line = child.line();
        assert!(line.starts_with(said), "{line}");
        child.finish();
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

fn begin(place: &Place, name: &Name) -> Result<RenderBuffer<u16, ndarray::Ix2>> {
    place.render_options().create(name.location(), (8, 8), (4, 4), "volume one")
}

fn ledger_path(place: &Place, name: &Name) -> std::path::PathBuf {
    let file = place.files_of(name).into_iter().find(|file| file.contains("ledger")).expect("a ledger");
    place.directory().join(file)
}

fn a_ledger_cannot_be_opened_as_an_array(place: &Place) {
    let (name, alias) = (place.location("ledger"), place.location("ledger-alias"));
    let _buffer = begin(place, &name).unwrap();
    let ledger = ledger_path(place, &name);
    let length = std::fs::metadata(&ledger).unwrap().len() as usize;
    let file = ledger.file_name().unwrap().to_str().unwrap();
    assert!(matches!(place.open_options().open::<u8, _>(file, length).unwrap_err().kind, ErrorKind::Reserved { .. }));
    // Under any other name too, because the file has the library's footer.
    std::fs::hard_link(&ledger, place.path(&alias)).unwrap();
    for error in [
        place.open_options().open::<u8, _>(alias.location(), length),
        place.open_options().access(Access::Read).open::<u8, _>(alias.location(), length),
    ] {
        assert!(matches!(error.unwrap_err().kind, ErrorKind::Reserved { .. }));
    }
    assert!(matches!(
        place.open_options().open_reader::<u8, _>(alias.location(), length).unwrap_err().kind,
        ErrorKind::Reserved { .. }
    ));
}

fn corrupt_ledger_is_reported_and_can_be_discarded(place: &Place) {
    let name = place.location("corrupt");
    drop(begin(place, &name).unwrap());
    let ledger = ledger_path(place, &name);
    let good = std::fs::read(&ledger).unwrap();
    let again = || begin(place, &name).map(drop);
    for at in [64, 80, 120, good.len() - 64, good.len() - 40, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 0xff;
        std::fs::write(&ledger, &bad).unwrap();
        let error = again().unwrap_err();
        assert!(
            matches!(&error, Error { kind: ErrorKind::Trailer { .. }, location, .. } if location == name.as_str()),
            "byte {at}: {error}"
        );
    }
    for length in [0, 1, 63, 64, good.len() - 1] {
        std::fs::write(&ledger, &good[..length]).unwrap();
        assert!(matches!(again().unwrap_err().kind, ErrorKind::Trailer { .. }), "cut to {length}");
    }
    std::fs::write(&ledger, [b'x'; 500]).unwrap();
    assert!(matches!(again().unwrap_err().kind, ErrorKind::Trailer { .. }));
    std::fs::write(&ledger, &good).unwrap();
    assert!(again().is_ok());
    std::fs::write(&ledger, [b'x'; 500]).unwrap();
    assert!(render::discard(&place.backend, name.location()).unwrap());
    assert!(!render::discard(&place.backend, name.location()).unwrap());
    assert!(again().is_ok());
}

fn different_work_under_the_same_name_is_refused(place: &Place) {
    let name = place.location("mismatch");
    let buffer = begin(place, &name).unwrap();
    let options = || place.render_options();
    let is = |error: Error, expected: &str| match error {
        Error { kind: ErrorKind::Mismatch { what, .. }, .. } => assert_eq!(what, expected),
        other => panic!("{other}"),
    };
    is(options().create::<u16, _>(name.location(), (8, 8), (4, 4), "volume two").unwrap_err(), "fingerprint");
    is(options().create::<u16, _>(name.location(), (8, 9), (4, 4), "volume one").unwrap_err(), "shape");
    is(options().create::<u16, _>(name.location(), (8, 8), (4, 2), "volume one").unwrap_err(), "chunk shape");
    is(options().create::<u16, _>(name.location(), (8, 8).f(), (4, 4), "volume one").unwrap_err(), "order");
    is(options().create::<i16, _>(name.location(), (8, 8), (4, 4), "volume one").unwrap_err(), "element type");
    let shifted = options().chunk_offset(&[1, 0]);
    is(shifted.create::<u16, _>(name.location(), (8, 8), (4, 4), "volume one").unwrap_err(), "chunk offset");
    assert_eq!(buffer.fingerprint(), "volume one");
    assert!(begin(place, &name).is_ok());
}

fn buffer_of_other_type_or_axes_is_refused(place: &Place) {
    let name = place.location("other-type");
    let options = || place.render_options();
    assert!(options().open::<u16, ndarray::Ix2>(name.location()).unwrap_err().is_not_found());
    let _buffer = begin(place, &name).unwrap();
    assert!(matches!(
        options().open::<f32, ndarray::Ix2>(name.location()).unwrap_err(),
        Error { kind: ErrorKind::DTypeMismatch { expected, found, .. }, .. } if (expected.as_str(), found.as_str()) == ("<f4", "<u2")
    ));
    assert!(matches!(
        options().open::<u16, ndarray::Ix3>(name.location()).unwrap_err(),
        Error { kind: ErrorKind::ShapeMismatch { expected, .. }, .. } if expected == "3 axes"
    ));
    assert_eq!(options().open::<u16, ndarray::IxDyn>(name.location()).unwrap().shape(), [8, 8]);
}

fn renderbuffer_settings_are_checked(place: &Place) {
    let name = place.location("settings");
    let options = || place.render_options();
    let invalid = |error: Error, setting: &str| assert!(error.to_string().starts_with(setting), "{error}");
    invalid(options().create::<u8, _>(name.location(), (8, 8), (4, 0), "x").unwrap_err(), "the chunk shape");
    let offset = options().chunk_offset(&[4, 0]);
    invalid(offset.create::<u8, _>(name.location(), (8, 8), (4, 4), "x").unwrap_err(), "the chunk offset");
    let long = "x".repeat(4097);
    invalid(options().create::<u8, _>(name.location(), (8, 8), (4, 4), &long).unwrap_err(), "the fingerprint");
    let offset = options().chunk_offset(&[0]);
    assert!(offset.create::<u8, _>(name.location(), (8, 8), (4, 4), "x").is_err());
    let name_too_long = "x".repeat(242);
    let error = options().create::<u8, _>(name_too_long.as_str(), (8, 8), (4, 4), "x").unwrap_err();
    assert!(matches!(error.kind, ErrorKind::InvalidLocation { .. }), "{error}");
    assert!(place.files_of(&name).is_empty());
}

fn failing_operation_leaves_nothing_behind(place: &Place) {
    let failing = |at: &'static str| {
        place.meddling(move |operation, location| {
            let payload = location.is_some_and(|location| location.as_str().contains("-part-"));
            if at == operation || (at == "publish-payload" && operation == "publish" && payload) {
                return Err(ErrorKind::Unsupported { what: "failed on purpose".into() }.at(at));
            }
            Ok(())
        })
    };
    for at in ["draft", "publish", "open", "probe"] {
        let name = place.location(at);
        let error = place.options().directory(failing(at)).create::<u8, _>(name.location(), 4).unwrap_err();
        assert!(matches!(error.kind, ErrorKind::Unsupported { .. }), "{at}: {error}");
        assert!(place.files_of(&name).is_empty(), "{at}");
    }
    for at in ["draft", "reserve", "publish", "publish-payload", "probe"] {
        let name = place.location(at);
        let options = place.render_options().directory(failing(at));
        let error = options.create::<u8, _>(name.location(), (8, 8), (4, 4), "x").unwrap_err();
        assert!(matches!(error.kind, ErrorKind::Unsupported { .. }), "{at}: {error}");
        assert!(place.files_of(&name).is_empty(), "{at}: {:?}", place.files_of(&name));
    }
    let name = place.location("rename");
    let options = place.render_options().directory(failing("rename"));
    let buffer = options.create::<u8, _>(name.location(), 2, 2, "x").unwrap();
    let ndarray_shm::NextClaim::Chunk(chunk) = buffer.claim_next().unwrap() else { panic!("free") };
    chunk.commit().unwrap();
    let (error, buffer) = buffer.finish().unwrap_err().into_parts();
    assert!(matches!(error.kind, ErrorKind::Unsupported { .. }), "{error}");
    buffer.discard().unwrap();
    assert!(place.files_of(&name).is_empty());
}

fn interrupted_creation_leaves_nothing_behind(place: &Place) {
    const LENGTH: usize = 129 << 20; // three pieces
    let place = &place.private();
    let name = place.location("interrupted");
    let before = place.everything();
    for (pages, allowed) in [(Pages::Base, 0), (Pages::Base, 2), (Pages::Auto, 0), (Pages::Huge, 1)] {
        let asked = Rc::new(Cell::new(0));
        let counted = Rc::clone(&asked);
        let goes_on = move || {
            counted.set(counted.get() + 1);
            counted.get() <= allowed
        };
        let create = || place.options().pages(pages).create::<u8, Ix1>(name.location(), LENGTH);
        let error = interruptible(goes_on, create).unwrap_err();
        assert!(
            error.kind == ErrorKind::Interrupted && error.to_string().contains(name.as_str()),
            "{pages:?}: {error}"
        );
        assert_eq!(asked.get(), allowed + 1, "{pages:?}");
        assert_eq!(place.everything(), before, "{pages:?}");
    }
    let buffer = || place.render_options().create::<u8, _>(name.location(), LENGTH, LENGTH, "work");
    let error = interruptible(|| false, buffer).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Interrupted, "{error}");
    assert_eq!(place.everything(), before);
    // The same calls succeed with a callback that lets them.
    let array = interruptible(|| true, || place.options().create::<u8, Ix1>(name.location(), LENGTH)).unwrap();
    array.unlink().unwrap();
}

fn interrupted_freeze_takes_no_lock(place: &Place) {
    let array = place.options().share::<u8, Ix1>(SharingStrategy::FileSystem, 8).unwrap();
    let other = array.try_clone().unwrap();
    let guard = std::thread::scope(|scope| scope.spawn(|| array.read().unwrap()).join().unwrap());
    let error = interruptible(|| false, || other.freeze()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Interrupted, "{error}");
    let error = interruptible(|| false, || other.write().map(drop)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Interrupted, "{error}");
    drop(array.try_read().unwrap()); // no writer waits at the gate
    drop(guard);
    assert!(!array.is_frozen());
    drop(other.try_write().unwrap());
    interruptible(|| true, || other.freeze()).unwrap();
    assert!(array.is_frozen());
}

fn errors_become_io_errors_of_the_same_kind(place: &Place) {
    use std::io;
    let name = place.location("io");
    let kind = |error: Error| io::Error::from(error).kind();
    assert_eq!(kind(open(place, &name).unwrap_err()), io::ErrorKind::NotFound);
    let array = create(place, name.as_str()).unwrap();
    assert_eq!(kind(create(place, name.as_str()).unwrap_err()), io::ErrorKind::AlreadyExists);
    assert_eq!(kind(create(place, "a/b").unwrap_err()), io::ErrorKind::InvalidInput);
    let guard = array.read().unwrap();
    assert_eq!(kind(array.try_write().unwrap_err()), io::ErrorKind::WouldBlock);
    assert_eq!(kind(array.write().unwrap_err()), io::ErrorKind::Deadlock);
    drop(guard);
}
