//! The program as people meet it: the real binary, real processes, real files.
//!
//! Every test has a scene of its own (see `scene.rs`), which is gone afterwards, also when the test fails.

mod absent;
mod arenas;
mod counted;
mod crashes;
mod demonstration;
mod describing;
mod diagnosis;
mod downloading;
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
mod refusals;
mod roles;
#[cfg(unix)] // shell scripts
mod scaling;
mod scene;
mod uploading;
mod volume;
