"""Creating arrays and attaching to them by name."""

from __future__ import annotations

import operator
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from . import _core
from ._array import Array, is_array
from ._dtypes import name_of, refuse_mask
from ._errors import AlreadyExists, InvalidArgument, InvalidType, NotFound, TimedOut
from ._guard import checked, require_numpy
from ._types import Scalar

if TYPE_CHECKING:
    import numpy.typing

#: The length of the only axis, or the lengths of all.
ShapeLike: TypeAlias = int | tuple[int, ...] | list[int]


def number_of(value: Any, what: str) -> int:
    """Return an argument that is a whole number which memory can have."""
    advice = f"{what}={value!r}: give a whole number, 0 or more, and at most {sys.maxsize}"
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidType(advice) from None
    if not 0 <= number <= sys.maxsize:
        raise InvalidArgument(advice)
    return number


def lengths_of(shape: ShapeLike) -> list[int]:
    """Return the lengths of the axes as a list."""
    lengths: list[Any]
    try:
        lengths = [shape] if isinstance(shape, (str, bytes)) else list(shape)  # type: ignore[arg-type]
    except TypeError:  # one number
        lengths = [shape]
    return [number_of(length, f"shape={shape!r}, length") for length in lengths]


def permissions_of(permissions: Any) -> int:
    """Return permission bits."""
    if number_of(permissions, "permissions") > 0o777:
        raise InvalidArgument(f"permissions={permissions:#o}: give the permission bits of a file, such as 0o600")
    return operator.index(permissions)


def _as_numpy(x: Any) -> Any:
    try:
        return require_numpy("sharing a copy").asarray(x)
    except (RuntimeError, TypeError) as error:
        if type(x).__module__.partition(".")[0] != "torch":
            raise
        raise InvalidArgument(f"numpy cannot take this tensor ({error}): ndshm.torch.from_tensor takes tensors of every kind") from error


def contiguous(x: Any) -> tuple[Any, str, Any]:
    """Return numpy's array of `x`, the order in which it is to be shared, and its elements in that order as bytes, or None if it is empty."""
    refuse_mask(x)
    numpy = require_numpy("sharing a copy")
    x = _as_numpy(x)
    name_of(x.dtype)  # refuses types that cannot be viewed as bytes
    order = "F" if x.flags.f_contiguous and not x.flags.c_contiguous else "C"
    return x, order, numpy.asarray(x, order=order).ravel(order="K").view("u1") if x.size else None


# How many bytes are copied before signals are handled.
_PIECE = 64 << 20


def to_copy(x: Any) -> tuple[Any, str, tuple[Any, list[Any]] | None]:
    """Return numpy's array of `x`, the order in which it is to be shared, and what the core copies: the elements, and indices of pieces."""
    refuse_mask(x)
    x = _as_numpy(x)
    name_of(x.dtype)  # refuses types that have no bytes to copy
    order = "F" if x.flags.f_contiguous and not x.flags.c_contiguous else "C"
    if not x.size:
        return x, order, None
    # Types of other packages are copied as bits: numpy keeps the interpreter locked while it copies their elements.
    bits = x.view(f"u{x.itemsize}") if x.dtype.kind == "V" else x
    return x, order, (bits, list(_pieces(x.shape, x.nbytes, order)))


