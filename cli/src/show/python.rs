//! The Python lines that open an array, for users to paste.

use ndarray_shm::{DType, Order};

/// Returns the lines that map the array at `path` read-only with `NumPy`: an import and one statement.
pub(crate) fn lines(path: &str, dtype: DType, shape: &[usize], order: Order) -> Vec<String> {
    let mut lines = vec!["import numpy as np".to_owned()];
    let dtype = if dtype == DType::Bf16 {
        // NumPy itself has no bfloat16.
        lines.push("import ml_dtypes".to_owned());
        "ml_dtypes.bfloat16".to_owned()
    } else {
        quoted(&dtype.to_string())
    };
    let shape_text = tuple(shape);
    lines.push(if shape.contains(&0) {
        format!("a = np.empty({shape_text}, dtype={dtype}, order=\"{order}\")  # no elements: nothing to map")
    } else {
        format!("a = np.memmap({}, dtype={dtype}, mode=\"r\", shape={shape_text}, order=\"{order}\")", quoted(path))
    });
    lines
}

/// Writes a Python tuple: `()`, `(5,)`, `(2, 3)`.
fn tuple(shape: &[usize]) -> String {
    match shape {
        [one] => format!("({one},)"),
        many => format!("({})", many.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// Writes a string literal. Python reads the escapes of JSON the same way.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_array_is_one_import_and_one_memmap() {
        let lines = lines("/dev/shm/it's \"x\"", DType::U16, &[2, 3], Order::F);
        assert_eq!(
            lines,
            [
                "import numpy as np",
                "a = np.memmap(\"/dev/shm/it's \\\"x\\\"\", dtype=\"<u2\", mode=\"r\", shape=(2, 3), order=\"F\")"
            ]
        );
    }

    #[test]
    fn one_axis_is_a_tuple_and_an_empty_array_is_not_mapped() {
        assert!(lines("p", DType::U8, &[5], Order::C)[1].contains("shape=(5,)"));
        assert!(lines("p", DType::U8, &[0, 3], Order::C)[1].starts_with("a = np.empty((0, 3)"));
    }
}
