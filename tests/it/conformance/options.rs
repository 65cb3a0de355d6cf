//! Options: every setting with every call that ends them. A setting that has no meaning there is refused, whatever the
//! order in which settings were made.

use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::{Ix1, IxDyn};
use ndarray_shm::counted::{HandleOptions, SharingStrategy};
use ndarray_shm::render::RenderOptions;
use ndarray_shm::{Access, CreateOptions, CreationMode, Error, ErrorKind, OpenOptions, Pages, Result};

use crate::support::Place;
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "options",
        tests![
            each_setting_fits_these_ways_of_opening,
            each_setting_fits_these_ways_of_creating,
            reading_only_and_writing_are_not_chosen_together,
            buffer_takes_a_pool_before_and_after_other_settings,
            each_setting_fits_these_ways_of_getting_a_buffer,
        ],
    )
}

/// A setting, and whether it fits each end of a table, `x` or `.`.
type Row<'a, O> = (&'a str, fn(O) -> O, &'a str);

/// A call that ends options.
type End<'a, O> = (&'a str, &'a dyn Fn(&O) -> Result<()>);

/// Checks a table: an end refuses a setting as invalid if, and only if, it does not fit.
fn check<O>(base: impl Fn() -> O, rows: &[Row<'_, O>], ends: &[End<'_, O>]) {
    for (setting, set, fits) in rows {
        assert_eq!(fits.len(), ends.len(), "{setting}");
        for (fits, (end, act)) in fits.chars().zip(ends) {
            let outcome = act(&set(base()));
            let is_refused = matches!(outcome, Err(Error { kind: ErrorKind::InvalidSetting { .. }, .. }));
            assert_eq!(is_refused, fits == '.', "{setting} with {end}: {outcome:?}");
        }
    }
}

fn each_setting_fits_these_ways_of_opening(place: &Place) {
    let (plain, counted) = (place.location("plain"), place.location("counted"));
    drop(place.options().create::<u32, _>(plain.location(), 4).unwrap());
    let array = place.options().create_counted::<u32, _>(counted.location(), 4).unwrap();
    let handle = array.handle_with(HandleOptions::new().reusable()).unwrap();
    let (plain, counted) = (|| plain.location(), || counted.location());
    let base = || place.open_options();
    let rows: [Row<'_, OpenOptions>; 7] = [
        ("access", |options| options.access(Access::Read), "xxxxx......"),
        ("copy_on_write", OpenOptions::copy_on_write, "xxxxx......"),
        ("keep_fd", |options| options.keep_fd(true), "xxxxx......"),
        ("leave_holes", |options| options.leave_holes(true), "xxxxxxxxxxx"),
        ("reinterpret", |options| options.reinterpret(true), "x....x.x..."),
        ("timeout", |options| options.timeout(Duration::from_secs(5)), ".....xxxxxx"),
        ("none", |options| options.keep_fd(false).reinterpret(false).leave_holes(false), "xxxxxxxxxxx"),
    ];
    check(
        base,
        &rows,
        &[
            ("open", &|options| options.open::<u32, _>(plain(), 4).map(drop)),
            ("open_dyn", &|options| options.open_dyn::<u32, Ix1>(plain()).map(drop)),
            ("open_bytes", &|options| options.open_bytes(plain()).map(drop)),
            ("open_counted", &|options| options.open_counted::<u32, Ix1>(counted()).map(drop)),
            ("attach", &|options| options.attach::<u32, IxDyn>(&handle).map(drop)),
            ("open_reader", &|options| options.open_reader::<u32, _>(plain(), 4).map(drop)),
            ("open_reader_dyn", &|options| options.open_reader_dyn::<u32, Ix1>(plain()).map(drop)),
            ("open_writer", &|options| options.open_writer::<u32, _>(plain(), 4).map(drop)),
            ("open_writer_dyn", &|options| options.open_writer_dyn::<u32, Ix1>(plain()).map(drop)),
            ("open_counted_reader", &|options| options.open_counted_reader::<u32, Ix1>(counted()).map(drop)),
            ("attach_reader", &|options| options.attach_reader::<u32, IxDyn>(&handle).map(drop)),
        ],
    );
    assert_eq!(array.refcount(), 1, "what was refused is not counted");
}

