//! Descriptions of plain arrays: written before the name, compared on open, and never trusted for soundness.
//!
//! Where files have no attributes (the place `hidden`, Windows) everything else is the same, and each test checks that
//! too.

use std::sync::{Arc, Mutex};

use libtest_mimic::Trial;
use ndarray::{Ix2, Ix3, IxDyn, ShapeBuilder};
use ndarray_shm::array::Description;
use ndarray_shm::backend::Backend;
use ndarray_shm::{Access, CreationMode, DType, Draft, Error, ErrorKind, Order, render};

use crate::support::child::{Child, Role, hear, say};
use crate::support::{Name, Place, backend_of_child};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "descriptions",
        tests![
            array_is_opened_by_another_process_without_its_shape,
            another_type_or_order_is_refused,
            flattened_shape_and_unit_axes_are_accepted,
            bytes_can_be_reinterpreted,
            size_mismatch_reports_the_description,
            description_is_written_before_the_name,
            create_succeeds_without_room_for_a_description,
            description_can_be_rewritten_and_removed,
            description_of_another_length_is_ignored,
            damaged_descriptions_are_ignored,
            only_plain_arrays_are_described,
            array_without_write_permission_is_described,
            recycled_memory_describes_the_new_array,
            memory_that_keeps_its_description_is_not_recycled,
            finished_renderbuffer_is_described_with_its_notes,
            notes_have_limits,
            array_is_created_with_its_notes,
            description_is_changed_only_if_it_is_as_it_was_seen,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[("open-dyn", open_dyn), ("describe-seen", describe_seen)];

/// The array's description as text, if it has one.
fn said(place: &Place, name: &Name) -> Option<String> {
    let found = place.backend.description(name.location()).unwrap();
    found.map(|found| found.to_string())
}

/// The text in places that have descriptions, `None` elsewhere.
fn expected(place: &Place, text: &str) -> Option<String> {
    place.describes().then(|| text.to_owned())
}

/// Writes any bytes as the attribute of a file.
fn write_raw(place: &Place, name: &Name, bytes: &[u8]) {
    let file = place.backend.open(name.location(), Access::ReadWrite).unwrap();
    let written = place.backend.set_attribute(&file, Some(bytes));
    assert_eq!(written.is_ok(), place.describes());
}

/// A child that opens an array by its name alone.
fn open_dyn(arguments: &[String]) {
    let backend = backend_of_child();
    let options = ndarray_shm::OpenOptions::new().directory(backend);
    match options.open_dyn::<u16, IxDyn>(arguments[0].as_str()) {
        Ok(array) => say(format!("{:?} {} {}", array.shape(), array.order(), array.read().unwrap()[[2, 0, 1]])),
        Err(error) => say(error),
    }
}

fn array_is_opened_by_another_process_without_its_shape(place: &Place) {
    let name = place.location("dyn");
    let array = place.options().create::<u16, _>(name.location(), (3, 4, 5).f()).unwrap();
    array.write().unwrap()[[2, 0, 1]] = 7;
    let mut child = Child::start(place, "open-dyn", &[name.as_str()]);
    if place.describes() {
        child.expect("[3, 4, 5] F 7");
    } else {
        let answer = child.line();
        assert!(answer.contains("does not describe itself") && answer.contains("ndshm describe"), "{answer}");
    }
    child.finish();

    let attach = place.open_options();
    assert_eq!(attach.open_dyn::<u16, Ix3>(name.location()).is_ok(), place.describes());
    let axes = attach.open_dyn::<u16, Ix2>(name.location()).unwrap_err();
    let elements = attach.open_dyn::<i16, Ix3>(name.location()).unwrap_err();
    if place.describes() {
        assert!(matches!(axes.kind, ErrorKind::ShapeMismatch { .. }), "{axes}");
        assert!(matches!(elements.kind, ErrorKind::DTypeMismatch { .. }), "{elements}");
    } else {
        assert!(axes.kind == ErrorKind::NotDescribed && elements.kind == ErrorKind::NotDescribed);
    }
    assert_eq!(place.open_options().open_reader_dyn::<u16, IxDyn>(name.location()).is_ok(), place.describes());
    assert_eq!(place.open_options().open_writer_dyn::<u16, IxDyn>(name.location()).is_ok(), place.describes());
}

fn another_type_or_order_is_refused(place: &Place) {
    let name = place.location("mismatch");
    place.options().create::<u16, _>(name.location(), (3, 4).f()).unwrap();
    let attach = place.open_options();
    let errors = [
        place.open_options().open::<i16, _>(name.location(), (3, 4).f()).err(),
        attach.open::<u16, Ix2>(name.location(), (3, 4)).err(),
        attach.open::<u16, Ix2>(name.location(), (4, 3).f()).err(),
        attach.open::<u16, Ix2>(name.location(), (2, 6).f()).err(),
        place.open_options().open::<u32, _>(name.location(), (3, 2).f()).err(),
        place.open_options().open_reader::<u16, _>(name.location(), (3, 4)).err(),
        place.options().mode(CreationMode::OpenOrCreate).create::<u16, _>(name.location(), (3, 4)).err(),
    ];
    for (i, error) in errors.into_iter().enumerate() {
        match error {
            None => assert!(!place.describes(), "{i}"),
            Some(error) => {
                assert!(
                    place.describes() && matches!(error.kind, ErrorKind::DescriptionMismatch { .. }),
                    "{i}: {error}"
                );
                let text = error.to_string();
                assert!(
                    text.contains("<u2 of shape [3, 4] in F order") && text.contains("reinterpret(true)"),
                    "{text}"
                );
            }
        }
    }
    assert!(attach.open::<u16, Ix2>(name.location(), (3, 4).f()).is_ok());
}

fn flattened_shape_and_unit_axes_are_accepted(place: &Place) {
    let name = place.location("agree");
    for order in [Order::C, Order::F] {
        let shape = IxDyn(&[4, 1, 5, 6]).set_f(order == Order::F);
        place.options().mode(CreationMode::Replace).create::<u8, _>(name.location(), shape).unwrap();
        let open = |shape: &[usize], order: Order| {
            place.open_options().open::<u8, _>(name.location(), IxDyn(shape).set_f(order == Order::F))
        };
        for same in [&[4, 5, 6][..], &[1, 4, 5, 6, 1], &[20, 6], &[4, 30], &[2, 2, 5, 6]] {
            open(same, order).unwrap_or_else(|error| panic!("{same:?}: {error}"));
            let other = if order == Order::C { Order::F } else { Order::C };
            assert_eq!(open(same, other).is_err(), place.describes(), "{same:?}");
        }
        // One axis is the memory from end to end.
        open(&[120], Order::C).unwrap();
        open(&[1, 120], Order::F).unwrap();
        for different in [&[5, 4, 6][..], &[6, 20], &[8, 15]] {
            assert_eq!(open(different, order).is_err(), place.describes(), "{different:?}");
        }
    }
    place.options().mode(CreationMode::Replace).create::<u8, _>(name.location(), (0, 7)).unwrap();
    place.open_options().open::<u8, _>(name.location(), (7, 0).f()).unwrap();
    assert_eq!(said(place, &name), expected(place, "|u1 of shape [0, 7] in C order"));
}

fn bytes_can_be_reinterpreted(place: &Place) {
    let name = place.location("reinterpret");
    place.options().create_with::<f32, _>(name.location(), (3, 4), |mut view| view.fill(1.0)).unwrap();
    let options = place.open_options().reinterpret(true);
    let bits = options.open::<u32, _>(name.location(), (4, 3).f()).unwrap();
    assert_eq!(bits.read().unwrap()[[3, 2]], 1f32.to_bits());
    assert!(
        matches!(
            options.open::<u32, _>(name.location(), (4, 4)),
            Err(Error { kind: ErrorKind::SizeMismatch { .. }, .. })
        ),
        "the size is still checked"
    );
    let read = place.open_options().reinterpret(true).open_reader::<u32, _>(name.location(), 12).unwrap();
    assert_eq!(read.view()[11], 1f32.to_bits());
}

fn size_mismatch_reports_the_description(place: &Place) {
    let name = place.location("size");
    place.options().create::<u16, _>(name.location(), (3, 4)).unwrap();
    let error = place.open_options().open::<f32, _>(name.location(), (3, 4)).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::SizeMismatch { expected: 48, found: 24, .. }), "{error}");
    let says = error.to_string().contains("(it describes itself as <u2 of shape [3, 4] in C order)");
    assert_eq!(says, place.describes(), "{error}");
}

