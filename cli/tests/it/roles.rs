//! Whole jobs as a user runs them: each command takes what the previous one has left.

mod adopter;
#[cfg(target_os = "linux")] // elsewhere arrays have no descriptions, and so no names of axes
mod microscopist;

use std::fs;
use std::path::Path;
use std::process::Command;

use ndarray::{ArrayD, Axis, IxDyn, ShapeBuilder as _, Slice};
use serde_json::Value;

use crate::scene::{Finished, Scene, not_run, run, text};

/// The region that Python changes. It cuts through chunks.
const CHANGED: [(isize, isize); 3] = [(5, 21), (3, 30), (2, 9)];

/// The volume has 40 x 34 x 20 elements and begins at (-3, 5, 7).
const ORIGIN: [i64; 3] = [-3, 5, 7];
const SHAPE: [usize; 3] = [40, 34, 20];

fn elements() -> ArrayD<u16> {
    ArrayD::from_shape_fn(IxDyn(&SHAPE), |at| u16::try_from(at[0] + 50 * at[1] + 1800 * at[2]).expect("small"))
}

/// Returns the bytes of an array in F order.
fn bytes(array: &ArrayD<u16>) -> Vec<u8> {
    array.t().iter().flat_map(|element| element.to_le_bytes()).collect()
}

/// Returns the value of `--bbox` for ranges that are relative to the volume's origin.
fn region(of: [(isize, isize); 3]) -> String {
    let axis = |(axis, (start, stop)): (usize, (isize, isize))| {
        let at = |coordinate: isize| ORIGIN[axis] + i64::try_from(coordinate).expect("small");
        format!("{}:{}", at(start), at(stop))
    };
    of.into_iter().enumerate().map(axis).collect::<Vec<_>>().join(",")
}

fn download(scene: &Scene, volume: &Path, name: &str, more: &[&str]) -> Value {
    let mut command = scene.ndshm(["download", text(volume), "--location", name, "--order", "f", "--json", "--quiet"]);
    run(command.args(more)).expect_code(0).json()
}

/// Downloads a region of a Precomputed volume, changes it in Python with the lines that `download` prints, uploads it
/// where it cuts through chunks, and copies the volume to Zarr.
#[test]
fn precomputed_volume_is_edited_and_copied_to_zarr() {
    let Some(python) = std::env::var_os("NDSHM_TEST_PYTHON") else {
        not_run("the change from NumPy", "it needs NDSHM_TEST_PYTHON, a Python with numpy (scripts/test)");
        return;
    };
    let scene = Scene::new();
    let (precomputed, zarr) = (scene.volume(), scene.temporary().join("copy.zarr"));
    let mut expected = elements();
    fs::write(scene.emulated().join("first"), bytes(&expected)).expect("written");
    let create = ["--format", "precomputed", "--encoding", "gzip", "--dtype", "uint16", "--order", "f"];
    let shape = ["--shape", "40,34,20", "--origin=-3,5,7", "--chunk", "16,16,16"];
    let mut command = scene.ndshm(["upload", "first", text(&precomputed), "--create", "--quiet"]);
    run(command.args(create).args(shape)).expect_code(0);

    let bbox = region(CHANGED);
    let report = download(&scene, &precomputed, "part", &["--bbox", &bbox]);
    assert_eq!(report["shape"], serde_json::json!([16, 27, 7, 1]));
    let lines: Vec<&str> = report["python"].as_array().expect("lines").iter().filter_map(Value::as_str).collect();
    let script = format!("{}\na += 7\na[0] = 9\na.flush()\n", lines.join("\n").replace("mode=\"r\"", "mode=\"r+\""));
    run(Command::new(python).args(["-c", &script])).expect_code(0);
    let mut part = expected.slice_each_axis_mut(|axis| {
        let (start, stop) = CHANGED[axis.axis.index()];
        Slice::new(start, Some(stop), 1)
    });
    part += 7;
    part.index_axis_mut(Axis(0), 0).fill(9);

    // The region cuts through chunks, which is an error without `--read-modify-write`.
    let upload = |more: &[&str]| -> Finished {
        let mut command =
            scene.ndshm(["upload", "part", text(&precomputed), "--bbox", &bbox, "--order", "f", "--quiet"]);
        run(command.args(more))
    };
    assert!(upload(&[]).expect_code(2).err.contains("--read-modify-write"));
    upload(&["--read-modify-write"]).expect_code(0);

    download(&scene, &precomputed, "whole", &["--bbox", ":,:,:"]);
    assert!(fs::read(scene.emulated().join("whole")).expect("there") == bytes(&expected), "the changed volume");
    let create = ["--format", "zarr3", "--encoding", "zstd", "--dtype", "uint16", "--order", "f"];
    let shape = ["--shape", "40,34,20,1", "--chunk", "10,34,7,1"];
    let mut command = scene.ndshm(["upload", "whole", text(&zarr), "--create", "--quiet"]);
    run(command.args(create).args(shape)).expect_code(0);
    download(&scene, &zarr, "copy", &[]);
    let copy = fs::read(scene.emulated().join("copy")).expect("there");
    let numbers = copy.chunks_exact(2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]])).collect();
    let copy = ArrayD::from_shape_vec(IxDyn(&SHAPE).f(), numbers).expect("as many elements");
    assert_eq!(copy, expected);
    for name in ["first", "part", "whole", "copy"] {
        run(&mut scene.ndshm(["unlink", name])).expect_code(0);
    }
    assert_eq!(scene.files(), [""; 0]);
}

