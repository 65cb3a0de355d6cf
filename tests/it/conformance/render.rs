//! Renderbuffers: claims, commits, finishing, and what excludes what. `crashes.rs` kills painters, `steps/render.rs`
//! stops and kills processes that begin, finish or discard a buffer.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::Array;
use ndarray_shm::array::Description;
use ndarray_shm::render::OtherWork;
use ndarray_shm::render::{self, Claim, RenderOptions};
use ndarray_shm::{DType, Directory, Error, ErrorKind, Location, NextClaim, Order, Pages, RenderBuffer};

use crate::support::{Name, Place, eventually, rounds};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "render",
        tests![
            chunk_has_one_claim_at_a_time,
            finished_buffer_has_only_its_name,
            chunks_can_be_read_while_others_are_painted,
            finish_returns_an_incomplete_buffer,
            claim_and_write_guard_exclude_each_other,
            clearing_a_stale_ledger_spares_a_concurrent_buffer,
            discard_spares_a_concurrent_buffer,
            unlinked_buffer_keeps_its_memory_and_refuses_claims,
            create_fails_when_another_process_finished_meanwhile,
            joiner_that_chose_sparse_leaves_holes,
            joiner_fills_the_holes_of_a_sparse_buffer,
            many_chunks_are_claimed_past_a_slow_one,
            payload_without_ledger_does_not_block_create,
            abandoned_buffer_of_other_work_is_replaced,
            attached_buffer_of_other_work_is_not_replaced,
            refused_replacement_keeps_the_abandoned_buffer,
            late_painter_gets_the_finished_array,
            finished_array_of_other_work_is_refused_or_replaced,
            array_that_does_not_say_its_work_is_refused,
            buffer_that_is_finished_meanwhile_is_accepted,
            digest_fits_beside_the_notes,
        ],
    )
}

/// Creates or joins a buffer of 6 x 10 elements in 2 x 4 chunks.
fn buffer(place: &Place, name: &Name) -> RenderBuffer<u32, ndarray::Ix2> {
    place.render_options().create(name.location(), (6, 10), (4, 3), "a test").unwrap()
}

/// Paints every element of every free chunk with its own index.
fn paint(buffer: &RenderBuffer<u32, ndarray::Ix2>) -> usize {
    let mut painted = 0;
    while let NextClaim::Chunk(mut chunk) = buffer.claim_next().unwrap() {
        let (rows, columns) = (chunk.region()[0].start, chunk.region()[1].start);
        chunk.view_mut().indexed_iter_mut().for_each(|((i, j), value)| *value = ((rows + i) * 10 + columns + j) as u32);
        chunk.commit().unwrap();
        painted += 1;
    }
    painted
}

fn chunk_has_one_claim_at_a_time(place: &Place) {
    let name = place.location("claims");
    let (one, two) = (buffer(place, &name), buffer(place, &name));
    let NextClaim::Chunk(first) = one.claim_next().unwrap() else { panic!("all are free") };
    assert_eq!(first.index(), 0);
    let NextClaim::Chunk(second) = two.claim_next().unwrap() else { panic!("seven are free") };
    assert_eq!(second.index(), 1, "the first is busy");
    assert!(matches!(two.claim(0).unwrap(), Claim::Busy));
    drop(first);
    let Claim::Chunk(first) = two.claim(0).unwrap() else { panic!("dropped, so free again") };
    first.commit().unwrap();
    assert!(matches!(one.claim(0).unwrap(), Claim::Done));
    assert_eq!((one.progress().done, two.progress().total), (1, 8));
    drop(second);
}

fn finished_buffer_has_only_its_name(place: &Place) {
    let name = place.location("finish");
    let one = buffer(place, &name);
    assert!(place.open_options().open::<u32, _>(name.location(), (6, 10)).unwrap_err().is_not_found());
    assert_eq!(place.files_of(&name).len(), 2, "payload and ledger under reserved names");
    assert!(ndarray_shm::render::attached(&place.backend, name.location()).unwrap());
    assert_eq!(paint(&one), 8);
    one.wait(Duration::ZERO).unwrap();
    let two = buffer(place, &name);
    let array = one.finish().unwrap();
    assert_eq!(place.files_of(&name), [name.as_str()]);
    let expected = Array::from_shape_fn((6, 10), |(i, j)| (i * 10 + j) as u32);
    assert_eq!(*array.read().unwrap(), *expected);
    assert!(matches!(two.claim_next().unwrap(), NextClaim::AllDone));
    assert_eq!(*two.finish().unwrap().read().unwrap(), *expected, "the second to finish gets the same array");
    let again = place.render_options().create::<u32, _>(name.location(), (6, 10), (4, 3), "a test");
    assert_eq!(again.unwrap_err().kind, ErrorKind::AlreadyExists);
}

