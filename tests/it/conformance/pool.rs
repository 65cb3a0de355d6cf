//! Pools: memory comes back, nobody is given what another can still reach, and nothing is left behind.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use libtest_mimic::Trial;
use ndarray::{Ix1, Ix2, ShapeBuilder};
use ndarray_shm::{
    Access, ArrayReader, ArrayWriter, AttachOptions, Error, Location, NextClaim, Order, Pool, RefcountedArray,
    SharedArray,
    counted::SharingStrategy,
    pool::{PoolOptions, PooledArray},
    render::{self, RenderOptions},
};

use super::holder::variant;
use crate::support::child::{Child, Role, hear, say};
use crate::support::machine::open_files;
use crate::support::{Name, Place, backend_of_child, eventually};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "pool",
        tests![
            the_same_memory_comes_back,
            zeros_are_had_by_asking,
            a_dropped_array_has_no_name_and_its_readers_keep_the_bytes,
            memory_that_others_have_waits_until_the_last_has_gone,
            a_stopped_process_is_waited_for_and_a_killed_one_is_not,
            a_writer_that_is_held_keeps_its_memory,
            cells_that_are_locked_keep_the_memory_without_a_lease,
            who_opened_the_old_name_never_gets_the_next_array,
            who_opened_the_old_name_is_not_kept_waiting_by_a_draft,
            who_opened_the_old_name_gets_what_has_it_by_then,
            a_refused_name_gives_the_draft_back_and_nobody_got_in,
            a_file_is_exactly_as_long_as_its_array,
            capacity_number_and_age_are_kept,
            what_does_not_fit_makes_idle_memory_go,
            any_array_can_be_put,
            what_cannot_be_put_is_given_back,
            memory_with_a_second_name_is_not_used_again,
            memory_whose_hidden_name_was_removed_is_not_used_again,
            what_leaves_the_pool_is_like_any_other,
            longer_memory_becomes_a_counted_array_like_any_other,
            threads_share_a_pool,
            a_buffer_is_painted_into_the_memory_of_the_last,
            a_painter_in_another_process_keeps_the_memory,
            a_buffer_begun_anew_in_the_same_memory_is_not_discarded_for_the_old_one,
            a_thousand_rounds_leave_nothing,
            a_killed_owner_leaves_hidden_files_that_are_reclaimed,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[
    ("pool-attacher", attacher),
    ("pool-writer", writer),
    ("pool-rounds", rounds),
    ("pool-owner", owner),
    ("pool-painter", painter),
    ("pool-counted", counted),
];

const LENGTH: usize = 5000;

/// Every file of the directory.
fn everything(place: &Place) -> Vec<String> {
    place.backend.list().unwrap().into_iter().map(|entry| entry.name).collect()
}

/// Makes every file of the directory look as if it was last written so long ago.
fn age(place: &Place, seconds: u64) {
    for file in everything(place) {
        let file = std::fs::File::options().write(true).open(place.directory().join(file)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
    }
}

fn pool(place: &Place) -> Pool {
    place.pool_options().create().unwrap()
}

/// An array of the pool with this value everywhere.
fn publish(pool: &Pool, name: &Name, value: u32) -> PooledArray<u32, Ix1> {
    let mut draft = pool.take::<u32, _>(LENGTH).unwrap();
    draft.view_mut().fill(value);
    draft.publish(name.location()).unwrap()
}

/// How many arrays are idle, in limbo and lent.
fn counts(pool: &Pool) -> (usize, usize, usize) {
    let stats = pool.stats();
    (stats.idle.arrays, stats.draining.arrays, stats.lent.arrays)
}

/// One where memory is used again, else none.
fn one() -> usize {
    usize::from(Place::RECYCLES)
}

/// What stands in the first element of a draft whose memory holds `used`, or of a new one.
fn expected(used: u32) -> u32 {
    if Place::RECYCLES { used } else { 0 }
}

fn the_same_memory_comes_back(place: &Place) {
    let name = place.location("again");
    let pool = pool(place);
    let mut draft = pool.take::<u32, _>(LENGTH).unwrap();
    assert!(!draft.is_recycled() && draft.view().iter().all(|value| *value == 0));
    draft.view_mut().fill(7);
    assert_eq!(counts(&pool), (0, 0, 1));
    drop(draft);
    assert_eq!(counts(&pool), (one(), 0, 0));
    for round in 0..4 {
        let mut draft = pool.take::<u32, _>((50, 100).f()).unwrap();
        assert_eq!((draft.shape(), draft.order()), (&[50, 100][..], Order::F));
        assert_eq!(draft.is_recycled(), Place::RECYCLES);
        assert!(draft.view().iter().all(|value| *value == expected(7 + round)), "round {round}");
        draft.view_mut().fill(8 + round);
        let array = draft.publish(name.location()).unwrap();
        assert!(array.read().unwrap().iter().all(|value| *value == 8 + round));
        array.write().unwrap()[[0, 0]] = 8 + round;
        assert_eq!(counts(&pool), (0, 0, 1));
    }
    let stats = pool.stats();
    let (hits, misses) = if Place::RECYCLES { (4, 1) } else { (0, 5) };
    assert_eq!((stats.hits, stats.misses, stats.lent.bytes), (hits, misses, 0));
    pool.trim();
    assert_eq!(counts(&pool), (0, 0, 0));
    let nothing = pool.take::<u8, _>(0).unwrap().publish(name.location()).unwrap();
    assert!(nothing.read().unwrap().is_empty());
}

fn zeros_are_had_by_asking(place: &Place) {
    let pool = pool(place);
    pool.take::<u32, _>(LENGTH).unwrap().view_mut().fill(7);
    let draft = pool.take_zeroed::<f32, _>(LENGTH).unwrap();
    assert_eq!(draft.is_recycled(), Place::RECYCLES);
    assert!(draft.view().iter().all(|value| value.to_bits() == 0));
}

/// A child that attaches, and answers what it is asked.
fn attacher(arguments: &[String]) {
    let options = AttachOptions::<SharedArray<u32, Ix1>>::new().backend(backend_of_child());
    let array = options.keep_fd(arguments.len() > 1).open(arguments[0].as_str(), LENGTH).unwrap();
    say("attached");
    loop {
        match hear().as_str() {
            "read" => match array.read() {
                Ok(guard) => say(guard.iter().fold(0, |so_far: u32, value| so_far.max(*value))),
                Err(error) => say(variant(&error)),
            },
            // Without asking the name, which has gone: nobody writes to it, says the parent.
            "look" => {
                #[allow(unsafe_code)]
                // SAFETY: the parent promises that nobody writes.
                let seen = unsafe { array.view() };
                assert!(seen.iter().all(|value| *value == seen[0]));
                say(seen[0]);
            }
            "drop" => break,
            other => panic!("what is {other}?"),
        }
    }
    drop(array);
    say("dropped");
    hear();
}

fn ask(child: &mut Child, question: &str) -> String {
    child.tell(question);
    child.line()
}

fn a_dropped_array_has_no_name_and_its_readers_keep_the_bytes(place: &Place) {
    let name = place.location("dropped");
    let pool = pool(place);
    let array = publish(&pool, &name, 7);
    let mut child = Child::start(place, "pool-attacher", &[name.as_str()]);
    child.expect("attached");
    assert_eq!(ask(&mut child, "read"), "7");
    drop(array);
    assert!(!place.has(&name) && place.files_of(&name).is_empty());
    let late = place.attach::<u32, Ix1>().open(name.location(), LENGTH);
    assert!(late.unwrap_err().is_not_found());
    assert_eq!(ask(&mut child, "read"), "Unlinked");
    // What is taken now is not what the child has.
    let mut other = pool.take::<u32, _>(LENGTH).unwrap();
    assert!(!other.is_recycled());
    other.view_mut().fill(8);
    assert_eq!(ask(&mut child, "look"), "7");
    let array = other.publish(name.location()).unwrap();
    assert_eq!(ask(&mut child, "read"), "Unlinked", "the name leads to another array");
    assert_eq!((ask(&mut child, "look"), array.read().unwrap()[0]), ("7".into(), 8));
    assert_eq!(ask(&mut child, "drop"), "dropped");
}

fn memory_that_others_have_waits_until_the_last_has_gone(place: &Place) {
    let name = place.location("limbo");
    let pool = pool(place);
    // The second can have guards without the name.
    for second in [&[name.as_str()][..], &[name.as_str(), "keep"]] {
        let array = publish(&pool, &name, 7);
        let mut children =
            [&[name.as_str()][..], second].map(|arguments| Child::start(place, "pool-attacher", arguments));
        children.iter_mut().for_each(|child| child.expect("attached"));
        drop(array);
        assert_eq!(counts(&pool), (0, one(), 0));
        assert!(!pool.take::<u32, _>(LENGTH).unwrap().is_recycled());
        pool.trim(); // of what was just dropped
        for child in &mut children {
            assert_eq!(counts(&pool), (0, one(), 0), "one is still attached");
            assert_eq!(ask(child, "look"), "7");
            assert_eq!(ask(child, "drop"), "dropped");
        }
        assert_eq!(counts(&pool), (one(), 0, 0), "looked at by whatever call comes next");
        let draft = pool.take::<u32, _>(LENGTH).unwrap();
        assert_eq!((draft.is_recycled(), draft.view()[0]), (Place::RECYCLES, expected(7)));
    }
}

fn a_stopped_process_is_waited_for_and_a_killed_one_is_not(place: &Place) {
    let place = &place.private();
    let name = place.location("stopped");
    let pool = pool(place);
    let array = publish(&pool, &name, 7);
    let mut child = Child::start(place, "pool-attacher", &[name.as_str()]);
    child.expect("attached");
    child.stop();
    drop(array);
    for _ in 0..100 {
        assert!(!pool.take::<u32, _>(LENGTH).unwrap().is_recycled(), "a stopped process is alive");
        pool.trim();
        assert_eq!(counts(&pool), (0, one(), 0));
    }
    child.kill();
    eventually("the killed one's memory is free", || counts(&pool) == (one(), 0, 0));
    assert_eq!(pool.take::<u32, _>(LENGTH).unwrap().view()[0], expected(7));
    drop(pool);
    // Windows kept what the killed process had mapped, under a hidden name.
    age(place, 100);
    eventually("the memory is reclaimed", || {
        place.reclaim();
        everything(place).is_empty()
    });
}

/// A child that has all cells, through the mapping itself.
fn writer(arguments: &[String]) {
    let options = AttachOptions::<ArrayWriter<u32, Ix1>>::new().backend(backend_of_child());
    let mut writer = options.open(arguments[0].as_str(), LENGTH).unwrap();
    say("attached");
    hear();
    writer.view_mut().fill(9);
    say("written");
    hear();
}

fn a_writer_that_is_held_keeps_its_memory(place: &Place) {
    let name = place.location("held");
    let pool = pool(place);
    let array = publish(&pool, &name, 7);
    let mut child = Child::start(place, "pool-writer", &[name.as_str()]);
    child.expect("attached");
    drop(array);
    let draft = pool.take::<u32, _>(LENGTH).unwrap();
    assert_eq!((draft.is_recycled(), draft.view()[0]), (false, 0));
    child.tell("write");
    child.expect("written");
    assert!(draft.view().iter().all(|value| *value == 0));
    child.tell("end");
    child.finish();
    let again = pool.take::<u32, _>(LENGTH).unwrap();
    assert_eq!((again.is_recycled(), again.view()[0]), (Place::RECYCLES, expected(9)));
}

fn cells_that_are_locked_keep_the_memory_without_a_lease(place: &Place) {
    let name = place.location("cells");
    let pool = pool(place);
    let array = publish(&pool, &name, 7);
    let guard = array.read().unwrap();
    if Place::RECYCLES {
        // As a process may that was forked from one with a lease. Elsewhere the leaked handle would keep the file.
        std::mem::forget(guard);
    }
    drop(array);
    assert_eq!(counts(&pool), (0, one(), 0));
    assert!(!pool.take::<u32, _>(LENGTH).unwrap().is_recycled());
}

/// A thread that opens the name, waits until it is told to go on, and says what it got: the value, or the error.
struct Late {
    opened: Receiver<()>,
    go_on: Sender<()>,
    thread: std::thread::JoinHandle<Result<u32, Error>>,
}

impl Late {
    /// Returns when the file is open and not yet leased.
    fn begin(place: &Place, name: &Name, held: bool) -> Self {
        let ((opened, is_open), (go_on, told)) = (channel(), channel());
        let (told, waits) = (Mutex::new(told), AtomicBool::new(true));
        let backend = place.meddling(move |operation, _| {
            if operation == "opened" && waits.swap(false, Ordering::Relaxed) {
                opened.send(()).unwrap();
                told.lock().unwrap().recv().unwrap();
            }
            Ok(())
        });
        let location = name.location().clone();
        let thread = std::thread::spawn(move || {
            if held {
                let options = AttachOptions::<ArrayReader<u32, Ix1>>::new().backend(backend);
                options.timeout(Duration::from_secs(30)).open(location, LENGTH).map(|reader| reader.view()[0])
            } else {
                let options = AttachOptions::<SharedArray<u32, Ix1>>::new().backend(backend);
                options.open(location, LENGTH).and_then(|array| Ok(array.read()?[0]))
            }
        });
        is_open.recv().unwrap();
        Self { opened: is_open, go_on, thread }
    }

    fn end(self) -> Result<u32, Error> {
        self.go_on.send(()).unwrap();
        let got = self.thread.join().unwrap();
        drop(self.opened);
        got
    }
}

fn who_opened_the_old_name_never_gets_the_next_array(place: &Place) {
    let [first, second] = ["first", "second"].map(|label| place.location(label));
    let pool = pool(place);
    for held in [false, true] {
        let array = publish(&pool, &first, 7);
        let late = Late::begin(place, &first, held);
        drop(array);
        let array = publish(&pool, &second, 8);
        let got = late.end();
        assert!(got.as_ref().is_err_and(Error::is_not_found), "{got:?}");
        assert_eq!(array.read().unwrap()[0], 8);
    }
    // He had it open for all that time, and no lease: the memory was used again.
    assert_eq!(pool.stats().misses, if Place::RECYCLES { 1 } else { 4 });
}

fn who_opened_the_old_name_is_not_kept_waiting_by_a_draft(place: &Place) {
    let name = place.location("waiting");
    let pool = pool(place);
    let late = {
        let _array = publish(&pool, &name, 7);
        Late::begin(place, &name, false)
    };
    let mut draft = pool.take::<u32, _>(LENGTH).unwrap();
    assert_eq!(draft.is_recycled(), Place::RECYCLES);
    let start = Instant::now();
    let got = late.end();
    assert!(got.as_ref().is_err_and(Error::is_not_found), "{got:?}");
    assert!(start.elapsed() < Duration::from_secs(4), "he waited for the lease: {:?}", start.elapsed());
    draft.view_mut().fill(8);
    assert_eq!(draft.publish(name.location()).unwrap().read().unwrap()[0], 8);
}

fn who_opened_the_old_name_gets_what_has_it_by_then(place: &Place) {
    let name = place.location("by-then");
    let pool = pool(place);
    drop(publish(&pool, &name, 6));
    let late = {
        let _array = publish(&pool, &name, 7);
        Late::begin(place, &name, false)
    };
    let other = place.options::<u32, _>().create_with(name.location(), LENGTH, |mut view| view.fill(9)).unwrap();
    assert_eq!(late.end().unwrap(), 9);
    drop(other);
    place.backend.unlink(name.location()).unwrap();
    let late = {
        let _array = publish(&pool, &name, 7);
        Late::begin(place, &name, true)
    };
    let _array = publish(&pool, &name, 8);
    assert_eq!(late.end().unwrap(), 8, "the same file under the same name, by now another array");
}

fn a_refused_name_gives_the_draft_back_and_nobody_got_in(place: &Place) {
    let [taken, free] = ["taken", "free"].map(|label| place.location(label));
    let _other = place.options::<u8, _>().create(taken.location(), 1).unwrap();
    let pool = pool(place);
    drop(publish(&pool, &free, 7));
    let late = {
        let _array = publish(&pool, &free, 7);
        Late::begin(place, &free, false)
    };
    let draft = pool.take::<u32, _>(LENGTH).unwrap();
    let refused = draft.publish(taken.location()).unwrap_err();
    assert!(refused.error().is_already_exists());
    let mut draft = refused.into_inner();
    assert!(late.end().unwrap_err().is_not_found());
    draft.view_mut().fill(8);
    assert_eq!(counts(&pool), (0, 0, 1));
    let array = draft.publish(free.location()).unwrap();
    let mut child = Child::start(place, "pool-attacher", &[free.as_str()]);
    child.expect("attached");
    assert_eq!(ask(&mut child, "read"), "8");
    drop(array);
    assert_eq!(ask(&mut child, "drop"), "dropped");
}

fn a_file_is_exactly_as_long_as_its_array(place: &Place) {
    let name = place.location("length");
    let pool = pool(place);
    let mut hits = 0;
    for length in [10_000, 10_000, 9_000, 8_200, 8_193, 8_192, 4_000, 8_192, 10_000, 4_000] {
        let mut draft = pool.take::<u8, _>(length).unwrap();
        hits += usize::from(draft.is_recycled());
        draft.view_mut().fill(5);
        let array = draft.publish(name.location()).unwrap();
        assert_eq!(std::fs::metadata(place.path(&name)).unwrap().len(), length as u64);
        assert_eq!(std::fs::read(place.path(&name)).unwrap(), vec![5; length]);
        assert_eq!(array.read().unwrap().len(), length);
        let mut same = place.writer::<u8, Ix1>().open(name.location(), length).unwrap();
        same.view_mut()[length - 1] = 5;
        drop((same, array));
        // A process that another test is just spawning may have the writer's description for a moment.
        eventually("the lease is free", || counts(&pool).1 == 0);
    }
    // The last three: 8192 was trimmed of 10000, which then is too large for it.
    assert_eq!(hits, if Place::RECYCLES { 7 } else { 0 });
    // Unpublished, nothing is lost of it.
    let pool = place.pool_options().create().unwrap();
    for (length, is_recycled) in [(10_000, false), (8_000, true), (10_000, true), (7_999, false)] {
        assert_eq!(pool.take::<u8, _>(length).unwrap().is_recycled(), is_recycled && Place::RECYCLES, "{length}");
    }
}

fn capacity_number_and_age_are_kept(place: &Place) {
    let private = &place.private();
    let make = |pool: &Pool, count: usize| {
        let drafts: Vec<_> = (0..count).map(|_| pool.take::<u8, _>(1000).unwrap()).collect();
        drop(drafts);
    };
    let pool = private.pool_options().capacity(2500).create().unwrap();
    make(&pool, 5);
    let stats = pool.stats();
    assert_eq!((stats.idle.arrays, stats.idle.bytes), (2 * one(), 2000 * one() as u64));
    assert_eq!((stats.misses, stats.dropped), (5, 5 - 2 * one() as u64));
    drop(pool);
    let pool = private.pool_options().max_arrays(3).create().unwrap();
    make(&pool, 5);
    assert_eq!(counts(&pool), (3 * one(), 0, 0));
    drop(pool);
    let pool = private.pool_options().max_age(Duration::ZERO).create().unwrap();
    make(&pool, 5);
    assert_eq!(counts(&pool), (0, 0, 0));
    let age = Duration::from_millis(200);
    let pool = private.pool_options().max_age(age).create().unwrap();
    make(&pool, 5);
    std::thread::sleep(age + Duration::from_millis(50));
    let draft = pool.take::<u8, _>(1000).unwrap();
    assert!(!draft.is_recycled());
    let begin = Instant::now();
    drop(draft);
    let counts = counts(&pool);
    assert!(counts == (one(), 0, 0) || begin.elapsed() > age, "what just came back is young: {counts:?}");
    drop(pool);
    assert_eq!(everything(private), [] as [&str; 0]);
}

fn what_does_not_fit_makes_idle_memory_go(place: &Place) {
    let refusals = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&refusals);
    let backend = place.meddling(move |operation, _| {
        let left = counted.load(Ordering::Relaxed);
        if operation != "draft" || left == 0 {
            return Ok(());
        }
        counted.store(left - 1, Ordering::Relaxed);
        Err(Error::NoSpace { location: "here".into(), needed: 1, available: 0, advice: "make room" })
    });
    let pool = PoolOptions::new().backend(backend).create().unwrap();
    let drafts: Vec<_> = (0..4).map(|_| pool.take::<u8, _>(1000).unwrap()).collect();
    drop(drafts);
    if Place::RECYCLES {
        refusals.store(3, Ordering::Relaxed);
        drop(pool.take::<u8, _>(5000).unwrap());
        assert_eq!(counts(&pool), (2, 0, 0), "three of four went, and the new one came");
    }
    refusals.store(100, Ordering::Relaxed);
    assert!(pool.take::<u8, _>(50_000).unwrap_err().is_no_space());
    assert_eq!(counts(&pool), (0, 0, 0));
}

fn any_array_can_be_put(place: &Place) {
    let name = place.location("put");
    let pool = pool(place);
    let create = || place.options::<u32, _>().create_with(name.location(), LENGTH, |mut view| view.fill(7)).unwrap();
    let open = |keep| place.attach::<u32, Ix1>().keep_fd(keep).open(name.location(), LENGTH).unwrap();
    let kept = || place.options::<u32, _>().keep_fd(true).create_with(name.location(), LENGTH, |mut view| view.fill(7));
    let arrays: [&dyn Fn() -> SharedArray<u32, Ix1>; 5] = [
        &create,
        &|| kept().unwrap(),
        &|| {
            drop(create());
            open(false)
        },
        &|| {
            drop(create());
            open(true)
        },
        &|| {
            drop(create());
            place.attach::<u32, Ix1>().access(Access::Read).open(name.location(), LENGTH).unwrap()
        },
    ];
    for (number, array) in arrays.into_iter().enumerate() {
        pool.put(array()).unwrap();
        assert!(!place.has(&name));
        // A process that another test is just spawning may have the old description for a moment.
        eventually("nobody else is attached", || counts(&pool) == (one(), 0, 0));
        let draft = pool.take::<u32, _>(LENGTH).unwrap();
        assert_eq!((draft.is_recycled(), draft.view()[17]), (Place::RECYCLES, expected(7)), "array {number}");
        drop(draft);
        pool.trim();
    }
    // One that somebody else has, one that is adopted, and one that has lost its name.
    let (array, other) = (create(), open(false));
    drop(pool.adopt(array).unwrap());
    assert_eq!((place.has(&name), counts(&pool)), (false, (0, one(), 0)));
    drop(other);
    eventually("it is left", || counts(&pool) == (one(), 0, 0));
    pool.trim();
    let array = create();
    assert!(place.backend.unlink(name.location()).unwrap());
    let dropped = pool.stats().dropped;
    pool.put(array).unwrap();
    assert_eq!((counts(&pool), pool.stats().dropped), ((0, 0, 0), dropped + 1));
}

fn what_cannot_be_put_is_given_back(place: &Place) {
    let (private, name) = (place.private(), place.location("elsewhere"));
    let array = place.options::<u32, _>().create(name.location(), LENGTH).unwrap();
    let refused = pool(&private).put(array).unwrap_err();
    if private.directory() != place.directory() {
        assert!(matches!(refused.error(), Error::InvalidSetting { .. }), "{refused}");
    }
    let array = refused.into_inner();
    array.write().unwrap()[0] = 3;
    if cfg!(unix) && Place::RECYCLES {
        let refused = place.pool_options().permissions(0o640).create().unwrap().put(array).unwrap_err();
        assert!(matches!(refused.error(), Error::PermissionDenied { .. }), "{refused}");
        let array = refused.into_inner();
        assert_eq!(array.read().unwrap()[0], 3);
        // Adopted, it cannot be kept either, and loses its name all the same.
        let pool = place.pool_options().permissions(0o640).create().unwrap();
        drop(pool.adopt(array).unwrap());
        assert!(!place.has(&name));
        assert_eq!((counts(&pool), pool.stats().dropped), ((0, 0, 0), 1));
    }
}

fn memory_with_a_second_name_is_not_used_again(place: &Place) {
    let [name, second] = ["name", "second"].map(|label| place.location(label));
    let pool = pool(place);
    let array = publish(&pool, &name, 7);
    std::fs::hard_link(place.path(&name), place.path(&second)).unwrap();
    drop(array);
    assert_eq!((place.has(&name), counts(&pool)), (false, (0, 0, 0)));
    assert_eq!(place.attach::<u32, Ix1>().open(second.location(), LENGTH).unwrap().read().unwrap()[0], 7);
}

fn memory_whose_hidden_name_was_removed_is_not_used_again(place: &Place) {
    let place = &place.private();
    let name = place.location("hidden");
    let pool = pool(place);
    drop(publish(&pool, &name, 7));
    for file in everything(place) {
        std::fs::remove_file(place.directory().join(file)).unwrap();
    }
    let draft = pool.take::<u32, _>(LENGTH).unwrap();
    assert!(!draft.is_recycled(), "it could never be published");
    drop(draft.publish(name.location()).unwrap());
}

fn what_leaves_the_pool_is_like_any_other(place: &Place) {
    let place = &place.private();
    let name = place.location("left");
    let pool = pool(place);
    drop(publish(&pool, &name, 7));
    let draft = pool.take::<u32, _>(LENGTH).unwrap().into_draft();
    assert_eq!(counts(&pool), (0, 0, 0));
    let array = draft.publish(name.location()).unwrap();
    let mut child = Child::start(place, "pool-attacher", &[name.as_str()]);
    child.expect("attached");
    drop(array);
    assert_eq!(ask(&mut child, "read"), expected(7).to_string());
    drop(child);
    assert_eq!(counts(&pool), (0, 0, 0));
    unlink_in(place, &name);
    drop(publish(&pool, &name, 8));
    let array = publish(&pool, &name, 9).into_array();
    drop(array);
    assert!(place.has(&name) && counts(&pool) == (0, 0, 0));
    unlink_in(place, &name);
    // Even a counted array can be made of it.
    drop(publish(&pool, &name, 5));
    let counted = pool.take::<u32, _>(LENGTH).unwrap().into_draft().share(SharingStrategy::FileSystem).unwrap();
    let other = place.attach_counted::<u32, Ix1>().open(counted.location().unwrap()).unwrap();
    assert_eq!((counted.refcount(), other.read().unwrap()[9]), (2, expected(5)));
    drop((counted, other));
    drop(pool);
    assert_eq!(everything(place), [] as [&str; 0]);
}

/// The trailer is looked for at the end of the file, wherever the memory ended before.
fn longer_memory_becomes_a_counted_array_like_any_other(place: &Place) {
    let place = &place.private();
    let pool = pool(place);
    for (before, now) in [(1_000_001, 900_000), (1_024_000, 900_000), (904_096, 900_000), (900_001, 900_000)] {
        let name = place.location("longer");
        drop(pool.take::<u8, _>(before).unwrap().publish(name.location()).unwrap());
        let mut draft = pool.take::<u8, _>(now).unwrap();
        assert_eq!(draft.is_recycled(), Place::RECYCLES);
        draft.view_mut().fill(5);
        let counted = draft.into_draft().share(SharingStrategy::FileSystem).unwrap();
        let location = counted.location().unwrap().clone();
        let mut child = Child::start(place, "pool-counted", &[location.as_str()]);
        child.expect(&format!("{now} elements, 5 at both ends, 2 handles"));
        child.end();
        assert_eq!(counted.refcount(), 1);
        drop(counted);
        assert!(!everything(place).contains(&location.to_string()), "{before}");
    }
    drop(pool);
    assert_eq!(everything(place), [] as [&str; 0]);
}

fn counted(arguments: &[String]) {
    let options = AttachOptions::<RefcountedArray<u8, Ix1>>::new().backend(backend_of_child());
    let array = options.open(arguments[0].as_str()).unwrap();
    let view = array.read().unwrap();
    assert_eq!((view[0], view[view.len() - 1]), (5, 5));
    say(format!("{} elements, 5 at both ends, {} handles", view.len(), array.refcount()));
}

fn unlink_in(place: &Place, name: &Name) {
    assert!(place.backend.unlink(name.location()).unwrap());
}

fn threads_share_a_pool(place: &Place) {
    let place = &place.private();
    let pool = pool(place);
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let (pool, name) = (pool.clone(), place.location("thread"));
            scope.spawn(move || {
                for round in 0..200 {
                    let value = thread << 16 | round;
                    let mut draft = pool.take::<u32, _>(LENGTH).unwrap();
                    draft.view_mut().fill(value);
                    if round % 3 == 0 {
                        std::thread::yield_now();
                    }
                    assert!(draft.view().iter().all(|seen| *seen == value), "two threads have the same memory");
                    if round % 4 == 0 {
                        continue;
                    }
                    let array = draft.publish(name.location()).unwrap();
                    assert!(array.read().unwrap().iter().all(|seen| *seen == value));
                }
            });
        }
    });
    let stats = pool.stats();
    assert_eq!((stats.hits + stats.misses, stats.lent.arrays, stats.draining.arrays), (800, 0, 0));
    assert!(!Place::RECYCLES || stats.misses <= 4, "{stats:?}");
    drop(pool);
    assert_eq!(everything(place), [] as [&str; 0]);
}

