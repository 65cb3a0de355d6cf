//! `gc`: what it removes, what it must keep, and what it reports about the rest.

use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use ndarray_shm::CreateOptions;
use ndarray_shm::render::RenderOptions;
use serde_json::{Value, json};

use crate::counted::{info, item, line};
use crate::holder::Holder;
#[cfg(target_os = "linux")]
use crate::scene::wait_until;
use crate::scene::{Scene, run};

/// Runs `gc` on the emulated directory.
fn gc(scene: &Scene, arguments: &[&str]) -> Value {
    let mut command = scene.ndshm(["gc", "--backend", "emulated", "--json"]);
    run(command.args(arguments)).expect_code(0).json()
}

/// Creates an orphan: a counted array. Its only user is killed.
fn orphan(scene: &Scene, name: &str) {
    Holder::create(&scene.emulated(), name, &[]).kill();
}

fn removed(report: &Value) -> Vec<&str> {
    report["removed"].as_array().expect("a list").iter().map(|gone| gone["name"].as_str().expect("text")).collect()
}

fn make_older(path: &Path, age: Duration) {
    let file = File::options().append(true).open(path).expect("there");
    file.set_modified(SystemTime::now() - age).expect("ours");
}

/// Changes a byte of the trailer that the checksum covers.
fn damage(path: &Path) {
    let mut file = File::options().write(true).open(path).expect("there");
    file.seek(SeekFrom::End(-600)).expect("long enough");
    file.write_all(&[255]).expect("written");
}

#[test]
fn gc_removes_the_orphan_and_nothing_else() {
    let scene = Scene::new();
    let place = scene.emulated();
    let living = Holder::create(&place, "living", &[]);
    let second = Holder::open(&place, "living");
    Holder::create(&place, "kept", &["keep"]).kill();
    orphan(&scene, "orphan");
    // `gc` leaves files that are not counted arrays alone, whatever their size.
    let _plain = Holder::create_plain(&place, "plain");
    Holder::create_plain(&place, "plain-of-the-dead").kill();
    fs::write(place.join("foreign"), [0; 8192]).expect("written");
    let buffer = RenderOptions::new().directory(scene.directory()).create::<u8, _>("half", 4096, 4096, "a test");
    drop(buffer.expect("created"));
    let before = scene.files();
    let bytes = item(&scene, "orphan")["allocated"].clone();

    let found = gc(&scene, &["--dry-run"]);
    assert_eq!((&found["dry_run"], removed(&found)), (&json!(true), vec!["orphan"]), "{found:#}");
    assert_eq!(scene.files(), before, "a dry run removes nothing");
    let text = run(&mut scene.ndshm(["gc", "--backend", "emulated", "--dry-run"])).expect_code(0).out;
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() == 3 && lines[0].starts_with("would remove orphan (emulated, "), "{text}");
    assert!(lines[1].starts_with("would remove 1 name, "), "{text}");
    assert_eq!(lines[2], "counted arrays, arenas and caches that stay: 1 in use, 1 kept");

    let found = gc(&scene, &[]);
    let path = place.join("orphan");
    let gone =
        json!({"name": "orphan", "backend": "emulated", "path": path.to_str(), "kind": "counted", "bytes": bytes});
    assert_eq!(found["removed"], json!([gone]), "{found:#}");
    for (field, value) in
        [("bytes", bytes), ("in_use", json!(1)), ("kept", json!(1)), ("in_flight", json!(0)), ("young", json!(0))]
    {
        assert_eq!(found[field], value, "{field}: {found:#}");
    }
    assert_eq!((&found["protected_seconds"], &found["dry_run"]), (&Value::Null, &json!(false)));
    assert_eq!((&found["skipped"], &found["failed"]), (&json!([]), &json!([])));
    let expected: Vec<String> = before.into_iter().filter(|name| name != "orphan").collect();
    assert_eq!(scene.files(), expected);

    let text = run(&mut scene.ndshm(["gc", "--backend", "emulated"])).expect_code(0).out;
    assert_eq!(text, "nothing to remove\ncounted arrays, arenas and caches that stay: 1 in use, 1 kept\n");

    // Two incomplete renderbuffers: one without its ledger, one without its payload.
    fs::remove_file(place.join(".ndshm-ledger-half")).expect("there");
    fs::rename(place.join(".ndshm-part-half"), place.join(".ndshm-part-other")).expect("there");
    let second_half = RenderOptions::new().directory(scene.directory()).create::<u8, _>("second", 4096, 4096, "a test");
    drop(second_half.expect("created"));
    fs::remove_file(place.join(".ndshm-part-second")).expect("there");
    assert!(line(&scene, "other").ends_with("partial without ledger"));
    assert!(line(&scene, "second").ends_with("ledger without renderbuffer"));
    let found = gc(&scene, &[]);
    let kinds: Vec<&Value> = found["removed"].as_array().expect("a list").iter().map(|gone| &gone["kind"]).collect();
    assert_eq!(removed(&found), [".ndshm-ledger-second", ".ndshm-part-other"]);
    assert_eq!(kinds, ["ledger", "partial"]);

    // The first death of two holders changes nothing. The second leaves an orphan. Its name stays until `gc` runs.
    living.kill();
    assert_eq!(removed(&gc(&scene, &[])), [""; 0]);
    second.kill();
    assert_eq!(removed(&gc(&scene, &[])), ["living"]);
    run(&mut scene.ndshm(["unlink", "kept"])).expect_code(0);
}

