//! The program as users run it: the real binary, real processes, real files.
//!
//! Every test has its own scene (see `scene.rs`), which is removed at the end, also when the test fails.

mod absent;
mod arenas;
mod caches;
mod counted;
mod crashes;
mod demonstration;
mod describing;
mod diagnosis;
mod downloading;
#[cfg(target_os = "linux")]
mod foreign;
mod gc;
mod holder;
#[cfg(unix)] // signals
mod interrupting;
mod listing;
mod making;
#[cfg(target_os = "linux")]
mod managing;
mod manuals;
mod n5;
mod npy_files;
mod parts;
mod pictures;
mod recording;
mod refusals;
mod roles;
#[cfg(target_os = "linux")] // elsewhere arrays have no descriptions, and so no region of their own
mod round_trips;
#[cfg(unix)] // shell scripts
mod scaling;
mod scene;
mod streams;
mod sums;
mod uploading;
mod volume;