fn chunks_can_be_read_while_others_are_painted(place: &Place) {
    let name = place.location("chunk");
    let buffer = buffer(place, &name);
    assert!(buffer.chunk(0).unwrap().is_none());
    let Claim::Chunk(mut claim) = buffer.claim(5).unwrap() else { panic!("free") };
    claim.view_mut().fill(6);
    claim.commit().unwrap();
    let Claim::Chunk(busy) = buffer.claim(0).unwrap() else { panic!("free") };
    let chunk = buffer.chunk(5).unwrap().expect("finished");
    assert_eq!((chunk.shape(), chunk.region()), ([2, 3].as_slice(), [4..6, 3..6].as_slice()));
    assert_eq!(chunk.sum(), 36);
    drop(busy);
}

fn finish_returns_an_incomplete_buffer(place: &Place) {
    let name = place.location("incomplete");
    let buffer = buffer(place, &name);
    let error = buffer.finish().unwrap_err();
    assert!(matches!(error.error().kind, ErrorKind::Incomplete { done: 0, total: 8, .. }), "{error}");
    let buffer = error.into_inner();
    paint(&buffer);
    buffer.finish().unwrap();
}

fn claim_and_write_guard_exclude_each_other(place: &Place) {
    let name = place.location("claim-write");
    let buffer = buffer(place, &name);
    // The payload has a reserved name while it is painted; under a second, ordinary name any program could open it.
    let partial = place.files_of(&name).into_iter().find(|file| file.contains("part")).expect("a payload");
    let alias = place.location("claim-write-alias");
    std::fs::hard_link(place.directory().join(partial), place.path(&alias)).unwrap();
    let array = place.open_options().open::<u32, _>(alias.location(), (6, 10)).unwrap();
    let Claim::Chunk(claim) = buffer.claim(3).unwrap() else { panic!("free") };
    assert_eq!(array.try_write().unwrap_err().kind, ErrorKind::WouldBlock);
    assert_eq!(array.write().unwrap_err().kind, ErrorKind::WouldDeadlock);
    drop(claim);
    let writer = array.try_write().unwrap();
    assert!(matches!(buffer.claim_next().unwrap(), NextClaim::Busy));
    assert!(matches!(buffer.claim_next_wait(Duration::from_millis(20)).unwrap(), NextClaim::Busy));
    drop(writer);
    std::thread::scope(|scope| {
        let reader = array.read().unwrap();
        let painter =
            scope.spawn(|| matches!(buffer.claim_next_wait(Duration::from_secs(60)).unwrap(), NextClaim::Chunk(_)));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!painter.is_finished());
        drop(reader);
        assert!(painter.join().unwrap());
    });
    eventually("the claim is released", || matches!(buffer.claim(0).unwrap(), Claim::Chunk(_)));
}

/// Acts once, just before the first such operation on a file with `kind` in its name. Returns the backend to use, and
/// where the result will be.
fn once_before<R: Send + 'static>(
    place: &Place,
    (operation, kind): (&'static str, &'static str),
    act: impl FnOnce() -> R + Send + 'static,
) -> (Directory, Arc<Mutex<Option<R>>>) {
    let done = Arc::new(Mutex::new(None));
    let (act, result) = (Mutex::new(Some(act)), Arc::clone(&done));
    let backend = place.meddling(move |now, location| {
        if now == operation && location.is_some_and(|location| location.as_str().contains(kind)) {
            let act = act.lock().unwrap().take();
            if let Some(act) = act {
                *result.lock().unwrap() = Some(act());
            }
        }
        Ok(())
    });
    (backend, done)
}

