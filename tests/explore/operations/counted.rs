//! Operations on a counted array that the process has, or with a handle of one.

use std::time::Duration;

use ndarray_shm::OpenOptions;
use ndarray_shm::ndarray::Ix1;

use super::{Kind, Operation, operation, read, tell, tell_value, then, write};
use crate::world::{hold, kind, let_go, report, see};

pub const ALL: &[Operation] = &[
    operation("read counted", Kind::Counted, |_, has| has.counted.as_deref().into_iter().for_each(read))
        .allows(&["Unlinked"]),
    operation("write counted", Kind::Counted, |world, has| {
        has.counted.as_deref().into_iter().for_each(|array| write(array, world));
    })
    .allows(&["Unlinked"]),
    operation("freeze and view", Kind::Counted, |_, has| {
        let Some(array) = &has.counted else { return };
        if tell("freeze", array.freeze()).is_none() {
            return;
        }
        then();
        match array.view() {
            Ok(view) => {
                hold(view.as_ptr(), false);
                see();
                let found = super::contents(&view).to_string();
                see();
                report(format!("view: {found}, {}", super::contents(&view)));
                let_go();
            }
            Err(error) => report(format!("view: {}", kind(&error))),
        }
    })
    .allows(&["Unlinked"]),
    operation("close", Kind::Counted, |_, has| {
        has.counted.take().map(|array| tell("close", array.close()));
    }),
    operation("recycle", Kind::Counted, |_, has| {
        has.counted.iter_mut().for_each(|array| tell_value("recycle", array.recycle()));
    })
    .allows(&["false"]),
    operation("recycle and write", Kind::Counted, |world, has| {
        let Some(array) = &mut has.counted else { return };
        let recycled = array.recycle();
        let is_new = matches!(recycled, Ok(true));
        tell_value("recycle", recycled);
        if is_new {
            then();
            write(array, world);
        }
    })
    .allows(&["false"]),
    operation("keep", Kind::Counted, |_, has| {
        has.counted.as_ref().map(|array| tell("keep", array.keep()));
    })
    .allows(&["Unlinked"]),
    operation("clone", Kind::Counted, |_, has| {
        has.clone = has.counted.as_ref().and_then(|array| tell("clone", array.try_clone()));
    })
    .allows(&["Unlinked"]),
    operation("issue a handle", Kind::Counted, |_, has| {
        has.counted.as_ref().map(|array| tell("handle", array.handle()));
    })
    .allows(&["Unlinked"]),
    operation("issue, attach and read", Kind::Counted, |_, has| {
        let Some(handle) = has.counted.as_ref().and_then(|array| tell("handle", array.handle())) else { return };
        then();
        has.clone = tell("attach", handle.attach::<u8, Ix1>());
        if let Some(array) = &has.clone {
            then();
            read(array);
        }
    })
    .allows(&["Unlinked"]),
    operation("lend a descriptor", Kind::Counted, |_, has| {
        let lent = has.counted.as_deref().and_then(super::lend);
        then();
        drop(lent);
    })
    .allows(&["Unlinked"])
    .leaves_names(),
    operation("attach and read", Kind::Handle, |world, has| {
        let Some(handle) = &has.handle else { return };
        let options = OpenOptions::new().directory(world.directory.clone());
        has.counted = tell("attach", options.attach::<u8, Ix1>(handle));
        if let Some(array) = &has.counted {
            then();
            read(array);
        }
    })
    .allows(&["Unlinked"]),
    operation("revoke", Kind::Handle, |_, has| {
        has.handle.iter().for_each(|handle| tell_value("revoke", handle.revoke()));
    }),
    operation("redeem", Kind::Handle, |_, has| {
        has.handle.iter().for_each(|handle| tell_value("redeem", handle.redeem()));
    }),
    operation("renew", Kind::Handle, |_, has| {
        has.handle.iter().for_each(|handle| tell_value("renew", handle.renew(Duration::from_secs(60))));
    }),
    operation("expire", Kind::Handle, |_, has| {
        has.handle.iter().for_each(|handle| tell_value("expire", handle.expire(Duration::ZERO)));
    })
    .leaves_names(),
];
