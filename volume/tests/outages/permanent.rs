//! Permanent failures, which no retry mends: a partial array is kept only on request, and the error names shard and
//! chunk.

use std::fs;
use std::path::{Path, PathBuf};

use ndarray_shm::{DType, Directory, Location};
use ndarray_shm_volume::{
    DownloadOptions, Encoding, Error, Missing, NewVolume, Result, StoreFailure, UploadOptions, VolumeFormat, VolumeUrl,
    Workers, create_volume, download, download_to_shared_memory, open_volume, upload_from_array,
};

use crate::servers::{Fault, FaultyProxy, HttpServer, Request};

const LENGTH: u64 = 16;

/// Returns an element that is not background.
fn byte(number: usize) -> u8 {
    u8::try_from(number % 250 + 1).expect("small")
}

/// A volume of 8 chunks of 8^3 bytes in one shard, and a directory for arrays.
struct Sharded {
    directory: tempfile::TempDir,
    shard: PathBuf,
    /// The name of the shard's last chunk in errors.
    last: &'static str,
}

impl Sharded {
    fn zarr() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut new = NewVolume::new(VolumeFormat::Zarr, &[LENGTH; 3], &[8; 3], DType::U8);
        (new.encoding, new.shard_shape) = (Encoding::Raw, Some(vec![LENGTH; 3]));
        let volume = create_volume(VolumeUrl::local(directory.path().join("volume")), &new).expect("a volume");
        let elements = ndarray::ArrayD::from_shape_fn(vec![16, 16, 16], |at| byte(at[0] + 3 * at[1] + 7 * at[2]));
        let bbox = volume.meta().domain();
        upload_from_array(&*volume, &bbox, &elements.view(), &UploadOptions::new()).expect("its elements");
        Self::of(directory, "volume/c/0/0/0", "1/1/1")
    }

    /// The shard is written byte by byte, since this crate only reads such volumes: its index, the minishard's index,
    /// the chunks.
    fn precomputed() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(directory.path().join("volume/s")).expect("a scale");
        let info = serde_json::json!({
            "data_type": "uint8", "num_channels": 1, "type": "image",
            "scales": [{
                "key": "s", "size": [LENGTH, LENGTH, LENGTH], "chunk_sizes": [[8, 8, 8]], "resolution": [1, 1, 1], "encoding": "raw",
                "sharding": {
                    "@type": "neuroglancer_uint64_sharded_v1", "preshift_bits": 0, "hash": "identity",
                    "minishard_bits": 0, "shard_bits": 0,
                },
            }],
        });
        fs::write(directory.path().join("volume/info"), info.to_string()).expect("a description");
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        // The minishard's index is in front of the chunks, so that a truncated shard still has it.
        let index = words(&[0, 1, 1, 1, 1, 1, 1, 1, 192, 0, 0, 0, 0, 0, 0, 0, 512, 512, 512, 512, 512, 512, 512, 512]);
        let elements: Vec<u8> = (0..512 * 8).map(byte).collect();
        let shard = [words(&[0, 192]), index, elements].concat();
        fs::write(directory.path().join("volume/s/0.shard"), shard).expect("a shard");
        Self::of(directory, "volume/s/0.shard", "8-16_8-16_8-16")
    }

    fn of(directory: tempfile::TempDir, shard: &str, last: &'static str) -> Self {
        fs::create_dir(directory.path().join("arrays")).expect("a directory for arrays");
        let shard = directory.path().join(shard);
        Self { directory, shard, last }
    }

    fn both() -> [Self; 2] {
        [Self::zarr(), Self::precomputed()]
    }

    fn volume(&self) -> PathBuf {
        self.directory.path().join("volume")
    }

    /// Truncates the shard so that its last chunk lies beyond the end.
    fn cut(&self) {
        let shard = fs::read(&self.shard).expect("a shard");
        if self.last.contains('_') {
            fs::write(&self.shard, &shard[..shard.len() - 100]).expect("cut");
            return;
        }
        // The index of a Zarr shard is at its end. The bytes cut out are in front of it, so that its checksum still
        // holds. They are more than the index, so that the last chunk's range ends beyond the shard.
        let length = 8 * 16 + 4;
        let index = shard.len() - length;
        fs::write(&self.shard, [&shard[..index - 2 * length], &shard[index..]].concat()).expect("cut");
    }

    fn directory(&self) -> Directory {
        Directory::new("test", self.directory.path().join("arrays"))
    }

    fn download(&self, url: &str, keep_partial: bool) -> Result<usize> {
        let source = open_volume(url.parse::<VolumeUrl>()?)?;
        let location: Location = "permanent-test".parse().expect("a location");
        let options = DownloadOptions::new()
            .directory(self.directory())
            .workers(Workers::Threads(1))
            .requests(1)
            .missing(Missing::Fill)
            .replace(true)
            .keep_partial(keep_partial);
        let done = download_to_shared_memory(&*source, &source.meta().domain(), &location, &options)?;
        Ok(done.filled)
    }

    /// Returns the number of files of arrays, finished or not.
    fn left(&self) -> usize {
        fs::read_dir(self.directory.path().join("arrays")).expect("the arrays").count()
    }

    /// Asserts that a download fails with a permanent error that names shard and chunk, and that it leaves nothing.
    #[track_caller]
    fn check(&self, url: &str, chunk: Option<&str>) -> Error {
        let error = self.download(url, false).expect_err(url);
        let text = error.to_string().replace('\\', "/");
        let shard = self.shard.file_name().and_then(|name| name.to_str()).expect("a name");
        assert!(text.contains(&format!("/{shard}` (region ")), "the shard: {text}");
        let named = chunk.map_or_else(|| " in ".to_owned(), |chunk| format!("`{chunk} in "));
        assert!(text.contains(&named), "the chunk: {text}");
        assert_eq!(error.store_failure(), None, "the failure is permanent: {error:?}");
        assert_eq!(self.left(), 0, "nothing is kept without a request");
        error
    }
}

