//! Draining memory: not used again while another process or name still reaches it.

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::OpenOptions;
use ndarray_shm::pool::PoolOptions;

use super::{LENGTH, age_all, counts, expected, one, pool, publish};
use crate::support::child::{Child, hear, say};
use crate::support::{Place, backend_of_child, eventually};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "pool",
        tests![
            readers_keep_the_bytes_of_a_dropped_array,
            memory_drains_until_the_last_process_detaches,
            pool_waits_for_stopped_but_not_killed_processes,
            held_writer_keeps_its_memory,
            locked_cells_keep_the_memory_without_a_lease,
            memory_with_a_second_name_is_not_used_again,
            memory_without_its_hidden_name_is_not_used_again,
            hidden_files_of_a_killed_owner_are_reclaimed,
        ],
    )
}

fn readers_keep_the_bytes_of_a_dropped_array(place: &Place) {
    let name = place.location("dropped");
    let pool = pool(place);
    let array = publish(&pool, &name, 7);
    let mut child = Child::start(place, "pool-attacher", &[name.as_str()]);
    child.expect("attached");
    assert_eq!(child.ask("read"), "7");
    drop(array);
    assert!(!place.has(&name) && place.files_of(&name).is_empty());
    let late = place.open_options().open::<u32, Ix1>(name.location(), LENGTH);
    assert!(late.unwrap_err().is_not_found());
    assert_eq!(child.ask("read"), "Unlinked");
    // Memory that is taken now is not the child's.
    let mut other = pool.take::<u32, _>(LENGTH).unwrap();
    assert!(!other.is_recycled());
    other.view_mut().fill(8);
    assert_eq!(child.ask("look"), "7");
    let array = other.publish(name.location()).unwrap();
    assert_eq!(child.ask("read"), "Unlinked", "the name leads to another array");
    assert_eq!((child.ask("look"), array.read().unwrap()[0]), ("7".into(), 8));
    assert_eq!(child.ask("drop"), "dropped");
}

fn memory_drains_until_the_last_process_detaches(place: &Place) {
    let name = place.location("limbo");
    let pool = pool(place);
    // The second child keeps its descriptor, and so has guards without the name.
    for second in [&[name.as_str()][..], &[name.as_str(), "keep"]] {
        let array = publish(&pool, &name, 7);
        let mut children =
            [&[name.as_str()][..], second].map(|arguments| Child::start(place, "pool-attacher", arguments));
        children.iter_mut().for_each(|child| child.expect("attached"));
        drop(array);
        assert_eq!(counts(&pool), (0, one(), 0));
        assert!(!pool.take::<u32, _>(LENGTH).unwrap().is_recycled());
        pool.trim(); // frees the draft that was just dropped
        for child in &mut children {
            assert_eq!(counts(&pool), (0, one(), 0), "one is still attached");
            assert_eq!(child.ask("look"), "7");
            assert_eq!(child.ask("drop"), "dropped");
        }
        assert_eq!(counts(&pool), (one(), 0, 0), "the next call notices");
        let draft = pool.take::<u32, _>(LENGTH).unwrap();
        assert_eq!((draft.is_recycled(), draft.view()[0]), (Place::RECYCLES, expected(7)));
    }
}

fn pool_waits_for_stopped_but_not_killed_processes(place: &Place) {
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
    eventually("the killed process's memory is free", || counts(&pool) == (one(), 0, 0));
    assert_eq!(pool.take::<u32, _>(LENGTH).unwrap().view()[0], expected(7));
    drop(pool);
    // Windows keeps the file that the killed process had mapped, under a hidden name.
    age_all(place, 100);
    eventually("the memory is reclaimed", || {
        place.reclaim();
        place.everything().is_empty()
    });
}

/// A child that holds all cells for writing, with a lock that the mapping itself keeps.
pub fn writer(arguments: &[String]) {
    let options = OpenOptions::new().directory(backend_of_child());
    let mut writer = options.open_writer::<u32, Ix1>(arguments[0].as_str(), LENGTH).unwrap();
    say("attached");
    hear();
    writer.view_mut().fill(9);
    say("written");
    hear();
}

fn held_writer_keeps_its_memory(place: &Place) {
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

fn locked_cells_keep_the_memory_without_a_lease(place: &Place) {
    let name = place.location("cells");
    let pool = pool(place);
    let array = publish(&pool, &name, 7);
    let guard = array.read().unwrap();
    if Place::RECYCLES {
        // Leaks the lock. A process that was forked from a holder may have such a lock without a lease. Elsewhere the
        // leaked handle would keep the file.
        std::mem::forget(guard);
    }
    drop(array);
    assert_eq!(counts(&pool), (0, one(), 0));
    assert!(!pool.take::<u32, _>(LENGTH).unwrap().is_recycled());
}

fn memory_with_a_second_name_is_not_used_again(place: &Place) {
    let [name, second] = ["name", "second"].map(|label| place.location(label));
    let pool = pool(place);
    let array = publish(&pool, &name, 7);
    std::fs::hard_link(place.path(&name), place.path(&second)).unwrap();
    drop(array);
    assert_eq!((place.has(&name), counts(&pool)), (false, (0, 0, 0)));
    assert_eq!(place.open_options().open::<u32, Ix1>(second.location(), LENGTH).unwrap().read().unwrap()[0], 7);
}

fn memory_without_its_hidden_name_is_not_used_again(place: &Place) {
    let place = &place.private();
    let name = place.location("hidden");
    let pool = pool(place);
    drop(publish(&pool, &name, 7));
    for file in place.everything() {
        std::fs::remove_file(place.directory().join(file)).unwrap();
    }
    let draft = pool.take::<u32, _>(LENGTH).unwrap();
    assert!(!draft.is_recycled(), "it could never be published");
    drop(draft.publish(name.location()).unwrap());
}

/// A child whose pool has one draft, one array and two idle arrays.
pub fn owner(arguments: &[String]) {
    let pool = PoolOptions::new().directory(backend_of_child()).create().unwrap();
    let name = |number: usize| format!("{}-{number}", arguments[0]);
    let publish = |number| pool.take::<u32, _>(LENGTH).unwrap().publish(name(number)).unwrap();
    let arrays: Vec<_> = (0..4).map(publish).collect();
    drop(arrays);
    let (_draft, _array) = (pool.take::<u32, _>(LENGTH).unwrap(), publish(0));
    say(pool.stats().idle.arrays);
    hear();
}

fn hidden_files_of_a_killed_owner_are_reclaimed(place: &Place) {
    let place = &place.private();
    let name = place.location("owner");
    let mut child = Child::start(place, "pool-owner", &[name.as_str()]);
    child.expect(&(2 * one()).to_string());
    let hidden = 3 * one() + if Place::RECYCLES { 0 } else { place.hidden_drafts() };
    assert_eq!((place.everything().len(), place.hidden_drafts()), (hidden + 1, hidden));
    age_all(place, 100);
    assert!(place.reclaim().removed.is_empty(), "a living owner has a lease on its files");
    child.kill();
    age_all(place, 30);
    assert!(place.reclaim().removed.is_empty(), "its owner might be just creating it");
    age_all(place, 100);
    eventually("they are reclaimed", || {
        place.reclaim();
        place.hidden_drafts() == 0
    });
    let public = format!("{}-0", name.as_str());
    assert_eq!(place.everything(), [public.as_str()], "a public name is never reclaimed");
    place.backend.unlink(&public).unwrap();
}
