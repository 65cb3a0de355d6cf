//! The counting protocol by itself: step by step, and with every interleaving of two or three threads.

use super::*;

const NOW: Duration = Duration::from_secs(1000);
const GRACE: Duration = Duration::from_secs(30);
/// The longest grace time less `GRACE`.
const LESS_THAN_LONGEST: Duration = Duration::from_secs(7 * 24 * 3600 - 30);

fn counts<W: Word, const SLOTS: usize>(word: fn(u64) -> W) -> Counts<W, SLOTS> {
    let slots = std::array::from_fn(|_| TicketSlot { number: word(0), until: word(0) });
    Counts { word: word(State::new(true).0), _rest_of_the_cache_line: [0; 7], slots }
}

fn plain() -> Counts {
    counts(AtomicU64::new)
}

fn once(number: u128) -> Ticket {
    Ticket::new(number, false)
}

#[test]
fn last_release_is_reported_and_ends_attaching() {
    let counts = plain();
    counts.acquire().expect("one more");
    assert_eq!(counts.state().handles(), 2);
    assert_eq!(counts.release(Some(NOW)), Left::Others);
    assert_eq!(counts.release(Some(NOW)), Left::Nothing);
    assert_eq!(counts.acquire(), Err(CountRefusal::Dead));
    assert_eq!((counts.state().handles(), counts.state().is_dead()), (0, true));
    // Another release does not make the number wrap around.
    assert_eq!(counts.release(Some(NOW)), Left::Others);
    assert_eq!(counts.state().handles(), 0);
}

#[test]
fn nameless_array_does_not_die_while_a_descriptor_is_in_flight() {
    let counts = Counts { word: AtomicU64::new(State::new(false).0), ..plain() };
    assert_eq!(counts.release(Some(NOW)), Left::Nameless);
    counts.acquire().expect("the descriptor has arrived");
    counts.name();
    assert_eq!(counts.release(Some(NOW)), Left::Nothing, "and now it has a name to be removed");
    assert_eq!(counts.acquire(), Err(CountRefusal::Dead));
}

#[test]
fn next_array_in_the_same_memory_has_one_handle_and_more_arrivals() {
    let counts = plain();
    counts.acquire().expect("a process that will be killed");
    let before = counts.state();
    counts.begin_again();
    assert_eq!(counts.state(), State(before.0 & !HANDLES | 1).with_arrival());
    assert_eq!(counts.release(Some(NOW)), Left::Nothing);
}

#[test]
fn number_of_handles_does_not_overflow() {
    let counts = Counts { word: AtomicU64::new(NAMED | (HANDLES - 1)), ..plain() };
    counts.acquire().expect("the last that fits");
    assert_eq!(counts.acquire(), Err(CountRefusal::Full));
    assert_eq!(counts.state().handles(), u32::MAX);
    assert!(counts.state().is_named() && !counts.state().is_dead());
}

#[test]
fn arrivals_wrap_around_and_change_nothing_else() {
    let counts = Counts { word: AtomicU64::new(NAMED | KEPT | FROZEN | ARRIVALS | 1), ..plain() };
    counts.acquire().expect("one more");
    assert_eq!(counts.state(), State(NAMED | KEPT | FROZEN | 2));
    counts.acquire().expect("one more");
    assert_eq!(counts.state(), State(NAMED | KEPT | FROZEN | ARRIVAL | 3));
    assert_eq!(ARRIVALS & (DEAD | KEPT | FROZEN | NAMED | HANDLES), 0);
}

#[test]
fn kept_array_can_be_attached_again() {
    let counts = plain();
    counts.keep();
    assert_eq!(counts.release(Some(NOW)), Left::Kept);
    counts.acquire().expect("it is kept");
    assert_eq!(counts.state().handles(), 1);
}

