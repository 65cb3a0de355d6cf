//! The slots' protocol by itself: step by step, and with every interleaving of two or three threads.

use std::sync::atomic::AtomicU64;

use super::*;

/// A table with one slot, and the holds of two processes on it.
struct Table<W, H> {
    slots: [Slot<W>; 1],
    held: [[H; 1]; 2],
}

impl<W: Word, H: Holds> Table<W, H> {
    fn new(word: fn(u64) -> W, hold: fn(u32) -> H) -> Self {
        Self { slots: [Slot::of(word(0), word(0))], held: [[hold(0)], [hold(0)]] }
    }

    /// The table as the member in seat 0 or 1 sees it, each a process of its own.
    fn seen_by(&self, seat: u32) -> Slots<'_, W, H> {
        Slots::new(&self.slots, &self.held[seat as usize], seat)
    }

    fn word(&self) -> u64 {
        self.slots[0].word.load()
    }
}

fn plain() -> Table<AtomicU64, AtomicU32> {
    Table::new(AtomicU64::new, AtomicU32::new)
}

#[test]
fn a_block_is_one_members_then_everybodys_then_nobodys() {
    let table = plain();
    let [one, two] = [table.seen_by(0), table.seen_by(1)];
    assert!(one.allocate(0));
    assert!(!one.allocate(0) && !two.allocate(0));
    assert_eq!(one.serial(0), None, "not shared");
    let serial = one.share(0);
    assert_eq!(one.serial(0), Some(serial));
    assert!(two.hold(0, serial));
    assert_eq!((table.slots[0].members(), table.slots[0].is_held_by(1)), (2, true));
    assert_eq!(one.release(0), Released::Held);
    assert_eq!(two.release(0), Released::Freed);
    assert!(!one.hold(0, serial) && !one.hold_invited(0));
    assert!(two.allocate(0));
    assert!(!one.hold(0, serial), "another block by now");
}

#[test]
fn a_hold_that_is_given_up_twice_is_noticed() {
    let table = plain();
    let [one, two] = [table.seen_by(0), table.seen_by(1)];
    assert_eq!(one.release(0), Released::NotHeld);
    assert!(one.allocate(0));
    assert_eq!(two.release(0), Released::NotHeld);
    assert_eq!(one.release(0), Released::Freed);
    assert_eq!(one.release(0), Released::NotHeld);
    assert_eq!(holders(table.word()), 0);
    assert_eq!(one.release(1), Released::NotHeld, "there is no such slot");
}

#[test]
fn a_process_that_holds_a_block_often_has_one_bit() {
    let table = plain();
    let [one, two] = [table.seen_by(0), table.seen_by(1)];
    assert!(one.allocate(0));
    let serial = one.share(0);
    for _ in 0..3 {
        assert!(two.hold(0, serial));
    }
    assert_eq!(table.slots[0].members(), 2);
    assert_eq!(one.release(0), Released::Held);
    assert_eq!([two.release(0), two.release(0)], [Released::Held; 2]);
    assert!(two.is_held_by_us_alone(0) && !one.is_held_by_us_alone(0));
    assert_eq!(two.release(0), Released::Freed);
}

#[test]
fn a_forged_bit_or_number_is_not_believed() {
    let table = plain();
    let one = table.seen_by(0);
    Word::store(&table.slots[0].word, 1);
    assert!(!one.hold_invited(0), "its process knows nothing of this hold");
    Word::store(&table.slots[0].word, 2);
    assert!(one.hold_invited(0));
    Word::store(&table.slots[0].word, 2);
    assert_eq!(one.release(0), Released::NotHeld, "somebody has cleared it");
    Holds::store(&table.held[0][0], CHANGING - 1);
    assert!(!one.hold_invited(0), "the number would not fit");
}

