//! Access rights: permission bits, other users, and names that are links or devices.

use std::fs::Permissions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::backend::{Backend, Publish};
use ndarray_shm::stream::{self, Backpressure, StreamOptions, StreamWriter};
use ndarray_shm::{Access, CreationMode, Directory, Error, ErrorKind, OpenOptions};

use super::sandbox::unless;
use crate::support::child::{self, Child, ROLE, Role, say};
use crate::support::{Name, Place};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    let is_root = rustix::process::geteuid().is_root();
    let strangers = place.trials("linux", "rights", tests![reader_of_another_user_keeps_no_writer_out]);
    let mut trials = unless("only root can be two users", is_root, strangers);
    trials.extend(place.trials(
        "linux",
        "rights",
        tests![
            permissions_are_exact,
            links_and_devices_are_not_arrays,
            foreign_files_are_refused_with_owner_and_mode,
            read_locks_delay_the_owner_for_a_limited_time,
        ],
    ));
    trials
}

pub const ROLES: &[(&str, Role)] =
    &[("open-as-stranger", open_as_stranger), ("keep-read-locks", keep_read_locks), ("lock-a-stream", lock_a_stream)];

fn permissions_are_exact(place: &Place) {
    let name = place.location("permissions");
    let mode = |name: &Name| std::fs::metadata(place.path(name)).unwrap().mode();
    drop(place.options().create::<u8, _>(name.location(), 4).unwrap());
    assert_eq!(mode(&name) & 0o7777, 0o600);
    let shared = place.location("permissions-shared");
    drop(place.options().permissions(0o666).create::<u8, _>(shared.location(), 4).unwrap());
    let arena = place.location("permissions-arena");
    let options = place.arena_options().permissions(0o6660).keep(true);
    drop(options.create(arena.location(), 1).unwrap());
    assert_eq!(mode(&arena) & 0o7777, 0o660, "bits that change the user of a program are left out");
    assert_eq!(mode(&shared) & 0o7777, 0o666, "whatever the umask");
}

fn links_and_devices_are_not_arrays(place: &Place) {
    let (link, fifo) = (place.location("link"), place.location("fifo"));
    let target = place.location("target");
    place.options().create::<u8, _>(target.location(), 4).unwrap();
    symlink(place.path(&target), place.path(&link)).unwrap();
    assert!(Command::new("mkfifo").arg(place.path(&fifo)).status().unwrap().success());
    let cases = [(&link, "a symbolic link"), (&fifo, "a device, pipe or socket")];
    for (name, what) in cases {
        let options = || place.options();
        for outcome in [
            place.open_options().open::<u8, _>(name.location(), 4),
            place.open_options().access(Access::Read).open::<u8, _>(name.location(), 4),
            options().create::<u8, _>(name.location(), 4),
            options().mode(CreationMode::Replace).create::<u8, _>(name.location(), 4),
        ] {
            let error = outcome.unwrap_err();
            assert!(
                matches!(error, Error { kind: ErrorKind::NotAnArray { found, .. }, .. } if found == what),
                "{what}: {error}"
            );
        }
        assert!(matches!(place.backend.unlink(name.location()), Err(Error { kind: ErrorKind::NotAnArray { .. }, .. })));
    }
    std::fs::remove_file(place.path(&link)).unwrap();
    std::fs::remove_file(place.path(&fifo)).unwrap();
}

/// A child that opens an array with the rights of its user, and reports the result.
fn open_as_stranger(arguments: &[String]) {
    let backend: Directory = Directory::new("given", &arguments[1]);
    let options = || OpenOptions::new().directory(backend.clone());
    match options().open::<u8, _>(arguments[0].as_str(), 4) {
        Err(Error { kind: ErrorKind::PermissionDenied { owner, mode, .. }, .. }) => {
            say(format!("denied {owner} {mode:03o}"));
        }
        other => say(format!("{:?}", other.map(|array| array.len()))),
    }
    match options().access(Access::Read).open::<u8, _>(arguments[0].as_str(), 4) {
        Ok(array) => say(array.read().unwrap().sum()),
        Err(error) => say(error),
    }
}

