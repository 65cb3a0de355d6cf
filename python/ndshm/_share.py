"""Counted arrays: shared through any transport that pickles, and removed by their last user."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, overload

from . import _core
from ._array import Array, is_array, register_with_multiprocessing
from ._attach import ShapeLike, lengths_of, to_copy
from ._dtypes import name_of
from ._errors import InvalidArgument
from ._types import Scalar

if TYPE_CHECKING:
    import numpy.typing

_VARIABLE = "NDSHM_SHARING_STRATEGY"
_DEFAULT = "file_system"
_strategy: str | None = None


def get_all_sharing_strategies() -> set[str]:
    """Return the names of the strategies that this platform supports, as in ``torch.multiprocessing``."""
    return set(_core.strategies())


def get_sharing_strategy() -> str:
    """Return the strategy of new arrays: the one that was set, else ``NDSHM_SHARING_STRATEGY``, else ``"file_system"``."""
    return _strategy or _known(os.environ.get(_VARIABLE) or _DEFAULT, _VARIABLE)


def set_sharing_strategy(strategy: str) -> None:
    """Set the strategy of new arrays of this process. Arrays that exist keep theirs.

    Parameters
    ----------
    strategy
        ``"file_system"``: the array has a random name from the beginning, and keeps no descriptor open.

        ``"file_descriptor"``: the array has no name and keeps a descriptor open, so that nothing can be left behind by a process that is
        killed. Its first pickle gives it a name. Linux only.
    """
    global _strategy
    _strategy = _known(strategy, "strategy")


def _known(strategy: str, what: str) -> str:
    if strategy not in get_all_sharing_strategies():
        raise InvalidArgument(f"{what}={strategy!r}: give one of {', '.join(sorted(get_all_sharing_strategies()))}")
    return strategy


@overload
def share(x: Array[Scalar] | numpy.typing.NDArray[Scalar], strategy: str | None = None) -> Array[Scalar]: ...
@overload
def share(x: Any, strategy: str | None = None) -> Array: ...
def share(x: Any, strategy: str | None = None) -> Array:
    """Copy an array into shared memory, to be sent to other processes.

    A pickle of the result is a handle of about 300 bytes; the receiver gets an array that is the same memory. It can be sent through
    everything that pickles: multiprocessing, concurrent.futures, joblib, dask, ray. The array is counted: the last process that has it
    frees it. No process has to unlink it, and what killed processes leave behind is found by `ndshm.gc`.

    Fortran order is kept; every other order of axes becomes C. Other threads run while numpy copies; the caller ensures that none of them
    writes to `x`.

    Parameters
    ----------
    x
        A numpy array, or anything that ``numpy.asarray`` accepts. An `Array` is copied under its read lock, and the copy has its `Array.notes`.
    strategy
        See `set_sharing_strategy`.

    Raises
    ------
    NoSpace
        There is not enough memory. Nothing was created.
    InvalidArgument
        The dtype cannot be shared, or the strategy is not known here.

    Examples
    --------
    >>> import numpy
    >>> array = ndshm.share(numpy.arange(6).reshape(2, 3))
    >>> import pickle
    >>> same = pickle.loads(pickle.dumps(array))
    >>> same[1, 2] = 7
    >>> int(array[1, 2])
    7
    """
    strategy = get_sharing_strategy() if strategy is None else _known(strategy, "strategy")
    if is_array(x):
        with x.read() as view:
            return _copied(view, strategy, x._notes_to_keep)
    return _copied(x, strategy, {})


def _copied(x: Any, strategy: str, notes: dict[str, str]) -> Array:
    x, order, source = to_copy(x)
    return _shared(_core.share(list(x.shape), name_of(x.dtype), order, strategy, source=source, notes=notes))


@overload
def share_zeros(
    shape: ShapeLike, dtype: type[Scalar] | numpy.dtype[Scalar], order: str = "C", strategy: str | None = None
) -> Array[Scalar]: ...
@overload
def share_zeros(shape: ShapeLike, dtype: numpy.typing.DTypeLike, order: str = "C", strategy: str | None = None) -> Array: ...
def share_zeros(shape: ShapeLike, dtype: numpy.typing.DTypeLike, order: str = "C", strategy: str | None = None) -> Array:
    """Create a counted array of zeros. It is like the result of `share`, without a copy.

    The parameters are those of `create` and `share`.
    """
    strategy = get_sharing_strategy() if strategy is None else _known(strategy, "strategy")
    return _shared(_core.share(lengths_of(shape), name_of(dtype), order, strategy))


def _shared(attachment: _core.Attachment) -> Array:
    register_with_multiprocessing()
    return Array(attachment)
