//! Defects in creating an array and downloading into it. Defect 11, that parallel downloads ignore `label`, has no
//! counterpart: there is no such option. Defects 7, 13 and 16 concern files and names.

use std::io::ErrorKind;
use std::ops::Range;
use std::time::Duration;

use ndarray::{Ix3, IxDyn, ShapeBuilder as _};
use ndarray_shm::backend::EntryKind;
use ndarray_shm::{Access, CreateOptions, DType, OpenOptions, Order, SharedArray};
use ndarray_shm_volume::demo::{DemoSpec, Pattern};
use ndarray_shm_volume::{
    Bbox, ChunkSource, Error, Fetched, FillValue, Missing, Result, Scratch, StopFlag, VolumeMeta, Workers,
};

use crate::place::Place;
#[cfg(target_os = "linux")]
use crate::place::corrupt;

fn spec() -> DemoSpec {
    DemoSpec::new(&[20, 20, 20], &[8, 8, 8], DType::U8).pattern(Pattern::Noise).complete(true)
}

fn region() -> Bbox {
    "3:20,0:17,5:15".parse().expect("a region")
}

/// Creates an array of another size under the place's name.
fn taken(place: &Place) -> SharedArray<u8, Ix3> {
    let options = CreateOptions::new().directory(place.backend.clone());
    options.create_with(&place.location, (3, 4, 5), |mut view| view.fill(5)).expect("an array")
}

// 1 and 2: a segment of another size is grown, shrunk or zeroed in place.
#[test]
fn existing_array_is_neither_resized_nor_cleared() {
    for place in Place::of_each_kind() {
        let volume = place.volume(&spec());
        let before = taken(&place);
        let error = place.download(&*volume, &region(), &place.options()).expect_err("the name is taken");
        assert!(
            matches!(error, Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::AlreadyExists, .. })),
            "{error}"
        );
        assert!(before.read().expect("a guard").iter().all(|element| *element == 5));
        assert_eq!(place.left(), [EntryKind::Array]);

        // Replaced on request, the old array stays unchanged for attached processes.
        let options = OpenOptions::new().directory(place.backend.clone()).keep_fd(true);
        let kept = options.open::<u8, Ix3>(&place.location, (3, 4, 5)).expect("the array");
        place.download(&*volume, &region(), &place.options().replace(true)).expect("a download");
        #[cfg(target_os = "linux")]
        assert!(kept.read().expect("a guard by descriptor").iter().all(|element| *element == 5));
        drop(kept);
    }
}

// 3: "readonly" is a flag in NumPy, and the mapping can be written.
#[test]
fn array_opened_for_reading_cannot_be_written() {
    let place = Place::new();
    let volume = place.volume(&spec());
    place.download(&*volume, &region(), &place.options()).expect("a download");
    let options = OpenOptions::new().directory(place.backend.clone());
    let array = options.access(Access::Read).open::<u8, Ix3>(&place.location, (17, 17, 10)).expect("the array");
    assert!(array.is_readonly() && array.raw_view_mut().is_none());
    assert!(matches!(
        array.write(),
        Err(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::PermissionDenied { .. }, .. })
    ));
}

// 4: an empty region creates a file that cannot be mapped, and leaves it behind.
#[test]
fn an_empty_region_is_an_error_and_leaves_nothing() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let empty = Bbox::whole(&[20, 0, 20]);
    let error = place.download(&*volume, &empty, &place.options()).expect_err("no elements");
    assert!(matches!(error, Error::Bbox { .. }), "{error}");
    assert_eq!(place.left(), []);
}

// 5: descriptors leak where mapping fails.
#[cfg(target_os = "linux")]
#[test]
fn failed_downloads_leave_no_descriptor_or_mapping() {
    for place in Place::of_each_kind() {
        let volume = place.volume(&spec());
        break_last_chunk(&place);
        for _ in 0..20 {
            place.download(&*volume, &region(), &place.options()).expect_err("a broken chunk");
        }
        let name = place.location.to_string();
        let descriptors = std::fs::read_dir("/proc/self/fd").expect("descriptors");
        let links = descriptors.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        let open: Vec<_> = links.filter(|link| link.to_string_lossy().contains(&name)).collect();
        assert!(open.is_empty(), "{open:?}");
        let maps = std::fs::read_to_string("/proc/self/maps").expect("mappings");
        assert!(!maps.contains(&name), "{maps}");
    }
}

