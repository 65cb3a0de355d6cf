//! Operations on a stream with three slots, and on its cursor.

use ndarray_shm::ndarray::Ix1;
use ndarray_shm::stream::{self, Backpressure, Frame, NewFrame, StreamCursor, StreamOptions};
use ndarray_shm::{DType, Location, Result, StreamReader, StreamWriter};

use super::{Kind, LENGTH, NAME, Operation, contents, operation, tell, tell_value, then};
use crate::world::{World, alter, hold, kind, let_go, report, see};

pub const SLOTS: usize = 3;
pub const CURSOR: &str = "disk";

pub fn options(world: &World) -> StreamOptions {
    StreamOptions::new().directory(world.directory.clone()).meta("number", DType::U64, 1)
}

/// Writes its number beside the elements of a frame, and makes it the newest one.
pub fn commit(mut frame: NewFrame<'_, u8, Ix1>) -> Result<u64> {
    let number = frame.number();
    frame.set_meta("number", &[number])?;
    frame.commit()
}

fn at() -> Location {
    NAME.parse().expect("a name")
}

/// Adds a frame of this process's letter.
fn write(writer: &mut StreamWriter<u8, Ix1>, world: &World) {
    match writer.frame() {
        Ok(mut frame) => {
            hold(frame.view_mut().as_ptr(), true);
            alter();
            frame.view_mut().iter_mut().take(LENGTH / 2).for_each(|element| *element = world.letter);
            alter();
            frame.view_mut().fill(world.letter);
            let_go();
            tell("commit", commit(frame));
        }
        Err(error) => report(format!("frame: {}", kind(&error))),
    }
}

/// Looks at a frame twice.
fn look(frame: &Frame<u8, Ix1>) {
    hold(frame.view().as_ptr(), false);
    see();
    let found = contents(&frame.view()).to_string();
    see();
    let again = contents(&frame.view()).to_string();
    let is_of_its_number = frame.meta::<u64>("number").is_ok_and(|number| number == [frame.number()]);
    let changed = if again == found { "" } else { " and another value" };
    report(format!("frame: {found}{changed}{}", if is_of_its_number { "" } else { " of another number" }));
    let_go();
}

fn read(found: Result<Option<Frame<u8, Ix1>>>) {
    match found {
        Ok(Some(frame)) => look(&frame),
        Ok(None) => report("frame: none"),
        Err(error) => report(format!("frame: {}", kind(&error))),
    }
}

fn open(world: &World) -> Option<StreamReader<u8, Ix1>> {
    tell("open", options(world).open(NAME))
}

/// Creates, takes over or replaces a stream, and adds frames.
fn begin(world: &World, options: &StreamOptions, frames: usize) -> Option<StreamWriter<u8, Ix1>> {
    let mut writer = tell("begin", options.create(NAME, LENGTH, SLOTS))?;
    for _ in 0..frames {
        then();
        write(&mut writer, world);
    }
    Some(writer)
}

/// Reads a frame with a cursor, and acknowledges it.
fn read_on(cursor: &mut StreamCursor<u8, Ix1>) {
    match cursor.next() {
        Ok(Some(frame)) => {
            look(&frame);
            if frame.number() != cursor.acknowledged() + 1 {
                report("after a gap");
            }
            then();
            tell("acknowledge", cursor.acknowledge(frame.number()));
        }
        Ok(None) => report("frame: none"),
        Err(error) => report(format!("frame: {}", kind(&error))),
    }
}

pub const ALL: &[Operation] = &[
    operation("create a stream", Kind::Nothing, |world, has| {
        has.new_writer = begin(world, &options(world), 0);
    }),
    operation("create a stream and write", Kind::Nothing, |world, has| {
        has.new_writer = begin(world, &options(world), 1);
    }),
    operation("resume the stream and write", Kind::Nothing, |world, has| {
        has.new_writer = begin(world, &options(world).resume(true), 1);
    }),
    operation("replace the stream and write", Kind::Nothing, |world, has| {
        has.new_writer = begin(world, &options(world).replace(true), 1);
    }),
    operation("replace the stream and keep it", Kind::Nothing, |world, has| {
        has.new_writer = begin(world, &options(world).replace(true).keep(true), 1);
    }),
    operation("read the stream by name", Kind::Nothing, |world, has| {
        has.new_stream = open(world);
        then();
        if let Some(reader) = &mut has.new_stream {
            read(reader.latest());
        }
    })
    .allows(&["Closed", "Unlinked"]),
    operation("read by a cursor", Kind::Nothing, |world, has| {
        has.new_cursor = tell("cursor", options(world).open_cursor(NAME, CURSOR, Backpressure::Wait));
        then();
        if let Some(cursor) = &mut has.new_cursor {
            read_on(cursor);
        }
    })
    .allows(&["Closed", "Unlinked"]),
    operation("unlink the stream", Kind::Nothing, |world, _| {
        tell_value("unlink", stream::unlink(&world.directory, &at()));
    }),
    operation("unlink the cursor", Kind::Nothing, |world, _| {
        tell_value("unlink", stream::unlink_cursor(&world.directory, &at(), CURSOR));
    })
    .allows(&["true"]),
    operation("write a frame", Kind::Writer, |world, has| {
        has.writer.iter_mut().for_each(|writer| write(writer, world));
    })
    .allows(&["SlotsHeld"]),
    operation("write four frames", Kind::Writer, |world, has| {
        let Some(writer) = &mut has.writer else { return };
        for _ in 0..4 {
            write(writer, world);
            then();
        }
    })
    .allows(&["SlotsHeld"]),
    operation("drop a frame", Kind::Writer, |_, has| {
        let Some(writer) = &mut has.writer else { return };
        match writer.frame() {
            Ok(mut frame) => {
                alter();
                frame.view_mut().fill(b'?');
            }
            Err(error) => report(format!("frame: {}", kind(&error))),
        }
    }),
    operation("end the stream", Kind::Writer, |_, has| {
        has.writer.as_mut().map(|writer| tell("end", writer.end()));
    }),
    operation("read the latest frame", Kind::Stream, |_, has| {
        has.stream.iter_mut().for_each(|reader| read(reader.latest()));
    })
    .allows(&["Closed", "Unlinked"]),
    operation("read two frames", Kind::Stream, |_, has| {
        let Some(reader) = &mut has.stream else { return };
        read(reader.next());
        then();
        read(reader.next());
    })
    .allows(&["Closed", "Unlinked"]),
    operation("hold a frame and another", Kind::Stream, |_, has| {
        let Some(reader) = &mut has.stream else { return };
        let held = reader.latest();
        then();
        read(reader.get(1));
        then();
        read(held);
    })
    .allows(&["Closed", "Unlinked"]),
    operation("look at the held frame", Kind::Frame, |_, has| {
        let Some(frame) = &has.frame else { return };
        if tell("hold", frame.hold()).is_some() {
            look(frame);
        }
    })
    .allows(&["Unlinked"]),
    operation("drop the held frame", Kind::Frame, |_, has| has.frame = None),
    operation("read on by the cursor", Kind::Cursor, |_, has| {
        has.cursor.iter_mut().for_each(read_on);
    })
    .allows(&["Closed", "Unlinked"]),
];
