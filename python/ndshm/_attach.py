"""Creating arrays and attaching to them by name."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from . import _core
from ._array import Array
from ._dtypes import name_of
from ._errors import InvalidArgument
from ._guard import require_numpy

if TYPE_CHECKING:
    import numpy.typing


def lengths_of(shape: int | tuple[int, ...] | list[int]) -> list[int]:
    """Return the lengths of the axes as a list."""
    lengths = [shape] if isinstance(shape, int) else list(shape)
    for length in lengths:
        if operator.index(length) < 0:
            raise InvalidArgument(f"the shape {shape} has a negative length")
    return [operator.index(length) for length in lengths]


def contiguous(x: Any) -> tuple[Any, str, Any]:
    """Return an array, the order in which it is to be shared, and its elements in that order as bytes, or None if it is empty."""
    numpy = require_numpy("sharing a copy")
    name_of(x.dtype)  # refuses types that cannot be viewed as bytes
    order = "F" if x.flags.f_contiguous and not x.flags.c_contiguous else "C"
    return x, order, numpy.asarray(x, order=order).ravel(order="K").view("u1") if x.size else None


def create(
    name: str,
    shape: int | tuple[int, ...] | list[int],
    dtype: numpy.typing.DTypeLike,
    order: str = "C",
    *,
    replace: bool = False,
    sparse: bool = False,
    permissions: int = 0o600,
    keep_fd: bool = False,
) -> Array:
    """Create an array of zeros under a name that must be free, and reserve its memory.

    Parameters
    ----------
    name
        A file name: no ``/``, at most 255 bytes.
    shape
        The lengths of the axes.
    dtype
        A numpy dtype or its name: integers of 8 to 64 bits, floats of 16 to 64, ``bfloat16``, complex numbers, ``bool``.
    order
        ``"C"``, the last axis contiguous, or ``"F"``, the first.
    replace
        Replace the array that has the name, if any. Processes attached to that array keep its memory.
    sparse
        Reserve no memory: a process that writes when none is left is killed.
    permissions
        The permission bits of the file.
    keep_fd
        Keep one descriptor open, so that guards are available after the name was removed.

    Raises
    ------
    AlreadyExists
        The name is taken.
    NoSpace
        There is not enough memory. Nothing was created.
    InvalidArgument
        The name, shape or dtype is not valid.
    """
    attachment = _core.create(
        name,
        lengths_of(shape),
        name_of(dtype),
        order,
        replace=replace,
        sparse=sparse,
        permissions=permissions,
        keep_fd=keep_fd,
    )
    return Array(attachment)


def from_array(name: str, x: Any, *, replace: bool = False, permissions: int = 0o600, keep_fd: bool = False) -> Array:
    """Create a copy of an array. Fortran order is kept; every other order of axes becomes C. An `Array` is copied under its read lock.

    The name leads to the array only once all elements are there. The parameters and errors are those of `create`.
    """
    if isinstance(x, Array):
        with x.read() as view:
            return from_array(name, view, replace=replace, permissions=permissions, keep_fd=keep_fd)
    numpy = require_numpy("from_array")
    x, order, source = contiguous(numpy.asarray(x))
    attachment = _core.create(
        name,
        list(x.shape),
        name_of(x.dtype),
        order,
        source=source,
        replace=replace,
        permissions=permissions,
        keep_fd=keep_fd,
    )
    return Array(attachment)


def open(
    name: str,
    shape: int | tuple[int, ...] | list[int] | None = None,
    dtype: numpy.typing.DTypeLike | None = None,
    order: str | None = None,
    *,
    readonly: bool = False,
    keep_fd: bool = False,
    reinterpret: bool = False,
) -> Array:
    """Attach to the array of this name.

    Parameters
    ----------
    name
        The name of the array.
    shape, dtype, order
        Needed only if the array does not describe itself. Otherwise they must agree with its description.
    readonly
        Attach for reading only. A library that ignores this and writes changes its own copy, not the shared memory.
    keep_fd
        Keep one descriptor open, so that guards are available after the name was removed.
    reinterpret
        Do not compare with the description. The number of bytes must still match.

    Raises
    ------
    NotFound
        No file has the name.
    NotDescribed
        The array has no description: give shape and dtype.
    Mismatch
        The array has another size, dtype, shape or order.
    """
    attachment = _core.open(
        name,
        lengths=None if shape is None else lengths_of(shape),
        dtype=None if dtype is None else name_of(dtype),
        order=order,
        readonly=readonly,
        keep_fd=keep_fd,
        reinterpret=reinterpret,
    )
    return Array(attachment)
