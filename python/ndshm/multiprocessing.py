"""Sends numpy arrays through shared memory, wherever the standard library's ``multiprocessing`` pickles them.

After `install`, large numeric arrays in Queues, Pipes, Pools and ``concurrent.futures.ProcessPoolExecutor`` are copied into shared memory
by the sender, and the receiver gets that memory as its array::

    import ndshm

    ndshm.multiprocessing.install()

Each array that is sent is a counted array of its own, as if `ndshm.share` had made it. Its memory is freed when the receiver drops the last
view of it. A message that is never received keeps its memory for ``NDSHM_PICKLE_GRACE`` seconds (600 by default): see `ndshm.in_flight`.
"""

from __future__ import annotations

import math
import operator
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from . import _array, in_flight
from ._dtypes import shareable
from ._errors import HandleExpired, InvalidArgument, NdshmError, NoSpace, NotFound, TooManyOpenFiles
from ._guard import require_numpy
from ._imports import importing
from ._share import get_sharing_strategy, share_zeros

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy

    _Reducer = Callable[[numpy.ndarray[Any, Any]], Any]

__all__ = ["install", "uninstall"]

_DEFAULT = 64 << 10
# How many axes a shared array can have. numpy's have up to 64.
_MOST_AXES = 32

# How many bytes an array has at least that is shared. Infinite while nothing is installed.
_threshold: float = math.inf
# Whether views of arrays are sent as parts of them.
_views = False
# Whether this process has called `install` or `uninstall`. If so, arriving arrays do not install.
_is_decided = False


def install(threshold: int = _DEFAULT, *, views: bool = False) -> None:
    """Send large numpy arrays through shared memory from now on.

    This applies to everything that ``multiprocessing`` pickles in this process: Queues, Pipes, Pools, the arguments of a Process,
    ``ProcessPoolExecutor``, and torch's queues and DataLoaders.

    The receiver gets a plain, writable ``numpy.ndarray``, without another copy. The sender's array stays private. Fortran order is kept;
    every other order of axes becomes C.

    - Shared are arrays of class ``numpy.ndarray`` with integers, floats, complex numbers or ``bool``, in the byte order of the machine, and
      with at most 32 axes. Subclasses, such as ``numpy.memmap``, and other dtypes are pickled as before.
    - If there is no room in shared memory, or no file descriptor left, an array is pickled as before too.
    - Forked children are installed like their parent. In a spawned child, call `install` at the top level of the main module, or as the
      ``initializer`` of a Pool. If neither has happened, the first shared array that arrives installs, with the threshold of its sender, so
      that workers send results back in the way in which they got their arguments.
    - A connection to another machine cannot send such arrays: there, `uninstall` first.
    - If a process forks while it has a received array, parent and child share its memory, unlike other arrays: copy it where one of them
      writes.
    - A numpy view of an `ndshm.Array` is sent as a copy, and what the receiver writes to it stays there. The first such copy of a process gives
      a `ViewCopied` warning. `Array.part` is sent as the same memory. So is a view with ``views=True``. Views of a guard are always copied.

    Calling it again sets another threshold.

    Parameters
    ----------
    threshold
        How many bytes an array has at least that is shared. Smaller arrays are pickled as before, which is faster for them.
    views
        Send numpy views of arrays, ``numpy.asarray(array)[5]``, as the same memory: what the receiver writes is in the array. A spawned child
        that sends some back calls `install` with ``views=True`` itself.

    Raises
    ------
    InvalidArgument
        The threshold is negative, or an environment variable has a wrong value: ``NDSHM_PICKLE_GRACE`` or ``NDSHM_SHARING_STRATEGY``.

    Examples
    --------
    >>> import multiprocessing
    >>> import numpy
    >>> import ndshm
    >>> ndshm.multiprocessing.install()
    >>> near, far = multiprocessing.Pipe()
    >>> near.send(numpy.ones((512, 512)))  # 2 MiB, more than the pipe could hold
    >>> float(far.recv().sum())
    262144.0
    >>> ndshm.multiprocessing.uninstall()
    """
    global _is_decided, _views
    threshold = operator.index(threshold)
    if threshold < 0:
        raise InvalidArgument(f"threshold={threshold}: give a number of bytes, 0 or more")
    # A wrong setting is reported here, and not in the thread of a Queue, which would lose the message.
    in_flight.grace()
    get_sharing_strategy()
    from . import _views as _  # as in `watch_views`

    with suppress(NoSpace, TooManyOpenFiles):
        _rehearse()
    _register(threshold)
    _is_decided, _views = True, views


def watch_views() -> None:
    """See the numpy arrays that are pickled, and send none of them through shared memory."""
    with importing("ndshm._views"):
        from . import _views as _
    reducers, ndarray = _registered()
    previous = reducers.get(ndarray)
    if not isinstance(previous, _Registered):
        reducers[ndarray] = _Registered(previous)


def uninstall() -> None:
    """Send numpy arrays as before `install`. Arrays that are on their way still arrive."""
    global _is_decided, _threshold, _views
    _is_decided, _views, _threshold = True, False, math.inf
    if not sys.modules.get("multiprocessing.reduction") or not sys.modules.get("numpy"):
        return  # nothing was registered
    reducers, ndarray = _registered()
    ours = reducers.get(ndarray)
    # If another library has registered its reducer since, ours is left where it is, and passes every array on.
    if isinstance(ours, _Registered):
        if ours.previous is None:
            del reducers[ndarray]
        else:
            reducers[ndarray] = ours.previous