fn local(path: &Path) -> String {
    path.display().to_string()
}

pub(crate) fn truncated_shards_are_permanent_errors(_name: &str) {
    for sharded in Sharded::both() {
        assert_eq!(sharded.download(&local(&sharded.volume()), false).expect("it is sound"), 0);
        fs::remove_dir_all(sharded.directory.path().join("arrays")).expect("the arrays");
        fs::create_dir(sharded.directory.path().join("arrays")).expect("again");
        sharded.cut();
        let server = HttpServer::start(sharded.directory.path());
        let behind = format!("{}/volume", server.url());
        for url in [local(&sharded.volume()), behind] {
            let error = sharded.check(&url, Some(sharded.last));
            assert!(matches!(error, Error::Chunk { .. }), "{url}: {error:?}");
            sharded.download(&url, true).expect_err("as before");
            assert!(sharded.left() > 0, "seven chunks are sound, and kept on request");
            let location = "permanent-test".parse().expect("a location");
            assert!(ndarray_shm::render::discard(&sharded.directory(), &location).expect("it is there"));
        }
    }
}

pub(crate) fn shards_need_a_server_with_range_requests(_name: &str) {
    for sharded in Sharded::both() {
        let server = HttpServer::without_ranges(sharded.directory.path());
        let error = sharded.check(&format!("{}/volume", server.url()), None);
        assert!(matches!(error, Error::ChunkUnserved { .. }), "{error:?}");
        assert!(format!("{error:?}").contains("range requests"), "{error:?}");
    }
}