/// Makes the last chunk unreadable: a file that is too short for its elements.
#[cfg(target_os = "linux")]
fn break_last_chunk(place: &Place) {
    corrupt(&place.path("volume/c/2/2/1"));
    let file = place.path("volume/c/2/2/1");
    let bytes = std::fs::read(&file).expect("the chunk");
    std::fs::write(file, &bytes[..bytes.len() / 2]).expect("half of it");
}

/// A volume that has a shape and no chunks.
#[derive(Debug)]
struct Shape(VolumeMeta);

impl ChunkSource for Shape {
    fn meta(&self) -> &VolumeMeta {
        &self.0
    }
    fn identity(&self) -> String {
        "a shape".to_owned()
    }
    fn decode(&self, _region: &[Range<i64>], _fetched: Fetched, scratch: &mut Scratch) -> Result<()> {
        std::thread::sleep(Duration::from_micros(200));
        scratch.missing();
        Ok(())
    }
}

// 6: CloudVolume checks the memory of the machine, not of the directory; if the directory is full, a signal ends the
// process.
#[test]
fn download_that_does_not_fit_is_refused_early() {
    for place in Place::of_each_kind() {
        let source = Shape(VolumeMeta::new(&[1 << 16, 1 << 16, 1 << 12], &[1 << 10; 3], DType::U8));
        let bbox = source.meta().domain();
        let error = place.download(&source, &bbox, &place.options()).expect_err("16 TiB");
        match &error {
            Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::NoSpace { .. }, .. }) => {}
            Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::TooLarge { .. }, .. })
                if usize::BITS == 32 => {}
            // Under Wine growing a file takes no space; the length or the mapping is refused first.
            Error::Array(ndarray_shm::Error {
                kind: ndarray_shm::ErrorKind::Os { .. }, source: Some(source), ..
            }) if cfg!(windows) && source.kind() != ErrorKind::PermissionDenied => {}
            _ => panic!("{error:?}"),
        }
        assert_eq!(place.left(), []);
    }
}

// 8: workers do not get the order, and scramble arrays in C order. (With processes: see `processes.rs`.)
#[test]
fn any_number_of_workers_paints_the_requested_order() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let expected = spec().expected::<u8>(&region()).expect("the region");
    for order in [Order::C, Order::F] {
        for threads in [1, 4] {
            let options = place.options().order(order).workers(Workers::Threads(threads)).replace(true);
            let done = place.download(&*volume, &region(), &options).expect("a download");
            assert!(done.open::<u8, IxDyn>().expect("the array").read().expect("a guard").view() == expected);
            // Reads the bytes of the file without this crate: the second element is 0, 0, 1 in C order and 1, 0, 0 in F
            // order.
            let bytes = std::fs::read(place.backend.path().join(place.location.as_str())).expect("the file");
            assert_eq!(bytes[1], if order == Order::C { expected[[0, 0, 1]] } else { expected[[1, 0, 0]] });
        }
    }
}

// 9: each worker paints the background of the whole region, at the volume's coordinates, over chunks that other workers
// have finished.
#[test]
fn background_is_painted_only_over_missing_chunks() {
    let place = Place::new();
    let volume = place.volume(&spec());
    for chunk in ["0/0/0", "1/1/1", "2/0/1"] {
        std::fs::remove_file(place.path("volume/c").join(chunk)).expect("a chunk to remove");
    }
    let mut whole = spec().expected::<u8>(&Bbox::whole(&[20, 20, 20])).expect("all of it");
    for (x, y, z) in [(0, 0, 0), (8, 8, 8), (16, 0, 8)] {
        let end = |start: usize| (start + 8).min(20);
        whole.slice_mut(ndarray::s![x..end(x), y..end(y), z..end(z)]).fill(99);
    }
    let expected = whole.slice(ndarray::s![3..20, 0..17, 5..15]).into_dyn();
    for threads in [1, 2, 8] {
        let options = place.options().missing(Missing::FillWith(FillValue::of(99u8))).replace(true);
        let options = options.workers(Workers::Threads(threads));
        let done = place.download(&*volume, &region(), &options).expect("a download");
        assert!(done.open::<u8, IxDyn>().expect("the array").read().expect("a guard").view() == expected);
    }
}