def _register(threshold: int) -> None:
    global _threshold
    if _threshold == math.inf:
        watch_views()
    _threshold = max(threshold, 1)  # an array without elements is never shared


def _rehearse() -> None:
    """Send an array to this process, so that all modules that sending needs are imported.

    If the thread of a Queue were the first to import them, a child that is forked meanwhile would wait for that import for ever.
    """
    _attach(*_send(require_numpy("ndshm.multiprocessing").zeros(1)))


def _registered() -> tuple[dict[type, Any], type]:
    """Return the reducers that were registered for pickles of multiprocessing, and the class of numpy arrays."""
    with importing("multiprocessing.reduction"):
        from multiprocessing.reduction import ForkingPickler

    # There is a public method to register a reducer, but none to see or remove one.
    return getattr(ForkingPickler, "_extra_reducers"), require_numpy("ndshm.multiprocessing").ndarray  # noqa: B009


class _Registered:
    """What is registered for pickles of numpy arrays. What it does not share is left to the reducer that was registered before.

    Each has a predecessor of its own. Another library may have registered a reducer between two of ours, which passes arrays on to the older
    one: with one predecessor for both, the two libraries would call each other without an end.
    """

    __slots__ = ("previous",)

    def __init__(self, previous: _Reducer | None) -> None:
        self.previous = previous

    def __call__(self, x: numpy.ndarray[Any, Any]) -> Any:
        if x.base is not None and (sent := _view(x)) is not None:
            return sent
        threshold = _threshold
        if x.nbytes >= threshold and shareable(x.dtype) and x.ndim <= _MOST_AXES:
            try:
                return _receive, (*_send(x), threshold)
            except (NoSpace, TooManyOpenFiles):
                pass  # an exception would lose the message, if this is the thread of a Queue
        if self.previous is not None:
            return self.previous(x)
        with importing("pickle"):
            from pickle import DEFAULT_PROTOCOL  # it is loaded when this is called, and `import ndshm` does not load it

        # The protocol of this pickle is not known here. It is the default one, unless a caller chose another.
        return x.__reduce_ex__(DEFAULT_PROTOCOL)


def _view(x: numpy.ndarray[Any, Any]) -> Any:
    """Return how a view of an array is sent as a part of it. Return None if it is copied, and warn if that changes its meaning."""
    with importing("ndshm._views"):
        from . import _views as views

    if not _views or (found := views.find(x)) is None:
        if views.is_view(x):
            views.warn_of_copy(x, ", as it is no regular region of the array" if _views else "")
        return None
    array, region = found
    try:
        if not array.is_counted and not _has_its_name(array):
            raise NotFound(f"`{array.name}` is another array by now")
        part = _array.Array(array._part_at(*region))
        return _receive_view, (part._sent(False), bool(x.flags.writeable))
    except (NdshmError, ValueError, OSError):  # closed, or its name is gone
        views.warn_of_copy(x, always=True)
        return None


def _has_its_name(array: _array.Array) -> bool:
    """Return whether a plain array's name still leads to it. The view keeps the memory, and a receiver would get what has the name."""
    facts = os.stat(array.directory / array.name)
    return os.name != "posix" or (facts.st_dev, facts.st_ino) == array._file_id


def _receive_view(sent: tuple[Any, ...], writeable: bool) -> Any:
    attach, arguments = sent
    x = require_numpy("receiving a view that was sent by ndshm.multiprocessing").asarray(attach(*arguments))
    if not writeable:
        x.flags.writeable = False
    return x


def _send(x: numpy.ndarray[Any, Any]) -> tuple[str, str, str]:
    """Copy an array into shared memory, and return what leads to it. Only the handle keeps the memory."""
    numpy = require_numpy("ndshm.multiprocessing")
    order = "F" if x.flags.f_contiguous and not x.flags.c_contiguous else "C"
    with share_zeros(x.shape, x.dtype, order) as array:
        # `share` would copy arrays that are not contiguous twice, and keep other threads waiting.
        numpy.copyto(numpy.asarray(array), x)
        return _array._issue(array, reusable=False), _array._machine(), array._dtype_code


def _receive(handle: str, machine: str, dtype: str, threshold: int) -> Any:
    received = _attach(handle, machine, dtype)
    if not _is_decided and _threshold == math.inf:
        with suppress(NdshmError):  # what arrived is not lost
            _rehearse()
        _register(threshold)
    return received


class _Received(_array.Array):
    """The memory of a numpy array that was received. Its receiver sees numpy's array, a view of which is copied as any other."""

    __slots__ = ()


def _attach(handle: str, machine: str, dtype: str) -> Any:
    numpy = require_numpy("receiving an array that was sent by ndshm.multiprocessing")
    try:
        array = _array._receive(handle, machine, dtype, {}, _Received)
    except HandleExpired as error:
        raise HandleExpired(
            "the array of this message is gone. The message was loaded before, its sender has called ndshm.in_flight.clear(), or it was "
            "sent more than NDSHM_PICKLE_GRACE seconds ago (600 by default): set this variable to a longer time in the sender"
        ) from error
    return numpy.asarray(array)