/// A raw chunk of which a part is needed is read in part, and whole if the server sends no parts.
pub(crate) fn raw_chunks_come_whole_from_a_server_without_ranges(_name: &str) {
    let directory = tempfile::tempdir().expect("a directory");
    let new = NewVolume::new(VolumeFormat::Zarr, &[20, 20], &[8, 16], DType::U16);
    let volume = create_volume(VolumeUrl::local(directory.path().join("volume")), &new).expect("a volume");
    let elements = ndarray::Array2::from_shape_fn((20, 20), |(a, b)| u16::from(byte(a * 20 + b)) << 4).into_dyn();
    upload_from_array(&*volume, &volume.meta().domain(), &elements.view(), &UploadOptions::new()).expect("it fits");
    let server = HttpServer::without_ranges(directory.path());
    let remote = open_volume(&format!("{}/volume", server.url())).expect("the volume");
    let backend: Directory = Directory::new("test", directory.path());
    for region in ["3:20,5:18", "17:20,0:20"] {
        let bbox = remote.meta().parse_bbox(region).expect(region);
        let options = DownloadOptions::new().directory(backend.clone());
        let array = download::<u16, ndarray::IxDyn>(&*remote, &bbox, &options).expect(region);
        let mut wanted = elements.view();
        for (axis, range) in bbox.ranges().iter().enumerate() {
            let [start, end] = [range.start, range.end].map(|end| isize::try_from(end).expect("small"));
            wanted.slice_axis_inplace(ndarray::Axis(axis), ndarray::Slice::new(start, Some(end), 1));
        }
        assert_eq!(array.read().expect("a lock").view(), wanted, "{region}");
    }
}

/// Whether a range request is for more than indexes, which are requested first.
fn is_of_chunk(request: &Request, indexes: usize, asked: &mut usize) -> bool {
    *asked += usize::from(!request.range.is_empty());
    *asked > indexes + 2
}

pub(crate) fn refused_ranges_are_permanent_errors(_name: &str) {
    // The Precomputed shard has two levels of indexes.
    for (sharded, indexes) in Sharded::both().into_iter().zip([1, 2]) {
        let server = HttpServer::start(sharded.directory.path());
        for (status, is_expected) in [
            (400, (|error| matches!(error, Error::ChunkUnserved { .. })) as fn(&Error) -> bool),
            (403, |error| matches!(error, Error::ChunkDenied { .. })),
            (416, |error| matches!(error, Error::Chunk { .. })),
            (404, |error| matches!(error, Error::Chunk { .. })),
        ] {
            let mut asked = 0;
            let proxy = FaultyProxy::start(&server.url(), move |request| {
                is_of_chunk(request, indexes, &mut asked).then_some(Fault::Status(status))
            });
            let error = sharded.check(&format!("{}/volume", proxy.url()), None);
            assert!(is_expected(&error), "{status}: {error:?}");
        }
        // The credentials may have expired during the download: with new ones it can be resumed.
        let mut asked = 0;
        let proxy = FaultyProxy::start(&server.url(), move |request| {
            is_of_chunk(request, indexes, &mut asked).then_some(Fault::Status(403))
        });
        let url = format!("{}/volume", proxy.url().replace("http://", "http://me:secret@"));
        let error = sharded.download(&url, false).expect_err("refused");
        assert_eq!(error.store_failure(), Some(StoreFailure::CredentialsRefused), "{error:?}");
        assert!(sharded.left() > 0, "kept");
    }
}

/// A missing shard means missing chunks, not a failure.
pub(crate) fn absent_shards_are_missing_chunks(_name: &str) {
    for sharded in Sharded::both() {
        fs::remove_file(&sharded.shard).expect("the shard");
        let server = HttpServer::start(sharded.directory.path());
        for url in [local(&sharded.volume()), format!("{}/volume", server.url())] {
            assert_eq!(sharded.download(&url, false).expect("all is background"), 8);
        }
        fs::remove_dir_all(sharded.directory.path().join("arrays")).expect("the arrays");
        fs::create_dir(sharded.directory.path().join("arrays")).expect("again");
        fs::create_dir(&sharded.shard).expect("a directory in its place");
        let error = sharded.check(&local(&sharded.volume()), None);
        assert!(format!("{error:?}").contains("a directory where a file should be"), "{error:?}");
    }
}
