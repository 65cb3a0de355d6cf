//! The counting protocol by itself: step by step, and with every interleaving of two or three threads.

use super::*;

const NOW: Duration = Duration::from_secs(1000);
const GRACE: Duration = Duration::from_secs(30);

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
    assert_eq!(counts.release(NOW), Left::Others);
    assert_eq!(counts.release(NOW), Left::Nothing);
    assert_eq!(counts.acquire(), Err(CountRefusal::Dead));
    assert_eq!((counts.state().handles(), counts.state().is_dead()), (0, true));
    // Another release does not make the number wrap around.
    assert_eq!(counts.release(NOW), Left::Others);
    assert_eq!(counts.state().handles(), 0);
}

#[test]
fn nameless_array_does_not_die_while_a_descriptor_is_in_flight() {
    let counts = Counts { word: AtomicU64::new(State::new(false).0), ..plain() };
    assert_eq!(counts.release(NOW), Left::Nameless);
    counts.acquire().expect("the descriptor has arrived");
    counts.name();
    assert_eq!(counts.release(NOW), Left::Nothing, "and now it has a name to be removed");
    assert_eq!(counts.acquire(), Err(CountRefusal::Dead));
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
    assert_eq!(counts.release(NOW), Left::Kept);
    counts.acquire().expect("it is kept");
    assert_eq!(counts.state().handles(), 1);
}

#[test]
fn ticket_keeps_the_array_until_used_or_expired() {
    let counts = plain();
    let ticket = once(7);
    assert!(counts.issue(ticket, NOW, GRACE));
    assert_eq!(counts.in_flight(NOW), (1, GRACE));
    assert_eq!(counts.release(NOW), Left::InFlight);
    counts.acquire().expect("a handle is in flight");
    assert!(counts.redeem(ticket));
    assert!(!counts.redeem(ticket), "it can be used once");
    assert_eq!(counts.release(NOW), Left::Nothing);

    let counts = plain();
    assert!(counts.issue(ticket, NOW, GRACE));
    assert_eq!(counts.release(NOW + GRACE), Left::Nothing, "the grace time is over");
}

#[test]
fn expired_ticket_works_while_a_handle_is_attached() {
    let counts = plain();
    let ticket = once(7);
    assert!(counts.issue(ticket, NOW, GRACE));
    assert_eq!(counts.in_flight(NOW + 2 * GRACE).0, 0);
    counts.acquire().expect("its sender is attached");
    assert!(counts.redeem(ticket));
}

#[test]
fn reusable_ticket_works_until_revoked() {
    let counts = plain();
    let ticket = Ticket::new(7, true);
    assert!(counts.issue(ticket, NOW, GRACE));
    for _ in 0..3 {
        assert!(counts.redeem(ticket));
    }
    assert!(counts.revoke(ticket));
    assert!(!counts.revoke(ticket) && !counts.redeem(ticket));
    assert_eq!(counts.release(NOW), Left::Nothing);
}

#[test]
fn renewed_ticket_can_be_used_once_more() {
    let counts = plain();
    let ticket = once(7);
    assert!(counts.issue(ticket, NOW, GRACE));
    let later = NOW + GRACE / 2;
    for _ in 0..2 {
        assert!(counts.renew(ticket, GRACE, || later));
    }
    assert_eq!(counts.in_flight(later), (1, GRACE), "three uses in one slot");
    assert!(counts.redeem(ticket) && counts.redeem(ticket) && counts.redeem(ticket));
    assert!(!counts.redeem(ticket) && !counts.renew(ticket, GRACE, || later), "it was used up");
    assert_eq!(counts.release(later), Left::Nothing);
}

#[test]
fn renewal_moves_a_deadline_in_both_directions() {
    let counts = plain();
    let ticket = Ticket::new(7, true);
    assert!(counts.issue(ticket, NOW, GRACE));
    assert!(counts.renew(ticket, 20 * GRACE, || NOW));
    assert_eq!(counts.in_flight(NOW), (1, 20 * GRACE));
    assert!(counts.renew(ticket, GRACE, || NOW));
    assert_eq!(counts.in_flight(NOW), (1, GRACE));
    assert!(counts.redeem(ticket) && counts.redeem(ticket));
    assert!(counts.revoke(ticket) && !counts.renew(ticket, GRACE, || NOW));
}