#[test]
fn unused_locks_of_uploads_are_removed() {
    let scene = Scene::new();
    let lock = |name: &str| {
        let made = CreateOptions::new().directory(scene.directory()).create::<u8, ndarray::Ix1>(name, 1);
        made.expect("a lock")
    };
    drop(lock("ndshm-write-0badcafe"));
    let held = lock("ndshm-write-00c0ffee");
    let cell = held.lock_cell(7, Duration::ZERO).expect("it is free");
    // A file of another length is an array, in spite of its name.
    drop(
        CreateOptions::new().directory(scene.directory()).create::<u8, _>("ndshm-write-12345678", 2).expect("an array"),
    );
    let before = scene.files();
    assert_eq!(item(&scene, "ndshm-write-0badcafe")["kind"], "lock");
    assert_eq!(item(&scene, "ndshm-write-12345678")["kind"], "array");
    assert!(line(&scene, "ndshm-write-00c0ffee").ends_with("lock of uploads"));

    let found = gc(&scene, &["--dry-run"]);
    assert_eq!((removed(&found), &found["removed"][0]["kind"]), (vec!["ndshm-write-0badcafe"], &json!("lock")));
    assert_eq!(scene.files(), before, "a dry run removes nothing");
    assert_eq!(removed(&gc(&scene, &["--older-than", "1h"])), [""; 0]);
    let text = run(&mut scene.ndshm(["gc", "--backend", "emulated"])).expect_code(0).out;
    assert!(text.starts_with("removed ndshm-write-0badcafe (emulated, a lock of uploads, "), "{text}");
    assert_eq!(removed(&gc(&scene, &[])), [""; 0], "one cell is locked");
    drop(cell);
    assert_eq!(removed(&gc(&scene, &[])), ["ndshm-write-00c0ffee"]);
    assert_eq!(scene.names(), ["ndshm-write-12345678"]);
    drop(held);
    assert_eq!(scene.files(), ["ndshm-write-12345678"]);
}

#[test]
fn what_a_killed_nameless_download_painted_is_removed() {
    let scene = Scene::new();
    let begin = |name: &str| {
        let options = RenderOptions::new().directory(scene.directory());
        options.create::<u8, _>(name, ndarray::Ix1(8), ndarray::Ix1(4), "").expect("a renderbuffer")
    };
    drop(begin("named"));
    let painting = begin("ndshm-download-7-1f-0");
    assert_eq!(removed(&gc(&scene, &[])), [""; 0], "it is being painted");
    drop(painting);
    let files = scene.files();
    assert_eq!(removed(&gc(&scene, &["--dry-run"])).len(), 1);
    assert_eq!(scene.files(), files, "a dry run removes nothing");
    let text = run(&mut scene.ndshm(["gc", "--backend", "emulated"])).expect_code(0).out;
    assert!(text.contains("ndshm-download-7-1f-0 (emulated, a download without a name, "), "{text}");
    assert_eq!(scene.files(), [".ndshm-ledger-named", ".ndshm-part-named"], "that one can be resumed");
}

#[test]
fn empty_directory_has_nothing_to_remove() {
    let scene = Scene::new();
    let text = run(&mut scene.ndshm(["gc", "--backend", "emulated"])).expect_code(0).out;
    assert_eq!(text, "nothing to remove\n");
    fs::remove_dir(scene.emulated()).expect("empty");
    let text = run(&mut scene.ndshm(["gc", "--backend", "emulated"])).expect_code(0).out;
    assert_eq!(text, "nothing to remove\n");
    assert!(!scene.emulated().exists());
}

