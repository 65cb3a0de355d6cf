"""Numpy views of arrays: finding their array and region, and a warning where a copy of one is sent."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from ._array import Array
from ._errors import ViewCopied

if TYPE_CHECKING:
    import numpy

# Whether the warning was given.
_is_warned = False


def find(x: numpy.ndarray[Any, Any]) -> tuple[Array, tuple[int, tuple[int, ...], tuple[int, ...]]] | None:
    """Return the array of which `x` is a view without a lock, and offset, lengths and strides in it. Return None for everything else.

    That includes views which are no region of the array: of another type, with overlapping elements, of a part of its buffer.
    """
    if (found := _exporter(x)) is None:
        return None
    owner, root = found
    if x.dtype.str != _exported(owner) or (root.shape, root.strides) != (owner.shape, owner.strides) or not _is_regular(x):
        return None
    return owner, (_address(x) - _address(root), x.shape, x.strides)


def is_view(x: numpy.ndarray[Any, Any]) -> bool:
    """Return whether `x` is a view without a lock of any array, whatever it shows of it."""
    return _exporter(x) is not None


def _exporter(x: numpy.ndarray[Any, Any]) -> tuple[Array, numpy.ndarray[Any, Any]] | None:
    """Return the array that has exported the memory of a view, and the first numpy array that was made of it."""
    kind: Any = type(x)
    root: Any = x
    below: Any = x.base
    # A guard's view belongs to the guard, and what was received as a numpy array is of a class of its own. Only objects of known classes are
    # asked: others, and the fields of record arrays, may have attributes of these names that mean something else.
    while type(below) is not Array:
        if isinstance(below, kind):
            root, below = below, kind.base.__get__(below)
        elif isinstance(below, memoryview):
            below = below.obj
        elif type(below).__name__ == "DummyArray" and type(below).__module__.startswith("numpy."):
            below = below.base  # of `as_strided`
        else:
            return None
    return below, root


def _exported(array: Array) -> str:
    """Return the type in which numpy sees the elements of an array."""
    return "<u2" if array._dtype_code == "bfloat16" else array._dtype_code


def _address(x: numpy.ndarray[Any, Any]) -> int:
    return int(x.__array_interface__["data"][0])


def _is_regular(x: numpy.ndarray[Any, Any]) -> bool:
    """Return whether no element stands at two positions."""
    reach = x.itemsize
    for stride, length in sorted((abs(stride), length) for stride, length in zip(x.strides, x.shape, strict=True) if length > 1):
        if stride < reach:
            return False
        reach = stride * (length - 1) + reach
    return True


def warn_of_copy(x: numpy.ndarray[Any, Any], reason: str = "", *, always: bool = False) -> None:
    """Warn, once in a process, that what the receiver writes is not in the array. A view that cannot write has no such meaning."""
    global _is_warned
    if not x.flags.writeable or not x.size or (_is_warned and not always):
        return
    _is_warned = True
    warnings.warn(
        f"a numpy view of an ndshm.Array was pickled as a copy{reason}: what its receiver writes is not in the array. Send array.part(index), or "
        "all of `array.parts()`, which are the same memory, or call ndshm.multiprocessing.install(views=True)",
        ViewCopied,
        stacklevel=2,
    )
