//! The matrix of tests: writers, formats, encodings, element types, orders, regions, stores.
//!
//! Tests cover pairs of values, not every combination: encoding and element type, type and region, region and order,
//! encoding and store, .. The other values take turns.

use std::fmt;
use std::ops::Range;

use ndarray_shm::DType;
use ndarray_shm_volume::Bbox;
use serde_json::{Value, json};

/// A program that knows how a volume is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Oracle {
    CloudVolume,
    Tensorstore,
    ZarrPython,
}

impl Oracle {
    /// Returns the name that `oracle.py` and the tests use.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::CloudVolume => "cloudvolume",
            Self::Tensorstore => "tensorstore",
            Self::ZarrPython => "zarr-python",
        }
    }
}

/// A format, with its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Format {
    Precomputed,
    Zarr2,
    Zarr3,
    N5,
}

impl Format {
    /// Returns the name that `oracle.py` and the names of tests use.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Precomputed => "precomputed",
            Self::Zarr2 => "zarr2",
            Self::Zarr3 => "zarr3",
            Self::N5 => "n5",
        }
    }

    /// Returns the prefix of a URL, without `://`.
    pub(crate) fn scheme(self) -> &'static str {
        match self {
            Self::Precomputed => "precomputed",
            Self::Zarr2 | Self::Zarr3 => "zarr",
            Self::N5 => "n5",
        }
    }
}

/// The store of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kept {
    Files,
    S3,
    Http,
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Files => "files",
            Self::S3 => "S3",
            Self::Http => "HTTP",
        })
    }
}

/// Volumes of one format and encoding, written by one program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub(crate) oracle: Oracle,
    pub(crate) format: Format,
    pub(crate) encoding: &'static str,
    pub(crate) dtypes: &'static [&'static str],
    /// Channels of Precomputed volumes, in turn.
    pub(crate) channels: &'static [u64],
}

impl Row {
    /// Whether this crate also writes such volumes: Zarr, and Precomputed without shards.
    pub(crate) fn is_rewritten(&self) -> bool {
        self.format != Format::N5 && !(self.format == Format::Precomputed && self.encoding.starts_with("sharded"))
    }
}