#[test]
fn ticket_about_to_expire_is_not_renewed() {
    let counts = plain();
    let ticket = once(7);
    assert!(counts.issue(ticket, NOW, GRACE));
    for left in [0, 1, 9] {
        assert!(!counts.renew(ticket, GRACE, || NOW + Duration::from_millis(30_000 - left)), "{left} ms");
    }
    assert_eq!((GRACE, RENEWAL_MARGIN), (Duration::from_secs(30), Duration::from_millis(10)));
    assert!(counts.redeem(ticket) && !counts.redeem(ticket), "a refused renewal adds no use");
    assert!(counts.issue(ticket, NOW, GRACE));
    assert!(counts.renew(ticket, GRACE, || NOW + Duration::from_millis(29_990)));
    // Stopped between its two looks at the clock, until after the deadline.
    let clock = std::cell::Cell::new(NOW);
    assert!(!counts.renew(ticket, GRACE, || clock.replace(NOW + 10 * GRACE)));
}

#[test]
fn uses_of_a_ticket_are_limited() {
    let counts = plain();
    let ticket = once(7);
    assert!(counts.issue(ticket, NOW, GRACE));
    let most = FURTHER_USES / FURTHER_USE;
    assert!((0..most).all(|_| counts.renew(ticket, GRACE, || NOW)));
    assert!(!counts.renew(ticket, GRACE, || NOW));
    assert!((0..=most).all(|_| counts.redeem(ticket)) && !counts.redeem(ticket));
    assert!(Ticket::from_number(ticket.number() | FURTHER_USE).is_none());
}

#[test]
fn tickets_are_limited_and_expired_ones_are_replaced() {
    let counts = plain();
    for number in 1..=MOST_TICKETS as u128 {
        assert!(counts.issue(once(number), NOW, GRACE));
    }
    assert!(!counts.issue(once(1000), NOW, GRACE));
    assert!(counts.issue(once(1000), NOW + GRACE, GRACE));
    assert_eq!(counts.in_flight(NOW + GRACE).0, 1);
}

#[test]
fn pending_tickets_of_killed_senders_are_replaced_after_expiry() {
    let counts = plain();
    let late = NOW + 2 * GRACE;
    for (index, slot) in counts.slots.iter().enumerate() {
        // Killed before the deadline was written, and after it.
        Word::store(&slot.number, once(index as u128 + 1).number() | PENDING);
        Word::store(&slot.until, if index % 2 == 0 { 0 } else { deadline(NOW, GRACE) });
    }
    assert_eq!(counts.in_flight(NOW).0, 0, "none was sent");
    for number in 0..MOST_TICKETS as u128 {
        assert_eq!(counts.issue(once(1000 + number), NOW, GRACE), number < 64, "{number}");
    }
    for number in 0..64 {
        assert!(counts.issue(once(2000 + number), late, GRACE));
    }
    assert!(Ticket::from_number(PENDING | 1).is_none());
}

