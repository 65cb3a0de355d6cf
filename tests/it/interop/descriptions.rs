//! Array descriptions: Python reads and writes them with its standard library; numpy leaves an existing one in place.

use libtest_mimic::Trial;
use ndarray::{IxDyn, ShapeBuilder};
use ndarray_shm::{DType, Error, ErrorKind, Order};

use super::peer::{About, Peer, path};
use crate::support::Place;
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "interop",
        "descriptions",
        tests![python_reads_and_writes_descriptions, numpy_leaves_an_outdated_description],
    )
}

fn python_reads_and_writes_descriptions(place: &Place) {
    let mut python = Peer::start(place, "description_peer.py");
    let name = place.location("described");
    let array = place.options().create::<f32, _>(name.location(), (3, 4).f()).unwrap();
    python.expect(format!("read {}", path(place, &name)), "<f4 3,4 F");
    drop(array);
    let made = place.location("made");
    python.expect(format!("make {} <u2 3,5 F precomputed://https://host/em", path(place, &made)), "done");
    let array = place.open_options().open_dyn::<u16, IxDyn>(made.location()).unwrap();
    assert_eq!((array.shape(), array.order(), array.read().unwrap()[[2, 4]]), (&[3, 5][..], Order::F, 14));
    let found = place.backend.description(made.location()).unwrap().unwrap();
    assert_eq!(found.note("source"), Some("precomputed://https://host/em"));
    // A file without a description.
    let bare = place.location("bare");
    python.expect(format!("make_bare {} 12", path(place, &bare)), "done");
    python.expect(format!("read {}", path(place, &bare)), "none");
    python.finish();
}

/// numpy's `mode="w+"` keeps the inode, and with it the old description. If the file now has another size, the
/// description is ignored. If the size is the same, opening fails with an error that says what to do, and `describe`
/// repairs the file.
fn numpy_leaves_an_outdated_description(place: &Place) {
    let mut numpy = Peer::start(place, "numpy_peer.py");
    let name = place.location("left-over");
    drop(place.options().create::<u16, _>(name.location(), (4, 6).f()).unwrap());
    let smaller = About::new(DType::U8, &[5, 5], Order::C);
    numpy.expect(smaller.with("make", path(place, &name), 3), "done");
    assert_eq!(place.open_options().open::<u8, _>(name.location(), (5, 5)).unwrap().len(), 25);

    let same_bytes = About::new(DType::U16, &[4, 6], Order::C);
    numpy.expect(same_bytes.with("make", path(place, &name), 3), "done");
    numpy.finish();
    let error = place.open_options().open::<u16, _>(name.location(), (4, 6)).unwrap_err();
    let (wanted, says) = ("<u2 of shape [4, 6] in C order", "<u2 of shape [4, 6] in F order");
    assert!(
        matches!(&error, Error { kind: ErrorKind::DescriptionMismatch { expected, found, .. }, .. } if expected == wanted && found == says),
        "{error}"
    );
    assert!(place.open_options().reinterpret(true).open::<u16, _>(name.location(), (4, 6)).is_ok());
    let repaired = ndarray_shm::array::Description::new(DType::U16, &[4, 6], Order::C).unwrap();
    place.backend.describe(name.location(), &repaired).unwrap();
    assert!(place.open_options().open::<u16, _>(name.location(), (4, 6)).is_ok());
    assert!(matches!(
        place.open_options().open::<u16, _>(name.location(), (4, 6).f()).unwrap_err().kind,
        ErrorKind::DescriptionMismatch { .. }
    ));
}
