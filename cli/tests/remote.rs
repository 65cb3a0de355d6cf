//! Volumes behind HTTP and in S3, with real servers: uploads, downloads, parts, and errors.

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
use crate::servers::{FaultyProxy, HttpServer, S3Server};
use crate::volume::{CHUNKS, SHAPE};

/// Runs the program with the environment of this S3 server.
fn ndshm(scene: &Scene, server: &S3Server, arguments: &[&str]) -> Finished {
    let mut command: Command = scene.ndshm(arguments);
    run(command.envs(S3Server::environment(&server.endpoint())))
}

fn assert_whole(scene: &Scene, name: &str, region: &[std::ops::Range<usize>; 3], c_order: bool) {
    assert!(fs::read(scene.emulated().join(name)).expect("there") == volume::expected(region, c_order), "{name}");
}

#[test]
fn s3_volume_is_uploaded_in_parts_and_downloaded() {
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
        assert_eq!(stored, 3 * 2 * 9, "a finished part is not uploaded again");
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
    assert!(finished.err.contains("MiB of"), "progress shows bytes: {finished:?}");
    assert_whole(&scene, "x", &SHAPE.map(|length| 0..length), true);
    let finished = run(&mut scene.ndshm(["upload", "x", &server.url(), "--order", "c", "--json"])).expect_code(1);
    assert!(finished.json()["error"].as_str().is_some_and(|error| !error.is_empty()), "{finished:?}");
}

/// CloudVolume and `ndshm` store compressed chunks in files `NAME.gz`. A plain web server does not serve them under
/// `NAME`.
#[test]
fn compressed_files_are_found_behind_a_plain_server() {
    if servers::python("packed files behind HTTP").is_none() {
        return;
    }
    let (scene, place) = (Scene::new(), tempfile::tempdir().expect("a directory"));
    volume::write(&scene.volume());
    let (local, packed) = (scene.volume(), place.path().join("packed"));
    let (local, destination) = (local.to_str().expect("text"), format!("precomputed://{}", packed.display()));
    let region = ["--bbox", "0:64,0:64,0:64"];
    run(scene.ndshm(["download", local, "--location", "x", "--quiet", "--order", "f"]).args(region)).expect_code(0);
    let new = ["--create", "--encoding", "gzip", "--dtype", "uint16", "--shape", "64,64,64", "--chunk", "32,32,32"];
    run(scene.ndshm(["upload", "x", &destination, "--order", "f", "--quiet"]).args(new)).expect_code(0);
    let chunk = packed.join("1_1_1/32-64_32-64_32-64");
    let named = |suffix: &str| chunk.with_file_name(format!("32-64_32-64_32-64{suffix}"));
    assert!(named(".gz").is_file() && !chunk.exists());

    let server = HttpServer::plain(&packed);
    let url = format!("precomputed://{}", server.url());
    let down = |more: &[&str]| {
        let arguments = ["download", &url, "--location", "y", "--order", "f", "--replace", "--quiet", "--workers", "1"];
        run(scene.ndshm(arguments).args(more))
    };
    down(&[]).expect_code(0);
    assert_whole(&scene, "y", &[0..64, 0..64, 0..64], false);
    // A chunk with another compression is reported as such, and a removed chunk as missing.
    fs::rename(named(".gz"), named(".br")).expect("renamed");
    let finished = down(&["--missing", "fill", "--bbox", "32:64,32:64,32:64"]).expect_code(1);
    assert!(finished.err.contains("32-64_32-64_32-64.br") && finished.err.contains("brotli"), "{finished:?}");
    fs::remove_file(named(".br")).expect("removed");
    let finished = down(&[]).expect_code(1);
    assert!(finished.err.contains("is not stored") && finished.err.contains("--missing fill"), "{finished:?}");
    down(&["--missing", "fill"]).expect_code(0);
}

