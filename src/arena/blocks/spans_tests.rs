//! Spans are joined, used and freed, also after a member was killed between two exchanges.

use std::time::Duration;

use super::*;
use crate::arena::tables::geometry::Geometry;
use crate::backend::lock_space::RECOVER;
use crate::backend::{Directory, DraftOptions, Location};
use crate::segment::Home;
use crate::segment::footer::Kind;

const SPANS: u32 = 8;

fn geometry() -> Geometry {
    Geometry { spans: SPANS, queues: 0, cells: 0, sparse: false, counters: false, creator: 0 }
}

/// Makes an arena with two members, in a temporary directory.
fn members() -> (tempfile::TempDir, ArenaHeader, ArenaHeader) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let backend = Directory::new("test", directory.path());
    let home = Home { backend, location: Location::new("spans").expect("a name") };
    let one = ArenaHeader::create(home.clone(), Kind::Arena, geometry(), DraftOptions::default(), false).expect("room");
    let two = ArenaHeader::open(home, Kind::Arena, false).expect("it is there");
    (directory, one, two)
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn join(header: &ArenaHeader, spans: u32, from: u32) -> Option<Area> {
    header.join_spans(spans, from, &header.turn_at_spans(soon()).expect("a turn"))
}

fn kinds(header: &ArenaHeader) -> Vec<u64> {
    (0..SPANS).map(|span| header.span(span).expect("the span exists").kind()).collect()
}

/// Sets a span's word as one exchange of a member does.
fn set(header: &ArenaHeader, span: u32, kind: u64, value: u64) {
    let word = &header.spans()[span as usize];
    header.touch(span + 1);
    word.store(Span(word.load(Ordering::Relaxed)).become_(kind, value).0, Ordering::Relaxed);
}

#[test]
fn run_is_joined_used_and_freed() {
    let (_directory, one, two) = members();
    let area = join(&one, 3, 0).expect("free spans");
    assert_eq!(kinds(&one), [HEAD, PART, PART, FREE, FREE, FREE, FREE, FREE]);
    assert_eq!(two.take_block(area, 0), Some(0));
    assert_eq!(one.take_block(area, 0), None);
    assert_eq!(one.free_unused_spans(soon()).expect("a turn"), 0, "the other member holds it");
    two.release(ArenaHeader::first_entry(area.span)).expect("it was held");
    assert_eq!(one.free_unused_spans(soon()).expect("a turn"), 3);
    assert_eq!(kinds(&one), [FREE; SPANS as usize]);
    assert_eq!(two.take_block(area, 0), None, "the area was freed");
    assert!(two.entries().allocate(0), "the entry is free");
}

#[test]
fn run_is_joined_between_used_spans() {
    let (_directory, one, _two) = members();
    for span in [1, 4] {
        set(&one, span, BLOCKS, 0);
    }
    assert_eq!(join(&one, 4, 0), None);
    assert_eq!(join(&one, 3, 2).expect("at the end").span, 5);
    assert_eq!(join(&one, 2, 7).expect("in the middle").span, 2);
    assert_eq!(join(&one, 1, 9).expect("at the beginning").span, 0);
    assert_eq!(join(&one, 1, 0), None);
    assert_eq!(join(&one, 9, 0), None);
}

/// A member is killed after each exchange of joining a run of three, and of taking one apart.
#[test]
fn loose_spans_of_killed_member_are_freed() {
    let making = [&[PART][..], &[PART, PART], &[PART, PART, PART]];
    let taking_apart = [&[PART, PART, PART][..], &[FREE, PART, PART], &[FREE, FREE, PART]];
    for state in making.iter().chain(&taking_apart) {
        let (_directory, one, two) = members();
        set(&one, 0, HEAD, 2);
        set(&one, 1, PART, 0);
        for (span, kind) in (2..).zip(*state) {
            set(&one, span, *kind, 0);
        }
        one.free_loose_spans(soon()).expect("a turn");
        assert_eq!(kinds(&one), [HEAD, PART, FREE, FREE, FREE, FREE, FREE, FREE], "{state:?}");
        drop(two);
    }
}

#[test]
fn span_of_killed_member_is_freed_after_reclaim() {
    let (_directory, one, two) = members();
    let area = one.cut_span(26, 0).expect("a free span");
    // The second member has taken one of two blocks, as if it were killed while freeing the span. Its seat is reclaimed
    // below.
    assert_eq!(two.take_block(area, 0), Some(0));
    assert_eq!(one.free_unused_spans(soon()).expect("a turn"), 0);
    let turn = one.turn(RECOVER, soon()).expect("a turn");
    assert_eq!(one.reclaim_seat(two.own_seat(), &turn, soon()).expect("a turn"), 1);
    assert_eq!(one.reclaim_seat(two.own_seat(), &turn, soon()).expect("again"), 0);
    drop(turn);
    assert_eq!(one.free_unused_spans(soon()).expect("a turn"), 1);
}

#[test]
fn run_with_foreign_parts_is_refused() {
    let (_directory, one, _two) = members();
    set(&one, 6, HEAD, 5);
    let beyond = Area { span: 6, word: one.span(6).expect("it is there") };
    assert_eq!(one.take_block(beyond, 0), None);
    set(&one, 2, HEAD, 2);
    set(&one, 3, BLOCKS, 0);
    let overlapping = Area { span: 2, word: one.span(2).expect("it is there") };
    assert_eq!(one.take_block(overlapping, 0), None);
    assert!(one.entry_table().iter().all(crate::arena::tables::entries::BlockEntry::is_free));
    assert_eq!(one.locate(ArenaHeader::first_entry(6)), None);
}