const INTEGERS: &[&str] = &["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"];
const OF_CLOUDVOLUME: &[&str] = &["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float32"];
/// tensorstore has no 64 bit integers with a sign in Precomputed volumes.
const OF_TENSORSTORE: &[&str] = &["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "float32"];
const OF_SHARDS: &[&str] = &["uint8", "uint64", "float32"];
/// Zarr's types in two halves. Two oracles test each encoding, each with one half.
const HALVES: [&[&str]; 2] = [
    &["uint8", "uint32", "int16", "int64", "float16", "float32", "complex64"],
    &["uint16", "uint64", "int8", "int32", "float64", "complex128"],
];
/// The second half, and a type that zarr-python does not have.
const WITH_BFLOAT16: &[&str] = &["uint16", "uint64", "int8", "int32", "float64", "complex128", "bfloat16"];
/// All that N5 has.
const OF_N5: &[&str] =
    &["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float32", "float64"];
const LABELS: &[&str] = &["uint32", "uint64"];
/// Types for the codecs of numcodecs: one of each size, and complex64, which these codecs know only as bytes.
const OF_NUMCODECS: &[&str] = &["uint16", "uint8", "float32", "int64", "complex64"];
const OF_DELTA: &[&str] = &["uint16", "int32", "uint8", "int64"];
const FLOATS: &[&str] = &["float32", "float64", "float16"];
const BOOL: &[&str] = &["bool"];

/// Every row that is read.
pub(crate) fn rows() -> Vec<Row> {
    use Format::{N5, Precomputed, Zarr2, Zarr3};
    use Oracle::{CloudVolume, Tensorstore, ZarrPython};
    let precomputed =
        |oracle, encoding, dtypes, channels| Row { oracle, format: Precomputed, encoding, dtypes, channels };
    let mut rows = vec![
        precomputed(CloudVolume, "raw", OF_CLOUDVOLUME, &[1, 3, 2]),
        precomputed(CloudVolume, "gzip", OF_CLOUDVOLUME, &[3, 1, 2]),
        // CloudVolume mixes up three channels when it reads them.
        precomputed(CloudVolume, "jpeg", &["uint8", "uint8"], &[1]),
        precomputed(CloudVolume, "compressed_segmentation", LABELS, &[1]),
        precomputed(CloudVolume, "sharded raw", OF_SHARDS, &[1, 2]),
        precomputed(CloudVolume, "sharded gzip", OF_SHARDS, &[2, 1]),
        precomputed(CloudVolume, "sharded compressed_segmentation", LABELS, &[1]),
        precomputed(Tensorstore, "raw", OF_TENSORSTORE, &[2, 1, 3]),
        precomputed(Tensorstore, "jpeg", &["uint8", "uint8"], &[3, 1]),
        precomputed(
            Tensorstore,
            "png",
            &["uint8", "uint16", "uint8", "uint16", "uint8", "uint16"],
            &[1, 1, 3, 3, 4, 2],
        ),
        precomputed(Tensorstore, "compressed_segmentation", LABELS, &[1, 2]),
        precomputed(Tensorstore, "sharded raw", OF_TENSORSTORE, &[1, 3]),
        precomputed(Tensorstore, "sharded gzip", OF_TENSORSTORE, &[3, 1]),
        precomputed(Tensorstore, "sharded compressed_segmentation", LABELS, &[2, 1]),
    ];
    let v2 = ["raw", "zlib", "gzip", "bz2", "blosc", "zstd", "big-endian", "order F"].map(|encoding| (Zarr2, encoding));
    let v3 = ["raw", "gzip", "zstd", "blosc", "crc32c", "transpose", "big-endian"].map(|encoding| (Zarr3, encoding));
    let sharded = ["sharded raw", "sharded gzip", "sharded zstd"].map(|encoding| (Zarr3, encoding));
    for (turn, (format, encoding)) in v2.into_iter().chain(v3).chain(sharded).enumerate() {
        let theirs = if format == Zarr3 && turn % 2 == 1 { WITH_BFLOAT16 } else { HALVES[turn % 2] };
        rows.push(Row { oracle: Tensorstore, format, encoding, dtypes: theirs, channels: &[] });
        rows.push(Row { oracle: ZarrPython, format, encoding, dtypes: HALVES[(turn + 1) % 2], channels: &[] });
    }
    // Chunks that are left out because they hold the fill value, which is not 0; two codecs in a shard.
    for (format, encoding, dtypes) in [
        (Zarr2, "fill value", HALVES[0]),
        (Zarr3, "fill value", HALVES[0]),
        (Zarr3, "sharded transpose and blosc", HALVES[1]),
    ] {
        rows.push(Row { oracle: ZarrPython, format, encoding, dtypes, channels: &[] });
    }
    rows.extend(numcodecs_rows());
    for encoding in ["raw", "gzip", "gzip with zlib", "bzip2", "blosc", "zstd", "xz"] {
        rows.push(Row { oracle: Tensorstore, format: N5, encoding, dtypes: OF_N5, channels: &[] });
    }
    rows
}

/// Returns rows for the codecs of numcodecs in both versions of Zarr, for other spellings of codecs, and for booleans.
fn numcodecs_rows() -> Vec<Row> {
    use Format::{Zarr2, Zarr3};
    use Oracle::{Tensorstore, ZarrPython};
    let row = |oracle, format, encoding, dtypes| Row { oracle, format, encoding, dtypes, channels: &[] };
    let v2 = ["lz4", "lzma", "lzma alone", "lzma raw", "crc32", "crc32c", "adler32", "fletcher32", "shuffle"];
    let v3 = [
        "numcodecs.zlib",
        "numcodecs.bz2",
        "numcodecs.gzip",
        "numcodecs.zstd",
        "numcodecs.blosc",
        "numcodecs.lz4",
        "numcodecs.lzma",
        "numcodecs.crc32",
        "numcodecs.crc32c",
        "numcodecs.adler32",
        "numcodecs.fletcher32",
        "numcodecs.shuffle",
    ];
    let mut rows: Vec<Row> = v2.into_iter().map(|encoding| row(ZarrPython, Zarr2, encoding, OF_NUMCODECS)).collect();
    rows.extend(v3.into_iter().map(|encoding| row(ZarrPython, Zarr3, encoding, OF_NUMCODECS)));
    rows.extend([
        row(ZarrPython, Zarr2, "delta", OF_DELTA),
        row(ZarrPython, Zarr3, "numcodecs.delta", OF_DELTA),
        row(ZarrPython, Zarr3, "sharded numcodecs.delta", OF_DELTA),
        row(ZarrPython, Zarr3, "sharded numcodecs.lz4", OF_NUMCODECS),
        row(ZarrPython, Zarr3, "sharded numcodecs.fletcher32", OF_NUMCODECS),
        row(ZarrPython, Zarr2, "bitround", FLOATS),
        row(ZarrPython, Zarr3, "numcodecs.bitround", FLOATS),
        row(ZarrPython, Zarr3, "zstd without checksum", OF_NUMCODECS),
        row(Tensorstore, Zarr3, "zstd without checksum", WITH_BFLOAT16),
        row(Tensorstore, Zarr3, "transpose F", WITH_BFLOAT16),
    ]);
    for (format, encoding) in [(Zarr2, "raw"), (Zarr2, "blosc"), (Zarr3, "gzip"), (Zarr3, "sharded zstd")] {
        rows.extend([ZarrPython, Tensorstore].map(|oracle| row(oracle, format, encoding, BOOL)));
    }
    rows
}

/// A format and encoding that this crate writes, and the programs that read it back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written {
    pub(crate) format: Format,
    pub(crate) encoding: &'static str,
    pub(crate) dtypes: &'static [&'static str],
    pub(crate) channels: &'static [u64],
    /// The programs that can read such volumes.
    pub(crate) readers: &'static [Oracle],
}