fn paint(pool: &Pool, name: &Name, value: u32) -> SharedArray<u32, Ix2> {
    let options = RenderOptions::new().pool(pool);
    let buffer = options.create::<u32, Ix2>(name.location(), (60, 50), (16, 16), &format!("all {value}")).unwrap();
    while let NextClaim::Chunk(mut chunk) = buffer.claim_next_wait(Duration::from_secs(60)).unwrap() {
        chunk.view_mut().fill(value);
        chunk.commit().unwrap();
    }
    buffer.finish().unwrap()
}

fn a_buffer_is_painted_into_the_memory_of_the_last(place: &Place) {
    let name = place.location("buffer");
    let pool = pool(place);
    for value in 1..=5 {
        let array = paint(&pool, &name, value);
        assert!(array.read().unwrap().iter().all(|seen| *seen == value));
        assert_eq!(place.files_of(&name), [name.as_str()]);
        if value % 2 == 0 {
            pool.put(array).unwrap();
        } else {
            drop(pool.adopt(array).unwrap());
        }
        assert!(place.files_of(&name).is_empty());
    }
    let stats = pool.stats();
    assert_eq!((stats.hits, stats.misses), if Place::RECYCLES { (4, 1) } else { (0, 5) });
    // A name that is taken is refused, and a buffer that is thrown away is no loss.
    let taken = place.options::<u8, _>().create(name.location(), 1).unwrap();
    let begin = || RenderOptions::new().pool(&pool).create::<u32, Ix2>(name.location(), (60, 50), (16, 16), "x");
    assert!(begin().unwrap_err().is_already_exists());
    unlink_in(place, &name);
    drop(taken);
    begin().unwrap().discard().unwrap();
    assert_eq!(counts(&pool), (0, 0, 0));
    let other = RenderOptions::new().pool(&pool).permissions(0o644).create::<u8, Ix1>(name.location(), 9, 3, "x");
    assert!(matches!(other, Err(Error::InvalidSetting { .. })));
}

