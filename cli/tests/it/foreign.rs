//! Files of other programs: `ls --foreign`, `gc --foreign` and `gc --entrypoint`, with real programs and namespaces.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::scene::{Finished, Scene, not_run, run, text, with_mounts};

/// A program that makes a segment of Python's `SharedMemory` and stays. Its tracker would remove the segment.
const PYTHON: &str = "\
import sys, time
from multiprocessing import resource_tracker, shared_memory
memory = shared_memory.SharedMemory(sys.argv[1], create=True, size=5000)
resource_tracker.unregister(memory._name, 'shared_memory')
memory.buf[0] = 1
time.sleep(600)
";

/// A directory on tmpfs that stands for /dev/shm.
struct Shm {
    scene: Scene,
    directory: TempDir,
}

impl Shm {
    fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("ndshm-test-").tempdir_in("/dev/shm").expect("a directory");
        Self { scene: Scene::new(), directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, names: &[&str]) {
        // Another program writes them. Children of this process that are between fork and exec have all its
        // descriptors, and the files would be in use.
        let script = "for name; do printf %5000d 1 > \"$0/$name\"; done";
        let status = Command::new("sh").args(["-c", script]).arg(self.directory.path()).args(names).status();
        assert!(status.expect("sh runs").success());
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.scene.ndshm_in_shm(arguments);
        command.args(["--backend", "emulated"]).env("NDSHM_EMULATED_DIR", self.directory.path());
        command
    }

    fn run(&self, arguments: &[&str]) -> Finished {
        run(&mut self.command(arguments))
    }

    fn names(&self) -> Vec<String> {
        crate::scene::names_in(self.directory.path())
    }
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().expect("a list").iter().map(|item| item["name"].as_str().expect("text")).collect()
}

