//! Caches of chunks: `ls`, `info` and `unlink` show and remove them; a download can go through one.

use std::time::Duration;

use ndarray_shm::cache::{CacheOptions, ChunkCache, Lookup};
use serde_json::json;

use crate::counted::line;
use crate::downloading::download;
use crate::scene::{Scene, run, wait_until};
use crate::volume::{self, CHUNKS};

fn make(scene: &Scene, name: &str) -> ChunkCache {
    let cache = CacheOptions::new().directory(scene.directory()).create(name, 1 << 20).expect("a cache");
    let Ok(Lookup::Claimed(mut claim)) = cache.look(1, 40_000, 0, Duration::ZERO) else { panic!("a claim") };
    let room = claim.room().expect("a place").expect("room");
    room.publish(1, 0).expect("a chunk");
    drop(claim);
    cache
}

#[test]
fn cache_is_listed_shown_and_removed() {
    let scene = Scene::new();
    std::fs::create_dir_all(scene.emulated()).expect("a directory");
    let cache = make(&scene, "chunks");
    let listed = run(&mut scene.ndshm(["ls", "--backend", "emulated", "--json"])).expect_code(0).json();
    let item = &listed[0];
    assert_eq!((&item["name"], &item["kind"], &item["attached"]), (&json!("chunks"), &json!("cache"), &json!(true)));
    assert_eq!((&item["cache"]["bytes"], &item["cache"]["filled"]), (&json!(1 << 20), &json!(65_536)));
    let row = line(&scene, "chunks");
    assert!(row.contains(" yes ") && row.ends_with("cache, 64.0 KiB of 1.0 MiB"), "{row}");
    drop(cache);
    let found = run(&mut scene.ndshm(["info", "chunks", "--json"])).expect_code(0).json();
    assert_eq!((&found["cache"]["attached"], &found["array"]), (&json!(false), &json!(null)), "{found:#}");
    assert_eq!(
        (&found["cache"]["cache"]["fills"], &found["cache"]["cache"]["bypasses"]["late"]),
        (&json!(1), &json!(0))
    );
    let text = run(&mut scene.ndshm(["info", "chunks"])).expect_code(0).out;
    assert!(text.contains("chunks: a cache of chunks") && text.contains("64.0 KiB of 1.0 MiB"), "{text}");
    let refused = run(&mut scene.ndshm(["unlink", "chunks"])).expect_code(3);
    assert!(refused.err.contains("ndshm unlink --cache chunks"), "{}", refused.err);
    run(&mut scene.ndshm(["unlink", "--cache", "chunks"])).expect_code(0);
    run(&mut scene.ndshm(["unlink", "--cache", "chunks"])).expect_code(3);
    assert_eq!(scene.files(), [""; 0]);
}

#[test]
fn unused_cache_is_removed_after_its_time_or_on_request() {
    let scene = Scene::new();
    let cache = make(&scene, "chunks");
    let gc = |more: &[&str]| {
        let arguments = [&["gc", "--backend", "emulated", "--json"], more].concat();
        let found = run(&mut scene.ndshm(arguments)).expect_code(0).json();
        let counts = ["in_use", "kept"].map(|name| found[name].as_u64().expect("a number"));
        (found["removed"].as_array().expect("a list").len(), counts)
    };
    assert_eq!(gc(&["--caches"]), (0, [1, 0]));
    drop(cache);
    wait_until("no process has it open", || gc(&[]) == (0, [0, 1]));
    let text = run(&mut scene.ndshm(["info", "chunks"])).expect_code(0).out;
    assert!(text.contains("for 1 h after its last use") && text.contains(" ago"), "{text}");
    assert_eq!((gc(&["--caches", "--dry-run"]), gc(&["--caches"]), gc(&["--caches"])), {
        ((1, [0, 0]), (1, [0, 0]), (0, [0, 0]))
    });
    assert_eq!(scene.files(), [""; 0]);
}

#[test]
fn downloads_go_through_the_cache_of_the_environment() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    std::thread::sleep(Duration::from_millis(2200)); // until the files have certain versions
    for name in ["one", "two"] {
        run(download(&scene, name, &[]).env("NDSHM_CHUNK_CACHE", "64MiB")).expect_code(0);
        assert!(std::fs::read(scene.emulated().join(name)).expect("there") == volume::expected_whole());
    }
    let listed = run(&mut scene.ndshm(["ls", "chunks-*", "--backend", "emulated", "--json"])).expect_code(0).json();
    let found = &listed[0]["cache"];
    // 7 chunks are not stored: they are known to be missing, and take no room.
    assert_eq!((&found["fills"], &found["hits"]), (&json!(CHUNKS - 7), &json!(CHUNKS)), "{listed:#}");
    let refused = run(download(&scene, "three", &[]).env("NDSHM_CHUNK_CACHE", "much"));
    assert!(refused.code != Some(0) && refused.err.contains("NDSHM_CHUNK_CACHE"), "{refused:?}");
}