fn description_is_written_before_the_name(place: &Place) {
    let steps = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&steps);
    let backend = place.meddling(move |what, _| {
        if ["describe", "publish"].contains(&what) {
            noted.lock().unwrap().push(what);
        }
        Ok(())
    });
    let name = place.location("before");
    place.options().directory(backend).create::<u8, _>(name.location(), 4).unwrap();
    assert_eq!(*steps.lock().unwrap(), ["describe", "publish"]);
}

fn create_succeeds_without_room_for_a_description(place: &Place) {
    let backend = place.meddling(|what, at| match (what, at) {
        ("describe", _) => {
            Err(ErrorKind::NoSpace { needed: 1, available: 0, in_flight: 0, advice: "none".into() }.at("here"))
        }
        _ => Ok(()),
    });
    let name = place.location("without");
    let array = place.options().directory(backend).create::<u8, _>(name.location(), (2, 2).f()).unwrap();
    array.write().unwrap()[[0, 1]] = 3;
    assert_eq!(said(place, &name), None);
    assert_eq!(place.open_options().open::<u8, _>(name.location(), (2, 2)).unwrap().read().unwrap()[[1, 0]], 3);
}

fn description_can_be_rewritten_and_removed(place: &Place) {
    let name = place.location("rewrite");
    place.options().create::<u16, _>(name.location(), (3, 4)).unwrap();
    let volume = Description::new(DType::I16, &[2, 6], Order::F).unwrap();
    let volume = volume.with_note("source", "precomputed://https://host/em").unwrap();
    let described = place.backend.describe(name.location(), &volume);
    if !place.describes() {
        assert!(matches!(described.unwrap_err().kind, ErrorKind::Unsupported { .. }));
        place.backend.clear_description(name.location()).unwrap();
        return;
    }
    described.unwrap();
    let found = place.backend.description(name.location()).unwrap().unwrap();
    assert_eq!((&found, found.note("source")), (&volume, Some("precomputed://https://host/em")));
    assert!(place.open_options().open::<i16, _>(name.location(), (2, 6).f()).is_ok());
    let wrong = Description::new(DType::U16, &[3, 5], Order::C).unwrap();
    let error = place.backend.describe(name.location(), &wrong).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::SizeMismatch { expected: 30, found: 24, .. }), "{error}");
    assert_eq!(place.backend.description(name.location()).unwrap(), Some(volume), "it is as it was");
    place.backend.clear_description(name.location()).unwrap();
    place.backend.clear_description(name.location()).unwrap();
    assert_eq!(said(place, &name), None);
    assert!(place.open_options().open_dyn::<u32, Ix2>(name.location()).unwrap_err().kind == ErrorKind::NotDescribed);
}

