//! Wrong input and failing systems: every mistake has its own error, which says what to do, and nothing is left behind.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use libtest_mimic::Trial;
use ndarray::ShapeBuilder;
use ndarray_shm::{
    ArrayOptions, Backend, Directory, Error, FrozenArray, RenderBuffer, RenderOptions, Result, SharedArray,
    default_backend, render,
};

use crate::support::child::{Child, Role, say};
use crate::support::{Name, Place};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    let mut trials = place.trials(
        "errors",
        tests![
            names_that_break_a_rule_are_refused_before_anything_happens,
            a_size_that_does_not_fit_is_said_in_bytes,
            directories_links_and_devices_are_not_arrays,
            files_of_others_are_refused_with_owner_and_mode,
            shapes_beyond_the_address_space_are_refused,
            a_ledger_cannot_be_opened_as_an_array,
            a_corrupt_ledger_is_said_to_be_and_can_be_discarded,
            another_work_under_the_same_name_is_a_mismatch,
            a_buffer_of_another_type_or_with_other_axes_is_refused,
            renderbuffer_settings_are_checked,
            a_system_that_fails_anywhere_leaves_nothing_behind,
            descriptors_that_are_not_sealed_are_not_frozen_arrays,
            errors_become_io_errors_of_the_same_kind,
        ],
    );
    if place.name == "emulated" {
        trials.extend(place.trials(
            "errors",
            tests![
                an_emulate_shm_that_is_no_boolean_names_the_words,
                an_emulated_directory_that_others_control_is_refused,
                the_variable_and_the_function_choose_the_backend,
            ],
        ));
    }
    trials
}

pub const ROLES: &[(&str, Role)] = &[("say-backend", say_backend), ("open-as-stranger", open_as_stranger)];

fn create(place: &Place, name: &str) -> Result<SharedArray<u8, ndarray::Ix1>> {
    ArrayOptions::new().backend(place.backend.clone()).create(name, 4)
}

fn open(place: &Place, name: &Name) -> Result<SharedArray<u8, ndarray::Ix1>> {
    ArrayOptions::new().backend(place.backend.clone()).open(name.location(), 4)
}

fn path(place: &Place, name: &Name) -> std::path::PathBuf {
    place.directory().join(name.as_str())
}

fn names_that_break_a_rule_are_refused_before_anything_happens(place: &Place) {
    let long = "x".repeat(300);
    for name in ["", "/", "a/b", "..", ".", "nul\0byte", long.as_str()] {
        let error = create(place, name).unwrap_err();
        assert!(matches!(error, Error::InvalidLocation { .. }), "{name:?}: {error}");
        assert!(error.to_string().len() < 200, "a long name is shortened: {error}");
    }
    assert!(create(place, ".ndshm-mine").unwrap_err().is_reserved());
    let name = place.location("slash");
    create(place, &format!("/{}", name.as_str())).unwrap();
    assert_eq!(open(place, &name).unwrap().location().unwrap().as_str(), name.as_str());
}

fn a_size_that_does_not_fit_is_said_in_bytes(place: &Place) {
    let name = place.location("size");
    create(place, name.as_str()).unwrap();
    let other = ArrayOptions::<u32, _>::new().backend(place.backend.clone()).open(name.location(), (2, 3));
    let error = other.unwrap_err();
    assert!(matches!(error, Error::SizeMismatch { expected: 24, found: 4, .. }), "{error}");
    assert!(error.to_string().contains(name.as_str()), "{error}");
    let empty = place.location("size-empty");
    File::create(path(place, &empty)).unwrap();
    assert!(matches!(open(place, &empty).unwrap_err(), Error::SizeMismatch { expected: 4, found: 0, .. }));
}

fn directories_links_and_devices_are_not_arrays(place: &Place) {
    let (directory, link, fifo) = (place.location("directory"), place.location("link"), place.location("fifo"));
    let target = place.location("target");
    create(place, target.as_str()).unwrap();
    std::fs::create_dir(path(place, &directory)).unwrap();
    std::os::unix::fs::symlink(path(place, &target), path(place, &link)).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(path(place, &fifo)).status().unwrap().success());
    let cases = [(&directory, "a directory"), (&link, "a symbolic link"), (&fifo, "a device, pipe or socket")];
    for (name, what) in cases {
        let readonly = ArrayOptions::<u8, _>::new().backend(place.backend.clone()).open_readonly(name.location(), 4);
        let replace = ArrayOptions::<u8, _>::new()
            .backend(place.backend.clone())
            .mode(ndarray_shm::CreationMode::Replace)
            .create(name.location(), 4);
        for error in [open(place, name), readonly, create(place, name.as_str()), replace].map(Result::unwrap_err) {
            assert!(matches!(error, Error::NotAnArray { found, .. } if found == what), "{what}: {error}");
        }
        assert!(matches!(place.backend.unlink(name.location(), None), Err(Error::NotAnArray { .. })));
    }
    std::fs::remove_dir(path(place, &directory)).unwrap();
    std::fs::remove_file(path(place, &link)).unwrap();
    std::fs::remove_file(path(place, &fifo)).unwrap();
}