/// Creates or joins the same buffer as `buffer` does, through another backend.
fn begin(backend: Directory, location: &Location) -> ndarray_shm::Result<RenderBuffer<u32, ndarray::Ix2>> {
    RenderOptions::new().directory(backend).create(location, (6, 10), (4, 3), "a test")
}

/// Acts as another process might: creates or joins the buffer and commits one chunk.
fn begin_and_paint_one(place: &Place, name: &Name) -> impl FnOnce() -> RenderBuffer<u32, ndarray::Ix2> + Send + use<> {
    let (backend, location) = (place.backend.clone(), name.location().clone());
    move || {
        let other = begin(backend, &location).unwrap();
        let NextClaim::Chunk(chunk) = other.claim_next().unwrap() else { panic!("all are free") };
        chunk.commit().unwrap();
        other
    }
}

fn clearing_a_stale_ledger_spares_a_concurrent_buffer(place: &Place) {
    let name = place.location("stale");
    drop(buffer(place, &name));
    let partial = place.files_of(&name).into_iter().find(|file| file.contains("part")).expect("a payload");
    // As if its creator had died before the payload had a name.
    std::fs::remove_file(place.directory().join(partial)).unwrap();
    let (backend, other) = once_before(place, ("unlink", "-ledger-"), begin_and_paint_one(place, &name));
    let mine = begin(backend, name.location()).unwrap();
    let other = other.lock().unwrap().take().expect("began in between");
    assert_eq!(mine.progress().done, 1, "the same buffer");
    let NextClaim::Chunk(chunk) = other.claim_next().unwrap() else { panic!("seven are free") };
    assert!(matches!(mine.claim(chunk.index()).unwrap(), Claim::Busy), "the same payload");
}

fn discard_spares_a_concurrent_buffer(place: &Place) {
    let name = place.location("discard");
    drop(buffer(place, &name));
    let (backend, other) = once_before(place, ("unlink", "-part-"), begin_and_paint_one(place, &name));
    assert!(ndarray_shm::render::discard(&backend, name.location()).unwrap());
    let other = other.lock().unwrap().take().expect("began in between");
    assert!(matches!(other.claim_next().unwrap(), NextClaim::Chunk(_)));
    assert_eq!(buffer(place, &name).progress().done, 1);
}

fn unlinked_buffer_keeps_its_memory_and_refuses_claims(place: &Place) {
    let name = place.location("unlinked");
    let old = buffer(place, &name);
    let NextClaim::Chunk(mut claim) = old.claim_next().unwrap() else { panic!("a free chunk") };
    old.unlink().unwrap();
    assert!(place.files_of(&name).is_empty());
    claim.view_mut().fill(1); // mapped as before
    drop(claim);
    assert_eq!(old.claim_next().unwrap_err().kind, ErrorKind::Unlinked);
    let new = buffer(place, &name);
    old.unlink().unwrap();
    assert!(matches!(new.claim_next().unwrap(), NextClaim::Chunk(_)), "a newer buffer is spared");
    new.discard().unwrap();
    assert!(place.files_of(&name).is_empty());
}

fn create_fails_when_another_process_finished_meanwhile(place: &Place) {
    let name = place.location("finished-meanwhile");
    let finish = {
        let (backend, location) = (place.backend.clone(), name.location().clone());
        move || {
            let other = begin(backend, &location).unwrap();
            paint(&other);
            other.finish().unwrap()
        }
    };
    let (backend, other) = once_before(place, ("publish", "-ledger-"), finish);
    assert_eq!(begin(backend, name.location()).unwrap_err().kind, ErrorKind::AlreadyExists);
    assert!(other.lock().unwrap().is_some());
    assert_eq!(place.files_of(&name), [name.as_str()]);
}

/// Returns the allocated bytes of the payload of an unfinished buffer.
fn allocated_of_payload(place: &Place, name: &Name) -> u64 {
    let partial = place.files_of(name).into_iter().find(|file| file.contains("part")).expect("a payload");
    place.allocated(&partial)
}