/// A child that joins a buffer, paints nothing, and stays.
fn painter(arguments: &[String]) {
    let options = RenderOptions::new().backend(backend_of_child());
    let buffer = options.open::<u32, Ix2>(arguments[0].as_str()).unwrap();
    say("joined");
    hear();
    drop(buffer);
    say("left");
    hear();
}

fn a_painter_in_another_process_keeps_the_memory(place: &Place) {
    let name = place.location("painter");
    let pool = pool(place);
    pool.put(paint(&pool, &name, 3)).unwrap();
    let buffer = RenderOptions::new().pool(&pool).create::<u32, Ix2>(name.location(), (60, 50), (16, 16), "x").unwrap();
    let mut child = Child::start(place, "pool-painter", &[name.as_str()]);
    child.expect("joined");
    while let NextClaim::Chunk(mut chunk) = buffer.claim_next().unwrap() {
        chunk.view_mut().fill(4);
        chunk.commit().unwrap();
    }
    pool.put(buffer.finish().unwrap()).unwrap();
    assert_eq!(counts(&pool), (0, one(), 0));
    assert!(!pool.take::<u32, _>((60, 50)).unwrap().is_recycled());
    pool.trim();
    assert_eq!(ask(&mut child, "leave"), "left");
    assert_eq!(counts(&pool), (one(), 0, 0));
    assert_eq!(pool.take::<u32, _>((60, 50)).unwrap().view()[[9, 9]], expected(4));
}

