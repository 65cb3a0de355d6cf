//! Pools, claims and forks: what a process inherits stays its parent's.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use libtest_mimic::Trial;
use ndarray_shm::counted::SharingStrategy;
use ndarray_shm::pool::PoolOptions;
use ndarray_shm::render::{Claim, RenderOptions};
use ndarray_shm::{CreateOptions, Error, ErrorKind};

use crate::support::child::{Child, Role, hear, say};
use crate::support::forks::{fork, wait};
use crate::support::machine::open_files;
use crate::support::{Place, backend_of_child};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "linux",
        "pool",
        tests![
            forked_child_leaves_its_parents_pool_alone,
            forked_child_keeps_its_array_from_the_pool,
            forked_child_gets_no_chunk_of_recycled_memory,
            a_forked_child_gets_no_view_of_a_draft,
            a_forked_child_cannot_commit_its_parents_claim,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[
    ("pool-forks", forks),
    ("pool-fork-holds", fork_holds),
    ("pool-fork-buffer", fork_buffer),
    ("fork-draft", fork_draft),
    ("fork-claim", fork_claim),
];

const LENGTH: usize = 3000;

/// A process that forks while its pool has idle arrays, a draft and a published array.
fn forks(arguments: &[String]) {
    let name = |label: &str| format!("{}-{label}", arguments[0]);
    let backend = backend_of_child();
    let pool = PoolOptions::new().directory(backend.clone()).create().unwrap();
    let idle = ["a", "b"].map(|label| pool.take::<u32, _>(LENGTH).unwrap().publish(name(label)).unwrap());
    drop(idle);
    let mut draft = Some(pool.take::<u32, _>(LENGTH).unwrap());
    draft.as_mut().unwrap().view_mut().fill(7);
    let mut array = Some(pool.take::<u32, _>(LENGTH).unwrap().publish(name("array")).unwrap());
    drop(pool.take::<u32, _>(LENGTH).unwrap()); // a third array, which is idle now
    assert_eq!(pool.stats().idle.arrays, 1);
    let files = open_files();
    wait(fork(|| {
        // The forked child's copies are not taken, given back, named or unnamed.
        assert_eq!(pool.stats(), ndarray_shm::pool::PoolStats::default());
        assert_eq!(open_files(), files - 1, "the idle array's descriptor is closed");
        let mut own = pool.take::<u32, _>(LENGTH).unwrap();
        assert!(!own.is_recycled());
        own.view_mut().fill(1);
        let refused = own.publish(name("child")).unwrap_err();
        assert!(matches!(refused.error().kind, ErrorKind::Unsupported { .. }));
        drop(refused);
        let refused = draft.take().unwrap().publish(name("draft")).unwrap_err();
        assert!(matches!(refused.error().kind, ErrorKind::Unsupported { .. }));
        let refused = refused.into_inner().into_draft().publish(name("draft")).unwrap_err();
        assert!(matches!(refused.error().kind, ErrorKind::Unsupported { .. }));
        let refused = refused.into_inner().share(SharingStrategy::FileSystem).unwrap_err();
        assert!(matches!(refused.error().kind, ErrorKind::Unsupported { .. }));
        drop(refused);
        drop(array.take());
        let made = CreateOptions::new().directory(backend.clone()).create::<u32, _>(name("made"), LENGTH).unwrap();
        let refused = pool.put(made).unwrap_err();
        assert!(refused.into_inner().unlink().unwrap());
        drop(pool.clone());
        true
    }));
    let (mut draft, array) = (draft.unwrap(), array.unwrap());
    assert_eq!(pool.stats().idle.arrays, 1, "the parent's pool is unchanged");
    assert!(array.read().unwrap().iter().all(|value| *value == 0), "and has its name");
    assert!(draft.view().iter().all(|value| *value == 7));
    draft.view_mut().fill(8);
    let other = pool.take::<u32, _>(LENGTH).unwrap();
    assert!(other.is_recycled(), "the child's end unlocked nothing");
    let published = draft.publish(name("draft")).unwrap();
    assert!(published.try_write().unwrap().iter().all(|value| *value == 8));
    drop((published, array, other));
    assert_eq!(pool.stats().idle.arrays, 3);
    drop(pool);
    say("done");
    hear();
}

fn forked_child_leaves_its_parents_pool_alone(place: &Place) {
    let place = &place.private();
    let name = place.location("forks");
    let mut child = Child::start(place, "pool-forks", &[name.as_str()]);
    child.expect("done");
    child.tell("end");
    child.finish();
    assert_eq!(place.everything(), [] as [&str; 0]);
}

/// A process that forks a child while it has an array, and then puts that array into a pool.
fn fork_holds(arguments: &[String]) {
    let backend = backend_of_child();
    let pool = PoolOptions::new().directory(backend.clone()).create().unwrap();
    for keep in [false, true] {
        let options = CreateOptions::new().directory(backend.clone()).keep_fd(keep);
        let array = options.create_with::<u32, _>(arguments[0].as_str(), LENGTH, |mut view| view.fill(7)).unwrap();
        let (reader, mut writer) = UnixStream::pair().unwrap();
        let child = fork(|| {
            let _ = (&reader).read_exact(&mut [0]); // until the parent writes, or is dead
            // A guard through a kept descriptor reaches the file under any name. The pool's draft is locked, so that it
            // fails.
            !keep || array.try_read().is_err()
        });
        pool.put(array).unwrap();
        let stats = pool.stats();
        // A kept descriptor's open file description is shared, and so are its locks. Then the cell locks exclude the
        // child.
        let is_shared = keep || !backend.lock_survives_close().unwrap();
        assert_eq!((stats.idle.arrays, stats.draining.arrays), if is_shared { (1, 0) } else { (0, 1) });
        let draft = pool.take::<u32, _>(LENGTH).unwrap();
        assert_eq!(draft.is_recycled(), is_shared);
        writer.write_all(b"x").unwrap();
        wait(child);
        drop(draft);
        pool.maintain();
        pool.trim();
        assert_eq!(pool.stats().draining.arrays, 0);
    }
    say("done");
    hear();
}

fn forked_child_keeps_its_array_from_the_pool(place: &Place) {
    let name = place.location("fork-holds");
    let mut child = Child::start(place, "pool-fork-holds", &[name.as_str()]);
    child.expect("done");
}

/// A process that forks while it has a buffer in a pool's memory, and then paints another buffer with other chunks in
/// that memory.
fn fork_buffer(arguments: &[String]) {
    let backend = backend_of_child();
    let pool = PoolOptions::new().directory(backend).create().unwrap();
    let begin =
        |rows| RenderOptions::new().pool(&pool).create::<u8, _>(arguments[0].as_str(), (64, 64), (rows, 64), "");
    let buffer = begin(32).unwrap();
    for index in 0..2 {
        let Claim::Chunk(chunk) = buffer.claim(index).unwrap() else { panic!("no process else paints") };
        chunk.commit().unwrap();
    }
    let (reader, mut writer) = UnixStream::pair().unwrap();
    let child = fork(|| {
        let _ = (&reader).read_exact(&mut [0]); // until the parent writes, or is dead
        let chunk = buffer.chunk(0).map(|chunk| chunk.is_some());
        matches!(chunk, Err(Error { kind: ErrorKind::Unsupported { .. }, .. }))
            && buffer.unlink().is_err_and(|error| matches!(error.kind, ErrorKind::Unsupported { .. }))
    });
    drop(pool.adopt(buffer.finish().unwrap()).unwrap());
    let again = begin(16).unwrap();
    assert_eq!(pool.stats().hits, 1, "the same memory, under the same name");
    // The second new chunk lies within the first old chunk, and has another cell lock.
    let Claim::Chunk(mut chunk) = again.claim(1).unwrap() else { panic!("no process else paints") };
    chunk.view_mut().fill(1);
    writer.write_all(b"x").unwrap();
    wait(child);
    drop(chunk);
    again.discard().unwrap();
    drop(pool);
    say("done");
    hear();
}

fn forked_child_gets_no_chunk_of_recycled_memory(place: &Place) {
    let name = place.location("fork-buffer");
    let mut child = Child::start(place, "pool-fork-buffer", &[name.as_str()]);
    child.expect("done");
}

/// A process that forks a child, which tries to view the inherited draft.
fn fork_draft(_: &[String]) {
    let pool = PoolOptions::new().directory(backend_of_child()).create().unwrap();
    let mut draft = pool.take::<u32, _>(LENGTH).unwrap();
    let panics = |act: &mut dyn FnMut()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).is_err();
    wait(fork(|| panics(&mut || _ = draft.view_mut()) && panics(&mut || _ = draft.view())));
    draft.view_mut().fill(1);
    drop((draft, pool));
    say("done");
    hear();
}

