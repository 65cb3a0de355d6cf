//! The slots' protocol.
