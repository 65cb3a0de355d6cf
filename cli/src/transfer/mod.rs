//! What downloads and uploads share: source and destination, region and parts, progress, and worker processes.

pub(crate) mod destination;
pub(crate) mod new_volume;
pub(crate) mod part;
pub(crate) mod progress;
pub(crate) mod region;
pub(crate) mod request;
pub(crate) mod source;
pub(crate) mod worker;