#[test]
fn ticket_keeps_the_array_until_used_or_expired() {
    let counts = plain();
    let ticket = once(7);
    assert!(counts.issue(ticket, Some(NOW), GRACE));
    assert_eq!(counts.in_flight(Some(NOW)), (1, GRACE));
    assert_eq!(counts.release(Some(NOW)), Left::InFlight);
    counts.acquire().expect("a handle is in flight");
    assert!(counts.redeem(ticket));
    assert!(!counts.redeem(ticket), "it can be used once");
    assert_eq!(counts.release(Some(NOW)), Left::Nothing);

    let counts = plain();
    assert!(counts.issue(ticket, Some(NOW), GRACE));
    assert_eq!(counts.release(Some(NOW + GRACE)), Left::Nothing, "the grace time is over");
}

#[test]
fn expired_ticket_works_while_a_handle_is_attached() {
    let counts = plain();
    let ticket = once(7);
    assert!(counts.issue(ticket, Some(NOW), GRACE));
    assert_eq!(counts.in_flight(Some(NOW + 2 * GRACE)).0, 0);
    counts.acquire().expect("its sender is attached");
    assert!(counts.redeem(ticket));
}

#[test]
fn reusable_ticket_works_until_revoked() {
    let counts = plain();
    let ticket = Ticket::new(7, true);
    assert!(counts.issue(ticket, Some(NOW), GRACE));
    for _ in 0..3 {
        assert!(counts.redeem(ticket));
    }
    assert!(counts.revoke(ticket));
    assert!(!counts.revoke(ticket) && !counts.redeem(ticket));
    assert_eq!(counts.release(Some(NOW)), Left::Nothing);
}

#[test]
fn renewed_ticket_can_be_used_once_more() {
    let counts = plain();
    let ticket = once(7);
    assert!(counts.issue(ticket, Some(NOW), GRACE));
    let later = NOW + GRACE / 2;
    for _ in 0..2 {
        assert!(counts.renew(ticket, GRACE, || Some(later)));
    }
    assert_eq!(counts.in_flight(Some(later)), (1, GRACE), "three uses in one slot");
    assert!(counts.redeem(ticket) && counts.redeem(ticket) && counts.redeem(ticket));
    assert!(!counts.redeem(ticket) && !counts.renew(ticket, GRACE, || Some(later)), "it was used up");
    assert_eq!(counts.release(Some(later)), Left::Nothing);
}

#[test]
fn reusable_ticket_is_given_up_only_between_a_use_and_a_renewal() {
    let counts = plain();
    let (many, few) = (Ticket::new(7, true), once(8));
    let is_used = || many.is_used_in(Word::load(&counts.slots[0].number));
    assert!(counts.issue(many, Some(NOW), GRACE) && counts.issue(few, Some(NOW), GRACE));
    assert!(!is_used() && !counts.revoke_used(many));
    assert!(counts.redeem(many) && is_used() && counts.redeem(many) && is_used());
    assert_eq!(counts.in_flight(Some(NOW)).0, 2, "it protects as before");
    assert!(counts.renew(many, GRACE, || Some(NOW)) && !is_used() && !counts.revoke_used(many));
    // A refused renewal is no use.
    assert!(!counts.renew(many, GRACE, || Some(NOW + GRACE)) && !is_used());
    assert!(counts.redeem(many) && counts.revoke_used(many) && !counts.revoke_used(many) && !counts.redeem(many));
    // One that can be used twice more does not pass for a used one.
    assert!(counts.renew(few, GRACE, || Some(NOW)) && counts.redeem(few) && !counts.revoke_used(few));
    assert!(counts.redeem(few));
}

#[test]
fn renewal_never_shortens_what_was_promised() {
    let counts = plain();
    let ticket = Ticket::new(7, true);
    assert!(counts.issue(ticket, Some(NOW), GRACE));
    assert!(counts.renew(ticket, 20 * GRACE, || Some(NOW)));
    assert_eq!(counts.in_flight(Some(NOW)), (1, 20 * GRACE));
    assert!(counts.renew(ticket, GRACE / 600, || Some(NOW)));
    assert_eq!(counts.in_flight(Some(NOW)), (1, 20 * GRACE));
    assert!(counts.redeem(ticket) && counts.redeem(ticket));
    assert!(counts.revoke(ticket) && !counts.renew(ticket, GRACE, || Some(NOW)));
}

