//! Ending calls early: a callback of the calling thread, which long calls ask whether to go on.
//!
//! The callback belongs to a thread and to the calls within a closure, so that no function between needs an argument
//! for it.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The time between two questions of a call that waits.
const ASK: Duration = Duration::from_millis(100);

struct Interruption {
    goes_on: Box<dyn Fn() -> bool>,
    /// The time of the last question.
    asked: Cell<Instant>,
    has_ended: Cell<bool>,
    /// Whether a question is under way. The callback may use this crate, and is not asked again meanwhile.
    is_asking: Cell<bool>,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Interruption>>> = const { RefCell::new(None) };
}

/// Runs `work`, and lets `goes_on` end calls of this crate in it that take long: for example because of a signal.
///
/// The calling thread calls `goes_on` about ten times a second while it waits for a lock without limit or for the lock
/// of a name, and between any two pieces of 64 MiB while it reserves memory. When `goes_on` returns `false`, that call
/// and all later ones in `work` that would wait or reserve fail with [`Interrupted`](crate::ErrorKind::Interrupted).
/// They have changed nothing: a draft has no name and frees its memory, a lock is not taken, a name leads to the array
/// that it led to before. Only a sparse file of another process, to which this one was attaching, keeps the memory that
/// it has got. What has begun to change names, and every `Drop`, runs to its end.
///
/// Calls in `work` with a callback of their own apply only that one. Other threads are not affected.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, Instant};
/// use ndarray_shm::backend::interruptible;
/// use ndarray_shm::SharedArray;
///
/// let begin = Instant::now();
/// let array = interruptible(
///     move || begin.elapsed() < Duration::from_secs(60),
///     || SharedArray::<u8, _>::create("interruptible-example", (1000, 1000)),
/// )?;
/// array.unlink()?;
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
pub fn interruptible<R>(goes_on: impl Fn() -> bool + 'static, work: impl FnOnce() -> R) -> R {
    let goes_on = Box::new(goes_on);
    let own = Interruption {
        goes_on,
        asked: Cell::new(Instant::now()),
        has_ended: Cell::new(false),
        is_asking: Cell::new(false),
    };
    let _restore = Restore(set(Some(Rc::new(own))));
    work()
}

/// Runs `work` to its end, whatever the callback says: it completes a change that has begun, or runs in a `Drop`.
pub(crate) fn uninterrupted<R>(work: impl FnOnce() -> R) -> R {
    let _restore = Restore(set(None));
    work()
}

/// Puts the callback of the surrounding call back, also after a panic.
struct Restore(Option<Rc<Interruption>>);

impl Drop for Restore {
    fn drop(&mut self) {
        set(self.0.take());
    }
}

fn set(next: Option<Rc<Interruption>>) -> Option<Rc<Interruption>> {
    // Fails only in a thread that is ending. Its calls are not interrupted.
    CURRENT.try_with(|current| current.replace(next)).unwrap_or(None)
}

fn current() -> Option<Rc<Interruption>> {
    CURRENT.try_with(|current| current.borrow().clone()).unwrap_or(None)
}

/// Returns whether the current call can be ended by a callback.
pub(crate) fn can_end() -> bool {
    current().is_some()
}

/// Returns whether a callback has ended the current call.
pub(crate) fn has_ended() -> bool {
    current().is_some_and(|current| current.has_ended.get())
}

/// Returns whether a call that waits may go on waiting. Asks the callback of [`interruptible`] at most ten times a
/// second.
///
/// For crates that build on this one and have long calls of their own: such a call asks between its steps, and ends
/// with an error when this returns `false`. Without a callback of this thread it returns `true`.
///
/// # Examples
///
/// ```
/// use ndarray_shm::backend::{goes_on, interruptible};
///
/// let sum = |numbers: &[u64]| numbers.iter().try_fold(0, |sum, number| goes_on().then_some(sum + number));
/// assert_eq!(sum(&[1, 2, 3]), Some(6));
/// assert_eq!(interruptible(|| true, || sum(&[1, 2, 3])), Some(6));
/// ```
pub fn goes_on() -> bool {
    ask(ASK)
}

/// Fails if a call with much work is not to go on. Asks the callback each time.
pub(crate) fn check() -> io::Result<()> {
    if ask(Duration::ZERO) {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::Interrupted, "the callback has ended the call"))
    }
}

fn ask(after: Duration) -> bool {
    /// Ends the question, also after a panic.
    struct Asking<'a>(&'a Interruption);
    impl Drop for Asking<'_> {
        fn drop(&mut self) {
            self.0.asked.set(Instant::now());
            self.0.is_asking.set(false);
        }
    }
    // A clone, because the callback may use this crate.
    let Some(current) = current() else { return true };
    if !current.has_ended.get() && current.asked.get().elapsed() >= after && !current.is_asking.replace(true) {
        let _asking = Asking(&current);
        current.has_ended.set(!(current.goes_on)());
    }
    !current.has_ended.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callback_ends_the_calls_of_its_closure() {
        assert!(check().is_ok() && !can_end());
        let count = Rc::new(Cell::new(0));
        let counted = Rc::clone(&count);
        let goes_on = move || {
            counted.set(counted.get() + 1);
            counted.get() < 3
        };
        interruptible(goes_on, || {
            assert!(check().is_ok() && check().is_ok() && !has_ended());
            interruptible(|| true, || assert!(check().is_ok() && !has_ended()));
            assert_eq!(check().unwrap_err().kind(), io::ErrorKind::Interrupted);
            assert!(has_ended() && !super::goes_on());
        });
        assert_eq!(count.get(), 3, "an ended call is not asked again");
        assert!(check().is_ok() && !can_end());
    }

    #[test]
    fn callback_that_uses_this_crate_is_not_asked_meanwhile() {
        interruptible(|| check().is_ok() && super::goes_on(), || assert!(check().is_ok()));
        interruptible(|| false, || assert!(uninterrupted(|| check().is_ok()) && check().is_err()));
    }

    #[test]
    fn panic_ends_the_interruption() {
        let _ = std::panic::catch_unwind(|| interruptible(|| false, || panic!("on purpose")));
        assert!(check().is_ok());
    }
}
