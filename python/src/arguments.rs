//! Arguments as Python gives them: names, orders, shapes and times.

use std::ops::Deref;
use std::time::Duration;

use ndarray_shm::Order;
use pyo3::Borrowed;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::named;

/// The maximum number of axes: numpy's.
const MOST_AXES: usize = 64;

pub(crate) fn seconds(timeout: f64) -> PyResult<Duration> {
    // In practice a year is without limit. A longer time can be too long for the clock.
    let timeout = if timeout > 3.2e7 { 3.2e7 } else { timeout };
    Duration::try_from_secs_f64(timeout).map_err(|_| {
        PyValueError::new_err(format!("timeout={timeout}: give seconds, 0 or more, or None to wait without limit"))
    })
}

pub(crate) fn order_of(order: &str) -> PyResult<Order> {
    match order {
        "C" => Ok(Order::C),
        "F" => Ok(Order::F),
        other => Err(PyValueError::new_err(format!("order={other:?}: give \"C\" or \"F\""))),
    }
}

pub(crate) fn lengths_of(py: Python<'_>, lengths: Vec<usize>) -> PyResult<Vec<usize>> {
    if lengths.len() > MOST_AXES {
        let text = format!("{} axes are too many: an array has at most {MOST_AXES}", lengths.len());
        return Err(named(py, "InvalidArgument", &text));
    }
    Ok(lengths)
}

/// A name as Python gives it. What is no text is refused with advice.
pub(crate) struct Name(String);

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'py> FromPyObject<'_, 'py> for Name {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        given.extract().map(Self).map_err(|_| {
            let shown = given.repr().map_or_else(|_| "this".to_owned(), |text| text.to_string());
            named(given.py(), "InvalidType", &format!("{shown} is no name of an array: give text, such as \"volume\""))
        })
    }
}