/// Docker gives a container 64 MiB of shared memory by default. A larger array is an error, not a SIGBUS: it leaves
/// nothing behind, existing arrays stay, and emulated shared memory has room for it.
#[cfg(target_os = "linux")]
#[test]
fn too_large_array_in_64_mib_is_an_error() {
    use crate::scene::with_mounts;

    let scene = Scene::new();
    // 80 MiB of background. No chunk is stored.
    fs::create_dir(scene.volume()).expect("made");
    let metadata = serde_json::json!({
        "zarr_format": 2, "shape": [80, 1024, 1024], "chunks": [16, 256, 256], "dtype": "|u1", "compressor": null, "fill_value": 7,
        "order": "C", "filters": null,
    });
    fs::write(scene.volume().join(".zarray"), metadata.to_string()).expect("written");
    let script = r#"
        failed() { echo "$1" >&2; exit 77; }
        too_much() {
            code=0; "$NDSHM" download "$VOLUME" --quiet --location large "$@" 2>"$SAID" || code=$?
            cat "$SAID" >&2
            [ "$code" = 1 ] || failed "exit code $code"
            grep -q 'are available' "$SAID" && grep -q -e --shm-size "$SAID" && grep -q EMULATE_SHM=1 "$SAID" || failed "no advice"
        }
        too_much
        [ -z "$(ls -A /dev/shm)" ] || failed "left behind: $(ls -A /dev/shm)"
        "$NDSHM" download "$VOLUME" --quiet --location small --bbox 0:40,:,:
        before=$(cksum /dev/shm/small)
        too_much --bbox 0:30,:,: --processes --workers 2
        [ "$(ls -A /dev/shm)" = small ] || failed "left behind: $(ls -A /dev/shm)"
        [ "$(cksum /dev/shm/small)" = "$before" ] || failed "the existing array has changed"
        EMULATE_SHM=1 "$NDSHM" download "$VOLUME" --quiet --location large
        [ "$(stat -c %s "$NDSHM_EMULATED_DIR/large")" = 83886080 ] || failed "wrong size"
        "$NDSHM" unlink small
        EMULATE_SHM=1 "$NDSHM" unlink large
    "#;
    let mut job = Command::new("sh");
    job.args(["-e", "-c", script]).stdin(std::process::Stdio::null());
    let ndshm = scene.ndshm_in_shm([""; 0]);
    job.env("NDSHM", ndshm.get_program()).env("VOLUME", scene.volume()).env("SAID", scene.temporary().join("said"));
    job.envs(ndshm.get_envs().filter_map(|(name, value)| Some((name, value?)))).env_remove("EMULATE_SHM");
    let test = "too_large_array_in_64_mib_is_an_error";
    let Some(mut job) = with_mounts(test, "mount -t tmpfs -o size=64m none /dev/shm", &job) else { return };
    run(&mut job).expect_code(0);
    assert_eq!(scene.files(), [""; 0]);
}
