//! Files of other programs: which are removed, and which never are.

use std::fs::{self, File, OpenOptions};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use ndarray_shm::foreign::{self, Finding, Sweep, Swept};
use ndarray_shm::render::RenderOptions;
use ndarray_shm::{Directory, ErrorKind};
use rustix::fs::fcntl_lock;

use super::sandbox::unless;
use crate::support::child::{Child, Role, say};
use crate::support::{Place, eventually};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    if place.name != "shm" {
        // A lease counts on tmpfs only.
        return if place.name == "emulated" {
            place.trials("linux", "foreign", tests![files_of_other_file_systems_stay])
        } else {
            Vec::new()
        };
    }
    let is_root = rustix::process::geteuid().is_root();
    let users = place.trials("linux", "foreign", tests![files_of_another_user_need_its_number]);
    let mut trials = unless("only root can be two users", is_root, users);
    trials.extend(place.trials(
        "linux",
        "foreign",
        tests![
            every_way_of_holding_a_file_keeps_it,
            only_old_unused_regular_files_with_one_name_go,
            our_own_files_are_no_foreign_ones,
            nothing_that_lives_is_removed_in_a_race,
            joblib_folder_goes_only_after_its_process,
            missing_directory_is_an_error,
        ],
    ));
    trials
}

pub const ROLES: &[(&str, Role)] = &[("foreign-hold", hold), ("foreign-churn", churn)];

/// How a child holds a file.
const WAYS: [&str; 6] = ["open", "mapped", "mapped read-only", "in flight", "leased", "locked"];

/// Writes a file by another program. Children of this process that are between fork and exec have all its descriptors,
/// and a file that it has just written would be in use.
pub fn write(path: &Path, bytes: usize) {
    let script = "head -c \"$1\" /dev/zero > \"$0\"";
    let status = Command::new("sh").args(["-c", script]).arg(path).arg(bytes.to_string()).status();
    assert!(status.unwrap().success());
}

fn sweep(place: &Place) -> Swept {
    Sweep::new().older_than(Duration::ZERO).run(&place.backend, |_, _| true).unwrap()
}

/// Sweeps until no file seems to be in use. A child of this process that is between fork and exec may have the
/// descriptors of an earlier look.
fn sweep_unheld(place: &Place, options: Sweep) -> Swept {
    let mut swept = Swept::default();
    eventually("no file is in use", || {
        let more = options.run(&place.backend, |_, _| true).unwrap();
        swept.removed.extend(more.removed);
        swept.kept = more.kept;
        swept.kept.iter().all(|file| file.finding != Finding::InUse)
    });
    swept
}

/// Returns what was found about the only file of a directory.
fn finding(place: &Place) -> Finding {
    let found = foreign::list(&place.backend).unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].finding
}

/// A child that holds a file in one of the ways, until it is killed.
#[allow(unsafe_code)]
fn hold(arguments: &[String]) {
    let [way, path] = [0, 1].map(|at: usize| arguments[at].as_str());
    let file = OpenOptions::new().read(true).write(way != "mapped read-only" && way != "leased").open(path).unwrap();
    match way {
        "mapped" => {
            let map = memmap2::MmapOptions::new().len(4096).map_raw(&file).unwrap();
            drop(file);
            wait(&map)
        }
        "mapped read-only" => {
            let map = memmap2::MmapOptions::new().len(4096).map_raw_read_only(&file).unwrap();
            drop(file);
            wait(&map)
        }
        "in flight" => {
            let (from, to) = std::os::unix::net::UnixStream::pair().unwrap();
            send(&from, &file);
            drop(file);
            wait(&(from, to))
        }
        "leased" => {
            // SAFETY: no handler is installed.
            unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
            let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
            // SAFETY: the descriptor is open, and the command takes a number.
            let leased = unsafe { libc::fcntl(descriptor, libc::F_SETLEASE, libc::F_WRLCK) };
            assert_eq!(leased, 0, "{}", std::io::Error::last_os_error());
            wait(&file)
        }
        "locked" => {
            fcntl_lock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
            wait(&file)
        }
        _ => wait(&file),
    }
}