fn each_setting_fits_these_ways_of_creating(place: &Place) {
    let place = &place.private();
    let fresh = |label: &str| place.location(label);
    let rows: [Row<'_, CreateOptions>; 7] = [
        ("permissions", |options| options.permissions(0o640), "xxx"),
        ("pages", |options| options.pages(Pages::Sparse), "xxx"),
        ("keep_fd", |options| options.keep_fd(true), "xxx"),
        ("mode Replace", |options| options.mode(CreationMode::Replace), "xx."),
        ("mode OpenOrCreate", |options| options.mode(CreationMode::OpenOrCreate), "xx."),
        ("note", |options| options.note("unit", "nm"), "x.."),
        ("none", |options| options.mode(CreationMode::CreateNew).keep_fd(false), "xxx"),
    ];
    check(
        || place.options(),
        &rows,
        &[
            ("create", &|options| options.create::<u32, _>(fresh("plain").location(), 4).map(drop)),
            ("create_counted", &|options| options.create_counted::<u32, _>(fresh("counted").location(), 4).map(drop)),
            ("share", &|options| options.share::<u32, _>(SharingStrategy::FileSystem, 4).map(drop)),
        ],
    );
    assert!(place.backend.list().unwrap().is_empty(), "what was refused left no name");
}

fn reading_only_and_writing_are_not_chosen_together(place: &Place) {
    let name = place.location("access");
    drop(place.options().create::<u32, _>(name.location(), 4).unwrap());
    let (before, after) = (place.open_options().access(Access::ReadWrite), place.open_options().copy_on_write());
    for options in [before.copy_on_write(), after.access(Access::ReadWrite)] {
        let error = options.open::<u32, _>(name.location(), 4).unwrap_err();
        assert!(matches!(error.kind, ErrorKind::InvalidSetting { .. }), "{error}");
    }
    let both = place.open_options().copy_on_write().access(Access::Read);
    assert!(both.open::<u32, _>(name.location(), 4).unwrap().is_readonly());
}

fn buffer_takes_a_pool_before_and_after_other_settings(place: &Place) {
    let place = &place.private();
    let (name, elsewhere) = (place.location("pooled"), place.private());
    let pool = place.pool_options().permissions(0o640).create().unwrap();
    let options = RenderOptions::new;
    let same = [
        options().pool(&pool),
        options().pool(&pool).directory(place.backend.clone()).permissions(0o640),
        options().permissions(0o640).directory(place.backend.clone()).pool(&pool),
    ];
    for options in same {
        options.create::<u8, _>(name.location(), 4, 4, "work").unwrap().discard().unwrap();
    }
    let different = [
        options().pool(&pool).permissions(0o600),
        options().permissions(0o600).pool(&pool),
        options().pool(&pool).directory(elsewhere.backend.clone()),
        options().directory(elsewhere.backend.clone()).pool(&pool),
    ];
    for options in different {
        let error = options.create::<u8, _>(name.location(), 4, 4, "work").unwrap_err();
        assert!(matches!(error.kind, ErrorKind::InvalidSetting { .. }), "{error}");
    }
}

fn each_setting_fits_these_ways_of_getting_a_buffer(place: &Place) {
    let place = &place.private();
    let name = place.location("buffer");
    let pool = place.pool_options().create().unwrap();
    let _began = place.render_options().create::<u8, _>(name.location(), 4, 4, "work").unwrap();
    let rows: [Row<'_, RenderOptions>; 9] = [
        ("permissions", |options| options.permissions(0o640), "xx"),
        ("sparse pages", |options| options.pages(Pages::Sparse), "xx"),
        ("base pages", |options| options.pages(Pages::Base), "x."),
        ("replace", |options| options.replace(true), "xx"),
        ("accept_finished", |options| options.accept_finished(true), "xx"),
        ("timeout", |options| options.timeout(Duration::from_secs(5)), "xx"),
        ("chunk_offset", |options| options.chunk_offset(&[0]), "x."),
        ("note", |options| options.note("unit", "nm"), "x."),
        ("none", |options| options.replace(false), "xx"),
    ];
    let ends: [End<'_, RenderOptions>; 2] = [
        ("create", &|options| options.clone().create::<u8, _>(name.location(), 4, 4, "work").map(drop)),
        ("open", &|options| options.clone().open::<u8, Ix1>(name.location()).map(drop)),
    ];
    check(|| place.render_options(), &rows, &ends);
    check(|| place.render_options().pool(&pool), &[("pool", |options| options, "x.")], &ends);
}
