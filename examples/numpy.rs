//! Rust creates an array, and numpy changes it in place: the file holds the elements and nothing else.
//!
//! ```sh
//! cargo run --example numpy        # the interpreter: NDSHM_TEST_PYTHON, else python3
//! ```

#![allow(clippy::float_cmp)] // small whole numbers

use std::process::Command;
use std::{env, fs};

use ndarray_shm::{SharedArray, unlink};

/// What any program can do that knows path, element type, shape and order.
const PROGRAM: &str = "
import sys
try:
    import numpy
except ImportError:
    sys.exit('this example needs numpy: python3 -m pip install numpy')
array = numpy.memmap(sys.argv[1], dtype='<f4', mode='r+', shape=(3, 4), order='C')
array[1, :] += 40
array.flush()
";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = format!("numpy-{}", std::process::id());
    let array = SharedArray::<f32, _>::create_with(name.as_str(), (3, 4), |mut view| view.fill(2.0))?;
    let path = fs::canonicalize(array.backend().path().join(&name))?;

    let python = env::var_os("NDSHM_TEST_PYTHON").unwrap_or_else(|| "python3".into());
    let status = Command::new(python).arg("-c").arg(PROGRAM).arg(&path).status();
    let changed = array.read()?.to_owned();
    unlink(&name)?;
    assert!(status?.success(), "Python failed");

    println!("{changed}");
    assert_eq!(changed.row(1).sum(), 4.0 * 42.0);
    Ok(())
}