// 10: a reused segment shows the last download where chunks are missing. (Memory of a pool: see `missing.rs`.)
#[test]
fn reused_name_shows_no_old_elements() {
    let place = Place::new();
    let volume = place.volume(&spec());
    place.download(&*volume, &region(), &place.options()).expect("a download");
    std::fs::remove_dir_all(place.path("volume/c")).expect("all chunks");
    let done = place.download(&*volume, &region(), &place.options().replace(true)).expect("another");
    assert!(done.open::<u8, IxDyn>().expect("the array").read().expect("a guard").iter().all(|element| *element == 7));
}

// 12: an interrupted download unlinks the name even if another array has it, and swallows the interruption.
#[test]
fn stopped_download_reports_it_and_keeps_the_existing_array() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let before = taken(&place);
    let stop = StopFlag::new();
    stop.stop();
    let options = place.options().replace(true).stop(&stop);
    let error = place.download(&*volume, &region(), &options).expect_err("it was stopped");
    assert!(matches!(error, Error::Interrupted { .. }), "{error}");
    assert_eq!(place.left(), [EntryKind::Array]);
    assert!(before.read().expect("its name").iter().all(|element| *element == 5));
}

// 14: closing the array of a parallel download does nothing. The steps are those of CloudVolume's
// `test_parallel_read_shm`: compare the array with a read, close it, unlink it.
#[cfg(target_os = "linux")]
#[test]
fn dropped_array_is_unmapped_and_can_be_unlinked() {
    let place = Place::in_shared_memory();
    let volume = place.volume(&spec());
    let options = place.options().order(Order::F).workers(Workers::Threads(2));
    let done = place.download(&*volume, &region(), &options).expect("a download");
    let array = done.open::<u8, IxDyn>().expect("the array");
    assert!(array.read().expect("a guard").view() == spec().expected::<u8>(&region()).expect("the region"));
    let is_mapped = || std::fs::read_to_string("/proc/self/maps").expect("mappings").contains(place.location.as_str());
    assert!(is_mapped());
    drop(array);
    assert!(!is_mapped());
    assert!(place.backend.unlink(&place.location).expect("unlink"));
    assert!(!place.backend.unlink(&place.location).expect("unlink"), "it was there once");
}

// 15: an array in C order is copied into private memory before the caller gets it.
#[test]
fn array_of_either_order_is_the_shared_memory() {
    let place = Place::new();
    let volume = place.volume(&spec());
    for order in [Order::C, Order::F] {
        let options = place.options().order(order).replace(true);
        let done = place.download(&*volume, &region(), &options).expect("a download");
        let (one, other) = (done.open::<u8, Ix3>().expect("the array"), done.open::<u8, IxDyn>().expect("once more"));
        let changed = one.read().expect("a guard")[[1, 2, 3]].wrapping_add(1);
        one.write().expect("a guard")[[1, 2, 3]] = changed;
        assert_eq!(other.read().expect("a guard")[[1, 2, 3]], changed);
        let shape = (17, 17, 10).set_f(order == Order::F);
        let anew = OpenOptions::new().directory(place.backend.clone()).open::<u8, Ix3>(&place.location, shape);
        assert_eq!(anew.expect("by its name").read().expect("a guard")[[1, 2, 3]], changed);
    }
}

// 17: a region outside the volume is returned as an ordinary array of zeros in private memory.
#[test]
fn region_outside_the_volume_is_an_error() {
    let place = Place::new();
    let volume = place.volume(&spec());
    for text in ["20:24,0:20,0:20", "0:20,0:21,0:20", "-1:20,0:20,0:20"] {
        let error = place.download(&*volume, &text.parse().expect(text), &place.options()).expect_err(text);
        assert!(matches!(error, Error::Bbox { .. }), "{error}");
    }
    assert_eq!(place.left(), []);
}