/// Starts a role as another user. Where that is impossible, starts it as this user, without capabilities if this user
/// is root. `program` is the name for a copy of this program that the other user can execute.
pub fn as_stranger(place: &Place, program: &Name, role: &str, arguments: &[&str]) -> Child {
    let me = std::fs::metadata("/proc/self").unwrap().uid();
    let directory = place.directory().display().to_string();
    let stranger = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    if me == 0 {
        // The other user must be able to reach this user's directory.
        let mode = std::fs::metadata(place.directory()).unwrap().permissions().mode();
        std::fs::set_permissions(place.directory(), Permissions::from_mode(mode | 0o055)).unwrap();
    }
    let reach = Command::new("setpriv").args(stranger).args(["test", "-x", &directory]).output();
    let mut command = Command::new("setpriv");
    if reach.is_ok_and(|output| output.status.success()) {
        let copy = place.path(program);
        child::copy_program(&copy);
        command.args(stranger).arg(copy);
    } else {
        command.args(["--bounding-set=-all", "--inh-caps=-all"]).arg(child::program());
        if me != 0 {
            command = Command::new(child::program());
        }
    }
    command.env(ROLE, role).args(arguments);
    Child::spawn(command)
}

fn foreign_files_are_refused_with_owner_and_mode(place: &Place) {
    let me = std::fs::metadata("/proc/self").unwrap().uid();
    let name = place.location("permissions");
    let options = place.options().permissions(0o444);
    let array = options.create_with::<u8, _>(name.location(), 4, |mut view| view.fill(3)).unwrap();
    let directory = place.directory().display().to_string();
    let program = place.location("program");
    let mut child = as_stranger(place, &program, "open-as-stranger", &[name.as_str(), &directory]);
    child.expect(&format!("denied {me} 444"));
    child.expect("12");
    child.finish();
    assert!(array.unlink().unwrap(), "the owner can remove an array that no user can write to");
}

/// Holds every lock that a process with only read access can take: read locks on NAME and GATE, and the exclusive
/// `flock`.
fn keep_read_locks(arguments: &[String]) {
    let file = std::fs::File::open(&arguments[0]).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    read_lock(&file, 1 << 62 | 1, 2);
    say("kept");
    child::hear();
}

/// Read-locks a range of the lock space.
#[allow(unsafe_code)]
fn read_lock(file: &std::fs::File, start: i64, length: i64) {
    // SAFETY: every field is an integer.
    let mut lock = unsafe { std::mem::zeroed::<libc::flock64>() };
    (lock.l_type, lock.l_start, lock.l_len) = (libc::F_RDLCK as _, start, length);
    // SAFETY: the descriptor is open, and the command reads one such structure.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) }, 0);
}

fn read_locks_delay_the_owner_for_a_limited_time(place: &Place) {
    let place = &place.private();
    let program = place.location("program");
    let names = ["written", "replaced", "removed", "renamed"].map(|label| place.location(label));
    let options = || place.options().permissions(0o644);
    let [written, replaced, removed, renamed] =
        names.each_ref().map(|name| options().create::<u8, _>(name.location(), 4).unwrap());
    let keepers = names.each_ref().map(|name| {
        let path = place.path(name).display().to_string();
        let mut keeper = as_stranger(place, &program, "keep-read-locks", &[&path]);
        keeper.expect("kept");
        keeper
    });
    std::thread::scope(|scope| {
        scope.spawn(|| written.write().unwrap().fill(1));
        scope.spawn(|| {
            let new = options().mode(CreationMode::Replace).create::<u8, _>(names[1].location(), 5).unwrap();
            assert_eq!(new.len(), 5);
        });
        scope.spawn(|| {
            assert!(removed.unlink().unwrap());
            assert!(!place.has(&names[2]));
        });
    });
    let other = place.location("other");
    let to = other.location();
    let id = place.backend.list().unwrap().iter().find(|entry| entry.name == names[3].as_str()).unwrap().id;
    let error = place.backend.rename_within(names[3].location(), to, id, Publish::New, Duration::ZERO).unwrap_err();
    assert!(
        matches!(error.kind, ErrorKind::TimedOut { .. }),
        "a rename without the name lock could move another file: {error}"
    );
    assert_eq!(place.hidden_drafts(), 0);
    drop((replaced, renamed, keepers));
}