#[test]
fn expiring_shortens_and_adds_no_use() {
    let counts = plain();
    let ticket = once(7);
    assert!(counts.issue(ticket, Some(NOW), 20 * GRACE));
    for grace in [GRACE, 2 * GRACE] {
        assert!(counts.expire(ticket, grace, || Some(NOW)));
        assert_eq!(counts.in_flight(Some(NOW)), (1, GRACE));
    }
    assert!(!counts.expire(ticket, GRACE, || Some(NOW + GRACE)), "it has expired");
    assert!(counts.redeem(ticket) && !counts.redeem(ticket), "no use was added");
    assert!(!counts.expire(ticket, GRACE, || Some(NOW)));
}

#[test]
fn process_without_a_clock_renews_for_a_week_and_shortens_nothing() {
    let counts = plain();
    let ticket = Ticket::new(7, true);
    assert!(counts.issue(ticket, Some(NOW), GRACE));
    assert!(counts.expire(ticket, Duration::ZERO, || None));
    assert_eq!(counts.in_flight(Some(NOW)), (1, GRACE));
    assert!(counts.renew(ticket, 2 * GRACE, || None));
    assert!(counts.expire(ticket, GRACE, || None), "still by an unknown clock");
    assert_eq!(counts.in_flight(Some(NOW + GRACE)), (1, LONGEST_GRACE));
    assert!(counts.expire(ticket, GRACE, || Some(NOW)));
    assert_eq!(counts.in_flight(Some(NOW)), (1, GRACE));
}

#[test]
fn sender_never_sets_the_deadline_that_it_found() {
    let counts = plain();
    assert!(counts.issue(once(7), Some(NOW), GRACE) && counts.redeem(once(7)));
    let found = counts.slots[0].until.load(Ordering::Relaxed);
    assert!(counts.issue(once(8), Some(NOW), GRACE));
    assert_eq!(counts.slots[0].until.load(Ordering::Relaxed), found + 1);
}

#[test]
fn ticket_about_to_expire_is_not_renewed() {
    let counts = plain();
    let ticket = once(7);
    assert!(counts.issue(ticket, Some(NOW), GRACE));
    for left in [0, 1, 9] {
        assert!(!counts.renew(ticket, GRACE, || Some(NOW + Duration::from_millis(30_000 - left))), "{left} ms");
    }
    assert_eq!((GRACE, RENEWAL_MARGIN), (Duration::from_secs(30), Duration::from_millis(10)));
    assert!(counts.redeem(ticket) && !counts.redeem(ticket), "a refused renewal adds no use");
    assert!(counts.issue(ticket, Some(NOW), GRACE));
    assert!(counts.renew(ticket, GRACE, || Some(NOW + Duration::from_millis(29_990))));
    // Stopped between its two looks at the clock, until after the deadline.
    let clock = std::cell::Cell::new(NOW);
    assert!(!counts.renew(ticket, GRACE, || Some(clock.replace(NOW + 10 * GRACE))));
}

#[test]
fn uses_of_a_ticket_are_limited() {
    let counts = plain();
    let ticket = once(7);
    assert!(counts.issue(ticket, Some(NOW), GRACE));
    let most = FURTHER_USES / FURTHER_USE;
    assert!((0..most).all(|_| counts.renew(ticket, GRACE, || Some(NOW))));
    assert!(!counts.renew(ticket, GRACE, || Some(NOW)));
    assert!((0..=most).all(|_| counts.redeem(ticket)) && !counts.redeem(ticket));
    assert!(Ticket::from_number(ticket.number() | FURTHER_USE).is_none());
}

#[test]
fn tickets_are_limited_and_expired_ones_are_replaced() {
    let counts = plain();
    for number in 1..=MOST_TICKETS as u128 {
        assert!(counts.issue(once(number), Some(NOW), GRACE));
    }
    assert!(!counts.issue(once(1000), Some(NOW), GRACE));
    assert!(counts.issue(once(1000), Some(NOW + GRACE), GRACE));
    assert_eq!(counts.in_flight(Some(NOW + GRACE)).0, 1);
}

