"""Attached arrays."""

from __future__ import annotations

import functools
import os
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _core, in_flight
from ._errors import HandleExpired, NdshmError, NotFound, Unlinked
from ._guard import Guard, require_numpy

if TYPE_CHECKING:
    import numpy


class Array(_core.RawArray):
    """An n-dimensional array in shared memory.

    `create`, `open` and `from_array` return a *plain* one: it has a name of your choice, which stays until it is removed with `unlink`.
    The elements are in the file and nothing else, so that any program that can map a file can read them. `share` returns a *counted*
    one, which its last user frees.

    Elements are reached under a lock that the kernel releases when a process dies::

        with array.write() as x:   # a numpy array; without numpy a memoryview
            x[:] = 1

    ``numpy.asarray(array)`` and ``memoryview(array)`` give the same memory **without** a lock: the caller must ensure that
    nothing else writes. Exported memory stays attached until the last view of it and this object are gone, also after `close`.

    A pickle of an array leads to the same memory, and not to a copy. `copy.copy` and ``array[...]`` copy the elements.
    """

    __slots__ = ()

    @property
    def dtype(self) -> numpy.dtype[Any]:
        """The element type, as a numpy dtype. `dtype_name` is its name, and needs no numpy. ``bfloat16`` appears as ``uint16``."""
        name = self.dtype_name
        result: numpy.dtype[Any] = require_numpy("dtype").dtype("<u2" if name == "bfloat16" else name)
        return result

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def read(self, timeout: float | None = None) -> Guard:
        """Lock the array for reading, for a ``with`` or ``async with`` block.

        Other readers may have it locked at the same time; writers wait.

        Parameters
        ----------
        timeout
            Seconds to wait for the lock. None waits without limit, 0 not at all.

        Returns
        -------
        Guard
            Its ``with`` block gets a read-only view of the elements.

        Raises
        ------
        TimedOut, WouldBlock
            When the block is entered: the lock was not free in time. `WouldBlock` if the timeout is 0.
        WouldDeadlock
            This thread itself has a write guard of this array.
        Unlinked
            The name was removed, so the array cannot be locked any more.
        ValueError
            The array is closed.
        """
        return Guard(self, False, timeout)

    def write(self, timeout: float | None = None) -> Guard:
        """Lock the array for writing, for a ``with`` or ``async with`` block. All other guards wait.

        The parameters and errors are those of `read`, and `PermissionDenied` if the array was opened read-only.
        """
        return Guard(self, True, timeout)

    def __enter__(self) -> Array:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without axes has no len()")
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        """Return a copy of the selected elements, read under a lock for this access alone."""
        numpy = require_numpy("indexing an array")
        with self.read() as x:
            copy = numpy.array(x[index])
        return copy if copy.ndim else copy[()]

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write the selected elements under a lock for this access alone."""
        require_numpy("indexing an array")
        with self.write() as x:
            x[index] = value

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ", read-only" if self.readonly else ""
        kind = "counted" if self.is_counted else repr(self.name) if self.name else "nameless"
        return f"<ndshm.Array {kind}: {self.dtype_name} {self.shape} order {self.order}{state}>"

    def _repr_html_(self) -> str:
        from html import escape

        rows = {
            "name": self.name,
            "shape": " × ".join(map(str, self.shape)) or "()",
            "dtype": self.dtype_name,
            "order": self.order,
            "bytes": f"{self.nbytes:,}",
        }
        cells = "".join(f"<tr><th>{key}</th><td>{escape(value)}</td></tr>" for key, value in rows.items())
        return f"<table>{cells}</table>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.is_counted:
            return _receive, (_handle(self, True), _machine(), self.dtype_name)
        if not self.name:
            raise NdshmError("this array has no name, so no other process can open it: download it under a name, or send ndshm.share(array)")
        # A plain array is pickled as its name and layout: the receiver attaches to the array that has the name at that time.
        place = (os.fspath(self.directory), self.shape, self.dtype_name, self.order, self.readonly)
        return _attach_pickled, (self.name, _machine(), *place)

    def __dask_tokenize__(self) -> tuple[str, ...]:
        # Without this, dask would pickle the array to tell it from others.
        what = self.id if self.is_counted else self.name
        return type(self).__name__, _machine(), os.fspath(self.directory), what

    def __copy__(self) -> Any:
        return require_numpy("copying an array").array(self[...])

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.__copy__()


@functools.cache
def _machine() -> str:
    """Return the identifier of this machine's boot. Empty where the system has none."""
    try:
        # As bytes: a text file could import a codec. A child that is forked meanwhile by another thread would wait for that import for ever.
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().decode("ascii").strip()
    except OSError:
        return ""


def _refuse_other_machine(machine: str, what: str) -> None:
    if machine and (here := _machine()) and here != machine:
        raise NdshmError(
            f"{what} was pickled on another machine, or before this one was started: shared memory stays on its machine; "
            "send a copy, numpy.array(x)"
        )


def _attach_pickled(
    name: str, machine: str, directory: str, shape: tuple[int, ...], dtype: str, order: str, readonly: bool
) -> Array:
    _refuse_other_machine(machine, f"the array `{name}`")
    found = _core.open(name, lengths=list(shape), dtype=dtype, order=order, directory=directory, readonly=readonly)
    return Array(found)


def _handle(array: Array, reusable: bool) -> str:
    try:
        return in_flight.issue(array, reusable)
    except (NotFound, Unlinked) as error:
        raise HandleExpired(
            f"`{array.name}` cannot be sent any more, because its name is gone: it was unlinked, or this process inherited the array by a fork "
            "and the last counted process has ended. Send a copy, ndshm.share(numpy.asarray(array))"
        ) from error


def _receive(handle: str, machine: str, dtype: str) -> Array:
    _refuse_other_machine(machine, "the array")
    register_with_multiprocessing()  # it may be sent on
    try:
        return Array(_core.receive(handle, dtype))
    except (HandleExpired, NotFound) as error:
        raise HandleExpired(
            "the pickled array is gone, or this pickle cannot be used any more. A pickle that multiprocessing made is loaded once; others "
            "are good for NDSHM_PICKLE_GRACE seconds (600 by default), or as long as a process has the array. Keep the array in "
            "the sender until the receiver has it, or pickle it again"
        ) from error


def register_with_multiprocessing() -> None:
    """Let multiprocessing pickle counted arrays as handles that are used up by their receiver, which loads each pickle once."""
    from multiprocessing.reduction import ForkingPickler

    ForkingPickler.register(Array, _reduce_for_one)


def _reduce_for_one(array: Array) -> Any:
    if array.is_counted:
        return _receive, (_handle(array, False), _machine(), array.dtype_name)
    return array.__reduce__()
