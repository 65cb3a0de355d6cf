//! Floor 4: how arrays get from one process to another other than by a name that both know.
//!
//! So far the lowest part of it: messages with open files on a socket.

mod turns;
mod wire;
