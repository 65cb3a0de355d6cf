//! numpy alone, without any code of ours: it opens a plain array as a file of elements, and its files open as arrays.

use std::process::Command;

use libtest_mimic::Trial;
use ndarray::{IxDyn, ShapeBuilder};
use ndarray_shm::{Access, CreationMode, DType, Error, ErrorKind, Order, with_element};

use super::peer::{About, Peer, of_package, path, python};
use super::sample::{Sample, assert_same, create, fill, open};
use crate::support::Place;
use crate::tests;

const SHAPE: [usize; 3] = [5, 6, 7];

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "interop",
        "numpy",
        tests![
            numpy_reads_and_writes_every_element_type_in_both_orders,
            single_wrong_element_is_noticed,
            arrays_made_by_numpy_open,
            holes_left_by_numpy_are_filled_on_open,
            file_of_another_size_is_refused_unchanged,
            python_example_of_the_guide_opens_our_arrays,
        ],
    )
}

fn numpy_reads_and_writes_every_element_type_in_both_orders(place: &Place) {
    fn exchange<T: Sample>(place: &Place, numpy: &mut Peer, order: Order) -> usize {
        let (name, about) = (place.location("numpy"), About::new(T::DTYPE, &SHAPE, order));
        let path = path(place, &name);
        let array = create::<T>(place, &name, &SHAPE, order, 1);
        numpy.expect(about.with("check", &path, 1), "same");
        numpy.expect(about.with("check_buffer", &path, 1), "same");
        numpy.expect(about.with("fill", &path, 2), "done");
        assert_same(&array, 2);
        numpy.expect(about.with("fill_buffer", &path, 3), "done");
        assert_same(&array, 3);
        fill(&array, 4);
        numpy.expect(about.with("check", &path, 4), "same");
        1
    }
    let mut numpy = Peer::start(place, "numpy_peer.py");
    let mut exchanged = 0;
    for dtype in DType::ALL {
        for order in [Order::C, Order::F] {
            exchanged += with_element!(*dtype, T => exchange::<T>(place, &mut numpy, order), else => 0);
        }
    }
    let without = usize::from(!cfg!(feature = "half")) * 2 + usize::from(!cfg!(feature = "num-complex")) * 2;
    assert_eq!(exchanged, (DType::ALL.len() - without) * 2, "types are left out only with their feature");
    numpy.finish();
}

fn single_wrong_element_is_noticed(place: &Place) {
    let mut numpy = Peer::start(place, "numpy_peer.py");
    let (name, about) = (place.location("numpy-wrong"), About::new(DType::U16, &SHAPE, Order::F));
    let array = create::<u16>(place, &name, &SHAPE, Order::F, 1);
    array.write().unwrap()[[4, 0, 6]] ^= 0x100;
    let answer = numpy.ask(about.with("check", path(place, &name), 1));
    assert!(answer.starts_with("1 differ, first (4, 0, 6): "), "{answer}");
    fill(&array, 1);
    let transposed = About::new(DType::U16, &SHAPE, Order::C);
    let answer = numpy.ask(transposed.with("check", path(place, &name), 1));
    assert!(answer.contains(" differ, first (0, 0, 1): "), "{answer}");
}

fn arrays_made_by_numpy_open(place: &Place) {
    let mut numpy = Peer::start(place, "numpy_peer.py");
    for order in [Order::C, Order::F] {
        let (name, about) = (place.location("numpy-made"), About::new(DType::F32, &SHAPE, order));
        numpy.expect(about.with("make", path(place, &name), 7), "done");
        let array = open::<f32>(place, &name, &SHAPE, order);
        assert_same(&array, 7);
        fill(&array, 8);
        numpy.expect(about.with("check", path(place, &name), 8), "same");
    }
}

fn holes_left_by_numpy_are_filled_on_open(place: &Place) {
    const LENGTH: usize = 1 << 20;
    let mut numpy = Peer::start(place, "numpy_peer.py");
    let (name, about) = (place.location("numpy-sparse"), About::new(DType::U16, &[LENGTH], Order::C));
    numpy.expect(format!("make_sparse {} {}", path(place, &name), LENGTH * 2), "done");
    let looking = place
        .open_options()
        .leave_holes(true)
        .access(Access::Read)
        .open::<u16, _>(name.location(), IxDyn(&[LENGTH]))
        .unwrap();
    assert!(looking.is_sparse().unwrap(), "leave_holes fills none");
    assert!(looking.read().unwrap().iter().all(|value| *value == 0));
    let array = open::<u16>(place, &name, &[LENGTH], Order::C);
    assert!(!array.is_sparse().unwrap());
    fill(&array, 5);
    numpy.expect(about.with("check", path(place, &name), 5), "same");
}

fn file_of_another_size_is_refused_unchanged(place: &Place) {
    let mut numpy = Peer::start(place, "numpy_peer.py");
    for size in [0, 209, 211, 420] {
        let name = place.location("numpy-size");
        numpy.expect(format!("make_sparse {} {size}", path(place, &name)), "done");
        let attempts = [
            place.open_options().open::<u8, _>(name.location(), SHAPE),
            place.open_options().access(Access::Read).open::<u8, _>(name.location(), SHAPE),
            place.options().mode(CreationMode::OpenOrCreate).create::<u8, _>(name.location(), SHAPE),
        ];
        for attempt in attempts {
            let error = attempt.unwrap_err();
            assert!(
                matches!(error, Error { kind: ErrorKind::SizeMismatch { expected: 210, found, .. }, .. } if found == size),
                "{error}"
            );
        }
        assert_eq!(std::fs::metadata(path(place, &name)).unwrap().len(), size);
    }
}

fn python_example_of_the_guide_opens_our_arrays(place: &Place) {
    let text = std::fs::read_to_string(of_package("docs/guide/sharing.md")).unwrap();
    let (_, rest) = text.split_once("```python\n").expect("a program in Python");
    let (program, _) = rest.split_once("```").expect("its end");
    let named = "/dev/shm/guide-sharing";
    assert!(program.contains(named), "it opens another path: {program}");
    let name = place.location("guide-sharing");
    let array = place.options().create::<u16, _>(name.location(), (512, 512, 16).f()).unwrap();
    let program = program.replace(named, &path(place, &name));
    let out = Command::new(python()).args(["-B", "-c", &program]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(array.read().unwrap()[[0, 0, 0]], 5);
}
