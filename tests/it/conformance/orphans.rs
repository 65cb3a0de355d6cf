//! Orphans: the next process removes arrays whose holders were all killed, and nothing else.

use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::backend::EntryKind;
use ndarray_shm::counted::{Handle, Reclaim, Reclaimed, Removed, RemovedKind};
use ndarray_shm::{CreateOptions, CreationMode, ErrorKind};

use super::holder::Holder;
use crate::support::child::{Child, Role, hear, say};
use crate::support::counted::{create, open};
use crate::support::files::age;
use crate::support::{Name, Place, backend_of_child, eventually, meddling};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "orphans",
        tests![
            reclaim_removes_the_orphan_and_nothing_else,
            opening_an_orphan_revives_it,
            last_survivor_keeps_the_data_and_removes_the_name,
            a_stopped_holder_is_alive,
            handle_outlives_its_killed_sender_for_its_grace,
            next_process_removes_name_of_killed_owner,
            array_can_be_opened_after_its_reclaimer_dies,
            reclaim_can_spare_young_orphans,
            nothing_but_orphans_is_ever_reclaimed,
            only_old_drafts_of_dead_processes_are_reclaimed,
            arrays_in_flight_are_removed_on_request,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[("hang-before-unlink", hang_before_unlink), ("hang-reclaiming", hang_reclaiming)];

// A handle that leaves while a killed one is still counted asks the kernel whether any holder lives. This process
// spawns other processes all the time, and each briefly has copies of its descriptors. So in these tests the handles
// that leave are children's.

/// Makes an orphan: an array with four elements of this value, whose only holder was killed.
fn orphan(place: &Place, name: &Name, value: u32) {
    let mut child = Holder::with(place, name, "create 4");
    assert_eq!(child.ask(&format!("fill {value}")), "ok");
    child.0.kill();
    eventually("the killed holder's lease has ended", || !place.inspect(name).unwrap().is_attached);
}

fn names(removed: &[Removed]) -> Vec<&str> {
    removed.iter().map(|removed| removed.name.as_str()).collect()
}

fn dry_run(place: &Place) -> Reclaimed {
    Reclaim::new().dry_run(true).run(&place.backend).unwrap()
}

fn reclaim_removes_the_orphan_and_nothing_else(place: &Place) {
    let place = &place.private();
    let [name, used, kept, sent] = ["orphan", "used", "kept", "sent"].map(|label| place.location(label));
    orphan(place, &name, 1);
    let living = Holder::with(place, &used, "create 4");
    let mut keeping = Holder::with(place, &kept, "create 4");
    assert_eq!(keeping.ask("keep"), "ok");
    let mut sending = Holder::with(place, &sent, "create 4");
    let handle: Handle = sending.ask("handle 60000").parse().unwrap();
    [keeping, sending].iter_mut().for_each(|holder| holder.0.kill());
    eventually("both are gone", || [&kept, &sent].iter().all(|name| !place.inspect(name).unwrap().is_attached));

    let inspection = place.inspect(&name).unwrap();
    assert!(inspection.is_orphaned() && inspection.refcount == 1, "{inspection:?}");
    let check = |reclaimed: &Reclaimed| {
        assert_eq!(names(&reclaimed.removed), [name.as_str()]);
        assert_eq!((reclaimed.removed[0].kind, reclaimed.removed[0].bytes), (RemovedKind::CountedArray, 8192));
        assert_eq!((reclaimed.attached, reclaimed.kept, reclaimed.in_flight), (1, 1, 1));
        assert!(reclaimed.next.unwrap() > Duration::from_secs(30) && reclaimed.failed.is_empty());
    };
    check(&dry_run(place));
    assert_eq!(place.inspect(&name).unwrap(), inspection, "a dry run changes nothing");
    check(&place.reclaim());
    assert!(open(place, &name).unwrap_err().is_not_found());
    assert!([&used, &kept, &sent].iter().all(|name| place.has(name)));
    assert!(place.reclaim().removed.is_empty());
    drop(living);
    let mut receiver = Holder::with(place, &sent, &format!("attach {handle}"));
    assert_eq!(receiver.ask("close"), "ok");
    assert_eq!(place.reclaim().removed.len(), 1, "the killed holder's; the receiver has removed the other");
    assert!(!place.has(&used) && !place.has(&sent) && place.has(&kept));
}

fn opening_an_orphan_revives_it(place: &Place) {
    let place = &place.private();
    let name = place.location("revived");
    orphan(place, &name, 5);
    let mut opener = Holder::with(place, &name, "open");
    assert_eq!((opener.ask("sum"), opener.ask("count")), ("20".into(), "2".into()));
    assert_eq!(place.reclaim().attached, 1);
    assert_eq!(opener.ask("drop"), "ok");
    assert!(!place.has(&name), "the last handle removes it, whatever the count says");
    orphan(place, &name, 6);
    let created = place.options().create_counted::<u32, _>(name.location(), 4).unwrap();
    assert_eq!((created.read().unwrap().sum(), created.refcount()), (0, 1), "an orphan does not block its name");
    drop(created);
    orphan(place, &name, 7);
    let taken_back = place.options().mode(CreationMode::Replace).create_counted::<u32, _>(name.location(), 4).unwrap();
    assert_eq!((taken_back.read().unwrap().sum(), taken_back.refcount()), (0, 1));
}

fn last_survivor_keeps_the_data_and_removes_the_name(place: &Place) {
    let place = &place.private();
    let name = place.location("survivor");
    let mut holders = ["create 4", "open", "readonly", "reader"].map(|first| Holder::with(place, &name, first));
    let array = open(place, &name).unwrap();
    for holder in &mut holders {
        holder.0.kill();
    }
    assert_eq!(array.refcount(), 5);
    assert!(place.reclaim().removed.is_empty());
    array.write().unwrap().fill(4);
    let mut other = Holder::with(place, &name, "open");
    drop(array);
    assert_eq!((other.ask("sum"), other.ask("count"), other.ask("close")), ("16".into(), "5".into(), "ok".into()));
    assert!(!place.has(&name));
    // A survivor in another process does the same.
    let mut creator = Holder::with(place, &name, "create 4");
    let mut survivor = Holder::with(place, &name, "open");
    creator.0.kill();
    assert_eq!([survivor.ask("fill 1"), survivor.ask("sum"), survivor.ask("drop")], ["ok", "4", "ok"]);
    assert!(!place.has(&name));
}

fn a_stopped_holder_is_alive(place: &Place) {
    let place = &place.private();
    let name = place.location("stopped");
    let mut child = Holder::with(place, &name, "create 4");
    let array = open(place, &name).unwrap();
    child.0.stop();
    array.close().unwrap();
    for _ in 0..3 {
        let reclaimed = place.reclaim();
        assert_eq!((reclaimed.removed.len(), reclaimed.attached), (0, 1));
        std::thread::sleep(Duration::from_millis(20));
    }
    let inspection = place.inspect(&name).unwrap();
    assert!(inspection.is_attached && !inspection.is_orphaned() && inspection.refcount == 1);
    child.0.kill();
    eventually("it is reclaimed", || !place.reclaim().removed.is_empty());
    assert!(!place.has(&name));
}

fn handle_outlives_its_killed_sender_for_its_grace(place: &Place) {
    let place = &place.private();
    let name = place.location("in-flight");
    let mut sender = Holder::with(place, &name, "create 4");
    assert_eq!(sender.ask("fill 3"), "ok");
    let handle: Handle = sender.ask("handle 60000").parse().unwrap();
    sender.0.kill();
    eventually("the killed sender's lease has ended", || !place.inspect(&name).unwrap().is_attached);
    let reclaimed = place.reclaim();
    assert_eq!((reclaimed.removed.len(), reclaimed.in_flight), (0, 1));
    let mut receiver = Holder::with(place, &name, &format!("attach {handle}"));
    assert_eq!((receiver.ask("sum"), receiver.ask("close")), ("12".into(), "ok".into()));
    assert!(!place.has(&name), "no process has it, though the killed one was counted");

    let mut sender = Holder::with(place, &name, "create 4");
    let handle: Handle = sender.ask("handle 200").parse().unwrap();
    sender.0.kill();
    std::thread::sleep(Duration::from_millis(220));
    eventually("it is reclaimed after its grace time", || names(&place.reclaim().removed) == [name.as_str()]);
    assert!(place.open_options().attach::<u32, Ix1>(&handle).unwrap_err().is_not_found());
}

/// A child that creates an array, drops it, and hangs before it removes the name.
fn hang_before_unlink(arguments: &[String]) {
    let backend = meddling(&backend_of_child(), |operation, _| {
        if operation == "unlink" {
            say("unlinking");
            hear();
        }
        Ok(())
    });
    let options = CreateOptions::new().directory(backend);
    drop(options.create_counted::<u32, _>(arguments[0].as_str(), 4).unwrap());
    say("unlinked");
}

fn next_process_removes_name_of_killed_owner(place: &Place) {
    let place = &place.private();
    let name = place.location("unlinking");
    let hanging = || {
        let mut child = Child::start(place, "hang-before-unlink", &[name.as_str()]);
        child.expect("unlinking");
        child
    };
    let mut child = hanging();
    let inspection = place.inspect(&name).unwrap();
    assert_eq!((inspection.refcount, inspection.is_attached), (0, true));
    // The array is dead even while the child hangs: it cannot be opened, and its name is free.
    assert!(open(place, &name).unwrap_err().is_not_found());
    let array = place.options().create_counted::<u32, _>(name.location(), 4).unwrap();
    child.tell("go on");
    child.expect("unlinked");
    assert_eq!(place.inspect(&name).unwrap().refcount, 1, "the new array was not removed");
    drop(array);

    hanging().kill();
    assert!(place.has(&name));
    assert!(open(place, &name).unwrap_err().is_not_found());
    assert!(!place.has(&name), "the attempt to attach has removed it");

    hanging().kill();
    eventually("it is reclaimed", || names(&place.reclaim().removed) == [name.as_str()]);
    hanging().kill();
    let array = place.options().mode(CreationMode::OpenOrCreate).create_counted::<u32, _>(name.location(), 4).unwrap();
    assert_eq!(array.refcount(), 1);
}

/// A child that hangs just before it removes an orphan.
fn hang_reclaiming(_: &[String]) {
    let backend = meddling(&backend_of_child(), |operation, _| {
        if operation == "unlink" {
            say("reclaiming");
            hear();
        }
        Ok(())
    });
    Reclaim::new().run(&backend).unwrap();
}

fn array_can_be_opened_after_its_reclaimer_dies(place: &Place) {
    let place = &place.private();
    let name = place.location("half-reclaimed");
    orphan(place, &name, 2);
    let mut reclaimer = Child::start(place, "hang-reclaiming", &[]);
    reclaimer.expect("reclaiming");
    assert!(place.reclaim().removed.is_empty(), "another process is reclaiming it");
    std::thread::scope(|scope| {
        let mut reclaimer = reclaimer; // a failing assertion kills it before the scope waits for its threads
        let opener = scope.spawn(|| open(place, &name).map(|array| array.read().unwrap().sum()));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!opener.is_finished(), "attaching waits while the array is being reclaimed");
        reclaimer.kill();
        assert_eq!(opener.join().unwrap().unwrap(), 8);
    });
}

