//! Handles of counted arrays: how often a handle can be attached, and how long it keeps the array.

use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use ndarray::{Ix1, Ix2};
use ndarray_shm::counted::{Handle, HandleOptions};
use ndarray_shm::{Access, CreationMode, ErrorKind, RefcountedArray};

use super::holder::Holder;
use crate::support::counted::create;
use crate::support::{Place, eventually};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "handles",
        tests![
            handle_attaches_another_process_once,
            handle_keeps_the_array_after_its_sender_left,
            reusable_handle_is_valid_until_revoked,
            revoked_handle_is_spent_and_keeps_nothing,
            expired_handle_still_attaches_but_keeps_nothing,
            type_mismatch_leaves_the_handle_valid,
            failed_attach_leaves_the_handle_valid,
            expired_handles_make_room_at_the_limit,
            handle_never_attaches_another_array_of_the_name,
            a_handle_can_attach_in_every_way,
            forged_or_malformed_handles_are_refused,
            each_renewal_admits_one_process_more,
            renewal_never_shortens_the_time_of_another_process,
            expiring_shortens_the_time_of_another_process,
        ],
    )
}

const SHORT: Duration = Duration::from_millis(40);

fn attach(place: &Place, handle: &Handle) -> ndarray_shm::Result<RefcountedArray<u32, Ix1>> {
    place.open_options().attach(handle)
}

fn brief() -> HandleOptions {
    HandleOptions::new().grace(SHORT)
}

fn handle_attaches_another_process_once(place: &Place) {
    let name = place.location("once");
    let array = create(place, &name);
    let handle = array.handle().unwrap();
    assert_eq!((handle.location(), handle.is_reusable()), (name.location(), false));
    assert_eq!(handle.directory(), std::path::absolute(place.directory()).unwrap());
    assert_eq!((array.in_flight(), array.refcount()), (1, 1));
    let text = handle.to_string();
    assert_eq!(text.parse::<Handle>().unwrap(), handle);
    #[cfg(feature = "serde")]
    {
        let json = serde_json::to_string(&handle).unwrap();
        assert_eq!(json, format!("{text:?}"));
        assert_eq!(serde_json::from_str::<Handle>(&json).unwrap(), handle);
    }
    let mut child = Holder::with(place, &name, &format!("attach {text}"));
    assert_eq!((child.ask("sum"), array.refcount(), array.in_flight()), ("4".into(), 2, 0));
    assert_eq!(child.ask("fill 6"), "ok");
    assert_eq!(array.read().unwrap().sum(), 24);
    let mut other = Holder::start(place, &name);
    assert_eq!(other.ask(&format!("attach {text}")), "HandleSpent");
    assert_eq!(attach(place, &handle).unwrap_err().kind, ErrorKind::HandleSpent);
    assert_eq!(array.refcount(), 2, "a refused attachment is not counted");
    // The receiver can send the array on, here back again.
    let back: Handle = child.ask("handle 60000").parse().unwrap();
    drop(array);
    let array = attach(place, &back).unwrap();
    assert_eq!(array.read().unwrap().sum(), 24);
    drop((array, child));
}

fn handle_keeps_the_array_after_its_sender_left(place: &Place) {
    let place = &place.private(); // where no other process reclaims
    let name = place.location("left");
    let mut sender = Holder::with(place, &name, "create 4");
    sender.ask("fill 2");
    let handle: Handle = sender.ask("handle 60000").parse().unwrap();
    assert_eq!(sender.ask("close"), "ok");
    sender.0.tell("exit");
    sender.0.finish();
    let inspection = place.inspect(&name).unwrap();
    assert_eq!((inspection.refcount, inspection.in_flight, inspection.is_attached), (0, 1, false));
    assert!(!inspection.is_orphaned());
    let reclaimed = place.reclaim();
    assert_eq!((reclaimed.removed.len(), reclaimed.in_flight), (0, 1));
    let array = attach(place, &handle).unwrap();
    assert_eq!((array.refcount(), array.in_flight(), array.read().unwrap().sum()), (1, 0, 8));
    drop(array);
    assert!(!place.has(&name));
    assert!(attach(place, &handle).unwrap_err().is_not_found());
}