/// As numpy's `mode="w+"` and `O_TRUNC` leave it: another length, the same file, the old attribute.
fn description_of_another_length_is_ignored(place: &Place) {
    let name = place.location("truncated");
    drop(place.options().create::<u16, _>(name.location(), (3, 4)).unwrap());
    std::fs::write(place.path(&name), [1u8; 40]).unwrap();
    assert_eq!(said(place, &name), None);
    let array = place.open_options().open::<f32, _>(name.location(), (5, 2).f()).unwrap();
    assert_eq!(array.len(), 10);
    assert!(place.open_options().open_dyn::<u16, Ix2>(name.location()).unwrap_err().kind == ErrorKind::NotDescribed);
    let error = place.open_options().open::<u16, _>(name.location(), (3, 4)).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::SizeMismatch { description: None, .. }), "{error}");
}

fn damaged_descriptions_are_ignored(place: &Place) {
    let name = place.location("damaged");
    place.options().create::<u16, _>(name.location(), (3, 4)).unwrap();
    let good = "ndshm 1\ndtype <u2\nshape 3 4\norder C\nbytes 24\n";
    let long = format!("{good}source {}\n", "x".repeat(3500));
    let longest = format!("{good}source {}\n", "x".repeat(3500 - good.len() - 8));
    let bad: Vec<Vec<u8>> = vec![
        b"".to_vec(),
        b"\xff\xfe\x00".to_vec(),
        b"some other program's".to_vec(),
        good.replace("ndshm 1", "ndshm 2").into(),
        good.replace("<u2", ">u2").into(),
        good.replace("3 4", "3 5").into(),
        good.replace("3 4", "3  4").into(),
        good.replace("3 4", "3 4 ").into(),
        good.replace("3 4", "+3 4").into(),
        good.replace("3 4", "18446744073709551615 2").into(),
        good.replace("3 4", "0 18446744073709551615 2").into(),
        good.replace("order C", "order A").into(),
        good.replace("24", "48").into(),
        good.replace("bytes 24\n", "bytes 24").into(),
        good.replace("dtype <u2\n", "").into(),
        format!("{good}source\n").into(),
        format!("{good}Source x\n").into(),
        format!("{good}source \x1b[2J\n").into(),
        format!("{good}source a\nsource b\n").into(),
        long.into(),
    ];
    for bytes in &bad {
        write_raw(place, &name, bytes);
        let text = String::from_utf8_lossy(bytes);
        assert_eq!(said(place, &name), None, "{text:?}");
        // An ignored description refuses no shape.
        assert!(place.open_options().open::<u16, _>(name.location(), (4, 3).f()).is_ok(), "{text:?}");
    }
    for good in [good, &longest, &format!("{good}note-of-its-own \u{6570}\u{636e}\n")] {
        write_raw(place, &name, good.as_bytes());
        assert_eq!(said(place, &name), expected(place, "<u2 of shape [3, 4] in C order"), "{good:?}");
    }
    // A false description of the right length goes unnoticed. That is sound: any bytes are valid elements.
    write_raw(place, &name, b"ndshm 1\ndtype <f8\nshape 3\norder C\nbytes 24\n");
    assert_eq!(place.open_options().open_dyn::<f64, IxDyn>(name.location()).is_ok(), place.describes());
}