#[test]
fn deadline_of_another_boot_protects_nothing() {
    assert_eq!(remaining(deadline(Duration::from_secs(1 << 30), GRACE), NOW), None);
    assert_eq!(remaining(deadline(NOW, Duration::MAX), NOW), Some(LONGEST_GRACE));
    let until = deadline(NOW, GRACE);
    assert_eq!(remaining(until, NOW), Some(GRACE));
    assert_eq!(remaining(until ^ 1 << BOOT_SHIFT, NOW), None, "another boot's");
    assert_eq!(remaining(0, NOW), None);
    assert_eq!(remaining(u64::MAX, NOW), None);
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
                thread::spawn(move || counts.release(NOW))
            };
            let left = [counts.release(NOW), other.join().expect("it ends")];
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
                thread::spawn(move || counts.release(NOW))
            };
            let attached = counts.acquire();
            let left = leaver.join().expect("it ends");
            match (attached, left) {
                (Ok(()), Left::Others) => assert_eq!(counts.release(NOW), Left::Nothing),
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
            assert!(counts.issue(ticket, NOW, GRACE));
            let attach = |counts: Arc<Counts<AtomicU64, 1>>| {
                thread::spawn(move || {
                    let attached = counts.acquire();
                    let redeemed = attached.is_ok() && counts.redeem(ticket);
                    if attached.is_ok() && !redeemed {
                        counts.release(NOW);
                    }
                    redeemed
                })
            };
            let receivers = [attach(Arc::clone(&counts)), attach(Arc::clone(&counts))];
            assert_ne!(counts.release(NOW), Left::Nothing, "a ticket or its user was there");
            let used = receivers.map(|receiver| receiver.join().expect("it ends"));
            assert_eq!(used.iter().filter(|used| **used).count(), 1);
            assert_eq!((counts.state().handles(), counts.state().is_dead()), (1, false));
            assert_eq!(counts.release(NOW), Left::Nothing);
        });
    }

    /// When the leaving thread changes the word, the number of handles is the same again, but its scan of the tickets is outdated.
    #[test]
    fn name_is_removed_when_a_ticket_is_used_during_the_last_release() {
        loom::model(|| {
            let counts = shared();
            let ticket = once(7);
            assert!(counts.issue(ticket, NOW, GRACE));
            let user = {
                let counts = Arc::clone(&counts);
                thread::spawn(move || {
                    counts.acquire().expect("a ticket");
                    assert!(counts.redeem(ticket));
                    counts.release(NOW)
                })
            };
            let left = [counts.release(NOW), user.join().expect("it ends")];
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
                    let sent = counts.acquire().is_ok() && counts.issue(ticket, NOW, GRACE);
                    if sent {
                        assert_ne!(counts.release(NOW), Left::Nothing, "the ticket protects it");
                    }
                    sent
                })
            };
            let left = counts.release(NOW);
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
            assert!(counts.issue(once(1), NOW, GRACE));
            let later = NOW + 2 * GRACE;
            let other = {
                let counts = Arc::clone(&counts);
                thread::spawn(move || counts.issue(once(2), later, GRACE))
            };
            let issued = [(once(2), None), (once(3), Some(counts.issue(once(3), later, GRACE)))];
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
            assert!(counts.issue(ticket, NOW, GRACE));
            let receiver = {
                let counts = Arc::clone(&counts);
                thread::spawn(move || counts.acquire().is_ok() && counts.redeem(ticket))
            };
            let is_renewed = counts.renew(ticket, GRACE, || NOW);
            assert!(receiver.join().expect("it ends"));
            assert_eq!(counts.redeem(ticket), is_renewed);
            assert!(!counts.redeem(ticket));
        });
    }

    /// Another thread revokes the ticket and puts one with a later deadline into its slot, while this one renews it.
    #[test]
    fn renewal_leaves_the_deadline_of_another_ticket_alone() {
        loom::model(|| {
            let counts = shared();
            let old = Ticket::new(7, true);
            assert!(counts.issue(old, NOW, GRACE));
            let other = {
                let counts = Arc::clone(&counts);
                thread::spawn(move || {
                    assert!(counts.revoke(old));
                    counts.issue(once(8), NOW, 10 * GRACE)
                })
            };
            let is_renewed = counts.renew(old, GRACE, || NOW);
            let is_issued = other.join().expect("it ends");
            assert!(!counts.redeem(old), "it was revoked, before or after the renewal: {is_renewed}");
            if is_issued {
                assert_eq!(counts.in_flight(NOW + 2 * GRACE).0, 1);
                assert!(counts.redeem(once(8)));
            }
        });
    }

    #[test]
    fn two_renewals_at_a_time_give_two_uses() {
        loom::model(|| {
            let counts = shared();
            let ticket = once(7);
            assert!(counts.issue(ticket, NOW, GRACE));
            let renew = move |counts: &Counts<AtomicU64, 1>| counts.renew(ticket, GRACE, || NOW);
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
                thread::spawn(move || counts.release(NOW))
            };
            counts.keep();
            assert_eq!(counts.release(NOW), Left::Kept);
            assert_ne!(other.join().expect("it ends"), Left::Nothing);
            counts.acquire().expect("it is kept");
        });
    }
}