fn reusable_handle_is_valid_until_revoked(place: &Place) {
    let name = place.location("many");
    let array = create(place, &name);
    let handle = array.handle_with(HandleOptions::new().reusable()).unwrap();
    assert!(handle.is_reusable());
    let text = handle.to_string();
    drop(array);
    let mut children = [(); 3].map(|()| Holder::with(place, &name, &format!("attach {text}")));
    assert_eq!(children[0].ask("count"), "3");
    children.iter_mut().for_each(|child| assert_eq!(child.ask("drop"), "ok"));
    assert!(place.has(&name), "the handle can still be attached");
    assert_eq!(children[0].ask(&format!("take-back {text}")), "true");
    assert!(!place.has(&name), "no process is attached, and none can attach");
    assert_eq!(children[1].ask(&format!("take-back {text}")), "false");
    assert_eq!(children[2].ask(&format!("attach {text}")), "NotFound");
}

fn revoked_handle_is_spent_and_keeps_nothing(place: &Place) {
    let name = place.location("taken-back");
    let array = create(place, &name);
    let handle = array.handle().unwrap();
    assert!(handle.revoke().unwrap() && !handle.revoke().unwrap());
    assert_eq!(attach(place, &handle).unwrap_err().kind, ErrorKind::HandleSpent);
    assert_eq!((array.refcount(), array.in_flight()), (1, 0));
    let used = array.handle().unwrap();
    drop(attach(place, &used).unwrap());
    assert!(!used.revoke().unwrap());
    let left = array.handle().unwrap();
    drop(array);
    assert!(place.has(&name) && left.revoke().unwrap());
    assert!(!place.has(&name) && !left.revoke().unwrap());
    // The name belongs to a plain array by now, and then to another counted one.
    place.options().create::<u8, _>(name.location(), 4).unwrap();
    assert!(!left.revoke().unwrap());
    place.backend.unlink(name.location()).unwrap();
    let other = create(place, &name);
    assert!(!left.revoke().unwrap());
    assert_eq!(other.refcount(), 1);
}

fn expired_handle_still_attaches_but_keeps_nothing(place: &Place) {
    let place = &place.private(); // where no other process reclaims
    let name = place.location("expired");
    let array = create(place, &name);
    let begin = Instant::now();
    let [late, never] = [(); 2].map(|()| array.handle_with(brief()).unwrap());
    let in_flight = array.in_flight();
    assert!(in_flight == 2 || begin.elapsed() >= SHORT, "{in_flight}");
    std::thread::sleep(2 * SHORT);
    assert_eq!((array.in_flight(), place.inspect(&name).unwrap().in_flight), (0, 0));
    drop(attach(place, &late).unwrap());
    assert!(place.has(&name));
    drop(array);
    assert!(!place.has(&name), "the other handle has expired and keeps nothing");
    assert!(attach(place, &never).unwrap_err().is_not_found());
    // The sender leaves before the handle expires: afterwards the array is an orphan.
    let array = create(place, &name);
    let handle = array.handle_with(brief()).unwrap();
    drop(array);
    let before = place.has(&name);
    std::thread::sleep(2 * SHORT);
    if before {
        eventually("it is an orphan", || place.inspect(&name).unwrap().is_orphaned());
        eventually("it is reclaimed", || place.reclaim().removed.len() == 1);
    }
    assert!(!place.has(&name));
    assert!(attach(place, &handle).unwrap_err().is_not_found());
}

fn type_mismatch_leaves_the_handle_valid(place: &Place) {
    let name = place.location("wrong-type");
    let array = create(place, &name);
    let handle = array.handle().unwrap();
    drop(array);
    let error = place.open_options().attach::<f64, Ix1>(&handle).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::DTypeMismatch { .. }), "{error}");
    let error = place.open_options().attach_reader::<u32, Ix2>(&handle).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::ShapeMismatch { .. }), "{error}");
    assert_eq!(place.inspect(&name).unwrap().in_flight, 1);
    assert_eq!(attach(place, &handle).unwrap().read().unwrap().sum(), 4);
}