/// Windows cannot stop processes.
#[cfg(unix)]
#[test]
fn a_stopped_holder_is_alive() {
    use sysinfo::Signal;

    let scene = Scene::new();
    let holder = Holder::create(&scene.emulated(), "x", &[]);
    assert!(crate::scene::signal(holder.pid(), Signal::Stop));
    let found = gc(&scene, &[]);
    assert_eq!((removed(&found), &found["in_use"]), (vec![], &json!(1)), "{found:#}");
    assert!(crate::scene::signal(holder.pid(), Signal::Continue));
    holder.let_go();
    assert_eq!(scene.files(), [""; 0]);
}

#[test]
fn handle_in_flight_protects_until_it_expires() {
    const GRACE: Duration = Duration::from_secs(2);
    let scene = Scene::new();
    let place = scene.emulated();
    let start = Instant::now();
    Holder::create(&place, "short", &["handle=2000"]).kill();
    let long = Holder::create(&place, "long", &["handle=3600000"]).kill();
    loop {
        let found = gc(&scene, &[]);
        // The protection began after `start`, and `gc` has ended: before GRACE it must not have removed `short`.
        let may_be_over = start.elapsed() >= GRACE;
        match removed(&found)[..] {
            ["short"] if may_be_over => break,
            [] if !may_be_over => {
                assert_eq!(found["in_flight"], 2, "{found:#}");
                let left = found["protected_seconds"].as_u64().expect("a number");
                assert!((1..=2).contains(&left), "{found:#}");
            }
            // `gc` may have run before the end of the protection: retry.
            [] if start.elapsed() < crate::scene::PATIENCE => {}
            _ => panic!("{found:#}"),
        }
    }
    assert_eq!(scene.files(), ["long"]);
    let text = run(&mut scene.ndshm(["gc", "--backend", "emulated"])).expect_code(0).out;
    assert!(text.starts_with("nothing to remove\n"), "{text}");
    assert!(text.contains("1 protected by handles in flight (the first for 60 min more)"), "{text}");
    assert!(line(&scene, "long").contains("  1 in flight  "));
    let counted = &info(&scene, "long")["counted"];
    assert_eq!((&counted["in_flight"], &counted["orphaned"]), (&json!(1), &json!(false)), "{counted:#}");
    assert!((3000..=3600).contains(&counted["protected_seconds"].as_u64().expect("a number")), "{counted:#}");

    // Without its handle, nothing protects it any longer.
    assert!(long[0].revoke().expect("reachable"));
    gc(&scene, &[]);
    assert_eq!(scene.files(), [""; 0]);
}

#[test]
fn array_in_flight_is_removed_on_request() {
    let scene = Scene::new();
    let handles = Holder::create(&scene.emulated(), "sent", &["handle=3600000"]).kill();
    assert_eq!(removed(&gc(&scene, &["--in-flight", "--older-than", "1h"])), [""; 0]);
    let planned = gc(&scene, &["--in-flight", "--dry-run"]);
    assert_eq!((removed(&planned), &planned["in_flight"]), (vec!["sent"], &json!(0)), "{planned:#}");
    assert_eq!(removed(&gc(&scene, &["--in-flight"])), ["sent"]);
    assert_eq!(scene.files(), [""; 0]);
    assert!(!handles[0].revoke().expect("reachable"));
}

#[test]
fn orphan_younger_than_the_limit_stays() {
    let scene = Scene::new();
    orphan(&scene, "young");
    orphan(&scene, "old");
    make_older(&scene.emulated().join("old"), Duration::from_hours(2));
    let found = gc(&scene, &["--older-than", "3h"]);
    assert_eq!((removed(&found), &found["young"]), (vec![], &json!(2)), "{found:#}");
    let found = gc(&scene, &["--older-than", "1h"]);
    assert_eq!((removed(&found), &found["young"]), (vec!["old"], &json!(1)), "{found:#}");
    let text = run(&mut scene.ndshm(["gc", "--backend", "emulated", "--older-than", "1d"])).expect_code(0).out;
    assert_eq!(
        text,
        "nothing to remove\ncounted arrays, arenas and caches that stay: 1 orphaned, but younger than 1 d\n"
    );
    for wrong in ["soon", "-5", "1.5h", "1w", ""] {
        run(&mut scene.ndshm(["gc", "--older-than", wrong])).expect_code(2);
    }
    assert_eq!(removed(&gc(&scene, &["--older-than", "0"])), ["young"]);
    assert_eq!(scene.files(), [""; 0]);
}