/// Reads a stream of another user, and then locks every byte of it that it can.
fn lock_a_stream(arguments: &[String]) {
    let (path, name) = arguments[0].rsplit_once("/.ndshm-frames-").unwrap();
    let options = StreamOptions::new().directory(Directory::new("given", path));
    let mut reader = options.open::<u8, Ix1>(name).unwrap();
    let frame = reader.next_wait(Duration::from_secs(60)).unwrap();
    let cursor = options.open_cursor::<u8, Ix1>(name, "mine", Backpressure::Wait).unwrap_err();
    let writer = options.resume(true).create::<u8, Ix1>(name, 4, 4).unwrap_err();
    let denied = |error: &Error| matches!(error.kind, ErrorKind::PermissionDenied { .. });
    say(format!("{} {} {}", frame.view()[3], denied(&cursor), denied(&writer)));
    child::hear();
    drop(frame);
    let file = std::fs::File::open(&arguments[0]).unwrap();
    let (base, writer) = (1 << 62, (1 << 62) + 5);
    read_lock(&file, base, 5);
    read_lock(&file, writer + 1, i64::MAX - writer - 1);
    say("locked");
    child::hear();
    read_lock(&file, writer, 1); // the last writer has ended
    say("locked");
    child::hear();
}

fn reader_of_another_user_keeps_no_writer_out(place: &Place) {
    let place = &place.private();
    let (program, name) = (place.location("program"), place.location("seen"));
    let options = || StreamOptions::new().directory(place.backend.clone()).permissions(0o644).keep(true);
    let create = || options().resume(true).create::<u8, Ix1>(name.location(), 4, 4);
    let add = |writer: &mut StreamWriter<u8, Ix1>| {
        let mut frame = writer.frame()?;
        frame.view_mut().fill(7);
        frame.commit()
    };
    let mut writer = create().unwrap();
    add(&mut writer).unwrap();
    let path = place.backend.path().join(format!(".ndshm-frames-{}", name.as_str())).display().to_string();
    let mut stranger = as_stranger(place, &program, "lock-a-stream", &[&path]);
    stranger.expect("7 true true");
    for _ in 0..9 {
        add(&mut writer).unwrap();
    }
    let place_of = (&place.backend, name.location());
    assert_eq!(stream::inspect(place_of.0, place_of.1).unwrap().holders, [stranger.id()], "it holds the first frame");
    stranger.tell("lock");
    stranger.expect("locked");
    let held = add(&mut writer).unwrap_err();
    assert!(matches!(held.kind, ErrorKind::SlotsHeld { slots: 4, .. }), "{held}");
    // What excludes writers is in the keeper, which the stranger cannot open.
    assert!(matches!(create().unwrap_err().kind, ErrorKind::HasWriter));
    drop(writer);
    stranger.tell("lock");
    stranger.expect("locked");
    let mut next = create().unwrap();
    assert_eq!((next.epoch(), next.head()), (2, 10));
    assert!(matches!(add(&mut next).unwrap_err().kind, ErrorKind::SlotsHeld { .. }));
    let reader = options().open::<u8, Ix1>(name.location()).unwrap();
    assert_eq!(reader.has_writer().unwrap(), None, "a lock of the stranger hides it");
    stranger.kill();
    assert_eq!(add(&mut next).unwrap(), 11);
    drop(next);
    assert!(stream::unlink(place_of.0, place_of.1).unwrap());
    assert_eq!(place.everything(), [program.as_str()]);
}
