//! Uploads of regions: the elements arrive, invalid uploads are refused before anything is stored, and the array never
//! changes.

use std::collections::HashSet;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use ndarray::{ArrayD, ArrayViewD, Axis, IxDyn, ShapeBuilder as _, Slice};
use ndarray_shm::{CreateOptions, DType, Element, Location, Order, SharedArray};
use ndarray_shm_volume::{
    Alignment, Bbox, DownloadProgress, Error, Progress, Result, StopFlag, UploadOptions, Uploaded, VolumeMeta,
    upload_from_array, upload_from_file, upload_from_shared_memory,
};

use crate::broken::{self, Broken};
use crate::place::Place;
use crate::raw::Raw;

fn bbox(text: &str) -> Bbox {
    text.parse().expect(text)
}

/// Two axes of 10 and 12, chunks of 4 and 3, from -5 and 100 on.
fn meta() -> VolumeMeta {
    let mut meta = VolumeMeta::new(&[10, 12], &[4, 3], DType::U16);
    meta.origin = vec![-5, 100];
    meta
}

fn options(place: &Place) -> UploadOptions<'static> {
    UploadOptions::new().directory(place.backend.clone())
}

/// Returns elements that count up from `first + 1`, in C order.
fn counted(shape: &[usize], first: u16) -> ArrayD<u16> {
    let mut next = first;
    ArrayD::from_shape_simple_fn(IxDyn(shape), || {
        next = next.wrapping_add(1);
        next
    })
}

/// Puts an array into shared memory in this order.
fn share<T: Element>(place: &Place, array: &ArrayD<T>, order: Order) -> SharedArray<T, IxDyn> {
    let options = CreateOptions::new().directory(place.backend.clone());
    let shape = IxDyn(array.shape()).set_f(order == Order::F);
    options.create_with::<T, IxDyn>(place.location.clone(), shape, |mut to| to.assign(array)).expect("an array")
}

fn upload(place: &Place, raw: &Raw, region: &str, options: &UploadOptions<'_>) -> Result<Uploaded> {
    upload_from_shared_memory(raw, &bbox(region), &place.location, options)
}

/// Returns the region `part` of an array that holds the region `all`.
fn window<'a, T>(array: &'a ArrayD<T>, all: &Bbox, part: &Bbox) -> ArrayViewD<'a, T> {
    let mut view = array.view();
    for (axis, (all, part)) in all.ranges().iter().zip(part.ranges()).enumerate() {
        let at = |end: i64| usize::try_from(end - all.start).expect("inside");
        view.slice_axis_inplace(Axis(axis), Slice::from(at(part.start)..at(part.end)));
    }
    view
}

/// A generator of pseudorandom numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn inside(&mut self, bbox: &Bbox) -> Bbox {
        let ranges = bbox.ranges().iter().map(|range| {
            let length = u64::try_from(range.end - range.start).expect("not empty");
            let skip = self.below(length);
            let start = range.start.saturating_add_unsigned(skip);
            start..start.saturating_add_unsigned(1 + self.below(length - skip))
        });
        Bbox::new(ranges.collect()).expect("not empty")
    }
}

/// Uploads into one volume repeatedly, and compares it with the expected elements after each upload.
fn check_many<T: Element + PartialEq>(numbers: &mut Numbers, dtype: DType, value: impl Fn(u64) -> T) {
    let place = Place::new();
    let axes = usize::try_from(1 + numbers.below(4)).expect("small");
    let chunk: Vec<u64> = (0..axes).map(|_| 1 + numbers.below(6)).collect();
    let shape: Vec<u64> = chunk.iter().map(|length| 1 + numbers.below(length * 4)).collect();
    let mut meta = VolumeMeta::new(&shape, &chunk, dtype);
    meta.stored_shape = chunk.iter().map(|length| length * (1 + numbers.below(3))).collect();
    meta.origin = (0..axes).map(|_| i64::try_from(numbers.below(100)).expect("small") - 50).collect();
    let fill = value(0);
    meta.fill = Some(bytemuck::bytes_of(&fill).to_vec());
    let mut raw = Raw::new(&place.path("volume"), meta);
    raw.order = if numbers.below(2) == 0 { Order::C } else { Order::F };
    raw.remote = numbers.below(2) == 0;
    let domain = raw.meta.domain();
    let mut expected = ArrayD::from_elem(IxDyn(&domain.shape()), fill);
    for round in 0..4 {
        let all = numbers.inside(&domain);
        let part = numbers.inside(&all);
        let array = ArrayD::from_shape_simple_fn(IxDyn(&all.shape()), || value(1 + numbers.below(250)));
        let order = if numbers.below(2) == 0 { Order::C } else { Order::F };
        let shared = share(&place, &array, order);
        let options = options(&place)
            .order(order)
            .cutout(part.clone())
            .alignment(Alignment::ReadModifyWrite)
            .skip_background(numbers.below(2) == 0)
            .workers(usize::try_from(numbers.below(4)).expect("small"));
        let done = upload_from_shared_memory(&raw, &all, &place.location, &options).expect("an upload");
        let context = format!("round {round}: {part} of {all} in {:?}, array in {order} order", raw.meta);
        let objects = raw.meta.stored(&part).total();
        assert_eq!((done.stored + done.background) as u64, objects, "{context}");
        assert_eq!(done.bytes, (part.shape().iter().product::<usize>() * size_of::<T>()) as u64, "{context}");
        let mut to = expected.view_mut();
        for (axis, (all, part)) in domain.ranges().iter().zip(part.ranges()).enumerate() {
            let at = |end: i64| usize::try_from(end - all.start).expect("inside");
            to.slice_axis_inplace(Axis(axis), Slice::from(at(part.start)..at(part.end)));
        }
        to.assign(&window(&array, &all, &part));
        assert!(raw.read_all(&domain, fill) == expected, "{context}");
        assert!(shared.read().expect("the array is still there").view() == array, "{context}");
        assert!(place.backend.unlink(&place.location).expect("unlink"));
    }
}

