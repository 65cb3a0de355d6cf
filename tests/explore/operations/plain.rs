//! Operations on a plain array that the process has.

use std::time::Duration;

use super::{Kind, Operation, operation, read, tell, tell_value, then, write};
use crate::world::{alter, hold, kind, let_go, report, see};

pub const ALL: &[Operation] = &[
    operation("read", Kind::Plain, |_, has| has.plain.as_ref().into_iter().for_each(read)).allows(&["Unlinked"]),
    operation("write", Kind::Plain, |world, has| has.plain.as_ref().into_iter().for_each(|array| write(array, world)))
        .allows(&["Unlinked"]),
    operation("try to write", Kind::Plain, |_, has| {
        let Some(array) = &has.plain else { return };
        match array.try_write() {
            Ok(guard) => {
                hold(guard.as_ptr(), true);
                alter();
                report("write: ok");
                let_go();
                drop(guard);
            }
            Err(error) => report(format!("write: {}", kind(&error))),
        }
    })
    .allows(&["Unlinked", "WouldBlock"]),
    operation("lock a cell", Kind::Plain, |_, has| {
        let Some(array) = &has.plain else { return };
        let Some(cell) = tell("cell", array.lock_cell(3, Duration::from_secs(5))) else { return };
        see();
        drop(cell);
    })
    .allows(&["Unlinked"]),
    operation("unlink", Kind::Plain, |_, has| {
        has.plain.as_ref().into_iter().for_each(|array| tell_value("unlink", array.unlink()));
    }),
    operation("detach", Kind::Plain, |_, has| has.plain = None),
    operation("read twice", Kind::Plain, |_, has| {
        let Some(array) = &has.plain else { return };
        read(array);
        then();
        read(array);
    })
    .allows(&["Unlinked"]),
    operation("end the reader", Kind::Reader, |_, has| has.reader = None),
    operation("read by the reader", Kind::Reader, |_, has| {
        let Some(reader) = &has.reader else { return };
        let view = reader.view();
        hold(view.as_ptr(), false);
        see();
        report(format!("reader: {}", super::contents(&view)));
        let_go();
    }),
];
