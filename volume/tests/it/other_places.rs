//! Downloads to arrays without a name, and to files at any path.

use std::path::Path;

use std::process::Command;

use ndarray::{Array2, Ix1, Ix2, IxDyn, s};
use ndarray_shm::backend::EntryKind;
use ndarray_shm::counted::SharingStrategy;
use ndarray_shm::{DType, Order};
use ndarray_shm_volume::demo::DemoSpec;
use ndarray_shm_volume::{
    Bbox, DownloadOptions, Error, ProcessWorkers, StopFlag, VolumeNotes, Workers, download, download_counted,
    download_into, download_to_file,
};

use crate::place::{Place, corrupt};

fn spec() -> DemoSpec {
    DemoSpec::new(&[40, 30], &[16, 16], DType::U16)
}

fn region() -> Bbox {
    "1:40,0:29".parse().expect("a region")
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("a directory");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[cfg(target_os = "linux")]
#[test]
fn private_array_has_no_name_and_takes_guards() {
    for (place, order) in Place::of_each_kind().into_iter().zip([Order::C, Order::F]) {
        let volume = place.volume(&spec());
        let before = names(place.backend.path());
        let array = download::<u16, Ix2>(&*volume, &region(), &place.options().order(order)).expect("a download");
        let mine = |name: &String| name.contains(&format!("ndshm-download-{}-", std::process::id()));
        let left: Vec<_> = names(place.backend.path()).into_iter().filter(mine).collect();
        assert!(left.is_empty(), "{left:?} beside {before:?}");
        let expected = spec().expected::<u16>(&region()).expect("the region");
        assert_eq!(array.read().expect("a guard without a name").view().into_dyn(), expected);
        assert_eq!(array.order(), order);
        array.write().expect("a guard without a name")[[3, 4]] = 9;
        assert_eq!(array.read().expect("a guard")[[3, 4]], 9);
    }
}

#[test]
fn private_array_of_another_type_is_refused() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let error = download::<i16, Ix2>(&*volume, &region(), &place.options()).expect_err("another type");
    assert!(
        matches!(error, Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::DTypeMismatch { .. }, .. })),
        "{error}"
    );
    let error = download::<u16, Ix1>(&*volume, &region(), &place.options()).expect_err("other axes");
    assert!(
        matches!(error, Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::ShapeMismatch { .. }, .. })),
        "{error}"
    );
}

#[test]
fn failed_private_download_leaves_nothing() {
    let place = Place::new();
    let volume = place.volume(&spec().complete(true));
    corrupt(&place.path("volume/c/2/1"));
    let options = place.options().keep_partial(true);
    download::<u16, IxDyn>(&*volume, &region(), &options).expect_err("a broken chunk");
    assert_eq!(names(place.backend.path()), [""; 0]);
}

#[test]
fn counted_array_is_painted_before_it_is_shared() {
    for (place, order) in Place::of_each_kind().into_iter().zip([Order::C, Order::F]) {
        let volume = place.volume(&spec());
        let options = place.options().order(order);
        let (array, painted) = download_counted::<u16, Ix2>(&*volume, &region(), &options).expect("a download");
        let expected = spec().expected::<u16>(&region()).expect("the region");
        assert_eq!(array.read().expect("a guard").view().into_dyn(), expected);
        assert_eq!((array.order(), array.refcount(), array.directory().path()), (order, 1, place.backend.path()));
        assert_eq!((painted.chunks, painted.bytes), (6, 39 * 29 * 2));
        let notes = VolumeNotes::read(&painted.description, array.shape());
        assert_eq!(notes.bbox, Some(region()));
        if SharingStrategy::FileDescriptor.is_supported() {
            assert_eq!(array.location(), None);
            array.publish().expect("its name");
        }
        let location = array.location().expect("a name").clone();
        assert!(names(place.backend.path()).contains(&location.to_string()));
        drop(array);
        assert!(!names(place.backend.path()).contains(&location.to_string()), "its last user removed it");
    }
}

#[test]
fn memory_of_the_caller_is_painted_whatever_its_strides() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let expected = spec().expected::<u16>(&region()).expect("the region");
    let mut memory = Array2::<u16>::from_elem((60, 80), 7);
    let view = memory.slice_mut(s![1..59;2, ..78;2]).reversed_axes();
    assert_eq!(view.shape(), region().shape());
    let painted = download_into(&*volume, &region(), view.into_dyn(), &DownloadOptions::new()).expect("a download");
    assert_eq!(painted.chunks, 6);
    assert_eq!(memory.slice(s![1..59;2, ..78;2]).reversed_axes().into_dyn(), expected);
    memory.slice_mut(s![1..59;2, ..78;2]).fill(7);
    assert!(memory.iter().all(|element| *element == 7), "nothing beside it was painted");
}