fn joiner_that_chose_sparse_leaves_holes(place: &Place) {
    let name = place.location("sparse-buffer");
    let options = |pages| place.render_options().pages(pages);
    let create = || options(Pages::Sparse).create::<u8, _>(name.location(), 1 << 20, 1 << 16, "sparse").unwrap();
    let buffers = [create(), create()];
    let joined = options(Pages::Sparse).open::<u8, ndarray::Ix1>(name.location()).unwrap();
    // Options that only the creator can choose are refused, not ignored.
    for chosen in [options(Pages::Huge), options(Pages::Base), place.render_options().chunk_offset(&[1])] {
        let refused = chosen.open::<u8, ndarray::Ix1>(name.location()).unwrap_err();
        assert!(matches!(refused.kind, ErrorKind::InvalidSetting { .. }), "{refused}");
    }
    assert_eq!(allocated_of_payload(place, &name) < 1 << 18, place.has_holes());
    drop((buffers, joined));
}

/// The creator may touch pages that get no memory. A joiner has not chosen that.
fn joiner_fills_the_holes_of_a_sparse_buffer(place: &Place) {
    let name = place.location("filled-buffer");
    let create = |pages| {
        let options = place.render_options().pages(pages);
        options.create::<u8, _>(name.location(), 1 << 20, 1 << 16, "sparse")
    };
    let open = || place.render_options().open::<u8, ndarray::Ix1>(name.location());
    let sparse = create(Pages::Sparse).unwrap();
    for join in [&open as &dyn Fn() -> _, &|| create(Pages::Auto)] {
        match join() {
            Err(error) if place.has_holes() && !Place::FILLS_HOLES => {
                assert!(matches!(error.kind, ErrorKind::Unsupported { .. }), "{error}");
            }
            joined => {
                joined.unwrap();
                assert!(allocated_of_payload(place, &name) >= 1 << 20);
            }
        }
    }
    drop(sparse);
}

fn payload_without_ledger_does_not_block_create(place: &Place) {
    let name = place.location("without-ledger");
    let viewer = buffer(place, &name);
    // A discard that fails at the payload.
    let stuck = place.meddling(|operation, at| match at {
        Some(at) if operation == "unlink" && at.as_str().contains("part") => Err(ErrorKind::WouldBlock.at(at)),
        _ => Ok(()),
    });
    assert!(render::discard(&stuck, name.location()).is_err());
    let options = || place.render_options().timeout(Duration::ZERO);
    assert!(options().open::<u32, ndarray::Ix2>(name.location()).unwrap_err().is_not_found());
    let began = options().create::<u32, _>(name.location(), (6, 10), (4, 3), "a test").unwrap();
    assert_eq!(viewer.claim_next().unwrap_err().kind, ErrorKind::Unlinked);
    assert_eq!(paint(&began), 8);
}

/// The work of any other run: another shape, type or fingerprint.
fn abandoned_buffer_of_other_work_is_replaced(place: &Place) {
    let name = place.location("abandoned");
    let pool = place.pool_options().create().unwrap();
    let options = || place.render_options();
    for is_pooled in [false, true] {
        // A pool lives on in this process, and keeps nothing of an unfinished buffer attached.
        let first = if is_pooled { options().pool(&pool) } else { options() };
        drop(first.create::<u32, _>(name.location(), (6, 10), (4, 3), "a").unwrap());
        let refused = options().create::<u8, _>(name.location(), (6, 11), (4, 3), "b").unwrap_err();
        assert!(matches!(refused.kind, ErrorKind::Mismatch { state: OtherWork::Idle, .. }), "{refused}");
        assert!(refused.to_string().contains("no process is attached"), "{refused}");
        for options in [options(), options().pool(&pool)] {
            let new = options.replace(true).create::<u8, _>(name.location(), (6, 11), (4, 3), "b").unwrap();
            let NextClaim::Chunk(chunk) = new.claim_next().unwrap() else { panic!("all are free") };
            chunk.commit().unwrap();
            assert_eq!(place.files_of(&name).len(), 2);
        }
        let resumed = options().create::<u8, _>(name.location(), (6, 11), (4, 3), "b").unwrap();
        assert_eq!(resumed.progress().done, 2, "the second call joined the first one's buffer");
        resumed.discard().unwrap();
    }
}

