//! GPU arrays.
