"""Attached arrays."""

from __future__ import annotations

import functools
import operator
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic

from . import _core, in_flight
from ._dtypes import numpy_dtype, refuse_all_but_bits, refuse_mask, shown
from ._errors import HandleExpired, InvalidArgument, NdshmError, NotFound, Unlinked
from ._guard import Guard, require_numpy
from ._imports import importing
from ._operators import Operators
from ._region import region_of
from ._types import Scalar

if TYPE_CHECKING:
    import numpy
    from typing_extensions import TypeIs


class Array(Operators, _core.RawArray, Generic[Scalar]):
    """An n-dimensional array in shared memory.

    `create`, `open` and `from_array` return a *plain* one: it has a name of your choice, which stays until it is removed with `unlink`.
    The elements are in the file and nothing else, so that any program that can map a file can read them. `share`, and `download` without a
    name, return a *counted* one, which its last user frees.

    Elements are reached under a lock that the kernel releases when a process dies::

        with array.write() as x:   # a numpy array; without numpy a memoryview
            x[:] = 1

    ``numpy.asarray(array)`` and ``memoryview(array)`` give the same memory **without** a lock: the caller must ensure that
    nothing else writes. Exported memory stays attached until the last view of it and this object are gone, also after `close`.

    Operators and functions are numpy's: ``a + 1``, ``a == b``, ``a += 1``, ``numpy.add(a, 1, out=a)``, ``a.sum()``. Each locks one array at a time;
    results are numpy arrays. ``a[0] += 1`` is two operations with a lock each, so that changes of other processes may be lost between them.

    For type checkers, ``Array[numpy.uint8]`` is an array of that element type. What is made of a dtype's name, such as ``"uint8"``, has no
    more than `Array`.

    A pickle of an array leads to the same memory, and not to a copy. `copy.copy` and ``array[...]`` copy the elements.
    """

    __slots__ = ()

    def __init__(self, attachment: _core.Attachment) -> None:
        if not _is_watching:
            _watch_pickles()

    @property
    def dtype(self) -> numpy.dtype[Scalar]:
        """The element type, as a numpy dtype. `dtype_name` is its name, and needs no numpy.

        ``bfloat16`` is the type of the package ``ml_dtypes``. Without that package the elements appear as their bits, in ``uint16``.
        """
        return numpy_dtype(self._dtype_code)

    @property
    def dtype_name(self) -> str:
        """numpy's name of the element type, such as ``"uint8"``."""
        return shown(self._dtype_code)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def axes(self) -> tuple[str, ...]:
        """A word for each axis, in the order of `shape`: its name, or its number if it has no name of its own.

        Downloads take the names from the volume. Empty if no axis has a name, as in an array that was created here, or one that is opened
        with another shape than its description has.
        """
        return super().axes

    @property
    def notes(self) -> dict[str, str]:
        """The notes of the array's description when it was attached. Empty without a description.

        A download notes ``source``, ``bbox``, ``axes``, ``resolution`` and more about its volume; layout/description.md lists them. Those of a plain
        array are in its file, and any program that may write to it can change them: check what depends on them. Those of a counted array
        travel in its pickles.
        """
        return super().notes

    def read(self, timeout: float | None = None) -> Guard[Scalar]:
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

    def write(self, timeout: float | None = None) -> Guard[Scalar]:
        """Lock the array for writing, for a ``with`` or ``async with`` block. All other guards wait.

        The parameters and errors are those of `read`, and `PermissionDenied` if the array was opened read-only.
        """
        return Guard(self, True, timeout)

    def part(self, index: Any) -> Array[Scalar]:
        """Return the array of a region of the same memory. Nothing is copied, and what is written to it is in this array.

        The part can be sent like the array, and reaches other processes as the same memory: ``pool.map(fill, array.parts())``. It has no lock
        of its own: `read` and `write` of a part lock **the whole array**. So workers that each have another part write without a
        lock, through ``numpy.asarray(part)``, which is as it should be as long as the parts do not overlap.

        Name, `unlink`, `freeze` and `refcount` are those of the whole array. The part keeps the memory, and not this object, attached.

        Parameters
        ----------
        index
            Integers, slices (also with steps), and at most one ``...``, such as ``numpy.s_[:, 5, ::2]``. The rules are those of numpy: an
            integer removes its axis, axes at the end may be left out.

        Raises
        ------
        InvalidArgument
            The index is no such region: a list, an array, a mask or ``None``. ``array[index]`` copies those elements.
        IndexError
            An integer is outside of its axis, or there are too many.
        ValueError
            The array is closed.

        Examples
        --------
        >>> array = ndshm.share_zeros((3, 4), "uint8")
        >>> with array.part(numpy.s_[1:, ::2]).write() as x:
        ...     x[:] = 7
        >>> array[1]
        array([7, 0, 7, 0], dtype=uint8)
        """
        return Array(self._part_at(*region_of(index, self.shape, self.strides)))

    def parts(self, axis: int = 0) -> Iterator[Array[Scalar]]:
        """Yield the `part` at each position along an axis, without that axis.

        Raises
        ------
        InvalidArgument
            There is no such axis.
        """
        axes = operator.index(axis)
        if not -self.ndim <= axes < self.ndim:
            raise InvalidArgument(f"axis={axis}: the array has {self.ndim} axes")
        before = (slice(None),) * (axes % self.ndim)
        return map(lambda position: self.part((*before, position)), range(self.shape[axes]))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Return the elements without a lock, as ``numpy.asarray`` does. Libraries that see this method do not read row by row."""
        numpy = require_numpy("converting an array")
        x = numpy.asarray(memoryview(self))
        if dtype is not None and self._dtype_code == "bfloat16" and numpy.dtype(dtype) != x.dtype:
            if self.dtype == x.dtype:
                raise InvalidArgument("bfloat16 elements are only bits to numpy here: install ml_dtypes to convert them to numbers")
            x = x.view(self.dtype)
        if dtype is not None and numpy.dtype(dtype) != x.dtype:
            if copy is False:
                raise ValueError(f"an array of {self.dtype_name} is no array of {numpy.dtype(dtype)} without a copy")
            return x.astype(dtype)
        return x.copy() if copy else x

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without axes has no len()")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        """Yield copies along the first axis, each read under a lock of its own."""
        # Without this method pandas takes an array for one object.
        if not self.shape:
            raise TypeError("an array without axes cannot be iterated over")
        return map(self.__getitem__, range(self.shape[0]))

    def __int__(self) -> int:
        if not self.shape:
            return int(self[...])
        raise TypeError("an array is no number: read one element, int(array[index])")  # int() would parse the bytes as text

    def __float__(self) -> float:
        if not self.shape:
            return float(self[...])
        raise TypeError("an array is no number: read one element, float(array[index])")  # as above

    def __getitem__(self, index: Any) -> Any:
        """Return a copy of the selected elements, read under a lock for this access alone. `part` returns the same memory."""
        numpy = require_numpy("indexing an array")
        with self.read() as x:
            copy = numpy.array(x[index])
        return copy if copy.ndim else copy[()]

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write the selected elements under a lock for this access alone."""
        require_numpy("indexing an array")
        refuse_mask(value)
        if isinstance(value, Array) and value._dtype_code == "bfloat16":
            value = value[...]  # the buffer has bits, which numpy would take for numbers
            if value.dtype.name != "bfloat16" and self._dtype_code != "bfloat16":
                raise InvalidArgument("bfloat16 elements are only bits to numpy here: install ml_dtypes to convert them to numbers")
        with self.write() as x:
            if self._dtype_code == "bfloat16":
                refuse_all_but_bits(x.dtype, value)
            x[index] = value

    def __repr__(self) -> str:
        state = self._state()
        kind = "counted" if self.is_counted else repr(self.name) if self.name else "nameless"
        if self._is_part:
            lengths, order = self._whole
            whole = f"{tuple(lengths)} order {order}"
            return f"<ndshm.Array part of {kind}: {self.dtype_name} {self.shape} strides {self.strides} of {whole}{state}>"
        axes = f" axes {', '.join(map(_printable, self.axes))}" if self.axes else ""
        return f"<ndshm.Array {kind}: {self.dtype_name} {self.shape}{axes} order {self.order}{state}>"

    def _state(self) -> str:
        return ", closed" if self.closed else ", read-only" if self.readonly else ""

    def _repr_html_(self) -> str:
        with importing("ndshm._html"):
            from . import _html as html

        kind = "counted" if self.is_counted else "plain" if self.name else "nameless"
        rows = {
            **({"name": self.name} if self.name else {}),
            "kind": f"{'part of ' if self._is_part else ''}{kind}{self._state()}",
            "shape": html.lengths(self.shape),
            **({"axes": ", ".join(map(_printable, self.axes))} if self.axes else {}),
            "dtype": self.dtype_name,
            "order": self.order or "strided",
            "bytes": f"{self.nbytes:,}",
        }
        return html.table(rows) + html.picture(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._sent(True)

    def _sent(self, reusable: bool) -> tuple[Any, ...]:
        """Return how the receiver of a pickle attaches to this array, or to the whole array and then to this part."""
        if self._is_part:
            return _receive_part, (*self._sent_whole(reusable), (self._offset, self.shape, self.strides))
        return self._sent_whole(reusable)

    def _sent_whole(self, reusable: bool) -> tuple[Any, ...]:
        if self.is_counted:
            return _receive, (_handle(self, reusable), _machine(), self._dtype_code, self.notes)
        if not self.name:
            raise NdshmError(
                "this array was painted by processes without a name, so no other process can open it: download it by threads or under a "
                "name, or send ndshm.share(array)"
            )
        # A plain array is pickled as its name and layout: the receiver attaches to the array that has the name at that time.
        lengths, order = self._whole
        place = (os.fspath(self.directory), tuple(lengths), self._dtype_code, order, self.readonly)
        return _attach_pickled, (self.name, _machine(), *place)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        # Without this, dask would pickle the array to tell it from others.
        what = self.id if self.is_counted else self.name
        part = (self._offset, self.shape, self.strides) if self._is_part else ()
        return type(self).__name__, _machine(), os.fspath(self.directory), what, *part

    def __copy__(self) -> Any:
        return require_numpy("copying an array").array(self[...])

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.__copy__()


def is_array(x: object) -> TypeIs[Array]:
    """Return whether `x` is an array. `isinstance` says the same, and type checkers lose the element type by it."""
    return isinstance(x, Array)


def _printable(name: str) -> str:
    """Escape what would change how a terminal shows other characters: names of axes come from a description that any program may write."""
    return name if name.isprintable() else ascii(name)[1:-1]


# Whether the numpy arrays are watched that multiprocessing pickles: a view of an array would be copied without a word.
_is_watching = False


def _watch_pickles() -> None:
    """Begin to watch, if this process uses both multiprocessing and numpy by now."""
    global _is_watching
    if sys.modules.get("multiprocessing.reduction") and sys.modules.get("numpy"):
        _is_watching = True
        with importing("ndshm.multiprocessing"):
            from . import multiprocessing

        if not multiprocessing._is_decided:
            multiprocessing.watch_views()


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


def _issue(array: Array, reusable: bool) -> str:
    """Return the handle of an array, good for one process more, or for any number of processes if it is reusable."""
    return in_flight._notes.issue(array, reusable, in_flight.grace())


def _handle(array: Array, reusable: bool) -> str:
    try:
        return _issue(array, reusable)
    except (NotFound, Unlinked) as error:
        raise HandleExpired(
            f"`{array.name}` cannot be sent any more, because its name is gone: it was unlinked, or this process inherited the array by a fork "
            "and the last counted process has ended. Send a copy, ndshm.share(numpy.asarray(array))"
        ) from error


def _receive(handle: str, machine: str, dtype: str, notes: dict[str, str], kind: type[Array] = Array) -> Array:
    _refuse_other_machine(machine, "the array")
    register_with_multiprocessing()  # it may be sent on
    try:
        return kind(_core.receive(handle, dtype, notes))
    except (HandleExpired, NotFound) as error:
        raise HandleExpired(
            "the pickled array is gone, or this pickle cannot be used any more. A pickle that multiprocessing made is loaded once; others "
            "are good for NDSHM_PICKLE_GRACE seconds (600 by default), or as long as a process has the array, but when memory runs out "
            "the process that made them gives up those that were loaded before and that no process uses. Keep the array in the sender "
            "until all receivers have it, or pickle it again (with `retries=` of submit, map or compute, dask sends the result of "
            "another task again)"
        ) from error


def _receive_part(attach: Any, arguments: tuple[Any, ...], region: tuple[int, tuple[int, ...], tuple[int, ...]]) -> Array:
    with attach(*arguments) as whole:
        return Array(whole._part_at(*region))


def register_with_multiprocessing() -> None:
    """Let multiprocessing pickle counted arrays as handles that are used up by their receiver, which loads each pickle once."""
    with importing("multiprocessing.reduction"):
        from multiprocessing.reduction import ForkingPickler

    ForkingPickler.register(Array, _reduce_for_one)


def _reduce_for_one(array: Array) -> Any:
    return array._sent(False)
