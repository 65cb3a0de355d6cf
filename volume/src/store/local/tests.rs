//! Tests of the local store: the promises of every store, and those of files.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use super::{LocalStore, beside, name_without_links, open, version_of_read};
use crate::store::conformance::{self, noise};
use crate::store::{Store, StoredVersion};

#[test]
fn directory_keeps_every_promise() {
    let directory = tempfile::tempdir().expect("a directory");
    let opens: [fn(&std::path::Path) -> LocalStore; 2] = [LocalStore::new, LocalStore::durable];
    for (root, open) in ["", "not yet/there", "other/place"].iter().zip(opens.iter().cycle()) {
        let root = directory.path().join(root);
        let store = open(&root);
        assert!(!store.is_remote());
        conformance::writes(&store);
        conformance::reads(&store);
        conformance::is_replaced_in_one_step(&store, 200);
        for name in ["0", "c", "info"] {
            let path = root.join(name);
            if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.expect("removing");
        }
        assert_eq!(fs::read_dir(&root).expect("the root").count(), 0, "nothing else was left");
    }
}

#[test]
fn first_writer_gets_the_name_without_links() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("info");
    let [first, second] = [b"first", b"other"].map(|bytes| beside(&path, bytes, false).expect("a file beside it"));
    name_without_links(&first, &path).expect("nothing has the name");
    let error = name_without_links(&second, &path).expect_err("something has it");
    assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&path).expect("it is there"), b"first");
    assert!(second.is_file() && !first.exists());
}

#[test]
fn special_files_are_errors_that_name_them() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = LocalStore::new(directory.path());
    fs::create_dir(directory.path().join("group")).expect("a group");
    let mut names = vec!["group"];
    if cfg!(unix) {
        let made = Command::new("mkfifo").arg(directory.path().join("pipe")).status().expect("mkfifo");
        assert!(made.success());
        names.push("pipe");
    }
    let begin = Instant::now();
    for name in names {
        let path = directory.path().join(name).display().to_string();
        for error in [
            store.get(name).expect_err(name),
            store.get_range(name, 0..1).expect_err(name),
            store.get_suffix(name, 1).expect_err(name),
            store.size(name).expect_err(name),
            store.version(name).expect_err(name),
        ] {
            assert!(error.to_string().contains(&path), "{error}");
        }
    }
    let error = store.put("group", vec![1], false).expect_err("a directory is in its place");
    assert!(error.to_string().contains("group"), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(30), "a pipe was waited for");
    assert_eq!(store.list("").expect("the root")[0], "group/");
    fs::write(directory.path().join("info"), "x").expect("a file");
    let error = store.put("info/below", vec![1], false).expect_err("a file is in its way");
    assert!(error.to_string().contains("below"), "{error}");
    assert!(
        !fs::read_dir(directory.path())
            .expect("the root")
            .any(|entry| { entry.expect("an entry").file_name().to_string_lossy().contains("partial") })
    );
}

#[test]
fn packed_sibling_counts_only_without_a_plain_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = LocalStore::new(directory.path());
    fs::write(directory.path().join("a.gz"), "packed").expect("a file");
    assert!(store.get("a").expect("reading").is_some_and(|object| object.gzip && object.bytes == b"packed"));
    assert_eq!(store.list("").expect("the root"), ["a"]);
    fs::write(directory.path().join("a"), "plain").expect("a file");
    assert!(store.get("a").expect("reading").is_some_and(|object| !object.gzip && object.bytes == b"plain"));
    assert_eq!(store.size("a").expect("its size"), Some(5));
    assert_eq!(store.list("").expect("the root"), ["a"]);
    assert!(store.delete("a").expect("removing"));
    assert_eq!(fs::read_dir(directory.path()).expect("the root").count(), 0);
}

#[test]
fn file_that_changes_while_it_is_read_has_no_version() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("file");
    fs::write(&path, "first").expect("a file");
    let later = SystemTime::now() + Duration::from_mins(1);
    let (file, facts) = open(&path).expect("the file").expect("it is there");
    let version = version_of_read(&file, &facts, later).expect("its version");
    assert!(version.is_settled(), "{version:?}");
    fs::write(&path, "longer").expect("the file changes");
    assert_eq!(version_of_read(&file, &facts, later).expect("no error"), StoredVersion::Mixed);
}

/// If set, the process is the writer that is killed, in this directory.
const WRITER: &str = "STORE_TEST_WRITER";

/// The child process of the next test, not a test of its own.
#[test]
fn writes_until_it_is_killed() {
    let Some(directory) = std::env::var_os(WRITER) else { return };
    let store = LocalStore::new(directory.as_ref());
    for round in 0..u64::MAX {
        store.put("object", noise(round % 3, 3_000_000), false).expect("writing");
    }
}

#[test]
fn killed_writer_leaves_a_whole_object() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = LocalStore::new(directory.path());
    let objects: Vec<_> = (0..3).map(|round| noise(round, 3_000_000)).collect();
    store.put("object", objects[0].clone(), false).expect("the first");
    for pause in 0..8 {
        let mut writer = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "store::local::tests::writes_until_it_is_killed"])
            .env(WRITER, directory.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("a writer");
        std::thread::sleep(Duration::from_millis(150 + 13 * pause));
        writer.kill().expect("a kill");
        let ended = writer.wait().expect("its end");
        assert!(!ended.success(), "it ended by itself");
        let found = store.get("object").expect("reading").expect("it is there").bytes;
        assert!(objects.contains(&found), "a part of {} bytes", found.len());
        assert_eq!(store.list("").expect("the root"), ["object"]);
    }
    for entry in fs::read_dir(directory.path()).expect("the root") {
        let name = entry.expect("an entry").file_name().into_string().expect("text");
        assert!(name == "object" || name.starts_with(".ndshm-") && name.ends_with(".partial"), "{name}");
    }
}
