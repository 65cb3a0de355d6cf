//! docs/layout.md shows the very code that these tests run.

use libtest_mimic::Trial;

use super::peer::of_package;
use crate::{support, tests};

pub fn trials() -> Vec<Trial> {
    support::trials("interop::layout_page", tests![the_page_shows_the_code_that_is_tested])
}

fn the_page_shows_the_code_that_is_tested() {
    let read = |path: &str| std::fs::read_to_string(of_package(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let page = read("docs/layout.md");
    let shown: Vec<&str> = page.split("```python\n").skip(1).filter_map(|block| block.split("```").next()).collect();
    let tested = ["ndshm_description.py", "ndshm_manager.py", "ndshm_locks.py", "ndshm_painter.py", "ndshm_channel.py"]
        .map(|file| read(&format!("tests/it/python/{file}")));
    assert_eq!(shown, tested, "left: docs/layout.md; right: tests/it/python");
}
