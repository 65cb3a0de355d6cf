"""Pickles of counted arrays that are not loaded yet.

A pickle of a counted array (`ndshm.share`) is a *handle*: a line of text that leads to the array. The handle keeps the array while no
process is attached, for ten minutes after it was last pickled, or for as long as the environment variable ``NDSHM_PICKLE_GRACE`` says, in
seconds (at least 1). So a sender can drop its array before the receiver has it.

A pickle that multiprocessing makes is loaded once, and then keeps nothing. A pickle made in any other way can be loaded any number of
times. It keeps the array until its time is over, or until 30 seconds after the process that made it has ended, or until memory runs out:

When there is no room for something that this process creates, it gives up those of its pickles that were loaded at least once since they
were made, and of which no process has the array any more, the oldest first, until there is room. Loading one of those again raises
`HandleExpired`. All pickles of an array count as loaded when one was, after the last was made. Arrays of which none was loaded, and pickles
of other processes, stay; the error `NoSpace` says how much they keep.

Each process has at most one handle of either kind for an array, however often it pickles it.
"""

from __future__ import annotations

import atexit
import os

from . import _core
from ._errors import InvalidArgument, NdshmError

__all__ = ["clear", "grace"]

_VARIABLE = "NDSHM_PICKLE_GRACE"
_DEFAULT = 600.0
_SHORTEST = 1.0
_LONGEST = 7 * 24 * 3600.0

#: How long the pickles of a process that has ended can still be loaded.
_AFTER_EXIT = 30.0

# Every handle of this process that has not expired.
_notes = _core.InFlight()


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
    for text in _notes.handles():
        ended += _core.revoke(text)
        _notes.forget(text)
    return ended


def _end() -> None:
    """At exit: let reusable handles expire soon. Pickles that are loaded once stay good, because their receivers end them."""
    for text in _notes.reusable_after(_AFTER_EXIT):
        try:
            _core.expire(text, _AFTER_EXIT)
        except (OSError, NdshmError):  # the directory has gone, or belongs to another user by now
            continue


def _forked() -> None:
    """In a forked child: the handles are those of the parent, a thread of which may be issuing one at this moment."""
    global _notes
    _notes = _core.InFlight()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_core.forked)
    os.register_at_fork(after_in_child=_forked)