/// A child that opens an array as whoever it is, and says what it is told.
fn open_as_stranger(arguments: &[String]) {
    let backend: Arc<dyn Backend> = Arc::new(Directory::new("given", &arguments[1]));
    let options = || ArrayOptions::<u8, _>::new().backend(backend.clone());
    match options().open(arguments[0].as_str(), 4) {
        Err(Error::PermissionDenied { owner, mode, .. }) => say(format!("denied {owner} {mode:03o}")),
        other => say(format!("{:?}", other.map(|array| array.len()))),
    }
    match options().open_readonly(arguments[0].as_str(), 4) {
        Ok(array) => say(array.read().unwrap().sum()),
        Err(error) => say(error),
    }
}

fn files_of_others_are_refused_with_owner_and_mode(place: &Place) {
    let me = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap());
    let name = place.location("permissions");
    let options = ArrayOptions::<u8, _>::new().backend(place.backend.clone()).permissions(0o444);
    let array = options.create_with(name.location(), 4, |mut view| view.fill(3)).unwrap();
    let directory = place.directory().display().to_string();
    let program = place.location("program");
    let mut command = if me == 0 {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        // A stranger must be able to reach the program and the directory, which are this user's.
        std::fs::set_permissions(
            place.directory(),
            std::fs::Permissions::from_mode(std::fs::metadata(place.directory()).unwrap().permissions().mode() | 0o055),
        )
        .unwrap();
        let copy = path(place, &program);
        std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
        std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).unwrap();
        command.arg(copy);
        command
    } else {
        std::process::Command::new(std::env::current_exe().unwrap())
    };
    command.env(crate::support::child::ROLE, "open-as-stranger").args([name.as_str(), &directory]);
    let mut child = Child::spawn(command);
    child.expect(&format!("denied {me} 444"));
    child.expect("12");
    child.finish();
    assert!(array.unlink().unwrap(), "the owner can remove what nobody can write to");
}

fn shapes_beyond_the_address_space_are_refused(place: &Place) {
    let name = place.location("overflow");
    let options = || ArrayOptions::<u64, _>::new().backend(place.backend.clone());
    let error = options().create(name.location(), (usize::MAX, 2).f()).unwrap_err();
    assert!(matches!(error, Error::TooLarge { item: 8, .. }), "{error}");
    let error = options().open(name.location(), (1 << 62, 1)).unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    let options = || ArrayOptions::<u64, ndarray::Ix1>::new().backend(place.backend.clone());
    let error = options().create(name.location(), 1 << 57).unwrap_err();
    assert!(error.is_no_space(), "{error}");
    assert!(place.files_of(&name).is_empty());
}

fn begin(place: &Place, name: &Name) -> Result<RenderBuffer<u16, ndarray::Ix2>> {
    RenderOptions::new().backend(place.backend.clone()).create(name.location(), (8, 8), (4, 4), "volume one")
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
    let options = || ArrayOptions::<u8, _>::new().backend(place.backend.clone());
    let file = ledger.file_name().unwrap().to_str().unwrap();
    assert!(options().open(file, length).unwrap_err().is_reserved());
    // Under any other name too, because the file carries our footer.
    std::fs::hard_link(&ledger, path(place, &alias)).unwrap();
    for error in [options().open(alias.location(), length), options().open_readonly(alias.location(), length)] {
        assert!(error.unwrap_err().is_reserved());
    }
    assert!(options().open_reader(alias.location(), length).unwrap_err().is_reserved());
}

fn a_corrupt_ledger_is_said_to_be_and_can_be_discarded(place: &Place) {
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
        assert!(matches!(&error, Error::Trailer { location, .. } if location == name.as_str()), "byte {at}: {error}");
    }
    for length in [0, 1, 63, 64, good.len() - 1] {
        std::fs::write(&ledger, &good[..length]).unwrap();
        assert!(matches!(again().unwrap_err(), Error::Trailer { .. }), "cut to {length}");
    }
    std::fs::write(&ledger, [b'x'; 500]).unwrap();
    assert!(matches!(again().unwrap_err(), Error::Trailer { .. }));
    std::fs::write(&ledger, &good).unwrap();
    assert!(again().is_ok());
    std::fs::write(&ledger, [b'x'; 500]).unwrap();
    assert!(render::discard(&*place.backend, name.location()).unwrap());
    assert!(!render::discard(&*place.backend, name.location()).unwrap());
    assert!(again().is_ok());
}