fn failed_attach_leaves_the_handle_valid(place: &Place) {
    let name = place.location("failure");
    let array = create(place, &name);
    let handle = array.handle().unwrap();
    for failing in ["open", "probe"] {
        let backend = place.meddling(move |operation, _| {
            let fails = ErrorKind::TooManyOpenFiles { limit: 0 }.at("test");
            if operation == failing { Err(fails) } else { Ok(()) }
        });
        let error = place.open_options().directory(backend).attach::<u32, Ix1>(&handle).unwrap_err();
        assert!(matches!(error.kind, ErrorKind::TooManyOpenFiles { .. }), "{error}");
        assert_eq!((array.refcount(), array.in_flight()), (1, 1), "{failing}");
    }
    let guard = array.write().unwrap();
    let reader = place.open_options().timeout(Duration::ZERO).attach_reader::<u32, Ix1>(&handle);
    assert_eq!(reader.unwrap_err().kind, ErrorKind::WouldBlock);
    drop(guard);
    assert!(attach(place, &handle).is_ok());
}

fn expired_handles_make_room_at_the_limit(place: &Place) {
    let name = place.location("handles");
    let array = create(place, &name);
    let handles: Vec<Handle> = (0..128).map(|_| array.handle().unwrap()).collect();
    let error = array.handle().unwrap_err();
    assert!(matches!(error.kind, ErrorKind::TooManyHandles { limit: 128, doing: "in flight", .. }), "{error}");
    assert_eq!(place.inspect(&name).unwrap().in_flight, 128);
    drop(array);
    let array = attach(place, &handles[127]).unwrap();
    let brief = array.handle_with(brief()).unwrap();
    std::thread::sleep(2 * SHORT);
    let another = array.handle().unwrap();
    assert!(array.handle().is_err());
    assert_eq!(attach(place, &brief).unwrap_err().kind, ErrorKind::HandleSpent, "it made room");
    for handle in &handles[..127] {
        assert!(attach(place, handle).is_ok());
    }
    assert_eq!(array.in_flight(), 1);
    assert!(attach(place, &another).is_ok());
    drop(array);
    assert!(!place.has(&name));
}

fn handle_never_attaches_another_array_of_the_name(place: &Place) {
    let name = place.location("recreated");
    let old = create(place, &name);
    let handle = old.handle().unwrap();
    let replace = || place.options().mode(CreationMode::Replace);
    let new = replace().create_counted::<u32, _>(name.location(), 4).unwrap();
    assert_eq!(attach(place, &handle).unwrap_err().kind, ErrorKind::HandleSpent);
    assert_eq!(new.refcount(), 1);
    drop(new);
    assert!(attach(place, &handle).unwrap_err().is_not_found());
    let new = place.options().create_counted::<f32, _>(name.location(), (2, 2)).unwrap();
    assert_eq!(attach(place, &handle).unwrap_err().kind, ErrorKind::HandleSpent, "whatever its type");
    drop(new);
    place.options().create::<u8, _>(name.location(), 3).unwrap();
    let error = attach(place, &handle).unwrap_err();
    assert_eq!(error.kind, ErrorKind::HandleSpent, "{error}");
    let mut child = Holder::start(place, &name);
    assert_eq!(child.ask(&format!("attach {handle}")), "HandleSpent");
    assert!(place.backend.unlink(name.location()).unwrap());
    old.close().unwrap();
}

fn a_handle_can_attach_in_every_way(place: &Place) {
    let name = place.location("every-way");
    let array = create(place, &name);
    let handle = || array.handle().unwrap();
    let readonly = place.open_options().access(Access::Read).attach::<u32, Ix1>(&handle()).unwrap();
    assert!(readonly.is_readonly() && readonly.write().is_err());
    let reader = place.open_options().attach_reader::<u32, Ix1>(&handle()).unwrap();
    assert_eq!(array.try_write().unwrap_err().kind, ErrorKind::WouldBlock);
    assert_eq!((reader.view().sum(), array.refcount(), array.in_flight()), (4, 3, 0));
    drop(reader);
    // Without options the handle finds its directory by itself.
    let found = handle().attach::<u32, Ix1>().unwrap();
    found.write().unwrap().fill(2);
    assert_eq!(readonly.read().unwrap().sum(), 8);
    let keeping = place.open_options().keep_fd(true).attach::<u32, Ix1>(&handle()).unwrap();
    assert!(array.unlink().unwrap());
    if !cfg!(target_os = "macos") {
        assert_eq!(keeping.read().unwrap().sum(), 8);
    }
    assert!(attach(place, &array.handle().unwrap()).unwrap_err().is_not_found());
}

