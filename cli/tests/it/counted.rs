//! Counted arrays and their holders in the output of `ls`, `info` and `unlink`.

use std::fs::File;
use std::time::SystemTime;

use ndarray_shm::{CreateOptions, SharedArray};
use serde_json::{Value, json};

use crate::holder::Holder;
use crate::scene::{Scene, run};

pub(crate) fn item(scene: &Scene, name: &str) -> Value {
    let listed = run(&mut scene.ndshm(["ls", "--backend", "emulated", "--json"])).expect_code(0).json();
    let items = listed.as_array().expect("a list").iter();
    items.clone().find(|item| item["name"] == name).unwrap_or_else(|| panic!("{name}: {listed:#}")).clone()
}

/// Returns the line of a name in the table of `ls`.
pub(crate) fn line(scene: &Scene, name: &str) -> String {
    let text = run(&mut scene.ndshm(["ls", "--backend", "emulated"])).expect_code(0).out;
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    text.lines().find(|line| line.split_whitespace().next() == Some(name)).expect("a line").to_owned()
}

pub(crate) fn info(scene: &Scene, name: &str) -> Value {
    run(&mut scene.ndshm(["info", name, "--json"])).expect_code(0).json()["array"].clone()
}

#[test]
fn ls_and_info_describe_a_counted_array() {
    let scene = Scene::new();
    let place = scene.emulated();
    let first = Holder::create(&place, "grid", &["handle=3600000"]);
    let second = Holder::open(&place, "grid");

    let listed = item(&scene, "grid");
    assert_eq!((&listed["kind"], &listed["attached"]), (&json!("counted"), &json!(true)), "{listed:#}");
    assert_eq!((&listed["size"], &listed["counted_error"]), (&json!(12288), &Value::Null));
    let counted = &listed["counted"];
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
    for (field, value) in [
        ("dtype", json!("<f4")),
        ("shape", json!([30, 40])),
        ("order", json!("C")),
        ("strategy", json!("file_system")),
        ("bytes", json!(4800)),
        ("refcount", json!(2)),
        ("in_flight", json!(1)),
        ("kept", json!(false)),
        ("frozen", json!(false)),
        ("orphaned", json!(false)),
        ("creator", json!(first.pid().as_u32())),
    ] {
        assert_eq!(counted[field], value, "{field}: {listed:#}");
    }
    assert!(counted["created"].as_u64().expect("a number").abs_diff(now) < 600, "{listed:#}");
    let row = line(&scene, "grid");
    assert!(row.contains("  2+1 in flight  ") && row.ends_with("counted <f4 30x40"), "{row}");

    let shown = info(&scene, "grid");
    let same: Vec<&str> = counted.as_object().expect("fields").keys().map(String::as_str).collect();
    assert!(same.iter().all(|field| *field == "protected_seconds" || shown["counted"][field] == counted[field]));
    let text = run(&mut scene.ndshm(["info", "grid"])).expect_code(0).out;
    assert!(text.starts_with("grid: a counted array\n"), "{text}");
    for part in ["30 x 40, C order", "2 handles", "1 handle, protecting it for", "file_system", "<f4"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.contains(&format!("ago by process {}\n", first.pid())), "{text}");
    if cfg!(target_os = "linux") {
        let mut pids: Vec<u32> = [&first, &second].iter().map(|holder| holder.pid().as_u32()).collect();
        pids.sort_unstable();
        let holders = shown["holders"].as_array().expect("a list");
        let found: Vec<u64> = holders.iter().map(|holder| holder["pid"].as_u64().expect("a number")).collect();
        assert_eq!(found, pids.iter().copied().map(u64::from).collect::<Vec<_>>(), "{shown:#}");
        assert!(holders.iter().all(|holder| holder["mapped"] == true && holder["open"].is_boolean()), "{shown:#}");
        assert!(holders.iter().all(|holder| holder["program"].as_str().is_some_and(|name| !name.is_empty())));
        assert!(shown["holders_hidden"].is_u64(), "{shown:#}");
        assert!(pids.iter().all(|pid| text.contains(&format!("{pid} ("))), "{text}");
    } else {
        assert_eq!((&shown["holders"], &shown["holders_hidden"]), (&Value::Null, &Value::Null));
        assert!(text.contains("this platform does not say"), "{text}");
    }

    assert!(first.handles[0].revoke().expect("reachable"));
    first.let_go();
    assert!(line(&scene, "grid").contains("  1  "));
    second.kill();
    let row = line(&scene, "grid");
    assert!(row.contains("  orphaned  "), "{row}");
    let shown = info(&scene, "grid");
    assert_eq!(shown["counted"]["orphaned"], true);
    if cfg!(target_os = "linux") {
        assert_eq!(shown["holders"], json!([]));
    }
    let text = run(&mut scene.ndshm(["info", "grid"])).expect_code(0).out;
    assert!(text.contains("`ndshm gc` removes it"), "{text}");
}

