//! Chunked volumes become arrays in shared memory, painted by many workers at once, and arrays become volumes.
//!
//! A volume, such as a Zarr array, is stored in chunks, each encoded separately. [`download_to_shared_memory`] decodes
//! the chunks that a [region](Bbox) touches into one array, with threads or with processes. Any process can then open
//! the array by its name, in any language:
//!
//! ```
//! use ndarray_shm::{unlink, DType, Order};
//! use ndarray_shm_volume::demo::{self, DemoSpec};
//! use ndarray_shm_volume::{DownloadOptions, Workers, download_to_shared_memory, open_volume};
//!
//! let directory = std::env::temp_dir().join(format!("volume-example-{}", std::process::id()));
//! demo::write_volume(&directory, &DemoSpec::new(&[48, 64, 64], &[16, 32, 32], DType::F32))?;
//!
//! let volume = open_volume(&directory)?; // a path, or a URL: "precomputed://https://host/em"
//! let bbox = volume.meta().parse_bbox("0:32,:,32:")?; // an empty side is the volume's bound
//! let location = format!("volume-example-{}", std::process::id()).parse()?;
//! let options = DownloadOptions::new().order(Order::F).workers(Workers::Threads(2));
//! let done = download_to_shared_memory(&*volume, &bbox, &location, &options)?;
//! assert_eq!((done.chunks, done.bytes), (4, 32 * 64 * 32 * 4));
//!
//! unlink(&location)?;
//! std::fs::remove_dir_all(&directory)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A program needs both crates:
//!
//! ```toml
//! [dependencies]
//! ndarray-shm = { path = "..." } # a checkout of the repository
//! ndarray-shm-volume = { path = ".../volume" } # features = ["http", "s3"] for volumes behind URLs
//! ```
//!
//! | to do | call |
//! |---|---|
//! | read a volume | [`open_volume`]; another scale: [`VolumeOptions::open`] |
//! | read and write a volume | [`open_writable_volume`]; [`VolumeOptions::open_writable`] |
//! | create a volume | [`create_volume`]; for an array, like the volume that it is from: [`NewVolume::like`] |
//! | choose a region | [`VolumeMeta::parse_bbox`], [`Bbox`]; before the volume is known [`BboxSpec`] |
//! | read a region into memory | [`read()`], [`read_into`]; several: [`read_many`] |
//! | fill an array | [`download_to_shared_memory`]; without a name [`download()`] and [`download_counted`], in a file [`download_to_file`], in memory that exists [`download_into`] |
//! | store an array | [`upload_from_shared_memory`], [`upload_from_array`], [`upload_from_file`]; where it is from: [`VolumeNotes::region_in`] |
//!
//! The array is painted under a reserved name, so that readers by name see it complete or not at all. The claim on a
//! chunk is a kernel lock: a killed worker loses only the chunk that it was painting. The same call resumes an
//! interrupted download.
//!
//! [`upload_from_shared_memory`] is the reverse. It writes into a volume that was opened for writing, or created by
//! [`create_volume`]. [`plan()`] divides a region among machines, [`Shard`] is the part of this process, and
//! [`markers`] record the finished parts.
//!
//! Formats:
//!
//! - Zarr versions 2 and 3, alone or as pyramids (OME-Zarr), with the codecs blosc, bz2, gzip, sharding, transpose,
//!   zlib and zstd, the filters delta, shuffle and bitround, and checksums; with the feature `codecs` also LZ4, LZMA
//!   and pcodec.
//! - Neuroglancer Precomputed, with raw, jpeg, png and `compressed_segmentation` chunks; shards only for reading.
//! - N5, only for reading, with raw, gzip, bzip2, zstd and blosc blocks; with the feature `codecs` also lz4 and xz.
//! - Others, by implementing [`ChunkSource`] and [`ChunkSink`].
//!
//! Elements have any integer or floating-point type that both [`ndarray_shm`] and the format have; `bool` of Zarr is
//! read as bytes of 0 and 1. A chunk that was never stored has the volume's fill value; in a volume without one it is
//! an error ([`Missing`]).
//!
//! With the feature `turbojpeg`, libjpeg-turbo encodes and decodes JPEG. `full` has all features that need nothing but
//! Rust and a C compiler.
//!
//! Volumes are in local directories or, with the features `http`, `s3`, `gcs` and `azure`, behind URLs ([`VolumeUrl`]).

// The documentation says which feature an item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod bbox;
mod cached;
mod copy;
pub mod demo;
mod description;
mod download;
mod error;
mod found;
mod grid;
mod gzip;
mod leftovers;
pub mod markers;
mod missing;
mod n5;
mod notes;
mod open;
mod plan;
mod precomputed;
mod progress;
mod recording;
mod region_memory;
mod retries;
mod scratch;
mod shard;
mod spare;
mod store;
mod take_over;
mod turn;
mod unpack;
mod upload;
mod volume;
mod zarr;

pub use crate::bbox::{Bbox, BboxSpec};
pub use crate::cached::{CachedVolume, Recheck};
pub use crate::description::{DTYPE_NAMES, Encoding, NewVolume, ScaleInfo};
pub use crate::download::{
    DownloadOptions, Downloaded, Painted, ProcessWorkers, ReadOptions, Spent, Workers, download, download_counted,
    download_into, download_to_file, download_to_shared_memory, download_with_report, end_read_threads, file_location,
    is_nameless_download, paint_as_worker, read, read_into, read_many, remove_nameless_download,
};
pub use crate::error::{Error, Result, SourceFailure, StoreFailure};
pub use crate::found::{Found, OtherUse};
pub use crate::grid::Cells;
pub use crate::leftovers::{Cleared, Leftover, LeftoverKind, reclaim};
pub use crate::missing::{FillValue, Missing};
pub use crate::notes::VolumeNotes;
pub use crate::open::{VolumeOptions, create_volume, open_volume, open_writable_volume};
pub use crate::plan::plan;
pub use crate::progress::{DownloadProgress, Progress, StopFlag};
pub use crate::recording::{Recorded, Recording, RecordingOptions};
pub use crate::region_memory::RegionMemory;
pub use crate::retries::{Retries, Retry, wait_for_servers};
pub use crate::scratch::{Elements, Scratch};
pub use crate::shard::Shard;
pub use crate::store::ObjectVersion;
pub use crate::store::url::{IntoVolumeUrl, VolumeFormat, VolumeUrl};
pub use crate::upload::{
    Alignment, UploadOptions, Uploaded, is_upload_lock, remove_upload_lock, upload_from_array, upload_from_file,
    upload_from_shared_memory,
};
pub use crate::volume::{ChunkSink, ChunkSource, Fetched, Gather, Placed, VolumeKind, VolumeMeta};
pub use crate::zarr::prepare;

/// The programs of the README and of the guide, as tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../../docs/guide/volumes.md")]
    mod volumes {}
}