fn wait<T>(held: &T) -> ! {
    say("ready");
    loop {
        std::thread::park();
        std::hint::black_box(held);
    }
}

/// Sends a descriptor that is never received.
fn send(socket: &std::os::unix::net::UnixStream, file: &File) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = SendAncillaryBuffer::new(&mut room);
    let files = [file.as_fd()];
    assert!(message.push(SendAncillaryMessage::ScmRights(&files)));
    sendmsg(socket, &[IoSlice::new(b"x")], &mut message, SendFlags::empty()).unwrap();
}

fn every_way_of_holding_a_file_keeps_it(place: &Place) {
    for way in WAYS {
        for stopped in [false, true] {
            let place = place.private();
            let path = place.directory().join("psm_x");
            write(&path, 5000);
            let mut child = Child::start(&place, "foreign-hold", &[way, path.to_str().unwrap()]);
            child.expect("ready");
            if stopped {
                child.stop();
            }
            assert_eq!(finding(&place), Finding::InUse, "{way}");
            let swept = sweep(&place);
            assert!(swept.removed.is_empty() && swept.failed.is_empty(), "{way}: {swept:?}");
            assert!(matches!(&swept.kept[..], [file] if file.finding == Finding::InUse), "{way}, {stopped}: {swept:?}");
            child.kill();
            eventually("the file is unused", || finding(&place) == Finding::Unused);
            let swept = sweep_unheld(&place, Sweep::new().older_than(Duration::ZERO));
            assert!(matches!(&swept.removed[..], [file] if file.len == 5000), "{way}: {swept:?}");
            assert!(!path.exists(), "{way}");
        }
    }
}

fn only_old_unused_regular_files_with_one_name_go(place: &Place) {
    let place = place.private();
    let at = |name: &str| place.directory().join(name);
    write(&at("psm_a"), 1);
    write(&at("psm_b"), 1);
    // The time of the last modification can be set. That of the change counts too.
    assert!(Command::new("touch").args(["-d", "@0"]).arg(at("psm_a")).status().unwrap().success());
    symlink(at("psm_a"), at("psm_link")).unwrap();
    fs::create_dir(at("psm_folder")).unwrap();
    fs::write(at("psm_folder").join("x"), "x").unwrap();
    assert!(Command::new("mkfifo").arg(at("psm_fifo")).status().unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(at("psm_socket")).unwrap();
    let before = place.everything();

    let young = Sweep::new().run(&place.backend, |_, _| true).unwrap();
    assert!(young.removed.is_empty() && young.kept.iter().all(|file| file.finding == Finding::Young), "{young:?}");
    let since = Sweep::new().older_than(Duration::ZERO).before(std::time::UNIX_EPOCH);
    assert_eq!(since.run(&place.backend, |_, _| true).unwrap().kept.len(), 2);
    let dry = Sweep::new().older_than(Duration::ZERO).dry_run(true);
    eventually("one would be removed", || {
        let found = dry.run(&place.backend, |name, _| name == "psm_a").unwrap();
        (found.removed.len(), found.kept.len()) == (1, 0)
    });
    assert_eq!(place.everything(), before);

    // Two names for one file: the other one may matter.
    fs::hard_link(at("psm_b"), at("psm_c")).unwrap();
    let swept = sweep_unheld(&place, Sweep::new().older_than(Duration::ZERO));
    let names: Vec<&str> = swept.removed.iter().map(|file| file.name.as_str()).collect();
    assert_eq!((names, swept.kept.len()), (vec!["psm_a"], 2), "{swept:?}");
    assert!(swept.kept.iter().all(|file| file.finding == Finding::Changed));
    let mut left: Vec<String> = fs::read_dir(place.directory())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["psm_b", "psm_c", "psm_fifo", "psm_folder", "psm_link", "psm_socket"]);
    assert!(at("psm_folder").join("x").exists());
}