#[test]
fn kept_and_frozen_arrays_are_marked() {
    let scene = Scene::new();
    let holder = Holder::create(&scene.emulated(), "x", &["keep", "freeze"]);
    let row = line(&scene, "x");
    assert!(row.contains("  1, kept  ") && row.ends_with("frozen <f4 30x40"), "{row}");
    holder.let_go();
    let row = line(&scene, "x");
    assert!(row.contains("  kept  "), "{row}");
    let counted = &info(&scene, "x")["counted"];
    assert_eq!((&counted["kept"], &counted["frozen"], &counted["refcount"]), (&json!(true), &json!(true), &json!(0)));
    let text = run(&mut scene.ndshm(["info", "x"])).expect_code(0).out;
    assert!(text.contains("only `ndshm unlink` removes the name") && text.contains("no process can write"), "{text}");
}

#[test]
fn plain_arrays_have_holders_too() {
    let scene = Scene::new();
    let holder = Holder::create_plain(&scene.emulated(), "plain");
    let reader = File::open(scene.emulated().join("plain")).expect("there");
    let shown = info(&scene, "plain");
    assert_eq!((&shown["kind"], &shown["counted"]), (&json!("array"), &Value::Null), "{shown:#}");
    if cfg!(target_os = "linux") {
        let holders = shown["holders"].as_array().expect("a list");
        let of = |pid: u32| holders.iter().find(|holder| holder["pid"] == pid).unwrap_or_else(|| panic!("{shown:#}"));
        assert_eq!(of(holder.pid().as_u32())["mapped"], true);
        assert_eq!(of(std::process::id())["mapped"], false);
        assert_eq!(of(std::process::id())["open"], true);
        let text = run(&mut scene.ndshm(["info", "plain"])).expect_code(0).out;
        assert!(text.contains(&format!("{} (", holder.pid())) && text.contains("open but not mapped"), "{text}");
    }
    drop(reader);
}

#[test]
fn unlinked_counted_array_stays_attached() {
    let scene = Scene::new();
    let place = scene.emulated();
    let holder = Holder::create(&place, "x", &["handle=3600000"]);
    let text = run(&mut scene.ndshm(["unlink", "x"])).expect_code(0).out;
    assert_eq!(
        text,
        "unlinked x (still attached: the memory is freed when the last process detaches)\n\
         1 handle in flight can no longer be attached\n"
    );
    assert_eq!(scene.names(), [""; 0]);
    assert!(holder.handles[0].attach::<f32, ndarray::Ix2>().is_err());

    // Another array now has the name. The first array's last handle must not remove it.
    let other = Holder::create(&place, "x", &[]);
    holder.let_go();
    assert_eq!(scene.files(), ["x"]);
    let outcome = run(&mut scene.ndshm(["unlink", "x", "--json"])).expect_code(0).json();
    assert_eq!((&outcome[0]["attached"], &outcome[0]["in_flight"]), (&json!(true), &json!(0)), "{outcome:#}");
    other.let_go();

    let plain: SharedArray<u8, _> =
        CreateOptions::new().directory(scene.directory()).create("plain", 10).expect("created");
    let outcome = run(&mut scene.ndshm(["unlink", "plain", "--json"])).expect_code(0).json();
    assert_eq!(outcome[0]["in_flight"], Value::Null);
    assert_eq!(scene.names(), [""; 0]);
    drop(plain);
    assert_eq!(scene.files(), [""; 0]);
}
