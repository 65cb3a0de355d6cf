//! The commands, each in a file of its own. Its arguments are in `args`.

pub(crate) mod demo;
pub(crate) mod describe;
pub(crate) mod doctor;
pub(crate) mod download;
pub(crate) mod export;
pub(crate) mod foreign;
pub(crate) mod gc;
pub(crate) mod import;
pub(crate) mod info;
pub(crate) mod list;
pub(crate) mod manager;
pub(crate) mod manual;
pub(crate) mod plan;
pub(crate) mod record;
pub(crate) mod replay;
pub(crate) mod scales;
pub(crate) mod sums;
pub(crate) mod unlink;
pub(crate) mod upload;
pub(crate) mod view;
