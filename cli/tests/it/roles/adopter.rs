//! The adopter tries the program on data of their own, with the guides on volumes and on troubleshooting: an address is
//! mistyped, a disk is full, a volume is called by its directory's name, and a script reads the errors.

use std::fs;

#[cfg(target_os = "linux")]
use crate::scene::text;
use crate::scene::{Scene, run};
use crate::volume;

/// The guide says: a mistyped host is an error within seconds, which names the host and says what to do.
#[cfg(feature = "remote")]
#[test]
fn mistyped_address_fails_soon_and_says_why() {
    use std::net::TcpListener;
    use std::time::{Duration, Instant};

    let scene = Scene::new();
    // Nothing listens on this port any more.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
    let url = format!("precomputed://http://127.0.0.1:{port}/em");
    for arguments in [&["info", &url, "--json"][..], &["download", &url, "--location", "x", "--json"]] {
        let mut command = scene.ndshm(arguments);
        for variable in ["NDSHM_RETRY_SECONDS", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
            command.env_remove(variable);
        }
        let begin = Instant::now();
        let finished = run(&mut command).expect_code(1);
        // A server that has answered once would be waited for during two minutes.
        assert!(begin.elapsed() < Duration::from_mins(1), "{:?}", begin.elapsed());
        let document = finished.json();
        let because = document["because"].to_string();
        assert!(because.contains("host `127.0.0.1` refuses connections"), "{document:#}");
        let advice = document["advice"].as_str().expect("advice");
        assert!(advice.starts_with("check the address") && advice.contains("NDSHM_RETRY_SECONDS"), "{document:#}");
        assert!(!because.contains("check the address"), "it is said once: {document:#}");
        assert!(finished.err.contains("what to do: check the address"), "{finished:?}");
    }
    assert_eq!(scene.files(), [""; 0]);
}

/// `download em.zarr` reads the volume in this directory, so `info em.zarr` shows it.
#[test]
fn info_finds_the_volume_that_download_finds() {
    let scene = Scene::new();
    let volumes = scene.temporary();
    volume::write(&volumes.join("em.zarr"));
    volume::write(&volumes.join("my em (1).zarr"));
    let info = |name: &str| run(scene.ndshm(["info", name, "--json"]).current_dir(&volumes));
    for name in ["em.zarr", "my em (1).zarr"] {
        let report = info(name).expect_code(0).json();
        assert_eq!(report["scales"].as_array().map(Vec::len), Some(1), "{report:#}");
    }
    let region = ["--bbox", "0:8,0:8,0:8", "--quiet"];
    let mut download = scene.ndshm(["download", "em.zarr", "--location", "em.zarr"]);
    run(download.args(region).current_dir(&volumes)).expect_code(0);
    assert_eq!(info("em.zarr").expect_code(0).json()["name"], "em.zarr", "a name in shared memory comes first");
    assert!(info("./em.zarr").expect_code(0).json()["scales"].is_array(), "a path is always a volume");
    run(&mut scene.ndshm(["unlink", "em.zarr"])).expect_code(0);

    fs::create_dir(volumes.join("notes")).expect("made");
    let finished = info("notes").expect_code(3);
    let advice = finished.json()["advice"].to_string();
    assert!(advice.contains("directory of this name") && advice.contains("this is no volume"), "{finished:?}");
    info("nothing").expect_code(3);
}

/// A file on a disk is no shared memory: the advice is about the disk. In `--json`, advice stands in its field.
#[cfg(target_os = "linux")]
#[test]
fn full_disk_is_named_and_no_container() {
    use std::process::Command;

    use crate::scene::with_mounts;

    let scene = Scene::new();
    fs::create_dir(scene.volume()).expect("made");
    let metadata = serde_json::json!({
        "zarr_format": 2, "shape": [40, 1024, 1024], "chunks": [8, 256, 256], "dtype": "|u1", "compressor": null, "fill_value": 7,
        "order": "C", "filters": null,
    });
    fs::write(scene.volume().join(".zarray"), metadata.to_string()).expect("written");
    let disk = scene.temporary().join("disk");
    fs::create_dir(&disk).expect("made");
    let mounted = format!("mount -t tmpfs -o size=16m none {}", text(&disk));
    let file = disk.join("em");
    let to_file = scene.ndshm(["download", text(&scene.volume()), "--file", text(&file), "--quiet", "--json"]);
    let mut to_emulated = scene.ndshm(["download", text(&scene.volume()), "--location", "em", "--quiet", "--json"]);
    to_emulated.env("NDSHM_EMULATED_DIR", disk.join("emulated"));
    for (command, is_file) in [(to_file, true), (to_emulated, false)] {
        let inner: &Command = &command;
        let Some(mut job) = with_mounts("full_disk_is_named_and_no_container", &mounted, inner) else { return };
        let finished = run(&mut job).expect_code(1);
        let document = finished.json();
        let (error, advice) = (document["error"].as_str().expect("text"), document["advice"].as_str().expect("advice"));
        assert!(error.ends_with("are available") && !error.contains(advice), "{document:#}");
        assert!(advice.contains(text(&disk)) && advice.contains("a directory on a disk"), "{document:#}");
        assert!(!advice.contains("EMULATE_SHM") && !advice.contains("docker"), "{document:#}");
        assert_eq!(advice.contains("NDSHM_EMULATED_DIR"), !is_file, "{document:#}");
    }
}

/// `-h` fits into a narrow terminal.
#[test]
fn short_help_wraps_to_the_width_of_the_terminal() {
    let scene = Scene::new();
    for command in ["download", "upload", "info", "ls"] {
        for width in [60, 90] {
            let help = run(scene.ndshm([command, "-h"]).env("COLUMNS", width.to_string())).expect_code(0).out;
            // A word that is longer than a line stays whole.
            let mut lines = help.lines().filter(|line| line.trim().contains(' ') && !line.starts_with("Usage"));
            assert_eq!(lines.find(|line| line.chars().count() > width), None, "{command}: {help}");
        }
        let mut wide = scene.ndshm([command, "-h"]);
        let help = run(wide.env_remove("COLUMNS")).expect_code(0).out;
        assert!(help.lines().any(|line| line.chars().count() > 90), "a file or pipe has no width: {help}");
    }
}
