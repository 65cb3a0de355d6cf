//! Regions of volumes: aligned and unaligned ones, missing chunks, options, numbers of workers.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Mutex;

use ndarray::{Ix2, Ix3};
use ndarray_shm::backend::EntryKind;
use ndarray_shm::{DType, Order, SharedArray};
use ndarray_shm_volume::demo::{Codec, DemoSpec, Pattern};
use ndarray_shm_volume::{
    Bbox, ChunkSource, DownloadOptions, DownloadProgress, Error, Fetched, Progress, Result, Scratch, VolumeMeta,
    Workers,
};

use crate::place::Place;

#[test]
fn aligned_and_unaligned_regions_arrive() {
    let place = Place::new();
    let spec = DemoSpec::new(&[40, 50, 60], &[16, 20, 24], DType::U16).pattern(Pattern::Noise);
    let source = place.volume(&spec);
    for text in
        ["0:16,0:20,0:24", "1:2,3:4,5:6", "15:17,19:21,23:25", "39:40,49:50,59:60", "7:33,:,24:48", "16:32,20:40,24:48"]
    {
        place.check::<u16>(&*source, &spec, &Bbox::parse(text, &Bbox::whole(spec.shape())).expect(text));
    }
}

#[test]
fn a_small_region_of_a_large_chunk_arrives() {
    for codec in [Codec::Uncompressed, Codec::Zstd] {
        let place = Place::new();
        let spec = DemoSpec::new(&[100, 100, 100], &[100, 100, 100], DType::F32).codec(codec);
        let source = place.volume(&spec);
        place.check::<f32>(&*source, &spec, &"17:30,5:20,90:100".parse().expect("a region"));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn real_shared_memory_takes_the_array_in_both_orders() {
    let place = Place::in_shared_memory();
    let spec = DemoSpec::new(&[33, 47, 20], &[16, 16, 16], DType::U8);
    let source = place.volume(&spec);
    place.check::<u8>(&*source, &spec, &"5:33,0:40,3:19".parse().expect("a region"));
    assert_eq!(place.left(), []);
}

#[test]
fn missing_chunks_have_the_fill_value() {
    let place = Place::new();
    downloads_with_one_chunk_missing(&place, &place.options());
}

/// Downloads a volume of 10 by 10 elements with one missing chunk.
pub(crate) fn downloads_with_one_chunk_missing(place: &Place, options: &DownloadOptions<'_>) {
    let spec = DemoSpec::new(&[10, 10], &[5, 5], DType::I16).complete(true);
    let source = place.volume(&spec);
    std::fs::remove_file(place.path("volume/c/1/0")).expect("a chunk to remove");
    let done = place.download(&*source, &Bbox::whole(&[10, 10]), options).expect("a download");
    let array = done.open::<i16, Ix2>().expect("the array");
    let array = array.read().expect("a guard");
    let expected = spec.expected::<i16>(&Bbox::whole(&[10, 10])).expect("all of it");
    for ((x, y), element) in array.indexed_iter() {
        assert_eq!(*element, if x >= 5 && y < 5 { 7 } else { expected[[x, y]] });
    }
}

#[test]
fn any_number_of_threads_paints_the_same() {
    let place = Place::new();
    let spec = DemoSpec::new(&[40, 40, 40], &[8, 8, 8], DType::U32);
    let source = place.volume(&spec);
    let bbox: Bbox = "3:40,0:40,1:39".parse().expect("a region");
    let expected = spec.expected::<u32>(&bbox).expect("a region");
    for threads in [0, 1, 2, 7, 1000] {
        let options = place.options().workers(Workers::Threads(threads)).replace(true);
        let done = place.download(&*source, &bbox, &options).expect("a download");
        let array = done.open::<u32, Ix3>().expect("the array");
        assert_eq!(array.read().expect("a guard").view().into_dyn(), expected, "{threads} threads");
    }
}

#[test]
fn existing_name_is_an_error_unless_replaced() {
    let place = Place::new();
    let spec = DemoSpec::new(&[6, 6], &[3, 3], DType::U8);
    let source = place.volume(&spec);
    let (bbox, options) = (Bbox::whole(&[6, 6]), place.options());
    let first = place.download(&*source, &bbox, &options).expect("a download");
    let old = first.open::<u8, Ix2>().expect("the array");
    let error = place.download(&*source, &bbox, &options).expect_err("the name is taken");
    assert!(
        matches!(error, Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::AlreadyExists, .. })),
        "{error}"
    );

    let smaller: Bbox = "0:2,0:2".parse().expect("a region");
    let second = place.download(&*source, &smaller, &options.replace(true)).expect("a download");
    assert_eq!(second.open::<u8, Ix2>().expect("the new array").shape(), [2, 2]);
    assert_eq!(old.shape(), [6, 6]);
    assert_eq!(place.left(), [EntryKind::Array]);
}