fn reclaim_can_spare_young_orphans(place: &Place) {
    let place = &place.private();
    let name = place.location("young");
    orphan(place, &name, 1);
    let reclaim = |age| Reclaim::new().older_than(Duration::from_secs(age)).run(&place.backend).unwrap();
    assert!(reclaim(3600).removed.is_empty());
    age(&place.path(&name), 1800);
    assert!(reclaim(3600).removed.is_empty());
    age(&place.path(&name), 4000);
    assert_eq!(names(&reclaim(3600).removed), [name.as_str()]);
}

fn nothing_but_orphans_is_ever_reclaimed(place: &Place) {
    let place = &place.private();
    let [plain, page, pages, buffer] = ["plain", "page", "pages", "buffer"].map(|label| place.location(label));
    place.options().create::<u8, _>(plain.location(), 5).unwrap();
    place.options().create::<u8, _>(page.location(), 4096).unwrap();
    place.options().create_with::<u8, _>(pages.location(), 8192, |mut view| view.fill(0x89)).unwrap();
    drop(place.render_options().create::<u8, _>(buffer.location(), 4096, 64, "orphans").unwrap());
    let foreign = |label: &str, bytes: &[u8]| {
        let name = place.location(label);
        std::fs::write(place.path(&name), bytes).unwrap();
        name
    };
    let noise: Vec<u8> = (0..8192u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let _foreign = [foreign("noise", &noise), foreign("text", &[b'\n'; 4096]), foreign("nothing", b"")];
    // Damaged trailers of the library.
    let whole = place.location("whole");
    orphan(place, &whole, 1);
    let bytes = std::fs::read(place.path(&whole)).unwrap();
    let spoilt = |label: &str, at: usize| {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        foreign(label, &bytes)
    };
    let damaged = [("boot", 4096 + 3456), ("record", 4096 + 3500), ("footer", 8192 - 40)];
    let damaged = damaged.map(|(label, at)| spoilt(label, at));
    let _cut = [
        foreign("cut", &bytes[..8000]),
        foreign("cut-to-a-page", &bytes[..4096]),
        foreign("longer", &[&bytes[..], &[0; 4096]].concat()),
        foreign("only-the-trailer", &bytes[4096..]),
        spoilt("magic", 8192 - 64),
    ];
    let _ = place.backend.unlink(whole.location()).unwrap();
    for name in place.backend.list().unwrap().into_iter().filter(|entry| entry.kind == EntryKind::Array) {
        age(&place.directory().join(name.name), 100_000);
    }
    let before = place.everything();
    for reclaimed in [dry_run(place), place.reclaim()] {
        assert!(reclaimed.removed.is_empty(), "{reclaimed:?}");
        assert_eq!((reclaimed.attached, reclaimed.kept, reclaimed.in_flight), (0, 0, 0));
        let failed: Vec<&str> = reclaimed.failed.iter().map(|(name, _)| name.as_str()).collect();
        assert!(damaged.iter().all(|name| failed.contains(&name.as_str())), "{failed:?}");
        assert!(
            reclaimed.failed.iter().all(|(_, error)| matches!(error.kind, ErrorKind::Trailer { .. })),
            "{reclaimed:?}"
        );
        assert_eq!(reclaimed.failed.len(), 4, "the damaged ones, and the trailer without its array: {reclaimed:?}");
    }
    assert_eq!(place.everything(), before);
}

fn only_old_drafts_of_dead_processes_are_reclaimed(place: &Place) {
    let place = &place.private();
    let draft = |label: &str, seconds| {
        let path = place.directory().join(format!(".ndshm-draft-{label}"));
        std::fs::write(&path, [0; 100]).unwrap();
        age(&path, seconds);
        path
    };
    let (old, young) = (draft("old", 61), draft("young", 50));
    let expected = [".ndshm-draft-old"];
    let reclaimed = dry_run(place);
    assert_eq!((names(&reclaimed.removed).as_slice(), reclaimed.removed[0].kind), (&expected[..], RemovedKind::Draft));
    assert!(old.exists());
    assert_eq!(names(&place.reclaim().removed), expected);
    assert!(!old.exists() && young.exists());
    std::fs::remove_file(young).unwrap();
    if !place.has_hidden_drafts() {
        return;
    }
    // The draft of a living creator that is only slow; the role is in crashes.rs.
    let name = place.location("slow");
    let mut child = Child::start(place, "fill-slowly", &[name.as_str()]);
    child.expect("half-way");
    let entries = place.backend.list().unwrap();
    let hidden = entries.iter().find(|entry| entry.kind == EntryKind::Draft).expect("a draft").name.clone();
    let path = place.directory().join(&hidden);
    age(&path, 3600);
    child.stop();
    assert!(place.reclaim().removed.is_empty());
    child.kill();
    eventually("its creator's lease has ended", || names(&dry_run(place).removed) == [hidden.as_str()]);
    assert_eq!(names(&place.reclaim().removed), [hidden.as_str()]);
    assert!(!path.exists());
}

fn arrays_in_flight_are_removed_on_request(place: &Place) {
    let place = &place.private();
    let name = place.location("in-flight");
    let handle = create(place, &name).handle().unwrap();
    let used = place.location("used");
    let array = create(place, &used);
    let _sent = array.handle().unwrap();
    let reclaim = Reclaim::new().in_flight(true);
    assert_eq!(place.reclaim().removed.len(), 0);
    // Until it runs its program, a child that another test starts has copies of all leases.
    eventually("its lease has ended", || reclaim.dry_run(true).run(&place.backend).unwrap().removed.len() == 1);
    let removed = reclaim.run(&place.backend).unwrap().removed;
    assert_eq!(removed.iter().map(|removed| removed.name.as_str()).collect::<Vec<_>>(), [name.as_str()]);
    assert!(!place.has(&name) && place.has(&used), "an array in use stays");
    assert!(place.open_options().attach::<u32, Ix1>(&handle).unwrap_err().is_not_found());
}
