"""Pickles of counted arrays that are not loaded yet.

A pickle of a counted array (`ndshm.share`) is a *handle*: a line of text that leads to the array. The handle keeps the array while no
process is attached, for ten minutes after it was last pickled, or for as long as the environment variable ``NDSHM_PICKLE_GRACE`` says, in
seconds (at least 1). So a sender can drop its array before the receiver has it.

A pickle that multiprocessing makes is loaded once, and then keeps nothing. A pickle made in any other way can be loaded any number of
times. It keeps the array until its time is over, or until 30 seconds after the process that made it has ended.

Each process has at most one handle of either kind for an array, however often it pickles it.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from typing import TYPE_CHECKING

from . import _core
from ._errors import InvalidArgument, NdshmError

if TYPE_CHECKING:
    from ._array import Array

__all__ = ["clear", "grace"]

_VARIABLE = "NDSHM_PICKLE_GRACE"
_DEFAULT = 600.0
_SHORTEST = 1.0
_LONGEST = 7 * 24 * 3600.0

#: How long the pickles of a process that has ended can still be loaded.
_AFTER_EXIT = 30.0

#: The least number of handles at which those of freed arrays are looked for.
_MANY = 1024


# An array's random number, and whether the handle is reusable.
_Key = tuple[str, bool]
# Every handle that has not expired, with its end, its key, and the path of its array. The one that was renewed last is the last.
_issued: dict[str, tuple[float, _Key, str]] = {}
# The number of handles at which those of freed arrays are forgotten, so that a process that sends many arrays does not grow.
_most = _MANY
# The handle that the next pickle renews.
_current: dict[_Key, str] = {}
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
    if not _SHORTEST <= seconds <= _LONGEST:
        raise InvalidArgument(f"{_VARIABLE}={text!r}: give seconds, from {_SHORTEST:.0f} to {_LONGEST:.0f} (a week)")
    return seconds


def issue(array: Array, reusable: bool) -> str:
    """Return the handle of an array, good for one process more, or for any number of processes if it is reusable."""
    seconds = grace()
    with _lock:
        key = (array.id, reusable)
        now = time.monotonic()
        text = _current.get(key)
        if text is None or not array.renew(text, seconds):
            text = array.issue(reusable, seconds)
        _current[key] = text
        _issued.pop(text, None)
        _issued[text] = now + seconds, key, os.path.join(array.directory, array.name)
        while (oldest := next(iter(_issued))) != text and _issued[oldest][0] <= now:
            _forget(oldest)
        if len(_issued) > _most:
            _forget_freed()
    return text


def _forget_freed() -> None:
    """Forget the handles of arrays that have gone. The limit grows with what is left, so that the cost for each handle is constant."""
    global _most
    for text, (_, _, path) in list(_issued.items()):
        if text in _issued and not os.path.exists(path):
            _forget(text)
    _most = max(_MANY, 2 * len(_issued))


def _forget(text: str) -> None:
    _, key, _ = _issued.pop(text)
    if _current.get(key) == text:
        del _current[key]


def clear() -> int:
    """Make all pickles of this process useless that still keep an array.

    Loading one of them raises `HandleExpired`. Arrays that are attached somewhere stay. If an exception tells that a pickle could not be
    ended, the others can be ended by another call.

    Returns
    -------
    int
        How many handles were still good.
    """
    ended = 0
    with _lock:
        for text in list(_issued):
            ended += _core.revoke(text)
            _forget(text)
    return ended


def _end() -> None:
    """At exit: let reusable handles expire soon. Pickles that are loaded once stay good, because their receivers end them."""
    soon = time.monotonic() + _AFTER_EXIT
    for (_, reusable), text in list(_current.items()):
        if reusable and _issued[text][0] > soon:
            try:
                _core.expire(text, _AFTER_EXIT)
            except (OSError, NdshmError):  # the directory has gone, or belongs to another user by now
                continue


def _forked() -> None:
    """In a forked child: the handles are those of the parent, which may hold the lock at this moment."""
    global _lock
    _lock = threading.RLock()
    _issued.clear()
    _current.clear()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_core.forked)
    os.register_at_fork(after_in_child=_forked)
