//! The entry protocol without an arena: single steps, and under loom every interleaving of two or three threads.

use std::sync::atomic::AtomicU64;

use super::*;

/// A table with one entry, and the holds of two processes on it.
struct Table<W, H> {
    entries: [BlockEntry<W>; 1],
    held: [[H; 1]; 2],
}

impl<W: Word, H: Holds> Table<W, H> {
    fn new(word: fn(u64) -> W, hold: fn(u32) -> H) -> Self {
        Self { entries: [BlockEntry::of(word(0), word(0))], held: [[hold(0)], [hold(0)]] }
    }

    /// Returns the table for the member in seat 0 or 1, each a process of its own.
    fn seen_by(&self, seat: u32) -> EntryTable<'_, W, H> {
        EntryTable::new(&self.entries, &self.held[seat as usize], seat)
    }

    fn word(&self) -> u64 {
        self.entries[0].word.load()
    }
}

fn plain() -> Table<AtomicU64, AtomicU32> {
    Table::new(AtomicU64::new, AtomicU32::new)
}

#[test]
fn block_is_taken_then_shared_then_freed() {
    let table = plain();
    let [one, two] = [table.seen_by(0), table.seen_by(1)];
    assert!(one.allocate(0));
    assert!(!one.allocate(0) && !two.allocate(0));
    assert_eq!(one.serial(0), None, "not shared");
    let serial = one.share(0);
    assert_eq!(one.serial(0), Some(serial));
    assert!(two.hold(0, serial));
    assert_eq!((table.entries[0].members(), table.entries[0].is_held_by(1)), (2, true));
    assert_eq!(one.release(0), Released::Held);
    assert_eq!(two.release(0), Released::Freed);
    assert!(!one.hold(0, serial) && !one.hold_invited(0));
    assert!(two.allocate(0));
    assert!(!one.hold(0, serial), "another block by now");
}

#[test]
fn second_release_of_a_hold_is_refused() {
    let table = plain();
    let [one, two] = [table.seen_by(0), table.seen_by(1)];
    assert_eq!(one.release(0), Released::NotHeld);
    assert!(one.allocate(0));
    assert_eq!(two.release(0), Released::NotHeld);
    assert_eq!(one.release(0), Released::Freed);
    assert_eq!(one.release(0), Released::NotHeld);
    assert_eq!(holders(table.word()), 0);
    assert_eq!(one.release(1), Released::NotHeld, "there is no such entry");
}

#[test]
fn several_holds_of_a_process_are_one_bit() {
    let table = plain();
    let [one, two] = [table.seen_by(0), table.seen_by(1)];
    assert!(one.allocate(0));
    let serial = one.share(0);
    for _ in 0..3 {
        assert!(two.hold(0, serial));
    }
    assert_eq!(table.entries[0].members(), 2);
    assert_eq!(one.release(0), Released::Held);
    assert_eq!([two.release(0), two.release(0)], [Released::Held; 2]);
    assert!(two.is_held_by_us_alone(0) && !one.is_held_by_us_alone(0));
    assert_eq!(two.release(0), Released::Freed);
}

#[test]
fn forged_bit_or_count_is_refused() {
    let table = plain();
    let one = table.seen_by(0);
    Word::store(&table.entries[0].word, 1);
    assert!(!one.hold_invited(0), "its process did not set this bit");
    Word::store(&table.entries[0].word, 2);
    assert!(one.hold_invited(0));
    Word::store(&table.entries[0].word, 2);
    assert_eq!(one.release(0), Released::NotHeld, "its bit was cleared");
    Holds::store(&table.held[0][0], CHANGING - 1);
    assert!(!one.hold_invited(0), "the number would overflow");
}

#[test]
fn only_sole_holder_takes_block_back() {
    let table = plain();
    let [one, two] = [table.seen_by(0), table.seen_by(1)];
    assert!(one.allocate(0));
    let serial = one.share(0);
    assert!(two.hold(0, serial) && !one.make_exclusive(0) && !two.make_exclusive(0));
    assert_eq!(two.release(0), Released::Held);
    assert!(one.hold(0, serial) && !one.make_exclusive(0));
    assert_eq!(one.release(0), Released::Held);
    assert!(one.make_exclusive(0));
    assert!(!two.hold(0, serial) && one.serial(0).is_none());
    let again = one.share(0);
    assert!(again > serial && !two.hold(0, serial) && two.hold(0, again));
}