fn a_buffer_begun_anew_in_the_same_memory_is_not_discarded_for_the_old_one(place: &Place) {
    let name = place.location("anew");
    let pool = pool(place);
    let begin = |pool: &Pool, name: &Location| {
        RenderOptions::new().pool(pool).create::<u32, Ix2>(name.clone(), (60, 50), (60, 50), "anew").unwrap()
    };
    let (old, anew) = (begin(&pool, name.location()), Arc::new(Mutex::new(None)));
    // What its owner does while somebody else is about to discard it: finish it, give it back, begin again.
    let (old, made) = (Mutex::new(Some(old)), Arc::clone(&anew));
    let (owners, location) = (pool.clone(), name.location().clone());
    let backend = place.meddling(move |operation, at| {
        if operation == "unlink" && at.is_some_and(|at| at.as_str().starts_with(".ndshm-part-")) {
            if let Some(old) = old.lock().unwrap().take() {
                let NextClaim::Chunk(chunk) = old.claim_next().unwrap() else { panic!("it is free") };
                chunk.commit().unwrap();
                owners.put(old.finish().unwrap()).unwrap();
                *made.lock().unwrap() = Some(begin(&owners, &location));
            }
        }
        Ok(())
    });
    render::discard(&backend, name.location()).unwrap();
    let anew = anew.lock().unwrap().take().expect("the payload was about to be unlinked");
    assert!(matches!(anew.claim_next().unwrap(), NextClaim::Chunk(_)), "another's buffer was discarded");
    anew.discard().unwrap();
}