#[test]
fn memory_of_this_process_alone_is_not_painted_by_processes_nor_with_another_type() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let none = || Workers::Processes(ProcessWorkers::new(2, || Command::new("/nowhere/a-worker")));
    let mut memory = Array2::<u16>::from_elem((39, 29), 7);
    for options in [place.options().workers(none()), DownloadOptions::new().workers(none())] {
        let error = download_into(&*volume, &region(), memory.view_mut().into_dyn(), &options).expect_err("processes");
        assert!(
            matches!(
                error,
                Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::InvalidSetting { .. }, .. })
            ),
            "{error}"
        );
        let error = download_counted::<u16, Ix2>(&*volume, &region(), &options).expect_err("processes");
        assert!(
            matches!(
                error,
                Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::InvalidSetting { .. }, .. })
            ),
            "{error}"
        );
    }
    let error = download_counted::<i16, Ix2>(&*volume, &region(), &place.options()).expect_err("another type");
    assert!(
        matches!(error, Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::DTypeMismatch { .. }, .. })),
        "{error}"
    );
    let error = download_counted::<u16, Ix1>(&*volume, &region(), &place.options()).expect_err("other axes");
    assert!(
        matches!(error, Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::ShapeMismatch { .. }, .. })),
        "{error}"
    );
    let other = "0:39,0:30".parse().expect("a region");
    let error = download_into(&*volume, &other, memory.view_mut().into_dyn(), &place.options()).expect_err("a shape");
    assert!(
        matches!(error, Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::ShapeMismatch { .. }, .. })),
        "{error}"
    );
    assert!(memory.iter().all(|element| *element == 7));
}

#[test]
fn failed_counted_download_leaves_nothing() {
    let place = Place::new();
    let volume = place.volume(&spec().complete(true));
    corrupt(&place.path("volume/c/2/1"));
    let options = place.options();
    let error = download_counted::<u16, IxDyn>(&*volume, &region(), &options).expect_err("a broken chunk");
    assert!(matches!(error, Error::Chunk { .. }), "{error}");
    let stop = StopFlag::new();
    stop.stop();
    let error = download_counted::<u16, IxDyn>(&*volume, &region(), &options.stop(&stop)).expect_err("stopped");
    assert!(matches!(error, Error::Interrupted { done: 0, total: 6 }), "{error}");
    assert_eq!(names(place.backend.path()), [""; 0]);
}

#[test]
fn file_contains_the_elements_and_nothing_else() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let expected = spec().expected::<u16>(&region()).expect("the region");
    for order in [Order::C, Order::F] {
        let file = place.path("region.raw");
        let options = DownloadOptions::new().order(order).replace(true);
        let done = download_to_file(&*volume, &region(), &file, &options).expect("a download");
        let bytes = std::fs::read(&file).expect("the file");
        assert_eq!(bytes.len() as u64, done.bytes);
        let in_order: Vec<u16> = match order {
            Order::C => expected.iter().copied().collect(),
            Order::F => expected.t().iter().copied().collect(),
        };
        assert_eq!(bytes, bytemuck_bytes(&in_order));
        let array = done.open::<u16, IxDyn>().expect("the file as an array");
        assert!(array.read().expect("a guard").view() == expected);
        let beside = names(file.parent().expect("a directory"));
        assert!(!beside.iter().any(|name| name.starts_with(".ndshm")), "{beside:?}");
    }
    let error = download_to_file(&*volume, &region(), &place.path("region.raw"), &DownloadOptions::new())
        .expect_err("it is there");
    assert!(
        matches!(error, Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::AlreadyExists, .. })),
        "{error}"
    );
    // A backend in the options contradicts the file's path.
    let error =
        download_to_file(&*volume, &region(), &place.path("other.raw"), &place.options()).expect_err("two places");
    assert!(
        matches!(error, Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::InvalidSetting { .. }, .. })),
        "{error}"
    );
}

#[test]
fn unfinished_file_is_resumed() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let file = place.path("region.raw");
    let stop = StopFlag::new();
    stop.stop();
    let options = DownloadOptions::new().stop(&stop).keep_partial(true);
    download_to_file(&*volume, &region(), &file, &options).expect_err("it was stopped");
    assert!(!file.exists(), "an unfinished file does not have the name");
    let (backend, location) = ndarray_shm_volume::file_location(&file).expect("its directory");
    let painted = ndarray_shm_volume::paint_as_worker(&*volume, backend, &location, &StopFlag::new());
    assert_eq!(painted.expect("all of it"), 6);
    let done = download_to_file(&*volume, &region(), &file, &DownloadOptions::new()).expect("its name");
    assert_eq!((done.resumed, done.painted), (6, 0));
    assert_eq!(place.left(), [] as [EntryKind; 0]);
}

#[test]
fn unusable_file_path_is_refused_with_a_reason() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let to =
        |path: &Path| download_to_file(&*volume, &region(), path, &DownloadOptions::new()).expect_err("no such file");
    for path in ["/", "..", "a/.."] {
        let error = to(Path::new(path));
        assert!(
            matches!(
                error,
                Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::InvalidLocation { .. }, .. })
            ),
            "{path}: {error}"
        );
    }
    let error = to(&place.path("nowhere/region.raw"));
    assert!(matches!(&error, Error::Io { path, .. } if path.ends_with("nowhere")), "{error}");
    let error = to(&place.path(".ndshm-mine"));
    assert!(
        matches!(error, Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::Reserved { .. }, .. })),
        "{error}"
    );
    let error = to(&place.path(&"x".repeat(242)));
    assert!(
        matches!(error, Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::InvalidLocation { .. }, .. })),
        "{error}"
    );
    std::fs::create_dir(place.path("directory")).expect("a directory");
    to(&place.path("directory"));
    assert!(place.path("directory").is_dir());
}

fn bytemuck_bytes(elements: &[u16]) -> Vec<u8> {
    elements.iter().flat_map(|element| element.to_ne_bytes()).collect()
}
