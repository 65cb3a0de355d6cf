//! Sockets with a path: which process gets the path, and which files remain.

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};

use super::*;
use crate::os::sockets::testing::no_children;

fn late() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn greet(listener: &Listener, path: &Path) {
    let from = connect(path, Some(late())).unwrap();
    let to = listener.accept(Some(late())).unwrap();
    assert_eq!(from.send(&[io::IoSlice::new(b"hello")], &[], Some(late())).unwrap(), 5);
    let mut greeting = [0; 8];
    assert_eq!(to.receive(&mut greeting, Some(late())).unwrap(), 5);
    assert_eq!(&greeting[..5], b"hello");
    assert_eq!(to.peer().unwrap().user, user_id());
}

#[test]
fn connection_is_accepted_and_name_ends_with_listener() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    assert_eq!(connect(&path, Some(late())).unwrap_err().kind(), ErrorKind::NotFound);
    let listener = listen(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    greet(&listener, &path);
    let begin = Instant::now();
    let none = listener.accept(Some(begin + Duration::from_millis(20))).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::TimedOut);
    assert!(begin.elapsed() >= Duration::from_millis(20));
    drop(listener);
    assert!(!path.exists());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left");
}

#[test]
fn long_path_works_on_linux_or_fails_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let deep = directory.path().join("a".repeat(100)).join("b".repeat(100));
    std::fs::create_dir_all(&deep).unwrap();
    let path = deep.join("socket");
    if THROUGH_PROC {
        let listener = listen(&path).unwrap();
        greet(&listener, &path);
        assert_eq!(listen(&path).unwrap_err().kind(), ErrorKind::AlreadyExists);
        drop(listener);
        assert!(!path.exists());
    }
    let path = deep.join("c".repeat(200));
    for error in [listen(&path).map(drop).unwrap_err(), connect(&path, Some(late())).map(drop).unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("at most"), "{error}");
    }
}

#[test]
fn every_length_of_path_around_the_limit_works() {
    let directory = tempfile::tempdir().unwrap();
    let filler = LONGEST - 10 - directory.path().as_os_str().len();
    let parent = directory.path().join("d".repeat(filler));
    std::fs::create_dir(&parent).unwrap();
    let most = if THROUGH_PROC { LONGEST + 10 } else { LONGEST };
    for length in LONGEST - 3..=most {
        let path = parent.join("s".repeat(length - parent.as_os_str().len() - 1));
        assert_eq!(path.as_os_str().len(), length);
        greet(&listen(&path).unwrap(), &path);
    }
}

#[test]
fn abandoned_socket_is_replaced_unlike_one_in_use() {
    let _guard = no_children();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "the standard library leaves it");
    let listener = listen(&path).unwrap();
    assert_eq!(listen(&path).unwrap_err().kind(), ErrorKind::AlreadyExists);
    listener.accept(Some(late())).unwrap(); // the probe of the second `listen`
    greet(&listener, &path);
}

#[test]
fn other_files_at_the_path_stay_and_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("there");
    let refused = |part: &str| {
        let error = listen(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(part), "{error}");
    };
    std::fs::write(&path, "mine").unwrap();
    refused("a file");
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    refused("a directory");
    std::fs::remove_dir(&path).unwrap();
    std::os::unix::fs::symlink("nowhere", &path).unwrap();
    refused("a symbolic link");
    std::fs::remove_file(&path).unwrap();
    let _datagrams = UnixDatagram::bind(&path).unwrap();
    assert_eq!(listen(&path).unwrap_err().kind(), ErrorKind::AlreadyExists);
    for nameless in ["/", "..", "", "socket/"] {
        assert_eq!(listen(Path::new(nameless)).unwrap_err().kind(), ErrorKind::InvalidInput, "{nameless:?}");
    }
}

#[test]
fn socket_of_another_user_is_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    drop(UnixListener::bind(&path).unwrap());
    let found = rustix::fs::lstat(&path).unwrap();
    may_be_replaced(&found, found.st_uid).unwrap();
    let error = may_be_replaced(&found, found.st_uid + 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(error.to_string().contains(&format!("uid {}", found.st_uid)), "{error}");
}

#[test]
fn listener_leaves_a_name_that_is_no_longer_its_own() {
    let _guard = no_children();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = listen(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let other = UnixListener::bind(&path).unwrap();
    drop(listener);
    assert!(path.exists(), "it is another's");
    drop(other);
    let mut inherited = listen(&path).unwrap();
    inherited.generation += 1; // as a forked child finds it
    drop(inherited);
    assert!(path.exists(), "the parent still listens");
}

#[test]
fn one_of_several_racing_listeners_gets_the_path() {
    let _guard = no_children();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    for _round in 0..20 {
        drop(UnixListener::bind(&path).unwrap());
        let answers: Vec<io::Result<Listener>> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..4).map(|_| scope.spawn(|| listen(&path))).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let won = answers.iter().filter(|answer| answer.is_ok()).count();
        assert_eq!(won, 1, "{answers:?}");
        let lost = answers.iter().filter_map(|answer| answer.as_ref().err());
        lost.for_each(|error| assert_eq!(error.kind(), ErrorKind::AlreadyExists));
        drop(answers);
        assert!(!path.exists());
    }
}
