//! How output looks: units, colours, tables and lists, and the Python lines that open an array.

pub(crate) mod colour;
pub(crate) mod python;
pub(crate) mod report;
pub(crate) mod units;