/// Runs a script in a mount namespace with a /dev/shm of its own. `$NDSHM` is the program, `$PYTHON` makes a segment
/// and stays, and `appears NAME` waits for it. Returns the lines that it printed.
fn in_private_shm(test: &str, scene: &Scene, script: &str) -> Option<String> {
    const MOUNT: &str = "mount -t tmpfs -o size=1g tmpfs /dev/shm";
    const HELPERS: &str = "\
appears() { while ! [ \"$(stat -c %b \"/dev/shm/$1\" 2>/dev/null || echo 0)\" -gt 0 ]; do sleep 0.01; done; }
python() { exec python3 \"$PYTHON\" \"$@\" >/dev/null 2>&1; }
trap 'kill -9 $(jobs -p) 2>/dev/null || true' EXIT
";
    let program = scene.temporary().join("segment.py");
    fs::write(&program, PYTHON).expect("written");
    let own = scene.ndshm_in_shm([""; 0]);
    let mut command = Command::new("timeout"); // its group ends with it
    command.args(["--signal=KILL", "120", "sh", "-e", "-c", &format!("{HELPERS}{script}")]);
    command.env("NDSHM", own.get_program()).env("PYTHON", &program);
    for (name, value) in own.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Some(run(&mut with_mounts(test, MOUNT, &command)?).expect_code(0).out)
}

fn has_python(test: &str) -> bool {
    let found = Command::new("python3").args(["-c", "import multiprocessing.shared_memory"]).output();
    let has = found.is_ok_and(|output| output.status.success());
    if !has {
        not_run(test, "it needs python3");
    }
    has
}

#[test]
fn killed_python_leaves_nothing_and_living_ones_keep_their_segments() {
    const TEST: &str = "killed_python_leaves_nothing_and_living_ones_keep_their_segments";
    const SCRIPT: &str = "
python psm_dead & dead=$!
python psm_alive & alive=$!
python psm_stopped & stopped=$!
unshare -m -p -f --kill-child python3 \"$PYTHON\" psm_elsewhere >/dev/null 2>&1 & elsewhere=$!
for name in dead alive stopped elsewhere; do appears psm_$name; done
kill -9 $dead; kill -STOP $stopped; wait $dead || true
$NDSHM ls --foreign | sed '/^$/,$d' | sed -E 's/ +/ /g; s/[0-9]+ \\(/PID (/; s/;.*//' | cut -d' ' -f 1-4,7-
$NDSHM gc --foreign --family python --older-than 0 --dry-run | grep -c would
ls /dev/shm
$NDSHM gc --foreign --family python --older-than 0 | grep removed
echo \"again: $($NDSHM gc --foreign 'psm_*' --older-than 0 | tail -1)\"
ls /dev/shm
kill -9 $alive $stopped $elsewhere; wait || true
while pgrep -f \"$PYTHON\" >/dev/null; do sleep 0.01; done
$NDSHM gc --foreign 'psm_*' --older-than 0 | tail -1
ls /dev/shm
";
    if !has_python(TEST) {
        return;
    }
    let scene = Scene::new();
    let Some(out) = in_private_shm(TEST, &scene, SCRIPT) else { return };
    let expected = "\
NAME FAMILY SIZE AGE
psm_alive python 4.9 KiB root in use: PID (python3)
psm_dead python 4.9 KiB root unused
psm_elsewhere python 4.9 KiB root in use: PID (python3)
psm_stopped python 4.9 KiB root in use: PID (python3)
2
psm_alive
psm_dead
psm_elsewhere
psm_stopped
removed psm_dead (python, 4.0 KiB)
removed 1 name, 4.0 KiB
again: nothing to remove
psm_alive
psm_elsewhere
psm_stopped
removed 3 names, 12.0 KiB
";
    let shown: Vec<&str> = out.lines().map(|line| line.split(" OWNER").next().unwrap_or(line)).collect();
    let expected: Vec<&str> = expected.lines().collect();
    assert_eq!(shown, expected, "{out}");
}

#[test]
fn without_a_choice_files_are_only_listed() {
    let shm = Shm::new();
    shm.write(&["psm_a", "torch_1_2_3", "sem.a", "cloudvolume-shm-a", "strange"]);
    let held = File::open(shm.path("psm_a")).expect("there");
    let before = shm.names();

    let listed = shm.run(&["ls", "--foreign", "--json"]).expect_code(0).json();
    assert_eq!(names(&listed), ["cloudvolume-shm-a", "psm_a", "sem.a", "strange", "torch_1_2_3"]);
    let (held_item, other) = (&listed[1], &listed[3]);
    assert_eq!(
        (&held_item["family"], &held_item["finding"], &held_item["proven"]),
        (&json!("python"), &json!("in_use"), &json!(false))
    );
    assert_eq!(held_item["holders"][0]["pid"], json!(std::process::id()));
    assert_eq!((&other["family"], &other["size"], &other["proven"]), (&json!("other"), &json!(5000), &json!(true)));
    assert_eq!(names(&shm.run(&["ls", "--foreign", "torch_*", "--json"]).expect_code(0).json()), ["torch_1_2_3"]);
    shm.run(&["ls", "--foreign", "x*"]).expect_code(3);

    let table = shm.run(&["ls", "--foreign"]).expect_code(0).out;
    assert!(table.contains("\n\nunused: no process on this machine has it open or mapped"), "{table}");
    let told = shm.run(&["gc", "--foreign", "--older-than", "0"]).expect_code(0).out;
    assert!(told.ends_with("such as `ndshm gc --foreign --dry-run --family python`\n"), "{told}");
    let report = shm.run(&["gc", "--foreign", "--older-than", "0", "--json"]).expect_code(0).json();
    assert_eq!((&report["listed"], names(&report["removed"]).len()), (&json!(true), 0));
    assert_eq!((names(&report["kept"]).len(), shm.names()), (5, before));
    drop(held);
}

#[test]
fn patterns_families_and_ages_choose() {
    let shm = Shm::new();
    shm.write(&["psm_a", "psm_b", "torch_1_2_3", "nccl-abc", "sem.a", "mp-a", "cloudvolume-shm-a", "strange"]);
    let gc = |arguments: &[&str]| {
        let report = shm.run(&[&["gc", "--foreign", "--json"], arguments].concat()).expect_code(0).json();
        names(&report["removed"]).iter().map(ToString::to_string).collect::<Vec<String>>()
    };
    assert_eq!(gc(&["*"]), [""; 0], "they are too young");
    let young = shm.run(&["gc", "--foreign", "*"]).expect_code(0).out;
    let expected = "kept 5 names, changed within 10 minutes (--older-than)\n\
                    kept 3 names that may live without a process: a pattern that begins like them removes them (sem.*)\n\
                    nothing to remove\n";
    assert_eq!(young, expected);
    let now = ["--older-than", "0"];
    assert_eq!(gc(&[&now[..], &["psm_*", "--family", "torch"]].concat()), [""; 0], "both must fit");
    assert_eq!(gc(&[&now[..], &["psm_a"]].concat()), ["psm_a"]);
    assert_eq!(gc(&[&now[..], &["--family", "python,nccl"]].concat()), ["nccl-abc", "psm_b"]);
    assert_eq!(gc(&[&now[..], &["--dry-run", "*"]].concat()), ["strange", "torch_1_2_3"]);
    assert_eq!(
        gc(&[&now[..], &["*", "?em.a"]].concat()),
        ["strange", "torch_1_2_3"],
        "no pattern begins like the rest"
    );
    assert_eq!(gc(&[&now[..], &["sem.*", "cloudvolume-*"]].concat()), ["cloudvolume-shm-a", "sem.a"]);
    assert_eq!(shm.names(), ["mp-a"]);

    for (wrong, advice) in [
        (vec!["gc", "psm_a"], "--foreign"),
        (vec!["gc", "--family", "torch"], "--foreign"),
        (vec!["gc", "--foreign", "--family", "x"], "give one of torch, python"),
        (vec!["gc", "--foreign", "--family", "semaphore"], "removed by a pattern only: 'sem.*'"),
        (vec!["gc", "--foreign", "[a"], "* matches any text"),
        (vec!["gc", "--foreign", "--in-flight"], "cannot be used with"),
        (vec!["gc", "--foreign", "--entrypoint"], "cannot be used with"),
        (vec!["gc", "--ours"], "--entrypoint"),
        (vec!["gc", "--user", "1"], "--user needs --foreign or --entrypoint"),
        (vec!["ls", "--foreign", "--all"], "cannot be used with"),
    ] {
        let finished = shm.run(&wrong).expect_code(2);
        assert!(finished.err.contains(advice), "{wrong:?}: {finished:?}");
    }
}

#[test]
fn files_of_other_users_need_root_with_the_right_to_lease() {
    const TEST: &str = "files_of_other_users_need_root_with_the_right_to_lease";
    const SCRIPT: &str = "
echo x > /dev/shm/psm_root; echo x > /dev/shm/psm_user; chown 4711 /dev/shm/psm_user
less='setpriv --bounding-set -lease'
$less $NDSHM gc --foreign --family python --older-than 0 --user 4711 || echo code $?
$less $NDSHM gc --foreign --family python --older-than 0
$NDSHM gc --foreign --family python --older-than 0 --user 4711
ls /dev/shm
";
    const LESS: &[&str] = &["--bounding-set", "-lease", "true"];
    let tried = Command::new("setpriv").args(LESS).output();
    if !rustix::process::geteuid().is_root() || !tried.is_ok_and(|output| output.status.success()) {
        return not_run(TEST, "it needs root and setpriv");
    }
    let scene = Scene::new();
    let Some(out) = in_private_shm(TEST, &scene, SCRIPT) else { return };
    let expected = "\
kept psm_user (python, 4.0 KiB): not proven: owner 4711 (only this user, or root with CAP_LEASE of the machine, can prove it)
kept 1 name, of other users
nothing to remove
code 1
removed psm_root (python, 4.0 KiB)
kept 1 name, of other users
removed 1 name, 4.0 KiB
removed psm_user (python, 4.0 KiB)
removed 1 name, 4.0 KiB
";
    assert_eq!(out, expected);
}

#[test]
fn ordinary_user_removes_only_own_files() {
    const TEST: &str = "ordinary_user_removes_only_own_files";
    const SCRIPT: &str = "
chmod 1777 /dev/shm
cp $NDSHM /dev/shm/ndshm-program; chmod 755 /dev/shm/ndshm-program
echo x > /dev/shm/psm_root
as='setpriv --reuid 4711 --regid 4711 --clear-groups'
$as sh -c 'umask 077; echo x > /dev/shm/psm_user; echo x > /dev/shm/psm_secret'
$as chmod 0 /dev/shm/psm_secret
$as /dev/shm/ndshm-program gc --foreign 'psm_*' --older-than 0 --backend shm || echo code $?
$as /dev/shm/ndshm-program gc --foreign 'psm_*' --user 0 2>&1 || echo code $?
ls /dev/shm
";
    if !rustix::process::geteuid().is_root() {
        return not_run(TEST, "only root can be two users");
    }
    let scene = Scene::new();
    let Some(out) = in_private_shm(TEST, &scene, SCRIPT) else { return };
    let expected = "\
removed psm_user (python, 4.0 KiB)
kept psm_secret (python, 4.0 KiB): not proven: owner 4711 (only this user, or root with CAP_LEASE of the machine, can prove it)
kept 1 name, of other users
removed 1 name, 4.0 KiB
code 1
error: only root can remove files of user 0
  what to do: leave out --user, or run the command as that user or as root
code 2
ndshm-program
psm_root
psm_secret
";
    assert_eq!(out, expected);
}

#[test]
fn entrypoint_removes_what_earlier_runs_left() {
    const TEST: &str = "entrypoint_removes_what_earlier_runs_left";
    const SCRIPT: &str = "
for name in psm_old vllm_offload_1.mmap strange sem.old cloudvolume-old psm_held; do echo x > /dev/shm/$name; done
mkdir /dev/shm/joblib_memmapping_folder_1_a_b; echo x > /dev/shm/joblib_memmapping_folder_1_a_b/1.pkl
$NDSHM import $TMPDIR/ours.npy ours >/dev/null 2>&1
exec_held() { exec sleep 600 3< /dev/shm/psm_held >/dev/null 2>&1; }; exec_held & holder=$!
sleep 0.1
inner='echo x > /dev/shm/psm_new; $NDSHM gc --entrypoint'
unshare -m -p -f --mount-proc sh -c \"$inner\" 2>&1 || echo code $?
unshare -i -m sh -c \"$inner\" 2>&1 | head -1
ls /dev/shm | wc -l
unshare -i -m -p -f --mount-proc sh -c \"$inner --dry-run\" | tail -1
unshare -i -m -p -f --mount-proc sh -c \"$inner\" | sed 's/in use.*/in use/'
ls /dev/shm
unshare -i -m -p -f --mount-proc sh -c \"$inner\" | grep nothing
sleep 0.1
unshare -m -p -f --mount-proc sh -c \"$inner --ours --shared-mount\" | sed 's/in use.*/in use/'
ls /dev/shm
kill $holder
";
    let scene = Scene::new();
    let uptime = fs::read_to_string("/proc/uptime").expect("Linux");
    if uptime.split('.').next().and_then(|seconds| seconds.parse::<u64>().ok()).is_none_or(|seconds| seconds < 180) {
        return not_run(TEST, "the machine has just started, so that every mount may be its own");
    }
    write_npy(&scene.temporary().join("ours.npy"));
    let Some(out) = in_private_shm(TEST, &scene, SCRIPT) else { return };
    println!("{out}");
    let expected = "\
error: /dev/shm may be used outside this container: the ipc namespace is the machine's (--ipc=host, hostIPC)
  what to do: a process outside may be about to open a file again. If none is, give --shared-mount; or choose names by `ndshm gc --foreign`
code 1
error: /dev/shm may be used outside this container: this is no container: the pid namespace is the machine's
9
would remove 2 names, 8.0 KiB
removed psm_old (python, 4.0 KiB)
removed vllm_offload_1.mmap (vllm, 4.0 KiB)
kept joblib_memmapping_folder_1_a_b/1.pkl (joblib, 4.0 KiB): not proven: its process may be in another pid namespace
kept joblib_memmapping_folder_1_a_b (joblib, 0 B): not proven: its process may be in another pid namespace
kept psm_held (python, 4.0 KiB): in use
kept 1 name, changed since process 1 was started
removed 2 names, 8.0 KiB
cloudvolume-old
joblib_memmapping_folder_1_a_b
ours
psm_held
psm_new
sem.old
strange
nothing to remove
removed ours (other, 4.0 KiB)
kept joblib_memmapping_folder_1_a_b/1.pkl (joblib, 4.0 KiB): not proven: its process may be in another pid namespace
kept joblib_memmapping_folder_1_a_b (joblib, 0 B): not proven: its process may be in another pid namespace
kept psm_held (python, 4.0 KiB): in use
kept 1 name, changed since process 1 was started
removed 1 name, 4.0 KiB
cloudvolume-old
joblib_memmapping_folder_1_a_b
psm_held
psm_new
sem.old
strange
";
    assert_eq!(out, expected);
}

/// Writes an array of four bytes in NumPy's format.
fn write_npy(path: &Path) {
    let header = format!("{:<117}\n", "{'descr': '|u1', 'fortran_order': False, 'shape': (4,), }");
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend([1, 2, 3, 4]);
    fs::write(path, bytes).unwrap_or_else(|error| panic!("{}: {error}", text(path)));
}
