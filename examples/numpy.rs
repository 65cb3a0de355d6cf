//! Shares an array with numpy: Python maps the same file and changes it in place.
//!
//! ```sh
//! pip install numpy
//! cargo run --example numpy
//! ```
//!
//! `NDSHM_TEST_PYTHON` chooses a Python interpreter other than `python3`.

use std::env;
use std::error::Error;
use std::process::Command;

use ndarray_shm::SharedArray;

const PYTHON: &str = r#"
import sys
import numpy as np
array = np.memmap(sys.argv[1], dtype=sys.argv[2], mode="r+", shape=(3, 4), order="C")
array[:, 1] *= 10
array.flush()
"#;

fn main() -> Result<(), Box<dyn Error>> {
    let python = env::var("NDSHM_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let found = Command::new(&python).args(["-c", "import numpy"]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        eprintln!("{python} cannot import numpy; install it with: {python} -m pip install numpy");
        std::process::exit(1);
    }

    let name = format!("numpy-example-{}", std::process::id());
    let array = SharedArray::<i32, _>::create_with(name, (3, 4), |mut view| view.fill(4))?;

    // An array is a file (in /dev/shm on Linux) that holds the elements and nothing else.
    let path = array.directory().path().join(array.location().as_str());
    // numpy takes no locks. So this process holds no guard while Python runs, and reads after Python has ended.
    let status = Command::new(&python).args(["-c", PYTHON]).arg(&path).arg(array.dtype().as_str()).status();
    let row = array.read()?.row(2).to_vec();
    array.unlink()?;

    if !status?.success() {
        return Err("Python failed; see its message above".into());
    }
    assert_eq!(row, [4, 40, 4, 4]);
    println!("a row after numpy multiplied the second column by 10: {row:?}");
    Ok(())
}