/// Every encoding that is written.
pub(crate) fn written() -> Vec<Written> {
    use Format::{Precomputed, Zarr2, Zarr3};
    use Oracle::{CloudVolume, Tensorstore, ZarrPython};
    let precomputed =
        |encoding, dtypes, channels, readers| Written { format: Precomputed, encoding, dtypes, channels, readers };
    let mut all = vec![
        // CloudVolume knows int64, tensorstore does not.
        precomputed("raw", INTEGERS, &[1, 3, 2], &[CloudVolume]),
        precomputed("raw", OF_TENSORSTORE, &[3, 2, 1], &[CloudVolume, Tensorstore]),
        // Only CloudVolume reads files with names in `.gz`; tensorstore does not find them.
        precomputed("gzip", OF_CLOUDVOLUME, &[2, 1, 3], &[CloudVolume]),
        precomputed("jpeg", &["uint8"], &[1], &[CloudVolume, Tensorstore]),
        precomputed("jpeg", &["uint8"], &[3], &[Tensorstore]),
        precomputed("png", &["uint8", "uint16", "uint8", "uint16"], &[1, 1, 3, 3], &[Tensorstore]),
        precomputed("compressed_segmentation", LABELS, &[1], &[CloudVolume, Tensorstore]),
        precomputed("compressed_segmentation_gzip", LABELS, &[1], &[CloudVolume]),
    ];
    let readers = &[Tensorstore, ZarrPython];
    for (turn, encoding) in ["raw", "gzip", "zstd", "blosc"].into_iter().enumerate() {
        all.push(Written { format: Zarr2, encoding, dtypes: HALVES[turn % 2], channels: &[], readers });
        all.push(Written { format: Zarr3, encoding, dtypes: HALVES[(turn + 1) % 2], channels: &[], readers });
    }
    for (turn, encoding) in ["sharded raw", "sharded gzip", "sharded zstd", "sharded blosc"].into_iter().enumerate() {
        all.push(Written { format: Zarr3, encoding, dtypes: HALVES[turn % 2], channels: &[], readers });
    }
    all.push(Written {
        format: Zarr3,
        encoding: "zstd",
        dtypes: &["bfloat16"],
        channels: &[],
        readers: &[Tensorstore],
    });
    all
}

/// The description of a volume that an oracle gets.
#[derive(Debug, Clone)]
pub(crate) struct Described {
    pub(crate) format: Format,
    pub(crate) encoding: &'static str,
    pub(crate) dtype: &'static str,
    pub(crate) origin: Vec<i64>,
    pub(crate) shape: Vec<u64>,
    pub(crate) chunk: Vec<u64>,
    pub(crate) kind: &'static str,
    pub(crate) seed: usize,
}