/// How many mappings of files in the directory this process has, where that can be known.
fn mappings(directory: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().filter(|line| line.contains(directory)).count()
}

/// A child that takes, publishes and drops many times, and then has nothing more than before.
fn rounds(arguments: &[String]) {
    let backend = backend_of_child();
    let directory = backend.path().display().to_string();
    let make = || PoolOptions::new().backend(backend.clone()).create().unwrap();
    // What the first call of a process opens for good is no leak.
    drop(make().take::<u8, _>(10).unwrap().publish(arguments[0].as_str()).unwrap());
    let before = (open_files(), mappings(&directory));
    let pool = make();
    for round in 0..1000 {
        let mut draft = pool.take::<u32, _>(1000 - round % 100).unwrap();
        draft.view_mut().fill(round as u32);
        let array = draft.publish(arguments[0].as_str()).unwrap();
        assert_eq!(array.read().unwrap()[round % 900], round as u32);
    }
    assert!(open_files() <= before.0 + 12 && mappings(&directory) <= before.1 + 12, "little is kept");
    drop(pool);
    assert_eq!((open_files(), mappings(&directory)), before);
    say("done");
}

fn a_thousand_rounds_leave_nothing(place: &Place) {
    let place = &place.private();
    let name = place.location("rounds");
    let mut child = Child::start(place, "pool-rounds", &[name.as_str()]);
    child.expect("done");
    child.finish();
    assert_eq!(everything(place), [] as [&str; 0]);
}

