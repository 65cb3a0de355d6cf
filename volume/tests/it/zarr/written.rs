//! Written.
