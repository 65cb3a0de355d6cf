//! Arenas and counters are kinds of their own. `ls`, `info`, `gc` and `doctor` show them without joining them.

use serde_json::json;

use crate::holder::Holder;
use crate::scene::{Scene, run};

#[test]
fn arena_is_listed_with_its_members() {
    let scene = Scene::new();
    let holder = Holder::create_arena(&scene.emulated(), "jobs", "arena");
    let counters = Holder::create_arena(&scene.emulated(), "loans", "counters");
    let listed = run(&mut scene.ndshm(["ls", "--backend", "emulated", "--json"])).expect_code(0).json();
    let (jobs, loans) = (&listed[0], &listed[1]);
    assert_eq!((&jobs["kind"], &loans["kind"]), (&"arena".into(), &"counters".into()), "{listed:#}");
    let arena = &jobs["arena"];
    assert_eq!((&arena["members"], &arena["capacity"]), (&1.into(), &(1 << 20).into()), "{arena:#}");
    assert_eq!((&arena["queues"], &arena["most_members"]), (&8.into(), &46.into()), "{arena:#}");
    assert_eq!((&jobs["attached"], &arena["orphaned"]), (&true.into(), &false.into()));
    let table = run(&mut scene.ndshm(["ls", "--backend", "emulated"])).expect_code(0).out;
    assert!(table.contains("arena of 1.0 MiB, 8 queues") && table.contains("1 member "), "{table}");
    let info = run(&mut scene.ndshm(["info", "jobs"])).expect_code(0).out;
    assert!(info.starts_with("jobs: an arena\n") && info.contains("1 of 46 processes"), "{info}");
    let info = run(&mut scene.ndshm(["info", "loans"])).expect_code(0).out;
    assert!(info.starts_with("loans: counters of loans\n"), "{info}");
    for command in ["view", "export"] {
        let refused = run(scene
            .ndshm([command, "jobs"])
            .args(["--columns", "9"].iter().take(2 * usize::from(command == "view")))
            .args(["x.npy"].iter().take(usize::from(command == "export"))));
        let refused = refused.expect_code(1);
        assert!(refused.err.contains("`jobs` is an arena, not an array"), "{refused:?}");
    }
    holder.let_go();
    counters.let_go();
    assert_eq!(scene.files(), [""; 0], "inspection is no member: the last member removed the name");
}

#[test]
fn orphaned_arena_is_reported_and_reclaimed() {
    let scene = Scene::new();
    let living = Holder::create_arena(&scene.emulated(), "living", "arena");
    Holder::create_arena(&scene.emulated(), "orphan", "arena").kill();
    Holder::create_arena(&scene.emulated(), "orphaned-loans", "counters").kill();

    let listed = run(&mut scene.ndshm(["ls", "--backend", "emulated"])).expect_code(0).out;
    assert_eq!(listed.matches("orphaned ").count(), 2, "{listed}");
    let report = run(scene.ndshm(["doctor", "--json"]).env("EMULATE_SHM", "1")).json();
    let checks = report["checks"].as_array().expect("a list");
    let orphans = checks.iter().find(|check| check["name"] == "orphans").expect("a check");
    assert_eq!(orphans["status"], "warning", "{orphans:#}");
    assert!(orphans["advice"].as_str().expect("advice").contains("ndshm gc"), "{orphans:#}");

    let gone = run(&mut scene.ndshm(["gc", "--backend", "emulated", "--json"])).expect_code(0).json();
    let removed = gone["removed"].as_array().expect("a list");
    let kinds: Vec<_> = removed.iter().map(|gone| (&gone["name"], &gone["kind"])).collect();
    let (orphan, loans) = (json!("orphan"), json!("orphaned-loans"));
    assert_eq!(kinds, [(&orphan, &json!("arena")), (&loans, &json!("counters"))], "{gone:#}");
    assert_eq!(gone["in_use"], 1);
    assert_eq!(scene.files(), ["living"]);
    living.let_go();
}