/// A child that has one draft, one array and two idle ones of a pool.
fn owner(arguments: &[String]) {
    let pool = PoolOptions::new().backend(backend_of_child()).create().unwrap();
    let name = |number: usize| format!("{}-{number}", arguments[0]);
    let publish = |number| pool.take::<u32, _>(LENGTH).unwrap().publish(name(number)).unwrap();
    let arrays: Vec<_> = (0..4).map(publish).collect();
    drop(arrays);
    let (_draft, _array) = (pool.take::<u32, _>(LENGTH).unwrap(), publish(0));
    say(pool.stats().idle.arrays);
    hear();
}

fn a_killed_owner_leaves_hidden_files_that_are_reclaimed(place: &Place) {
    let place = &place.private();
    let name = place.location("owner");
    let mut child = Child::start(place, "pool-owner", &[name.as_str()]);
    child.expect(&(2 * one()).to_string());
    let hidden = 3 * one() + if Place::RECYCLES { 0 } else { place.hidden_drafts() };
    assert_eq!((everything(place).len(), place.hidden_drafts()), (hidden + 1, hidden));
    age(place, 100);
    assert!(place.reclaim().removed.is_empty(), "the living have a lease on theirs");
    child.kill();
    age(place, 30);
    assert!(place.reclaim().removed.is_empty(), "it might just be made");
    age(place, 100);
    eventually("they are reclaimed", || {
        place.reclaim();
        place.hidden_drafts() == 0
    });
    let public = format!("{}-0", name.as_str());
    assert_eq!(everything(place), [public.as_str()], "a public name is never removed by itself");
    place.backend.unlink(&public).unwrap();
}