#[test]
fn pending_tickets_of_killed_senders_are_replaced_after_expiry() {
    let counts = plain();
    let late = NOW + 2 * GRACE;
    for (index, slot) in counts.slots.iter().enumerate() {
        // Killed before the deadline was written, and after it.
        Word::store(&slot.number, once(index as u128 + 1).number() | PENDING);
        Word::store(&slot.until, if index % 2 == 0 { 0 } else { deadline(Some(NOW), GRACE) });
    }
    assert_eq!(counts.in_flight(Some(NOW)).0, 0, "none was sent");
    for number in 0..MOST_TICKETS as u128 {
        assert_eq!(counts.issue(once(1000 + number), Some(NOW), GRACE), number < 64, "{number}");
    }
    for number in 0..64 {
        assert!(counts.issue(once(2000 + number), Some(late), GRACE));
    }
    assert!(Ticket::from_number(PENDING | 1).is_none());
}

#[test]
fn deadline_of_another_boot_protects_nothing() {
    assert_eq!(remaining(deadline(Some(Duration::from_secs(1 << 30)), GRACE), Some(NOW)), None);
    let longest = deadline(Some(NOW), Duration::MAX);
    let later = deadline(Some(NOW + GRACE), Duration::MAX);
    assert_eq!(remaining(longest, Some(NOW)), Some(LONGEST_GRACE));
    assert_eq!(remaining(later, Some(NOW)), Some(LONGEST_GRACE), "to a process that read its clock before");
    let until = deadline(Some(NOW), GRACE);
    assert_eq!(remaining(until, Some(NOW)), Some(GRACE));
    assert_eq!(remaining(until ^ 4 << BOOT_SHIFT, Some(NOW)), None, "another boot's");
    assert_eq!(remaining(until ^ 4 << BOOT_SHIFT, None), None, "another boot's, whatever the time is");
    assert_eq!(remaining(0, Some(NOW)), None);
    assert_eq!(remaining(u64::MAX, Some(NOW)), None);
}

#[test]
fn deadline_of_an_unknown_boot_is_judged_by_the_clock() {
    let until = deadline(Some(NOW), GRACE) & !(u64::MAX << BOOT_SHIFT);
    assert_eq!(remaining(until, Some(NOW)), Some(GRACE));
    assert_eq!(remaining(until, Some(NOW + GRACE)), None);
    assert_eq!(remaining(until + 2_000_000 * LONGEST_GRACE.as_secs(), Some(NOW)), None, "two weeks ahead");
}

#[test]
fn process_without_a_clock_respects_every_ticket_and_changes_none() {
    let counts = plain();
    assert!(counts.issue(once(7), Some(NOW), GRACE));
    assert_eq!(counts.in_flight(None), (1, LONGEST_GRACE));
    assert_eq!(counts.in_flight(Some(NOW)), (1, GRACE));
    assert_eq!(counts.release(None), Left::InFlight);
    assert_eq!(plain().release(None), Left::Nothing, "without a ticket");
}

#[test]
fn ticket_by_an_unknown_clock_protects_for_a_week_from_when_it_is_first_judged() {
    let counts = plain();
    for number in 1..=MOST_TICKETS as u128 {
        assert!(counts.issue(once(number), None, GRACE));
    }
    assert!(!counts.issue(once(1000), None, GRACE), "no slot is known to be expired");
    assert_eq!(counts.in_flight(None), (MOST_TICKETS, LONGEST_GRACE));
    // Another sender looks for an expired ticket: from now on the week passes.
    assert!(!counts.issue(once(1000), Some(NOW), GRACE));
    assert_eq!(counts.in_flight(Some(NOW + GRACE)), (MOST_TICKETS, LESS_THAN_LONGEST));
    assert!(counts.issue(once(1000), Some(NOW + LONGEST_GRACE), GRACE));
    assert_eq!(counts.in_flight(Some(NOW + LONGEST_GRACE)), (1, GRACE));

    let counts = plain();
    assert!(counts.issue(once(7), None, GRACE));
    assert_eq!(counts.release(Some(NOW)), Left::InFlight);
    counts.acquire().expect("it is in flight");
    assert_eq!(counts.release(Some(NOW + LONGEST_GRACE)), Left::Nothing);
}

