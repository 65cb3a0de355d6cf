"""Pickles of counted arrays that are not loaded yet.

A pickle of a counted array (`ndshm.share`) is a *handle*: a line of text that leads to the array. The handle keeps the array while no
process is attached, for ten minutes after it was last pickled, or for as long as the environment variable ``NDSHM_PICKLE_GRACE`` says, in
seconds. So a sender can drop its array before the receiver has it.

A pickle that multiprocessing makes is loaded once, and then keeps nothing. A pickle made in any other way can be loaded any number of
times. It keeps the array until its time is over, or until 30 seconds after the process that made it has ended.

Each process has at most one handle of either kind for an array, however often it pickles it.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from . import _core
from ._errors import InvalidArgument, NdshmError

if TYPE_CHECKING:
    from ._array import Array

__all__ = ["clear", "grace"]

_VARIABLE = "NDSHM_PICKLE_GRACE"
_DEFAULT = 600.0
_LONGEST = 7 * 24 * 3600.0

#: How long the pickles of a process that has ended can still be loaded.
_AFTER_EXIT = 30.0


class _Handle(NamedTuple):
    text: str
    end: float


# By directory, name, and whether the handle is reusable; the one that was renewed last is the last.
_handles: dict[tuple[str, str, bool], _Handle] = {}
# Reentrant, because a finalizer or a signal handler that runs meanwhile may pickle too.
_lock = threading.RLock()


def grace() -> float:
    """Return for how many seconds a new pickle keeps its array: ``NDSHM_PICKLE_GRACE``, or 600."""
    text = os.environ.get(_VARIABLE)
    if not text:
        return _DEFAULT
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _LONGEST:
        raise InvalidArgument(f"{_VARIABLE}={text!r}: give seconds, from 0 to {_LONGEST:.0f} (a week)")
    return seconds


def issue(array: Array, reusable: bool) -> str:
    """Return the handle of an array, good for one process more, or for any number of processes if it is reusable."""
    seconds = grace()
    with _lock:
        key = (os.fspath(array.directory), array.name, reusable)
        now = time.monotonic()
        known = _handles.pop(key, None)
        if known is not None and array.renew(known.text, seconds):
            text = known.text
        else:
            text = array.issue(reusable, seconds)
        # An array gets its name with its first handle, if it had none.
        _handles[key[0], array.name, reusable] = _Handle(text, now + seconds)
        _forget_expired(now)
    return text


def _forget_expired(now: float) -> None:
    for key, handle in list(_handles.items()):
        if handle.end > now:
            break
        del _handles[key]


def clear() -> int:
    """Make all pickles of this process useless that are not loaded yet, so that they keep no array.

    Loading one of them raises `HandleExpired`. Arrays that are attached somewhere stay.

    Returns
    -------
    int
        How many handles were still good.
    """
    with _lock:
        handles = list(_handles.values())
        _handles.clear()
    return sum(_core.revoke(handle.text) for handle in handles)


def _end() -> None:
    """At exit: let reusable handles expire soon. Pickles that are loaded once stay good, because their receivers end them."""
    now = time.monotonic()
    for (_, _, reusable), handle in list(_handles.items()):
        if reusable and handle.end > now + _AFTER_EXIT:
            try:
                _core.expire(handle.text, _AFTER_EXIT)
            except (OSError, NdshmError):  # the directory has gone, or belongs to another user by now
                continue


def _forked() -> None:
    """In a forked child: the handles are those of the parent, which may hold the lock at this moment."""
    global _lock
    _lock = threading.RLock()
    _handles.clear()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_core.forked)
    os.register_at_fork(after_in_child=_forked)