fn our_own_files_are_no_foreign_ones(place: &Place) {
    let place = place.private();
    place.options().create::<u8, _>("plain", 10_000).unwrap();
    place.options().create_counted::<u8, _>("counted", 10).unwrap().keep().unwrap();
    let render = RenderOptions::new().directory(place.backend.clone());
    drop(render.create::<u8, _>("half", 4096, 4096, "a test").unwrap());
    place.options().create::<u8, _>("ndshm-named-as-ours", 10).unwrap();
    let before = place.everything();
    let swept = sweep(&place);
    let is_described = foreign::can_tell_ours(&place.backend).unwrap();
    if is_described {
        assert!(swept.removed.is_empty() && swept.kept.iter().all(|file| file.finding == Finding::Ours), "{swept:?}");
        assert_eq!(place.everything(), before);
    }
    assert!(swept.removed.iter().all(|file| file.name == "plain"), "{swept:?}");
    let options = Sweep::new().older_than(Duration::ZERO).ours(true);
    let held = place.open_options().open_counted::<u8, ndarray::Ix1>("counted").unwrap();
    // Children of this process may have its descriptors for a moment.
    let left_after_sweep = || {
        options.run(&place.backend, |_, _| true).unwrap();
        place.everything()
    };
    eventually("only the array with a process is left", || left_after_sweep() == ["counted"]);
    drop(held);
    eventually("nothing is left", || left_after_sweep().is_empty());
}

/// A child that creates, replaces and unlinks one name, and holds each file for a moment. It reports how many of its
/// files had gone before it opened them, and ends if one disappears while it holds it.
fn churn(arguments: &[String]) {
    let directory = Path::new(&arguments[0]);
    let (name, new) = (directory.join("psm_x"), directory.join(format!("psm_new-{}", std::process::id())));
    let (start, mut late, mut held) = (Instant::now(), 0, 0_u64);
    while start.elapsed() < Duration::from_millis(1500) {
        held += 1;
        let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&name);
        match held % 3 {
            0 => {
                let Ok(file) = open() else { continue };
                // Unlinked or replaced before this process had it.
                late += u64::from(file.metadata().unwrap().nlink() == 0);
            }
            1 => {
                // No other child uses this name, so that only the sweep could remove it.
                // The sweep moves a name aside for a moment, so that removing it may have failed.
                let Ok(file) = OpenOptions::new().read(true).write(true).create_new(true).open(&new) else {
                    let _ = fs::remove_file(&new);
                    continue;
                };
                // Within open(2) the name appears before the kernel counts the description. This sweep has no least
                // age, so that it may remove the name in between. Once open(2) has returned, it may not.
                if file.metadata().unwrap().nlink() == 0 {
                    late += 1;
                    continue;
                }
                let map = memmap2::MmapOptions::new().len(4096).map_raw(&file).unwrap();
                let id = file.metadata().unwrap().ino();
                if held % 2 == 0 {
                    drop(file);
                }
                eventually("a mapped file keeps its name", || fs::metadata(&new).is_ok_and(|facts| facts.ino() == id));
                drop(map);
            }
            _ => {
                let file = File::create(&new).unwrap();
                fs::rename(&new, &name).ok();
                drop(file);
            }
        }
        let _ = fs::remove_file(&new); // the sweep may have removed it by now
    }
    say(format!("{held} {late}"));
}