#[test]
fn draft_has_no_handle_after_generations_wrap() {
    let table = plain();
    let one = table.seen_by(0);
    assert!(one.allocate(0));
    let serial = one.share(0);
    assert_eq!(one.release(0), Released::Freed);
    for _ in 0..(1 << 16) + 5 {
        assert!(one.allocate(0));
        assert_ne!(generation(table.word()), low(serial));
        assert_eq!(one.release(0), Released::Freed);
    }
    assert!(one.allocate(0));
    assert!(one.share(0) > serial);
}

#[test]
fn handle_in_flight_has_one_receiver() {
    let table = plain();
    let [one, two] = [table.seen_by(0), table.seen_by(1)];
    assert!(one.allocate_in_flight(0));
    assert!(!two.receive(0, 0), "not shared yet");
    let serial = one.share(0);
    assert!(table.entries[0].is_in_flight());
    assert!(two.receive(0, serial));
    assert!(!two.receive(0, serial) && !one.receive(0, serial));
    assert_eq!(two.release(0), Released::Held);
    assert_eq!(one.release(0), Released::Freed);
}

#[test]
fn producer_receives_or_revokes_its_own_handle() {
    let table = plain();
    let one = table.seen_by(0);
    assert!(one.allocate_in_flight(0));
    let serial = one.share(0);
    assert!(one.receive(0, serial));
    assert_eq!((one.release(0), one.release(0)), (Released::Held, Released::Freed));
    assert!(one.allocate_in_flight(0));
    assert!(table.entries[0].revoke() && !table.entries[0].revoke());
    assert_eq!(one.release(0), Released::Freed);
}

#[test]
fn orphaned_messages_keep_their_blocks() {
    let table = plain();
    let [one, two] = [table.seen_by(0), table.seen_by(1)];
    let entry = &table.entries[0];
    assert!(!entry.orphan(), "it is free");
    assert!(one.allocate(0));
    one.share(0);
    assert!(entry.orphan());
    assert!(!entry.clear_seat(0));
    assert!(entry.is_orphaned() && entry.members() == 0);
    assert!(two.hold_invited(0), "its message is received");
    assert!(!entry.release_orphan());
    assert_eq!(two.release(0), Released::Freed);
    assert!(!entry.release_orphan() && !entry.clear_seat(0), "repeating changes nothing");
}

#[test]
fn handle_in_flight_is_void_when_its_producer_dies() {
    let table = plain();
    let one = table.seen_by(0);
    assert!(one.allocate_in_flight(0));
    let serial = one.share(0);
    assert!(table.entries[0].clear_seat(0) && table.entries[0].is_free());
    assert!(!table.seen_by(1).receive(0, serial));
}