/// neuroglancer-scripts writes a directory for each range of x and of y, and compressed files in these.
#[test]
fn nested_chunks_over_http_cost_one_request_each() {
    if servers::python("nested chunks behind HTTP").is_none() {
        return;
    }
    let scene = Scene::new();
    let elements: Vec<u8> = (0..4096u32).map(|at| u8::try_from(at % 250 + 1).expect("small")).collect();
    fs::write(scene.emulated().join("x"), &elements).expect("written");
    let path = scene.temporary().join("volume");
    let destination = format!("precomputed://{}", path.display());
    let new = ["--create", "--encoding", "gzip", "--dtype", "uint8", "--shape", "16,16,16", "--chunk", "4,4,4"];
    run(scene.ndshm(["upload", "x", &destination, "--order", "f", "--quiet"]).args(new)).expect_code(0);
    let directory = path.join("1_1_1");
    for name in scene::names_in(&directory) {
        let parts: Vec<&str> = name.split('_').collect();
        let below = directory.join(parts[0]).join(parts[1]);
        fs::create_dir_all(&below).expect("made");
        fs::rename(directory.join(&name), below.join(parts[2])).expect("moved");
    }
    let server = HttpServer::plain(&path);
    let proxy = FaultyProxy::counting(&server.url());
    let down = |more: &[&str]| {
        let url = format!("precomputed://{}", proxy.url());
        let arguments = ["download", &url, "--location", "y", "--order", "f", "--replace", "--quiet", "--json"];
        run(scene.ndshm(arguments).args(more))
    };
    let one = ["--workers", "1", "--requests", "1"];
    assert_eq!(down(&one).expect_code(0).json()["filled"], 0);
    assert!(fs::read(scene.emulated().join("y")).expect("there") == elements);
    let chunks = proxy.requests().iter().filter(|request| request.path.contains("1_1_1/")).count();
    assert_eq!(chunks, 64 + 3, "the first chunk is requested under four names");
    fs::remove_file(directory.join("4-8/4-8/4-8.gz")).expect("a chunk");
    let finished = down(&["--processes", "--workers", "2"]).expect_code(1);
    assert!(finished.err.contains("is not stored"), "{finished:?}");
    assert_eq!(scene.files(), ["x", "y"], "nothing half-painted is kept");
    let report = down(&["--processes", "--workers", "2", "--missing", "fill"]).expect_code(0).json();
    assert_eq!(report["filled"], 1, "{report:#}");
}

/// The bucket is like a copy of a volume with nested directories.
#[test]
fn nested_chunks_in_a_bucket_are_not_written() {
    if servers::python("nested chunks in S3").is_none() {
        return;
    }
    let scene = Scene::new();
    let elements: Vec<u8> = (0..512u32).map(|at| u8::try_from(at % 250 + 1).expect("small")).collect();
    fs::write(scene.emulated().join("x"), &elements).expect("written");
    let objects = scene.temporary();
    let path = objects.join("test/volume");
    let destination = format!("precomputed://{}", path.display());
    let new = ["--create", "--encoding", "raw", "--dtype", "uint8", "--shape", "8,8,8", "--chunk", "4,8,8"];
    run(scene.ndshm(["upload", "x", &destination, "--order", "f", "--quiet"]).args(new)).expect_code(0);
    for x in ["0-4", "4-8"] {
        fs::create_dir_all(path.join("1_1_1").join(x).join("0-8")).expect("made");
        let nested = path.join("1_1_1").join(x).join("0-8/0-8");
        fs::rename(path.join("1_1_1").join(format!("{x}_0-8_0-8")), nested).expect("moved");
    }
    let server = S3Server::start_with(&objects);
    let url = "precomputed://s3://test/volume";
    let down = ["download", url, "--location", "y", "--order", "f", "--quiet", "--json"];
    assert_eq!(ndshm(&scene, &server, &down).expect_code(0).json()["filled"], 0);
    assert!(fs::read(scene.emulated().join("y")).expect("there") == elements);
    let finished = ndshm(&scene, &server, &["upload", "x", url, "--order", "f", "--quiet"]).expect_code(1);
    assert!(finished.err.contains("nested directories (`1_1_1/0-4/0-8/0-8`)"), "{finished:?}");
    assert!(finished.err.contains("written in directories only"), "{finished:?}");
}

#[test]
fn server_without_ranges_fails_the_download() {
    if servers::python("shards behind a server without ranges").is_none() {
        return;
    }
    let scene = Scene::new();
    fs::write(scene.emulated().join("x"), vec![5; 512]).expect("written");
    let path = scene.temporary().join("volume");
    let new = ["--create", "--format", "zarr3", "--dtype", "uint8", "--shape", "8,8,8", "--chunk", "4,4,4"];
    let mut command =
        scene.ndshm(["upload", "x", scene::text(&path), "--order", "c", "--quiet", "--shard-shape", "8,8,8"]);
    run(command.args(new)).expect_code(0);
    let server = HttpServer::without_ranges(&path);
    for how in [&["--workers", "2"][..], &["--workers", "2", "--processes"]] {
        let mut command = scene.ndshm(["download", &server.url(), "--location", "y", "--quiet", "--json"]);
        let finished = run(command.args(how)).expect_code(1);
        let told = finished.json();
        let (error, advice) = (told["error"].as_str().expect("an error"), told["advice"].as_str().expect("advice"));
        assert!(error.contains(" in http://") && error.contains("/c/0/0/0"), "chunk and shard: {error}");
        assert!(advice.contains("range requests") && !finished.err.contains("NDSHM_RETRY_SECONDS"), "{finished:?}");
        assert_eq!(scene.files(), ["x"], "nothing half-painted is kept");
    }
}