fn a_forked_child_gets_no_view_of_a_draft(place: &Place) {
    let mut child = Child::start(place, "fork-draft", &[]);
    child.expect("done");
}

/// A process that forks a child, which tries to commit the inherited claim.
fn fork_claim(arguments: &[String]) {
    let backend = backend_of_child();
    // Where every attachment keeps its descriptor, a forked child is refused chunks of its own.
    let paints = backend.lock_survives_close().unwrap();
    let options = RenderOptions::new().directory(backend);
    let buffer = options.create::<u8, _>(arguments[0].as_str(), 64, 32, "").unwrap();
    let Claim::Chunk(claim) = buffer.claim(0).unwrap() else { panic!("no process else paints") };
    let mut claim = Some(claim);
    wait(fork(|| {
        let error = claim.take().expect("inherited").commit().unwrap_err();
        let painted = match buffer.claim(1) {
            Ok(Claim::Chunk(own)) => paints && own.commit().is_ok(),
            Ok(_) => false,
            Err(error) => !paints && matches!(error.kind, ErrorKind::Unsupported { .. }),
        };
        matches!(error.kind, ErrorKind::Unsupported { .. })
            && error.to_string().contains("claim a chunk here")
            && painted
    }));
    assert_eq!(buffer.progress().done, usize::from(paints), "the child's own chunk");
    assert!(matches!(buffer.claim(0).unwrap(), Claim::Busy), "it is still the parent's");
    claim.expect("the parent's").commit().unwrap();
    buffer.discard().unwrap();
    say("done");
    hear();
}

fn a_forked_child_cannot_commit_its_parents_claim(place: &Place) {
    let name = place.location("fork-claim");
    let mut child = Child::start(place, "fork-claim", &[name.as_str()]);
    child.expect("done");
}