fn forged_or_malformed_handles_are_refused(place: &Place) {
    let name = place.location("no-handle");
    let array = create(place, &name);
    let text = array.handle().unwrap().to_string();
    let mut parts: Vec<&str> = text.split(':').collect();
    parts[1] = "00000000000000ff";
    let forged: Handle = parts.join(":").parse().unwrap();
    assert_eq!(attach(place, &forged).unwrap_err().kind, ErrorKind::HandleSpent);
    for wrong in ["", "ndshm1", &text[1..], &format!("{text}:"), &text.replace(":0", ":x"), &text.replace('%', "%%")] {
        if *wrong != text {
            let error = wrong.parse::<Handle>().unwrap_err();
            assert!(matches!(error.kind, ErrorKind::InvalidSetting { setting: "the handle", .. }), "{wrong}: {error}");
        }
    }
    assert_eq!(array.refcount(), 1);
}

fn each_renewal_admits_one_process_more(place: &Place) {
    let name = place.location("renewed");
    let mut sender = Holder::with(place, &name, "create 4");
    let handle: Handle = sender.ask("handle 5000").parse().unwrap();
    for _ in 0..2 {
        assert!(handle.renew(Duration::from_secs(60)).unwrap());
    }
    let inspection = place.inspect(&name).unwrap();
    assert_eq!((inspection.refcount, inspection.in_flight), (1, 1), "one ticket for three receivers");
    // The renewed handle outlives its killed sender.
    sender.0.kill();
    let mut receivers = [(); 3].map(|()| Holder::with(place, &name, &format!("attach {handle}")));
    assert_eq!(Holder::start(place, &name).ask(&format!("attach {handle}")), "HandleSpent");
    assert!(!handle.renew(SHORT).unwrap(), "a handle that was used up is gone");
    for receiver in &mut receivers {
        assert_eq!(receiver.ask("drop"), "ok");
    }
    assert!(!place.has(&name), "the last receiver removes the name");
    assert!(!handle.renew(SHORT).unwrap());

    // A reusable handle: only its time changes.
    let array = create(place, &name);
    assert!(!array.renew(&handle, SHORT), "a handle of another array is not renewed");
    let once = array.handle().unwrap();
    assert!(array.renew(&once, Duration::from_secs(60)));
    assert!(attach(place, &once).is_ok() && attach(place, &once).is_ok() && attach(place, &once).is_err());
    let reusable = array.handle_with(HandleOptions::new().reusable().grace(Duration::from_secs(1))).unwrap();
    assert!(reusable.renew(Duration::from_secs(2)).unwrap());
    assert_eq!(array.in_flight(), 1);
    eventually("the longer grace time ends", || array.in_flight() == 0);
    assert!(attach(place, &reusable).is_ok() && attach(place, &reusable).is_ok());
    assert!(!reusable.renew(SHORT).unwrap(), "an expired handle is not renewed");
}

fn renewal_never_shortens_the_time_of_another_process(place: &Place) {
    let name = place.location("renew");
    let mut holder = Holder::with(place, &name, "create 4");
    let handle: Handle = holder.ask("handle 60000").parse().unwrap();
    assert!(handle.renew(SHORT).unwrap());
    let left = place.inspect(&name).unwrap().protected_for;
    assert!(left > SHORT && left <= Duration::from_secs(60), "{left:?}");
}

fn expiring_shortens_the_time_of_another_process(place: &Place) {
    let name = place.location("expire");
    let mut holder = Holder::with(place, &name, "create 4");
    let handle: Handle = holder.ask("handle 60000").parse().unwrap();
    assert!(handle.expire(Duration::from_secs(30)).unwrap());
    let left = place.inspect(&name).unwrap().protected_for;
    assert!(left <= Duration::from_secs(30), "{left:?}");
    drop(attach(place, &handle).unwrap());
    assert!(!handle.expire(SHORT).unwrap(), "it was used up");
}