fn another_work_under_the_same_name_is_a_mismatch(place: &Place) {
    let name = place.location("mismatch");
    let buffer = begin(place, &name).unwrap();
    let options = || RenderOptions::new().backend(place.backend.clone());
    let is = |error: Error, expected: &str| match error {
        Error::Mismatch { what, .. } => assert_eq!(what, expected),
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

fn a_buffer_of_another_type_or_with_other_axes_is_refused(place: &Place) {
    let name = place.location("other-type");
    let options = || RenderOptions::new().backend(place.backend.clone());
    assert!(options().open::<u16, ndarray::Ix2>(name.location()).unwrap_err().is_not_found());
    let _buffer = begin(place, &name).unwrap();
    assert!(matches!(
        options().open::<f32, ndarray::Ix2>(name.location()).unwrap_err(),
        Error::DTypeMismatch { expected, found, .. } if (expected.as_str(), found.as_str()) == ("<f4", "<u2")
    ));
    assert!(matches!(
        options().open::<u16, ndarray::Ix3>(name.location()).unwrap_err(),
        Error::ShapeMismatch { expected, .. } if expected == "3 axes"
    ));
    assert_eq!(options().open::<u16, ndarray::IxDyn>(name.location()).unwrap().shape(), [8, 8]);
}

fn renderbuffer_settings_are_checked(place: &Place) {
    let name = place.location("settings");
    let options = || RenderOptions::new().backend(place.backend.clone());
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
    assert!(matches!(error, Error::InvalidLocation { .. }), "{error}");
    assert!(place.files_of(&name).is_empty());
}

fn a_system_that_fails_anywhere_leaves_nothing_behind(place: &Place) {
    let failing = |at: &'static str| {
        place.meddling(move |operation, location| {
            let payload = location.is_some_and(|location| location.as_str().contains("-part-"));
            if at == operation || (at == "publish-payload" && operation == "publish" && payload) {
                return Err(Error::Unsupported { location: at.to_owned(), what: "failed on purpose" });
            }
            Ok(())
        })
    };
    for at in ["draft", "publish", "open", "probe"] {
        let name = place.location(at);
        let error = ArrayOptions::<u8, _>::new().backend(failing(at)).create(name.location(), 4).unwrap_err();
        assert!(error.is_unsupported(), "{at}: {error}");
        assert!(place.files_of(&name).is_empty(), "{at}");
    }
    for at in ["draft", "reserve", "publish", "publish-payload", "probe"] {
        let name = place.location(at);
        let options = RenderOptions::new().backend(failing(at));
        let error = options.create::<u8, _>(name.location(), (8, 8), (4, 4), "x").unwrap_err();
        assert!(error.is_unsupported(), "{at}: {error}");
        assert!(place.files_of(&name).is_empty(), "{at}: {:?}", place.files_of(&name));
    }
    let name = place.location("rename");
    let options = RenderOptions::new().backend(failing("rename"));
    let buffer = options.create::<u8, _>(name.location(), 2, 2, "x").unwrap();
    let ndarray_shm::NextClaim::Chunk(chunk) = buffer.claim_next().unwrap() else { panic!("free") };
    chunk.commit().unwrap();
    let (error, buffer) = buffer.finish().unwrap_err().into_parts();
    assert!(error.is_unsupported(), "{error}");
    buffer.discard().unwrap();
    assert!(place.files_of(&name).is_empty());
}

fn descriptors_that_are_not_sealed_are_not_frozen_arrays(place: &Place) {
    let name = place.location("not-sealed");
    create(place, name.as_str()).unwrap();
    let file = File::open(path(place, &name)).unwrap();
    let error = FrozenArray::<u8, _>::from_fd(file, 4).unwrap_err();
    assert!(error.is_unsupported() && error.to_string().contains("F_SEAL_WRITE"), "{error}");
    let frozen = FrozenArray::<u16, _>::create_with((2, 3).f(), |mut view| view.fill(7)).unwrap();
    let copy = frozen.clone();
    let file = frozen.file().try_clone().unwrap();
    let error = FrozenArray::<u16, _>::from_fd(file.try_clone().unwrap(), 5).unwrap_err();
    assert!(matches!(error, Error::SizeMismatch { expected: 10, found: 12, .. }), "{error}");
    let again = FrozenArray::<u16, _>::from_fd(file.try_clone().unwrap(), (2, 3).f()).unwrap();
    drop(frozen);
    assert_eq!((again.sum(), copy.view().sum()), (42, 42));
    assert!(std::os::unix::fs::FileExt::write_at(&file, b"x", 0).is_err(), "sealed against writing");
    assert!(file.set_len(0).is_err(), "sealed against shrinking");
    let empty = FrozenArray::<u16, _>::create_with((0, 3), |_| {}).unwrap();
    assert_eq!(FrozenArray::<u16, _>::from_fd(empty.file().try_clone().unwrap(), (0, 3)).unwrap().len(), 0);
    assert_eq!(FrozenArray::from_array(&again).unwrap().view(), again.view());
}

fn errors_become_io_errors_of_the_same_kind(place: &Place) {
    use std::io::ErrorKind;
    let name = place.location("io");
    let kind = |error: Error| std::io::Error::from(error).kind();
    assert_eq!(kind(open(place, &name).unwrap_err()), ErrorKind::NotFound);
    let array = create(place, name.as_str()).unwrap();
    assert_eq!(kind(create(place, name.as_str()).unwrap_err()), ErrorKind::AlreadyExists);
    assert_eq!(kind(create(place, "a/b").unwrap_err()), ErrorKind::InvalidInput);
    let guard = array.read().unwrap();
    assert_eq!(kind(array.try_write().unwrap_err()), ErrorKind::WouldBlock);
    assert_eq!(kind(array.write().unwrap_err()), ErrorKind::Deadlock);
    drop(guard);
}

/// A child that says which backend it would use, or why it has none.
fn say_backend(arguments: &[String]) {
    match arguments.first().map(String::as_str) {
        Some("on") => ndarray_shm::set_emulate_shm(Some(true)),
        Some("off") => ndarray_shm::set_emulate_shm(Some(false)),
        _ => {}
    }
    match default_backend() {
        Ok(backend) => say(format!("{} {}", backend.name(), backend.directory().display())),
        Err(error) => say(error),
    }
}

fn backend_with(emulate: Option<&str>, directory: &Path, arguments: &[&str]) -> String {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.env(crate::support::child::ROLE, "say-backend").args(arguments);
    command.env_remove("EMULATE_SHM").env("NDSHM_EMULATED_DIR", directory);
    command.envs(emulate.map(|value| ("EMULATE_SHM", value)));
    Child::spawn(command).line()
}

fn an_emulate_shm_that_is_no_boolean_names_the_words(place: &Place) {
    for word in ["maybe", "", "on"] {
        let said = backend_with(Some(word), place.directory(), &[]);
        assert!(said.starts_with("EMULATE_SHM is") && said.contains("1, true or yes"), "{said}");
    }
}

fn the_variable_and_the_function_choose_the_backend(place: &Place) {
    let emulated = format!("emulated {}", place.directory().display());
    assert_eq!(backend_with(Some("1"), place.directory(), &[]), emulated);
    assert_eq!(backend_with(Some("Yes"), place.directory(), &[]), emulated);
    assert_eq!(backend_with(Some("0"), place.directory(), &[]), "shm /dev/shm");
    assert_eq!(backend_with(None, place.directory(), &[]), "shm /dev/shm");
    assert_eq!(backend_with(Some("0"), place.directory(), &["on"]), emulated, "the program's choice comes first");
    assert_eq!(backend_with(Some("1"), place.directory(), &["off"]), "shm /dev/shm");
}

fn an_emulated_directory_that_others_control_is_refused(place: &Place) {
    let base = tempfile::tempdir_in(place.directory()).unwrap();
    let (open, link, file) = (base.path().join("open"), base.path().join("link"), base.path().join("file"));
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    std::os::unix::fs::symlink(place.directory(), &link).unwrap();
    File::create(&file).unwrap();
    for (directory, reason) in [(&open, "other users can write"), (&link, "symbolic link"), (&file, "not a directory")]
    {
        let said = backend_with(Some("1"), directory, &[]);
        assert!(said.contains("permission denied") && said.contains(reason), "{said}");
    }
    let fresh = base.path().join("fresh");
    assert_eq!(backend_with(Some("1"), &fresh, &[]), format!("emulated {}", fresh.display()));
    assert_eq!(std::fs::metadata(&fresh).unwrap().permissions().mode() & 0o777, 0o700);
}