/// Starts a server that sends a volume's metadata and answers nothing else. The receiver gets each unanswered request.
#[cfg(unix)]
fn silent_server() -> (String, std::sync::mpsc::Receiver<String>, std::thread::JoinHandle<()>) {
    use std::io::{Read as _, Write as _};

    const META: &str = r#"{"zarr_format": 3, "node_type": "array", "shape": [8, 8], "data_type": "uint8", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 4]}}, "codecs": [{"name": "bytes"}],
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}, "attributes": {}}"#;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let (sender, unanswered) = std::sync::mpsc::channel();
    let server = std::thread::spawn(move || {
        let mut silent = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut asked = [0; 4096];
            let length = stream.read(&mut asked).expect("a request");
            let asked = String::from_utf8_lossy(&asked[..length]).into_owned();
            if asked.starts_with("GET /end") {
                break;
            }
            if asked.contains("/told/zarr.json") {
                let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nLast-Modified: Sat, 21 Nov 2026 00:00:00 GMT\r\n";
                write!(stream, "{head}Content-Length: {}\r\n\r\n{META}", META.len()).expect("it listens");
            } else {
                // The connection stays open until the end.
                silent.push(stream);
                sender.send(asked).expect("a receiver");
            }
        }
    });
    (url, unanswered, server)
}

