//! Python's `multiprocessing.shared_memory`, in both directions, and its resource tracker.

use libtest_mimic::Trial;
use ndarray_shm::{DType, ErrorKind, Order};

use super::peer::{About, Peer, path};
use super::sample::{assert_same, create, fill, open};
use crate::support::{Place, eventually};
use crate::tests;

const SHAPE: [usize; 3] = [5, 6, 7];

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "interop",
        "shared_memory",
        tests![
            array_survives_the_end_of_attached_python,
            guards_notice_unlink_by_the_default_tracker,
            segments_made_by_python_open_at_exact_size,
            segment_unlinked_by_python_stays_mapped,
        ],
    )
}

fn array_survives_the_end_of_attached_python(place: &Place) {
    for order in [Order::C, Order::F] {
        let (name, about) = (place.location("python"), About::new(DType::I32, &SHAPE, order));
        let array = create::<i32>(place, &name, &SHAPE, order, 1);
        let mut python = Peer::start(place, "shared_memory_peer.py");
        python.expect(format!("attach {}", name.as_str()), "done");
        python.expect(format!("size {}", name.as_str()), "840");
        python.expect(about.with("check", name.as_str(), 1), "same");
        python.expect(about.with("fill", name.as_str(), 2), "done");
        assert_same(&array, 2);
        fill(&array, 3);
        python.expect(about.with("check", name.as_str(), 3), "same");
        python.finish();
        // The name still exists and is still this array's: otherwise taking a guard would fail.
        assert_same(&array, 3);
    }
}

fn guards_notice_unlink_by_the_default_tracker(place: &Place) {
    let name = place.location("python-owner");
    let array = create::<u8>(place, &name, &SHAPE, Order::C, 1);
    // This test provokes the tracker's warning about a leak.
    let quiet = [("PYTHONWARNINGS", "ignore".to_owned())];
    let mut python = Peer::with_environment("shared_memory_peer.py", &quiet);
    python.expect(format!("attach_as_owner {}", name.as_str()), "done");
    python.finish();
    eventually("the tracker unlinks the name", || place.files_of(&name).is_empty());
    assert_eq!(array.read().unwrap_err().kind, ErrorKind::Unlinked);
    assert!(!array.unlink().unwrap());
}

fn segments_made_by_python_open_at_exact_size(place: &Place) {
    for order in [Order::C, Order::F] {
        let (name, about) = (place.location("python-made"), About::new(DType::F64, &SHAPE, order));
        let mut python = Peer::start(place, "shared_memory_peer.py");
        python.expect(format!("make {} {}", name.as_str(), 210 * 8), "done");
        python.expect(about.with("fill", name.as_str(), 4), "done");
        let array = open::<f64>(place, &name, &SHAPE, order);
        assert_same(&array, 4);
        fill(&array, 5);
        python.expect(about.with("check", name.as_str(), 5), "same");
        assert_eq!(std::fs::metadata(path(place, &name)).unwrap().len(), 210 * 8);
        python.expect(format!("unlink {}", name.as_str()), "done");
    }
}

fn segment_unlinked_by_python_stays_mapped(place: &Place) {
    let (name, about) = (place.location("python-unlinks"), About::new(DType::U8, &SHAPE, Order::C));
    let mut python = Peer::start(place, "shared_memory_peer.py");
    python.expect(format!("make {} 210", name.as_str()), "done");
    let array = open::<u8>(place, &name, &SHAPE, Order::C);
    python.expect(format!("unlink {}", name.as_str()), "done");
    assert_eq!(array.read().unwrap_err().kind, ErrorKind::Unlinked);
    python.expect(about.with("fill", name.as_str(), 6), "done");
    // SAFETY: the peer writes only on request, and this test sends none while the view lives.
    #[allow(unsafe_code)]
    let bytes = unsafe { array.view() };
    assert_eq!(bytes, super::sample::sample::<u8>(&SHAPE, 6));
}
