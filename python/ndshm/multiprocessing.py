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
import pickle
from typing import TYPE_CHECKING, Any

from . import _array, in_flight
from ._dtypes import shareable
from ._errors import HandleExpired, InvalidArgument, NoSpace, TooManyOpenFiles
from ._guard import require_numpy
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
# The reducer that was registered before.
_previous: _Reducer | None = None
# Whether this process has called `install` or `uninstall`. If so, arriving arrays do not install.
_is_decided = False


def install(threshold: int = _DEFAULT) -> None:
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

    Calling it again sets another threshold.

    Parameters
    ----------
    threshold
        How many bytes an array has at least that is shared. Smaller arrays are pickled as before, which is faster for them.

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
    global _is_decided
    threshold = operator.index(threshold)
    if threshold < 0:
        raise InvalidArgument(f"threshold={threshold}: give a number of bytes, 0 or more")
    # A wrong setting is reported here, and not in the thread of a Queue, which would lose the message.
    in_flight.grace()
    get_sharing_strategy()
    _register(threshold)
    _is_decided = True


def uninstall() -> None:
    """Send numpy arrays as before `install`. Arrays that are on their way still arrive."""
    global _is_decided, _previous, _threshold
    _is_decided = True
    if _threshold == math.inf:
        return
    _threshold = math.inf
    reducers, ndarray = _registered()
    # If another library has registered its reducer since, ours is left where it is, and passes every array on.
    if reducers.get(ndarray) is _reduce:
        if _previous is None:
            del reducers[ndarray]
        else:
            reducers[ndarray] = _previous
        _previous = None


def _register(threshold: int) -> None:
    global _previous, _threshold
    reducers, ndarray = _registered()
    # After an `uninstall` that left `_reduce` below the reducer of another library, it must not become its own predecessor.
    if _threshold == math.inf and reducers.get(ndarray) is not _reduce:
        _previous = reducers.get(ndarray)
        reducers[ndarray] = _reduce
    _threshold = max(threshold, 1)  # an array without elements is never shared


def _registered() -> tuple[dict[type, Any], type]:
    """Return the reducers that were registered for pickles of multiprocessing, and the class of numpy arrays."""
    from multiprocessing.reduction import ForkingPickler

    # There is a public method to register a reducer, but none to see or remove one.
    return getattr(ForkingPickler, "_extra_reducers"), require_numpy("ndshm.multiprocessing").ndarray  # noqa: B009


def _reduce(x: numpy.ndarray[Any, Any]) -> Any:
    threshold = _threshold
    if x.nbytes >= threshold and shareable(x.dtype) and x.ndim <= _MOST_AXES:
        try:
            return _receive, (*_send(x), threshold)
        except (NoSpace, TooManyOpenFiles):
            pass  # an exception would lose the message, if this is the thread of a Queue
    # The protocol of the pickle is not known here. It is the default one, unless a caller chose another.
    return x.__reduce_ex__(pickle.DEFAULT_PROTOCOL) if _previous is None else _previous(x)


def _send(x: numpy.ndarray[Any, Any]) -> tuple[str, str, str]:
    """Copy an array into shared memory, and return what leads to it. Only the handle keeps the memory."""
    numpy = require_numpy("ndshm.multiprocessing")
    order = "F" if x.flags.f_contiguous and not x.flags.c_contiguous else "C"
    with share_zeros(x.shape, x.dtype, order) as array:
        # `share` would copy arrays that are not contiguous twice, and keep other threads waiting.
        numpy.copyto(numpy.asarray(array), x)
        return in_flight.issue(array, reusable=False), _array._machine(), array.dtype_name


def _receive(handle: str, machine: str, dtype: str, threshold: int) -> Any:
    numpy = require_numpy("receiving an array that was sent by ndshm.multiprocessing")
    if not _is_decided and _threshold == math.inf:
        _register(threshold)
    try:
        array = _array._receive(handle, machine, dtype)
    except HandleExpired as error:
        raise HandleExpired(
            "the array of this message is gone. The message was loaded before, its sender has called ndshm.in_flight.clear(), or it was "
            "sent more than NDSHM_PICKLE_GRACE seconds ago (600 by default): set this variable to a longer time in the sender"
        ) from error
    return numpy.asarray(array)