/// The same protocol with loom's words: loom tries every order of accesses.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod model {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    use super::*;

    impl Word for AtomicU64 {
        fn load(&self) -> u64 {
            self.load(Ordering::Acquire)
        }

        fn store(&self, value: u64) {
            self.store(value, Ordering::Release);
        }

        fn exchange(&self, current: u64, new: u64) -> Result<(), u64> {
            self.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).map(drop)
        }
    }

    fn shared() -> Arc<Counts<AtomicU64, 1>> {
        Arc::new(counts(AtomicU64::new))
    }

    #[test]
    fn exactly_one_of_two_releases_removes_the_name() {
        loom::model(|| {
            let counts = shared();
            counts.acquire().expect("alive");
            let other = {
                let counts = Arc::clone(&counts);
                thread::spawn(move || counts.release(Some(NOW)))
            };
            let left = [counts.release(Some(NOW)), other.join().expect("it ends")];
            assert_eq!(left.iter().filter(|left| **left == Left::Nothing).count(), 1, "{left:?}");
            assert_eq!(counts.acquire(), Err(CountRefusal::Dead));
        });
    }

    #[test]
    fn attachment_during_the_last_release_is_counted_or_refused() {
        loom::model(|| {
            let counts = shared();
            let leaver = {
                let counts = Arc::clone(&counts);
                thread::spawn(move || counts.release(Some(NOW)))
            };
            let attached = counts.acquire();
            let left = leaver.join().expect("it ends");
            match (attached, left) {
                (Ok(()), Left::Others) => assert_eq!(counts.release(Some(NOW)), Left::Nothing),
                (Err(CountRefusal::Dead), Left::Nothing) => assert!(counts.state().is_dead()),
                other => panic!("{other:?}"),
            }
        });
    }

    #[test]
    fn one_of_two_receivers_redeems_a_ticket() {
        let mut builder = loom::model::Builder::new();
        // At most 3 preemptions, unless LOOM_MAX_PREEMPTIONS says otherwise.
        builder.preemption_bound = builder.preemption_bound.or(Some(3));
        builder.check(|| {
            let counts = shared();
            let ticket = once(7);
            assert!(counts.issue(ticket, Some(NOW), GRACE));
            let attach = |counts: Arc<Counts<AtomicU64, 1>>| {
                thread::spawn(move || {
                    let attached = counts.acquire();
                    let redeemed = attached.is_ok() && counts.redeem(ticket);
                    if attached.is_ok() && !redeemed {
                        counts.release(Some(NOW));
                    }
                    redeemed
                })
            };
            let receivers = [attach(Arc::clone(&counts)), attach(Arc::clone(&counts))];
            assert_ne!(counts.release(Some(NOW)), Left::Nothing, "a ticket or its user was there");
            let used = receivers.map(|receiver| receiver.join().expect("it ends"));
            assert_eq!(used.iter().filter(|used| **used).count(), 1);
            assert_eq!((counts.state().handles(), counts.state().is_dead()), (1, false));
            assert_eq!(counts.release(Some(NOW)), Left::Nothing);
        });
    }

    /// A ticket that its sender renews while another thread gives it up stays, or the sender learns that it has gone.
    #[test]
    fn renewed_ticket_is_not_given_up() {
        loom::model(|| {
            let counts = shared();
            let ticket = Ticket::new(7, true);
            assert!(counts.issue(ticket, Some(NOW), GRACE) && counts.redeem(ticket));
            let sender = {
                let counts = Arc::clone(&counts);
                thread::spawn(move || counts.renew(ticket, GRACE, || Some(NOW)))
            };
            let is_given_up = counts.revoke_used(ticket);
            assert_ne!(sender.join().expect("it ends"), is_given_up);
            assert_eq!(counts.redeem(ticket), !is_given_up);
        });
    }

    /// When the leaving thread changes the word, the number of handles is the same again, but its scan of the tickets
    /// is outdated.
    #[test]
    fn name_is_removed_when_a_ticket_is_used_during_the_last_release() {
        loom::model(|| {
            let counts = shared();
            let ticket = once(7);
            assert!(counts.issue(ticket, Some(NOW), GRACE));
            let user = {
                let counts = Arc::clone(&counts);
                thread::spawn(move || {
                    counts.acquire().expect("a ticket");
                    assert!(counts.redeem(ticket));
                    counts.release(Some(NOW))
                })
            };
            let left = [counts.release(Some(NOW)), user.join().expect("it ends")];
            assert_eq!(left.iter().filter(|left| **left == Left::Nothing).count(), 1, "{left:?}");
            assert!(counts.state().is_dead());
        });
    }

    #[test]
    fn release_respects_a_ticket_of_an_earlier_handle() {
        loom::model(|| {
            let counts = shared();
            let ticket = once(7);
            let sender = {
                let counts = Arc::clone(&counts);
                thread::spawn(move || {
                    let sent = counts.acquire().is_ok() && counts.issue(ticket, Some(NOW), GRACE);
                    if sent {
                        assert_ne!(counts.release(Some(NOW)), Left::Nothing, "the ticket protects it");
                    }
                    sent
                })
            };
            let left = counts.release(Some(NOW));
            let sent = sender.join().expect("it ends");
            assert_eq!(sent, left != Left::Nothing, "{left:?}");
            assert_eq!(sent, !counts.state().is_dead(), "{left:?}");
            assert_eq!(counts.acquire().is_ok() && counts.redeem(ticket), sent);
        });
    }

    #[test]
    fn one_of_two_senders_replaces_an_expired_ticket() {
        loom::model(|| {
            let counts = shared();
            assert!(counts.issue(once(1), Some(NOW), GRACE));
            let later = NOW + 2 * GRACE;
            let other = {
                let counts = Arc::clone(&counts);
                thread::spawn(move || counts.issue(once(2), Some(later), GRACE))
            };
            let issued = [(once(2), None), (once(3), Some(counts.issue(once(3), Some(later), GRACE)))];
            let other = other.join().expect("it ends");
            for (ticket, was_issued) in issued {
                assert_eq!(counts.redeem(ticket), was_issued.unwrap_or(other), "{ticket:?}");
            }
        });
    }

    #[test]
    fn renewal_during_a_use_is_refused_or_gives_one_use_more() {
        loom::model(|| {
            let counts = shared();
            let ticket = once(7);
            assert!(counts.issue(ticket, Some(NOW), GRACE));
            let receiver = {
                let counts = Arc::clone(&counts);
                thread::spawn(move || counts.acquire().is_ok() && counts.redeem(ticket))
            };
            let is_renewed = counts.renew(ticket, GRACE, || Some(NOW));
            assert!(receiver.join().expect("it ends"));
            assert_eq!(counts.redeem(ticket), is_renewed);
            assert!(!counts.redeem(ticket));
        });
    }

    /// Another thread revokes the ticket and puts one with another deadline into its slot, while this one changes the
    /// deadline.
    fn leaves_the_deadline_of_another_ticket_alone(grace: Duration, change: fn(&Counts<AtomicU64, 1>, Ticket) -> bool) {
        loom::model(move || {
            let counts = shared();
            let old = Ticket::new(7, true);
            assert!(counts.issue(old, Some(NOW), 2 * GRACE));
            let other = {
                let counts = Arc::clone(&counts);
                thread::spawn(move || {
                    assert!(counts.revoke(old));
                    counts.issue(once(8), Some(NOW), grace)
                })
            };
            let is_changed = change(&counts, old);
            let is_issued = other.join().expect("it ends");
            assert!(!counts.redeem(old), "it was revoked, before or after the change: {is_changed}");
            if is_issued {
                let (tickets, left) = counts.in_flight(Some(NOW));
                assert!(tickets == 1 && (grace..=grace + Duration::from_micros(1)).contains(&left), "{left:?}");
                assert!(counts.redeem(once(8)));
            }
        });
    }

    #[test]
    fn renewal_leaves_the_deadline_of_another_ticket_alone() {
        for grace in [GRACE, 10 * GRACE] {
            leaves_the_deadline_of_another_ticket_alone(grace, |counts, old| {
                counts.renew(old, 5 * GRACE, || Some(NOW))
            });
        }
    }

    #[test]
    fn expiring_leaves_the_deadline_of_another_ticket_alone() {
        // Also where the other sender wants the very deadline that it finds, before or after it was moved.
        for grace in [GRACE, 2 * GRACE, 10 * GRACE] {
            leaves_the_deadline_of_another_ticket_alone(grace, |counts, old| counts.expire(old, GRACE, || Some(NOW)));
        }
    }

    /// A thread is killed after any access: it just stops there, and no later access of it repairs anything.
    #[test]
    fn deadline_is_the_old_or_the_new_one_at_every_moment_of_a_change() {
        for (grace, change) in [
            (
                5 * GRACE,
                (|counts, old| counts.renew(old, 5 * GRACE, || Some(NOW))) as fn(&Counts<AtomicU64, 1>, Ticket) -> bool,
            ),
            (GRACE, |counts, old| counts.expire(old, GRACE, || Some(NOW))),
        ] {
            loom::model(move || {
                let counts = shared();
                let ticket = Ticket::new(7, true);
                assert!(counts.issue(ticket, Some(NOW), 2 * GRACE));
                let other = {
                    let counts = Arc::clone(&counts);
                    thread::spawn(move || change(&counts, ticket))
                };
                let (tickets, left) = counts.in_flight(Some(NOW));
                assert!(tickets == 1 && [2 * GRACE, grace].contains(&left), "{left:?}");
                assert!(other.join().expect("it ends"));
                assert_eq!(counts.in_flight(Some(NOW)), (1, grace));
            });
        }
    }

    #[test]
    fn one_of_two_processes_dates_a_ticket_by_an_unknown_clock() {
        loom::model(|| {
            let counts = shared();
            let ticket = Ticket::new(7, true);
            assert!(counts.issue(ticket, None, GRACE));
            let other = {
                let counts = Arc::clone(&counts);
                thread::spawn(move || counts.in_flight(Some(NOW + GRACE)))
            };
            let seen = counts.in_flight(Some(NOW));
            let others = other.join().expect("it ends");
            assert_eq!((seen.0, others.0), (1, 1), "to both it protects the array");
            let left = counts.in_flight(Some(NOW + GRACE)).1;
            assert!([LONGEST_GRACE, LESS_THAN_LONGEST].contains(&left), "{left:?}");
        });
    }

    #[test]
    fn two_renewals_at_a_time_give_two_uses() {
        loom::model(|| {
            let counts = shared();
            let ticket = once(7);
            assert!(counts.issue(ticket, Some(NOW), GRACE));
            let renew = move |counts: &Counts<AtomicU64, 1>| counts.renew(ticket, GRACE, || Some(NOW));
            let other = {
                let counts = Arc::clone(&counts);
                thread::spawn(move || renew(&counts))
            };
            assert!(renew(&counts) && other.join().expect("it ends"));
            assert!((0..3).all(|_| counts.redeem(ticket)) && !counts.redeem(ticket));
        });
    }

    #[test]
    fn array_kept_during_a_release_is_never_dead() {
        loom::model(|| {
            let counts = shared();
            counts.acquire().expect("alive");
            let other = {
                let counts = Arc::clone(&counts);
                thread::spawn(move || counts.release(Some(NOW)))
            };
            counts.keep();
            assert_eq!(counts.release(Some(NOW)), Left::Kept);
            assert_ne!(other.join().expect("it ends"), Left::Nothing);
            counts.acquire().expect("it is kept");
        });
    }
}
