//! Processes with another clock than the others, or that cannot tell which boot it is: in a time namespace, without
//! parts of /proc.

use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::counted::{HandleOptions, Reclaim};
use ndarray_shm::render::RenderOptions;
use ndarray_shm::{CreateOptions, Directory, NextClaim, OpenOptions, RenderBuffer};

use super::sandbox;
use crate::support::child::{Child, Role, hear, say};
use crate::support::{Place, Test, backend_of_child, eventually};
use crate::tests;

const DAY: i64 = 24 * 3600;
const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

/// A file system at /proc that has only the processes, as systemd's `ProcSubset=pid` makes it. Where that is refused,
/// the number of the boot alone is hidden.
const WITHOUT_BOOT: &str =
    "mount -t proc -o subset=pid proc /proc 2>/dev/null || mount --bind /dev/null /proc/sys/kernel/random/boot_id";

/// Without /proc a process cannot tell its time namespace.
const WITHOUT_PROC: &str = "mount -t tmpfs none /proc";

pub fn trials(place: &Place) -> Vec<Trial> {
    let clocks: &[(&str, Test)] = tests![
        handle_protects_across_time_namespaces,
        handle_by_an_unknown_clock_protects_for_a_week,
        process_with_an_unknown_clock_respects_handles,
    ];
    let clocks = sandbox::with_time_namespaces(place.trials("linux", "namespaces", clocks));
    let boots: &[(&str, Test)] = tests![
        handle_protects_where_the_boot_is_unknown,
        idle_renderbuffer_outlives_processes_that_do_not_know_the_boot,
        renderbuffer_of_an_unknown_boot_is_kept,
    ];
    let boots = sandbox::with_private_mounts(place.trials("linux", "namespaces", boots));
    clocks.into_iter().chain(boots).collect()
}

pub const ROLES: &[(&str, Role)] = &[("other-world", other_world)];

/// A child that does what the lines of its parent say, until that ends.
fn other_world(_arguments: &[String]) {
    let backend = backend_of_child();
    say("ready");
    loop {
        let line = hear();
        let place = &backend;
        say(match line.split_once(' ').unwrap_or((&line, "")) {
            ("send", name) => send(&CreateOptions::new().directory(place.clone()), name),
            ("look", _) => look(place),
            ("leave", name) => {
                let attach = OpenOptions::new().directory(place.clone());
                let attached = attach.open_counted::<u8, Ix1>(name);
                attached.map_or_else(|error| error.to_string(), |array| format!("{} in flight", array.in_flight()))
            }
            ("paint", name) => paint(RenderOptions::new().directory(place.clone()), name),
            _ => panic!("{line}"),
        });
    }
}

/// Creates an array, and returns a handle that alone protects it, for a minute.
fn send(options: &CreateOptions, name: &str) -> String {
    let array = options.create_counted::<u8, _>(name, 4).unwrap();
    array.handle_with(HandleOptions::new().grace(Duration::from_secs(60))).unwrap().to_string()
}

/// Reclaims, and says what was removed, and for how many minutes the rest is protected.
fn look(place: &Directory) -> String {
    let found = Reclaim::new().run(place).unwrap();
    assert!(found.failed.is_empty(), "{:?}", found.failed);
    let minutes = found.next.map_or(0, |next| next.as_secs().div_ceil(60));
    format!("{} removed, {} in flight for {minutes} min", found.removed.len(), found.in_flight)
}

/// Joins a renderbuffer of ten chunks and paints one, and says how many were painted before.
fn paint(options: RenderOptions, name: &str) -> String {
    let joined: ndarray_shm::Result<RenderBuffer<u8, Ix1>> = options.create(name, 100, 10, "namespaces");
    let painted = |buffer: RenderBuffer<u8, Ix1>| {
        let done = buffer.progress().done;
        let NextClaim::Chunk(chunk) = buffer.claim_next().unwrap() else { panic!("one is free") };
        chunk.commit().unwrap();
        format!("{done} painted")
    };
    joined.map_or_else(|error| error.to_string(), painted)
}

fn in_another_time(place: &Place, seconds: i64, script: &str) -> Child {
    let mut child = Child::spawn(sandbox::with_time(place, seconds, script, "other-world", &[]));
    child.expect("ready");
    child
}

fn without_boot(place: &Place) -> Child {
    let mut child = Child::spawn(sandbox::with_mounts(place, WITHOUT_BOOT, "other-world", &[]));
    child.expect("ready");
    child
}