def _pieces(shape: tuple[int, ...], nbytes: int, order: str) -> Iterator[tuple[Any, ...]]:
    """Yield indices of pieces that are not large, one after the other in memory."""
    axes = list(range(len(shape)) if order == "C" else reversed(range(len(shape))))
    index = [slice(None)] * len(shape)

    def split(depth: int, size: int) -> Iterator[tuple[Any, ...]]:
        if size <= _PIECE or depth == len(axes):
            yield tuple(index) or (...,)
            return
        axis = axes[depth]
        step = max(1, _PIECE * shape[axis] // size)
        for start in range(0, shape[axis], step):
            index[axis] = slice(start, start + step)
            yield from split(depth + 1, size * step // shape[axis])
        index[axis] = slice(None)

    return split(0, nbytes)


@overload
def create(
    name: str,
    shape: ShapeLike,
    dtype: type[Scalar] | numpy.dtype[Scalar],
    order: str = "C",
    *,
    replace: bool = False,
    exist_ok: bool = False,
    sparse: bool = False,
    permissions: int = 0o600,
    keep_fd: bool = False,
) -> Array[Scalar]: ...
@overload
def create(
    name: str,
    shape: ShapeLike,
    dtype: numpy.typing.DTypeLike,
    order: str = "C",
    *,
    replace: bool = False,
    exist_ok: bool = False,
    sparse: bool = False,
    permissions: int = 0o600,
    keep_fd: bool = False,
) -> Array: ...
def create(
    name: str,
    shape: ShapeLike,
    dtype: numpy.typing.DTypeLike,
    order: str = "C",
    *,
    replace: bool = False,
    exist_ok: bool = False,
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
    exist_ok
        Attach to the array that has the name, if any, with the elements that it has. It must have this shape, dtype and order, or without
        a description as many bytes; its permissions and pages stay as they are. So it does not matter which of several processes is first.
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
    Mismatch
        With ``exist_ok``: an array of another shape, dtype or order has the name.
    NoSpace
        There is not enough memory. Nothing was created.
    InvalidArgument
        The name, shape, dtype or another argument is not valid.
    KeyboardInterrupt
        Ctrl-C. Nothing was created, except that with ``replace`` the new array may have taken the place of the old one.
    """
    lengths, element, bits = lengths_of(shape), name_of(dtype), permissions_of(permissions)
    if replace and exist_ok:
        raise InvalidArgument("replace and exist_ok: give one of them, to lose or to keep the array that has the name")
    while True:
        made = _core.Made()
        try:
            return Array(
                _core.create(
                    name,
                    lengths,
                    element,
                    order,
                    made=made,
                    replace=replace,
                    sparse=sparse,
                    permissions=bits,
                    keep_fd=keep_fd,
                )
            )
        except AlreadyExists:
            if not exist_ok:
                raise
        except BaseException:
            made.undo()  # Ctrl-C came after the array was made
            raise
        try:
            return Array(_core.open(name, lengths=lengths, dtype=element, order=order, keep_fd=keep_fd))
        except NotFound:  # it was removed meanwhile
            continue


@overload
def from_array(
    name: str, x: Array[Scalar] | numpy.typing.NDArray[Scalar], *, replace: bool = False, permissions: int = 0o600, keep_fd: bool = False
) -> Array[Scalar]: ...
@overload
def from_array(name: str, x: Any, *, replace: bool = False, permissions: int = 0o600, keep_fd: bool = False) -> Array: ...
def from_array(name: str, x: Any, *, replace: bool = False, permissions: int = 0o600, keep_fd: bool = False) -> Array:
    """Create a copy of an array. Fortran order is kept; every other order of axes becomes C. An `Array` is copied under its read lock, and
    its notes, such as the axes, are the copy's.

    The name leads to the array only once all elements are there. Other threads run while numpy copies; the caller ensures that none of them
    writes to `x`. The parameters and errors are those of `create`.
    """
    if is_array(x):
        with x.read() as view:
            # The digest of a renderbuffer's work is not the copy's: it would be taken for finished work.
            notes = {key: text for key, text in x._notes_to_keep.items() if key != "work"}
            return _from_array(name, view, notes, replace, permissions, keep_fd)
    return _from_array(name, x, {}, replace, permissions, keep_fd)


def _from_array(name: str, x: Any, notes: dict[str, str], replace: bool, permissions: int, keep_fd: bool) -> Array:
    x, order, source = to_copy(x)
    bits, made = permissions_of(permissions), _core.Made()
    try:
        return Array(
            _core.create(
                name,
                list(x.shape),
                name_of(x.dtype),
                order,
                made=made,
                source=source,
                replace=replace,
                permissions=bits,
                keep_fd=keep_fd,
                notes=notes,
            )
        )
    except BaseException:
        made.undo()  # as in `create`
        raise


@overload
def open(
    name: str,
    shape: ShapeLike | None,
    dtype: type[Scalar] | numpy.dtype[Scalar],
    order: str | None = None,
    *,
    readonly: bool = False,
    keep_fd: bool = False,
    reinterpret: bool = False,
    timeout: float | None = 0,
) -> Array[Scalar]: ...
@overload
def open(
    name: str,
    shape: ShapeLike | None = None,
    *,
    dtype: type[Scalar] | numpy.dtype[Scalar],
    order: str | None = None,
    readonly: bool = False,
    keep_fd: bool = False,
    reinterpret: bool = False,
    timeout: float | None = 0,
) -> Array[Scalar]: ...
@overload
def open(
    name: str,
    shape: ShapeLike | None = None,
    dtype: numpy.typing.DTypeLike | None = None,
    order: str | None = None,
    *,
    readonly: bool = False,
    keep_fd: bool = False,
    reinterpret: bool = False,
    timeout: float | None = 0,
) -> Array: ...
def open(
    name: str,
    shape: ShapeLike | None = None,
    dtype: numpy.typing.DTypeLike | None = None,
    order: str | None = None,
    *,
    readonly: bool = False,
    keep_fd: bool = False,
    reinterpret: bool = False,
    timeout: float | None = 0,
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
    timeout
        Seconds to wait until an array has the name. 0 does not wait, None waits without limit. The array is complete then: `from_array`,
        `download` and renderbuffers give it the name at the end, and `create` gives zeros.

    Raises
    ------
    NotFound
        No file has the name.
    TimedOut
        No file had the name in time, if `timeout` is not 0.
    NotDescribed
        The array has no description: give shape and dtype.
    Mismatch
        The array has another size, dtype, shape or order.
    """
    checked(timeout)
    lengths, element = None if shape is None else lengths_of(shape), None if dtype is None else name_of(dtype)
    begin, pause = time.monotonic(), 0.0005
    while True:
        try:
            return Array(
                _core.open(
                    name, lengths=lengths, dtype=element, order=order, readonly=readonly, keep_fd=keep_fd, reinterpret=reinterpret
                )
            )
        except NotFound as error:
            if timeout == 0:
                raise
            if timeout is not None and time.monotonic() - begin >= timeout:
                raise TimedOut(f"{error}; waited for {timeout} seconds") from error
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