fn only_plain_arrays_are_described(place: &Place) {
    let name = place.location("counted");
    let counted = place.options().create_counted::<u16, _>(name.location(), (3, 4)).unwrap();
    let error = place.backend.description(name.location()).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Reserved { .. }) && error.to_string().contains("counted"), "{error}");
    let description = Description::new(DType::U16, &[3, 4], Order::C).unwrap();
    assert!(matches!(
        place.backend.describe(name.location(), &description).unwrap_err().kind,
        ErrorKind::Reserved { .. }
    ));
    assert!(matches!(place.backend.clear_description(name.location()).unwrap_err().kind, ErrorKind::Reserved { .. }));
    drop(counted);
    assert!(place.backend.description(name.location()).unwrap_err().is_not_found());
    assert!(place.backend.describe(name.location(), &description).unwrap_err().is_not_found());
}

fn array_without_write_permission_is_described(place: &Place) {
    let name = place.location("readonly");
    place.options().permissions(0o440).create::<u16, _>(name.location(), (3, 4)).unwrap();
    assert_eq!(said(place, &name), expected(place, "<u2 of shape [3, 4] in C order"));
    if cfg!(unix) {
        let listed = place.backend.list().unwrap();
        let mode = listed.iter().find(|entry| entry.name == name.as_str()).unwrap().mode;
        assert_eq!(mode & 0o777, 0o440);
    }
}