impl Described {
    /// The volume number `number` of a row: element type, channels, origin, number of axes and content take turns.
    ///
    /// In stores other than files, volumes are smaller: two chunks along each axis, the second one cut off, and two
    /// shards. There the tests compare the access to objects, and each object costs a request.
    pub(crate) fn new(
        format: Format,
        encoding: &'static str,
        dtypes: &[&'static str],
        channels: &[u64],
        number: usize,
        kept: Kept,
    ) -> Self {
        let dtype = dtypes[number % dtypes.len()];
        let (origin, shape, chunk) = if format == Format::Precomputed {
            let channels = channels[number % channels.len()];
            let origins = [[0, 0, 0, 0], [-24, -7, 5, 0], [1000, 0, -13, 0]];
            (origins[number % 3].to_vec(), vec![40, 36, 26, channels], vec![16, 15, 11, channels])
        } else {
            let shapes: [(&[u64], &[u64]); 3] =
                [(&[40, 36, 26], &[16, 15, 11]), (&[45, 70], &[16, 15]), (&[5, 20, 18, 22], &[2, 8, 9, 7])];
            let (shape, chunk) = shapes[number % 3];
            (vec![0; shape.len()], shape.to_vec(), chunk.to_vec())
        };
        let kind = match encoding {
            "jpeg" => "smooth",
            "fill value" => "filled",
            _ if encoding.contains("segmentation") => ["labels", "noise"][number % 2],
            // A period of 4, unlike that of the shapes and origins, which is 3.
            _ => ["noise", "smooth", "labels", "labels"][number % 4],
        };
        let mut described = Self { format, encoding, dtype, origin, shape, chunk, kind, seed: number + encoding.len() };
        if kept != Kept::Files {
            let mut whole = described.chunk.clone();
            whole[0] = described.stored()[0];
            for ((length, whole), chunk) in described.shape.iter_mut().zip(whole).zip(&described.chunk) {
                *length = (whole + chunk.div_ceil(2)).min(*length);
            }
        }
        described
    }

    /// Returns the description in the form that `oracle.py` expects.
    pub(crate) fn json(&self, place: &Value) -> Value {
        json!({
            "place": place,
            "format": self.format.name(),
            "encoding": self.encoding,
            "dtype": self.dtype,
            "origin": self.origin,
            "shape": self.shape,
            "chunk": self.chunk,
        })
    }

    /// Whether the encoding is lossy.
    pub(crate) fn is_lossy(&self) -> bool {
        self.encoding == "jpeg"
    }

    /// Returns the box of the whole volume.
    pub(crate) fn domain(&self) -> Bbox {
        Bbox::at(&self.origin, &self.shape)
    }

    /// Returns the shape of a stored object: a chunk or a shard.
    pub(crate) fn stored(&self) -> Vec<u64> {
        let is_sharded = self.format == Format::Zarr3 && self.encoding.starts_with("sharded");
        self.chunk.iter().map(|length| if is_sharded { 2 * length } else { *length }).collect()
    }

    /// Returns the box of one stored object, on each axis the second one if there is one.
    pub(crate) fn aligned(&self) -> Bbox {
        let axis = |(range, stored): (&Range<i64>, &u64)| {
            let first = range.start.saturating_add_unsigned(*stored);
            let start = if first < range.end { first } else { range.start };
            start..start.saturating_add_unsigned(*stored).min(range.end)
        };
        Bbox::new(self.domain().ranges().iter().zip(&self.stored()).map(axis).collect()).expect("not empty")
    }

    /// Returns a region that cuts through chunks on all sides. Short axes, such as channels, are whole.
    pub(crate) fn unaligned(&self) -> Bbox {
        let axis = |range: &Range<i64>| {
            if range.end - range.start > 8 { range.start + 3..range.end - 2 } else { range.clone() }
        };
        Bbox::new(self.domain().ranges().iter().map(axis).collect()).expect("not empty")
    }

    /// Returns regions of every kind, each with its name.
    pub(crate) fn regions(&self) -> Vec<(&'static str, Bbox)> {
        let domain = self.domain();
        let mut plane = domain.ranges().to_vec();
        let last = plane.last_mut().expect("an axis");
        *last = last.end - 1..last.end;
        let point = domain.ranges().iter().map(|range| range.end - 1..range.end).collect();
        // One element on both sides of the border between the first two chunks.
        let across = domain.ranges().iter().zip(&self.chunk).map(|(range, chunk)| {
            let border = range.start.saturating_add_unsigned(*chunk);
            if border < range.end { border - 1..border + 1 } else { range.clone() }
        });
        let across = across.collect();
        let bbox = |ranges| Bbox::new(ranges).expect("not empty");
        vec![
            ("whole", domain.clone()),
            ("aligned", self.aligned()),
            ("unaligned", self.unaligned()),
            ("last plane or channel", bbox(plane)),
            ("last element", bbox(point)),
            ("across chunks", bbox(across)),
        ]
    }
}

/// Returns the type that has this name in the oracles.
pub(crate) fn dtype(name: &str) -> DType {
    match name {
        // Booleans are bytes of 0 and 1.
        "uint8" | "bool" => DType::U8,
        "uint16" => DType::U16,
        "uint32" => DType::U32,
        "uint64" => DType::U64,
        "int8" => DType::I8,
        "int16" => DType::I16,
        "int32" => DType::I32,
        "int64" => DType::I64,
        "float16" => DType::F16,
        "bfloat16" => DType::Bf16,
        "float32" => DType::F32,
        "float64" => DType::F64,
        "complex64" => DType::Complex64,
        "complex128" => DType::Complex128,
        other => panic!("no element type is called {other}"),
    }
}