pub(crate) fn every_element_arrives_for_any_shape_and_order() {
    let mut numbers = Numbers(11);
    for _ in 0..40 {
        check_many::<u8>(&mut numbers, DType::U8, |n| u8::try_from(n).expect("small"));
        check_many::<i16>(&mut numbers, DType::I16, |n| i16::try_from(n).expect("small") - 100);
        check_many::<f64>(&mut numbers, DType::F64, |n| f64::from(u32::try_from(n).expect("small")) / 3.0);
    }
    check_many::<u64>(&mut numbers, DType::U64, |n| n << 40);
}

pub(crate) fn arrays_of_this_process_may_have_any_strides() {
    let place = Place::new();
    let raw = Raw::new(&place.path("volume"), meta());
    let array = counted(&[24, 10], 1);
    let view = array.slice_axis(Axis(0), Slice::new(0, None, -2)).reversed_axes();
    let done = upload_from_array(&raw, &raw.meta.domain(), &view, &UploadOptions::new()).expect("an upload");
    assert_eq!((done.stored, done.bytes), (12, 240));
    assert_eq!(raw.read_all::<u16>(&raw.meta.domain(), 0), view);
    let refused = upload_from_array(&raw, &raw.meta.domain(), &array.view(), &UploadOptions::new());
    assert!(
        matches!(
            refused,
            Err(Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::ShapeMismatch { .. }, .. }))
        ),
        "{refused:?}"
    );
    let other = ArrayD::<i16>::zeros(IxDyn(&[10, 12]));
    let refused = upload_from_array(&raw, &raw.meta.domain(), &other.view(), &UploadOptions::new());
    assert!(
        matches!(
            refused,
            Err(Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::DTypeMismatch { .. }, .. }))
        ),
        "{refused:?}"
    );
}

pub(crate) fn invalid_uploads_are_refused_before_anything_is_stored() {
    let place = Place::new();
    let raw = Raw::new(&place.path("volume"), meta());
    let message = |region: &str, options: &UploadOptions<'_>| {
        let error = upload(&place, &raw, region, options).expect_err("it is wrong");
        (error.to_string(), error)
    };
    let (_, error) = message("-5:5,100:112", &options(&place));
    assert!(
        matches!(error, Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::NotFound, .. })),
        "{error}"
    );
    let shared = share(&place, &counted(&[10, 12], 1), Order::C);

    let (text, _) = message("-5:5,100:111", &options(&place).alignment(Alignment::ReadModifyWrite));
    assert!(text.contains("240 bytes") && text.contains("220"), "{text}");
    let (text, error) = message("-5:5,100:111", &options(&place));
    assert!(matches!(error, Error::Alignment { .. }) && text.contains("-5:5,100:112"), "{text}");
    let (text, _) = message("-6:4,100:112", &options(&place));
    assert!(text.contains("axis 0 begins at -5"), "{text}");
    let (text, _) = message("-5:5,101:113", &options(&place));
    assert!(text.contains("axis 1 ends at 112"), "{text}");
    let (text, _) = message("-5:5", &options(&place));
    assert!(text.contains("1 axes"), "{text}");
    let (text, error) = message("-5:5,100:112", &options(&place).cutout(bbox("-5:5,100:113")));
    assert!(
        matches!(error, Error::Bbox { .. }) && text.contains("cut out of the array's region -5:5,100:112"),
        "{text}"
    );
    let (text, _) = message("-5:5,106:118", &options(&place).cutout(bbox("-5:5,106:115")));
    assert!(text.contains("axis 1 ends at 112"), "{text}");
    let stopped = StopFlag::new();
    stopped.stop();
    let (_, error) = message("-5:5,100:112", &options(&place).stop(&stopped));
    assert!(matches!(error, Error::Interrupted { done: 0, total: 12 }), "{error}");

    assert_eq!(raw.objects(), []);
    assert!(shared.read().expect("it is still there").view() == counted(&[10, 12], 1));
}