fn recycled_memory_describes_the_new_array(place: &Place) {
    let (name, pool) = (place.location("recycled"), place.pool_options().create().unwrap());
    drop(pool.take::<u16, _>((3, 4)).unwrap().publish(name.location()).unwrap());
    let draft = pool.take::<f32, _>((2, 3).f()).unwrap();
    assert_eq!(draft.is_recycled(), Place::RECYCLES);
    let array = draft.publish(name.location()).unwrap();
    assert_eq!(said(place, &name), expected(place, "<f4 of shape [2, 3] in F order"));
    drop(array);
    // Memory that has left the pool loses the earlier descriptions too.
    let draft: Draft<u8, _> = pool.take::<u8, _>(20).unwrap().into_draft();
    let array = draft.publish(name.location()).unwrap();
    assert_eq!(said(place, &name), expected(place, "|u1 of shape [20] in C order"));
    drop(array);
}

fn memory_that_keeps_its_description_is_not_recycled(place: &Place) {
    let refused = || ErrorKind::Unsupported { what: "clearing".into() }.at("here");
    let backend = place.meddling(move |what, _| if what == "clear" { Err(refused()) } else { Ok(()) });
    let (name, pool) = (place.location("kept"), place.pool_options().directory(backend).create().unwrap());
    drop(pool.take::<u16, _>((3, 4)).unwrap().publish(name.location()).unwrap());
    assert!(!place.has(&name), "the name is removed all the same");
    assert!(!pool.take::<u16, _>((3, 4)).unwrap().is_recycled());
    assert_eq!(pool.stats().hits, 0);
}

fn finished_renderbuffer_is_described_with_its_notes(place: &Place) {
    let name = place.location("painted");
    let options = place.render_options().note("source", "zarr:///data/em").note("unit", "nm");
    let buffer = options.clone().create::<u16, _>(name.location(), (4, 6).f(), (4, 3), "x").unwrap();
    let second = place.render_options().create::<u16, _>(name.location(), (4, 6).f(), (4, 3), "x").unwrap();
    let unfinished = render::description(&place.backend, name.location()).unwrap();
    assert_eq!(unfinished.map(|found| found.to_string()), expected(place, "<u2 of shape [4, 6] in F order"));
    while let ndarray_shm::NextClaim::Chunk(chunk) = second.claim_next().unwrap() {
        chunk.commit().unwrap();
    }
    second.finish().unwrap();
    buffer.finish().unwrap();
    assert_eq!(said(place, &name), expected(place, "<u2 of shape [4, 6] in F order"));
    if let Some(found) = place.backend.description(name.location()).unwrap() {
        let notes: Vec<_> = found.notes().collect();
        assert_eq!(notes[1..], [("source", "zarr:///data/em"), ("unit", "nm")]);
        let (key, digest) = notes[0];
        assert!(key == "work" && digest.len() == 32, "{notes:?}");
    }
    let other = place.location("painted-badly");
    let error = options.note("Not a key", "x").create::<u16, _>(other.location(), (4, 6), (4, 3), "x").unwrap_err();
    assert!(matches!(error.kind, ErrorKind::InvalidSetting { .. }), "{error}");
    assert!(!place.has(&other));
}

fn notes_have_limits(_place: &Place) {
    let plain = || Description::new(DType::U8, &[2], Order::C).unwrap();
    for key in ["", "dtype", "bytes", "A", "a b", "\u{e4}", &"a".repeat(65)] {
        assert!(
            matches!(plain().with_note(key, "x"), Err(Error { kind: ErrorKind::InvalidSetting { .. }, .. })),
            "{key:?}"
        );
    }
    for text in ["two\nlines", "bell \u{7}", &"x".repeat(3500)] {
        assert!(
            matches!(plain().with_note("note", text), Err(Error { kind: ErrorKind::InvalidSetting { .. }, .. })),
            "{text:?}"
        );
    }
    let replaced = plain().with_note("a", "1").unwrap().with_note("a", "2").unwrap();
    assert_eq!(replaced.notes().collect::<Vec<_>>(), [("a", "2")]);
    assert!(matches!(
        Description::new(DType::U64, &[usize::MAX, 2], Order::C),
        Err(Error { kind: ErrorKind::TooLarge { .. }, .. })
    ));
}