/// SIGINT ends the program while it opens the volume, and while it waits for chunks.
#[cfg(unix)]
#[test]
fn signal_ends_the_wait_for_a_silent_server() {
    use std::io::Write as _;
    use std::process::Stdio;
    use std::time::{Duration, Instant};

    let (scene, (url, unanswered, server)) = (Scene::new(), silent_server());
    for path in ["untold", "told"] {
        let mut command = scene.ndshm(["download", &format!("zarr://{url}/{path}"), "--location", "x", "--json"]);
        command.stdout(Stdio::piped());
        // Without the signal, the program would wait for the server much longer than by default.
        let mut child = command.env("NDSHM_RETRY_SECONDS", "600").stderr(Stdio::null()).spawn().expect("it starts");
        // A request of the previous run may still arrive first.
        while !unanswered.recv_timeout(Duration::from_mins(1)).expect("a request").contains(&format!("/{path}/")) {}
        std::thread::sleep(Duration::from_millis(200));
        assert!(child.try_wait().expect("a state").is_none(), "{path}: it waits");
        let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill");
        assert!(kill.success());
        let begin = Instant::now();
        let end = loop {
            if let Some(end) = child.try_wait().expect("a state") {
                break end;
            }
            if begin.elapsed() > Duration::from_mins(1) {
                child.kill().expect("it is ours");
                child.wait().expect("its end");
                panic!("{path}: the signal has no effect");
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(end.code(), Some(130), "{path}: {end}");
        let document: Value = serde_json::from_reader(child.stdout.take().expect("piped")).expect("one document");
        assert!(document["error"].as_str().is_some_and(|error| error.contains("interrupted")), "{document:#}");
    }
    assert_eq!(fs::read_dir(scene.emulated()).map_or(0, Iterator::count), 0, "nothing is left");
    let mut last = std::net::TcpStream::connect(url.trim_start_matches("http://")).expect("the server");
    last.write_all(b"GET /end").expect("it listens");
    server.join().expect("no panic");
}

/// Reads lines of a program's standard error until one has all of these words.
fn line_with(lines: &mut impl Iterator<Item = std::io::Result<String>>, words: &[&str]) -> String {
    let mut said = String::new();
    for line in lines {
        let line = line.expect("text");
        if words.iter().all(|word| line.contains(word)) {
            return line;
        }
        said = format!("{said}{line}\n");
    }
    panic!("it did not say {words:?}, but: {said}");
}

fn lines_of(child: &mut std::process::Child) -> impl Iterator<Item = std::io::Result<String>> + use<> {
    use std::io::BufRead as _;
    std::io::BufReader::new(child.stderr.take().expect("piped")).lines()
}

/// Returns a command of the program without a retry time and without proxies.
fn as_usual(scene: &Scene, arguments: &[&str]) -> Command {
    let mut command = scene.ndshm(arguments);
    for variable in
        ["NDSHM_RETRY_SECONDS", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"]
    {
        command.env_remove(variable);
    }
    command.stdin(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
    command
}

fn closed_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

#[test]
fn proxy_that_cannot_be_reached_is_named() {
    let scene = Scene::new();
    let proxy = format!("http://127.0.0.1:{}", closed_port());
    let mut command = as_usual(&scene, &["info", "zarr://http://host.example/em"]);
    let finished = run(command.env("http_proxy", proxy)).expect_code(1);
    assert!(finished.err.contains("proxy `127.0.0.1` refuses connections"), "{finished:?}");
    assert!(!finished.err.contains("host `host.example`"), "the proxy looks up names: {finished:?}");
}

/// Machines of a cluster start together, perhaps before the server does.
#[test]
fn part_waits_for_a_server_that_does_not_run_yet() {
    let scene = Scene::new();
    let url = format!("zarr://http://127.0.0.1:{}/em", closed_port());
    let mut command = as_usual(&scene, &["download", &url, "--location", "x", "--shard", "0/2"]);
    let mut child = command.spawn().expect("it starts");
    let mut lines = lines_of(&mut child);
    line_with(&mut lines, &["still waiting for", "retrying", "onnect"]);
    // The second line comes after the time for which a first request is retried otherwise.
    line_with(&mut lines, &["still waiting for", "retrying"]);
    assert!(child.try_wait().expect("its state").is_none(), "it waits");
    child.kill().expect("it is ours");
    child.wait().expect("its end");
}

/// A resolver that cannot be asked now says nothing about the address.
#[cfg(target_os = "linux")]
#[test]
fn resolver_that_says_try_again_is_retried() {
    let scene = Scene::new();
    let resolver = scene.temporary().join("resolv.conf");
    fs::write(&resolver, "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n").expect("written");
    let inner = as_usual(&scene, &["info", "zarr://http://host.example/em"]);
    let mounts = format!("mount --bind {} /etc/resolv.conf", resolver.display());
    let Some(mut command) = scene::with_mounts("resolver_that_says_try_again_is_retried", &mounts, &inner) else {
        return;
    };
    let mut child = command.stderr(std::process::Stdio::piped()).spawn().expect("it starts");
    let mut lines = lines_of(&mut child);
    for _ in 0..2 {
        line_with(&mut lines, &["still waiting for", "retrying", "host.example"]);
    }
    assert!(child.try_wait().expect("its state").is_none(), "it waits");
    child.kill().expect("it is ours");
    child.wait().expect("its end");
}

/// Progress says what is retried and why, with threads and with worker processes.
#[test]
fn progress_says_what_is_retried() {
    if servers::python("progress that says what is retried").is_none() {
        return;
    }
    let scene = Scene::new();
    volume::write(&scene.volume());
    let server = HttpServer::start(&scene.volume());
    for workers in [&["--workers", "2"][..], &["--processes", "--workers", "2"]] {
        let proxy = FaultyProxy::start(&server.url(), |request| {
            let name = request.path.rsplit('/').next().unwrap_or_default();
            name.starts_with(|first: char| first.is_ascii_digit()).then_some(servers::Fault::Status(503))
        });
        let url = format!("zarr://{}", proxy.url());
        let mut command = as_usual(&scene, &[&["download", &url, "--location", "x"][..], workers].concat());
        let mut child = command.stdout(std::process::Stdio::null()).spawn().expect("it starts");
        let mut lines = lines_of(&mut child);
        let line = line_with(&mut lines, &["x: retrying `http://", "503"]);
        assert!(!line.contains("still waiting"), "{line}");
        proxy.decide(|_| None);
        let rest: Vec<_> = lines.map_while(Result::ok).collect();
        assert!(child.wait().expect("its end").success(), "{rest:?}");
        assert_whole(&scene, "x", &[0..SHAPE[0], 0..SHAPE[1], 0..SHAPE[2]], true);
        run(&mut scene.ndshm(["unlink", "x"])).expect_code(0);
    }
}