/// `CloudVolume` has this as `autocrop`, also for regions that begin before the volume.
pub(crate) fn cutout_crops_an_array_to_the_volume() {
    let place = Place::new();
    let mut meta = VolumeMeta::new(&[8, 8], &[4, 4], DType::U16);
    meta.fill = Some(vec![0, 0]);
    let raw = Raw::new(&place.path("volume"), meta);
    let array = counted(&[8, 8], 1);
    share(&place, &array, Order::F);
    let all = bbox("-4:4,-2:6");
    let cropped = all.intersection(&raw.meta.domain()).expect("they overlap");
    assert_eq!(cropped.to_string(), "0:4,0:6");
    let crop = options(&place).order(Order::F).cutout(cropped.clone());
    assert!(matches!(upload(&place, &raw, "-4:4,-2:6", &crop), Err(Error::Alignment { .. })));
    let crop = crop.alignment(Alignment::ReadModifyWrite);
    let done = upload(&place, &raw, "-4:4,-2:6", &crop).expect("an upload");
    assert_eq!((done.stored, done.bytes, &done.bbox), (2, 48, &cropped));
    assert_eq!(raw.read_all::<u16>(&cropped, 0), window(&array, &all, &cropped));
    assert_eq!(raw.read_all::<u16>(&bbox("0:4,6:8"), 9).sum(), 0, "elements beside the cutout are the fill value");
}

pub(crate) fn background_objects_are_skipped_and_removed() {
    let place = Place::new();
    let mut meta = meta();
    meta.fill = Some(vec![7, 0]);
    let mut raw = Raw::new(&place.path("volume"), meta);
    let domain = raw.meta.domain();
    let mut array = counted(&[10, 12], 100);
    let shared = share(&place, &array, Order::C);
    assert_eq!(upload(&place, &raw, "-5:5,100:112", &options(&place)).expect("all of it").stored, 12);
    array.slice_axis_mut(Axis(0), Slice::from(4..)).fill(7);
    array[[9, 11]] = 8;
    shared.write().expect("a guard").assign(&array);
    for remote in [false, true] {
        raw.remote = remote;
        let done = upload(&place, &raw, "-5:5,100:112", &options(&place).skip_background(true)).expect("an upload");
        assert_eq!((done.stored, done.background, done.bytes), (5, 7, 240));
        assert_eq!(raw.objects().len(), 5);
        assert_eq!(raw.read_all::<u16>(&domain, 7), array);
    }
    // Without `skip_background`, background is stored like everything else.
    assert_eq!(upload(&place, &raw, "-5:5,100:112", &options(&place)).expect("all of it").stored, 12);
    assert_eq!(raw.objects().len(), 12);

    // An object is not removed if only part of it becomes background.
    drop(shared);
    assert!(place.backend.unlink(&place.location).expect("unlink"));
    share(&place, &ArrayD::from_elem(IxDyn(&[2, 2]), 7_u16), Order::C);
    let change = options(&place).alignment(Alignment::ReadModifyWrite).skip_background(true);
    let done = upload(&place, &raw, "-5:-3,101:103", &change).expect("a part of one object");
    assert_eq!((done.stored, done.background), (1, 0));
    let done = upload(&place, &raw, "-1:1,101:103", &change).expect("a part of an object that is background");
    assert_eq!((done.stored, done.background), (0, 1));
    array.slice_each_axis_mut(|axis| Slice::from(axis.axis.index()..2 + axis.axis.index())).fill(7);
    assert_eq!(raw.read_all::<u16>(&domain, 7), array);
}

