//! `CloudVolume`'s own tests of parallel uploads: `CloudVolume` and `NumPy` create the arrays, and peers read the
//! written volumes.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use ndarray::{ArrayD, Axis, IxDyn, Slice};
use ndarray_shm::{DType, Order};
use ndarray_shm_volume::{
    Alignment, Bbox, NewVolume, UploadOptions, VolumeFormat, VolumeUrl, create_volume, upload_from_file,
    upload_from_shared_memory,
};
use serde_json::{Value, json};

use crate::place::Place;
use crate::servers;

/// A Python process that answers questions.
struct Peer {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    fn start(test: &str) -> Option<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/upload_peer.py");
        let mut child = Command::new(servers::python(test)?)
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python");
        let questions = child.stdin.take().expect("its standard input");
        let answers = BufReader::new(child.stdout.take().expect("its standard output"));
        Some(Self { child, questions, answers })
    }

    fn ask(&mut self, question: &Value) -> Value {
        writeln!(self.questions, "{question}").expect("it reads");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("it answers");
        serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{question}: {answer:?}"))
    }

    fn read(&mut self, url: &str, bbox: &Bbox, into: &Path) -> ArrayD<u16> {
        let ranges: Vec<[i64; 2]> = bbox.ranges().iter().map(|range| [range.start, range.end]).collect();
        self.ask(&json!({"do": "read", "url": url, "bbox": ranges, "into": into}));
        let bytes = fs::read(into).expect("the elements that Python read");
        let elements = bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
        ArrayD::from_shape_vec(IxDyn(&bbox.shape()), elements).expect("of the region's shape")
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the elements of the peer's arrays.
fn elements(shape: &[usize], seed: u64) -> ArrayD<u16> {
    let mut number = 0;
    ArrayD::from_shape_simple_fn(IxDyn(shape), || {
        number += 1;
        u16::try_from(((number - 1) * 7 + seed) % 65536).expect("small")
    })
}

struct Case {
    name: &'static str,
    /// The array's region, which may reach beyond the volume.
    bbox: &'static str,
    cutout: Option<&'static str>,
    order: Order,
    workers: usize,
    from_file: bool,
}

/// The volume is 0:96,0:96,0:40,0:1 in chunks of 32, 32, 16.
fn cases() -> Vec<Case> {
    let case = |name, bbox| Case { name, bbox, cutout: None, order: Order::F, workers: 2, from_file: false };
    vec![
        case("aligned", "0:96,0:96,0:40,0:1"),
        case("not aligned", "5:90,31:65,1:33,0:1"),
        case("thin, without a whole chunk", "0:96,0:96,15:17,0:1"),
        case("one row", "7:8,0:96,3:4,0:1"),
        Case { workers: 1, ..case("one worker", "32:96,0:64,16:40,0:1") },
        Case { cutout: Some("32:64,32:96,16:32,0:1"), ..case("a cutout", "0:96,0:96,0:40,0:1") },
        Case { cutout: Some("0:50,0:50,0:10,0:1"), ..case("cropped where it begins", "-14:50,-14:50,-6:10,0:1") },
        Case { cutout: Some("70:96,70:96,30:40,0:1"), ..case("cropped where it ends", "70:120,70:100,30:41,0:1") },
        Case { order: Order::C, ..case("order C", "0:96,0:96,0:40,0:1") },
        Case { order: Order::C, workers: 1, ..case("order C, not aligned", "3:77,11:96,8:39,0:1") },
        Case { from_file: true, ..case("a memmap", "0:64,0:64,0:32,0:1") },
        Case { from_file: true, order: Order::C, ..case("a memmap in order C", "1:64,0:64,0:31,0:1") },
    ]
}

pub(crate) fn cases_of_cloudvolumes_parallel_uploads_arrive() {
    let Some(mut peer) = Peer::start("uploads beside CloudVolume") else { return };
    for format in FORMATS {
        let place = Place::new();
        let (scheme, version) = match format {
            VolumeFormat::Zarr => ("zarr", 3),
            _ => ("precomputed", 1),
        };
        let url = format!("{scheme}://file://{}", place.path("volume").display());
        let parsed: VolumeUrl = url.parse().expect("a URL");
        let mut new = NewVolume::new(*format, &[96, 96, 40, 1], &[32, 32, 16, 1], DType::U16);
        new.version = version;
        let volume = create_volume(&parsed, &new).expect("a new volume");
        let domain = volume.meta().domain();
        let mut expected = ArrayD::<u16>::zeros(IxDyn(&domain.shape()));
        for (case, seed) in cases().iter().zip(1_u64..) {
            let all: Bbox = case.bbox.parse().expect("a box");
            let part: Bbox = case.cutout.unwrap_or(case.bbox).parse().expect("a box");
            let order = if case.order == Order::C { "C" } else { "F" };
            let options = UploadOptions::new().order(case.order).workers(case.workers).cutout(part.clone());
            let options = options.alignment(Alignment::ReadModifyWrite);
            let context = format!("{}, {url}", case.name);
            if case.from_file {
                let file = place.path("memmap");
                peer.ask(&json!({"do": "memmap", "path": file, "shape": all.shape(), "order": order, "seed": seed}));
                let before = fs::read(&file).expect("the file");
                upload_from_file(&*volume, &all, &file, &options).expect(&context);
                assert!(fs::read(&file).expect("the file is still there") == before, "{context}");
            } else {
                // The array is in real shared memory, where CloudVolume creates arrays.
                let location = format!("upload-peer-{}-{seed}", std::process::id());
                let array = json!({"location": location, "shape": all.shape(), "order": order, "seed": seed});
                let ask = |what: &str| {
                    let mut question = array.clone();
                    question["do"] = what.into();
                    question
                };
                peer.ask(&ask("share"));
                let options = options.directory(ndarray_shm::Directory::shm().expect("shared memory"));
                let at = location.parse().expect("a location");
                let done = upload_from_shared_memory(&*volume, &all, &at, &options);
                let still = peer.ask(&ask("still"));
                done.expect(&context);
                assert_eq!(still, json!(true), "{context}");
            }
            let written = elements(&all.shape(), seed);
            let (mut from, mut to) = (written.view(), expected.view_mut());
            for (axis, part) in part.ranges().iter().enumerate() {
                let at = |end: i64, start: i64| usize::try_from(end - start).expect("inside");
                let origin = all.ranges()[axis].start;
                from.slice_axis_inplace(Axis(axis), Slice::from(at(part.start, origin)..at(part.end, origin)));
                to.slice_axis_inplace(Axis(axis), Slice::from(at(part.start, 0)..at(part.end, 0)));
            }
            to.assign(&from);
            assert!(peer.read(&url, &domain, &place.path("read")) == expected, "{context}");
        }
    }
}

const FORMATS: &[VolumeFormat] = &[VolumeFormat::Precomputed, VolumeFormat::Zarr];
