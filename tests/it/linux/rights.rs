//! Who may do what: permission bits, other users, and files that are none.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::Command;
use std::sync::Arc;

use libtest_mimic::Trial;
use ndarray_shm::{ArrayOptions, Backend, CreationMode, Directory, Error};

use crate::support::child::{self, Child, ROLE, Role, say};
use crate::support::{Name, Place};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "linux",
        "rights",
        tests![
            permissions_are_exact,
            links_and_devices_are_not_arrays,
            files_of_others_are_refused_with_owner_and_mode
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[("open-as-stranger", open_as_stranger)];

fn permissions_are_exact(place: &Place) {
    let name = place.location("permissions");
    let mode = |name: &Name| std::fs::metadata(place.path(name)).unwrap().mode();
    drop(place.options::<u8, _>().create(name.location(), 4).unwrap());
    assert_eq!(mode(&name) & 0o7777, 0o600);
    let shared = place.location("permissions-shared");
    drop(place.options::<u8, _>().permissions(0o666).create(shared.location(), 4).unwrap());
    let arena = place.location("permissions-arena");
    let options = ndarray_shm::Arena::options().backend(place.backend.clone()).permissions(0o6660).keep(true);
    drop(options.create(arena.location(), 1).unwrap());
    assert_eq!(mode(&arena) & 0o7777, 0o660, "bits that change whom a program runs as are left out");
    assert_eq!(mode(&shared) & 0o7777, 0o666, "whatever the umask");
}

fn links_and_devices_are_not_arrays(place: &Place) {
    let (link, fifo) = (place.location("link"), place.location("fifo"));
    let target = place.location("target");
    place.options::<u8, _>().create(target.location(), 4).unwrap();
    symlink(place.path(&target), place.path(&link)).unwrap();
    assert!(Command::new("mkfifo").arg(place.path(&fifo)).status().unwrap().success());
    let cases = [(&link, "a symbolic link"), (&fifo, "a device, pipe or socket")];
    for (name, what) in cases {
        let options = || place.options::<u8, _>();
        for outcome in [
            options().open(name.location(), 4),
            options().open_readonly(name.location(), 4),
            options().create(name.location(), 4),
            options().mode(CreationMode::Replace).create(name.location(), 4),
        ] {
            let error = outcome.unwrap_err();
            assert!(matches!(error, Error::NotAnArray { found, .. } if found == what), "{what}: {error}");
        }
        assert!(matches!(place.backend.unlink(name.location(), None), Err(Error::NotAnArray { .. })));
    }
    std::fs::remove_file(place.path(&link)).unwrap();
    std::fs::remove_file(place.path(&fifo)).unwrap();
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
    let me = std::fs::metadata("/proc/self").unwrap().uid();
    let name = place.location("permissions");
    let options = place.options::<u8, _>().permissions(0o444);
    let array = options.create_with(name.location(), 4, |mut view| view.fill(3)).unwrap();
    let directory = place.directory().display().to_string();
    let program = place.location("program");
    let stranger = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    if me == 0 {
        // A stranger must be able to reach the directory, which is this user's.
        let mode = std::fs::metadata(place.directory()).unwrap().permissions().mode();
        std::fs::set_permissions(place.directory(), Permissions::from_mode(mode | 0o055)).unwrap();
    }
    let reach = Command::new("setpriv").args(stranger).args(["test", "-x", &directory]).output();
    let mut command = Command::new("setpriv");
    if reach.is_ok_and(|output| output.status.success()) {
        // Copied by another process: a descriptor of ours would be in every child that is just being spawned, and what
        // somebody may write to cannot be executed.
        let copy = place.path(&program);
        let copied = Command::new("install").args(["-m", "755"]).arg(child::program()).arg(&copy).status().unwrap();
        assert!(copied.success());
        command.args(stranger).arg(copy);
    } else {
        // Where nobody can become a stranger, or reach so far: this very user, who even as root may not do everything
        // then.
        command.args(["--bounding-set=-all", "--inh-caps=-all"]).arg(child::program());
        if me != 0 {
            command = Command::new(child::program());
        }
    }
    command.env(ROLE, "open-as-stranger").args([name.as_str(), &directory]);
    let mut child = Child::spawn(command);
    child.expect(&format!("denied {me} 444"));
    child.expect("12");
    child.finish();
    assert!(array.unlink().unwrap(), "the owner can remove what nobody can write to");
}