pub(crate) fn repeated_upload_stores_the_same_objects() {
    let place = Place::new();
    let raw = Raw::new(&place.path("volume"), meta());
    share(&place, &counted(&[10, 12], 1), Order::F);
    let options = options(&place).order(Order::F);
    upload(&place, &raw, "-5:5,100:112", &options).expect("once");
    let once = raw.objects();
    upload(&place, &raw, "-5:5,100:112", &options).expect("twice");
    assert_eq!(raw.objects(), once);
    let cutout = options.cutout(bbox("-1:3,101:102")).alignment(Alignment::ReadModifyWrite);
    upload(&place, &raw, "-5:5,100:112", &cutout).expect("a part of it");
    assert_eq!(raw.objects(), once);
}

/// `CloudVolume` writes to the file that it should read, and removes it (`upload_from_file` with `parallel`).
pub(crate) fn a_file_is_read_and_never_changed() {
    let place = Place::new();
    let raw = Raw::new(&place.path("volume"), meta());
    let file = place.path("elements of mine.bin");
    let array = counted(&[10, 12], 1);
    let bytes: Vec<u8> = array.t().iter().flat_map(|element| element.to_le_bytes()).collect();
    fs::write(&file, &bytes).expect("a file");
    let writable = fs::metadata(&file).expect("the file").permissions();
    let mut read_only = writable.clone();
    read_only.set_readonly(true);
    fs::set_permissions(&file, read_only).expect("read-only");
    let before = fs::metadata(&file).expect("the file").modified().expect("a time");
    let options = UploadOptions::new().order(Order::F).workers(4);
    let all = raw.meta.domain();
    let done = upload_from_file(&raw, &all, &file, &options).expect("an upload");
    assert_eq!((done.stored, done.bytes), (12, 240));
    assert_eq!(raw.read_all::<u16>(&all, 0), array);
    let error = upload_from_file(&raw, &bbox("-5:3,100:112"), &file, &options).expect_err("too large").to_string();
    assert!(error.contains("240 bytes"), "{error}");
    assert!(upload_from_file(&raw, &all, &place.path("nothing"), &options).is_err());
    assert!(upload_from_file(&raw, &all, &place.path("volume"), &options).is_err(), "a directory");
    assert_eq!(fs::read(&file).expect("the file"), bytes);
    assert_eq!(fs::metadata(&file).expect("the file").modified().expect("a time"), before);
    let beside: Vec<_> = fs::read_dir(place.path(""))
        .expect("the directory")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(beside.len(), 3, "nothing is made beside it: {beside:?}");
    fs::set_permissions(&file, writable).expect("Windows removes no read-only file");
}

pub(crate) fn first_error_names_its_object_and_ends_all_threads() {
    for remote in [false, true] {
        let place = Place::new();
        let mut raw = Raw::new(&place.path("volume"), VolumeMeta::new(&[400, 4], &[4, 4], DType::U16));
        raw.remote = remote;
        let array = counted(&[400, 4], 1);
        let shared = share(&place, &array, Order::C);
        let options = options(&place).workers(3).requests(5);
        let error = upload_from_shared_memory(&Broken::new(&raw), &bbox("0:400,0:4"), &place.location, &options)
            .expect_err("two objects cannot be stored");
        assert!(matches!(&error, Error::Store { object, .. } if object == "at_40_0"), "{error}");
        assert_eq!(raw.storing.load(Ordering::SeqCst), 0);
        // Stores in progress finish; none begins after the error.
        let stored: HashSet<String> = raw.objects().into_iter().map(|(name, _)| name).collect();
        let expected = (0..broken::FIRST).chain([broken::LAST]).map(|number| format!("at_{}_0", 4 * number));
        assert_eq!(stored, expected.collect(), "remote: {remote}");

        raw.panicking = Some("at_80_0".to_owned());
        let error = upload(&place, &raw, "0:400,0:4", &options).expect_err("a thread panics");
        let Error::Writing { report, total: 100, .. } = &error else { panic!("{error}") };
        assert!(report.contains("encoding panics on purpose"), "{report}");

        raw.panicking = None;
        assert!(shared.read().expect("it is still there").view() == array);
        assert_eq!(upload(&place, &raw, "0:400,0:4", &options).expect("all is well").stored, 100);
        assert_eq!(raw.read_all::<u16>(&raw.meta.domain(), 0), array);
    }
}

/// Records progress, and raises a flag at a number of objects.
struct Listener {
    heard: Mutex<Vec<DownloadProgress>>,
    stop: StopFlag,
    at: usize,
}

impl Progress for Listener {
    fn update(&self, progress: DownloadProgress) {
        if progress.done >= self.at {
            self.stop.stop();
        }
        self.heard.lock().expect("the list").push(progress);
    }
}

