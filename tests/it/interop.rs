//! Tests against real peers: numpy, Python's `multiprocessing.shared_memory`, CloudVolume, and a Python program that
//! takes our locks.
//!
//! `NDSHM_TEST_PYTHON` names the Python interpreter that has these packages; `scripts/test` creates it. Without it
//! these tests fail.

#[cfg(feature = "channel")]
mod channels;
mod cloudvolume;
mod descriptions;
mod layers;
mod locks;
mod numpy;
mod painters;
pub mod peer;
mod sample;
mod shared_memory;
mod streams;

use libtest_mimic::Trial;

use crate::support::Place;
use crate::support::child::Role;

pub fn trials(place: &Place) -> Vec<Trial> {
    let mut trials = numpy::trials(place);
    trials.extend(cloudvolume::trials(place));
    trials.extend(descriptions::trials(place));
    trials.extend(layers::trials(place));
    trials.extend(locks::trials(place));
    trials.extend(painters::trials(place));
    trials.extend(streams::trials(place));
    #[cfg(feature = "channel")]
    trials.extend(channels::trials(place));
    if place.name == "shm" {
        trials.extend(shared_memory::trials(place));
    } else {
        trials.extend(cloudvolume::emulation_trials(place));
    }
    trials
}

pub const ROLES: &[&[(&str, Role)]] = &[
    &[("paint-layer", layers::paint_layer), ("use-default-directory", cloudvolume::use_default_directory)],
    streams::ROLES,
    #[cfg(feature = "channel")]
    channels::ROLES,
];