/// The same protocol with loom's atomics, in every interleaving.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod model {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, AtomicU64};
    use loom::thread;

    use super::*;

    impl Holds for AtomicU32 {
        fn load(&self) -> u32 {
            self.load(Ordering::Acquire)
        }

        fn store(&self, value: u32) {
            self.store(value, Ordering::Release);
        }

        fn exchange(&self, current: u32, new: u32) -> bool {
            self.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
        }

        fn pause() {
            thread::yield_now();
        }
    }

    /// One entry, and its block's elements: loom fails the test if one thread reads while another writes.
    struct Model {
        table: Table<AtomicU64, AtomicU32>,
        elements: loom::cell::UnsafeCell<u64>,
    }

    impl Model {
        fn new() -> Arc<Self> {
            let table = Table::new(AtomicU64::new, AtomicU32::new);
            Arc::new(Self { table, elements: loom::cell::UnsafeCell::new(0) })
        }

        /// Writes to the elements, as a draft does.
        fn write(&self) {
            self.elements.with_mut(|_elements| ());
        }

        /// Reads the elements, as an array does.
        fn look(&self) {
            self.elements.with(|_elements| ());
        }

        /// Makes a shared block that the member in seat 0 holds.
        fn shared() -> (Arc<Self>, u64) {
            let model = Self::new();
            assert!(model.table.seen_by(0).allocate(0));
            model.write();
            let serial = model.table.seen_by(0).share(0);
            (model, serial)
        }

        fn release(&self, seat: u32) -> Released {
            self.table.seen_by(seat).release(0)
        }
    }

    fn beside<R: 'static>(model: &Arc<Model>, action: impl FnOnce(&Model) -> R + 'static) -> thread::JoinHandle<R> {
        let model = Arc::clone(model);
        thread::spawn(move || action(&model))
    }

    #[test]
    fn one_of_two_members_allocates_a_block() {
        loom::model(|| {
            let model = Model::new();
            let take = |seat: u32| {
                move |model: &Model| {
                    let taken = model.table.seen_by(seat).allocate(0);
                    if taken {
                        model.write();
                    }
                    taken
                }
            };
            let other = beside(&model, take(1));
            let taken = [take(0)(&model), other.join().expect("it ends")];
            assert_eq!(taken.iter().filter(|taken| **taken).count(), 1);
            assert_eq!(model.table.entries[0].members(), 1);
        });
    }

    #[test]
    fn one_of_two_threads_allocates_a_block() {
        loom::model(|| {
            let model = Model::new();
            let other = beside(&model, |model| model.table.seen_by(0).allocate(0));
            let taken = [model.table.seen_by(0).allocate(0), other.join().expect("it ends")];
            assert_eq!(taken.iter().filter(|taken| **taken).count(), 1);
            assert_eq!(model.release(0), Released::Freed);
            assert_eq!(model.release(0), Released::NotHeld);
        });
    }

    /// A handle may be used at any time, also while its block is freed and filled with another array.
    #[test]
    fn handle_leads_to_its_own_array_or_none() {
        loom::model(|| {
            let (model, serial) = Model::shared();
            let reader = beside(&model, move |model| {
                let held = model.table.seen_by(1).hold(0, serial);
                if held {
                    model.look();
                    model.release(1);
                }
                held
            });
            model.release(0);
            if model.table.seen_by(0).allocate(0) {
                model.write();
                assert_ne!(model.table.seen_by(0).share(0), serial);
                model.release(0);
            }
            reader.join().expect("it ends");
            assert!(model.table.entries[0].is_free());
        });
    }

    /// A process can guess the handle that a draft will have. It must not lead to the draft before the draft is shared.
    #[test]
    fn guessed_handle_leads_to_no_draft() {
        loom::model(|| {
            let model = Model::new();
            let guesser = beside(&model, |model| {
                if model.table.seen_by(1).hold(0, 1) {
                    model.look();
                    model.release(1);
                }
            });
            if model.table.seen_by(0).allocate(0) {
                model.write();
                assert_eq!(model.table.seen_by(0).share(0), 1);
                model.look();
                model.release(0);
            }
            guesser.join().expect("it ends");
            assert!(model.table.entries[0].is_free());
        });
    }

    #[test]
    fn block_taken_back_has_no_other_member() {
        loom::model(|| {
            let (model, serial) = Model::shared();
            let reader = beside(&model, move |model| {
                if model.table.seen_by(1).hold(0, serial) {
                    model.look();
                    model.release(1);
                }
            });
            if model.table.seen_by(0).make_exclusive(0) {
                model.write();
            }
            model.release(0);
            reader.join().expect("it ends");
            assert!(model.table.entries[0].is_free());
        });
    }

    #[test]
    fn block_taken_back_has_no_other_thread() {
        loom::model(|| {
            let (model, serial) = Model::shared();
            let reader = beside(&model, move |model| {
                if model.table.seen_by(0).hold(0, serial) {
                    model.look();
                    model.release(0);
                }
            });
            if model.table.seen_by(0).make_exclusive(0) {
                model.write();
            }
            model.release(0);
            reader.join().expect("it ends");
            assert!(model.table.entries[0].is_free());
        });
    }

    /// One thread of a process gives up the last hold while another adds one: bit and count must agree.
    #[test]
    fn bit_of_a_process_goes_with_its_last_hold() {
        loom::model(|| {
            let (model, serial) = Model::shared();
            assert!(model.table.seen_by(1).hold(0, serial));
            model.release(0);
            let other = beside(&model, move |model| {
                let held = model.table.seen_by(1).hold(0, serial);
                if held {
                    model.look();
                }
                held
            });
            model.release(1);
            let held = other.join().expect("it ends");
            assert_eq!(model.table.entries[0].is_held_by(1), held);
            assert_eq!(model.table.seen_by(1).is_held_by_us_alone(0), held);
        });
    }

    #[test]
    fn two_threads_hold_at_once() {
        loom::model(|| {
            let (model, serial) = Model::shared();
            let other = beside(&model, move |model| model.table.seen_by(1).hold(0, serial));
            assert!(model.table.seen_by(1).hold(0, serial));
            assert!(other.join().expect("it ends"), "the member in seat 0 holds it all the time");
            assert_eq!([model.release(1), model.release(1)], [Released::Held; 2]);
            assert_eq!(model.release(1), Released::NotHeld);
            assert_eq!((model.table.entries[0].members(), model.release(0)), (1, Released::Freed));
        });
    }

    #[test]
    fn thread_holds_while_another_thread_releases() {
        loom::model(|| {
            let (model, serial) = Model::shared();
            assert!(model.table.seen_by(1).hold(0, serial));
            let other = beside(&model, move |model| model.table.seen_by(1).hold(0, serial));
            assert_eq!(model.release(1), Released::Held);
            assert!(other.join().expect("it ends"), "the member in seat 0 holds it all the time");
            assert!(model.table.entries[0].is_held_by(1));
            assert_eq!(model.release(1), Released::Held);
            assert_eq!(model.table.entries[0].members(), 1);
        });
    }

    #[test]
    fn handle_in_flight_is_received_once() {
        loom::model(|| {
            let model = Model::new();
            assert!(model.table.seen_by(0).allocate_in_flight(0));
            let serial = model.table.seen_by(0).share(0);
            let other = beside(&model, move |model| model.table.seen_by(1).receive(0, serial));
            let received = [model.table.seen_by(0).receive(0, serial), other.join().expect("it ends")];
            assert_eq!(received.iter().filter(|received| **received).count(), 1, "{received:?}");
            assert!(!model.table.entries[0].is_in_flight());
        });
    }

    /// Holds are reclaimed twice, as if the first reclaiming process had been killed before it set the seat's state.
    /// Meanwhile another member gets the block by its handle, and allocates it when it is free.
    #[test]
    fn holds_are_reclaimed_again_while_block_is_used() {
        loom::model(|| {
            let (model, serial) = Model::shared();
            let user = beside(&model, move |model| {
                if model.table.seen_by(1).hold(0, serial) {
                    model.look();
                    model.release(1);
                }
                if model.table.seen_by(1).allocate(0) {
                    model.write();
                    model.release(1);
                }
            });
            model.table.entries[0].clear_seat(0);
            model.table.entries[0].clear_seat(0);
            user.join().expect("it ends");
            assert!(model.table.entries[0].is_free());
        });
    }

    /// First the dead member's bit keeps the block, then ORPHAN. Another member tries to allocate it meanwhile.
    #[test]
    fn orphaned_block_is_never_free_in_between() {
        loom::model(|| {
            let (model, _) = Model::shared();
            let taker = beside(&model, |model| model.table.seen_by(1).allocate(0));
            assert!(model.table.entries[0].orphan());
            model.table.entries[0].clear_seat(0);
            assert!(!taker.join().expect("it ends"));
            assert!(model.table.seen_by(1).hold_invited(0));
            assert!(!model.table.entries[0].release_orphan());
            assert_eq!(model.release(1), Released::Freed);
        });
    }
}
