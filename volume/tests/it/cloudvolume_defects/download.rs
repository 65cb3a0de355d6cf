//! Those that concern making an array and downloading into it. (11, that parallel downloads ignore `label`, has no counterpart: there
//! is no such option. 7, 13 and 16 are about files and names.)

use std::io::ErrorKind;
use std::ops::Range;
use std::time::Duration;

use ndarray::{Ix3, IxDyn, ShapeBuilder as _};
use ndarray_shm::backend::EntryKind;
use ndarray_shm::{Access, AttachOptions, CreateOptions, DType, Order, SharedArray};
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

/// Makes an array of another size under the place's name.
fn taken(place: &Place) -> SharedArray<u8, Ix3> {
    let options = CreateOptions::<SharedArray<_, _>>::new().backend(place.backend.clone());
    options.create_with(&place.location, (3, 4, 5), |mut view| view.fill(5)).expect("an array")
}

// 1 and 2: a segment of another size is grown, shrunk or zeroed in place.
#[test]
fn an_array_that_has_the_name_is_neither_resized_nor_cleared() {
    for place in Place::of_each_kind() {
        let volume = place.volume(&spec());
        let before = taken(&place);
        let error = place.download(&*volume, &region(), &place.options()).expect_err("the name is taken");
        assert!(matches!(error, Error::Array(ndarray_shm::Error::AlreadyExists { .. })), "{error}");
        assert!(before.read().expect("a guard").iter().all(|element| *element == 5));
        assert_eq!(place.left(), [EntryKind::Array]);

        // Replaced on request, it stays as it is for attached processes.
        let options = AttachOptions::<SharedArray<u8, Ix3>>::new().backend(place.backend.clone()).keep_fd(true);
        let kept = options.open(&place.location, (3, 4, 5)).expect("the array");
        place.download(&*volume, &region(), &place.options().replace(true)).expect("a download");
        #[cfg(target_os = "linux")]
        assert!(kept.read().expect("a guard by descriptor").iter().all(|element| *element == 5));
        drop(kept);
    }
}

// 3: "readonly" is a flag in NumPy, and the mapping can be written.
#[test]
fn what_is_opened_for_reading_cannot_be_written() {
    let place = Place::new();
    let volume = place.volume(&spec());
    place.download(&*volume, &region(), &place.options()).expect("a download");
    let options = AttachOptions::<SharedArray<u8, Ix3>>::new().backend(place.backend.clone());
    let array = options.access(Access::Read).open(&place.location, (17, 17, 10)).expect("the array");
    assert!(array.is_readonly() && array.raw_view_mut().is_none());
    assert!(matches!(array.write(), Err(ndarray_shm::Error::PermissionDenied { .. })));
}

// 4: an empty region makes a file that cannot be mapped, and leaves it.
#[test]
fn an_empty_region_is_an_error_and_leaves_nothing() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let empty = Bbox::whole(&[20, 0, 20]);
    let error = place.download(&*volume, &empty, &place.options()).expect_err("no elements");
    assert!(matches!(error, Error::Bbox { .. }), "{error}");
    assert_eq!(place.left(), []);
}

// 5: descriptors are left where mapping fails.
#[cfg(target_os = "linux")]
#[test]
fn downloads_that_fail_leave_no_descriptor_and_no_mapping() {
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

/// A volume that is nothing but its shape.
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

// 6: what fits is asked of the machine, not of the directory, and then a signal ends the process.
#[test]
fn what_does_not_fit_is_refused_before_anything_is_taken() {
    for place in Place::of_each_kind() {
        let source = Shape(VolumeMeta::new(&[1 << 16, 1 << 16, 1 << 12], &[1 << 10; 3], DType::U8));
        let bbox = source.meta().domain();
        let error = place.download(&source, &bbox, &place.options()).expect_err("16 TiB");
        match &error {
            Error::Array(ndarray_shm::Error::NoSpace { .. }) => {}
            Error::Array(ndarray_shm::Error::TooLarge { .. }) if usize::BITS == 32 => {}
            // Under Wine a file takes no room when it grows, and what is refused first is the length or the mapping.
            Error::Array(ndarray_shm::Error::Os { source, .. })
                if cfg!(windows) && source.kind() != ErrorKind::PermissionDenied => {}
            _ => panic!("{error:?}"),
        }
        assert_eq!(place.left(), []);
    }
}

// 8: workers do not hear of the order, and scramble arrays in C order. (With processes: see `processes.rs`.)
#[test]
fn every_number_of_workers_paints_the_order_that_was_asked_for() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let expected = spec().expected::<u8>(&region()).expect("the region");
    for order in [Order::C, Order::F] {
        for threads in [1, 4] {
            let options = place.options().order(order).workers(Workers::Threads(threads)).replace(true);
            let done = place.download(&*volume, &region(), &options).expect("a download");
            assert!(done.open::<u8, IxDyn>().expect("the array").read().expect("a guard").view() == expected);
            // The bytes of the file, without this crate: element 0, 0, 1 comes next in one order, 1, 0, 0 in the other.
            let bytes = std::fs::read(place.backend.path().join(place.location.as_str())).expect("the file");
            assert_eq!(bytes[1], if order == Order::C { expected[[0, 0, 1]] } else { expected[[1, 0, 0]] });
        }
    }
}

// 9: each worker paints the background of all, at the volume's coordinates, over what others had finished.
#[test]
fn background_is_painted_once_where_chunks_are_missing_and_nowhere_else() {
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

// 10: a segment that is used again shows the last download where chunks are missing. (Memory of a pool: see `missing.rs`.)
#[test]
fn a_name_that_is_used_again_shows_nothing_of_the_last_download() {
    let place = Place::new();
    let volume = place.volume(&spec());
    place.download(&*volume, &region(), &place.options()).expect("a download");
    std::fs::remove_dir_all(place.path("volume/c")).expect("all chunks");
    let done = place.download(&*volume, &region(), &place.options().replace(true)).expect("another");
    assert!(done.open::<u8, IxDyn>().expect("the array").read().expect("a guard").iter().all(|element| *element == 7));
}

// 12: an interrupted download unlinks the name even if a foreign array has it, and swallows the interruption.
#[test]
fn a_download_that_is_stopped_says_so_and_leaves_the_array_of_that_name_alone() {
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

// 14: closing what a parallel download returned does nothing. From CloudVolume's `test_parallel_read_shm`: the array equals a
// read, is closed, is unlinked.
#[cfg(target_os = "linux")]
#[test]
fn an_array_that_is_dropped_is_unmapped_and_can_be_unlinked() {
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
fn an_array_in_either_order_is_the_shared_memory_itself() {
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
        let anew =
            AttachOptions::<SharedArray<u8, Ix3>>::new().backend(place.backend.clone()).open(&place.location, shape);
        assert_eq!(anew.expect("by its name").read().expect("a guard")[[1, 2, 3]], changed);
    }
}

// 17: a region outside the volume comes back as an ordinary array of zeros, in private memory.
#[test]
fn a_region_outside_the_volume_is_an_error_and_no_other_kind_of_array() {
    let place = Place::new();
    let volume = place.volume(&spec());
    for text in ["20:24,0:20,0:20", "0:20,0:21,0:20", "-1:20,0:20,0:20"] {
        let error = place.download(&*volume, &text.parse().expect(text), &place.options()).expect_err(text);
        assert!(matches!(error, Error::Bbox { .. }), "{error}");
    }
    assert_eq!(place.left(), []);
}