fn nothing_that_lives_is_removed_in_a_race(place: &Place) {
    let place = place.private();
    let directory = place.directory().to_str().unwrap().to_owned();
    let mut children = [0, 1].map(|_| Child::start(&place, "foreign-churn", &[&directory]));
    // This file is held all the time.
    let path = place.directory().join("psm_held");
    let held = OpenOptions::new().read(true).write(true).create_new(true).custom_flags(0).open(&path).unwrap();
    let (start, mut removed) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_millis(1500) {
        let swept = sweep(&place);
        // Twice replaced within microseconds: it keeps a hidden name.
        let is_replaced = |name: &str| name == "psm_x";
        assert!(swept.failed.iter().all(|(file, _)| is_replaced(&file.name)), "{:?}", swept.failed);
        removed += swept.removed.len();
    }
    let done: Vec<String> = children.iter_mut().map(Child::line).collect();
    children.into_iter().for_each(Child::finish);
    assert_eq!(held.metadata().unwrap().nlink(), 1);
    println!("{removed} removed while the children held files: {done:?}");
    assert!(removed > 0);
}

fn files_of_another_user_need_its_number(place: &Place) {
    let place = place.private();
    fs::set_permissions(place.directory(), fs::Permissions::from_mode(0o777)).unwrap();
    let path = place.directory().join("psm_x");
    write(&path, 1);
    std::os::unix::fs::chown(&path, Some(4711), None).unwrap();
    let swept = sweep(&place);
    assert_eq!(swept.kept[0].finding, Finding::OtherUser);
    let options = Sweep::new().older_than(Duration::ZERO).user(4711);
    assert_eq!(sweep_unheld(&place, options).removed.len(), 1);
}

fn joblib_folder_goes_only_after_its_process(place: &Place) {
    let place = place.private();
    let mut child = Child::start(&place, "foreign-hold", &["open", "/dev/null"]);
    child.expect("ready");
    let folder = place.directory().join(format!("joblib_memmapping_folder_{}_a_b", child.id()));
    fs::create_dir(&folder).unwrap();
    write(&folder.join("1.pkl"), 1);
    let other = place.directory().join("joblib_memmapping_folder_x_a");
    fs::create_dir(&other).unwrap();
    let knows_numbers = fs::read_link("/proc/self/ns/pid").unwrap() == Path::new("pid:[4026531836]");
    let expected = if knows_numbers { Finding::CreatorAlive } else { Finding::UnknownCreator };
    for file in foreign::list(&place.backend).unwrap() {
        assert_eq!(file.finding, expected, "{file:?}");
    }
    assert_eq!(sweep(&place).kept.len(), 2);
    child.kill();
    if !knows_numbers {
        assert!(sweep(&place).removed.is_empty());
        return;
    }
    let options = Sweep::new().older_than(Duration::ZERO);
    // A worker still has the file.
    let held = File::open(folder.join("1.pkl")).unwrap();
    let swept = options.run(&place.backend, |_, _| true).unwrap();
    assert!(swept.removed.is_empty() && swept.kept.iter().all(|file| file.finding == Finding::InUse), "{swept:?}");
    drop(held);
    eventually("the folder is removed", || {
        options.run(&place.backend, |_, _| true).unwrap();
        !folder.exists()
    });
    assert!(other.exists());
}

fn files_of_other_file_systems_stay(place: &Place) {
    let place = place.private();
    write(&place.directory().join("psm_x"), 1);
    let found = finding(&place);
    let kind = rustix::fs::statfs(place.directory()).unwrap().f_type;
    if kind == 0x0102_1994 {
        assert_eq!(found, Finding::Unused, "TMPDIR is on tmpfs");
    } else {
        assert_eq!(found, Finding::Unsupported);
        assert_eq!(sweep(&place).kept[0].finding, Finding::Unsupported);
    }
}

fn missing_directory_is_an_error(place: &Place) {
    let missing = Directory::new("missing", place.directory().join("ndshm-it-no-such-directory"));
    assert_eq!(foreign::list(&missing).unwrap_err().kind, ErrorKind::NoDirectory);
    assert_eq!(Sweep::new().run(&missing, |_, _| true).unwrap_err().kind, ErrorKind::NoDirectory);
    let is_machine = foreign::not_the_containers(&place.backend).unwrap();
    println!("{is_machine:?}, started {:?}", foreign::start_of_container());
}
