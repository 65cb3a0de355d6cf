//! Operations by name.

use ndarray_shm::DType;
use ndarray_shm::counted::Reclaim;
use ndarray_shm::ndarray::Ix1;
use ndarray_shm::{CreateOptions, CreationMode, OpenOptions, Order, array::Description};

use super::{Kind, LENGTH, NAME, Operation, operation, read, tell, tell_value, then, write};
use crate::world::{World, report};

fn create(world: &World) -> CreateOptions {
    CreateOptions::new().directory(world.directory.clone())
}

fn open(world: &World) -> OpenOptions {
    OpenOptions::new().directory(world.directory.clone())
}

fn description() -> Description {
    let plain = Description::new(DType::U8, &[LENGTH], Order::C).expect("a description");
    plain.with_note("unit", "d").expect("a note")
}

pub const ALL: &[Operation] = &[
    operation("create", Kind::Nothing, |world, has| has.new_plain = tell("create", create(world).create(NAME, LENGTH))),
    operation("create filled", Kind::Nothing, |world, has| {
        let filled = create(world).create_with(NAME, LENGTH, |mut view| view.fill(world.letter));
        has.new_plain = tell("create", filled);
    }),
    operation("replace", Kind::Nothing, |world, has| {
        let options = create(world).mode(CreationMode::Replace);
        has.new_plain = tell("replace", options.create_with(NAME, LENGTH, |mut view| view.fill(world.letter)));
    }),
    operation("open or create", Kind::Nothing, |world, has| {
        has.new_plain = tell("open", create(world).mode(CreationMode::OpenOrCreate).create(NAME, LENGTH));
    }),
    operation("create counted", Kind::Nothing, |world, has| {
        has.new_counted = tell("create", create(world).create_counted(NAME, LENGTH));
    }),
    operation("open and read", Kind::Nothing, |world, has| {
        has.new_plain = tell("open", open(world).open(NAME, LENGTH));
        if let Some(array) = &has.new_plain {
            then();
            read(array);
        }
    })
    .allows(&["Unlinked"]),
    operation("open with a descriptor and read", Kind::Nothing, |world, has| {
        has.new_plain = tell("open", open(world).keep_fd(true).open(NAME, LENGTH));
        if let Some(array) = &has.new_plain {
            then();
            read(array);
        }
    })
    .allows(&["Unlinked"]),
    operation("open and write", Kind::Nothing, |world, has| {
        has.new_plain = tell("open", open(world).open(NAME, LENGTH));
        if let Some(array) = &has.new_plain {
            then();
            write(array, world);
        }
    })
    .allows(&["Unlinked"]),
    operation("open a reader", Kind::Nothing, |world, has| {
        has.new_reader = tell("open", open(world).open_reader(NAME, LENGTH));
    }),
    operation("open counted and read", Kind::Nothing, |world, has| {
        has.new_counted = tell("open", open(world).open_counted::<u8, Ix1>(NAME));
        if let Some(array) = &has.new_counted {
            then();
            read(array);
        }
    })
    .allows(&["Unlinked", "NotFound"]),
    operation("open counted and write", Kind::Nothing, |world, has| {
        has.new_counted = tell("open", open(world).open_counted::<u8, Ix1>(NAME));
        if let Some(array) = &has.new_counted {
            then();
            write(array, world);
        }
    })
    .allows(&["Unlinked", "NotFound"]),
    operation("open counted, issue, leave and attach", Kind::Nothing, |world, has| {
        let Some(array) = tell("open", open(world).open_counted::<u8, Ix1>(NAME)) else { return };
        then();
        let handle = tell("handle", array.handle());
        then();
        drop(array);
        then();
        has.new_counted = handle.and_then(|handle| tell("attach", open(world).attach::<u8, Ix1>(&handle)));
    })
    .allows(&["open: Unlinked", "open: NotFound", "handle: Unlinked"]),
    operation("unlink by name", Kind::Nothing, |world, _| tell_value("unlink", world.directory.unlink(NAME))),
    operation("describe", Kind::Nothing, |world, _| {
        tell("describe", world.directory.describe(NAME, &description()));
    }),
    operation("clear description", Kind::Nothing, |world, _| {
        tell("clear", world.directory.clear_description(NAME));
    }),
    operation("note", Kind::Nothing, |world, _| {
        let Some(seen) = tell("see", world.directory.see_description(NAME)) else { return };
        report(if seen.description().is_some() { "described" } else { "not described" });
        then();
        let found = seen.description().unwrap_or_else(description);
        let unit = char::from(world.letter).to_string();
        let noted = found.with_note("unit", &unit).expect("a note");
        tell("note", world.directory.describe_seen(NAME, &seen, Some(&noted)));
    })
    .allows(&["Changed"]),
    operation("ask whether attached", Kind::Nothing, |world, _| tell_value("attached", world.directory.attached(NAME)))
        .allows(&["true", "false"]),
    operation("gc", Kind::Nothing, |world, _| {
        let removed = Reclaim::new().run(&world.directory);
        tell_value("gc", removed.map(|reclaimed| reclaimed.removed.len()));
    })
    .allows(&["0", "1"]),
];
