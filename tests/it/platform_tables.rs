//! The tables that scripts/test-platforms prints: they list every test that ran, and report tests that did not run as
//! failures.

use std::fs;
use std::path::Path;
use std::process::Command;

use libtest_mimic::Trial;

pub fn trials() -> Vec<Trial> {
    let tests: &[(&str, fn())] = crate::tests![
        table_has_every_test_that_ran,
        suite_without_one_of_its_tests_fails,
        first_backend_must_run_every_test,
        table_and_program_must_count_the_same,
        failed_test_is_named_with_its_panic,
        run_without_tests_fails_with_the_reason,
        more_than_five_restarts_fail_the_run,
    ];
    crate::support::trials("tidy::platform_tables", tests)
}

const TESTS: [&str; 3] = ["arrays::one", "arrays::two", "pool::one"];

/// Returns the output of the suite's program when these tests pass on a backend called `emulated`.
fn log(tests: &[&str]) -> String {
    let lines =
        tests.iter().map(|test| format!("test conformance::emulated::{test}   ... ok")).collect::<Vec<_>>().join("\n");
    let count = tests.len();
    format!(
        "\nrunning {count} tests\n{lines}\ntest result: ok. {count} passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n"
    )
}

/// Prints the tables of one run. Returns whether all tests passed, and the printed text.
fn tables(kind: &str, status: u32, log: &str) -> (bool, String) {
    tables_of(kind, "emulated", status, log, &TESTS.map(|test| format!("emulated::{test}")))
}

/// Does the same for a run on these backends with this list of tests.
fn tables_of(kind: &str, backends: &str, status: u32, log: &str, listed: &[String]) -> (bool, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("log"), log).unwrap();
    let listed: Vec<String> = listed.iter().map(|test| format!("conformance::{test}: test\n")).collect();
    fs::write(path("listing"), listed.concat()).unwrap();
    let row = format!("{kind}\tWindows\t{backends}\t{status}\t{}\n", path("log").display());
    fs::write(path("rows"), row).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/platform-tables");
    let output = Command::new("python3").arg(script).args([path("rows"), path("listing")]).output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

fn table_has_every_test_that_ran() {
    let (is_good, text) = tables("suite", 0, &log(&TESTS));
    let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(is_good && words[1] == ["a", "Windows,", "emulated"], "{text}");
    assert_eq!(words[3..6], [["arrays", "2"], ["pool", "1"], ["all", "3"]], "{text}");
    let (is_good, text) = tables("tests", 0, &log(&TESTS));
    assert!(is_good && text.contains("3 passed"), "{text}");
    let (is_good, text) =
        tables("suite", 0, &log(&TESTS).replace("test conformance", "a child says: test conformance"));
    assert!(is_good, "{text}");
}

fn suite_without_one_of_its_tests_fails() {
    let (is_good, text) = tables("suite", 0, &log(&TESTS[..2]));
    assert!(!is_good && text.contains("FAILED: Windows: on emulated these did not pass: pool::one"), "{text}");
    let (is_good, text) = tables("suite", 0, &log(&["arrays::one", "arrays::three", "pool::one"]));
    assert!(
        !is_good && text.contains("did not pass: arrays::two") && text.contains("not listed: arrays::three"),
        "{text}"
    );
    let (is_good, text) = tables("suite", 101, &log(&TESTS).replace("two   ... ok", "two   ... FAILED"));
    assert!(!is_good && text.contains("FAILED: Windows: "), "{text}");
}

fn first_backend_must_run_every_test() {
    let listed = ["shm::arrays::one", "shm::pool::one", "emulated::arrays::one"].map(str::to_owned);
    let ran = |tests: &[&str]| log(tests).replace("emulated::shm::", "shm::").replace("emulated::emulated", "emulated");
    let all = ran(&["shm::arrays::one", "shm::pool::one", "emulated::arrays::one"]);
    let (is_good, text) = tables_of("suite", "shm emulated", 0, &all, &listed);
    assert!(is_good, "{text}");
    let (is_good, text) = tables_of("suite", "shm emulated", 0, &ran(&["shm::arrays::one", "shm::pool::one"]), &listed);
    assert!(!is_good && text.contains("on emulated these did not pass: arrays::one"), "{text}");
    let (is_good, text) = tables_of("suite", "emulated", 0, &ran(&["emulated::arrays::one"]), &listed);
    assert!(!is_good && text.contains("on emulated these did not pass: pool::one"), "{text}");
}

fn table_and_program_must_count_the_same() {
    for (now, then) in [("3 passed", "4 passed"), ("running 3", "running 4"), ("conformance::emulated::pool", "others")]
    {
        let (is_good, text) = tables("suite", 0, &log(&TESTS).replace(now, then));
        assert!(!is_good && text.contains("and the program counted"), "{then}: {text}");
    }
}

fn failed_test_is_named_with_its_panic() {
    let panic =
        "\nthread 'arrays::two' (7) panicked at a.rs:1:2:\nthe program starts: Internal error.\nnote: something\n";
    let failed = log(&TESTS).replace("test conformance::emulated::arrays::two   ... ok", "test arrays::two ... FAILED");
    let (is_good, text) = tables("tests", 101, &(failed + panic));
    assert!(!is_good && text.contains("FAILED: arrays::two (thread"), "{text}");
    assert!(text.contains("a.rs:1:2: the program starts: Internal error."), "{text}");
}

fn run_without_tests_fails_with_the_reason() {
    let broken = "   Compiling something\nerror: could not compile `something`\nwarning: build failed\n";
    for kind in ["suite", "tests", "check"] {
        let (is_good, text) = tables(kind, 101, broken);
        assert!(
            !is_good && text.contains("FAILED") && text.contains("could not compile `something`"),
            "{kind}: {text}"
        );
    }
    let (is_good, text) = tables("tests", 0, &log(&[]));
    assert!(!is_good && text.contains("FAILED: nothing ran"), "{text}");
    let (is_good, text) = tables("tests", 0, &(log(&TESTS) + &log(&[])));
    assert!(!is_good && text.contains("FAILED: a program ran nothing"), "{text}");
    let (is_good, text) = tables("tests", 0, &(log(&TESTS) + "   Doc-tests something\n" + &log(&[])));
    assert!(is_good && text.contains("3 passed"), "{text}");
}

fn more_than_five_restarts_fail_the_run() {
    for (times, is_rare) in [(1, true), (5, true), (6, false)] {
        for kind in ["suite", "tests"] {
            let (is_good, text) = tables(kind, 0, &("started again: Internal error\n".repeat(times) + &log(&TESTS)));
            assert_eq!(is_good, is_rare, "{text}");
            assert!(text.contains(&format!("at the first attempt: {times}")), "{text}");
        }
    }
}
