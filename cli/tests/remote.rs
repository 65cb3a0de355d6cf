//! Volumes behind HTTP and in S3, with real servers: up, down, in parts, and what the program says without them.

#[path = "it/scene.rs"]
#[allow(dead_code)]
mod scene;
#[path = "../../volume/tests/servers/mod.rs"]
mod servers;
#[path = "it/volume.rs"]
#[allow(dead_code)]
mod volume;

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::scene::{Finished, Scene, run};
use crate::servers::{HttpServer, S3Server};
use crate::volume::{CHUNKS, SHAPE};

/// The program, which finds this S3 server.
fn ndshm(scene: &Scene, server: &S3Server, arguments: &[&str]) -> Finished {
    let mut command: Command = scene.ndshm(arguments);
    run(command.envs(S3Server::environment(&server.endpoint())))
}

fn assert_whole(scene: &Scene, name: &str, region: &[std::ops::Range<usize>; 3], c_order: bool) {
    assert!(fs::read(scene.emulated().join(name)).expect("there") == volume::expected(region, c_order), "{name}");
}

#[test]
fn a_volume_goes_up_to_s3_in_parts_and_comes_down_with_processes() {
    if servers::python("volumes in S3").is_none() {
        return;
    }
    let (scene, server) = (Scene::new(), S3Server::start());
    volume::write(&scene.volume());
    let path = scene.volume();
    let local = path.to_str().expect("text");
    let region = [13..99, 5..50, 0..SHAPE[2]];
    ndshm(
        &scene,
        &server,
        &["download", local, "--location", "x", "--bbox", "13:99,5:50,:", "--order", "f", "--quiet"],
    )
    .expect_code(0);
    for (url, how) in [
        ("s3://test/zarr", &["--format", "zarr3", "--encoding", "zstd"][..]),
        ("precomputed://s3://test/precomputed", &["--encoding", "gzip"]),
    ] {
        let shape = if url.starts_with("precomputed") { "86,45,273,1" } else { "86,45,273" };
        let chunk = if url.starts_with("precomputed") { "32,32,32,1" } else { "32,32,32" };
        let create = ["--create", "--dtype", "uint16", "--shape", shape, "--chunk", chunk, "--order", "f", "--json"];
        let marks = format!("{}-marks", url.trim_start_matches("precomputed://"));
        let mut stored = 0;
        for shard in ["1/3", "0/3", "2/3", "0/3"] {
            let part = ["--shard", shard, "--markers", &marks, "--quiet"];
            let report = ndshm(&scene, &server, &[&["upload", "x", url], &create[..], how, &part].concat())
                .expect_code(0)
                .json();
            stored += report["stored"].as_u64().unwrap_or(0);
        }
        assert_eq!(stored, 3 * 2 * 9, "the part that was done is not done again");
        let info: Value = ndshm(&scene, &server, &["info", url, "--json"]).expect_code(0).json();
        assert_eq!(info["scales"][0]["dtype"], "<u2", "{info:#}");
        for how in [&["--processes", "--workers", "2"][..], &["--workers", "2", "--requests", "3"]] {
            let down = ["download", url, "--location", "y", "--order", "f", "--replace", "--quiet", "--json"];
            let report = ndshm(&scene, &server, &[&down, how].concat()).expect_code(0).json();
            assert_eq!((&report["chunks"], &report["painted"]), (&(3 * 2 * 9).into(), &(3 * 2 * 9).into()));
            assert!(report["fetched"].as_u64().expect("a number") > 0, "{report:#}");
            assert_whole(&scene, "y", &region, false);
        }
    }
    let finished = ndshm(&scene, &server, &["download", "s3://test/nowhere", "--location", "z"]).expect_code(1);
    assert!(finished.err.contains("s3://test/nowhere"), "{finished:?}");
}

#[test]
fn a_volume_is_read_over_http_and_not_written() {
    if servers::python("volumes behind HTTP").is_none() {
        return;
    }
    let scene = Scene::new();
    volume::write(&scene.volume());
    let server = HttpServer::start(&scene.volume());
    let down = ["download", &server.url(), "--location", "x", "--json", "--processes", "--workers", "2"];
    let finished = run(&mut scene.ndshm(down)).expect_code(0);
    assert_eq!(finished.json()["painted"], CHUNKS);
    assert!(finished.err.contains("MiB of"), "progress tells bytes: {finished:?}");
    assert_whole(&scene, "x", &SHAPE.map(|length| 0..length), true);
    let finished = run(&mut scene.ndshm(["upload", "x", &server.url(), "--json"])).expect_code(1);
    assert!(finished.json()["error"].as_str().is_some_and(|error| !error.is_empty()), "{finished:?}");
}
