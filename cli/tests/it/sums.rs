//! `ls --by` and `ls --metrics`: sums over names.

use std::fs;

use serde_json::Value;

use crate::holder::Holder;
use crate::scene::{Scene, run};

#[test]
fn sums_are_by_kind_and_user() {
    let scene = Scene::new();
    let place = scene.emulated();
    let _living = Holder::create(&place, "living", &[]);
    Holder::create(&place, "orphan", &[]).kill();
    Holder::create_plain(&place, "plain").kill();
    let sums = |by: &str| -> Vec<Value> {
        let mut command = scene.ndshm(["ls", "--backend", "emulated", "--json", "--by", by]);
        run(&mut command).expect_code(0).json().as_array().expect("a list").clone()
    };
    let kinds = sums("kind");
    let of = |kind: &str| kinds.iter().find(|sum| sum["group"] == kind).unwrap_or_else(|| panic!("{kinds:?}"));
    assert_eq!((&of("counted")["names"], &of("counted")["attached"]), (&2.into(), &1.into()));
    assert_eq!((&of("array")["names"], &of("array")["attached"]), (&1.into(), &0.into()));
    assert!(of("counted")["allocated"].as_u64() > Some(0));
    let users = sums("user");
    let total: u64 = kinds.iter().filter_map(|sum| sum["allocated"].as_u64()).sum();
    assert_eq!((users.len(), users[0]["allocated"].as_u64()), (1, Some(total)));
    let text = run(&mut scene.ndshm(["ls", "--backend", "emulated", "--by", "kind"])).expect_code(0);
    assert!(text.out.lines().next().is_some_and(|line| line.starts_with("KIND")), "{text:?}");
}

#[test]
fn metrics_name_no_array_unless_asked_and_replace_a_file() {
    let scene = Scene::new();
    let place = scene.emulated();
    let _living = Holder::create(&place, "living", &[]);
    Holder::create(&place, "orphan", &[]).kill();
    let ls = |arguments: &[&str]| run(scene.ndshm(["ls", "--backend", "emulated"]).args(arguments)).expect_code(0).out;
    let text = ls(&["--metrics"]);
    for line in [
        "# TYPE ndshm_names gauge",
        "ndshm_names{backend=\"emulated\",kind=\"counted\"} 2",
        "ndshm_attached_names{backend=\"emulated\",kind=\"counted\"} 1",
        "ndshm_orphaned_names{backend=\"emulated\",kind=\"counted\"} 1",
        "# UNIT ndshm_allocated_bytes bytes",
        "ndshm_handles_in_flight{backend=\"emulated\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    assert!(text.ends_with("# EOF\n") && !text.contains("living"), "{text}");
    let named = ls(&["--metrics", "--names", "liv*"]);
    assert!(
        named.contains("ndshm_name_allocated_bytes{backend=\"emulated\",kind=\"counted\",name=\"living\"} "),
        "{named}"
    );
    assert!(!named.contains("orphan\""), "{named}");
    let file = scene.temporary().join("ndshm.prom");
    fs::write(&file, "old").expect("written");
    assert_eq!(ls(&[&format!("--metrics={}", file.display())]), "");
    let written = fs::read_to_string(&file).expect("a file");
    assert!(written.ends_with("# EOF\n") && written.contains("ndshm_names"), "{written}");
    // Nothing there is no error for a collector.
    assert!(ls(&["--metrics", "nothing-*"]).ends_with("# EOF\n"));
    run(&mut scene.ndshm(["ls", "--names"])).expect_code(2);
    run(&mut scene.ndshm(["ls", "--metrics", "--json"])).expect_code(2);
    run(&mut scene.ndshm(["ls", "--metrics=/nowhere/at/all"])).expect_code(1);
}