#[test]
fn only_who_holds_a_block_alone_and_once_takes_it_back() {
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
fn what_is_not_shared_cannot_be_had_however_often_the_generations_went_around() {
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
fn a_handle_in_flight_is_for_one() {
    let table = plain();
    let [one, two] = [table.seen_by(0), table.seen_by(1)];
    assert!(one.allocate_in_flight(0));
    assert!(!two.receive(0, 0), "not shared yet");
    let serial = one.share(0);
    assert!(table.slots[0].is_in_flight());
    assert!(two.receive(0, serial));
    assert!(!two.receive(0, serial) && !one.receive(0, serial));
    assert_eq!(two.release(0), Released::Held);
    assert_eq!(one.release(0), Released::Freed);
}

#[test]
fn its_maker_can_receive_a_handle_too_and_take_it_back() {
    let table = plain();
    let one = table.seen_by(0);
    assert!(one.allocate_in_flight(0));
    let serial = one.share(0);
    assert!(one.receive(0, serial));
    assert_eq!((one.release(0), one.release(0)), (Released::Held, Released::Freed));
    assert!(one.allocate_in_flight(0));
    assert!(table.slots[0].revoke() && !table.slots[0].revoke());
    assert_eq!(one.release(0), Released::Freed);
}

#[test]
fn orphaned_messages_keep_their_blocks() {
    let table = plain();
    let [one, two] = [table.seen_by(0), table.seen_by(1)];
    let slot = &table.slots[0];
    assert!(!slot.orphan(), "nobody has it");
    assert!(one.allocate(0));
    one.share(0);
    assert!(slot.orphan());
    assert!(!slot.clear_seat(0));
    assert!(slot.is_orphaned() && slot.members() == 0);
    assert!(two.hold_invited(0), "its message is received");
    assert!(!slot.release_orphan());
    assert_eq!(two.release(0), Released::Freed);
    assert!(!slot.release_orphan() && !slot.clear_seat(0), "again, and nothing happens");
}

#[test]
fn with_a_producer_its_handles_in_flight_are_void() {
    let table = plain();
    let one = table.seen_by(0);
    assert!(one.allocate_in_flight(0));
    let serial = one.share(0);
    assert!(table.slots[0].clear_seat(0) && table.slots[0].is_free());
    assert!(!table.seen_by(1).receive(0, serial));
}

/// The same protocol with words of which loom tries every order of access.
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

    /// The elements of a block: loom complains if anybody looks while somebody writes.
    struct Model {
        table: Table<AtomicU64, AtomicU32>,
        elements: loom::cell::UnsafeCell<u64>,
    }

    impl Model {
        fn new() -> Arc<Self> {
            let table = Table::new(AtomicU64::new, AtomicU32::new);
            Arc::new(Self { table, elements: loom::cell::UnsafeCell::new(0) })
        }

        /// As a draft does.
        fn write(&self) {
            self.elements.with_mut(|_elements| ());
        }

        /// As an array does.
        fn look(&self) {
            self.elements.with(|_elements| ());
        }

        /// Makes a shared block of the member in seat 0.
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
    fn of_two_who_allocate_one_has_the_block() {
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
            assert_eq!(model.table.slots[0].members(), 1);
        });
    }

    #[test]
    fn of_two_threads_of_one_process_one_has_the_block() {
        loom::model(|| {
            let model = Model::new();
            let other = beside(&model, |model| model.table.seen_by(0).allocate(0));
            let taken = [model.table.seen_by(0).allocate(0), other.join().expect("it ends")];
            assert_eq!(taken.iter().filter(|taken| **taken).count(), 1);
            assert_eq!(model.release(0), Released::Freed);
            assert_eq!(model.release(0), Released::NotHeld);
        });
    }

    /// A handle may be used at any time, also while its block is freed and filled with something else.
    #[test]
    fn who_has_a_handle_gets_what_it_was_made_for_or_nothing() {
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
            assert!(model.table.slots[0].is_free());
        });
    }

    /// Handles can be made up: the one that a draft will have must not lead to it before it is shared.
    #[test]
    fn a_guessed_handle_leads_to_no_draft() {
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
            assert!(model.table.slots[0].is_free());
        });
    }

    #[test]
    fn who_takes_a_block_back_has_it_alone() {
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
            assert!(model.table.slots[0].is_free());
        });
    }

    #[test]
    fn who_takes_a_block_back_has_it_alone_in_his_process_too() {
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
            assert!(model.table.slots[0].is_free());
        });
    }

    #[test]
    fn the_bit_of_a_process_stays_while_one_of_its_threads_holds_and_goes_with_the_last() {
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
            assert_eq!(model.table.slots[0].is_held_by(1), held);
            assert_eq!(model.table.seen_by(1).is_held_by_us_alone(0), held);
        });
    }

    #[test]
    fn two_threads_that_hold_at_once_both_hold() {
        loom::model(|| {
            let (model, serial) = Model::shared();
            let other = beside(&model, move |model| model.table.seen_by(1).hold(0, serial));
            assert!(model.table.seen_by(1).hold(0, serial));
            assert!(other.join().expect("it ends"), "the member in seat 0 holds it all the time");
            assert_eq!([model.release(1), model.release(1)], [Released::Held; 2]);
            assert_eq!(model.release(1), Released::NotHeld);
            assert_eq!((model.table.slots[0].members(), model.release(0)), (1, Released::Freed));
        });
    }

    #[test]
    fn who_holds_while_another_thread_of_his_process_gives_up_is_not_turned_away() {
        loom::model(|| {
            let (model, serial) = Model::shared();
            assert!(model.table.seen_by(1).hold(0, serial));
            let other = beside(&model, move |model| model.table.seen_by(1).hold(0, serial));
            assert_eq!(model.release(1), Released::Held);
            assert!(other.join().expect("it ends"), "the member in seat 0 holds it all the time");
            assert!(model.table.slots[0].is_held_by(1));
            assert_eq!(model.release(1), Released::Held);
            assert_eq!(model.table.slots[0].members(), 1);
        });
    }

    #[test]
    fn a_handle_in_flight_is_received_once() {
        loom::model(|| {
            let model = Model::new();
            assert!(model.table.seen_by(0).allocate_in_flight(0));
            let serial = model.table.seen_by(0).share(0);
            let other = beside(&model, move |model| model.table.seen_by(1).receive(0, serial));
            let received = [model.table.seen_by(0).receive(0, serial), other.join().expect("it ends")];
            assert_eq!(received.iter().filter(|received| **received).count(), 1, "{received:?}");
            assert!(!model.table.slots[0].is_in_flight());
        });
    }

    /// Two processes reclaim the same holds, as if one had been killed at it at any step, while the block is received and used again.
    #[test]
    fn holds_may_be_reclaimed_again_while_others_go_on() {
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
            model.table.slots[0].clear_seat(0);
            model.table.slots[0].clear_seat(0);
            user.join().expect("it ends");
            assert!(model.table.slots[0].is_free());
        });
    }

    /// What keeps the block changes hands from the dead member to the ORPHAN bit, while a consumer takes it and others want the memory.
    #[test]
    fn orphaned_block_is_never_free_in_between() {
        loom::model(|| {
            let (model, _) = Model::shared();
            let taker = beside(&model, |model| model.table.seen_by(1).allocate(0));
            assert!(model.table.slots[0].orphan());
            model.table.slots[0].clear_seat(0);
            assert!(!taker.join().expect("it ends"));
            assert!(model.table.seen_by(1).hold_invited(0));
            assert!(!model.table.slots[0].release_orphan());
            assert_eq!(model.release(1), Released::Freed);
        });
    }
}