fn attached_buffer_of_other_work_is_not_replaced(place: &Place) {
    let name = place.location("attached");
    let painting = buffer(place, &name);
    for replace in [false, true] {
        let options = place.render_options().replace(replace);
        let refused = options.create::<u32, _>(name.location(), (6, 10), (4, 3), "other").unwrap_err();
        assert!(matches!(refused.kind, ErrorKind::Mismatch { state: OtherWork::Attached, .. }), "{refused}");
        assert!(refused.to_string().contains("a process is attached"), "{refused}");
    }
    assert_eq!(paint(&painting), 8);
    painting.finish().unwrap();
    // A finished array is replaced as before, when the new one is finished.
    let options = place.render_options().replace(true);
    let other = options.create::<u32, _>(name.location(), (6, 10), (4, 3), "other").unwrap();
    assert_eq!(paint(&other), 8);
    other.finish().unwrap();
}

fn refused_replacement_keeps_the_abandoned_buffer(place: &Place) {
    let name = place.location("kept");
    drop(buffer(place, &name));
    std::fs::create_dir(place.path(&name)).unwrap();
    let options = place.render_options().replace(true);
    let refused = options.create::<u32, _>(name.location(), (6, 10), (4, 3), "other").unwrap_err();
    std::fs::remove_dir(place.path(&name)).unwrap();
    assert!(matches!(refused.kind, ErrorKind::NotAnArray { .. }), "{refused}");
    assert_eq!(buffer(place, &name).progress().total, 8);
    assert!(render::discard(&place.backend, name.location()).unwrap());
}

/// Creates or joins the same buffer as `buffer` does, or accepts the finished array.
fn accept(place: &Place, name: &Name, work: &str) -> ndarray_shm::Result<RenderBuffer<u32, ndarray::Ix2>> {
    place.render_options().accept_finished(true).create(name.location(), (6, 10), (4, 3), work)
}

fn late_painter_gets_the_finished_array(place: &Place) {
    let name = place.location("late");
    assert_eq!(paint(&accept(place, &name, "a test").unwrap()), 8);
    let array = accept(place, &name, "a test").unwrap().finish().unwrap();
    if !place.describes() {
        assert_eq!(accept(place, &name, "a test").unwrap_err().kind, ErrorKind::AlreadyExists);
        return;
    }
    let late = accept(place, &name, "a test").unwrap();
    assert_eq!((late.progress().done, late.progress().total, late.fingerprint()), (8, 8, "a test"));
    late.wait(Duration::ZERO).unwrap();
    assert!(matches!(late.claim_next().unwrap(), NextClaim::AllDone));
    assert!(matches!(late.claim(7).unwrap(), Claim::Done));
    assert_eq!(late.chunk(7).unwrap().expect("finished").sum(), 49 + 59);
    // Its chunks are locked like those of an array: a writer excludes their readers.
    let writer = array.write().unwrap();
    assert_eq!(late.chunk(0).unwrap_err().kind, ErrorKind::WouldDeadlock);
    drop(writer);
    late.unlink().unwrap();
    assert_eq!(place.files_of(&name), [name.as_str()], "a finished array is not discarded");
    let same = late.finish().unwrap();
    same.write().unwrap()[[0, 0]] = 99;
    assert_eq!(array.read().unwrap()[[0, 0]], 99, "the same memory");
    let late = accept(place, &name, "a test").unwrap();
    assert!(place.backend.unlink(name.location()).unwrap());
    assert_eq!(late.finish().unwrap_err().error().kind, ErrorKind::Unlinked, "the name has gone since");
}

fn finished_array_of_other_work_is_refused_or_replaced(place: &Place) {
    let name = place.location("other-work");
    let first = buffer(place, &name);
    paint(&first);
    let first = first.finish().unwrap();
    let refused = |error: Error| match error {
        Error { kind: ErrorKind::Mismatch { state: OtherWork::Finished, .. }, .. } => assert!(place.describes()),
        Error { kind: ErrorKind::AlreadyExists, .. } => assert!(!place.describes()),
        other => panic!("{other}"),
    };
    refused(accept(place, &name, "other").unwrap_err());
    let options = || place.render_options().accept_finished(true);
    refused(options().create::<u32, _>(name.location(), (6, 10), (4, 4), "a test").unwrap_err());
    refused(options().create::<u32, _>(name.location(), (10, 6), (4, 3), "a test").unwrap_err());
    refused(options().create::<u8, _>(name.location(), (6, 10), (4, 3), "a test").unwrap_err());
    // Both options: other work is replaced, and the same work accepted.
    let both = || options().replace(true).create::<u32, _>(name.location(), (6, 10), (4, 3), "other").unwrap();
    let buffer = both();
    assert_eq!((buffer.progress().done, paint(&buffer)), (0, 8));
    buffer.finish().unwrap();
    if place.describes() {
        assert_eq!(both().progress().done, 8);
    }
    drop(first);
}