#[test]
fn drafts_go_when_they_are_old() {
    let scene = Scene::new();
    let (old, new) = (scene.emulated().join(".ndshm-draft-old"), scene.emulated().join(".ndshm-draft-new"));
    for path in [&old, &new] {
        fs::write(path, [1; 100]).expect("written");
    }
    make_older(&old, Duration::from_mins(2));
    let found = gc(&scene, &[]);
    assert_eq!(removed(&found), [".ndshm-draft-old"], "{found:#}");
    assert_eq!(found["removed"][0]["kind"], "draft");
    make_older(&new, Duration::from_mins(2));
    let text = run(&mut scene.ndshm(["gc", "--backend", "emulated"])).expect_code(0).out;
    assert!(text.starts_with("removed .ndshm-draft-new (emulated, a draft, "), "{text}");
    assert_eq!(scene.files(), [""; 0]);
}

/// A dry run: the other arrays in this machine's shared memory are not the test's.
#[cfg(target_os = "linux")]
#[test]
fn gc_searches_every_directory() {
    let mut scene = Scene::new();
    let name = scene.shm_name();
    let in_shm = Path::new("/dev/shm").join(&name);
    orphan(&scene, "emulated-one");
    for (arguments, also_emulated) in [(&[][..], true), (&["--backend", "shm"], false)] {
        // Another process of this machine may reclaim the orphan first. Then the test creates another one.
        wait_until("a dry run before another process reclaims the orphan", || {
            if !in_shm.exists() {
                Holder::create(Path::new("/dev/shm"), &name, &[]).kill();
            }
            let look = ["gc", "--dry-run", "--json"].iter().chain(arguments);
            let found = run(&mut scene.ndshm_in_shm(look)).expect_code(0).json();
            let names = removed(&found);
            assert_eq!(names.contains(&"emulated-one"), also_emulated, "{found:#}");
            names.contains(&name.as_str())
        });
    }
}

#[test]
fn damaged_trailer_is_reported_and_not_removed() {
    let scene = Scene::new();
    orphan(&scene, "damaged");
    damage(&scene.emulated().join("damaged"));

    let listed = item(&scene, "damaged");
    assert_eq!((&listed["kind"], &listed["counted"]), (&json!("counted"), &Value::Null), "{listed:#}");
    assert!(listed["counted_error"].as_str().expect("text").contains("checksum"), "{listed:#}");
    assert!(line(&scene, "damaged").ends_with("counted, damaged"));
    let text = run(&mut scene.ndshm(["info", "damaged"])).expect_code(0).out;
    assert!(text.contains("damaged trailer") && text.contains("checksum"), "{text}");

    let finished = run(&mut scene.ndshm(["gc", "--backend", "emulated", "--json"])).expect_code(1);
    assert!(finished.err.contains("ndshm unlink damaged"), "{finished:?}");
    let failed = &finished.json()["failed"];
    assert_eq!((&failed[0]["name"], &failed[1]), (&json!("damaged"), &Value::Null), "{failed:#}");
    let text = run(&mut scene.ndshm(["gc", "--backend", "emulated"])).expect_code(1).out;
    assert_eq!(text, "nothing to remove\n1 file could not be inspected or removed\n");
    run(&mut scene.ndshm(["unlink", "damaged"])).expect_code(0);
    assert_eq!(scene.files(), [""; 0]);
}

/// Only the superuser can change a file's owner, so other users skip this test.
#[cfg(unix)]
#[test]
fn damaged_files_of_other_users_are_skipped() {
    let scene = Scene::new();
    if !rustix::process::geteuid().is_root() {
        return;
    }
    orphan(&scene, "theirs");
    damage(&scene.emulated().join("theirs"));
    std::os::unix::fs::chown(scene.emulated().join("theirs"), Some(12345), None).expect("root may");
    let found = gc(&scene, &[]);
    assert_eq!((&found["removed"], &found["failed"]), (&json!([]), &json!([])), "{found:#}");
    let skipped = &found["skipped"];
    assert_eq!((&skipped[0]["name"], &skipped[0]["owner"]), (&json!("theirs"), &json!(12345)), "{found:#}");
    assert!(skipped[0]["error"].as_str().expect("text").contains("checksum"), "{found:#}");
    let finished = run(&mut scene.ndshm(["gc", "--backend", "emulated"])).expect_code(0);
    assert!(finished.err.is_empty() && finished.out.contains("1 file of other users"), "{finished:?}");
}