#[test]
fn array_opens_only_with_its_type_and_shape() {
    let place = Place::new();
    let source = place.volume(&DemoSpec::new(&[6, 4], &[3, 3], DType::U16));
    let done = place.download(&*source, &Bbox::whole(&[6, 4]), &place.options().order(Order::F)).expect("a download");
    assert_eq!((done.shape.as_slice(), done.order, done.dtype), ([6, 4].as_slice(), Order::F, DType::U16));
    assert!(matches!(
        done.open::<i16, Ix2>(),
        Err(Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::DTypeMismatch { .. }, .. }))
    ));
    assert!(matches!(
        done.open::<u16, Ix3>(),
        Err(Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::ShapeMismatch { .. }, .. }))
    ));
    let array: SharedArray<u16, Ix2> = done.open().expect("the array with its own type and shape");
    assert_eq!(array.order(), Order::F);
}

/// Counts how often each chunk is decoded.
#[derive(Debug)]
struct Counting {
    meta: VolumeMeta,
    decoded: Mutex<HashMap<Vec<u64>, usize>>,
}

impl ChunkSource for Counting {
    fn meta(&self) -> &VolumeMeta {
        &self.meta
    }
    fn identity(&self) -> String {
        "a volume that counts".to_owned()
    }
    fn decode(&self, region: &[Range<i64>], _fetched: Fetched, scratch: &mut Scratch) -> Result<()> {
        let chunk = region
            .iter()
            .zip(&self.meta.chunk_shape)
            .map(|(range, length)| range.start.unsigned_abs() / length)
            .collect();
        *self.decoded.lock().expect("the counts").entry(chunk).or_default() += 1;
        scratch.fill(&[1]);
        Ok(())
    }
}

#[test]
fn every_chunk_is_decoded_exactly_once() {
    let place = Place::new();
    let (shape, chunk_shape) = (vec![64, 64], vec![16, 10]);
    let meta = VolumeMeta::new(&shape, &chunk_shape, DType::U8);
    let source = Counting { meta, decoded: Mutex::default() };
    let done = place.download(&source, &"15:49,9:41".parse().expect("a region"), &place.options()).expect("a download");
    let decoded = source.decoded.into_inner().expect("the counts");
    // Rows 0 to 3 and columns 0 to 4 of the grid; of the first and last ones the region has only one line each.
    assert_eq!((done.chunks, decoded.len()), (20, 20));
    assert!(decoded.values().all(|count| *count == 1), "{decoded:?}");
}

#[test]
fn progress_starts_at_zero_and_ends_at_the_total() {
    #[derive(Debug, Default)]
    struct Heard(Mutex<Vec<DownloadProgress>>);
    impl Progress for Heard {
        fn update(&self, progress: DownloadProgress) {
            self.0.lock().expect("the list").push(progress);
        }
    }
    let place = Place::new();
    let source = place.volume(&DemoSpec::new(&[64, 64], &[8, 8], DType::U8));
    let heard = Heard::default();
    place.download(&*source, &Bbox::whole(&[64, 64]), &place.options().progress(&heard)).expect("a download");
    let heard = heard.0.into_inner().expect("the list");
    let (first, last) = (heard[0], heard[heard.len() - 1]);
    assert_eq!((first.done, first.total, first.painted_here, first.bytes, first.bytes_total), (0, 64, 0, 0, 64 * 64));
    assert_eq!(
        (last.done, last.total, last.painted_here, last.bytes, last.bytes_total),
        (64, 64, 64, 64 * 64, 64 * 64)
    );
    assert_eq!((first.rate(), last.time_left()), (None, Some(std::time::Duration::ZERO)));
    assert!(heard.windows(2).all(|pair| pair[0].done <= pair[1].done && pair[0].elapsed <= pair[1].elapsed));
}