fn array_that_does_not_say_its_work_is_refused(place: &Place) {
    let name = place.location("no-work");
    let plain = place.options().create::<u32, _>(name.location(), (6, 10)).unwrap();
    assert_eq!(accept(place, &name, "a test").unwrap_err().kind, ErrorKind::AlreadyExists);
    drop(plain);
    if !place.describes() {
        return;
    }
    // The note of an array of another type, which a program that replaced the bytes has left.
    let digest = {
        let done = place.location("with-work");
        paint(&buffer(place, &done));
        buffer(place, &done).finish().unwrap();
        place.backend.description(done.location()).unwrap().unwrap().note("work").unwrap().to_owned()
    };
    let described = place.backend.description(name.location()).unwrap().unwrap();
    place.backend.describe(name.location(), &described.with_note("work", &digest).unwrap()).unwrap();
    assert_eq!(accept(place, &name, "a test").unwrap().progress().done, 8, "the note is a claim");
    let wrong = Description::new(DType::F32, &[6, 10], Order::C).unwrap().with_note("work", &digest).unwrap();
    place.backend.describe(name.location(), &wrong).unwrap();
    assert_eq!(accept(place, &name, "a test").unwrap_err().kind, ErrorKind::AlreadyExists);
}

fn buffer_that_is_finished_meanwhile_is_accepted(place: &Place) {
    if !place.describes() {
        return;
    }
    for replace in [false, true] {
        let name = place.location("meanwhile");
        let finish = {
            let (backend, location) = (place.backend.clone(), name.location().clone());
            move || {
                let other = begin(backend, &location).unwrap();
                paint(&other);
                other.finish().unwrap()
            }
        };
        // After the look at both names, and just before this process begins a buffer.
        let (backend, other) = once_before(place, ("publish", "-ledger-"), finish);
        let options = RenderOptions::new().directory(backend).accept_finished(true).replace(replace);
        let late = options.create::<u32, _>(name.location(), (6, 10), (4, 3), "a test").unwrap();
        assert!(other.lock().unwrap().is_some());
        assert_eq!(late.progress().done, 8, "replace: {replace}");
        assert_eq!(place.files_of(&name), [name.as_str()]);
    }
}

fn digest_fits_beside_the_notes(place: &Place) {
    let name = place.location("notes");
    let note = |key: &str, length: usize| {
        let options = place.render_options().note(key, &"x".repeat(length));
        options.create::<u32, _>(name.location(), (6, 10), (4, 3), "a test")
    };
    assert!(matches!(note("work", 3).unwrap_err().kind, ErrorKind::InvalidSetting { .. }), "the library's own key");
    assert!(
        matches!(note("source", 3450).unwrap_err().kind, ErrorKind::InvalidSetting { .. }),
        "no room beside the digest"
    );
    let longest = note("source", 3380).unwrap();
    paint(&longest);
    longest.finish().unwrap();
    assert_eq!(accept(place, &name, "a test").is_ok(), place.describes());
}

fn many_chunks_are_claimed_past_a_slow_one(place: &Place) {
    let name = place.location("slow-one");
    let options = place.render_options();
    let chunks = rounds(2000);
    let buffer = options.create::<u8, _>(name.location(), chunks, 1, "slow").unwrap();
    let NextClaim::Chunk(slow) = buffer.claim_next().unwrap() else { panic!("all are free") };
    for expected in 1..chunks {
        let NextClaim::Chunk(chunk) = buffer.claim_next().unwrap() else { panic!("{expected} is free") };
        assert_eq!(chunk.index(), expected);
        chunk.commit().unwrap();
    }
    assert!(matches!(buffer.claim_next().unwrap(), NextClaim::Busy));
    drop(slow);
    let NextClaim::Chunk(again) = buffer.claim_next().unwrap() else { panic!("the slow one is free again") };
    assert_eq!(again.index(), 0);
}