pub(crate) fn upload_reports_progress_and_can_be_stopped() {
    for remote in [false, true] {
        let place = Place::new();
        let mut raw = Raw::new(&place.path("volume"), VolumeMeta::new(&[400, 4], &[4, 4], DType::U16));
        raw.remote = remote;
        share(&place, &counted(&[400, 4], 1), Order::C);
        let listener = Listener { heard: Mutex::default(), stop: StopFlag::new(), at: 10 };
        raw.held = Some((50, listener.stop.clone()));
        let options = options(&place).workers(2).requests(2).progress(&listener).stop(&listener.stop);
        let error = upload(&place, &raw, "0:400,0:4", &options).expect_err("it was stopped");
        let Error::Interrupted { done, total: 100 } = error else { panic!("{error}") };
        assert_eq!(done, raw.objects().len());
        let heard = listener.heard.into_inner().expect("the list");
        assert!(heard.is_sorted_by_key(|progress| progress.done) && heard.len() >= 3, "{heard:?}");
        assert_eq!((heard[0].done, heard[heard.len() - 1].done), (0, done));
        assert!((10..60).contains(&done), "{done}");
    }
}

pub(crate) fn remote_store_gets_concurrent_requests() {
    let place = Place::new();
    let mut raw = Raw::new(&place.path("volume"), VolumeMeta::new(&[256, 4], &[4, 4], DType::U16));
    share(&place, &counted(&[256, 4], 1), Order::C);
    let options = options(&place).workers(1).requests(8);
    upload(&place, &raw, "0:256,0:4", &options).expect("an upload");
    assert_eq!(raw.most.swap(0, Ordering::SeqCst), 1, "a local store has one request per worker");
    raw.remote = true;
    raw.together = 8;
    upload(&place, &raw, "0:256,0:4", &options).expect("an upload");
    assert_eq!(raw.most.swap(0, Ordering::SeqCst), 8, "no more requests than the options allow");
    // Changes of objects wait for the network too, so they also run concurrently.
    let change = options.cutout(bbox("0:256,0:2")).alignment(Alignment::ReadModifyWrite);
    upload(&place, &raw, "0:256,0:4", &change).expect("an upload");
    assert_eq!(raw.most.load(Ordering::SeqCst), 8);
}

pub(crate) fn upload_waits_for_a_writer_of_the_array() {
    for place in Place::of_each_kind() {
        let raw = Raw::new(&place.path("volume"), meta());
        let shared = share(&place, &counted(&[10, 12], 1), Order::C);
        let mut guard = shared.write().expect("a guard");
        let stop = StopFlag::new();
        thread::scope(|scope| {
            let (place, raw) = (&place, &raw);
            let stopped = scope.spawn(|| upload(place, raw, "-5:5,100:112", &options(place).stop(&stop)));
            thread::sleep(Duration::from_millis(150));
            assert!(!stopped.is_finished());
            stop.stop();
            let stopped = stopped.join().expect("no panic");
            assert!(matches!(stopped, Err(Error::Interrupted { done: 0, total: 12 })), "{stopped:?}");

            let waiting = scope.spawn(|| upload(place, raw, "-5:5,100:112", &options(place)));
            thread::sleep(Duration::from_millis(100));
            assert_eq!(raw.objects(), []);
            guard.fill(9);
            drop(guard);
            waiting.join().expect("no panic").expect("an upload");
        });
        assert!(raw.read_all::<u16>(&raw.meta.domain(), 0).iter().all(|element| *element == 9));
    }
}

/// A writer that asks for a guard while an upload reads waits until the upload ends.
pub(crate) fn writers_wait_until_the_upload_ends() {
    let place = Place::new();
    let mut raw = Raw::new(&place.path("volume"), meta());
    let go_on = StopFlag::new();
    raw.held = Some((1, go_on.clone()));
    let array = counted(&[10, 12], 1);
    let shared = share(&place, &array, Order::C);
    thread::scope(|scope| {
        let uploading = scope.spawn(|| upload(&place, &raw, "-5:5,100:112", &options(&place).workers(1)));
        while raw.stored.load(Ordering::SeqCst) == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(matches!(
            shared.try_write().err(),
            Some(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::WouldBlock, .. })
        ));
        go_on.stop();
        shared.write().expect("a guard, in the end").fill(0);
        uploading.join().expect("no panic").expect("an upload");
    });
    assert_eq!(raw.read_all::<u16>(&raw.meta.domain(), 0), array);
}

/// Locations must not lead out of the directory of arrays.
pub(crate) fn location_with_a_path_is_refused() {
    for name in ["../x", "/tmp/../x", "a/b", "..", "/dev/shm/x"] {
        assert!(Location::new(name).is_err(), "{name}");
    }
}
