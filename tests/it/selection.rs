//! The choice of the default backend: by the program, by the environment, and by what the machine has.

use std::path::Path;

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::backend::SUPPORTED;
use ndarray_shm::process::SpawnOptions;
use ndarray_shm::{
    Arena, ArrayReader, ArrayWriter, CreateOptions, CreationMode, Directory, ErrorKind, RefcountedArray, SharedArray,
    default_directory, set_emulate_shm,
};

use crate::support::child::{Child, ROLE, Role, program, say};
use crate::tests;

pub fn trials() -> Vec<Trial> {
    crate::support::trials(
        "selection",
        tests![
            arrays_are_made_exactly_where_sharing_is_supported,
            invalid_emulate_shm_lists_the_valid_words,
            the_variable_and_the_function_choose_the_backend,
            spawned_children_inherit_the_chosen_backend,
            emulated_directory_is_private_to_its_user,
            impossible_emulated_directory_is_refused,
            #[cfg(unix)]
            emulated_directory_open_to_other_users_is_refused,
            #[cfg(target_os = "linux")]
            unlink_names_the_other_backend_with_the_name,
            #[cfg(target_os = "linux")]
            opening_names_the_other_backend_with_the_name,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[
    ("say-backend", say_backend),
    ("say-unlink", say_unlink),
    ("say-open", say_open),
    ("spawn-say-backend", spawn_say_backend),
];

/// A child that reports its default backend, or the error.
fn say_backend(arguments: &[String]) {
    match arguments.first().map(String::as_str) {
        Some("on") => ndarray_shm::set_emulate_shm(Some(true)),
        Some("off") => ndarray_shm::set_emulate_shm(Some(false)),
        _ => {}
    }
    match default_directory() {
        Ok(backend) => say(format!("{} {}", backend.name(), backend.path().display())),
        Err(error) => say(error),
    }
}

/// A child that chooses a backend, spawns two processes that write their default backends to files, and reports those.
fn spawn_say_backend(arguments: &[String]) {
    let [choice, scene] = arguments else { panic!("two arguments") };
    set_emulate_shm(match choice.as_str() {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    });
    let own = std::env::var("EMULATE_SHM");
    let options = SpawnOptions::new().configure(|index, command| {
        if index == 1 {
            command.env("EMULATE_SHM", "1");
        }
    });
    options.spawn(2, "say-backend", &[scene]).unwrap().join().unwrap();
    assert_eq!(std::env::var("EMULATE_SHM"), own, "the parent's environment is unchanged");
    let said = |index| std::fs::read_to_string(Path::new(scene).join(format!("backend-{index}"))).unwrap();
    say(format!("{} | {}", said(0), said(1)));
}

/// A child that removes a name, and reports the result.
fn say_unlink(arguments: &[String]) {
    match ndarray_shm::unlink(&arguments[0]) {
        Ok(removed) => say(removed),
        Err(error) => say(format!("{} {error}", error.is_not_found())),
    }
}

/// Returns a child's default backend with this `EMULATE_SHM`, this emulated directory, and the program's own choice.
fn backend_with(emulate: Option<&str>, directory: &Path, choice: &[&str]) -> String {
    let mut command = std::process::Command::new(program());
    command.env(ROLE, "say-backend").args(choice);
    command.env_remove("EMULATE_SHM").env("NDSHM_EMULATED_DIR", directory);
    command.envs(emulate.map(|value| ("EMULATE_SHM", value)));
    Child::spawn(command).line()
}

fn emulated(directory: &Path) -> String {
    format!("emulated {}", directory.display())
}

fn arrays_are_made_exactly_where_sharing_is_supported() {
    let base = tempfile::tempdir().unwrap();
    let options = CreateOptions::new().directory(Directory::new("files", base.path()));
    let made = options.create::<u8, _>("supported", 3);
    match made {
        Ok(_) => assert!(std::hint::black_box(SUPPORTED)),
        Err(error) => assert!(matches!(error.kind, ErrorKind::Unsupported { .. }) && !SUPPORTED, "{error}"),
    }
}

fn invalid_emulate_shm_lists_the_valid_words() {
    let base = tempfile::tempdir().unwrap();
    for word in ["maybe", "", "on"] {
        let said = backend_with(Some(word), base.path(), &[]);
        assert!(said.starts_with("EMULATE_SHM is") && said.contains("1, true or yes"), "{said}");
    }
}

fn the_variable_and_the_function_choose_the_backend() {
    let base = tempfile::tempdir().unwrap();
    let (directory, emulated) = (base.path(), emulated(base.path()));
    assert_eq!(backend_with(Some("1"), directory, &[]), emulated);
    assert_eq!(backend_with(Some("Yes"), directory, &[]), emulated);
    assert_eq!(backend_with(Some("0"), directory, &["on"]), emulated, "the program's choice comes first");
    let (asked, chosen) = (backend_with(Some("0"), directory, &[]), backend_with(Some("1"), directory, &["off"]));
    assert_eq!(asked, chosen);
    let by_itself = backend_with(None, directory, &[]);
    if cfg!(target_os = "linux") {
        assert_eq!(asked, "shm /dev/shm");
        let writable = tempfile::tempfile_in("/dev/shm").is_ok();
        assert_eq!(by_itself, if writable { "shm /dev/shm" } else { emulated.as_str() });
    } else {
        assert!(asked.contains("leave EMULATE_SHM unset or set it to 1"), "{asked}");
        assert_eq!(by_itself, emulated);
    }
}

fn spawned_children_inherit_the_chosen_backend() {
    let said = |emulate: Option<&str>, choice: &str| {
        let (base, scene) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut command = std::process::Command::new(program());
        command.env(ROLE, "spawn-say-backend").arg(choice).arg(scene.path());
        command.env_remove("EMULATE_SHM").env("NDSHM_EMULATED_DIR", base.path());
        command.envs(emulate.map(|value| ("EMULATE_SHM", value)));
        Child::spawn(command).line()
    };
    // The environment that is configured for one child has precedence.
    let configured = r#"emulated Ok("1")"#;
    assert_eq!(said(Some("0"), "on"), format!(r#"emulated Ok("1") | {configured}"#));
    assert_eq!(said(None, "on"), format!(r#"emulated Ok("1") | {configured}"#));
    assert_eq!(said(Some("true"), "none"), format!(r#"emulated Ok("true") | {configured}"#));
    assert!(said(None, "none").contains("Err(NotPresent) | "));
    if cfg!(target_os = "linux") {
        assert_eq!(said(Some("1"), "off"), format!(r#"shm Ok("0") | {configured}"#));
    }
}

fn emulated_directory_is_private_to_its_user() {
    let base = tempfile::tempdir().unwrap();
    let fresh = base.path().join("fresh");
    for _ in ["made", "found"] {
        assert_eq!(backend_with(Some("1"), &fresh, &[]), emulated(&fresh));
    }
    #[cfg(unix)]
    {
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&fresh).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o700);
    }
}

fn impossible_emulated_directory_is_refused() {
    let base = tempfile::tempdir().unwrap();
    let (file, orphan) = (base.path().join("file"), base.path().join("missing").join("directory"));
    std::fs::write(&file, b"").unwrap();
    let said = backend_with(Some("1"), &file, &[]);
    assert!(said.contains("permission denied") && said.contains("not a directory"), "{said}");
    let said = backend_with(Some("1"), &orphan, &[]);
    assert!(said.starts_with("NDSHM_EMULATED_DIR is") && said.contains("a directory in an existing one"), "{said}");
    assert!(!orphan.parent().unwrap().exists());
}

/// A child that opens a name in every way, and reports what each way says.
fn say_open(arguments: &[String]) {
    let name = arguments[0].as_str();
    let answers: [ndarray_shm::Result<()>; 6] = [
        SharedArray::<u8, _>::open(name, 4).map(drop),
        SharedArray::<u8, Ix1>::open_dyn(name).map(drop),
        ArrayReader::<u8, _>::open(name, 4).map(drop),
        ArrayWriter::<u8, _>::open(name, 4).map(drop),
        RefcountedArray::<u8, Ix1>::open(name).map(drop),
        Arena::open(name).map(drop),
    ];
    for answer in answers {
        let error = answer.expect_err("it is nowhere, or elsewhere");
        say(format!("{} {error}", error.is_not_found()));
    }
    // A name in the other place is no reason not to create this one.
    let options = CreateOptions::new().mode(CreationMode::OpenOrCreate);
    say(options.create::<u8, _>(name, 4).map_or_else(|error| error.to_string(), |_| "created".to_owned()));
    say(ndarray_shm::unlink(name).expect("it was created"));
}

#[cfg(target_os = "linux")]
fn opening_names_the_other_backend_with_the_name() {
    let base = tempfile::tempdir().unwrap();
    let name = format!("ndshm-it-elsewhere-open-{}", std::process::id());
    let open = |emulate: &str| {
        let mut command = std::process::Command::new(program());
        command.env(ROLE, "say-open").arg(&name);
        command.env("EMULATE_SHM", emulate).env("NDSHM_EMULATED_DIR", base.path());
        let mut child = Child::spawn(command);
        let said: Vec<String> = (0..6).map(|_| child.line()).collect();
        child.expect("created");
        child.expect("true");
        child.finish();
        said
    };
    let places = [("1", base.path()), ("0", Path::new("/dev/shm"))];
    let writable = tempfile::tempfile_in("/dev/shm").is_ok();
    for (with, other) in [(0, 1), (1, 0)] {
        let ((emulate, directory), (wrong, _)) = (places[with], places[other]);
        if !writable {
            continue;
        }
        std::fs::write(directory.join(&name), b"four").unwrap();
        for said in open(wrong) {
            assert!(said.starts_with("true ") && said.contains(&format!("EMULATE_SHM={emulate} chooses")), "{said}");
            assert!(said.contains(&format!("there is one in {}", directory.display())), "{said}");
        }
        std::fs::remove_file(directory.join(&name)).unwrap();
        for said in open(wrong) {
            assert!(said.starts_with("true ") && said.contains("no array has this name (create"), "{said}");
        }
    }
}

#[cfg(target_os = "linux")]
fn unlink_names_the_other_backend_with_the_name() {
    let base = tempfile::tempdir().unwrap();
    let name = format!("ndshm-it-elsewhere-{}", std::process::id());
    let unlink = |emulate: &str| {
        let mut command = std::process::Command::new(program());
        command.env(ROLE, "say-unlink").arg(&name);
        command.env("EMULATE_SHM", emulate).env("NDSHM_EMULATED_DIR", base.path());
        Child::spawn(command).line()
    };
    let places = [("1", base.path()), ("0", Path::new("/dev/shm"))];
    let writable = tempfile::tempfile_in("/dev/shm").is_ok();
    for (with, other) in [(0, 1), (1, 0)] {
        let ((emulate, directory), (wrong, _)) = (places[with], places[other]);
        if emulate == "0" && !writable {
            continue;
        }
        std::fs::write(directory.join(&name), b"x").unwrap();
        let said = unlink(wrong);
        assert!(said.starts_with("true ") && said.contains(&format!("EMULATE_SHM={emulate} chooses")), "{said}");
        assert!(said.contains(&format!("there is one in {}", directory.display())), "{said}");
        assert!(directory.join(&name).exists());
        assert_eq!(unlink(emulate), "true", "the name is removed");
        assert_eq!(unlink(emulate), "false", "no backend has the name");
    }
}

#[cfg(unix)]
fn emulated_directory_open_to_other_users_is_refused() {
    let base = tempfile::tempdir().unwrap();
    let (open, link) = (base.path().join("open"), base.path().join("link"));
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    std::os::unix::fs::symlink(base.path(), &link).unwrap();
    for (directory, reason) in [(&open, "other users can write"), (&link, "symbolic link")] {
        let said = backend_with(Some("1"), directory, &[]);
        assert!(said.contains("permission denied") && said.contains(reason), "{said}");
    }
}