fn array_is_created_with_its_notes(place: &Place) {
    let name = place.location("noted");
    let options = place.options().note("unit", "nm").note("unit", "um").note("source", "here");
    options.create::<u8, _>(name.location(), (2, 3)).unwrap();
    let found = place.backend.description(name.location()).unwrap();
    assert_eq!(found.is_some(), place.describes());
    if let Some(found) = found {
        assert_eq!((found.shape(), found.note("unit"), found.note("source")), (&[2, 3][..], Some("um"), Some("here")));
    }
    let other = place.location("badly-noted");
    let refused = place.options().note("Unit", "nm").create::<u8, _>(other.location(), 3);
    assert!(matches!(refused.unwrap_err().kind, ErrorKind::InvalidSetting { .. }));
    assert!(!place.has(&other));
}

/// A child that reads a description, and changes it after the parent's next line.
fn describe_seen(arguments: &[String]) {
    let (backend, name) = (backend_of_child(), arguments[0].as_str());
    let seen = backend.see_description(name).unwrap();
    say(seen.bytes());
    hear();
    let old = seen.description().unwrap_or_else(|| Description::new(DType::U16, &[3, 4], Order::C).unwrap());
    let new = old.with_note("unit", "nm").unwrap();
    say(backend
        .describe_seen(name, &seen, Some(&new))
        .map_or_else(|error| format!("{error:?}"), |()| "described".into()));
}

fn description_is_changed_only_if_it_is_as_it_was_seen(place: &Place) {
    let name = place.location("seen");
    let create =
        || drop(place.options().mode(CreationMode::Replace).create::<u16, _>(name.location(), (3, 4)).unwrap());
    let changed_after = |meddle: &dyn Fn()| {
        create();
        let mut child = Child::start(place, "describe-seen", &[name.as_str()]);
        child.expect("24");
        meddle();
        let said = child.ask("go on");
        child.finish();
        let found = place.backend.description(name.location()).ok().flatten();
        (said, found.and_then(|found| found.note("unit").map(str::to_owned)))
    };
    let noted = |note: &str| {
        let description = Description::new(DType::U16, &[3, 4], Order::C).unwrap().with_note("unit", note).unwrap();
        place.backend.describe(name.location(), &description).unwrap();
    };
    // Another array with the same description.
    let (said, unit) = changed_after(&create);
    assert!(said.starts_with("Changed:") && unit.is_none(), "{said}, {unit:?}");
    let (said, unit) = changed_after(&|| assert!(place.backend.unlink(name.location()).unwrap()));
    assert!(said.starts_with("NotFound:") && unit.is_none(), "{said}, {unit:?}");
    let (said, unit) = changed_after(&|| std::fs::write(place.path(&name), [1u8; 40]).unwrap());
    assert!(said.starts_with("Changed:") && unit.is_none(), "{said}, {unit:?}");
    if !place.describes() {
        assert!(changed_after(&|| {}).0.starts_with("Unsupported:"));
        return;
    }
    assert_eq!(changed_after(&|| {}), ("described".into(), Some("nm".into())));
    let (said, unit) = changed_after(&|| noted("m"));
    assert!(said.starts_with("Changed:") && unit.as_deref() == Some("m"), "{said}, {unit:?}");
    let (said, unit) = changed_after(&|| place.backend.clear_description(name.location()).unwrap());
    assert!(said.starts_with("Changed:") && unit.is_none(), "{said}, {unit:?}");
}