/// Sends handles of a minute between this process and a child. Both see the minute.
fn each_sees_the_minute(place: &Place, child: &mut Child) {
    let minute = Duration::from_secs(60);
    let name = place.location("from-child");
    assert!(child.ask(format!("send {}", name.as_str())).starts_with("ndshm1:"));
    let seen = place.reclaim();
    assert_eq!((seen.removed.len(), seen.in_flight), (0, 1));
    assert!(seen.next.is_some_and(|next| next <= minute), "{:?}", seen.next);
    drop(place.open_options().open_counted::<u8, Ix1>(name.location()).unwrap());
    assert!(place.has(&name), "the handle protects it from a process that leaves");
    drop(name);

    let name = place.location("to-child");
    send(&place.options(), name.as_str());
    // A process that another test is just spawning may have a copy of the mapping, and so of the lease, until its
    // program runs.
    eventually("the handle alone protects it", || child.ask("look") == "0 removed, 1 in flight for 1 min");
    assert_eq!(child.ask(format!("leave {}", name.as_str())), "1 in flight");
    let found = place.inspect(&name).unwrap();
    assert!(found.in_flight == 1 && found.protected_for <= minute, "{found:?}");
}

fn handle_protects_across_time_namespaces(place: &Place) {
    for seconds in [3600, 30 * DAY] {
        let place = &place.private();
        each_sees_the_minute(place, &mut in_another_time(place, seconds, ""));
    }
}

fn handle_protects_where_the_boot_is_unknown(place: &Place) {
    let place = &place.private();
    each_sees_the_minute(place, &mut without_boot(place));
}

fn handle_by_an_unknown_clock_protects_for_a_week(place: &Place) {
    let place = &place.private();
    let name = place.location("unknown-clock");
    let mut child = in_another_time(place, 30 * DAY, WITHOUT_PROC);
    assert!(child.ask(format!("send {}", name.as_str())).starts_with("ndshm1:"));
    assert_eq!(child.ask("look"), "0 removed, 1 in flight for 10080 min");
    // A dry run changes nothing, so the week has not begun.
    let dry = || Reclaim::new().dry_run(true).run(&place.backend).unwrap().next.unwrap();
    assert_eq!((dry(), dry()), (WEEK, WEEK));
    // A process that knows the clock has seen it: now the week passes.
    let first = place.reclaim().next.unwrap();
    assert!(first <= WEEK && first + Duration::from_secs(3600) > WEEK, "{first:?}");
    assert!(dry() < first);
    let found = place.inspect(&name).unwrap();
    assert!(found.in_flight == 1 && found.protected_for < first, "{found:?}");
    assert!(Reclaim::new().in_flight(true).run(&place.backend).unwrap().removed.len() == 1);
}

fn process_with_an_unknown_clock_respects_handles(place: &Place) {
    let place = &place.private();
    let name = place.location("known-clock");
    send(&place.options(), name.as_str());
    let mut child = in_another_time(place, 30 * DAY, WITHOUT_PROC);
    assert_eq!(child.ask("look"), "0 removed, 1 in flight for 10080 min");
    assert_eq!(child.ask(format!("leave {}", name.as_str())), "1 in flight");
    assert!(
        place.inspect(&name).unwrap().protected_for <= Duration::from_secs(60),
        "the child has changed no deadline"
    );
}

/// Whether files here end with the boot. Then a renderbuffer is never older.
fn is_in_memory(place: &Place) -> bool {
    rustix::fs::statfs(place.directory()).unwrap().f_type as u32 == 0x0102_1994
}

/// What a process says that joins an idle buffer without knowing whether it is of this boot.
fn expect_kept(place: &Place, said: &str, done: usize) {
    if is_in_memory(place) {
        assert_eq!(said, format!("{done} painted"));
    } else {
        let advice = ["cannot tell", "/proc/sys/kernel/random/boot_id", "discard"];
        assert!(advice.iter().all(|words| said.contains(words)), "{said}");
    }
}

fn idle_renderbuffer_outlives_processes_that_do_not_know_the_boot(place: &Place) {
    let name = place.location("known-boot");
    assert_eq!(paint(place.render_options(), name.as_str()), "0 painted");
    let mut child = without_boot(place);
    expect_kept(place, &child.ask(format!("paint {}", name.as_str())), 1);
    // While a process is attached, the buffer is of this boot for certain.
    let buffer: RenderBuffer<u8, Ix1> = place.render_options().open(name.location()).unwrap();
    let before = buffer.progress().done;
    assert_eq!(before, if is_in_memory(place) { 2 } else { 1 });
    assert_eq!(child.ask(format!("paint {}", name.as_str())), format!("{before} painted"));
    buffer.discard().unwrap();
}

fn renderbuffer_of_an_unknown_boot_is_kept(place: &Place) {
    let name = place.location("unknown-boot");
    assert_eq!(without_boot(place).ask(format!("paint {}", name.as_str())), "0 painted");
    expect_kept(place, &without_boot(place).ask(format!("paint {}", name.as_str())), 1);
    expect_kept(place, &paint(place.render_options(), name.as_str()), 2);
    assert!(ndarray_shm::render::discard(&place.backend, name.location()).unwrap());
}
